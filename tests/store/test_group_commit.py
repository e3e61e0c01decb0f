"""Promises that wait at one moment share a commit; each still succeeds or fails alone, and none is taken back."""

import asyncio
import threading
from pathlib import Path

import pytest

from shadowrelay.model.ownership import Claim, Role, Transition
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.model.values import replace
from shadowrelay.store import commit, promises, reading
from shadowrelay.store.commit import BATCH_MAX, COMMIT_SIBLINGS, LIGHT_ROWS_MAX, WAITING_MAX, Promise
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.ledger import (
    THERE,
    Refused,
    a_content,
    a_ledger,
    a_message_id,
    a_new_message,
    accept,
    all_done,
    an_attempt,
    choose,
    forget_recent,
    nothing,
    refuse,
)
from tests.store.writers import held_up, promised


async def test_promises_that_wait_together_are_one_commit(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        before = ledger.position
        with held_up(ledger):
            tasks = await promised(*(accept(ledger) for _ in range(20)))

        await asyncio.gather(*tasks)

        assert before + 1 == ledger.position


async def test_the_log_is_asked_to_write_before_each_transaction(tmp_path: Path) -> None:
    positions: list[int] = []
    async with a_ledger(tmp_path, before_commit=lambda: positions.append(ledger.position)) as ledger:
        before = ledger.position
        for _ in range(3):
            await accept(ledger)

    assert [before, before + 1, before + 2] == positions[:3]


async def test_while_many_promises_arrive_the_next_transaction_waits_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "COMMIT_DELAY_SECONDS", 0.5)
    async with a_ledger(tmp_path) as ledger:
        with held_up(ledger):
            tasks = await promised(*(accept(ledger) for _ in range(COMMIT_SIBLINGS)))
        await asyncio.gather(*tasks)
        before = ledger.position

        first = await promised(accept(ledger))
        await asyncio.sleep(0.05)  # without a delay, the writer would long have begun
        await asyncio.gather(*first, *await promised(accept(ledger)))

        assert before + 1 == ledger.position


async def test_promises_that_come_one_by_one_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "COMMIT_DELAY_SECONDS", 2 * PATIENCE_SECONDS)
    async with a_ledger(tmp_path) as ledger:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(COMMIT_SIBLINGS):
                await accept(ledger)


async def test_only_what_may_take_long_runs_beside_the_event_loop(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        too_many = [a_message_id() for _ in range(LIGHT_ROWS_MAX + 1)]
        light = await ledger.commit(Promise(lambda work: threading.current_thread()))
        heavy = await ledger.commit(Promise(lambda work: threading.current_thread(), is_heavy=True))
        many = await ledger.commit(Promise(lambda work: threading.current_thread(), wants=lambda: too_many))

    assert threading.current_thread() is light
    assert [ledger._writer._thread] * 2 == [heavy, many]  # type: ignore[union-attr]


async def test_the_event_loop_goes_on_while_the_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    went_on = threading.Event()
    seen: list[bool] = []
    async with a_ledger(tmp_path) as ledger:
        inner = ledger._contents.sync

        def slow_disk() -> None:
            seen.append(went_on.wait(PATIENCE_SECONDS))
            inner()

        monkeypatch.setattr(ledger._contents, "sync", slow_disk)
        (task,) = await promised(accept(ledger))
        while ledger._writer._waiting:  # type: ignore[union-attr]
            await asyncio.sleep(0)
        before = ledger.position
        assert not task.done()
        went_on.set()
        await task

        assert ([True], before + 1) == (seen, ledger.position)


async def test_a_batch_is_bounded(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        before = ledger.position
        with held_up(ledger):
            calls = (accept(ledger) for _ in range(BATCH_MAX + 1))
            tasks = await promised(*calls)

        await asyncio.gather(*tasks)

        assert before + 2 == ledger.position


async def test_a_decide_that_raises_fails_only_its_own_promise(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = [await accept(ledger) for _ in range(3)]
        ids = [message.envelope.message_id for message in stored]
        before = ledger.position
        with held_up(ledger):
            tasks = await promised(
                ledger.commit(promises.attempt, an_attempt(ids[0]), all_done),
                ledger.commit(promises.attempt, an_attempt(ids[1]), refuse),
                ledger.commit(promises.attempt, an_attempt(ids[2]), all_done),
            )

        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)

        assert isinstance(second, Refused)
        assert [Role.DELIVERED] * 2 == [transition.after.role for transition in (first, third)]  # type: ignore[union-attr]
        roles = [(await ledger.read(reading.load, message_id)).claim.role for message_id in ids]  # type: ignore[union-attr]
        assert [Role.DELIVERED, Role.PRIMARY, Role.DELIVERED] == roles
        assert before + 1 == ledger.position


async def test_a_statement_that_sqlite_refuses_fails_only_its_own_promise(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        there = await accept(ledger)
        ledger._state.rows.clear()  # so that only the INSERT finds out
        fresh = [a_new_message() for _ in range(2)]
        with held_up(ledger):
            tasks = await promised(
                ledger.commit(promises.accepted, fresh[0], a_content(), decided=True),
                ledger.commit(promises.accepted, a_new_message(message_id=there.envelope.message_id), a_content(b"other"), decided=True),
                ledger.commit(promises.accepted, fresh[1], a_content(b"last\r\n"), decided=True),
            )

        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)

        assert isinstance(second, LedgerUnavailable)
        assert 451 == second.reply.code
        forget_recent(ledger)  # so that the offsets count
        assert [first, third] == [await ledger.read(reading.load, message.envelope.message_id) for message in fresh]
        assert b"last\r\n" == (await ledger.read_content(third.place)).data  # type: ignore[union-attr, arg-type]
        assert there == await ledger.read(reading.load, there.envelope.message_id)


async def test_a_promise_that_leaves_half_of_itself_behind_is_undone_alone(tmp_path: Path) -> None:
    """A mistake of ours in a promise, after it has changed something."""
    async with a_ledger(tmp_path) as ledger:
        half, whole = a_new_message(), a_new_message()

        def run(work) -> None:  # type: ignore[no-untyped-def]
            work.insert(half, work.store_content(a_content()), is_decided=True)
            raise ZeroDivisionError

        with held_up(ledger):
            broken = ledger.commit(Promise(run))
            tasks = await promised(ledger.commit(promises.accepted, whole, a_content(), decided=True))

        stored = await tasks[0]
        with pytest.raises(ZeroDivisionError):
            await broken
        assert stored == await ledger.read(reading.load, whole.envelope.message_id)
        assert await ledger.read(reading.load, half.envelope.message_id) is None


async def test_cancelling_the_waiter_does_not_take_the_promise_back(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        message = a_new_message()
        with held_up(ledger):
            (task,) = await promised(ledger.commit(promises.accepted, message, a_content(), decided=True))
            task.cancel()

        await ledger.commit(promises.transition, [message.envelope.message_id], nothing)

        assert task.cancelled()
        assert await ledger.read(reading.load, message.envelope.message_id) is not None


async def test_a_promise_on_a_rolled_back_row_sees_the_row_as_it_is(tmp_path: Path) -> None:
    """The writer's memory of rows must not keep what a failed transaction did to them."""
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger)
        message_id = stored.envelope.message_id
        seen: list[Claim | None] = []

        def change_then_break(work) -> None:  # type: ignore[no-untyped-def]
            row = work.row(message_id)
            work.apply(message_id, Transition(row.claim, replace(row.claim, handed=True)))
            raise ZeroDivisionError

        def look(_, before):  # type: ignore[no-untyped-def]
            seen.append(before)
            return Transition(before, before)

        with pytest.raises(ZeroDivisionError):
            await ledger.commit(Promise(change_then_break))
        await ledger.commit(promises.transition, [message_id], look)

        assert [stored.claim] == seen


async def test_a_server_that_goes_off_a_list_and_comes_back_in_one_commit_is_listed(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger)
        ids = [stored.envelope.message_id]

        def without(_, before):  # type: ignore[no-untyped-def]
            return Transition(before, replace(before, copies=()))

        def again(_, before):  # type: ignore[no-untyped-def]
            return Transition(before, stored.claim)

        with held_up(ledger):
            tasks = await promised(ledger.commit(promises.transition, ids, without), ledger.commit(promises.transition, ids, again))
        await asyncio.gather(*tasks)
        assert (stored,) == await ledger.read(reading.primaries_listed_on, THERE, 9)

        with held_up(ledger):
            tasks = await promised(
                ledger.commit(promises.transition, ids, without),
                ledger.commit(promises.transition, ids, again),
                ledger.commit(promises.transition, ids, without),
            )
        await asyncio.gather(*tasks)
        assert () == await ledger.read(reading.primaries_listed_on, THERE, 9)


async def test_a_promise_that_changes_nothing_does_not_raise_the_position(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger)
        before = ledger.position

        await ledger.commit(promises.transition, [stored.envelope.message_id], nothing)

        assert before == ledger.position


async def test_too_many_waiting_promises_are_refused_with_452(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WAITING_MAX > BATCH_MAX
    monkeypatch.setattr("shadowrelay.store.commit.WAITING_MAX", 2)
    async with a_ledger(tmp_path) as ledger:
        with held_up(ledger):
            calls = (accept(ledger) for _ in range(8))
            tasks = await promised(*calls)

        outcomes = await asyncio.gather(*tasks, return_exceptions=True)

        refused = [outcome for outcome in outcomes if isinstance(outcome, LedgerUnavailable)]
        assert {452} == {error.reply.code for error in refused}
        assert 0 < len(refused) < 8


async def test_a_closed_ledger_refuses_and_may_be_closed_again(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        pass

    with pytest.raises(LedgerUnavailable, match="closed"):
        await accept(ledger)
    await ledger.close()


async def test_what_was_promised_before_close_is_kept(tmp_path: Path) -> None:
    messages = [a_new_message() for _ in range(5)]
    async with a_ledger(tmp_path) as ledger:
        tasks = await promised(*(ledger.commit(promises.accepted, message, a_content(), decided=True) for message in messages))

    assert all(task.done() for task in tasks)
    async with a_ledger(tmp_path) as ledger:
        assert 5 == len(await ledger.read(reading.load_many, [message.envelope.message_id for message in messages]))


async def test_no_thread_is_left_after_close(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # those of earlier tests may end meanwhile
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger)
        await asyncio.gather(*(ledger.read(reading.load, stored.envelope.message_id) for _ in range(8)))
        await ledger.commit(promises.verdict, stored.envelope.message_id, choose)

    assert set() == set(threading.enumerate()) - before


async def test_a_cancelled_reader_leaves_the_others_working(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger)
        for turns in range(12):
            task = asyncio.ensure_future(ledger.read(reading.load, stored.envelope.message_id))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        assert stored == await ledger.read(reading.load, stored.envelope.message_id)
