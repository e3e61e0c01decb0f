"""Serves the API inside the node's own event loop. The node decides when to stop; no signal handler is touched."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Iterator

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from shadowrelay.admin.gate import HEADER_OCTETS_MAX
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort

CONNECTIONS_MAX = 64  # a console and a scraper need a handful. The next one takes the place of another
CONNECTIONS_PER_ADDRESS_MAX = 48  # more than gate.REQUESTS_MAX and SCRAPES_MAX; no address has all
REQUEST_SECONDS = 10.0  # for a whole request, from the connection or from the answer before
ANSWER_SECONDS = 60.0  # for its answer, read by the client
BACKLOG = 512  # while the loop is busy, and somebody opens many connections, a health check still gets in
GRACE_SECONDS = 2  # for requests that run when the node stops

_log = structlog.get_logger()


class AdminServer:
    """`start`, then `stop`. `address` is where it really listens (port 0 takes a free one)."""

    def __init__(self, application: FastAPI, listen: HostPort) -> None:
        self._listen = listen
        self._server = _Uvicorn(
            uvicorn.Config(
                application,
                loop="none",
                http=_Connection,
                h11_max_incomplete_event_size=HEADER_OCTETS_MAX,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",  # what fails is logged by the application, once
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
        """After `start`."""
        assert self._socket is not None, "not started"
        host, port = self._socket.getsockname()[:2]
        return HostPort(host, port)

    async def start(self) -> None:
        """Listen. Raises: ConfigurationError when the address cannot be had."""
        try:
            self._socket = await asyncio.to_thread(_bound_socket, self._listen)
        except OSError as exc:
            raise ConfigurationError(
                f"admin.listen: {self._listen} cannot be had ({exc.strerror or exc}); choose another address or port, or stop what has it"
            ) from exc
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="admin.server")
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait((listening, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            self._task.result()
        _log.info("admin.listening", address=str(self.address))

    async def stop(self) -> None:
        """Answer what is being asked, then close. Does nothing when never started."""
        if self._task is None:
            return
        self._server.should_exit = True
        try:
            await self._task
        finally:
            self._task = None
            if self._socket is not None:
                self._socket.close()


class _Connection(H11Protocol):
    """A connection that has a time for each request, and one request at a time. uvicorn waits for ever for one that is not
    finished, counts it, and works through any number that were sent in advance."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, in place of another when there are too many."""
        super().connection_made(transport)
        self._request: object = None
        self._since = self.loop.time()
        self._timer = self.loop.call_later(REQUEST_SECONDS, self._look)
        self._is_ended = False
        self._make_room()

    def _make_room(self) -> None:
        """Never this one: it may be a health check. Of the others one that waits for a request, if there is any; of the address
        that has the most; the oldest."""
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
        """Of the client."""
        return self.client[0] if self.client else ""

    @property
    def is_waiting(self) -> bool:
        """For a request."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def waiting_since(self) -> float:
        """The loop's time of the connection, or of the last request or answer."""
        return self._since

    def data_received(self, data: bytes) -> None:
        """Only a whole request counts as progress. Where the next one is there before the answer to this one, it gets none, and the
        connection ends: RFC 9112 9.3.2 allows it."""
        super().data_received(data)
        self._note_request()
        if self.flow.read_paused and not self.is_waiting and not self.cycle.more_body and self.cycle.keep_alive:
            self.cycle.keep_alive = False
            self.headers.append(CLOSE_HEADER)  # as if it had asked for that: uvicorn says so in its answer, if that has not begun

    def on_response_complete(self) -> None:
        """The time for the next request begins."""
        super().on_response_complete()
        self._since = self.loop.time()
        self._request = self.cycle

    def _note_request(self) -> None:
        if self.cycle is not self._request:
            self._request = self.cycle
            self._since = self.loop.time()

    def _look(self) -> None:
        ends_at = self._since + (REQUEST_SECONDS if self.is_waiting else ANSWER_SECONDS)
        if ends_at <= self.loop.time():
            self.transport.abort()
        else:
            self._timer = self.loop.call_at(min(ends_at, self.loop.time() + REQUEST_SECONDS), self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._timer.cancel()
        super().connection_lost(exc)


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tells `start` that connections are taken."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM drains the whole node, not this server."""
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
