"""What web servers of others answer is read in small parts, with a limit, by all that ask them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from shadowrelay.model.receive_settings import Filter
from shadowrelay.smtp.rspamd import Rspamd
from shadowrelay.smtp.web_answers import AROUND_OCTETS_MAX, PART_OCTETS, BoundedTransport, octets_of

OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@contextlib.asynccontextmanager
async def saying(octets: bytes) -> AsyncIterator[str]:
    """A web server that says this to each request."""

    tasks: set[asyncio.Task[None] | None] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(octets)
                await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*(task for task in tasks if task is not None))


async def test_each_request_of_a_kept_connection_may_have_its_whole_answer():
    body = b"x" * (3 * AROUND_OCTETS_MAX)
    async with saying(OK % len(body) + body) as address, httpx.AsyncClient(transport=BoundedTransport(len(body))) as client:
        found = [(await client.get(address)).content for _ in range(5)]

    assert [body] * 5 == found


async def test_no_more_is_read_than_an_answer_may_have():
    async with saying(b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000) as address, httpx.AsyncClient(transport=BoundedTransport(10)) as client:
        with pytest.raises(httpx.ReadError, match="too long"):
            await client.get(address)


async def test_others_have_their_turn_between_small_parts():
    body = b"x" * (50 * PART_OCTETS)
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with (
        saying(OK % len(body) + body) as address,
        httpx.AsyncClient(transport=BoundedTransport(len(body))) as client,
        client.stream("GET", address) as answer,
    ):
        task, turns = asyncio.create_task(another()), 0
        assert body == await octets_of(answer, len(body))
        task.cancel()

    assert turns >= 45


def test_a_filter_is_asked_by_that_transport():
    client = Rspamd(Filter.model_validate({"name": "f", "address": "http://127.0.0.1:1"}))._http

    assert isinstance(client._transport, BoundedTransport)
