"""Removing what is past its time, in bounded steps, on a `Work`.

A message is touched once more, when its row may go. Its content goes with the whole segment, which needs no look at
rows but the last one: nothing unfinished is in it, and nothing finished that Safety Net still keeps.
"""

from dataclasses import dataclass
from datetime import datetime

from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import StoredMessage
from shadowrelay.store import codec, reading
from shadowrelay.store.rows import LARGE
from shadowrelay.store.work import Work

SELECT_EXPIRED = "SELECT message_id FROM message WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
SELECT_SEGMENTS_FREE = "SELECT segment, first_id, last_id FROM segment WHERE pinned_count <= 0 AND keep_until <= ? ORDER BY segment LIMIT ?"
SELECT_PINNED = (
    "SELECT 1 FROM message WHERE internal_id BETWEEN ? AND ? AND segment = ?"
    " AND (role IN ('primary', 'shadow', 'set-aside') OR (role = 'delivered' AND keep_until > ?)) LIMIT 1"
)
SEGMENTS_PER_STEP = 8


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
    """The counts say which; the rows are asked once more before anything is unlinked."""
    for segment, first_id, last_id in work.connection.exec_driver_sql(SELECT_SEGMENTS_FREE, (at, SEGMENTS_PER_STEP)).fetchall():
        if segment == work.state.contents.current_segment or segment in work.segments:
            continue
        if work.connection.exec_driver_sql(SELECT_PINNED, (first_id, last_id, segment, at)).first() is None:
            work.changes_count += 1
            work.segments_gone.append(segment)


def forget_unasked(work: Work, older_than: datetime) -> int:
    """Old notifications of askers that have not asked since that instant."""
    work.changes_count += 1
    before = codec.encode_instant(older_than)
    asked_at = work.state.peers.asked_at
    askers = [asker for (asker,) in work.connection.exec_driver_sql("SELECT DISTINCT asker FROM discard").fetchall()]
    gone = 0
    for asker in askers:
        if asked_at.get(asker, 0) < before:
            result = work.connection.exec_driver_sql("DELETE FROM discard WHERE asker = ? AND created_at < ?", (asker, before))
            gone += result.rowcount
    return gone
