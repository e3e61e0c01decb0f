"""Ships closed tracking logs to the target, at least once, oldest first.

The rules that this file guards: the relay never waits for the target (all blocking work is in threads of its own, one transfer at
a time); nothing is forgotten while the target is down; a file counts as shipped when the book says so on disk. The order of a
batch is: files to the target, book to disk, manifest to the target. Cut anywhere, the rest is done again at the next start, which
always publishes the manifest anew. Not here: how a target is written to (`target`).

Closed files wait until they arrive, or go and are recorded as dropped. `WaitingFiles` implements `writer.Custody`, so some of it runs in
the log's threads; the lock is held for moments only. A file that is being shipped belongs to the shipper until it is put down again.
"""

import asyncio
import contextlib
import heapq
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import structlog

from shadowrelay.settings.values import Settings, shown_target, without_secrets
from shadowrelay.tracking.book import Book, Fingerprint, Manifest, Measured, Origin, measure, parse_manifest, shipped_name
from shadowrelay.tracking.target import MANIFEST, Attempt, Target, Threads, open_target
from shadowrelay.tracking.writer import FileKey, FileTrackingLog, parse_name, tracking_files

GONE = "gone before it was shipped"
MADE_ROOM = "max_directory_size reached before it was shipped"

_log = structlog.get_logger()


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
            _log.error("shipping.file_unreadable", file=key.name, error=str(exc))

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
            _log.error("shipping.file_unreadable", file=file.key.name, error=str(error))

    def save(self) -> None:
        """Put the book on disk. Raises nothing: what it could not say there counts as unshipped until it can."""
        try:
            self._book.save()
        except OSError as exc:
            _log.error("shipping.book_unsaved", directory=str(self._directory), error=str(exc))

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
        _log.error("tracking.dropped_unshipped", file=key.name, bytes=size, rows=rows, reason=reason)
        self.dropped_count += 1
        self._book.drop(key, size, rows, reason)
        self._on_dropped()


RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 1.0, 300.0  # doubled after each failure
CLOSE_SECONDS = 5.0  # at SIGTERM, for the last file
STEP_SECONDS = 60.0  # one exchange with the target, or one look at the local disk …
OCTETS_PER_SECOND_MIN = 100_000  # … and for each file what its size needs at this rate
BATCH_FILES = 20  # between two manifests, which list everything


class Gauges(Protocol):
    """Where states are read from at each scrape."""

    def watch(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """What goes up and down."""

    def watch_total(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """What only grows."""


class Shipper:
    """Belongs to one event loop; its `files` also serve the log's threads. `start`, then `close`.

    Shapes: to be made before the log begins a file. `plain` takes secrets out of a library's words; `shown` is the target's name.
    """

    def __init__(
        self,
        directory: Path,
        book: Book,
        target: Target,
        now: Callable[[], datetime],
        *,
        plain: Callable[[str], str] = str,
        shown: str = "",
    ) -> None:
        self.shipped_count = 0
        self._book = book
        self._target = target
        self._now = now
        self._plain = plain
        self._shown = shown
        self._is_acquainted = False
        self._is_dirty = True  # the manifest at the target is older than the book
        self._threads = Threads("shipping", self._changed)
        self._failures_count = 0
        self._woken = asyncio.Event()
        self._closing = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self.files = WaitingFiles(directory, book, self._changed_in_thread)

    @property
    def oldest_age_seconds(self) -> float:
        """Since the last change of the oldest file that waits; 0 when there is none."""
        changed_at = self.files.oldest_changed_at
        return 0.0 if changed_at is None else max(self._now().timestamp() - changed_at, 0.0)

    def watch(self, metrics: Gauges) -> None:
        """Show how it stands."""
        metrics.watch("shipping_waiting_files", "Closed tracking logs that are not shipped.", lambda: len(self.files))
        metrics.watch(
            "shipping_oldest_age_seconds", "Since the last row of the oldest of them; 0 without.", lambda: self.oldest_age_seconds
        )
        metrics.watch_total("shipping_shipped_files", "Tracking logs shipped, since the start.", lambda: self.shipped_count)
        metrics.watch_total("shipping_dropped_files", "Tracking logs lost before, since the start.", lambda: self.files.dropped_count)

    def start(self) -> None:
        """Begin with what is there."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="shipping")

    def closed(self, path: Path) -> None:
        """The log's announcement of a file that is complete."""
        key = parse_name(path.name)
        if key is not None:
            self.files.add(key)
            self._woken.set()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Ship what waits if the target takes it within `seconds`; else it is done at the next start."""
        if self._task is None:
            return
        self._closing.set()
        self._woken.set()
        await asyncio.wait((self._task,), timeout=seconds)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=1.0)
        if len(self.files):
            _log.warning("shipping.unfinished", target=self._shown, waiting=len(self.files))

    def _changed(self) -> None:
        # something was dropped, or an abandoned attempt ended after all and may have put an old manifest over a newer one
        self._is_dirty = True
        self._woken.set()

    def _changed_in_thread(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended: the next process tells the target
                self._loop.call_soon_threadsafe(self._changed)

    async def _run(self) -> None:
        wait = RETRY_SECONDS_MIN
        while True:
            self._woken.clear()
            is_last = self._closing.is_set()
            try:
                await self._ship_all()
            except Exception as exc:
                self._failed(exc, None if is_last else wait)
                if is_last:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), wait)
                wait = min(wait * 2, RETRY_SECONDS_MAX)
                continue
            wait = RETRY_SECONDS_MIN
            self._recovered()
            if is_last:
                return
            await self._woken.wait()

    async def _ship_all(self) -> None:
        if not self._is_acquainted:
            await self._threads.run(self._meet, STEP_SECONDS)
            self._is_acquainted = True
        if self._is_dirty:
            await self._publish()  # first: it also tells what was dropped, whatever becomes of the next files
        while batch := self.files.next_batch(BATCH_FILES):
            try:
                for key in batch:
                    await self._ship(key)
            finally:
                if self._book.has_unsaved:
                    self._is_dirty = True
                    await self._threads.run(lambda _: self.files.save(), STEP_SECONDS)
            if self._is_dirty:
                await self._publish()

    def _meet(self, attempt: Attempt) -> None:
        """Take over what earlier processes wrote there: this directory may be new."""
        self._target.clean()
        octets = self._target.read(MANIFEST)
        try:
            theirs = parse_manifest(octets) if octets is not None else Manifest()
        except ValueError as exc:
            name = f"manifest.unreadable-{self._now():%Y%m%dT%H%M%S}.json"
            _log.error("shipping.manifest_unreadable", target=self._shown, kept_as=name, error=str(exc))
            self._target.replace(name, octets or b"", attempt)
            return
        attempt.check()
        self._book.merge(theirs)

    async def _ship(self, key: FileKey) -> None:
        file = self.files.take(key)
        if file is None:
            return
        seconds = STEP_SECONDS + file.fingerprint.size / OCTETS_PER_SECOND_MIN
        try:
            found = await self._threads.run(lambda _: _read(file), seconds)
            if isinstance(found, OSError):
                self.files.unreadable(file, found)
                return
            name = shipped_name(key.name, found.sha256)
            await self._threads.run(lambda attempt: self._target.put(file.path, name, attempt), seconds)
        except Exception:
            file.failures_count += 1
            raise
        else:
            self.files.arrived(file, found)
            self.shipped_count += 1
        finally:
            self.files.put_down(file)

    async def _publish(self) -> None:
        self._is_dirty = False
        try:
            await self._threads.run(lambda attempt: self._target.replace(MANIFEST, self._book.text().encode(), attempt), STEP_SECONDS)
        except BaseException:
            self._is_dirty = True
            raise

    def _failed(self, exc: Exception, wait: float | None) -> None:
        self._failures_count += 1
        self._target.disconnect()
        self._is_acquainted = False  # what was not there because the target was not may be there next time
        _log.error(
            "shipping.failed",
            target=self._shown,
            error=self._plain(f"{type(exc).__name__}: {exc}"),
            failures=self._failures_count,
            waiting=len(self.files),
            retry_seconds=wait,
        )

    def _recovered(self) -> None:
        if self._failures_count:
            _log.info("shipping.recovered", target=self._shown, failures=self._failures_count)
        self._failures_count = 0


def _read(file: WaitingFile) -> Measured | OSError:
    # a trouble of the local disk is an answer: the target is not to blame, and the next file may be well
    try:
        return file.read()
    except OSError as exc:
        return exc


def make_tracking(settings: Settings, now: Callable[[], datetime], version: str) -> tuple[FileTrackingLog, Shipper | None]:
    """The log, and who ships its files if there is a target. Connects to nothing. Raises: ConfigurationError."""
    shipper = _make_shipper(settings, now)  # before the log begins a file: those that are there are complete
    tracking = settings.tracking
    log = FileTrackingLog(
        tracking.directory,
        settings.server.name,
        max_file_size=tracking.max_file_size,
        max_directory_size=tracking.max_directory_size,
        max_age=tracking.max_age,
        now=now,
        version=version,
        on_closed=shipper.closed if shipper is not None else None,
        close_after=settings.shipping.interval if shipper is not None else None,
        custody=shipper.files if shipper is not None else None,
    )
    return log, shipper


def _make_shipper(settings: Settings, now: Callable[[], datetime]) -> Shipper | None:
    server, shipping, tracking = settings.server, settings.shipping, settings.tracking
    if not shipping.target:
        return None
    target = open_target(shipping.target, shipping.options, server.name)
    origin = Origin(server.name, server.site, server.boundary)
    return Shipper(
        tracking.directory,
        Book(tracking.directory, shipping.target, origin, max_age=tracking.max_age, now=now),
        target,
        now,
        plain=lambda text: without_secrets(text, shipping.target, shipping.options),
        shown=shown_target(shipping.target),
    )
