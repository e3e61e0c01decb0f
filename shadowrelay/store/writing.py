"""The writer: the only connection that writes to `queue.db`, and the rows and peers it keeps in memory. docs/architecture.md "On disk".

SQLite before 3.51.3 can lose committed pages if one connection checkpoints while another commits, so the writer is the only
connection that does either, and no connection uses `mmap_size`. Each pragma is read back after it was set: some builds of SQLite, and
some file systems, silently do less.

Because no other connection writes, the writer's memory is current: the latest rows, the peers, and which deliveries may be recorded
need not be read again.
"""

import os
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc
from sqlalchemy.pool import StaticPool

from shadowrelay.model.ids import NO_SERVER, DatabaseId, MessageId, ServerName, SiteName
from shadowrelay.model.peers import Incarnation, PeerIdentity, Seen
from shadowrelay.model.queue import DatabaseIdentity, PeerRow, Suspension
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.values import replace
from shadowrelay.ownership.rules import shows_older_copy
from shadowrelay.store.content import ContentStore
from shadowrelay.store.dialect import use_queue_compiler
from shadowrelay.store.rows import Row, decode_instant, encode_instant

K = TypeVar("K")
V = TypeVar("V")
BUSY_TIMEOUT_MILLISECONDS = 5_000  # another process holds the lock: an administrator's shell, a copy being made
CHECKPOINT_PAGES = 6_000  # 24 MB of WAL, some thousand messages: the same pages are then written back once
WRITER_CACHE_KIB = 65_536
STATEMENTS_KEPT = 256
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
        self._log_path = f"{path}-wal"
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._waits_for_locks = True
        self.execute_many: Callable[[str, Sequence[tuple[Any, ...]]], object] = _closed
        """Past SQLAlchemy, whose bookkeeping for a statement costs more than SQLite's work. Raises: sqlite3.Error."""

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def select(self, text: str, parameters: tuple[Any, ...]) -> list[Any]:
        """All rows of a frequent question, past SQLAlchemy too. Raises: sqlite3.Error."""
        assert self._cursor is not None
        return self._cursor.execute(text, parameters).fetchall()

    def log_bytes(self) -> int:
        """The size of the write-ahead log."""
        try:
            return os.stat(self._log_path).st_size
        except OSError:
            return 0

    def empty_log(self) -> bool:
        """Write the log back and make it empty; False if another connection reads from it. Outside a transaction. Raises: sqlite3.Error."""
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
            self.execute_many = self._cursor.executemany
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
        self.execute_many = _closed  # with a cursor left, SQLite would not close the file, nor write the log back
        if connection is None or engine is None:
            return
        with suppress(exc.SQLAlchemyError, sqlite3.Error):  # it may be given up because it is broken
            driver = connection.connection.dbapi_connection
            with suppress(exc.SQLAlchemyError, sqlite3.Error):
                connection.close()
            engine.dispose()
            if driver is not None:
                driver.close()  # whatever SQLAlchemy made of it, the lock must go


def _closed(text: str, rows: Sequence[tuple[Any, ...]]) -> object:
    raise sqlite3.ProgrammingError("the connection is closed")


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


ROWS_KEPT_MAX = 8_192  # about 1 KiB each; a message is accepted, copied and delivered within a second or two


class LatestRows:
    """The latest rows as they are committed, so that a verdict or an attempt need not read what was just written."""

    def __init__(self, rows_max: int = ROWS_KEPT_MAX) -> None:
        self._rows_max = rows_max
        self._rows: OrderedDict[MessageId, Row] = OrderedDict()

    def get(self, message_id: MessageId) -> Row | None:
        return self._rows.get(message_id)

    def put(self, row: Row) -> None:
        self._rows[row.message_id] = row
        self._rows.move_to_end(row.message_id)
        if len(self._rows) > self._rows_max:
            self._rows.popitem(last=False)

    def drop(self, message_id: MessageId) -> None:
        self._rows.pop(message_id, None)

    def clear(self) -> None:
        self._rows.clear()


TOLD_SAVED_EVERY = 1_000_000  # microseconds


def _is_later(told: Seen, seen: Seen) -> bool:
    return (told.incarnation, told.began) == (seen.incarnation, seen.began) and told.position > seen.position


@dataclass(slots=True)
class KnownPeers:
    """The peers as remembered: asked for on every session, so never read from the file while running.

    Changed with the transaction that changes the file, and taken back with it. Rows are immutable, so the event loop never
    reads a partial update. Shapes: `servers` has every database ever seen, this node's own included, in the order of first hearing;
    `former` the highest seen of those that were replaced; `asked_at` in microseconds; `remembered`: of the
    notifications for a server up to this sequence, `forget_unasked` has left only those that do not grow old; `told` the highest position
    that any reply told, where it is above the recorded one; `offer_forks`: in this process; times in microseconds.
    """

    rows: dict[ServerName, PeerRow] = field(default_factory=dict)
    servers: dict[DatabaseId, ServerName] = field(default_factory=dict)
    former: dict[DatabaseId, Seen] = field(default_factory=dict)
    asked_at: dict[ServerName, int] = field(default_factory=dict)
    remembered: dict[ServerName, int] = field(default_factory=dict)
    asked_unsaved: set[ServerName] = field(default_factory=set)
    told: dict[DatabaseId, Seen] = field(default_factory=dict)
    told_unsaved: set[ServerName] = field(default_factory=set)
    told_saved_at: int = 0
    offer_forks: set[ServerName] = field(default_factory=set)

    def listed(self) -> tuple[PeerRow, ...]:
        """By name."""
        return tuple(row for _, row in sorted(self.rows.items()))

    def seen(self, server: ServerName, database: DatabaseId) -> Seen | None:
        """The highest position seen of this database of the peer, in any session."""
        row, told = self.rows.get(server), self.told.get(database)
        if row is not None and row.database and database == row.database:
            recorded: Seen | None = Seen(row.incarnation, row.began, row.position)
        else:
            recorded = self.former.get(database)
        return told if recorded is not None and told is not None and _is_later(told, recorded) else recorded

    def note_told(self, server: ServerName, at: Incarnation, position: int) -> None:
        """A reply of this incarnation told its position. The highest is kept: replies in several sessions cross. It is written with a
        commit that happens anyway, at most once a second."""
        before = self.told.get(at.database)
        if before is not None and before.incarnation == at.number and before.began == at.began:  # by nearly every reply
            is_later = position > before.position
        else:
            seen = self.seen(server, at.database)
            is_later = seen is not None and _is_later(Seen(at.number, at.began, position), seen)
        if is_later:
            self.told[at.database] = Seen(at.number, at.began, position)
            self.told_unsaved.add(server)

    def note_forks_offered(self, server: ServerName, is_offered: bool) -> None:
        """Whether forks of messages are reported to this server in this process, including reports that are queued already."""
        if is_offered:
            self.offer_forks.add(server)
        else:
            self.offer_forks.discard(server)

    def were_saved_within(self, seconds: float, now: datetime) -> bool:
        """Whether a commit of the last so many seconds wrote all that had been told. By the wall clock: in doubt it is written again."""
        return 0 <= encode_instant(now) - self.told_saved_at < seconds * 1e6

    def rows_as_told(self, now: int) -> list[PeerRow]:
        """The rows whose position is to be written with the present commit: once a second, as nearly every reply tells a higher one."""
        if not self.told_unsaved or 0 <= now - self.told_saved_at < TOLD_SAVED_EVERY:
            return []
        found = []
        for server in list(self.told_unsaved):  # the event loop may add to it
            row = self.rows.get(server)
            if row is not None and (seen := self.seen(server, row.database)) is not None:
                found.append(replace(row, position=seen.position))
        return found

    def saved(self, saved: Iterable[PeerRow], now: int) -> None:
        """These rows are committed."""
        self.told_saved_at = now
        for row in saved:
            self.rows[row.server] = row
            seen = self.seen(row.server, row.database)
            if seen is None or seen.position <= row.position:
                self.told_unsaved.discard(row.server)

    def was_heard_before(self, database: DatabaseId, other: DatabaseId) -> bool:
        """Whether this node heard of that database before it heard of the other one."""
        order = list(self.servers)
        return database in order and other in order and order.index(database) < order.index(other)

    def server_of(self, database: DatabaseId) -> ServerName:
        """The server that owns a database; NO_SERVER if unknown. Includes this node's own."""
        return self.servers.get(database, NO_SERVER)

    def after(self, identity: PeerIdentity, heard_at: int) -> PeerRow:
        """The row that hearing this makes. Within one database the highest that was seen stays, and is not replaced by an older copy
        of the database; another one starts anew, or where it was left."""
        heard = decode_instant(heard_at)
        at = (identity.database, identity.incarnation, identity.began, identity.position)
        fresh = PeerRow(identity.server, SiteName(""), *at, heard, is_forgotten=False)
        seen = self.seen(identity.server, identity.database)
        if seen is None:
            return fresh
        if shows_older_copy(seen, identity) or (seen.incarnation, seen.position) > (identity.incarnation, identity.position):
            return replace(fresh, incarnation=seen.incarnation, began=seen.began, position=seen.position)
        return fresh


BITS = 1 << 24  # 2 MiB: after 1,000,000 deliveries in the window 6 % of the attempts look into the table
BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


class MayBeDelivered:
    """Which keys of `delivered_to` have no row, so that the attempt on nearly every message need not look there.

    A bitmap with one bit for each key, and the one before it, because no key can be taken out. `knows_since`: every row since then
    is in one of them; earlier rows may be missing. The event loop reads while another thread may write.
    """

    def __init__(self, now: datetime, keys: Iterable[bytes] = (), knows_since: datetime = BEFORE_ALL) -> None:
        self._began_at = now
        self._bits = self._bits_before = bytearray(BITS // 8)
        self._current_since = self.knows_since = knows_since
        self.add(keys)

    def add(self, keys: Iterable[bytes]) -> None:
        """These have a row, or may have."""
        bits = self._bits
        for key in keys:
            place = int.from_bytes(key[-4:]) % BITS
            bits[place >> 3] |= 1 << (place & 7)

    def has_any(self, keys: Collection[bytes], since: datetime) -> bool:
        """Whether one of these may have a row of that time or later; False is certain."""
        if since < self.knows_since:
            return True
        bits, before = self._bits, self._bits_before
        for key in keys:
            place = int.from_bytes(key[-4:]) % BITS
            if (bits[place >> 3] | before[place >> 3]) >> (place & 7) & 1:
                return True
        return False

    def turn_over(self, now: datetime, window: timedelta) -> None:
        """Begin another bitmap if the present one has been in use for a window, or the wall clock was set back."""
        if self._began_at <= now < self._began_at + window:
            return
        self._bits_before, self.knows_since = self._bits, self._current_since
        self._bits = bytearray(BITS // 8)
        self._began_at = self._current_since = now


@dataclass(slots=True)
class WriterState:
    """Owned by whichever thread has the transaction; others read `position` only. Counters are the last ones given."""

    now: Callable[[], datetime]
    contents: ContentStore
    peers: KnownPeers
    identity: DatabaseIdentity
    position: int
    internal_id: int
    sequence: int
    safety_net_hold_microseconds: int
    shadow_keep_microseconds: int
    may_be_delivered: MayBeDelivered
    server: ServerName
    survived: set[MessageId]  # whose content this process handled since their last attempt was recorded
    rows: LatestRows = field(default_factory=LatestRows)
    shadow_queues: dict[ServerName, int] = field(default_factory=dict)  # N of Server\Shadow\N
    draining_since: int | None = None
    suspended_queues: dict[str, Suspension] = field(default_factory=dict)  # by next hop
    corrupt_rows_count: int = 0
    log_bytes: int = 0  # of the write-ahead log, after the last commit


def put_back(values: dict[K, V], key: K, value: V | None) -> None:
    """An entry as it was before, after a transaction that failed."""
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value
