"""What is removed when its time is over: messages, content, notifications that nobody asks for, deliveries. docs/design.md 9.

Housekeeping takes steps of limited size, each a promise that runs as those of `promises`. Expiry reads a message once more, when its row
may be deleted. Content is deleted by whole segments, without reading rows: a segment goes when no message in it is unfinished or kept in
Safety Net.
"""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, delete, select

from shadowrelay.model.ids import NO_DATABASE, MessageId, ServerName
from shadowrelay.model.ownership import DiscardStatus, Role
from shadowrelay.model.queue import StoredMessage
from shadowrelay.model.values import dataclass
from shadowrelay.ownership.claims import expired
from shadowrelay.store import counters, reading, rows, tables
from shadowrelay.store.commit import promise
from shadowrelay.store.dialect import compiled, constant, through
from shadowrelay.store.readers import Reader
from shadowrelay.store.rows import LARGE
from shadowrelay.store.work import UnitOfWork

_D = tables.DISCARD.c
SEGMENTS_PER_STEP = 8
DISCARDS_PER_STEP = 1_000
DELETE_DISCARD = compiled(delete(tables.DISCARD).where(_D.sequence == bindparam("sequence")))


_T = tables.DELIVERED_TO.c
DELIVERED_PER_STEP = 1_000


def old_deliveries(condition: ColumnElement[bool]) -> Select[Any]:
    """The keys of one step."""
    return select(_T.key).where(condition).order_by(_T.delivered_at).limit(DELIVERED_PER_STEP)


@promise(is_heavy=True)
def deliveries_forgotten(work: UnitOfWork, window: timedelta) -> int:
    """One step: deliveries longer ago than the window, and those recorded while the wall clock was ahead by more than that. How many."""
    work.state.may_be_delivered.turn_over(work.now, window)
    earliest, latest = rows.encode_instant(work.now - window), rows.encode_instant(work.now + window)
    count = 0
    for condition in (_T.delivered_at <= earliest, _T.delivered_at > latest):
        done = work.connection.execute(delete(tables.DELIVERED_TO).where(_T.key.in_(old_deliveries(condition).correlate(None))))
        count += done.rowcount
    work.changes_count += count
    return count


_EXPIRES_AT, _SEGMENT = tables.MESSAGE.c.expires_at, tables.SEGMENT.c
SELECT_EXPIRED = compiled(  # the messages with which `expire` has something to do
    select(tables.MESSAGE.c.message_id).where(_EXPIRES_AT <= bindparam("at")).order_by(_EXPIRES_AT).limit(bindparam("limit"))
)
SELECT_FREE_SEGMENTS = compiled(  # by their counts; a row for each segment of 64 MB or an hour, so there are few
    select(_SEGMENT.segment)
    .where(_SEGMENT.pinned_count <= constant(0), _SEGMENT.keep_until <= bindparam("at"))
    .order_by(_SEGMENT.segment)
    .limit(constant(SEGMENTS_PER_STEP))
)


def pinned(segment: int) -> Select[Any]:
    """An unfinished message with content in this segment."""
    return through(tables.UNFINISHED, tables.MESSAGE.c.internal_id).where(tables.MESSAGE.c.segment == segment).limit(1)


SELECT_FIRST_DISCARDS = compiled(  # the oldest notifications for a server, behind a sequence
    select(_D.sequence, _D.asker_database, _D.created_at, _D.status)
    .where(_D.asker == bindparam("asker"), _D.sequence > bindparam("after"))
    .order_by(_D.sequence)
    .limit(constant(DISCARDS_PER_STEP))
)


@dataclass(frozen=True, slots=True)
class ExpiryStep:
    """`shadows` expired unacknowledged; `has_more`: the limit was reached."""

    shadows: tuple[StoredMessage, ...]
    has_more: bool


REMEMBERED = (DiscardStatus.PROMOTED, DiscardStatus.RELEASED)  # `tables.ENDS_UNHEARD`
SELECT_END_UNHEARD = compiled(through(tables.ENDS_UNHEARD, _D.sequence).where(_D.message_id == bindparam("message_id")).limit(constant(1)))
LOOK_AGAIN_MICROSECONDS = 24 * 3600 * 1_000_000


@promise(is_heavy=True)
def expired_removed(work: UnitOfWork, now: datetime, limit: int) -> ExpiryStep:
    """One step of at most `limit` rows. What ended here, but not on its former primary server as far as that has heard, is remembered
    until it has: away for long, that server would return mail as undelivered that was delivered here."""
    at = rows.encode_instant(now)
    ids = [MessageId(found) for (found,) in work.select(SELECT_EXPIRED, (at, limit))]
    work.preload(ids)
    due = [row for message_id in ids if (row := work.row(message_id)) is not None and (row.expires_at or at + 1) <= at]
    shadows = [row for row in due if row.claim.role is Role.SHADOW]
    gone = reading.load_many(Reader(work.connection, work.state), [row.message_id for row in shadows])
    for row in due:
        if row.place is not None and row.place.segment == LARGE and row.claim.role is Role.DELIVERED:
            work.large_gone.append(row.place.offset)
            row.place = None
            work.changed(row)  # its row stays until remember_until
            if row.remember_until > at:
                continue
        if row.claim.role is Role.SHADOW:
            transition = expired(row.claim)
            work.apply(row.message_id, transition)
            work.tell(row.message_id, transition)
            row.remember_until = at + work.state.shadow_keep_microseconds
        elif (row.is_promoted or row.claim.role is Role.RELEASED) and work.select(SELECT_END_UNHEARD, (row.message_id,)):
            row.remember_until = at + LOOK_AGAIN_MICROSECONDS
            work.changed(row)
        else:
            work.delete(row)
    _free_segments(work, at)
    return ExpiryStep(gone, len(ids) >= limit)


def _free_segments(work: UnitOfWork, at: int) -> None:
    """Unlink segments that no message needs, by their counts; the index of unfinished messages is checked once more before that. No rows of
    expired messages are read."""
    for (segment,) in work.select(SELECT_FREE_SEGMENTS, (at,)):
        if segment == work.state.contents.current_segment or segment in work.segments:
            continue
        if work.connection.execute(pinned(segment)).first() is None:
            work.changes_count += 1
            work.segments_gone.append(segment)


@promise(is_heavy=True)
def unasked_forgotten(work: UnitOfWork, older_than: datetime) -> tuple[int, bool]:
    """One step: the oldest notifications of askers that have not asked since that instant, without those that the asker must hear however
    late it returns (`REMEMBERED`); and those for a database that its server has replaced. How many, and whether there may be more.

    A database that was never recorded is not a replaced one but a newer one: the disk was full when the peer showed it.
    """
    before = rows.encode_instant(older_than)
    peers = work.state.peers
    askers = {name.partition(" ")[0] for name, *_ in counters.of_kind(work.connection, counters.DISCARD)}
    gone: list[tuple[int]] = []
    has_more = False
    for asker in sorted(askers):
        row = peers.rows.get(ServerName(asker))
        present = NO_DATABASE if row is None else row.database
        is_unasked = peers.asked_at.get(ServerName(asker), 0) < before
        remembered = peers.remembered.get(ServerName(asker), 0)
        found = work.select(SELECT_FIRST_DISCARDS, (asker, remembered))
        count = 0
        for sequence, database, created_at, status in found:
            is_replaced = database != present and peers.server_of(database) == asker
            if not is_replaced and not (is_unasked and created_at < before):
                break  # those behind it are younger
            if not is_replaced and status in REMEMBERED:
                remembered = sequence
                continue
            gone.append((sequence,))
            work.counts.append(((counters.DISCARD, f"{asker} {database}", 0), -1, 0))
            count += 1
        has_more |= len(found) == DISCARDS_PER_STEP and (count > 0 or remembered == found[-1][0])
        if count:
            work.after_commit.append(partial(peers.remembered.__setitem__, ServerName(asker), remembered))
        else:
            peers.remembered[ServerName(asker)] = remembered  # nothing is committed: the next step would begin here again, for ever
    if gone:
        work.changes_count += 1
        work.execute_many(DELETE_DISCARD, gone)
    return len(gone), has_more
