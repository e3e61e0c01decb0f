"""Queue values: stored messages, due times, retries and origin; rows and views for operators. docs/architecture.md "On disk"."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from shadowrelay.model.ids import NO_DATABASE, BoundaryName, DatabaseId, MessageId, ServerName, SiteName
from shadowrelay.model.message import NO_ORDINALS, Content, ContentPlace, Envelope, Ordinals
from shadowrelay.model.ownership import Claim, CopyNumber
from shadowrelay.model.readiness import NextMessage, Takes
from shadowrelay.model.values import dataclass


class Origin(StrEnum):
    """Where a message came from. Stored."""

    CLIENT = "client"
    DSN = "dsn"
    JOURNAL = "journal"  # a journal report
    SHADOW = "shadow"  # a copy that a primary placed here; unchanged by promotion
    SAFETY_NET = "safety-net"  # made from a message in Safety Net


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
    `notice_at` is when the delay notice or the expiry is due; `None` if it is not known yet.
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
SUBMISSION = "Submission"  # the name of that queue
SUSPENDED = ServerName("*suspended")  # likewise; every fork of a suspended message waits for it, until `NEVER`
NEVER = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Suspension:
    """An administrator lets nothing be attempted on a message, or from a queue: since when, and who it was."""

    since: datetime
    by: str


@dataclass(frozen=True, slots=True)
class NewMessage:
    """The content of a message's first commit. `due_at` is `None` for a shadow message."""

    envelope: Envelope
    claim: Claim
    origin: Origin
    due_at: datetime | None
    keep_until: datetime  # shadow: when it expires unacknowledged; primary: the row is kept at least until then


@dataclass(frozen=True, slots=True)
class Delivery:
    """Recipients that this node delivered together. `is_inside`: by a route inside the boundary."""

    at: datetime
    next_hop: str
    ordinals: Ordinals
    is_inside: bool


@dataclass(frozen=True, slots=True)
class ReportedFork:
    """Recipients of a shadow message that wait at its primary server for this next hop."""

    next_hop: str
    ordinals: Ordinals


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the ledger stores it now. `delivered_at`: the last of `deliveries`; for a message that another server delivered,
    when that server reported it."""

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
    suspended: Suspension | None = None
    delivered_at: datetime | None = None
    deliveries: tuple[Delivery, ...] = ()
    forks: tuple[ReportedFork, ...] = ()


@dataclass(frozen=True, slots=True)
class GeneratedMessage:
    """A message created by the relay itself (a DSN, a journal report), committed in the same transaction as its cause."""

    message: NewMessage
    content: Content
    action: str = ""  # RFC 3464: failed, delayed, relayed


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The outcome of one attempt on one fork, for one commit.

    Shapes: `done` are the ordinals that ended in it (delivered, failed with their DSN in `generated`, expired); `retry` is the rest
    of the fork. `others` are the message's other forks, queued together with `retry` if the message was in no queue before.
    `keep_until` is when Safety Net may drop the content, `remember_until` when the row may be deleted. `delivered` are the keys
    (`rules.delivery.duplicate_keys`) of the recipients that the next hop accepted, `sent` their ordinals; `is_inside`: by a route
    inside the boundary. `kept` is the shadow of what was relayed in this attempt, whose content is this message's, in `kept_content` if
    that is a file.
    """

    message_id: MessageId
    next_hop: str
    done: Ordinals
    retry: ForkRetry | None
    others: tuple[ForkRetry, ...]
    generated: tuple[GeneratedMessage, ...]
    keep_until: datetime
    remember_until: datetime
    delivered: tuple[bytes, ...] = ()
    sent: Ordinals = NO_ORDINALS
    is_inside: bool = False
    kept: tuple[NewMessage, ...] = ()
    kept_content: Content | None = None


@dataclass(frozen=True, slots=True)
class DeliveredTo:
    """A recorded delivery to one recipient: of which message, and when. docs/design.md 6.5."""

    message_id: MessageId
    delivered_at: datetime


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where an incarnation began, and the position that it found: the end of the one before."""

    began: int
    found: int


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """This node's queue database: id, incarnation (how often it was opened), position at which this incarnation began.

    Shapes: `openings` has the beginning of each known incarnation, this one included. `former` is the id before the database was found
    to be an older copy; up to the internal id `older_until` it may have claims from before that (0: none any more).
    """

    database: DatabaseId
    incarnation: int
    began: int
    openings: Mapping[int, Beginning]
    former: DatabaseId = NO_DATABASE
    older_until: int = 0


@dataclass(frozen=True, slots=True)
class MessagePage:
    """A page of a filtered listing. `next_after`: after which internal id the next page begins; `None` after the last page. A page may
    have few messages, or none, and not be the last."""

    messages: tuple[StoredMessage, ...]
    next_after: int | None


class QueueKind(StrEnum):
    """Kinds of queues in listings and metrics."""

    SUBMISSION = "Submission"  # primary, due now, or no verdict yet
    DELIVERY = "Delivery"  # primary, in the queue of a next hop: not tried yet, or waits for a retry
    SHADOW = "Shadow"
    SAFETY_NET_PRIMARY = "SafetyNetPrimary"
    SAFETY_NET_SHADOW = "SafetyNetShadow"
    POISON = "Poison"
    HANDED_OVER = "HandedOver"  # this node drains or redirects: `yours` was sent, and the shadow server takes them over


class QueueStatus(StrEnum):
    """As in Exchange. Source: msd-q"""

    ACTIVE = "Active"  # attempts run
    READY = "Ready"
    RETRY = "Retry"  # the next hop cannot be reached: one attempt probes it
    SUSPENDED = "Suspended"  # by an administrator: nothing is attempted


class ServerState(StrEnum):
    """Of a server of a next hop."""

    READY = "Ready"
    LIMITED = "Limited"  # it refuses further sessions
    REFUSED = "Refused"  # tried after the others, until a probe succeeds


@dataclass(frozen=True, slots=True)
class NextHopServer:
    """A server of a next hop, as this process knows it. Units: seconds from now; `None` if it is ready."""

    server: str  # "name [address]:port"
    state: ServerState
    reply: str  # why it is not ready
    sessions_count: int
    sessions_max: int | None  # that it takes, if it is limited
    refused_seconds_ago: float | None
    probe_seconds: float | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue in a listing. `oldest_at` is when the message that has been in it longest arrived, `None` when it is empty.

    `retry_since` and `probes_count` belong to a queue in status RETRY.
    """

    identity: str  # Server\Submission, Server\<next hop>, Server\Shadow\N, Server\Shadow\<primary>\<next hop>, …
    kind: QueueKind
    next_hop: str  # next hop; Shadow\N: the primary server
    count: int
    oldest_at: datetime | None
    last_error: str = ""
    waits_for: ServerName = ServerName("")  # as of the retry that is due last
    next_retry_at: datetime | None = None  # of a shadow queue: when this node takes its messages over, if the silence lasts
    octets: int = 0  # content sizes of its messages; a message in several queues counts in each
    status: QueueStatus = QueueStatus.READY
    retry_since: datetime | None = None
    probes_count: int = 0
    suspended: Suspension | None = None
    is_smart_host: bool = False  # delivers to the hosts of a route, or to an address, not by MX
    velocity: float = 0.0  # messages a second that left less those that came, over the last minute
    primary: ServerName = ServerName("")  # of a shadow queue
    servers: tuple[NextHopServer, ...] = ()  # of the next hop, that were tried lately

    @property
    def is_of_forks(self) -> bool:
        """A shadow queue for one next hop of its primary server."""
        return self.kind is QueueKind.SHADOW and self.identity.endswith(f"\\{self.primary}\\{self.next_hop}")


@dataclass(frozen=True, slots=True)
class LoneMessages:
    """Of this node's unfinished messages: how many have fewer copies than wanted now, those included whose copies are all on servers that
    are not heard; and how many have none on a living server. There are at least `count` and at most `max`; where these are equal, it is
    known."""

    fewer_count: int
    fewer_max: int
    alone_count: int
    alone_max: int


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """A shadow message as its primary server is asked about it. `keep_until`: when it expires."""

    internal_id: int
    message_id: MessageId
    number: CopyNumber
    keep_until: datetime


@dataclass(frozen=True, slots=True)
class HeldFor:
    """Copies that a peer has placed here and that are held for it: how many, the octets of their contents, and their recipients."""

    count: int = 0
    octets: int = 0
    recipients: int = 0

    def plus(self, octets: int, recipients: int) -> "HeldFor":
        """With one more copy."""
        return HeldFor(self.count + 1, self.octets + octets, self.recipients + recipients)


@dataclass(frozen=True, slots=True)
class ShadowGroup:
    """The shadow messages held for one primary in one of its databases. `handed_count` of them it has handed over, and `kept_count` were
    relayed to it by TRACK; `handed_kept_count` are both."""

    primary: ServerName
    database: DatabaseId
    count: int
    handed_count: int
    kept_count: int = 0
    handed_kept_count: int = 0

    def count_of(self, *, kept: bool, handed: bool) -> int:
        """How many were relayed by TRACK, or were not; of these all, or only those that the primary has handed over."""
        if handed:
            return self.handed_kept_count if kept else self.handed_count - self.handed_kept_count
        return self.kept_count if kept else self.count - self.kept_count


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

    Units: `lease` is the time left; `None` if none was ever obtained, zero if it has ended. `takes_over_in`: how long the silence still
    has to last until this node takes over what it holds for the peer; `None` while that one is heard, or nothing is held.
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
    is_draining: bool = False  # it reports that it drains: it takes no copies, and hands its messages over
    conflict: str = ""  # why this node refuses it: its name or database id belongs to another node
    differs: str = ""  # its settings that should be this node's, but are not
    last_error: str = ""  # why it gave no session or no answer; empty while it answers
    takes_over_in: timedelta | None = None
    is_configured: bool = True  # False: it is no peer any more, but messages are still held for it
    takes_copies: Takes = Takes.NO
    version: str = ""  # of its program; empty if it does not say, as one of an older version, or before the first session
    features: tuple[str, ...] = ()  # that its EHLO offered this node last
    is_leaving: bool = False  # nor configured, but a session with it stays until nothing is held
    domains: tuple[str, ...] = ()  # its labels of failure_domains
    shared_fate: str = ""  # what it shares with this node: machine, or labels of failure_domains
    machine: str = ""  # as its sessions told, see `model.fate`
    discards_count: int = 0  # discard notifications that it has not fetched yet


@dataclass(frozen=True, slots=True)
class Untold:
    """Messages of which recipients are done, and no other server is told, because a generated message (a DSN, a journal report) is on this
    disk only. The oldest of them waits `since` then: `message_id` for `generated`. docs/design.md 5."""

    count: int
    since: datetime
    message_id: MessageId
    generated: MessageId


@dataclass(frozen=True, slots=True)
class InForce:
    """The configuration that a node runs with. `settings` holds the effective values, with durations and sizes in configuration syntax;
    `digest` is that of `file` when the node read it, `refusal` why it refused a later one."""

    settings: Mapping[str, object]
    file: str = ""
    digest: str = ""
    read_at: datetime | None = None
    needs_restart: tuple[str, ...] = ()  # changes in the file that the node has seen and does not follow
    refused_at: datetime | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class NodeView:
    """This node as it is now."""

    name: ServerName
    site: SiteName
    boundary: BoundaryName
    version: str
    started_at: datetime
    state: str  # starting, running, draining, inactive, redirecting
    database: DatabaseId
    incarnation: int
    began: int
    position: int
    former_database: DatabaseId  # its id before it was found to be an older copy
    in_force: InForce
    new_mail: NextMessage
    safety_net_complete_since: datetime | None = None  # what was delivered before was dropped to make room; None: nothing was
    untold: Untold | None = None  # for longer than a heartbeat
    machine: str = ""  # as `model.fate` names it; empty if that is not known
    is_witness: bool = False  # it has no clients
    domains: tuple[str, ...] = ()  # labels of failure_domains
