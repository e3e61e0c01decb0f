"""Receive connectors that speak TLS from the first octet, demand it, or show the certificate that a client asks for."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from shadowrelay.model.settings import Tls
from shadowrelay.settings.consistency import problems
from shadowrelay.smtp.tls import TlsContexts, opportunistic_context
from tests.kit.clients import Client
from tests.kit.clock import until
from tests.kit.receiving import BANNER, Station, receiving, settings_for

AUTHORITY = trustme.CA()
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


def files(directory: Path, *names: str) -> dict[str, Any]:
    """A [tls] table; the first name is the node's own."""
    pairs = []
    for name in names:
        issued = AUTHORITY.issue_cert(name)
        pair = {"certificate": directory / f"{name.replace('*', 'star')}.pem", "key": directory / f"{name.replace('*', 'star')}.key"}
        pair["certificate"].write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(pair["key"]))
        pairs.append(pair)
    return {**pairs[0], "certificates": pairs[1:]}


async def tls_client(station: Station, name: str | None = "a.example") -> Client:
    address = station.server.address
    streams = await asyncio.open_connection(address.host, address.port, ssl=opportunistic_context(), server_hostname=name or "")
    return Client(*streams)


@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_a_client_that_begins_with_tls_is_served_and_one_that_does_not_gets_no_greeting(
    tmp_path: Path, new_loop: Callable[[], Any]
) -> None:
    async def run() -> None:
        async with receiving(tmp_path, tls=files(tmp_path, "a.example"), implicit_tls=True) as station:
            plain = await Client.to(station.server.address)
            await plain.send(b"EHLO x\r\n")
            heard = await plain.reader.read()
            client = await tls_client(station)
            await client.begin("EHLO x", banner=BANNER)
            reply = await client.mail(["b@here.example"])
            hello = await client.ask("EHLO x")
            again = await client.ask("STARTTLS")
            await client.close()
            await plain.close()
            await until(lambda: not station.server.sessions_count)

        assert (b"220" in heard, "250 2.0.0 Queued") == (False, reply)
        assert ("STARTTLS" in hello, again) == (False, "503 5.5.1 TLS is already active")
        assert b"with ESMTPS id" in station.acceptor.accepted[0][2]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


async def test_a_client_that_never_ends_its_handshake_keeps_nobody_out(tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=files(tmp_path, "a.example"), implicit_tls=True) as station:
        silent = [await Client.to(station.server.address) for _ in range(20)]
        client = await tls_client(station)
        await client.begin("EHLO x", banner=BANNER)
        await client.close()
        for one in silent:
            await one.close()

    assert not station.server.sessions_count


async def test_handshakes_that_never_end_keep_neither_strangers_nor_clients_that_may_relay_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowrelay.smtp.listener.HANDSHAKES_AT_ONCE_MAX", 10)
    async with receiving(tmp_path, tls=files(tmp_path, "a.example"), implicit_tls=True, relay_from=["127.0.0.2"]) as station:
        address = station.server.address
        of_ours = await asyncio.open_connection(address.host, address.port, local_addr=("127.0.0.2", 0))
        silent = [await Client.to(address) for _ in range(30)]
        await until(lambda: station.server.reception.descriptors.refused_count >= 20)
        stranger = await tls_client(station)
        await stranger.begin("EHLO x", banner=BANNER)
        ours = Client(*of_ours)
        await ours.start_tls(opportunistic_context(), "a.example")
        await ours.begin("EHLO x", banner=BANNER)
        for one in (stranger, ours, *silent):
            await one.close()
        await until(lambda: not station.server.sessions_count)


async def test_nothing_is_taken_before_tls_where_it_is_required(tmp_path: Path) -> None:
    async with receiving(tmp_path, tls=files(tmp_path, "a.example"), require_tls=True) as station:
        client = await station.connect()
        assert "STARTTLS" in await client.ask("EHLO x")
        refused = [await client.ask(command) for command in ("MAIL FROM:<>", "VRFY x", "XSHADOW server=b.example")]
        allowed = [await client.ask(command) for command in ("NOOP", "HELO x")]
        await client.ask("EHLO x")
        assert (await client.ask("STARTTLS")).startswith("220")
        await client.start_tls(opportunistic_context(), "a.example")
        await client.ask("EHLO x")
        reply = await client.mail(["b@here.example"])

    assert ["530 5.7.0 Must issue a STARTTLS command first"] * 3 == refused
    assert all(one.startswith("250") for one in allowed)
    assert "250 2.0.0 Queued" == reply


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("a.example", "a.example"),
        ("mail.corp.example", "mail.corp.example"),
        ("MAIL.corp.example", "mail.corp.example"),
        ("imap.corp.example", "*.corp.example"),
        ("a.b.corp.example", "a.example"),
        ("nobody.example", "a.example"),
        (None, "a.example"),
    ],
)
@pytest.mark.parametrize("is_first", [False, True], ids=["STARTTLS", "implicit"])
async def test_a_client_is_shown_the_certificate_for_the_name_that_it_asks_for(
    tmp_path: Path, asked: str | None, shown: str, is_first: bool
) -> None:
    tls = files(tmp_path, "a.example", "*.corp.example", "mail.corp.example")
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    AUTHORITY.configure_trust(trusting)
    async with receiving(tmp_path, tls=tls, implicit_tls=is_first) as station:
        address = station.server.address
        if is_first:
            client = Client(*await asyncio.open_connection(address.host, address.port, ssl=trusting, server_hostname=asked or ""))
            await client.begin("EHLO x", banner=BANNER)
        else:
            client = await station.connect()
            await client.ask("EHLO x")
            await client.ask("STARTTLS")
            await client.start_tls(trusting, asked or "")
        certificate = client.writer.get_extra_info("peercert")
        await client.close()

    assert [("DNS", shown)] == list(certificate["subjectAltName"])


def test_certificates_that_were_added_count_after_a_reload_and_their_ends_are_watched(tmp_path: Path) -> None:
    before = TlsContexts.read(Tls.model_validate(files(tmp_path, "a.example")))
    after = TlsContexts.read(Tls.model_validate(files(tmp_path, "a.example", "mail.corp.example")))

    assert ["certificate"] == list(before.ends)
    assert ["certificate", "certificates[0]"] == list(after.ends)


@pytest.mark.parametrize("key", ["implicit_tls", "require_tls"])
def test_what_a_connector_cannot_demand_is_an_error(tmp_path: Path, key: str) -> None:
    tls = files(tmp_path, "a.example")
    alone = settings_for(**{key: True})
    open_to_peers = settings_for(tls=tls, externally_secured=["127.0.0.1"], **{key: True})
    behind = settings_for(tls=tls, implicit_tls=True, proxy_from=["127.0.0.1"])

    assert f"receive_connectors[0].{key}: needs [tls]" in "".join(problems(alone))
    assert f"receive_connectors[0].{key}: contradicts externally_secured" in "".join(problems(open_to_peers))
    assert "receive_connectors[0].implicit_tls: contradicts proxy_from" in "".join(problems(behind))
    assert [] == list(problems(settings_for(tls=tls, **{key: True})))
