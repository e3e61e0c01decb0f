"""Compares sent mail with arrivals: losses, changes, and every duplicate with its cause. docs/design.md 3, I4.

Nodes are not consulted; only outside evidence counts: what clients and receiving servers recorded. Causes are derived only from faults
that the lab itself made, and narrowly: a duplicate that no fault clearly explains is `unexplained`, and counts as an error of the relay.

The rules for causes compare two arrivals of one message for one recipient: `first` by server X, `later` by server Y (possibly the same).
X was entitled to deliver; the question is why Y did not know of that.

A caller that has read the tracking logs may pass `record_of`: X's own record of an arrival.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from shadowrelay.lab.traffic import Arrival, Sent, Submission, SubmissionResult

# ---- causes

ID_SECONDS = 0.001  # the time in an id is cut to milliseconds
RECORD_SECONDS = 1.0  # between a next hop's acceptance and our synced record of it, on a busy machine

_UUID7 = re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}")


class FaultKind(StrEnum):
    """The kind of a fault. A half cut, slow or broken connections and a full disk explain no duplicate: what failed is
    tried again, and records wait until there is room. A node whose disk is dead is silent, like one that is stopped."""

    KILL = "kill"
    WIPE = "kill and wipe"
    PAUSE = "pause"
    CUT = "cut"
    HALF_CUT = "cut one way"
    SLOW = "slow"
    BREAK = "break"
    FULL = "full disk"
    DEAD_DISK = "dead disk"


@dataclass(frozen=True, slots=True)
class Fault:
    """Shapes: `other` is the second node of a cut; empty = the node was cut from all others.
    Units: time.time; `ended_at` is when it was over (for a killed node: when it was started again)."""

    kind: FaultKind
    node: str
    began_at: float
    ended_at: float
    other: str = ""

    @property
    def stops_node(self) -> bool:
        """Whether the node itself did not run."""
        return self.kind in (FaultKind.KILL, FaultKind.WIPE, FaultKind.PAUSE, FaultKind.DEAD_DISK)

    def parts(self, one: str, another: str) -> bool:
        """Whether the two nodes could not reach each other."""
        if self.kind is not FaultKind.CUT:
            return self.stops_node and self.node in (one, another)
        return {one, another} == {self.node, self.other} if self.other else self.node in (one, another)

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


class Cause(StrEnum):
    """The causes of I4, by their letters."""

    DIED_BEFORE_RECORD = "a"
    DISK_DESTROYED = "b"
    CUT_OFF = "c"
    TWO_FAILED = "d"
    SENT_AGAIN = "e"
    NONE = "unexplained"


@dataclass(frozen=True, slots=True)
class FaultTimes:
    """Times from the nodes' configuration. Units: seconds."""

    span: float
    heartbeat: float
    poll: float

    @property
    def until_heard(self) -> float:
        """The longest time from a delivery until the shadow server has committed its notification."""
        return RECORD_SECONDS + self.poll

    def heard_at(self, first: Arrival, faults: Sequence[Fault], listener: str = "") -> float:
        """When the shadow server has committed the notification of a delivery, at the latest. Later than usual if the disk of the
        delivering server, or of `listener`, was full."""
        at = first.at
        for node, seconds in ((first.client_name, RECORD_SECONDS), (listener, self.poll)):
            for fault in sorted(faults, key=lambda fault: fault.began_at):
                if fault.kind is FaultKind.FULL and fault.node == node and fault.began_at <= at + seconds and fault.ended_at >= at:
                    at = fault.ended_at
            at += seconds
        return at


class RecordState(StrEnum):
    """The record of a delivery in the tracking log of the server that made it."""

    UNKNOWN = "nothing, or nobody has looked"
    RECORDED = "delivered: it did not die before its record"
    UNANSWERED = "got no reply to the final dot"


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """Units: `seconds` from the beginning of the attempt to the arrival; an attempt with much content may take long."""

    outcome: RecordState = RecordState.UNKNOWN
    seconds: float = 0.0


def unknown(arrival: Arrival) -> DeliveryRecord:
    """Nobody has looked."""
    return DeliveryRecord()


def cause_of(
    got: Sequence[Arrival], faults: Sequence[Fault], times: FaultTimes, record_of: Callable[[Arrival], DeliveryRecord] = unknown
) -> Cause:
    """Why one message arrived more than once for a recipient: the cause of the first pair of arrivals, or NONE if any pair has no cause.
    Every pair counts, because a surviving record of any earlier delivery would have prevented the later one."""
    ordered = sorted(got, key=lambda arrival: arrival.at)
    causes = [_cause(first, later, faults, times, record_of(first)) for index, later in enumerate(ordered) for first in ordered[:index]]
    return Cause.NONE if Cause.NONE in causes else causes[0]


def _cause(first: Arrival, later: Arrival, faults: Sequence[Fault], times: FaultTimes, record: DeliveryRecord) -> Cause:
    if record.outcome is RecordState.UNANSWERED or any(_died_before_record(first, later, fault, record) for fault in faults):
        return Cause.DIED_BEFORE_RECORD
    heard_at = times.heard_at(first, faults, later.client_name)
    if any(_disk_destroyed(first, later, fault, heard_at) for fault in faults):
        return Cause.DISK_DESTROYED
    if _destroyed_before_notified(first, later, faults, times, heard_at):
        return Cause.TWO_FAILED
    if _cut_off(first, later, faults, times, heard_at, first.at - record.seconds):
        return Cause.CUT_OFF
    return Cause.TWO_FAILED if _two_failed(first, later, faults, times) else Cause.NONE


def _died_before_record(first: Arrival, later: Arrival, fault: Fault, record: DeliveryRecord) -> bool:
    """X ended within the time that a record takes; or Y was stopped after it sent the final dot, and then resumed."""
    if not fault.stops_node:
        return False
    if fault.kind is FaultKind.DEAD_DISK:  # its row in the tracking log, which may be on another disk, proves no commit
        is_unrecorded = fault.began_at - RECORD_SECONDS <= first.at <= fault.ended_at + RECORD_SECONDS
        return fault.node == first.client_name and is_unrecorded and later.at > fault.began_at
    has_resumed = fault.kind is FaultKind.PAUSE and fault.node == later.client_name and fault.began_at <= first.at
    if has_resumed and abs(later.at - fault.ended_at) <= RECORD_SECONDS:
        return True
    if record.outcome is RecordState.RECORDED:
        return False
    if fault.node != first.client_name or later.at <= fault.began_at:
        return False
    was_dead = fault.kind is not FaultKind.PAUSE and fault.began_at <= first.at <= fault.ended_at  # a busy next hop took it late
    return was_dead or abs(first.at - fault.began_at) <= RECORD_SECONDS


def _disk_destroyed(first: Arrival, later: Arrival, fault: Fault, heard_at: float) -> bool:
    """X's record was destroyed before the shadow server asked. Y may be X: with a new disk it is another server."""
    if fault.kind is not FaultKind.WIPE or fault.node != first.client_name:
        return False
    return first.at <= fault.began_at <= heard_at and fault.began_at < later.at


def _destroyed_before_notified(first: Arrival, later: Arrival, faults: Sequence[Fault], times: FaultTimes, heard_at: float) -> bool:
    """X's record was destroyed while the holder of the copy could not ask X, from the delivery on, because of one fault after
    another. Y may have taken over in several steps, and may be X."""
    server = first.client_name
    holders = {node for fault in faults for node in (fault.node, fault.other)} - {server}
    uninformed_until = max((_uninformed_until(server, holder, faults, times, heard_at) for holder in holders), default=heard_at)
    wipes = [fault.began_at for fault in faults if fault.kind is FaultKind.WIPE and fault.node == server]
    return any(first.at <= destroyed_at < later.at and destroyed_at <= uninformed_until for destroyed_at in wipes)


def _uninformed_until(server: str, holder: str, faults: Sequence[Fault], times: FaultTimes, since: float) -> float:
    """Until when `holder` cannot have learned what `server` knows at `since`."""
    until = since
    for fault in sorted(faults, key=lambda fault: fault.began_at):
        cannot_record = fault.kind is FaultKind.FULL and fault.node == holder
        if fault.began_at <= until and (cannot_record or fault.parts(server, holder)):
            until = max(until, fault.ended_at + times.until_heard)
    return until


def _cut_off(first: Arrival, later: Arrival, faults: Sequence[Fault], times: FaultTimes, heard_at: float, began_at: float) -> bool:
    """Y could not learn of X's delivery, and promoted after the span: the two were apart for longer than the span when the attempt
    of X began."""
    if first.client_name == later.client_name:
        return False
    return any(
        until - since > times.span
        and began_at <= until + times.heartbeat + RECORD_SECONDS
        and heard_at >= since
        and later.at >= since + times.span - times.until_heard  # silence counts from the last poll before the fault
        for since, until in _apart(first.client_name, later.client_name, faults, times)
    )


def _apart(server: str, other: str, faults: Sequence[Fault], times: FaultTimes) -> list[tuple[float, float]]:
    """When `other` could not ask `server`, whose disk was intact. A moment between two faults in which it did not come to that is none."""
    found: list[tuple[float, float]] = []
    for fault in sorted(faults, key=lambda fault: fault.began_at):
        is_silent = fault.kind in (FaultKind.KILL, FaultKind.PAUSE, FaultKind.DEAD_DISK)
        if fault.kind is FaultKind.FULL:  # after two heartbeats without a commit it is as good as dead
            is_silent = fault.seconds > times.span + 2 * times.heartbeat
        is_down = is_silent and fault.node == server
        if not is_down and not (fault.kind is FaultKind.CUT and fault.parts(server, other)):
            continue
        if found and fault.began_at <= found[-1][1] + times.heartbeat + times.until_heard:
            found[-1] = found[-1][0], max(found[-1][1], fault.ended_at)
        else:
            found.append((fault.began_at, fault.ended_at))
    return found


def _two_failed(first: Arrival, later: Arrival, faults: Sequence[Fault], times: FaultTimes) -> bool:
    """X could not be asked when Y took over, because it had failed too. Of two faults on different nodes, close in time, one is on X
    (or cuts it from Y) after X delivered, and both began before Y's delivery."""
    window = times.span + times.heartbeat
    if first.client_name == later.client_name:
        return False
    for mine in faults:
        if not mine.parts(first.client_name, later.client_name) or later.client_name == mine.node != first.client_name:
            continue
        if mine.ended_at < first.at or mine.began_at > later.at:
            continue
        for other in faults:
            if other.node == mine.node or not other.stops_node or other.began_at > later.at:
                continue
            if other.began_at <= mine.ended_at + window and mine.began_at <= other.ended_at + window:
                return True
    return False


def explains_repetition(one: Sent, firsts: Mapping[str, Arrival], faults: Sequence[Fault], times: FaultTimes) -> bool:
    """Cause (e): the client sent the message again after it got no reply; or it got 451 from a server that a fault kept from sending
    `released` to its shadow server, which then delivered its copy.

    Shapes: `firsts` has the first arrival of each network id. Each surplus id needs a try that explains it.
    """
    acknowledged = {submission.network_id for submission in one.tries if submission.answer is SubmissionResult.ACKNOWLEDGED}
    unmatched = [arrival for network_id, arrival in firsts.items() if network_id not in acknowledged]
    if len(acknowledged) > 1:
        return False  # a client does not send an acknowledged message again
    explanations = 0
    for submission in one.tries:
        if submission.answer is SubmissionResult.NOTHING:
            explanations += 1
            continue
        refused = unmatched  # in a kept session, a 451 is tried again at once, within the try that was acknowledged
        if submission.answer is SubmissionResult.ACKNOWLEDGED:
            refused = [arrival for arrival in unmatched if _is_of_try(submission, arrival)]
        explanations += any(_kept_from_releasing(submission, arrival, fault, times) for fault in faults for arrival in refused)
    return len(unmatched) <= explanations


def _kept_from_releasing(refused: Submission, arrival: Arrival, fault: Fault, times: FaultTimes) -> bool:
    """The fault lasted at least until the refusal, and began before the shadow server delivered."""
    if fault.stops_node and fault.node != refused.node:
        return False  # a shadow server that was down fetches `released` when it is back, before it promotes
    is_between = fault.ended_at + times.until_heard >= refused.at and fault.began_at <= arrival.at
    return is_between and refused.node != arrival.client_name and fault.parts(refused.node, arrival.client_name)


# ---- the comparison


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A recipient that got one message more than once (`network_id`), or also a message that the client sent again (no `network_id`)."""

    number: int
    network_id: str
    count: int
    cause: Cause
    recipient: str = ""


@dataclass(slots=True)
class Account:
    """The figures, in messages. `lost` and `changed` are network message ids; a message is lost if one recipient lacks it."""

    accepted: int = 0
    delivered: int = 0
    taken_over: int = 0
    lost: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    duplicates: list[Duplicate] = field(default_factory=list)
    last_taken_over_at: float = 0.0

    @property
    def unexplained(self) -> list[Duplicate]:
        """Duplicates without a cause."""
        return [duplicate for duplicate in self.duplicates if duplicate.cause is Cause.NONE]

    @property
    def is_good(self) -> bool:
        """Nothing lost, nothing changed, every duplicate explained."""
        return not (self.lost or self.changed or self.unexplained)


def was_made_between(network_id: str, began_at: float, ended_at: float) -> bool:
    """Whether a node made this id then: a UUID of version 7 begins with its time (`smtp/receiver.py`). False if the id says no time.

    Units: time.time. Servers and clients of a lab read one clock.
    """
    digits = network_id.replace("-", "")
    if _UUID7.fullmatch(digits) is None:
        return False
    return began_at - ID_SECONDS <= int(digits[:12], 16) / 1000 <= ended_at + ID_SECONDS


def reached(one: Sent, acknowledged: Submission, got: Iterable[Arrival]) -> set[str]:
    """Recipients that have this message: under the id that was acknowledged, or under another one if the client had tried before without
    an answer. That may have been in the same session after a 451, of which the client says nothing: then the other id was made during the
    try that was acknowledged. The relay does not deliver what it recognises as sent again. docs/design.md 6.5."""
    is_sent_again = any(
        submission.answer is not SubmissionResult.ACKNOWLEDGED and submission.at <= acknowledged.at for submission in one.tries
    )
    return {
        arrival.recipient
        for arrival in got
        if arrival.network_id == acknowledged.network_id
        or (arrival.network_id not in one.acknowledged_ids and (is_sent_again or _is_of_try(acknowledged, arrival)))
    }


def _is_of_try(submission: Submission, arrival: Arrival) -> bool:
    return bool(submission.began_at) and was_made_between(arrival.network_id, submission.began_at, submission.at)


def has_all_arrived(sent: Iterable[Sent], arrivals: Iterable[Arrival]) -> bool:
    """Whether everything acknowledged has reached its recipients."""
    by_message: dict[str, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        by_message[arrival.internet_message_id].append(arrival)
    return all(
        set(one.recipients) <= reached(one, submission, by_message[one.internet_message_id])
        for one in sent
        for submission in one.tries
        if submission.answer is SubmissionResult.ACKNOWLEDGED
    )


def account(
    sent: Iterable[Sent],
    arrivals: Iterable[Arrival],
    faults: Sequence[Fault],
    times: FaultTimes,
    record_of: Callable[[Arrival], DeliveryRecord] = unknown,
) -> Account:
    """Compare acknowledged messages with arrivals."""
    result = Account()
    by_message: dict[str, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        by_message[arrival.internet_message_id].append(arrival)
    for one in sent:
        got = by_message.pop(one.internet_message_id, [])
        _count_acknowledged(result, one, got)
        _count_duplicates(result, one, got, faults, times, record_of)
        if any(arrival.own_sha256 != one.own_sha256 for arrival in got):
            result.changed.append(next(arrival.network_id for arrival in got if arrival.own_sha256 != one.own_sha256))
    # An arrival that matches no sent message has lost its identification on the way: it was changed.
    result.changed += (arrival.network_id for unmatched in by_message.values() for arrival in unmatched)
    return result


def _count_acknowledged(result: Account, one: Sent, got: Sequence[Arrival]) -> None:
    for submission in one.tries:
        if submission.answer is not SubmissionResult.ACKNOWLEDGED:
            continue
        result.accepted += 1
        mine = [arrival for arrival in got if arrival.network_id == submission.network_id]
        if reached(one, submission, got) != set(one.recipients):
            result.lost.append(submission.network_id)
            continue
        result.delivered += 1
        if any(arrival.client_name != submission.node for arrival in mine):
            result.taken_over += 1
            result.last_taken_over_at = max(result.last_taken_over_at, *(arrival.at for arrival in mine))


def _count_duplicates(
    result: Account,
    one: Sent,
    got: Sequence[Arrival],
    faults: Sequence[Fault],
    times: FaultTimes,
    record_of: Callable[[Arrival], DeliveryRecord],
) -> None:
    by_recipient: dict[tuple[str, str], list[Arrival]] = defaultdict(list)
    for arrival in got:
        by_recipient[arrival.network_id, arrival.recipient].append(arrival)
    for (network_id, recipient), arrived in sorted(by_recipient.items()):
        if len(arrived) > 1:
            cause = cause_of(arrived, faults, times, record_of)
            result.duplicates.append(Duplicate(one.number, network_id, len(arrived), cause, recipient))
    ids = {arrival.network_id for arrival in got}
    if len(ids) > 1:
        firsts = {arrival.network_id: arrival for arrival in sorted(got, key=lambda arrival: arrival.at, reverse=True)}
        cause = Cause.SENT_AGAIN if explains_repetition(one, firsts, faults, times) else Cause.NONE
        result.duplicates.append(Duplicate(one.number, "", len(ids), cause))
