"""Time in tests. A bound that something has to keep is generous, because a busy machine is no failure; one that has to run out is
either waited for where nothing can come any more, or runs out when the test says so."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

import async_solipsism

PATIENCE_SECONDS = 240.0  # below pytest's own bound, so that the failure says what was waited for
VIRTUAL_PATIENCE_SECONDS = 600.0
PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 0.5  # between two looks at real processes, each of which answers; what has taken long need not be seen at once

What = str | Callable[[], str]


async def until(condition: Callable[[], Any], seconds: float | None = None, what: What = "") -> Any:
    """Wait for what nobody announces, in real or in virtual time. Returns what `condition` returned, awaited if it can be.

    `what` is for the failure: what was waited for, or how it was instead.
    """
    loop = asyncio.get_running_loop()
    is_virtual = isinstance(loop, async_solipsism.EventLoop)
    patience = seconds if seconds is not None else VIRTUAL_PATIENCE_SECONDS if is_virtual else PATIENCE_SECONDS
    began = loop.time()
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        waited = loop.time() - began
        assert waited < patience, _failure(what, patience)
        pause = max(PAUSE_SECONDS, waited / 20)
        await asyncio.sleep(pause if is_virtual else min(pause, PAUSE_SECONDS_MAX))  # in virtual time only the looks cost anything


def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS, what: What = "") -> Any:
    """`until`, where no loop runs."""
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, _failure(what, seconds)
        time.sleep(min(max(PAUSE_SECONDS, waited / 20), PAUSE_SECONDS_MAX))
    return found


def _failure(what: What, seconds: float) -> str:
    return f"not within {seconds:g} s: {what() if callable(what) else what}"


class Hands:
    """A clock that is set by hand: it shows `at`."""

    def __init__(self, at: Any) -> None:
        self.at = at

    def __call__(self) -> Any:
        return self.at


def let_pass(seconds: float) -> None:
    """The clock of the running loop (asyncio's own, not uvloop) jumps: whatever would be due by then is due now."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
