"""A listing is of one moment: what moves while it is made is counted once."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from shadowrelay.store import queues, reading
from shadowrelay.store.opening import DATABASE_NAME
from shadowrelay.store.readers import READERS_COUNT, AsyncReaders, one_moment
from tests.kit.clock import until
from tests.kit.ledger import a_ledger, accept

MESSAGES = 3
LONG = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT count(*) FROM n"


def moved_after_the_first(wrapped: Any, database: Path, kind: str) -> Any:
    """As `wrapped`; after its first call all messages of Submission are counted as of another kind, by somebody else."""
    is_moved = False

    def asked(*arguments: Any) -> Any:
        nonlocal is_moved
        found = wrapped(*arguments)
        if not is_moved:
            is_moved = True
            with closing(sqlite3.connect(database)) as connection, connection:
                connection.execute("DELETE FROM counter WHERE kind = ?", (kind,))
                connection.execute("UPDATE counter SET kind = ? WHERE kind = 'submission'", (kind,))
        return found

    return asked


ASKED = [("queues", "whole_and_shadow", "delivery"), ("depths", "whole_and_shadow", "delivery"), ("survival", "of_kind", "poison")]


@pytest.mark.parametrize(("question", "first", "kind"), ASKED)
async def test_what_moves_while_it_is_counted_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str, first: str, kind: str
) -> None:
    async with a_ledger(tmp_path) as ledger:
        for _ in range(MESSAGES):
            await accept(ledger)
        wrapped = moved_after_the_first(getattr(queues.counters, first), tmp_path / DATABASE_NAME, kind)
        monkeypatch.setattr(queues.counters, first, wrapped)

        if question == "queues":
            count = sum(row.count for row in await ledger.read(queues.queues))
        elif question == "depths":
            count = sum((await ledger.read(queues.depths)).values())
        else:
            count = (await ledger.read(reading.survival, ())).count

    assert MESSAGES == count


async def test_a_question_that_is_cancelled_leaves_no_transaction_that_pins_the_log(tmp_path: Path) -> None:
    async with a_ledger(tmp_path):
        readers = AsyncReaders(tmp_path / DATABASE_NAME)
        has_begun = False

        def long_one(connection: Connection) -> None:
            nonlocal has_begun
            with one_moment(connection):
                has_begun = True
                connection.exec_driver_sql(LONG).fetchall()

        def is_open(connection: Connection) -> bool:
            return bool(connection.connection.driver_connection.in_transaction)  # type: ignore[union-attr]

        asked = asyncio.create_task(readers.ask(long_one))
        await until(lambda: has_begun)
        asked.cancel()
        await asyncio.wait([asked])
        found = [await readers.ask(is_open) for _ in range(READERS_COUNT + 1)]
        await readers.close()

    assert asked.cancelled()
    assert not any(found)
