"""What the writer keeps in memory beside the file. It is the only writer, so what it wrote is what is there."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from shadowrelay.model.ids import NO_SERVER, DatabaseId, MessageId, ServerName, SiteName
from shadowrelay.model.peers import PeerIdentity, Seen
from shadowrelay.model.queue import DatabaseIdentity, PeerRow
from shadowrelay.model.values import replace
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
    reads a partial update. Shapes: `servers` has every database ever seen, this node's own included; `asked_at` in microseconds.
    """

    rows: dict[ServerName, PeerRow] = field(default_factory=dict)
    servers: dict[DatabaseId, ServerName] = field(default_factory=dict)
    asked_at: dict[ServerName, int] = field(default_factory=dict)
    asked_unsaved: set[ServerName] = field(default_factory=set)

    def seen(self, server: ServerName) -> Seen | None:
        row = self.rows.get(server)
        return None if row is None or not row.database else Seen(row.incarnation, row.began, row.position)

    def server_of(self, database: DatabaseId) -> ServerName:
        return self.servers.get(database, NO_SERVER)

    def after(self, identity: PeerIdentity, heard_at: int) -> PeerRow:
        """The row that hearing this makes. Within one database the highest that was seen stays; a new one starts anew."""
        row = self.rows.get(identity.server)
        heard = codec.decode_instant(heard_at)
        at = (identity.database, identity.incarnation, identity.began, identity.position)
        fresh = PeerRow(identity.server, SiteName(""), *at, heard, is_forgotten=False)
        if row is None or row.database != identity.database:
            return fresh
        if (row.incarnation, row.position) > (identity.incarnation, identity.position):
            return replace(row, heard_at=heard, is_forgotten=False)
        return fresh


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
    rows: LatestRows = field(default_factory=LatestRows)
    shadow_queues: dict[ServerName, int] = field(default_factory=dict)  # N of Server\Shadow\N
    corrupt_rows_count: int = 0
    log_bytes: int = 0  # of the write-ahead log, after the last commit
