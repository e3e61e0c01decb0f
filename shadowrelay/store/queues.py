"""The queues as an operator sees them: how much is in each, since when, and the messages of one, page by page.

A listing reads counters, and for each queue the one row that is the oldest. The oldest is the one that this database has had for the
longest time (the lowest internal id; in Safety Net the first that leaves): its arrival is told, and one that came here late, with an
earlier arrival, is told of when it is the first.

Pages are in the order of the internal id; in Safety Net of the time at which a message leaves, then of the internal id.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Index, ScalarSelect, Select, func, select, tuple_

from shadowrelay.model.ids import DatabaseId, ServerName
from shadowrelay.model.queue import QueueKind, QueueRow
from shadowrelay.store import codec, counters, tables
from shadowrelay.store.content import ContentStore
from shadowrelay.store.dialect import CrossJoin, by_way_of, through
from shadowrelay.store.reading import Found, fetch, found, page, shadows_of

SUBMISSION = "Submission"
SHADOW = "Shadow\\"
SAFETY_NET_PRIMARY = "SafetyNet\\Primary"
SAFETY_NET_SHADOW = "SafetyNet\\Shadow"
POISON = "Poison"

_M, _R, _QUEUE = tables.MESSAGE.c, tables.RETRY.c, tables.COUNTER.c
DECIDED = through(tables.SUBMISSION, tables.MESSAGE)
UNDECIDED = through(tables.UNDECIDED, tables.MESSAGE)
SET_ASIDE = through(tables.POISON, tables.MESSAGE)


def _first_fork(column: ColumnElement[Any], index: Index, order: ColumnElement[Any]) -> ScalarSelect[Any]:
    """Of the delivery queue that `counter` names: this column of the first row in the order of that index."""
    first = by_way_of(index, select(column)).where(_R.next_hop == _QUEUE.name)
    return first.order_by(order).limit(1).correlate(tables.COUNTER).scalar_subquery()


DELIVERY = (  # a look or two into an index for each queue
    select(
        _QUEUE.name,
        _QUEUE["count"],
        _QUEUE.octets,
        select(_M.arrived_at).where(_M.internal_id == _first_fork(_R.message, tables.BY_NEXT_HOP, _R.message)).scalar_subquery(),
        _first_fork(_R.attempts_next_at, tables.DUE, _R.attempts_next_at),
        _first_fork(_R.last_reply, tables.DUE, _R.attempts_next_at.desc()),
    )
    .where(_QUEUE.kind == counters.DELIVERY, _QUEUE["count"] > 0)
    .order_by(_QUEUE.name)
)


def oldest(statement: Select[Any]) -> Select[Any]:
    """When the first of these messages arrived."""
    return statement.with_only_columns(_M.arrived_at).order_by(_M.internal_id).limit(1)


def safety_net(side: int, now: int) -> Select[Any]:
    """What has not left it by now, in the order in which it leaves."""
    kept = through(tables.SAFETY_NET, tables.MESSAGE).where(_M.is_shadow_side == side, _M.keep_until > now)
    return kept.order_by(_M.keep_until, _M.internal_id)


def oldest_in_safety_net(side: int, now: int) -> Select[Any]:
    return safety_net(side, now).with_only_columns(_M.arrived_at).limit(1)


def safety_net_page(connection: Connection, side: int, now: int, after: int, limit: int) -> Select[Any]:
    """Which page stands behind `after` depends on when that message leaves."""
    kept_until = None
    if after:
        last = select(_M.keep_until).where(_M.internal_id == after, _M.role == "delivered", _M.is_shadow_side == side)
        kept_until = connection.scalar(last)
    if kept_until is None:
        return safety_net(side, now).where(_M.internal_id > after).limit(limit)
    if kept_until <= now:  # it has left Safety Net since the page before, and so has all that stood before it
        return safety_net(side, now).limit(limit)
    return safety_net_after(side, kept_until, after).limit(limit)


def safety_net_after(side: int, kept_until: int, after: int) -> Select[Any]:
    kept = through(tables.SAFETY_NET, tables.MESSAGE).where(_M.is_shadow_side == side)
    return kept.where(tuple_(_M.keep_until, _M.internal_id) > (kept_until, after)).order_by(_M.keep_until, _M.internal_id)


def delivery_page(next_hop: str, after: int, limit: int) -> Select[Any]:
    """Of one delivery queue."""
    forks = CrossJoin(tables.RETRY, tables.MESSAGE, _M.internal_id == _R.message)
    queued = by_way_of(tables.BY_NEXT_HOP, select(tables.MESSAGE).select_from(forks))
    return queued.where(_R.next_hop == next_hop, _R.message > after, _M.role == "primary").order_by(_R.message).limit(limit)


def queued_page(after: int, limit: int) -> Select[Any]:
    """Of all delivery queues, each message once."""
    queued = select(_R.message).where(_R.message > after).distinct().order_by(_R.message).limit(limit)
    return select(tables.MESSAGE).where(_M.internal_id.in_(queued)).order_by(_M.internal_id)


def by_internal_id(internal_ids: Sequence[int]) -> Select[Any]:
    """In this order."""
    wanted = func.json_each(json.dumps(internal_ids)).table_valued("value", name="wanted")
    return select(tables.MESSAGE).select_from(CrossJoin(wanted, tables.MESSAGE, _M.internal_id == wanted.c.value))


def queues(connection: Connection, server: ServerName, now: datetime, numbers: dict[ServerName, int]) -> tuple[QueueRow, ...]:
    """Submission, Safety Net and Poison always; delivery and shadow queues while something is in them."""

    def row(name: str, kind: QueueKind, next_hop: str, held: tuple[int, int], firsts: Iterable[int | None], **more: Any) -> QueueRow:
        count, octets = held
        oldest_at = min((at for at in firsts if at is not None), default=None)
        identity = f"{server}\\{name}"
        return QueueRow(identity, kind, next_hop, count, codec.decode_instant_or_none(oldest_at), octets=octets, **more)

    def firsts(*statements: Select[Any]) -> list[int | None]:
        return [connection.scalar(statement) for statement in statements]

    at = codec.encode_instant(now)
    held = _total(connection, counters.SUBMISSION)
    listed = [row(SUBMISSION, QueueKind.SUBMISSION, SUBMISSION, held, firsts(oldest(DECIDED), oldest(UNDECIDED)))]
    for next_hop, count, octets, oldest_at, next_at, last_reply in connection.execute(DELIVERY).fetchall():
        more = {"last_error": last_reply or "", "next_retry_at": codec.decode_instant_or_none(next_at)}
        listed.append(row(next_hop, QueueKind.DELIVERY, next_hop, (count, octets), (oldest_at,), **more))
    for primary, databases in sorted(_shadows(connection).items(), key=lambda entry: numbers.get(entry[0], 0)):
        held = (sum(count for count, _ in databases.values()), sum(octets for _, octets in databases.values()))
        first = firsts(*[oldest(shadows_of(primary, database)) for database in databases])
        listed.append(row(f"{SHADOW}{numbers.get(primary, 0)}", QueueKind.SHADOW, primary, held, first))
    for name, kind, side in ((SAFETY_NET_PRIMARY, QueueKind.SAFETY_NET_PRIMARY, 0), (SAFETY_NET_SHADOW, QueueKind.SAFETY_NET_SHADOW, 1)):
        listed.append(row(name, kind, "", counters.safety_net(connection, side, at), firsts(oldest_in_safety_net(side, at))))
    listed.append(row(POISON, QueueKind.POISON, "", _total(connection, counters.POISON), firsts(oldest(SET_ASIDE))))
    return tuple(listed)


def _total(connection: Connection, kind: str) -> tuple[int, int]:
    of_kind = counters.of_kind(connection, kind)
    return sum(count for _, _, count, _ in of_kind), sum(octets for *_, octets in of_kind)


def _shadows(connection: Connection) -> dict[ServerName, dict[DatabaseId, tuple[int, int]]]:
    """By primary server and its database: messages and octets."""
    servers: dict[ServerName, dict[DatabaseId, tuple[int, int]]] = {}
    for name, _, count, octets in counters.of_kind(connection, counters.SHADOW):
        server, _, database = name.partition(" ")
        databases = servers.setdefault(ServerName(server), {})
        before = databases.get(DatabaseId(database), (0, 0))
        databases[DatabaseId(database)] = (before[0] + count, before[1] + octets)
    return servers


def messages(
    connection: Connection, queue: str, limit: int, after: int, now: datetime, numbers: dict[ServerName, int], contents: ContentStore
) -> Found:
    """Of the queue with that identity; the server before the first backslash is not looked at, and may be missing. Empty: of all
    queues but Safety Net, where nothing waits."""
    is_short = queue in (SUBMISSION, POISON, SAFETY_NET_PRIMARY, SAFETY_NET_SHADOW) or queue.startswith(SHADOW)
    name = queue if is_short else queue.partition("\\")[2] or queue
    if name in (SAFETY_NET_PRIMARY, SAFETY_NET_SHADOW):
        side = 1 if name == SAFETY_NET_SHADOW else 0
        return found(connection, safety_net_page(connection, side, codec.encode_instant(now), after, limit), contents)
    submission = [page(DECIDED, after, limit), page(UNDECIDED, after, limit)]
    poison = [page(SET_ASIDE, after, limit)]
    shadows = {
        primary: [page(shadows_of(primary, database), after, limit) for database in databases]
        for primary, databases in _shadows(connection).items()
    }
    if not name:
        every_shadow = [statement for statements in shadows.values() for statement in statements]
        return _merged(connection, [*submission, queued_page(after, limit), *every_shadow, *poison], limit, contents)
    if name == SUBMISSION:
        return _merged(connection, submission, limit, contents)
    if name == POISON:
        return _merged(connection, poison, limit, contents)
    if name.startswith(SHADOW):
        primary = next((server for server, number in numbers.items() if str(number) == name[len(SHADOW) :]), None)
        return Found(()) if primary is None else _merged(connection, shadows.get(primary, []), limit, contents)
    return found(connection, delivery_page(name, after, limit), contents)


def _merged(connection: Connection, statements: Sequence[Select[Any]], limit: int, contents: ContentStore) -> Found:
    """The first of what all of them find, by internal id. Where they are several, first the ids, then the rows of one page."""
    if len(statements) == 1:
        return found(connection, statements[0], contents)
    ids = [internal_id for each in statements for (internal_id,) in fetch(connection, each.with_only_columns(_M.internal_id))]
    return found(connection, by_internal_id(sorted(ids)[:limit]), contents)
