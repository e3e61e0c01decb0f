"""Mail servers that name the client by XCLIENT and XFORWARD: what that changes in a session, and what it never gives."""

from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.kit.clients import Client
from tests.kit.clock import until
from tests.kit.receiving import BANNER, HELLO, PEER, Station, receiving
from tests.smtp.proxies import version_1

FROM_HERE: dict[str, Any] = {"xclient_from": ["127.0.0.1"]}
XCLIENT = "XCLIENT NAME=client.example ADDR=203.0.113.5 PORT=40000 PROTO=ESMTP HELO=helo.example LOGIN=ann"
ORIGINAL = "ADDR=203.0.113.5 PORT=40000 BY=127.0.0.1 PROTO=ESMTP HELO=helo.example LOGIN=ann NAME=client.example"


async def named(station: Station, *commands: str) -> Client:
    """A session in which these commands were said and answered 2xx."""
    return await station.client_in("EHLO front.example", *commands)


async def test_the_client_is_the_one_that_was_named(tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE) as station:
        client = await station.connect()
        offered = await client.ask("EHLO front.example")
        assert "250-XCLIENT NAME ADDR PORT PROTO HELO LOGIN DESTADDR DESTPORT" in offered
        assert offered.endswith("250 XFORWARD NAME ADDR PORT PROTO HELO IDENT SOURCE")

        assert BANNER == await client.ask(XCLIENT)
        assert "503 5.5.1 Send EHLO or HELO first" == await client.ask("MAIL FROM:<a@x.example>")
        await client.ask("EHLO front.example")
        assert "250 2.0.0 Queued" == await client.mail(["b@here.example"])

        ((envelope, _, content),) = station.acceptor.accepted
        assert ("203.0.113.5", "helo.example", ORIGINAL) == (envelope.client_address, envelope.client_name, envelope.original_client)
        assert content.startswith(b"Received: from helo.example ([203.0.113.5])\r\n")


async def test_a_forwarded_client_is_that_of_one_transaction(tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE) as station:
        client = await named(
            station, "XFORWARD NAME=client.example ADDR=203.0.113.5", "XFORWARD PORT=40000 HELO=helo.example SOURCE=REMOTE"
        )

        for _ in range(2):
            assert "250 2.0.0 Queued" == await client.mail(["b@here.example"])

        (first, _, content), (second, _, _) = station.acceptor.accepted
        assert ("203.0.113.5", "helo.example") == (first.client_address, first.client_name)
        assert "ADDR=203.0.113.5 PORT=40000 BY=127.0.0.1 HELO=helo.example NAME=client.example" == first.original_client
        assert content.startswith(b"Received: from front.example ([127.0.0.1])\r\n")
        assert ("127.0.0.1", "front.example", "") == (second.client_address, second.client_name, second.original_client)


async def test_a_reset_takes_a_forwarded_client_back(tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE) as station:
        client = await named(station, "XFORWARD ADDR=203.0.113.5", "RSET")

        await client.mail(["b@here.example"])

        ((envelope, _, _),) = station.acceptor.accepted
        assert "127.0.0.1" == envelope.client_address


@pytest.mark.parametrize("verb", ["XCLIENT", "XFORWARD"])
async def test_others_have_neither_command(verb: str, tmp_path: Path) -> None:
    for settings in ({}, {"xclient_from": ["192.0.2.1"]}):
        async with receiving(tmp_path, **settings) as station:
            client = await station.connect()
            assert verb not in await client.ask("EHLO client.example")
            assert "500 5.5.1 Command not recognized" == await client.ask(f"{verb} ADDR=203.0.113.5")
            await client.mail(["b@here.example"])
            assert "127.0.0.1" == station.acceptor.accepted[0][0].client_address


async def test_whom_a_load_balancer_names_has_neither_command(tmp_path: Path) -> None:
    """Also if that is an address that may name others."""
    async with receiving(tmp_path, proxy_from=["127.0.0.1"], xclient_from=["127.0.0.1", "203.0.113.5"]) as station:
        client = await station.connect(greeting=False)
        await client.send(version_1())
        assert BANNER == await client.reply()

        assert "XCLIENT" not in await client.ask("EHLO client.example")
        assert "500 5.5.1 Command not recognized" == await client.ask("XCLIENT ADDR=203.0.113.6")


@pytest.mark.parametrize("verb", ["XCLIENT", "XFORWARD"])
async def test_within_a_transaction_nobody_is_named(verb: str, tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE) as station:
        client = await named(station, "MAIL FROM:<a@x.example>")

        assert "503 5.5.1 Not in a transaction" == await client.ask(f"{verb} ADDR=203.0.113.5")
        assert "501 5.5.4 Bad attribute" == (await client.ask("RSET") and await client.ask(f"{verb} COLOUR=blue"))


async def test_a_client_that_is_unknown_is_not_the_one_before(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        async with receiving(tmp_path, **FROM_HERE, limits={"messages_per_minute": 1}) as station:
            client = await named(station, XCLIENT, "EHLO client.example")
            port = client.writer.get_extra_info("sockname")[1]
            assert "250 2.0.0 Queued" == await client.mail(["b@here.example"])
            assert BANNER == await client.ask("XCLIENT ADDR=[UNAVAILABLE] PORT=[TEMPUNAVAIL] LOGIN=[UNAVAILABLE]")
            await client.ask("EHLO client.example")
            assert "250 2.0.0 Queued" == await client.mail(["b@here.example"])
            assert "450 4.7.1" == (await client.mail(["b@here.example"]))[:9]
            await client.ask("QUIT")
            await until(lambda: not station.server.sessions_count)

    assert ["203.0.113.5", "127.0.0.1"] == [envelope.client_address for envelope, _, _ in station.acceptor.accepted]
    (line,) = [line for line in lines if line["event"] == "session.closed"]
    assert ("127.0.0.1", port, "127.0.0.1") == (line["client"], line["port"], line["via"])


async def test_a_bad_command_changes_nothing(tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE) as station:
        client = await named(station)
        for argument in ("ADDR=203.0.113.5 PORT=x", "ADDR=nobody", "NAME=a+0D+0Ab"):
            assert "501 5.5.4" == (await client.ask(f"XCLIENT {argument}"))[:9]

        await client.mail(["b@here.example"])

        assert ("127.0.0.1", "") == (station.acceptor.accepted[0][0].client_address, station.acceptor.accepted[0][0].original_client)


async def test_no_name_makes_a_peer_and_a_peer_that_names_somebody_is_none(tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE, **PEER) as station:
        client = await station.client_in("EHLO b.example", HELLO, "XCLIENT ADDR=127.0.0.1")

        assert "XSHADOW" not in await client.ask("EHLO b.example")
        assert ["530 5.7.0 Authentication required"] * 2 == [await client.ask(HELLO), await client.ask("XQDISCARD 400")]
        assert "555 5.5.4" == (await client.ask("MAIL FROM:<a@x.example> XSHADOW=HOLD:6ba7b810-9dad-41d1-80b4-00c04fd430c8:1.1"))[:9]


@pytest.mark.parametrize(
    ("rights", "relay_from", "address", "may_relay"),
    [
        ("connection", "127.0.0.1", "203.0.113.5", True),
        ("connection", "203.0.113.5", "203.0.113.5", False),
        ("client", "127.0.0.1", "203.0.113.5", False),
        ("client", "127.0.0.1", "[UNAVAILABLE]", False),
        ("client", "203.0.113.5", "203.0.113.5", True),
    ],
)
async def test_relaying_is_decided_by_the_address_that_the_setting_says(
    rights: str, relay_from: str, address: str, may_relay: bool, tmp_path: Path
) -> None:
    async with receiving(tmp_path, **FROM_HERE, relay_from=[relay_from], relay_rights=rights) as station:
        client = await named(station, f"XCLIENT ADDR={address}", "EHLO client.example", "MAIL FROM:<a@x.example>")

        reply = "250 2.1.5 Recipient OK" if may_relay else "550 5.7.1 Relaying denied"
        assert reply == await client.ask("RCPT TO:<b@elsewhere.example>")


async def test_sessions_and_limits_count_for_the_client_that_was_named(tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE, max_sessions_per_address=2) as station:
        for _ in range(2):
            await named(station, XCLIENT)
        third = await station.connect()
        assert "421 4.7.0 Too many sessions from your address, try again later" == await third.ask(XCLIENT)
        for client in station.clients:
            await client.close()
        await until(lambda: not station.server.sessions_count)
        assert ({}, [0, 0]) == (dict(station.server.reception.count._by_client), station.server.reception.count._counts)

    async with receiving(tmp_path, **FROM_HERE, limits={"messages_per_minute": 1, "exempt": ["127.0.0.1"]}) as station:
        client = await named(station, XCLIENT, "EHLO client.example")
        assert ["250 2.0.0 Queued", "450 4.7.1"] == [(await client.mail(["b@here.example"]))[:16].strip()[: [16, 9][n]] for n in range(2)]
