"""The process of a node: `run` serves until a signal, again under a new id after an older copy. docs/operations.md "Signals"."""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Awaitable

import structlog
import uvloop

from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.node.node import START_SECONDS, Node
from shadowrelay.settings.configuration import LoadedSettings
from shadowrelay.signals import early_hangups
from shadowrelay.smtp.limits import raise_descriptor_limit
from shadowrelay.tracking import operator_log
from shadowrelay.tracking.operator_log import LineLogger

GIVEN_UP_SECONDS = 3.0  # SIGTERM within the start: it may be about to end
EXIT_SECONDS = 5.0  # for threads, when all parts are closed
CANNOT_START = 1  # exit status
SWITCH_SECONDS = 0.0005  # the loop waits so long for the interpreter while another thread computes, and not 5 ms; docs/performance.md
GARBAGE_THRESHOLDS = (20_000, 20, 50)  # allocations until a collection of the young generation, and so on; docs/performance.md

_log = structlog.get_logger()


async def _serve(loaded: LoadedSettings, log_lines: LineLogger) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    node = Node(loaded, log_lines=log_lines)

    def stop() -> None:
        node.stopping()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: node.reload())
    if early_hangups:
        node.reload()
    while True:
        try:
            await _started(node, stopping)
        except LedgerUnavailable as error:  # a line, not a traceback: the supervisor of the node tries again
            _log.error("node.cannot_start", reason=error.reason)
            await node.abort()
            return CANNOT_START
        except BaseException:
            await node.abort()
            raise
        gc.freeze()  # what the start has made: looked through again and again, it would hold up mail for tens of milliseconds
        await _either(stopping.wait(), node.rolled_back())
        if node.is_started:
            await node.stop()
        else:
            await node.abort()
        if stopping.is_set():
            return 0
        node = Node(node.loaded, log_lines=log_lines)


async def _started(node: Node, stopping: asyncio.Event) -> None:
    """Start, unless the process is to stop: a start that waits for a disk is given up then."""
    starting = asyncio.ensure_future(node.start())
    asked = asyncio.ensure_future(stopping.wait())
    try:
        while not starting.done() and not asked.done():
            await asyncio.wait((starting, asked), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done() and not asked.done():
                _log.warning("node.start_hangs", waits_for=node.step)
        if not starting.done():
            await asyncio.wait((starting,), timeout=GIVEN_UP_SECONDS)
        if starting.done():
            starting.result()
            return
        _log.warning("node.start_given_up", waits_for=node.step)
        starting.cancel()
        await asyncio.wait((starting,))
    finally:
        asked.cancel()


async def _either(*waiting: Awaitable[object]) -> None:
    """Wait for the first of these, and cancel the others."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def run(loaded: LoadedSettings) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status: 1 when the queue cannot be opened now.

    Raises: ConfigurationError before anything is accepted."""
    lines = operator_log.configure()
    os.umask(os.umask(0o077) | 0o027)  # content is private by itself; a stricter umask stays
    raise_descriptor_limit()
    # Objects made at start-up are never freed: exclude them from collection, and collect less often than by default.
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(_serve(loaded, lines))
        _end_soon(lines, status)
        return status


def _end_soon(lines: LineLogger, status: int) -> None:
    """All is closed: a thread that hangs on a disk must not keep the process, which would wait for it."""

    def end() -> None:
        _log.error("node.thread_hangs")
        lines.flush()
        os._exit(status)

    timer = threading.Timer(EXIT_SECONDS, end)
    timer.daemon = True
    timer.start()
