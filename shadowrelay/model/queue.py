"""What the queue database keeps of a message beside its claim (due times, retries, origin), and what an operator is shown of a node."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from shadowrelay.model.ids import BoundaryName, DatabaseId, MessageId, ServerName, SiteName
from shadowrelay.model.message import Content, ContentPlace, Envelope, Ordinals
from shadowrelay.model.ownership import Claim, CopyNumber
from shadowrelay.model.values import dataclass


class Origin(StrEnum):
    """Where a message came from. Stored."""

    CLIENT = "client"
    DSN = "dsn"
    SHADOW = "shadow"  # a copy that a primary placed here; still so after promotion


class FailureKind(StrEnum):
    """What failed at the last attempt; decides the step of the retry ladder. Stored."""

    CONNECTION = "connection"  # the session broke in the middle; a next hop that cannot be reached is its queue's trouble
    MESSAGE = "message"
    UNANSWERED = "unanswered"  # no reply to the final dot: the next hop may have the message
    QUEUED = "queued"  # not tried yet


@dataclass(frozen=True, slots=True)
class ForkRetry:
    """A fork that waits in the delivery queue of its next hop. One for each next hop and message.

    Shapes: `next_hop` is the key that routing gave; `ordinals` never empty. `failures_count` counts attempts in a row, but not
    those that could not reach the next hop: the queue counts them. `first_failed_at` is when it was queued, if it never failed.
    `notice_at`: when its sender's delay notice or its expiry falls due; `None` while it waits for a lease, which delays both.
    """

    next_hop: str
    ordinals: Ordinals
    failures_count: int
    kind: FailureKind
    first_failed_at: datetime
    attempts_next_at: datetime
    last_reply: str
    delay_notified: bool = False
    waits_for: ServerName = ServerName("")  # the server whose lease or answer it waits for; `WAITS_FOR_COPY`
    notice_at: datetime | None = None


WAITS_FOR_COPY = ServerName("*copy")  # no server can be called that; reject mode: a copy comes before delivery


@dataclass(frozen=True, slots=True)
class NewMessage:
    """What a first commit stores. `due_at` is `None` for a shadow message."""

    envelope: Envelope
    claim: Claim
    origin: Origin
    due_at: datetime | None
    keep_until: datetime  # shadow: unacknowledged expiry; primary: row is kept at least so long


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the ledger has it now."""

    internal_id: int
    envelope: Envelope
    claim: Claim
    origin: Origin
    place: ContentPlace | None
    due_at: datetime | None
    retries: tuple[ForkRetry, ...] = ()
    is_decided: bool = True  # False: the accept verdict is not recorded
    is_promoted: bool = False
    promoted_from: ServerName = ServerName("")
    deaths_count: int = 0  # times the node died while working on it
    set_aside_reason: str = ""
    keep_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class SideMessage:
    """A message made by the relay itself (a DSN), committed together with what caused it."""

    message: NewMessage
    content: Content
    action: str = ""  # RFC 3464: failed, delayed, relayed


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The outcome of one attempt on one fork, for one commit.

    Shapes: `done` are the ordinals that ended now (delivered, failed with their DSN in `sides`, expired); `retry` is what is
    left of the fork. `others` are the message's other forks: they enter their queues with `retry` if the message was in none.
    `keep_until` is when Safety Net may drop the content, `remember_until` when the row may go.
    """

    message_id: MessageId
    next_hop: str
    done: Ordinals
    retry: ForkRetry | None
    others: tuple[ForkRetry, ...]
    sides: tuple[SideMessage, ...]
    keep_until: datetime
    remember_until: datetime


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """This node's queue database: id, incarnation (how often it was opened), position at which this one began."""

    database: DatabaseId
    incarnation: int
    began: int


class QueueKind(StrEnum):
    """Kinds of queues in listings and metrics."""

    SUBMISSION = "Submission"  # primary, due now, or no verdict yet
    DELIVERY = "Delivery"  # primary, waits for a retry
    SHADOW = "Shadow"
    SAFETY_NET_PRIMARY = "SafetyNetPrimary"
    SAFETY_NET_SHADOW = "SafetyNetShadow"
    POISON = "Poison"


class QueueStatus(StrEnum):
    """As in Exchange. Source: msd-q"""

    ACTIVE = "Active"  # attempts run
    READY = "Ready"
    RETRY = "Retry"  # the next hop cannot be reached: one attempt probes it


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue in a listing. `oldest_at` is the arrival of the message that is in it for the longest time, `None` when it is empty.

    `retry_since` and `probes_count` are of a queue whose status is RETRY.
    """

    identity: str  # Server\Submission, Server\<next hop>, Server\Shadow\N, …
    kind: QueueKind
    next_hop: str  # next hop; shadow: the primary server
    count: int
    oldest_at: datetime | None
    last_error: str = ""
    next_retry_at: datetime | None = None
    octets: int = 0  # the contents of its messages; of one in several queues, in each
    status: QueueStatus = QueueStatus.READY
    retry_since: datetime | None = None
    probes_count: int = 0


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """What its primary is asked about a shadow message."""

    internal_id: int
    message_id: MessageId
    number: CopyNumber


@dataclass(frozen=True, slots=True)
class ShadowGroup:
    """The shadow messages held for one primary in one of its databases."""

    primary: ServerName
    database: DatabaseId
    count: int
    handed_count: int


@dataclass(frozen=True, slots=True)
class PeerRow:
    """What the ledger remembers of a peer."""

    server: ServerName
    site: SiteName
    database: DatabaseId
    incarnation: int
    began: int
    position: int
    heard_at: datetime | None
    is_forgotten: bool


@dataclass(frozen=True, slots=True)
class PeerView:
    """A peer as this node sees it now.

    Units: `lease` is what is left of it; `None` where none was ever given, zero where it has ended.
    """

    name: ServerName
    site: SiteName
    boundary: BoundaryName
    address: str
    database: DatabaseId
    heard_at: datetime | None
    is_reachable: bool
    lease: timedelta | None
    breaker: str  # closed, open, half-open, refusing
    held_for_count: int  # shadow messages that we keep for it
    held_by_count: int  # our unfinished messages that it may hold a copy of
    is_forgotten: bool = False
    refusal: str = ""  # what it said when it refused copies, while it is refusing
    conflict: str = ""  # why it is refused: its name or database is another node's


@dataclass(frozen=True, slots=True)
class NodeView:
    """This node as it is now. `settings` holds the effective values, durations and sizes as an operator writes them."""

    name: ServerName
    site: SiteName
    boundary: BoundaryName
    version: str
    started_at: datetime
    state: str  # starting, running, draining
    database: DatabaseId
    incarnation: int
    began: int
    position: int
    settings: Mapping[str, object]
