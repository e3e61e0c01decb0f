"""Limits for each client in whole sessions, in virtual time: what is refused, with which reply, and whom it never meets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog

from shadowrelay.model.client_minute import Counted
from shadowrelay.model.receive_settings import LimitsPerClient
from tests.kit.clients import Client
from tests.kit.receiving import HELLO, PEER, Station, in_a_session
from tests.smtp.copies import HELD, a_copy

CONNECTIONS = "421 4.7.0 Too many connections from your address in a minute, try again later"
MESSAGES = "450 4.7.1 Too many messages from your address in a minute, try again later"
RECIPIENTS = "452 4.7.1 Too many recipients from your address in a minute, try again later"
REFUSED = "421 4.7.1 Too many wrong recipients from your address in a minute, try again later"
OCTETS = "452 4.7.1 Too much content from your address in a minute, try again later"
MAIL = "MAIL FROM:<a@x.example>"
RCPT = "RCPT TO:<b@here.example>"


async def told(client: Client, *commands: str) -> list[str]:
    return [await client.ask(command) for command in commands]


def test_one_connection_too_many_in_a_minute_is_refused_and_the_next_minute_is_free(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        await client.ask("QUIT")
        second = await station.connect()
        await second.ask("QUIT")
        third = await station.connect(greeting=False)
        refused = await third.rest()
        await asyncio.sleep(61)
        fourth = await station.connect(greeting=False)
        return refused, (await fourth.reply())[:3], station.server.reception.clients.refused[Counted.CONNECTIONS]

    assert (f"{CONNECTIONS}\r\n", "220", 1) == in_a_session(tmp_path, scenario, limits={"connections_per_minute": 2})


def test_one_message_too_many_in_a_minute_is_deferred_in_whatever_session_it_comes(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        first = await client.mail(["b@here.example"])
        other = await station.client_in("EHLO c.example")
        second = await other.mail(["b@here.example"])
        refused = await told(other, MAIL, MAIL) + await told(client, MAIL, "RSET")
        await asyncio.sleep(60)
        return first[:3], second[:3], refused, (await told(client, MAIL))[0][:3]

    found = in_a_session(tmp_path, scenario, "EHLO c.example", limits={"messages_per_minute": 2})

    assert ("250", "250", [MESSAGES] * 3 + ["250 2.0.0 OK"], "250") == found


def test_recipients_beyond_the_share_are_deferred_and_the_others_get_the_message(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        replies = await told(client, RCPT, RCPT, RCPT, "DATA")
        await client.send(b"Subject: x\r\n\r\nx\r\n.\r\n")
        done = await client.reply()
        return [reply[:3] for reply in replies], replies[2], done[:3], len(station.acceptor.accepted[0][0].recipients)

    found = in_a_session(tmp_path, scenario, "EHLO c.example", MAIL, limits={"recipients_per_minute": 2})

    assert (["250", "250", "452", "354"], RECIPIENTS, "250", 2) == found


def test_a_dictionary_attack_ends_at_its_limit_and_learns_nothing_more_by_right_guesses(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        replies = await told(client, "RCPT TO:<x@elsewhere.example>", RCPT, "RCPT TO:<y@elsewhere.example>")
        last = await told(client, RCPT)
        rest = await client.rest()
        again = await station.client_in("EHLO c.example")
        at_mail = await again.ask(MAIL)
        return [reply[:3] for reply in replies], last, rest, at_mail, station.acceptor.accepted

    found = in_a_session(tmp_path, scenario, "EHLO c.example", MAIL, limits={"refused_recipients_per_minute": 2})

    assert (["550", "250", "550"], [REFUSED], "", REFUSED, []) == found


def test_content_beyond_the_share_is_refused_at_mail_where_its_size_is_declared_else_after_it(tmp_path: Path) -> None:
    content = b"Subject: x\r\n\r\n" + b"x" * 600 + b"\r\n"

    async def scenario(station: Station, client: Client) -> Any:
        first = await client.mail(["b@here.example"], content)
        declared = await client.ask(f"{MAIL} SIZE=600")
        undeclared = await client.mail(["b@here.example"], content)
        small = await client.mail(["b@here.example"], b"Subject: y\r\n\r\n")
        await asyncio.sleep(60)
        large = await client.mail(["b@here.example"], content * 3)
        return first[:3], declared, undeclared, small[:3], large[:3], len(station.acceptor.accepted), [*station.spool.iterdir()]

    found = in_a_session(tmp_path, scenario, "EHLO c.example", limits={"octets_per_minute": 1000})

    assert ("250", OCTETS, OCTETS, "250", "250", 3, []) == found


def test_a_peer_has_no_limits_also_where_it_is_not_known_by_its_address(tmp_path: Path) -> None:
    everything = {f"{what}_per_minute": 1 for what in Counted}

    async def scenario(station: Station, client: Client) -> Any:
        replies = []
        for _ in range(3):
            peer = await station.client_in("EHLO b.example", HELLO)
            await peer.send(a_copy(b"Subject: x\r\n\r\nx\r\n"))
            replies.append((await peer.replies(6))[-1])
        return replies

    assert [HELD] * 3 == in_a_session(tmp_path, scenario, limits=everything, **PEER)


def test_where_a_client_may_still_prove_to_be_a_peer_one_connection_too_many_is_refused_at_mail(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        station.server.reception.rights.is_externally_secured = lambda address: False  # type: ignore[method-assign]
        too_many = await station.client_in("EHLO c.example")
        return await too_many.ask(MAIL), await too_many.rest()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shadowrelay.smtp.peer_part.PeerPart.may_prove", lambda self: True)
        found = in_a_session(tmp_path, scenario, limits={"connections_per_minute": 1})

    assert (CONNECTIONS, "") == found


def test_exempt_networks_have_no_limits_and_wait_for_no_greeting(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        began = asyncio.get_running_loop().time()
        clients = [await station.client_in("EHLO c.example") for _ in range(4)]
        return [(await client.ask(MAIL))[:3] for client in clients], asyncio.get_running_loop().time() - began < 5

    settings = {"connections_per_minute": 1, "messages_per_minute": 1, "greeting_delay": "6s", "exempt": ["127.0.0.0/8", "::1"]}

    assert (["250"] * 4, True) == in_a_session(tmp_path, scenario, limits=settings)


def test_who_talks_before_the_delayed_greeting_is_turned_away_and_others_are_greeted(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        early = await station.connect(greeting=False)
        await early.send(b"EHLO c.example\r\nMAIL FROM:<a@x.example>\r\n")
        refused = await early.rest()
        began = asyncio.get_running_loop().time()
        patient = await station.connect()
        waited = asyncio.get_running_loop().time() - began
        return refused, 6 <= waited < 8, (await patient.ask("EHLO c.example"))[:3], station.server.reception.clients.early_count

    found = in_a_session(tmp_path, scenario, limits={"greeting_delay": "6s"})

    assert ("421 4.7.0 Protocol synchronization error\r\n", True, "250", 1) == found


def test_a_client_that_is_limited_is_logged_once_in_its_minute(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        with structlog.testing.capture_logs() as logs:
            await told(client, MAIL, "RSET", MAIL, MAIL, MAIL)
            await asyncio.sleep(61)
            await told(client, MAIL, "RSET", MAIL)
        return [line for line in logs if line["event"] == "client.limited"]

    lines = in_a_session(tmp_path, scenario, "EHLO c.example", limits={"messages_per_minute": 1})

    assert [("in", "messages", 1)] * 2 == [(line["connector"], line["limit"], line["per_minute"]) for line in lines]


def test_limits_that_come_and_go_by_a_reload_hold_in_open_sessions(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        connector = station.server.reception.connector
        before = await told(client, MAIL, "RSET", MAIL, "RSET")
        station.server.reload(connector.model_copy(update={"limits": LimitsPerClient(messages_per_minute=1)}), ())
        limited = await told(client, MAIL, "RSET", MAIL)
        station.server.reload(connector, ())
        return before[2][:3], limited[2], (await client.ask(MAIL))[:3]

    assert ("250", MESSAGES, "250") == in_a_session(tmp_path, scenario, "EHLO c.example")


def test_clients_are_listed_with_their_sessions_also_without_limits(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        await station.connect()
        (one,) = await station.server.clients(10)
        return one.connector, one.sessions_count, one.minute

    assert ("in", 2, None) == in_a_session(tmp_path, scenario)


def test_a_server_that_speaks_for_clients_is_not_counted_but_each_of_them_is(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        found = []
        for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.1"):
            speaker = await station.client_in("EHLO c.example")
            found.append((await speaker.ask(f"XCLIENT ADDR={address}"))[:3])
        return found

    speakers = ["127.0.0.0/8", "::1/128"]

    assert ["220", "220", "220", "421"] == in_a_session(
        tmp_path, scenario, xclient_from=speakers, limits={"connections_per_minute": 2, "messages_per_minute": 9}
    )
