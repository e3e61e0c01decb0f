"""When the wall clock jumps forward, nothing has grown old: what ends by age waits until the new time has proved itself.

Somebody sets the wrong year, or a time server does. Shadow messages that expire by such a clock would be gone while their
primaries still have them to deliver. Within one process CLOCK_BOOTTIME tells a jump from time that passed (also in suspend); a
process that starts has to believe the wall clock.
"""

from datetime import datetime, timedelta

from shadowrelay.model.values import dataclass

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
