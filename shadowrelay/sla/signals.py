"""SIGTERM and SIGINT as an event: whoever works looks at it between two things, and what waits for it wakes up at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Both go to `handler`. On another thread than the main one, which cannot be told of signals, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Both set `stop`, and do nothing else."""
    with handled(lambda *_: stop.set()):
        yield
