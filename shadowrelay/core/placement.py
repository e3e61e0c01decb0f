"""Which server to place a copy on: the order of attempts, and how much of the client's patience each may use.

Repeating a server comes only after every other allowed one was tried: a dead connection may have been the whole trouble.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from operator import attrgetter

from shadowrelay.model.ids import ServerName, SiteName
from shadowrelay.model.settings import Preference, Transport

LOCAL_SHARE = 0.25  # of the whole time, kept for local servers while a local attempt is still to come. DESIGN 5
LATE_SHARE = 0.25  # of what is left, for a remote attempt when the local share is all that is left

_by_load = attrgetter("load")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server that may hold copies. `may_try` False: known to be down. `load`: copies under way to it."""

    server: ServerName
    site: SiteName
    may_try: bool
    load: int


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

    Shapes: `candidates` in the caller's random order; the least loaded come first. A server appears twice only after
    every other allowed one. Empty: nobody can be tried now, so fail at once.
    Source: seed-000 "Shadow message creation parameters"
    """
    remote_count, local_count = _counts(candidates, rule)
    usable = sorted((candidate for candidate in candidates if candidate.may_try), key=_by_load)
    remote = [candidate.server for candidate in usable if candidate.site != rule.home] if remote_count else []
    local = [candidate.server for candidate in usable if candidate.site == rule.home] if local_count else []
    return (
        *remote[:remote_count],
        *local[:local_count],
        *islice(cycle(remote), len(remote), remote_count),
        *islice(cycle(local), len(local), local_count),
    )


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
