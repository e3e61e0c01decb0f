"""The network: connections of streams that arrive late, are held while a pair is cut, and break. All decided by one rng.

Like TCP: nothing is lost or changed on a connection that lives. What is sent into a cut waits, and comes when the cut is
healed, even much later. Who loses a connection without an answer does not know what arrived.
"""

import asyncio
import contextvars
import random
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from async_solipsism.socket import Socket

from shadowrelay.model.routing import HostPort
from tests.simulation.loop import PROCESS, Process, WorldLoop

CAPACITY_OCTETS = 256 * 1024
EOF, RESET = b"", None
CONNECTIONS_MIN = 50


class Stream:
    """One direction of a connection. `eof` and `is_reset` are what the reader sees."""

    def __init__(self, network: "Network", source: "Endpoint", target: "Endpoint") -> None:
        self._network = network
        self.source, self.target = source, target
        self._buffer = bytearray()
        self._flight: deque[bytes | None] = deque()
        self._held: deque[bytes | None] = deque()
        self._octets = 0  # written and not yet read
        self._arrives_last = 0.0
        self._eof = self._is_ended = False
        self.is_lost = False  # half open: nothing passes any more, and nobody says so
        self.connection: Connection
        self.on_read: list[tuple[int, Callable[[], None]]] = []  # when so many octets in all were read
        self.written_count = self._read_count = 0

    # the writer's side

    def write(self, data: Any) -> int:
        if self._is_ended or self.source.is_reset:
            raise BrokenPipeError
        room = CAPACITY_OCTETS - self._octets
        if room <= 0:
            raise BlockingIOError
        chunk = bytes(data[:room])
        self._octets += len(chunk)
        self.written_count += len(chunk)
        self._send(chunk)
        return len(chunk)

    def write_eof(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._send(EOF)

    def reset(self) -> None:
        """The writer's process is gone, and its kernel says so."""
        self._is_ended = True
        self._send(RESET)

    def write_ready(self) -> bool:
        return not self.source.is_paused and (self._octets < CAPACITY_OCTETS or self.source.is_reset)

    def _send(self, chunk: bytes | None) -> None:
        now = self._network.loop.world_time()
        self._arrives_last = max(self._arrives_last, now + self._network.delay(self.source.host, self.target.host))
        self._flight.append(chunk)
        self._network.later(self._arrives_last - now, self._arrive)

    # on the way

    def _arrive(self) -> None:
        chunk = self._flight.popleft()
        if self._held or self.is_lost or not self._network.passes(self.source.host, self.target.host):
            self._held.append(chunk)
        else:
            self._deliver(chunk)

    def healed(self) -> None:
        """What was held comes now."""
        while self._held and not self.is_lost and self._network.passes(self.source.host, self.target.host):
            self._deliver(self._held.popleft())

    def _deliver(self, chunk: bytes | None) -> None:
        self._network.touch(self.target)
        if chunk is RESET or self.target.is_gone:
            if chunk is RESET:
                self.target.is_reset = True
            elif chunk:
                self.connection.other(self).reset()  # nobody is there: the writer is told so
        elif chunk == EOF:
            self._eof = True
        else:
            self._buffer += chunk

    # the reader's side

    def read(self, size: int = -1) -> bytes:
        if self._buffer:
            data = bytes(self._buffer[: size if size >= 0 else None])
            del self._buffer[: len(data)]
            self._octets -= len(data)
            self._read_count += len(data)
            while self.on_read and self.on_read[0][0] <= self._read_count:
                self.on_read.pop(0)[1]()
            return data
        if self.target.is_reset:
            raise ConnectionResetError
        if self._eof:
            return b""
        raise BlockingIOError

    def read_ready(self) -> bool:
        return not self.target.is_paused and bool(self._buffer or self._eof or self.target.is_reset)


class Endpoint:
    """One end of a connection: which host, which process, and what has become of it."""

    def __init__(self, host: str, process: Process | None) -> None:
        self.host = host
        self.process = process
        self.socket: Any = None
        self.is_reset = False
        self.is_closed = False

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.process.is_paused

    @property
    def is_gone(self) -> bool:
        return self.is_closed or (self.process is not None and self.process.is_dead)


class _Socket(Socket):  # type: ignore[misc]
    family = socket.AF_INET

    def __init__(self, reads: Stream, writes: Stream, own: tuple[str, int], peer: tuple[str, int]) -> None:
        super().__init__(reads, writes)
        self._sockname, self._peername = own, peer
        writes.source.socket = self

    def shutdown(self, flag: int) -> None:
        self._check_closed()
        if flag in (socket.SHUT_WR, socket.SHUT_RDWR):
            self._write_queue.write_eof()

    def close(self) -> None:
        if self._write_queue is not None:
            self._write_queue.write_eof()
            self._write_queue.source.is_closed = True
        self._read_queue = self._write_queue = None


class Connection:
    """Two streams."""

    def __init__(self, network: "Network", one: Endpoint, two: Endpoint) -> None:
        self.ends = (one, two)
        self.streams = (Stream(network, one, two), Stream(network, two, one))
        for stream in self.streams:
            stream.connection = self

    def other(self, stream: Stream) -> Stream:
        return self.streams[1] if stream is self.streams[0] else self.streams[0]

    @property
    def is_over(self) -> bool:
        return all(end.is_gone or end.is_reset for end in self.ends)

    def break_now(self, network: "Network") -> None:
        """Both ends lose it."""
        for end in self.ends:
            end.is_reset = True
            network.touch(end)


class Network:
    """Hosts by address. `blocked` has the directed pairs that nothing passes; `slow` what they take longer."""

    def __init__(self, loop: WorldLoop, chance: random.Random) -> None:
        self.loop = loop
        self._chance = chance
        self._listeners: dict[str, tuple[Process | None, Callable[[], Any]]] = {}
        self.connections: list[Connection] = []  # also some that are over
        self._connections_max = CONNECTIONS_MIN
        self.blocked: set[tuple[str, str]] = set()
        self.silent: set[str] = set()  # hosts without power: nobody there says that nobody is there
        self.slow: dict[tuple[str, str], float] = {}
        self._port = 1024
        self._context = contextvars.copy_context()  # of whoever is no process
        loop.listen = self._listen

    def later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """In the world's own time and context, whoever asks."""
        token = PROCESS.set(None)
        try:
            self.loop.call_later(max(seconds, 0.0), call, *arguments)
        finally:
            PROCESS.reset(token)

    def touch(self, end: Endpoint) -> None:
        if end.socket is not None:
            self.loop.touch(end.socket)

    def goes_on(self, process: Process) -> None:
        """Its pause is over: it sees what came meanwhile."""
        self.loop.go_on(process)
        for connection in self.connections:
            for end in connection.ends:
                if end.process is process:
                    self.touch(end)

    def passes(self, source: str, target: str) -> bool:
        return (source, target) not in self.blocked and source not in self.silent and target not in self.silent

    def delay(self, source: str, target: str) -> float:
        usual = 0.0005 + self._chance.expovariate(1 / 0.002)
        if self._chance.random() < 0.005:
            usual += self._chance.uniform(0.2, 1.0)  # a packet was lost and sent again
        return usual + self.slow.get((source, target), 0.0)

    # servers

    def serve(self, host: str, process: Process | None, factory: Callable[[], Any]) -> None:
        self._listeners[host] = (process, factory)

    def stop_serving(self, host: str) -> None:
        self._listeners.pop(host, None)

    def _listen(self, factory: Callable[[], Any], host: str, port: int) -> "_Server":
        process = PROCESS.get()
        assert process is not None
        self.serve(process.host, process, factory)
        return _Server(self, process.host, port)

    # clients

    async def dial(self, source: str, to: HostPort, process: Process | None = None) -> Any:
        """A connected socket, as `Opening.dial`. Waits while nothing passes; raises ConnectionRefusedError."""
        target = to.host
        while True:
            await asyncio.sleep(self.delay(source, target) + self.delay(target, source))
            if self.passes(source, target) and self.passes(target, source):
                break
            await asyncio.sleep(self._chance.uniform(0.3, 1.5))
        if target not in self._listeners:
            raise ConnectionRefusedError(f"nobody listens on {to}")
        owner, factory = self._listeners[target]
        self._port += 1
        ends = Endpoint(source, process), Endpoint(target, owner)
        connection = Connection(self, *ends)
        self.connections.append(connection)
        if len(self.connections) > self._connections_max:  # those that are over are looked for now and then
            self.connections = list(self.living())
            self._connections_max = CONNECTIONS_MIN + 2 * len(self.connections)
        there, back = connection.streams
        own, peer = (source, self._port), (target, to.port)
        server_socket = _Socket(there, back, peer, own)
        context = self._context if owner is None else owner.context
        self.loop.call_soon(self._accepted, server_socket, factory, own, context=context)
        return _Socket(back, there, own, peer)

    def _accepted(self, server_socket: _Socket, factory: Callable[[], Any], peer: tuple[str, int]) -> None:
        process = PROCESS.get()
        if process is not None and process.is_dead:
            return
        self.loop._make_socket_transport(server_socket, factory(), extra={"peername": peer})

    # faults

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        self.blocked.add((one, other))
        if both:
            self.blocked.add((other, one))

    def heal(self, one: str, other: str) -> None:
        self.blocked -= {(one, other), (other, one)}
        self.flush()

    def heal_all(self) -> None:
        self.blocked.clear()
        self.slow.clear()
        self.flush()

    def flush(self) -> None:
        for connection in self.connections:
            for stream in connection.streams:
                stream.healed()

    def died(self, process: Process) -> None:
        """Its kernel ends its connections; who is cut off hears of that later, or never."""
        self.stop_serving(process.host)
        for connection in self.connections:
            for stream in connection.streams:
                if stream.source.process is process and not stream.source.is_closed:
                    stream.reset()

    def living(self) -> Iterator[Connection]:
        return (connection for connection in self.connections if not connection.is_over)


class _Server:
    """What asyncio.Server is to a receive connector."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self._network, self._host = network, host
        self.sockets = (self,)
        self._address = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        self._network.stop_serving(self._host)
