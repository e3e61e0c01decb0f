"""The promises about peers, on a `Work`. The memory of `KnownPeers` changes after the commit."""

from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from shadowrelay.core.ownership.pieces import without_server
from shadowrelay.model.ids import NO_DATABASE, DatabaseId, ServerName, SiteName
from shadowrelay.model.ownership import Transition
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.queue import PeerRow
from shadowrelay.store import codec, counters, prepared, tables
from shadowrelay.store.work import Work

K = TypeVar("K")
V = TypeVar("V")

UPSERT_PEER = prepared.insertion(
    tables.PEER,
    conflict="ON CONFLICT (server) DO UPDATE SET database = excluded.database, incarnation = excluded.incarnation, began = excluded.began, "
    "position = excluded.position, heard_at = excluded.heard_at, is_forgotten = excluded.is_forgotten",
)
UPSERT_PEER_DATABASE = prepared.insertion(tables.PEER_DATABASE, conflict="ON CONFLICT (database) DO UPDATE SET server = excluded.server")
SELECT_LISTED = (
    "SELECT m.message_id, listing.message FROM listing CROSS JOIN message AS m ON m.internal_id = listing.message"
    " WHERE listing.server = ? AND listing.message > ? ORDER BY listing.message LIMIT ?"
)
AT_ONCE_MAX = 1_000  # rows in one transaction
# Nobody is told it, but what it says is not safe yet: the next server that gets a copy must not hear it either.
UNADDRESS_WAITING = "UPDATE waiting SET asker = '', asker_database = ''"


def peer_heard(work: Work, identity: PeerIdentity, heard_at: datetime) -> None:
    known = work.state.peers
    row = known.after(identity, codec.encode_instant(heard_at))
    before = known.rows.get(identity.server)
    _write(work, row)
    if before is None or before.database != row.database:
        UPSERT_PEER_DATABASE.execute(work, [(row.database, row.server)])
        # What was to be told to its old queue has nobody who could need it any more. Where that is much, housekeeping removes it
        # in steps (`expiry.forget_unasked`); nobody is told of it meanwhile.
        stale = "WHERE asker = ? AND asker_database NOT IN (?, ?)"
        if _discards_count(work, row.server) <= AT_ONCE_MAX:
            work.delete_discards(stale, (row.server, row.database, NO_DATABASE))
        else:
            _note_replaced(work, row)
        work.connection.exec_driver_sql(
            f"{UNADDRESS_WAITING} WHERE asker = ? AND asker_database NOT IN (?, ?)", (row.server, row.database, NO_DATABASE)
        )
    # Promises of one transaction see each other; a commit that fails takes it back.
    known.rows[row.server] = row
    had_server = known.servers.get(row.database)
    known.servers[row.database] = row.server

    def undo() -> None:
        _put_back(known.rows, row.server, before)
        _put_back(known.servers, row.database, had_server)

    work.after_rollback.append(undo)


def _note_replaced(work: Work, row: PeerRow) -> None:
    """Housekeeping removes notifications only for databases that are known to be replaced: so are now those that could not be
    recorded while the disk was full."""
    known = work.state.peers
    names = [name.partition(" ") for name, *_ in counters.of_kind(work.connection, counters.DISCARD)]
    databases = [DatabaseId(database) for asker, _, database in names if asker == row.server]
    for database in databases:
        if database not in (NO_DATABASE, row.database) and database not in known.servers:
            UPSERT_PEER_DATABASE.execute(work, [(database, row.server)])
            known.servers[database] = row.server
            work.after_rollback.append(partial(_put_back, known.servers, database, None))


def _discards_count(work: Work, server: ServerName) -> int:
    return sum(count for name, _, count, _ in counters.of_kind(work.connection, counters.DISCARD) if name.partition(" ")[0] == server)


def _put_back(values: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def _write(work: Work, row: PeerRow) -> None:
    work.changes_count += 1
    heard_at = None if row.heard_at is None else codec.encode_instant(row.heard_at)
    columns = (row.server, row.database, row.incarnation, row.began, row.position, heard_at, 1 if row.is_forgotten else 0)
    UPSERT_PEER.execute(work, [columns])


def peer_forgotten(work: Work, server: ServerName, after: int) -> int | None:
    """One step: off every list behind the message `after`, with its notifications; its databases stay known, so that it is
    recognised when it comes back. Behind which message the next step begins; None after the last."""
    known = work.state.peers
    before = known.rows.get(server)
    row = (
        replace(before, is_forgotten=True)
        if before is not None
        else PeerRow(server, SiteName(""), DatabaseId(""), 0, 0, 0, None, is_forgotten=True)
    )
    _write(work, row)
    known.rows[server] = row
    work.after_rollback.append(lambda: _put_back(known.rows, server, before))
    found = work.connection.exec_driver_sql(SELECT_LISTED, (server, after, AT_ONCE_MAX)).fetchall()
    listed = [message_id for message_id, _ in found]
    is_last = len(found) < AT_ONCE_MAX
    listed.extend([message_id for message_id, row_ in work.rows.items() if row_ is not None and server in row_.listed])
    work.preload(listed)
    for message_id in listed:
        message = work.row(message_id)
        if message is not None and message.claim.copy_on(server) is not None:
            work.apply(message_id, Transition(message.claim, without_server(message.claim, server)))
    work.discards = [columns for columns in work.discards if columns[1] != server]
    is_last &= _discards_count(work, server) <= AT_ONCE_MAX
    first = "WHERE sequence IN (SELECT sequence FROM discard WHERE asker = ? ORDER BY sequence LIMIT ?)"
    work.delete_discards(first, (server, AT_ONCE_MAX))
    work.connection.exec_driver_sql(f"{UNADDRESS_WAITING} WHERE asker = ?", (server,))
    if is_last:
        return None
    return int(found[-1][1]) if found else after
