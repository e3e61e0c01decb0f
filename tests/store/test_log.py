"""The write-ahead log has a bound, though reads overlap without end."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection

from shadowrelay.store import Ledger, queues, readers, writing
from shadowrelay.store import ledger as ledger_module
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.ledger import a_ledger, accept

LOG_BYTES_MAX = 1_000_000
LONG = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000) SELECT count(*), (SELECT count(*) FROM message) FROM n"
)


@pytest.fixture(autouse=True)
def _small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LOG_BYTES_MAX", LOG_BYTES_MAX)
    pragmas = tuple(
        ("wal_autocheckpoint", "50", 50) if name == "wal_autocheckpoint" else rest for rest in writing.PRAGMAS for name in rest[:1]
    )
    monkeypatch.setattr(writing, "PRAGMAS", pragmas)


async def fill(ledger: Ledger, count: int) -> None:
    for _ in range(count):
        await asyncio.gather(*(accept(ledger) for _ in range(10)))


def read_long(connection: Connection) -> None:
    connection.exec_driver_sql(LONG).fetchall()


async def overlapping(ledger: Ledger, work: Callable[[], object], offset: float) -> None:
    await asyncio.sleep(offset)
    while not work():
        await ledger._readers.ask(read_long)


async def test_reads_that_overlap_do_not_let_the_log_grow(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        accepting = asyncio.create_task(fill(ledger, 300))
        readers = [asyncio.create_task(overlapping(ledger, accepting.done, offset)) for offset in (0.0, 0.002, 0.004)]
        largest = 0
        while not accepting.done():
            largest = max(largest, ledger.log_bytes)
            await asyncio.sleep(0.001)
        await asyncio.gather(*readers)

        assert LOG_BYTES_MAX / 4 < largest < 8 * LOG_BYTES_MAX  # 28 MB where nobody holds the readers back
        assert 3000 == sum(row.count for row in await ledger.read(queues.queues))


async def test_a_reader_of_another_process_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "LOG_AGAIN_SECONDS", 0.0)
    async with a_ledger(tmp_path) as ledger:
        with closing(sqlite3.connect(tmp_path / "queue.db", isolation_level=None)) as shell:
            shell.execute("BEGIN")
            shell.execute("SELECT count(*) FROM message").fetchall()
            await fill(ledger, 60)
            grown = ledger.log_bytes
            assert 600 == sum(row.count for row in await ledger.read(queues.queues))
            shell.execute("COMMIT")
        await fill(ledger, 1)

        assert LOG_BYTES_MAX < grown
        async with asyncio.timeout(PATIENCE_SECONDS):
            while ledger.log_bytes > LOG_BYTES_MAX:
                await fill(ledger, 1)
