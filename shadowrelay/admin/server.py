"""Serves the API inside the node's own event loop. The node decides when to stop; no signal handler is touched."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import structlog
import uvicorn
from fastapi import FastAPI

from shadowrelay.model.errors import ConfigurationError
from shadowrelay.model.routing import HostPort

CONNECTIONS_MAX = 64  # more are answered 503; a console and a scraper need a handful
GRACE_SECONDS = 2  # for requests that run when the node stops

log = structlog.get_logger("shadowrelay.admin")


class AdminServer:
    """`start`, then `stop`. `address` is where it really listens (port 0 takes a free one)."""

    def __init__(self, application: FastAPI, listen: HostPort) -> None:
        self._listen = listen
        self._server = _Uvicorn(
            uvicorn.Config(
                application,
                loop="none",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",  # what fails is logged by the application, once
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=True,
                limit_concurrency=CONNECTIONS_MAX,
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
        log.info("admin.listening", address=str(self.address))

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
        bound.listen(CONNECTIONS_MAX)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
