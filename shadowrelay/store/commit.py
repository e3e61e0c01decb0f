"""Group commit: promises that wait at the same moment share one transaction and one sync. docs/architecture.md "On disk".

A `Promise` is a function that changes the database inside a transaction, with what the writer must know of it beforehand; `promises.py` has
them. A `Call` is one call of it, which waits for its commit. Each succeeds or fails by itself. First all of a batch run together, without
savepoints, which nearly always succeeds. If SQLite refuses something, all is rolled back and each runs again under a savepoint of its own.
If that transaction fails too (a full disk also ends the savepoints), each runs in a transaction of its own.

`Committer.prepare` uses the processor and `finish` waits for the disk; neither knows about threads or the event loop.
`ThreadedWriter` prepares on the event loop and finishes on a thread of its own. `InlineWriter` does both at the call, for a
deterministic simulation.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from sqlalchemy import Connection, RootTransaction, exc

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Content, ContentPlace
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, LOCAL_ERROR, STORE_UNAVAILABLE, LedgerUnavailable
from shadowrelay.model.values import dataclass
from shadowrelay.store import errors
from shadowrelay.store.content import NO_PLACES, Handing
from shadowrelay.store.work import UnitOfWork, flush, write_database_row
from shadowrelay.store.writing import WriterConnection, WriterState

FAILURES_IN_A_ROW_MAX = 3  # then the rest of a batch fails without a try: each lock takes five seconds to time out


class NotOpen(Exception):
    """The database is not open. Opening may take long, so it is not done on the event loop."""


P = ParamSpec("P")
T = TypeVar("T")
Files = Sequence[tuple[Content, Handing]]
ITSELF = cast("Callable[[Any], MessageId]", str)
"""`about` of a promise whose first argument is the message's id."""


class Promise(Generic[P, T]):
    """What the ledger can promise: `run` changes the database inside a transaction, whose commit is the promise.

    `about`: makes of the first argument the id of the message whose row it reads; `wants`: of all arguments the ids, if several: one
    question reads the rows of a whole batch. `handing`: what becomes of the file of the content that is among the arguments by
    position, and was stored before; `files`: of all arguments such contents, where they are elsewhere. `is_kept`: whether the result says
    that they are stored. `is_heavy`: it may take long or wait: not on the event loop's thread.
    """

    __slots__ = ("about", "files", "handing", "is_heavy", "is_kept", "name", "run", "wants")

    def __init__(
        self,
        run: Callable[Concatenate[UnitOfWork, P], T],
        *,
        about: Callable[[Any], MessageId] | None = None,
        wants: Callable[..., Sequence[MessageId]] | None = None,
        handing: Handing | None = None,
        files: Callable[..., Files] | None = None,
        is_kept: Callable[[Any], bool] | None = None,
        is_heavy: bool = False,
    ) -> None:
        self.run, self.about, self.wants, self.is_heavy = run, about, wants, is_heavy
        self.handing, self.files, self.is_kept = handing, files, is_kept
        self.name = run.__name__

    def __call__(self, work: UnitOfWork, /, *arguments: P.args, **named: P.kwargs) -> T:
        """As a part of another promise."""
        return self.run(work, *arguments, **named)


def promise(
    *,
    about: Callable[[Any], MessageId] | None = None,
    wants: Callable[..., Sequence[MessageId]] | None = None,
    handing: Handing | None = None,
    files: Callable[..., Files] | None = None,
    is_kept: Callable[[Any], bool] | None = None,
    is_heavy: bool = False,
) -> Callable[[Callable[Concatenate[UnitOfWork, P], T]], Promise[P, T]]:
    """Makes a `Promise` of a function."""
    return partial(Promise, about=about, wants=wants, handing=handing, files=files, is_kept=is_kept, is_heavy=is_heavy)


@dataclass(slots=True)
class Call:
    """One call of a promise. `places`: where its files are stored. Afterwards either `result` or `error` is set."""

    promise: Promise[..., Any]
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = MappingProxyType({})
    wants: Sequence[MessageId] = ()
    places: Mapping[Path, ContentPlace] = NO_PLACES
    result: Any = None
    error: BaseException | None = None
    waiter: Any = None


@dataclass(slots=True)
class Prepared:
    """A transaction that only has to reach the disk."""

    work: UnitOfWork
    transaction: RootTransaction


class Committer:
    """Owns the writing connection and the writer's memory. One thread at a time."""

    def __init__(self, connection: WriterConnection, state: WriterState) -> None:
        self.connection = connection
        self.state = state

    def commit(self, calls: Sequence[Call]) -> None:
        """Never raises: each promise has its result or its error afterwards. Waits for locks and for the disk."""
        try:
            self.connection.wait_for_locks(True)
            prepared = self.prepare(calls)
        except Exception as error:
            self._run_separately(calls, error)
        else:
            if prepared is not None:
                self.finish(calls, prepared)

    def try_prepare(self, calls: Sequence[Call]) -> Prepared | None:
        """`prepare` without waiting for locks. Raises: any error; the caller then calls `commit_after`, which starts over."""
        if not self.connection.is_open:
            raise NotOpen
        self.connection.wait_for_locks(False)
        return self.prepare(calls)

    def commit_after(self, failure: BaseException, calls: Sequence[Call]) -> None:
        """`commit` after a `try_prepare` that raised. Never raises."""
        if isinstance(failure, NotOpen) or errors.sqlite_code(failure) == sqlite3.SQLITE_BUSY:
            self._after_failure(failure)
            self.commit(calls)
        else:
            self._run_separately(calls, failure)

    def finish(self, calls: Sequence[Call], prepared: Prepared) -> None:
        """Bring a prepared transaction to the disk. Never raises, like `commit`."""
        try:
            self._to_disk(prepared)
        except Exception as error:
            self._run_separately(calls, error)

    def _run_separately(self, calls: Sequence[Call], error: BaseException) -> None:
        """The promises failed together: run each by itself."""
        failure = self._after_failure(error)
        if len(calls) == 1:
            calls[0].error = failure
            return
        try:
            self._under_savepoints(calls)
            return
        except Exception as error:
            self._after_failure(error)
        self._one_by_one(calls)

    def _after_failure(self, error: BaseException) -> BaseException:
        self.state.contents.forget_waiting()
        if errors.needs_new_connection(error):
            self.connection.close()
            self.state.rows.clear()
        self.connection.end_transaction()
        return errors.unavailable(error) if errors.is_of_the_store(error) else error

    def prepare(self, calls: Sequence[Call]) -> Prepared | None:
        """Run the promises and write all their changes except the content. None if nothing has to reach the disk.

        Raises: any error. Everything is rolled back then; the caller has to check the connection by `end_transaction`.
        """
        transaction = self.connection.get().begin()
        work = UnitOfWork(self.connection, self.state)
        try:
            if wanted := [message_id for call in calls for message_id in call.wants]:
                work.preload(wanted)
            for call in calls:
                self._run(call, work)
            if work.changes_count:
                flush(work)
                write_database_row(work, self.state.position + 1)
                return Prepared(work, transaction)
        except BaseException:
            self._give_up(work, transaction)
            raise
        transaction.rollback()
        return None

    def empty_log(self) -> bool:
        """Between two transactions; see `WriterConnection.empty_log`. Never raises."""
        try:
            is_empty = self.connection.empty_log()
        except sqlite3.Error as error:
            self._after_failure(error)
            return False
        self.state.log_bytes = self.connection.log_bytes()
        return is_empty

    def _to_disk(self, prepared: Prepared) -> None:
        """Content first, because committed rows refer to it."""
        try:
            self.state.contents.sync()
            prepared.transaction.commit()
        except BaseException:
            self._give_up(prepared.work, prepared.transaction)
            raise
        self._committed([prepared.work])

    def _give_up(self, work: UnitOfWork, transaction: RootTransaction) -> None:
        self._rolled_back([work])
        with suppress(exc.SQLAlchemyError, sqlite3.Error):  # the original error is the one to report
            transaction.rollback()

    @staticmethod
    def _run(call: Call, work: UnitOfWork) -> None:
        changes_count = work.changes_count
        try:
            work.places = call.places
            call.result, call.error = call.promise.run(work, *call.arguments, **call.named), None
        except Exception as error:
            if errors.is_of_the_store(error) or work.changes_count != changes_count:
                raise  # its changes may be incomplete
            call.error = error

    def _under_savepoints(self, calls: Sequence[Call]) -> None:
        connection = self.connection.get()
        works: list[UnitOfWork] = []
        last: UnitOfWork | None = None
        with connection.begin() as transaction:
            try:
                for call in calls:
                    last = UnitOfWork(self.connection, self.state)
                    if self._run_alone(call, last, connection):
                        works.append(last)
                if last is None or not works:
                    transaction.rollback()
                    return
                write_database_row(last, self.state.position + 1)
                transaction.commit()
            except BaseException:
                self._rolled_back(works)
                raise
        self._committed(works)

    def _run_alone(self, call: Call, work: UnitOfWork, connection: Connection) -> bool:
        savepoint = connection.begin_nested()
        try:
            work.preload(call.wants)
            work.places = call.places
            call.result, call.error = call.promise.run(work, *call.arguments, **call.named), None
            flush(work)
            self.state.contents.sync()
            savepoint.commit()
        except Exception as error:
            call.error = errors.unavailable(error) if errors.is_of_the_store(error) else error
            self.state.contents.forget_waiting()
            self._rolled_back([work])
            savepoint.rollback()
            return False
        return True

    def _one_by_one(self, calls: Sequence[Call]) -> None:
        failures_count, failure = 0, None
        for call in calls:
            if failures_count >= FAILURES_IN_A_ROW_MAX:
                reply, reason = LOCAL_ERROR, f"not tried: {failure}"
                if isinstance(failure, LedgerUnavailable):
                    reply, reason = failure.reply, failure.reason
                call.error = LedgerUnavailable(reply, reason)  # an instance for each: an exception object is raised once
                continue
            try:
                prepared = self.prepare((call,))
                if prepared is not None:
                    self._to_disk(prepared)
                failures_count, failure = 0, None
            except Exception as error:
                failure = call.error = self._after_failure(error)
                failures_count += 1

    def _rolled_back(self, works: Sequence[UnitOfWork]) -> None:
        for work in reversed(works):
            for message_id in work.rows:
                self.state.rows.drop(message_id)
            for undo in reversed(work.after_rollback):
                undo()

    def _committed(self, works: Sequence[UnitOfWork]) -> None:
        state = self.state
        state.position += 1
        state.log_bytes = self.connection.log_bytes()
        for work in works:
            for message_id, row in work.rows.items():
                if row is None:  # an earlier savepoint of this transaction may have created it
                    state.rows.drop(message_id)
                else:
                    state.rows.put(row)
            for step in work.after_commit:
                step()
            for segment in work.segments_gone:
                state.contents.unlink_segment(segment)
            for number in work.large_gone:
                state.contents.unlink_large(number)


# After a transaction of so many promises more will come soon, and the next one begins after this pause. Names: PostgreSQL's settings.
COMMIT_SIBLINGS = 4
COMMIT_DELAY_SECONDS = 0.003
BATCH_MAX = 64  # promises in one transaction: a few milliseconds of the event loop; more would not make the sync cheaper
LIGHT_ROWS_MAX = 400  # an XQDISCARD at its largest; a promise that wants more rows is heavy
WAITING_MAX = 50_000  # promises; sessions are bounded long before


_NOTHING: Promise[[], None] = Promise(lambda _: None)


class Writer(Protocol):
    """Takes calls in their order."""

    def submit(self, call: Call) -> "asyncio.Future[Any]": ...

    @property
    def waiting_count(self) -> int:
        """The number of promises that are in no transaction yet."""
        ...

    async def close(self) -> None: ...


class ThreadedWriter:
    """Promises are run on the event loop's thread; one dedicated thread waits for the disk.

    They take turns with the connection, because they would compete for the interpreter's lock if both ran promises: the loop
    prepares a transaction, the thread brings it to the disk, and promises that arrive meanwhile form the next transaction. While many
    arrive, it begins a little later: fewer transactions write the same pages fewer times, and a single promise never waits for others.
    Heavy and failed promises run on the thread entirely. Cancelling a waiter does not cancel its promise.
    """

    def __init__(self, opening: Callable[[], Committer], closing: Callable[[Committer], None]) -> None:
        self._opening = opening
        self._closing = closing
        self._loop = asyncio.get_running_loop()
        self._committer: Committer | None = None
        self._waiting: list[Call] = []
        self._calls: list[tuple[Call, Callable[[], None]]] = []
        self._is_busy = False  # the thread has the connection, or `_begin` will be called
        self._jobs: queue.SimpleQueue[tuple[Sequence[Call], Callable[[], None]] | None] = queue.SimpleQueue()
        self._is_closed = False
        self.before_commit: Callable[[], None] | None = None  # both on the loop
        self.after_commit: Callable[[], None] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # A daemon, so that the process can end even if `close` is never called.
        self._thread = threading.Thread(target=self._work, name="ledger writer", daemon=True)
        self._opened: asyncio.Future[Committer] = self._loop.create_future()

    async def open(self) -> Committer:
        """Raises: whatever `opening` raises, from the writer's thread."""
        self._thread.start()
        self._committer = await asyncio.shield(self._opened)
        return self._committer

    def submit(self, call: Call) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._is_closed or len(self._waiting) >= WAITING_MAX:
            reply, reason = (STORE_UNAVAILABLE, "closed") if self._is_closed else (INSUFFICIENT_RESOURCES, "too many promises wait")
            future.set_exception(LedgerUnavailable(reply, reason))
            return future
        call.waiter = future
        self._waiting.append(call)
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._begin)  # together with other promises of this iteration of the loop
        return future

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def between(self, call: Callable[[Committer], Any]) -> "asyncio.Future[Any]":
        """Run `call` on the writer's thread, between two transactions and before the waiting promises."""
        between = Call(_NOTHING, waiter=self._loop.create_future())

        def run() -> None:
            assert self._committer is not None
            between.result = call(self._committer)

        self._calls.append((between, run))
        if not self._is_busy and not self._is_closed:
            self._is_busy = True
            self._loop.call_soon(self._begin)
        return cast("asyncio.Future[Any]", between.waiter)

    async def close(self) -> None:
        """Promises that were submitted before are still done. Raises: what `closing` raises, when the thread has ended."""
        if not self._is_closed:
            self._is_closed = True
            if not self._is_busy:
                self._jobs.put(None)
        try:
            await asyncio.shield(self._ended)
        finally:
            if self._ended.done():
                self._thread.join()

    def _begin(self) -> None:
        """On the loop: the next transaction, if anything waits."""
        if self._calls:
            between, run = self._calls.pop(0)
            self._jobs.put(((between,), run))
            return
        if not self._waiting:
            self._is_busy = False
            if self._is_closed:
                self._jobs.put(None)
            return
        if self.before_commit is not None:
            self.before_commit()
        batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
        committer = self._committer
        assert committer is not None
        if [call for call in batch if call.promise.is_heavy or len(call.wants) > LIGHT_ROWS_MAX]:
            self._jobs.put((batch, partial(committer.commit, batch)))
            return
        try:
            prepared = committer.try_prepare(batch)
        except BaseException as error:
            self._jobs.put((batch, partial(committer.commit_after, error, batch)))
            if not isinstance(error, Exception):
                raise
            return
        if prepared is None:
            self._finished(batch)
        else:
            self._jobs.put((batch, partial(committer.finish, batch, prepared)))

    def _finished(self, batch: Sequence[Call]) -> None:
        """On the loop. Waiters continue first, so that their next promises are in the next transaction."""
        settle(batch)
        if len(batch) < COMMIT_SIBLINGS or self._is_closed:
            self._loop.call_soon(self._begin)
        else:
            self._loop.call_later(COMMIT_DELAY_SECONDS, self._begin)
        if self.after_commit is not None:
            self.after_commit()

    def _work(self) -> None:
        try:
            committer = self._opening()
        except BaseException as error:
            self._is_closed = True
            self._call(_fail, self._opened, error)
            self._call(_resolve, self._ended, None)
            return
        self._call(_resolve, self._opened, committer)
        while (job := self._jobs.get()) is not None:
            batch, run = job
            try:
                run()
            except BaseException as error:
                # A bug must not end the thread that all promises depend on.
                for call in batch:
                    call.error = LedgerUnavailable(LOCAL_ERROR, repr(error))
            self._call(self._finished, batch)
        try:
            self._closing(committer)
        except Exception as error:  # a dead disk; who closes the ledger must not wait for it
            self._call(_fail, self._ended, error)
        else:
            self._call(_resolve, self._ended, None)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed, so there are no waiters
            self._loop.call_soon_threadsafe(function, *arguments)


class InlineWriter:
    """Each promise is a commit of its own, done when the call returns."""

    waiting_count = 0

    def __init__(self, committer: Committer, closing: Callable[[Committer], None]) -> None:
        self._committer = committer
        self._closing = closing
        self._is_closed = False

    def submit(self, call: Call) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.set_exception(LedgerUnavailable(STORE_UNAVAILABLE, "closed"))
            return future
        call.waiter = future
        self._committer.commit((call,))
        settle((call,))
        return future

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._closing(self._committer)

    def abandon(self) -> None:
        """End as if the process had died."""
        self._is_closed = True
        self._committer.connection.close()


def settle(calls: Sequence[Call]) -> None:
    """On the loop: pass results and errors to the waiters that are not cancelled."""
    for call in calls:
        future = call.waiter
        if future.done():
            continue
        if isinstance(call.error, StopIteration):
            future.set_exception(RuntimeError("decide raised StopIteration"))  # a future cannot hold StopIteration
        elif call.error is not None:
            future.set_exception(call.error)
        else:
            future.set_result(call.result)


def _resolve(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
