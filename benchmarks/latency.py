"""How long a client waits for its 250: from the final dot until the reply, at a fixed rate, with and without the copy.

The rate is moderate, so that what is seen is the wait for disks and the other node, not for one's turn. Messages are begun
by the clock, whether or not earlier ones were answered. Rounds with and without the copy alternate between two clusters
that both stay up.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.throughput import PLACES, PRODUCT_TIMES, SIZE, workplace
from shadowrelay.lab.cluster import Cluster, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.processes import wait_until_peers_know_each_other
from tests.kit.smtp_programs import running_sink

CLIENT_SESSIONS = 20
WARM_UP_COUNT = 100
LINE = b"X" * 78 + b"\r\n"
CONTENT = b"Subject: latency\r\n\r\n" + LINE * (SIZE // len(LINE))


@dataclass(frozen=True, slots=True)
class Round:
    """Waits of one round, with and without the copy. Units: seconds, ascending."""

    with_copy: list[float]
    without_copy: list[float]


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def measure_rounds(parent: Path, *, rounds: int, messages: int, rate: float) -> list[Round]:
    """`messages` in each half of each round."""
    (port,) = free_ports(1)
    sink = HostPort("127.0.0.1", port)
    alone = {**PRODUCT_TIMES, "shadow_redundancy_enabled": False}
    found = []
    async with contextlib.AsyncExitStack() as stack:
        directories = [stack.enter_context(workplace(parent)) for _ in range(2)]
        stack.enter_context(running_sink(port))
        paired = await stack.enter_async_context(Cluster(PLACES, sink, directory=directories[0], transport=PRODUCT_TIMES))
        single = await stack.enter_async_context(Cluster(PLACES[:1], sink, directory=directories[1], transport=alone))
        await asyncio.to_thread(wait_until_peers_know_each_other, list(paired.nodes.values()))
        entries = [next(iter(cluster.nodes.values())).address for cluster in (paired, single)]
        for address in entries:
            await waits(address, WARM_UP_COUNT, rate)
        for _ in range(rounds):
            found.append(Round(*[sorted(await waits(address, messages, rate)) for address in entries]))
    return found


async def waits(address: HostPort, messages: int, rate: float) -> list[float]:
    """Send so many, begun at `rate` a second over kept sessions. Raises: RuntimeError unless each gets a 250."""
    sessions: asyncio.Queue[Session] = asyncio.Queue()
    opened = [await Session.open(address) for _ in range(CLIENT_SESSIONS)]
    for session in opened:
        sessions.put_nowait(session)
    found: list[float] = []

    async def one() -> None:
        session = await sessions.get()
        found.append(await session.submit())
        sessions.put_nowait(session)

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for index in range(messages):
            await asyncio.sleep(max(0.0, began + index / rate - time.monotonic()))
            group.create_task(one())
    for session in opened:
        session.close()
    return found


class Session:
    """A client's kept session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: HostPort) -> "Session":
        """Connect and greet."""
        session = cls(*await asyncio.open_connection(address.host, address.port))
        await session._expect(b"220")
        await session._say(b"EHLO client.example\r\n", b"250")
        return session

    async def submit(self) -> float:
        """One message; seconds from its final dot to the 250."""
        await self._say(b"MAIL FROM:<sender@client.example>\r\n", b"250")
        await self._say(b"RCPT TO:<user@corp.example>\r\n", b"250")
        await self._say(b"DATA\r\n", b"354")
        began = time.perf_counter()
        await self._say(CONTENT + b".\r\n", b"250")
        return time.perf_counter() - began

    async def _say(self, line: bytes, code: bytes) -> None:
        self._writer.write(line)
        await self._expect(code)

    async def _expect(self, code: bytes) -> None:
        while (line := await self._reader.readline())[3:4] == b"-":
            pass
        if not line.startswith(code):
            raise RuntimeError(f"{code.decode()} expected, got {line!r}")

    def close(self) -> None:
        """End it."""
        self._writer.close()
