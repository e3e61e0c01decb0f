"""The connections that only read, and what a question has besides one. They never delay the writer. docs/architecture.md "On disk".

SQLite resets the write-ahead log only when all of it was written back and no connection reads from it. Reads that overlap without end
would let it grow, so at `LOG_BYTES_MAX` the readers wait until it is reset.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiosqlite
from sqlalchemy import URL, Connection, create_engine, exc
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from shadowrelay.model.ids import MessageId
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.store import errors
from shadowrelay.store.dialect import use_queue_compiler
from shadowrelay.store.writing import BUSY_TIMEOUT_MILLISECONDS, WriterState

Answer = TypeVar("Answer")
LOG_BYTES_MAX = 64_000_000  # two and a half times what it has where no reads overlap
READERS_HELD_BACK_SECONDS = 2.0  # at most; a page takes milliseconds
READERS_COUNT = 4


async def _opened(*arguments: Any, **named: Any) -> aiosqlite.Connection:
    """As SQLAlchemy opens one, but whole also if the question is cancelled meanwhile: aiosqlite would forget to close what it gets then."""
    connection = aiosqlite.connect(*arguments, **named)
    connection._thread.daemon = True
    opening = asyncio.ensure_future(connection)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(lambda done: None if done.cancelled() or done.exception() else connection.stop())
        raise


class Reader:
    """What a question is asked of: a connection that only reads, and what the rows do not say. `corrupt`: the messages that it could not
    read, with the reason."""

    __slots__ = ("connection", "contents", "corrupt", "state")

    def __init__(self, connection: Connection, state: WriterState) -> None:
        self.connection = connection
        self.state = state
        self.contents = state.contents
        self.corrupt: list[tuple[MessageId, str]] = []


@contextmanager
def one_moment(connection: Connection) -> Iterator[None]:
    """Its statements see the queue as of one moment, that of the first. Otherwise each sees its own, and what moves meanwhile is counted
    twice or not at all."""
    connection.exec_driver_sql("BEGIN")
    try:
        yield
    finally:
        if not connection.invalidated:  # whoever asked was cancelled: the connection is thrown away
            connection.exec_driver_sql("ROLLBACK")


class AsyncReaders:
    """A few read-only connections through aiosqlite, each with a thread of its own until `close`."""

    def __init__(self, path: Path) -> None:
        self._engine = create_async_engine(
            _read_only("sqlite+aiosqlite", path),
            pool_size=READERS_COUNT,
            max_overflow=0,
            pool_timeout=30,
            pool_reset_on_return=None,
            connect_args={"timeout": BUSY_TIMEOUT_MILLISECONDS / 1000, "async_creator_fn": _opened},
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
