"""Recorded deliveries: in the transaction of the outcome, looked up only where memory cannot exclude them, removed in steps."""

import asyncio
import hashlib
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.ownership import DiscardStatus
from shadowrelay.model.queue import DeliveredTo
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.ownership import claims
from shadowrelay.store import expiry, opening, promises, reading, steps
from shadowrelay.store.ledger import Inline, Ledger
from shadowrelay.store.writing import BEFORE_ALL, MayBeDelivered
from tests.kit.clock import Hands
from tests.kit.ledger import NOW, SECOND, THEIR_DATABASE, THERE, a_ledger, accept, all_done, an_attempt

HOUR = timedelta(hours=1)


def keys(*numbers: int) -> tuple[bytes, ...]:
    return tuple(hashlib.blake2b(b"%d" % number, digest_size=16).digest() for number in numbers)


async def deliver(ledger: Ledger, *numbers: int) -> str:
    """A message of which these keys are delivered; its id."""
    stored = await accept(ledger)
    message_id = stored.envelope.message_id
    await ledger.commit(promises.attempt, an_attempt(message_id, delivered=keys(*numbers)), all_done)
    return message_id


async def rows_of(ledger: Ledger) -> int:
    count: int = await ledger._readers.ask(lambda connection: connection.exec_driver_sql("SELECT count(*) FROM delivered_to").scalar_one())
    return count


@pytest.fixture(params=[True, False], ids=["inline", "threads"])
def inline(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_a_delivery_is_recorded_with_its_outcome(tmp_path: Path, inline: bool) -> None:
    async with a_ledger(tmp_path, inline=Inline() if inline else None) as ledger:
        message_id = await deliver(ledger, 1, 2)

        assert {key: DeliveredTo(message_id, NOW) for key in keys(1, 2)} == await ledger.read(
            reading.delivered_before, keys(1, 2, 3), NOW - HOUR, NOW
        )
        assert ledger.may_be_delivered(keys(3, 1), NOW - HOUR)
        assert not ledger.may_be_delivered(keys(3, 4), NOW - HOUR)


async def test_an_outcome_that_is_not_committed_leaves_no_delivery(tmp_path: Path, inline: bool) -> None:
    async with a_ledger(tmp_path, inline=Inline() if inline else None) as ledger:
        stored = await accept(ledger)

        def refuse(*_: object) -> None:
            raise LedgerUnavailable(opening.INSUFFICIENT_RESOURCES, "planted")

        with pytest.raises(LedgerUnavailable):
            await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, delivered=keys(1)), refuse)  # type: ignore[arg-type]

        assert {} == await ledger.read(reading.delivered_before, keys(1), NOW - HOUR, NOW)


async def test_the_latest_delivery_with_a_key_counts(tmp_path: Path) -> None:
    wall = Hands(NOW)
    async with a_ledger(tmp_path, now=wall) as ledger:
        await deliver(ledger, 1)
        wall.at += HOUR
        second = await deliver(ledger, 1)

        assert {keys(1)[0]: DeliveredTo(second, wall.at)} == await ledger.read(reading.delivered_before, keys(1), NOW, wall.at)
        assert {} == await ledger.read(reading.delivered_before, keys(1), wall.at, wall.at + HOUR), "the window excludes its beginning"


async def test_any_number_of_keys_is_looked_up(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        await deliver(ledger, *range(1_203))

        assert 1_203 == len(await ledger.read(reading.delivered_before, keys(*range(1_300)), NOW - HOUR, NOW))


async def test_old_deliveries_are_removed_in_bounded_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "DELIVERED_PER_STEP", 10)
    wall = Hands(NOW)
    async with a_ledger(tmp_path, now=wall) as ledger:
        await deliver(ledger, *range(25))
        wall.at += timedelta(minutes=30)
        await deliver(ledger, *range(100, 107))
        wall.at += timedelta(minutes=30)
        position = ledger.position

        assert 25 == await steps.forget_delivered(ledger, HOUR)

        assert position + 3 == ledger.position
        assert 7 == await rows_of(ledger)
        assert 0 == await steps.forget_delivered(ledger, HOUR)
        assert position + 3 == ledger.position, "nothing to remove is no commit"


async def test_with_a_window_of_zero_everything_is_removed(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        await deliver(ledger, 1, 2)

        assert 2 == await steps.forget_delivered(ledger, timedelta(0))


async def test_what_a_fast_clock_recorded_is_removed_when_it_is_set_back(tmp_path: Path) -> None:
    wall = Hands(NOW)
    async with a_ledger(tmp_path, now=wall) as ledger:
        wall.at = NOW + timedelta(days=365)
        await deliver(ledger, 1)
        wall.at = NOW + HOUR / 2
        await deliver(ledger, 2)
        wall.at = NOW

        assert 1 == await steps.forget_delivered(ledger, HOUR)
        assert 1 == await rows_of(ledger)


# what memory knows
async def test_an_opening_reads_the_newest_deliveries(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        await deliver(ledger, 1)
    async with a_ledger(tmp_path) as ledger:
        assert ledger.may_be_delivered(keys(1), NOW - HOUR)
        assert not ledger.may_be_delivered(keys(2), NOW - HOUR)


async def test_what_an_opening_does_not_read_is_looked_up_for_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "DELIVERED_READ_MAX", 2)
    monkeypatch.setattr(opening, "SELECT_NEWEST_DELIVERED", opening.SELECT_NEWEST_DELIVERED.limit(2))
    wall = Hands(NOW)
    async with a_ledger(tmp_path, now=wall) as ledger:
        for number in (1, 2, 3):
            await deliver(ledger, number)
            wall.at += timedelta(minutes=10)
    async with a_ledger(tmp_path, now=wall) as ledger:
        unknown = keys(9)

        assert ledger.may_be_delivered(unknown, NOW), "the first delivery was not read"
        assert ledger.may_be_delivered(unknown, NOW + timedelta(minutes=10)), "nor may others of the same instant have been"
        assert not ledger.may_be_delivered(unknown, NOW + timedelta(minutes=10, microseconds=1))
        assert ledger.may_be_delivered(keys(2), NOW + timedelta(minutes=10, microseconds=1))


def test_no_key_of_a_window_is_missed_however_often_the_bitmap_is_turned_over() -> None:
    now, known = NOW, MayBeDelivered(NOW)
    delivered: list[tuple[int, object]] = []
    for number in range(600):
        now += timedelta(minutes=1)
        known.add(keys(number))
        delivered.append((number, now))
        if not number % 7:
            known.turn_over(now, HOUR)
        missed = [of for of, at in delivered if at > now - HOUR and not known.has_any(keys(of), now - HOUR)]
        assert [] == missed


def test_old_keys_leave_memory() -> None:
    known = MayBeDelivered(NOW, keys(1))
    for hours in (1, 2):
        known.turn_over(NOW + hours * HOUR, HOUR)

    assert not known.has_any(keys(1), NOW + HOUR)


def test_of_the_time_before_it_began_it_cannot_say() -> None:
    known = MayBeDelivered(NOW)
    assert BEFORE_ALL == known.knows_since
    known.turn_over(NOW + HOUR, HOUR)
    known.turn_over(NOW + 2 * HOUR, HOUR)

    assert known.has_any(keys(1), NOW + HOUR - SECOND), "a longer window than before"
    assert not known.has_any(keys(1), NOW + HOUR)


def test_after_the_clock_was_set_back_it_says_nothing_it_does_not_know() -> None:
    known = MayBeDelivered(NOW + 1_000 * HOUR)
    known.add(keys(1))
    for hours in range(3):
        known.turn_over(NOW + hours * HOUR, HOUR)
        known.add(keys(10 + hours))
        assert known.has_any(keys(10 + hours), NOW + hours * HOUR - HOUR)

    assert not known.has_any(keys(2), NOW + HOUR)


def test_nearly_no_other_key_is_taken_for_a_delivered_one() -> None:
    def numbered(numbers: Iterable[int]) -> list[bytes]:
        return [key for number in numbers for key in keys(number)]

    known = MayBeDelivered(NOW, numbered(range(20_000)))
    found = sum(known.has_any([key], NOW) for key in numbered(range(100_000, 120_000)))

    assert found < 20_000 * 0.005  # expected: 0.0012


async def test_lookups_and_recordings_at_the_same_time_see_each_other(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        await asyncio.gather(*(deliver(ledger, number) for number in range(50)), steps.forget_delivered(ledger, HOUR))

        assert all(ledger.may_be_delivered(keys(number), NOW - HOUR) for number in range(50))
        assert 50 == len(await ledger.read(reading.delivered_before, keys(*range(60)), NOW - HOUR, NOW))


@pytest.mark.parametrize(("minutes", "expected"), [(4, True), (6, False)])
async def test_of_a_delivery_long_ago_nobody_is_told_that_it_was_one(tmp_path: Path, minutes: int, expected: bool) -> None:
    """Its window would begin only when the other server hears of it."""
    wall = Hands(NOW)
    async with a_ledger(tmp_path, now=wall) as ledger:
        stored = await accept(ledger)
        record = an_attempt(stored.envelope.message_id, delivered=keys(1))
        await ledger.commit(promises.attempt, record, lambda _, claim: claims.recorded(claim, frozenset({1}), frozenset({1})))
        wall.at += timedelta(minutes=minutes)

        (event,) = (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events

        assert (DiscardStatus.DELIVERED, expected) == (event.status, event.is_reached)
