"""What became of the mail, from what clients and the receiving server saw; every duplicate with its cause (DESIGN 3, I4).

Nothing here asks a node: an account must not depend on the accused.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from shadowrelay.lab.load import Answer, Sent
from shadowrelay.lab.sink import Arrival

RECORD_SECONDS = 1.0  # between the next hop's taking of a message and our synced record of it, on a busy machine


class FaultKind(StrEnum):
    """What was done to a node."""

    KILL = "kill"
    WIPE = "kill and wipe"
    PAUSE = "pause"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class Fault:
    """Units: time.time; `ended_at` when it was over (a killed node: when it was started again)."""

    kind: FaultKind
    node: str
    began_at: float
    ended_at: float


class Cause(StrEnum):
    """The causes of I4, by their letters."""

    DIED_BEFORE_RECORD = "a"
    DISK_DESTROYED = "b"
    CUT_OFF = "c"
    TWO_FAILED = "d"
    SENT_AGAIN = "e"
    NONE = "unexplained"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A recipient that got one message more than once, or whose client's repetition arrived too."""

    number: int
    network_id: str
    count: int
    cause: Cause


@dataclass(slots=True)
class Account:
    """The figures. `lost` and `changed` are network message ids."""

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


@dataclass(frozen=True, slots=True)
class Times:
    """Of the nodes' configuration. Units: seconds."""

    span: float
    heartbeat: float
    poll: float


def account(sent: Iterable[Sent], arrivals: Iterable[Arrival], faults: Sequence[Fault], times: Times) -> Account:
    """Compare what was acknowledged with what arrived."""
    result = Account()
    by_id: dict[str, list[Arrival]] = defaultdict(list)
    by_message: dict[str, set[str]] = defaultdict(set)
    for arrival in arrivals:
        by_id[arrival.network_id].append(arrival)
        by_message[arrival.internet_message_id].add(arrival.network_id)
    for one in sent:
        acknowledged = [submission for submission in one.tries if submission.answer is Answer.ACKNOWLEDGED]
        result.accepted += len(acknowledged)
        for submission in acknowledged:
            got = by_id.get(submission.network_id, [])
            if not got:
                result.lost.append(submission.network_id)
                continue
            result.delivered += 1
            if any(arrival.client_name != submission.node for arrival in got):
                result.taken_over += 1
                result.last_taken_over_at = max(result.last_taken_over_at, *(arrival.at for arrival in got))
            if any(arrival.own_sha256 != one.own_sha256 for arrival in got):
                result.changed.append(submission.network_id)
        for network_id in sorted(by_message[one.internet_message_id]):
            got = by_id[network_id]
            if len(got) > 1:
                result.duplicates.append(Duplicate(one.number, network_id, len(got), cause_of(got, faults, times)))
        ids = by_message[one.internet_message_id]
        if len(ids) > 1:
            was_unsure = any(submission.answer is not Answer.ACKNOWLEDGED for submission in one.tries)
            result.duplicates.append(Duplicate(one.number, "", len(ids), Cause.SENT_AGAIN if was_unsure else Cause.NONE))
    return result


def cause_of(got: Sequence[Arrival], faults: Sequence[Fault], times: Times) -> Cause:
    """Why one message arrived more than once: the first fault that explains the arrival before the last."""
    ordered = sorted(got, key=lambda arrival: arrival.at)
    first, last = ordered[0], ordered[-1]
    for arrival in ordered[:-1]:
        for fault in faults:
            if fault.node != arrival.client_name:
                continue
            if fault.began_at - RECORD_SECONDS <= arrival.at <= fault.began_at + RECORD_SECONDS:
                return Cause.DIED_BEFORE_RECORD
            if fault.kind is FaultKind.WIPE and fault.began_at - times.poll - RECORD_SECONDS <= arrival.at <= fault.began_at:
                return Cause.DISK_DESTROYED
    between = [fault for fault in faults if fault.began_at <= last.at and fault.ended_at >= first.at - times.span]
    if any(fault.ended_at - fault.began_at > times.span and fault.kind in (FaultKind.PAUSE, FaultKind.CUT) for fault in between):
        return Cause.CUT_OFF
    window = times.span + times.heartbeat
    begun = sorted((fault.began_at, fault.node) for fault in between)
    for (at, node), (next_at, next_node) in pairwise(begun):
        if node != next_node and next_at - at <= window:
            return Cause.TWO_FAILED
    return Cause.NONE
