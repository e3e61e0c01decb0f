"""Accepting connections, on sockets of our own.

The loops' own way is not used, because of what it does when the process has no descriptor left: uvloop accepts what waits and
closes it without a word, and closes the listening socket itself when another thread took the descriptor that it keeps for
that; asyncio writes a traceback. Here those connections wait in the kernel's backlog, and are accepted a little later.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Any

from shadowrelay.model.routing import HostPort
from shadowrelay.smtp.limits import Descriptors

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
