"""The API over a real uvicorn in the test's own loop, on port 0."""

import asyncio
import signal
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.admin import people as people_module
from shadowrelay.admin.api import make_application
from shadowrelay.admin.api_client import NodeClient, NodeError
from shadowrelay.admin.people import FAILURES_MAX, People
from shadowrelay.admin.server import HANDSHAKES_MAX, AdminServer
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import AdminRole, AdminUser
from shadowrelay.settings.authority import make_authority, signed_pems
from tests.admin.conftest import NOW, TOKEN
from tests.kit.consoles import HASHES
from tests.kit.loopback import needs_loopback


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


@needs_loopback
async def test_a_client_of_ipv4_at_a_listener_of_both_families_is_known_by_its_ipv4_address(node, metrics, monkeypatch):
    monkeypatch.setattr(people_module, "_owner", lambda token, users: users[0] if token == "right" else None)
    people = People(TOKEN, "", (AdminUser(name="op", role=AdminRole.OPERATOR, token_hash=HASHES[AdminRole.OPERATOR]),))
    server = AdminServer(make_application(node, metrics, people, "1.2.3", now=lambda: NOW), HostPort("::", 0))
    await server.start()
    try:
        scraped = await status_of(server, "/metrics", "127.0.0.1")
        wrong = [await status_of(server, "/api/v1/node", "127.0.0.2", f"wrong {number}") for number in range(FAILURES_MAX + 1)]
        others = [await status_of(server, "/api/v1/node", address, "right") for address in ("127.0.0.1", "::1")]
    finally:
        await server.stop()

    assert (200, [*[401] * FAILURES_MAX, 429], [200, 200]) == (scraped, wrong, others)


async def status_of(server, path, address, token=""):
    """Of the answer to a client at this address."""
    own = "::1" if ":" in address else "127.0.0.1"
    reader, writer = await asyncio.open_connection(own, server.address.port, local_addr=(address, 0))
    right = f"Authorization: Bearer {token}\r\n" if token else ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{right}Connection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


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


class Certificate:
    """A node's, which can be replaced; `authority` is the file of who signed it."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.authority = directory, directory / "authority.pem"
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def renew(self, name: str) -> None:
        """By a new authority."""
        authority = make_authority("tests", timedelta(days=1))
        self.authority.write_bytes(authority.pem)
        for file, pem in zip(("node.pem", "node.key"), signed_pems(authority, name, timedelta(days=1)), strict=True):
            (self._directory / file).write_bytes(pem)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self._directory / "node.pem", self._directory / "node.key")


@pytest.fixture
async def certificate(tmp_path):
    certificate = Certificate(tmp_path)
    certificate.renew("mx1.east.example")
    return certificate


@pytest.fixture
async def encrypted(application, certificate):
    """A server that listens with TLS."""
    server = AdminServer(application, HostPort("127.0.0.1", 0), lambda: certificate.context)
    await server.start()
    yield server
    await server.stop()


async def asked(server, authority, name):
    def ask_it():
        with NodeClient(f"https://{server.address}", TOKEN, authority=authority, name=name) as client:
            return client.node()["name"]

    return await asyncio.to_thread(ask_it)


async def test_with_tls_the_client_checks_authority_and_name(encrypted, certificate, tmp_path):
    other = tmp_path / "other.pem"
    other.write_bytes(make_authority("others", timedelta(days=1)).pem)

    assert "mx1" == await asked(encrypted, certificate.authority, "mx1.east.example")
    with pytest.raises(NodeError, match=r"(?i)hostname mismatch, certificate is not valid for 'mx1\.west\.example'"):
        await asked(encrypted, certificate.authority, "mx1.west.example")
    with pytest.raises(NodeError, match="unable to get local issuer certificate"):
        await asked(encrypted, other, "mx1.east.example")
    with pytest.raises(NodeError, match="cannot be asked"):
        await asyncio.to_thread(ask, encrypted.address, "node")  # without TLS


async def test_a_new_certificate_counts_for_the_next_connection(encrypted, certificate):
    certificate.renew("mx9.east.example")

    assert "mx1" == await asked(encrypted, certificate.authority, "mx9.east.example")


async def test_clients_that_never_shake_hands_keep_nobody_out(encrypted, certificate):
    silent = [await asyncio.open_connection(encrypted.address.host, encrypted.address.port) for _ in range(HANDSHAKES_MAX + 8)]
    try:
        assert "mx1" == await asked(encrypted, certificate.authority, "mx1.east.example")
        async with asyncio.timeout(10):
            assert [b""] * 8 == [await reader.read() for reader, _ in silent[:8]]  # the oldest had to go
    finally:
        for _, writer in silent:
            writer.close()


async def test_a_handshake_that_has_not_ended_does_not_hold_up_the_stop(application, certificate):
    server = AdminServer(application, HostPort("127.0.0.1", 0), lambda: certificate.context)
    await server.start()
    address = server.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"\x16\x03")
    await writer.drain()
    await asyncio.sleep(0.05)
    async with asyncio.timeout(10):
        await server.stop()

        assert b"" == await reader.read()
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.host, address.port)


async def test_an_address_that_is_taken_is_named_by_its_key(encrypted, application, certificate):
    second = AdminServer(application, encrypted.address, lambda: certificate.context)

    with pytest.raises(ConfigurationError, match=r"admin\.tls_listen: 127\.0\.0\.1:\d+ cannot be bound"):
        await second.start()
