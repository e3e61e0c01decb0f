"""Removing what is past its time, in bounded steps, on a `Work`.

A message is touched once more, when its row may go. Its content goes with the whole segment, which needs no look at
rows: nothing unfinished is in it, and nothing finished that Safety Net still keeps.
"""

from datetime import datetime

from shadowrelay.model.ids import NO_DATABASE, MessageId, ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import StoredMessage
from shadowrelay.model.values import dataclass
from shadowrelay.store import codec, counters, prepared, reading, tables
from shadowrelay.store.rows import LARGE
from shadowrelay.store.work import Work

SELECT_EXPIRED = "SELECT message_id FROM message WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
# One row a generation of 64 MB or an hour: few, read in their order.
SELECT_SEGMENTS_FREE = "SELECT segment FROM segment WHERE pinned_count <= 0 AND keep_until <= ? ORDER BY segment LIMIT ?"
SELECT_PINNED = "SELECT 1 FROM message INDEXED BY message_content WHERE role IN ('primary', 'shadow', 'set-aside') AND segment = ? LIMIT 1"
SEGMENTS_PER_STEP = 8
DISCARDS_PER_STEP = 1_000
SELECT_DISCARDS = "SELECT sequence, asker_database, created_at FROM discard WHERE asker = ? ORDER BY sequence LIMIT ?"
DELETE_DISCARD = prepared.deletion(tables.DISCARD, "sequence")


@dataclass(frozen=True, slots=True)
class Step:
    """`shadows` expired unacknowledged; `has_more`: the limit was reached."""

    shadows: tuple[StoredMessage, ...]
    has_more: bool


def expire(work: Work, now: datetime, limit: int) -> Step:
    """One step of at most `limit` rows."""
    at = codec.encode_instant(now)
    ids = [MessageId(found) for (found,) in work.connection.exec_driver_sql(SELECT_EXPIRED, (at, limit)).fetchall()]
    work.preload(ids)
    rows = [row for message_id in ids if (row := work.row(message_id)) is not None and (row.expires_at or at + 1) <= at]
    shadows = [row for row in rows if row.claim.role is Role.SHADOW]
    expired = reading.load_many(work.connection, [row.message_id for row in shadows], work.state.contents).messages
    for row in rows:
        if row.place is not None and row.place.segment == LARGE and row.claim.role is Role.DELIVERED:
            work.large_gone.append(row.place.offset)
            row.place = None
            work.changed(row)  # its row stays until remember_until
            if row.remember_until > at:
                continue
        work.delete(row)
    _free_segments(work, at)
    return Step(expired, len(ids) >= limit)


def _free_segments(work: Work, at: int) -> None:
    """The counts say which; the index of unfinished messages is asked once more before anything is unlinked. No row of what
    Safety Net lets go is read."""
    for (segment,) in work.connection.exec_driver_sql(SELECT_SEGMENTS_FREE, (at, SEGMENTS_PER_STEP)).fetchall():
        if segment == work.state.contents.current_segment or segment in work.segments:
            continue
        if work.connection.exec_driver_sql(SELECT_PINNED, (segment,)).first() is None:
            work.changes_count += 1
            work.segments_gone.append(segment)


def forget_unasked(work: Work, older_than: datetime) -> tuple[int, bool]:
    """One step: the oldest notifications of askers that have not asked since that instant; and those for a database that its
    server has replaced. How many, and whether there may be more.

    A database that was never recorded is not a replaced one but a newer one: the disk was full when the peer showed it.
    """
    before = codec.encode_instant(older_than)
    peers = work.state.peers
    askers = {name.partition(" ")[0] for name, *_ in counters.of_kind(work.connection, counters.DISCARD)}
    gone: list[tuple[int]] = []
    has_more = False
    for asker in sorted(askers):
        row = peers.rows.get(ServerName(asker))
        present = NO_DATABASE if row is None else row.database
        is_unasked = peers.asked_at.get(ServerName(asker), 0) < before
        found = work.connection.exec_driver_sql(SELECT_DISCARDS, (asker, DISCARDS_PER_STEP)).fetchall()
        count = 0
        for sequence, database, created_at in found:
            is_replaced = database != present and peers.server_of(database) == asker
            if not is_replaced and not (is_unasked and created_at < before):
                break  # those behind it are younger
            gone.append((sequence,))
            work.count((counters.DISCARD, f"{asker} {database}", 0), -1)
            count += 1
        has_more |= count == DISCARDS_PER_STEP
    if gone:
        work.changes_count += 1
        DELETE_DISCARD.execute(work, gone)
    return len(gone), has_more
