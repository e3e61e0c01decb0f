"""A filter that answers /checkv2 as it is told, on loopback."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

NO_ACTION: dict[str, Any] = {"action": "no action", "score": 0.1}


@dataclass
class PlayedRspamd:
    """`answer` is the reply: a value for JSON, octets as they are, or what makes one of them. `asked`: headers and contents."""

    answer: Any = field(default_factory=lambda: NO_ACTION)
    status: str = "200 OK"
    address: str = ""
    asked: list[tuple[list[tuple[str, str]], bytes]] = field(default_factory=list)
    gate: Callable[[], Awaitable[Any]] | None = None
    at_once: int = 0
    at_once_max: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def told(self, name: str, which: int = -1) -> list[str]:
        """Values of a header of a request."""
        return [value for key, value in self.asked[which][0] if key.lower() == name.lower()]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")[1:-2]
                headers = [(key, value.strip()) for key, _, value in (line.partition(":") for line in lines)]
                size = next(int(value) for key, value in headers if key.lower() == "content-length")
                self.at_once += 1
                self.at_once_max = max(self.at_once_max, self.at_once)
                try:
                    self.asked.append((headers, await reader.readexactly(size)))
                    if self.gate is not None:
                        await self.gate()
                finally:
                    self.at_once -= 1
                octets = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
                writer.write(f"HTTP/1.1 {self.status}\r\nContent-Length: {len(octets)}\r\n\r\n".encode() + octets)
                await writer.drain()


@contextlib.asynccontextmanager
async def played_rspamd(answer: Any = None) -> AsyncIterator[PlayedRspamd]:
    """It listens."""
    played = PlayedRspamd() if answer is None else PlayedRspamd(answer)
    server = await asyncio.start_server(played.serve, "127.0.0.1", 0, limit=100_000_000)
    played.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield played
    finally:
        server.close()
        for writer in played.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
