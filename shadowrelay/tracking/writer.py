"""Writes the message tracking log. docs/operations.md "The message tracking log".

The rules that this file guards: the relay never waits for its log and never fails because of it; what was written before an
`await` is in the kernel after it, so that SIGKILL loses nothing of it; a line is there whole or not at all; `sync` means
on disk. Lines of one pass of the event loop go out in one write. Files are only closed in a round of `sync`, one at a time,
so that no descriptor goes away under a running sync. Not here: what a row says (`core.tracking_rows`, `wire.tracking`).
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import structlog

from shadowrelay.model.ids import ServerName
from shadowrelay.model.tracking import TrackingEvent
from shadowrelay.tracking.files import FileKey, create_file, hour_of, lay_out, sync_directory
from shadowrelay.tracking.retention import Custody, enforce_limits
from shadowrelay.wire.tracking import format_header, format_line

PENDING_BYTES_MAX = 16 * 1024 * 1024  # about 30,000 rows, 5,000 messages: what a full disk may cost in memory
RETRY_SECONDS = 1.0  # between two attempts to write to a disk that is full, or a directory that is gone

log = structlog.get_logger("shadowrelay.tracking")


class OpenFile(NamedTuple):
    """A file that rows go to, or went to until it was full, its hour was over, or it was due to be shipped."""

    descriptor: int
    key: FileKey
    ends_at: datetime


class FileTrackingLog:
    """A `TrackingLog` in files MSGTRKyyyymmddhh-n.LOG. Belongs to one event loop; `now` gives aware UTC.

    Shapes: `on_closed` is called with each file that is complete and synced, for whoever ships it; none is open for longer than
    `close_after` from its first row. What `custody` does not have is deleted last.
    Raises: nothing, ever. `dropped_count` and `is_failing` tell what could not be written.
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
    ) -> None:
        self.directory = directory
        self.server = server
        self.dropped_count = 0  # rows that found no place in memory while nothing could be written
        self.is_failing = False
        self._max_file_size = max_file_size
        # the current file may grow to its limit after the others were counted
        self._closed_size_max = max(max_directory_size - max_file_size, 0)
        self._max_age = max_age
        self._now = now
        self._version = version
        self._on_closed = on_closed
        self._close_after = close_after
        self._custody = custody
        self._due: asyncio.TimerHandle | None = None
        self._file: OpenFile | None = None
        self._size = 0
        self._has_rows = False
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._is_scheduled = False
        self._is_closed = False
        self._retired: list[OpenFile] = []
        self._newest: FileKey | None = None  # begun since the last round
        self._written_mark = 0  # counts writes; `_synced_mark` says up to which they are on disk
        self._synced_mark = 0
        self._running_mark = 0
        self._running: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        with contextlib.suppress(OSError):  # if it cannot be made, the first write says so, and it is tried again
            directory.mkdir(parents=True, exist_ok=True)

    @property
    def pending_count(self) -> int:
        """Rows that wait to be written: of this pass of the loop, or because of a disk that does not take them."""
        return len(self._pending)

    def write(self, event: TrackingEvent) -> None:
        """Put down a row; it reaches the file before the event loop's next pass is over."""
        try:
            line = format_line(event)
        except Exception:
            self.dropped_count += 1
            log.exception("tracking.row_refused", event_id=event.event, message_id=event.network_message_id)
            return
        if self._pending_size + len(line) > PENDING_BYTES_MAX and not self.is_failing:
            self._flush()
        if self._is_closed or self._pending_size + len(line) > PENDING_BYTES_MAX:
            self.dropped_count += 1
            return
        self._pending.append(line)
        self._pending_size += len(line)
        if not self._is_scheduled:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # before or after the loop: at once
                self._flush()
                return
            self._is_scheduled = True
            loop.call_soon(self._flush_scheduled)

    async def sync(self) -> None:
        """Return when everything written so far is on disk. Callers that wait at the same time share a sync."""
        self._flush()
        if self._synced_mark >= self._written_mark and not self._retired:
            return
        covers = self._running is not None and not self._running.done() and self._running_mark >= self._written_mark
        await asyncio.shield(self._running if covers and self._running is not None else self._next_round())

    def rotate_if_due(self) -> None:
        """Close the file of an hour that is over, although no row comes: call it now and then."""
        if self._file is not None and self._now() >= self._file.ends_at:
            self._retire()

    async def close(self) -> None:
        """Write, sync and close. Rows that come later are counted as dropped."""
        self._flush()
        self._is_closed = True
        self._retire()
        while self._retired or self._waiting is not None:
            await asyncio.shield(self._next_round())
        if self._running is not None:
            await asyncio.shield(self._running)
        self.dropped_count += len(self._pending)
        self._pending.clear()

    def _flush_scheduled(self) -> None:
        self._is_scheduled = False
        self._flush()

    def _flush(self) -> None:
        """Everything that is pending into the file, or files; what does not go stays and is tried again later."""
        if self._is_closed:
            return
        try:
            while self._pending:
                self._write_some(self._writable_file())
        except OSError as exc:
            if not self.is_failing:
                log.error("tracking.write_failed", directory=str(self.directory), error=str(exc), pending=len(self._pending))
            self.is_failing = True
            self._retry_later()
        else:
            if self.is_failing:
                log.info("tracking.recovered", directory=str(self.directory), dropped=self.dropped_count)
            self.is_failing = False

    def _retry_later(self) -> None:
        with contextlib.suppress(RuntimeError):  # without a loop the next write tries again
            if not self._is_scheduled:
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._flush_scheduled)
                self._is_scheduled = True

    def _writable_file(self) -> int:
        now = self._now()
        if self._file is not None:
            # a file whose directory was removed still takes writes, that nobody will ever see
            if now < self._file.ends_at and os.fstat(self._file.descriptor).st_nlink > 0:
                return self._file.descriptor
            self._retire()
        descriptor, key = create_file(self.directory, hour_of(now))
        header = format_header(self._version, now)
        try:
            if os.write(descriptor, header) < len(header):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                (self.directory / key.name).unlink()
            raise
        self._file = OpenFile(descriptor, key, key.ends_at)
        if self._close_after is not None:
            with contextlib.suppress(RuntimeError):  # without a loop: when its hour is over
                self._due = asyncio.get_running_loop().call_later(self._close_after.total_seconds(), self._retire)
        self._size = len(header)
        self._has_rows = False
        self._newest = key
        self._start_round()
        return descriptor

    def _write_some(self, descriptor: int) -> None:
        """As many pending lines as the file has room for, at least one if it is new; else the file is full."""
        pieces = lay_out(self._pending, self._size, self._max_file_size)
        if self._size + sum(map(len, pieces)) > self._max_file_size:
            ends = accumulate(map(len, pieces), initial=self._size)
            count = sum(end <= self._max_file_size for end in ends) - 1
            pieces = pieces[: max(count, 0 if self._has_rows else 1)]
        if not pieces:
            self._retire()
            return
        data = b"".join(pieces)
        written = os.write(descriptor, data)
        is_short = written < len(data)
        if is_short:  # the disk is full: take the half line back before anybody relies on it
            ends_whole = [end for end in accumulate(map(len, pieces)) if end <= written]
            pieces = pieces[: len(ends_whole)]
            written = ends_whole[-1] if ends_whole else 0
            os.ftruncate(descriptor, self._size + written)
        self._size += written
        self._has_rows = self._has_rows or bool(pieces)
        self._written_mark += 1
        self._pending_size -= sum(map(len, self._pending[: len(pieces)]))
        del self._pending[: len(pieces)]
        if is_short:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _retire(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._file is not None:
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
        try:
            await asyncio.to_thread(self._settle, retired, self._file, newest, self._now())
            self._synced_mark = mark
        except OSError as exc:
            self._newest = self._newest or newest
            log.error("tracking.sync_failed", directory=str(self.directory), error=str(exc))
        for file in retired:
            self._announce(self.directory / file.key.name)

    def _announce(self, path: Path) -> None:
        try:
            if self._on_closed is not None:
                self._on_closed(path)
        except Exception:  # a shipper's trouble is not the log's
            log.exception("tracking.shipper_failed", path=str(path))

    def _settle(self, retired: list[OpenFile], current: OpenFile | None, newest: FileKey | None, now: datetime) -> None:
        """In a thread, while the loop may begin new files: sync, close what is complete, keep to the limits."""
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
            except OSError as exc:  # what could not be deleted is on disk all the same
                log.error("tracking.limits_failed", directory=str(self.directory), error=str(exc))
