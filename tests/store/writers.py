"""Promises that wait together at the writer of a ledger."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shadowrelay.store import Ledger
from shadowrelay.store.commit import Promise
from tests.kit.clock import PATIENCE_SECONDS


@contextmanager
def held_up(ledger: Ledger) -> Iterator[None]:
    """The writer is busy with a promise until the block ends, so that what is promised in it waits together."""
    may_go_on = threading.Event()

    def wait(work: object) -> None:
        may_go_on.wait(PATIENCE_SECONDS)

    future = ledger.commit(Promise(wait, is_heavy=True))
    try:
        yield
    finally:
        may_go_on.set()
    del future


async def promised(*calls: object) -> list[asyncio.Task[object]]:
    """Tasks that have made their promises."""
    tasks = [asyncio.ensure_future(call) for call in calls]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    return tasks
