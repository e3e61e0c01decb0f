"""What the ledger promises about peers, heard and forgotten, and about this database as an older copy. docs/design.md 6.6.

They run as those of `promises`. The memory of `KnownPeers` changes with them, because promises of one transaction see each other, and goes
back with a transaction that fails.
"""

from collections.abc import Collection
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

from sqlalchemy import Select, and_, select, update

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, DatabaseId, MessageId, ServerName, SiteName
from shadowrelay.model.ownership import Transition
from shadowrelay.model.peers import PeerIdentity, Seen
from shadowrelay.model.queue import PeerRow
from shadowrelay.model.values import replace
from shadowrelay.ownership.rules import without_server
from shadowrelay.store import counters, reading, rows, tables
from shadowrelay.store.commit import promise
from shadowrelay.store.dialect import upsert
from shadowrelay.store.work import UnitOfWork
from shadowrelay.store.writing import put_back

_D, _W = tables.DISCARD.c, tables.WAITING.c
UPSERT_PEER = upsert(tables.PEER, lambda new: {column.name: column for column in list(new)[1:]})
UPSERT_PEER_DATABASE = upsert(tables.PEER_DATABASE, lambda new: {column.name: column for column in list(new)[1:]})
AT_ONCE_MAX = 1_000  # rows in one transaction
UNADDRESS_WAITING = update(tables.WAITING).values(asker=NO_SERVER, asker_database=NO_DATABASE)


@promise()
def peer_heard(work: UnitOfWork, identity: PeerIdentity, heard_at: datetime) -> None:
    """What a peer says of itself, and that it was heard. With another database it needs no notifications for the former one."""
    known = work.state.peers
    row = known.after(identity, rows.encode_instant(heard_at))
    before = known.rows.get(identity.server)
    _write(work, row)
    if before is None or before.database != row.database:
        known.remembered.pop(row.server, None)  # they may be for the former database
        if before is not None and before.database:
            _remember_former(work, before, known.seen(before.server, before.database))
        work.execute_many(UPSERT_PEER_DATABASE, [(row.database, row.server, 0, 0, 0)])
        _forget_former(work, row.database)
        # No server needs the notifications for its old database any more. If there are many, housekeeping deletes them in steps
        # (`steps.forget_unasked`); they are not sent meanwhile.
        present = (row.database, NO_DATABASE)
        if _discards_count(work, row.server) <= AT_ONCE_MAX:
            work.delete_discards(and_(_D.asker == row.server, _D.asker_database.not_in(present)))
        else:
            _note_replaced(work, row)
        _unaddress_waiting(work, row.server, present)
    # Promises of one transaction see each other; a commit that fails takes it back.
    known.rows[row.server] = row
    had_server = known.servers.get(row.database)
    known.servers[row.database] = row.server

    def undo() -> None:
        put_back(known.rows, row.server, before)
        put_back(known.servers, row.database, had_server)

    work.after_rollback.append(undo)


def _unaddress_waiting(work: UnitOfWork, server: ServerName, kept: Collection[DatabaseId]) -> None:
    """Notifications that wait for generated messages go to this server no more, except in the databases `kept`. Their rows stay until the
    generated messages are safe: until then, a server that gets a copy must not learn that these recipients are done."""
    work.connection.execute(UNADDRESS_WAITING.where(_W.asker == server, _W.asker_database.not_in(kept)))
    work.waiting = [  # those of this transaction
        (*row[:2], NO_SERVER, NO_DATABASE, *row[4:]) if row[2] == server and row[3] not in kept else row for row in work.waiting
    ]


def _remember_former(work: UnitOfWork, row: PeerRow, seen: Seen | None) -> None:
    """The server has another database now. If an older copy of the former one is put back, the server must be notified."""
    former, database = work.state.peers.former, row.database
    before = former.get(database)
    seen = seen or Seen(row.incarnation, row.began, row.position)
    work.execute_many(UPSERT_PEER_DATABASE, [(database, row.server, seen.incarnation, seen.began, seen.position)])
    former[database] = seen
    work.after_rollback.append(lambda: put_back(former, database, before))


def _forget_former(work: UnitOfWork, database: DatabaseId) -> None:
    """It is the server's present database again."""
    former = work.state.peers.former
    before = former.pop(database, None)
    work.after_rollback.append(lambda: put_back(former, database, before))


@promise()
def database_renamed(work: UnitOfWork) -> None:
    """This database is an older copy that was put back: it gets a new id with the next opening, and its claims are to be asked about. A
    process commits nothing after it."""
    state, database = work.state, DatabaseId(str(uuid4()))
    work.changes_count += 1
    work.connection.execute(
        update(tables.DATABASE).values(database=database, former=state.identity.database, older_until=state.internal_id)
    )
    work.execute_many(UPSERT_PEER_DATABASE, [(database, state.peers.server_of(state.identity.database), 0, 0, 0)])


@promise()
def older_claims_over(work: UnitOfWork) -> None:
    """All claims of the older copy have been asked about: `identity.older_until` is 0 from the next opening on."""
    work.changes_count += 1
    work.connection.execute(update(tables.DATABASE).values(older_until=0))


def _note_replaced(work: UnitOfWork, row: PeerRow) -> None:
    """Housekeeping removes notifications only for databases that are recorded as replaced. Record those as well that could not be recorded
    while the disk was full."""
    known = work.state.peers
    names = [name.partition(" ") for name, *_ in counters.of_kind(work.connection, counters.DISCARD)]
    databases = [DatabaseId(database) for asker, _, database in names if asker == row.server]
    for database in databases:
        if database not in (NO_DATABASE, row.database) and database not in known.servers:
            work.execute_many(UPSERT_PEER_DATABASE, [(database, row.server, 0, 0, 0)])
            known.servers[database] = row.server
            work.after_rollback.append(partial(put_back, known.servers, database, None))


def _discards_count(work: UnitOfWork, server: ServerName) -> int:
    return sum(count for name, _, count, _ in counters.of_kind(work.connection, counters.DISCARD) if name.partition(" ")[0] == server)


def _write(work: UnitOfWork, row: PeerRow) -> None:
    work.changes_count += 1
    heard_at = None if row.heard_at is None else rows.encode_instant(row.heard_at)
    columns = (row.server, row.database, row.incarnation, row.began, row.position, heard_at, 1 if row.is_forgotten else 0)
    work.execute_many(UPSERT_PEER, [columns])


def listed_on(server: ServerName, after: int) -> Select[Any]:
    """Message ids and internal ids of one step."""
    return reading.listed_on(server, after, AT_ONCE_MAX).with_only_columns(tables.MESSAGE.c.message_id, tables.MESSAGE.c.internal_id)


@promise(is_heavy=True)
def peer_forgotten(work: UnitOfWork, server: ServerName, after: int) -> int | None:
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
    work.after_rollback.append(lambda: put_back(known.rows, server, before))
    found = work.connection.execute(listed_on(server, after)).fetchall()
    listed = [MessageId(message_id) for message_id, _ in found]
    is_last = len(found) < AT_ONCE_MAX
    listed.extend([message_id for message_id, row_ in work.rows.items() if row_ is not None and server in row_.listed])
    work.preload(listed)
    for message_id in listed:
        message = work.row(message_id)
        if message is not None and message.claim.copy_on(server) is not None:
            work.apply(message_id, Transition(message.claim, without_server(message.claim, server)))
    work.discards = [columns for columns in work.discards if columns[1] != server]
    is_last &= _discards_count(work, server) <= AT_ONCE_MAX
    first = select(_D.sequence).where(_D.asker == server).order_by(_D.sequence).limit(AT_ONCE_MAX).correlate(None)
    work.delete_discards(_D.sequence.in_(first))
    _unaddress_waiting(work, server, ())
    if is_last:
        return None
    return int(found[-1][1]) if found else after
