"""Retention times, and protection against jumps of the wall clock. Source: seed-000, msd-sn; docs/protocol.md 10; docs/design.md 6.3.

After the wall clock jumps forward (an administrator or a time server sets the wrong year), nothing expires by the jump until
the new time has stood for a day. Otherwise shadow messages would expire while their primaries still have to deliver them.
Within one process CLOCK_BOOTTIME distinguishes a jump from elapsed time (including suspend); a new process has to trust the
wall clock.
"""

from datetime import datetime, timedelta

from shadowrelay.model.values import dataclass
from shadowrelay.settings.values import Transport


def shadow_keep_until(held_at: datetime, transport: Transport) -> datetime:
    """When a shadow message that was never acknowledged expires. Source: seed-000"""
    return held_at + transport.safety_net_hold_time + transport.message_expiration_timeout


def safety_net_until(left_at: datetime, transport: Transport) -> datetime:
    """When Safety Net may drop what was delivered or discarded at `left_at`."""
    return left_at + transport.safety_net_hold_time


def remember_until(last_copy_sent_at: datetime, transport: Transport) -> datetime:
    """Until when a primary's row answers STATUS: no shadow message of it is older than that."""
    return last_copy_sent_at + transport.safety_net_hold_time + transport.message_expiration_timeout


TOLERANCE = timedelta(seconds=5)  # between two readings: slewing, and delays on a busy machine
BELIEVED_AFTER_SECONDS = 86_400.0  # a jump that was not reverted for a day is trusted


@dataclass(frozen=True, slots=True)
class WallClock:
    """The latest reading. `jump` was detected by this reading. Units: `awake` and `jumped_at` are seconds of CLOCK_BOOTTIME;
    `ahead` is the part of the wall clock's time that is not trusted."""

    now: datetime
    awake: float
    ahead: timedelta = timedelta(0)
    jumped_at: float = 0.0
    jump: timedelta = timedelta(0)


def seen(before: WallClock | None, now: datetime, awake: float) -> WallClock:
    """The next reading. A jump back cancels an earlier jump forward. A jump back alone makes messages look younger, so nothing
    expires early; but retries scheduled for a wall-clock time would wait longer, and must be corrected (`deliver`)."""
    if before is None:
        return WallClock(now, awake)
    jump = now - before.now - timedelta(seconds=awake - before.awake)
    if abs(jump) > TOLERANCE:
        return WallClock(now, awake, max(before.ahead + jump, timedelta(0)), awake, jump)
    if before.ahead and awake - before.jumped_at >= BELIEVED_AFTER_SECONDS:
        return WallClock(now, awake)
    return WallClock(now, awake, before.ahead, before.jumped_at)
