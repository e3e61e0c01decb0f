"""A port that several nodes share: whoever leaves it resets no connection."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable

import pytest

from shadowrelay.model.routing import HostPort
from shadowrelay.smtp.limits import Descriptors
from shadowrelay.smtp.listener import Listener
from tests.kit.clock import until

LOOPBACK = "127.0.0.1"
CLIENTS_COUNT = 16
LEAVES_COUNT = 2


class Greeting(asyncio.Protocol):
    """Says one line, and waits for the client to go."""

    def __init__(self, greeted: Callable[[], None]) -> None:
        self._greeted = greeted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._greeted()
        transport.write(b"220 here\r\n")


async def opened(counts: Counter[str], name: str, port: int) -> Listener:
    return await Listener.open(lambda: Greeting(lambda: counts.update([name])), HostPort(LOOPBACK, port), Descriptors(20_000), True)


async def one_after_the_other(port: int, met: Counter[str], stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            met[(await reader.readline()).decode().strip() or "nothing"] += 1
            writer.close()
        except OSError as error:
            met[type(error).__name__] += 1


async def met_while(leave: Callable[[Listener], object]) -> tuple[Counter[str], Counter[str]]:
    """What clients met, and who greeted how many, while one of two listeners leaves the port and comes back, several times."""
    with socket.create_server((LOOPBACK, 0), reuse_port=True) as reserved:
        port = reserved.getsockname()[1]
    counts: Counter[str] = Counter()
    met: Counter[str] = Counter()
    stop = asyncio.Event()
    stays, leaves = await opened(counts, "stays", port), await opened(counts, "leaves", port)
    clients = [asyncio.create_task(one_after_the_other(port, met, stop)) for _ in range(CLIENTS_COUNT)]
    for _ in range(LEAVES_COUNT):
        before = counts["leaves"]
        await until(lambda before=before: counts["leaves"] > before + CLIENTS_COUNT)
        left = leave(leaves)
        if asyncio.iscoroutine(left):
            await left
        before = counts["stays"]
        await until(lambda before=before: counts["stays"] > before + CLIENTS_COUNT)
        leaves = await opened(counts, "leaves", port)
    stop.set()
    await asyncio.gather(*clients)
    stays.close()
    leaves.close()
    return met, counts


async def test_no_client_meets_anything_but_a_greeting_while_a_listener_leaves_its_port_to_others() -> None:
    met, counts = await met_while(Listener.leave)

    assert {"220 here"} == set(met)
    assert met["220 here"] == counts["stays"] + counts["leaves"]


async def test_connections_that_wait_in_the_queue_are_taken_before_the_port_is_left() -> None:
    """Also those that the loop had no time for."""
    counts: Counter[str] = Counter()
    with socket.create_server((LOOPBACK, 0), reuse_port=True) as reserved:
        port = reserved.getsockname()[1]
    leaves = await opened(counts, "leaves", port)
    waiting = [socket.create_connection((LOOPBACK, port)) for _ in range(200)]  # the loop stands still meanwhile
    await leaves.leave()

    await until(lambda: counts["leaves"] == len(waiting))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port))
    for one in waiting:
        one.close()
