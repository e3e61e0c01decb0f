"""Back pressure: from samples of resources to what a node still takes. docs/design.md 6.8; Source: msd-bp, msd-bp13.

Each resource has a level by its own thresholds, with hysteresis. Most take effect at once; those that swing have a history depth, and
take effect only when so many samples in a row were above normal. Two of these delay clients meanwhile (the tarpit). The node's pressure is
the highest level in effect. Depths count samples and not time, so no clock that jumps or stands still changes a level.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import IntEnum, StrEnum

from shadowrelay.model.back_pressure_settings import BackPressure, Transitions
from shadowrelay.model.values import dataclass, replace


class Level(IntEnum):
    """Of one resource, or of the node."""

    NORMAL = 0
    MEDIUM = 1
    HIGH = 2


class Resource(StrEnum):
    """Named as the key of its thresholds in [back_pressure]."""

    DATABASE_USED_SPACE = "database_used_space"
    USED_DISK_SPACE = "used_disk_space"
    USED_VERSION_BUCKETS = "used_version_buckets"
    CHECKPOINT_DEPTH = "checkpoint_depth"
    PRIVATE_BYTES = "private_bytes"
    CONTENT_MEMORY = "content_memory"
    SYSTEM_MEMORY = "system_memory"
    SUBMISSION_QUEUE = "submission_queue"


UNITS: Mapping[Resource, str] = {
    Resource.USED_VERSION_BUCKETS: "transactions",
    Resource.CHECKPOINT_DEPTH: "MB",
    Resource.SUBMISSION_QUEUE: "messages",
}  # all others: per cent
EFFECTS: Mapping[Level, str] = {
    Level.NORMAL: "all mail and copies are accepted",
    Level.MEDIUM: "mail from outside and copies are refused",
    Level.HIGH: "all mail and copies are refused",
}
TARPITTING = frozenset({Resource.USED_VERSION_BUCKETS, Resource.SUBMISSION_QUEUE})
WITHOUT_REFUSAL = frozenset({Resource.SYSTEM_MEMORY})


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: how much is used, in the resource's unit, and the numbers behind it for people."""

    use: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Meter:
    """A resource. `measured` is the level of the last sample, `level` the one in effect, `since` when that began; `pressed_count`
    samples in a row were above normal."""

    resource: Resource
    reading: Sample
    measured: Level = Level.NORMAL
    level: Level = Level.NORMAL
    pressed_count: int = 0
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pressure:
    """The state of a node, and its effects.

    Shapes: `meters` only of what was ever measured. Units: `tarpit_seconds` is how much later MAIL is answered, to clients from outside,
    and at `tarpit_level` HIGH to all clients. `is_felt`: some client is refused or delayed.
    """

    meters: Mapping[Resource, Meter]
    level: Level = Level.NORMAL
    tarpit_seconds: float = 0.0
    tarpit_level: Level = Level.NORMAL
    is_felt: bool = False

    def refuses(self, *, is_inside: bool) -> bool:
        """Whether MAIL is answered 452. `is_inside`: the client is a peer, or may relay."""
        return self.level is Level.HIGH or (self.level is Level.MEDIUM and not is_inside)

    def delay(self, *, is_inside: bool) -> float:
        """How many seconds later MAIL is answered."""
        return self.tarpit_seconds if self.tarpit_level is Level.HIGH or not is_inside else 0.0

    @property
    def may_resubmit(self) -> bool:
        """Whether messages may be resubmitted from Safety Net. A takeover is no such thing, and never waits."""
        return self.level is Level.NORMAL

    def level_of(self, resource: Resource) -> Level:
        """The level of the last sample, in effect or not."""
        meter = self.meters.get(resource)
        return Level.NORMAL if meter is None else meter.measured


NO_PRESSURE = Pressure({})


def level_after(level: Level, use: float, thresholds: Transitions) -> Level:
    """The next level of a resource."""
    if use > thresholds.medium_to_high:
        return Level.HIGH
    if level is Level.NORMAL:
        return Level.MEDIUM if use > thresholds.low_to_medium else Level.NORMAL
    if use <= thresholds.medium_to_low:
        return Level.NORMAL
    return Level.HIGH if level is Level.HIGH and use > thresholds.high_to_medium else Level.MEDIUM


def measured(before: Pressure, readings: Mapping[Resource, Sample], settings: BackPressure, now: datetime) -> Pressure:
    """The pressure after one more sample. A resource that could not be read keeps what it had."""
    meters = dict(before.meters)
    for resource, reading in readings.items():
        meters[resource] = _meter_after(meters.get(resource, Meter(resource, reading)), reading, settings, now)
    in_effect = [meter.level for meter in meters.values() if meter.resource not in WITHOUT_REFUSAL]
    level = max(in_effect, default=Level.NORMAL)
    tarpit_level, seconds = _tarpit_after(before, meters, settings)
    return Pressure(meters, level, seconds, tarpit_level, level is not Level.NORMAL or seconds > 0)


def _meter_after(meter: Meter, reading: Sample, settings: BackPressure, now: datetime) -> Meter:
    found = level_after(meter.measured, reading.use, thresholds_of(meter.resource, settings))
    pressed_count = meter.pressed_count + 1 if found is not Level.NORMAL else 0
    level = found if pressed_count >= history_depth_of(meter.resource, settings) else Level.NORMAL
    since = meter.since if level is meter.level else now
    return replace(meter, reading=reading, measured=found, level=level, pressed_count=pressed_count, since=since)


def _tarpit_after(before: Pressure, meters: Mapping[Resource, Meter], settings: BackPressure) -> tuple[Level, float]:
    """It grows by a step with each sample above normal, and shrinks by one with each that is normal."""
    level = max((meters[resource].measured for resource in TARPITTING if resource in meters), default=Level.NORMAL)
    start = settings.smtp_start_throttling_delay_interval.total_seconds()
    step = settings.smtp_step_throttling_delay_interval.total_seconds()
    longest = settings.smtp_max_throttling_delay_interval.total_seconds()
    seconds = before.tarpit_seconds
    if level is not Level.NORMAL:
        return level, min(seconds + step if seconds else start, longest)
    if not step or seconds - step < start:
        return Level.NORMAL, 0.0
    return before.tarpit_level, min(seconds - step, longest)


def thresholds_of(resource: Resource, settings: BackPressure) -> Transitions:
    """The thresholds of a resource."""
    found: Transitions = getattr(settings, resource.value)
    return found


def history_depth_of(resource: Resource, settings: BackPressure) -> int:
    """After how many samples above normal its level takes effect."""
    depth: int = getattr(settings, f"{resource.value}_history_depth", 1)
    return depth


def disk_use(free: int, size: int, free_min: int, size_max: int) -> float:
    """Per cent used of what may be used: `free_min` counts as used, and at most `size_max` of a larger file system counts at all."""
    usable = min(size, size_max) - free_min
    if usable <= 0:
        return 100.0
    return 100.0 * (1.0 - min(max(free - free_min, 0) / usable, 1.0))


def free_below(percent: int, size: int, free_min: int, size_max: int) -> int:
    """The inverse of `disk_use`: the free space at which so many per cent are used. Units: bytes."""
    return free_min + max(min(size, size_max) - free_min, 0) * max(100 - percent, 0) // 100


def changes(before: Pressure, after: Pressure) -> Iterator[tuple[Level, Meter]]:
    """The resources whose level in effect changed, each with the level that it had. What is no longer measured is normal."""
    for resource in Resource:
        old, new = before.meters.get(resource), after.meters.get(resource)
        if new is None and old is not None:
            new = Meter(resource, old.reading)
        if new is not None and new.level is not (level := Level.NORMAL if old is None else old.level):
            yield level, new


def explanation(meter: Meter, settings: BackPressure) -> str:
    """One sentence: how much is used, and when the level began and ends."""
    thresholds = thresholds_of(meter.resource, settings)
    unit = UNITS.get(meter.resource, "%")
    shown = f"{meter.resource} is {meter.measured.name.lower()} at {round(meter.reading.use, 1):g} {unit}"
    above = thresholds.medium_to_high if meter.measured is Level.HIGH else thresholds.low_to_medium
    limits = "" if meter.measured is Level.NORMAL else f" (above {above}, until {thresholds.medium_to_low})"
    depth = history_depth_of(meter.resource, settings)
    waits = f", sample {meter.pressed_count} of {depth}" if meter.measured is not meter.level else ""
    return f"{shown}{limits}{waits}{': ' if meter.reading.detail else ''}{meter.reading.detail}"


def reasons(pressure: Pressure, settings: BackPressure) -> tuple[str, ...]:
    """Why clients are refused or delayed; empty if none is."""
    if not pressure.is_felt:
        return ()
    found = []
    if pressure.level is not Level.NORMAL:
        meters = [meter for meter in pressure.meters.values() if meter.level is not Level.NORMAL and meter.resource not in WITHOUT_REFUSAL]
        found += [f"back pressure {meter.level.name.lower()}: {explanation(meter, settings)}" for meter in meters]
    if pressure.tarpit_seconds:
        who = "clients wait" if pressure.tarpit_level is Level.HIGH else "clients from outside wait"
        meters = [meter for meter in pressure.meters.values() if meter.resource in TARPITTING and meter.measured is not Level.NORMAL]
        why = "; ".join(explanation(meter, settings) for meter in meters) or "the pressure is over, and the delay shrinks"
        found.append(f"tarpit: {who} {pressure.tarpit_seconds:g} s at MAIL: {why}")
    return tuple(found)
