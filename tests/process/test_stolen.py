"""One node was broken into: what its key and its token are good for, and how they are taken away. docs/security.md "Thieves"."""

import asyncio
import contextlib
import re
import shutil
import signal
import ssl
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from shadowrelay.lab.cluster import NodeProcess, Place, free_ports
from shadowrelay.model.routing import HostPort
from shadowrelay.settings import configuration
from shadowrelay.settings.authority import private_pem, read_authority, signed_pems
from tests.kit.clients import Client
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.processes import operator_events

EAST, WEST = "mx1.east.example", "mx1.west.example"


def shadowrelay(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "shadowrelay", *map(str, words)], capture_output=True, text=True, check=False, timeout=240)


class StolenCluster:
    """Two nodes as `init` writes them. West runs, and has the API with TLS; East was broken into."""

    def __init__(self, top: Path) -> None:
        self.top = top
        east, west, hop, admin, tls = (HostPort("127.0.0.1", port) for port in free_ports(5))
        nodes = (f"--node={EAST},east,{east}", f"--node={WEST},west,{west}")
        done = shadowrelay("init", top, *nodes, "--accept", "corp.example", "--next-hop", hop)
        assert done.returncode == 0, done.stderr
        self.east, self.west, self.api, self.smtp = top / EAST, top / WEST, tls, west
        self.node = NodeProcess(Place(WEST, "west"), west, admin, self.west)
        text = (self.west / "node.toml").read_text().replace("failure = true", "failure = false")
        text = text.replace('listen = "127.0.0.1:8026"', f'listen = "{admin}"').replace("[admin]\n", f'[admin]\ntls_listen = "{tls}"\n')
        (self.west / "node.toml").write_text(text)
        self.peers = configuration.load(self.west / "node.toml").settings.receive_connectors[1].listen

    def ask(self, method: str, path: str, token: str = "", *, of: Path | None, name: str = WEST) -> httpx.Response:
        """West's API. `of`: whose certificate is shown."""
        context = ssl.create_default_context(cafile=str(self.west / "peers.pem"))
        if of is not None:
            context.load_cert_chain(of / "node.pem", of / "node.key")
        with httpx.Client(verify=context, timeout=PATIENCE_SECONDS) as client:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return client.request(method, f"https://{self.api}{path}", headers=headers, extensions={"sni_hostname": name})

    async def session(self, identity: Path, name: str = EAST) -> tuple[Client, str]:
        """As East, with its key, until its XSHADOW hello is answered."""
        client = await Client.to(self.peers)
        await client.begin(f"EHLO {name}", "STARTTLS")
        context = ssl.create_default_context(cafile=str(identity / "peers.pem"))
        context.load_cert_chain(identity / "node.pem", identity / "node.key")
        await client.start_tls(context, WEST)
        await client.ask(f"EHLO {name}")
        hello = f"server={name} boundary=default database={uuid.uuid4()} incarnation=1 began=1 position=5 span=10800"
        return client, await client.ask(f"XSHADOW {hello}")

    async def reload(self) -> None:
        before = len(operator_events(self.node, "configuration.reloaded"))
        self.node.signal(signal.SIGHUP)
        await until(lambda: len(operator_events(self.node, "configuration.reloaded")) > before)

    async def accept(self) -> str:
        """A message for West, which waits there. Its id."""
        client = await Client.to(self.smtp)
        await client.begin("EHLO c.example")
        reply = await client.mail(["boss@corp.example"], b"Subject: x\r\n\r\nfor the boss only\r\n")
        await client.close()
        assert reply.startswith("250 2.0.0 Queued as "), reply
        return reply.split()[-1]


@asynccontextmanager
async def stolen(top: Path) -> AsyncIterator[StolenCluster]:
    cluster = StolenCluster(top)
    try:
        await cluster.node.start()
        yield cluster
    finally:
        await cluster.node.stop()


async def test_a_nodes_token_and_certificate_open_no_message_of_another_node(tmp_path):
    async with stolen(tmp_path / "c") as cluster:
        message = await cluster.accept()
        path = f"/api/v1/messages/{message}"
        theirs, ours = (cluster.east / "token").read_text().strip(), (cluster.west / "token").read_text().strip()
        shared = (cluster.east / "read_only_token").read_text().strip()
        answers = {
            (token, method, where): cluster.ask(method, f"/api/v1{where}", token, of=cluster.east).status_code
            for token in (theirs, shared, "")
            for method, where in (
                ("GET", f"/messages/{message}"), ("GET", f"/messages/{message}/content"), ("POST", f"/messages/{message}/remove"),
                ("POST", "/drain"), ("POST", f"/peers/{EAST}/forget?force=true"), ("GET", "/queues"),
            )
        }  # fmt: skip
        content = cluster.ask("GET", f"{path}/content", ours, of=cluster.east)
        with pytest.raises(httpx.TransportError):  # no certificate: the handshake fails
            cluster.ask("GET", path, ours, of=None)

    assert theirs != ours
    assert {200} == {status for (_, method, where), status in answers.items() if method == "GET" and not where.endswith("content")}
    assert {403} == {status for (_, method, where), status in answers.items() if method == "POST" or where.endswith("content")}
    assert b"for the boss only" in content.content


@pytest.mark.parametrize("way", ["certificate", "fingerprint", "list"])
async def test_a_stolen_key_is_revoked_and_its_open_session_ends(tmp_path, way):
    async with stolen(tmp_path / "c") as cluster:
        client, said = await cluster.session(cluster.east)
        assert said.startswith("250"), said
        assert cluster.ask("GET", "/api/v1/queues", of=cluster.east).status_code == 200
        (cluster.west / "revoked.pem").write_bytes(revoked(cluster, way))

        await cluster.reload()

        assert await client.rest() == ""
        await client.close()
        with pytest.raises((OSError, EOFError, AssertionError)):
            await cluster.session(cluster.east)
        with pytest.raises(httpx.TransportError):
            cluster.ask("GET", "/api/v1/queues", of=cluster.east)
        refused = await until(lambda: operator_events(cluster.node, "session.certificate_refused"))
        renew(cluster, cluster.east)  # its new certificate is of the same authority and name
        client, said = await cluster.session(cluster.east)
        await client.close()

    assert [EAST] == [line["peer"] for line in refused[:1]]
    assert said.startswith("250")


@pytest.mark.parametrize("way", ["certificate", "authority"])
@pytest.mark.parametrize("path", ["/api/v1/events", "/api/v1/queues"])
async def test_what_a_stolen_key_has_opened_at_the_api_ends_when_it_is_revoked(tmp_path, way, path):
    """Also an answer that has no end, and a connection that waits for its next request."""
    other = StolenCluster(tmp_path / "other")
    async with stolen(tmp_path / "c") as cluster:
        reader, writer = await at_the_api(cluster, path)
        try:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await until(lambda: bool(reader._buffer))
            if way == "certificate":
                (cluster.west / "revoked.pem").write_bytes(revoked(cluster, way))
            else:
                for name in ("node.pem", "node.key", "peers.pem"):
                    shutil.copy(other.west / name, cluster.west / name)
            await cluster.reload()
            await until(lambda: bool(operator_events(cluster.node, "admin.certificate_refused")))
            async with asyncio.timeout(5):  # a connection that waits is closed by itself after ten seconds
                with contextlib.suppress(OSError):
                    await reader.read(-1)
        finally:
            writer.close()


async def at_the_api(cluster: StolenCluster, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with the key of East, which has asked for this."""
    context = ssl.create_default_context(cafile=str(cluster.west / "peers.pem"))
    context.load_cert_chain(cluster.east / "node.pem", cluster.east / "node.key")
    where = cluster.api
    await until(lambda: answers_to_east(cluster))  # the API listens after the receiver
    reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context, server_hostname=WEST)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
    return reader, writer


def answers_to_east(cluster: StolenCluster) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return cluster.ask("GET", "/health/live", of=cluster.east).status_code == 200
    return False


def revoked(cluster: StolenCluster, way: str) -> bytes:
    certificate = x509.load_pem_x509_certificate((cluster.east / "node.pem").read_bytes())
    if way == "certificate":
        return b"# stolen\n" + (cluster.east / "node.pem").read_bytes()
    if way == "fingerprint":
        return f"sha256 Fingerprint={certificate.fingerprint(hashes.SHA256()).hex(':').upper()}  # stolen\n".encode()
    authority = read_authority(cluster.top / "authority.pem", cluster.top / "authority.key")
    now = datetime.now(UTC)
    entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(now).build()
    builder = x509.CertificateRevocationListBuilder().issuer_name(authority.certificate.subject).last_update(now)
    builder = builder.next_update(now - timedelta(seconds=-1)).add_revoked_certificate(entry)  # out of date soon: it counts all the same
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("path", ["/api/v1/events", "/api/v1/queues"])
async def test_who_is_no_peer_any_more_loses_what_it_has_opened_at_the_api(tmp_path, path):
    async with stolen(tmp_path / "c") as cluster:
        reader, writer = await at_the_api(cluster, path)
        try:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await until(lambda: bool(reader._buffer))
            file = cluster.west / "node.toml"
            before, peers, after = re.split(r"(\n\[\[peers\]\](?:\n(?!\[).*)*)", file.read_text())
            assert EAST in peers
            file.write_text(before + after)
            await cluster.reload()
            async with asyncio.timeout(5):
                with contextlib.suppress(OSError):
                    await reader.read(-1)
        finally:
            writer.close()


@pytest.mark.slow
async def test_an_expired_certificate_ends_what_it_has_opened_at_the_api(tmp_path):
    """Within ten seconds, also where requests follow one another."""
    async with stolen(tmp_path / "c") as cluster:
        await until(lambda: answers_to_east(cluster))
        renew(cluster, cluster.east, timedelta(seconds=8))
        ends = [await at_the_api(cluster, path) for path in ("/api/v1/events", "/api/v1/queues")]
        try:
            for reader, _ in ends:
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            async with asyncio.timeout(8 + 10 + 5):
                await asyncio.gather(ends[0][0].read(-1), asking_until_it_ends(*ends[1]), return_exceptions=True)
        finally:
            for _, writer in ends:
                writer.close()
        refused = await until(lambda: operator_events(cluster.node, "admin.certificate_refused"))

    assert {"it expired"} == {line["reason"][:10] for line in refused}


async def asking_until_it_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request a second."""
    while not reader.at_eof():
        writer.write(b"GET /api/v1/queues HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                while await reader.read(65_536):
                    pass


def renew(cluster: StolenCluster, place: Path, lasts: timedelta = timedelta(days=1)) -> None:
    authority = read_authority(cluster.top / "authority.pem", cluster.top / "authority.key")
    for name, data in zip(("node.pem", "node.key"), signed_pems(authority, EAST, lasts), strict=True):
        (place / name).write_bytes(data)


async def test_another_authority_ends_the_sessions_of_the_former_one(tmp_path):
    other = StolenCluster(tmp_path / "other")
    async with stolen(tmp_path / "c") as cluster:
        client, said = await cluster.session(cluster.east)
        assert said.startswith("250"), said
        for name in ("node.pem", "node.key", "peers.pem"):
            shutil.copy(other.west / name, cluster.west / name)

        await cluster.reload()

        assert await client.rest() == ""
        await client.close()


async def test_a_setting_that_revokes_needs_no_restart(tmp_path):
    async with stolen(tmp_path / "c") as cluster:
        client, said = await cluster.session(cluster.east)
        assert said.startswith("250"), said
        (cluster.west / "other.pem").write_bytes((cluster.east / "node.pem").read_bytes())
        file = cluster.west / "node.toml"
        file.write_text(file.read_text().replace("revoked.pem", "other.pem"))

        await cluster.reload()

        assert await client.rest() == ""
        await client.close()
        assert [[]] == [line["needs_restart"] for line in operator_events(cluster.node, "configuration.reloaded")]


async def test_a_file_of_revoked_certificates_that_cannot_be_read_changes_nothing(tmp_path):
    async with stolen(tmp_path / "c") as cluster:
        (cluster.west / "revoked.pem").write_text("nonsense\n")
        cluster.node.signal(signal.SIGHUP)
        await until(lambda: operator_events(cluster.node, "configuration.refused"))
        client, said = await cluster.session(cluster.east)
        await client.close()

    assert said.startswith("250")
    assert "tls.peer_revoked" in operator_events(cluster.node, "configuration.refused")[0]["error"]
    assert "line 1 is none of" in shadowrelay("check", "--config", cluster.west / "node.toml").stderr


async def test_a_name_in_the_common_name_or_a_pattern_is_no_peer(tmp_path):
    async with stolen(tmp_path / "c") as cluster:
        authority = read_authority(cluster.top / "authority.pem", cluster.top / "authority.key")
        pem, key = signed_pems(authority, "*.east.example", timedelta(days=1))
        (cluster.east / "node.pem").write_bytes(pem)
        (cluster.east / "node.key").write_bytes(key)
        client, said = await cluster.session(cluster.east)
        await client.close()
        assert said.startswith("530"), said
        certificate = x509.load_pem_x509_certificate(pem)
        assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        assert private_pem(authority.key)
        # the other way round: West calls a server with that certificate
        server = await asyncio.start_server(lambda reader, writer: smtp_server(reader, writer, cluster.east), *east_address(cluster))
        try:
            await until(lambda: any("*.east.example" in str(line) or "no name" in str(line) for line in node_log(cluster)))
        finally:
            server.close()
            await server.wait_closed()


def node_log(cluster: StolenCluster) -> list[str]:
    return [line for line in (cluster.node.directory / "node.log").read_text().splitlines() if EAST in line and "not for" in line]


def east_address(cluster: StolenCluster) -> tuple[str, int]:
    line = next(line for line in (cluster.west / "node.toml").read_text().splitlines() if line.startswith("address = "))
    host, _, port = line.split('"')[1].rpartition(":")
    return host, int(port)


async def smtp_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, identity: Path) -> None:
    """As far as TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity / "node.pem", identity / "node.key")
    try:
        writer.write(b"220 east ESMTP\r\n")
        await reader.readline()
        writer.write(b"250-east\r\n250 STARTTLS\r\n")
        await reader.readline()
        writer.write(b"220 go\r\n")
        await writer.drain()
        await writer.start_tls(context)
        await reader.readline()
    except (OSError, EOFError):
        pass
    finally:
        writer.close()


async def test_the_state_of_a_node_is_not_told_to_who_has_no_right_to_it(tmp_path):
    async with stolen(tmp_path / "c") as cluster:
        file = cluster.west / "node.toml"
        address = own_address()
        await cluster.node.stop()
        file.write_text(file.read_text().replace(f'tls_listen = "{cluster.api}"', f'tls_listen = "{address}:{cluster.api.port}"'))
        with file.open("a") as more:
            more.write("tls_client_certificate_required = false\n")
        cluster.api = HostPort(address, cluster.api.port)
        await cluster.node.start()
        await until(lambda: answers(cluster))  # the API listens after the receiver
        anonymous = cluster.ask("GET", "/health/ready", of=None)
        wrong = cluster.ask("GET", "/health/ready", "x" * 40, of=None)
        known = cluster.ask("GET", "/health/ready", (cluster.west / "token").read_text().strip(), of=None)
        by_certificate = cluster.ask("GET", "/health/ready", of=cluster.east)
        here = httpx.get(f"http://{cluster.node.admin}/health/ready", timeout=PATIENCE_SECONDS)

    assert [{"is_ready"}, {"is_ready"}] == [set(anonymous.json()), set(wrong.json())]
    assert known.json()["reasons"]
    assert known.json() == by_certificate.json() == here.json()


def answers(cluster) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return cluster.ask("GET", "/health/live", of=None).status_code == 200
    return False


def own_address() -> str:
    """An address of this machine that is not loopback."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


async def test_commands_send_no_token_to_a_server_with_a_wrong_certificate(tmp_path):
    cluster = StolenCluster(tmp_path / "c")
    heard: list[bytes] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cluster.west / "node.pem", cluster.west / "node.key")  # a node's, but not the one that is asked

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(65536))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    file = cluster.west / "node.toml"
    file.write_text(file.read_text().replace('admin = "http://127.0.0.1:8025"', f'admin = "https://127.0.0.1:{port}"'))
    try:
        commands = (["status"], ["messages", "find", "--to", "x"], ["drain", "--node", f"https://127.0.0.1:{port}"])
        done = [await asyncio.to_thread(shadowrelay, *command, "--config", file) for command in commands]
    finally:
        server.close()
        await server.wait_closed()

    assert not any(heard)
    assert all("certificate" in one.stderr + one.stdout or "not for" in one.stderr + one.stdout for one in done), done


async def test_a_certificate_that_ends_soon_is_said_by_the_status(tmp_path):
    cluster = StolenCluster(tmp_path / "c")
    authority = read_authority(cluster.top / "authority.pem", cluster.top / "authority.key")
    for name, data in zip(("node.pem", "node.key"), signed_pems(authority, WEST, timedelta(days=29)), strict=True):
        (cluster.west / name).write_bytes(data)
    try:
        await cluster.node.start()
        shown = shadowrelay("status", "--config", cluster.west / "node.toml")
    finally:
        await cluster.node.stop()

    assert "tls.certificate ends at" in shown.stdout
    assert "in 28 days" in shown.stdout
