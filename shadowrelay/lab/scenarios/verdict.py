"""Judges a scenario: its figures, the invariants, and the effects that only its fault can produce. Pure. docs/lab.md "Scenarios".

`figures` counts the evidence. `findings` checks the invariants (docs/design.md 3) that can be checked from outside a cluster, and lists
the violations of each. I6 (everything is bounded) needs floods and not faults, and is tested in tests/smtp and tests/process.
I2 and I3 compare rows of different nodes, which is possible because all containers of a machine share its clock.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from shadowrelay.lab.scenarios.script import Expectation, Scenario
from shadowrelay.lab.topology import MACHINES
from shadowrelay.lab.traffic import Arrival, Sent
from shadowrelay.lab.verification import Verification
from shadowrelay.model.tracking import Acknowledged, EventId, Replication, ResubmitReason, TrackingEvent
from shadowrelay.protocol.tracking import DELAYED, KEPT_AS

# ---- figures

NOT_REDUNDANT = "451 4.4.0"
STORAGE = ("451 4.3.0", "452 4.3.1")  # the ledger could not write; back pressure
SITES = {machine.server: machine.site for machine in MACHINES}


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """A row of the tracking log of `server`."""

    server: str
    event: TrackingEvent

    def custom(self, key: str) -> str:
        """A value of custom-data, empty if absent."""
        return dict(self.event.custom_data).get(key, "")


@dataclass(frozen=True, slots=True)
class Database:
    """A sample of a node's queue database. `began`: the position at which this incarnation began. Units: `started_at` is
    time.time, of the process; `former` is the id before the database was found to be an older copy."""

    identity: str
    incarnation: int
    began: int
    position: int
    started_at: float = 0.0
    former: str = ""


@dataclass(frozen=True, slots=True)
class ScenarioEvidence:
    """Shapes: `logged` by time; `words`: how often the operator logs of the nodes contain an event; `replies`: how often Postfix received
    a reply code ("451 4.4.0") from a node; `databases` by server, at the beginning, before each disturbance, and at the end;
    `stopped` were killed or paused, so that their last rows may be missing; `waiting` is the result of LOOK.
    """

    verification: Verification
    logged: tuple[LoggedRow, ...] = ()
    words: Mapping[str, int] = field(default_factory=dict)
    replies: Mapping[str, int] = field(default_factory=dict)
    databases: Mapping[str, tuple[Database, ...]] = field(default_factory=dict)
    sent: tuple[Sent, ...] = ()
    arrived: tuple[Arrival, ...] = ()
    stopped: frozenset[str] = frozenset()
    waiting: int = 0

    def rows(self, *events: EventId) -> list[LoggedRow]:
        return [row for row in self.logged if row.event.event in events]


def figures(evidence: ScenarioEvidence) -> dict[str, float]:
    """All figures by name, in the order of `FIGURES`. Units: messages or times, seconds where the name says so."""
    return {name: figure(evidence) for name, (_, figure) in FIGURES.items()}


def _resubmitted(evidence: ScenarioEvidence, *reasons: ResubmitReason) -> list[LoggedRow]:
    wanted = {reason.value for reason in reasons or ResubmitReason}
    return [row for row in evidence.rows(EventId.RESUBMIT) if row.custom("Reason") in wanted]


def placed_again(rows: Iterable[LoggedRow]) -> int:
    """Messages of which one primary placed copies on more than one server."""
    servers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for each in rows:
        servers[each.server, each.event.network_message_id].add(each.event.server_hostname)
    return sum(len(found) > 1 for found in servers.values())


def _copies_in_own_site(evidence: ScenarioEvidence) -> int:
    return sum(SITES.get(row.server) == SITES.get(row.event.server_hostname) for row in evidence.rows(EventId.HAREDIRECT))


def _without_copy(evidence: ScenarioEvidence) -> int:
    return sum(row.custom("Replication") != Replication.SUCCESS.value for row in evidence.rows(EventId.RECEIVE))


def _databases(evidence: ScenarioEvidence, claim: Callable[[Database, Database], bool]) -> int:
    return sum(any(claim(before, after) for before, after in pairwise(series)) for series in evidence.databases.values())


def _is_reopened(before: Database, after: Database) -> bool:
    return before.identity == after.identity and after.incarnation > before.incarnation and after.began >= before.position


def _is_rolled_back(before: Database, after: Database) -> bool:
    return after.former == before.identity != after.identity


def _resumed(evidence: ScenarioEvidence) -> int:
    """Messages accepted by a process that has ended, and delivered by the next process of the same node."""
    accepted = {(row.server, row.event.network_message_id): row.event.at.timestamp() for row in evidence.rows(EventId.RECEIVE)}
    found = set()
    for row in evidence.rows(EventId.SEND, EventId.SENDEXTERNAL):
        key = row.server, row.event.network_message_id
        restarts = [each.started_at for each in evidence.databases.get(row.server, ())[1:]]
        if key in accepted and any(accepted[key] < at < row.event.at.timestamp() for at in restarts):
            found.add(key)
    return len(found)


def _takeover_seconds(evidence: ScenarioEvidence) -> float:
    """The longest time from the detection of the loss until RESUBMIT."""
    times = [row.event.at.timestamp() - datetime.fromisoformat(row.custom("DetectedAt")).timestamp() for row in _resubmitted(evidence)]
    return round(max(times, default=0.0), 1)


def delivery_seconds(sent: Iterable[Sent], arrived: Iterable[Arrival]) -> list[float]:
    """For each message, from its 250 to its first arrival at a receiving server."""
    firsts: dict[str, float] = {}
    for arrival in arrived:
        firsts[arrival.network_id] = min(arrival.at, firsts.get(arrival.network_id, arrival.at))
    return sorted(
        firsts[one.network_id] - one.at for message in sent for one in message.tries if one.network_id and one.network_id in firsts
    )


def _longest_delivery(evidence: ScenarioEvidence) -> float:
    return round(max(delivery_seconds(evidence.sent, evidence.arrived), default=0.0), 1)


def _resubmissions(evidence: ScenarioEvidence) -> Counter[tuple[str, str]]:
    """How often each message came from Safety Net for a recipient."""
    return Counter((one.network_id, one.recipient.lower()) for one in evidence.verification.resubmitted)


def _not_resubmitted(evidence: ScenarioEvidence) -> int:
    """Deliveries of a lost node inside the boundary that no other node repeated."""
    rows = [row for row in evidence.rows(EventId.SEND) if row.server in evidence.stopped]
    delivered = {(row.event.network_message_id, recipient.lower()) for row in rows for recipient in row.event.recipients}
    return len(delivered - _resubmissions(evidence).keys())


def _copied_twice(evidence: ScenarioEvidence) -> int:
    """Messages that were acknowledged with copies on two servers."""
    return sum(row.custom("Copies").startswith("2/") for row in evidence.rows(EventId.RECEIVE))


def _kept(row: LoggedRow) -> str:
    """The id of the kept shadow that a SEND row names, empty if none."""
    context = row.event.source_context
    return context.removeprefix(KEPT_AS) if context.startswith(KEPT_AS) else ""


def _kept_shadows(evidence: ScenarioEvidence) -> dict[str, list[LoggedRow]]:
    """The SEND rows of each kept shadow, by its id: one row for each time that it was relayed."""
    found: dict[str, list[LoggedRow]] = defaultdict(list)
    for row in evidence.rows(EventId.SEND, EventId.SENDEXTERNAL):
        if kept := _kept(row):
            found[kept].append(row)
    return found


def _taken_back(evidence: ScenarioEvidence) -> set[str]:
    """The ids of kept shadows that a server took back from their next hop."""
    kept = _kept_shadows(evidence)
    return {row.event.network_message_id for row in _resubmitted(evidence) if row.event.network_message_id in kept}


def _taken_back_seconds(evidence: ScenarioEvidence) -> float:
    """The longest time from a next hop's last answer until its messages were taken back."""
    taken = _taken_back(evidence)
    rows = [row for row in _resubmitted(evidence) if row.event.network_message_id in taken and row.custom("SilentSince")]
    times = [row.event.at.timestamp() - datetime.fromisoformat(row.custom("SilentSince")).timestamp() for row in rows]
    return round(max(times, default=0.0), 1)


def _rerouted(evidence: ScenarioEvidence) -> int:
    """Messages taken back, and then relayed or delivered to a next hop other than the first."""
    kept = _kept_shadows(evidence)
    first = {network_id: kept[network_id][0] for network_id in _taken_back(evidence)}
    later = (row for row in evidence.rows(EventId.SEND, EventId.SENDEXTERNAL) if row.event.network_message_id in first)
    return len(
        {
            row.event.network_message_id
            for row in later
            if row.server == first[row.event.network_message_id].server
            and row.event.server_hostname != first[row.event.network_message_id].event.server_hostname
        }
    )


FIGURES: dict[str, tuple[str, Callable[[ScenarioEvidence], float]]] = {
    "acknowledged": ("messages that a node answered 250", lambda seen: seen.verification.acknowledged),
    "arrived": ("of these, arrived at a receiving server", lambda seen: seen.verification.arrived),
    "lost": ("of these, lost", lambda seen: len(seen.verification.lost)),
    "duplicates": ("delivered more than once", lambda seen: len(seen.verification.duplicates)),
    "taken_over": ("delivered by a node other than the one that answered 250", lambda seen: seen.verification.taken_over),
    "promoted": ("shadow messages promoted (RESUBMIT)", lambda seen: len(_resubmitted(seen))),
    "promoted_silence": (
        "promoted after a span of silence",
        lambda seen: len(_resubmitted(seen, ResubmitReason.SILENCE)),
    ),
    "promoted_handover": (
        "promoted because the primary handed it over",
        lambda seen: len(_resubmitted(seen, ResubmitReason.HANDOVER)),
    ),
    "promoted_new_database": (
        "promoted because the primary's database is a new one",
        lambda seen: len(_resubmitted(seen, ResubmitReason.DATABASE_CHANGED)),
    ),
    "takeover_seconds": ("longest time from the detection of a loss to the takeover, seconds", _takeover_seconds),
    "delivery_seconds": ("longest time from 250 to arrival, seconds", _longest_delivery),
    "refused_not_redundant": (
        f"replies {NOT_REDUNDANT} to Postfix: no second copy could be placed",
        lambda seen: seen.replies.get(NOT_REDUNDANT, 0),
    ),
    "refused_for_storage": (
        f"replies {' and '.join(STORAGE)} to Postfix: not enough storage",
        lambda seen: sum(seen.replies.get(code, 0) for code in STORAGE),
    ),
    "copies_failed": ("messages for which no copy could be made (HAREDIRECTFAIL)", lambda seen: len(seen.rows(EventId.HAREDIRECTFAIL))),
    "copies_in_own_site": ("copies made in the primary's own site, not the other one", _copies_in_own_site),
    "placed_again": ("messages whose copy was made again on another server", lambda seen: placed_again(seen.rows(EventId.HAREDIRECT))),
    "acknowledged_alone": ("messages acknowledged without a second copy", _without_copy),
    "heartbeats_failed": ("heartbeats that failed (operator logs: peer.silent)", lambda seen: seen.words.get("peer.silent", 0)),
    "deferred": ("deferred delivery attempts (DEFER)", lambda seen: len(seen.rows(EventId.DEFER))),
    "resumed": ("messages that a node accepted, and delivered after it was restarted", _resumed),
    "reopened": ("nodes that started again on the same database", lambda seen: _databases(seen, _is_reopened)),
    "databases_new": (
        "nodes that came back with a new database",
        lambda seen: _databases(seen, lambda before, after: before.identity not in (after.identity, after.former)),
    ),
    "rolled_back": (
        "nodes that came back with an older copy of their database",
        lambda seen: _databases(seen, _is_rolled_back),
    ),
    "copied_twice": ("messages acknowledged with copies on two servers", _copied_twice),
    "resubmitted": (
        "deliveries from Safety Net, on request",
        lambda seen: len(seen.verification.resubmitted),
    ),
    "resubmitted_twice": (
        "of these, more than once to one recipient",
        lambda seen: sum(count > 1 for count in _resubmissions(seen).values()),
    ),
    "not_resubmitted": ("deliveries of a lost node inside the boundary that nobody resubmitted", _not_resubmitted),
    "waiting": ("messages held by shadow servers before the remedy", lambda seen: seen.waiting),
    "kept": ("messages relayed by TRACK, whose shadow the previous hop kept", lambda seen: len(_kept_shadows(seen))),
    "taken_back": ("of these, taken back from the next hop (RESUBMIT)", lambda seen: len(_taken_back(seen))),
    "taken_back_seconds": ("longest time from a next hop's last answer until this, seconds", _taken_back_seconds),
    "another_way": ("of these, then sent to another next hop", _rerouted),
}


# ---- invariants

ENDS = (EventId.SEND, EventId.SENDEXTERNAL, EventId.FAIL, EventId.EXPIRE, EventId.DUPLICATEDELIVER)
BEGINNINGS = (EventId.RECEIVE, EventId.HARECEIVE, EventId.RESUBMIT)


@dataclass(frozen=True, slots=True)
class InvariantFinding:
    """The result for one invariant. Shapes: `broken_by` is empty if it holds."""

    invariant: str
    claim: str
    broken_by: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.broken_by


def findings(evidence: ScenarioEvidence) -> list[InvariantFinding]:
    """All invariants that are visible, in order."""
    return [InvariantFinding(name, claim, tuple(check(evidence))) for name, (claim, check) in INVARIANTS.items()]


def _lost(evidence: ScenarioEvidence) -> list[str]:
    seen = evidence.verification
    unaccounted = [f"accepted by no node, and not queued at Postfix: {one}" for one in seen.unaccounted]
    return [f"lost: {one}" for one in seen.lost] + [f"still queued: {one}" for one in seen.still_queued] + unaccounted


def acknowledged_too_early(evidence: ScenarioEvidence) -> list[str]:
    """I2: RECEIVE as redundant, but no server had logged its copy by then. The copy of a message relayed here by TRACK is on the previous
    hop; a 250 that waited for the delivery needs no copy. Servers that were stopped may have lost their last rows."""
    stored: dict[str, list[LoggedRow]] = defaultdict(list)
    for row in evidence.rows(EventId.HARECEIVE):
        stored[row.event.network_message_id].append(row)
    placed: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in evidence.rows(EventId.HAREDIRECT):
        placed[row.server, row.event.network_message_id].add(row.event.server_hostname)
    kept = {(row.server, network_id) for network_id, rows in _kept_shadows(evidence).items() for row in rows}
    ended: dict[tuple[str, str], list[LoggedRow]] = defaultdict(list)
    for row in evidence.rows(*ENDS):
        ended[row.server, row.event.network_message_id].append(row)
    broken = []
    for row in evidence.rows(EventId.RECEIVE):
        network_id = row.event.network_message_id
        if row.custom("Replication") != Replication.SUCCESS.value or placed[row.server, network_id] & evidence.stopped:
            continue
        if previous_hop := row.custom("ShadowAt"):
            if previous_hop not in evidence.stopped and (previous_hop, network_id) not in kept:
                broken.append(f"relayed, but the previous hop has not kept it: {network_id}")
        elif row.event.source_context.startswith(DELAYED) and row.event.source_context != f"{DELAYED}{Acknowledged.COPIED}":
            ends = {to for end in ended[row.server, network_id] if end.event.at <= row.event.at for to in end.event.recipients}
            if row.event.source_context == f"{DELAYED}{Acknowledged.DONE}" and set(row.event.recipients) - ends:
                broken.append(f"acknowledged as done before it was: {network_id}")
        elif not any(copy.server != row.server and copy.event.at <= row.event.at for copy in stored[network_id]):
            broken.append(f"acknowledged before a copy was stored: {network_id}")
    return broken


def discarded_too_early(evidence: ScenarioEvidence) -> list[str]:
    """I3: a shadow message discarded as delivered while its primary was still delivering it."""
    ended: dict[tuple[str, str], list[LoggedRow]] = defaultdict(list)
    for row in evidence.rows(*ENDS):
        ended[row.server, row.event.network_message_id].append(row)
    broken = []
    for row in evidence.rows(EventId.HADISCARD):
        event = row.event
        ends = ended[event.client_hostname, event.network_message_id]
        if event.source_context == "delivered" and not event.recipients and any(end.event.at > event.at for end in ends):
            broken.append(f"discarded before its primary was done: {event.network_message_id}")
    return broken


def unexplained_mail(evidence: ScenarioEvidence) -> list[str]:
    """I8: acknowledged mail without a beginning, or without an end for a recipient, in any tracking log. The end of a message that was
    relayed by TRACK has another id, at the next hop or where it was taken back."""
    began = {row.event.network_message_id for row in evidence.rows(*BEGINNINGS)}
    ends: dict[str, list[LoggedRow]] = defaultdict(list)
    for row in evidence.rows(*ENDS):
        ends[row.event.network_message_id].append(row)

    def ended(network_id: str) -> set[str]:
        return {
            recipient
            for row in ends[network_id]
            for recipient in (ended(_kept(row)).intersection(row.event.recipients) if _kept(row) else row.event.recipients)
        }

    broken = []
    for message in evidence.sent:
        for network_id in message.acknowledged_ids:
            if network_id not in began:
                broken.append(f"no row for its receipt: {network_id}")
            elif set(message.recipients) - ended(network_id):
                broken.append(f"no row for its end: {network_id}")
    return broken


def _unexplained_duplicates(evidence: ScenarioEvidence) -> list[str]:
    return [f"duplicated without a cause: message {one.number} {one.network_id}" for one in evidence.verification.unexplained]


def _not_taken_up(evidence: ScenarioEvidence) -> list[str]:
    return [f"still queued: {one}" for one in evidence.verification.still_queued]


INVARIANTS: dict[str, tuple[str, Callable[[ScenarioEvidence], list[str]]]] = {
    "I1": ("no loss: everything acknowledged has arrived", _lost),
    "I2": ("durable before acknowledged: no 250 before the second copy was stored", acknowledged_too_early),
    "I3": ("discard last: no copy discarded before its primary was done", discarded_too_early),
    "I4": ("one owner: every duplicate has a cause", _unexplained_duplicates),
    "I5": ("same bytes: what arrived is what was sent", lambda seen: [f"changed: {one}" for one in seen.verification.changed]),
    "I7": ("restart is nothing special: all queued messages were processed", _not_taken_up),
    "I8": ("explainable: tracking logs show every message from beginning to end", unexplained_mail),
}


# ---- the verdict


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """One expectation and the actual figure."""

    expectation: Expectation
    value: float

    @property
    def is_met(self) -> bool:
        return self.expectation.is_met(self.value)

    def line(self) -> str:
        """The outcome as text: "promoted_silence = 12, expected > 0: its mail is taken over …"."""
        return f"{self.expectation.figure} = {self.value:g}, expected {self.expectation.bound}: {self.expectation.why}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The whole result. Shapes: `figures` by name; those that are 0 and not expected need not be shown."""

    scenario: Scenario
    figures: Mapping[str, float]
    findings: tuple[InvariantFinding, ...]
    outcomes: tuple[ExpectationResult, ...]
    summary: str
    never_acknowledged: int = 0

    @property
    def is_passed(self) -> bool:
        """Also false if some mail was never accepted, because then less was tested than intended."""
        if self.never_acknowledged:
            return False
        return all(finding.holds for finding in self.findings) and all(outcome.is_met for outcome in self.outcomes)

    def shown(self) -> list[tuple[str, float]]:
        """Figures with an explanation that are not 0 or were expected, in order."""
        named = {outcome.expectation.figure for outcome in self.outcomes} | {"acknowledged", "arrived", "lost", "duplicates"}
        return [(FIGURES[name][0], value) for name, value in self.figures.items() if value or name in named]


def judge(scenario: Scenario, evidence: ScenarioEvidence) -> Verdict:
    """Compare the evidence with the expectations and invariants."""
    counted = figures(evidence)
    never = evidence.verification.not_acknowledged
    return Verdict(
        scenario,
        counted,
        tuple(findings(evidence)),
        tuple(ExpectationResult(each, counted[each.figure]) for each in scenario.expectations),
        evidence.verification.line() + (f", never acknowledged {never}" if never else ""),
        never,
    )
