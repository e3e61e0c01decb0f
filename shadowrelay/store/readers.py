"""The connections that only read, and what a question has besides one. They never delay the writer. docs/architecture.md "On disk".

SQLite resets the write-ahead log only when all of it was written back and no connection reads from it. Reads that overlap without end
would let it grow, so at `LOG_BYTES_MAX` the readers wait until it is reset.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiosqlite
from sqlalchemy import Connection, Engine, create_engine, exc
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
IDLE_AWAITED_SECONDS = 30.0  # for one of them


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
        connection.exec_driver_sql("ROLLBACK")


class _ReadingThread:
    """One connection in the thread of an aiosqlite connection. A question runs there as a whole: each of its statements by itself would be
    several hand-overs between two threads, which cost more than most statements."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread: aiosqlite.Connection | None = None
        self._engine: Engine | None = None

    async def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Opened by the first question."""
        if self._thread is None:
            self._thread = await self._opened()
        answer: Answer = await self._thread._execute(partial(self._answered, question))  # type: ignore[no-untyped-call]
        return answer

    async def _opened(self) -> aiosqlite.Connection:
        database, arguments = _read_only(self._path)
        connection = aiosqlite.connect(database, timeout=BUSY_TIMEOUT_MILLISECONDS / 1000, **arguments)
        connection._thread.daemon = True
        return await connection

    def _answered(self, question: Callable[[Connection], Answer]) -> Answer:
        if self._engine is None:
            assert self._thread is not None
            self._engine = create_engine("sqlite+pysqlite://", creator=partial(getattr, self._thread, "_conn"), poolclass=StaticPool)
            use_queue_compiler(self._engine)
        with self._engine.connect() as connection:
            return question(connection)

    async def close(self) -> None:
        """After the questions that are under way."""
        if self._thread is not None:
            await self._thread.close()


class AsyncReaders:
    """A few read-only connections through aiosqlite, each with a thread of its own until `close`."""

    def __init__(self, path: Path) -> None:
        self._threads = [_ReadingThread(path) for _ in range(READERS_COUNT)]
        self._idle: asyncio.LifoQueue[_ReadingThread] = asyncio.LifoQueue()
        for thread in reversed(self._threads):
            self._idle.put_nowait(thread)
        self._asked: set[asyncio.Future[Any]] = set()
        self._none_runs = asyncio.Event()
        self._may_begin = asyncio.Event()
        self._may_begin.set()

    async def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Who is cancelled does not wait for the answer; the connection is idle again when the question has ended. Raises:
        LedgerUnavailable."""
        while not self._may_begin.is_set():
            await self._may_begin.wait()
        try:
            async with asyncio.timeout(IDLE_AWAITED_SECONDS):
                thread = await self._idle.get()
        except TimeoutError as error:
            raise errors.unavailable(error) from error
        asked = asyncio.ensure_future(thread.ask(question))
        self._asked.add(asked)
        asked.add_done_callback(partial(self._note_answered, thread))
        try:
            return await asyncio.shield(asked)
        except (exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise errors.unavailable(error) from error

    def _note_answered(self, thread: _ReadingThread, asked: "asyncio.Future[Any]") -> None:
        if not asked.cancelled():
            asked.exception()  # nobody may wait for it any more
        self._asked.discard(asked)
        self._idle.put_nowait(thread)
        if not self._asked:
            self._none_runs.set()

    @asynccontextmanager
    async def held_back(self) -> AsyncIterator[None]:
        """No question is begun meanwhile; those that run have ended, or had time to."""
        self._may_begin.clear()
        try:
            if self._asked:
                self._none_runs.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._none_runs.wait(), READERS_HELD_BACK_SECONDS)
            yield
        finally:
            self._may_begin.set()

    async def close(self) -> None:
        """After the questions that run."""
        if self._asked:
            await asyncio.wait(self._asked)
        for thread in self._threads:
            await thread.close()


class InlineReaders:
    """The same without threads, for a deterministic simulation."""

    def __init__(self, path: Path) -> None:
        database, arguments = _read_only(path)
        creator = partial(sqlite3.connect, database, check_same_thread=False, **arguments)
        self._engine = create_engine("sqlite+pysqlite://", creator=creator, poolclass=StaticPool)
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


def _read_only(path: Path) -> tuple[str, dict[str, Any]]:
    """The database and further arguments of `sqlite3.connect`."""
    return f"file:{quote(str(path.absolute()))}?mode=ro", {"uri": True}
