"""Ships closed tracking logs to the target, at least once, oldest first.

The rules that this file guards: the relay never waits for the target (all blocking work is in threads of its own, one transfer at
a time); nothing is forgotten while the target is down; a file counts as shipped when the book says so on disk. The order of a
batch is: files to the target, book to disk, manifest to the target. Cut anywhere, the rest is done again at the next start, which
always publishes the manifest anew. Not here: how a target is written to (`target`), which files must go (`retention`).
"""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Protocol

import structlog

from shadowrelay.tracking.book import Book
from shadowrelay.tracking.files import FileKey, parse_name
from shadowrelay.tracking.manifest import Manifest, Measured, parse_manifest, shipped_name
from shadowrelay.tracking.target import MANIFEST, Target
from shadowrelay.tracking.threads import Attempt, Threads
from shadowrelay.tracking.waiting import WaitingFile, WaitingFiles

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 1.0, 300.0  # doubled after each failure
CLOSE_SECONDS = 5.0  # at SIGTERM, for the last file
STEP_SECONDS = 60.0  # one exchange with the target, or one look at the local disk …
OCTETS_PER_SECOND_MIN = 100_000  # … and for each file what its size needs at this rate
BATCH_FILES = 20  # between two manifests, which list everything

log = structlog.get_logger("shadowrelay.tracking")


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
            log.warning("shipping.unfinished", target=self._shown, waiting=len(self.files))

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
            log.error("shipping.manifest_unreadable", target=self._shown, kept_as=name, error=str(exc))
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
        log.error(
            "shipping.failed",
            target=self._shown,
            error=self._plain(f"{type(exc).__name__}: {exc}"),
            failures=self._failures_count,
            waiting=len(self.files),
            retry_seconds=wait,
        )

    def _recovered(self) -> None:
        if self._failures_count:
            log.info("shipping.recovered", target=self._shown, failures=self._failures_count)
        self._failures_count = 0


def _read(file: WaitingFile) -> Measured | OSError:
    # a trouble of the local disk is an answer: the target is not to blame, and the next file may be well
    try:
        return file.read()
    except OSError as exc:
        return exc
