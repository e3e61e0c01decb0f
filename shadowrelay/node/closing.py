"""How parts are closed: each within a limit, and none keeps the others open. docs/operations.md "Signals"."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

CLOSE_SECONDS = 30.0  # for each part, at the end

_log = structlog.get_logger()


def close_with(opened: contextlib.AsyncExitStack, close: Callable[[], Awaitable[None]]) -> None:
    """Call `close` when the stack is unwound. A failure is logged, and does not keep the others open."""

    async def close_or_log() -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await close()
        except TimeoutError:
            _log.error("node.close_failed", reason=f"no end in {CLOSE_SECONDS:.0f} s", part=getattr(close, "__qualname__", repr(close)))
        except Exception:
            _log.exception("node.close_failed")

    opened.push_async_callback(close_or_log)
