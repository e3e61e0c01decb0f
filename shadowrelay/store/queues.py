"""The queues as an operator sees them: size and oldest message of each, and its messages page by page. docs/architecture.md "On disk".

A listing reads counters, and one row for each queue: the oldest. The oldest message is the one that has been in this database for the
longest time (the lowest internal id; in Safety Net, the first that leaves). Its arrival is shown. A message that came here late, with an
earlier arrival, is shown only once it is the oldest in this sense.

Pages are in the order of the internal id; in Safety Net in the order of the time at which a message leaves, then of the internal id; or
reversed, newest first. A search reads every row, newest first: a million of them in a second.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Index, ScalarSelect, Select, and_, false, func, select, tuple_

from shadowrelay.model.ids import NO_SERVER, DatabaseId, ServerName
from shadowrelay.model.queue import SUBMISSION, MessagePage, QueueKind, QueueRow, StoredMessage
from shadowrelay.protocol.filters import Expression
from shadowrelay.store import counters, filter_sql, rows, tables
from shadowrelay.store.dialect import CrossJoin, by_way_of, through
from shadowrelay.store.readers import Reader, one_moment
from shadowrelay.store.reading import NEVER_DUE, fetch, found, held_for, in_order, page, readable
from shadowrelay.store.rows import shadow_queue

SHADOW = "Shadow\\"
SAFETY_NET_PRIMARY = "SafetyNet\\Primary"
SAFETY_NET_SHADOW = "SafetyNet\\Shadow"
POISON = "Poison"
HANDED_OVER = "HandedOver"
UNDELIVERED, SHADOWS = "Undelivered", "Shadows"  # no queues, but the two halves of what all but Safety Net hold

_M, _R, _F, _QUEUE = tables.MESSAGE.c, tables.RETRY.c, tables.SHADOW_FORK.c, tables.COUNTER.c
DECIDED = through(tables.SUBMISSION, tables.MESSAGE)
UNDECIDED = through(tables.UNDECIDED, tables.MESSAGE)
SET_ASIDE = through(tables.POISON, tables.MESSAGE)
GIVEN_AWAY = through(tables.HANDED_OVER, tables.MESSAGE)
OF_MESSAGES = {SUBMISSION: (DECIDED, UNDECIDED), POISON: (SET_ASIDE,), HANDED_OVER: (GIVEN_AWAY,)}  # what is in these is a message, no fork


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
        _first_fork(_R.waits_for, tables.DUE, _R.attempts_next_at.desc()),
    )
    .where(_QUEUE.kind == counters.DELIVERY, _QUEUE["count"] > 0)
    .order_by(_QUEUE.name)
)


_FIRST_SHADOW = by_way_of(tables.BY_SHADOW_QUEUE, select(_F.message)).where(_F.queue == _QUEUE.name).order_by(_F.message).limit(1)
SHADOW_FORKS = (  # likewise
    select(
        _QUEUE.name,
        _QUEUE["count"],
        _QUEUE.octets,
        select(_M.arrived_at).where(_M.internal_id == _FIRST_SHADOW.correlate(tables.COUNTER).scalar_subquery()).scalar_subquery(),
    )
    .where(_QUEUE.kind == counters.SHADOW_FORK, _QUEUE["count"] > 0)
    .order_by(_QUEUE.name)
)


def oldest(statement: Select[Any]) -> Select[Any]:
    """When the first of these messages arrived."""
    return statement.with_only_columns(_M.arrived_at).order_by(_M.internal_id).limit(1)


OLDEST = {statement: oldest(statement) for statements in OF_MESSAGES.values() for statement in statements}


def safety_net(side: int, now: int) -> Select[Any]:
    """What has not left it by now, in the order in which it leaves."""
    kept = through(tables.SAFETY_NET, tables.MESSAGE).where(_M.is_shadow_side == side, _M.keep_until > now)
    return kept.order_by(_M.keep_until, _M.internal_id)


def oldest_in_safety_net(side: int, now: int) -> Select[Any]:
    return safety_net(side, now).with_only_columns(_M.arrived_at).limit(1)


def safety_net_page(connection: Connection, side: int, now: int, after: int, limit: int, *, newest: bool = False) -> Select[Any]:
    """Which page stands behind `after` depends on when that message leaves."""
    kept_until = None
    if after:
        last = select(_M.keep_until).where(_M.internal_id == after, _M.role == "delivered", _M.is_shadow_side == side)
        kept_until = connection.scalar(last)
    if newest:
        kept = safety_net(side, now).order_by(None).order_by(_M.keep_until.desc(), _M.internal_id.desc()).limit(limit)
        if not after:
            return kept
        # when it has left Safety Net, everything behind it has left, too
        return kept.where(false() if kept_until is None else tuple_(_M.keep_until, _M.internal_id) < (kept_until, after))
    if kept_until is None:
        return safety_net(side, now).where(_M.internal_id > after).limit(limit)
    if kept_until <= now:  # it has left Safety Net since the page before, and so has all that stood before it
        return safety_net(side, now).limit(limit)
    return safety_net_after(side, kept_until, after).limit(limit)


def safety_net_after(side: int, kept_until: int, after: int) -> Select[Any]:
    kept = through(tables.SAFETY_NET, tables.MESSAGE).where(_M.is_shadow_side == side)
    return kept.where(tuple_(_M.keep_until, _M.internal_id) > (kept_until, after)).order_by(_M.keep_until, _M.internal_id)


def delivery_page(next_hop: str, after: int, limit: int, *, newest: bool = False) -> Select[Any]:
    """Of one delivery queue."""
    forks = CrossJoin(tables.RETRY, tables.MESSAGE, _M.internal_id == _R.message)
    queued = by_way_of(tables.BY_NEXT_HOP, select(tables.MESSAGE).select_from(forks))
    return in_order(queued.where(_R.next_hop == next_hop, _M.role == "primary"), _R.message, after, limit, newest=newest)


def shadow_fork_page(queue: str, after: int, limit: int, *, newest: bool = False) -> Select[Any]:
    """Of a shadow queue by next hop."""
    forks = CrossJoin(tables.SHADOW_FORK, tables.MESSAGE, _M.internal_id == _F.message)
    held = by_way_of(tables.BY_SHADOW_QUEUE, select(tables.MESSAGE).select_from(forks))
    return in_order(held.where(_F.queue == queue, _M.role == "shadow"), _F.message, after, limit, newest=newest)


def without_forks(primary: ServerName, database: DatabaseId) -> Select[Any]:
    """Shadow messages whose primary server has reported no forks."""
    return through(tables.WITHOUT_FORKS, tables.MESSAGE).where(_M.primary_server == primary, _M.primary_database == database)


def _without_forks(connection: Connection, primary: ServerName) -> list[Select[Any]]:
    """Of each database of this server of which there are any."""
    databases = _shadows(counters.of_kind(connection, counters.SHADOW), forked=False).get(primary, {})
    return [without_forks(primary, database) for database, (count, _) in databases.items() if count]


def queued_page(after: int, limit: int, *, newest: bool = False) -> Select[Any]:
    """Of all delivery queues, each message once."""
    queued = in_order(select(_R.message).distinct(), _R.message, after, limit, newest=newest)
    order = _M.internal_id.desc() if newest else _M.internal_id
    return select(tables.MESSAGE).where(_M.internal_id.in_(queued)).order_by(order)


def by_internal_id(internal_ids: Sequence[int]) -> Select[Any]:
    """In this order."""
    wanted = func.json_each(json.dumps(internal_ids)).table_valued("value", name="wanted")
    return select(tables.MESSAGE).select_from(CrossJoin(wanted, tables.MESSAGE, _M.internal_id == wanted.c.value))


def queues(reader: Reader) -> tuple[QueueRow, ...]:
    """All queues. Submission, Safety Net and Poison always; the others while something is in them; suspended ones also empty."""

    def row(name: str, kind: QueueKind, next_hop: str, held: tuple[int, int], firsts: Iterable[int | None], **more: Any) -> QueueRow:
        count, octets = held
        oldest_at = min((at for at in firsts if at is not None), default=None)
        identity = f"{server}\\{name}"
        return QueueRow(identity, kind, next_hop, count, rows.decode_instant_or_none(oldest_at), octets=octets, **more)

    def first(held: tuple[int, int], *statements: Select[Any]) -> list[int | None]:
        return [connection.scalar(statement) for statement in statements] if held[0] else []

    connection, server, at = reader.connection, reader.state.server, rows.encode_instant(reader.state.now())
    numbers, suspended = dict(reader.state.shadow_queues), dict(reader.state.suspended_queues)
    with one_moment(connection):
        totals, counted_shadows = counters.whole_and_shadow(connection)
        held = totals[counters.SUBMISSION]
        oldest_at = first(held, OLDEST[DECIDED], OLDEST[UNDECIDED])
        listed = [row(SUBMISSION, QueueKind.SUBMISSION, SUBMISSION, held, oldest_at, suspended=suspended.get(SUBMISSION))]
        for next_hop, count, octets, since, next_at, last_reply, waits_for in connection.execute(DELIVERY).fetchall():
            more = {"last_error": last_reply or "", "next_retry_at": rows.decode_instant_or_none(None if next_at == NEVER_DUE else next_at)}
            more |= {"suspended": suspended.get(next_hop), "waits_for": ServerName(waits_for or "")}
            listed.append(row(next_hop, QueueKind.DELIVERY, next_hop, (count, octets), (since,), **more))
        present = {row.next_hop for row in listed}
        for next_hop, suspension in sorted((entry for entry in suspended.items() if entry[0] not in present), key=itemgetter(0)):
            listed.append(row(next_hop, QueueKind.DELIVERY, next_hop, (0, 0), (), suspended=suspension))
        shadows = _shadows(counted_shadows, forked=False)
        for primary, databases in sorted(shadows.items(), key=lambda entry: numbers.get(entry[0], 0)):
            held = (sum(count for count, _ in databases.values()), sum(octets for _, octets in databases.values()))
            oldest_at = first(held, *(oldest(without_forks(primary, database)) for database, (count, _) in databases.items() if count))
            listed.append(row(f"{SHADOW}{numbers.get(primary, 0)}", QueueKind.SHADOW, primary, held, oldest_at, primary=primary))
        for name, count, octets, since in connection.execute(SHADOW_FORKS).fetchall():
            primary, next_hop = shadow_queue(name)
            listed.append(row(f"{SHADOW}{primary}\\{next_hop}", QueueKind.SHADOW, next_hop, (count, octets), (since,), primary=primary))
        for name, kind, side in (
            (SAFETY_NET_PRIMARY, QueueKind.SAFETY_NET_PRIMARY, 0),
            (SAFETY_NET_SHADOW, QueueKind.SAFETY_NET_SHADOW, 1),
        ):
            held = counters.safety_net(connection, side, at)
            listed.append(row(name, kind, "", held, first(held, oldest_in_safety_net(side, at))))
        held = totals[counters.POISON]
        listed.append(row(POISON, QueueKind.POISON, "", held, first(held, OLDEST[SET_ASIDE])))
        if (held := totals[counters.HANDED_OVER])[0]:
            listed.append(row(HANDED_OVER, QueueKind.HANDED_OVER, "", held, first(held, OLDEST[GIVEN_AWAY])))
    return tuple(listed)


def depths(reader: Reader) -> Mapping[tuple[QueueKind, str], int]:
    """Of Submission, delivery and shadow queues that are not empty, by kind and next hop, a shadow queue by its primary server, and behind
    a space its next hop, if that is known. From the counters alone."""
    connection = reader.connection
    with one_moment(connection):
        totals, counted_shadows = counters.whole_and_shadow(connection)
        found = {(QueueKind.SUBMISSION, SUBMISSION): totals[counters.SUBMISSION][0]}
        found |= {(QueueKind.DELIVERY, name): count for name, _, count, _ in counters.of_kind(connection, counters.DELIVERY)}
        for primary, databases in _shadows(counted_shadows, forked=False).items():
            found[QueueKind.SHADOW, primary] = sum(count for count, _ in databases.values())
        return found | {(QueueKind.SHADOW, name): count for name, _, count, _ in counters.of_kind(connection, counters.SHADOW_FORK)}


def _shadows(counted: Iterable[counters.Counted], *, forked: bool) -> dict[ServerName, dict[DatabaseId, tuple[int, int]]]:
    """By primary server and its database: messages and octets, with or without those whose forks are known."""
    servers: dict[ServerName, dict[DatabaseId, tuple[int, int]]] = {}
    for name, number, count, octets in counted:
        if number & 2 and not forked:
            continue
        server, _, database = name.partition(" ")
        databases = servers.setdefault(ServerName(server), {})
        before = databases.get(DatabaseId(database), (0, 0))
        databases[DatabaseId(database)] = (before[0] + count, before[1] + octets)
    return servers


def messages(reader: Reader, queue: str, limit: int, after: int = 0, *, newest: bool = False) -> tuple[StoredMessage, ...]:
    """A page of the queue with that identity; the server before the first backslash is not looked at, and may be missing. Empty: of all
    queues but Safety Net, where nothing waits. `UNDELIVERED` and `SHADOWS`: the two halves of that. Messages after the one with internal id
    `after`, by internal id; in Safety Net by expiry time. `newest`: the other way round, from the newest where `after` is 0."""
    return _merged(reader, _pages(reader, queue, limit, after, newest=newest), limit, newest=newest)


def _pages(reader: Reader, queue: str, limit: int, after: int, *, newest: bool = False) -> list[Select[Any]]:
    """What finds the messages of a page; of Safety Net in its order, of the others by internal id."""
    connection = reader.connection

    def page(statement: Select[Any], after: int, limit: int) -> Select[Any]:
        return in_order(statement, _M.internal_id, after, limit, newest=newest)

    is_short = queue in (SUBMISSION, POISON, HANDED_OVER, SAFETY_NET_PRIMARY, SAFETY_NET_SHADOW) or queue.startswith(SHADOW)
    name = queue if is_short else queue.partition("\\")[2] or queue
    if name in (SAFETY_NET_PRIMARY, SAFETY_NET_SHADOW):
        side = 1 if name == SAFETY_NET_SHADOW else 0
        return [safety_net_page(connection, side, rows.encode_instant(reader.state.now()), after, limit, newest=newest)]
    if name in OF_MESSAGES:
        return [page(statement, after, limit) for statement in OF_MESSAGES[name]]
    if name in ("", UNDELIVERED):
        undelivered = [page(statement, after, limit) for statements in OF_MESSAGES.values() for statement in statements]
        undelivered.append(queued_page(after, limit, newest=newest))
        if name:
            return undelivered
    if name in ("", SHADOWS):
        shadows = _shadows(counters.of_kind(connection, counters.SHADOW), forked=True)
        every_shadow = [page(held_for(primary, database), after, limit) for primary in shadows for database in shadows[primary]]
        return every_shadow if name else [*undelivered, *every_shadow]
    if name.startswith(SHADOW):
        wanted, _, next_hop = name.removeprefix(SHADOW).partition("\\")
        primary = next(
            (server for server, number in dict(reader.state.shadow_queues).items() if wanted in (str(number), server)), NO_SERVER
        )
        if next_hop:
            return [shadow_fork_page(f"{primary} {next_hop}", after, limit, newest=newest)]
        return [page(each, after, limit) for each in _without_forks(connection, primary)]
    return [delivery_page(name, after, limit, newest=newest)]


EXAMINED_MAX = 5_000  # rows for one page of a filtered listing: a tenth of a second


def filtered(
    reader: Reader, queue: str, expression: Expression, expiry: timedelta, limit: int, after: int = 0, *, newest: bool = False
) -> MessagePage:
    """The messages of a page that satisfy the filter, and after which one the next page begins, `None` after the last. The page ends after
    `limit` messages, or where `EXAMINED_MAX` were looked at, so that it may have few messages, or none. `expiry`:
    message_expiration_timeout."""
    condition = filter_sql.condition(expression, reader.state.now(), expiry, reader.state.server)
    pages = _pages(reader, queue, EXAMINED_MAX, after, newest=newest)
    ids = _internal_ids(reader.connection, pages, newest=newest)[:EXAMINED_MAX]
    page_found = found(reader, by_internal_id(ids).where(condition).limit(limit))
    if len(page_found) == limit:
        return MessagePage(page_found, page_found[-1].internal_id)
    return MessagePage(page_found, ids[-1] if len(ids) == EXAMINED_MAX else None)


SEARCHED_STEP = 10_000  # internal ids that one statement looks at: 10 ms
SEARCHED_STEPS = 5  # for one page of a search


def step_of_search(wanted: ColumnElement[bool], least: int, most: int, limit: int) -> Select[Any]:
    """Of the rows with these internal ids, the newest that are wanted. No index: reading them in their order is the quickest way."""
    rows_of_step = select(_M.internal_id).with_hint(tables.MESSAGE, "NOT INDEXED", "sqlite")
    return rows_of_step.where(_M.internal_id >= least, _M.internal_id <= most, wanted).order_by(_M.internal_id.desc()).limit(limit)


def by_message_id(prefix: str, wanted: ColumnElement[bool], after: int) -> Select[Any]:
    """The messages whose id begins so, which the index of ids finds; those before internal id `after`, unless that is 0."""
    begins_so = select(_M.internal_id).where(_M.message_id >= prefix, _M.message_id <= f"{prefix}~", wanted)
    return begins_so.where(_M.internal_id < after) if after else begins_so


def searched(reader: Reader, expression: Expression, expiry: timedelta, limit: int, after: int = 0) -> MessagePage:
    """Of all that this database has a row of, Safety Net and what is kept for answers included: the newest that satisfy the filter, before
    internal id `after` (0: from the newest), and after which one the next page begins, `None` after the last. A page may have few messages,
    or none: it ends after so many steps."""
    connection = reader.connection
    condition = filter_sql.condition(expression, reader.state.now(), expiry, reader.state.server)
    wanted = and_(filter_sql.needed(expression), condition)
    if prefix := filter_sql.id_prefix(expression):
        ids = sorted((internal_id for (internal_id,) in fetch(connection, by_message_id(prefix, wanted, after))), reverse=True)
        return MessagePage(found(reader, by_internal_id(ids[:limit])), ids[limit - 1] if len(ids) > limit else None)
    ids = []
    before = after
    for _ in range(SEARCHED_STEPS):
        newest = select(func.max(_M.internal_id))
        most = connection.scalar(newest.where(_M.internal_id < before) if before else newest)
        if most is None:
            return MessagePage(found(reader, by_internal_id(ids)), None)
        before = max(most - SEARCHED_STEP, 0) + 1
        ids += [internal_id for (internal_id,) in fetch(connection, step_of_search(wanted, before, most, limit - len(ids)))]
        if len(ids) == limit:
            return MessagePage(found(reader, by_internal_id(ids)), ids[-1])
    return MessagePage(found(reader, by_internal_id(ids)), before)


def _internal_ids(connection: Connection, pages: Sequence[Select[Any]], *, newest: bool = False) -> list[int]:
    """Of what all of them find, in the order of one page."""
    ids = [internal_id for each in pages for (internal_id,) in fetch(connection, each.with_only_columns(_M.internal_id))]
    return ids if len(pages) == 1 else sorted(ids, reverse=newest)


def undelivered(reader: Reader, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
    """Decided primary messages that are in Submission or in a delivery queue: neither done, nor set aside, nor handed over.
    internal_id > after, ascending; an empty page is the end."""
    while True:
        page_found = _merged(reader, [page(DECIDED, after, limit), queued_page(after, limit)], limit)
        if (wanted := readable(page_found)) or len(page_found) < limit:
            return wanted
        after = page_found[-1].internal_id


def _merged(reader: Reader, statements: Sequence[Select[Any]], limit: int, *, newest: bool = False) -> tuple[StoredMessage, ...]:
    """The first of what all of them find, by internal id. Where they are several, first the ids, then the rows of one page."""
    if len(statements) == 1:
        return found(reader, statements[0])
    return found(reader, by_internal_id(_internal_ids(reader.connection, statements, newest=newest)[:limit]))
