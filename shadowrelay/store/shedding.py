"""Drops the oldest of Safety Net before its time, segment by segment, so that the disk has room. docs/design.md 6.3.

Only what no unfinished message needs is dropped, in the order of its expiry, and with its content at once: else nothing would be gained.
Rows stay as long as they would have, without content, so that duplicates and late questions are still recognised. How far it went is kept
in a row of `counter`: everything that was delivered later can still be resubmitted.
"""

from datetime import datetime

from sqlalchemy import bindparam, select

from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Role
from shadowrelay.model.values import dataclass
from shadowrelay.store import counters, rows, tables
from shadowrelay.store.commit import promise
from shadowrelay.store.dialect import compiled, constant
from shadowrelay.store.expiry import pinned
from shadowrelay.store.readers import Reader
from shadowrelay.store.rows import LARGE
from shadowrelay.store.work import UnitOfWork

SHED = "shed"  # kind of its counter; octets: the instant in microseconds
STEP = 200  # rows per transaction
_M, _S, _C = tables.MESSAGE.c, tables.SEGMENT.c, tables.COUNTER.c
SELECT_OLDEST_SEGMENT = compiled(  # a row for each segment, so there are few
    select(_S.segment, _S.keep_until, _S.first_id, _S.last_id)
    .where(_S.pinned_count <= constant(0), _S.keep_until > bindparam("at"), _S.segment != bindparam("current"))
    .order_by(_S.keep_until)
    .limit(constant(1))
)
SELECT_OLDEST_LARGE = compiled(
    select(_M.message_id, _M.keep_until)
    .where(_M.segment == constant(LARGE), _M.role == constant(Role.DELIVERED.value), _M.keep_until > bindparam("at"))
    .order_by(_M.keep_until)
    .limit(constant(1))
)
SELECT_KEPT_IN = compiled(
    select(_M.message_id)
    .where(
        _M.internal_id.between(bindparam("first_id"), bindparam("last_id")),
        _M.segment == bindparam("segment"),
        _M.role == constant(Role.DELIVERED.value),
        _M.keep_until > bindparam("at"),
    )
    .order_by(_M.internal_id)
    .limit(constant(STEP))
)
UPSERT_SHED = (
    f"INSERT INTO counter (kind, name, number, count, octets) VALUES ('{SHED}', '', 0, 1, ?)"
    " ON CONFLICT (kind, name, number) DO UPDATE SET octets = max(octets, excluded.octets)"
)


@dataclass(frozen=True, slots=True)
class ShedStep:
    """What one step dropped; `is_last`: nothing else can be dropped."""

    count: int
    octets: int
    is_last: bool


@promise(is_heavy=True)
def shed(work: UnitOfWork) -> ShedStep:
    """Drop up to `STEP` messages of what is oldest."""
    at = work.now_microseconds
    current = work.state.contents.current_segment
    segments = work.select(SELECT_OLDEST_SEGMENT, (at, -1 if current is None else current))
    large = work.select(SELECT_OLDEST_LARGE, (at,))
    if not segments and not large:
        return ShedStep(0, 0, is_last=True)
    if large and (not segments or large[0][1] <= segments[0][1]):
        return _dropped(work, [MessageId(large[0][0])], at)
    ((segment, _, first_id, last_id),) = segments
    ids = [MessageId(found) for (found,) in work.select(SELECT_KEPT_IN, (first_id, last_id, segment, at))]
    step = _dropped(work, ids, at)
    if len(ids) < STEP:
        if segment in work.segments or work.connection.execute(pinned(segment)).first() is not None:
            return ShedStep(step.count, step.octets, is_last=True)
        work.changes_count += 1
        work.segments_gone.append(segment)
    return step


def _dropped(work: UnitOfWork, ids: list[MessageId], at: int) -> ShedStep:
    work.preload(ids)
    octets, latest = 0, 0
    for message_id in ids:
        row = work.row(message_id)
        if row is None or row.claim.role is not Role.DELIVERED:
            continue
        octets += 0 if row.place is None else row.place.size
        latest = max(latest, row.delivered_at or row.keep_until - work.state.safety_net_hold_microseconds)
        row.keep_until = at - counters.MICROSECONDS_PER_MINUTE  # it counts no more in this minute
        if row.place is not None and row.place.segment == LARGE:
            work.large_gone.append(row.place.offset)
        row.place = None
        work.changed(row)
    if latest:
        work.connection.exec_driver_sql(UPSERT_SHED, (latest,))
    return ShedStep(len(ids), octets, is_last=False)


def complete_since(reader: Reader) -> datetime | None:
    """The latest delivery among what was dropped: what was delivered later can be resubmitted."""
    found = reader.connection.execute(select(_C.octets).where(_C.kind == SHED)).scalar()
    return rows.decode_instant(found) if found else None


def safety_net_octets(reader: Reader) -> int:
    """What is in Safety Net, by the sizes of the messages."""
    now = rows.encode_instant(reader.state.now())
    return sum(counters.safety_net(reader.connection, side, now)[1] for side in (0, 1))
