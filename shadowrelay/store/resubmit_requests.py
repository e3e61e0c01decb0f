"""Requests to resubmit from Safety Net: what the ledger promises about them, and reads of them. docs/design.md 6.3.

A step of a request is one transaction: the message that it makes, its place in the interval, and its counts. So a crash resubmits
nothing twice and forgets nothing. There are at most `REQUESTS_MAX` requests, and few messages that an active one waits for.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Select, delete, func, insert, select, tuple_, update

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Content
from shadowrelay.model.queue import NewMessage, StoredMessage
from shadowrelay.model.resubmission import Criteria, Progress, RequestState, ResubmitRequest, Resubmitted
from shadowrelay.store import rows, tables
from shadowrelay.store.commit import promise
from shadowrelay.store.content import Handing
from shadowrelay.store.dialect import through
from shadowrelay.store.readers import Reader
from shadowrelay.store.reading import found
from shadowrelay.store.rows import stored_message
from shadowrelay.store.work import UnitOfWork

REQUESTS_MAX = 1_000
INSTANT_MAX = 2**62
COUNTED_MAX = 100_000  # some milliseconds

_M, _Q, _U = tables.MESSAGE.c, tables.RESUBMIT_REQUEST.c, tables.RESUBMITTED.c
_TEXTS = ("next_hop", "sender", "recipient", "message_id", "primary_server")
_COUNTS = ("examined_count", "resubmitted_count", "redundant_count", "outside_count", "missing_count", "elsewhere_count")
BEFORE = {  # which state may become this one at an administrator's request, or when all is done
    RequestState.PENDING: (RequestState.DISABLED,),
    RequestState.DISABLED: (RequestState.PENDING, RequestState.RUNNING),
    RequestState.DONE: (RequestState.RUNNING,),
}


# reading
def requests(reader: Reader) -> tuple[ResubmitRequest, ...]:
    """All of them, by number, without those that make no sense: a corrupt row must not stop the others."""
    decoded = []
    for row in reader.connection.execute(select(tables.RESUBMIT_REQUEST).order_by(_Q.number)).fetchall():
        with suppress(ValueError, TypeError, OverflowError):
            decoded.append(_decoded(row))
    return tuple(decoded)


def unfinished(reader: Reader, number: int) -> tuple[Resubmitted, ...]:
    """The messages of this request that were not `finished` yet."""
    many = reader.connection.execute(select(_U.message_id, _U.is_redundant).where(_U.number == number)).fetchall()
    return tuple([Resubmitted(MessageId(message_id), bool(is_redundant)) for message_id, is_redundant in many])


def delivered(reader: Reader, after: tuple[datetime, int], limit: int, *, by_others: bool = False) -> tuple[StoredMessage, ...]:
    """Messages whose last delivery by this node as their primary server is behind `after` (with the internal id), in this order.
    `by_others`: those that this node discarded as their shadow server. Corrupt rows as in `reading.submission`."""
    at, internal_id = after
    return found(reader, delivered_page(int(by_others), rows.encode_instant(at), internal_id, limit))


def delivered_page(side: int, after_at: int, after_id: int, limit: int) -> Select[Any]:
    """Side 0: what this node delivered, in the order of the last delivery of each message. 1: what was delivered while this node was its
    shadow server, in the order of the discards."""
    page = through(tables.DELIVERED, tables.MESSAGE).where(_M.is_shadow_side == side)
    page = page.where(_M.delivered_at <= INSTANT_MAX)  # not what a damaged row has there
    page = page.where(tuple_(_M.delivered_at, _M.internal_id) > (after_at, after_id))
    return page.order_by(_M.delivered_at, _M.internal_id).limit(limit)


def delivered_count(reader: Reader, begin: datetime, end: datetime | None, *, by_others: bool) -> int:
    """How many messages were delivered last in this interval, as in `delivered`; counted up to `COUNTED_MAX`, in the index alone."""
    until = INSTANT_MAX if end is None else rows.encode_instant(end)
    return int(reader.connection.scalar(counted_between(int(by_others), rows.encode_instant(begin), until)) or 0)


def counted_between(side: int, begin: int, end: int) -> Select[Any]:
    """Sides as in `delivered_page`."""
    between = through(tables.DELIVERED, _M.internal_id).where(_M.is_shadow_side == side, _M.delivered_at >= begin, _M.delivered_at <= end)
    return select(func.count()).select_from(between.limit(COUNTED_MAX).subquery())


def _decoded(row: Sequence[Any]) -> ResubmitRequest:
    columns = dict(zip(_Q.keys(), row, strict=True))
    criteria = Criteria(rows.decode_instant(columns["from_at"]), rows.decode_instant(columns["to_at"]), *[columns[name] for name in _TEXTS])
    return ResubmitRequest(
        columns["number"],
        criteria,
        RequestState(columns["state"]),
        rows.decode_instant(columns["created_at"]),
        bool(columns["is_examined"]),
        rows.decode_instant(columns["examined_at"]),
        columns["examined_id"],
        *[columns[name] for name in _COUNTS],
    )


# promises
@promise()
def add(work: UnitOfWork, criteria: Criteria) -> ResubmitRequest | None:
    """A new request, PENDING. None: there are too many."""
    if (work.connection.scalar(select(func.count()).select_from(tables.RESUBMIT_REQUEST)) or 0) >= REQUESTS_MAX:
        return None
    work.changes_count += 1
    from_at = rows.encode_instant(criteria.from_at)
    values = {
        "created_at": work.now_microseconds,
        "from_at": from_at,
        "to_at": rows.encode_instant(criteria.to_at),
        **{name: getattr(criteria, name) for name in _TEXTS},
        "state": RequestState.PENDING.value,
        "is_examined": 0,
        "examined_at": from_at,
        "examined_id": 0,
        **dict.fromkeys(_COUNTS, 0),
    }
    return _decoded(work.connection.execute(insert(tables.RESUBMIT_REQUEST).values(values).returning(tables.RESUBMIT_REQUEST)).one())


@promise()
def change_state(work: UnitOfWork, number: int, state: RequestState) -> ResubmitRequest | None:
    """DISABLED for an active request, PENDING for a disabled one, DONE for one that was examined and all of whose messages are redundant.
    None: there is no such request, or its present state does not allow that."""
    before = _of(work, number)
    if before is None or before.state not in BEFORE[state]:
        return None
    if state is RequestState.DONE:
        waits = select(_U.message_id).where(_U.number == number, _U.is_redundant == 0).limit(1)
        if not before.is_examined or work.connection.scalar(waits) is not None:
            return None
        work.connection.execute(delete(tables.RESUBMITTED).where(_U.number == number))
    _change(work, number, state=state.value)
    return _of(work, number)


@promise()
def remove(work: UnitOfWork, number: int) -> bool:
    """False: there is no such request, or it is active. What it resubmitted stays."""
    before = _of(work, number)
    if before is None or before.state.is_active:
        return False
    work.changes_count += 1
    work.connection.execute(delete(tables.RESUBMITTED).where(_U.number == number))
    work.connection.execute(delete(tables.RESUBMIT_REQUEST).where(_Q.number == number))
    return True


@promise(handing=Handing.TAKEN, is_kept=lambda made: made is not None)
def progressed(
    work: UnitOfWork, number: int, progress: Progress, message: NewMessage | None = None, content: Content | None = None
) -> StoredMessage | None:
    """A step of an active request, and the message that it resubmits; returns that message as it was stored. None if it was there already;
    nothing is changed if the request is not active, or has come further. A file of `content` is handed over by the call."""
    before = _of(work, number)
    at = rows.encode_instant(progress.examined_at)
    if before is None or not before.state.is_active or (at, progress.examined_id) < _place(before) or before.is_examined:
        return None
    made = None
    if message is not None and content is not None and work.row(message.envelope.message_id) is None:
        row = work.insert(message, work.store_content(content), is_decided=True)
        made = stored_message(row, message.envelope, ())
        if row.place is not None and content.data is not None:
            work.after_commit.append(partial(work.state.contents.recent.put, row.place, content.data))
        values = {"number": number, "message_id": message.envelope.message_id, "is_redundant": 0}
        work.connection.execute(insert(tables.RESUBMITTED).values(values))
    _change(
        work,
        number,
        state=RequestState.RUNNING.value,
        examined_at=at,
        examined_id=progress.examined_id,
        is_examined=int(progress.is_examined),
        examined_count=_Q.examined_count + progress.examined_count,
        resubmitted_count=_Q.resubmitted_count + int(made is not None),
        outside_count=_Q.outside_count + progress.outside_count,
        missing_count=_Q.missing_count + progress.missing_count,
        elsewhere_count=_Q.elsewhere_count + progress.elsewhere_count,
    )
    return made


@promise()
def settled(work: UnitOfWork, number: int, redundant: Sequence[MessageId], finished: Sequence[MessageId]) -> None:
    """Some are redundant now; others are finished, which counts as redundant, and not waited for any longer."""
    work.changes_count += 1
    mine = (_U.number == number, _U.is_redundant == 0, _U.message_id.in_([*redundant, *finished]))
    counted = work.connection.execute(update(tables.RESUBMITTED).where(*mine).values(is_redundant=1)).rowcount
    work.connection.execute(delete(tables.RESUBMITTED).where(_U.number == number, _U.message_id.in_(finished)))
    _change(work, number, redundant_count=_Q.redundant_count + counted)


def _of(work: UnitOfWork, number: int) -> ResubmitRequest | None:
    row = work.connection.execute(select(tables.RESUBMIT_REQUEST).where(_Q.number == number)).one_or_none()
    return None if row is None else _decoded(row)


def _place(request: ResubmitRequest) -> tuple[int, int]:
    return rows.encode_instant(request.examined_at), request.examined_id


def _change(work: UnitOfWork, number: int, **values: Any) -> None:
    work.changes_count += 1
    work.connection.execute(update(tables.RESUBMIT_REQUEST).where(_Q.number == number).values(values))
