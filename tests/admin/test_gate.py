"""Unfinished, slow, too large and misdirected requests, over real sockets; and that health answers all the while."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from shadowrelay.admin import gate, server
from shadowrelay.admin.gate import is_own_host
from shadowrelay.admin.server import AdminServer
from shadowrelay.model.routing import HostPort
from tests.admin.conftest import MX2, TOKEN
from tests.kit.clock import PATIENCE_SECONDS

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
METRICS = LIVE.replace(b"/health/live", b"/metrics")
OK = b"HTTP/1.1 200 OK\r\n"
NAMES = frozenset({"node", "mx1.east.example"})


@asynccontextmanager
async def serving(application):
    admin = AdminServer(application, HostPort("127.0.0.1", 0))
    await admin.start()
    try:
        yield admin.address
    finally:
        await admin.stop()


async def connect(address, octets=b"", source="127.0.0.1"):
    reader, writer = await asyncio.open_connection(address.host, address.port, local_addr=(source, 0))
    writer.write(octets)
    await writer.drain()
    return reader, writer


async def rest(reader, writer):
    """Everything up to the end of the connection, which must come."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def answer(address, octets):
    return await rest(*await connect(address, octets))


UNFINISHED = [
    b"",
    b"GET ",
    b"GET /health/live HTTP/1.1\r\n",
    b"POST /api/v1/peers/x/forget HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
]


@pytest.mark.parametrize("octets", UNFINISHED)
async def test_unfinished_requests_do_not_keep_anybody_from_health_and_metrics(application, octets):
    async with serving(application) as address:
        unfinished = [await connect(address, octets) for _ in range(3 * server.CONNECTIONS_MAX)]

        answers = [(await answer(address, each))[: len(OK)] for each in (LIVE, METRICS, LIVE)]
        for _, writer in unfinished:
            writer.transport.abort()

    assert [OK] * 3 == answers


async def test_requests_that_take_long_leave_room_for_health(application, node):
    gate_of_node = asyncio.Event()
    asked = asyncio.Event()

    async def slow():
        asked.set()
        await gate_of_node.wait()
        return ()

    node.list_peers = slow
    request = f"GET /api/v1/peers HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n".encode()
    async with serving(application) as address:
        running = [await connect(address, request) for _ in range(gate.REQUESTS_MAX)]
        await asked.wait()
        one_more = await answer(address, request)
        answers = [(await answer(address, each))[: len(OK)] for each in (LIVE, METRICS)]
        gate_of_node.set()
        finished = [await rest(*each) for each in running]

    assert one_more.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in one_more
    assert [OK] * 2 == answers
    assert all(each.startswith(OK) for each in finished)


@pytest.mark.parametrize(
    "sources",
    [["127.0.0.1"] * server.CONNECTIONS_PER_ADDRESS_MAX, [f"127.0.0.{2 + number % 2}" for number in range(server.CONNECTIONS_MAX)]],
    ids=["of one address", "in all"],
)
async def test_when_every_connection_has_a_request_the_oldest_gives_way_and_never_the_newest(application, node, monkeypatch, sources):
    monkeypatch.setattr(gate, "REQUESTS_MAX", 1000)
    gate_of_node = asyncio.Event()
    asked = asyncio.Semaphore(0)

    async def slow():
        asked.release()
        await gate_of_node.wait()
        return ()

    node.list_peers = slow
    request = f"GET /api/v1/peers HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n".encode()
    async with serving(application) as address:
        running = []
        for source in sources:
            running.append(await connect(address, request, source))
            await asked.acquire()
        alive = await answer(address, LIVE)
        gate_of_node.set()
        finished = [(await rest(*each)).startswith(OK) for each in running]

    assert alive.startswith(OK)
    assert [False, *[True] * (len(sources) - 1)] == finished


@pytest.mark.parametrize("addresses_count", [1, 2])
async def test_addresses_with_many_connections_do_not_take_the_place_of_others(application, addresses_count):
    async with serving(application) as address:
        quiet = await connect(address)
        sources = [f"127.0.0.{2 + number % addresses_count}" for number in range(3 * server.CONNECTIONS_MAX)]
        many = [await connect(address, b"GET ", source) for source in sources]
        quiet[1].write(LIVE)
        said = await rest(*quiet)
        for _, writer in many:
            writer.transport.abort()

    assert said.startswith(OK)


async def test_a_connection_with_requests_in_advance_gets_one_answer_and_ends(application):
    request = LIVE.replace(b"Connection: close\r\n", b"")
    async with serving(application) as address:
        one_by_one = await connect(address, request)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await one_by_one[0].readuntil(b"}")
        one_by_one[1].write(LIVE)
        second = await rest(*one_by_one)
        in_advance = await answer(address, request * 3)

    assert second.startswith(OK)
    assert 1 == in_advance.count(OK)
    assert b"\r\nconnection: close\r\n" in in_advance.lower()


@pytest.mark.parametrize("octets", [b"", b"GET /health/live HTTP/1.1\r\nX: "])
async def test_a_request_that_does_not_end_in_time_is_cut_off_though_octets_flow(application, monkeypatch, octets):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    async with serving(application) as address:
        reader, writer = await connect(address, octets)

        async def drip():
            while True:
                writer.write(b"x" if octets else b"")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        said = await rest(reader, writer)
        dripping.cancel()

    assert b"" == said


async def test_a_body_that_nobody_reads_does_not_keep_its_connection_open(application, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    async with serving(application) as address:
        reader, writer = await connect(address, LIVE.replace(b"Connection: close\r\n", b"Content-Length: 60000\r\n"))

        async def drip():
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        said = await rest(reader, writer)
        dripping.cancel()

    assert said.startswith(OK) or not said


@pytest.mark.parametrize("field", [f"Content-Length: {gate.BODY_OCTETS_MAX + 1}", "Content-Length: 99999999999"])
async def test_a_body_that_is_too_large_is_refused_before_it_comes(application, field):
    request = f"POST /api/v1/peers/{MX2}/forget HTTP/1.1\r\nHost: localhost\r\n{field}\r\n\r\n".encode()
    async with serving(application) as address:
        said = await answer(address, request)

    assert said.startswith(b"HTTP/1.1 413 ")


async def test_a_header_that_is_too_large_is_refused(application):
    async with serving(application) as address:
        said = await answer(address, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2 * server.HEADER_OCTETS_MAX)

    assert said.startswith(b"HTTP/1.1 400 ") or not said  # its last octets were not read: the kernel may reset


@pytest.mark.parametrize("path", [b"/health/live", b"/health/live?" + b"x" * server.HEADER_OCTETS_MAX])
@pytest.mark.parametrize("fields", [b"", b"X: " + b"x" * server.HEADER_OCTETS_MAX + b"\r\n", b"X: y\r\n" * 5000])
async def test_a_header_that_is_too_large_is_refused_when_it_comes_at_once_too(application, path, fields):
    request = LIVE.replace(b"/health/live", path).replace(b"Connection", fields + b"Connection")
    async with serving(application) as address:
        said = await answer(address, request)

    assert said.startswith(b"HTTP/1.1 431 " if fields or b"?" in path else OK)


async def test_a_client_that_does_not_read_its_answer_is_cut_off(application, monkeypatch):
    monkeypatch.setattr(server, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.1)
    is_lost, connection_lost = asyncio.Event(), server._Connection.connection_lost

    def lost(connection, error):
        connection_lost(connection, error)
        is_lost.set()

    monkeypatch.setattr(server._Connection, "connection_lost", lost)

    @application.get("/large")
    async def large():
        return "x" * 30_000_000

    async with serving(application) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1)
        writer.write(LIVE.replace(b"/health/live", b"/large"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await is_lost.wait()
        said = await rest(reader, writer)

    assert len(said) < 30_000_000


FOREIGN = [
    "evil.example",
    "evil.example:8025",
    "localhost.evil.example",
    "node.evil.example",
    "1.2.3.4.evil.example",
    "127.0.0.1@evil",
    "[x]",
    "[::1].evil.example",
    "[::1]evil.example:8025",
    "[::1]:8025.evil.example",
    "[::1]:8025@evil.example",
    "[::1",
    "127.0.0.1%.evil.example",
    "localhost:evil.example",
    "localhost:8025:8025",
    ".",
    ":8025",
]


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/api/v1/node", "/openapi.json", "/nothing"])
async def test_a_request_for_another_host_is_misdirected_whatever_it_asks(application, path):
    request = f"GET {path} HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    async with serving(application) as address:
        said = await answer(address, request)

    assert said.startswith(b"HTTP/1.1 421 ")
    assert b"admin.allowed_hosts" in said
    assert b"shadowrelay_" not in said


@pytest.mark.parametrize("path", ["/api/v1/node/", "/health/live/", "//evil.example/health/live"])
async def test_nobody_is_redirected(application, path):
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n".encode()
    async with serving(application) as address:
        said = await answer(address, request)

    assert said.startswith(b"HTTP/1.1 404 ")
    assert b"location" not in said.lower()


@pytest.mark.parametrize("host", FOREIGN)
def test_a_name_that_somebody_else_can_own_is_not_ours(host):
    assert not is_own_host(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        "LOCALHOST:8025",
        "localhost.",
        "localhost.:8025",
        "localhost:",
        "127.0.0.1",
        "127.0.0.1:8025",
        "[::1]:8025",
        "[::1]",
        "192.0.2.7:80",
        "node",
        "Node:1",
        "mx1.east.example.:8025",
    ],
)
def test_addresses_localhost_and_our_names_are_ours(host):
    assert is_own_host(host, NAMES)
