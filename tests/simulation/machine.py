"""A machine that runs a node: its disk, its clocks, its processes one after the other."""

import asyncio
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from shadowrelay import __version__
from shadowrelay.admin.metrics import Metrics
from shadowrelay.model.ids import MessageId
from shadowrelay.model.queue import AttemptRecord, NewMessage
from shadowrelay.model.routing import HostPort
from shadowrelay.model.tracking import TrackingEvent
from shadowrelay.node import Node, close_with
from shadowrelay.pipeline.context import SystemClock
from shadowrelay.ports import DeliveryJob
from shadowrelay.settings.configuration import LoadedSettings
from shadowrelay.settings.values import Settings
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.store.ledger import SqliteLedger
from shadowrelay.store.rows import Row
from tests.kit.receiving import VirtualListener
from tests.simulation.disk import Disk, make_lagging
from tests.simulation.loop import Process, WorldLoop
from tests.simulation.network import Network

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Observer(Protocol):
    """Who watches over the shoulder of each node."""

    def committed(self, machine: "Machine", rows: Sequence[tuple[MessageId, Row | None]]) -> None: ...
    def known(self, message: NewMessage) -> None: ...
    def attempted(self, machine: "Machine", attempt: AttemptRecord) -> None: ...
    def tracked(self, machine: "Machine", event: TrackingEvent) -> None: ...
    def ends_data(self, machine: "Machine", message_id: MessageId) -> None: ...


@dataclass(slots=True, eq=False)
class Machine:
    """Shapes: `name` of its node, `host` its address. Units: `rate` is its seconds for each of the world."""

    name: str
    host: str
    site: str
    directory: Path
    rate: float
    booted: float  # what CLOCK_BOOTTIME shows at the beginning of the world
    disk: Disk
    settings: Settings
    wall_offset: float = 0.0
    process: Process | None = None
    node: "SimulatedNode | None" = None
    runs_count: int = field(default=0)

    @property
    def is_up(self) -> bool:
        return self.process is not None


class VirtualClock(SystemClock):
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
        super().__init__(loaded, clock=VirtualClock(machine, loop), dial=dial, open_listener=VirtualListener.open)
        self._machine, self._process, self._observer = machine, process, observer
        self._shipper = None  # the log is memory

    async def start(self) -> None:
        settings = self._settings
        self._ledger = await SqliteLedger.open(
            settings.server.data_directory,
            server=settings.server.name,
            now=self._clock.now,
            safety_net_hold_time=settings.transport.safety_net_hold_time,
            message_expiration_timeout=settings.transport.message_expiration_timeout,
            inline=True,
        )
        close_with(self._opened, self._ledger.close)
        self._watch_ledger()
        self._metrics = Metrics(__version__, settings.server.name, now=self._clock.now, awake=self._clock.awake)
        self._tracking = MemoryTrackingLog(self._machine, self._process, self._observer)  # type: ignore[assignment]
        self._build_services()
        self._context.peers.remember(await self._ledger.peers())
        await self._start_receiver()
        self._start_services()
        self._services.view.is_running = True

    def _make_deliverer(self) -> SmtpDeliverer:
        deliverer = super()._make_deliverer()
        deliver = deliverer.deliver

        async def watched(job: DeliveryJob) -> Any:
            def ends_data() -> bool:
                may = job.may_end_data()
                if may:
                    self._observer.ends_data(self._machine, job.envelope.message_id)
                return may

            return await deliver(replace(job, may_end_data=ends_data))

        deliverer.deliver = watched  # type: ignore[method-assign]
        return deliverer

    def _watch_ledger(self) -> None:
        ledger, observer, machine = self._ledger, self._observer, self._machine
        make_lagging(ledger, machine.disk, lambda rows: observer.committed(machine, rows))
        accepted, hold, attempt = ledger.record_accepted, ledger.record_hold, ledger.record_attempt

        async def record_accepted(message: NewMessage, content: Any, *, decided: bool) -> Any:
            observer.known(message)
            return await accepted(message, content, decided=decided)

        async def record_hold(message: NewMessage, content: Any, decide: Any) -> Any:
            observer.known(message)
            return await hold(message, content, decide)

        async def record_attempt(record: AttemptRecord, decide: Any) -> Any:
            for side in record.sides:
                observer.known(side.message)
            observer.attempted(machine, record)
            return await attempt(record, decide)

        ledger.record_accepted = record_accepted  # type: ignore[method-assign]
        ledger.record_hold = record_hold  # type: ignore[method-assign]
        ledger.record_attempt = record_attempt  # type: ignore[method-assign]


class Machines:
    """Starting and ending processes."""

    def __init__(self, loop: WorldLoop, network: Network, observer: Observer, chance: random.Random) -> None:
        self._loop, self._network, self._observer, self._chance = loop, network, observer, chance

    async def start(self, machine: Machine) -> None:
        """A new process on the disk as it is."""
        assert not machine.is_up
        machine.runs_count += 1
        process = Process(machine.host, machine.rate)
        machine.process = process
        self._network.silent.discard(machine.host)
        self._network.flush()
        machine.node = process.context.run(SimulatedNode, machine, process, self._loop, self._network, self._observer)
        await process.spawn(machine.node.start(), f"start {machine.name}")

    async def kill(self, machine: Machine, *, is_silent: bool = False) -> None:
        """Like SIGKILL; `is_silent` like a loss of power: no kernel is left to end its connections."""
        process, node = machine.process, machine.node
        assert process is not None
        assert node is not None
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
        while process.tasks:  # nothing that they still do has an effect: ledger, network and log are gone
            tasks = list(process.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=5.0)
        await node._ledger._readers.close()

    async def stop(self, machine: Machine) -> None:
        """Like SIGTERM: the node ends by itself, and then its process."""
        process, node = machine.process, machine.node
        assert process is not None
        assert node is not None
        await process.spawn(node.stop(), f"stop {machine.name}")
        process.is_dead = True
        self._network.died(process)
        machine.process = machine.node = None

    def wipe(self, machine: Machine) -> None:
        """Its disk is new."""
        assert not machine.is_up
        shutil.rmtree(machine.settings.server.data_directory, ignore_errors=True)
