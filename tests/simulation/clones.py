"""Second machines with the name of a node that runs, on an empty disk or on a copy of the node's. docs/design.md 6.6.

Peers know the node's process, so they refuse the other one: what the clone stores is no copy, nobody counts it, and it has no lease. So
it delivers nothing. A clone of these worlds ends before its node does, and before any peer begins anew: a peer that has just begun takes
the first who speaks for the node, and a copied disk is then explained (\"Limits\" in that section, and script `cloned-with-its-disk`).
"""

import asyncio
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shadowrelay.model.routing import HostPort
from tests.simulation.disk import SlowDisk

if TYPE_CHECKING:
    from tests.simulation.machine import Machine, Machines
    from tests.simulation.world import World

CLONE_HOST = "10.0.0.99"


class Unwatched:
    """Whatever this node holds, nobody counts."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


def clone_of(machine: "Machine", host: str = CLONE_HOST) -> "Machine":
    """At another address, from which peers take it for what it says."""
    directory = machine.directory.with_name(host)
    server = machine.settings.server.model_copy(update={"data_directory": directory})
    connectors = [each.model_copy(update={"listen": HostPort(host, each.listen.port)}) for each in machine.settings.receive_connectors]
    settings = machine.settings.model_copy(update={"server": server, "receive_connectors": tuple(connectors)})
    disk = SlowDisk(random.Random(1))
    return replace(machine, host=host, directory=directory, settings=settings, disk=disk, process=None, node=None, watcher=None)


class Clones:
    """One at a time. `keep`: copies the disk of a machine that runs."""

    def __init__(self, world: "World", keep: Callable[["Machine"], Any], chance: random.Random) -> None:
        self._world, self._keep, self._chance = world, keep, chance
        self._present: tuple[Machine, Machines, asyncio.Future[Any]] | None = None

    async def begin(self) -> None:
        """For less than the span. Nothing has kept the node from its peers until now, so none of them may count it as lost meanwhile."""
        world, chance = self._world, self._chance
        up = [machine for machine in world.machines if machine.process is not None and not machine.process.is_paused]
        if self._present is not None or len(up) < len(world.machines):
            return
        machine = chance.choice(up)
        if not all(world.could_meet(machine.name, other.name) for other in world.machines if other is not machine):
            return
        clone, machines = clone_of(machine), world.other_machines(Unwatched())
        world._names[clone.host] = "clone"
        shutil.rmtree(clone.directory, ignore_errors=True)
        what = "clone, on an empty disk"
        if chance.random() < 0.5:
            what = "clone, on a copied disk"
            shutil.copytree(self._keep(machine).directory, clone.directory)
        world._ends(None, machine.name, "", chance.uniform(0.2, 0.8) * world.shape.span, partial(self.end, clone), what)
        self._present = clone, machines, asyncio.ensure_future(machines.start(clone))

    async def end(self, clone: "Machine | None" = None) -> None:
        """That one, or whichever there is. In no time: what still runs has no effect."""
        if self._present is None or clone not in (None, self._present[0]):
            return
        (clone, machines, started), self._present = self._present, None
        if clone.is_up:
            started.cancel()
            self._ended = asyncio.ensure_future(machines.kill(clone))
            await asyncio.sleep(0)
