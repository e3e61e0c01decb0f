"""Nothing scans what grows: a question costs what its answer is long, however many messages there are. Counted, not timed."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.backlog import Queue, fill, new_queue
from shadowrelay.store import Ledger, counters, queues, reading
from shadowrelay.store.opening import DATABASE_NAME

PAGE = 5
FEW, MANY = 40, 4_000
LONGER = 1.5  # a deeper tree
OWN_NAME, OTHER_NAME = "a.east.example", "b.west.example"
NEXT_HOPS = ("192.0.2.1:25", "192.0.2.2:25")

Ask = Callable[[Ledger, Queue], Awaitable[object]]
LATER = datetime.now(UTC) + timedelta(days=1)
QUESTIONS: dict[str, Ask] = {
    "shadow groups": lambda ledger, other: ledger.read(reading.shadow_groups),
    "shadows of a server": lambda ledger, other: ledger.read(reading.shadows_of, other.name, other.database, PAGE, 0),  # type: ignore[arg-type]
    "primaries listed on a server": lambda ledger, other: ledger.read(reading.primaries_listed_on, other.name, PAGE),
    "how many are listed": lambda ledger, other: ledger.read(reading.listed_counts),
    "how many discards wait": lambda ledger, other: ledger.read(reading.discard_counts),
    "submission": lambda ledger, other: ledger.read(reading.submission, PAGE),
    "due": lambda ledger, other: ledger.read(reading.due, NEXT_HOPS[1], LATER, PAGE),
    "next due": lambda ledger, other: ledger.read(reading.next_due_at, NEXT_HOPS[0], LATER - timedelta(days=2)),
    "delivery queues": lambda ledger, other: ledger.read(reading.delivery_queues),
    "delivered before": lambda ledger, other: ledger.read(reading.delivered_before, [bytes(16)], LATER - timedelta(days=2), LATER),
    "notices": lambda ledger, other: ledger.read(reading.notices_due, LATER, PAGE),
    "who is waited for": lambda ledger, other: ledger.read(reading.waited_for),
    "unplaced": lambda ledger, other: ledger.read(reading.unplaced, PAGE),
    "discards": lambda ledger, other: ledger.discards_for(other.name, other.database, PAGE),  # type: ignore[arg-type]
    "untold": lambda ledger, other: ledger.read(reading.has_unacknowledged, other.name, other.database),  # type: ignore[arg-type]
    "queues": lambda ledger, other: ledger.read(queues.queues),
    "page of a delivery queue": lambda ledger, other: ledger.read(queues.messages, f"{OWN_NAME}\\{NEXT_HOPS[0]}", PAGE),
    "page of a shadow queue": lambda ledger, other: ledger.read(queues.messages, f"{OWN_NAME}\\Shadow\\1", PAGE),
    "newest page of a shadow queue": lambda ledger, other: ledger.read(queues.messages, f"{OWN_NAME}\\Shadow\\1", PAGE, newest=True),
    "page of all": lambda ledger, other: ledger.read(queues.messages, "", PAGE),
}


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[dict[str, int]]]:
    """The steps of SQLite's machine for each question, with so many messages."""
    count = 0
    connect = sqlite3.connect

    def step() -> None:
        nonlocal count
        count += 1

    def counting(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **named)
        connection.set_progress_handler(step, 1)
        return connection

    async def ask(messages_count: int, *changes: str) -> dict[str, int]:
        nonlocal count
        one, other = [await new_queue(name, tmp_path / f"{messages_count}" / name) for name in (OWN_NAME, OTHER_NAME)]
        fill(one, other, messages_count // 2, messages_count // 2, NEXT_HOPS)
        with closing(sqlite3.connect(one.directory / DATABASE_NAME)) as connection, connection:
            for change in changes:
                connection.execute(change)
        steps = {}
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", counting)
            ledger = await Ledger.open(one.directory, server=one.name, now=lambda: datetime.now(UTC))
            try:
                for name, question in QUESTIONS.items():
                    await question(ledger, other)  # opens its connection
                    before = count
                    await question(ledger, other)
                    steps[name] = count - before
            finally:
                await ledger.close()
        return steps

    return ask


async def test_no_question_costs_more_when_more_waits(counted: Callable[..., Awaitable[dict[str, int]]]) -> None:
    few, many = await counted(FEW), await counted(MANY)

    assert {} == {name: (few[name], steps) for name, steps in many.items() if steps > LONGER * few[name] + 50}
    assert [] == [name for name, steps in many.items() if not steps]


def forked(but: str, *, count: int = 1) -> tuple[str, ...]:
    """The primary server has told which next hops all copies but the last ones in this order go to."""
    others = f"SELECT internal_id FROM message WHERE role = 'shadow' ORDER BY {but} LIMIT {count}"
    return (
        f"UPDATE message SET forks_count = 1 WHERE role = 'shadow' AND internal_id NOT IN ({others})",
        f"INSERT INTO shadow_fork SELECT internal_id, '{OTHER_NAME} {NEXT_HOPS[0]}', '1' FROM message WHERE forks_count = 1",
        "DELETE FROM counter",
        f"INSERT INTO counter {counters.RECOUNT}",
    )


@pytest.mark.parametrize(("order", "count"), [("internal_id DESC", 1), ("internal_id DESC", 100), ("internal_id % 10, internal_id", 20)])
async def test_no_question_costs_more_when_more_copies_have_their_forks(
    counted: Callable[..., Awaitable[dict[str, int]]], order: str, count: int
) -> None:
    """As while mail comes: the newest has none yet; or as after a cut, or of a server that told of some only."""
    told = forked(order, count=count)
    few, many = await counted(FEW * 10, *told), await counted(MANY, *told)

    assert {} == {name: (few[name], steps) for name, steps in many.items() if steps > LONGER * few[name] + 50}


@pytest.mark.parametrize(("which", "internal_id"), [("internal_id", 201), ("internal_id DESC", 400)])
async def test_a_copy_without_forks_is_found_among_many_that_have_some(tmp_path: Path, which: str, internal_id: int) -> None:
    one, other = [await new_queue(name, tmp_path / name) for name in (OWN_NAME, OTHER_NAME)]
    fill(one, other, 200, 200, NEXT_HOPS)
    with closing(sqlite3.connect(one.directory / DATABASE_NAME)) as connection, connection:
        for change in forked(which):
            connection.execute(change)
    ledger = await Ledger.open(one.directory, server=one.name, now=lambda: datetime.now(UTC))
    try:
        rows = {row.identity: row for row in await ledger.read(queues.queues)}
        queue = f"{OWN_NAME}\\Shadow\\1"
        assert (1, 199) == (rows[queue].count, rows[f"{OWN_NAME}\\Shadow\\{OTHER_NAME}\\{NEXT_HOPS[0]}"].count)
        assert rows[queue].oldest_at is not None
        for newest in (False, True):
            page = await ledger.read(queues.messages, queue, PAGE, newest=newest)
            assert [internal_id] == [message.internal_id for message in page]
    finally:
        await ledger.close()
