"""The API over a real uvicorn in the test's own loop, on port 0."""

import asyncio
import signal

import pytest

from shadowrelay.admin.client import NodeClient, NodeError
from shadowrelay.admin.server import AdminServer
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort
from tests.admin.conftest import TOKEN


@pytest.fixture
async def server(application):
    """A server that listens."""
    server = AdminServer(application, HostPort("127.0.0.1", 0))
    await server.start()
    yield server
    await server.stop()


def ask(address, what, *arguments):
    with NodeClient(f"http://{address}", TOKEN) as client:
        return getattr(client, what)(*arguments)


async def test_the_client_asks_the_server(server):
    assert "mx1" == (await asyncio.to_thread(ask, server.address, "node"))["name"]
    assert {"is_ready": True, "is_degraded": False, "reasons": []} == await asyncio.to_thread(ask, server.address, "ready")


async def test_a_metrics_scraper_on_loopback_needs_no_token(server):
    reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"shadowrelay_queue_messages{kind=" in answer
    assert b"\r\nserver:" not in answer.lower()


async def test_the_signals_stay_with_the_node(application):
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    server = AdminServer(application, HostPort("127.0.0.1", 0))
    await server.start()
    try:
        assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    finally:
        await server.stop()


async def test_nobody_listens_after_stop(server):
    address = server.address
    await server.stop()
    await server.stop()

    with pytest.raises(NodeError, match="cannot be reached"):
        await asyncio.to_thread(ask, address, "node")


async def test_an_address_that_is_taken_is_an_error_with_its_remedy(server, application):
    second = AdminServer(application, server.address)

    with pytest.raises(ConfigurationError, match=r"admin\.listen: 127\.0\.0\.1:\d+ cannot be bound .*; choose another address"):
        await second.start()
    await second.stop()


async def test_an_address_that_does_not_exist_is_an_error(application):
    with pytest.raises(ConfigurationError, match="cannot be bound"):
        await AdminServer(application, HostPort("192.0.2.1", 0)).start()


async def test_a_server_that_ends_while_it_starts_says_why(application, monkeypatch):
    server = AdminServer(application, HostPort("127.0.0.1", 0))

    async def fail(sockets=None):
        raise OSError("no sockets today")

    monkeypatch.setattr(server._server, "startup", fail)
    with pytest.raises(OSError, match="no sockets today"):
        await server.start()
    with pytest.raises(OSError, match="no sockets today"):
        await server.stop()
