"""Which server to place a copy on: the order of attempts, and how much of the client's patience each may use.

Repeating a server comes only after every other allowed one was tried: a dead connection may have been the whole trouble.
"""

from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from operator import attrgetter

from shadowrelay.model.ids import ServerName, SiteName
from shadowrelay.model.settings import Preference, Transport
from shadowrelay.model.values import dataclass

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
