"""The peers as remembered, in memory: asked for on every session, so never read from the file while running.

Changed with the transaction that says the same, and taken back with it; read from the event
loop, which gets one frozen value or another.
"""

from dataclasses import dataclass, field, replace

from shadowrelay.model.ids import NO_SERVER, DatabaseId, ServerName, SiteName
from shadowrelay.model.peers import PeerIdentity, Seen
from shadowrelay.model.queue import PeerRow
from shadowrelay.store import codec


@dataclass(slots=True)
class KnownPeers:
    """Shapes: `servers` has every database ever seen, this node's own included; `asked_at` in microseconds."""

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
