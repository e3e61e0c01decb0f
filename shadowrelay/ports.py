"""What the pipeline needs from the outside world: clock, machine, ledger, peers, next hops, tracking log. docs/architecture.md.

`tests/contract` is the contract of `Ledger`. What others need from the pipeline stands where they call it: `smtp.reception`, `admin.api`.

Times: `now` is wall time (aware UTC), for logs and due dates. `awake` is seconds of CLOCK_BOOTTIME, which continues during
suspend: leases are counted in it. `ran` counts only while this process was running: a shadow server counts silence in it, so
that a node that was suspended does not conclude that all others died.
"""

from asyncio import Future
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Content, ContentPlace, Envelope, Ordinals
from shadowrelay.model.ownership import Claim, DiscardEvent, StatusAnswer, StatusQuestion, Transition
from shadowrelay.model.peers import CopyOffer, DiscardReply, Incarnation, PeerIdentity, Seen
from shadowrelay.model.queue import (
    AttemptRecord,
    DatabaseIdentity,
    DeliveredTo,
    ForkRetry,
    HeldCopy,
    HeldFor,
    LoneMessages,
    MessagePage,
    NewMessage,
    NextHopServer,
    PeerRow,
    QueueKind,
    QueueRow,
    ShadowGroup,
    StoredMessage,
    Suspension,
    Untold,
)
from shadowrelay.model.replies import Reply
from shadowrelay.model.resubmission import Criteria, Progress, RequestState, ResubmitRequest, Resubmitted
from shadowrelay.model.routing import Destination, Reach
from shadowrelay.model.survival import Survival
from shadowrelay.model.tracking import TrackingEvent
from shadowrelay.model.values import dataclass
from shadowrelay.protocol.filters import Expression
from shadowrelay.rules.delivery import LadderStep

NO_KEYS: Mapping[MessageId, Mapping[int, bytes]] = MappingProxyType({})
Decide = Callable[[MessageId, Claim | None], Transition]
"""A pure decision of `shadowrelay.ownership`, run inside the transaction on the claim as stored there."""


class Clock(Protocol):
    """The three clocks; see the module docstring."""

    def now(self) -> datetime: ...
    def awake(self) -> float: ...
    def ran(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system. Units: bytes; both as far as this user may use them. `device` tells it from others."""

    free: int
    size: int
    device: int = 0


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of the machine. Units: bytes."""

    used: int
    total: int


class Machine(Protocol):
    """Disks and memory, as the operating system reports them. None of these waits; None where there is no such report."""

    def disk(self, directory: Path) -> Disk:
        """The file system of a directory. Raises: OSError."""
        ...

    def boot_id(self) -> str:
        """Of the kernel: the same for all containers on it, another one after each boot. Empty where there is none."""
        ...

    def private_bytes(self) -> int | None:
        """Memory that this process has for itself."""
        ...

    def memory_limit(self) -> int:
        """What this process may have: the memory of the machine, or of its control group."""
        ...

    def system_memory(self) -> MemoryUse | None:
        """Of all processes; what the kernel can free at once does not count as used."""
        ...

    def collect_garbage(self) -> None:
        """Free what is not referenced any more, and return freed memory to the system. Takes some milliseconds."""
        ...


class Ledger(Protocol):
    """The queue database. Each `record_…`, `transition` and `forget_…` is one promise: it returns after the commit
    that contains it is synced, and raises `LedgerUnavailable` (nothing was stored) or what `decide` raised.
    Promises that wait at the same moment share one commit; each succeeds or fails alone; they are applied in the
    order of the calls. Cancelling the waiter does not withdraw a promise. docs/architecture.md "On disk".
    """

    @property
    def identity(self) -> DatabaseIdentity: ...

    @property
    def position(self) -> int:
        """Raised by every commit."""
        ...

    @property
    def waiting_count(self) -> int:
        """Promises that wait for their commit, from memory."""
        ...

    @property
    def log_bytes(self) -> int:
        """Size of the write-ahead log, from memory."""
        ...

    async def submission_count(self) -> int:
        """Messages in the queue Submission."""
        ...

    async def safety_net_octets(self) -> int:
        """What is in Safety Net, by the sizes of the messages."""
        ...

    async def shed_safety_net(self, octets: int) -> tuple[int, int]:
        """Drop the oldest of Safety Net, so many octets or as many as can be dropped. How many messages and octets."""
        ...

    async def safety_net_complete_since(self) -> datetime | None:
        """The latest delivery among what was dropped: what was delivered later can be resubmitted."""
        ...

    async def keep_reserve(self, spare_bytes: int) -> None:
        """Make the reserve for a start on a full disk, if there is none and `spare_bytes` are left beside it. Raises: nothing."""
        ...

    async def prove_commit(self) -> None:
        """A commit that changes nothing but the position."""
        ...

    async def prove_read(self) -> None:
        """Read from the disk what was written to it last. Raises: LedgerUnavailable."""
        ...

    # accepting and holding
    def record_accepted(self, message: NewMessage, content: Content, *, decided: bool) -> Future[StoredMessage]:
        """A new primary message; `message.claim.copies` names the first server. `decided` False: the verdict follows. Content in
        memory is handed over by the call itself. The result is a future: the commit goes on while the caller does something else."""
        ...

    def record_hold(self, message: NewMessage, content: Content, decide: Decide) -> Awaitable[Transition]:
        """A shadow copy. `decide` receives the current claim. If `after` is a shadow claim other than `before`, insert or replace the
        message with this envelope and content. Else a change is applied to the message that is here, and the content is dropped;
        `answer` is set if the copy is superseded."""
        ...

    # ownership
    async def transition(self, message_ids: Sequence[MessageId], decide: Decide) -> tuple[Transition, ...]:
        """Read, decide and write each claim in one transaction. `tell` becomes discard notifications.
        Copies, done, number, role, asked, handed are stored from `after`. `after is None` deletes the row.
        A claim that turns PRIMARY (promotion) becomes due now; one that turns DELIVERED or RELEASED loses retries."""
        ...

    async def record_verdict(self, message_id: MessageId, decide: Decide) -> Transition:
        """`transition` of one message that also records the accept verdict (is_decided)."""
        ...

    async def record_discards(
        self,
        primary: ServerName,
        database: DatabaseId,
        incarnation: int,
        events: Sequence[DiscardEvent],
        decide: Callable[[DiscardEvent, Claim | None], Transition],
        keep_until: datetime,
        keys: Mapping[MessageId, Mapping[int, bytes]] = NO_KEYS,
    ) -> tuple[Transition, ...]:
        """Events that this node fetched by XQDISCARD, and its acknowledgement up to the last sequence, in one transaction. `keys`: of the
        recipients of messages that are recorded as delivered if an event says that they were reached (`delivered_before`)."""
        ...

    async def acknowledged(self, primary: ServerName, database: DatabaseId, incarnation: int) -> int:
        """The highest sequence committed from that primary in that database and incarnation; 0 for none."""
        ...

    async def forget_acknowledged(self, asker: ServerName, database: DatabaseId, sequence: int, decide: Decide) -> tuple[Transition, ...]:
        """Delete the notifications up to `sequence` for this asker. In the same transaction, run `decide` on the claim of
        each message whose `released` is deleted, and return these transitions."""
        ...

    async def discards_for(self, asker: ServerName, database: DatabaseId, maximum: int) -> DiscardReply:
        """The first notifications, ascending, without those that wait for a generated message's copy."""
        ...

    async def has_unacknowledged(self, asker: ServerName, database: DatabaseId) -> bool:
        """Whether this asker, in this database, has unacknowledged notifications, besides forks. Does not count as a poll."""
        ...

    def note_forks_offered(self, server: ServerName, is_offered: bool) -> None:
        """Whether forks of messages are reported to this server in this process, including reports that are queued already."""
        ...

    # delivery
    def record_attempt(self, attempt: AttemptRecord, decide: Decide) -> Awaitable[Transition]:
        """Outcomes, generated messages and their notifications in one transaction. Notifications of ordinals whose DSN is
        in `generated` wait until that message has a chosen copy, is done, or is removed."""
        ...

    async def record_queued(
        self, message_id: MessageId, retries: Sequence[ForkRetry], gone: Sequence[str] = (), decide: Decide | None = None
    ) -> None:
        """Put these forks of a primary message into their delivery queues, and remove its forks from the queues `gone`. The given
        and the queued forks together must cover all undone recipients; for one that is queued and due, only its due time changes.
        `decide`: a verdict to record in the same transaction."""
        ...

    def may_be_delivered(self, keys: Collection[bytes], since: datetime) -> bool:
        """From memory: False if `delivered_before` certainly finds nothing since then."""
        ...

    async def delivered_before(self, keys: Collection[bytes], earliest: datetime, latest: datetime) -> Mapping[bytes, DeliveredTo]:
        """Deliveries recorded with these keys after `earliest`, up to `latest`."""
        ...

    async def wake_waiting(self, server: ServerName, limit: int) -> Mapping[str, int]:
        """Make forks whose `waits_for` is this server due now, at most `limit`; returns how many in each queue."""
        ...

    async def hasten(self, next_hop: str, step: LadderStep | None, latest_at: datetime, limit: int) -> int:
        """Forks in this queue and at this step of the ladder that are due after `latest_at` become due then, at most `limit`;
        returns how many. Without a step: those that wait for a server or a copy."""
        ...

    async def record_suspended(
        self, message_id: MessageId, suspension: Suspension | None, forks: Sequence[ForkRetry] = ()
    ) -> tuple[str, ...]:
        """Suspend a decided primary message: none of its forks is due until it is resumed (`None`), and then all are due now. `forks`
        are for a message in no queue. The next hops of its forks; empty: nothing changed. Raises RequestRefused for any other message.
        A claim that ends, and a message set aside, are suspended no more."""
        ...

    async def record_resubmitted(self, message_id: MessageId) -> tuple[str, ...]:
        """Make the forks of a primary message due now, except those that wait for a server, a copy or an administrator. The next hops
        of its forks."""
        ...

    async def record_queue_suspended(self, next_hop: str, suspension: Suspension | None) -> bool:
        """Remember that an administrator suspended this delivery queue, or resumed it (`None`); returns whether that is new.
        Raises RequestRefused if too many are."""
        ...

    def suspended_queues(self) -> Mapping[str, Suspension]:
        """By next hop, from memory."""
        ...

    def handling(self, message_id: MessageId) -> AbstractContextManager[None]:
        """Use around each step that parses or writes out the content of a message and does not wait. If the process dies in it,
        deaths_count rises, unless `stopping` was called before. The next `record_attempt` resets it to 0."""
        ...

    def stopping(self) -> None:
        """The process was asked to stop: from now on a death counts against no message. docs/design.md 6.9."""
        ...

    async def record_set_aside(self, message_id: MessageId, reason: str, decide: Decide | None = None) -> None:
        """Set a message aside. `decide` may hand it over in the same transaction; the role becomes SET_ASIDE in any case."""
        ...

    async def record_taken_back(self, message_id: MessageId, decide: Decide) -> Transition:
        """`transition` of one message that was set aside; if it changes anything, deaths_count is reset to 0."""
        ...

    # drain
    @property
    def last_id_at_start(self) -> int:
        """`StoredMessage.internal_id` of the last message that came before this process; what came since has higher ones."""
        ...

    @property
    def draining_since(self) -> datetime | None:
        """Since when this node drains, also across restarts; None if it does not. From memory."""
        ...

    async def record_draining(self, since: datetime | None) -> None: ...

    # reading (never blocks the writer)
    async def load(self, message_id: MessageId) -> StoredMessage | None: ...
    async def load_many(self, message_ids: Sequence[MessageId]) -> tuple[StoredMessage, ...]: ...

    async def envelopes(self, message_ids: Sequence[MessageId]) -> Mapping[MessageId, tuple[int, Envelope]]:
        """Internal id and envelope of each message that is known, finished ones included."""
        ...

    async def submission(self, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """Decided primary messages in no delivery queue, internal_id > after, ascending, including those whose first delivery
        is still running. A corrupt row is returned as a message that is set aside, so that a page with fewer than `limit`
        is the last."""
        ...

    async def undelivered(self, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """Decided primary messages that are in Submission or in a delivery queue: neither done, nor set aside, nor handed over.
        internal_id > after, ascending; an empty page is the end."""
        ...

    async def due(self, next_hop: str, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
        """Messages with a due fork in this queue, oldest due time first. Corrupt rows as in `submission`."""
        ...

    async def next_due_at(self, next_hop: str, after: datetime) -> datetime | None:
        """The earliest due time after `after` in this queue."""
        ...

    async def delivery_queues(self) -> Mapping[str, datetime]:
        """The next hops of all queued forks, each with its earliest due time. For the start of a node."""
        ...

    async def notices_due(self, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
        """Messages with a fork whose `notice_at` is due, oldest first."""
        ...

    async def waited_for(self) -> tuple[ServerName, ...]:
        """The distinct values of `waits_for`."""
        ...

    async def unplaced(self, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """Decided primary messages, not done, with fewer copies than wanted; internal_id > after, ascending; an empty page is the end."""
        ...

    async def unreported(self, message_id: MessageId) -> Ordinals:
        """Recipients that are done but must not be reported to any peer yet, because their DSNs are on this disk only."""
        ...

    async def unreported_of(self, message_ids: Collection[MessageId]) -> Mapping[MessageId, Ordinals]:
        """The same for many messages; only those that have any. Empty ordinals mean all recipients that are done."""
        ...

    async def awaited(self, message_id: MessageId) -> tuple[MessageId, ...]:
        """The generated messages for whose copies, or end, the notifications about this message wait."""
        ...

    async def untold(self) -> Untold | None:
        """The messages about which notifications wait so; None: there are none."""
        ...

    async def primaries_listed_on(self, server: ServerName, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """Unfinished primary messages with `server` on their list, internal_id > after, ascending."""
        ...

    async def shadows_of(
        self, primary: ServerName, database: DatabaseId, limit: int, after: int = 0, *, handed_only: bool = False, kept: bool | None = None
    ) -> tuple[StoredMessage, ...]:
        """Shadow messages held for this database of a primary server. `kept`: only those that were relayed to it by TRACK, or only the
        others."""
        ...

    async def copies_of(self, primary: ServerName, database: DatabaseId, limit: int, after: int = 0) -> tuple[HeldCopy, ...]:
        """As `shadows_of`, with only the fields that STATUS questions need."""
        ...

    async def shadow_groups(self) -> tuple[ShadowGroup, ...]: ...

    async def survival(self, servers: Sequence[ServerName]) -> Survival:
        """Of the unfinished primary messages, how many none of these servers may have a copy of."""
        ...

    async def held_for(self, server: ServerName) -> HeldFor:
        """How much this peer has placed here that is held for it."""
        ...

    async def listed_counts(self) -> Mapping[ServerName, int]:
        """For each server, how many unfinished primary messages have it on their list."""
        ...

    async def lone_messages(self, living: Collection[ServerName]) -> LoneMessages:
        """How many unfinished primary messages lack copies; `living`: the peers that are heard now."""
        ...

    async def read_content(self, place: ContentPlace) -> Content:
        """Content up to 1 MiB is returned in memory, larger content as a file. Raises ContentCorrupt if the bytes are gone or do not
        match their SHA-256; LedgerUnavailable if they cannot be read now: try later, and draw no conclusion."""
        ...

    # resubmission from Safety Net
    async def record_request(self, criteria: Criteria) -> ResubmitRequest | None:
        """A new request, PENDING. None: there are too many."""
        ...

    async def resubmit_requests(self) -> tuple[ResubmitRequest, ...]:
        """All of them, by number."""
        ...

    async def change_request(self, number: int, state: RequestState) -> ResubmitRequest | None:
        """DISABLED for an active request, PENDING for a disabled one, DONE for one that was examined and all of whose messages are
        redundant. None: there is no such request, or its state does not allow it."""
        ...

    async def remove_request(self, number: int) -> bool:
        """False: there is no such request, or it is active. What it resubmitted stays."""
        ...

    async def delivered(self, after: tuple[datetime, int], limit: int, *, by_others: bool = False) -> tuple[StoredMessage, ...]:
        """Messages whose last delivery by this node as their primary server is behind `after` (with the internal id), in this order.
        `by_others`: those that this node discarded as their shadow server. Corrupt rows as in `submission`."""
        ...

    async def record_progress(
        self, number: int, progress: Progress, message: NewMessage | None = None, content: Content | None = None
    ) -> StoredMessage | None:
        """A step of an active request, and the message that it resubmits, in one transaction; returns that message. None if it was there
        already; nothing is changed if the request is not active, or has come further. A file of `content` is handed over by the call."""
        ...

    async def wrapped(self, content: Content, before: bytes, after: bytes = b"") -> Content:
        """The content with these octets around it; a file of it is the caller's. Raises: LedgerUnavailable; ContentCorrupt: it is gone."""
        ...

    async def unfinished_resubmitted(self, number: int) -> tuple[Resubmitted, ...]:
        """The messages of this request that were not `finished` yet."""
        ...

    async def record_settled(self, number: int, redundant: Sequence[MessageId], finished: Sequence[MessageId]) -> None:
        """Messages of this request are redundant, or finished, which counts as redundant."""
        ...

    # peers
    async def record_peer(self, identity: PeerIdentity, heard_at: datetime) -> None: ...
    async def record_forgotten(self, server: ServerName) -> None:
        """`peers forget`: remove the server from every list, and delete its notifications."""
        ...

    async def peers(self) -> tuple[PeerRow, ...]: ...

    def seen(self, server: ServerName, database: DatabaseId) -> Seen | None:
        """The highest position seen of this database of the peer, in any session, from memory."""
        ...

    def note_told(self, server: ServerName, incarnation: Incarnation, position: int) -> None:
        """A reply told this position. It is written with a commit that happens anyway, at most once a second."""
        ...

    def is_told_unsaved(self, server: ServerName) -> bool:
        """Whether no commit has written the highest position told since."""
        ...

    def server_of(self, database: DatabaseId) -> ServerName:
        """The server that owns a database, from memory; NO_SERVER if unknown. Includes this node's own."""
        ...

    # an older copy of the database
    async def record_renamed(self) -> None:
        """The database is an older copy that was put back: it gets a new id with the next opening. The last call before `close`."""
        ...

    async def older_claims(self, after: int) -> tuple[tuple[MessageId, ...], int]:
        """Messages that this node claims since before its database was renamed, with internal ids above `after`, and up to which id was
        read; it is `identity.older_until` at the end."""
        ...

    async def record_older_claims_over(self) -> None:
        """There are none any more: `identity.older_until` is 0 from the next opening on."""
        ...

    # housekeeping and listings
    async def expire(self, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
        """Remove expired messages and empty generations; returns shadow messages that expired unacknowledged."""
        ...

    async def forget_unasked(self, older_than: datetime) -> int:
        """shadow_message_auto_discard_interval: delete old notifications of askers that have not asked since."""
        ...

    async def forget_delivered(self, window: timedelta) -> int:
        """Remove recorded deliveries longer ago than this, or as far in the future; returns how many."""
        ...

    async def queues(self) -> tuple[QueueRow, ...]: ...

    async def depths(self) -> Mapping[tuple[QueueKind, str], int]:
        """Of Submission, delivery and shadow queues that are not empty, by kind and next hop (shadow: primary server, and
        behind a space its next hop, if that is known)."""
        ...

    async def messages(self, queue: str, limit: int, after: int = 0, *, newest: bool = False) -> tuple[StoredMessage, ...]:
        """A page of one queue: messages after the one with internal id `after`, by internal id; in Safety Net by expiry time.
        `queue` is the identity of a QueueRow; empty: all queues except Safety Net; `Undelivered`: of these all but the shadow queues, which
        are `Shadows`. `newest`: the other way round, from the newest where `after` is 0."""
        ...

    async def filtered(
        self, queue: str, expression: Expression, expiry: timedelta, limit: int, after: int = 0, *, newest: bool = False
    ) -> MessagePage:
        """As `messages`, those that satisfy the filter. A page ends after `limit` messages, or after a fixed number that were looked at.
        `expiry`: message_expiration_timeout."""
        ...

    async def searched(self, expression: Expression, expiry: timedelta, limit: int, after: int = 0) -> MessagePage:
        """Of all messages of which there is a row, Safety Net included, those that satisfy the filter, newest first. Pages as in
        `filtered`."""
        ...


@dataclass(frozen=True, slots=True)
class HoldAnswer:
    """`superseded_by` is None if the copy is stored and synced. `began_awake`: when sending began (the lease counts from it).
    `server_database`: the peer's database that holds it."""

    superseded_by: StatusAnswer | None
    began_awake: float
    server_database: DatabaseId


class PeerLink(Protocol):
    """This node's sessions to one peer, pooled. All methods raise PeerUnavailable. docs/protocol.md 15."""

    @property
    def server(self) -> ServerName: ...

    @property
    def identity(self) -> PeerIdentity | None:
        """From the latest session."""
        ...

    async def hold(self, offer: CopyOffer, deadline: float, stall_seconds: float | None = None) -> HoldAnswer:
        """Place a copy. `deadline` in `Clock.awake`; `stall_seconds`: give up after so many seconds without progress, None: only at the
        deadline. PeerUnavailable.sent tells whether the copy may have been stored. Raises also LedgerUnavailable: this node's own file
        cannot be read now; nothing was stored, and the peer is not to blame."""
        ...

    async def track(self, offer: CopyOffer, deadline: float, stall_seconds: float | None = None) -> HoldAnswer:
        """Relay a message: the peer is its primary server from its 250 on, and remembers this node as the shadow server. As `hold`;
        PeerUnavailable.reply is a refusal of the peer's, and `said` NO_SESSION means that it does not offer TRACK."""
        ...

    async def greet(self) -> PeerIdentity:
        """Open or check the kept session, as a proof of life."""
        ...

    async def answers(self, incarnation: Incarnation) -> bool:
        """Whether this very incarnation answers now, in the kept session; False if that session is not open. Never raises."""
        ...

    async def announce(self) -> None:
        """Send the hello again, because its information about this node has changed."""
        ...

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply: ...

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        """One answer per question, in order; at most 400 per call."""
        ...

    def give_up(self, quiet_seconds: float) -> int:
        """The peer is lost: end every copy and relay that has made no progress for so long, as if its time were over. Returns how
        many. Questions have limits of their own, which are shorter."""
        ...

    def hold_ready(self, *, is_wanted: bool) -> None:
        """Whether to hold a session for copies ready from now on, because the peer takes copies. It opens in the background."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class DeliveryJob:
    """One transaction with a next hop.

    Shapes: `ordinals` not empty, at most `rules.router.RECIPIENTS_PER_TRANSACTION_MAX`; `prefix` goes before the content: whole
    header lines, or empty. `content` is called when a session is open, so that a slow next hop keeps nothing in memory; it may raise
    ContentCorrupt or LedgerUnavailable. `may_end_data` is called right before the final dot; False ends the session without the dot.
    Units: `reply_seconds` is how long the reply to the dot may still take, called when the dot is sent and whenever that time is
    over. `handling` is `Ledger.handling` for this message: entered around each step that handles its content, never while waiting.
    `reach`: where it may go if no route names the server.
    """

    destination: Destination
    envelope: Envelope
    ordinals: Ordinals
    prefix: bytes
    content: Callable[[], Awaitable[Content]]
    may_end_data: Callable[[], bool]
    reply_seconds: Callable[[], float]
    handling: Callable[[], AbstractContextManager[None]] = nullcontext
    reach: Reach = Reach.ANYWHERE


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """A reply for each recipient. `server` is the host that answered ("name [address]:port"); `dot_sent_unanswered`: the next hop may
    have the message although no reply came (cause (a) of I4); `passes_dsn`: it received the DSN parameters, and sends DSNs itself. `tls`,
    `login`: what protected the session, like "TLSv1.3,verified", and who this node was in it, like "PLAIN relay"; empty: nothing."""

    server: str
    replies: Mapping[int, Reply]
    dot_sent_unanswered: bool = False
    passes_dsn: bool = True
    tls: str = ""
    login: str = ""


class Deliverer(Protocol):
    """Delivery to next hops over pooled sessions; enforces `concurrency_per_destination`."""

    async def deliver(self, job: DeliveryJob) -> DeliveryReport:
        """One attempt. Raises: LeaseTooShort if `may_end_data` returned False; what `content` raises;
        TransientDeliveryError / PermanentDeliveryError if one outcome applies to all recipients."""
        ...

    def servers(self, key: str) -> Sequence[NextHopServer]:
        """The servers that were tried lately for the next hop with this key, for listings."""
        ...

    async def close(self) -> None: ...


class TrackingLog(Protocol):
    """The message tracking log. `write` never blocks; `sync` returns when all rows written so far are on disk, or cannot
    be: its wait has a limit."""

    def write(self, event: TrackingEvent) -> None: ...
    async def sync(self) -> None: ...

    async def about(self, message_id: MessageId, since: datetime | None) -> Sequence[TrackingEvent]:
        """The rows that name this message, oldest first; `since`: when it came, `None` if that is not known. Raises: OSError."""
        ...
