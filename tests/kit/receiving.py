"""A receive connector on loopback with a fake service behind it, and a client that speaks raw octets."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import async_solipsism

from shadowrelay.memory import ContentBudget
from shadowrelay.model.ids import BoundaryName, DatabaseId, ServerName
from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion, StatusState
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.settings.values import Settings
from shadowrelay.smtp.limits import Descriptors
from shadowrelay.smtp.server import Factory, Listener, ReceiverServer, reception_for
from shadowrelay.smtp.tls import TlsContexts
from tests.kit.clock import PATIENCE_SECONDS

OWN_DATABASE = DatabaseId("00000000-0000-4000-8000-000000000001")
PEER_DATABASE = DatabaseId("00000000-0000-4000-8000-000000000002")
NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
HELLO = f"XSHADOW server=b.example boundary=default database={PEER_DATABASE} incarnation=1 began=0 position=5 span=60"

HELD = Reply(250, "2.0.0", "Held")
NO_DISCARDS = DiscardReply((), 0)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until this holds; for what nobody announces."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0)


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
    mail_refusal: Reply | None = None
    gate: asyncio.Event | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    accepted: list[tuple[Envelope, Content, bytes]] = field(default_factory=list)

    def refusal(self) -> Reply | None:
        return self.mail_refusal

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
class FakeDesk:
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

    def own_identity(self, listener: ServerName) -> PeerIdentity:
        name = ServerName("a.example")
        return PeerIdentity(name, BoundaryName("default"), OWN_DATABASE, 1, 0, self.position, timedelta(seconds=60))

    def refusal(self, identity: PeerIdentity) -> Reply | None:
        return self.conflict

    async def greeted(self, identity: PeerIdentity) -> None:
        self.told.append(("greeted", identity.server))

    def offers_hold(self) -> bool:
        return self.is_offering

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


class Client:
    """Octets out, replies in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, octets: bytes) -> None:
        self.writer.write(octets)
        await self.writer.drain()

    async def reply(self) -> str:
        """The next reply as it came, lines joined by a newline."""
        lines: list[str] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                line = (await self.reader.readuntil(b"\r\n")).decode()
                lines.append(line[:-2])
                if line[3] == " ":
                    return "\n".join(lines)

    async def replies(self, count: int) -> list[str]:
        return [await self.reply() for _ in range(count)]

    async def ask(self, text: str) -> str:
        """One command, its reply."""
        await self.send(text.encode() + b"\r\n")
        return await self.reply()

    async def rest(self) -> str:
        """Everything up to the end of the connection, which must come."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await self.reader.read()).decode()

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        await self.writer.start_tls(context, server_hostname=name)
        # Python 3.11 leaves the reader with the old transport.
        self.reader._transport = self.writer.transport

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


@dataclass
class Station:
    """A running receive connector."""

    server: ReceiverServer
    acceptor: FakeAcceptor
    desk: FakeDesk
    clock: FixedClock
    spool: Path
    clients: list[Client] = field(default_factory=list)

    async def connect(self, greeting: bool = True) -> Client:
        """A new connection; the banner is read."""
        address = self.server.address
        client = Client(*await asyncio.open_connection(address.host, address.port))
        self.clients.append(client)
        if greeting:
            assert await client.reply() == "220 a.example ESMTP"
        return client

    async def client_in(self, *commands: str) -> Client:
        """A new connection that has said all this, and was answered 2xx or 3xx each time."""
        client = await self.connect()
        for command in commands:
            reply = await client.ask(command)
            assert reply[0] in "23", (command, reply)
        return client


def settings_for(tls: dict[str, Any] | None = None, transport: dict[str, Any] | None = None, **connector: Any) -> Settings:
    """A node `a.example` with the peers `b.example` and `c.example`, and one connector that takes `@here.example` from anybody."""
    values = {"name": "in", "listen": "127.0.0.1:0", "accepted_domains": ["here.example"], "accept_xshadow": False} | connector
    return Settings.model_validate(
        {
            "server": {"name": "a.example", "site": "east"},
            "peers": [{"name": name, "site": "west", "address": f"{name}:2525"} for name in ("b.example", "c.example")],
            "receive_connectors": [values],
        }
        | ({"tls": tls} if tls else {})
        | ({"transport": transport} if transport else {})
    )


class VirtualListener:
    """For a loop that has no sockets of the kernel."""

    def __init__(self, server: asyncio.Server, address: HostPort) -> None:
        self.address = address
        self.close = server.close

    @classmethod
    async def open(cls, factory: Factory, listen: HostPort, descriptors: Descriptors) -> Any:
        return cls(await asyncio.get_running_loop().create_server(factory, listen.host, listen.port), listen)


@asynccontextmanager
async def receiving(
    spool: Path,
    *,
    tls: dict[str, Any] | None = None,
    transport: dict[str, Any] | None = None,
    unchecked: dict[str, Any] | None = None,
    budget: ContentBudget | None = None,
    descriptors: Descriptors | None = None,
    **connector: Any,
) -> AsyncIterator[Station]:
    """`connector` are settings of the receive connector, `unchecked` ones that the settings would not allow."""
    settings = settings_for(tls, transport, **connector)
    acceptor, desk, clock = FakeAcceptor(), FakeDesk(), FixedClock()
    found = settings.receive_connectors[0].model_copy(update=unchecked or {})
    contexts = None if settings.tls is None else TlsContexts.read(settings.tls)
    is_virtual = isinstance(asyncio.get_running_loop(), async_solipsism.EventLoop)
    reception = reception_for(
        settings,
        found,
        acceptor=acceptor,
        desk=desk,
        clock=clock,
        spool_directory=spool,
        budget=budget or ContentBudget(),
        descriptors=descriptors or Descriptors(20_000),
        tls=contexts,
    )
    server = ReceiverServer(reception, VirtualListener.open if is_virtual else Listener.open)
    await server.start()
    station = Station(server, acceptor, desk, clock, spool)
    try:
        yield station
    finally:
        for client in station.clients:
            await client.close()
        await server.close()
