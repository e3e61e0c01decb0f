"""Where the commits happen: on the loop and one dedicated thread, or, for a deterministic simulation, at the call itself."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, cast

from shadowrelay.model.errors import LedgerUnavailable
from shadowrelay.model.ids import MessageId
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, LOCAL_ERROR, STORE_UNAVAILABLE
from shadowrelay.store.committer import Committer, Promise
from shadowrelay.store.work import Work

BATCH_MAX = 64  # promises in one transaction: a few milliseconds of the event loop; more do not make the sync cheaper
LIGHT_ROWS_MAX = 400  # an XQDISCARD at its largest; a promise that wants more rows is heavy
WAITING_MAX = 50_000  # promises; sessions are bounded long before

Run = Callable[[Work], Any]


class Writer(Protocol):
    """Takes promises in the order of the calls."""

    def submit(self, run: Run, wants: Sequence[MessageId] = (), *, is_heavy: bool = False) -> "asyncio.Future[Any]":
        """`is_heavy`: may take long, so not on the event loop's thread."""
        ...

    async def close(self) -> None: ...


class ThreadedWriter:
    """Promises are run on the event loop's thread; one dedicated thread waits for the disk.

    Both would fight for the interpreter's lock if they ran promises at the same time, so the connection goes to and fro:
    the loop prepares a transaction, the thread brings it to the disk, and what was promised meanwhile is the next one.
    What may take long, and what failed, is done on the thread altogether. A cancelled waiter changes nothing.
    """

    def __init__(self, opening: Callable[[], Committer], closing: Callable[[Committer], None]) -> None:
        self._opening = opening
        self._closing = closing
        self._loop = asyncio.get_running_loop()
        self._committer: Committer | None = None
        self._waiting: list[Promise] = []
        self._calls: list[tuple[Promise, Callable[[], None]]] = []
        self._is_busy = False  # the thread has the connection, or `_begin` will be called
        self._jobs: queue.SimpleQueue[tuple[Sequence[Promise], Callable[[], None]] | None] = queue.SimpleQueue()
        self._is_closed = False
        self.after_commit: Callable[[], None] | None = None  # on the loop
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # A daemon: were `close` never called, the process could still end; what is committed is committed.
        self._thread = threading.Thread(target=self._work, name="ledger writer", daemon=True)
        self._opened: asyncio.Future[Committer] = self._loop.create_future()

    async def open(self) -> Committer:
        """Raises: whatever `opening` raises, from the writer's thread."""
        self._thread.start()
        self._committer = await asyncio.shield(self._opened)
        return self._committer

    def submit(self, run: Run, wants: Sequence[MessageId] = (), *, is_heavy: bool = False) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._is_closed or len(self._waiting) >= WAITING_MAX:
            reply, reason = (STORE_UNAVAILABLE, "closed") if self._is_closed else (INSUFFICIENT_RESOURCES, "too many promises wait")
            future.set_exception(LedgerUnavailable(reply, reason))
            return future
        self._waiting.append(Promise(run, wants, waiter=future, is_heavy=is_heavy or len(wants) > LIGHT_ROWS_MAX))
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._begin)  # with what else is promised in this turn of the loop
        return future

    def between(self, call: Callable[[Committer], Any]) -> "asyncio.Future[Any]":
        """Run `call` on the writer's thread, between two transactions and before what waits."""
        promise = Promise(lambda _: None, waiter=self._loop.create_future())

        def run() -> None:
            assert self._committer is not None
            promise.result = call(self._committer)

        self._calls.append((promise, run))
        if not self._is_busy and not self._is_closed:
            self._is_busy = True
            self._loop.call_soon(self._begin)
        return cast("asyncio.Future[Any]", promise.waiter)

    async def close(self) -> None:
        """What was promised before is still done."""
        if not self._is_closed:
            self._is_closed = True
            if not self._is_busy:
                self._jobs.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    def _begin(self) -> None:
        """On the loop: the next transaction, if anything waits."""
        if self._calls:
            promise, run = self._calls.pop(0)
            self._jobs.put(((promise,), run))
            return
        if not self._waiting:
            self._is_busy = False
            if self._is_closed:
                self._jobs.put(None)
            return
        batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
        committer = self._committer
        assert committer is not None
        if any(promise.is_heavy for promise in batch):
            self._jobs.put((batch, partial(committer.commit, batch)))
            return
        try:
            prepared = committer.try_prepare(batch)
        except BaseException as error:
            self._jobs.put((batch, partial(committer.commit_after, error, batch)))
            if not isinstance(error, Exception):
                raise
            return
        if prepared is None:
            self._finished(batch)
        else:
            self._jobs.put((batch, partial(committer.finish, batch, prepared)))

    def _finished(self, batch: Sequence[Promise]) -> None:
        """On the loop. Who waited goes on first: what they promise next is in the next transaction."""
        settle(batch)
        self._loop.call_soon(self._begin)
        if self.after_commit is not None:
            self.after_commit()

    def _work(self) -> None:
        try:
            committer = self._opening()
        except BaseException as error:
            self._is_closed = True
            self._call(_fail, self._opened, error)
            self._call(_resolve, self._ended, None)
            return
        self._call(_resolve, self._opened, committer)
        while (job := self._jobs.get()) is not None:
            batch, run = job
            try:
                run()
            except BaseException as error:
                # A mistake of ours in there must not end the thread that all promises depend on.
                for promise in batch:
                    promise.error = LedgerUnavailable(LOCAL_ERROR, repr(error))
            self._call(self._finished, batch)
        self._closing(committer)
        self._call(_resolve, self._ended, None)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is gone, and with it everybody who waited
            self._loop.call_soon_threadsafe(function, *arguments)


class InlineWriter:
    """Each promise is a commit of its own, done when the call returns."""

    def __init__(self, committer: Committer, closing: Callable[[Committer], None]) -> None:
        self._committer = committer
        self._closing = closing
        self._is_closed = False

    def submit(self, run: Run, wants: Sequence[MessageId] = (), *, is_heavy: bool = False) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.set_exception(LedgerUnavailable(STORE_UNAVAILABLE, "closed"))
            return future
        promise = Promise(run, wants, waiter=future)
        self._committer.commit((promise,))
        settle((promise,))
        return future

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._closing(self._committer)

    def abandon(self) -> None:
        """As if the process had died."""
        self._is_closed = True
        self._committer.connection.close()


def settle(promises: Sequence[Promise]) -> None:
    """On the loop: tell everybody who still waits."""
    for promise in promises:
        future = promise.waiter
        if future.done():
            continue
        if isinstance(promise.error, StopIteration):
            future.set_exception(RuntimeError("decide raised StopIteration"))  # a future refuses that one
        elif promise.error is not None:
            future.set_exception(promise.error)
        else:
            future.set_result(promise.result)


def _resolve(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
