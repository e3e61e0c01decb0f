"""Serves the API in the node's event loop, with limits on connections and time. The node stops it; signals stay the node's. RFC 9112.

The same API may have two addresses: one without TLS, for this machine, and one with the node's certificate.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from shadowrelay.admin.gate import HEADER_OCTETS_MAX
from shadowrelay.model.client_address import client_ip
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort

CONNECTIONS_MAX = 128  # consoles with their streams, and scrapers. A further connection replaces another
CONNECTIONS_PER_ADDRESS_MAX = 104  # more than gate.REQUESTS_MAX, STREAMS_MAX and SCRAPES_MAX; no address can use all
REQUEST_SECONDS = 10.0  # to receive a whole request, from the connection or the previous response; also for a TLS handshake
HANDSHAKES_MAX = 32  # at once. A further one replaces the oldest
ANSWER_SECONDS = 60.0  # for the response to be sent and read by the client
BACKLOG = 512  # so that a health check still connects while the loop is busy and a client opens many connections
GRACE_SECONDS = 2  # for running requests when the node stops
ACCEPT_AGAIN_SECONDS = 1.0  # after a failure, such as no free descriptor

_log = structlog.get_logger()


class AdminServer:
    """Call `start`, then `stop`. `address` is the bound address (port 0 takes a free one)."""

    def __init__(
        self,
        application: FastAPI,
        listen: HostPort,
        tls: Callable[[], ssl.SSLContext] | None = None,
        peers_in: Callable[[ssl.SSLObject], frozenset[str] | None] | None = None,
    ) -> None:
        """`tls`: called for each connection, so that a new certificate needs no restart. `None`: not encrypted. `peers_in`: which peers the
        client is by its certificate, for `request.state.peers`; None ends the connection. It is asked again every `REQUEST_SECONDS`."""
        self.listen, self._tls, self._peers_in = listen, tls, peers_in
        self._handshakes: dict[asyncio.Task[None], None] = {}  # in order of their beginning
        self._accepting: asyncio.Task[None] | None = None
        self._server = _Uvicorn(
            uvicorn.Config(
                application,
                loop="none",
                http=_Connection,
                h11_max_incomplete_event_size=HEADER_OCTETS_MAX,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",  # the application logs errors itself, once
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=True,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> HostPort:
        """The bound address, after `start`."""
        assert self._socket is not None, "not started"
        host, port = self._socket.getsockname()[:2]
        return HostPort(host, port)

    async def start(self) -> None:
        """Listen. Raises: ConfigurationError if the address cannot be bound."""
        key = "admin.listen" if self._tls is None else "admin.tls_listen"
        try:
            self._socket = await asyncio.to_thread(_bound_socket, self.listen)
        except OSError as exc:
            raise ConfigurationError(
                f"{key}: {self.listen} cannot be bound ({exc.strerror or exc}); choose another address or port, or stop what has it"
            ) from exc
        sockets = [self._socket] if self._tls is None else []
        self._task = asyncio.create_task(self._server.serve(sockets=sockets), name="admin.server")
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait((listening, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            self._task.result()
        if self._tls is not None:
            self._accepting = asyncio.create_task(self._accept(self._socket, self._tls), name="admin.accept")
        _log.info("admin.listening", address=str(self.address), tls=self._tls is not None)

    async def _accept(self, listening: socket.socket, tls: Callable[[], ssl.SSLContext]) -> None:
        """uvicorn could listen with TLS itself, but without a limit on unfinished handshakes, and with one certificate for ever."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                _log.warning("admin.accept_failed", reason=error.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                next(iter(self._handshakes)).cancel()
            handshake = asyncio.create_task(self._shake_hands(accepted, tls()), name="admin.handshake")
            self._handshakes[handshake] = None
            handshake.add_done_callback(self._handshakes.pop)
            await asyncio.sleep(0)  # it owns the socket as soon as it runs

    async def _shake_hands(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        def protocol() -> _Connection:
            connection = _Connection(self._server.config, self._server.server_state, self._server.lifespan.state)
            connection.peers_in = self._peers_in
            return connection

        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, accepted, ssl=tls, ssl_handshake_timeout=REQUEST_SECONDS)
        except OSError:  # such as ssl.SSLError, and ConnectionAbortedError after the time; the client knows
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    def reread(self, peers_in: Callable[[ssl.SSLObject], frozenset[str] | None]) -> None:
        """Certificates count by other rules: open connections end whose clients have one that counts no more, or no more for a name, in the
        middle of an answer, too. `peers_in` as for the server."""
        for connection in tuple(self._server.server_state.connections):
            if isinstance(connection, _Connection):
                connection.reread(peers_in)

    async def stop(self) -> None:
        """Finish running requests, then close. Does nothing if never started."""
        if self._task is None:
            return
        running = [*self._handshakes, *([] if self._accepting is None else [self._accepting])]
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._server.should_exit = True
        try:
            await self._task
        finally:
            self._task = None
            if self._socket is not None:
                self._socket.close()


class _Connection(H11Protocol):
    """A connection with a time limit for each request, and one request at a time. uvicorn alone waits for ever for an unfinished
    request, counts it, and processes any number of pipelined requests."""

    peers_in: Callable[[ssl.SSLObject], frozenset[str] | None] | None = None
    _session: ssl.SSLObject | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection; if there are too many, close another one."""
        super().connection_made(transport)
        self.client = None if self.client is None else (client_ip(self.client), self.client[1])
        session = self._session = transport.get_extra_info("ssl_object")
        peers = frozenset() if session is None or self.peers_in is None else self.peers_in(session)
        self.app_state = {**self.app_state, "peers": peers or frozenset()}
        self._request: object = None
        self._since = self.loop.time()
        self._timer = self.loop.call_later(REQUEST_SECONDS, self._look)
        self._is_ended = peers is None
        if self._is_ended:
            transport.abort()
            return
        self._make_room()

    def reread(self, peers_in: Callable[[ssl.SSLObject], frozenset[str] | None]) -> None:
        """See `AdminServer`. A client that has lost a name has lost what it is reading; further names count for what it asks next."""
        if self._session is None or self._is_ended:
            return
        if (peers := peers_in(self._session)) is None or self.app_state["peers"] - peers:  # what it reads now may have no end
            self._is_ended = True
            self.transport.abort()
            return
        self.app_state = {**self.app_state, "peers": peers}

    def _make_room(self) -> None:
        """Close one other connection; never this one, which may be a health check. Prefer one that waits for a request, then the
        address with the most connections, then the oldest."""
        others = [other for other in self.connections if isinstance(other, _Connection) and other is not self and not other._is_ended]
        of_address = [other for other in others if other.address == self.address]
        if len(of_address) >= CONNECTIONS_PER_ADDRESS_MAX:
            others = of_address
        elif len(others) < CONNECTIONS_MAX:
            return
        counts = Counter(other.address for other in others)
        oldest = min(others, key=lambda other: (not other.is_waiting, -counts[other.address], other.waiting_since))
        oldest._is_ended = True
        oldest.transport.abort()

    @property
    def address(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else ""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a request."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_stream(self) -> bool:
        """Whether it has a response that may last: who does not read it is dropped there."""
        return not self.is_waiting and bool(self.cycle.scope.get("state", {}).get("is_stream"))

    @property
    def waiting_since(self) -> float:
        """Loop time of the connection, or of the last request or response."""
        return self._since

    def data_received(self, data: bytes) -> None:
        """Only a whole request counts as progress. If the next request arrives before the response to this one, it is not answered,
        and the connection closes: RFC 9112 9.3.2 allows it."""
        if self._is_ended:
            return
        super().data_received(data)
        self._note_request()
        if self.flow.read_paused and not self.is_waiting and not self.cycle.more_body and self.cycle.keep_alive:
            self.cycle.keep_alive = False
            self.headers.append(CLOSE_HEADER)  # as if requested: uvicorn then announces it in a response that has not started

    def on_response_complete(self) -> None:
        """Start the time limit for the next request."""
        super().on_response_complete()
        self._since = self.loop.time()
        self._request = self.cycle

    def _note_request(self) -> None:
        if self.cycle is not self._request:
            self._request = self.cycle
            self._since = self.loop.time()

    def _look(self) -> None:
        if self.peers_in is not None:
            self.reread(self.peers_in)  # time may have ended its certificate
        ends_at = self._since + (REQUEST_SECONDS if self.is_waiting else ANSWER_SECONDS)
        if self.is_stream:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self._look)
        elif ends_at <= self.loop.time():
            self.transport.abort()
        else:
            self._timer = self.loop.call_at(min(ends_at, self.loop.time() + REQUEST_SECONDS), self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._timer.cancel()
        super().connection_lost(exc)


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell `start` that connections are accepted."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signal handlers alone: SIGTERM drains the whole node."""
        yield


def _bound_socket(listen: HostPort) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
