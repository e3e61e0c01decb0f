"""What became of the mail, from what clients and the receiving servers saw; every duplicate with its cause (docs/design.md 3, I4).

Nothing here asks a node: an account must not depend on the accused. Which causes there are stands in `lab.causes`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shadowrelay.lab.causes import Cause, Fault, FaultKind, Times, cause_of, explains_repetition
from shadowrelay.lab.load import Answer, Sent
from shadowrelay.lab.sink import Arrival

__all__ = ["Account", "Cause", "Duplicate", "Fault", "FaultKind", "Times", "account", "cause_of"]


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A recipient that got one message more than once (`network_id`), or also what the client sent again (no `network_id`)."""

    number: int
    network_id: str
    count: int
    cause: Cause
    recipient: str = ""


@dataclass(slots=True)
class Account:
    """The figures, in messages. `lost` and `changed` are network message ids; one recipient is enough to be lost."""

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


def account(sent: Iterable[Sent], arrivals: Iterable[Arrival], faults: Sequence[Fault], times: Times) -> Account:
    """Compare what was acknowledged with what arrived."""
    result = Account()
    by_message: dict[str, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        by_message[arrival.internet_message_id].append(arrival)
    for one in sent:
        got = by_message.pop(one.internet_message_id, [])
        _count_acknowledged(result, one, got)
        _count_duplicates(result, one, got, faults, times)
        if any(arrival.own_sha256 != one.own_sha256 for arrival in got):
            result.changed.append(next(arrival.network_id for arrival in got if arrival.own_sha256 != one.own_sha256))
    # What nobody sent has lost its name on the way.
    result.changed += (arrival.network_id for strange in by_message.values() for arrival in strange)
    return result


def _count_acknowledged(result: Account, one: Sent, got: Sequence[Arrival]) -> None:
    for submission in one.tries:
        if submission.answer is not Answer.ACKNOWLEDGED:
            continue
        result.accepted += 1
        mine = [arrival for arrival in got if arrival.network_id == submission.network_id]
        if {arrival.recipient for arrival in mine} != set(one.recipients):
            result.lost.append(submission.network_id)
            continue
        result.delivered += 1
        if any(arrival.client_name != submission.node for arrival in mine):
            result.taken_over += 1
            result.last_taken_over_at = max(result.last_taken_over_at, *(arrival.at for arrival in mine))


def _count_duplicates(result: Account, one: Sent, got: Sequence[Arrival], faults: Sequence[Fault], times: Times) -> None:
    by_recipient: dict[tuple[str, str], list[Arrival]] = defaultdict(list)
    for arrival in got:
        by_recipient[arrival.network_id, arrival.recipient].append(arrival)
    for (network_id, recipient), arrived in sorted(by_recipient.items()):
        if len(arrived) > 1:
            cause = cause_of(arrived, faults, times)
            result.duplicates.append(Duplicate(one.number, network_id, len(arrived), cause, recipient))
    ids = {arrival.network_id for arrival in got}
    if len(ids) > 1:
        firsts = {arrival.network_id: arrival for arrival in sorted(got, key=lambda arrival: arrival.at, reverse=True)}
        cause = Cause.SENT_AGAIN if explains_repetition(one, firsts, faults, times) else Cause.NONE
        result.duplicates.append(Duplicate(one.number, "", len(ids), cause))
