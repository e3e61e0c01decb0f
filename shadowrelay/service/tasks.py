"""Every task has an owner: this one. A task that fails is logged and ends alone; the node goes on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from shadowrelay.model.errors import LedgerUnavailable

BEGIN_ANEW_SECONDS = 1.0
CANCEL_AGAIN_SECONDS = 0.2
FINISH_SECONDS = 5.0  # at the end, for work that is done to its end: a commit and the rows that tell of it
T = TypeVar("T")
_log = structlog.get_logger("shadowrelay.tasks")


class Tasks:
    """Holds the tasks of the services. `close` cancels those that are left and waits for them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._whole: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Start `work`; the returned task may be awaited (shielded) or left alone."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def whole(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Do `work` to its end: a commit and the rows that tell of it belong together, though the caller is cancelled in between.
        Raises: what `work` raises; nobody else logs it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        for owner in (self._tasks, self._whole):
            owner.add(task)
            task.add_done_callback(owner.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._ended)
            raise

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> "asyncio.Task[None]":
        """Start a loop of the node. Whatever it fails with is logged, and it begins anew: without it the node would stand still."""
        return self.spawn(self._kept(work, name), name)

    async def _kept(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        while True:
            try:
                await work()
                return
            except Exception:
                _log.exception("task.begins_anew", task=name)
                await asyncio.sleep(BEGIN_ANEW_SECONDS)

    def __len__(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """Cancel everything that still runs and wait until it has ended. What is done to its end gets a few seconds for that."""
        loop = asyncio.get_running_loop()
        finish_at = loop.time() + FINISH_SECONDS
        while self._tasks:
            tasks = tuple(self._tasks)
            for task in tasks:
                if task not in self._whole or loop.time() >= finish_at:
                    task.cancel()
            # Again and again: `asyncio.wait_for` of Python 3.11 loses a cancellation that comes together with its result.
            done, _ = await asyncio.wait(tasks, timeout=CANCEL_AGAIN_SECONDS)
            self._tasks.difference_update(done)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            is_expected = isinstance(error, LedgerUnavailable)  # whoever waits for it says what becomes of that
            _log.error("task.failed", task=task.get_name(), reason=str(error), exc_info=None if is_expected else error)
