"""Handlers for SIGTERM, SIGINT and SIGHUP that last as long as a block, for commands. docs/operations.md "Signals".

Python delivers signals to the main thread only. On another thread these blocks change nothing. A node has its own handlers in its event
loop (`node`). Until then SIGHUP would end it, which takes half a second and more to read its program: whoever renews certificates on many
servers may send it just then. `__main__` notes it first of all, and `node` asks what came.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn


@contextmanager
def handled(handler: Callable[[int, Any], object], numbers: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT)) -> Iterator[None]:
    """These signals go to `handler`; the handlers of before are put back at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop` and do nothing else. A loop checks it between two steps, and `stop.wait` returns at once."""
    with handled(lambda *_: stop.set()):
        yield


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a closed terminal, end the block by an exception, as Ctrl-C does: what must be undone is undone on the way."""
    with handled(exit_with, (signal.SIGTERM, signal.SIGHUP)):
        yield


early_hangups: list[int] = []
"""SIGHUPs that came before the node had its handlers."""


def noting_hangups() -> AbstractContextManager[None]:
    """SIGHUP is noted, and does not end the process."""
    return handled(lambda number, _: early_hangups.append(number), (signal.SIGHUP,))


def exit_with(number: int, _: object) -> NoReturn:
    """A handler: SystemExit with the status that shells give to the signal."""
    raise SystemExit(128 + number)
