"""Questions to the database, as functions of a read-only `Connection`. They never hold up the writer."""

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from shadowrelay.model.ids import NO_DATABASE, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.ownership import DiscardEvent, DiscardStatus, Role
from shadowrelay.model.peers import DiscardReply
from shadowrelay.model.queue import ShadowGroup, StoredMessage
from shadowrelay.store import codec, retries, rows, tables
from shadowrelay.store.content import ContentStore

COLUMNS = ",".join(f'm."{name}"' for name in rows.ALL)
RETRY_COLUMNS = ",".join(f"retry.{column.name}" for column in tables.RETRY.columns)
SELECT_MANY = f"SELECT {COLUMNS} FROM json_each(?) AS wanted CROSS JOIN message AS m ON m.message_id = wanted.value"
SELECT_DUE = (
    f"SELECT {COLUMNS} FROM message AS m WHERE m.role = 'primary' AND m.due_at <= ? AND m.is_decided = 1"
    " AND m.message_id NOT IN (SELECT value FROM json_each(?)) ORDER BY m.due_at LIMIT ?"
)
SELECT_NEXT_DUE = "SELECT due_at FROM message WHERE role = 'primary' AND due_at IS NOT NULL ORDER BY due_at LIMIT 1"
SELECT_UNPLACED = (
    f"SELECT {COLUMNS} FROM message AS m WHERE m.role = 'primary' AND m.is_placed = 0 AND m.is_decided = 1"
    " AND m.message_id NOT IN (SELECT value FROM json_each(?)) ORDER BY m.internal_id LIMIT ?"
)
SELECT_LISTED = (
    f"SELECT {COLUMNS} FROM listing CROSS JOIN message AS m ON m.internal_id = listing.message"
    " WHERE listing.server = ? AND listing.message > ? ORDER BY listing.message LIMIT ?"
)
SELECT_SHADOWS = (
    f"SELECT {COLUMNS} FROM message AS m WHERE m.role = 'shadow' AND m.primary_server = ? AND m.primary_database = ?"
    " AND m.internal_id > ? ORDER BY m.internal_id LIMIT ?"
)
SELECT_HANDED = SELECT_SHADOWS.replace("AS m WHERE", "AS m INDEXED BY message_handed WHERE m.handed = 1 AND")
SELECT_GROUPS = (
    "SELECT primary_server, primary_database, count(*) FROM message WHERE role = 'shadow' GROUP BY primary_server, primary_database"
)
SELECT_GROUPS_HANDED = SELECT_GROUPS.replace("message WHERE", "message INDEXED BY message_handed WHERE handed = 1 AND")
SELECT_RETRIES = (
    f"SELECT {RETRY_COLUMNS} FROM json_each(?) AS wanted CROSS JOIN retry ON retry.message = wanted.value ORDER BY attempts_next_at"
)
SELECT_DISCARDS = (
    "SELECT sequence, message_id, status, ordinals FROM discard WHERE asker = ? AND asker_database IN (?, ?) ORDER BY sequence LIMIT ?"
)
COUNT_DISCARDS = "SELECT count(*) FROM discard WHERE asker = ? AND asker_database IN (?, ?)"
SELECT_UNSAID = "SELECT ordinals FROM waiting WHERE message_id = ? AND status = ?"
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
        was_set_aside = columns[rows.ALL.index("role")] == Role.SET_ASIDE.value
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
        forks = retries.decode_retries(connection.exec_driver_sql(SELECT_RETRIES, (json.dumps(retried),)).fetchall())
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


def next_due(connection: Connection) -> int | None:
    value = connection.exec_driver_sql(SELECT_NEXT_DUE).scalar()
    return value if isinstance(value, int) else None


def shadow_groups(connection: Connection) -> tuple[ShadowGroup, ...]:
    handed = {(server, database): count for server, database, count in connection.exec_driver_sql(SELECT_GROUPS_HANDED).fetchall()}
    return tuple(
        [
            ShadowGroup(ServerName(server), DatabaseId(database), count, handed.get((server, database), 0))
            for server, database, count in connection.exec_driver_sql(SELECT_GROUPS).fetchall()
        ]
    )


def discards_for(connection: Connection, asker: ServerName, database: DatabaseId, maximum: int) -> DiscardReply:
    key = (asker, database, NO_DATABASE)
    many = connection.exec_driver_sql(SELECT_DISCARDS, (*key, maximum)).fetchall()
    remaining = 0
    if len(many) == maximum:
        remaining = max(0, int(connection.exec_driver_sql(COUNT_DISCARDS, key).scalar_one()) - len(many))
    events = []
    for sequence, message_id, status, ordinals in many:
        with suppress(ValueError):  # a corrupt row says nothing; STATUS answers for it
            events.append(DiscardEvent(sequence, MessageId(message_id), DiscardStatus(status), codec.decode_ordinals(ordinals)))
    return DiscardReply(tuple(events), remaining)


def unsaid(connection: Connection, message_id: MessageId) -> Ordinals:
    """Of a corrupt row nothing is known: the notification says it later."""
    found = NO_ORDINALS
    for (ordinals,) in connection.exec_driver_sql(SELECT_UNSAID, (message_id, DiscardStatus.DELIVERED.value)).fetchall():
        with suppress(ValueError):
            found |= codec.decode_ordinals(ordinals)
    return found


def acknowledged(connection: Connection, primary: ServerName, database: DatabaseId, incarnation: int) -> int:
    value = connection.exec_driver_sql(SELECT_ACKNOWLEDGED, (primary, database, incarnation)).scalar()
    return int(value or 0)


def excluded(message_ids: Collection[MessageId]) -> str:
    return json.dumps(list(message_ids)) if message_ids else "[]"
