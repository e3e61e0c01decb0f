"""Decides where to place a copy: order of servers, time for each, circuit breakers. docs/design.md 5, docs/architecture.md.

Servers that share a fate with this node come last, as a copy there is not redundant; of several copies, servers that share one with each
other. Else all remote attempts come before the local ones. Within a site, or the other sites together, a server is repeated only after
every other one was tried; it is repeated because a dead connection may have been the only problem.

Each server has a circuit breaker, which opens for one of two reasons.

No answer: no session, or none in time. Nothing is tried until `trial_at`: for a second at first, twice as long after each failed
trial, at most a heartbeat. Any session with that server, from either side, closes the breaker; but if no session of ours and no copy
succeeds after that, sessions from its side close it no more: that we hear it does not say that it hears us. docs/design.md 5.

A refusal: no HOLD in its EHLO, `421`, or `452` to a copy. The server is alive, so this is no failure; a sign of life does not
close the breaker, because the server still refuses. Only acceptance does: HOLD in the EHLO of any later session, if a whole
session was refused; an accepted copy, if a copy was. Until then it is not tried, for a second at first, for half a minute at most.

In both cases exactly one attempt, the *trial*, is allowed at `trial_at`; for all others the breaker stays open until it has ended.

The breaker says whether to try. Whether a copy would be stored is said by `CopyEvidence`, which only our own sessions and copies change.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import cycle, islice
from operator import attrgetter, itemgetter

from shadowrelay.model.fate import NOT_SHARED, Shared
from shadowrelay.model.ids import ServerName, SiteName
from shadowrelay.model.message import Envelope
from shadowrelay.model.readiness import NewMail, Takes
from shadowrelay.model.settings import PeersMayRelay, Preference, Settings, Transport
from shadowrelay.model.values import dataclass, replace
from shadowrelay.rules.router import covers

FAILURES_TO_OPEN = 2  # one lost answer may be chance
OPEN_SECONDS_FIRST = 1.0
SICK_SECONDS_MAX = 60.0  # for so long a peer that lives and stores no copies counts as about to recover, for a load balancer
REFUSED_SECONDS_MAX = 30.0  # a server that has room again is found by then, and a session in that time costs little
_OPENINGS_MAX = 17  # 2**17 s is more than the longest heartbeat, a day


class Refused(Enum):
    """What the server refused."""

    SESSION = "session"  # ended by any later session that offers HOLD
    COPY = "copy"  # not visible in EHLO: ended only by an accepted copy


@dataclass(frozen=True, slots=True)
class Breaker:
    """Units: instants are seconds of `Clock.awake`. `opened_at` None: closed. `openings_count`: in a row. `trial`: the number of the
    attempt that was allowed and has not ended; 0 for none. `refused` None: it gave no answer; else its reply is in `reason`.
    `was_forgiven`: a sign of life made it forget failures, and nothing of ours has succeeded since."""

    failures_count: int = 0
    opened_at: float | None = None
    trial_at: float = 0.0
    openings_count: int = 0
    trial: int = 0
    refused: Refused | None = None
    reason: str = ""
    was_forgiven: bool = False


CLOSED = Breaker()  # without failures
FORGIVEN = Breaker(was_forgiven=True)


def may_try(breaker: Breaker, now: float) -> bool:
    """Closed; or a trial is due and none is in progress."""
    return breaker.opened_at is None or (now >= breaker.trial_at and not breaker.trial)


def begun(breaker: Breaker, trial: int) -> Breaker:
    """An attempt that `may_try` allowed begins: the trial, unless the breaker is closed. It must be `given_back`."""
    return breaker if breaker.opened_at is None else replace(breaker, trial=trial)


def given_back(breaker: Breaker, trial: int) -> Breaker:
    """That attempt has ended; its result is passed to the other functions."""
    return replace(breaker, trial=0) if trial and breaker.trial == trial else breaker


def after_failure(breaker: Breaker, now: float, heartbeat_seconds: float, *, was_refused: bool = False) -> Breaker:
    """An attempt got no answer. A refused connection opens at once: no process listens there.

    Attempts that were in progress when it opened fail too, and add no information.
    """
    if _is_open(breaker, now):
        return breaker
    failures_count = breaker.failures_count + 1
    if breaker.opened_at is None and failures_count < FAILURES_TO_OPEN and not was_refused:
        return Breaker(failures_count, was_forgiven=breaker.was_forgiven)
    return _opened(breaker, failures_count, now, heartbeat_seconds, None, "")


def after_refusal(breaker: Breaker, now: float, heartbeat_seconds: float, refused: Refused, reason: str) -> Breaker:
    """It answered with a refusal. Attempts that were in progress at its first refusal add no information."""
    if breaker.refused is refused and _is_open(breaker, now):
        return breaker
    return _opened(breaker, 0, now, min(heartbeat_seconds, REFUSED_SECONDS_MAX), refused, reason)


def after_sign_of_life(breaker: Breaker) -> Breaker:
    """There was a session, in either direction. A refusal stays in force, and failures are forgiven once."""
    return breaker if breaker.refused is not None or breaker.was_forgiven else FORGIVEN


def after_offer(breaker: Breaker) -> Breaker:
    """It offered HOLD in the EHLO of a session."""
    return breaker if breaker.refused is Refused.COPY else CLOSED


def after_copy(breaker: Breaker) -> Breaker:
    """It stored a copy, or restarted: the breaker closes."""
    return CLOSED


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
    return Breaker(failures_count, now, now + wait, breaker.openings_count + 1, breaker.trial, refused, reason, breaker.was_forgiven)


LOCAL_SHARE = 0.25  # of the whole time, reserved for local servers while a local attempt remains. docs/design.md 5
LATE_SHARE = 0.25  # of the time left, for a remote attempt when only the local share is left

LARGE_OCTETS = 256 * 1024  # of content; a larger copy takes turns, and may continue as long as it makes progress
TURN_OCTETS_MAX = 4 * 1024 * 1024  # of large copies in progress to one server; a larger one goes alone
CLIENT_SECONDS_MAX = 300.0  # half of the time that RFC 5321 4.5.3.2.6 has a client wait for the reply to its final dot
REPAIR_SECONDS_MAX = 3600.0  # no client waits; 36 MB at 10 kB/s
REPAIR_STALL_SECONDS = 30.0
PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX = 1.0, 300.0  # between the attempts to place one message
_DOUBLINGS_MAX = 9  # 2**9 s is more than the longest pause

_may_be_tried, _by_load = attrgetter("may_try"), attrgetter("was_silent", "load")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server that may hold copies. `may_try` False: known to be down. `load`: copies in progress to it. `was_silent`: the last
    attempt got no answer, so the next one may not get one either. `shared`: with whom it shares its fate."""

    server: ServerName
    site: SiteName
    may_try: bool
    load: int
    was_silent: bool = False
    shared: Shared = NOT_SHARED


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """`is_multi_site` None: derived from the candidates."""

    preference: Preference
    remote_retries: int
    local_retries: int
    home: SiteName
    is_multi_site: bool | None = None


def rule_of(transport: Transport, home: SiteName, sites: Iterable[SiteName] | None = None) -> PlacementRule:
    """The rule of the settings. `sites`: those of the whole boundary, if the candidates will be only a part of it."""
    return PlacementRule(
        transport.shadow_message_preference_setting,
        transport.max_retries_for_remote_site_shadow,
        transport.max_retries_for_local_site_shadow,
        home,
        None if sites is None else any(site != home for site in sites),
    )


def plan(candidates: Sequence[Candidate], rule: PlacementRule, copies: int = 1) -> tuple[ServerName, ...]:
    """The order of attempts.

    Shapes: `candidates` in the caller's random order; the least loaded come first, silent ones last. All attempts in other sites, then
    those in this one; each server of them once before one is repeated. The numbers of attempts are for each of the `copies`; several of
    them go to different fates first, then to different sites, and no server is named twice before all are named. Empty: no server can be
    tried now, so fail at once.
    Source: seed-000 "Shadow message creation parameters"
    """
    remote_count, local_count = _counts(candidates, rule)
    usable = sorted(filter(_may_be_tried, candidates), key=_by_load)
    if copies > 1:
        remote_count, local_count = remote_count * copies, local_count * copies
        usable = _spread(usable)
    for candidate in usable:
        if candidate.shared is not NOT_SHARED:
            groups = _by_fate(usable, copies)
            break
    else:
        groups = [usable]
    if copies == 1 and len(groups) == 1:
        return _in_turn(usable, rule.home, remote_count, local_count)
    if copies == 1:
        return tuple([server for group in groups for server in _in_turn(group, rule.home, remote_count, local_count)])
    firsts: list[ServerName] = []
    rests: list[ServerName] = []
    for group in groups:
        remote, local = _by_site(group, rule.home)
        firsts += (*remote[:remote_count], *local[:local_count])
        rests += (*islice(cycle(remote), len(remote), remote_count), *islice(cycle(local), len(local), local_count))
    return (*firsts, *rests)


def _in_turn(candidates: Sequence[Candidate], home: SiteName, remote_count: int, local_count: int) -> tuple[ServerName, ...]:
    if len(candidates) == 1:
        (only,) = candidates
        return (only.server,) * (local_count if only.site == home else remote_count)
    remote, local = _by_site(candidates, home)
    return (*islice(cycle(remote), remote_count), *islice(cycle(local), local_count))


def _by_site(candidates: Iterable[Candidate], home: SiteName) -> tuple[list[ServerName], list[ServerName]]:
    """Those in other sites, and those in this one."""
    remote: list[ServerName] = []
    local: list[ServerName] = []
    for candidate in candidates:
        (local if candidate.site == home else remote).append(candidate.server)
    return remote, local


def _by_fate(candidates: Sequence[Candidate], copies: int) -> list[list[Candidate]]:
    """Groups in the order in which they are to be tried: of another fate than this node; for several `copies`, first one of each fate."""
    groups: dict[tuple[bool, int], list[Candidate]] = {}
    met: list[ServerName] = []
    for candidate in candidates:
        count = sum(server in candidate.shared.others for server in met) if copies > 1 else 0
        groups.setdefault((candidate.shared.is_own, count), []).append(candidate)
        met.append(candidate.server)
    return [groups[key] for key in sorted(groups)]


def apart(servers: Iterable[ServerName], shared: Callable[[ServerName], Shared]) -> list[ServerName]:
    """Those of these servers that can hold redundant copies at the same time: not of this node's fate, nor of that of one before."""
    found: list[ServerName] = []
    for server in servers:
        its = shared(server)
        if not its.is_own and not any(one in its.others for one in found):
            found.append(server)
    return found


def may_get_copies(site: SiteName, rule: PlacementRule) -> bool:
    """Whether servers of this site are tried at all. `rule` knows whether there are several sites."""
    remote_count, local_count = _counts((), rule)
    return bool(local_count if site == rule.home else remote_count)


def _spread(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The first of each site, then the second of each, and so on."""
    met: dict[SiteName, int] = {}
    rounds = []
    for candidate in candidates:
        met[candidate.site] = met.get(candidate.site, 0) + 1
        rounds.append(met[candidate.site])
    return [candidate for _, candidate in sorted(zip(rounds, candidates, strict=True), key=itemgetter(0))]


@dataclass(frozen=True, slots=True)
class CopyTime:
    """Total time for the attempts on one message. Units: seconds. `stall_seconds`: time without progress, shared by the attempts; None
    if only `whole` applies."""

    whole: float
    stall_seconds: float | None


def time_for(size: int, shadow_timeout: float, *, is_client_waiting: bool) -> CopyTime:
    """A small copy has `shadow_timeout`, including the wait for a session. A large one has that from the start of its turn, and again
    after each progress; a client waits `CLIENT_SECONDS_MAX` for it, including the wait for its turn."""
    if size <= LARGE_OCTETS:
        return CopyTime(shadow_timeout, None)
    if is_client_waiting:
        return CopyTime(max(CLIENT_SECONDS_MAX, shadow_timeout), shadow_timeout)
    return CopyTime(REPAIR_SECONDS_MAX, max(REPAIR_STALL_SECONDS, shadow_timeout))


def pause_after(failures_count: int) -> float:
    """Seconds until the next try after `failures_count` (at least 1) failures: every try may transfer the whole content."""
    return min(PAUSE_SECONDS_FIRST * 2.0 ** min(failures_count - 1, _DOUBLINGS_MAX), PAUSE_SECONDS_MAX)


def _counts(candidates: Sequence[Candidate], rule: PlacementRule) -> tuple[int, int]:
    """Attempts in remote sites and in the local one."""
    is_multi_site = rule.is_multi_site
    if is_multi_site is None:
        is_multi_site = any(candidate.site != rule.home for candidate in candidates)
    if not is_multi_site:
        return 0, rule.local_retries  # whatever the preference says. Source: seed-000
    if rule.preference is Preference.REMOTE_ONLY:
        return rule.remote_retries, 0
    if rule.preference is Preference.LOCAL_ONLY:
        return 0, rule.local_retries
    return rule.remote_retries, rule.local_retries


def budget(
    remaining_seconds: float,
    servers_left_remote: int,
    servers_left_local: int,
    another_candidate_left: bool,
    *,
    is_local: bool = False,
    whole_seconds: float | None = None,
) -> float:
    """Seconds that the attempt that begins now may take.

    At most half of the time left while another candidate remains; a remote attempt leaves remaining local ones a quarter
    of `whole_seconds` (default: of the time left), and further remote ones half of the rest.
    Shapes: the two counts are of the other servers to be tried after this one. `is_local`: this one is.
    """
    if not another_candidate_left:
        return remaining_seconds
    half = remaining_seconds / 2
    if is_local or not servers_left_local:
        return half
    kept = LOCAL_SHARE * (remaining_seconds if whole_seconds is None else whole_seconds)
    pool = max(remaining_seconds - kept, remaining_seconds * LATE_SHARE)
    return min(half, pool / 2 if servers_left_remote else pool)


@dataclass(frozen=True, slots=True)
class CopyEvidence:
    """What our own sessions and copies show of whether a peer stores copies. What it says in its sessions with us shows nothing of the
    kind: it may reach us where another server answers us, or none. Units: `Clock.awake`.

    `is_offered`: its process offered HOLD in a session of ours, or stored a copy. `is_cut`: the last session or question of ours failed.
    `copy_failed_at`: since then no copy was stored there, though there was a session. `not_this_count`: refusals in a row that named
    something in that copy as the reason. `failing_since`: the first failure since a copy was stored or a session was opened.
    """

    is_offered: bool = False
    is_cut: bool = False
    copy_failed_at: float | None = None
    reason: str = ""
    not_this_count: int = 0
    failing_since: float | None = None


NOTHING_TRIED = CopyEvidence()  # of this process of the peer
PROVED = CopyEvidence(is_offered=True)  # a copy was stored


def evidence_offered(evidence: CopyEvidence) -> CopyEvidence:
    """HOLD in the EHLO of a session of ours. A copy that failed weighs more."""
    failing_since = None if evidence.copy_failed_at is None else evidence.failing_since
    return replace(evidence, is_offered=True, is_cut=False, failing_since=failing_since)


def evidence_answered(evidence: CopyEvidence) -> CopyEvidence:
    """A question of ours was answered."""
    return replace(evidence, is_cut=False) if evidence.is_cut else evidence


def evidence_cut(evidence: CopyEvidence, now: float, reason: str) -> CopyEvidence:
    """It gave us no session, or no answer to a question."""
    return replace(evidence, is_cut=True, reason=reason, failing_since=_first(evidence, now))


def _first(evidence: CopyEvidence, now: float) -> float:
    return now if evidence.failing_since is None else evidence.failing_since


def evidence_of_failed_copy(evidence: CopyEvidence, now: float, reason: str, *, is_not_this: bool = False) -> CopyEvidence:
    """A copy was refused, or not confirmed, in a session. `is_not_this`: for something in that copy, which counts if it happens again."""
    count = evidence.not_this_count + 1 if is_not_this else evidence.not_this_count
    if is_not_this and count < FAILURES_TO_OPEN:
        return replace(evidence, not_this_count=count)
    first = _first(evidence, now)
    return replace(evidence, is_cut=False, copy_failed_at=now, reason=reason, not_this_count=count, failing_since=first)


def may_recover(evidence: CopyEvidence, heard_at: float | None, now: float) -> bool:
    """Whether a peer that takes no copies is only sick, and not for long: it refused them in a session, or has spoken to us since. A load
    balancer should not move all clients for that."""
    began = evidence.failing_since
    if began is None or now - began >= SICK_SECONDS_MAX:
        return False
    return not evidence.is_cut or (heard_at is not None and heard_at > began)


def takes_copies(evidence: CopyEvidence, breaker: Breaker, now: float) -> Takes:
    """A copy that failed proves that the peer takes none until one is stored. After a while without another try nobody knows; to say
    "no" for ever would keep a load balancer from sending the message that shows it."""
    if evidence.is_cut:
        return Takes.NO
    if evidence.copy_failed_at is not None:
        is_recent = now < evidence.copy_failed_at + REFUSED_SECONDS_MAX
        return Takes.NO if is_recent or not may_try(breaker, now) else Takes.UNKNOWN
    if breaker.opened_at is not None:
        return Takes.NO
    return Takes.YES if evidence.is_offered else Takes.UNKNOWN


def not_accepted(envelope: Envelope, settings: Settings) -> str:
    """The first recipient that no client could have given the connector that a copy names, or any connector here, if none has its name;
    "" if there is none, as with `peers_may_relay = "all"`. Who has a node's key could otherwise send what he likes through the others.

    A DSN has no sender, and its recipient may be anywhere: it is always taken.
    """
    if settings.transport.peers_may_relay is PeersMayRelay.ALL or not envelope.sender:
        return ""
    named = [one for one in settings.receive_connectors if one.name == envelope.connector] or settings.receive_connectors
    if any(one.relay_from for one in named):
        return ""
    domains = [domain for one in named for domain in one.accepted_domains]
    for recipient in envelope.recipients:
        _, at, domain = recipient.address.rpartition("@")
        if at and not any(covers(one, domain) for one in domains):
            return str(recipient.address)
    return ""


def new_mail(takers: Sequence[Takes], wanted: int, *, rejects: bool) -> NewMail:
    """`takers`: of each peer that may get copies. In reject mode (`rejects`) fewer than wanted are as good as none."""
    if not wanted:
        return NewMail.NOT_COPIED
    yes = takers.count(Takes.YES)
    if yes >= wanted:
        return NewMail.COPIED
    if yes + takers.count(Takes.UNKNOWN) >= wanted:
        return NewMail.UNKNOWN
    return NewMail.REFUSED if rejects else NewMail.FEWER
