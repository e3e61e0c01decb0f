"""Work that blocks, that fails, and that never comes back."""

import asyncio
import threading

import pytest

from shadowrelay.bounded import HUNG_MAX, Abandoned, Threads
from tests.kit.clock import PATIENCE_SECONDS


@pytest.fixture
def late():
    return []


@pytest.fixture
def threads(late):
    return Threads("test", lambda: late.append(1))


async def test_the_result_and_the_error_of_the_work_come_back(threads):
    def fail(_):
        raise SystemExit(3)

    assert 5 == await threads.run(lambda _: 5, PATIENCE_SECONDS)
    with pytest.raises(RuntimeError, match="SystemExit"):
        await threads.run(fail, PATIENCE_SECONDS)
    assert 0 == threads.hung_count


async def test_work_that_takes_too_long_is_abandoned_and_knows_it(threads, late):
    may_end = threading.Event()
    ends = []

    def hang(attempt):
        may_end.wait()
        try:
            attempt.check()
        except Abandoned:
            ends.append("abandoned")

    for _ in range(HUNG_MAX):
        with pytest.raises(TimeoutError, match="no answer"):
            await threads.run(hang, 0.01)
    with pytest.raises(TimeoutError, match="still hang"):
        await threads.run(lambda _: 5, PATIENCE_SECONDS)
    may_end.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while threads.hung_count:
            await asyncio.sleep(0.01)

    assert 5 == await threads.run(lambda _: 5, PATIENCE_SECONDS)
    assert (["abandoned"] * HUNG_MAX, HUNG_MAX) == (ends, len(late))


async def test_work_of_a_task_that_is_cancelled_is_abandoned(threads):
    may_end = threading.Event()
    task = asyncio.create_task(threads.run(lambda _: may_end.wait(), PATIENCE_SECONDS))
    await asyncio.sleep(0)  # it has begun
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 1 == threads.hung_count

    may_end.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while threads.hung_count:
            await asyncio.sleep(0.01)
