"""Listings: the queues as an operator sees them, and the messages in one.

A listing of queues reads counters, and for each queue the one row that is the oldest. The oldest is the one that this
database has had for the longest time (the lowest internal id; in Safety Net the first that leaves): its arrival is told,
and one that came here late, with an earlier arrival, is told of when it is the first.

A page is read in the order of an index, from where the page before ended, so that each page costs the same. That order
is the internal id; in Safety Net it is the time at which a message leaves, then the internal id.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from shadowrelay.model.ids import ServerName
from shadowrelay.model.queue import QueueKind, QueueRow
from shadowrelay.store import codec, counters, reading
from shadowrelay.store.content import ContentStore
from shadowrelay.store.reading import Found

SUBMISSION = "Submission"
SHADOW = "Shadow\\"
SAFETY_NET_PRIMARY = "SafetyNet\\Primary"
SAFETY_NET_SHADOW = "SafetyNet\\Shadow"
POISON = "Poison"

_SELECT = f"SELECT {reading.COLUMNS} FROM message AS m"
_OLDEST = "SELECT m.arrived_at FROM message AS m"
_PAGE = " AND m.internal_id > ? ORDER BY m.internal_id LIMIT ?"
_DECIDED = " INDEXED BY message_submission WHERE m.role = 'primary' AND m.retries_count = 0 AND m.is_decided = 1"
_UNDECIDED = " INDEXED BY message_undecided WHERE m.role = 'primary' AND m.is_decided = 0"
_SHADOW = " INDEXED BY message_shadow WHERE m.role = 'shadow' AND m.primary_server = ? AND m.primary_database = ?"
_SAFETY_NET = " INDEXED BY message_safety_net WHERE m.role = 'delivered' AND m.is_shadow_side = ?"
_POISON = " INDEXED BY message_set_aside WHERE m.role = 'set-aside'"

OLDEST_DECIDED = f"{_OLDEST}{_DECIDED} ORDER BY m.internal_id LIMIT 1"
OLDEST_UNDECIDED = f"{_OLDEST}{_UNDECIDED} ORDER BY m.internal_id LIMIT 1"
OLDEST_SHADOW = f"{_OLDEST}{_SHADOW} ORDER BY m.internal_id LIMIT 1"
OLDEST_SAFETY_NET = f"{_OLDEST}{_SAFETY_NET} AND m.keep_until > ? ORDER BY m.keep_until LIMIT 1"
OLDEST_POISON = f"{_OLDEST}{_POISON} ORDER BY m.internal_id LIMIT 1"
DELIVERY = (  # a look or two into an index for each queue
    "SELECT queue.name, queue.count, queue.octets,"
    " (SELECT m.arrived_at FROM message AS m WHERE m.internal_id = (SELECT first.message FROM retry AS first INDEXED BY retry_next_hop"
    " WHERE first.next_hop = queue.name ORDER BY first.message LIMIT 1)),"
    " (SELECT next.attempts_next_at FROM retry AS next INDEXED BY retry_due WHERE next.next_hop = queue.name"
    " ORDER BY next.attempts_next_at LIMIT 1),"
    " (SELECT latest.last_reply FROM retry AS latest INDEXED BY retry_due WHERE latest.next_hop = queue.name"
    " ORDER BY latest.attempts_next_at DESC LIMIT 1)"
    " FROM counter AS queue WHERE queue.kind = 'delivery' AND queue.count > 0 ORDER BY queue.name"
)
MESSAGES_DECIDED = f"{_SELECT}{_DECIDED}{_PAGE}"
MESSAGES_UNDECIDED = f"{_SELECT}{_UNDECIDED}{_PAGE}"
MESSAGES_DELIVERY = (
    f"SELECT {reading.COLUMNS} FROM retry INDEXED BY retry_next_hop CROSS JOIN message AS m ON m.internal_id = retry.message"
    " WHERE retry.next_hop = ? AND retry.message > ? AND m.role = 'primary' ORDER BY retry.message LIMIT ?"
)
MESSAGES_QUEUED = (  # of all delivery queues, each once
    f"{_SELECT} WHERE m.internal_id IN (SELECT DISTINCT retry.message FROM retry WHERE retry.message > ? ORDER BY retry.message LIMIT ?)"
    " ORDER BY m.internal_id"
)
MESSAGES_SHADOW = f"{_SELECT}{_SHADOW}{_PAGE}"
MESSAGES_SAFETY_NET = f"{_SELECT}{_SAFETY_NET} AND m.keep_until > ? AND m.internal_id > ? ORDER BY m.keep_until, m.internal_id LIMIT ?"
MESSAGES_SAFETY_NET_AFTER = (
    f"{_SELECT}{_SAFETY_NET} AND (m.keep_until, m.internal_id) > (?, ?) ORDER BY m.keep_until, m.internal_id LIMIT ?"
)
MESSAGES_POISON = f"{_SELECT}{_POISON}{_PAGE}"
MESSAGES_BY_ID = f"SELECT {reading.COLUMNS} FROM json_each(?) AS wanted CROSS JOIN message AS m ON m.internal_id = wanted.value"
SELECT_KEEP_UNTIL = "SELECT keep_until FROM message WHERE internal_id = ? AND role = 'delivered' AND is_shadow_side = ?"

Statement = tuple[str, tuple[Any, ...]]


def queues(connection: Connection, server: ServerName, now: datetime, numbers: dict[ServerName, int]) -> tuple[QueueRow, ...]:
    """Submission, Safety Net and Poison always; delivery and shadow queues while something is in them."""

    def row(name: str, kind: QueueKind, next_hop: str, held: tuple[int, int], oldest: Iterable[int | None], **more: Any) -> QueueRow:
        count, octets = held
        oldest_at = min((at for at in oldest if at is not None), default=None)
        identity = f"{server}\\{name}"
        return QueueRow(identity, kind, next_hop, count, codec.decode_instant_or_none(oldest_at), octets=octets, **more)

    def oldest(*statements: Statement) -> list[int | None]:
        return [connection.exec_driver_sql(text, parameters).scalar() for text, parameters in statements]

    at = codec.encode_instant(now)
    held = _total(connection, counters.SUBMISSION)
    found = [row(SUBMISSION, QueueKind.SUBMISSION, SUBMISSION, held, oldest((OLDEST_DECIDED, ()), (OLDEST_UNDECIDED, ())))]
    for next_hop, count, octets, oldest_at, next_at, last_reply in connection.exec_driver_sql(DELIVERY).fetchall():
        more = {"last_error": last_reply or "", "next_retry_at": codec.decode_instant_or_none(next_at)}
        found.append(row(next_hop, QueueKind.DELIVERY, next_hop, (count, octets), (oldest_at,), **more))
    for primary, databases in sorted(_shadows(connection).items(), key=lambda entry: numbers.get(entry[0], 0)):
        held = (sum(count for count, _ in databases.values()), sum(octets for _, octets in databases.values()))
        first = oldest(*[(OLDEST_SHADOW, (primary, database)) for database in databases])
        found.append(row(f"{SHADOW}{numbers.get(primary, 0)}", QueueKind.SHADOW, primary, held, first))
    for name, kind, side in ((SAFETY_NET_PRIMARY, QueueKind.SAFETY_NET_PRIMARY, 0), (SAFETY_NET_SHADOW, QueueKind.SAFETY_NET_SHADOW, 1)):
        found.append(row(name, kind, "", counters.safety_net(connection, side, at), oldest((OLDEST_SAFETY_NET, (side, at)))))
    found.append(row(POISON, QueueKind.POISON, "", _total(connection, counters.POISON), oldest((OLDEST_POISON, ()))))
    return tuple(found)


def _total(connection: Connection, kind: str) -> tuple[int, int]:
    of_kind = counters.of_kind(connection, kind)
    return sum(count for _, _, count, _ in of_kind), sum(octets for *_, octets in of_kind)


def _shadows(connection: Connection) -> dict[ServerName, dict[str, tuple[int, int]]]:
    """By primary server and its database: messages and octets."""
    servers: dict[ServerName, dict[str, tuple[int, int]]] = {}
    for name, _, count, octets in counters.of_kind(connection, counters.SHADOW):
        server, _, database = name.partition(" ")
        databases = servers.setdefault(ServerName(server), {})
        before = databases.get(database, (0, 0))
        databases[database] = (before[0] + count, before[1] + octets)
    return servers


def messages(
    connection: Connection, queue: str, limit: int, after: int, now: datetime, numbers: dict[ServerName, int], contents: ContentStore
) -> Found:
    """Of the queue with that identity; the server before the first backslash is not looked at. Empty: of all queues but Safety
    Net, where nothing waits."""
    name = queue.partition("\\")[2] or queue
    page = (after, limit)
    if name in (SAFETY_NET_PRIMARY, SAFETY_NET_SHADOW):
        side = 1 if name == SAFETY_NET_SHADOW else 0
        statement = _safety_net_page(connection, side, codec.encode_instant(now), page)
        return reading.found(connection, *statement, contents)
    submission = [(MESSAGES_DECIDED, page), (MESSAGES_UNDECIDED, page)]
    poison = [(MESSAGES_POISON, page)]
    shadows = {
        primary: [(MESSAGES_SHADOW, (primary, database, *page)) for database in databases]
        for primary, databases in _shadows(connection).items()
    }
    if not name:
        every_shadow = [statement for statements in shadows.values() for statement in statements]
        return _merged(connection, [*submission, (MESSAGES_QUEUED, page), *every_shadow, *poison], limit, contents)
    if name == SUBMISSION:
        return _merged(connection, submission, limit, contents)
    if name == POISON:
        return _merged(connection, poison, limit, contents)
    if name.startswith(SHADOW):
        primary = next((server for server, number in numbers.items() if str(number) == name[len(SHADOW) :]), None)
        return Found(()) if primary is None else _merged(connection, shadows.get(primary, []), limit, contents)
    return reading.found(connection, MESSAGES_DELIVERY, (name, *page), contents)


def _merged(connection: Connection, statements: Sequence[Statement], limit: int, contents: ContentStore) -> Found:
    """The first of what all of them find, by internal id. Where they are several, first the ids, then the rows of one page."""
    if len(statements) == 1:
        return reading.found(connection, *statements[0], contents)
    ids = [
        internal_id
        for text, parameters in statements
        for (internal_id,) in connection.exec_driver_sql(text.replace(reading.COLUMNS, "m.internal_id"), parameters).fetchall()
    ]
    return reading.found(connection, MESSAGES_BY_ID, (json.dumps(sorted(ids)[:limit]),), contents)


def _safety_net_page(connection: Connection, side: int, now: int, page: tuple[int, int]) -> Statement:
    after, limit = page
    kept_until = connection.exec_driver_sql(SELECT_KEEP_UNTIL, (after, side)).scalar() if after else None
    if kept_until is None:
        return MESSAGES_SAFETY_NET, (side, now, after, limit)
    if kept_until <= now:  # it has left Safety Net since the page before, and so has all that stood before it
        return MESSAGES_SAFETY_NET, (side, now, 0, limit)
    return MESSAGES_SAFETY_NET_AFTER, (side, kept_until, after, limit)
