"""Calls that may hang (a disk, a file system of the network), made in daemon threads: whoever waits does so for a limited time, and a
hung thread does not keep the process from ending. docs/design.md 3, I6.

The loop's executor is not used: a call that hangs in it takes a thread from the relay, and the process waits for it at exit. A thread
cannot be stopped from outside; one that takes too long is abandoned: it may go on.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Found = tuple[Any, Exception | None]  # a result, or what was raised
READ_SECONDS = 10.0  # for a small file
LOOK_SECONDS = 1.0  # for one that somebody waits for at a start or a reload
HUNG_MAX = 3  # abandoned threads of `Threads`, or of files of the same directories; beyond that no work starts until one of them has ended
HUNG_FILES_MAX = 64  # of all directories


class BoundedCalls:
    """Blocking calls, one at a time, in one thread. `on_late` is called in that thread with what a call has found that was given up.

    Locks, and no condition or future: such a call costs 20 µs more than one without a limit.
    """

    def __init__(self, name: str, on_late: Callable[[Found], None] = lambda found: None) -> None:
        self._name = name
        self._on_late = on_late
        self._deciding = threading.Lock()
        self._begun, self._ended = threading.Lock(), threading.Lock()  # held, until the other thread releases them
        self._begun.acquire()
        self._ended.acquire()
        self._work: Callable[[], Any] | None = None
        self._found: Found = None, None
        self._hangs_since: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def hung_seconds(self) -> float:
        """How long the call has been running that was given up; 0 if there is none."""
        since = self._hangs_since
        return 0.0 if since is None else max(time.monotonic() - since, 0.001)

    def call(self, work: Callable[[], T], seconds: float) -> T:
        """Raises: what `work` raises; TimeoutError after `seconds`, and at once while an earlier call hangs."""
        if self._hangs_since is not None:
            raise TimeoutError(f"no answer for {self.hung_seconds:.0f} s")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._work = work
        began = time.monotonic()
        self._begun.release()
        if not self._ended.acquire(timeout=seconds):
            with self._deciding:
                if not self._ended.acquire(blocking=False):
                    self._hangs_since = began
                    raise TimeoutError(f"no answer in {seconds:.3g} s")
        (result, error), self._found = self._found, (None, None)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def _run(self) -> None:
        while True:
            self._begun.acquire()
            work, self._work = self._work, None
            assert work is not None
            found = _found_by(work)
            with self._deciding:
                is_late = self._hangs_since is not None
                if not is_late:
                    self._found = found
                    self._ended.release()
            if is_late:
                self._hangs_since = None
                self._on_late(found)


def in_thread(name: str, work: Callable[[], T]) -> asyncio.Future[T]:
    """One call in a thread of its own: a future of the running loop. Whoever waits for it sets the limit."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def end(found: Found) -> None:
        result, error = found
        if ended.done():  # its waiter was cancelled
            return
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(error)

    def run() -> None:
        found = _found_by(work)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end, found)

    threading.Thread(target=run, name=name, daemon=True).start()
    return ended


Files = tuple[Path, ...]


class _Reading:
    """One that runs in a thread of its own, or hangs there."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.is_given_up = False
        self.ended: concurrent.futures.Future[Any] = concurrent.futures.Future()


class FilesRead:
    """Small files that are read now and then, and may be on a file system of the network that hangs: each in a thread of its own, so that
    one that hangs costs what needs it and nothing else. It is not asked again until that thread has returned. Of the same directories no
    more than `HUNG_MAX` hang: others there are not tried. Not in the loop's executor, which reads large content.

    There is one for the process, `FILES`, because hung threads are the process's, whatever is reloaded. Called in any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Files, _Reading] = {}

    def hung(self) -> Mapping[Files, float]:
        """What was given up and has not returned, and for how long it has not, in seconds."""
        now = time.monotonic()
        with self._lock:
            return {files: now - each.began for files, each in self._running.items() if each.is_given_up}

    async def read(self, files: Files, read: Callable[[], T]) -> T:
        """What `read` finds in these files, after whoever reads them now.
        Raises: what `read` raises; TimeoutError after `READ_SECONDS`, and at once while they hang."""
        loop = asyncio.get_running_loop()
        is_own = False
        while not is_own:
            reading, is_own = self._begin(files, read)
            woken = asyncio.Event()
            reading.ended.add_done_callback(partial(_wake, loop, woken))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), reading.began + READ_SECONDS - time.monotonic())
            self._check(files, reading, READ_SECONDS)
        return reading.ended.result()  # type: ignore[no-any-return]

    def look(self, files: Files, read: Callable[[], T]) -> T:
        """The same, in a thread that waits: for `LOOK_SECONDS`, because a start or a reload waits with it."""
        is_own = False
        while not is_own:
            reading, is_own = self._begin(files, read)
            concurrent.futures.wait((reading.ended,), LOOK_SECONDS)
            self._check(files, reading, LOOK_SECONDS)
        return reading.ended.result()  # type: ignore[no-any-return]

    def _begin(self, files: Files, read: Callable[[], T]) -> tuple[_Reading, bool]:
        """The reading of these files, and whether it is that of `read`. Raises: TimeoutError if they hang."""
        with self._lock:
            if (present := self._running.get(files)) is not None:
                if present.is_given_up:
                    raise TimeoutError(f"{_named(files)} hangs: no answer for {time.monotonic() - present.began:.0f} s")
                return present, False
            hung = [each for each, one in self._running.items() if one.is_given_up]
            directories = {file.parent for file in files}
            beside = [each for each in hung if {file.parent for file in each} == directories]
            if len(beside) >= HUNG_MAX or len(hung) >= HUNG_FILES_MAX:
                raise TimeoutError(f"{_named(files)} is not read: {_named((beside or hung)[0])} and others hang")
            reading = self._running[files] = _Reading()
        threading.Thread(target=self._run, args=(files, reading, read), name="file", daemon=True).start()
        return reading, True

    def _run(self, files: Files, reading: _Reading, read: Callable[[], Any]) -> None:
        result, error = _found_by(read)
        with self._lock:
            del self._running[files]
            if error is None:
                reading.ended.set_result(result)
            else:
                reading.ended.set_exception(error)

    def _check(self, files: Files, reading: _Reading, seconds: float) -> None:
        """Raises: TimeoutError if it has not ended: it hangs from now on."""
        with self._lock:
            if reading.ended.done():
                return
            reading.is_given_up = True
        raise TimeoutError(f"{_named(files)} hangs: no answer in {seconds:.3g} s")


def _named(files: Files) -> str:
    return " or ".join(map(str, files)) or "the system's certificates"


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event, ended: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(woken.set)


FILES = FilesRead()


class Abandoned(Exception):
    """Raised by work that finds that it was abandoned."""


class Attempt:
    """Passed to the work, so that it can stop before it changes anything after it was abandoned."""

    is_abandoned = False

    def check(self) -> None:
        """Raises: Abandoned."""
        if self.is_abandoned:
            raise Abandoned


class Threads:
    """Belongs to one event loop. `on_late` is called when an abandoned thread has ended after all: it may have changed something."""

    def __init__(self, name: str, on_late: Callable[[], None]) -> None:
        self.hung_count = 0
        self._name = name
        self._on_late = on_late

    async def run(self, work: Callable[[Attempt], T], seconds: float) -> T:
        """The result of `work`. Raises: what it raises; TimeoutError after `seconds`, or at once if too many threads hang."""
        if self.hung_count >= HUNG_MAX:
            raise TimeoutError(f"{self.hung_count} earlier attempts still hang")
        attempt = Attempt()
        future = in_thread(self._name, lambda: work(attempt))
        try:
            await asyncio.wait((future,), timeout=seconds)
        finally:
            if not future.done():
                attempt.is_abandoned = True
                self.hung_count += 1
                future.add_done_callback(self._ended_late)
            else:
                future.exception()  # mark it as retrieved, even if this task is cancelled at this moment
        if attempt.is_abandoned:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return future.result()

    def _ended_late(self, future: asyncio.Future[Any]) -> None:
        future.exception()
        self.hung_count -= 1
        self._on_late()


def _found_by(work: Callable[[], Any]) -> Found:
    try:
        return work(), None
    except BaseException as error:  # SystemExit too: somebody waits for a result
        return None, error if isinstance(error, Exception) else RuntimeError(repr(error))
