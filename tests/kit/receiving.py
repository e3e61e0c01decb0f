"""A receive connector on loopback with a fake service behind it."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import async_solipsism

from shadowrelay.memory import ContentBudget
from shadowrelay.model.ids import NO_DATABASE, BoundaryName, DatabaseId, ServerName
from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion, StatusState
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Settings
from shadowrelay.rules.back_pressure import NO_PRESSURE, Pressure
from shadowrelay.smtp.call_ahead import Asking
from shadowrelay.smtp.limits import Descriptors
from shadowrelay.smtp.listener import Factory, Listener, ReceiverServer
from shadowrelay.smtp.mail_filters import make_bank
from shadowrelay.smtp.reception import reception_for
from shadowrelay.smtp.recipient_sources import RecipientSources
from shadowrelay.smtp.tls import TlsContexts
from tests.kit.clients import Client

OWN_DATABASE = DatabaseId("00000000-0000-4000-8000-000000000001")
PEER_DATABASE = DatabaseId("00000000-0000-4000-8000-000000000002")
NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
HELLO = f"XSHADOW server=b.example boundary=default database={PEER_DATABASE} incarnation=1 began=0 position=5 span=60"

HELD = Reply(250, "2.0.0", "Held")
BANNER = "220 a.example ESMTP"
PEER = {"accept_xshadow": True, "externally_secured": ["127.0.0.1", "::1"]}  # settings of a connector
NO_DISCARDS = DiscardReply((), 0)


def files_in(directory: Path) -> list[str]:
    """What is there now."""
    return sorted(os.listdir(directory))


class FixedClock:
    """Noon for ever; `awake` counts how often it was asked."""

    def __init__(self) -> None:
        self.asked_count = 0

    def now(self) -> datetime:
        return NOON

    def awake(self) -> float:
        self.asked_count += 1
        return float(self.asked_count)

    def ran(self) -> float:
        return 0.0


@dataclass
class FakeAcceptor:
    """Takes everything, or answers `reply`, or raises `error`; waits for `gate` first."""

    reply: Reply | None = None
    error: Exception | None = None
    pressure: Pressure = NO_PRESSURE
    refused_count: int = 0
    gate: asyncio.Event | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    accepted: list[tuple[Envelope, Content, bytes]] = field(default_factory=list)

    def refusal(self, *, is_inside: bool) -> Reply | None:
        if not self.pressure.refuses(is_inside=is_inside):
            return None
        self.refused_count += 1
        return INSUFFICIENT_RESOURCES

    async def accept(self, envelope: Envelope, content: Content) -> Reply:
        self.began.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.accepted.append((envelope, content, octets_of(content)))
        self.ended.set()
        return self.reply or Reply(250, "2.0.0", "Queued")

    @property
    def bodies(self) -> list[bytes]:
        """What was accepted, without our own trace header."""
        return [without_trace(octets) for _, _, octets in self.accepted]


@dataclass
class FakePeerRequests:
    """Holds everything; `told` has what it was told, in order."""

    holds: list[tuple[CopyOffer, bytes]] = field(default_factory=list)
    told: list[tuple[Any, ...]] = field(default_factory=list)
    hold_reply: Reply = HELD
    discard_reply: DiscardReply = NO_DISCARDS
    is_offering: bool = True
    conflict: Reply | None = None
    position: int = 7
    gate: asyncio.Event | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)

    def own_identity(self, listener: ServerName, database: DatabaseId = NO_DATABASE) -> PeerIdentity:
        name = ServerName("a.example")
        return PeerIdentity(name, BoundaryName("default"), OWN_DATABASE, 1, 0, self.position, timedelta(seconds=60))

    def refusal(self, identity: PeerIdentity) -> Reply | None:
        return self.conflict

    async def second_server(self, identity: PeerIdentity, address: str, began_at: float, *, is_dialed: bool = False) -> str:
        return ""

    async def greeted(self, identity: PeerIdentity) -> PeerIdentity:
        self.told.append(("greeted", identity.server, "draining") if identity.is_draining else ("greeted", identity.server))
        return self.own_identity(identity.server)

    def offers_hold(self) -> bool:
        return self.is_offering

    def offers_track(self) -> bool:
        return self.is_offering

    async def track(self, peer: PeerIdentity, offer: CopyOffer, began_awake: float) -> Reply:
        return await self.hold(peer, offer)

    async def hold(self, peer: PeerIdentity, offer: CopyOffer) -> Reply:
        self.began.set()
        if self.gate is not None:
            await self.gate.wait()
        self.holds.append((offer, octets_of(offer.content)))
        return self.hold_reply

    async def discards(self, peer: PeerIdentity, maximum: int, acknowledged: int | None) -> DiscardReply:
        self.told.append(("discards", maximum, acknowledged))
        return self.discard_reply

    async def status(self, peer: PeerIdentity, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        self.told.append(("status", len(questions)))
        return tuple(StatusAnswer(StatusState.UNKNOWN) for _ in questions)

    def heard(self, server: ServerName, database: DatabaseId) -> None:
        self.told.append(("heard", server))

    def proved(self, server: ServerName, database: DatabaseId, answered_awake: float) -> None:
        self.told.append(("proved", server, answered_awake))


def octets_of(content: Content) -> bytes:
    """The bytes, wherever they are."""
    if content.data is not None:
        return content.data
    assert content.path is not None
    return content.path.read_bytes()


def without_trace(octets: bytes) -> bytes:
    """What came, without the `Received:` line that the receiver put before it."""
    assert octets.startswith(b"Received: from ")
    end = octets.index(b"+0000\r\n") + 7
    return octets[end:]


@dataclass
class Station:
    """A running receive connector."""

    server: ReceiverServer
    acceptor: FakeAcceptor
    peer_requests: FakePeerRequests
    clock: FixedClock
    spool: Path
    clients: list[Client] = field(default_factory=list)

    async def connect(self, greeting: bool = True) -> Client:
        """A new connection; the banner is read."""
        client = await Client.to(self.server.address)
        self.clients.append(client)
        if greeting:
            await client.begin(banner=BANNER)
        return client

    async def client_in(self, *commands: str) -> Client:
        """A new connection that has said all this, and was answered 2xx or 3xx each time."""
        client = await self.connect(greeting=False)
        await client.begin(*commands, banner=BANNER)
        return client


def settings_for(
    tls: dict[str, Any] | None = None,
    transport: dict[str, Any] | None = None,
    sources: list[dict[str, Any]] | None = None,
    filters: Sequence[dict[str, Any]] = (),
    **connector: Any,
) -> Settings:
    """A node `a.example` with the peers `b.example` and `c.example`, and one connector that takes `@here.example` from anybody."""
    values = {"name": "in", "listen": "127.0.0.1:0", "accepted_domains": ["here.example"], "accept_xshadow": False} | connector
    return Settings.model_validate(
        {
            "server": {"name": "a.example", "site": "east"},
            "peers": [{"name": name, "site": "west", "address": f"{name}:2525"} for name in ("b.example", "c.example")],
            "receive_connectors": [values | {"filters": [each["name"] for each in filters]}],
            "filters": filters,
        }
        | ({"recipient_sources": sources} if sources else {})
        | ({"tls": tls} if tls else {})
        | ({"transport": transport} if transport else {})
    )


def _not_asked(*_: object) -> Any:
    raise AssertionError("a next hop is asked")


NOBODY_TO_ASK = Asking(_not_asked, _not_asked)


class VirtualListener:
    """For a loop that has no sockets of the kernel."""

    def __init__(self, server: asyncio.Server, address: HostPort) -> None:
        self.address = address
        self.close = server.close

    @classmethod
    async def open(cls, factory: Factory, listen: HostPort, descriptors: Descriptors, is_shared: bool = False) -> Any:
        return cls(await asyncio.get_running_loop().create_server(factory, listen.host, listen.port), listen)


@asynccontextmanager
async def receiving(
    spool: Path,
    *,
    tls: dict[str, Any] | None = None,
    transport: dict[str, Any] | None = None,
    unchecked: dict[str, Any] | None = None,
    sources: list[dict[str, Any]] | None = None,
    filters: Sequence[dict[str, Any]] = (),
    asking: Asking = NOBODY_TO_ASK,
    budget: ContentBudget | None = None,
    descriptors: Descriptors | None = None,
    **connector: Any,
) -> AsyncIterator[Station]:
    """`connector` are settings of the receive connector, `unchecked` ones that the settings would not allow, `sources` of recipients."""
    settings = settings_for(tls, transport, sources, filters, **connector)
    acceptor, peer_requests, clock = FakeAcceptor(), FakePeerRequests(), FixedClock()
    found = settings.receive_connectors[0].model_copy(update=unchecked or {})
    contexts = None if settings.tls is None else TlsContexts.read(settings.tls)
    bank = make_bank(settings.filters, asyncio.get_running_loop().time)
    is_virtual = isinstance(asyncio.get_running_loop(), async_solipsism.EventLoop)
    reception = reception_for(
        settings,
        found,
        acceptor=acceptor,
        peer_requests=peer_requests,
        clock=clock,
        spool_directory=spool,
        budget=budget or ContentBudget(),
        descriptors=descriptors or Descriptors(20_000),
        tls=contexts,
        filters=bank,
    )
    if sources:
        made = RecipientSources(settings, asking)
        await made.read()
        reception.recipients = made.check_for(found)
    server = ReceiverServer(reception, VirtualListener.open if is_virtual else Listener.open)
    await server.start()
    station = Station(server, acceptor, peer_requests, clock, spool)
    try:
        yield station
    finally:
        for client in station.clients:
            await client.close()
        await server.close()
        await bank.close()


def in_a_session(spool: Path, scenario: Callable[[Station, Client], Awaitable[Any]], *commands: str, **settings: Any) -> Any:
    """What `scenario` returns, on a loop in which waiting takes no time, with a client that has said these commands."""

    async def run() -> Any:
        async with receiving(spool, listen="127.0.0.1:2525", **settings) as station:
            return await scenario(station, await station.client_in(*commands))

    loop = async_solipsism.EventLoop()
    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()
