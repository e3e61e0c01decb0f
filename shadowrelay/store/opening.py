"""Opens the store. Every start takes this path, after a crash as after a clean end. docs/architecture.md "On disk".

A damaged file is renamed with the time, never deleted. An empty database takes its place, with a new id, so that the shadow servers of
its messages promote. Notes for the operator log report that.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

from sqlalchemy import Connection, bindparam, delete, exc, func, insert, select, text, update

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName, SiteName
from shadowrelay.model.peers import Seen
from shadowrelay.model.queue import Beginning, DatabaseIdentity, PeerRow, Suspension
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, UNUSABLE, ConfigurationError, LedgerUnavailable
from shadowrelay.store import content, counters, errors, peer_promises, promises, rows, tables, versions
from shadowrelay.store.commit import Call, Committer
from shadowrelay.store.content import ContentStore, WorkingFile
from shadowrelay.store.dialect import condition_of, through
from shadowrelay.store.writing import KnownPeers, MayBeDelivered, WriterConnection, WriterState

DATABASE_NAME = "queue.db"
DAMAGED = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
DEATHS_PER_STEP = 500
OPENINGS_KEPT_MAX = 1_000
SECOND = 1_000_000  # microseconds
RESERVE_TAKEN = "data_directory is full: its reserve was given up so that queue.db could be opened. Make room"
_M, _COUNTER = tables.MESSAGE.c, tables.COUNTER.c
DECIDE = (  # by name: the planner leaves out a partial index whose condition the UPDATE itself changes
    update(tables.MESSAGE)
    .with_hint(f"INDEXED BY {tables.UNDECIDED.name}", dialect_name="sqlite")
    .where(condition_of(tables.UNDECIDED))
    .values(is_decided=1, due_at=func.coalesce(_M.due_at, bindparam("now")))
)
FORGET_HANDED = (
    update(tables.MESSAGE)
    .with_hint(f"INDEXED BY {tables.HANDED.name}", dialect_name="sqlite")
    .where(condition_of(tables.HANDED))
    .values(handed=0)
)
SELECT_LARGE = through(tables.LARGE_FILES, _M.offset)
DELIVERED_READ_MAX = 100_000  # a tenth of a second
_AT = tables.DELIVERED_TO.c.delivered_at
SELECT_NEWEST_DELIVERED = select(tables.DELIVERED_TO.c.key, _AT).order_by(_AT.desc()).limit(DELIVERED_READ_MAX)


@dataclass(slots=True)
class StoreFiles:
    """What `open_store` needs and what it found. `notes` are for the operator log, in order."""

    directory: Path
    server: ServerName
    now: Callable[[], datetime]
    safety_net_hold_time: timedelta
    shadow_keep_time: timedelta
    contents: ContentStore
    working: WorkingFile
    notes: list[str] = field(default_factory=list)
    is_new: bool = False
    was_damaged: bool = False
    lock: int = -1
    state: WriterState | None = None


def open_store(opening: StoreFiles) -> Committer:
    """On the thread that is going to write.

    Raises: ConfigurationError (in use by another process, newer version, file system without WAL); LedgerUnavailable.
    """
    try:
        opening.lock = _locked_directory(opening.directory)
        if content.give_up_reserve(opening.directory):
            opening.notes.append(RESERVE_TAKEN)
        try:
            return _open(opening)
        except (exc.SQLAlchemyError, sqlite3.Error, OSError, LedgerUnavailable):
            # It may be a quota: SQLite does not report why it cannot write.
            if not content.give_up_reserve(opening.directory, content.RESERVE_BYTES):
                raise
            opening.notes.append(RESERVE_TAKEN)
            return _open(opening)
    except (exc.SQLAlchemyError, sqlite3.Error, OSError, LedgerUnavailable) as error:
        close_lock(opening)
        raise _cannot_open(opening, errors.unavailable(error)) from error
    except ConfigurationError:
        close_lock(opening)
        raise


def _open(opening: StoreFiles) -> Committer:
    connection = WriterConnection(opening.directory / DATABASE_NAME)
    try:
        try:
            state = _read_or_make(opening, connection)
        except exc.DatabaseError as error:
            connection.close()
            if errors.sqlite_code(error) not in DAMAGED:
                raise
            _put_aside(opening, error)
            state = _read_or_make(opening, connection)
        opening.state = state
        committer = Committer(connection, state)
        _count_deaths(opening, committer)
    except BaseException:
        connection.close()
        opening.working.close(is_clean=False)
        raise
    return committer


def _cannot_open(opening: StoreFiles, error: LedgerUnavailable) -> LedgerUnavailable:
    """The same, with what an operator needs to know."""
    try:
        free = content.free_bytes(opening.directory)
    except OSError:
        return error
    if free >= content.OPENING_BYTES and error.reply != INSUFFICIENT_RESOURCES:
        return error
    need = content.OPENING_BYTES // 1_000_000
    text = f"data_directory {opening.directory} is full: {free} bytes are free, to open queue.db needs {need} MB ({error.reason})"
    return LedgerUnavailable(INSUFFICIENT_RESOURCES, text)


def close_store(opening: StoreFiles, committer: Committer) -> None:
    """A clean end; on a disk that takes no writes, an end. Raises: OSError, when all is closed that can be."""
    with ExitStack() as ending:  # from the last to the first, whatever each of them raises
        ending.callback(close_lock, opening)
        ending.callback(opening.working.close, is_clean=True)
        ending.callback(committer.connection.close)
        opening.contents.end_segment()


def abandon_store(opening: StoreFiles) -> None:
    """As if the process had died."""
    opening.contents.end_segment()
    opening.working.close(is_clean=False)
    close_lock(opening)


def _locked_directory(directory: Path) -> int:
    """Raises: ConfigurationError where this user can never use it; OSError for what may pass, such as a full disk."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(directory / DATABASE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite's other files get its mode
        return _lock(directory)
    except OSError as error:
        if error.errno not in UNUSABLE:
            raise
        raise ConfigurationError(
            f"server.data_directory: {directory} cannot be used ({error.strerror}); "
            f"name a directory that user {os.geteuid()} may make or write"
        ) from error


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigurationError(f"data_directory {directory} is in use by another process: give each node its own") from None
    return descriptor


def close_lock(opening: StoreFiles) -> None:
    if opening.lock >= 0:
        os.close(opening.lock)
        opening.lock = -1


def _put_aside(opening: StoreFiles, error: Exception) -> None:
    suffix = f".corrupt-{opening.now():%Y%m%dT%H%M%SZ}"
    for name in (DATABASE_NAME, f"{DATABASE_NAME}-wal", f"{DATABASE_NAME}-shm", "content"):
        path = opening.directory / name
        if path.exists():
            path.rename(opening.directory / f"{name}{suffix}")
    opening.was_damaged = True
    opening.notes.append(f"queue.db is damaged ({error.__cause__ or error}): moved to queue.db{suffix}; an empty database takes its place")


def _read_or_make(opening: StoreFiles, writer: WriterConnection) -> WriterState:
    connection = writer.get()
    with connection.begin():
        found = versions.migrate(connection)
        if 0 < found < versions.VERSION:
            opening.notes.append(f"queue.db migrated from schema version {found} to {versions.VERSION}")
        state = _open_incarnation(opening, connection)
        # The accept tasks died with the process; what was answered or not, the message counts as accepted. docs/design.md 5
        now = rows.encode_instant(opening.now())
        connection.execute(DECIDE, {"now": now})
        _forget_hand_overs(connection)
        segments = connection.scalars(select(tables.SEGMENT.c.segment)).all()
        large = connection.scalars(SELECT_LARGE).all()
    orphans_count = opening.contents.open(segments, set(large))
    if orphans_count:
        opening.notes.append(f"{orphans_count} content files that no message refers to were removed")
    return state


def _open_incarnation(opening: StoreFiles, connection: Connection) -> WriterState:
    now = rows.encode_instant(opening.now())
    row = tables.DATABASE.c
    known = select(
        *(row.database, row.incarnation, row.position, row.internal_id, row.sequence, row.former, row.older_until, row.draining_since)
    )
    found = connection.execute(known).first()
    opening.is_new = found is None
    if found is None:
        new = {"database": str(uuid4()), "created_at": now, "incarnation": 0, "began": 0, "position": 0, "internal_id": 0, "sequence": 0}
        connection.execute(insert(tables.DATABASE).values(id=1, **new))
        found = connection.execute(known).one()
    database, incarnation, position, internal_id, sequence, former, older_until, draining_since = found
    began = position + 1 + now % SECOND  # if an older copy of this file is opened one day, that begins elsewhere
    openings = {**_openings(connection), incarnation + 1: Beginning(began, position)}
    identity = DatabaseIdentity(DatabaseId(database), incarnation + 1, began, openings, DatabaseId(former), older_until)
    connection.execute(update(tables.DATABASE).values(incarnation=identity.incarnation, began=identity.began, position=identity.began))
    connection.execute(insert(tables.OPENING).values(incarnation=identity.incarnation, began=began, found=position))
    connection.exec_driver_sql(peer_promises.UPSERT_PEER_DATABASE, (database, opening.server, 0, 0, 0))
    state = WriterState(
        now=opening.now,
        contents=opening.contents,
        peers=_known_peers(connection),
        identity=identity,
        position=identity.began,
        internal_id=internal_id,
        sequence=sequence,
        safety_net_hold_microseconds=opening.safety_net_hold_time // timedelta(microseconds=1),
        shadow_keep_microseconds=opening.shadow_keep_time // timedelta(microseconds=1),
        draining_since=draining_since,
        may_be_delivered=_may_be_delivered(connection, opening.now()),
        server=opening.server,
        survived=opening.working.survived,
    )
    for number, primary in connection.execute(select(tables.SHADOW_QUEUE)).fetchall():
        state.shadow_queues[ServerName(primary)] = number
    for next_hop, since, by in connection.execute(select(tables.SUSPENDED_QUEUE)).fetchall():
        state.suspended_queues[next_hop] = Suspension(rows.decode_instant(since), by)
    return state


def _forget_hand_overs(connection: Connection) -> None:
    """Rule *said again*: a `yours` that an earlier process heard does not count, because this file may be an older copy, and the message
    delivered since. The primary server says it again. docs/design.md 6.2 "Hand-over"."""
    if connection.execute(FORGET_HANDED).rowcount:
        for name, number, count, octets in counters.of_kind(connection, counters.SHADOW):
            if number & 1:
                key = (_COUNTER.kind == counters.SHADOW, _COUNTER.name == name)
                more = {"count": _COUNTER["count"] + count, "octets": _COUNTER.octets + octets}
                connection.execute(delete(tables.COUNTER).where(*key, _COUNTER.number == number))
                if not connection.execute(update(tables.COUNTER).where(*key, _COUNTER.number == number - 1).values(more)).rowcount:
                    new = {"kind": counters.SHADOW, "name": name, "number": number - 1, "count": count, "octets": octets}
                    connection.execute(insert(tables.COUNTER).values(new))


def _openings(connection: Connection) -> dict[int, Beginning]:
    """The latest incarnations; older ones are forgotten."""
    kept = select(tables.OPENING).order_by(tables.OPENING.c.incarnation.desc()).limit(OPENINGS_KEPT_MAX)
    openings = {int(incarnation): Beginning(began, found) for incarnation, began, found in connection.execute(kept)}
    if openings:
        connection.execute(delete(tables.OPENING).where(tables.OPENING.c.incarnation < min(openings)))
    return openings


def _may_be_delivered(connection: Connection, now: datetime) -> MayBeDelivered:
    """With the newest deliveries; for a window after the start, older ones are looked up."""
    found = connection.execute(SELECT_NEWEST_DELIVERED).fetchall()
    if len(found) < DELIVERED_READ_MAX:
        return MayBeDelivered(now, [key for key, _ in found])
    since = rows.decode_instant(found[-1][1] + 1)
    return MayBeDelivered(now, [key for key, _ in found], since)


def _known_peers(connection: Connection) -> KnownPeers:
    known = KnownPeers()
    peers = connection.execute(select(tables.PEER)).fetchall()
    for server, database, incarnation, began, position, heard_at, is_forgotten in peers:
        known.rows[ServerName(server)] = PeerRow(
            ServerName(server),
            SiteName(""),
            DatabaseId(database),
            incarnation,
            began,
            position,
            rows.decode_instant_or_none(heard_at),
            bool(is_forgotten),
        )
    as_heard = select(tables.PEER_DATABASE).order_by(text("rowid"))
    for database, server, *seen in connection.execute(as_heard).fetchall():
        known.servers[DatabaseId(database)] = ServerName(server)
        if any(seen):
            known.former[DatabaseId(database)] = Seen(*seen)
    for server, asked_at in connection.execute(select(tables.ASKER)).fetchall():
        known.asked_at[ServerName(server)] = asked_at
    return known


def _count_deaths(opening: StoreFiles, committer: Committer) -> None:
    """What the last process was handling when it died. Raises: what the commit failed with."""
    deaths = opening.working.open()
    ids = deaths.message_ids
    for start in range(0, 0 if deaths.excuse else len(ids), DEATHS_PER_STEP):
        part: tuple[MessageId, ...] = ids[start : start + DEATHS_PER_STEP]
        call = Call(promises.died, (part,), wants=part)
        committer.commit((call,))
        if call.error is not None:
            raise call.error
    if ids:
        count = f"{len(ids)} message{'' if len(ids) == 1 else 's'}"
        note = f"not suspected, because {deaths.excuse}" if deaths.excuse else "suspected, and counted as a death of each"
        opening.notes.append(f"the last process died while it handled the content of {count}: {note}")
    opening.working.begin()
