"""Questions to the database, as functions of a read-only `Connection`: messages, and listings. They never hold up the writer.

A listing of queues reads counters, and for each queue the one row that is the oldest. The oldest is the one that this
database has had for the longest time (the lowest internal id; in Safety Net the first that leaves): its arrival is told,
and one that came here late, with an earlier arrival, is told of when it is the first.

A page is read in the order of an index, from where the page before ended, so that each page costs the same. That order
is the internal id; in Safety Net it is the time at which a message leaves, then the internal id.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from shadowrelay.model.ids import NO_DATABASE, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.ownership import CopyNumber, DiscardEvent, DiscardStatus, Role
from shadowrelay.model.peers import DiscardReply
from shadowrelay.model.queue import HeldCopy, QueueKind, QueueRow, ShadowGroup, StoredMessage
from shadowrelay.model.values import dataclass, replace
from shadowrelay.store import codec, counters, rows, tables
from shadowrelay.store.content import ContentStore

COLUMNS = ",".join(f'm."{name}"' for name in rows.ALL)
RETRY_COLUMNS = ",".join(f"retry.{column.name}" for column in tables.RETRY.columns)
SELECT_MANY = f"SELECT {COLUMNS} FROM json_each(?) AS wanted CROSS JOIN message AS m ON m.message_id = wanted.value"
SELECT_SUBMISSION = (
    f"SELECT {COLUMNS} FROM message AS m INDEXED BY message_submission WHERE m.role = 'primary' AND m.retries_count = 0"
    " AND m.is_decided = 1 AND m.internal_id > ? ORDER BY m.internal_id LIMIT ?"
)
SELECT_DUE = (
    f"SELECT {COLUMNS} FROM retry CROSS JOIN message AS m ON m.internal_id = retry.message"
    " WHERE retry.next_hop = ? AND retry.attempts_next_at <= ? ORDER BY retry.attempts_next_at, retry.message LIMIT ?"
)
SELECT_NEXT_DUE = "SELECT attempts_next_at FROM retry WHERE next_hop = ? AND attempts_next_at > ? ORDER BY attempts_next_at LIMIT 1"
SELECT_QUEUES = (  # two looks into an index for each queue, however much is in it
    "WITH RECURSIVE queue(name) AS (SELECT min(next_hop) FROM retry"
    " UNION ALL SELECT (SELECT min(next_hop) FROM retry WHERE next_hop > queue.name) FROM queue WHERE queue.name IS NOT NULL)"
    " SELECT name, (SELECT min(attempts_next_at) FROM retry WHERE next_hop = queue.name) FROM queue WHERE name IS NOT NULL"
)
SELECT_NOTICES = (
    f"SELECT {COLUMNS} FROM retry INDEXED BY retry_notice CROSS JOIN message AS m ON m.internal_id = retry.message"
    " WHERE retry.notice_at <= ? ORDER BY retry.notice_at LIMIT ?"
)
SELECT_WAITED_FOR = (  # one look into the index for each server, however many wait for it
    "WITH RECURSIVE server(name) AS (SELECT min(waits_for) FROM retry WHERE waits_for != ''"
    " UNION ALL SELECT (SELECT min(waits_for) FROM retry WHERE waits_for != '' AND waits_for > server.name) FROM server"
    " WHERE server.name IS NOT NULL) SELECT name FROM server WHERE name IS NOT NULL"
)
SELECT_UNPLACED = (
    f"SELECT {COLUMNS} FROM message AS m WHERE m.role = 'primary' AND m.is_placed = 0 AND m.is_decided = 1"
    " AND m.internal_id > ? ORDER BY m.internal_id LIMIT ?"
)
SELECT_LISTED = (
    f"SELECT {COLUMNS} FROM listing CROSS JOIN message AS m ON m.internal_id = listing.message"
    " WHERE listing.server = ? AND listing.message > ? ORDER BY listing.message LIMIT ?"
)
SELECT_SHADOWS = (
    f"SELECT {COLUMNS} FROM message AS m WHERE m.role = 'shadow' AND m.primary_server = ? AND m.primary_database = ?"
    " AND m.internal_id > ? ORDER BY m.internal_id LIMIT ?"
)
SELECT_COPIES = SELECT_SHADOWS.replace(COLUMNS, "m.internal_id, m.message_id, m.ownership, m.placement, m.number_database")
SELECT_HANDED = SELECT_SHADOWS.replace("AS m WHERE", "AS m INDEXED BY message_handed WHERE m.handed = 1 AND")
_FROM_SHADOWS = "FROM message INDEXED BY message_shadow WHERE role = 'shadow'"
SELECT_GROUPS = (  # a few looks into the index for each; (server, database) > (?, ?) would read to the end of the group
    f"WITH RECURSIVE server(name) AS (SELECT min(primary_server) {_FROM_SHADOWS}"
    f" UNION ALL SELECT (SELECT min(primary_server) {_FROM_SHADOWS} AND primary_server > server.name) FROM server WHERE name IS NOT NULL),"
    f" party(server, database) AS (SELECT name, (SELECT min(primary_database) {_FROM_SHADOWS} AND primary_server = server.name) FROM server"
    f" WHERE name IS NOT NULL UNION ALL SELECT server, (SELECT min(primary_database) {_FROM_SHADOWS} AND primary_server = party.server"
    " AND primary_database > party.database) FROM party WHERE database IS NOT NULL)"
    " SELECT server, database FROM party WHERE database IS NOT NULL"
)
SELECT_ANY_HANDED = (
    "SELECT 1 FROM message INDEXED BY message_handed WHERE handed = 1 AND role = 'shadow' AND primary_server = ? AND primary_database = ?"
    " LIMIT 1"
)
SELECT_RETRIES = (
    f"SELECT {RETRY_COLUMNS} FROM json_each(?) AS wanted CROSS JOIN retry ON retry.message = wanted.value ORDER BY attempts_next_at"
)
SELECT_DISCARDS = (
    "SELECT sequence, message_id, status, ordinals FROM discard WHERE asker = ? AND asker_database IN (?, ?) ORDER BY sequence LIMIT ?"
)
SELECT_UNTOLD = "SELECT 1 FROM discard WHERE asker = ? AND asker_database IN (?, ?) LIMIT 1"
SELECT_UNSAID = "SELECT ordinals FROM waiting WHERE message_id = ? AND status = ?"
SELECT_UNSAID_OF = "SELECT message_id, ordinals FROM waiting WHERE status = ? AND message_id IN (SELECT value FROM json_each(?))"
SELECT_ACKNOWLEDGED = "SELECT sequence FROM acknowledged WHERE primary_server = ? AND database = ? AND incarnation = ?"


@dataclass(frozen=True, slots=True)
class Found:
    """`corrupt` are the ones that were to be left out: id and reason."""

    messages: tuple[StoredMessage, ...]
    corrupt: tuple[tuple[MessageId, str], ...] = ()


def decode_messages(connection: Connection, many: Iterable[Sequence[Any]], contents: ContentStore) -> Found:
    """A row that cannot be read becomes a message that is set aside, with an envelope that has only its recipients' number."""
    decoded, corrupt, retried = [], [], []
    for columns in many:
        text = columns[rows.ENVELOPE_INDEX]
        row = rows.decode_row((*columns[: rows.ENVELOPE_INDEX], *columns[rows.ENVELOPE_INDEX + 1 :]))
        was_set_aside = columns[rows.ALL.index("role")] == Role.SET_ASIDE
        try:
            if not text:
                envelope = rows.empty_envelope(row.message_id, row.claim.recipients_count, codec.decode_instant(row.arrived_at))
            else:
                envelope = codec.decode_envelope(row.message_id, text)
        except (ValueError, TypeError, KeyError) as exc:
            row.set_aside_reason = row.set_aside_reason or f"corrupt row: {exc!r}"
            row.claim = replace(row.claim, role=Role.SET_ASIDE)
            row.due_at = None
            envelope = rows.empty_envelope(row.message_id, row.claim.recipients_count, codec.decode_instant(row.arrived_at))
        if row.claim.role is Role.SET_ASIDE and not was_set_aside:
            corrupt.append((row.message_id, row.set_aside_reason))
        if not contents.has(row.place):
            row.place = None
        if row.retries_count:
            retried.append(row.internal_id)
        decoded.append((row, envelope))
    forks = {}
    if retried:
        forks = rows.decode_retries(connection.exec_driver_sql(SELECT_RETRIES, (json.dumps(retried),)).fetchall())
    return Found(
        tuple([rows.stored_message(row, envelope, forks.get(row.internal_id, ())) for row, envelope in decoded]),
        tuple(corrupt),
    )


def found(connection: Connection, statement: str, parameters: tuple[Any, ...], contents: ContentStore) -> Found:
    return decode_messages(connection, connection.exec_driver_sql(statement, parameters).fetchall(), contents)


def load_many(connection: Connection, message_ids: Collection[MessageId], contents: ContentStore) -> Found:
    """Unknown ones are left out."""
    if not message_ids:
        return Found(())
    return found(connection, SELECT_MANY, (json.dumps(list(message_ids)),), contents)


def next_due(connection: Connection, next_hop: str, after: int) -> int | None:
    value = connection.exec_driver_sql(SELECT_NEXT_DUE, (next_hop, after)).scalar()
    return value if isinstance(value, int) else None


def delivery_queues(connection: Connection) -> dict[str, int]:
    """The next hops of all that waits, and when the first of each is due. For the start."""
    return {str(row[0]): int(row[1]) for row in connection.exec_driver_sql(SELECT_QUEUES).fetchall()}


def waited_for(connection: Connection) -> tuple[ServerName, ...]:
    """The servers that forks wait for."""
    return tuple(ServerName(server) for (server,) in connection.exec_driver_sql(SELECT_WAITED_FOR).fetchall())


def copies_of(connection: Connection, question: tuple[ServerName, DatabaseId, int, int]) -> tuple[HeldCopy, ...]:
    """A corrupt number is asked about as it stands: the answer finds the row, and sets it aside."""
    many = connection.exec_driver_sql(SELECT_COPIES, question).fetchall()
    return tuple([HeldCopy(internal_id, MessageId(message_id), CopyNumber(*number)) for internal_id, message_id, *number in many])


def shadow_groups(connection: Connection) -> tuple[ShadowGroup, ...]:
    """Which there are, says the index, with a look for each: mail is taken over by it. How many, say the counters."""
    counts = {(name, handed): count for name, handed, count, _ in counters.of_kind(connection, counters.SHADOW)}
    found: list[ShadowGroup] = []
    for server, database in sorted(tuple(row) for row in connection.exec_driver_sql(SELECT_GROUPS).fetchall()):
        name = f"{server} {database}"
        handed = 0
        if connection.exec_driver_sql(SELECT_ANY_HANDED, (server, database)).first() is not None:
            handed = max(counts.get((name, 1), 0), 1)
        count = max(counts.get((name, 0), 0) + handed, 1)
        found.append(ShadowGroup(ServerName(server), DatabaseId(database), count, handed))
    return tuple(found)


def discards_for(connection: Connection, asker: ServerName, database: DatabaseId, maximum: int) -> DiscardReply:
    key = (asker, database, NO_DATABASE)
    many = connection.exec_driver_sql(SELECT_DISCARDS, (*key, maximum)).fetchall()
    remaining = 0
    if len(many) == maximum:
        remaining = max(0, counters.discards(connection, asker, {database, NO_DATABASE}) - len(many))
    events = []
    for sequence, message_id, status, ordinals in many:
        with suppress(ValueError):  # a corrupt row says nothing; STATUS answers for it
            events.append(DiscardEvent(sequence, MessageId(message_id), DiscardStatus(status), codec.decode_ordinals(ordinals)))
    return DiscardReply(tuple(events), remaining)


def has_untold(connection: Connection, asker: ServerName, database: DatabaseId) -> bool:
    return connection.exec_driver_sql(SELECT_UNTOLD, (asker, database, NO_DATABASE)).scalar() is not None


def unsaid(connection: Connection, message_id: MessageId) -> Ordinals:
    """Of a corrupt row nothing is known: the notification says it later."""
    found = NO_ORDINALS
    for (ordinals,) in connection.exec_driver_sql(SELECT_UNSAID, (message_id, DiscardStatus.DELIVERED.value)).fetchall():
        with suppress(ValueError):
            found |= codec.decode_ordinals(ordinals)
    return found


def unsaid_of(connection: Connection, message_ids: Collection[MessageId]) -> dict[MessageId, Ordinals]:
    found: dict[MessageId, Ordinals] = {}
    parameters = (DiscardStatus.DELIVERED.value, json.dumps(list(message_ids)))
    for message_id, ordinals in connection.exec_driver_sql(SELECT_UNSAID_OF, parameters).fetchall():
        with suppress(ValueError):
            decoded, before = codec.decode_ordinals(ordinals), found.get(message_id)
            found[message_id] = NO_ORDINALS if not decoded or before == NO_ORDINALS else decoded | (before or NO_ORDINALS)
    return found


def acknowledged(connection: Connection, primary: ServerName, database: DatabaseId, incarnation: int) -> int:
    value = connection.exec_driver_sql(SELECT_ACKNOWLEDGED, (primary, database, incarnation)).scalar()
    return int(value or 0)


SUBMISSION = "Submission"
SHADOW = "Shadow\\"
SAFETY_NET_PRIMARY = "SafetyNet\\Primary"
SAFETY_NET_SHADOW = "SafetyNet\\Shadow"
POISON = "Poison"

_SELECT = f"SELECT {COLUMNS} FROM message AS m"
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
    f"SELECT {COLUMNS} FROM retry INDEXED BY retry_next_hop CROSS JOIN message AS m ON m.internal_id = retry.message"
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
MESSAGES_BY_ID = f"SELECT {COLUMNS} FROM json_each(?) AS wanted CROSS JOIN message AS m ON m.internal_id = wanted.value"
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
    """Of the queue with that identity; the server before the first backslash is not looked at, and may be missing. Empty: of all
    queues but Safety Net, where nothing waits."""
    is_short = queue in (SUBMISSION, POISON, SAFETY_NET_PRIMARY, SAFETY_NET_SHADOW) or queue.startswith(SHADOW)
    name = queue if is_short else queue.partition("\\")[2] or queue
    page = (after, limit)
    if name in (SAFETY_NET_PRIMARY, SAFETY_NET_SHADOW):
        side = 1 if name == SAFETY_NET_SHADOW else 0
        statement = _safety_net_page(connection, side, codec.encode_instant(now), page)
        return found(connection, *statement, contents)
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
    return found(connection, MESSAGES_DELIVERY, (name, *page), contents)


def _merged(connection: Connection, statements: Sequence[Statement], limit: int, contents: ContentStore) -> Found:
    """The first of what all of them find, by internal id. Where they are several, first the ids, then the rows of one page."""
    if len(statements) == 1:
        return found(connection, *statements[0], contents)
    ids = [
        internal_id
        for text, parameters in statements
        for (internal_id,) in connection.exec_driver_sql(text.replace(COLUMNS, "m.internal_id"), parameters).fetchall()
    ]
    return found(connection, MESSAGES_BY_ID, (json.dumps(sorted(ids)[:limit]),), contents)


def _safety_net_page(connection: Connection, side: int, now: int, page: tuple[int, int]) -> Statement:
    after, limit = page
    kept_until = connection.exec_driver_sql(SELECT_KEEP_UNTIL, (after, side)).scalar() if after else None
    if kept_until is None:
        return MESSAGES_SAFETY_NET, (side, now, after, limit)
    if kept_until <= now:  # it has left Safety Net since the page before, and so has all that stood before it
        return MESSAGES_SAFETY_NET, (side, now, 0, limit)
    return MESSAGES_SAFETY_NET_AFTER, (side, kept_until, after, limit)
