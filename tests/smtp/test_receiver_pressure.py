"""Back pressure on the wire, beside `dialogs/back_pressure*.dlg`: the tarpit in virtual time, and pressure that changes in a session."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.rules.back_pressure import NO_PRESSURE, Level, Pressure
from tests.kit.clients import Client
from tests.kit.receiving import HELLO, PEER, Station, in_a_session, receiving

INSUFFICIENT = "452 4.3.1 Insufficient system resources"
GREETED = "EHLO client.example"
SENDER_OK = "250 2.1.0 Sender OK"
INSIDE = {"relay_from": ["::1"]}
NORMAL, MEDIUM, HIGH = Level


def tarpit(seconds: float, level: Level = MEDIUM) -> Pressure:
    return Pressure({}, NORMAL, seconds, level, is_felt=True)


def pressed(level: Level) -> Pressure:
    return Pressure({}, level, is_felt=True)


async def timed(client: Client, command: str) -> tuple[float, str]:
    """When the reply came, and the reply."""
    client.writer.write(command.encode() + b"\r\n")
    line = (await client.reader.readuntil(b"\r\n")).decode().strip()
    return round(asyncio.get_running_loop().time(), 3), line


@pytest.mark.parametrize(
    ("level", "settings", "seconds"),
    [(MEDIUM, {}, 55), (HIGH, {}, 55), (MEDIUM, INSIDE, 0), (HIGH, INSIDE, 55)],
    ids=["medium, outside", "high, outside", "medium, inside", "high, inside"],
)
def test_the_tarpit_delays_the_reply_to_mail(tmp_path: Path, level: Level, settings: dict[str, Any], seconds: int) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        station.acceptor.pressure = tarpit(55, level)
        return [
            await timed(client, "NOOP"),
            await timed(client, "MAIL FROM:<a@x.example>"),
            await timed(client, "RCPT TO:<b@here.example>"),
        ]

    noop, mail, rcpt = in_a_session(tmp_path, scenario, GREETED, **settings)

    assert (0.0, seconds, seconds) == (noop[0], mail[0], rcpt[0])
    assert (SENDER_OK, "250 2.1.5 Recipient OK") == (mail[1], rcpt[1])


def test_replies_to_earlier_commands_do_not_wait_with_the_delayed_one(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        station.acceptor.pressure = tarpit(20)
        client.writer.write(b"NOOP\r\nMAIL FROM:<a@x.example>\r\nRCPT TO:<b@here.example>\r\n")
        times = []
        for _ in range(3):
            await client.reader.readuntil(b"\r\n")
            times.append(asyncio.get_running_loop().time())
        return times

    assert [0.0, 20.0, 20.0] == in_a_session(tmp_path, scenario, GREETED)


def test_the_delay_counts_against_no_timeout_of_the_client(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        station.acceptor.pressure = tarpit(50)
        for _ in range(4):
            assert SENDER_OK == (await timed(client, "MAIL FROM:<a@x.example>"))[1]
            await timed(client, "RSET")
        station.acceptor.pressure = NO_PRESSURE
        await client.reader.read()
        return asyncio.get_running_loop().time()

    # 40 s without progress from the last command on; 100 s in all would have ended it in the second delay
    assert 240.0 == in_a_session(tmp_path, scenario, GREETED, connection_inactivity_timeout="40s", connection_timeout="60s")


def test_pressure_that_rises_during_the_delay_refuses_the_message(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        station.acceptor.pressure = tarpit(10)
        asyncio.get_running_loop().call_later(5, setattr, station.acceptor, "pressure", pressed(MEDIUM))
        return await timed(client, "MAIL FROM:<a@x.example>"), station.acceptor.refused_count

    assert ((10.0, INSUFFICIENT), 1) == in_a_session(tmp_path, scenario, GREETED)


def test_what_is_refused_is_refused_at_once(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        station.acceptor.pressure = Pressure({}, MEDIUM, 55, MEDIUM, is_felt=True)
        return await timed(client, "MAIL FROM:<a@x.example>")

    assert (0.0, INSUFFICIENT) == in_a_session(tmp_path, scenario, GREETED)


def test_a_peer_is_inside_and_its_copies_are_never_delayed(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        await client.ask(HELLO)
        station.acceptor.pressure = tarpit(30, HIGH)
        copy = await timed(client, "MAIL FROM:<a@x.example> XSHADOW=HOLD:00000000-0000-4000-8000-000000000009:1.1")
        await timed(client, "RSET")
        station.acceptor.pressure = tarpit(30, MEDIUM)
        mail = await timed(client, "MAIL FROM:<a@x.example>")
        return copy, mail

    assert ((0.0, SENDER_OK), (0.0, SENDER_OK)) == in_a_session(tmp_path, scenario, GREETED, **PEER)


def test_a_client_that_goes_during_the_delay_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        station.acceptor.pressure = tarpit(55)
        client.writer.write(b"MAIL FROM:<a@x.example>\r\n")
        await asyncio.sleep(1)
        client.writer.transport.abort()
        while station.server.sessions_count or station.server.reception.running:
            await asyncio.sleep(0.1)
        return asyncio.get_running_loop().time()

    assert 3.0 > in_a_session(tmp_path, scenario, GREETED)


def test_a_client_that_closed_its_side_after_a_whole_group_waits_for_its_replies(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        station.acceptor.pressure = tarpit(20)
        client.writer.write(b"MAIL FROM:<a@x.example>\r\nRCPT TO:<b@here.example>\r\n")
        client.writer.write_eof()
        replies = (await client.reader.read()).decode().split("\r\n")
        return asyncio.get_running_loop().time(), [reply[:3] for reply in replies]

    assert (20.0, ["250", "250", ""]) == in_a_session(tmp_path, scenario, GREETED)


@pytest.mark.parametrize("settings", [{}, PEER])
def test_a_node_that_stops_does_not_wait_for_the_delay(tmp_path: Path, settings: dict[str, Any]) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        if settings:
            await client.ask(HELLO)
        station.acceptor.pressure = tarpit(25, HIGH)
        client.writer.write(b"MAIL FROM:<a@x.example>\r\n")
        await asyncio.sleep(1)
        await station.server.drain(30)
        drained_at = asyncio.get_running_loop().time()
        return drained_at, (await client.reader.readuntil(b"\r\n"))[:3], station.acceptor.accepted

    drained_at, reply, accepted = in_a_session(tmp_path, scenario, GREETED, **settings)

    assert (b"421", []) == (reply, accepted)
    assert drained_at < 2.0


async def test_pressure_that_rises_in_a_transaction_lets_it_end(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>")
        station.acceptor.pressure = pressed(HIGH)

        assert "354" == (await client.ask("DATA"))[:3]
        assert "250 2.0.0 Queued" == await client.ask("Subject: x\r\n\r\nhello\r\n.")
        assert INSUFFICIENT == await client.ask("MAIL FROM:<a@x.example>")

        station.acceptor.pressure = NO_PRESSURE
        assert SENDER_OK == await client.ask("MAIL FROM:<a@x.example>")
        assert (1, 1) == (len(station.acceptor.accepted), station.acceptor.refused_count)
