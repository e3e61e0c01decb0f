"""What the pipeline needs from the outside world: clock, machine, peers, next hops, tracking log. docs/architecture.md.

The queue database is no port: there is one, `store.ledger`. What others need from the pipeline stands where they call it: `smtp.reception`,
`admin.api`.

Times: `now` is wall time (aware UTC), for logs and due dates. `awake` is seconds of CLOCK_BOOTTIME, which continues during
suspend: leases are counted in it. `ran` counts only while this process was running: a shadow server counts silence in it, so
that a node that was suspended does not conclude that all others died.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Protocol

from shadowrelay.model.ids import DatabaseId, ServerName
from shadowrelay.model.message import Content, Envelope, Ordinals
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion
from shadowrelay.model.peers import Alive, CopyOffer, DiscardReply, Incarnation, PeerIdentity
from shadowrelay.model.queue import (
    NextHopServer,
)
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import Destination, Reach
from shadowrelay.model.tracking import TrackingEvent
from shadowrelay.model.values import dataclass


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

    async def alive(self, incarnation: Incarnation, *, is_dialed: bool) -> Alive:
        """Whether this very incarnation answers now, in the kept session or at the peer's address. `is_dialed`: another process has just
        answered there, so it is not tried. Never raises."""
        ...

    def end_others(self, incarnation: Incarnation) -> None:
        """End the sessions with all other processes of this peer: another one has its name."""
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

    async def about(self, text: str, since: datetime | None) -> Sequence[TrackingEvent]:
        """The rows that have this text, oldest first: the id of a message. `since`: when it came, `None` if that is not known.
        Raises: OSError."""
        ...
