"""Where the commits happen: on one dedicated thread, or, for a deterministic simulation, at the call itself."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from shadowrelay.model.errors import LedgerUnavailable
from shadowrelay.model.ids import MessageId
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, LOCAL_ERROR, STORE_UNAVAILABLE
from shadowrelay.store.committer import Committer, Promise
from shadowrelay.store.work import Work

BATCH_MAX = 128  # promises in one transaction; more do not make the sync cheaper, and all wait for the last
WAITING_MAX = 50_000  # promises; sessions are bounded long before

Run = Callable[[Work], Any]


class Writer(Protocol):
    """Takes promises in the order of the calls."""

    def submit(self, run: Run, wants: Sequence[MessageId] = ()) -> "asyncio.Future[Any]": ...
    async def close(self) -> None: ...


class ThreadedWriter:
    """Whatever waits when a commit has ended is the next one. A cancelled waiter changes nothing."""

    def __init__(self, opening: Callable[[], Committer], closing: Callable[[Committer], None]) -> None:
        self._opening = opening
        self._closing = closing
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Promise | None] = queue.SimpleQueue()
        self._is_closed = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # A daemon: were `close` never called, the process could still end; what is committed is committed.
        self._thread = threading.Thread(target=self._work, name="ledger writer", daemon=True)
        self._opened: asyncio.Future[Committer] = self._loop.create_future()

    async def open(self) -> Committer:
        """Raises: whatever `opening` raises, from the writer's thread."""
        self._thread.start()
        return await asyncio.shield(self._opened)

    def submit(self, run: Run, wants: Sequence[MessageId] = ()) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._is_closed or self._queue.qsize() >= WAITING_MAX:
            reply, reason = (STORE_UNAVAILABLE, "closed") if self._is_closed else (INSUFFICIENT_RESOURCES, "too many promises wait")
            future.set_exception(LedgerUnavailable(reply, reason))
        else:
            self._queue.put(Promise(run, wants, waiter=future))
        return future

    async def close(self) -> None:
        """What was promised before is still done."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    def _work(self) -> None:
        try:
            committer = self._opening()
        except BaseException as error:
            self._is_closed = True
            self._call(_fail, self._opened, error)
            self._call(_resolve, self._ended, None)
            return
        self._call(_resolve, self._opened, committer)
        goes_on = True
        while goes_on:
            batch, goes_on = self._next_batch()
            if batch:
                _commit(committer, batch)
                self._call(settle, batch)
        self._closing(committer)
        self._call(_resolve, self._ended, None)

    def _next_batch(self) -> tuple[list[Promise], bool]:
        batch: list[Promise] = []
        promise = self._queue.get()
        while promise is not None:
            batch.append(promise)
            if len(batch) >= BATCH_MAX:
                return batch, True
            try:
                promise = self._queue.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is gone, and with it everybody who waited
            self._loop.call_soon_threadsafe(function, *arguments)


class InlineWriter:
    """Each promise is a commit of its own, done when the call returns."""

    def __init__(self, committer: Committer, closing: Callable[[Committer], None]) -> None:
        self._committer = committer
        self._closing = closing
        self._is_closed = False

    def submit(self, run: Run, wants: Sequence[MessageId] = ()) -> "asyncio.Future[Any]":
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


def _commit(committer: Committer, batch: Sequence[Promise]) -> None:
    try:
        committer.commit(batch)
    except BaseException as error:
        # A mistake of ours in there must not end the thread that all promises depend on.
        for promise in batch:
            promise.error = LedgerUnavailable(LOCAL_ERROR, repr(error))


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
