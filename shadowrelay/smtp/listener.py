"""A receive connector: a listening socket in the node's loop, and its sessions until drain and close. docs/operations.md "Signals".

The loops' own servers fail when the process runs out of descriptors: uvloop accepts waiting connections and closes them without a
reply, and closes the listening socket itself if another thread takes the descriptor that it keeps in reserve; asyncio logs a
traceback. Here those connections wait in the kernel's backlog, and are accepted a little later.

Sockets that share a port (`reuse_port`) have a queue each. If one is closed, the kernel resets the connections in its queue, and those
whose handshake is not over (unless net.ipv4.tcp_migrate_req is set, since Linux 5.14, by root). So it is left in two steps: a filter
drops the SYN of whoever comes new, who repeats it after a second, when the socket is gone, and is another node's client then; meanwhile
handshakes end and all is accepted.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
import struct
from array import array
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import structlog

from shadowrelay.model.client_address import client_ip
from shadowrelay.model.client_minute import ClientView
from shadowrelay.model.ids import ServerName
from shadowrelay.model.peers import Incarnation
from shadowrelay.model.receive_settings import ReceiveConnector
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Peer, Route
from shadowrelay.smtp.client_limits import clients_of
from shadowrelay.smtp.client_session import reason_of
from shadowrelay.smtp.connection import BoundedReading, Connection, reply_line
from shadowrelay.smtp.limits import (
    HANDSHAKE_SECONDS,
    HANDSHAKES_MAX,
    NOT_ACTIVE,
    OTHER_PROCESS,
    SHUTTING_DOWN,
    TOO_MANY_SESSIONS,
    Descriptors,
)
from shadowrelay.smtp.receiver import Receiver
from shadowrelay.smtp.reception import Reception
from shadowrelay.smtp.recipient_sources import RecipientCheck
from shadowrelay.smtp.tls import TlsContexts

BACKLOG = 1_024  # connections that the kernel queues while the loop is busy
ACCEPTED_AT_ONCE_MAX = 64  # then open sessions run
EARLY_OCTETS_MAX = 4_096  # of a client that is cut off
PAUSE_SECONDS = 0.25  # after accept failed for lack of descriptors or kernel memory
HANDSHAKES_AT_ONCE_MAX = 4 * HANDSHAKES_MAX  # of strangers and again of ours, with implicit TLS: a further one ends the oldest
LEAVE_SECONDS = 0.9  # less than a second, after which a SYN without an answer is repeated first. RFC 6298 2
SO_ATTACH_FILTER = 26  # Python has no name for it
NO_SYN = (  # classic BPF: drop segments with the flag SYN. A filter of a TCP socket sees them from the TCP header on
    (0x30, 0, 0, 13),  # load the octet with the flags
    (0x45, 0, 1, 0x02),  # SYN? else jump over the next one
    (0x06, 0, 0, 0),  # drop it
    (0x06, 0, 0, 0xFFFFFFFF),  # take all of it
)
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Factory = Callable[[], asyncio.BaseProtocol]

_log = structlog.get_logger()


class Listener:
    """Listens from `open` to `close`."""

    def __init__(self, factory: Factory, descriptors: Descriptors) -> None:
        self._factory = factory
        self._descriptors = descriptors
        self._loop = asyncio.get_running_loop()
        self.tls: Callable[[], ssl.SSLContext | None] = lambda: None  # from the first octet; asked for each connection
        self.tls_failed: Callable[[str, Exception], None] = lambda address, error: None
        self.is_ours: Callable[[str], bool] = lambda address: False  # whose handshakes no stranger's can end
        self._sockets: list[socket.socket] = []
        self._connecting: tuple[dict[asyncio.Task[Any], None], ...] = ({}, {})  # of strangers, and of ours, in order of their beginning

    @classmethod
    async def open(cls, factory: Factory, listen: HostPort, descriptors: Descriptors, is_shared: bool = False) -> "Listener":
        """Listen on every address of the host; `is_shared`: so may others. Raises: OSError if one cannot be bound."""
        listener = cls(factory, descriptors)
        found = await listener._loop.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                bound = _bound(family, (str(address[0]), int(address[1])), is_shared=is_shared)
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
        """The bound address; useful if the port was 0."""
        host, port = self._sockets[0].getsockname()[:2]
        return HostPort(host, port)

    @property
    def addresses(self) -> list[HostPort]:
        """All bound addresses, until `close`."""
        found = [HostPort(*bound.getsockname()[:2]) for bound in self._sockets if bound.fileno() >= 0]
        return found + [HostPort("0.0.0.0", bound.getsockname()[1]) for bound in self._sockets if bound.fileno() >= 0 and _is_dual(bound)]

    def close(self) -> None:
        """Stop accepting. May be called twice."""
        for bound in self._sockets:
            if bound.fileno() >= 0:
                self._loop.remove_reader(bound)
                bound.close()

    async def leave(self) -> None:
        """Leave a shared port: stop accepting without resetting a connection, as long as others listen there."""
        try:
            for bound in self._sockets:
                _take_no_syn(bound)
            await asyncio.sleep(LEAVE_SECONDS)
        finally:
            for bound in self._sockets:
                while bound.fileno() >= 0 and self._accept(bound):
                    pass
            self.close()

    def _listen(self, bound: socket.socket) -> None:
        if bound.fileno() >= 0:
            self._loop.add_reader(bound, self._accept, bound)

    def _accept(self, bound: socket.socket) -> bool:
        """Whether more may wait."""
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            try:
                connection, _ = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                self._descriptors.refused_count += 1
                self._loop.remove_reader(bound)
                self._loop.call_later(PAUSE_SECONDS, self._listen, bound)
                return False
            self._take(connection)
        return True

    def _take(self, connection: socket.socket) -> None:
        if self._descriptors.cuts_off_session(connection.fileno()):
            self._cut_off(connection)
            return
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = self.tls()
        address = "" if context is None else client_ip(_peer_of(connection))
        connecting = self._connecting[context is not None and self.is_ours(address)]
        if len(connecting) >= HANDSHAKES_AT_ONCE_MAX:  # only TLS takes longer than a moment, and an honest client less than a second
            self._descriptors.refused_count += 1
            oldest = next(iter(connecting))
            del connecting[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._connected(connection, context, address))
        connecting[task] = None
        task.add_done_callback(lambda task: connecting.pop(task, None))

    def _cut_off(self, connection: socket.socket) -> None:
        """There is no room for a session: say so if that costs no turn, and close. Where TLS comes first there is nothing to say it in."""
        with contextlib.suppress(OSError):
            connection.setblocking(False)
            if self.tls() is None:
                connection.send(reply_line(TOO_MANY_SESSIONS))  # an empty buffer takes it
                connection.shutdown(socket.SHUT_WR)
                connection.recv(EARLY_OCTETS_MAX)  # what is not read resets the connection
        connection.close()

    async def _connected(self, connection: socket.socket, context: ssl.SSLContext | None, address: str) -> None:
        seconds = None if context is None else HANDSHAKE_SECONDS
        try:
            await self._loop.connect_accepted_socket(self._factory, connection, ssl=context, ssl_handshake_timeout=seconds)
        except OSError as error:
            connection.close()  # the client has disconnected already
            if context is not None:
                self.tls_failed(address, error)
        except asyncio.CancelledError:  # it gave way to another handshake
            connection.close()
            raise


def _bound(family: int, address: tuple[str, int], *, is_shared: bool) -> socket.socket:
    """`[::]` takes clients of IPv4, too, unless somebody else has that port there: another connector on 0.0.0.0. Raises: OSError."""
    if family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6():
        try:
            return socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=is_shared, dualstack_ipv6=True)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=is_shared)


def _is_dual(bound: socket.socket) -> bool:
    """Whether it takes clients of both families."""
    return bound.family == socket.AF_INET6 and not bound.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)


def _peer_of(connection: socket.socket) -> object:
    try:
        return connection.getpeername()
    except OSError:
        return None


def _take_no_syn(bound: socket.socket) -> None:
    program = array("B", b"".join(struct.pack("=HBBI", *instruction) for instruction in NO_SYN))
    with contextlib.suppress(OSError):  # not Linux: then it is closed as it is
        bound.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", len(NO_SYN), program.buffer_info()[0]))


LOOK_SECONDS = 0.1


COMMAND_SECONDS = 5.0  # for a command to finish after its connection was closed
GONE_SECONDS = 5.0  # for a connection that was cut to be reported as lost, which takes a moment

OpenListener = Callable[[Factory, HostPort, Descriptors, bool], Awaitable[Listener]]


class ReceiverServer:
    """The sessions of one receive connector."""

    def __init__(self, reception: Reception, open_listener: OpenListener = Listener.open) -> None:
        self.reception = reception
        self._open_listener = open_listener
        self._listener: Listener | None = None
        self._sessions: dict[Connection, None] = {}  # in the order in which they began

    async def start(self) -> None:
        """Listen. Raises: OSError if the address cannot be bound."""
        connector = self.reception.connector
        self._listener = await self._open_listener(self.factory, connector.listen, self.reception.descriptors, connector.reuse_port)
        self._listener.tls, self._listener.tls_failed = self._tls_first, self._note_failure
        self._listener.is_ours = self._is_ours

    def _tls_first(self) -> ssl.SSLContext | None:
        """For a new connection. The client has not said yet whether it is a peer, and is asked for no certificate."""
        reception = self.reception
        return reception.tls.receiving(is_peer=False) if reception.connector.implicit_tls and reception.tls is not None else None

    def _is_ours(self, address: str) -> bool:
        """Known by the address alone: of a peer, or of a client that may relay."""
        return self.reception.is_of_peer(address) or self.reception.rights.may_relay(address)

    def _note_failure(self, address: str, error: Exception) -> None:
        _log.warning("session.tls_failed", connector=self.reception.connector.name, client=address, client_name="", reason=reason_of(error))

    def factory(self) -> asyncio.BufferedProtocol:
        """A protocol for a new connection."""
        return BoundedReading(Receiver(self.reception, asyncio.get_running_loop(), self._sessions))

    @property
    def address(self) -> HostPort:
        """The bound address; useful if `listen` has port 0."""
        assert self._listener is not None
        return self._listener.address

    @property
    def addresses(self) -> list[HostPort]:
        """All bound addresses; empty if it does not listen."""
        return [] if self._listener is None else self._listener.addresses

    @property
    def is_listening(self) -> bool:
        """Not while other nodes have the port that it shares with them."""
        return self._listener is not None

    async def clients(self, limit: int) -> list[ClientView]:
        """Clients of this connector, those who were refused most first."""
        reception, now = self.reception, asyncio.get_running_loop().time()
        minutes, sessions = reception.clients.minutes.all(now), reception.count.by_client
        return await asyncio.to_thread(clients_of, reception.connector.name, minutes, sessions, limit, now)

    @property
    def sessions_count(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    def reload(
        self,
        connector: ReceiveConnector,
        routes: Sequence[Route],
        tls: TlsContexts | None = None,
        recipients: RecipientCheck | None = None,
    ) -> None:
        """Apply changed settings and TLS files. No session is closed, but those of peers whose certificates count no more. `listen` cannot
        change."""
        self.reception.adopt(connector, routes)
        self.reception.recipients = recipients
        before, self.reception.tls = self.reception.tls, tls
        if before is not None and tls is not None and before.trust != tls.trust:
            for session in tuple(self._sessions):
                session.reread(tls.trust, before.trust)

    def stop_accepting(self) -> None:
        """New connections are refused from now on. May be called twice."""
        if self._listener is not None:
            self._listener.close()

    async def leave(self) -> None:
        """Leave a port that other nodes share, before mail is refused: then new clients are theirs. Of any other port this does nothing."""
        if self.reception.connector.reuse_port and self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.leave()

    async def join(self) -> None:
        """Listen again after `leave`, if mail is still welcome then. Raises: OSError."""
        if self._listener is None:
            await self.start()
            if self.reception.closed_with is not None:
                await self.leave()

    async def move(self, connector: ReceiveConnector) -> None:
        """Listen where this says, and then no longer where it did; open sessions stay. Raises: OSError, and it listens as before."""
        if self._listener is None:  # it left a shared port, because no mail is taken: `join` listens there
            self.reception.connector = connector
            return
        before, was, self._listener = self._listener, self.reception.connector, None
        self.reception.connector = connector
        try:
            try:
                await self.start()
            except OSError:
                await before.leave()  # the new address may contain the old one
                try:
                    await self.start()
                except OSError:
                    self.reception.connector = was
                    await self.start()
                    raise
                return
        except BaseException:
            self.reception.connector = was
            raise
        await before.leave()

    async def shut(self) -> None:
        """This connector is to be no more: its address is free now, and open sessions stay until `retire`."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.leave()

    async def retire(self, seconds: float) -> None:
        """Transactions may end, and then all sessions do, those of peers too."""
        await self.refuse_mail(seconds)
        await self.close()

    def adopt_peers(self, peers: Mapping[ServerName, Peer], linked: Collection[ServerName]) -> None:
        """Who is a peer now. The sessions of others end."""
        reception = self.reception
        reception.peers, reception.linked = peers, linked
        reception.peer_addresses.update(peer.address.host for peer in peers.values())
        for session in tuple(self._sessions):
            if session.state.peer and session.state.peer not in peers:
                session.hang_up(SHUTTING_DOWN, "no peer any more")

    async def drain(self, seconds: float) -> None:
        """Accept no more mail: idle sessions end with 421 now, the others after their transaction, or are closed after `seconds`.

        A connector for peers listens until `close`, and sessions of peers stay, so that peers can fetch discard notifications.
        Clients get 421 to MAIL.
        """
        self.reception.closed_with = SHUTTING_DOWN
        if not self.reception.connector.accept_xshadow:
            self.stop_accepting()
        for session in tuple(self._sessions):
            session.end_when_idle()
        await self._end_transactions(seconds)
        if waited_for := [session for session in self._sessions if session.is_waited_for()]:
            await self._cut(lambda: [session for session in waited_for if not session.gone.done()])

    async def refuse_mail(self, seconds: float) -> None:
        """Accept no mail until `take_mail`, but keep listening, so that clients get a reply: idle sessions end with 421 now, the others
        after their transaction. After `seconds`, sessions with incomplete content are closed."""
        self.reception.closed_with = NOT_ACTIVE
        for session in tuple(self._sessions):
            session.end_when_idle()
        await self._end_transactions(seconds)
        for session in tuple(self._sessions):
            if session.is_waited_for() and not session.is_deciding:
                session.cut("drain")

    def take_mail(self) -> None:
        """Mail is welcome again."""
        self.reception.closed_with = None

    def fall_silent(self, reply: Reply) -> None:
        """This node cannot commit: as `refuse_mail`, but the sessions of peers end at once, also those that wait for a commit, because each
        reply in them would be a proof of life."""
        self.reception.closed_with = reply
        for session in tuple(self._sessions):
            if session.state.peer:
                session.hang_up(reply, "cannot commit")
            else:
                session.end_when_idle()

    def end_others(self, server: ServerName, incarnation: Incarnation) -> None:
        """End the sessions of all other processes of this peer: another one has its name."""
        for session in tuple(self._sessions):
            if session.is_with_other(server, incarnation):
                session.hang_up(OTHER_PROCESS, "another process has its name")

    @property
    def waited_for_count(self) -> int:
        """Sessions that have a transaction to end."""
        return sum(session.is_waited_for() for session in self._sessions)

    async def _end_transactions(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while waited_for := [session for session in self._sessions if session.is_waited_for()]:
                    await asyncio.wait({session.gone for session in waited_for}, timeout=LOOK_SECONDS)

    def dismiss(self) -> None:
        """Send 421 to all remaining sessions; `close` then ends them."""
        self.stop_accepting()
        for session in tuple(self._sessions):
            session.hang_up(SHUTTING_DOWN, "shutdown")

    async def close(self) -> None:
        """End everything now. Promises in progress continue in the node; commands that wait for one finish, so that committed
        messages also appear in the tracking log."""
        self.stop_accepting()
        self.reception.is_closed = True  # a connection that was accepted a moment ago has no session yet
        await self._cut(lambda: list(self._sessions))
        if running := self.reception.running:
            await asyncio.wait(tuple(running), timeout=COMMAND_SECONDS)

    async def _cut(self, left: Callable[[], list[Connection]]) -> None:
        """Cut these, and wait until they are gone. An event loop that does not report the end of one must not keep the node from ending."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GONE_SECONDS):
                while sessions := left():
                    for session in sessions:
                        session.cut()
                    await asyncio.wait({session.gone for session in sessions}, return_when=asyncio.FIRST_COMPLETED)
        for session in left():
            state = session.state
            _log.error("session.not_closed", connector=self.reception.connector.name, client=state.address, reason=state.reason)
