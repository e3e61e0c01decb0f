"""The settings of `[back_pressure]`. docs/setup.md "Back pressure"; docs/design.md 7."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Self

from pydantic import (
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from shadowrelay.model.section import MILLISECOND, MINUTE, SECOND, Count, Section
from shadowrelay.model.setting_texts import (
    Duration,
    Size,
)


class Transitions(Section):
    """The four thresholds of a resource, in its unit. The pressure rises when its use is above one, and falls when it is not above one."""

    low_to_medium: Annotated[Count, Field(ge=0, le=1_000_000_000)]
    """Above this the pressure is medium."""
    medium_to_high: Annotated[Count, Field(ge=0, le=1_000_000_000)]
    """Above this it is high."""
    high_to_medium: Annotated[Count, Field(ge=0, le=1_000_000_000)]
    """High pressure becomes medium at this."""
    medium_to_low: Annotated[Count, Field(ge=0, le=1_000_000_000)]
    """It is normal again at this."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not (self.medium_to_low <= self.low_to_medium <= self.medium_to_high and self.medium_to_low <= self.high_to_medium):
            raise ValueError("must be in order: medium_to_low, low_to_medium, medium_to_high, and medium_to_low below high_to_medium")
        if self.high_to_medium > self.medium_to_high:
            raise ValueError("high_to_medium must not be above medium_to_high: the pressure would rise and fall at every look")
        return self


def _over(default: Transitions) -> WrapValidator:
    """Thresholds that are not given are those of `default`; only those that are given count as set."""

    def merged(value: object, handler: ValidatorFunctionWrapHandler) -> Transitions:
        if not isinstance(value, Mapping):
            return handler(value)  # type: ignore[no-any-return]
        whole: Transitions = handler({**dict(default), **value})
        return Transitions.model_construct(set(value), **dict(whole))

    return WrapValidator(merged)


def _thresholds(*values: int) -> Transitions:
    """A default, in the order of the fields: none of them counts as set."""
    return Transitions.model_construct(set(), **dict(zip(Transitions.model_fields, values, strict=True)))


DATABASE_USED_SPACE = _thresholds(96, 99, 97, 94)
USED_DISK_SPACE = _thresholds(89, 99, 90, 80)
USED_VERSION_BUCKETS = _thresholds(999, 1500, 1000, 800)
CHECKPOINT_DEPTH = _thresholds(250, 300, 280, 230)
PRIVATE_BYTES = _thresholds(72, 75, 73, 71)
SYSTEM_MEMORY = _thresholds(88, 94, 89, 84)
CONTENT_MEMORY = _thresholds(90, 98, 92, 80)
SUBMISSION_QUEUE = _thresholds(9999, 15000, 10000, 2000)
HistoryDepth = Annotated[Count, Field(ge=1, le=10_000)]


class BackPressure(Section):
    """When mail is refused because a resource runs short: docs/setup.md "Back pressure". The names are those of Exchange's
    EdgeTransport.exe.config. Thresholds that are left out keep their defaults; one that is never reached (101 %) switches its level off."""

    enable_resource_monitoring: bool = True
    """Off: nothing is measured or refused beforehand; a message that cannot be stored is still answered 451 or 452. Source: msd-bp"""
    resource_monitoring_interval: Annotated[Duration, Field(ge=100 * MILLISECOND, le=MINUTE)] = 2 * SECOND
    """How often everything is measured: one sample. Source: msd-bp"""
    free_disk_space_min: Annotated[Size, Field(ge=0, le=1_000_000_000_000)] = 54_000_000
    """Free space in data_directory that counts as used: 1.5 times the largest message, as Postfix has it. Source: docs"""
    disk_size_max: Annotated[Size, Field(ge=1_000_000, le=1_000_000_000_000_000)] = 50_000_000_000
    """A larger file system counts as one of this size: 99 % of it leave 500 MB, the constant of Exchange 2013. Source: msd-bp13"""
    database_used_space: Annotated[Transitions, _over(DATABASE_USED_SPACE)] = DATABASE_USED_SPACE
    """Per cent used of the file system of data_directory. Source: msd-bp"""
    used_disk_space: Annotated[Transitions, _over(USED_DISK_SPACE)] = USED_DISK_SPACE
    """Per cent used of the file system of the tracking directory, if it is another one. Source: msd-bp"""
    used_version_buckets: Annotated[Transitions, _over(USED_VERSION_BUCKETS)] = USED_VERSION_BUCKETS
    """Transactions in memory that wait for the queue database. Source: msd-bp"""
    used_version_buckets_history_depth: HistoryDepth = 10
    """Mail is delayed for so many samples before it is refused. Source: msd-bp"""
    checkpoint_depth: Annotated[Transitions, _over(CHECKPOINT_DEPTH)] = CHECKPOINT_DEPTH
    """MB of the write-ahead log, which stays below 64 unless another process reads queue.db without end. Source: exchange-facts 8"""
    private_bytes: Annotated[Transitions, _over(PRIVATE_BYTES)] = PRIVATE_BYTES
    """Per cent of private_bytes_limit used by this process, without what it shares with others. Source: msd-bp"""
    private_bytes_limit: Annotated[Size, Field(ge=0, le=1_000_000_000_000_000)] = 0
    """0: the memory of the machine, or that of its control group (container, systemd's MemoryMax=) if that is less. Source: msd-bp13"""
    private_bytes_history_depth: HistoryDepth = 30
    """Mail is refused after so many samples above normal. Source: msd-bp"""
    content_memory: Annotated[Transitions, _over(CONTENT_MEMORY)] = CONTENT_MEMORY
    """Per cent used of the part of server.content_memory_limit for arriving content. Source: design 6.8"""
    content_memory_history_depth: HistoryDepth = 30
    """Mail is refused after so many samples above normal. Source: design 6.8"""
    system_memory: Annotated[Transitions, _over(SYSTEM_MEMORY)] = SYSTEM_MEMORY
    """Per cent used of the machine's memory, by all processes. It refuses no mail. Source: msd-bp"""
    dehydrate_messages_under_memory_pressure: bool = True
    """Above system_memory.low_to_medium no content that is on disk is kept in memory. Source: msd-bp13"""
    submission_queue: Annotated[Transitions, _over(SUBMISSION_QUEUE)] = SUBMISSION_QUEUE
    """Messages in the queue Submission. Source: msd-bp"""
    submission_queue_history_depth: HistoryDepth = 300
    """Mail is delayed for so many samples before it is refused. Source: msd-bp"""
    smtp_start_throttling_delay_interval: Annotated[Duration, Field(ge=timedelta(0), le=MINUTE)] = 10 * SECOND
    """Tarpit: MAIL is answered so much later when the pressure of used_version_buckets or submission_queue begins. Source: msd-bp"""
    smtp_step_throttling_delay_interval: Annotated[Duration, Field(ge=timedelta(0), le=MINUTE)] = 5 * SECOND
    """Each sample under pressure adds this to the delay, each later one takes it away. Source: msd-bp"""
    smtp_max_throttling_delay_interval: Annotated[Duration, Field(ge=timedelta(0), le=4 * MINUTE)] = 55 * SECOND
    """The longest delay; clients wait five minutes for the reply (RFC 5321 4.5.3.2.2). 0s: no tarpit. Source: msd-bp"""

    @model_validator(mode="after")
    def _delays_grow(self) -> Self:
        if self.smtp_start_throttling_delay_interval > self.smtp_max_throttling_delay_interval > timedelta(0):
            raise ValueError("smtp_start_throttling_delay_interval must not be longer than smtp_max_throttling_delay_interval")
        return self
