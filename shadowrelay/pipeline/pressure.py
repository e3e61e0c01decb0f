"""Samples the resources of the node, and applies the rules of back pressure. docs/design.md 6.8.

A session reads the result, one value in memory. Nothing here refuses or stops what was accepted before: deliveries, copies of our own
messages, discard notifications, questions and takeovers go on, since they free what is short, or keep a promise.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import structlog

from shadowrelay.model.back_pressure_settings import BackPressure
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.pipeline.context import Context
from shadowrelay.ports import Disk, Machine
from shadowrelay.rules import back_pressure
from shadowrelay.rules.back_pressure import Level, Meter, Pressure, Resource, Sample
from shadowrelay.store import reading

_log = structlog.get_logger()


class PressureService:
    """`context.pressure` is its result."""

    def __init__(self, context: Context, machine: Machine | None, make_room: Callable[[], Awaitable[None]]) -> None:
        """`make_room`: drops what is kept for a rare need, before mail is refused for lack of space."""
        self._context = context
        self._machine = machine
        self._make_room = make_room
        self._making_room: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[int | None] | None = None
        self._data_disk: Disk | None = None

    async def run(self) -> None:
        """Look forever, once in a `resource_monitoring_interval`."""
        while True:
            await self.look()
            await asyncio.sleep(self._settings.resource_monitoring_interval.total_seconds())

    @property
    def _settings(self) -> BackPressure:
        return self._context.settings.back_pressure

    async def look(self) -> None:
        """Take one sample of everything."""
        context, settings = self._context, self._settings
        before = context.pressure
        if settings.enable_resource_monitoring:
            readings = dict(self._readings(settings))
            if self._machine is not None and readings[Resource.DATABASE_USED_SPACE].use > settings.database_used_space.low_to_medium:
                await self._room_made()
                readings |= dict(self._disks(self._machine, settings))
            if (count := await self._submission_count()) is not None:
                readings[Resource.SUBMISSION_QUEUE] = Sample(count)
            after = back_pressure.measured(before, readings, settings, context.now())
        else:
            after = back_pressure.NO_PRESSURE
        context.pressure = after
        self._tell(before, after)
        self._relieve(before, after)

    def _readings(self, settings: BackPressure) -> Iterator[tuple[Resource, Sample]]:
        context = self._context
        yield Resource.USED_VERSION_BUCKETS, Sample(context.ledger.waiting_count)
        yield Resource.CHECKPOINT_DEPTH, Sample(context.ledger.log_bytes / 1e6)
        used, share = context.budget.arriving_share
        yield Resource.CONTENT_MEMORY, Sample(100 * used / share, f"{_size(used)} of {_size(share)}")
        if self._machine is None:
            return
        yield from self._disks(self._machine, settings)
        if (private := self._machine.private_bytes()) is not None:
            limit = settings.private_bytes_limit or self._machine.memory_limit()
            yield Resource.PRIVATE_BYTES, Sample(100 * private / limit, f"{_size(private)} of {_size(limit)}")
        if (memory := self._machine.system_memory()) is not None:
            yield Resource.SYSTEM_MEMORY, Sample(100 * memory.used / memory.total, f"{_size(memory.used)} of {_size(memory.total)}")

    def _disks(self, machine: Machine, settings: BackPressure) -> Iterator[tuple[Resource, Sample]]:
        data, tracking = self._context.settings.server.data_directory, self._context.settings.tracking.directory
        self._data_disk = None
        try:
            disk = machine.disk(data)
        except OSError as error:  # nothing can be stored
            yield Resource.DATABASE_USED_SPACE, Sample(100.0, f"{data} cannot be read: {error.strerror or error}")
            return
        self._data_disk = disk
        yield Resource.DATABASE_USED_SPACE, _disk_reading(data, disk, settings.free_disk_space_min, settings.disk_size_max)
        try:
            other = machine.disk(tracking)
        except OSError as error:  # the tracking log itself tells of that, and mail does not wait for it
            yield Resource.USED_DISK_SPACE, Sample(0.0, f"{tracking} cannot be read: {error.strerror or error}")
            return
        if other.device == disk.device:
            yield Resource.USED_DISK_SPACE, Sample(0.0, f"{tracking} is on the file system of data_directory")
        elif not other.size:  # some file systems of the network report none
            yield Resource.USED_DISK_SPACE, Sample(0.0, f"the file system of {tracking} reports no size")
        else:
            yield Resource.USED_DISK_SPACE, _disk_reading(tracking, other, 0, settings.disk_size_max)

    async def _room_made(self) -> None:
        """As far as the database does it until the next sample: nobody waits longer for it."""
        making = self._making_room
        if making is None:
            making = self._making_room = self._context.tasks.spawn(self._made_room(), "room for mail")
        done, _ = await asyncio.wait({making}, timeout=self._settings.resource_monitoring_interval.total_seconds())
        if done:
            self._making_room = None

    async def _made_room(self) -> None:
        with contextlib.suppress(LedgerUnavailable):  # who drops it every few seconds tells of that
            await self._make_room()

    async def _submission_count(self) -> int | None:
        """None: the database does not answer now. A question is asked again only when the last one was answered, and nobody waits
        longer for it than until the next sample."""
        counting = self._counting
        if counting is None:
            counting = self._counting = self._context.tasks.spawn(self._count(), "submission count")
        done, _ = await asyncio.wait({counting}, timeout=self._settings.resource_monitoring_interval.total_seconds())
        if not done:
            return None
        self._counting = None
        return counting.result()

    async def _count(self) -> int | None:
        try:
            return await self._context.ledger.read(reading.submission_count)
        except LedgerUnavailable:
            return None

    def _tell(self, before: Pressure, after: Pressure) -> None:
        """One line for each change."""
        for level, meter in back_pressure.changes(before, after):
            facts = self._facts(level, meter, after)
            if meter.level < level:
                _log.warning("pressure.decreased", **facts)
            elif meter.level is Level.MEDIUM:
                _log.warning("pressure.increased", **facts)
            else:
                _log.error("pressure.increased", **facts)
        if after.tarpit_seconds and not before.tarpit_seconds:
            _log.warning("tarpit.began", reasons=list(back_pressure.reasons(after, self._settings)))
        elif before.tarpit_seconds and not after.tarpit_seconds:
            _log.warning("tarpit.ended")

    def _facts(self, before: Level, meter: Meter, after: Pressure) -> dict[str, object]:
        return {
            "resource": meter.resource.value,
            "before": before.name.lower(),
            "after": meter.level.name.lower(),
            "use": round(meter.reading.use, 1),
            "unit": back_pressure.UNITS.get(meter.resource, "%"),
            "thresholds": dict(back_pressure.thresholds_of(meter.resource, self._settings)),
            "detail": meter.reading.detail,
            "node": after.level.name.lower(),
            "effect": back_pressure.EFFECTS[after.level],
        }

    def _relieve(self, before: Pressure, after: Pressure) -> None:
        """What costs no mail: contents that are on disk leave the memory, and what is free goes back to the system."""
        is_short = after.level_of(Resource.SYSTEM_MEMORY) is not Level.NORMAL
        self._context.budget.dehydrate(is_on=is_short and self._settings.dehydrate_messages_under_memory_pressure)
        rises = before.level_of(Resource.PRIVATE_BYTES) is Level.NORMAL and after.level_of(Resource.PRIVATE_BYTES) is not Level.NORMAL
        if self._machine is not None and rises:
            self._machine.collect_garbage()

    def spare_bytes(self) -> int | None:
        """What must be left in data_directory beside a new reserve, so that the reserve itself is no pressure; None: make none now."""
        settings, disk = self._settings, self._data_disk
        if self._context.pressure.level_of(Resource.DATABASE_USED_SPACE) is not Level.NORMAL:
            return None
        if disk is None:
            return settings.free_disk_space_min
        percent = settings.database_used_space.low_to_medium
        return back_pressure.free_below(percent, disk.size, settings.free_disk_space_min, settings.disk_size_max)


def _disk_reading(directory: Path, disk: Disk, free_min: int, size_max: int) -> Sample:
    use = back_pressure.disk_use(disk.free, disk.size, free_min, size_max)
    return Sample(use, f"{_size(disk.free)} of {_size(disk.size)} are free in {directory}")


def _size(count: int) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
