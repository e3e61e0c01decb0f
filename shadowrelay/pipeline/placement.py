"""Which server to place a copy on, in which order, with how much of the client's patience; and whether it may be tried now.

Repeating a server comes only after every other allowed one was tried: a dead connection may have been the whole trouble.

A circuit breaker for each server has two reasons to be open.

It gave no answer: no session, or none in time. Then nothing is tried until `trial_at`, at first for a second, twice as long after each
failed trial, at most a heartbeat. Any session with that server, from either side, closes it. docs/design.md 5.

It answered, but not now: no HOLD in its EHLO, `421`, or `452` to a copy. That is no failure, because it lives, and no return, because it
says no: being heard does not close it. What ends it is what it says: HOLD in the EHLO of any later session, where a whole session was
refused; a copy that it accepts, where a copy was. Until then it is left in peace, for a second at first, for half a minute at most.

In both cases exactly one attempt goes through at `trial_at`, the *trial*; for all others the breaker stays open until the trial has ended.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import cycle, islice
from operator import attrgetter

from shadowrelay.model.ids import ServerName, SiteName
from shadowrelay.model.values import dataclass, replace
from shadowrelay.settings.values import Preference, Transport

FAILURES_TO_OPEN = 2  # one lost answer is an accident
OPEN_SECONDS_FIRST = 1.0
REFUSED_SECONDS_MAX = 30.0  # a server that has room again is found by then, and one session in that time costs it nothing
_OPENINGS_MAX = 17  # 2**17 s is more than the longest heartbeat, a day


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
    wait = min(OPEN_SECONDS_FIRST * 2.0 ** min(breaker.openings_count, _OPENINGS_MAX), longest)
    return Breaker(failures_count, now, now + wait, breaker.openings_count + 1, breaker.trial, refused, reason)


LOCAL_SHARE = 0.25  # of the whole time, kept for local servers while a local attempt is still to come. docs/design.md 5
LATE_SHARE = 0.25  # of what is left, for a remote attempt when the local share is all that is left

LARGE_OCTETS = 256 * 1024  # of content; a larger copy takes its turn, and may go on as long as it gets on
TURN_OCTETS_MAX = 4 * 1024 * 1024  # of large copies under way to one server at one time, or one of them
CLIENT_SECONDS_MAX = 300.0  # half of what RFC 5321 4.5.3.2.6 tells a client to wait for the reply to its final dot
REPAIR_SECONDS_MAX = 3600.0  # no client waits; 36 MB at 10 kB/s
REPAIR_STILL_SECONDS = 30.0
PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX = 1.0, 300.0  # between the attempts to place one message
_DOUBLINGS_MAX = 9  # 2**9 s is more than the longest pause

_by_load = attrgetter("was_silent", "load")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server that may hold copies. `may_try` False: known to be down. `load`: copies under way to it. `was_silent`: the last that
    tried it waited in vain, so whoever is first now may wait too."""

    server: ServerName
    site: SiteName
    may_try: bool
    load: int
    was_silent: bool = False


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """`is_multi_site` None: judged by the candidates."""

    preference: Preference
    remote_retries: int
    local_retries: int
    home: SiteName
    is_multi_site: bool | None = None


def rule_of(transport: Transport, home: SiteName, sites: Iterable[SiteName] | None = None) -> PlacementRule:
    """The settings' rule. `sites`: those of the whole boundary, where the candidates will be only a part of it."""
    return PlacementRule(
        transport.shadow_message_preference_setting,
        transport.max_retries_for_remote_site_shadow,
        transport.max_retries_for_local_site_shadow,
        home,
        None if sites is None else any(site != home for site in sites),
    )


def plan(candidates: Sequence[Candidate], rule: PlacementRule) -> tuple[ServerName, ...]:
    """The order of attempts.

    Shapes: `candidates` in the caller's random order; the least loaded come first, who was silent last. A server appears twice only after
    every other allowed one. Empty: nobody can be tried now, so fail at once.
    Source: seed-000 "Shadow message creation parameters"
    """
    remote_count, local_count = _counts(candidates, rule)
    usable = sorted([candidate for candidate in candidates if candidate.may_try], key=_by_load)
    remote = [candidate.server for candidate in usable if candidate.site != rule.home] if remote_count else []
    local = [candidate.server for candidate in usable if candidate.site == rule.home] if local_count else []
    return (
        *remote[:remote_count],
        *local[:local_count],
        *islice(cycle(remote), len(remote), remote_count),
        *islice(cycle(local), len(local), local_count),
    )


@dataclass(frozen=True, slots=True)
class CopyTime:
    """How long the attempts for one message may take together. Units: seconds. `still`: in which nothing gets on, shared by the attempts;
    None where only `whole` counts."""

    whole: float
    still: float | None


def time_for(size: int, shadow_timeout: float, *, is_client_waiting: bool) -> CopyTime:
    """A small copy has `shadow_timeout`, waiting for a session included. A large one has that from when its turn begins, and again with
    each sign that it gets on; a client is kept waiting `CLIENT_SECONDS_MAX` for it, its turn included."""
    if size <= LARGE_OCTETS:
        return CopyTime(shadow_timeout, None)
    if is_client_waiting:
        return CopyTime(max(CLIENT_SECONDS_MAX, shadow_timeout), shadow_timeout)
    return CopyTime(REPAIR_SECONDS_MAX, max(REPAIR_STILL_SECONDS, shadow_timeout))


def pause_after(failures_count: int) -> float:
    """Seconds until a message that was tried in vain so often, at least once, is tried again: every try may cost its whole content."""
    return min(PAUSE_SECONDS_FIRST * 2.0 ** min(failures_count - 1, _DOUBLINGS_MAX), PAUSE_SECONDS_MAX)


def _counts(candidates: Sequence[Candidate], rule: PlacementRule) -> tuple[int, int]:
    """Attempts in remote sites and in the local one."""
    is_multi_site = rule.is_multi_site
    if is_multi_site is None:
        is_multi_site = any(candidate.site != rule.home for candidate in candidates)
    if not is_multi_site:
        # RemoteOnly has set the local count to 0, which would mean no copies at all here: the larger count it is.
        is_remote_only = rule.preference is Preference.REMOTE_ONLY
        return 0, max(rule.remote_retries, rule.local_retries) if is_remote_only else rule.local_retries
    if rule.preference is Preference.REMOTE_ONLY:
        return rule.remote_retries, 0
    if rule.preference is Preference.LOCAL_ONLY:
        return 0, rule.local_retries
    return rule.remote_retries, rule.local_retries


def budget(
    remaining_seconds: float,
    attempts_left_remote: int,
    attempts_left_local: int,
    another_candidate_left: bool,
    *,
    is_local: bool = False,
    whole_seconds: float | None = None,
) -> float:
    """How long the attempt that begins now may take.

    At most half of what is left while another candidate remains; a remote one leaves the locals still to come a quarter
    of `whole_seconds` (default: of what is left), and further remote ones half of the rest.
    Shapes: the two counts are of the attempts after this one. `is_local`: this one is.
    """
    if not another_candidate_left:
        return remaining_seconds
    half = remaining_seconds / 2
    if is_local or not attempts_left_local:
        return half
    kept = LOCAL_SHARE * (remaining_seconds if whole_seconds is None else whole_seconds)
    pool = max(remaining_seconds - kept, remaining_seconds * LATE_SHARE)
    return min(half, pool / 2 if attempts_left_remote else pool)
