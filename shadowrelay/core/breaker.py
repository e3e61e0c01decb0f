"""Circuit breaker: a server known to be down does not cost every message a wait.

Closed: try. Open: do not, until `trial_at`. From then on half-open: try again; one more failure opens it for twice as
long, from 1 s up to a heartbeat. Any session with that server, from either side, closes it. DESIGN 5.
"""

from dataclasses import dataclass

FAILURES_TO_OPEN = 2  # one lost answer is an accident
OPEN_SECONDS_FIRST = 1.0
_DOUBLINGS_MAX = 17  # 2**17 s is more than the longest heartbeat, a day


@dataclass(frozen=True, slots=True)
class Breaker:
    """Units: instants are seconds of `Clock.awake`. `opened_at` None: closed. `openings_count`: in a row."""

    failures_count: int = 0
    opened_at: float | None = None
    trial_at: float = 0.0
    openings_count: int = 0


_CLOSED = Breaker()


def closed() -> Breaker:
    """A breaker that nothing is held against."""
    return _CLOSED


def may_try(breaker: Breaker, now: float) -> bool:
    """Closed, or half-open."""
    return breaker.opened_at is None or now >= breaker.trial_at


def after_failure(breaker: Breaker, now: float, heartbeat_seconds: float, *, was_refused: bool = False) -> Breaker:
    """An attempt failed. A refused connection opens at once: nobody listens there.

    Attempts that were under way when it opened fail too, and say nothing new.
    """
    if not may_try(breaker, now):
        return breaker
    failures_count = breaker.failures_count + 1
    if breaker.opened_at is None and failures_count < FAILURES_TO_OPEN and not was_refused:
        return Breaker(failures_count)
    wait = min(OPEN_SECONDS_FIRST * 2 ** min(breaker.openings_count, _DOUBLINGS_MAX), heartbeat_seconds)
    return Breaker(failures_count, now, now + wait, breaker.openings_count + 1)


def after_success(breaker: Breaker) -> Breaker:
    """A session with the server exists, or existed just now."""
    return _CLOSED


def state_of(breaker: Breaker, now: float) -> str:
    """ "closed", "open" or "half-open", for listings."""
    if breaker.opened_at is None:
        return "closed"
    return "half-open" if now >= breaker.trial_at else "open"
