"""Signals that end a command of the lab. The report has its own (`sla.signals`), because it stands apart from all other packages."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM, and the end of the terminal, end the block as Ctrl-C does: what was given to Postfix is written down, what was disturbed is
    healed. On another thread than the main one, which cannot be told of signals, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
