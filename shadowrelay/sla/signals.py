"""SIGTERM and SIGINT as an event: whoever works looks at it between two things, and what waits for it wakes up at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Both set `stop`, and do nothing else. On another thread than the main one, which cannot be told of signals, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(*_: Any) -> None:
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
