"""A machine that runs a node: its disk, its clocks, its processes one after the other."""

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import select

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import ContentPlace
from shadowrelay.model.queue import AttemptRecord, NewMessage
from shadowrelay.model.replies import ContentCorrupt
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Settings
from shadowrelay.model.tracking import TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.node.closing import close_with
from shadowrelay.node.node import Node
from shadowrelay.pipeline.context import SystemClock
from shadowrelay.ports import DeliveryJob
from shadowrelay.settings.configuration import LoadedSettings
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.store import promises, tables
from shadowrelay.store.ledger import Ledger
from shadowrelay.store.rows import KEPT, NEEDS_CONTENT, Row, decode_row
from tests.kit.fake_machine import FakeMachine
from tests.kit.receiving import VirtualListener
from tests.simulation.disk import Lagging, SlowDisk, read_through
from tests.simulation.loop import Process, WorldLoop
from tests.simulation.network import Network
from tests.simulation.power import Power

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Observer(Protocol):
    """Who watches over the shoulder of each node."""

    def committed(self, machine: "Machine", rows: Sequence[tuple[MessageId, Row | None]]) -> None: ...
    def known(self, message: NewMessage) -> None: ...
    def attempted(self, machine: "Machine", attempt: AttemptRecord) -> None: ...
    def tracked(self, machine: "Machine", event: TrackingEvent) -> None: ...
    def ends_data(self, machine: "Machine", message_id: MessageId) -> None: ...
    def opened(self, machine: "Machine", rows: Sequence[Row], damaged: Sequence[MessageId]) -> None: ...


@dataclass(slots=True, eq=False)
class Machine:
    """Shapes: `name` of its node, `host` its address. Units: `rate` is its seconds for each of the world."""

    name: str
    host: str
    site: str
    directory: Path
    rate: float
    booted: float  # what CLOCK_BOOTTIME shows at the beginning of the world
    disk: SlowDisk
    settings: Settings
    wall_offset: float = 0.0
    started_at: float = 0.0  # its process
    process: Process | None = None
    node: "SimulatedNode | None" = None
    watcher: "asyncio.Future[None] | None" = None  # starts the node again if its database is an older copy
    backup: Path | None = None
    boot: str = ""  # of its kernel; empty: it has none to tell

    @property
    def is_up(self) -> bool:
        return self.process is not None


class MachineClock(SystemClock):
    """The machine's clocks; what a process counts as `ran` is the real clock's own rule."""

    def __init__(self, machine: Machine, loop: WorldLoop) -> None:
        self._machine, self._loop = machine, loop
        super().__init__()

    def awake(self) -> float:
        return self._machine.booted + self._loop.world_time() * self._machine.rate

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.world_time() * self._machine.rate + self._machine.wall_offset)


class MemoryTrackingLog:
    """Rows as they are, for the checkers. What was written survives the process and its disk."""

    dropped_count = 0
    pending_count = 0
    hung_seconds = 0.0

    def __init__(self, machine: Machine, process: Process, observer: Observer) -> None:
        self._machine, self._process, self._observer = machine, process, observer

    def write(self, event: TrackingEvent) -> None:
        if not self._process.is_dead:
            self._observer.tracked(self._machine, event)

    async def sync(self) -> None:
        await asyncio.sleep(self._machine.disk.lag())

    def rotate_if_due(self) -> None:
        return

    async def close(self) -> None:
        return


class SimulatedNode(Node):
    """A whole node on the world's clock, network and disks. No administration."""

    def __init__(self, machine: Machine, process: Process, loop: WorldLoop, network: Network, observer: Observer) -> None:
        async def dial(to: HostPort) -> Any:
            return await network.dial(machine.host, to, process)

        loaded = LoadedSettings(machine.directory / "node.toml", machine.settings, {})
        kernel = FakeMachine(boot=machine.boot)
        super().__init__(loaded, clock=MachineClock(machine, loop), dial=dial, open_listener=VirtualListener.open, machine=kernel)
        self._simulated, self._process, self._observer = machine, process, observer
        self._shipper = None  # the log is memory

    async def start(self) -> None:
        settings, machine = self._settings, self._simulated
        store = Lagging(machine.disk, lambda rows: self._observer.committed(machine, rows))
        self._ledger = await Ledger.open(
            settings.server.data_directory,
            server=settings.server.name,
            now=self._clock.now,
            safety_net_hold_time=settings.transport.safety_net_hold_time,
            message_expiration_timeout=settings.transport.message_expiration_timeout,
            inline=store,
        )
        close_with(self._opened, self._ledger.close)
        read_through(self._ledger, machine.disk)
        await self._show_what_was_found(store)
        self._watch_ledger()
        self._tracking = MemoryTrackingLog(self._simulated, self._process, self._observer)  # type: ignore[assignment]
        self._build_services()
        self._context.peers.load(self._ledger.peers.listed())
        await self._open_connectors()
        await self._services.rolled_back.introduce()
        if self.is_rolled_back:
            return
        self._start_services()
        self._services.readiness.is_running = True

    async def _show_what_was_found(self, store: Lagging) -> None:
        """All rows, and the messages that have to be delivered and whose content is not as it was."""
        ledger = self._ledger

        def read(connection: Any) -> list[Row]:
            return [decode_row(columns) for columns in connection.execute(select(*[tables.MESSAGE.c[name] for name in KEPT]))]

        rows = await store.made_readers.at_once(read)
        damaged = [row.message_id for row in rows if row.claim.role in NEEDS_CONTENT and row.place and not _is_readable(ledger, row.place)]
        self._observer.opened(self._simulated, rows, damaged)

    def _make_deliverer(self) -> SmtpDeliverer:
        deliverer = super()._make_deliverer()
        deliver = deliverer.deliver

        async def watched(job: DeliveryJob) -> Any:
            def ends_data() -> bool:
                may = job.may_end_data()
                if may:
                    self._observer.ends_data(self._simulated, job.envelope.message_id)
                return may

            return await deliver(replace(job, may_end_data=ends_data))

        deliverer.deliver = watched  # type: ignore[method-assign]
        return deliverer

    def _watch_ledger(self) -> None:
        ledger, observer, machine = self._ledger, self._observer, self._simulated
        commit = ledger.commit

        def watched(promise: Any, *arguments: Any, **named: Any) -> Any:
            if promise is promises.attempt:
                record: AttemptRecord = arguments[0]
                for generated in record.generated:
                    observer.known(generated.message)
                observer.attempted(machine, record)
            elif promise in (promises.accepted, promises.hold):
                observer.known(arguments[0])
            return commit(promise, *arguments, **named)

        ledger.commit = watched  # type: ignore[method-assign]


class Machines:
    """Starting and ending processes."""

    def __init__(self, loop: WorldLoop, network: Network, observer: Observer, chance: random.Random, power: Power | None) -> None:
        self._loop, self._network, self._observer, self._chance, self._power = loop, network, observer, chance, power
        self.before_change: Callable[[], Awaitable[None]] | None = None  # a process begins or ends
        self.closing_seconds = 0.0  # what a node needs that has recognised an older copy, for a next hop or a disk that does not answer

    async def start(self, machine: Machine) -> None:
        """A new process on the disk as it is."""
        assert not machine.is_up
        await self._changes()
        process = Process(machine.host, machine.rate)
        machine.process, machine.started_at = process, self._loop.world_time()
        self._network.silent.discard(machine.host)
        self._network.flush()
        machine.node = process.context.run(SimulatedNode, machine, process, self._loop, self._network, self._observer)
        machine.watcher = asyncio.ensure_future(self._started_again(machine, process, machine.node))
        await process.spawn(machine.node.start(), f"start {machine.name}")

    async def _changes(self) -> None:
        if self.before_change is not None:
            await self.before_change()

    async def _started_again(self, machine: Machine, process: Process, node: "SimulatedNode") -> None:
        """What the process does itself in reality: end the node, and run another one."""
        while not hasattr(node, "_services"):
            await asyncio.sleep(0.01)
        await node.rolled_back()
        await asyncio.sleep(self.closing_seconds)
        await self._changes()
        await process.spawn(node.abort(), f"abort {machine.name}")
        if process.is_dead:
            return
        process.is_dead = True
        self._network.died(process)
        machine.process = machine.node = machine.watcher = None
        await self.start(machine)

    async def kill(self, machine: Machine, *, is_silent: bool = False) -> None:
        """Like SIGKILL; `is_silent` like a loss of power: no kernel is left to end its connections, or to write what was not synced."""
        await self._changes()
        process, node = machine.process, machine.node
        directory = machine.settings.server.data_directory
        remains = self._power.fail(directory) if is_silent and self._power is not None else None
        assert process is not None
        assert node is not None
        if machine.watcher is not None:
            machine.watcher.cancel()
        process.is_dead = True
        if is_silent:
            self._network.silent.add(machine.host)
            self._network.stop_serving(machine.host)
        else:
            self._network.died(process)
        node._ledger.abandon()
        machine.process = machine.node = None
        if process.is_paused:
            self._network.goes_on(process)
        while tasks := process.undone():  # nothing that they still do has an effect: ledger, network and log are gone
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=5.0)
        await node._ledger._readers.close()
        if remains is not None and self._power is not None:
            self._power.put_back(directory, remains)

    async def stop(self, machine: Machine) -> None:
        """Like SIGTERM: the node ends by itself, and then its process."""
        await self._changes()
        process, node = machine.process, machine.node
        assert process is not None
        assert node is not None
        if machine.watcher is not None:
            machine.watcher.cancel()
        await process.spawn(node.stop(), f"stop {machine.name}")
        process.is_dead = True
        self._network.died(process)
        machine.process = machine.node = None

    def wipe(self, machine: Machine) -> None:
        """Its disk is new."""
        assert not machine.is_up
        shutil.rmtree(machine.settings.server.data_directory, ignore_errors=True)

    def back_up(self, machine: Machine) -> None:
        """Keep a copy of its disk as it is."""
        assert not machine.is_up
        machine.backup = machine.directory.with_name(f"{machine.directory.name}-backup")
        shutil.rmtree(machine.backup, ignore_errors=True)
        shutil.copytree(machine.settings.server.data_directory, machine.backup)

    def put_back(self, machine: Machine, snapshot: Path | None = None) -> None:
        """Its disk is what it was at `back_up`, or this copy of it."""
        older = snapshot or machine.backup
        assert older is not None
        self.wipe(machine)
        shutil.copytree(older, machine.settings.server.data_directory)
        if self._power is not None:
            self._power.settle(machine.settings.server.data_directory)


def _is_readable(ledger: Ledger, place: ContentPlace) -> bool:
    try:
        ledger._contents.read(place)
    except ContentCorrupt:
        return False
    return True
