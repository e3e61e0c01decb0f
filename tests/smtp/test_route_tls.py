"""TLS as a route demands it: required or verified, whose certificates count, from the first octet; and never less than that."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from shadowrelay import credentials
from shadowrelay.model.counts import TlsFailure
from shadowrelay.model.protection import SMTPS, Protection, TlsMode, TlsVersion
from shadowrelay.model.replies import TransientDeliveryError
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.smtp.deliverer import SmtpDeliverer
from tests.kit.clock import until
from tests.kit.smtp_servers import ScriptedServer, serving
from tests.smtp.deliverers import TAKEN, a_deliverer, deliver

REQUIRED, VERIFIED = Protection(TlsMode.REQUIRED), Protection(TlsMode.VERIFIED)
AUTHORITY = trustme.CA()


def serving_tls(*names: str, authority: trustme.CA = AUTHORITY, not_after: datetime | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, not_after=not_after).configure_cert(context)
    return context


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    path = tmp_path / "authority.pem"
    AUTHORITY.cert_pem.write_to_path(path)
    return path


def verified(authority: Path, *names: str) -> Protection:
    return Protection(TlsMode.VERIFIED, names, authority)


def to(server: ScriptedServer, protection: Protection | None, scheme: str = "", host: str = "localhost") -> Destination:
    return Destination("route", (HostPort(host, server.port, scheme),), protection=protection)


async def deferred(deliverer: SmtpDeliverer, destination: Destination) -> str:
    """Why. What is refused for TLS counts as a next hop that cannot be reached: its queue is in Retry, and nothing is returned."""
    with pytest.raises(TransientDeliveryError) as caught:
        await deliver(deliverer, destination)
    assert caught.value.is_unreachable
    return str(caught.value.reply)


async def test_mail_goes_over_tls_that_is_verified_and_the_report_says_so(authority: Path):
    server = ScriptedServer(tls=serving_tls("localhost"))
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, to(server, verified(authority)))

    assert ({1: TAKEN}, "TLSv1.3,verified") == (report.replies, report.tls)
    assert {"TLSv1.3,verified": 1} == {kind: count for kind, count in deliverer.counts.opened.items() if count}


@pytest.mark.parametrize(
    ("names", "host"),
    [(("localhost",), "localhost"), (("127.0.0.1",), "127.0.0.1"), (("*.corp.example", "other.example"), "127.0.0.1")],
    ids=["its own name", "its address", "one of tls_names, by a star"],
)
async def test_the_certificate_may_have_any_of_the_names(authority: Path, names: tuple[str, ...], host: str):
    server = ScriptedServer(tls=serving_tls(*names))
    wanted = ("no.example", "mail.corp.example") if "*" in names[0] else ()
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, to(server, verified(authority, *wanted), host=host))

    assert {1: TAKEN} == report.replies


FAULTS = {
    "authority": (lambda: serving_tls("localhost", authority=trustme.CA()), "certificate verify failed: unable to get local issuer"),
    "name": (lambda: serving_tls("other.example"), "its certificate is for other.example, not for localhost"),
    "end": (
        lambda: serving_tls("localhost", not_after=datetime.now(UTC) - timedelta(days=1)),
        "certificate verify failed: certificate has expired",
    ),
}


@pytest.mark.parametrize("scheme", ["", SMTPS], ids=["STARTTLS", "smtps"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_certificate_at_fault_defers_the_mail_and_the_reason_names_the_fault(authority: Path, fault: str, scheme: str):
    make, expected = FAULTS[fault]
    server = ScriptedServer(tls=make(), is_tls_first=bool(scheme))
    async with serving(server), a_deliverer() as deliverer:
        reason = await deferred(deliverer, to(server, verified(authority), scheme))

    assert reason.startswith("451 4.7.5 TLS could not be negotiated: ")
    assert expected in reason
    assert 1 == deliverer.counts.tls_failures[TlsFailure.CERTIFICATE]
    assert not [line for line in server.lines if line.startswith(("MAIL", "AUTH"))]
    assert len(server.sessions) <= 1  # it is not tried again without


@pytest.mark.parametrize("protection", [REQUIRED, VERIFIED], ids=["required", "verified"])
@pytest.mark.parametrize("script", ["not offered", "refused", "broken"])
async def test_what_is_demanded_is_never_done_without(protection: Protection, script: str):
    said = {"STARTTLS": "454 4.7.0 not now"} if script == "refused" else {}
    tls = {"not offered": None, "refused": serving_tls("localhost"), "broken": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)}[script]
    server = ScriptedServer(said, tls=tls)
    async with serving(server), a_deliverer() as deliverer:
        reason = await deferred(deliverer, to(server, protection))

    assert reason.startswith("451 4.7.5 ")
    assert not [line for line in server.lines if line.startswith("MAIL")]
    assert [False] * len(server.sessions) == [session.is_tls for session in server.sessions]


async def test_required_takes_any_certificate():
    server = ScriptedServer(tls=serving_tls("other.example", authority=trustme.CA()))
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, to(server, REQUIRED))

    assert "TLSv1.3" == report.tls


async def test_none_does_not_even_ask_where_others_would():
    server = ScriptedServer(tls=serving_tls("localhost"))
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, to(server, Protection(TlsMode.NONE)))

    assert ("", ["EHLO me.example"]) == (report.tls, server.lines[:1])
    assert not server.sessions[0].is_tls


async def test_smtps_has_tls_before_the_greeting(authority: Path):
    server = ScriptedServer(tls=serving_tls("localhost"), is_tls_first=True)
    async with serving(server), a_deliverer() as deliverer:
        reports = [await deliver(deliverer, to(server, protection, SMTPS)) for protection in (verified(authority), REQUIRED)]

    assert ["TLSv1.3,verified", "TLSv1.3"] == [report.tls for report in reports]
    assert not [line for line in server.lines if line == "STARTTLS"]


async def test_smtps_never_falls_back_to_plain_text():
    heard: list[bytes] = []

    async def greet_in_plain_text(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 plain\r\n")
        heard.append(await reader.read())
        writer.transport.abort()

    server = await asyncio.start_server(greet_in_plain_text, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    opportunistic = Protection(minimum_version=TlsVersion.TLS_1_3)
    async with server, a_deliverer() as deliverer:
        reason = await deferred(deliverer, Destination("route", (HostPort("127.0.0.1", port, SMTPS),), protection=opportunistic))
        await until(lambda: bool(heard))

    assert "TLS could not be negotiated" in reason
    assert [False] == [b"EHLO" in octets for octets in heard]


async def test_a_server_without_the_minimum_version_gets_nothing():
    old = serving_tls("localhost")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    server = ScriptedServer(tls=old)
    async with serving(server), a_deliverer() as deliverer:
        reason = await deferred(deliverer, to(server, Protection(TlsMode.REQUIRED, minimum_version=TlsVersion.TLS_1_3)))
        report = await deliver(deliverer, to(server, REQUIRED))

    assert "TLS could not be negotiated" in reason
    assert "TLSv1.2" == report.tls


async def test_this_node_shows_its_certificate_where_the_server_asks(tmp_path: Path, authority: Path):
    tls = serving_tls("localhost")
    tls.verify_mode = ssl.CERT_REQUIRED
    AUTHORITY.configure_trust(tls)
    own = AUTHORITY.issue_cert("me.example")
    own.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
    own.private_key_pem.write_to_path(tmp_path / "client.key")
    server = ScriptedServer(tls=tls)
    shown = Protection(TlsMode.VERIFIED, (), authority, tmp_path / "client.pem", tmp_path / "client.key")
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, to(server, shown))
        reason = await deferred(deliverer, to(server, verified(authority)))

    assert {1: TAKEN} == report.replies
    assert reason.startswith("451 4.")


async def test_mail_of_a_route_that_demands_more_never_goes_in_a_session_of_another_one(authority: Path):
    server = ScriptedServer(tls=serving_tls("localhost"))
    async with serving(server), a_deliverer() as deliverer:
        for protection in (None, REQUIRED, verified(authority), verified(authority, "localhost"), None, REQUIRED):
            await deliver(deliverer, to(server, protection))

    assert [False, True, True, True] == [session.is_tls for session in server.sessions]


async def test_an_authority_that_is_replaced_counts_after_a_reload(tmp_path: Path):
    path = tmp_path / "authority.pem"
    trustme.CA().cert_pem.write_to_path(path)
    server = ScriptedServer(tls=serving_tls("localhost"))
    async with serving(server), a_deliverer() as deliverer:
        await deferred(deliverer, to(server, verified(path)))
        AUTHORITY.cert_pem.write_to_path(path)
        deliverer.reload()
        report = await deliver(deliverer, Destination("other", (HostPort("localhost", server.port),), protection=verified(path)))

    assert {1: TAKEN} == report.replies


async def test_a_file_that_is_gone_defers_and_the_reason_names_it(tmp_path: Path):
    server = ScriptedServer(tls=serving_tls("localhost"))
    async with serving(server), a_deliverer() as deliverer:
        reason = await deferred(deliverer, to(server, verified(tmp_path / "gone.pem")))

    assert f"tls_authority: {tmp_path}/gone.pem cannot be used" in reason
    assert 1 == deliverer.counts.tls_failures[TlsFailure.SETTINGS]


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("mail.example", "MAIL.example.", True),
        ("*.corp.example", "mail.corp.example", True),
        ("*.corp.example", "corp.example", False),
        ("*.corp.example", "a.b.corp.example", False),
        ("*.example", "corp.example", False),
        ("m*.corp.example", "mail.corp.example", False),
        ("*.*.example", "a.b.example", False),
        ("*", "mail.corp.example", False),
        ("*.corp.example", ".corp.example", False),
    ],
)
def test_a_star_stands_for_the_whole_first_label_only(pattern: str, name: str, expected: bool):
    assert expected == credentials.covers(pattern, name)
