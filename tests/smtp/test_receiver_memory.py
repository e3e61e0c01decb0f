"""Sessions when memory or descriptors are short: spooled early, then waiting, then 452 or 421; and nothing is left of them."""

import asyncio
import gc
import socket
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.memory import ContentBudget
from shadowrelay.smtp.connection import Connection
from shadowrelay.smtp.limits import READ_AHEAD_OCTETS, REPLIES_OCTETS_MAX, ROOM_SECONDS, UNCOUNTED_OCTETS, Descriptors
from tests.kit.clients import TO_DATA, Client
from tests.kit.clock import until
from tests.kit.receiving import HELLO, PEER, Station, files_in, in_a_session, receiving

OK = "250 2.0.0 OK"
FULL = "452 4.3.1 Insufficient system resources"
BODY = (b"x" * 98 + b"\r\n") * 3_000
COPY = "MAIL FROM:<a@x.example> XSHADOW=HOLD:6ba7b810-9dad-41d1-80b4-00c04fd430c8:1.1"


def filled(budget: ContentBudget) -> Any:
    """What makes the budget full until it is released."""
    portion = budget.portion()
    portion.count(budget.bytes_max)
    return portion


async def test_content_goes_to_a_file_when_the_budget_is_used_and_arrives_whole(tmp_path: Path) -> None:
    budget = ContentBudget(400_000)
    async with receiving(tmp_path, budget=budget) as station:
        first = await station.client_in(*TO_DATA)
        await first.send(BODY[:150_000])
        await until(lambda: budget.used >= 150_000)
        assert [] == files_in(tmp_path)
        second = await station.client_in(*TO_DATA)
        await second.send(BODY)
        await until(lambda: len(files_in(tmp_path)) == 1)
        await second.send(b".\r\n")

        assert (await second.reply()).startswith("250")
        assert ([b"\r\n" + BODY], 1) == (station.acceptor.bodies, budget.spooled_early_count)
        assert "x" not in station.acceptor.accepted[0][0].subject


async def test_the_budget_has_everything_back_when_content_is_dropped_and_sessions_are_gone(tmp_path: Path) -> None:
    budget = ContentBudget()
    async with receiving(tmp_path, budget=budget) as station:
        taken = await station.client_in(*TO_DATA)
        await taken.send(BODY + b".\r\n")
        await taken.reply()
        gone = await station.client_in(*TO_DATA)
        await gone.send(BODY)
        await until(lambda: budget.used > len(BODY) * 3 // 2)

        gone.writer.transport.abort()
        station.acceptor.accepted.clear()

        await until(lambda: not budget.used)


async def test_a_session_waits_for_memory_before_the_354_and_goes_on_when_there_is_some(tmp_path: Path) -> None:
    budget = ContentBudget()
    async with receiving(tmp_path, budget=budget) as station:
        portion = filled(budget)
        client = await station.client_in(*TO_DATA[:3])
        await client.send(b"DATA\r\n")
        await until(lambda: budget.waiting_count)

        portion.release()

        assert "354 End data with <CR><LF>.<CR><LF>" == await client.reply()


def test_a_session_that_waits_for_memory_in_vain_is_answered_452_and_goes_on(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        budget = station.server.reception.budget
        portion = filled(budget)
        for command in TO_DATA[:3]:
            await client.ask(command)
        began = asyncio.get_running_loop().time()
        refused = await client.ask("DATA")
        waited = asyncio.get_running_loop().time() - began
        portion.release()
        return waited, refused, await client.ask("DATA"), budget.refused_count

    assert (ROOM_SECONDS, FULL, "354 End data with <CR><LF>.<CR><LF>", 1) == in_a_session(tmp_path, scenario)


def test_content_for_which_memory_was_waited_for_in_vain_is_read_to_its_end_and_refused(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        for command in TO_DATA:
            await client.ask(command)
        portion = filled(station.server.reception.budget)
        sending = asyncio.ensure_future(client.send(BODY + b".\r\nNOOP\r\n"))
        replies = await client.replies(2)
        await sending
        portion.release()
        return replies, files_in(tmp_path), len(station.acceptor.accepted)

    assert ([FULL, OK], [], 0) == in_a_session(tmp_path, scenario)


def test_a_session_that_waits_for_memory_is_not_one_without_progress(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        budget = station.server.reception.budget
        for command in TO_DATA[:3]:
            await client.ask(command)
        portion = filled(budget)
        await client.send(b"DATA\r\n")
        await asyncio.sleep(ROOM_SECONDS - 1)
        portion.release()
        await client.reply()
        await asyncio.sleep(299)
        await client.send(b".\r\n")
        return await client.reply()

    assert "250 2.0.0 Queued" == in_a_session(tmp_path, scenario)


def test_a_copy_for_which_there_is_no_memory_is_refused_soon(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        for command in ("EHLO b.example", HELLO, COPY, "RCPT TO:<b@here.example>"):
            assert (await client.ask(command)).startswith("250")
        portion = filled(station.server.reception.budget)
        size = 4 * READ_AHEAD_OCTETS
        sending = asyncio.ensure_future(client.send(b"BDAT %d\r\n" % size + b"x" * size + b"NOOP\r\n"))
        refused = await client.reply()
        at = asyncio.get_running_loop().time()
        await client.reply()
        await sending
        portion.release()
        return refused, at < 5

    assert (FULL, True) == in_a_session(tmp_path, scenario, **PEER)


@pytest.mark.parametrize("ending", ["QUIT", "abort", "abort in content"])
async def test_a_session_that_is_over_is_freed_without_the_garbage_collector(tmp_path: Path, ending: str) -> None:
    async with receiving(tmp_path) as station:
        gc.disable()
        gc.freeze()  # `get_objects` has only what was made since. It stays so, as for all tests (tests/conftest.py)
        try:
            client = await station.client_in(*(TO_DATA if ending == "abort in content" else TO_DATA[:1]))
            await client.send(b"QUIT\r\n" if ending == "QUIT" else b"x" * 500)
            if ending == "QUIT":
                await client.rest()
                await client.close()
            else:
                client.writer.transport.abort()
            await until(lambda: not station.server.sessions_count)
            station.clients.clear()
            del client
            await asyncio.sleep(0.05)
            left = [each for each in gc.get_objects() if isinstance(each, Connection)]
        finally:
            gc.enable()

    # asyncio's own selector transport refers to itself, and so keeps its protocol; uvloop's does not
    assert [] == left


async def test_a_session_is_refused_while_only_the_reserve_of_descriptors_is_left(tmp_path: Path) -> None:
    descriptors = Descriptors(20_000)
    async with receiving(tmp_path, descriptors=descriptors) as station:
        early = await station.connect()
        descriptors.adopt(12)  # the number of the next one is higher than 9 and lower than 12, or higher

        refused = await station.connect(greeting=False)

        assert await refused.rest() == "421 4.3.2 Too many sessions, try again later\r\n"
        assert OK == await early.ask("NOOP")
        assert 1 == descriptors.refused_count
        descriptors.adopt(20_000)
        await station.connect()


async def test_a_connection_for_which_there_is_no_room_at_all_hears_it_before_it_is_closed(tmp_path: Path) -> None:
    descriptors = Descriptors(20_000)
    async with receiving(tmp_path, descriptors=descriptors) as station:
        descriptors.adopt(4)  # of which half a reserve is one: whatever number the next one has, it is cut off

        rests = [await (await station.connect(greeting=False)).rest() for _ in range(20)]
        sessions_count = station.server.sessions_count

        assert ({"421 4.3.2 Too many sessions, try again later\r\n"}, 0) == (set(rests), sessions_count)
        descriptors.adopt(20_000)
        await station.connect()


async def test_a_content_that_needs_a_file_is_refused_while_few_descriptors_are_left_and_leaves_none(tmp_path: Path) -> None:
    descriptors = Descriptors(20_000)
    async with receiving(tmp_path, descriptors=descriptors, budget=ContentBudget(100_000)) as station:
        client = await station.client_in(*TO_DATA)
        descriptors.adopt(4)
        before = len(list(Path("/proc/self/fd").iterdir()))

        await client.send(BODY + b".\r\nNOOP\r\n")

        assert [FULL, OK] == await client.replies(2)
        assert ([], before) == (files_in(tmp_path), len(list(Path("/proc/self/fd").iterdir())))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (2_999, (False, False, False, False)),
        (3_000, (True, False, False, False)),
        (3_500, (True, True, True, False)),
        (3_750, (True, True, True, True)),
    ],
)
def test_sessions_end_before_files_files_before_next_hops_and_next_hops_before_the_reserve(number: int, expected: tuple[bool, ...]) -> None:
    descriptors = Descriptors(4_000)
    bounds = (descriptors.refuses_session, descriptors.cuts_off_session, descriptors.refuses_file, descriptors.refuses_next_hop)

    assert expected == tuple(refuses(number) for refuses in bounds)


def test_the_reserve_of_a_large_limit_is_not_a_quarter_of_it() -> None:
    assert (1_024, 256) == (Descriptors(1_000_000).reserve, Descriptors(1_024).reserve)


def test_a_client_that_sends_an_octet_a_second_holds_next_to_nothing_and_ends_with_its_time(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        for command in TO_DATA:
            await client.ask(command)

        async def drip() -> None:
            for _ in range(590):
                client.writer.write(b"x")
                await asyncio.sleep(1)

        dripping = asyncio.ensure_future(drip())
        await asyncio.sleep(500)
        used = station.server.reception.budget.used
        rest = await client.reader.read()
        dripping.cancel()
        return used < 1_000, asyncio.get_running_loop().time(), rest

    assert (True, 600.0, b"421 4.4.2 Timeout, closing connection\r\n") == in_a_session(tmp_path, scenario)


def test_a_client_that_has_vanished_without_a_word_holds_its_content_until_the_inactivity_timeout(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        budget = station.server.reception.budget
        for command in TO_DATA:
            await client.ask(command)
        await client.send(BODY)
        await asyncio.sleep(299)
        held = budget.used
        await asyncio.sleep(10)
        return held >= len(BODY), budget.used, station.server.sessions_count

    assert (True, 0, 0) == in_a_session(tmp_path, scenario)


async def a_client_that_reads_nothing(station: Station, *commands: str) -> Client:
    """From now on, that is. The kernel takes few octets of the replies, on either side."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.setblocking(False)
    address = station.server.address
    await asyncio.get_running_loop().sock_connect(connection, (address.host, address.port))
    client = Client(*await asyncio.open_connection(sock=connection))
    station.clients.append(client)
    await client.reply()
    for command in commands:
        await client.ask(command)
    the_session(station).transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return client


def the_session(station: Station) -> Any:
    (session,) = station.server._sessions
    return session


async def test_nothing_is_read_from_a_client_that_does_not_take_its_replies(tmp_path: Path) -> None:
    budget = ContentBudget()
    async with receiving(tmp_path, budget=budget) as station:
        client = await a_client_that_reads_nothing(station)
        session = the_session(station)
        client.writer.write(b"EHLO client.example\r\n" * 200_000)
        await until(lambda: session._paused)
        await asyncio.sleep(0.2)
        unread, unwritten = session.own_reader.has_octets(UNCOUNTED_OCTETS + 1), session.transport.get_write_buffer_size()

        assert (False, 0) == (unread, budget.used)
        assert unwritten <= REPLIES_OCTETS_MAX + 1_000
        client.writer.transport.abort()


async def test_a_client_that_takes_its_replies_late_gets_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowrelay.smtp.fruitless_commands.SLOW", 100_000)
    async with receiving(tmp_path) as station:
        client = await a_client_that_reads_nothing(station)
        session = the_session(station)
        client.writer.write(b"NOOP\r\n" * 20_000 + b"QUIT\r\n")
        await until(lambda: session._paused)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]

        assert 20_001 == (await client.rest()).count("\r\n")


async def test_who_sends_much_behind_a_content_and_takes_no_replies_is_cut_off(tmp_path: Path) -> None:
    budget = ContentBudget()
    async with receiving(tmp_path, budget=budget) as station:
        client = await a_client_that_reads_nothing(station, *TO_DATA)
        session = the_session(station)
        client.writer.write(b"x\r\n")
        await until(lambda: session.own_reader.is_in_content)
        client.writer.write(b".\r\n" + b"EHLO c\r\n" * 20_000)

        await until(lambda: not station.server.sessions_count)
        station.acceptor.accepted.clear()
        await until(lambda: not budget.used)


async def test_content_is_not_read_while_the_budget_is_full_beyond_what_any_session_may_have(tmp_path: Path) -> None:
    budget = ContentBudget(8_000_000)
    async with receiving(tmp_path, budget=budget) as station:
        clients = [await station.client_in(*TO_DATA) for _ in range(5)]
        portion = budget.portion()
        portion.count(budget.bytes_max * 3 // 4)
        for client in clients:
            client.writer.write(BODY)
        await until(lambda: budget.waiting_count == 5)
        await asyncio.sleep(0.2)
        beyond = [session for session in station.server._sessions if session.own_reader.has_octets(UNCOUNTED_OCTETS + 1)]

        assert ([], portion.size) == (beyond, budget.used)
        portion.release()
        for client in clients:
            client.writer.write(b".\r\n")
        assert ["250 2.0.0 Queued"] * 5 == [await client.reply() for client in clients]


async def test_many_sessions_in_content_hold_no_more_than_the_budget_and_their_small_part_each(tmp_path: Path) -> None:
    budget = ContentBudget(8_000_000)
    most = 0

    async def one(station: Station) -> str:
        nonlocal most
        client = await station.client_in(*TO_DATA)
        for start in range(0, len(BODY), 30_000):
            await client.send(BODY[start : start + 30_000])
            most = max(most, budget.used)
        await client.send(b".\r\n")
        return await client.reply()

    async with receiving(tmp_path, budget=budget) as station:
        replies = await asyncio.gather(*(one(station) for _ in range(60)))

    assert ["250 2.0.0 Queued"] * 60 == replies
    assert most <= budget.bytes_max * 3 // 4


def test_the_time_that_a_session_waits_for_our_memory_is_not_its_clients(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        time = asyncio.get_running_loop().time
        for command in TO_DATA[:3]:
            await client.ask(command)
        await asyncio.sleep(5)
        portion = filled(station.server.reception.budget)
        refused = await client.ask("DATA")
        at = time()
        portion.release()
        rest = await client.reader.read()
        return at, refused, time(), rest

    timed_out = b"421 4.4.2 Timeout, closing connection\r\n"
    assert (35.0, FULL, 45.0, timed_out) == in_a_session(tmp_path, scenario, connection_inactivity_timeout="10s")


def test_the_time_of_a_session_does_not_run_while_it_waits_for_our_memory(tmp_path: Path) -> None:
    async def scenario(station: Station, client: Client) -> Any:
        for command in TO_DATA[:3]:
            await client.ask(command)
        await asyncio.sleep(595)
        portion = filled(station.server.reception.budget)
        refused = await client.ask("DATA")
        portion.release()
        await client.reader.read()
        return refused, asyncio.get_running_loop().time()

    assert (FULL, 600.0 + ROOM_SECONDS) == in_a_session(tmp_path, scenario, connection_inactivity_timeout="599s")
