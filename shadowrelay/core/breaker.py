"""Whether a copy may be sent to a server now: a circuit breaker with two reasons to be open.

It gave no answer: no session, or none in time. Then nothing is tried until `trial_at`, at first for a second, twice as long after each
failed trial, at most a heartbeat. Any session with that server, from either side, closes it. docs/design.md 5.

It answered, but not now: no HOLD in its EHLO, `421`, or `452` to a copy. That is no failure, because it lives, and no return, because it
says no: being heard does not close it. What ends it is what it says: HOLD in the EHLO of any later session, where a whole session was
refused; a copy that it accepts, where a copy was. Until then it is left in peace, for a second at first, for half a minute at most.

In both cases exactly one attempt goes through at `trial_at`, the *trial*; for all others the breaker stays open until the trial has ended.
"""

from dataclasses import replace
from enum import Enum

from shadowrelay.model.values import dataclass

FAILURES_TO_OPEN = 2  # one lost answer is an accident
OPEN_SECONDS_FIRST = 1.0
REFUSED_SECONDS_MAX = 30.0  # a server that has room again is found by then, and one session in that time costs it nothing
_DOUBLINGS_MAX = 17  # 2**17 s is more than the longest heartbeat, a day


class Refused(Enum):
    """What the server said no to."""

    SESSION = "session"  # any later session in which it offers HOLD ends that
    COPY = "copy"  # its EHLO says nothing about it: only a copy that it accepts ends that


@dataclass(frozen=True, slots=True)
class Breaker:
    """Units: instants are seconds of `Clock.awake`. `opened_at` None: closed. `openings_count`: in a row. `trial`: the number of the
    attempt that was let through and has not ended; 0 for none. `refused` None: it gave no answer; else what it said is in `reason`."""

    failures_count: int = 0
    opened_at: float | None = None
    trial_at: float = 0.0
    openings_count: int = 0
    trial: int = 0
    refused: Refused | None = None
    reason: str = ""


_CLOSED = Breaker()


def closed() -> Breaker:
    """A breaker that nothing is held against."""
    return _CLOSED


def may_try(breaker: Breaker, now: float) -> bool:
    """Closed; or it is time for a trial, and none is under way."""
    return breaker.opened_at is None or (now >= breaker.trial_at and not breaker.trial)


def begun(breaker: Breaker, trial: int) -> Breaker:
    """An attempt begins that `may_try` allowed: the trial, unless the breaker is closed. It has to be `given_back`."""
    return breaker if breaker.opened_at is None else replace(breaker, trial=trial)


def given_back(breaker: Breaker, trial: int) -> Breaker:
    """That attempt has ended, in whatever way: what came of it is told by the other functions."""
    return replace(breaker, trial=0) if trial and breaker.trial == trial else breaker


def after_failure(breaker: Breaker, now: float, heartbeat_seconds: float, *, was_refused: bool = False) -> Breaker:
    """An attempt got no answer. A refused connection opens at once: nobody listens there.

    Attempts that were under way when it opened fail too, and say nothing new.
    """
    if _is_open(breaker, now):
        return breaker
    failures_count = breaker.failures_count + 1
    if breaker.opened_at is None and failures_count < FAILURES_TO_OPEN and not was_refused:
        return Breaker(failures_count)
    return _opened(breaker, failures_count, now, heartbeat_seconds, None, "")


def after_refusal(breaker: Breaker, now: float, heartbeat_seconds: float, refused: Refused, reason: str) -> Breaker:
    """It answered, but not now. Attempts that were under way when it first said so bring no news."""
    if breaker.refused is refused and _is_open(breaker, now):
        return breaker
    return _opened(breaker, 0, now, min(heartbeat_seconds, REFUSED_SECONDS_MAX), refused, reason)


def after_sign_of_life(breaker: Breaker) -> Breaker:
    """It was heard, in either direction. What it has refused it refuses still."""
    return breaker if breaker.refused is not None else _CLOSED


def after_offer(breaker: Breaker) -> Breaker:
    """It offered HOLD in the EHLO of some session."""
    return breaker if breaker.refused is Refused.COPY else _CLOSED


def after_copy(breaker: Breaker) -> Breaker:
    """It stored a copy, or began anew with its queue: nothing is held against it."""
    return _CLOSED


def state_of(breaker: Breaker, now: float) -> str:
    """ "closed", "open", "half-open" or "refusing", for listings."""
    if breaker.opened_at is None:
        return "closed"
    if breaker.refused is not None:
        return "refusing"
    return "half-open" if now >= breaker.trial_at else "open"


def _is_open(breaker: Breaker, now: float) -> bool:
    return breaker.opened_at is not None and now < breaker.trial_at


def _opened(breaker: Breaker, failures_count: int, now: float, longest: float, refused: Refused | None, reason: str) -> Breaker:
    wait = min(OPEN_SECONDS_FIRST * 2.0 ** min(breaker.openings_count, _DOUBLINGS_MAX), longest)
    return Breaker(failures_count, now, now + wait, breaker.openings_count + 1, breaker.trial, refused, reason)
