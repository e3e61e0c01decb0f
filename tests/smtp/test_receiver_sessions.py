"""Sessions of the receiver: limits, timeouts (in virtual time), endings, failures, and the traps of our dependencies."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiosmtpd.smtp
import pytest
import structlog

from shadowrelay.model.client_address import client_network
from shadowrelay.model.replies import STORE_UNAVAILABLE, LedgerUnavailable
from shadowrelay.smtp.limits import TOO_MANY_SESSIONS, TOO_MANY_SESSIONS_OF_ADDRESS, SessionCount
from shadowrelay.smtp.receiver import Receiver
from tests.kit.clients import TO_DATA, Client
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.receiving import HELLO, PEER, Station, files_in, in_a_session, receiving
from tests.smtp.copies import HELD, a_copy

OK = "250 2.0.0 OK"


async def emptied(station: Station) -> None:
    """Wait until the server knows of no session."""
    await until(lambda: not station.server.sessions_count)


# limits


async def test_one_session_too_many_from_an_address_is_refused_and_room_is_made_by_the_next_end(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_sessions_per_address=2) as station:
        first, _ = await station.connect(), await station.connect()

        refused = await station.connect(greeting=False)
        assert "421 4.7.0 Too many sessions from your address, try again later\r\n" == await refused.rest()

        await first.ask("QUIT")
        await refused.close()
        await until(lambda: station.server.sessions_count <= 1)
        assert "220 a.example ESMTP" == await (await station.connect(greeting=False)).reply()


async def test_addresses_that_have_gone_are_forgotten(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        await (await station.connect()).ask("QUIT")

        await emptied(station)

        assert {} == dict(station.server.reception.count._by_client)


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    count = SessionCount()

    assert [None, None] == [count.enter(f"2001:db8:0:1::{number}", 10, 2, is_ours=False) for number in (1, 2)]
    assert TOO_MANY_SESSIONS_OF_ADDRESS == count.enter("2001:db8:0:1:ffff::3", 10, 2, is_ours=False)
    assert count.enter("2001:db8:0:2::1", 10, 2, is_ours=False) is None
    assert ["192.0.2.1", "nonsense:", ""] == [client_network(text) for text in ("192.0.2.1", "nonsense:", "")]


def test_clients_that_a_translator_names_are_those_of_ipv4() -> None:
    """64:ff9b::/96 is one network of 64 bits, and the whole Internet of IPv4; a host of 6to4 has 65,536 such networks."""
    written = ("64:ff9b::192.0.2.1", "64:ff9b::c000:202", "2002:c000:201:1::1", "2002:c000:201:ffff::2")
    assert ["192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.1"] == [client_network(each) for each in written]


def test_clients_of_ours_in_one_ipv6_network_are_many() -> None:
    count = SessionCount()

    assert [None] * 5 == [count.enter(f"2001:db8:0:1::{number}", 10, 2, is_ours=True) for number in range(5)]


def test_a_peer_that_has_proved_its_name_leaves_no_trace_among_strangers() -> None:
    count = SessionCount()
    count.enter("2001:db8:0:1::1", 10, 2, is_ours=False)

    count.proved("2001:db8:0:1::1")
    count.leave("2001:db8:0:1::1", is_ours=True)

    assert ({}, [0, 0]) == (dict(count._by_client), count._counts)


def test_strangers_take_no_session_of_clients_that_may_relay() -> None:
    count = SessionCount()

    assert [None, None, TOO_MANY_SESSIONS] == [count.enter(f"192.0.2.{number}", 2, 9, is_ours=False) for number in (1, 2, 3)]
    assert [None, None, TOO_MANY_SESSIONS] == [count.enter(f"10.0.0.{number}", 2, 9, is_ours=True) for number in (1, 2, 3)]


def test_a_silent_stranger_gives_way_where_all_sessions_are_taken(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        await asyncio.sleep(11)
        after = await (await station.connect(greeting=False)).reply()
        return after[:3], (await client.rest())[:9]

    assert ("220", "421 4.3.2") == in_a_session(tmp_path, scenario, max_sessions=1)


def test_sessions_that_stay_do_not_hide_those_that_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowrelay.smtp.connection.EVICTION_LOOKS", 1)

    async def scenario(station: Station, busy: Client) -> Any:
        known = station.server.reception.peer_addresses
        known |= {"::1", "127.0.0.1"}
        await station.connect()  # of a peer, kept for long
        known.clear()
        silent = await station.connect()
        await asyncio.sleep(11)
        answers = [(await (await station.connect(greeting=False)).reply())[:3] for _ in range(2)]
        return sorted(answers), (await silent.rest())[:9]

    commands = ("EHLO c.example", "MAIL FROM:<a@x.example>")
    assert (["220", "421"], "421 4.3.2") == in_a_session(tmp_path, scenario, *commands, max_sessions=2)


def test_a_stranger_within_a_transaction_gives_no_way(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        await asyncio.sleep(11)
        return (await (await station.connect(greeting=False)).reply())[:3]

    assert "421" == in_a_session(tmp_path, scenario, "EHLO c.example", "MAIL FROM:<a@x.example>", max_sessions=1)


@pytest.mark.parametrize("commands", [(), ("MAIL FROM:<a@x.example>",), ("MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA")])
@pytest.mark.parametrize("drip", ["", "N", "NOOP\r\n"])
def test_who_says_little_for_a_minute_gives_way_whatever_it_says(tmp_path: Path, commands: Sequence[str], drip: str) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        for _ in range(14):  # 9 s each: never silent for ten
            await asyncio.sleep(9)
            if drip:
                await client.send(drip.encode())
            answer = (await (await station.connect(greeting=False)).reply())[:3]
            if answer == "220":
                break
        return answer, "421 4.3.2 " in await client.rest(), asyncio.get_running_loop().time() > 60 or not (drip or commands)

    assert ("220", True, True) == in_a_session(tmp_path, scenario, "EHLO c.example", *commands, max_sessions=1)


def test_who_sends_content_steadily_or_has_just_sent_mail_stays(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        answers = []
        await client.send(b"Subject: x\r\n\r\n")
        for _ in range(14):
            await asyncio.sleep(9)
            await client.send(b"x" * 70 + b"\r\n" + (b"y" * 70 + b"\r\n") * 13)
            answers.append((await (await station.connect(greeting=False)).reply())[:3])
        accepted = await client.ask(".")
        for _ in range(6):
            await asyncio.sleep(9)
            answers.append((await (await station.connect(greeting=False)).reply())[:3])
            await client.ask("NOOP")
        return set(answers), accepted[:3]

    commands = ("EHLO c.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA")
    assert ({"421"}, "250") == in_a_session(tmp_path, scenario, *commands, max_sessions=1)


def test_a_peer_comes_in_where_strangers_have_all_sessions(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        station.server.reception.peer_addresses |= {"::1", "127.0.0.1"}
        peer = await station.connect(greeting=False)
        return (await peer.reply())[:3]

    assert "220" == in_a_session(tmp_path, scenario, max_sessions=1)


@pytest.mark.parametrize("command", ["NOOP", "RSET", "VRFY a", "HELP", "EHLO c.example", "HELO c.example"])
def test_commands_that_lead_to_no_mail_are_slowed_and_then_end_the_session(tmp_path: Path, command: str) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        time = asyncio.get_running_loop().time
        began = time()
        for _ in range(99):
            await client.ask(command)
        quick, count = time() - began < 1, 99
        while not (answer := await client.ask(command)).startswith("421"):
            count += 1
        return quick, time() - began > 20, answer, count

    quick, is_slowed, answer, count = in_a_session(tmp_path, scenario, "EHLO c.example")

    assert (True, True, "421 4.7.0 Too many commands that lead to no mail", 199) == (quick, is_slowed, answer, count)


@pytest.mark.parametrize(
    ("before", "command"),
    [
        (["MAIL FROM:<a(@x.example>"], "RCPT TO:<b@here.example>"),
        (["MAIL FROM:<a(@x.example>"], "DATA"),
        (["MAIL FROM:<a(@x.example>"], "BDAT 0"),
        (["MAIL FROM:<a@x.example>", "RCPT TO:<b@elsewhere.example>"], "DATA"),
        (["MAIL FROM:<a@x.example>", "RCPT TO:<b@elsewhere.example>"], "BDAT 0"),
        (["MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>"], "BDAT 0"),
        (["MAIL FROM:<a@x.example>"], "RCPT TO:<b@elsewhere.example>"),
        (["MAIL FROM:<a@x.example>"], "RCPT TO:<b(@here.example>"),
        (["MAIL FROM:<a@x.example>"], "RCPT TO:<b@here.example>"),
    ],
)
def test_commands_of_no_transaction_and_refused_ones_do_not_go_on_for_ever(tmp_path: Path, before: list[str], command: str) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        began = asyncio.get_running_loop().time()
        for each in before:
            await client.ask(each)
        for count in range(20_000):
            if (answer := await client.ask(command)).startswith("421"):
                return answer, asyncio.get_running_loop().time() - began > 20, count > 150
        return "it goes on"

    ended = "421 4.7.0 Too many commands that lead to no mail", True, True
    assert ended == in_a_session(tmp_path, scenario, "EHLO c.example", connection_timeout="1h", max_protocol_errors=1000)


def test_a_message_with_many_old_addresses_or_small_chunks_gets_through(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        await client.ask("MAIL FROM:<a@x.example>")
        said = {(await client.ask(f"RCPT TO:<b{number}@elsewhere.example>"))[:3] for number in range(1_000)}
        await client.ask("RCPT TO:<b@here.example>")
        for octet in b"Subject: x\r\n\r\n" + b"y" * 2_000:
            client.writer.write(b"BDAT 1\r\n%c" % octet)
            said.add((await client.reply())[:3])
        return said, (await client.ask("BDAT 0 LAST"))[:3], station.acceptor.bodies

    said, last, bodies = in_a_session(tmp_path, scenario, "EHLO c.example", connection_timeout="1h")

    assert ({"550", "250"}, "250", [b"Subject: x\r\n\r\n" + b"y" * 2_000]) == (said, last, bodies)


def test_transactions_that_come_to_nothing_count_with_their_recipients(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        count = 0
        while True:
            for line in ("MAIL FROM:<a@x.example>", *["RCPT TO:<b@here.example>"] * 50, "RSET"):
                if (await client.ask(line)).startswith("421"):
                    return count
            count += 1

    assert 29 == in_a_session(tmp_path, scenario, "EHLO c.example")


def test_refused_recipients_count_as_commands_that_lead_to_no_mail(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        for _ in range(300):
            await client.ask("RCPT TO:<b@elsewhere.example>")
        return (await client.ask("NOOP"))[:9]

    assert "421 4.7.0" == in_a_session(tmp_path, scenario, "EHLO c.example", "MAIL FROM:<a@x.example>")


def test_an_accepted_message_ends_the_count(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        for _ in range(5):
            for line in (*["NOOP"] * 90, "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA", "Subject: x\r\n\r\ny\r\n."):
                answer = await client.ask(line)
        return answer[:3], asyncio.get_running_loop().time() < 5

    assert ("250", True) == in_a_session(tmp_path, scenario, "EHLO c.example")


@pytest.mark.parametrize(
    ("commands", "settings"),
    [(("EHLO c.example",), {"relay_from": ["127.0.0.1", "::1"]}), (("EHLO b.example", HELLO), PEER)],
)
def test_clients_that_may_relay_and_peers_have_higher_limits(tmp_path: Path, commands: tuple[str, ...], settings: dict[str, Any]) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        for _ in range(900):
            await client.ask("NOOP")
        return asyncio.get_running_loop().time() < 5

    assert in_a_session(tmp_path, scenario, *commands, **settings)


async def test_one_session_too_many_in_all_is_refused(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_sessions=1) as station:
        await station.connect()

        refused = await station.connect(greeting=False)

        assert "421 4.3.2 Too many sessions, try again later\r\n" == await refused.rest()


async def test_an_externally_secured_address_has_only_the_limit_of_all_sessions(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_sessions_per_address=1, **PEER) as station:
        await station.connect()

        assert "220 a.example ESMTP" == await (await station.connect(greeting=False)).reply()


async def test_one_recipient_too_many_is_deferred_and_the_others_get_the_message(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_recipients_per_message=100) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>")
        await client.send(b"".join(b"RCPT TO:<%d@here.example>\r\n" % number for number in range(101)))

        replies = await client.replies(101)

        assert ["250 2.1.5 Recipient OK"] * 100 + ["452 4.5.3 Too many recipients"] == replies
        await client.ask("DATA")
        await client.send(b".\r\n")
        await client.reply()
        assert 100 == len(station.acceptor.accepted[0][0].recipients)


async def test_content_over_the_limit_is_read_to_its_end_and_refused(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_message_size=64_000) as station:
        client = await station.client_in(*TO_DATA)

        await client.send((b"x" * 98 + b"\r\n") * 641 + b".\r\nNOOP\r\n")

        assert ["552 5.3.4 Message size exceeds the limit", OK] == await client.replies(2)


@pytest.mark.parametrize("errors", [1, 5, 7])
async def test_as_many_errors_are_answered_as_the_setting_says_and_the_next_ends_the_session(tmp_path: Path, errors: int) -> None:
    async with receiving(tmp_path, max_protocol_errors=errors) as station:
        client = await station.client_in("EHLO client.example")

        await client.send(b"NONSENSE\r\n" * (errors + 1))

        assert "500 5.5.1 Command not recognized\r\n" * errors + "421 4.7.0 Too many protocol errors\r\n" == await client.rest()


# timeouts: a loop whose time jumps to the next event; 300 s inactivity, 600 s in all


async def ended_at(client: Client) -> tuple[float, bytes]:
    rest = await client.reader.read()
    return asyncio.get_running_loop().time(), rest


TIMED_OUT = b"421 4.4.2 Timeout, closing connection\r\n"


@pytest.mark.parametrize(
    ("settings", "seconds"), [({}, 300.0), ({"connection_inactivity_timeout": "70s"}, 70.0), ({"role": "edge"}, 60.0)], ids=str
)
def test_a_session_without_progress_is_closed(tmp_path: Path, settings: dict[str, str], seconds: float) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        return await ended_at(client)

    assert (seconds, TIMED_OUT) == in_a_session(tmp_path, scenario, **settings)


def test_every_octet_is_progress_within_a_command_and_within_content(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        client.writer.write(b"NO")
        await asyncio.sleep(200)
        client.writer.write(b"OP\r\nEHLO c\r\nMAIL FROM:<>\r\nRCPT TO:<b@here.example>\r\nDATA\r\nx")
        await asyncio.sleep(200)
        client.writer.write(b"y")  # at 400
        return await ended_at(client)

    at, rest = in_a_session(tmp_path, scenario, connection_timeout="1h")

    assert 700.0 == at
    assert rest.endswith(b"354 End data with <CR><LF>.<CR><LF>\r\n" + TIMED_OUT)


@pytest.mark.parametrize(
    ("settings", "seconds", "replies_count"),
    [({}, 600.0, 9), ({"connection_timeout": "400s"}, 400.0, 6), ({"role": "edge"}, 300.0, 6)],
    ids=str,
)
def test_progress_does_not_save_a_session_from_the_connection_timeout(
    tmp_path: Path, settings: dict[str, str], seconds: float, replies_count: int
) -> None:
    pause = 50 if "role" in settings else 70

    async def scenario(station: Station, client: Client) -> Any:
        async def drip() -> None:
            while True:
                client.writer.write(b"NOOP\r\n")
                await asyncio.sleep(pause)

        task = asyncio.ensure_future(drip())
        at, rest = await ended_at(client)
        task.cancel()
        return at, rest

    at, rest = in_a_session(tmp_path, scenario, **settings)

    assert seconds == at
    assert b"250 2.0.0 OK\r\n" * replies_count + TIMED_OUT == rest


def test_no_timeout_comes_between_the_final_dot_and_its_reply(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        station.acceptor.gate = asyncio.Event()
        client.writer.write(b"EHLO c\r\nMAIL FROM:<>\r\nRCPT TO:<b@here.example>\r\nDATA\r\nx\r\n.\r\n")
        await asyncio.sleep(5000)
        station.acceptor.gate.set()
        return await ended_at(client)

    at, rest = in_a_session(tmp_path, scenario)

    assert 5000.0 == at
    assert rest.endswith(b"250 2.0.0 Queued\r\n" + TIMED_OUT)


def test_after_the_reply_the_inactivity_timeout_begins_anew(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        station.acceptor.gate = asyncio.Event()
        client.writer.write(b"EHLO c\r\nMAIL FROM:<>\r\nRCPT TO:<b@here.example>\r\nDATA\r\nx\r\n.\r\n")
        await asyncio.sleep(400)
        station.acceptor.gate.set()
        return (await ended_at(client))[0]

    assert 700.0 == in_a_session(tmp_path, scenario, connection_timeout="1h")


def test_the_session_of_a_peer_lasts_six_times_the_connection_timeout(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        client.writer.write(b"EHLO b.example\r\n" + HELLO.encode() + b"\r\n")
        for _ in range(17):
            await asyncio.sleep(200)
            client.writer.write(b"XQDISCARD 400\r\n")
        return (await ended_at(client))[0]

    assert 3600.0 == in_a_session(tmp_path, scenario, **PEER)


def test_the_age_of_a_session_cuts_no_copy_off(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        client.writer.write(b"EHLO b.example\r\n" + HELLO.encode() + b"\r\n")
        for _ in range(17):
            await asyncio.sleep(200)
            client.writer.write(b"XQDISCARD 400\r\n")
        copy = a_copy(b"x" * 1_000)
        client.writer.write(copy[:500])
        await asyncio.sleep(150)
        client.writer.write(copy[500:800])
        await asyncio.sleep(150)  # the session is an hour old within this
        client.writer.write(copy[800:])
        at, rest = await ended_at(client)
        return at, len(station.peer_requests.holds), rest.endswith(f"{HELD}\r\n".encode() + TIMED_OUT)

    assert (3700.0, 1, True) == in_a_session(tmp_path, scenario, **PEER)


def test_no_copy_that_trickles_in_keeps_a_session_for_ever(tmp_path: Path) -> None:
    """Whoever has a key that counts no more could read by XQDISCARD in it."""

    async def scenario(station: Station, client: Client) -> Any:
        copy = a_copy(b"x" * 1_000)
        client.writer.write(b"EHLO b.example\r\n" + HELLO.encode() + b"\r\n" + copy[: copy.index(b"BDAT")])
        for _ in range(35):
            await asyncio.sleep(200)
            client.writer.write(b"BDAT 1\r\nx")
        return (await ended_at(client))[0]

    assert 7200.0 == in_a_session(tmp_path, scenario, **PEER)


def test_a_client_that_does_not_read_its_last_reply_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowrelay.smtp.fruitless_commands.SLOW", 10_000_000)

    async def scenario(station: Station, client: Client) -> Any:
        client.reader._transport.pause_reading()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(250):
                await client.send(b"NOOP\r\n" * 1_000_000)
        async with asyncio.timeout(1000):
            await next(iter(station.server._sessions)).gone
        return station.server.sessions_count

    assert 0 == in_a_session(tmp_path, scenario, max_protocol_errors=1000)


# endings


async def test_a_client_that_has_closed_its_side_still_gets_its_replies(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.connect()
        await client.send(b"EHLO c\r\nMAIL FROM:<>\r\nRCPT TO:<b@here.example>\r\nDATA\r\nx\r\n.\r\n")
        client.writer.write_eof()

        assert (await client.rest()).endswith("250 2.0.0 Queued\r\n")
        assert [b"\r\nx\r\n"] == station.acceptor.bodies


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_a_client_that_vanishes_after_the_dot_does_not_stop_the_accept(is_reset: bool, tmp_path: Path) -> None:
    # Trap 2: aiosmtpd cancels the handler.
    async with receiving(tmp_path) as station:
        station.acceptor.gate = asyncio.Event()
        client = await station.client_in(*TO_DATA)
        await client.send(b"x\r\n.\r\n")
        await station.acceptor.began.wait()
        if is_reset:
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()
        if is_reset:
            await emptied(station)

        station.acceptor.gate.set()

        async with asyncio.timeout(PATIENCE_SECONDS):
            await station.acceptor.ended.wait()
        await emptied(station)


async def test_a_server_that_closes_waits_for_commands_that_wait_for_a_promise(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        station.acceptor.gate = asyncio.Event()
        client = await station.client_in(*TO_DATA)
        await client.send(b"x\r\n.\r\n")
        await station.acceptor.began.wait()

        closing = asyncio.ensure_future(station.server.close())
        await emptied(station)
        await asyncio.sleep(0.01)
        assert not closing.done()
        station.acceptor.gate.set()
        await closing

        assert [b"\r\nx\r\n"] == station.acceptor.bodies


@pytest.mark.parametrize("ticks", range(4))
async def test_who_was_just_accepted_when_the_server_closes_is_not_left_without_an_end(ticks: int, tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        address = station.server.address
        with socket.create_connection((address.host, address.port)) as client:  # in the backlog; no task of the loop has run since
            client.setblocking(False)
            for _ in range(ticks):
                await asyncio.sleep(0)
            await station.server.close()

            async with asyncio.timeout(PATIENCE_SECONDS):
                with contextlib.suppress(ConnectionError):
                    while await asyncio.get_running_loop().sock_recv(client, 1000):
                        pass


async def test_a_client_that_vanishes_within_content_leaves_nothing(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in(*TO_DATA)
        await client.send((b"x" * 998 + b"\r\n") * 2_000)
        await until(lambda: files_in(tmp_path))

        client.writer.transport.abort()
        await emptied(station)
        await until(lambda: not files_in(tmp_path))

        assert [] == station.acceptor.accepted


async def test_draining_ends_idle_sessions_now_and_others_after_their_transaction(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        idle = await station.client_in("EHLO client.example")
        busy = await station.client_in(*TO_DATA)

        port = station.server.address.port
        draining = asyncio.ensure_future(station.server.drain(PATIENCE_SECONDS))

        assert "421 4.3.2 Service shutting down, closing connection\r\n" == await idle.rest()
        await busy.send(b"x\r\n.\r\n")
        assert "250 2.0.0 Queued\r\n421 4.3.2 Service shutting down, closing connection\r\n" == await busy.rest()
        await draining
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


NOT_ACTIVE = "421 4.3.2 Service not active, closing connection\r\n"


async def test_a_drained_connector_listens_to_say_so_until_mail_is_welcome_again(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        idle = await station.client_in("EHLO client.example")
        busy = await station.client_in(*TO_DATA)
        refusing = asyncio.ensure_future(station.server.refuse_mail(PATIENCE_SECONDS))

        assert NOT_ACTIVE == await idle.rest()
        assert 1 == station.server.waited_for_count
        await busy.send(b"x\r\n.\r\n")
        assert f"250 2.0.0 Queued\r\n{NOT_ACTIVE}" == await busy.rest()
        await refusing
        late = await station.connect(greeting=False)
        assert NOT_ACTIVE == await late.rest()

        station.server.take_mail()

        assert 0 == station.server.waited_for_count
        await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>")


async def test_a_drained_connector_greets_whoever_may_be_a_peer_and_refuses_its_mail(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        await station.server.refuse_mail(0.0)
        peer = await station.client_in("EHLO b.example", HELLO)

        assert (await peer.ask("XQDISCARD 10")).startswith("250")
        assert NOT_ACTIVE.strip() == await peer.ask("MAIL FROM:<a@x.example>")
        assert 0 == station.server.waited_for_count


@pytest.mark.parametrize("hello", ["EHLO haproxy.corp.example", "HELO client.example"])
async def test_a_drained_connector_for_peers_refuses_whoever_does_not_have_the_name_of_a_peer(tmp_path: Path, hello: str) -> None:
    """So that a load balancer takes its clients elsewhere, and clients that come directly need not wait for MAIL."""
    async with receiving(tmp_path, **PEER) as station:
        peer = await station.client_in("EHLO b.example", HELLO)
        await station.server.refuse_mail(0.0)

        assert NOT_ACTIVE.strip() == await (await station.connect()).ask(hello)
        assert (await peer.ask("XQDISCARD 10")).startswith("250")
        assert (await (await station.client_in("EHLO B.Example.", HELLO)).ask("XQDISCARD 10")).startswith("250")

        station.server.take_mail()

        assert (await (await station.connect()).ask(hello)).startswith("250")


async def test_a_transaction_whose_content_is_complete_is_not_cut_off_by_a_drain(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        station.acceptor.gate = asyncio.Event()
        deciding, stuck = await station.client_in(*TO_DATA), await station.client_in(*TO_DATA)
        await deciding.send(b"x\r\n.\r\n")
        await until(lambda: any(session.is_deciding for session in station.server._sessions))

        await station.server.refuse_mail(0.01)

        assert "" == await stuck.rest()
        assert 1 == station.server.waited_for_count
        station.acceptor.gate.set()
        assert (await deciding.rest()).startswith("250")


async def test_draining_cuts_off_who_does_not_come_to_an_end(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        stuck = await station.client_in(*TO_DATA)

        await station.server.drain(0.01)

        assert 0 == station.server.sessions_count
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await stuck.reply()


async def test_changed_settings_hold_from_the_next_command_on(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>")
        connector = station.server.reception.connector.model_copy(update={"accepted_domains": ("there.example",)})

        station.server.reload(connector, ())

        assert "550 5.7.1 Relaying denied" == await client.ask("RCPT TO:<b@here.example>")
        assert "250 2.1.5 Recipient OK" == await client.ask("RCPT TO:<b@there.example>")


# failures of ours


async def test_an_exception_becomes_a_transient_reply_without_its_text(tmp_path: Path) -> None:
    # Trap 1: aiosmtpd answers `500 Error: (RuntimeError) <text>`.
    async with receiving(tmp_path) as station:
        station.acceptor.error = RuntimeError("secret")
        client = await station.client_in(*TO_DATA)

        with structlog.testing.capture_logs() as lines:
            await client.send(b"x\r\n.\r\n")
            reply = await client.reply()

        failed = next(line for line in lines if line["event"] == "session.failed")
        assert f"451 4.3.0 Local error in processing, try again later (log id {failed['log_id']})" == reply
        assert "RuntimeError('secret')" == failed["error"]
        assert OK == await client.ask("NOOP")


async def test_an_unavailable_ledger_is_answered_with_its_own_reply(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        station.acceptor.error = LedgerUnavailable(STORE_UNAVAILABLE, "locked")
        client = await station.client_in(*TO_DATA)
        await client.send(b"x\r\n.\r\n")

        assert (await client.reply()).startswith("451 4.3.0 Local storage error, try again later")


async def test_a_failure_within_content_ends_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, block: bytes) -> None:
        raise RuntimeError("secret")

    async with receiving(tmp_path) as station:
        client = await station.client_in(*TO_DATA)
        monkeypatch.setattr("shadowrelay.smtp.data.DataFilter.take", broken)

        await client.send(b"x\r\n.\r\nMAIL FROM:<smuggled@x.example>\r\n")

        assert "421 4.3.0 Local error in processing, closing connection\r\n" == await client.rest()


# the line of a session


async def test_a_session_leaves_one_line(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        with structlog.testing.capture_logs() as lines:
            client = await station.client_in("EHLO client.example")
            await client.ask("NONSENSE")
            for command in TO_DATA[1:]:
                await client.ask(command)
            await client.send(b"x\r\n.\r\n")
            await client.reply()
            await client.ask("QUIT")
            await client.close()
            await emptied(station)

        assert ["session.closed"] == [line["event"] for line in lines]
        line = lines[0]
        assert ("in", "127.0.0.1", "client.example", "", "") == tuple(
            line[key] for key in ("connector", "client", "client_name", "peer", "tls")
        )
        assert (1, 0, 1, 1, "quit") == tuple(line[key] for key in ("messages", "copies", "refused", "errors", "reason"))


async def test_a_session_in_which_nothing_happens_leaves_a_line_for_debugging_only(tmp_path: Path) -> None:
    """A load balancer looks every other second."""
    async with receiving(tmp_path) as station:
        with structlog.testing.capture_logs() as lines:
            for command in ("", "EHLO probe.example", "NONSENSE"):
                client = await station.client_in()
                if command:
                    await client.ask(command)
                await client.close()
                await emptied(station)

        assert ["debug", "debug", "info"] == [line["log_level"] for line in lines if line["event"] == "session.closed"]


# more traps


async def test_pipelined_replies_leave_in_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []

    async with receiving(tmp_path) as station:
        client = await station.client_in("EHLO client.example")
        session = next(iter(station.server._sessions))
        write = session.transport.write
        monkeypatch.setattr(session, "transport", Spy(session.transport, lambda data: (writes.append(data), write(data))))

        await client.send(b"NOOP\r\nNOOP\r\nNOOP\r\n")
        await client.replies(3)

    assert [b"250 2.0.0 OK\r\n" * 3] == writes


class Spy:
    """A transport that tells what is written to it."""

    def __init__(self, transport: Any, write: Callable[[bytes], Any]) -> None:
        self._transport = transport
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_the_limit_of_one_session_does_not_change_with_another(tmp_path: Path) -> None:
    # Trap 8: aiosmtpd's limits are one dict of the class, cleared by every new connection.
    async with receiving(tmp_path) as station:
        client = await station.client_in("EHLO client.example", "EHLO client.example")
        await station.client_in("EHLO client.example")
        line = "MAIL FROM:<a@x.example> SIZE=1 BODY=8BITMIME SMTPUTF8 RET=FULL ENVID=" + "x" * 100

        assert "250 2.1.0 Sender OK" == await client.ask(line)
        assert {} == dict(aiosmtpd.smtp.SMTP.command_size_limits)


async def test_a_new_connection_costs_no_reflection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("inspect.getmembers")

    monkeypatch.setattr("inspect.getmembers", forbidden)
    async with receiving(tmp_path) as station:
        assert OK == await (await station.connect()).ask("NOOP")


def test_every_command_of_aiosmtpd_is_ours_or_refused() -> None:
    inherited = [name for name, command in Receiver.commands.items() if command.__module__.startswith("aiosmtpd")]

    assert [] == inherited
    assert {
        "BDAT", "DATA", "EHLO", "HELO", "HELP", "MAIL", "NOOP", "QUIT", "RCPT", "RSET", "STARTTLS", "VRFY", "XCLIENT", "XFORWARD",
        "XQDISCARD", "XSHADOW",
    } == set(Receiver.commands)  # fmt: skip


async def test_every_reply_but_greeting_and_hello_has_an_enhanced_code(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_protocol_errors=100) as station:
        client = await station.client_in("EHLO client.example")

        replies = [
            await client.ask(name)
            for name in (*Receiver.commands, "AUTH", "EXPN", "NONSENSE")
            if name not in ("QUIT", "BDAT", "EHLO", "HELO")
        ]

        assert [] == [reply for reply in replies if reply[:1] != reply[4:5]]
