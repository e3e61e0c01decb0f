"""Group commit: the promises that wait at one moment are one transaction with one sync, yet each stands for itself.

First all of them together, without savepoints: nearly always that succeeds. When SQLite refuses something, all is
rolled back and each is done again under a savepoint of its own; when even that transaction does not hold (a full disk
takes the savepoints with it), each in a transaction of its own.

`prepare` does what needs the processor and `finish` what waits for the disk, so that the first can be done on the
event loop's thread and the second beside it. Nothing here knows threads or the event loop.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RootTransaction, exc

from shadowrelay.model.errors import LedgerUnavailable
from shadowrelay.model.ids import MessageId
from shadowrelay.model.replies import LOCAL_ERROR
from shadowrelay.store import errors
from shadowrelay.store.connection import WriterConnection
from shadowrelay.store.flush import flush, write_database_row
from shadowrelay.store.state import WriterState
from shadowrelay.store.work import Work

FAILURES_IN_A_ROW_MAX = 3  # then the rest of a batch fails the same way: a lock alone takes five seconds to find out


class NotOpen(Exception):
    """Opening the database may take long."""


@dataclass(slots=True)
class Promise:
    """One call of the ledger. `wants` are the messages whose rows it will look at. One of result and error is set."""

    run: Callable[[Work], Any]
    wants: Sequence[MessageId] = ()
    result: Any = None
    error: BaseException | None = None
    waiter: Any = None
    is_heavy: bool = False  # may take long or wait: not on the event loop's thread


@dataclass(slots=True)
class Prepared:
    """A transaction that only has to reach the disk."""

    work: Work
    transaction: RootTransaction


class Committer:
    """Owns the writing connection and the writer's memory. One thread at a time."""

    def __init__(self, connection: WriterConnection, state: WriterState) -> None:
        self.connection = connection
        self.state = state

    def commit(self, promises: Sequence[Promise]) -> None:
        """Never raises: each promise has its result or its error afterwards. Waits for locks and for the disk."""
        try:
            self.connection.wait_for_locks(True)
            prepared = self.prepare(promises)
        except Exception as error:
            self._each(promises, error)
        else:
            if prepared is not None:
                self.finish(promises, prepared)

    def try_prepare(self, promises: Sequence[Promise]) -> Prepared | None:
        """`prepare` that waits for nothing. Raises: what is in the way; then `commit_after` that does it all anew."""
        if not self.connection.is_open:
            raise NotOpen
        self.connection.wait_for_locks(False)
        return self.prepare(promises)

    def commit_after(self, failure: BaseException, promises: Sequence[Promise]) -> None:
        """`commit` after a `try_prepare` that raised. Never raises."""
        if isinstance(failure, NotOpen) or errors.sqlite_code(failure) == sqlite3.SQLITE_BUSY:
            self._after_failure(failure)
            self.commit(promises)
        else:
            self._each(promises, failure)

    def finish(self, promises: Sequence[Promise], prepared: Prepared) -> None:
        """Never raises, as `commit`."""
        try:
            self._to_disk(prepared)
        except Exception as error:
            self._each(promises, error)

    def _each(self, promises: Sequence[Promise], error: BaseException) -> None:
        """Together they failed: find out who can be kept."""
        failure = self._after_failure(error)
        if len(promises) == 1:
            promises[0].error = failure
            return
        try:
            self._under_savepoints(promises)
            return
        except Exception as error:
            self._after_failure(error)
        self._one_by_one(promises)

    def _after_failure(self, error: BaseException) -> BaseException:
        self.state.contents.forget_waiting()
        if errors.needs_new_connection(error):
            self.connection.close()
            self.state.rows.clear()
        self.connection.end_transaction()
        return errors.unavailable(error) if errors.is_of_the_store(error) else error

    def prepare(self, promises: Sequence[Promise]) -> Prepared | None:
        """Run them and write all that they change but the content; None when nothing has to reach the disk.

        Raises: whatever is in the way; nothing is left then but an open connection, of which `end_transaction` judges.
        """
        transaction = self.connection.get().begin()
        work = Work(self.connection, self.state)
        try:
            if any(promise.wants for promise in promises):
                work.preload([message_id for promise in promises for message_id in promise.wants])
            for promise in promises:
                self._run(promise, work)
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
        """Content first: what a row names must be there."""
        try:
            self.state.contents.sync()
            prepared.transaction.commit()
        except BaseException:
            self._give_up(prepared.work, prepared.transaction)
            raise
        self._committed([prepared.work])

    def _give_up(self, work: Work, transaction: RootTransaction) -> None:
        self._rolled_back([work])
        with suppress(exc.SQLAlchemyError, sqlite3.Error):  # the error that led here is the one to tell of
            transaction.rollback()

    @staticmethod
    def _run(promise: Promise, work: Work) -> None:
        changes_count = work.changes_count
        try:
            promise.result, promise.error = promise.run(work), None
        except Exception as error:
            if errors.is_of_the_store(error) or work.changes_count != changes_count:
                raise  # it may have left half of itself behind
            promise.error = error

    def _under_savepoints(self, promises: Sequence[Promise]) -> None:
        connection = self.connection.get()
        works: list[Work] = []
        last: Work | None = None
        with connection.begin() as transaction:
            try:
                for promise in promises:
                    last = Work(self.connection, self.state)
                    if self._run_alone(promise, last, connection):
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

    def _run_alone(self, promise: Promise, work: Work, connection: Connection) -> bool:
        savepoint = connection.begin_nested()
        try:
            work.preload(promise.wants)
            promise.result, promise.error = promise.run(work), None
            flush(work)
            self.state.contents.sync()
            savepoint.commit()
        except Exception as error:
            promise.error = errors.unavailable(error) if errors.is_of_the_store(error) else error
            self.state.contents.forget_waiting()
            self._rolled_back([work])
            savepoint.rollback()
            return False
        return True

    def _one_by_one(self, promises: Sequence[Promise]) -> None:
        failures_count, failure = 0, None
        for promise in promises:
            if failures_count >= FAILURES_IN_A_ROW_MAX:
                reply, reason = LOCAL_ERROR, f"not tried: {failure}"
                if isinstance(failure, LedgerUnavailable):
                    reply, reason = failure.reply, failure.reason
                promise.error = LedgerUnavailable(reply, reason)  # to each its own: an exception is raised once
                continue
            try:
                prepared = self.prepare((promise,))
                if prepared is not None:
                    self._to_disk(prepared)
                failures_count, failure = 0, None
            except Exception as error:
                failure = promise.error = self._after_failure(error)
                failures_count += 1

    def _rolled_back(self, works: Sequence[Work]) -> None:
        for work in reversed(works):
            for message_id in work.rows:
                self.state.rows.drop(message_id)
            for undo in reversed(work.after_rollback):
                undo()

    def _committed(self, works: Sequence[Work]) -> None:
        state = self.state
        state.position += 1
        state.log_bytes = self.connection.log_bytes()
        for work in works:
            for row in work.rows.values():
                if row is not None:
                    state.rows.put(row)
            for step in work.after_commit:
                step()
            for segment in work.segments_gone:
                state.contents.unlink_segment(segment)
            for number in work.large_gone:
                state.contents.unlink_large(number)
