"""What an error of the database or of a file means to the caller: one table, CONTRIBUTING.md "Errors".

A full disk is 452, so that senders try another server; every other trouble of the store is 451. Nothing is 5xx.
"""

import errno
import sqlite3

from sqlalchemy import exc

from shadowrelay.model.replies import (
    INSUFFICIENT_RESOURCES,
    LOCAL_ERROR,
    STORE_UNAVAILABLE,
    ContentUnreadable,
    LedgerUnavailable,
    Reply,
)

BY_SQLITE_CODE: dict[int, Reply] = {
    sqlite3.SQLITE_FULL: INSUFFICIENT_RESOURCES,
    sqlite3.SQLITE_NOMEM: INSUFFICIENT_RESOURCES,
    sqlite3.SQLITE_TOOBIG: INSUFFICIENT_RESOURCES,
    sqlite3.SQLITE_BUSY: STORE_UNAVAILABLE,
    sqlite3.SQLITE_LOCKED: STORE_UNAVAILABLE,
    sqlite3.SQLITE_PROTOCOL: STORE_UNAVAILABLE,
    sqlite3.SQLITE_READONLY: STORE_UNAVAILABLE,
    sqlite3.SQLITE_IOERR: STORE_UNAVAILABLE,
    sqlite3.SQLITE_CANTOPEN: STORE_UNAVAILABLE,
    sqlite3.SQLITE_PERM: STORE_UNAVAILABLE,
    sqlite3.SQLITE_CORRUPT: STORE_UNAVAILABLE,
    sqlite3.SQLITE_NOTADB: STORE_UNAVAILABLE,
}

BY_ERRNO: dict[int, Reply] = {
    errno.ENOSPC: INSUFFICIENT_RESOURCES,
    errno.EDQUOT: INSUFFICIENT_RESOURCES,
    errno.EFBIG: INSUFFICIENT_RESOURCES,
    errno.ENOMEM: INSUFFICIENT_RESOURCES,
    errno.EMFILE: INSUFFICIENT_RESOURCES,
    errno.ENFILE: INSUFFICIENT_RESOURCES,
}

NOT_OF_THE_DISK = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

# The first class that fits decides. Only errors that come from the driver have a code to look at.
BY_CLASS: tuple[tuple[type[BaseException], Reply | None], ...] = (
    (exc.DBAPIError, None),
    (exc.TimeoutError, STORE_UNAVAILABLE),  # no reader became free
    (exc.DisconnectionError, STORE_UNAVAILABLE),
    (exc.ResourceClosedError, STORE_UNAVAILABLE),  # the connection went away under a statement
    (exc.PendingRollbackError, STORE_UNAVAILABLE),
    (exc.SQLAlchemyError, LOCAL_ERROR),  # the rest are mistakes of ours
    (sqlite3.Error, None),
    (OSError, None),
    (MemoryError, INSUFFICIENT_RESOURCES),
)

# After these the connection is opened anew; what a failed sync left in the page cache is not to be trusted.
REOPEN_AFTER = frozenset(
    (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
)


def sqlite_code(error: BaseException) -> int | None:
    """The primary result code, if the error came from SQLite."""
    origin = error.orig if isinstance(error, exc.DBAPIError) else error
    code = getattr(origin, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def reply_to(error: BaseException) -> Reply:
    """The reply to a client whose promise failed with this error. Unknown means transient."""
    for kind, reply in BY_CLASS:
        if isinstance(error, kind):
            if reply is not None:
                return reply
            if isinstance(error, OSError):
                return BY_ERRNO.get(error.errno or 0, STORE_UNAVAILABLE)
            return BY_SQLITE_CODE.get(sqlite_code(error) or 0, LOCAL_ERROR)
    return LOCAL_ERROR


def unreadable(error: OSError | MemoryError) -> LedgerUnavailable:
    """The same for content that could not be read: what is not of the disk says nothing about this content."""
    general = unavailable(error)
    if isinstance(error, MemoryError) or error.errno in NOT_OF_THE_DISK:
        return general
    return ContentUnreadable(general.reply, general.reason)


def unavailable(error: BaseException) -> LedgerUnavailable:
    """The error of the port for an error from below; raise it `from error`."""
    if isinstance(error, LedgerUnavailable):
        return error
    origin = error.orig if isinstance(error, exc.DBAPIError) else error
    translated = LedgerUnavailable(reply_to(error), f"{type(origin).__name__}: {origin}")
    translated.__cause__ = error
    return translated


def is_of_the_disk(error: LedgerUnavailable) -> bool:
    """Whether the disk or what is on it is the cause, and not a lock, a queue or a lack of memory or descriptors."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return cause.errno is not None and cause.errno not in NOT_OF_THE_DISK  # None: a time limit of ours
    return cause is not None and sqlite_code(cause) in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_of_the_store(error: BaseException) -> bool:
    """Translated, rather than passed on as it is (what `decide` raised, a mistake of ours)."""
    return isinstance(error, exc.SQLAlchemyError | sqlite3.Error | OSError)


def needs_new_connection(error: BaseException) -> bool:
    """The writer must not go on with this connection."""
    return sqlite_code(error) in REOPEN_AFTER or (isinstance(error, exc.DBAPIError) and error.connection_invalidated)
