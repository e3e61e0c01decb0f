"""The budget of contents: what it grants, who waits, and how everything comes back."""

import asyncio
import gc
from threading import Thread

from shadowrelay.memory import ContentBudget, FreedMemory
from shadowrelay.model.message import Content

MB = 1_000_000


def test_a_content_is_kept_while_half_of_the_budget_is_free_and_given_back_when_it_is_done() -> None:
    budget = ContentBudget(8 * MB)
    first, second = budget.portion(), budget.portion()

    assert [True, True, False] == [first.keep(3 * MB), second.keep(MB), second.keep(1)]
    assert (4 * MB, 1) == (budget.used, budget.spooled_early_count)

    first.release()
    first.release()
    assert (MB, True) == (budget.used, second.keep(3 * MB))


def test_a_portion_lasts_as_long_as_the_content_that_it_counts() -> None:
    budget = ContentBudget(8 * MB)
    portion = budget.portion()
    portion.keep(MB)
    content = Content(MB, bytes(32), data=b"", portion=portion)
    del portion
    assert MB == budget.used

    del content

    assert 0 == budget.used


def test_what_is_counted_makes_the_budget_full_and_is_never_refused() -> None:
    budget = ContentBudget(8 * MB)
    unread = budget.portion()

    unread.count(7 * MB)
    assert budget.is_full
    unread.count(6 * MB)
    assert budget.is_full
    unread.count(6 * MB - 1)
    assert (False, 1) == (budget.is_full, unread.room)


async def test_readers_are_served_in_their_order_and_arriving_content_takes_nothing_from_them() -> None:
    budget = ContentBudget(8 * MB)
    arriving = budget.portion()
    arriving.count(100 * MB)
    served: list[str] = []

    async def reader(name: str, size: int) -> None:
        with await budget.reserve(size):
            served.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(reader("large", 50 * MB), reader("middle", 2 * MB), reader("small", 1))

    assert ["large", "middle", "small"] == served
    assert (100 * MB, 0) == (budget.used, budget.waiting_count)


async def test_a_reader_that_gives_up_leaves_its_place_to_the_next() -> None:
    budget = ContentBudget(8 * MB)
    first = await budget.reserve(2 * MB)
    patient, impatient = asyncio.create_task(budget.reserve(MB)), asyncio.create_task(budget.reserve(2 * MB))
    await asyncio.sleep(0)
    assert 2 == budget.waiting_count

    patient.cancel()
    await asyncio.gather(patient, return_exceptions=True)
    first.release()
    second = await impatient

    assert 2 * MB == budget.used
    second.release()
    assert 0 == budget.used


async def test_a_reader_that_is_served_and_cancelled_in_the_same_moment_keeps_nothing() -> None:
    budget = ContentBudget(8 * MB)
    first = await budget.reserve(2 * MB)
    second = asyncio.create_task(budget.reserve(MB))
    await asyncio.sleep(0)
    first.release()
    asyncio.get_running_loop().call_soon(second.cancel)
    await asyncio.gather(second, return_exceptions=True)
    del second
    gc.collect()

    assert (0, 0) == (budget.used, budget.waiting_count)


async def test_waiters_with_one_deadline_are_all_told_that_it_is_over() -> None:
    budget = ContentBudget(8 * MB)
    held = budget.portion()
    held.count(7 * MB)

    async def waits_in_vain() -> None:
        async with asyncio.timeout(0.01):
            await budget.room()

    ends = await asyncio.gather(*(waits_in_vain() for _ in range(5)), return_exceptions=True)

    assert [TimeoutError] * 5 == [type(end) for end in ends]
    assert 0 == budget.waiting_count


async def test_waiters_that_are_cancelled_together_end_as_cancelled_and_leave_no_place_taken() -> None:
    budget = ContentBudget(8 * MB)
    first = await budget.reserve(2 * MB)
    cancelled = [asyncio.create_task(budget.reserve(MB)) for _ in range(5)]
    patient = asyncio.create_task(budget.reserve(MB))
    await asyncio.sleep(0)

    for task in reversed(cancelled):
        task.cancel()
    await asyncio.wait(cancelled)
    first.release()

    assert [True] * 5 == [task.cancelled() for task in cancelled]
    assert (MB, MB, 0) == ((await patient).size, budget.used, budget.waiting_count)


async def test_another_thread_may_drop_a_portion_and_wakes_who_waits() -> None:
    budget = ContentBudget(8 * MB)
    held = [await budget.reserve(2 * MB)]
    waiting = asyncio.create_task(budget.reserve(MB))
    await asyncio.sleep(0)

    thread = Thread(target=held.clear)
    thread.start()
    thread.join()

    assert MB == (await waiting).size


async def test_a_session_waits_for_room() -> None:
    budget = ContentBudget(8 * MB)
    unread = budget.portion()
    unread.count(7 * MB)
    waiting = asyncio.create_task(budget.room())
    await asyncio.sleep(0)
    assert not waiting.done()

    unread.release()
    await waiting

    assert not budget.is_full


def test_a_cache_gives_way_and_may_grow_again() -> None:
    budget = ContentBudget(8 * MB)
    limits: list[int] = []
    budget.limit_cache = limits.append
    portion = budget.portion()

    for size in (MB, 6 * MB, 7 * MB, 9 * MB, 10 * MB, 0):
        portion.count(size)

    assert [MB, 0, 2 * MB] == limits


def test_memory_that_a_burst_left_goes_back_to_the_system_once() -> None:
    freed = FreedMemory()
    if not freed.free_bytes():
        return  # a C library that does not say
    held = [(bytearray(60_000), bytearray(60_000)) for _ in range(1_000)]  # what stays lies between what goes
    pins = [pin for _, pin in held]
    freed.look()
    del held

    assert [True, False] == [freed.look(), freed.look()]
    assert len(pins) == 1_000
