"""Work of libraries that block, each in a thread of its own that nobody has to wait for.

Not the loop's executor: a transfer that hangs there takes a thread from the relay, and the process waits for it at its end.
A thread cannot be ended from outside. One that takes too long is abandoned: it may go on, and its result is not looked at.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

HUNG_MAX = 3  # abandoned ones; beyond that nothing is begun until one of them has ended

T = TypeVar("T")


class Abandoned(Exception):
    """Raised by work that noticed that nobody waits for it any more."""


class Attempt:
    """Given to the work, so that it can stop before it changes anything more."""

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
        """The result of `work`. Raises: what it raises; TimeoutError after `seconds`, or at once while too many hang."""
        if self.hung_count >= HUNG_MAX:
            raise TimeoutError(f"{self.hung_count} earlier attempts still hang")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        attempt = Attempt()

        def ended(result: T | None, error: BaseException | None) -> None:
            if attempt.is_abandoned:
                self.hung_count -= 1
                self._on_late()
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def body() -> None:
            result, error = None, None
            try:
                result = work(attempt)
            except BaseException as exc:  # SystemExit too: somebody waits for an answer
                error = exc if isinstance(exc, Exception) else RuntimeError(repr(exc))
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended, result, error)

        threading.Thread(target=body, name=self._name, daemon=True).start()
        try:
            await asyncio.wait((future,), timeout=seconds)
        finally:
            if not future.done():
                attempt.is_abandoned = True
                self.hung_count += 1
            else:
                future.exception()  # looked at, even if we are cancelled in this very moment
        if attempt.is_abandoned:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return future.result()
