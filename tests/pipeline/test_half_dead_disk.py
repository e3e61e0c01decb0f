"""A disk on which commits succeed, and yet the node cannot do its work: it is silent as with a dead one. docs/design.md 6.14."""

import asyncio
import errno
import sqlite3
from pathlib import Path

import pytest

from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX
from shadowrelay.model.ownership import Role
from shadowrelay.model.readiness import NewMail
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, STORE_UNAVAILABLE, LedgerUnavailable, Reply
from shadowrelay.pipeline.own_disk import OwnDisk
from shadowrelay.rules.placement import REFUSED_SECONDS_MAX
from shadowrelay.store import errors
from tests.kit.clock import until
from tests.kit.nodes import EAST, HEARTBEAT, NO_SUCH_USER, OK, SPAN, WEST, in_virtual_time, nodes
from tests.pipeline.scenes import a_waiting_message, reasons

ALWAYS = 1_000_000


def of_the_disk(error: Exception) -> LedgerUnavailable:
    return errors.unavailable(error)


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.DatabaseError("in this test")
    error.sqlite_errorcode = code
    return error


@in_virtual_time
async def test_what_cannot_be_recorded_for_want_of_room_is_taken_over_though_other_commits_succeed(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net), net.nodes[WEST]
        waiting = east.last
        net.sink.answer = lambda address: NO_SUCH_USER
        east.ledger.fail("attempt", ALWAYS, LedgerUnavailable(INSUFFICIENT_RESOURCES, "no room for its DSN"))

        await until(east.context.why_silent, 4 * HEARTBEAT)
        assert "this node cannot commit what it did: no room for its DSN" == east.context.why_silent()
        assert NewMail.REFUSED is east.services.readiness.new_mail().outcome
        assert not (await east.accept()).is_positive
        await until(west.in_role(waiting, Role.DELIVERED), SPAN + 5 * HEARTBEAT)
        assert ["Silence"] == reasons(west)

        east.ledger.fail("attempt", 0)
        await until(lambda: not east.context.why_silent(), 3 * HEARTBEAT)
        assert not east.context.own_disk._unrecorded


@pytest.mark.parametrize(("reply", "is_silent"), [(INSUFFICIENT_RESOURCES, True), (STORE_UNAVAILABLE, False)])
@in_virtual_time
async def test_a_journal_report_for_which_there_is_no_room_makes_its_node_silent_and_a_bad_sector_does_not(
    tmp_path: Path, reply: Reply, is_silent: bool
) -> None:
    routes = [{"recipients": ["*"], "next_hop": "sink.example:25", "journal_recipient": "journal@archive.example"}]
    async with nodes(tmp_path, EAST, WEST, routes=routes) as net:
        east = net.nodes[EAST]
        east.ledger.fail("wrapped", ALWAYS, LedgerUnavailable(reply, "in this test"))
        await east.accept()
        await until(lambda: net.sink.arrived)
        await asyncio.sleep(4 * HEARTBEAT)
        assert is_silent is bool(east.context.why_silent())


@in_virtual_time
async def test_an_outcome_that_is_recorded_in_time_makes_nobody_silent(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await a_waiting_message(net)
        net.sink.answer = lambda address: NO_SUCH_USER
        east.ledger.fail("attempt", 3)
        await until(east.in_role(east.last, Role.DELIVERED), SPAN)
        await asyncio.sleep(3 * HEARTBEAT)
        assert (False, {}) == (bool(east.context.why_silent()), east.context.own_disk._unrecorded)


@in_virtual_time
async def test_a_queue_database_that_cannot_be_read_makes_its_node_silent(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net), net.nodes[WEST]
        east.ledger.fail("proof", ALWAYS, of_the_disk(sqlite_error(sqlite3.SQLITE_IOERR)))
        await asyncio.sleep(1)

        await until(east.context.why_silent, 4 * HEARTBEAT)
        assert "cannot read what it has stored" in east.context.why_silent()
        net.sink.answer = lambda address: OK
        await until(west.in_role(east.last, Role.DELIVERED), SPAN + 5 * HEARTBEAT)

        east.ledger.fail("proof", 0)
        await until(lambda: not east.context.why_silent(), 3 * HEARTBEAT)
        await until(east.in_role(east.last, Role.DELIVERED), SPAN)
        assert [WEST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_readers_that_are_all_busy_say_nothing_of_the_disk(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await a_waiting_message(net)
        east.ledger.fail("proof", ALWAYS, of_the_disk(sqlite_error(sqlite3.SQLITE_BUSY)))
        await asyncio.sleep(6 * HEARTBEAT)
        assert not east.context.why_silent()


@in_virtual_time
async def test_a_disk_that_never_answers_a_reading_makes_its_node_silent_until_it_does(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net), net.nodes[WEST]
        hanging = east.ledger.gates["prove_read"] = east.ledger.gates["read_content"] = asyncio.Event()

        await asyncio.sleep(4 * HEARTBEAT)
        assert not east.context.why_silent(), "it may be slow"
        await until(east.context.why_silent, 3 * HEARTBEAT)
        assert "this node cannot read what it has stored: the disk does not answer" == east.context.why_silent()
        net.sink.answer = lambda address: OK
        await until(west.in_role(east.last, Role.DELIVERED), SPAN + 5 * HEARTBEAT)

        hanging.set()
        await until(lambda: not east.context.why_silent(), 3 * HEARTBEAT)
        await until(east.in_role(east.last, Role.DELIVERED), SPAN)
        assert [WEST] == [who for who, _, _ in net.sink.arrived]


@pytest.mark.parametrize("rejects", [False, True])
@in_virtual_time
async def test_a_node_that_cannot_store_mail_says_so_until_it_does_or_none_has_come_for_a_while(tmp_path: Path, rejects: bool) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=rejects) as net:
        readiness, east = net.nodes[EAST].services.readiness, net.nodes[EAST]
        readiness.is_running = True

        def said() -> tuple[bool, NewMail, bool]:
            is_ready, reasons = readiness.is_ready()
            return is_ready, readiness.new_mail().outcome, any("no room" in reason for reason in reasons)

        assert (await east.accept()).is_positive
        assert (True, NewMail.COPIED, False) == said()
        east.ledger.fail("accepted", 2, LedgerUnavailable(INSUFFICIENT_RESOURCES, "no room"))
        assert INSUFFICIENT_RESOURCES == await east.accept()
        assert (False, NewMail.REFUSED, True) == said()
        await asyncio.sleep(REFUSED_SECONDS_MAX)
        assert (True, NewMail.COPIED, False) == said(), "else nothing would show that there is room again"
        assert INSUFFICIENT_RESOURCES == await east.accept()
        assert (False, NewMail.REFUSED, True) == said()
        assert (await east.accept()).is_positive
        assert (True, NewMail.COPIED, False) == said()


@pytest.mark.parametrize(
    ("error", "is_of_the_disk"),
    [
        (OSError(errno.EIO, "x"), True),
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EMFILE, "x"), False),
        (sqlite_error(sqlite3.SQLITE_IOERR), True),
        (sqlite_error(sqlite3.SQLITE_CORRUPT), True),
        (sqlite_error(sqlite3.SQLITE_BUSY), False),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), False),
        (TimeoutError(), False),
    ],
)
def test_errors_of_the_disk_are_told_from_others(error: Exception, is_of_the_disk: bool) -> None:
    assert is_of_the_disk is errors.is_of_the_disk(of_the_disk(error))


def test_an_error_without_a_cause_is_of_no_disk() -> None:
    assert not errors.is_of_the_disk(LedgerUnavailable(STORE_UNAVAILABLE, "said by nobody"))


def test_mail_that_could_not_be_stored_is_told_for_a_while_and_large_mail_is_not() -> None:
    disk = OwnDisk()
    disk.mail_failed(CONTENT_IN_MEMORY_BYTES_MAX + 1, 1.0, "no room")
    assert not disk.why_no_mail(1.0), "a stranger could send what does not fit"
    disk.mail_failed(CONTENT_IN_MEMORY_BYTES_MAX, 1.0, "no room")
    assert ("no room", "") == (disk.why_no_mail(REFUSED_SECONDS_MAX), disk.why_no_mail(1.0 + REFUSED_SECONDS_MAX))
