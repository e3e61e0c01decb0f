"""Doing what a plan says to a running cluster, each fault at its instant, and writing down when it was."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shadowrelay.lab.account import Fault, FaultKind
from shadowrelay.lab.cluster import Cluster, NodeProcess, Passing
from shadowrelay.lab.traffic import Load, Sink
from shadowrelay.model.message import Envelope
from shadowrelay.model.replies import Reply
from tests.crash.plan import KILLS, STOPS, Deed, Moment, Plan, Step

ARMED_SECONDS_MAX = 3.0  # an instant that does not come: now, then
WAIT_SECONDS_MAX = 6.0  # for acknowledgements, which are few while a server is out of reach

PASSINGS = {
    Moment.BEFORE_ACK: Passing.HELD_ARRIVES,
    Moment.COPY_HELD: Passing.HELD_PASSED,
    Moment.COPY_COMING: Passing.COMMIT_ARRIVES,
    Moment.COPY_CAME: Passing.COMMIT_PASSED,
}
KINDS = {
    Deed.KILL: FaultKind.KILL,
    Deed.AWAY: FaultKind.KILL,
    Deed.WIPE: FaultKind.WIPE,
    Deed.PAUSE: FaultKind.PAUSE,
    Deed.NAP: FaultKind.PAUSE,
    Deed.CUT: FaultKind.CUT,
    Deed.ISOLATE: FaultKind.CUT,
    Deed.HALF_CUT: FaultKind.HALF_CUT,
    Deed.SLOW: FaultKind.SLOW,
    Deed.BREAK: FaultKind.BREAK,
}


class Trouble:
    """Makes the faults of one plan. `faults` is what was done."""

    def __init__(self, plan: Plan, cluster: Cluster, sinks: tuple[Sink, ...], load: Load) -> None:
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
        """All steps; each ends before the next begins, but those that overlap."""
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
        began_at = node.kills[-1] if step.deed in KILLS else time.time()
        thaw = asyncio.create_task(self._thaw(step))
        begun.set()
        try:
            await self._carry_out(step, node)
        finally:
            self.faults.append(Fault(KINDS[step.deed], step.node, began_at, time.time(), step.other if step.deed is Deed.CUT else ""))
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
        """What has to happen at that very instant."""
        if step.deed in KILLS:
            node.kill_now()
        elif step.deed in STOPS:
            node.signal(signal.SIGSTOP)

    async def _at(self, step: Step, strike: Callable[[], None]) -> None:
        if step.moment is Moment.NOW:
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
    def _watching(self, moment: Moment, now: Callable[[str], None]) -> Iterator[None]:
        """`now` is called with the name of the node that the instant is about."""
        before = [sink.decide for sink in self._sinks]
        if moment is Moment.AFTER_ACK:
            self._load.on_acknowledged = now
        elif moment is Moment.DELIVERY:
            for sink, decide in zip(self._sinks, before, strict=True):
                sink.decide = _and_then(decide, now)
        else:
            for (caller, called), wire in self._cluster.wires.items():
                of = called if moment in (Moment.COPY_COMING, Moment.COPY_CAME) else caller
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
        if step.deed in KILLS:
            await node.kill()
            if step.deed is Deed.WIPE:
                self.wiped_at[node.name] = time.time()
                node.wipe()
            await asyncio.sleep(step.seconds)
            await node.start()
        elif step.deed in STOPS:
            await asyncio.sleep(step.seconds)
            node.signal(signal.SIGCONT)
        else:
            await self._on_wires(step)

    async def _on_wires(self, step: Step) -> None:
        wires = self._cluster.wires
        if step.deed is Deed.CUT:
            touched = [wires[step.node, step.other], wires[step.other, step.node]]
        elif step.deed is Deed.HALF_CUT:
            touched = [wires[step.node, step.other]]
        elif step.deed is Deed.ISOLATE:
            touched = [wire for pair, wire in wires.items() if step.node in pair]
        else:
            touched = [wire for (caller, _), wire in wires.items() if caller == step.node]
        for wire in touched:
            if step.deed is Deed.SLOW:
                wire.delay_there = 0.15
            elif step.deed is Deed.BREAK:
                wire.copies_to_break = 3
            else:
                wire.cut()
        await asyncio.sleep(step.seconds)
        for wire in touched:
            if step.deed is not Deed.SLOW and step.seconds % 1 < 0.5:
                wire.break_sessions()
            wire.heal()


def _and_then(decide: Callable[[Envelope], Reply | None], now: Callable[[str], None]) -> Callable[[Envelope], Reply | None]:
    def both(envelope: Envelope) -> Reply | None:
        reply = decide(envelope)
        if reply is None:  # it is taken; what the answer says is not heard any more
            now(envelope.client_name)
        return reply

    return both


def _when(wanted: Passing, of: str, now: Callable[[str], None]) -> Callable[[Passing], None]:
    return lambda passing: now(of) if passing is wanted else None
