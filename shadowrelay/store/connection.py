"""Connections to `queue.db`: exactly one that writes, and read-only ones.

The write-ahead log begins anew from its start only when everything in it was written back and nobody reads from it. Reads
that overlap without end would keep it growing, so at `LOG_BYTES_MAX` the readers are held back for the moment that takes.

SQLite before 3.51.3 can lose committed pages when one connection checkpoints while another commits, so the writer is
the only one that does either, and nobody uses `mmap_size`. What a pragma set is read back: some builds of SQLite, and
some file systems, quietly do less than asked.
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from shadowrelay.model.replies import ConfigurationError, LedgerUnavailable
from shadowrelay.store import errors
from shadowrelay.store.dialect import use_queue_compiler

Answer = TypeVar("Answer")
BUSY_TIMEOUT_MILLISECONDS = 5_000  # another process holds the lock: an administrator's shell, a copy being made
CHECKPOINT_PAGES = 6_000  # 24 MB of WAL, some thousand messages: the same pages are then written back once
LOG_BYTES_MAX = 64_000_000  # two and a half times what it has where no reads overlap
READERS_HELD_BACK_SECONDS = 2.0  # at most; a page takes milliseconds
WRITER_CACHE_KIB = 65_536
STATEMENTS_KEPT = 256
READERS_COUNT = 4
PRAGMAS: tuple[tuple[str, str, object], ...] = (  # name, what to set, what to read back
    ("journal_mode", "WAL", "wal"),
    ("synchronous", "FULL", 2),
    ("busy_timeout", str(BUSY_TIMEOUT_MILLISECONDS), BUSY_TIMEOUT_MILLISECONDS),
    ("foreign_keys", "OFF", 0),  # no table refers to another by key: `flush` writes all that belongs together
    ("wal_autocheckpoint", str(CHECKPOINT_PAGES), CHECKPOINT_PAGES),
    ("secure_delete", "OFF", 0),
    ("cache_size", str(-WRITER_CACHE_KIB), -WRITER_CACHE_KIB),
    ("mmap_size", "0", 0),
)


class WriterConnection:
    """The only connection that writes; opened again after errors after which it cannot be trusted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._waits_for_locks = True

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def execute_many(self, text: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Past SQLAlchemy, whose bookkeeping for a statement costs more than SQLite's work. Raises: sqlite3.Error."""
        assert self._cursor is not None
        self._cursor.executemany(text, rows)

    def select(self, text: str, parameters: tuple[Any, ...]) -> list[Any]:
        """All rows of a frequent question, past SQLAlchemy too. Raises: sqlite3.Error."""
        assert self._cursor is not None
        return self._cursor.execute(text, parameters).fetchall()

    def log_bytes(self) -> int:
        """The size of the write-ahead log."""
        try:
            return os.stat(f"{self._path}-wal").st_size
        except OSError:
            return 0

    def empty_log(self) -> bool:
        """Write the log back and make it empty; False where somebody reads from it. Outside a transaction. Raises: sqlite3.Error."""
        if self._cursor is None:
            return False
        self.wait_for_locks(False)
        (is_busy, *_) = self._cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy

    def wait_for_locks(self, may_wait: bool) -> None:
        """Whether BEGIN may wait for the lock of another process, or fails at once. Raises: sqlite3.Error."""
        if self._cursor is None or may_wait is self._waits_for_locks:
            return
        milliseconds = next(value for name, value, _ in PRAGMAS if name == "busy_timeout") if may_wait else "0"
        self._cursor.execute(f"PRAGMA busy_timeout = {milliseconds}").fetchall()
        self._waits_for_locks = may_wait

    def get(self) -> Connection:
        """Raises: ConfigurationError when a pragma does not hold; sqlalchemy errors."""
        if self._connection is None:
            engine = _writer_engine(self._path)
            try:
                self._connection = engine.connect()
            except BaseException:
                engine.dispose()
                raise
            self._engine = engine
            driver: Any = self._connection.connection.dbapi_connection
            self._cursor = driver.cursor()
            self._waits_for_locks = True
        return self._connection

    def end_transaction(self) -> None:
        """After a failed COMMIT SQLAlchemy and SQLite may both hold on to the transaction: begin with a new connection."""
        if self._connection is None:
            return
        driver = self._connection.connection.dbapi_connection
        if driver is None or driver.in_transaction or self._connection.get_transaction() is not None:
            self.close()

    def close(self) -> None:
        """The next `get` opens it anew. Never raises."""
        connection, engine, self._connection, self._engine, self._cursor = self._connection, self._engine, None, None, None
        if connection is None or engine is None:
            return
        with suppress(exc.SQLAlchemyError, sqlite3.Error):  # it may be given up because it is broken
            driver = connection.connection.dbapi_connection
            with suppress(exc.SQLAlchemyError, sqlite3.Error):
                connection.close()
            engine.dispose()
            if driver is not None:
                driver.close()  # whatever SQLAlchemy made of it, the lock must go


def _writer_engine(path: Path) -> Engine:
    url = URL.create("sqlite+pysqlite", database=str(path))
    arguments = {"check_same_thread": False, "cached_statements": STATEMENTS_KEPT, "isolation_level": None}
    engine = create_engine(url, poolclass=StaticPool, connect_args=arguments)
    use_queue_compiler(engine)
    event.listen(engine, "connect", _set_pragmas)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _set_pragmas(connection: Any, _record: object) -> None:
    for name, wanted, expected in PRAGMAS:
        connection.execute(f"PRAGMA {name} = {wanted}").close()
        found = connection.execute(f"PRAGMA {name}").fetchone()
        if found is None or found[0] != expected:
            raise ConfigurationError(
                f"queue.db: PRAGMA {name} should be {expected} and is {found[0] if found else None}: "
                "data_directory must be on a local file system that can do WAL"
            )


def _begin_immediate(connection: Connection) -> None:
    # The documented way to take BEGIN over from the driver: SQLAlchemy's SQLite dialect, "pysqlite transactions".
    driver: Any = connection.connection.dbapi_connection
    driver.execute("BEGIN IMMEDIATE")


class AsyncReaders:
    """A few read-only connections through aiosqlite, each with a thread of its own until `close`."""

    def __init__(self, path: Path) -> None:
        self._engine = create_async_engine(
            _read_only("sqlite+aiosqlite", path),
            pool_size=READERS_COUNT,
            max_overflow=0,
            pool_timeout=30,
            pool_reset_on_return=None,
            connect_args={"timeout": BUSY_TIMEOUT_MILLISECONDS / 1000},
        )
        use_queue_compiler(self._engine.sync_engine)
        self._running_count = 0
        self._none_runs = asyncio.Event()
        self._may_begin = asyncio.Event()
        self._may_begin.set()

    async def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Raises: LedgerUnavailable."""
        while not self._may_begin.is_set():
            await self._may_begin.wait()
        self._running_count += 1
        try:
            async with self._engine.connect() as connection:
                return await connection.run_sync(question)
        except (exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise errors.unavailable(error) from error
        finally:
            self._running_count -= 1
            if not self._running_count:
                self._none_runs.set()

    @asynccontextmanager
    async def held_back(self) -> AsyncIterator[None]:
        """No question is begun meanwhile; those that run have ended, or had time to."""
        self._may_begin.clear()
        try:
            if self._running_count:
                self._none_runs.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._none_runs.wait(), READERS_HELD_BACK_SECONDS)
            yield
        finally:
            self._may_begin.set()

    async def close(self) -> None:
        await self._engine.dispose()


class InlineReaders:
    """The same without threads, for a deterministic simulation."""

    def __init__(self, path: Path) -> None:
        self._engine = create_engine(_read_only("sqlite+pysqlite", path), poolclass=StaticPool, connect_args={"check_same_thread": False})
        use_queue_compiler(self._engine)

    async def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Raises: LedgerUnavailable."""
        try:
            with self._engine.connect() as connection:
                return question(connection)
        except LedgerUnavailable:
            raise
        except (exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise errors.unavailable(error) from error

    async def close(self) -> None:
        self._engine.dispose()


def _read_only(driver: str, path: Path) -> URL:
    return URL.create(driver, database=f"file:{quote(str(path.absolute()))}", query={"mode": "ro", "uri": "true"})
