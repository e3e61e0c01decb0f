"""The one table that says what an error from below means; a new class of SQLAlchemy's has to be looked at."""

import errno
import sqlite3

import pytest
from sqlalchemy import exc

from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, LOCAL_ERROR, STORE_UNAVAILABLE, LedgerUnavailable, Reply
from shadowrelay.store import errors


def tree(kind: type[BaseException]) -> set[type[BaseException]]:
    return {kind}.union(*(tree(child) for child in kind.__subclasses__()))


OF_THE_DRIVER = {
    "DBAPIError", "DatabaseError", "DataError", "IntegrityError", "InterfaceError", "InternalError", "NotSupportedError",
    "OperationalError", "ProgrammingError",
}  # fmt: skip
OF_THE_STORE = {"TimeoutError", "DisconnectionError", "InvalidatePoolError", "ResourceClosedError", "PendingRollbackError"}
MISTAKES_OF_OURS = {
    "AmbiguousColumnError", "AmbiguousForeignKeysError", "AmbiguousReferencesError", "ArgumentError", "AsyncContextAlreadyStarted",
    "AsyncContextNotStarted", "AsyncMethodRequired", "AwaitRequired", "CircularDependencyError", "CompileError",
    "ConstraintColumnNotFoundError", "DuplicateColumnError", "IdentifierError", "IllegalStateChangeError", "InvalidRequestError",
    "InvalidatedError", "LegacyAPIError", "MissingGreenlet", "MultipleResultsFound", "NoDBAPILoaded", "NoForeignKeysError",
    "NoInspectionAvailable", "NoReferenceError", "NoReferencedColumnError", "NoReferencedTableError", "NoResultFound",
    "NoSuchColumnError", "NoSuchModuleError", "NoSuchTableError", "NoSuitableConnection", "ObjectNotExecutableError", "SQLAlchemyError",
    "StatementError", "UnboundExecutionError", "UnreflectableTableError", "UnsupportedCompilationError",
}  # fmt: skip


def test_every_error_class_of_sqlalchemys_is_in_the_table_on_purpose() -> None:
    known = OF_THE_DRIVER | OF_THE_STORE | MISTAKES_OF_OURS
    classes = {kind for kind in tree(exc.SQLAlchemyError) if kind.__module__ == "sqlalchemy.exc"}

    assert set() == {kind.__name__ for kind in classes} - known


@pytest.mark.parametrize("kind", sorted(tree(exc.SQLAlchemyError), key=str), ids=lambda kind: kind.__name__)
def test_every_error_class_has_the_reply_of_its_family(kind: type[BaseException]) -> None:
    reply = next(reply for family, reply in errors.BY_CLASS if issubclass(kind, family))

    expected = {**dict.fromkeys(OF_THE_DRIVER), **dict.fromkeys(OF_THE_STORE, STORE_UNAVAILABLE)}.get(kind.__name__, LOCAL_ERROR)
    assert expected == reply


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("text")
    error.sqlite_errorcode = code
    return error


REPLIES = [
    (sqlite_error(sqlite3.SQLITE_FULL), INSUFFICIENT_RESOURCES),
    (sqlite_error(sqlite3.SQLITE_BUSY), STORE_UNAVAILABLE),
    (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), STORE_UNAVAILABLE),
    (sqlite_error(sqlite3.SQLITE_READONLY_DBMOVED), STORE_UNAVAILABLE),
    (sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), STORE_UNAVAILABLE),
    (sqlite_error(sqlite3.SQLITE_CONSTRAINT_UNIQUE), LOCAL_ERROR),
    (sqlite3.OperationalError("without a code"), LOCAL_ERROR),
    (OSError(errno.ENOSPC, "no space"), INSUFFICIENT_RESOURCES),
    (OSError(errno.EDQUOT, "quota"), INSUFFICIENT_RESOURCES),
    (OSError(errno.EIO, "disk"), STORE_UNAVAILABLE),
    (OSError(errno.EROFS, "read-only"), STORE_UNAVAILABLE),
    (RuntimeError("whatever"), LOCAL_ERROR),
]


@pytest.mark.parametrize(("error", "reply"), REPLIES, ids=lambda value: repr(value)[:40])
def test_the_reply_to_an_error(error: Exception, reply: Reply) -> None:
    assert reply == errors.reply_to(error)
    if isinstance(error, sqlite3.Error):
        assert reply == errors.reply_to(exc.DBAPIError.instance("SELECT", (), error, sqlite3.Error))


def test_nothing_is_permanent() -> None:
    replies = {reply for _, reply in errors.BY_CLASS if reply} | set(errors.BY_SQLITE_CODE.values()) | set(errors.BY_ERRNO.values())

    assert {4} == {reply.code // 100 for reply in replies}


def test_a_translated_error_keeps_its_cause_and_is_not_translated_again() -> None:
    cause = sqlite_error(sqlite3.SQLITE_FULL)

    translated = errors.unavailable(cause)

    assert isinstance(translated, LedgerUnavailable)
    assert cause is translated.__cause__
    assert translated is errors.unavailable(translated)
