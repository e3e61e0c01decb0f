"""Worlds with fates: several nodes on one machine, or under one label, are destroyed at the same instant, disks included.

docs/design.md 6.15. What was called redundant survives that; with `shared_fate_is_redundant` it does not, and the checks say so.
`python -m tests.simulation.run --machines SEED`, or `--machines --seeds 1-100`.

| what nodes share | what is destroyed at once |
|---|---|
| a kernel | all nodes of a machine: they have its boot id, and another one after it was without power |
| a label | all virtual machines of a hypervisor, each with a kernel of its own |
| overlapping labels | both nodes that have a label: five nodes in a ring, each with two labels, so that only neighbours share a fate |
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shadowrelay.lab.account import FaultKind
from tests.simulation.machine import Machine
from tests.simulation.world import World

KERNEL, LABEL, OVERLAP = "kernel", "label", "overlapping labels"
RING = 5  # nodes, so that each has two neighbours and two others


class FatedWorld(World):
    """`is_trusting`: with `shared_fate_is_redundant`. `together`: the machines or labels, as the hosts that each takes with it."""

    def __init__(self, seed: int, *, is_trusting: bool = False, copies: int = 1, **arguments: Any) -> None:
        super().__init__(seed, copies=copies, **arguments)
        chance = random.Random(seed ^ 0xFA7E)
        self.shared = chance.choice((KERNEL, KERNEL, LABEL, *([OVERLAP] if copies == 1 else [])))
        if self.shared == OVERLAP:
            self._machines_count, self.shape.count = RING, RING
        else:
            self._machines_count = chance.choice((2, 2, 3)) if copies == 1 else copies + 1
            self.shape.count = self._machines_count + chance.randint(1, self._machines_count)
        self.shape.sites = chance.choice((1, self._machines_count))
        self.shape.transport["shared_fate_is_redundant"] = is_trusting
        self._boots: dict[str, int] = defaultdict(int)  # by machine
        self.together: tuple[frozenset[str], ...] = ()

    def _build(self, directory: Path) -> None:
        super()._build(directory)
        self.checker.lost_together = self.together

    def _machines(self, directory: Path) -> list[Machine]:
        machines = super()._machines(directory)
        takes: dict[str, set[str]] = defaultdict(set)
        for number, machine in enumerate(machines):
            if self.shared == OVERLAP:
                names = (f"row{number}", f"row{(number + 1) % RING}")
            else:
                names = (f"machine{number % self._machines_count}",)
            for name in names:
                takes[name].add(machine.host)
            if self.shared == KERNEL:
                machine.boot = f"{names[0]} 0"
            else:
                machine.boot = f"{machine.host} 0"
                server = machine.settings.server.model_copy(update={"failure_domains": names})
                machine.settings = machine.settings.model_copy(update={"server": server})
        self.together = tuple(map(frozenset, takes.values()))
        return machines

    def _lost_with(self, machine: Machine) -> Sequence[Machine]:
        """All that one of its machines or labels takes, itself included."""
        hosts = self.chance.choice([hosts for hosts in self.together if machine.host in hosts])
        return [other for other in self.machines if other.host in hosts]

    async def _power_lost(self, machines: Sequence[Machine], kind: FaultKind, what: str) -> None:
        """All at the same instant; their kernels are others afterwards."""
        up = [machine for machine in machines if machine.is_up]
        for machine in machines:
            name, _, _ = machine.boot.rpartition(" ")
            self._boots[name] += 1
        for machine in machines:
            name, _, _ = machine.boot.rpartition(" ")
            machine.boot = f"{name} {self._boots[name]}"
        for machine in up:
            self._ends(kind, machine.name, "", self._lasts(), partial(self.processes.start, machine), what)
        await asyncio.gather(*(self.processes.kill(machine, is_silent=True) for machine in up))

    async def _kill(self) -> None:
        """A process, or a machine with all that run on it."""
        if self.chance.random() < 0.5 or (machine := self._a_machine()) is None:
            await super()._kill()
        else:
            self.counts["machine without power"] += 1
            await self._power_lost(self._lost_with(machine), FaultKind.KILL, "power loss")

    async def _wipe(self) -> None:
        """A disk, or a machine with all disks in it: of nodes that are down, too. As many of them as there are copies."""
        machine = self._a_machine()
        if machine is None or not self.checker.may_wipe(machine.host):
            return
        if self.chance.random() < 0.3:
            await super()._wipe()
            return
        burning = {machine.host: machine for machine in self._lost_with(machine)}
        for _ in range(1, self._copies):
            if (another := self._a_machine()) is not None:
                burning |= {machine.host: machine for machine in self._lost_with(another)}
        self.counts["machine destroyed"] += 1
        down = [machine for machine in burning.values() if not machine.is_up]
        await self._power_lost(list(burning.values()), FaultKind.WIPE, "wipe")
        for machine in down:  # whoever stopped it starts it again
            self._ends(FaultKind.WIPE, machine.name, "", 0.0, _nothing, "wipe, of a node that was down")
        for machine in burning.values():
            self.processes.wipe(machine)
        self.checker.wiped(*burning)


async def _nothing() -> None:
    return
