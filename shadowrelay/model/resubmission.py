"""Requests to resubmit from Safety Net. docs/design.md 6.3."""

from datetime import datetime
from enum import StrEnum

from shadowrelay.model.ids import NO_MESSAGE, NO_SERVER, MessageId, ServerName
from shadowrelay.model.values import dataclass


class RequestState(StrEnum):
    """Stored; do not rename."""

    PENDING = "pending"  # not begun
    RUNNING = "running"
    DONE = "done"  # the interval was examined, and each resubmitted message is redundant
    DISABLED = "disabled"  # by an administrator

    @property
    def is_active(self) -> bool:
        return self in (RequestState.PENDING, RequestState.RUNNING)


@dataclass(frozen=True, slots=True)
class Criteria:
    """What to resubmit: deliveries from `from_at` to `to_at`, both included. The other fields are empty where everything matches;
    `message_id` is a network message id or an internet message id. With `primary_server`: what that server delivered, from Shadow Safety
    Net; else what this node delivered."""

    from_at: datetime
    to_at: datetime
    next_hop: str = ""
    sender: str = ""
    recipient: str = ""
    message_id: str = ""
    primary_server: ServerName = NO_SERVER


@dataclass(frozen=True, slots=True)
class ResubmitRequest:
    """A request as the ledger stores it now.

    Shapes: counts are messages, except `outside_count`: recipients that match but are outside the boundary. `redundant_count` are those
    of the resubmitted messages that have a copy, or are finished. `missing_count` match, but their content is gone or damaged.
    `elsewhere_count` match, but their primary server lives and has them in a Safety Net of its own.
    (`examined_at`, `examined_id`) is the last message looked at; `is_examined`: the whole interval was.
    """

    number: int
    criteria: Criteria
    state: RequestState
    created_at: datetime
    is_examined: bool
    examined_at: datetime
    examined_id: int
    examined_count: int = 0
    resubmitted_count: int = 0
    redundant_count: int = 0
    outside_count: int = 0
    missing_count: int = 0
    elsewhere_count: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """One step through an interval: where it has come to, and what it adds to the counts."""

    examined_at: datetime
    examined_id: int
    is_examined: bool = False
    examined_count: int = 0
    outside_count: int = 0
    missing_count: int = 0
    elsewhere_count: int = 0


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """An unfinished message of an unfinished request. `is_redundant`: it was counted as such."""

    message_id: MessageId = NO_MESSAGE
    is_redundant: bool = False
