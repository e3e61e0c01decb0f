"""Group commit: the promises that wait at one moment are one transaction with one sync, yet each stands for itself.

First all of them together, without savepoints: nearly always that succeeds. When SQLite refuses something, all is
rolled back and each is done again under a savepoint of its own; when even that transaction does not hold (a full disk
takes the savepoints with it), each in a transaction of its own. Nothing here knows threads or the event loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from shadowrelay.model.ids import MessageId
from shadowrelay.store import errors
from shadowrelay.store.connection import WriterConnection
from shadowrelay.store.flush import flush, write_database_row
from shadowrelay.store.state import WriterState
from shadowrelay.store.work import Work

FAILURES_IN_A_ROW_MAX = 3  # then the rest of a batch fails the same way: a lock alone takes five seconds to find out


@dataclass(slots=True)
class Promise:
    """One call of the ledger. `wants` are the messages whose rows it will look at. One of result and error is set."""

    run: Callable[[Work], Any]
    wants: Sequence[MessageId] = ()
    result: Any = None
    error: BaseException | None = None
    waiter: Any = None


class Committer:
    """Owns the writing connection and the writer's memory. One thread at a time."""

    def __init__(self, connection: WriterConnection, state: WriterState) -> None:
        self.connection = connection
        self.state = state

    def commit(self, promises: Sequence[Promise]) -> None:
        """Never raises: each promise has its result or its error afterwards."""
        try:
            self._together(promises)
            return
        except Exception as error:
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

    def _after_failure(self, error: Exception) -> BaseException:
        self.state.contents.forget_waiting()
        if errors.needs_new_connection(error):
            self.connection.close()
            self.state.rows.clear()
        self.connection.end_transaction()
        return errors.unavailable(error) if errors.is_of_the_store(error) else error

    def _together(self, promises: Sequence[Promise]) -> None:
        connection = self.connection.get()
        work: Work | None = None
        with connection.begin() as transaction:
            work = Work(connection, self.state)
            try:
                if any(promise.wants for promise in promises):
                    work.preload([message_id for promise in promises for message_id in promise.wants])
                for promise in promises:
                    self._run(promise, work)
                if not work.changes_count:
                    transaction.rollback()
                    return
                flush(work)
                self.state.contents.sync()
                write_database_row(work, self.state.position + 1)
                transaction.commit()
            except BaseException:
                self._rolled_back([work])
                raise
        self._committed([work])

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
                    last = Work(connection, self.state)
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
                promise.error = failure
                continue
            try:
                self._together((promise,))
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
