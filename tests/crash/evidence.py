"""Checks the tracking logs of all nodes after an episode, except for rows that a killed node could not write. docs/design.md 3, I8.

Each check returns complaints as sentences; none means that all is well.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shadowrelay.lab.account import DeliveryRecord, RecordState
from shadowrelay.lab.cluster import Cluster, instant, recipients, rows
from shadowrelay.lab.traffic import Arrival, Sent, SubmissionResult

ENDS = {"SEND", "SENDEXTERNAL", "FAIL", "EXPIRE", "DUPLICATEDELIVER"}
SHADOW_ENDS = {"HADISCARD", "RESUBMIT", "EXPIRE"}
CLOCK_GRAIN = 0.1  # seconds: a row's time is cut, and the next hop's time is taken a moment before its answer
ELAPSED = re.compile(r"S:AttemptElapsed=([0-9.]+)")
NO_REPLY = "4.4.2"  # the connection was lost, or time was up
GIVEN_UP_BEFORE = 3.0  # seconds: a busy next hop takes a message that its sender has given up
BETWEEN_COMMIT_AND_ROW = 1.0  # seconds: SIGKILL may come between a commit and its row
UNTIL_ASKED = 1.0  # seconds: from another node's row until a busy shadow server has heard of it and commits


@dataclass(frozen=True, slots=True)
class Line:
    """One row. Units: `at` is time.time."""

    at: float
    node: str
    event: str
    message_id: str
    recipients: tuple[str, ...]
    custom: str
    status: str = ""
    internet_message_id: str = ""

    @property
    def elapsed(self) -> float:
        """How long the attempt took. Units: seconds."""
        found = ELAPSED.search(self.custom)
        return float(found.group(1)) if found else 0.0


def lines_of(cluster: Cluster) -> list[Line]:
    """The rows of all nodes that are about a message."""
    return [
        Line(
            instant(row),
            name,
            row["event-id"],
            row["network-message-id"],
            tuple(recipients(row)),
            row["custom-data"],
            row["recipient-status"],
            row["message-id"],
        )
        for name, node in cluster.nodes.items()
        for row in rows(node.tracking)
    ]


def complaints(
    lines: Iterable[Line],
    sent: Iterable[Sent],
    kills: Mapping[str, list[float]],
    wiped_at: Mapping[str, float],
    unpromised: Iterable[str] = (),
) -> list[str]:
    """What the logs do not explain. `unpromised`: ids of messages of which they say that they had no second copy, and might say so."""
    excepted = set(unpromised)
    by_id: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_id[line.message_id].append(line)
    found: list[str] = []
    for one in sent:
        for submission in one.tries:
            if submission.answer is SubmissionResult.ACKNOWLEDGED and submission.network_id not in excepted:
                found += _acknowledged(one, submission.network_id, submission.node, by_id[submission.network_id])
    for message_id, mine in by_id.items():
        found += _shadows(message_id, mine, kills, wiped_at)
    return found


def unlogged(sent: Iterable[Sent], arrivals: Iterable[Arrival], since: Mapping[str, float]) -> set[str]:
    """Ids of the messages that came to, or left, a node whose tracking log hung since then, and which burnt before the log took them. Rows
    of a moment before may have been on their way to it."""
    never, late = float("inf"), BETWEEN_COMMIT_AND_ROW
    accepted = {made.network_id for one in sent for made in one.tries if made.at >= since.get(made.node, never) - late}
    return accepted | {one.network_id for one in arrivals if one.at >= since.get(one.client_name, never) - late}


def _acknowledged(one: Sent, message_id: str, node: str, mine: list[Line]) -> list[str]:
    found = []
    ended = {recipient for line in mine if line.event in ENDS for recipient in line.recipients}
    if missing := set(one.recipients) - ended:
        found.append(f"{message_id}: no end in the logs for {sorted(missing)}")
    received = [line for line in mine if line.event == "RECEIVE" and line.node == node]
    if not received:
        found.append(f"{message_id}: acknowledged by {node}, which has no RECEIVE")
    elif "S:Replication=Success" not in received[0].custom:
        found.append(f"{message_id}: acknowledged in reject mode without a copy: {received[0].custom}")
    return found


def _shadows(message_id: str, mine: list[Line], kills: Mapping[str, list[float]], wiped_at: Mapping[str, float]) -> list[str]:
    found = []
    for line in mine:
        if line.event != "HARECEIVE":
            continue
        ended = any(other.node == line.node and other.event in SHADOW_ENDS and other.at >= line.at for other in mine)
        is_wiped = wiped_at.get(line.node, 0.0) >= line.at
        if not ended and not is_wiped and not _owed(line, mine, kills.get(line.node, [])):
            found.append(f"{message_id}: a copy came to {line.node} and has no end in its log")
    return found


def _owed(held: Line, mine: list[Line], kills: list[float]) -> bool:
    """Whether the shadow server was killed shortly after another node's delivery or hand-over, which it may just have heard and committed:
    then its row was lost, and the next process finds a copy that has ended."""
    news = [line.at for line in mine if line.node != held.node and line.event in ENDS | {"RESUBMIT", "HAREDIRECT", "HAREDIRECTFAIL"}]
    return any(at <= killed <= at + UNTIL_ASKED + BETWEEN_COMMIT_AND_ROW for killed in kills for at in news)


def records(lines: Iterable[Line], arrivals: Sequence[Arrival]) -> Callable[[Arrival], DeliveryRecord]:
    """What the server that delivered this wrote about it before it delivered it again: SEND, after the commit; or that it had no reply."""
    found: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
    for line in lines:
        if line.event in {"SEND", "SENDEXTERNAL"} or (line.event == "DEFER" and NO_REPLY in line.status):
            for recipient in line.recipients:
                found[line.node, line.message_id, recipient].append(line)

    def record_of(arrival: Arrival) -> DeliveryRecord:
        until = min((other.at for other in arrivals if _key(other) == _key(arrival) and other.at > arrival.at), default=float("inf"))
        rows = [line for line in found[_key(arrival)] if line.at < until]
        recorded = [line for line in rows if line.event != "DEFER" and line.at >= arrival.at - CLOCK_GRAIN]
        unanswered = [line for line in rows if line.event == "DEFER" and line.at >= arrival.at - GIVEN_UP_BEFORE]
        for outcome, mine in ((RecordState.RECORDED, recorded), (RecordState.UNANSWERED, unanswered)):
            if mine:
                return DeliveryRecord(outcome, max(0.0, arrival.at - (mine[0].at - mine[0].elapsed)))
        return DeliveryRecord()

    return record_of


def unanswered(lines: Iterable[Line], arrivals: Sequence[Arrival]) -> Callable[[Arrival], DeliveryRecord]:
    """Only that it had no reply: SEND is written before its commit, which does not come if the server is killed in between."""
    record_of = records(lines, arrivals)

    def found(arrival: Arrival) -> DeliveryRecord:
        record = record_of(arrival)
        return record if record.outcome is RecordState.UNANSWERED else DeliveryRecord()

    return found


def _key(arrival: Arrival) -> tuple[str, str, str]:
    return arrival.client_name, arrival.network_id, arrival.recipient


def made_at(message_id: str) -> float:
    """When a server made this id, which is of version 7. Units: time.time; 0.0 for another id."""
    digits = message_id.replace("-", "")
    return int(digits[:12], 16) / 1000 if len(digits) == 32 and digits[12] == "7" else 0.0


def strangers(lines: Iterable[Line], arrivals: Iterable[Arrival], kills: Mapping[str, list[float]] | None = None) -> list[str]:
    """Deliveries of what another server received, by one that does not say in its log that it took it over, and was not killed then, nor
    when the message had just arrived there."""
    entitled: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        if line.event in {"RECEIVE", "RESUBMIT"}:
            entitled[line.message_id].add(line.node)
    killed = {name: [(at - BETWEEN_COMMIT_AND_ROW, at + BETWEEN_COMMIT_AND_ROW) for at in times] for name, times in (kills or {}).items()}
    found = {
        (one.network_id, one.client_name)
        for one in arrivals
        if one.client_name not in entitled.get(one.network_id, one.client_name)
        and not any(since <= one.at <= until for since, until in killed.get(one.client_name, ()))
        and not any(0.0 <= at - made_at(one.network_id) <= BETWEEN_COMMIT_AND_ROW for at in (kills or {}).get(one.client_name, ()))
    }
    return [f"{message_id}: delivered by {node}, which has neither RECEIVE nor RESUBMIT" for message_id, node in sorted(found)]
