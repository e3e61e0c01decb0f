"""Writes what a `Work` has collected: a few statements whatever the number of promises.

Order: rows that go before rows that come (a message held anew has the same id), rows before what refers to them, the
released notifications after those that were queued to wait, the counters last.
"""

import json
from collections import Counter
from typing import Any

from shadowrelay.model.ids import NO_SERVER, MessageId
from shadowrelay.store import counters, prepared, retries, rows, tables
from shadowrelay.store.rows import Row
from shadowrelay.store.work import Work

INSERT_MESSAGE = prepared.insertion(tables.MESSAGE)
UPDATE_MESSAGE = prepared.update(tables.MESSAGE, "internal_id", rows.CHANGING)
UPDATE_LIST = prepared.update(tables.MESSAGE, "internal_id", rows.LISTED)
DELETE_MESSAGE = prepared.deletion(tables.MESSAGE, "internal_id")
INSERT_LISTING = prepared.insertion(tables.LISTING, conflict="ON CONFLICT DO NOTHING")
DELETE_LISTING = prepared.deletion(tables.LISTING, "server", "message")
DELETE_RETRY = prepared.deletion(tables.RETRY, "message")
INSERT_RETRY = prepared.insertion(tables.RETRY, conflict="ON CONFLICT DO NOTHING")
SELECT_RETRIES_GONE = "SELECT retry.message, retry.next_hop FROM json_each(?) AS gone CROSS JOIN retry ON retry.message = gone.value"
UPSERT_COUNTER = prepared.insertion(
    tables.COUNTER, conflict="ON CONFLICT DO UPDATE SET count = count + excluded.count, octets = octets + excluded.octets"
)
DELETE_COUNTER = prepared.ManyRows("DELETE FROM counter WHERE kind = ? AND name = ? AND number = ? AND count = 0")
INSERT_DISCARD = prepared.insertion(tables.DISCARD)
WAITING_COLUMNS = [column.name for column in tables.WAITING.columns][1:]
INSERT_WAITING = prepared.insertion(tables.WAITING, columns=WAITING_COLUMNS)
UPSERT_SEGMENT = prepared.insertion(
    tables.SEGMENT,
    conflict="ON CONFLICT (segment) DO UPDATE SET pinned_count = pinned_count + excluded.pinned_count, "
    "keep_until = max(keep_until, excluded.keep_until), "
    "first_id = min(first_id, excluded.first_id), last_id = max(last_id, excluded.last_id)",
)
DELETE_SEGMENT = prepared.deletion(tables.SEGMENT, "segment")
UPSERT_ASKER = prepared.insertion(tables.ASKER, conflict="ON CONFLICT (server) DO UPDATE SET asked_at = excluded.asked_at")
SELECT_WAITING = (
    "SELECT id, more_sides, asker, asker_database, message_id, status, ordinals, created_at FROM waiting WHERE side = ? ORDER BY id"
)
UPDATE_DATABASE = "UPDATE database SET position = ?, internal_id = ?, sequence = ? WHERE id = 1"


def flush(work: Work) -> None:
    """Everything but the database row. Raises: whatever SQLAlchemy or sqlite3 raise; then nothing may be committed."""
    if work.deleted:
        DELETE_MESSAGE.execute(work, [(internal_id,) for internal_id in work.deleted])
    if work.new:
        INSERT_MESSAGE.execute(work, [_whole(work, row, text) for message_id, text in work.new.items() if (row := work.rows[message_id])])
    _release_sides(work)
    if work.dirty:
        _update(work)
    _write_lists(work)
    if work.discards:
        INSERT_DISCARD.execute(work, work.discards)
        for _, asker, database, *_ in work.discards:
            work.count((counters.DISCARD, f"{asker} {database}", 0), 1)
    if work.segments:
        changes = [
            (number, change.pinned_count, change.keep_until, change.first_id, change.last_id)
            for number, change in work.segments.items()
            if number not in work.segments_gone
        ]
        UPSERT_SEGMENT.execute(work, changes)
    if work.segments_gone:
        DELETE_SEGMENT.execute(work, [(number,) for number in work.segments_gone])
    if work.counts:
        _write_counters(work)


def _whole(work: Work, row: Row, envelope: str) -> tuple[Any, ...]:
    row.written = row.beside()
    _count(work, row)
    return row.whole(envelope)


def _count(work: Work, row: Row) -> None:
    """From the queue in which it was to that in which it is."""
    before, after = row.counted, row.to_be_counted()
    if before == after:
        return
    if before is not None:
        work.count(before[0], -1, -before[1])
    if after is not None:
        work.count(after[0], 1, after[1])
    row.counted = after


def _count_retries(work: Work) -> None:
    """Before they are written: the rows that go are asked for by which queues they are in."""
    if work.retries_gone:
        for internal_id, next_hop in work.connection.exec_driver_sql(
            SELECT_RETRIES_GONE, (json.dumps(list(set(work.retries_gone))),)
        ).fetchall():
            work.count((counters.DELIVERY, next_hop, 0), -1, -work.retries_octets[internal_id])
    for internal_id, forks in work.retries.items():
        for next_hop in forks:
            work.count((counters.DELIVERY, next_hop, 0), 1, work.retries_octets[internal_id])


def _write_counters(work: Work) -> None:
    changes = [(*key, count, octets) for key, (count, octets) in work.counts.items() if count or octets]
    UPSERT_COUNTER.execute(work, changes)
    DELETE_COUNTER.execute(work, [(kind, name, number) for kind, name, number, count, _ in changes if count < 0])


def _update(work: Work) -> None:
    """Where only the list changed, SQLite need not look at the indexes, nor write their pages."""
    lists, others = [], []
    for message_id in work.dirty:
        row = work.rows[message_id]
        if row is None:
            continue
        beside = row.beside()
        is_beside_same = beside == row.written
        # Of `LISTED` only the number of retries has a say in where a message counts.
        if not is_beside_same or bool(row.retries_count) is not (row.counted is None):
            _count(work, row)
        if is_beside_same:
            lists.append((*row.list_columns(), row.internal_id))
        else:
            row.written = beside
            others.append((*row.changing(), row.internal_id))
    if lists:
        UPDATE_LIST.execute(work, lists)
    if others:
        UPDATE_MESSAGE.execute(work, others)


def _write_lists(work: Work) -> None:
    if work.listing_new and work.listing_gone:
        # An entry may have come and gone within this transaction, or gone and come: what is left of it counts.
        left = Counter(work.listing_new)
        left.subtract(work.listing_gone)
        work.listing_new = [entry for entry, count in left.items() if count > 0]
        work.listing_gone = [entry for entry, count in left.items() if count < 0]
    if work.listing_new:
        INSERT_LISTING.execute(work, work.listing_new)
    if work.listing_gone:
        DELETE_LISTING.execute(work, work.listing_gone)
    for entries, by in ((work.listing_new, 1), (work.listing_gone, -1)):
        for server, _ in entries:
            work.count((counters.LISTED, server, 0), by)
    write_retries(work)


def write_retries(work: Work) -> None:
    """The delivery queues, so that a statement on them sees what this transaction has changed."""
    if not work.retries:
        return
    _count_retries(work)
    DELETE_RETRY.execute(work, [(internal_id,) for internal_id in work.retries_gone])
    fresh = [retries.encode_retry(internal_id, retry) for internal_id, forks in work.retries.items() for retry in forks.values()]
    INSERT_RETRY.execute(work, fresh)
    work.retries_gone, work.retries = [], {}


def _release_sides(work: Work) -> None:
    connection = work.connection
    if work.waiting:
        INSERT_WAITING.execute(work, work.waiting)
    while work.sides_ready:
        side = work.sides_ready.pop()
        for waiting_id, more_sides, *columns in connection.exec_driver_sql(SELECT_WAITING, (side,)).fetchall():
            _release(work, waiting_id, more_sides.split(), columns)


def _release(work: Work, waiting_id: int, more_sides: list[str], columns: list[Any]) -> None:
    """A waiting notification moves to its next side message, or gets its sequence now: ascending in what is heard."""
    while more_sides:
        following = more_sides.pop(0)
        row = work.row(MessageId(following))
        if row is not None and row.is_awaited:
            moved = (following, " ".join(more_sides), waiting_id)
            work.connection.exec_driver_sql("UPDATE waiting SET side = ?, more_sides = ? WHERE id = ?", moved)
            return
    work.connection.exec_driver_sql("DELETE FROM waiting WHERE id = ?", (waiting_id,))
    if columns[0] == NO_SERVER:
        return
    work.state.sequence += 1
    work.discards.append((work.state.sequence, *columns))


def write_database_row(work: Work, position: int) -> None:
    """The counters and the position of this commit, and who asked lately."""
    state = work.state
    work.execute_many(UPDATE_DATABASE, [(position, state.internal_id, state.sequence)])
    peers = state.peers
    if peers.asked_unsaved:
        servers = list(peers.asked_unsaved)
        UPSERT_ASKER.execute(work, [(server, peers.asked_at[server]) for server in servers])
        work.after_commit.append(lambda: peers.asked_unsaved.difference_update(servers))
