"""Disk full, locked, read-only: 452 or 451, never 250, and all is well again without a restart."""

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from shadowrelay.model.ids import NO_SERVER
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, STORE_UNAVAILABLE, LedgerUnavailable
from shadowrelay.store import Ledger, content, peer_promises, promises, reading, writing
from shadowrelay.store.commit import Promise
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.ledger import (
    HERE,
    NOW,
    THEIR_DATABASE,
    THERE,
    a_content,
    a_ledger,
    a_new_message,
    a_spooled_content,
    accept,
    all_done,
    an_attempt,
    an_identity,
    choose,
    forget_recent,
)
from tests.store.writers import held_up, promised


async def limit_pages(ledger: Ledger, more: int | None) -> None:
    """As if the disk under queue.db were full after some more pages."""

    def run(work) -> None:  # type: ignore[no-untyped-def]
        count = work.connection.exec_driver_sql("PRAGMA page_count").scalar() if more is not None else 0
        work.connection.exec_driver_sql(f"PRAGMA max_page_count = {1_000_000_000 if more is None else count + more}")

    await ledger.commit(Promise(run))


async def test_a_full_database_is_452_and_recovers(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        first = await accept(ledger)
        await limit_pages(ledger, 1)
        message = a_new_message(recipients_count=2000)

        with pytest.raises(LedgerUnavailable) as caught:
            await ledger.commit(promises.accepted, message, a_content(), decided=True)
        assert INSUFFICIENT_RESOURCES == caught.value.reply
        assert await ledger.read(reading.load, message.envelope.message_id) is None

        await limit_pages(ledger, None)
        stored = await ledger.commit(promises.accepted, message, a_content(), decided=True)
        assert stored == await ledger.read(reading.load, message.envelope.message_id)
        assert first == await ledger.read(reading.load, first.envelope.message_id)


async def test_a_full_database_fails_only_those_that_need_room(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = [await accept(ledger) for _ in range(2)]
        await limit_pages(ledger, 1)
        with held_up(ledger):
            tasks = await promised(
                ledger.commit(promises.attempt, an_attempt(stored[0].envelope.message_id), all_done),
                accept(ledger, recipients_count=2000),
                ledger.commit(promises.attempt, an_attempt(stored[1].envelope.message_id), all_done),
            )

        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)

        assert isinstance(second, LedgerUnavailable)
        assert [Role.DELIVERED] * 2 == [outcome.after.role for outcome in (first, third)]  # type: ignore[union-attr]


async def test_no_room_for_content_is_452_and_recovers_with_a_new_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_ledger(tmp_path) as ledger:
        first = await accept(ledger, b"first\r\n")

        def partly_written(descriptor: int, data: bytes) -> None:
            os.write(descriptor, bytes(data)[:3])
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(content, "write_all", partly_written)
            with pytest.raises(LedgerUnavailable, match="No space left") as caught:
                await accept(ledger)
            # what needs no room goes on
            await ledger.commit(promises.verdict, first.envelope.message_id, choose)
        assert INSUFFICIENT_RESOURCES == caught.value.reply

        second = await accept(ledger, b"second\r\n")
        assert first.place is not None
        assert second.place is not None
        assert second.place.segment > first.place.segment
        forget_recent(ledger)
        assert [b"first\r\n", b"second\r\n"] == [(await ledger.read_content(each)).data for each in (first.place, second.place)]


async def test_no_room_for_a_large_content_is_452_and_leaves_the_file_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_ledger(tmp_path) as ledger:
        large = a_spooled_content(tmp_path, b"x" * 2_000_000)

        def full(directory: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(content, "sync_directory", full)
            with pytest.raises(LedgerUnavailable, match="452"):
                await ledger.commit(promises.accepted, a_new_message(), large, decided=True)

        assert large.path is not None
        assert large.path.exists()
        await ledger.commit(promises.accepted, a_new_message(), large, decided=True)


async def test_a_locked_database_is_451_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pragmas = tuple(("busy_timeout", "20", 20) if name == "busy_timeout" else (name, *rest) for name, *rest in writing.PRAGMAS)
    monkeypatch.setattr(writing, "PRAGMAS", pragmas)
    async with a_ledger(tmp_path) as ledger:
        other = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        outcomes = await asyncio.gather(*(accept(ledger) for _ in range(6)), return_exceptions=True)
        assert {STORE_UNAVAILABLE} == {error.reply for error in outcomes if isinstance(error, LedgerUnavailable)}
        assert 6 == len([error for error in outcomes if isinstance(error, LedgerUnavailable)])

        other.execute("ROLLBACK")
        other.close()
        stored = await accept(ledger)
        assert stored == await ledger.read(reading.load, stored.envelope.message_id)


async def test_a_read_only_database_is_451_and_recovers(tmp_path: Path) -> None:
    """By `query_only`, because tests may run as root, whom file modes do not stop."""
    async with a_ledger(tmp_path) as ledger:
        await ledger.commit(Promise(lambda work: work.connection.exec_driver_sql("PRAGMA query_only = ON") and None))

        with pytest.raises(LedgerUnavailable, match="readonly") as caught:
            await accept(ledger)
        assert STORE_UNAVAILABLE == caught.value.reply

        # the writer has opened a new connection, on which the pragma is not set
        stored = await accept(ledger)
        assert stored == await ledger.read(reading.load, stored.envelope.message_id)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY], ids=["fsync", "full", "busy"])
async def test_a_commit_that_fails_is_rolled_back_and_the_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    async with a_ledger(tmp_path) as ledger:
        first = await accept(ledger)
        before = ledger.position

        def fail(_: object) -> None:
            error = sqlite3.OperationalError("no commit")
            error.sqlite_errorcode = code
            raise error

        for promised in (
            partial(ledger.commit, promises.verdict, first.envelope.message_id, choose),
            partial(ledger.commit, peer_promises.peer_heard, an_identity(), NOW),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(ledger._committer.connection.get().dialect, "do_commit", fail)
                with pytest.raises(LedgerUnavailable, match="no commit"):
                    await promised()

        assert before == ledger.position
        assert first == await ledger.read(reading.load, first.envelope.message_id)
        assert ledger.peers.seen(THERE, THEIR_DATABASE) is None
        assert NO_SERVER == ledger.peers.server_of(THEIR_DATABASE)
        await ledger.commit(promises.verdict, first.envelope.message_id, choose)
        assert before + 1 == ledger.position


@pytest.mark.slow
async def test_a_real_limit_on_files_is_452_and_what_was_accepted_stays(tmp_path: Path) -> None:
    """Another process, in which no file may grow over 300 kB."""
    script = f"""
import asyncio, resource, signal
from pathlib import Path
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.store import Ledger, promises
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.ledger import HERE, NOW, a_content, a_new_message

async def main():
    ledger = await Ledger.open(Path({str(tmp_path)!r}), server=HERE, now=lambda: NOW)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    replies = []
    for number in range(40):
        message = a_new_message()
        try:
            await ledger.commit(promises.accepted, message, a_content(b"x" * 30_000), decided=True)
            print(message.envelope.message_id)
            replies.append(250)
        except LedgerUnavailable as error:
            replies.append(error.reply.code)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    message = a_new_message()
    await ledger.commit(promises.accepted, message, a_content(), decided=True)
    print(message.envelope.message_id)
    print(*replies)
    await ledger.close()

asyncio.run(main())
"""
    finished = subprocess.run([sys.executable, "-c", script], check=False, timeout=PATIENCE_SECONDS, capture_output=True, text=True)
    assert (0, "") == (finished.returncode, finished.stderr)
    *ids, replies = finished.stdout.splitlines()
    refused = set(replies.split()) - {"250"}

    async with a_ledger(tmp_path) as ledger:
        found = await ledger.read(reading.load_many, ids)
        for message in found:
            assert message.place is not None
            await ledger.read_content(message.place)

    assert refused
    assert refused <= {"451", "452"}
    assert len(ids) == len(found)


async def test_promises_that_wait_for_their_commit_are_counted(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        promised = [ledger.commit(promises.accepted, a_new_message(), a_content(), decided=True) for _ in range(200)]
        waiting_count = ledger.waiting_count
        await asyncio.gather(*promised)

        assert (200, 0) == (waiting_count, ledger.waiting_count)


def _read_only(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize("part", ["ftruncate", "end of a segment", "close"])
async def test_a_ledger_whose_disk_takes_no_writes_is_closed_at_once_and_opened_again(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await Ledger.open(tmp_path, server=HERE, now=lambda: NOW)
    await accept(ledger)
    with monkeypatch.context() as dead:
        if part == "ftruncate":
            dead.setattr(os, part, _read_only)
        elif part == "close":
            dead.setattr(content.WorkingFile, part, _read_only)
        else:
            dead.setattr(content.ContentStore, "end_segment", _read_only)
        async with asyncio.timeout(30):
            with suppress(OSError):
                await ledger.close()

    async with a_ledger(tmp_path) as again:
        assert await again.read(reading.submission, 1)
