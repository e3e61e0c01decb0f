"""STARTTLS on the receiver, and peers that prove their name by it."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trustme
import uvloop
from cryptography import x509

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.settings import Tls
from shadowrelay.smtp.limits import HANDSHAKES_MAX
from shadowrelay.smtp.tls import TlsContexts, anonymous_server_context, opportunistic_context, peer_context, server_context
from tests.kit.clients import Client
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.receiving import HELLO, receiving

XSHADOW = {"accept_xshadow": True}
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


class Authority:
    """Makes certificates below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(directory / "peers.pem"))

    def files_of(self, name: str, *, peer_authority: bool = True) -> dict[str, Any]:
        """The [tls] table of a node."""
        certificate = self.authority.issue_cert(name)
        paths = {"certificate": self.directory / f"{name}.pem", "key": self.directory / f"{name}.key"}
        paths["certificate"].write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        certificate.private_key_pem.write_to_path(str(paths["key"]))
        return paths | ({"peer_authority": self.directory / "peers.pem"} if peer_authority else {})

    def context_of(self, name: str) -> ssl.SSLContext:
        """As a peer's link would have it."""
        return peer_context(Tls.model_validate(self.files_of(name)))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    return Authority(tmp_path_factory.mktemp("certificates"))


async def secured(client: Client, context: ssl.SSLContext, name: str = "b.example") -> str:
    """Through STARTTLS to the second EHLO, whose reply comes back."""
    await client.ask(f"EHLO {name}")
    assert await client.ask("STARTTLS") == "220 2.0.0 Ready to start TLS"
    await client.start_tls(context, "a.example")
    return await client.ask(f"EHLO {name}")


async def test_anybody_may_use_tls_without_a_certificate(authority: Authority, tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=authority.files_of("a.example"), **XSHADOW) as station:
        client = await station.connect()
        assert "STARTTLS" in await client.ask("EHLO b.example")

        hello = await secured(client, opportunistic_context())

        assert "STARTTLS" not in hello
        assert "XSHADOW" not in hello
        assert "530 5.7.0 Authentication required" == await client.ask(HELLO)
        assert "503 5.5.1 TLS is already active" == await client.ask("STARTTLS")


async def test_mail_over_tls_says_so_in_its_trace_header(authority: Authority, tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=authority.files_of("a.example")) as station:
        client = await station.connect()
        await secured(client, opportunistic_context())
        for command in ("MAIL FROM:<>", "RCPT TO:<b@here.example>", "DATA"):
            await client.ask(command)
        await client.send(b"x" * 1_000 + b"\r\n.\r\n")

        assert "250 2.0.0 Queued" == await client.reply()
        assert b"with ESMTPS id" in station.acceptor.accepted[0][2]


async def test_a_peer_with_a_certificate_of_its_name_may_use_xshadow(authority: Authority, tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=authority.files_of("a.example"), **XSHADOW) as station:
        client = await station.connect()

        hello = await secured(client, authority.context_of("b.example"))

        assert hello.endswith("\n250 XSHADOW HOLD FORKS EARLY")
        assert (await client.ask(HELLO)).startswith("250 2.0.0 server=a.example ")


async def test_a_peer_cannot_take_another_name(authority: Authority, tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=authority.files_of("a.example"), **XSHADOW) as station:
        client = await station.connect()
        await secured(client, authority.context_of("b.example"))

        reply = await client.ask(HELLO.replace("server=b.example", "server=c.example"))

        assert "550 5.7.1 You have not proved that name, or it is no peer's" == reply


async def test_a_certificate_of_a_name_that_is_no_peer_gives_no_right(authority: Authority, tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=authority.files_of("a.example"), **XSHADOW) as station:
        client = await station.connect()

        hello = await secured(client, authority.context_of("stranger.example"))

        assert "XSHADOW" not in hello
        assert "530 5.7.0 Authentication required" == await client.ask(HELLO)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("connector", [XSHADOW, {}], ids=["with peers", "without peers"])
async def test_a_certificate_of_another_authority_counts_as_not_verified(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion, connector: dict[str, Any]
) -> None:
    context = Authority(tmp_path).context_of("mta.other.example")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    async with receiving(tmp_path, tls=authority.files_of("a.example"), **connector) as station:
        client = await station.connect()

        hello = await secured(client, context, "mta.other.example")

        assert "SIZE" in hello
        assert "XSHADOW" not in hello
        assert "250 2.1.0 Sender OK" == await client.ask("MAIL FROM:<>")


async def test_a_peer_with_a_certificate_of_another_authority_does_not_pass_the_handshake(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    context = other.context_of("b.example")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with receiving(tmp_path, tls=authority.files_of("a.example"), **XSHADOW) as station:
        client = await station.connect()

        with structlog.testing.capture_logs() as lines:
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                await secured(client, context)
            await until(lambda: any(line["event"] == "session.tls_failed" for line in lines))

    failed = next(line for line in lines if line["event"] == "session.tls_failed")
    assert ("warning", "certificate verify failed") == (failed["log_level"], failed["reason"].partition(":")[0])


@pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_with_a_peers_name_and_a_strange_certificate_is_not_asked_for_it_again_at_once(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    context = Authority(tmp_path).context_of("b.example")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version

    async def greeted() -> list[str]:
        async with receiving(tmp_path, tls=authority.files_of("a.example"), **XSHADOW) as station:

            async def a_session(with_context: ssl.SSLContext) -> str:
                client = await station.connect()
                try:
                    hello = await secured(client, with_context)
                    return "as a peer" if "XSHADOW" in hello else "as a client" if "SIZE" in hello else "not at all"
                except (ssl.SSLError, ConnectionError, EOFError):
                    return "not at all"
                finally:
                    client.writer.transport.abort()
                    await until(lambda: not station.server._sessions)

            of_peer = authority.context_of("b.example")
            done = [await a_session(each) for each in (context, context, context, of_peer, of_peer)]
            station.server.reception.peer_addresses.add("127.0.0.1")
            return done + [await a_session(each) for each in (context, context, of_peer)]

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        done = runner.run(greeted())

    elsewhere = ["not at all", "as a client", "not at all", "as a client", "as a peer"]
    assert [*elsewhere, "not at all", "not at all", "as a peer"] == done


async def test_a_connector_that_takes_no_peers_asks_nobody_for_a_certificate(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    context = other.context_of("b.example")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with receiving(tmp_path, tls=authority.files_of("a.example")) as station:
        client = await station.connect()

        assert "SIZE" in await secured(client, context)


async def test_what_was_said_before_tls_is_forgotten(authority: Authority, tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=authority.files_of("a.example")) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "STARTTLS")

        await client.start_tls(opportunistic_context(), "a.example")

        assert "503 5.5.1 Send EHLO or HELO first" == await client.ask("MAIL FROM:<a@x.example>")
        await client.ask("EHLO client.example")
        assert "503 5.5.1 Need MAIL command first" == await client.ask("DATA")


async def test_commands_injected_behind_starttls_are_not_obeyed(authority: Authority, tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=authority.files_of("a.example")) as station:
        client = await station.client_in("EHLO client.example")
        await client.send(b"STARTTLS\r\nEHLO evil.example\r\nMAIL FROM:<injected@x.example>\r\n")
        assert "220 2.0.0 Ready to start TLS" == await client.reply()

        await client.start_tls(opportunistic_context(), "a.example")

        assert "503 5.5.1 Send EHLO or HELO first" == await client.ask("MAIL FROM:<a@x.example>")


async def test_rubbish_in_place_of_a_handshake_ends_the_session_and_nothing_else(authority: Authority, tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=authority.files_of("a.example")) as station:
        client = await station.client_in("EHLO client.example", "STARTTLS")

        await client.send(b"EHLO client.example\r\n" * 10)
        await client.reader.read()

        assert "250 2.0.0 OK" == await (await station.connect()).ask("NOOP")


@pytest.mark.parametrize("moments_count", range(8))
@pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"])
def test_a_connector_closes_although_a_client_is_within_the_handshake(
    authority: Authority, tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop], moments_count: int
) -> None:
    """Both tell only the TLS layer that we cut the connection. asyncio calls that a handshake without a transport, uvloop one with a
    transport that is dead."""

    async def close() -> None:
        async with receiving(tmp_path, tls=authority.files_of("a.example")) as station:
            client = await station.client_in("EHLO client.example")
            await client.send(b"STARTTLS\r\n")
            for _ in range(moments_count):  # before the reply, behind it, and in the handshake
                await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await station.server.close()

    with structlog.testing.capture_logs() as logs, asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(close())

    assert [] == [log for log in logs if log["event"] in ("session.failed", "session.not_closed")]


async def test_strangers_handshakes_leave_room_for_those_of_peers(authority: Authority, tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=authority.files_of("a.example"), **XSHADOW) as station:
        station.server.reception.handshakes_count = HANDSHAKES_MAX
        stranger = await station.client_in("EHLO client.example")
        peer = await station.client_in("EHLO b.example")

        assert "454 4.7.0 TLS is not available now" == await stranger.ask("STARTTLS")
        assert "220 2.0.0 Ready to start TLS" == await peer.ask("STARTTLS")


async def test_a_client_that_vanishes_within_the_handshake_is_forgotten(authority: Authority, tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=authority.files_of("a.example")) as station:
        client = await station.client_in("EHLO client.example", "STARTTLS")
        gone = next(iter(station.server._sessions)).gone

        await client.close()
        await gone

        assert 0 == station.server.sessions_count


@pytest.mark.parametrize("build", [server_context, peer_context])
def test_certificates_that_cannot_be_used_are_named_with_the_remedy(
    build: Callable[[Tls], ssl.SSLContext], authority: Authority, tmp_path: Path
) -> None:
    files = authority.files_of("a.example")
    wrong = tmp_path / "empty.pem"
    wrong.write_text("")

    with pytest.raises(ConfigurationError, match=r"tls: cannot use certificate .*empty\.pem with key .*give readable PEM files"):
        build(Tls.model_validate(files | {"certificate": wrong}))
    with pytest.raises(ConfigurationError, match=r"tls: cannot use peer_authority .*missing \(no such file or directory\)"):
        build(Tls.model_validate(files | {"peer_authority": tmp_path / "missing"}))


def test_the_contexts_ask_and_verify_as_they_should(authority: Authority) -> None:
    tls = Tls.model_validate(authority.files_of("a.example"))
    without = Tls.model_validate(authority.files_of("a.example", peer_authority=False))

    assert ssl.CERT_OPTIONAL == server_context(tls).verify_mode
    assert ssl.CERT_NONE == server_context(without).verify_mode
    assert ssl.CERT_NONE == anonymous_server_context(tls).verify_mode
    assert (ssl.CERT_REQUIRED, True) == (peer_context(tls).verify_mode, peer_context(tls).check_hostname)
    assert (ssl.CERT_NONE, False) == (opportunistic_context().verify_mode, opportunistic_context().check_hostname)
    contexts = (server_context(tls), anonymous_server_context(tls), peer_context(tls), opportunistic_context())
    assert {ssl.TLSVersion.TLSv1_2} == {context.minimum_version for context in contexts}


def test_one_reading_of_the_files_gives_all_contexts_and_says_when_they_end(authority: Authority, tmp_path: Path) -> None:
    files = authority.files_of("a.example")
    own = x509.load_pem_x509_certificates(files["certificate"].read_bytes())[0]
    first, last = trustme.CA(), authority.authority
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(first.cert_pem.bytes() + last.cert_pem.bytes())
    contexts = TlsContexts.read(Tls.model_validate(files | {"peer_authority": bundle}))

    last_end = max(x509.load_pem_x509_certificate(one.cert_pem.bytes()).not_valid_after_utc for one in (first, last))
    assert {"certificate": own.not_valid_after_utc, "peer_authority": last_end} == contexts.ends
    assert (ssl.CERT_OPTIONAL, ssl.CERT_NONE) == (contexts.asking.verify_mode, contexts.anonymous.verify_mode)
    assert {"certificate"} == set(TlsContexts.read(Tls.model_validate(authority.files_of("a.example", peer_authority=False))).ends)


def test_a_reading_that_fails_in_one_file_gives_nothing(authority: Authority, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    files = authority.files_of("a.example")

    for key in ("certificate", "key", "peer_authority"):
        with pytest.raises(ConfigurationError, match=r"tls: cannot use .*rubbish\.pem"):
            TlsContexts.read(Tls.model_validate(files | {key: rubbish}))


async def test_new_sessions_get_the_new_certificate_and_the_old_ones_live_on(authority: Authority, tmp_path: Path) -> None:
    files = authority.files_of("a.example")
    async with receiving(tmp_path, tls=files) as station:
        old = await station.connect()
        await secured(old, opportunistic_context())
        other = Authority(tmp_path)
        renewed = TlsContexts.read(Tls.model_validate(other.files_of("a.example")))
        station.server.reload(station.server.reception.connector, (), renewed)
        new = await station.connect()
        context = ssl.create_default_context(cafile=str(tmp_path / "peers.pem"))

        assert "SIZE" in await secured(new, context)
        assert "250 2.0.0 OK" == await old.ask("NOOP")


async def test_an_error_of_ours_in_the_handshake_ends_the_connection(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that went on would answer in the clear, to a client that reads TLS, or one reply late."""

    def broken(self: object, certificate: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("shadowrelay.smtp.peer_part.PeerPart.protected", broken)
    async with receiving(tmp_path, tls=authority.files_of("a.example")) as station:
        client = await station.connect()
        await client.ask("EHLO b.example")
        await client.ask("STARTTLS")

        async def go_on() -> None:
            await client.start_tls(opportunistic_context(), "a.example")
            await client.ask("EHLO b.example")

        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await go_on()
