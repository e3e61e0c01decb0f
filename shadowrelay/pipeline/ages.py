"""How long what is kept, and what a jump of the clock does to it. Source: seed-000, msd-sn; docs/protocol.md 10; docs/design.md 6.3.

When the wall clock jumps forward, nothing has grown old: what ends by age waits until the new time has proved itself.
Somebody sets the wrong year, or a time server does. Shadow messages that expire by such a clock would be gone while their
primaries still have them to deliver. Within one process CLOCK_BOOTTIME tells a jump from time that passed (also in suspend); a
process that starts has to believe the wall clock.
"""

from datetime import datetime, timedelta

from shadowrelay.model.values import dataclass
from shadowrelay.settings.values import Transport


def shadow_keep_until(held_at: datetime, transport: Transport) -> datetime:
    """When a shadow message that was never acknowledged expires."""
    return held_at + transport.shadow_expiration_timeout


def safety_net_until(left_at: datetime, transport: Transport) -> datetime:
    """When Safety Net may drop what was delivered or discarded at `left_at`."""
    return left_at + transport.safety_net_hold_time


def remember_until(last_copy_sent_at: datetime, transport: Transport) -> datetime:
    """Until when a primary's row answers STATUS: no shadow message of it is older than that."""
    return last_copy_sent_at + transport.shadow_expiration_timeout


TOLERANCE = timedelta(seconds=5)  # between two looks: slewing and what a busy machine puts between two readings
BELIEVED_AFTER_SECONDS = 86_400.0  # nobody has set it back for a day


@dataclass(frozen=True, slots=True)
class WallClock:
    """What was seen last. `jump` came with this look. Units: `awake` and `jumped_at` are seconds of CLOCK_BOOTTIME; `ahead` is
    what is not believed."""

    now: datetime
    awake: float
    ahead: timedelta = timedelta(0)
    jumped_at: float = 0.0
    jump: timedelta = timedelta(0)


def seen(before: WallClock | None, now: datetime, awake: float) -> WallClock:
    """A further look. A jump back takes back what jumped forward. One that only goes back makes things look younger, which ends
    nothing early; but what was put off until a time of day then waits longer, and has to be put right (`deliver`)."""
    if before is None:
        return WallClock(now, awake)
    jump = now - before.now - timedelta(seconds=awake - before.awake)
    if abs(jump) > TOLERANCE:
        return WallClock(now, awake, max(before.ahead + jump, timedelta(0)), awake, jump)
    if before.ahead and awake - before.jumped_at >= BELIEVED_AFTER_SECONDS:
        return WallClock(now, awake)
    return WallClock(now, awake, before.ahead, before.jumped_at)
