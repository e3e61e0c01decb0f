"""Writes the message tracking log: files, page-aligned lines, retention. docs/operations.md "The message tracking log".

The rules here: the relay waits for its log for `HANGS_SECONDS`, once, and never fails because of it; rows written before an `await` are
in the kernel after it, so that SIGKILL does not lose them; readers see whole lines only; `sync` means on disk, unless the disk hangs.
While it hangs, rows wait in memory, as on a full disk. Lines of one pass of the event loop are written in one call. A call wakes a thread,
so that on a node that writes all the time the frequent rows (`GATHERED`) wait for others, or for `GATHER_SECONDS` after the last call.
SEND waits no longer than until the next commit (`before_commit`): a recipient that SIGKILL leaves without its row is still open in the
queue.
Files are closed only in a round of `sync`, one round at a time, so that no descriptor is closed during a sync. The content of a row is
in `protocol.tracking`.

The kernel shows an append to readers page by page (measured on ext4 and tmpfs, Linux 6.18: 60 to 76 % of the reads of a file that
was being appended to in blocks of 20 KB ended in a partial line, although each block was one write). So no line crosses a page
boundary: where the next line would not fit, the line before it is padded with spaces after its last field, and a reader always sees
whole lines. Lines longer than a page are the exception: readers must read up to the last newline.

The oldest files are deleted first, and unshipped files only as the last resort: `files_to_delete` decides, `enforce_limits` deletes.
Without shipping, every file counts as shipped.
"""

import asyncio
import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog

from shadowrelay.bounded import Attempt, BoundedCalls, Found, Threads, in_thread
from shadowrelay.model.ids import ServerName
from shadowrelay.model.tracking import EventId, TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.protocol.tracking import format_header, format_line
from shadowrelay.tracking import search

PAGE_BYTES = 4096  # the smallest page of Linux; larger ones are multiples of it
# If a write leaves less room than this in its page, the page is filled up, so that the next line (about 500 octets) starts a new page.
# Costs about 10 % of the space.
ROOM_BYTES_MIN = 1024
LINE_END = b"\r\n"
# The most that the clocks of two nodes may differ: a message that arrived at five is searched for in files from four on.
CLOCKS_APART = timedelta(hours=1)

_NAME = re.compile(r"MSGTRK(\d{10})-(\d+)\.LOG")


class FileKey(NamedTuple):
    """Identifies a file: UTC hour as yyyymmddhh, and instance. Sorts by age."""

    hour: str
    instance: int

    @property
    def name(self) -> str:
        """The file's name. docs/sources.md "logdoc": real files have the hour in it."""
        return f"MSGTRK{self.hour}-{self.instance}.LOG"

    @property
    def ends_at(self) -> datetime:
        """The end of its hour."""
        return datetime.strptime(self.hour, "%Y%m%d%H").replace(tzinfo=UTC) + timedelta(hours=1)


def hour_of(at: datetime) -> str:
    """The hour as in a file's name."""
    return at.astimezone(UTC).strftime("%Y%m%d%H")


def parse_name(name: str) -> FileKey | None:
    """`None` if it is not a tracking log; MSGTRKMD and other prefixes are not."""
    match = _NAME.fullmatch(name)
    return FileKey(match[1], int(match[2])) if match else None


def tracking_files(directory: Path) -> list[FileKey]:
    """Oldest first. Raises: OSError."""
    return sorted(key for key in map(parse_name, os.listdir(directory)) if key is not None)


def create_file(directory: Path, hour: str) -> tuple[int, FileKey]:
    """Create the next instance for this hour, open for appending. Raises: OSError."""
    instance = max((key.instance for key in tracking_files(directory) if key.hour == hour), default=0) + 1
    while True:
        key = FileKey(hour, instance)
        try:
            return os.open(directory / key.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640), key
        except FileExistsError:  # created by another process meanwhile
            instance += 1


def _created(directory: Path, hour: str, header: bytes) -> tuple[int, FileKey]:
    """`create_file` with its header, or no file. Raises: OSError."""
    descriptor, key = create_file(directory, hour)
    try:
        if os.write(descriptor, header) < len(header):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            (directory / key.name).unlink()
        raise
    return descriptor, key


def _append(descriptor: int, size: int, pieces: Sequence[bytes]) -> int | None:
    """How many of the pieces are in the file, which had that size: fewer if the disk is full. None: the file was deleted, with its
    directory perhaps; it would accept them, but they were lost. Raises: OSError."""
    if os.fstat(descriptor).st_nlink == 0:
        return None
    data = b"".join(pieces)
    written = os.write(descriptor, data)
    if written == len(data):
        return len(pieces)
    ends_whole = [end for end in accumulate(map(len, pieces)) if end <= written]
    os.ftruncate(descriptor, size + (ends_whole[-1] if ends_whole else 0))  # the partial line, before a reader uses it
    return len(ends_whole)


def sync_directory(directory: Path) -> None:
    """Sync the directory, because a file is durable only if its name is. Raises: OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lay_out(lines: Sequence[bytes], offset: int, limit: int) -> list[bytes]:
    """Pad lines so that none crosses a page when they are written one after the other at `offset`.

    Shapes: one piece per line; no padding beyond a total of `limit`.
    """
    pieces: list[bytes] = []
    room = PAGE_BYTES - offset % PAGE_BYTES
    for line in lines:
        length = len(line)
        if room < length <= PAGE_BYTES:
            if pieces:
                pieces[-1] = _padded(pieces[-1], room)
            else:
                line = _comment_line(room) + line
            room = PAGE_BYTES
        pieces.append(line)
        room = PAGE_BYTES - (PAGE_BYTES - room + length) % PAGE_BYTES
    if pieces and room < ROOM_BYTES_MIN and offset + sum(map(len, pieces)) + room <= limit:
        pieces[-1] = _padded(pieces[-1], room)
    return pieces


def _padded(line: bytes, count: int) -> bytes:
    return line[: -len(LINE_END)] + b" " * count + LINE_END  # the last field (schema-version) is never quoted


def _comment_line(count: int) -> bytes:
    """A comment, or an empty line, before the rare line that is longer than the room left in the page."""
    return b"\n" if count == 1 else b"#" * min(1, count - 2) + b" " * (count - 3) + LINE_END


class Custody(Protocol):
    """Knows which files were shipped. Called from threads."""

    def is_shipped(self, key: FileKey, found: os.stat_result) -> bool:
        """Whether exactly this file is at the target, and that is recorded."""

    def is_busy(self, key: FileKey) -> bool:
        """Whether it is being shipped now."""

    def drop(self, found: Mapping[FileKey, os.stat_result]) -> Collection[FileKey]:
        """Record files that will be deleted without being shipped. Returns those that may be deleted."""


class TrackingFile(NamedTuple):
    """An existing file. Units: `size` bytes."""

    key: FileKey
    size: int
    is_shipped: bool = True
    is_busy: bool = False


class Deletions(NamedTuple):
    """Files to delete, in this order."""

    shipped: tuple[FileKey, ...]
    dropped: tuple[FileKey, ...]


def files_to_delete(files: Sequence[TrackingFile], newest: FileKey | None, now: datetime, size_max: int, age_max: timedelta) -> Deletions:
    """Shipped files older than `age_max` (zero: no limit); then shipped, then other files, until the total is at most `size_max`.

    Shapes: `files` oldest first. `newest` and later files count but are never deleted; nor is a file that is being shipped.
    """
    total = sum(file.size for file in files)
    closed = [file for file in files if newest is None or file.key < newest]
    shipped = []
    for file in closed:
        is_old = age_max > timedelta(0) and _ends_at(file.key, now) < now - age_max
        if file.is_shipped and (is_old or total > size_max):
            shipped.append(file.key)
            total -= file.size
    dropped = []
    for file in closed:
        if not file.is_shipped and not file.is_busy and total > size_max:
            dropped.append(file.key)
            total -= file.size
    return Deletions(tuple(shipped), tuple(dropped))


def enforce_limits(
    directory: Path, newest: FileKey | None, now: datetime, size_max: int, age_max: timedelta, custody: Custody | None = None
) -> tuple[Path, ...]:
    """Delete the files that `files_to_delete` returns. Returns the deleted ones. Raises: OSError."""
    found = {key: (directory / key.name).stat() for key in tracking_files(directory)}
    files = [
        TrackingFile(key, each.st_size, custody is None or custody.is_shipped(key, each), custody is not None and custody.is_busy(key))
        for key, each in found.items()
    ]
    deletions = files_to_delete(files, newest, now, size_max, age_max)
    dropped: Collection[FileKey] = ()
    if custody is not None and deletions.dropped:
        dropped = custody.drop({key: found[key] for key in deletions.dropped})
    paths = tuple(directory / key.name for key in (*deletions.shipped, *dropped))
    for path in paths:
        path.unlink(missing_ok=True)
    return paths


def _ends_at(key: FileKey, now: datetime) -> datetime:
    try:
        return key.ends_at
    except ValueError:  # a name with an impossible hour: leave it to the size limit
        return now


PENDING_BYTES_MAX = 16 * 1024 * 1024  # about 30,000 rows, 5,000 messages: the most memory that a full disk costs
GATHER_SECONDS = 0.01  # a node that took 1,300 messages a second wrote 660 times
# Not RECEIVE: the client has its 250, and SIGKILL must not take the row.
GATHERED = frozenset({EventId.TRANSFER, EventId.HAREDIRECT, EventId.HARECEIVE, EventId.HADISCARD, EventId.SEND})
HANGS_SECONDS = 2.0  # a call of the file system that takes longer is not waited for: mail goes on
CLOSE_SECONDS = 5.0  # at SIGTERM, for the last rows
SEARCH_SECONDS = 30.0
RETRY_SECONDS = 1.0  # between two attempts to write to a full disk or a missing directory

_log = structlog.get_logger()
T = TypeVar("T")


class OpenFile(NamedTuple):
    """A file that receives rows, or did until it was full, its hour ended, or it was due to be shipped."""

    descriptor: int
    key: FileKey
    ends_at: datetime


class FileTrackingLog:
    """A `TrackingLog` in files MSGTRKyyyymmddhh-n.LOG. Belongs to one event loop; `now` returns aware UTC.

    Shapes: `on_closed` is called with each file that is complete, for shipping, after its sync, which may have failed; no file stays open
    for longer than `close_after` from its first row. Files that `custody` does not report as shipped are deleted last.
    `has_subjects` false: the column of subjects stays empty.
    Raises: nothing, ever. `dropped_count` and `is_failing` report rows that could not be written.
    """

    def __init__(
        self,
        directory: Path,
        server: ServerName,
        *,
        max_file_size: int,
        max_directory_size: int,
        max_age: timedelta,
        now: Callable[[], datetime],
        version: str,
        on_closed: Callable[[Path], None] | None = None,
        close_after: timedelta | None = None,
        custody: Custody | None = None,
        has_subjects: bool = True,
    ) -> None:
        self.directory = directory
        self.server = server
        self.dropped_count = 0  # rows dropped because the buffer was full while nothing could be written
        self.is_failing = False
        self.limit(max_file_size, max_directory_size, max_age, has_subjects=has_subjects)
        self._now = now
        self._version = version
        self._on_closed = on_closed
        self._close_after = close_after
        self._custody = custody
        self._close_timer: asyncio.TimerHandle | None = None
        self._file: OpenFile | None = None
        self._size = 0
        self._has_rows = False
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._is_scheduled = self._is_urgent = False  # a write will come; in the next pass of the loop
        self._has_sent = False  # a row in memory says what was sent
        self._written_at = -GATHER_SECONDS  # by the loop's clock
        self._is_closed = False
        self._retired: list[OpenFile] = []
        self._newest: FileKey | None = None  # the last file created since the last round; only older ones may be deleted
        self._written_mark = 0  # counts writes; `_synced_mark` says up to which they are on disk
        self._synced_mark = 0
        self._running_mark = 0
        self._running: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._calls = BoundedCalls("tracking log", self._late)
        self._accept: Callable[[Any], None] = lambda result: None  # what the last of these calls has found
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_owed = False  # a call was given up, and has not ended yet
        self._sync_began: float | None = None
        self._is_hanging = False  # and that was logged
        self._searches = Threads("tracking search", lambda: None)
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        try:
            problem = self._calls.call(self._opening_problem, HANGS_SECONDS)
        except OSError as error:
            problem = str(error)
            self._is_owed = bool(self._calls.hung_seconds)  # the first write waits for the end of this call, as for that of a write
        if problem:  # every write tries again
            _log.error("tracking.write_failed", directory=str(directory), error=problem, pending=0)

    def limit(self, max_file_size: int, max_directory_size: int, max_age: timedelta, *, has_subjects: bool) -> None:
        """As configured, from the next row and the next look at the directory on."""
        self._max_file_size = max_file_size
        # the current file may still grow to its limit after the others were counted
        self._closed_size_max = max(max_directory_size - max_file_size, 0)
        self._max_age = max_age
        self._has_subjects = has_subjects

    def _opening_problem(self) -> str:
        self.directory.mkdir(parents=True, exist_ok=True)
        return "" if os.access(self.directory, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)

    @property
    def hung_seconds(self) -> float:
        """How long the file system has not answered a call; 0 if none takes longer than `HANGS_SECONDS`."""
        syncs = 0.0 if self._sync_began is None else time.monotonic() - self._sync_began
        return max(self._calls.hung_seconds, syncs if syncs >= HANGS_SECONDS else 0.0)

    @property
    def pending_count(self) -> int:
        """Rows in memory: from this pass of the loop, or because the disk does not accept them."""
        return len(self._pending)

    def write(self, event: TrackingEvent) -> None:
        """Buffer a row; it is written before the event loop's next pass ends, or, of `GATHERED`, `GATHER_SECONDS` after the last ones."""
        try:
            line = format_line(event if self._has_subjects or not event.subject else replace(event, subject=""))
        except Exception:
            self.dropped_count += 1
            _log.exception("tracking.row_refused", event_id=event.event, message_id=event.network_message_id)
            return
        size = self._pending_size + len(line)
        if size > PENDING_BYTES_MAX and not self.is_failing:
            self._flush()
            size = self._pending_size + len(line)
        if size > PENDING_BYTES_MAX or self._is_closed:
            self.dropped_count += 1
            return
        self._pending.append(line)
        self._pending_size = size
        is_urgent = event.event not in GATHERED
        self._has_sent = self._has_sent or event.event is EventId.SEND
        if self._is_urgent or (self._is_scheduled and (not is_urgent or self.is_failing)):
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no running loop: write at once
            self._flush()
            return
        self._is_scheduled = True
        due_at = self._written_at + GATHER_SECONDS
        if is_urgent or loop.time() >= due_at:
            self._is_urgent = True
            loop.call_soon(self._flush_scheduled)
        else:
            loop.call_at(due_at, self._flush_scheduled)

    def before_commit(self) -> None:
        """Call it before each transaction of the queue."""
        if self._has_sent and not self.is_failing:
            self._flush_scheduled()

    async def sync(self) -> None:
        """Return when everything written so far is on disk, or the disk has refused it, or hangs, which is logged: mail does not stop for
        its log. Concurrent callers share a sync."""
        self._flush()
        if self._is_hanging or (self._synced_mark >= self._written_mark and not self._retired):
            return
        covers = self._running is not None and not self._running.done() and self._running_mark >= self._written_mark
        sync = self._running if covers and self._running is not None else self._next_round()
        await asyncio.wait((sync,), timeout=HANGS_SECONDS)
        if not sync.done():
            self._note_hanging()

    async def about(self, text: str, since: datetime | None) -> Sequence[TrackingEvent]:
        """See `ports.TrackingLog`."""
        self._flush()
        earliest = None if since is None else since - CLOCKS_APART
        now = self._now()

        def found(_: Attempt) -> Sequence[TrackingEvent]:
            keys = tracking_files(self.directory)
            return search.rows_about(
                text, [self.directory / key.name for key in keys if earliest is None or _ends_at(key, now) >= earliest]
            )

        return await self._searches.run(found, SEARCH_SECONDS)

    def rotate_if_due(self) -> None:
        """Close the file of a past hour even if no row follows. Call it regularly."""
        if self._file is not None and self._now() >= self._file.ends_at:
            self._retire()

    async def close(self) -> None:
        """Write, sync and close, in at most `CLOSE_SECONDS`. Later rows are counted as dropped."""
        self._flush()
        self._is_closed = True
        self._retire()
        last = asyncio.ensure_future(self._last_rounds())
        await asyncio.wait((last,), timeout=CLOSE_SECONDS)
        if not last.done() or self._pending:
            _log.error("tracking.unfinished", directory=str(self.directory), dropped=len(self._pending), is_synced=last.done())
            last.cancel()
        self.dropped_count += len(self._pending)
        self._pending.clear()

    async def _last_rounds(self) -> None:
        while self._retired or self._waiting is not None:
            await asyncio.shield(self._next_round())
        if self._running is not None:
            await asyncio.shield(self._running)

    def _note_hanging(self) -> None:
        if not self._is_hanging:
            self._is_hanging = True
            _log.error("tracking.hangs", directory=str(self.directory), pending=len(self._pending))

    def _note_answer(self) -> None:
        if self._is_hanging and not self.hung_seconds:
            self._is_hanging = False
            _log.warning("tracking.answers", directory=str(self.directory), dropped=self.dropped_count)

    def _bounded(self, work: Callable[[], T], accept: Callable[[T], None]) -> None:
        """`accept` the result of a call of the file system: now, or when it ends that late. Raises: OSError."""
        if self._is_owed:
            raise TimeoutError
        self._accept = accept
        if self._loop is None:
            with contextlib.suppress(RuntimeError):
                self._loop = asyncio.get_running_loop()
        try:
            result = self._calls.call(work, HANGS_SECONDS)
        except TimeoutError as error:
            self._is_owed = error.errno is None  # else the file system says so itself
            raise
        accept(result)

    def _late(self, found: Found) -> None:
        """In the thread of the calls."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._accept_late, found)

    def _accept_late(self, found: Found) -> None:
        self._is_owed = False
        result, error = found
        if error is None:
            with contextlib.suppress(OSError):  # a full disk: the next write finds it, too
                self._accept(result)
        self._note_answer()
        self._flush()

    def _flush_scheduled(self) -> None:
        """Also earlier than scheduled: the timer finds what came after that."""
        self._is_scheduled = self._is_urgent = self._has_sent = False
        if self._pending:
            self._written_at = asyncio.get_running_loop().time()
            self._flush()

    def _flush(self) -> None:
        """Write everything pending, to one or more files; the rest stays and is retried later."""
        if self._is_closed:
            return
        try:
            while self._pending:
                if (file := self._writable_file()) is not None:
                    self._write_some(file)
        except OSError as exc:
            if self._is_owed:
                self._note_hanging()
                return  # `_accept_late` goes on
            if not self.is_failing:
                _log.error("tracking.write_failed", directory=str(self.directory), error=str(exc), pending=len(self._pending))
            self.is_failing = True
            self._retry_later()
        else:
            if self.is_failing:
                _log.info("tracking.recovered", directory=str(self.directory), dropped=self.dropped_count)
            self.is_failing = False

    def _retry_later(self) -> None:
        with contextlib.suppress(RuntimeError):  # without a loop the next write tries again
            if not self._is_scheduled:
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._flush_scheduled)
                self._is_scheduled = True

    def _writable_file(self) -> OpenFile | None:
        """None: a new one was created, look again."""
        now = self._now()
        if self._file is not None:
            if now < self._file.ends_at:
                return self._file
            self._retire()
        header = format_header(self._version, now)
        self._bounded(partial(_created, self.directory, hour_of(now), header), partial(self._begin_file, len(header)))
        return None

    def _begin_file(self, size: int, created: tuple[int, FileKey]) -> None:
        descriptor, key = created
        self._file = OpenFile(descriptor, key, key.ends_at)
        if self._close_after is not None:
            with contextlib.suppress(RuntimeError):  # without a loop: when its hour is over
                self._close_timer = asyncio.get_running_loop().call_later(self._close_after.total_seconds(), self._retire)
        self._size = size
        self._has_rows = False
        self._newest = key
        self._start_round()

    def _write_some(self, file: OpenFile) -> None:
        """Write as many pending lines as the file has room for, at least one if it is new; else the file is full."""
        pieces = lay_out(self._pending, self._size, self._max_file_size)
        if self._size + sum(map(len, pieces)) > self._max_file_size:
            ends = accumulate(map(len, pieces), initial=self._size)
            count = sum(end <= self._max_file_size for end in ends) - 1
            pieces = pieces[: max(count, 0 if self._has_rows else 1)]
        if not pieces:
            self._retire()
            return
        self._bounded(partial(_append, file.descriptor, self._size, pieces), partial(self._note_written, file, pieces))

    def _note_written(self, file: OpenFile, pieces: Sequence[bytes], count: int | None) -> None:
        """So many of these lines are in the file; None: the file is gone. Raises: OSError: the disk is full."""
        if count is None:
            self._retire()
            return
        self._size += sum(map(len, pieces[:count]))
        self._has_rows = self._has_rows or bool(count)
        self._written_mark += 1
        self._pending_size -= sum(map(len, self._pending[:count]))
        del self._pending[:count]
        if count < len(pieces):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _retire(self) -> None:
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None
        if self._file is not None and not self._is_owed:  # else a write may still come into it
            self._retired.append(self._file)
            self._file = None
            self._start_round()

    def _start_round(self) -> None:
        with contextlib.suppress(RuntimeError):  # no loop: the next sync does it
            self._next_round()

    def _next_round(self) -> asyncio.Task[None]:
        if self._waiting is None:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_task(self._round(self._running), name="tracking.sync")
        return self._waiting

    async def _round(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait((previous,))
        self._running, self._waiting = self._waiting, None
        self._flush()
        mark = self._running_mark = self._written_mark
        retired, self._retired = self._retired, []
        newest, self._newest = self._newest, None
        self._sync_began = time.monotonic()
        try:
            await in_thread("tracking sync", partial(self._sync_and_clean_up, retired, self._file, newest, self._now()))
            self._synced_mark = mark
        except OSError as exc:
            self._newest = self._newest or newest
            _log.error("tracking.sync_failed", directory=str(self.directory), error=str(exc))
        finally:
            self._sync_began = None
        self._note_answer()
        for file in retired:
            self._announce(self.directory / file.key.name)

    def _announce(self, path: Path) -> None:
        try:
            if self._on_closed is not None:
                self._on_closed(path)
        except Exception:  # an error in the shipper must not affect the log
            _log.exception("tracking.shipper_failed", path=str(path))

    def _sync_and_clean_up(self, retired: list[OpenFile], current: OpenFile | None, newest: FileKey | None, now: datetime) -> None:
        """In a thread, while the loop may create new files: sync, close complete files, enforce the limits."""
        try:
            for file in retired:
                os.fdatasync(file.descriptor)
            if current is not None:
                os.fdatasync(current.descriptor)
        finally:
            for file in retired:
                os.close(file.descriptor)
        if newest is not None:
            sync_directory(self.directory)
            try:
                enforce_limits(self.directory, newest, now, self._closed_size_max, self._max_age, self._custody)
            except OSError as exc:  # the sync succeeded even if a file could not be deleted
                _log.error("tracking.limits_failed", directory=str(self.directory), error=str(exc))
