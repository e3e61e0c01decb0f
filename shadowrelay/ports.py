"""Ports: interfaces between the rules and the outside world: clock, ledger, peers, delivery, logs, metrics, administration.

Every implementation of a port passes that port's contract suite (`tests/contract`). docs/architecture.md describes the packages.
Times: `now` is wall time (aware UTC), for logs and due dates. `awake` is seconds of CLOCK_BOOTTIME, which continues during
suspend: leases are counted in it. `ran` counts only while this process was running: a shadow server counts silence in it, so
that a node that was suspended does not conclude that all others died. All ports are in this file, although it is long.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Protocol

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Content, ContentPlace, Envelope, Ordinals
from shadowrelay.model.ownership import Claim, DiscardEvent, StatusAnswer, StatusQuestion, Transition
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity, Seen
from shadowrelay.model.queue import (
    AttemptRecord,
    DatabaseIdentity,
    ForkRetry,
    HeldCopy,
    NewMessage,
    NodeView,
    PeerRow,
    PeerView,
    QueueRow,
    ShadowGroup,
    StoredMessage,
)
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import Destination
from shadowrelay.model.tracking import Replication, TrackingEvent
from shadowrelay.model.values import dataclass
from shadowrelay.pipeline.delivery_rules import Step

Decide = Callable[[MessageId, Claim | None], Transition]
"""A pure decision of `shadowrelay.ownership`, run inside the transaction on the claim as stored there."""


class Clock(Protocol):
    """The three clocks; see the module docstring."""

    def now(self) -> datetime: ...
    def awake(self) -> float: ...
    def ran(self) -> float: ...


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

    def unavailable_reason(self) -> Reply | None:
        """The reply for MAIL while nothing can be committed, or None. From memory."""
        ...

    # accepting and holding
    def record_accepted(self, message: NewMessage, content: Content, *, decided: bool) -> Awaitable[StoredMessage]:
        """A new primary message; `message.claim.copies` names the first server. `decided` False: the verdict follows. Content in
        memory is handed over by the call itself, before the first await."""
        ...

    async def record_hold(self, message: NewMessage, content: Content, decide: Decide) -> Transition:
        """A shadow copy. `decide` receives the current claim. If `after` is a shadow claim, insert or replace the message with
        this envelope and content; if `after == before`, the copy is superseded: `answer` is set, the content dropped."""
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
    ) -> tuple[Transition, ...]:
        """Events that this node fetched by XQDISCARD, and its acknowledgement up to the last sequence, in one transaction."""
        ...

    async def acknowledged(self, primary: ServerName, database: DatabaseId, incarnation: int) -> int:
        """The highest sequence committed from that primary in that database and incarnation; 0 for none."""
        ...

    async def forget_acknowledged(self, asker: ServerName, database: DatabaseId, sequence: int, decide: Decide) -> tuple[Transition, ...]:
        """Delete the notifications up to `sequence` for this asker. In the same transaction, run `decide` on the claim of
        each message whose `released` is deleted, and return these transitions."""
        ...

    async def discards_for(self, asker: ServerName, database: DatabaseId, maximum: int) -> DiscardReply:
        """The first notifications, ascending, without those that wait for a side message's copy."""
        ...

    async def has_untold(self, asker: ServerName, database: DatabaseId) -> bool:
        """Whether this asker, in this database, has unacknowledged notifications. Does not count as a poll."""
        ...

    # delivery
    async def record_attempt(self, attempt: AttemptRecord, decide: Decide) -> Transition:
        """Outcomes, side messages and their notifications in one transaction. Notifications of ordinals whose DSN is
        in `sides` wait until that side message has a chosen copy, is done, or is removed."""
        ...

    async def record_queued(
        self, message_id: MessageId, retries: Sequence[ForkRetry], gone: Sequence[str] = (), decide: Decide | None = None
    ) -> None:
        """Put these forks of a primary message into their delivery queues, and remove its forks from the queues `gone`. The given
        and the queued forks together must cover all undone recipients; for one that is queued and due, only its due time changes.
        `decide`: a verdict to record in the same transaction."""
        ...

    async def wake_waiting(self, server: ServerName, limit: int) -> Mapping[str, int]:
        """Make forks whose `waits_for` is this server due now, at most `limit`; returns how many in each queue."""
        ...

    async def hasten(self, next_hop: str, step: Step | None, latest_at: datetime, limit: int) -> int:
        """Forks in this queue and at this step of the ladder that are due after `latest_at` become due then, at most `limit`;
        returns how many. Without a step: those that wait for a server or a copy."""
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

    # reading (never blocks the writer)
    async def load(self, message_id: MessageId) -> StoredMessage | None: ...
    async def load_many(self, message_ids: Sequence[MessageId]) -> tuple[StoredMessage, ...]: ...

    async def submission(self, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """Decided primary messages in no delivery queue, internal_id > after, ascending, including those whose first delivery
        is still running. A corrupt row is returned as a message that is set aside, so that a page with fewer than `limit`
        is the last."""
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
        """Decided primary messages, not done, without a chosen copy, internal_id > after, ascending; an empty page is the end."""
        ...

    async def unsaid(self, message_id: MessageId) -> Ordinals:
        """Recipients that are done but must not be reported to any peer yet, because their DSNs are on this disk only."""
        ...

    async def unsaid_of(self, message_ids: Collection[MessageId]) -> Mapping[MessageId, Ordinals]:
        """The same for many messages; only those that have any. Empty ordinals mean all recipients that are done."""
        ...

    async def primaries_listed_on(self, server: ServerName, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """Unfinished primary messages with `server` on their list, internal_id > after, ascending."""
        ...

    async def shadows_of(
        self, primary: ServerName, database: DatabaseId, limit: int, after: int = 0, *, handed_only: bool = False
    ) -> tuple[StoredMessage, ...]: ...
    async def copies_of(self, primary: ServerName, database: DatabaseId, limit: int, after: int = 0) -> tuple[HeldCopy, ...]:
        """As `shadows_of`, with only the fields that STATUS questions need."""
        ...

    async def shadow_groups(self) -> tuple[ShadowGroup, ...]: ...

    async def listed_counts(self) -> Mapping[ServerName, int]:
        """For each server, how many unfinished primary messages have it on their list."""
        ...

    async def read_content(self, place: ContentPlace) -> Content:
        """Content up to 1 MiB is returned in memory, larger content as a file. Raises ContentCorrupt if the bytes are gone or do not
        match their SHA-256; LedgerUnavailable if they cannot be read now: try later, and draw no conclusion."""
        ...

    # peers
    async def record_peer(self, identity: PeerIdentity, heard_at: datetime) -> None: ...
    async def record_forgotten(self, server: ServerName) -> None:
        """`peers forget`: remove the server from every list, and delete its notifications."""
        ...

    async def peers(self) -> tuple[PeerRow, ...]: ...

    def seen(self, server: ServerName) -> Seen | None:
        """The highest position seen of the peer's latest database, from memory."""
        ...

    def server_of(self, database: DatabaseId) -> ServerName:
        """The server that owns a database, from memory; NO_SERVER if unknown. Includes this node's own."""
        ...

    # housekeeping and listings
    async def expire(self, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
        """Remove expired messages and empty generations; returns shadow messages that expired unacknowledged."""
        ...

    async def forget_unasked(self, older_than: datetime) -> int:
        """shadow_message_auto_discard_interval: delete old notifications of askers that have not asked since."""
        ...

    async def queues(self) -> tuple[QueueRow, ...]: ...

    async def messages(self, queue: str, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """A page of one queue: messages after the one with internal id `after`, by internal id; in Safety Net by expiry time.
        `queue` is the identity of a QueueRow; empty: all queues except Safety Net."""
        ...


class PeerLink(Protocol):
    """This node's sessions to one peer, pooled. All methods raise PeerUnavailable. docs/protocol.md 15."""

    @property
    def server(self) -> ServerName: ...

    @property
    def identity(self) -> PeerIdentity | None:
        """From the latest session."""
        ...

    async def hold(self, offer: CopyOffer, deadline: float, still: float | None = None) -> "HoldAnswer":
        """Place a copy. `deadline` in `Clock.awake`; `still`: give up after so many seconds without progress, None: only at the
        deadline. PeerUnavailable.sent tells whether the copy may have been stored."""
        ...

    async def greet(self) -> PeerIdentity:
        """Open or check the kept session, as a proof of life."""
        ...

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply: ...

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        """One answer per question, in order; at most 400 per call."""
        ...

    async def close(self) -> None: ...


class HoldAnswer(Protocol):
    """`superseded` is None if the copy is stored and synced. `began_awake`: when sending began (the lease counts from it).
    `server_database`: the peer's database that holds it."""

    @property
    def superseded(self) -> StatusAnswer | None: ...

    @property
    def began_awake(self) -> float: ...

    @property
    def server_database(self) -> DatabaseId: ...


class PeerDesk(Protocol):
    """Commands of authorised peers, called by the receiver once per SMTP command; implemented by `pipeline.desk`."""

    @property
    def position(self) -> int:
        """The current database position, which each reply to a peer carries."""
        ...

    def own_identity(self, listener: ServerName) -> PeerIdentity:
        """For the reply to XSHADOW; `seen` refers to the listener's database."""
        ...

    def refusal(self, identity: PeerIdentity) -> Reply | None:
        """Why this peer is refused: it has this node's name, or the database of another node."""
        ...

    async def greeted(self, identity: PeerIdentity) -> None: ...

    def offers_hold(self) -> bool: ...

    async def hold(self, peer: PeerIdentity, offer: CopyOffer) -> Reply: ...

    async def discards(self, peer: PeerIdentity, maximum: int, acknowledged: int | None) -> DiscardReply: ...

    async def status(self, peer: PeerIdentity, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]: ...

    def heard(self, server: ServerName, database: DatabaseId) -> None:
        """This peer sent a command: a proof of life."""
        ...

    def proved(self, server: ServerName, database: DatabaseId, answered_awake: float) -> None:
        """The peer has received the reply that was sent at `answered_awake`: leases are renewed from then."""
        ...


class Acceptor(Protocol):
    """Ordinary mail, called by the receiver; implemented by `pipeline.accept`."""

    def refusal(self) -> Reply | None:
        """The reason to refuse MAIL now (disk full …), or None."""
        ...

    def accept(self, envelope: Envelope, content: Content) -> Awaitable[Reply]:
        """Take responsibility, or return the refusal. If the caller is cancelled, accepting goes on."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DeliveryJob:
    """One transaction with a next hop.

    Shapes: `ordinals` not empty, at most `pipeline.routing.RECIPIENTS_PER_TRANSACTION_MAX`; `prefix` goes before the content: whole
    header lines, or empty. `content` is called when a session is open, so that a slow next hop keeps nothing in memory; it may raise
    ContentCorrupt or LedgerUnavailable. `may_end_data` is called right before the final dot; False ends the session without the dot.
    Units: `reply_seconds` is how long the reply to the dot may still take, called when the dot is sent and whenever that time is
    over. `handling` is `Ledger.handling` for this message: entered around each step that handles its content, never while waiting.
    """

    destination: Destination
    envelope: Envelope
    ordinals: Ordinals
    prefix: bytes
    content: Callable[[], Awaitable[Content]]
    may_end_data: Callable[[], bool]
    reply_seconds: Callable[[], float]
    handling: Callable[[], AbstractContextManager[None]] = nullcontext


class Deliverer(Protocol):
    """Delivery to next hops over pooled sessions; enforces `concurrency_per_destination`."""

    async def deliver(self, job: DeliveryJob) -> "DeliveryReport":
        """One attempt. Raises: LeaseTooShort if `may_end_data` returned False; what `content` raises;
        TransientDeliveryError / PermanentDeliveryError if one outcome applies to all recipients."""
        ...

    async def close(self) -> None: ...


class DeliveryReport(Protocol):
    """A reply for each recipient. `server` is the host that answered ("name [address]:port"); `dot_sent_unanswered`: the next hop may
    have the message although no reply came (cause (a) of I4); `passes_dsn`: it received the DSN parameters, and sends DSNs itself."""

    @property
    def server(self) -> str: ...

    @property
    def replies(self) -> Mapping[int, Reply]: ...

    @property
    def dot_sent_unanswered(self) -> bool: ...

    @property
    def passes_dsn(self) -> bool: ...


class TrackingLog(Protocol):
    """The message tracking log. `write` never blocks; `sync` returns when all rows written so far are on disk."""

    def write(self, event: TrackingEvent) -> None: ...
    async def sync(self) -> None: ...


class Metrics(Protocol):
    """Counters for monitoring. Never block, never raise. `reason` and `result` take a few fixed values."""

    def acknowledged(self, replication: Replication) -> None: ...
    def refused(self, reason: str) -> None: ...

    def shadow_latency(self, seconds: float) -> None:
        """From the end of the content until the copy was stored."""
        ...

    def discarded(self, count: int) -> None: ...
    def promoted(self, count: int, reason: str) -> None: ...

    def attempt(self, result: str) -> None:
        """One delivery attempt on one fork: delivered, partly, deferred, failed …"""
        ...

    def heartbeat(self, server: ServerName) -> None:
        """A proof of life from this peer, in either direction."""
        ...


class AdminView(Protocol):
    """Data and operations for the administration. All methods may raise LedgerUnavailable."""

    async def queues(self) -> tuple[QueueRow, ...]: ...

    async def retry_queue(self, queue: str) -> QueueRow | None:
        """Try what is in the queue with this identity at once. Returns the queue as it was, or `None` if there is none.
        Raises RequestRefused for a queue in which nothing is tried."""
        ...

    async def messages(self, queue: str, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """See `Ledger.messages`."""
        ...

    async def message(self, message_id: MessageId) -> StoredMessage | None: ...

    async def content(self, message_id: MessageId) -> tuple[bytes, Content] | None:
        """The header lines to prepend and the content, as it would be delivered. None: there is no such message.
        Raises RequestRefused if it cannot be read."""
        ...

    async def release(self, message_id: MessageId) -> bool:
        """Deliver a message that was set aside. False: there is no such message. Raises RequestRefused."""
        ...

    async def remove(self, message_id: MessageId, *, with_dsn: bool) -> bool:
        """End a message that was set aside. False: there is no such message. Raises RequestRefused."""
        ...

    async def peers(self) -> tuple[PeerView, ...]: ...

    async def forget(self, server: ServerName) -> bool:
        """The peer will not come back. False: there is no such peer."""
        ...

    async def node(self) -> NodeView: ...

    def is_ready(self) -> tuple[bool, tuple[str, ...]]:
        """Whether mail is accepted now, and if not, the reasons: starting, draining, ledger unavailable."""
        ...
