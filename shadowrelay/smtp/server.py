"""A receive connector as a listening socket of our own in the node's loop: accept, drain, close.

The loops' own way is not used, because of what it does when the process has no descriptor left: uvloop accepts what waits and
closes it without a word, and closes the listening socket itself when another thread took the descriptor that it keeps for
that; asyncio writes a traceback. Here those connections wait in the kernel's backlog, and are accepted a little later.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shadowrelay.memory import ContentBudget
from shadowrelay.model.ids import ServerName
from shadowrelay.model.routing import HostPort
from shadowrelay.ports import Acceptor, Clock, PeerDesk
from shadowrelay.settings.values import Peer, ReceiveConnector, Route, Settings
from shadowrelay.smtp.connection import BoundedReading, Connection
from shadowrelay.smtp.limits import SHUTTING_DOWN, Descriptors
from shadowrelay.smtp.peer_receiver import PeerReceiver
from shadowrelay.smtp.session import Reception
from shadowrelay.smtp.tls import TlsContexts

BACKLOG = 1_024  # connections that the kernel keeps for us while the loop is busy
ACCEPTED_AT_ONCE_MAX = 64  # then the sessions that are open have their turn
PAUSE_SECONDS = 0.25  # nothing can be accepted: descriptors or memory of the kernel are used up
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Factory = Callable[[], asyncio.BaseProtocol]


class Listener:
    """Listens from `open` to `close`."""

    def __init__(self, factory: Factory, descriptors: Descriptors) -> None:
        self._factory = factory
        self._descriptors = descriptors
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._connecting: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(cls, factory: Factory, listen: HostPort, descriptors: Descriptors) -> "Listener":
        """On every address that the host has. Raises: OSError when one cannot be had."""
        listener = cls(factory, descriptors)
        found = await listener._loop.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                bound = socket.create_server(address[:2], family=family, backlog=BACKLOG)
                listener._sockets.append(bound)
                bound.setblocking(False)
        except BaseException:
            listener.close()
            raise
        for bound in listener._sockets:
            listener._listen(bound)
        return listener

    @property
    def address(self) -> HostPort:
        """Where it listens really, when the port was 0."""
        host, port = self._sockets[0].getsockname()[:2]
        return HostPort(host, port)

    def close(self) -> None:
        """Accept no more. May be called twice."""
        for bound in self._sockets:
            if bound.fileno() >= 0:
                self._loop.remove_reader(bound)
                bound.close()

    def _listen(self, bound: socket.socket) -> None:
        if bound.fileno() >= 0:
            self._loop.add_reader(bound, self._accept, bound)

    def _accept(self, bound: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            try:
                connection, _ = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                self._descriptors.refused_count += 1
                self._loop.remove_reader(bound)
                self._loop.call_later(PAUSE_SECONDS, self._listen, bound)
                return
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        if self._descriptors.cuts_off_session(connection.fileno()):
            connection.close()
            return
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._connected(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connected(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection)
        except OSError:
            connection.close()  # it is gone already


LOOK_SECONDS = 0.1


def reception_for(
    settings: Settings,
    connector: ReceiveConnector,
    *,
    acceptor: Acceptor,
    desk: PeerDesk,
    clock: Clock,
    spool_directory: Path,
    budget: ContentBudget,
    descriptors: Descriptors,
    tls: TlsContexts | None = None,
) -> Reception:
    """What the sessions of this connector need. Without `tls` STARTTLS is not offered."""
    peers: Mapping[ServerName, Peer] = {peer.name: peer for peer in settings.peers}
    return Reception(
        name=settings.server.name,
        boundary=settings.server.boundary,
        connector=connector,
        peers=peers,
        acceptor=acceptor,
        desk=desk,
        clock=clock,
        spool_directory=spool_directory,
        budget=budget,
        descriptors=descriptors,
        tls_context=None if tls is None else tls.receiving(connector),
        routes=settings.routes,
        is_advertised=settings.transport.shadow_redundancy_enabled,
    )


COMMAND_SECONDS = 5.0  # for a command to end whose connection was cut

OpenListener = Callable[[Factory, HostPort, Descriptors], Awaitable[Listener]]


class ReceiverServer:
    """The sessions of one receive connector."""

    def __init__(self, reception: Reception, open_listener: OpenListener = Listener.open) -> None:
        self.reception = reception
        self._open_listener = open_listener
        self._listener: Listener | None = None
        self._sessions: set[Connection] = set()

    async def start(self) -> None:
        """Listen. Raises: OSError when the address cannot be had."""
        self._listener = await self._open_listener(self.factory, self.reception.connector.listen, self.reception.descriptors)

    def factory(self) -> asyncio.BufferedProtocol:
        """A protocol for a new connection."""
        return BoundedReading(PeerReceiver(self.reception, asyncio.get_running_loop(), self._sessions))

    @property
    def address(self) -> HostPort:
        """Where it listens really, when `listen` has port 0."""
        assert self._listener is not None
        return self._listener.address

    @property
    def sessions_count(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    def reload(self, connector: ReceiveConnector, routes: Sequence[Route], tls: TlsContexts | None = None) -> None:
        """Follow changed settings and TLS files without closing a session. `listen` stays as it is."""
        self.reception.adopt(connector, routes)
        self.reception.tls_context = None if tls is None else tls.receiving(connector)

    def stop_accepting(self) -> None:
        """New connections are refused from now on. May be called twice."""
        if self._listener is not None:
            self._listener.close()

    async def drain(self, seconds: float) -> None:
        """Take no more mail: idle sessions end with 421 now, the others after their transaction, or cut off after `seconds`.

        Where peers may come it goes on listening until `close`, and their sessions stay: they ask what is done. Whoever comes
        with mail gets 421 to MAIL.
        """
        self.reception.is_draining = True
        if not self.reception.connector.accept_xshadow:
            self.stop_accepting()
        for session in tuple(self._sessions):
            session.end_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while waited_for := [session for session in self._sessions if session.is_waited_for()]:
                    await asyncio.wait({session.gone for session in waited_for}, timeout=LOOK_SECONDS)
        if waited_for := [session for session in self._sessions if session.is_waited_for()]:
            for session in waited_for:
                session.cut()
            await asyncio.wait({session.gone for session in waited_for})

    def dismiss(self) -> None:
        """Say 421 to whoever is still there; `close` then ends it."""
        self.stop_accepting()
        for session in tuple(self._sessions):
            session.hang_up(SHUTTING_DOWN, "shutdown")

    async def close(self) -> None:
        """End everything now. Promises that were being made go on in the node; commands that wait for one come to their end,
        so that what was committed is also told in the tracking log."""
        self.stop_accepting()
        for session in tuple(self._sessions):
            session.cut()
        await self._emptied()
        if running := self.reception.running:
            await asyncio.wait(tuple(running), timeout=COMMAND_SECONDS)

    async def _emptied(self) -> None:
        while self._sessions:
            await asyncio.wait({session.gone for session in self._sessions}, return_when=asyncio.FIRST_COMPLETED)
