"""Closed files that wait to be shipped, and what becomes of them: they arrive, or they go and are recorded as dropped.

Implements `retention.Custody`, so some of it runs in the log's threads; the lock is held for moments only. A file that is being
shipped belongs to the shipper until it is put down again.
"""

import contextlib
import heapq
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from shadowrelay.tracking.book import Book, Fingerprint
from shadowrelay.tracking.files import FileKey, tracking_files
from shadowrelay.tracking.manifest import Measured, measure

GONE = "gone before it was shipped"
MADE_ROOM = "max_directory_size reached before it was shipped"

log = structlog.get_logger("shadowrelay.tracking")


@dataclass(slots=True)
class WaitingFile:
    """A closed file that is not known to be at the target. `measured` once it was read; `failures_count` of its transfers."""

    key: FileKey
    path: Path
    fingerprint: Fingerprint
    measured: Measured | None = None
    failures_count: int = 0
    is_readable: bool = True
    has_arrived: bool = False

    def read(self) -> Measured:
        """What is in it, read once. In a thread. Raises: OSError; FileNotFoundError also when another file has its name now."""
        if Fingerprint.of(self.path.stat()) != self.fingerprint:  # begun after the directory was destroyed
            raise FileNotFoundError
        if self.measured is None:
            self.measured = measure(self.path)
        return self.measured


class WaitingFiles:
    """Begins with the files that are there: those of earlier processes. `on_dropped` is called from any thread."""

    def __init__(self, directory: Path, book: Book, on_dropped: Callable[[], None]) -> None:
        self.dropped_count = 0
        self._directory = directory
        self._book = book
        self._on_dropped = on_dropped
        self._lock = threading.Lock()
        self._files: dict[FileKey, WaitingFile] = {}
        self._busy: FileKey | None = None
        with contextlib.suppress(OSError):
            for key in tracking_files(directory):
                self._add(key)

    def __len__(self) -> int:
        return len(self._files)

    @property
    def oldest_changed_at(self) -> float | None:
        """When the oldest was written to last, in seconds since 1970."""
        with self._lock:
            return min((file.fingerprint.changed_at / 1e9 for file in self._files.values()), default=None)

    def add(self, key: FileKey) -> None:
        """A file that is complete now."""
        try:
            self._add(key)
        except FileNotFoundError:  # its directory was destroyed
            if not self._book.was_dropped(key):
                self._dropped(key, 0, None, GONE)
        except OSError as exc:
            log.error("shipping.file_unreadable", file=key.name, error=str(exc))

    def _add(self, key: FileKey) -> None:
        path = self._directory / key.name
        file = WaitingFile(key, path, Fingerprint.of(path.stat()))
        if self._book.is_shipped(key, file.fingerprint):
            return
        with self._lock:
            before = self._files.get(key)
            self._files[key] = file
            is_lost = before is not None and before.fingerprint != file.fingerprint and key != self._busy
        if before is not None and is_lost:  # it had the same name in a directory that was destroyed
            self._dropped(key, before.fingerprint.size, before.measured, GONE)

    def next_batch(self, count: int) -> list[FileKey]:
        """Oldest first; but a file that failed waits for the others, so that one that the target refuses does not hold them up."""
        with self._lock:
            ready = {key: file.failures_count for key, file in self._files.items() if file.is_readable}
        return heapq.nsmallest(count, ready, key=lambda key: (ready[key], key))

    def take(self, key: FileKey) -> WaitingFile | None:
        """For shipping; `None` when it is not there any more."""
        with self._lock:
            file = self._files.get(key)
            self._busy = key if file is not None else None
            return file

    def put_down(self, file: WaitingFile) -> None:
        """Shipping of the one that was taken is over: it arrived, it waits, or it is gone."""
        with self._lock:
            self._busy = None
            is_here = self._files.get(file.key) is file
        if not is_here and not file.has_arrived:
            self._dropped(file.key, file.fingerprint.size, file.measured, GONE)

    def arrived(self, file: WaitingFile, measured: Measured) -> None:
        """It is at the target. Counts as shipped when the book is saved."""
        self._book.add(file.key, file.fingerprint, measured)
        file.has_arrived = True
        self._forget(file)

    def unreadable(self, file: WaitingFile, error: OSError) -> None:
        """It is gone; or it cannot be read, and waits for the next process, or for somebody to look."""
        if isinstance(error, FileNotFoundError):
            self._forget(file)
        else:
            file.is_readable = False
            log.error("shipping.file_unreadable", file=file.key.name, error=str(error))

    def save(self) -> None:
        """Put the book on disk. Raises nothing: what it could not say there counts as unshipped until it can."""
        try:
            self._book.save()
        except OSError as exc:
            log.error("shipping.book_unsaved", directory=str(self._directory), error=str(exc))

    def is_shipped(self, key: FileKey, found: os.stat_result) -> bool:
        return self._book.is_shipped(key, Fingerprint.of(found))

    def is_busy(self, key: FileKey) -> bool:
        return key == self._busy

    def drop(self, found: Mapping[FileKey, os.stat_result]) -> Collection[FileKey]:
        dropped = [key for key, each in found.items() if self._may_drop(key, each)]
        self.save()  # before the files are deleted
        return dropped

    def _may_drop(self, key: FileKey, found: os.stat_result) -> bool:
        with self._lock:
            if key == self._busy:
                return False
            file = self._files.pop(key, None)
        if not self._book.is_unsaved(key, Fingerprint.of(found)):  # else it is at the target, and only our own disk does not know
            self._dropped(key, found.st_size, file.measured if file is not None else None, MADE_ROOM)
        return True

    def _forget(self, file: WaitingFile) -> None:
        with self._lock:
            if self._files.get(file.key) is file:  # else one of the same name was closed meanwhile
                del self._files[file.key]

    def _dropped(self, key: FileKey, size: int, measured: Measured | None, reason: str) -> None:
        rows = measured.rows if measured is not None else None
        log.error("tracking.dropped_unshipped", file=key.name, bytes=size, rows=rows, reason=reason)
        self.dropped_count += 1
        self._book.drop(key, size, rows, reason)
        self._on_dropped()
