"""Injects the faults of a plan into a running cluster, each at its instant, and records when. docs/design.md 3."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from shadowrelay.lab.account import Fault, FaultKind
from shadowrelay.lab.cluster import Cluster, NodeProcess, Passing
from shadowrelay.lab.traffic import Load, Sink
from shadowrelay.model.message import Envelope
from shadowrelay.model.replies import Reply
from tests.crash.plan import DISKS, KILLS, STOPS, Disruption, Plan, Step, When
from tests.kit.bad_disk import BadDisk, DiskState

ARMED_SECONDS_MAX = 3.0  # if the instant does not come by then, the fault is injected anyway
WAIT_SECONDS_MAX = 6.0  # for acknowledgements, which are few while a server is out of reach

PASSINGS = {
    When.BEFORE_ACK: Passing.HELD_ARRIVES,
    When.COPY_HELD: Passing.HELD_PASSED,
    When.COPY_COMING: Passing.COMMIT_ARRIVES,
    When.COPY_CAME: Passing.COMMIT_PASSED,
}
KINDS = {
    Disruption.KILL: FaultKind.KILL,
    Disruption.AWAY: FaultKind.KILL,
    Disruption.WIPE: FaultKind.WIPE,
    Disruption.PAUSE: FaultKind.PAUSE,
    Disruption.NAP: FaultKind.PAUSE,
    Disruption.CUT: FaultKind.CUT,
    Disruption.ISOLATE: FaultKind.CUT,
    Disruption.HALF_CUT: FaultKind.HALF_CUT,
    Disruption.SLOW: FaultKind.SLOW,
    Disruption.BREAK: FaultKind.BREAK,
    **dict.fromkeys(DISKS, FaultKind.DEAD_DISK),
}


DISK_STATES = {
    Disruption.READ_ONLY: DiskState.READ_ONLY,
    Disruption.IO_ERROR: DiskState.IO_ERROR,
    Disruption.HANG: DiskState.HANGS,
}


class Trouble:
    """Injects the faults of one plan. `faults` records them. `disks`: of all nodes, if one of them is to die."""

    def __init__(
        self, plan: Plan, cluster: Cluster, sinks: tuple[Sink, ...], load: Load, disks: Mapping[str, BadDisk] | None = None
    ) -> None:
        self._disks = disks or {}
        self.faults: list[Fault] = []
        self.wiped_at: dict[str, float] = {}
        self._plan = plan
        self._cluster = cluster
        self._sinks = sinks
        self._load = load
        self._freezes = 0

    @property
    def acknowledged_count(self) -> int:
        """By all nodes, so far."""
        return sum(len(sent.acknowledged_ids) for sent in self._load.sent)

    async def run(self) -> None:
        """Run all steps; each ends before the next begins, unless they overlap."""
        async with asyncio.TaskGroup() as group:
            running: list[asyncio.Task[None]] = []
            for step in self._plan.steps:
                begun = asyncio.Event()
                task = group.create_task(self._step(step, begun))
                running.append(task)
                await begun.wait()
                if not step.is_overlapped:
                    await asyncio.gather(*running)
                    running.clear()

    async def _step(self, step: Step, begun: asyncio.Event) -> None:
        if step.is_frozen:
            self._freeze(1)
        await self._until_acknowledged(self.acknowledged_count + step.after)
        node = self._cluster.nodes[step.node]
        await self._at(step, lambda: self._strike(step, node))
        began_at = node.kills[-1] if step.disruption in KILLS else time.time()
        thaw = asyncio.create_task(self._thaw(step))
        begun.set()
        try:
            await self._carry_out(step, node)
        finally:
            self.faults.append(
                Fault(KINDS[step.disruption], step.node, began_at, time.time(), step.other if step.disruption is Disruption.CUT else "")
            )
            await thaw

    async def _thaw(self, step: Step) -> None:
        await asyncio.sleep(step.thaw_after)
        if step.is_frozen:
            self._freeze(-1)

    def _freeze(self, change: int) -> None:
        self._freezes += change
        for sink in self._sinks:
            sink.is_deferring = self._freezes > 0

    async def _until_acknowledged(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while self.acknowledged_count < count and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def _strike(self, step: Step, node: NodeProcess) -> None:
        """The part of a fault that must happen at its instant."""
        if step.disruption in KILLS:
            node.kill_now()
        elif step.disruption in STOPS:
            node.signal(signal.SIGSTOP)

    async def _at(self, step: Step, strike: Callable[[], None]) -> None:
        if step.moment is When.NOW:
            strike()
            return
        struck = asyncio.Event()

        def now(of: str) -> None:
            if of == step.node and not struck.is_set():
                strike()
                struck.set()

        with self._watching(step.moment, now):
            try:
                await asyncio.wait_for(struck.wait(), ARMED_SECONDS_MAX)
            except TimeoutError:
                now(step.node)

    @contextmanager
    def _watching(self, moment: When, now: Callable[[str], None]) -> Iterator[None]:
        """Meanwhile, call `now` with the name of the affected node whenever the instant comes."""
        before = [sink.decide for sink in self._sinks]
        if moment is When.AFTER_ACK:
            self._load.on_acknowledged = now
        elif moment is When.DELIVERY:
            for sink, decide in zip(self._sinks, before, strict=True):
                sink.decide = and_then(decide, now)
        else:
            for (caller, called), wire in self._cluster.wires.items():
                of = called if moment in (When.COPY_COMING, When.COPY_CAME) else caller
                wire.on_passing = _when(PASSINGS[moment], of, now)
        try:
            yield
        finally:
            self._load.on_acknowledged = lambda node: None
            for sink, decide in zip(self._sinks, before, strict=True):
                sink.decide = decide
            for wire in self._cluster.wires.values():
                wire.on_passing = lambda passing: None

    async def _carry_out(self, step: Step, node: NodeProcess) -> None:
        if step.disruption in KILLS:
            await node.kill()
            if step.disruption is Disruption.WIPE:
                self.wiped_at[node.name] = time.time()
                node.wipe()
            await asyncio.sleep(step.seconds)
            await node.start()
        elif step.disruption in STOPS:
            await asyncio.sleep(step.seconds)
            node.signal(signal.SIGCONT)
        elif step.disruption in DISKS:
            self._disks[node.name].become(DISK_STATES[step.disruption])
            await asyncio.sleep(step.seconds)
            self._disks[node.name].become(DiskState.WELL)
        else:
            await self._on_wires(step)

    async def _on_wires(self, step: Step) -> None:
        wires = self._cluster.wires
        if step.disruption is Disruption.CUT:
            touched = [wires[step.node, step.other], wires[step.other, step.node]]
        elif step.disruption is Disruption.HALF_CUT:
            touched = [wires[step.node, step.other]]
        elif step.disruption is Disruption.ISOLATE:
            touched = [wire for pair, wire in wires.items() if step.node in pair]
        else:
            touched = [wire for (caller, _), wire in wires.items() if caller == step.node]
        for wire in touched:
            if step.disruption is Disruption.SLOW:
                wire.delay_there = 0.15
            elif step.disruption is Disruption.BREAK:
                wire.copies_to_break = 3
            else:
                wire.cut()
        await asyncio.sleep(step.seconds)
        for wire in touched:
            if step.disruption is not Disruption.SLOW and step.seconds % 1 < 0.5:
                wire.break_sessions()
            wire.heal()


def and_then(decide: Callable[[Envelope], Reply | None], now: Callable[[str], None]) -> Callable[[Envelope], Reply | None]:
    """Decides, and calls `now` with the client's name of what is taken."""

    def both(envelope: Envelope) -> Reply | None:
        reply = decide(envelope)
        if reply is None:  # accepted: the fault comes before the answer
            now(envelope.client_name)
        return reply

    return both


def _when(wanted: Passing, of: str, now: Callable[[str], None]) -> Callable[[Passing], None]:
    return lambda passing: now(of) if passing is wanted else None
