"""Ships closed tracking logs to the target, at least once, oldest first. docs/operations.md "Shipping the tracking log".

The rules here: the relay never waits for the target (all blocking work runs in separate threads, one transfer at a time); no file is
forgotten while the target is down; a file counts as shipped when the book on disk records it. The order in a batch is: files to the
target, book to disk, manifest to the target. After an interruption at any point, the next start repeats the rest, and always publishes
the manifest. Writing to a target is in `target`.

Closed files wait until they are shipped, or are deleted and recorded as dropped. `WaitingFiles` implements `writer.Custody`, so parts of
it run in the log's threads; its lock is held only briefly. A file that is being shipped belongs to the shipper until `put_down`.
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

from shadowrelay.bounded import Attempt, BoundedCalls, Threads
from shadowrelay.model.setting_texts import shown_target, without_secrets
from shadowrelay.model.settings import Settings
from shadowrelay.tracking.shipping_state import (
    Book,
    Fingerprint,
    Measured,
    ShippingManifest,
    ShippingNode,
    measure,
    parse_manifest,
    shipped_name,
)
from shadowrelay.tracking.target import MANIFEST, Target, open_target
from shadowrelay.tracking.writer import Custody, FileKey, FileTrackingLog, parse_name, tracking_files

GONE = "gone before it was shipped"
MADE_ROOM = "max_directory_size reached before it was shipped"

_log = structlog.get_logger()


@dataclass(slots=True)
class WaitingFile:
    """A closed file that is not known to be at the target. `measured` after it was read; `failures_count` counts its transfers."""

    key: FileKey
    path: Path
    fingerprint: Fingerprint
    measured: Measured | None = None
    failures_count: int = 0
    is_readable: bool = True
    has_arrived: bool = False

    def read(self) -> Measured:
        """Measure the file, once. In a thread. Raises: OSError; FileNotFoundError also if another file has its name now."""
        if Fingerprint.of(self.path.stat()) != self.fingerprint:  # created after the directory was destroyed
            raise FileNotFoundError
        if self.measured is None:
            self.measured = measure(self.path)
        return self.measured


class WaitingFiles:
    """Starts with the files of earlier processes. `on_dropped` is called from any thread."""

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
        """Modification time of the oldest file, in seconds since 1970."""
        with self._lock:
            return min((file.fingerprint.changed_at / 1e9 for file in self._files.values()), default=None)

    def add(self, key: FileKey) -> None:
        """Add a file that is complete."""
        try:
            self._add(key)
        except FileNotFoundError:  # the directory was destroyed
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
        if before is not None and is_lost:  # a file of the same name in a directory that was destroyed
            self._dropped(key, before.fingerprint.size, before.measured, GONE)

    def next_batch(self, count: int) -> list[FileKey]:
        """Oldest first, but failed files after all others, so that a file that the target refuses does not block them."""
        with self._lock:
            ready = {key: file.failures_count for key, file in self._files.items() if file.is_readable}
        return heapq.nsmallest(count, ready, key=lambda key: (ready[key], key))

    def take(self, key: FileKey) -> WaitingFile | None:
        """Take a file for shipping; `None` if it is gone."""
        with self._lock:
            file = self._files.get(key)
            self._busy = key if file is not None else None
            return file

    def put_down(self, file: WaitingFile) -> None:
        """End the shipping of a taken file: it was shipped, waits again, or is gone."""
        with self._lock:
            self._busy = None
            is_here = self._files.get(file.key) is file
        if not is_here and not file.has_arrived:
            self._dropped(file.key, file.fingerprint.size, file.measured, GONE)

    def arrived(self, file: WaitingFile, measured: Measured) -> None:
        """The file is at the target. It counts as shipped when the book is saved."""
        self._book.add(file.key, file.fingerprint, measured)
        file.has_arrived = True
        self._forget(file)

    def unreadable(self, file: WaitingFile, error: OSError) -> None:
        """The file is gone; or it cannot be read, and waits for the next process or an operator."""
        if isinstance(error, FileNotFoundError):
            self._forget(file)
        else:
            file.is_readable = False
            _log.error("shipping.file_unreadable", file=file.key.name, error=str(error))

    def save(self) -> None:
        """Save the book. Raises nothing: on failure, files stay marked as unshipped."""
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
        if not self._book.is_unsaved(key, Fingerprint.of(found)):  # else it is at the target, and only the book on disk lacks it
            self._dropped(key, found.st_size, file.measured if file is not None else None, MADE_ROOM)
        return True

    def _forget(self, file: WaitingFile) -> None:
        with self._lock:
            if self._files.get(file.key) is file:  # else another file of the same name was closed meanwhile
                del self._files[file.key]

    def _dropped(self, key: FileKey, size: int, measured: Measured | None, reason: str) -> None:
        rows = measured.rows if measured is not None else None
        _log.error("tracking.dropped_unshipped", file=key.name, bytes=size, rows=rows, reason=reason)
        self.dropped_count += 1
        self._book.drop(key, size, rows, reason)
        self._on_dropped()


RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 1.0, 300.0  # doubled after each failure
CLOSE_SECONDS = 5.0  # at SIGTERM, to ship the last file
STEP_SECONDS = 60.0  # for one exchange with the target, or one pass over the local disk …
OCTETS_PER_SECOND_MIN = 100_000  # … plus the time for each file's size at this rate
OPENING_SECONDS = 10.0  # for the list of files at a start
BATCH_FILES = 20  # between two manifests, each of which lists everything


class Gauges(Protocol):
    """Registers values that are read at each scrape."""

    def watch(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """A gauge."""

    def watch_total(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """A counter."""


class Shipper:
    """Belongs to one event loop; its `files` also serve the log's threads. Call `start`, then `close`.

    Shapes: create it before the log creates a file. `plain` removes secrets from a library's messages; `shown` is the target's name.
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
        self._has_read_manifest = False
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
        """Seconds since the last change of the oldest waiting file; 0 if there is none."""
        changed_at = self.files.oldest_changed_at
        return 0.0 if changed_at is None else max(self._now().timestamp() - changed_at, 0.0)

    def watch(self, metrics: Gauges) -> None:
        """Register the metrics."""
        metrics.watch("shipping_waiting_files", "Closed tracking logs that are not shipped.", lambda: len(self.files))
        metrics.watch(
            "shipping_oldest_age_seconds", "Since the last row of the oldest of them; 0 without.", lambda: self.oldest_age_seconds
        )
        metrics.watch_total("shipping_shipped_files", "Tracking logs shipped, since the start.", lambda: self.shipped_count)
        metrics.watch_total("shipping_dropped_files", "Tracking logs lost before, since the start.", lambda: self.files.dropped_count)

    def start(self) -> None:
        """Start with the files that are there."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="shipping")

    def closed(self, path: Path) -> None:
        """Called by the log when a file is complete."""
        key = parse_name(path.name)
        if key is not None:
            self.files.add(key)
            self._woken.set()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Ship the waiting files if the target accepts them within `seconds`; the next start ships the rest."""
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
        # a file was dropped, or an abandoned attempt has ended and may have overwritten a newer manifest with an old one
        self._is_dirty = True
        self._woken.set()

    def _changed_in_thread(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the next process publishes the manifest
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
        if not self._has_read_manifest:
            await self._threads.run(self._merge_manifest, STEP_SECONDS)
            self._has_read_manifest = True
        if self._is_dirty:
            await self._publish()  # first: it reports dropped files, even if the next transfers fail
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

    def _merge_manifest(self, attempt: Attempt) -> None:
        """Merge the manifest that earlier processes wrote there: this directory may be new."""
        self._target.clean()
        octets = self._target.read(MANIFEST)
        try:
            theirs = parse_manifest(octets) if octets is not None else ShippingManifest()
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
        self._has_read_manifest = False  # a manifest that could not be read may exist: read it again next time
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
    # an error of the local disk is a result: the target works, and the next file may be readable
    try:
        return file.read()
    except OSError as exc:
        return exc


class NothingKnown:
    """A `Custody` that lets no file be deleted."""

    def is_shipped(self, key: FileKey, found: os.stat_result) -> bool:
        return False

    def is_busy(self, key: FileKey) -> bool:
        return True

    def drop(self, found: Mapping[FileKey, os.stat_result]) -> Collection[FileKey]:
        return ()


def make_tracking(settings: Settings, now: Callable[[], datetime], version: str) -> tuple[FileTrackingLog, Shipper | None]:
    """The log, and the shipper of its files if a target is configured. Opens no connection. Raises: ConfigurationError.

    Where the directory hangs, there is no shipper until the next start, and no file is deleted."""
    tracking = settings.tracking
    custody: Custody | None = None
    try:  # before the log creates a file: the existing ones are complete
        shipper = BoundedCalls("shipping").call(lambda: _make_shipper(settings, now), OPENING_SECONDS)
        custody = None if shipper is None else shipper.files
    except TimeoutError as error:
        _log.error("shipping.off", directory=str(tracking.directory), error=str(error))
        shipper, custody = None, NothingKnown()
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
        custody=custody,
        has_subjects=tracking.message_subject_logging_enabled,
    )
    return log, shipper


def _make_shipper(settings: Settings, now: Callable[[], datetime]) -> Shipper | None:
    server, shipping, tracking = settings.server, settings.shipping, settings.tracking
    if not shipping.target:
        return None
    target = open_target(shipping.target, shipping.options, server.name)
    origin = ShippingNode(server.name, server.site, server.boundary)
    return Shipper(
        tracking.directory,
        Book(tracking.directory, shipping.target, origin, max_age=tracking.max_age, now=now),
        target,
        now,
        plain=lambda text: without_secrets(text, shipping.target, shipping.options),
        shown=shown_target(shipping.target),
    )
