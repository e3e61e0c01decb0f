"""Clients whom a load balancer names by the PROXY protocol: what a header may say, and what it never gives."""

import asyncio
import contextlib
import logging
import random
from pathlib import Path
from typing import Any

import pytest
import structlog

from shadowrelay.memory import ContentBudget
from shadowrelay.model.setting_texts import parse_network
from shadowrelay.smtp.data import CommandReader
from shadowrelay.smtp.limits import READ_AHEAD_OCTETS
from shadowrelay.smtp.proxy_header import HEADER_OCTETS_MAX, BadProxyHeader, read_proxy_header
from tests.kit.clients import Client
from tests.kit.clock import until
from tests.kit.receiving import BANNER, HELLO, PEER, Station, in_a_session, receiving
from tests.smtp.proxies import BAD, GOOD, LOCAL, UNSPEC, version_1, version_2

HERE = ("MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>")
REFUSED = "421 4.7.0 A header of the PROXY protocol is needed from your address\r\n"
FROM_HERE: dict[str, Any] = {"proxy_from": ["127.0.0.0/8"]}


async def connected(station: Station, header: bytes) -> Client:
    """A connection that begins with these octets; the banner is not read."""
    client = await station.connect(greeting=False)
    await client.send(header)
    return client


async def in_session(station: Station, header: bytes, *commands: str) -> Client:
    """The same, which has said these commands."""
    client = await connected(station, header)
    await client.begin(*commands, banner=BANNER)
    return client


@pytest.mark.parametrize(("octets", "named"), [case[1:] for case in GOOD], ids=[case[0] for case in GOOD])
async def test_the_client_is_the_one_in_the_header(octets: bytes, named: tuple[str, int] | None, tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE) as station:
        client = await in_session(station, octets, "EHLO client.example")

        assert "250 2.0.0 Queued" == await client.mail(["b@here.example"])

        ((envelope, _, content),) = station.acceptor.accepted
        address = named[0] if named else "127.0.0.1"
        assert address == envelope.client_address
        literal = f"IPv6:{address}" if ":" in address else address
        assert content.startswith(f"Received: from client.example ([{literal}])\r\n".encode())


@pytest.mark.parametrize("octets", [case[1] for case in BAD], ids=[case[0] for case in BAD])
async def test_a_header_that_means_nothing_is_refused(octets: bytes, tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE) as station:
        client = await connected(station, octets)
        client.writer.write_eof()

        with contextlib.suppress(ConnectionResetError):  # it sent more than was read
            assert await client.rest() in (REFUSED, "")
        await until(lambda: not station.server.sessions_count)
        assert [] == station.acceptor.accepted


@pytest.mark.parametrize("octets", [case[1] for case in GOOD], ids=[case[0] for case in GOOD])
async def test_a_header_may_come_octet_by_octet(octets: bytes) -> None:
    loop = asyncio.get_running_loop()
    reader = CommandReader(ContentBudget().portion(), READ_AHEAD_OCTETS, loop, memoryview(bytearray(1)))
    whole = CommandReader(ContentBudget().portion(), READ_AHEAD_OCTETS, loop, memoryview(bytearray(len(octets) + 6)))
    assert len(octets) <= HEADER_OCTETS_MAX
    whole.get_buffer(-1)[: len(octets) + 6] = octets + b"NOOP\r\n"
    whole.buffer_updated(len(octets) + 6)

    task = loop.create_task(read_proxy_header(reader))
    for number in range(len(octets)):
        await asyncio.sleep(0)
        reader.get_buffer(-1)[:1] = octets[number : number + 1]
        reader.buffer_updated(1)

    assert await read_proxy_header(whole) == await task
    assert (b"", b"NOOP\r\n") == (bytes(reader.buffered), bytes(whole.buffered))


async def test_no_octets_make_the_parser_fail_or_wait() -> None:
    chance = random.Random(37)
    loop = asyncio.get_running_loop()
    for number in range(3_000):
        octets = bytearray(chance.choice([case[1] for case in GOOD]))
        for _ in range(chance.randint(1, 4)):
            octets[chance.randrange(len(octets))] = chance.choice((0, 9, 10, 13, 32, 48, 255, chance.randrange(256)))
        reader = CommandReader(ContentBudget().portion(), READ_AHEAD_OCTETS, loop, memoryview(bytearray(20_000)))
        reader.get_buffer(-1)[: len(octets)] = octets
        reader.buffer_updated(len(octets))
        reader.feed_eof()
        try:
            await asyncio.wait_for(read_proxy_header(reader), 5)
        except (BadProxyHeader, asyncio.IncompleteReadError):
            continue
        except Exception as error:
            pytest.fail(f"case {number}: {bytes(octets)!r}: {error!r}")


async def test_without_a_header_a_load_balancer_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowrelay.smtp.connection.HEADER_SECONDS", 0.05)
    async with receiving(tmp_path, **FROM_HERE) as station:
        client = await station.connect(greeting=False)

        assert REFUSED == await client.rest()


def test_it_waits_for_a_header_for_some_seconds_only(tmp_path: Path) -> None:
    async def scenario(station: Station, _: Client) -> Any:
        everybody = (parse_network("0.0.0.0/0"), parse_network("::/0"))
        station.server.reception.adopt(station.server.reception.connector.model_copy(update={"proxy_from": everybody}), ())
        began = asyncio.get_running_loop().time()
        said = await (await station.connect(greeting=False)).rest()
        return said[:9], round(asyncio.get_running_loop().time() - began)

    assert ("421 4.7.0", 5) == in_a_session(tmp_path, scenario)


async def test_a_header_from_elsewhere_ends_the_session(tmp_path: Path) -> None:
    async with receiving(tmp_path, proxy_from=["192.0.2.1"]) as station:
        client = await station.connect()
        await client.send(version_1() + b"EHLO x\r\n")
        assert "421 4.7.0 The PROXY protocol is not taken from your address\r\n" == await client.rest()

        client = await station.connect()
        await client.send(version_2() + b"EHLO x\r\n")
        assert "521 5.5.2 Bare CR or LF is not allowed" in await client.rest()


@pytest.mark.parametrize("header", [version_1(), version_2()], ids=["version 1", "version 2"])
async def test_no_header_makes_a_peer(header: bytes, tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE, **PEER) as station:
        client = await in_session(station, header)
        assert "XSHADOW" not in await client.ask("EHLO b.example")

        assert ["530 5.7.0 Authentication required"] * 2 == [await client.ask(HELLO), await client.ask("XQDISCARD 400")]
        assert "555 5.5.4" == (await client.ask("MAIL FROM:<a@x.example> XSHADOW=HOLD:6ba7b810-9dad-41d1-80b4-00c04fd430c8:1.1"))[:9]
        assert ([], []) == (station.peer_requests.told, station.peer_requests.holds)


async def test_a_header_with_the_address_of_a_peer_makes_none(tmp_path: Path) -> None:
    externally_secured = {"accept_xshadow": True, "externally_secured": ["203.0.113.5"]}
    async with receiving(tmp_path, **FROM_HERE, **externally_secured) as station:
        station.server.reception.peer_addresses.add("203.0.113.5")
        client = await in_session(station, version_1())

        assert "XSHADOW" not in await client.ask("EHLO b.example")
        assert "530 5.7.0 Authentication required" == await client.ask(HELLO)
        assert 1 == len(station.server.reception.strangers)


async def test_what_a_load_balancer_says_for_itself_has_its_own_rights(tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE, relay_from=["127.0.0.1"], relay_rights="client", **PEER) as station:
        client = await in_session(station, version_2(LOCAL, UNSPEC, b""))

        assert "XSHADOW" in await client.ask("EHLO b.example")
        assert ["250 2.1.0 Sender OK", "250 2.1.5 Recipient OK"] == [
            await client.ask("MAIL FROM:<a@x.example>"),
            await client.ask("RCPT TO:<b@elsewhere.example>"),
        ]


@pytest.mark.parametrize(
    ("rights", "relay_from", "header", "may_relay"),
    [
        ("connection", "127.0.0.1", version_1(), True),
        ("connection", "203.0.113.5", version_1(), False),
        ("connection", "203.0.113.5", version_2(), False),
        ("client", "127.0.0.1", version_1(), False),
        ("client", "127.0.0.1", b"PROXY UNKNOWN\r\n", False),
        ("client", "203.0.113.5", version_1(), True),
        ("client", "203.0.113.5", version_2(), True),
    ],
)
async def test_relaying_is_decided_by_the_address_that_the_setting_says(
    rights: str, relay_from: str, header: bytes, may_relay: bool, tmp_path: Path
) -> None:
    async with receiving(tmp_path, **FROM_HERE, relay_from=[relay_from], relay_rights=rights) as station:
        client = await in_session(station, header)

        assert may_relay == ("DSN" in await client.ask("EHLO client.example"))
        await client.ask("MAIL FROM:<a@x.example>")
        reply = "250 2.1.5 Recipient OK" if may_relay else "550 5.7.1 Relaying denied"
        assert reply == await client.ask("RCPT TO:<b@elsewhere.example>")
        assert may_relay != bool(station.server.reception.strangers)


async def test_sessions_count_for_the_client_that_was_named(tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE, max_sessions_per_address=2) as station:
        for _ in range(2):
            await in_session(station, version_1("203.0.113.5"))
        await in_session(station, version_1("203.0.113.6"))
        waiting = [await station.connect(greeting=False) for _ in range(3)]  # no header yet: they count for the load balancer

        refused = await connected(station, version_1("203.0.113.5"))

        assert "421 4.7.0 Too many sessions from your address, try again later\r\n" == await refused.rest()
        for client in (*waiting, *station.clients):
            await client.close()
        await until(lambda: not station.server.sessions_count)
        reception = station.server.reception
        assert ({}, [0, 0], 0) == (dict(reception.count._by_client), reception.count._counts, len(reception.strangers))


async def test_the_log_has_the_client_and_who_named_it(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        async with receiving(tmp_path, **FROM_HERE) as station:
            client = await in_session(station, version_1(), "EHLO client.example", *HERE, "RSET")
            assert "503" == (await client.ask("DATA"))[:3]
            await client.ask("QUIT")
            await until(lambda: not station.server.sessions_count)

    (line,) = [line for line in lines if line["event"] == "session.closed"]
    assert ("203.0.113.5", 40_000, "127.0.0.1") == (line["client"], line["port"], line["via"])


async def test_a_bad_header_is_one_line_of_the_log_without_its_octets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with structlog.testing.capture_logs() as lines, caplog.at_level(logging.WARNING):
        async with receiving(tmp_path, **FROM_HERE) as station:
            client = await connected(station, b"PROXY TCP4 \x1b[2J 192.0.2.1 40000 25\r\n")
            await client.rest()
            await until(lambda: not station.server.sessions_count)

    assert ["bad PROXY header: PROXYv1 address malformed"] == [line["reason"] for line in lines if line["event"] == "session.closed"]
    assert [] == [record.name for record in caplog.records]


async def test_limits_count_for_the_client_that_was_named(tmp_path: Path) -> None:
    async with receiving(tmp_path, **FROM_HERE, limits={"connections_per_minute": 2}) as station:
        for address in ("203.0.113.5", "203.0.113.5", "203.0.113.6"):
            await in_session(station, version_1(address))

        refused = await connected(station, version_1("203.0.113.5"))

        assert "421 4.7.0 Too many connections" == (await refused.rest())[:30]
