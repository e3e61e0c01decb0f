"""The wires between nodes: TCP proxies on loopback, one from each node to each peer, that can be cut, slowed and broken.

A cut wire swallows nothing: what was sent waits, as with TCP in a network that is interrupted, and goes on when the wire
is healed. A wire also tells when a copy's last command or its confirmation passes, so that a fault can come at that instant.
"""

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum, auto

from shadowrelay.model.routing import HostPort

BLOCK = 64 * 1024
CONFIRMED = b"250 2.0.0 Held"
LAST_COMMAND = b"XSHADOW COMMIT"
COPY = b"XSHADOW=HOLD"


class Passing(Enum):
    """What is seen on a wire, before it goes on, and after."""

    COMMIT_ARRIVES = auto()
    COMMIT_PASSED = auto()
    HELD_ARRIVES = auto()
    HELD_PASSED = auto()


class Wire:
    """From one node to one peer. Units: `delay_there` and `delay_back` are seconds a block waits; 0 = not at all."""

    def __init__(self, target: HostPort) -> None:
        self.target = target
        self.delay_there = 0.0
        self.delay_back = 0.0
        self.copies_to_break = 0  # so many copies break off in their middle, with the session
        self.on_passing: Callable[[Passing], None] = lambda passing: None
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()

    async def start(self) -> HostPort:
        """Listen on a free port; its address."""
        self._server = await asyncio.start_server(self._session, "127.0.0.1", 0, limit=BLOCK)
        return HostPort("127.0.0.1", int(self._server.sockets[0].getsockname()[1]))

    async def close(self) -> None:
        """End all sessions."""
        if self._server is not None:
            self._server.close()
        for session in tuple(self._sessions):
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    def cut(self) -> None:
        """Nothing passes any more, in either direction; sessions stay, and new ones wait."""
        self._is_whole.clear()

    def break_sessions(self) -> None:
        """All sessions end with a reset."""
        for session in tuple(self._sessions):
            session.cancel()

    def heal(self) -> None:
        """As it was at the beginning."""
        self.delay_there = self.delay_back = 0.0
        self.copies_to_break = 0
        self._is_whole.set()

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        far_writer: asyncio.StreamWriter | None = None
        pumps: tuple[asyncio.Task[None], ...] = ()
        try:
            await self._is_whole.wait()
            far_reader, far_writer = await asyncio.open_connection(self.target.host, self.target.port, limit=BLOCK)
            pumps = (asyncio.create_task(self._there(reader, far_writer)), asyncio.create_task(self._back(far_reader, writer)))
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # nobody listens there: the caller sees its session end
        except asyncio.CancelledError:
            pass  # broken, or closed: streams would log it
        finally:
            self._sessions.discard(task)
            for pump in pumps:
                pump.cancel()
            for end in (writer, far_writer):
                if end is not None:
                    end.transport.abort()

    async def _there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(BLOCK):
                await self._hold_up(self.delay_there)
                if self.copies_to_break and COPY in data:
                    self.copies_to_break -= 1
                    writer.write(data[: (data.index(COPY) + len(data)) // 2])
                    await writer.drain()
                    return
                is_last = LAST_COMMAND in data
                if is_last:
                    self.on_passing(Passing.COMMIT_ARRIVES)
                writer.write(data)
                await writer.drain()
                if is_last:
                    self.on_passing(Passing.COMMIT_PASSED)

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(BLOCK):
                await self._hold_up(self.delay_back)
                is_confirmation = CONFIRMED in data
                if is_confirmation:
                    self.on_passing(Passing.HELD_ARRIVES)
                writer.write(data)
                await writer.drain()
                if is_confirmation:
                    self.on_passing(Passing.HELD_PASSED)

    async def _hold_up(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        await self._is_whole.wait()
