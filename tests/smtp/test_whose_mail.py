"""Next hops that are told whose mail they get. docs/mtas.md "Whose mail it is"."""

from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Envelope
from shadowrelay.model.replies import TransientDeliveryError
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.protocol.original_client import NOBODY, OriginalClient, format_commands
from shadowrelay.smtp.whose_mail import client_of
from tests.kit.ledger import an_envelope
from tests.kit.receiving import Station, receiving
from tests.smtp.deliverers import a_deliverer, a_job

HERE: dict[str, Any] = {"accepted_domains": ["corp.example"], "xclient_from": ["127.0.0.1"]}
NAMED = "ADDR=203.0.113.5 PORT=40000 BY=10.0.0.1 PROTO=ESMTP HELO=helo.example LOGIN=ann NAME=client.example"


def to(station: Station, **changes: Any) -> Destination:
    return Destination("store", (HostPort(str(station.server.address.host), station.server.address.port),), **changes)


def from_client(**changes: Any) -> Envelope:
    return an_envelope(client_address="203.0.113.5", client_name="helo.example", **changes)


async def test_a_next_hop_is_told_the_client_by_xclient(tmp_path: Path) -> None:
    async with receiving(tmp_path, **HERE) as station, a_deliverer() as deliverer:
        for original in (NAMED, ""):
            report = await deliverer.deliver(a_job(to(station, xclient=True), from_client(original_client=original)))
            assert [250] == [reply.code for reply in report.replies.values()]
        other = an_envelope(client_address="2001:db8::7", client_name="other.example")
        await deliverer.deliver(a_job(to(station, xclient=True), other))

        first, second, third = (envelope for envelope, _, _ in station.acceptor.accepted)
        assert ("203.0.113.5", "helo.example") == (first.client_address, first.client_name)
        assert NAMED.replace("BY=10.0.0.1", "BY=127.0.0.1") == first.original_client
        assert "ADDR=203.0.113.5 BY=127.0.0.1 HELO=helo.example" == second.original_client
        assert ("2001:db8::7", "other.example") == (third.client_address, third.client_name)


async def test_a_next_hop_is_told_the_client_by_xforward_in_a_kept_session(tmp_path: Path) -> None:
    async with receiving(tmp_path, **HERE) as station, a_deliverer() as deliverer:
        for address in ("203.0.113.5", "203.0.113.6"):
            await deliverer.deliver(a_job(to(station, xforward=True), an_envelope(client_address=address, client_name="helo.example")))
        await deliverer.deliver(a_job(to(station), from_client()))

        told = [(envelope.client_address, envelope.client_name) for envelope, _, _ in station.acceptor.accepted]
        assert [("203.0.113.5", "helo.example"), ("203.0.113.6", "helo.example"), ("127.0.0.1", "me.example")] == told
        assert 1 == station.server.sessions_count


async def test_mail_of_this_node_and_of_other_routes_is_nobody_elses(tmp_path: Path) -> None:
    async with receiving(tmp_path, **HERE) as station, a_deliverer() as deliverer:
        await deliverer.deliver(a_job(to(station, xclient=True), from_client()))
        for envelope in (an_envelope(client_address="", client_name="me.example"), an_envelope(client_name="me.example")):
            await deliverer.deliver(a_job(to(station, xclient=True), envelope))
        await deliverer.deliver(a_job(to(station), from_client()))

        assert ["203.0.113.5", *["127.0.0.1"] * 3] == [envelope.client_address for envelope, _, _ in station.acceptor.accepted]


async def test_a_next_hop_that_does_not_offer_them_gets_the_mail_as_ever(tmp_path: Path) -> None:
    async with receiving(tmp_path, accepted_domains=["corp.example"]) as station, a_deliverer() as deliverer:
        await deliverer.deliver(a_job(to(station, xclient=True, xforward=True), from_client()))

        assert "127.0.0.1" == station.acceptor.accepted[0][0].client_address


async def test_a_next_hop_that_refuses_the_client_gets_no_mail_of_it(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_sessions_per_address=1, **HERE) as station, a_deliverer() as deliverer:
        client = await station.client_in("EHLO x", "XCLIENT ADDR=203.0.113.5")
        with pytest.raises(TransientDeliveryError, match="Too many sessions from your address"):
            await deliverer.deliver(a_job(to(station, xclient=True), from_client()))
        await client.close()

        assert [] == station.acceptor.accepted


def test_the_client_of_a_message_is() -> None:
    assert OriginalClient("203.0.113.5", helo="helo.example") == client_of(from_client(), "me.example")
    assert OriginalClient("203.0.113.5", helo="helo.example") == client_of(from_client(original_client="\x00"), "me.example")
    assert NOBODY is client_of(an_envelope(client_address="nowhere"), "me.example")
    notification = MessageId("00000000-0000-5000-8000-000000000001")
    assert NOBODY is client_of(from_client(sender="", message_id=notification), "me.example")


ALL = frozenset(["NAME", "ADDR", "PORT", "PROTO", "HELO", "LOGIN", "DESTADDR", "DESTPORT", "IDENT", "SOURCE"])


@pytest.mark.parametrize(
    ("client", "verb", "offered", "expected"),
    [
        (OriginalClient("203.0.113.5"), "XCLIENT", frozenset({"ADDR"}), ["XCLIENT ADDR=203.0.113.5"]),
        (OriginalClient("2001:db8::5", 25), "XCLIENT", frozenset({"ADDR", "PORT"}), ["XCLIENT ADDR=IPV6:2001:db8::5 PORT=25"]),
        (
            OriginalClient("203.0.113.5", helo="a b"),
            "XFORWARD",
            ALL,
            ["XFORWARD NAME=[UNAVAILABLE] ADDR=203.0.113.5 PORT=[UNAVAILABLE] HELO=a+20b"],
        ),
        (OriginalClient("203.0.113.5", login="ann=x\r\nMAIL"), "XCLIENT", frozenset({"LOGIN"}), ["XCLIENT LOGIN=ann+3Dx+0D+0AMAIL"]),
        (OriginalClient("203.0.113.5", protocol="LMTP"), "XCLIENT", frozenset({"PROTO"}), []),
        (OriginalClient("203.0.113.5"), "XCLIENT", frozenset({"DESTADDR"}), []),
    ],
)
def test_the_commands_are(client: OriginalClient, verb: str, offered: frozenset[str], expected: list[str]) -> None:
    assert expected == list(format_commands(client, verb, offered))


def test_long_commands_are_several() -> None:
    client = OriginalClient("203.0.113.5", 25, "n" * 255, "h" * 255, "ESMTP", "l" * 255)

    lines = list(format_commands(client, "XCLIENT", ALL))

    assert 2 <= len(lines)
    assert all(len(line) <= 510 for line in lines)
