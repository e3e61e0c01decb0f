"""What the rules need of the world. Every implementation of a port passes that port's contract suite.

Times: `now` is wall time (aware UTC), for logs and due dates. `awake` is seconds of CLOCK_BOOTTIME, which goes on in
suspend: leases are counted in it. `ran` counts only while this process really ran: a shadow server's silence is
counted in it, so that a node that slept does not believe that all others died.
Long, because the whole contract between the rules and the world stands in one place.
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
"""A pure decision of `shadowrelay.ownership`, run inside the transaction on the claim as it is there."""


class Clock(Protocol):
    """See the module's docstring."""

    def now(self) -> datetime: ...
    def awake(self) -> float: ...
    def ran(self) -> float: ...


class Ledger(Protocol):
    """The queue database. Each `record_…`, `transition` and `forget_…` is one promise: it returns after the commit
    that holds it is synced, and raises `LedgerUnavailable` (nothing of it happened) or what `decide` raised.
    Promises that wait at the same moment share one commit; each succeeds or fails alone; they are applied in the
    order of the calls. Cancelling the waiter does not take a promise back.
    """

    @property
    def identity(self) -> DatabaseIdentity: ...

    @property
    def position(self) -> int:
        """Raised by every commit."""
        ...

    def unavailable_reason(self) -> Reply | None:
        """What to answer MAIL with while no promise can be taken, or None. From memory."""
        ...

    # accepting and holding
    def record_accepted(self, message: NewMessage, content: Content, *, decided: bool) -> Awaitable[StoredMessage]:
        """A new primary message; `message.claim.copies` names the first server. `decided` False: verdict to come. A content in
        memory is promised by the call, before anybody waits."""
        ...

    async def record_hold(self, message: NewMessage, content: Content, decide: Decide) -> Transition:
        """A shadow copy. `decide` sees the present claim: `after` a shadow claim = store (insert or replace) with
        this envelope and content; `after == before` = superseded, `answer` set, the content dropped."""
        ...

    # ownership
    async def transition(self, message_ids: Sequence[MessageId], decide: Decide) -> tuple[Transition, ...]:
        """Read, decide and write each claim in one transaction. `tell` becomes discard notifications.
        Copies, done, number, role, asked, handed are stored as `after` says. `after is None` deletes the row.
        A claim that turns PRIMARY (promotion) becomes due now; one that turns DELIVERED or RELEASED loses retries."""
        ...

    async def record_verdict(self, message_id: MessageId, decide: Decide) -> Transition:
        """`transition` of one message that also records its verdict (is_decided)."""
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
        """What an XQDISCARD of ours brought, and that we have it up to the last sequence, in one transaction."""
        ...

    async def acknowledged(self, primary: ServerName, database: DatabaseId, incarnation: int) -> int:
        """The highest sequence committed from that primary in that database and incarnation; 0 for none."""
        ...

    async def forget_acknowledged(self, asker: ServerName, database: DatabaseId, sequence: int, decide: Decide) -> tuple[Transition, ...]:
        """Delete the notifications up to `sequence` for this asker; `decide` is run, in the same transaction, on the claim of
        each message whose `released` goes, and its transitions are returned."""
        ...

    async def discards_for(self, asker: ServerName, database: DatabaseId, maximum: int) -> DiscardReply:
        """The first notifications, ascending; not those that still wait for a side message's copy."""
        ...

    async def has_untold(self, asker: ServerName, database: DatabaseId) -> bool:
        """Notifications that this asker, in this database, has not acknowledged. To look is not to ask."""
        ...

    # delivery
    async def record_attempt(self, attempt: AttemptRecord, decide: Decide) -> Transition:
        """Outcomes, side messages and their notifications in one transaction. Notifications of ordinals whose DSN is
        in `sides` wait until that side message has a chosen copy, is done, or is removed."""
        ...

    async def record_queued(
        self, message_id: MessageId, retries: Sequence[ForkRetry], gone: Sequence[str] = (), decide: Decide | None = None
    ) -> None:
        """These forks of a primary message wait in their delivery queues, and no longer in the queues `gone`. The forks given
        and those that are there already must be all that are undone; one that is there already only waits longer, if it is due.
        `decide`: a verdict to be recorded with it."""
        ...

    async def wake_waiting(self, server: ServerName, limit: int) -> Mapping[str, int]:
        """Forks whose `waits_for` is this server are due now; how many in each queue, at most `limit` altogether."""
        ...

    async def hasten(self, next_hop: str, step: Step | None, latest_at: datetime, limit: int) -> int:
        """Forks in this queue and at this step of the ladder that are due later than `latest_at` are due then; how many, at most
        `limit`. Without a step: those that wait for a server or a copy."""
        ...

    def handling(self, message_id: MessageId) -> AbstractContextManager[None]:
        """Use around each step that parses or writes out the content of a message and waits for nothing. If the process dies
        in it, deaths_count rises, unless `stopping` was called before. The first `record_attempt` after it sets it to 0."""
        ...

    def stopping(self) -> None:
        """The process was asked to end: from now on a death counts against no message."""
        ...

    async def record_set_aside(self, message_id: MessageId, reason: str, decide: Decide | None = None) -> None:
        """`decide` may hand the message over in the same transaction; the role becomes SET_ASIDE whatever it says."""
        ...

    async def record_taken_back(self, message_id: MessageId, decide: Decide) -> Transition:
        """`transition` of one message that was set aside; if it changes anything, deaths_count is 0 again."""
        ...

    # reading (never holds up the writer)
    async def load(self, message_id: MessageId) -> StoredMessage | None: ...
    async def load_many(self, message_ids: Sequence[MessageId]) -> tuple[StoredMessage, ...]: ...

    async def submission(self, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """Decided primary messages that wait in no delivery queue, internal_id > after, ascending. Those being delivered since
        they were accepted are among them. A corrupt row is among them too, as a message that is set aside: a page with fewer than
        `limit` is the last."""
        ...

    async def due(self, next_hop: str, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
        """Messages with a fork in this queue whose time has come, oldest due first. Corrupt rows as in `submission`."""
        ...

    async def next_due_at(self, next_hop: str, after: datetime) -> datetime | None:
        """When the first of the later ones in this queue is due."""
        ...

    async def delivery_queues(self) -> Mapping[str, datetime]:
        """The next hops of all that waits, and when the first of each is due. For the start of a node."""
        ...

    async def notices_due(self, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
        """Messages with a fork whose `notice_at` has come, oldest first."""
        ...

    async def waited_for(self) -> tuple[ServerName, ...]:
        """What forks wait for: the values of `waits_for`."""
        ...

    async def unplaced(self, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """Decided primary messages, not done, without a chosen copy, internal_id > after, ascending; an empty page is the end."""
        ...

    async def unsaid(self, message_id: MessageId) -> Ordinals:
        """Recipients of it that are done, and of which nobody may hear yet: their notices are on this disk only."""
        ...

    async def unsaid_of(self, message_ids: Collection[MessageId]) -> Mapping[MessageId, Ordinals]:
        """The same of many; only those with something unsaid. No ordinals: all that is done."""
        ...

    async def primaries_listed_on(self, server: ServerName, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """Unfinished primary messages with `server` on their list, internal_id > after, ascending."""
        ...

    async def shadows_of(
        self, primary: ServerName, database: DatabaseId, limit: int, after: int = 0, *, handed_only: bool = False
    ) -> tuple[StoredMessage, ...]: ...
    async def copies_of(self, primary: ServerName, database: DatabaseId, limit: int, after: int = 0) -> tuple[HeldCopy, ...]:
        """As `shadows_of`, for who asks about all of them."""
        ...

    async def shadow_groups(self) -> tuple[ShadowGroup, ...]: ...

    async def listed_counts(self) -> Mapping[ServerName, int]:
        """How many unfinished primary messages have that server on their list."""
        ...

    async def read_content(self, place: ContentPlace) -> Content:
        """≤ 1 MiB comes in memory, more as a file. Raises ContentCorrupt when the bytes are gone or do not have their SHA-256;
        LedgerUnavailable when they cannot be read now: try later, and conclude nothing."""
        ...

    # peers
    async def record_peer(self, identity: PeerIdentity, heard_at: datetime) -> None: ...
    async def record_forgotten(self, server: ServerName) -> None:
        """`peers forget`: drop it from every list, and its notifications."""
        ...

    async def peers(self) -> tuple[PeerRow, ...]: ...

    def seen(self, server: ServerName) -> Seen | None:
        """Of the peer's latest database, from memory."""
        ...

    def server_of(self, database: DatabaseId) -> ServerName:
        """Whose database that is, from memory; NO_SERVER if unknown. This node's own included."""
        ...

    # housekeeping and listings
    async def expire(self, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
        """Remove what is past its time: returns shadow messages that expired unacknowledged. Drops empty generations."""
        ...

    async def forget_unasked(self, older_than: datetime) -> int:
        """shadow_message_auto_discard_interval: delete old notifications of askers that have not asked since."""
        ...

    async def queues(self) -> tuple[QueueRow, ...]: ...

    async def messages(self, queue: str, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """A page of one queue, those behind the message with internal id `after`, by internal id; in Safety Net by the time at
        which they leave it. `queue` is the identity of a QueueRow; empty: all queues but Safety Net."""
        ...


class PeerLink(Protocol):
    """Sessions of ours to one peer, pooled. All raise PeerUnavailable."""

    @property
    def server(self) -> ServerName: ...

    @property
    def identity(self) -> PeerIdentity | None:
        """From the latest session."""
        ...

    async def hold(self, offer: CopyOffer, deadline: float, still: float | None = None) -> "HoldAnswer":
        """Place a copy; `deadline` in `Clock.awake`; `still`: seconds in which nothing gets on, None where only the deadline counts.
        PeerUnavailable.sent tells whether bytes may have got there."""
        ...

    async def greet(self) -> PeerIdentity:
        """Open (or check) the kept session: proof of life, or PeerUnavailable."""
        ...

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply: ...

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        """One answer a question, in order; at most 400 a call."""
        ...

    async def close(self) -> None: ...


class HoldAnswer(Protocol):
    """`superseded` is None when stored and synced. `began_awake`: when sending began (the lease counts from it).
    `server_database`: the database of the peer it is in."""

    @property
    def superseded(self) -> StatusAnswer | None: ...

    @property
    def began_awake(self) -> float: ...

    @property
    def server_database(self) -> DatabaseId: ...


class PeerDesk(Protocol):
    """What the receiver calls for authorised peers; implemented by `pipeline.desk`. One call an SMTP command."""

    @property
    def position(self) -> int:
        """The database position now, which each reply to a peer carries."""
        ...

    def own_identity(self, listener: ServerName) -> PeerIdentity:
        """For the reply to XSHADOW; `seen` is of the listener's database."""
        ...

    def refusal(self, identity: PeerIdentity) -> Reply | None:
        """Why this peer cannot be who it says: it has our name, or the database of another node."""
        ...

    async def greeted(self, identity: PeerIdentity) -> None: ...

    def offers_hold(self) -> bool: ...

    async def hold(self, peer: PeerIdentity, offer: CopyOffer) -> Reply: ...

    async def discards(self, peer: PeerIdentity, maximum: int, acknowledged: int | None) -> DiscardReply: ...

    async def status(self, peer: PeerIdentity, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]: ...

    def heard(self, server: ServerName, database: DatabaseId) -> None:
        """A command came from this peer (proof of life, on the server's side)."""
        ...

    def proved(self, server: ServerName, database: DatabaseId, answered_awake: float) -> None:
        """The peer has received our answer that we sent at `answered_awake`: leases are renewed from then."""
        ...


class Acceptor(Protocol):
    """What the receiver calls for ordinary mail; implemented by `pipeline.accept`."""

    def refusal(self) -> Reply | None:
        """A reason to refuse MAIL now (disk full …), or None."""
        ...

    def accept(self, envelope: Envelope, content: Content) -> Awaitable[Reply]:
        """Take responsibility, or say why not. The caller may be cancelled; the promise goes on."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DeliveryJob:
    """One transaction with a next hop.

    Shapes: `ordinals` not empty, at most `pipeline.routing.RECIPIENTS_PER_TRANSACTION_MAX`; `prefix` goes before the content: whole
    header lines, or empty. `content` is called when a session is open, not before, so that nothing is held in memory for a next
    hop that keeps us waiting; it may raise ContentCorrupt or LedgerUnavailable. `may_end_data` is asked right before the final
    dot; False ends the session without it. Units: `reply_seconds` is how long the reply to the dot may still take, asked when
    the dot is sent and whenever that time is over. `handling` is `Ledger.handling` for this message: entered around each step that
    handles its content, never while waiting.
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
    """Delivery to next hops, over sessions pooled for each; holds `concurrency_per_destination` itself."""

    async def deliver(self, job: DeliveryJob) -> "DeliveryReport":
        """One attempt. Raises: LeaseTooShort when `may_end_data` said no; what `content` raises;
        TransientDeliveryError / PermanentDeliveryError where nothing was decided recipient by recipient."""
        ...

    async def close(self) -> None: ...


class DeliveryReport(Protocol):
    """A reply a recipient; `server` is who answered ("name [address]:port"); `dot_sent_unanswered` means that the
    next hop may have it although no reply came (cause (a) of I4); `passes_dsn`: it was told the DSN wishes, and reports itself."""

    @property
    def server(self) -> str: ...

    @property
    def replies(self) -> Mapping[int, Reply]: ...

    @property
    def dot_sent_unanswered(self) -> bool: ...

    @property
    def passes_dsn(self) -> bool: ...


class TrackingLog(Protocol):
    """The message tracking log. `write` never blocks; `sync` returns when all that was written is on disk."""

    def write(self, event: TrackingEvent) -> None: ...
    async def sync(self) -> None: ...


class Metrics(Protocol):
    """Counters for whoever watches this node. Never block, never raise. `reason` and `result` are a few fixed words."""

    def acknowledged(self, replication: Replication) -> None: ...
    def refused(self, reason: str) -> None: ...

    def shadow_latency(self, seconds: float) -> None:
        """End of content until the copy was stored."""
        ...

    def discarded(self, count: int) -> None: ...
    def promoted(self, count: int, reason: str) -> None: ...

    def attempt(self, result: str) -> None:
        """One delivery attempt of one fork: delivered, partly, deferred, failed …"""
        ...

    def heartbeat(self, server: ServerName) -> None:
        """A proof of life of this peer, in either direction."""
        ...


class AdminView(Protocol):
    """What the administration is shown, and may do. All may raise LedgerUnavailable."""

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
        """As it would be delivered: header lines that go before the content, and the content. None: there is no such message.
        Raises RequestRefused where it cannot be read."""
        ...

    async def release(self, message_id: MessageId) -> bool:
        """Deliver what was set aside. False: there is no such message. Raises RequestRefused."""
        ...

    async def remove(self, message_id: MessageId, *, with_dsn: bool) -> bool:
        """End what was set aside. False: there is no such message. Raises RequestRefused."""
        ...

    async def peers(self) -> tuple[PeerView, ...]: ...

    async def forget(self, server: ServerName) -> bool:
        """That peer will not come back. False: there is no such peer."""
        ...

    async def node(self) -> NodeView: ...

    def is_ready(self) -> tuple[bool, tuple[str, ...]]:
        """Whether mail is taken now, and why not: starting, draining, ledger unavailable."""
        ...
