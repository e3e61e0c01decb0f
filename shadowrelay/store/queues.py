"""Listings: the queues as an operator sees them, and the messages in one."""

from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from shadowrelay.model.ids import ServerName
from shadowrelay.model.queue import QueueKind, QueueRow
from shadowrelay.store import codec, reading
from shadowrelay.store.content import ContentStore
from shadowrelay.store.reading import Found

SUBMISSION = "Submission"
SHADOW = "Shadow\\"
SAFETY_NET_PRIMARY = "SafetyNet\\Primary"
SAFETY_NET_SHADOW = "SafetyNet\\Shadow"
POISON = "Poison"

COUNT_SUBMISSION = "SELECT count(*), min(arrived_at) FROM message WHERE role = 'primary' AND retries_count = 0"
COUNT_DELIVERY = (
    "SELECT retry.next_hop, count(*), min(m.arrived_at), min(retry.attempts_next_at),"
    " (SELECT last_reply FROM retry AS latest WHERE latest.next_hop = retry.next_hop ORDER BY latest.attempts_next_at DESC LIMIT 1)"
    " FROM retry CROSS JOIN message AS m ON m.internal_id = retry.message WHERE m.role = 'primary' GROUP BY retry.next_hop"
)
COUNT_SHADOW = "SELECT primary_server, count(*), min(arrived_at) FROM message WHERE role = 'shadow' GROUP BY primary_server"
COUNT_SAFETY_NET = "SELECT count(*) FROM message WHERE role = 'delivered' AND is_shadow_side = ? AND keep_until > ?"
OLDEST_SAFETY_NET = (
    "SELECT arrived_at FROM message WHERE role = 'delivered' AND is_shadow_side = ? AND keep_until > ? ORDER BY keep_until LIMIT 1"
)
COUNT_POISON = "SELECT count(*), min(arrived_at) FROM message WHERE role = 'set-aside'"

_SELECT = f"SELECT {reading.COLUMNS} FROM message AS m WHERE "
_PAGE = " AND m.internal_id > ? ORDER BY m.internal_id LIMIT ?"
MESSAGES_SUBMISSION = f"{_SELECT} m.role = 'primary' AND m.retries_count = 0 {_PAGE}"
MESSAGES_DELIVERY = (
    f"SELECT {reading.COLUMNS} FROM retry CROSS JOIN message AS m ON m.internal_id = retry.message"
    " WHERE retry.next_hop = ? AND retry.message > ? AND m.role = 'primary' ORDER BY retry.message LIMIT ?"
)
MESSAGES_SHADOW = f"{_SELECT} m.role = 'shadow' AND m.primary_server = ? {_PAGE}"
MESSAGES_SAFETY_NET = f"{_SELECT} m.role = 'delivered' AND m.is_shadow_side = ? AND m.keep_until > ? {_PAGE}"
MESSAGES_POISON = f"{_SELECT} m.role = 'set-aside' {_PAGE}"
MESSAGES_ALL = f"{_SELECT} (m.role IN ('primary', 'shadow', 'set-aside') OR (m.role = 'delivered' AND m.keep_until > ?)) {_PAGE}"


def queues(connection: Connection, server: ServerName, now: datetime, numbers: dict[ServerName, int]) -> tuple[QueueRow, ...]:
    """Submission, Safety Net and Poison always; delivery and shadow queues while something is in them."""

    def row(name: str, kind: QueueKind, next_hop: str, count: int, oldest_at: int | None, *more: Any) -> QueueRow:
        return QueueRow(f"{server}\\{name}", kind, next_hop, count, codec.decode_instant_or_none(oldest_at), *more)

    at = codec.encode_instant(now)
    found = [row(SUBMISSION, QueueKind.SUBMISSION, SUBMISSION, *connection.exec_driver_sql(COUNT_SUBMISSION).one())]
    for next_hop, count, oldest_at, next_at, last_reply in connection.exec_driver_sql(COUNT_DELIVERY).fetchall():
        found.append(row(next_hop, QueueKind.DELIVERY, next_hop, count, oldest_at, last_reply or "", codec.decode_instant_or_none(next_at)))
    shadows = connection.exec_driver_sql(COUNT_SHADOW).fetchall()
    for primary, count, oldest_at in sorted(shadows, key=lambda entry: numbers.get(entry[0], 0)):
        found.append(row(f"{SHADOW}{numbers.get(primary, 0)}", QueueKind.SHADOW, primary, count, oldest_at))
    for name, kind, side in ((SAFETY_NET_PRIMARY, QueueKind.SAFETY_NET_PRIMARY, 0), (SAFETY_NET_SHADOW, QueueKind.SAFETY_NET_SHADOW, 1)):
        count = connection.exec_driver_sql(COUNT_SAFETY_NET, (side, at)).scalar_one()
        found.append(row(name, kind, "", count, connection.exec_driver_sql(OLDEST_SAFETY_NET, (side, at)).scalar()))
    found.append(row(POISON, QueueKind.POISON, "", *connection.exec_driver_sql(COUNT_POISON).one()))
    return tuple(found)


def messages(
    connection: Connection, queue: str, limit: int, after: int, now: datetime, numbers: dict[ServerName, int], contents: ContentStore
) -> Found:
    """Of the queue with that identity, empty for all queues, by internal id; the server before the first backslash is not
    looked at."""
    name = queue.partition("\\")[2] or queue
    page = (after, limit)
    if not name:
        return reading.found(connection, MESSAGES_ALL, (codec.encode_instant(now), *page), contents)
    if name == SUBMISSION:
        return reading.found(connection, MESSAGES_SUBMISSION, page, contents)
    if name == POISON:
        return reading.found(connection, MESSAGES_POISON, page, contents)
    if name in (SAFETY_NET_PRIMARY, SAFETY_NET_SHADOW):
        side = 1 if name == SAFETY_NET_SHADOW else 0
        return reading.found(connection, MESSAGES_SAFETY_NET, (side, codec.encode_instant(now), *page), contents)
    if name.startswith(SHADOW):
        primary = next((server for server, number in numbers.items() if str(number) == name[len(SHADOW) :]), None)
        return Found(()) if primary is None else reading.found(connection, MESSAGES_SHADOW, (primary, *page), contents)
    return reading.found(connection, MESSAGES_DELIVERY, (name, *page), contents)
