"""Turns of questions to servers that anybody may name: only so many run at once, and those that get no prompt answer block no others.
docs/security.md "Strangers"."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def turn(
    slot: asyncio.Semaphore, late: dict[asyncio.Timeout, None], prompt_seconds: float, late_max: int
) -> AsyncIterator[asyncio.Timeout]:
    """A slot for the usual time of an answer, then a place among the late ones, of which the oldest has to go where there are too many.

    Raises: TimeoutError when that is revoked. Shapes: `late` is oldest first."""
    await slot.acquire()
    has_slot = True
    try:
        async with asyncio.timeout(None) as patience:

            def is_late() -> None:
                nonlocal has_slot
                has_slot = False
                slot.release()
                late[patience] = None
                if len(late) > late_max:
                    oldest = next(iter(late))
                    del late[oldest]
                    oldest.reschedule(0.0)

            timer = asyncio.get_running_loop().call_later(prompt_seconds, is_late)
            try:
                yield patience
            finally:
                timer.cancel()
                late.pop(patience, None)
    finally:
        if has_slot:
            slot.release()
