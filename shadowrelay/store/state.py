"""What the writer keeps in memory beside the file. It is the only writer, so what it wrote is what is there."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from shadowrelay.model.ids import NO_SERVER, DatabaseId, MessageId, ServerName, SiteName
from shadowrelay.model.peers import PeerIdentity, Seen
from shadowrelay.model.queue import DatabaseIdentity, PeerRow, Suspension
from shadowrelay.model.values import replace
from shadowrelay.ownership.rules import shows_older_copy
from shadowrelay.store import codec
from shadowrelay.store.content import ContentStore
from shadowrelay.store.rows import Row

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


@dataclass(slots=True)
class KnownPeers:
    """The peers as remembered: asked for on every session, so never read from the file while running.

    Changed with the transaction that changes the file, and taken back with it. Rows are immutable, so the event loop never
    reads a partial update. Shapes: `servers` has every database ever seen, this node's own included; `former` the highest seen of those
    that were replaced; `asked_at` in microseconds.
    """

    rows: dict[ServerName, PeerRow] = field(default_factory=dict)
    servers: dict[DatabaseId, ServerName] = field(default_factory=dict)
    former: dict[DatabaseId, Seen] = field(default_factory=dict)
    asked_at: dict[ServerName, int] = field(default_factory=dict)
    asked_unsaved: set[ServerName] = field(default_factory=set)

    def seen(self, server: ServerName, database: DatabaseId) -> Seen | None:
        row = self.rows.get(server)
        if row is not None and row.database and database == row.database:
            return Seen(row.incarnation, row.began, row.position)
        return self.former.get(database)

    def server_of(self, database: DatabaseId) -> ServerName:
        return self.servers.get(database, NO_SERVER)

    def after(self, identity: PeerIdentity, heard_at: int) -> PeerRow:
        """The row that hearing this makes. Within one database the highest that was seen stays, and is not replaced by an older copy
        of the database; another one starts anew, or where it was left."""
        heard = codec.decode_instant(heard_at)
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
    is in one of them; about the time before, it cannot say. The event loop reads while another thread may write.
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
            place = int.from_bytes(key[:4]) % BITS
            bits[place >> 3] |= 1 << (place & 7)

    def has_any(self, keys: Collection[bytes], since: datetime) -> bool:
        """Whether one of these may have a row of that time or later; False is certain."""
        if since < self.knows_since:
            return True
        bits, before = self._bits, self._bits_before
        for key in keys:
            place = int.from_bytes(key[:4]) % BITS
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
    rows: LatestRows = field(default_factory=LatestRows)
    shadow_queues: dict[ServerName, int] = field(default_factory=dict)  # N of Server\Shadow\N
    draining_since: int | None = None
    suspended_queues: dict[str, Suspension] = field(default_factory=dict)  # by next hop
    tells_forks_to: set[ServerName] = field(default_factory=set)  # servers that offer FORKS
    corrupt_rows_count: int = 0
    log_bytes: int = 0  # of the write-ahead log, after the last commit
