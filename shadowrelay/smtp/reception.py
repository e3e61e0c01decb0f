"""What the sessions of one receive connector share and call, and the state of each session. docs/reference.md "Settings"."""

import asyncio
import ssl
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shadowrelay.memory import ContentBudget
from shadowrelay.model.ids import NO_DATABASE, BoundaryName, DatabaseId, ServerName
from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.receive_settings import ReceiveConnector, RelayRights
from shadowrelay.model.replies import Reply
from shadowrelay.model.settings import Peer, Route, Settings
from shadowrelay.ports import Clock
from shadowrelay.protocol.original_client import NOBODY, OriginalClient
from shadowrelay.rules.back_pressure import Pressure
from shadowrelay.smtp.client_limits import ClientLimits
from shadowrelay.smtp.fruitless_commands import FruitlessCommands
from shadowrelay.smtp.limits import CONTENT_AHEAD_OCTETS, Descriptors, Rights, SessionCount, postmaster_homes
from shadowrelay.smtp.mail_filters import Chain, FilterBank
from shadowrelay.smtp.recipient_sources import RecipientCheck
from shadowrelay.smtp.tls import TlsContexts


class Acceptor(Protocol):
    """What a receiver needs for ordinary mail; implemented by `pipeline.accept`."""

    @property
    def pressure(self) -> Pressure:
        """The back pressure now, from memory: called for each MAIL."""
        ...

    def refusal(self, *, is_inside: bool) -> Reply | None:
        """The reason to refuse MAIL now, or None. A refusal is counted. Called only while the pressure is felt."""
        ...

    def accept(self, envelope: Envelope, content: Content) -> Awaitable[Reply]:
        """Take responsibility, or return the refusal. If the caller is cancelled, accepting goes on."""
        ...


class PeerRequests(Protocol):
    """Commands of authorised peers, called by the receiver once per SMTP command; implemented by `pipeline.peer_requests`."""

    @property
    def position(self) -> int:
        """The current database position, which each reply to a peer carries."""
        ...

    def own_identity(self, listener: ServerName, database: DatabaseId = NO_DATABASE) -> PeerIdentity:
        """For XSHADOW; `seen` refers to this database of the listener, or to the one known last."""
        ...

    def refusal(self, identity: PeerIdentity) -> Reply | None:
        """Why this peer is refused: it has this node's name, or the database of another node."""
        ...

    async def second_server(self, identity: PeerIdentity, address: str, began_at: float, *, is_dialed: bool = False) -> str:
        """Why this peer is refused although its identity is plausible: another process has its name. Empty if none has. `address`: where it
        speaks from; `is_dialed`: it was reached there. `began_at`: the session, by the loop's time."""
        ...

    async def greeted(self, identity: PeerIdentity) -> PeerIdentity:
        """The peer has identified itself; returns our identity for the reply."""
        ...

    def offers_hold(self) -> bool: ...

    def offers_track(self) -> bool: ...

    async def hold(self, peer: PeerIdentity, offer: CopyOffer) -> Reply: ...

    async def track(self, peer: PeerIdentity, offer: CopyOffer, began_awake: float) -> Reply:
        """Accept a message whose shadow the peer keeps. `began_awake`: when its MAIL came, from which the lease counts."""
        ...

    async def discards(self, peer: PeerIdentity, maximum: int, acknowledged: int | None) -> DiscardReply: ...

    async def status(self, peer: PeerIdentity, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]: ...

    def heard(self, server: ServerName, database: DatabaseId) -> None:
        """This peer sent a command: a proof of life."""
        ...

    def proved(self, server: ServerName, database: DatabaseId, answered_awake: float) -> None:
        """The peer has received the reply that was sent at `answered_awake`: leases are renewed from then."""
        ...


STRANGE_CERTIFICATES_MAX = 1_000  # remembered


@dataclass(slots=True)
class Reception:
    """Objects shared by the sessions of one receive connector.

    Shapes: `spool_directory` exists; files in it that no ledger owns are left over from a crash and may be deleted at
    start. `is_advertised` False (`shadow_redundancy_enabled = false`) hides the keyword; peers may still use the verbs,
    because copies that they hold must be discarded.
    """

    name: ServerName
    boundary: BoundaryName
    connector: ReceiveConnector
    peers: Mapping[ServerName, Peer]
    acceptor: Acceptor
    peer_requests: PeerRequests
    clock: Clock
    spool_directory: Path
    budget: ContentBudget = field(default_factory=ContentBudget)
    descriptors: Descriptors = field(default_factory=lambda: Descriptors(sys.maxsize))
    tls: TlsContexts | None = None  # without, STARTTLS is not offered
    filters: Chain | None = None
    is_advertised: bool = True
    closed_with: Reply | None = None  # the refusal of all mail; peers may still fetch discard notifications
    is_closed: bool = False  # for good: a connection that was just being accepted is closed at once
    routes: Sequence[Route] = ()
    recipients: RecipientCheck | None = None  # without, any recipient of an accepted domain exists
    linked: Collection[ServerName] = ()  # the peers with which this node has sessions
    peer_addresses: set[str] = field(default_factory=set)  # of clients: as configured, and where a peer has proved its name
    strangers: OrderedDict[Any, None] = field(default_factory=OrderedDict)  # sessions (`Connection`) of clients that have proved nothing
    strange_certificates: dict[tuple[str, str], None] = field(default_factory=dict)
    """Clients, by address and name in EHLO, whose certificate ended their last handshake: see `tls_context`."""
    handshakes_count: int = 0  # of TLS, by clients that have proved nothing
    running: set["asyncio.Task[None]"] = field(default_factory=set)  # the sessions' command loops, also of closed connections
    read_buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(CONTENT_AHEAD_OCTETS)))
    """Read buffer shared by the transports of all sessions: its data is consumed before another read can happen."""
    spool: str = field(init=False)  # `spool_directory` as text, for each message
    rights: Rights = field(init=False)
    _homes: tuple[str, str] = field(init=False)
    count: SessionCount = field(init=False)
    clients: ClientLimits = field(init=False)
    limits: ClientLimits | None = field(init=False)  # `clients`, if any limit is configured

    def __post_init__(self) -> None:
        self.count = SessionCount()
        self.clients = ClientLimits(self.connector.name, self.connector.limits)
        self.peer_addresses.update(peer.address.host for peer in self.peers.values())
        self.adopt(self.connector, self.routes)

    def adopt(self, connector: ReceiveConnector, routes: Sequence[Route]) -> None:
        """Apply changed settings, from the next command of each session on."""
        self.connector = connector
        self.routes = routes
        self.spool = str(self.spool_directory)
        self.rights = Rights(connector)
        self.clients.adopt(connector.limits)
        self.limits = self.clients if self.clients.is_active else None
        self._homes = postmaster_homes(self.rights, connector, self.name, routes)

    def tls_context(self, state: "SessionState") -> ssl.SSLContext | None:
        """For a client by its name in EHLO. A peer gives its own; another client's certificate is of no use.

        A client with a peer's name and a certificate of another authority loses its session, and is not asked in the next one. Once only:
        a peer whose certificate was renewed is asked in the one after that. From a peer's address all are asked.
        """
        if self.tls is None:
            return None
        is_peer = self.connector.accept_xshadow and state.client_name.rstrip(".").lower() in self.peers
        if is_peer and (state.address, state.client_name) in self.strange_certificates:
            del self.strange_certificates[state.address, state.client_name]
            is_peer = False
        return self.tls.receiving(is_peer=is_peer)

    def note_strange_certificate(self, state: "SessionState") -> None:
        """A client's certificate has ended its handshake."""
        if state.address not in self.peer_addresses:
            self.strange_certificates[state.address, state.client_name] = None
            if len(self.strange_certificates) > STRANGE_CERTIFICATES_MAX:
                del self.strange_certificates[next(iter(self.strange_certificates))]

    def may_relay(self, state: "SessionState") -> bool:
        """Whether the client of this session may relay, by the address that `relay_rights` says. docs/security.md "By whose address"."""
        if not state.is_spoken_for:
            return self.rights.may_relay(state.address)
        return self.rights.may_relay(state.named.address if self.connector.relay_rights is RelayRights.CLIENT else state.connection_address)

    def is_of_peer(self, address: str) -> bool:
        """Whether a client with this address is probably a peer: it is not kept out by limits for strangers. It gets no right by that."""
        return address in self.peer_addresses or self.rights.is_externally_secured(address)

    def postmaster_home(self, *, may_relay: bool) -> str:
        """The domain for a bare `Postmaster`, empty if there is none."""
        return self._homes[may_relay]


def reception_for(
    settings: Settings,
    connector: ReceiveConnector,
    *,
    acceptor: Acceptor,
    peer_requests: PeerRequests,
    clock: Clock,
    spool_directory: Path,
    budget: ContentBudget,
    descriptors: Descriptors,
    tls: TlsContexts | None = None,
    filters: FilterBank | None = None,
    recipients: RecipientCheck | None = None,
) -> Reception:
    """Shared objects for the sessions of this connector. Without `tls`, STARTTLS is not offered. `filters` has those it names."""
    peers: Mapping[ServerName, Peer] = {peer.name: peer for peer in settings.peers}
    return Reception(
        name=settings.server.name,
        boundary=settings.server.boundary,
        connector=connector,
        peers=peers,
        acceptor=acceptor,
        peer_requests=peer_requests,
        clock=clock,
        spool_directory=spool_directory,
        budget=budget,
        descriptors=descriptors,
        tls=tls,
        filters=None if filters is None else filters.chain(connector.filters),
        recipients=recipients,
        routes=settings.routes,
        linked=frozenset([peer.name for peer in settings.linked_peers]),
        is_advertised=settings.transport.shadow_redundancy_enabled,
    )


@dataclass(slots=True)
class SessionState:
    """What is known of a session, and what has happened in it; its line in the operator log when it ends.

    `address` and `port` are the client's: of the connection, until somebody who may (`proxy_from`, `xclient_from`) names another
    client. What is limited by client, logged and passed on has them. Rights are asked of `Reception.may_relay` and of `own_address`.
    """

    address: str
    port: int
    began_at: float  # the loop's time
    connection_address: str = ""
    connection_port: int = 0
    is_spoken_for: bool = False  # whoever is connected speaks for another client
    named: OriginalClient = NOBODY  # whom it named, as far as that is known
    client_name: str = ""
    tls: str = ""
    peer: str = ""
    messages_count: int = 0
    copies_count: int = 0
    refused_count: int = 0
    errors_count: int = 0
    fruitless: FruitlessCommands = field(default_factory=FruitlessCommands)
    reason: str = "lost"

    def __post_init__(self) -> None:
        self.connection_address, self.connection_port = self.address, self.port

    @property
    def own_address(self) -> str:
        """Of the connection, if its client speaks for itself, else empty: no address that somebody names makes a peer."""
        return "" if self.is_spoken_for else self.connection_address

    def spoken_for(self, client: OriginalClient) -> None:
        """Whoever is connected speaks for this client; the connection's where its address is unknown, and not that of one before."""
        self.is_spoken_for, self.named = True, client
        known = (client.address, client.port) if client.address else (self.connection_address, self.connection_port)
        self.address, self.port = known
