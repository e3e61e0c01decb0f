"""Queue values: stored messages, due times, retries and origin; rows and views for operators. docs/architecture.md "On disk"."""

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
    SHADOW = "shadow"  # a copy that a primary placed here; unchanged by promotion


class FailureKind(StrEnum):
    """What failed in the last attempt; selects the step of the retry ladder. Stored."""

    CONNECTION = "connection"  # the session broke midway; failures to reach the next hop are counted for its queue instead
    MESSAGE = "message"
    UNANSWERED = "unanswered"  # no reply to the final dot: the next hop may have the message
    QUEUED = "queued"  # not tried yet


@dataclass(frozen=True, slots=True)
class ForkRetry:
    """A fork that waits in the delivery queue of its next hop: one per next hop and message.

    Shapes: `next_hop` is the routing key; `ordinals` is never empty. `failures_count` counts consecutive attempts, except those
    that could not reach the next hop: the queue counts these. `first_failed_at` is the time of queueing if no attempt has failed.
    `notice_at` is when the delay notice or the expiry is due; `None` while the fork waits for a lease, which delays both.
    """

    next_hop: str
    ordinals: Ordinals
    failures_count: int
    kind: FailureKind
    first_failed_at: datetime
    attempts_next_at: datetime
    last_reply: str
    delay_notified: bool = False
    waits_for: ServerName = ServerName("")  # the server whose lease or answer is missing, or `WAITS_FOR_COPY`
    notice_at: datetime | None = None


WAITS_FOR_COPY = ServerName("*copy")  # not a legal server name; reject mode: a copy is placed before delivery


@dataclass(frozen=True, slots=True)
class NewMessage:
    """The content of a message's first commit. `due_at` is `None` for a shadow message."""

    envelope: Envelope
    claim: Claim
    origin: Origin
    due_at: datetime | None
    keep_until: datetime  # shadow: when it expires unacknowledged; primary: the row is kept at least until then


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the ledger stores it now."""

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
    deaths_count: int = 0  # times the process died while it handled the content
    set_aside_reason: str = ""
    keep_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class SideMessage:
    """A message created by the relay itself (a DSN), committed in the same transaction as its cause."""

    message: NewMessage
    content: Content
    action: str = ""  # RFC 3464: failed, delayed, relayed


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The outcome of one attempt on one fork, for one commit.

    Shapes: `done` are the ordinals that ended in it (delivered, failed with their DSN in `sides`, expired); `retry` is the rest
    of the fork. `others` are the message's other forks, queued together with `retry` if the message was in no queue before.
    `keep_until` is when Safety Net may drop the content, `remember_until` when the row may be deleted.
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
    """This node's queue database: id, incarnation (how often it was opened), position at which this incarnation began."""

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
    """One queue in a listing. `oldest_at` is when the message that has been in it longest arrived, `None` when it is empty.

    `retry_since` and `probes_count` belong to a queue in status RETRY.
    """

    identity: str  # Server\Submission, Server\<next hop>, Server\Shadow\N, …
    kind: QueueKind
    next_hop: str  # next hop; shadow: the primary server
    count: int
    oldest_at: datetime | None
    last_error: str = ""
    next_retry_at: datetime | None = None
    octets: int = 0  # content sizes of its messages; a message in several queues counts in each
    status: QueueStatus = QueueStatus.READY
    retry_since: datetime | None = None
    probes_count: int = 0


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """A shadow message as its primary server is asked about it."""

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
    """What the ledger stores about a peer."""

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

    Units: `lease` is the time left; `None` if none was ever obtained, zero if it has ended.
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
    held_for_count: int  # shadow messages that this node holds for it
    held_by_count: int  # this node's unfinished messages of which it may hold a copy
    is_forgotten: bool = False
    refusal: str = ""  # its reply to the last refused copy, while the breaker is refusing
    conflict: str = ""  # why this node refuses it: its name or database id belongs to another node


@dataclass(frozen=True, slots=True)
class NodeView:
    """This node as it is now. `settings` holds the effective values, with durations and sizes in configuration syntax."""

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
