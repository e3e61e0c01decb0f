"""The message tracking log on real files.

One file, because it is one class with one promise (no row is lost or half there); rotation, retention, trouble and restarts are its parts.
"""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog

from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.protocol.tracking import FIELDS, format_line, parse_line
from shadowrelay.tracking import writer
from shadowrelay.tracking.writer import FileTrackingLog
from tests.kit.clock import PATIENCE_SECONDS, Hands, until

START = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)


@pytest.fixture
def now():
    return Hands(START)


@pytest.fixture
async def make_log(tmp_path, now):
    """Logs that are closed after the test."""
    made = []

    def make(directory=tmp_path / "tracking", **settings):
        defaults = {"max_file_size": 10_000_000, "max_directory_size": 10**9, "max_age": timedelta(days=30)}
        log = FileTrackingLog(directory, "mx1.example", now=now, version="1.2.3", **(defaults | settings))
        made.append(log)
        return log

    yield make
    for log in made:
        await log.close()


def an_event(number=0, subject="Hello"):
    return TrackingEvent(START, EventId.RECEIVE, EventSource.SMTP, number, f"id-{number}", recipients=("b@x.example",), subject=subject)


def a_copy(number):
    return replace(an_event(number), event=EventId.HARECEIVE)


def files(directory):
    return sorted(directory.glob("*.LOG"), key=lambda path: (path.name.split("-")[0], int(path.stem.split("-")[1])))


def rows(path):
    return [parse_line(line) for line in path.read_bytes().splitlines(keepends=True) if line.strip() and not line.startswith(b"#")]


def numbers(directory):
    return [event.internal_message_id for path in files(directory) for event in rows(path)]


async def test_a_file_begins_with_the_header_of_exchange_and_no_byte_order_mark(make_log):
    log = make_log()
    log.write(an_event())
    await log.sync()

    lines = (log.directory / "MSGTRK2026112110-1.LOG").read_bytes().split(b"\r\n")
    assert [
        b"#Software: shadowrelay",
        b"#Version: 1.2.3",
        b"#Log-type: Message Tracking Log",
        b"#Date: 2026-11-21T10:30:00.000000Z",
        b"#Fields: " + ",".join(FIELDS).encode(),
    ] == lines[:5]


async def test_a_row_is_in_the_file_one_pass_of_the_loop_after_it_was_written(make_log):
    log = make_log()
    log.write(an_event(1))
    assert 1 == log.pending_count

    await asyncio.sleep(0)

    assert [an_event(1)] == rows(log.directory / "MSGTRK2026112110-1.LOG")
    assert 0 == log.pending_count


async def test_rows_about_copies_that_follow_a_write_closely_are_one_write(make_log, monkeypatch):
    monkeypatch.setattr(writer, "GATHER_SECONDS", 0.2)
    log = make_log()
    log.write(a_copy(0))
    await log.sync()  # of the new file, too
    log.write(a_copy(1))
    await asyncio.sleep(0)
    assert [0, 1] == numbers(log.directory)
    writes = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: writes.append(data) or write(descriptor, data))
    for number in range(2, 6):
        log.write(a_copy(number))
        await asyncio.sleep(0)
    await until(lambda: not log.pending_count)

    assert (1, [0, 1, 2, 3, 4, 5]) == (len(writes), numbers(log.directory))


@pytest.mark.parametrize("event", [EventId.RECEIVE, EventId.FAIL, EventId.DEFER])
async def test_what_was_acknowledged_and_what_became_of_it_waits_for_no_others_and_takes_them_along(make_log, monkeypatch, event):
    monkeypatch.setattr(writer, "GATHER_SECONDS", PATIENCE_SECONDS)
    log = make_log()
    log.write(a_copy(0))
    await log.sync()
    for number in (1, 2):
        log.write(a_copy(number))
        await asyncio.sleep(0)
    assert [0, 1] == numbers(log.directory)
    log.write(replace(an_event(3), event=event))
    log.write(a_copy(4))
    await asyncio.sleep(0)

    assert [0, 1, 2, 3, 4] == numbers(log.directory)


async def test_what_was_sent_is_written_before_the_commit_that_forgets_it_and_rows_about_copies_alone_are_not(make_log, monkeypatch):
    monkeypatch.setattr(writer, "GATHER_SECONDS", PATIENCE_SECONDS)
    log = make_log()
    log.write(a_copy(0))
    await log.sync()
    log.write(a_copy(1))
    await asyncio.sleep(0)
    log.write(a_copy(2))
    log.before_commit()
    assert [0, 1] == numbers(log.directory)
    log.write(replace(an_event(3), event=EventId.SEND))
    await asyncio.sleep(0)
    assert [0, 1] == numbers(log.directory)

    log.before_commit()

    assert [0, 1, 2, 3] == numbers(log.directory)


async def test_a_full_disk_is_not_asked_again_before_each_commit(make_log, monkeypatch):
    log = make_log()
    log.write(an_event(0))
    await log.sync()
    disk = FullDisk(monkeypatch, 0)
    log.write(replace(an_event(1), event=EventId.SEND))
    log.before_commit()
    assert log.is_failing
    disk.room = 10**9
    log.write(replace(an_event(2), event=EventId.SEND))

    log.before_commit()

    assert [0] == numbers(log.directory)
    await log.sync()
    assert [0, 1, 2] == numbers(log.directory)


async def test_a_reader_never_sees_half_a_line(make_log):
    log = make_log()
    log.write(an_event())
    await log.sync()
    path = log.directory / "MSGTRK2026112110-1.LOG"
    torn, looks, is_over = [], [], threading.Event()

    def read():
        with path.open("rb", buffering=0) as file:
            while not is_over.is_set():
                data = file.read()
                looks.append(len(data))
                if data and not data.endswith(b"\n"):
                    torn.append(data[-80:])

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(4000):
        for _ in range(12):
            log.write(an_event(number, "x" * (number * 7 % 900)))
        await asyncio.sleep(0)
        if number >= 400 and sum(1 for size in looks if size) > 10:  # on a busy machine the reader needs longer
            break
    is_over.set()
    thread.join()

    assert [] == torn
    assert sum(1 for size in looks if size) > 10


async def test_each_hour_has_its_own_file(make_log, now):
    log = make_log()
    log.write(an_event(1))
    await log.sync()
    now.at = START + timedelta(minutes=30)
    log.write(an_event(2))
    await log.sync()

    assert ["MSGTRK2026112110-1.LOG", "MSGTRK2026112111-1.LOG"] == [path.name for path in files(log.directory)]
    assert [1, 2] == numbers(log.directory)


async def test_a_file_of_this_hour_that_is_there_at_start_is_left_alone(make_log, tmp_path):
    (tmp_path / "tracking").mkdir()
    (tmp_path / "tracking" / "MSGTRK2026112110-3.LOG").write_bytes(b"of before\r\n")
    log = make_log()
    log.write(an_event())
    await log.sync()

    assert b"of before\r\n" == (log.directory / "MSGTRK2026112110-3.LOG").read_bytes()
    assert [an_event()] == rows(log.directory / "MSGTRK2026112110-4.LOG")


async def test_no_file_passes_its_size_and_no_row_is_lost_between_two(make_log):
    log = make_log(max_file_size=5000)
    for number in range(100):
        log.write(an_event(number))
        if number % 7 == 0:
            await asyncio.sleep(0)
    await log.sync()

    assert list(range(100)) == numbers(log.directory)
    assert all(path.stat().st_size <= 5000 for path in files(log.directory))
    assert len(files(log.directory)) > 3


async def test_a_row_larger_than_a_file_has_a_file_of_its_own(make_log):
    log = make_log(max_file_size=1)
    log.write(an_event(1))
    log.write(an_event(2))
    await log.sync()

    assert [[1], [2]] == [[event.internal_message_id for event in rows(path)] for path in files(log.directory)]


async def test_the_directory_stays_below_its_size_and_the_newest_rows_are_kept(make_log):
    log = make_log(max_file_size=5000, max_directory_size=20_000)
    for number in range(300):
        log.write(an_event(number))
        await asyncio.sleep(0)
    await log.close()

    assert sum(path.stat().st_size for path in files(log.directory)) <= 20_000
    kept = numbers(log.directory)
    assert list(range(300 - len(kept), 300)) == kept
    assert len(kept) > 20


async def test_the_oldest_rows_go_first_although_the_disk_is_slower_than_the_relay(make_log, monkeypatch):
    is_slow = threading.Event()
    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: is_slow.wait(PATIENCE_SECONDS) and fdatasync(descriptor))
    log = make_log(max_file_size=5000, max_directory_size=20_000)
    for number in range(300):
        log.write(an_event(number))
        await asyncio.sleep(0)
    is_slow.set()
    await log.close()

    kept = numbers(log.directory)
    assert list(range(300 - len(kept), 300)) == kept


async def test_files_past_their_age_are_deleted_when_a_new_one_begins(make_log, now):
    log = make_log(max_age=timedelta(hours=2))
    for hour in range(5):
        now.at = START + timedelta(hours=hour)
        log.write(an_event(hour))
        await log.sync()
    await log.close()

    # at 14:30 the hours until 12:30 are too old
    assert [2, 3, 4] == numbers(log.directory)


async def test_a_complete_file_is_announced_once_when_it_is_synced_and_closed(make_log, now, monkeypatch):
    closed = []
    log = make_log(on_closed=lambda path: closed.append((path.name, len(rows(path)))))
    log.write(an_event(1))
    await log.sync()
    assert [] == closed

    now.at = START + timedelta(hours=1)
    log.rotate_if_due()
    await log.sync()
    assert [("MSGTRK2026112110-1.LOG", 1)] == closed

    log.write(an_event(2))
    await log.close()
    assert [("MSGTRK2026112110-1.LOG", 1), ("MSGTRK2026112111-1.LOG", 1)] == closed


async def test_an_hour_that_goes_on_is_not_rotated(make_log, now):
    log = make_log()
    log.rotate_if_due()
    log.write(an_event(1))
    await log.sync()
    now.at = START + timedelta(minutes=29)
    log.rotate_if_due()
    log.write(an_event(2))
    await log.sync()

    assert ["MSGTRK2026112110-1.LOG"] == [path.name for path in files(log.directory)]


async def test_a_shipper_that_fails_does_not_harm_the_log(make_log):
    def fail(path):
        raise RuntimeError("no route to archive")

    log = make_log(on_closed=fail)
    log.write(an_event(1))
    await log.close()

    assert [1] == numbers(log.directory)


async def test_callers_that_wait_at_the_same_time_share_a_sync(make_log, monkeypatch):
    log = make_log()
    log.write(an_event(0))
    await log.sync()
    synced = []
    monkeypatch.setattr(os, "fdatasync", synced.append)

    async def write_and_sync(number):
        log.write(an_event(number))
        await log.sync()

    await asyncio.gather(*(write_and_sync(number) for number in range(20)))

    # the first one's flush makes the round, which begins after all of them have written
    assert 1 == len(synced)


async def test_a_row_written_during_a_sync_is_covered_by_the_next_one(make_log, monkeypatch):
    log = make_log()
    log.write(an_event(0))
    await log.sync()
    is_syncing, may_end = threading.Event(), threading.Event()
    synced = []

    def slow_sync(descriptor):
        synced.append(os.fstat(descriptor).st_size)
        is_syncing.set()
        may_end.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    log.write(an_event(1))
    first = asyncio.create_task(log.sync())
    await asyncio.to_thread(is_syncing.wait, PATIENCE_SECONDS)
    log.write(an_event(2))
    second = asyncio.create_task(log.sync())
    await asyncio.sleep(0)
    assert not second.done()
    may_end.set()
    await asyncio.gather(first, second)

    assert 2 == len(synced)
    assert (log.directory / "MSGTRK2026112110-1.LOG").stat().st_size == synced[1] > synced[0]


async def test_a_sync_with_nothing_new_touches_no_disk(make_log, monkeypatch):
    log = make_log()
    log.write(an_event())
    await log.sync()
    await log.sync()
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: pytest.fail("synced again"))

    await log.sync()
    monkeypatch.undo()


async def test_a_caller_that_is_cancelled_does_not_cancel_the_sync_of_others(make_log, monkeypatch):
    log = make_log()
    log.write(an_event())
    first, second = asyncio.create_task(log.sync()), asyncio.create_task(log.sync())
    await asyncio.sleep(0)
    first.cancel()
    await second

    assert [0] == numbers(log.directory)
    assert first.cancelled()


async def test_a_disk_that_fails_to_sync_is_told_in_the_operator_log_only(make_log, monkeypatch):
    log = make_log()
    log.write(an_event())

    def fail(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    await log.sync()
    monkeypatch.undo()
    await log.sync()

    assert [0] == numbers(log.directory)


async def test_the_name_of_a_new_file_is_synced_once(make_log, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")) or fsync(descriptor))
    log = make_log()
    for number in range(3):
        log.write(an_event(number))
        await log.sync()

    assert [str(log.directory)] == synced


async def test_old_files_that_cannot_be_deleted_do_not_make_a_sync_fail(make_log, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(writer, "enforce_limits", fail)
    log = make_log()
    log.write(an_event())
    with structlog.testing.capture_logs() as logged:
        await log.sync()

    assert ["tracking.limits_failed"] == [event["event"] for event in logged]


class FullDisk:
    """os.write that takes no more than `room` bytes."""

    def __init__(self, monkeypatch, room):
        self.room = room
        self._write = os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, descriptor, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = self._write(descriptor, data[: self.room])
        self.room -= count
        return count


async def test_rows_wait_in_memory_while_the_disk_is_full_and_are_written_when_it_is_not(make_log, monkeypatch):
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.0)
    log = make_log()
    log.write(an_event(0))
    await log.sync()
    disk = FullDisk(monkeypatch, 0)
    log.write(an_event(1))
    log.write(an_event(2))
    await log.sync()
    assert (True, 2, [0]) == (log.is_failing, log.pending_count, numbers(log.directory))

    disk.room = 10**9
    await until(lambda: not log.pending_count)  # the log tries again by itself

    assert (False, 0, [0, 1, 2]) == (log.is_failing, log.dropped_count, numbers(log.directory))


@pytest.mark.parametrize("lines", [0, 1, 2])
async def test_half_a_line_that_a_full_disk_took_is_taken_back(make_log, monkeypatch, lines):
    log = make_log()
    log.write(an_event(0))
    await log.sync()
    length = len(format_line(an_event(1)))
    disk = FullDisk(monkeypatch, lines * length + 10)
    for number in (1, 2, 3):
        log.write(an_event(number))
    await log.sync()
    assert list(range(lines + 1)) == numbers(log.directory)
    assert (log.directory / "MSGTRK2026112110-1.LOG").read_bytes().endswith(b"\r\n")

    disk.room = 10**9
    await log.sync()

    assert [0, 1, 2, 3] == numbers(log.directory)


@pytest.mark.parametrize("room", [0, 10])
async def test_a_file_without_room_for_its_header_is_not_left_behind(make_log, monkeypatch, room):
    log = make_log()
    disk = FullDisk(monkeypatch, room)
    log.write(an_event())
    await log.sync()
    assert [] == files(log.directory)

    disk.room = 10**9
    await log.sync()

    assert [an_event()] == rows(log.directory / "MSGTRK2026112110-1.LOG")


async def test_rows_over_the_bound_are_counted_and_the_earliest_are_kept(make_log, monkeypatch):
    log = make_log()
    disk = FullDisk(monkeypatch, 0)
    monkeypatch.setattr(writer, "PENDING_BYTES_MAX", 2 * len(format_line(an_event(1))))
    for number in range(5):
        log.write(an_event(number))
    assert (2, 3) == (log.pending_count, log.dropped_count)

    disk.room = 10**9
    await log.sync()

    assert [0, 1] == numbers(log.directory)


async def test_a_burst_over_the_bound_is_written_at_once_while_the_disk_takes_it(make_log, monkeypatch):
    log = make_log()
    monkeypatch.setattr(writer, "PENDING_BYTES_MAX", 2 * len(format_line(an_event(1))))
    for number in range(5):
        log.write(an_event(number))
    await log.sync()

    assert (0, [0, 1, 2, 3, 4]) == (log.dropped_count, numbers(log.directory))


async def test_rows_wait_while_the_directory_is_gone_and_are_written_when_it_is_back(make_log):
    log = make_log()
    log.write(an_event(0))
    await log.sync()
    log.directory.rename(log.directory.with_name("moved"))
    for path in files(log.directory.with_name("moved")):
        path.unlink()
    log.write(an_event(1))
    await log.sync()
    assert (True, 1) == (log.is_failing, log.pending_count)

    log.directory.mkdir()
    await log.sync()

    assert (False, [1]) == (log.is_failing, numbers(log.directory))


async def test_a_directory_that_cannot_be_made_keeps_nobody_from_relaying(make_log, tmp_path):
    (tmp_path / "file").write_text("in the way")
    log = make_log(tmp_path / "file" / "tracking")
    log.write(an_event())
    await log.sync()

    assert (True, 1) == (log.is_failing, log.pending_count)


async def test_a_row_that_cannot_be_formatted_is_dropped_alone(make_log):
    log = make_log()
    log.write(an_event(subject=None))
    log.write(an_event(2))
    await log.sync()

    assert (1, [2]) == (log.dropped_count, numbers(log.directory))


async def test_after_close_rows_are_counted_and_everything_before_is_there(make_log):
    log = make_log()
    log.write(an_event(1))
    await log.close()
    log.write(an_event(2))
    await log.close()

    assert (1, [1]) == (log.dropped_count, numbers(log.directory))


async def test_what_a_full_disk_did_not_take_by_the_end_is_counted(make_log, monkeypatch):
    log = make_log()
    FullDisk(monkeypatch, 0)
    log.write(an_event())
    await log.close()

    assert (1, 0) == (log.dropped_count, log.pending_count)


def test_without_a_running_loop_a_row_is_written_at_once(tmp_path, now):
    log = FileTrackingLog(
        tmp_path, "mx1.example", max_file_size=10**6, max_directory_size=10**9, max_age=timedelta(0), now=now, version="1"
    )
    log.write(an_event(1))
    assert [1] == numbers(Path(tmp_path))
    asyncio.run(log.close())


KILLED = """
import asyncio, os, signal, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.tracking.writer import FileTrackingLog

async def main():
    now = lambda: datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
    directory = Path(sys.argv[1])
    log = FileTrackingLog(directory, "mx1", max_file_size=10**6, max_directory_size=10**9, max_age=timedelta(0), now=now, version="1")
    for number in range(50):
        log.write(TrackingEvent(now(), EventId.RECEIVE, EventSource.SMTP, number, "id"))
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_sigkill_loses_no_row_that_was_written_before_an_await(tmp_path):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], timeout=PATIENCE_SECONDS, check=False, cwd=Path(__file__).parents[2]
    )

    assert -signal.SIGKILL == killed.returncode
    assert list(range(50)) == numbers(tmp_path)


async def test_a_directory_that_cannot_be_used_is_told_at_the_start(make_log, tmp_path):
    (tmp_path / "file").touch()
    with structlog.testing.capture_logs() as lines:
        make_log(tmp_path / "file")
        make_log(tmp_path / "usable")

    assert [("tracking.write_failed", str(tmp_path / "file"))] == [(line["event"], line["directory"]) for line in lines]


class HungDisk:
    """A call of the operating system that does not return, for files of the log, until the disk answers again."""

    def __init__(self, monkeypatch, name):
        self.answers = threading.Event()
        call = getattr(os, name)

        def hang(descriptor, *others):
            if threading.current_thread().name.startswith("tracking"):
                self.answers.wait(PATIENCE_SECONDS)
            return call(descriptor, *others)

        self._monkeypatch = monkeypatch
        monkeypatch.setattr(writer, "HANGS_SECONDS", 0.05)
        monkeypatch.setattr(os, name, hang)

    def answer(self):
        """From now on, with the patience of a node: a busy machine takes longer than 0.05 s as well."""
        self._monkeypatch.setattr(writer, "HANGS_SECONDS", PATIENCE_SECONDS)
        self.answers.set()


async def test_a_sync_that_hangs_is_not_waited_for_and_that_is_said(make_log, monkeypatch):
    log = make_log()
    log.write(an_event(0))
    await log.sync()
    disk = HungDisk(monkeypatch, "fdatasync")
    log.write(an_event(1))
    with structlog.testing.capture_logs() as logged:
        await asyncio.wait_for(log.sync(), PATIENCE_SECONDS)
        await until(lambda: log.hung_seconds > 0)  # it begins later than its caller begins to wait
        log.write(an_event(2))
        await asyncio.wait_for(log.sync(), PATIENCE_SECONDS)
        disk.answers.set()
        await until(lambda: not log.hung_seconds)
        await log.sync()

    assert ["tracking.hangs", "tracking.answers"] == [event["event"] for event in logged]
    assert [0, 1, 2] == numbers(log.directory)


@pytest.mark.parametrize("call", ["write", "fstat"])
async def test_a_write_that_hangs_blocks_nobody_and_each_row_is_written_once(make_log, monkeypatch, call):
    log = make_log()
    log.write(an_event(0))
    await log.sync()
    disk = HungDisk(monkeypatch, call)
    with structlog.testing.capture_logs() as logged:
        for number in (1, 2, 3):
            log.write(an_event(number))
            await asyncio.sleep(0)  # in a pass of the loop each
            await asyncio.wait_for(log.sync(), PATIENCE_SECONDS)
        assert (True, 3, [0]) == (log.hung_seconds > 0, log.pending_count, numbers(log.directory))
        disk.answer()
        await until(lambda: not log.pending_count)
        await log.sync()

    assert (0, ["tracking.hangs", "tracking.answers"]) == (log.dropped_count, [event["event"] for event in logged])
    await log.sync()
    assert [0, 1, 2, 3] == numbers(log.directory)


async def test_a_new_file_that_hangs_is_used_when_it_is_there_after_all(make_log, monkeypatch):
    log = make_log()
    disk = HungDisk(monkeypatch, "open")
    log.write(an_event(0))
    await asyncio.wait_for(log.sync(), PATIENCE_SECONDS)
    assert (True, 1) == (log.hung_seconds > 0, log.pending_count)
    disk.answer()
    await until(lambda: not log.pending_count)
    await log.sync()

    assert ([0], 1) == (numbers(log.directory), len(files(log.directory)))


@pytest.mark.parametrize("call", ["write", "fdatasync"])
async def test_a_log_on_a_disk_that_hangs_is_closed_in_a_limited_time(make_log, monkeypatch, call):
    monkeypatch.setattr(writer, "CLOSE_SECONDS", 0.05)
    log = make_log()
    log.write(an_event(0))
    await log.sync()
    disk = HungDisk(monkeypatch, call)
    log.write(an_event(1))
    with structlog.testing.capture_logs() as logged:
        await asyncio.wait_for(log.close(), PATIENCE_SECONDS)
    disk.answer()

    assert "tracking.unfinished" == logged[-1]["event"]
