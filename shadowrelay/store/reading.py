"""The questions to the ledger, as functions of a `Reader`: `ledger.read(reading.load, message_id)`. docs/design.md 9.

Queries for each message or poll are compiled to text at import; the others are expressions. A page of messages is read in the order of an
index, from the end of the previous page, so that each page costs the same.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, exists, func, or_, select

from shadowrelay.model.ids import NO_DATABASE, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Envelope, Ordinals
from shadowrelay.model.ownership import CopyNumber, DiscardEvent, DiscardStatus, Role
from shadowrelay.model.peers import DiscardReply
from shadowrelay.model.queue import NEVER, DeliveredTo, HeldCopy, HeldFor, ShadowGroup, StoredMessage, Untold
from shadowrelay.model.survival import Survival
from shadowrelay.model.values import replace
from shadowrelay.store import counters, rows, tables
from shadowrelay.store.dialect import CrossJoin, by_way_of, compiled, constant, each_value, through
from shadowrelay.store.readers import Reader, one_moment

OLDER_CLAIMS_READ = 10_000  # rows in one step
KEYS_PER_LOOK_UP = 500  # parameters of one statement
STATUSES = {status.value: status for status in DiscardStatus} | {tables.REACHED: DiscardStatus.DELIVERED}
REACHED_MICROSECONDS_MAX = 300 * 1_000_000  # the asker's window for repeated messages begins when it hears of a delivery: not much later
PAGES_KEPT = 64  # statements that need not be built again

_M, _R, _D, _W, _T = tables.MESSAGE.c, tables.RETRY.c, tables.DISCARD.c, tables.WAITING.c, tables.DELIVERED_TO.c
_WANTED = func.json_each(bindparam("wanted")).table_valued("value", name="wanted")
_RETRIES = CrossJoin(tables.RETRY, tables.MESSAGE, _M.internal_id == _R.message)

# On the road of a message, and of every poll: compiled once.
SELECT_MANY = compiled(select(tables.MESSAGE).select_from(CrossJoin(_WANTED, tables.MESSAGE, _M.message_id == _WANTED.c.value)))
SELECT_ENVELOPES = compiled(
    select(_M.internal_id, _M.message_id, _M.recipients_count, _M.arrived_at, _M.envelope).select_from(
        CrossJoin(_WANTED, tables.MESSAGE, _M.message_id == _WANTED.c.value)
    )
)
SELECT_SUBMISSION = compiled(
    through(tables.SUBMISSION, tables.MESSAGE).where(_M.internal_id > bindparam("after")).order_by(_M.internal_id).limit(bindparam("limit"))
)
SELECT_DUE = compiled(
    select(tables.MESSAGE)
    .select_from(_RETRIES)
    .where(_R.next_hop == bindparam("next_hop"), _R.attempts_next_at <= bindparam("now"))
    .order_by(_R.attempts_next_at, _R.message)
    .limit(bindparam("limit"))
)
SELECT_NEXT_DUE = compiled(
    select(_R.attempts_next_at)
    .where(_R.next_hop == bindparam("next_hop"), _R.attempts_next_at > bindparam("after"))
    .order_by(_R.attempts_next_at)
    .limit(constant(1))
)
SELECT_UNPLACED = compiled(  # primary messages with fewer copies than wanted
    through(tables.UNPLACED, tables.MESSAGE).where(_M.internal_id > bindparam("after")).order_by(_M.internal_id).limit(bindparam("limit"))
)
SELECT_NOTICES = compiled(  # messages with a delay notice or an expiry due
    by_way_of(tables.NOTICES, select(tables.MESSAGE).select_from(_RETRIES))
    .where(_R.notice_at <= bindparam("now"))
    .order_by(_R.notice_at)
    .limit(bindparam("limit"))
)
SELECT_RETRIES = compiled(
    select(tables.RETRY).select_from(CrossJoin(_WANTED, tables.RETRY, _R.message == _WANTED.c.value)).order_by(_R.attempts_next_at)
)
_L = tables.LISTING.c
SELECT_WITH_RETRIES = select(func.count()).select_from(  # messages in delivery queues; in the order of the table, which sorts nothing
    select(_R.message).distinct().subquery()
)
SELECT_LISTED_ON_ANY = select(func.count(_L.message.distinct())).select_from(
    CrossJoin(_WANTED, tables.LISTING, _L.server == _WANTED.c.value)
)
SELECT_UNPLACED_ON_ANY = through(tables.UNPLACED, func.count()).where(
    exists(
        select(_L.message).select_from(CrossJoin(_WANTED, tables.LISTING, _L.server == _WANTED.c.value)).where(_L.message == _M.internal_id)
    )
)
_FORK = tables.SHADOW_FORK
SELECT_SHADOW_FORKS = compiled(select(_FORK).select_from(CrossJoin(_WANTED, _FORK, _FORK.c.message == _WANTED.c.value)))
_IS_FOR = and_(_D.asker == bindparam("asker"), _D.asker_database.in_([bindparam("database"), constant(NO_DATABASE)]))
_DISCARDS = (
    select(_D.sequence, _D.message_id, _D.status, _D.ordinals, _D.created_at, _D.next_hop)
    .where(_IS_FOR)
    .order_by(_D.sequence)
    .limit(bindparam("limit"))
)
_NO_FORKS = _D.status != constant(DiscardStatus.FORKS.value)
SELECT_DISCARDS = compiled(_DISCARDS)
SELECT_DISCARDS_BUT_FORKS = compiled(_DISCARDS.where(_NO_FORKS))  # for a server of an older version

# The others.
SELECT_UNTOLD = select(_D.sequence).where(_IS_FOR, _NO_FORKS).limit(1)
SELECT_UNSAID = (
    select(_W.id).where(_W.asker == bindparam("asker"), _W.asker_database.in_([bindparam("database"), constant(NO_DATABASE)])).limit(1)
)
SELECT_PLACED_BY = compiled(  # what it placed here, not what was relayed to it by TRACK
    select(func.count(), func.sum(_M.size), func.sum(_M.recipients_count)).where(
        _M.role == constant("shadow"), _M.primary_server == bindparam("server"), _M.is_kept == constant(0)
    )
)
SELECT_GROUP_SERVERS = each_value(tables.SHADOWS, _M.primary_server)
SELECT_GROUP_DATABASES = each_value(tables.SHADOWS, _M.primary_database, _M.primary_server == bindparam("server"))
SELECT_ANY_HANDED = (
    through(tables.HANDED, _M.internal_id)
    .where(_M.primary_server == bindparam("server"), _M.primary_database == bindparam("database"))
    .limit(1)
)
SELECT_ANY_KEPT = (
    through(tables.KEPT, _M.internal_id)
    .where(_M.primary_server == bindparam("server"), _M.primary_database == bindparam("database"))
    .limit(1)
)
_QUEUE = each_value(tables.BY_NEXT_HOP, _R.next_hop).subquery("queue")
SELECT_QUEUES = select(  # two looks into an index for each queue, however much is in it
    _QUEUE.c.value, select(func.min(_R.attempts_next_at)).where(_R.next_hop == _QUEUE.c.value).scalar_subquery()
)
SELECT_WAITED_FOR = each_value(tables.AWAITED, _R.waits_for)
OF_A_COPY = (_M.internal_id, _M.message_id, _M.keep_until, _M.ownership, _M.placement, _M.number_database)
_SAYS_DELIVERED = _W.status.in_([DiscardStatus.DELIVERED.value, tables.REACHED])
NEVER_DUE = rows.encode_instant(NEVER)  # the forks of suspended messages
Statement = Select[Any] | tuple[str, tuple[Any, ...]]
"""An expression, or compiled text and its parameters."""


def page(statement: Select[Any], after: int, limit: int) -> Select[Any]:
    """These messages by internal id, from behind `after`."""
    return in_order(statement, _M.internal_id, after, limit)


@lru_cache(maxsize=PAGES_KEPT)  # what is polled is empty, so that the same page is asked for again
def in_order(statement: Select[Any], column: ColumnElement[int], after: int, limit: int, *, newest: bool = False) -> Select[Any]:
    """By this column of internal ids, from behind `after`; `newest`: downward, and from the last where `after` is 0."""
    if newest:
        return (statement.where(column < after) if after else statement).order_by(column.desc()).limit(limit)
    return statement.where(column > after).order_by(column).limit(limit)


def listed_on(server: ServerName, after: int, limit: int) -> Select[Any]:
    """Unfinished primary messages of which this server may hold a copy."""
    listing = tables.LISTING.c
    join = CrossJoin(tables.LISTING, tables.MESSAGE, _M.internal_id == listing.message)
    found = select(tables.MESSAGE).select_from(join).where(listing.server == server, listing.message > after)
    return found.order_by(listing.message).limit(limit)


@lru_cache(maxsize=PAGES_KEPT)
def held_for(primary: ServerName, database: DatabaseId, *, handed_only: bool = False, kept: bool | None = None) -> Select[Any]:
    """Shadow messages of a primary server's database. `kept`: only those that were relayed to it by TRACK, or only the others."""
    index = tables.HANDED if handed_only else tables.KEPT if kept else tables.SHADOWS
    found = through(index, tables.MESSAGE).where(_M.primary_server == primary, _M.primary_database == database)
    return found if kept is None or (kept and index is tables.KEPT) else found.where(_M.is_kept == int(kept))


def decode_messages(reader: Reader, many: Iterable[Sequence[Any]]) -> tuple[StoredMessage, ...]:
    """A row that cannot be read becomes a message that is set aside, with an envelope that has only its recipients' number."""
    connection, contents = reader.connection, reader.contents
    decoded, retried, forked = [], [], []
    for columns in many:
        text = columns[rows.ENVELOPE_INDEX]
        row = rows.decode_row((*columns[: rows.ENVELOPE_INDEX], *columns[rows.ENVELOPE_INDEX + 1 :]))
        was_set_aside = columns[rows.ALL.index("role")] == Role.SET_ASIDE
        try:
            if not text:
                envelope = rows.empty_envelope(row.message_id, row.claim.recipients_count, rows.decode_instant(row.arrived_at))
            else:
                envelope = rows.decode_envelope(row.message_id, text)
        except (ValueError, TypeError, KeyError) as error:
            row.set_aside_reason = row.set_aside_reason or f"{rows.CORRUPT_ROW}: {error!r}"
            row.claim = replace(row.claim, role=Role.SET_ASIDE)
            row.due_at = None
            envelope = rows.empty_envelope(row.message_id, row.claim.recipients_count, rows.decode_instant(row.arrived_at))
        if row.claim.role is Role.SET_ASIDE and not was_set_aside:
            reader.corrupt.append((row.message_id, row.set_aside_reason))
        if not contents.has(row.place):
            row.place = None
        if row.retries_count:
            retried.append(row.internal_id)
        if row.forks_count:
            forked.append(row.internal_id)
        decoded.append((row, envelope))
    retries, forks = {}, {}
    if retried:
        retries = rows.decode_retries(fetch(connection, (SELECT_RETRIES, (json.dumps(retried),))))
    if forked:
        forks = rows.decode_forks(fetch(connection, (SELECT_SHADOW_FORKS, (json.dumps(forked),))))
    return tuple(
        [rows.stored_message(row, envelope, retries.get(row.internal_id, ()), forks.get(row.internal_id, ())) for row, envelope in decoded]
    )


def fetch(connection: Connection, statement: Statement) -> Sequence[Sequence[Any]]:
    """All rows."""
    if isinstance(statement, tuple):
        return connection.exec_driver_sql(*statement).fetchall()
    return connection.execute(statement).fetchall()


def found(reader: Reader, statement: Statement) -> tuple[StoredMessage, ...]:
    return decode_messages(reader, fetch(reader.connection, statement))


def readable(messages: tuple[StoredMessage, ...]) -> tuple[StoredMessage, ...]:
    """Without the corrupt ones."""
    return tuple([message for message in messages if message.claim.role is Role.PRIMARY])


def load(reader: Reader, message_id: MessageId) -> StoredMessage | None:
    return next(iter(found(reader, (SELECT_MANY, (json.dumps([message_id]),)))), None)


def load_many(reader: Reader, message_ids: Collection[MessageId]) -> tuple[StoredMessage, ...]:
    """Unknown ones are left out."""
    return found(reader, (SELECT_MANY, (json.dumps(list(message_ids)),))) if message_ids else ()


def envelopes(reader: Reader, message_ids: Collection[MessageId]) -> Mapping[MessageId, tuple[int, Envelope]]:
    """Internal ids and envelopes, of finished messages too; unknown ones are left out. An envelope that cannot be read has only its
    recipients' number."""
    found = {}
    for internal_id, message_id, recipients_count, arrived_at, text in fetch(
        reader.connection, (SELECT_ENVELOPES, (json.dumps(list(message_ids)),))
    ):
        try:
            envelope = rows.decode_envelope(message_id, text)
        except (ValueError, TypeError, KeyError):
            at = rows.decode_instant(rows.whole_number(arrived_at))
            envelope = rows.empty_envelope(message_id, rows.whole_number(recipients_count), at)
        found[message_id] = (internal_id, envelope)
    return found


def submission(reader: Reader, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
    """Decided primary messages in no delivery queue, internal_id > after, ascending, including those whose first delivery is still
    running. A corrupt row is returned as a message that is set aside, so that a page with fewer than `limit` is the last."""
    return found(reader, (SELECT_SUBMISSION, (after, limit)))


def due(reader: Reader, next_hop: str, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
    """Messages with a due fork in this queue, oldest due time first. Corrupt rows as in `submission`."""
    return found(reader, (SELECT_DUE, (next_hop, rows.encode_instant(now), limit)))


def notices_due(reader: Reader, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
    """Messages with a fork whose `notice_at` is due, oldest first."""
    return readable(found(reader, (SELECT_NOTICES, (rows.encode_instant(now), limit))))


def unplaced(reader: Reader, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
    """Decided primary messages, not done, with fewer copies than wanted; internal_id > after, ascending; an empty page is the end."""
    while True:
        page_found = found(reader, (SELECT_UNPLACED, (after, limit)))
        wanted = tuple([message for message in readable(page_found) if not message.claim.is_done])
        if wanted or len(page_found) < limit:
            return wanted
        after = page_found[-1].internal_id


def primaries_listed_on(reader: Reader, server: ServerName, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
    """Unfinished primary messages with `server` on their list, internal_id > after, ascending."""
    return found(reader, listed_on(server, after, limit))


def shadows_of(
    reader: Reader,
    primary: ServerName,
    database: DatabaseId,
    limit: int,
    after: int = 0,
    *,
    handed_only: bool = False,
    kept: bool | None = None,
) -> tuple[StoredMessage, ...]:
    """Shadow messages held for this database of a primary server. `kept`: only those that were relayed to it by TRACK, or only the
    others."""
    return found(reader, page(held_for(primary, database, handed_only=handed_only, kept=kept), after, limit))


def delivered(keys: Sequence[bytes], earliest: int, latest: int) -> Select[Any]:
    """Recorded deliveries after `earliest`, up to `latest`."""
    at = _T.delivered_at
    return select(_T.key, _T.message_id, at).where(_T.key.in_(keys), at > earliest, at <= latest)


def delivered_before(reader: Reader, keys: Collection[bytes], earliest: datetime, latest: datetime) -> Mapping[bytes, DeliveredTo]:
    """Deliveries recorded with these keys, of any number, after `earliest`, up to `latest`."""
    wanted, found, at_first, at_last = list(keys), {}, rows.encode_instant(earliest), rows.encode_instant(latest)
    for start in range(0, len(wanted), KEYS_PER_LOOK_UP):
        statement = delivered(wanted[start : start + KEYS_PER_LOOK_UP], at_first, at_last)
        for key, message_id, at in fetch(reader.connection, statement):
            found[key] = DeliveredTo(MessageId(message_id), rows.decode_instant(at))
    return found


def next_due_at(reader: Reader, next_hop: str, after: datetime) -> datetime | None:
    """The earliest due time after `after` in this queue."""
    value = reader.connection.exec_driver_sql(SELECT_NEXT_DUE, (next_hop, rows.encode_instant(after))).scalar()
    return rows.decode_instant(value) if isinstance(value, int) and value < NEVER_DUE else None


def delivery_queues(reader: Reader) -> Mapping[str, datetime]:
    """The next hops of all that waits, and when the first of each is due. For the start."""
    found = reader.connection.execute(SELECT_QUEUES).fetchall()
    return {str(next_hop): rows.decode_instant(int(due_at)) for next_hop, due_at in found if due_at < NEVER_DUE}


QUEUES_PROVED_MAX = 5


def proof(reader: Reader, now: datetime) -> None:
    """Read what deliveries and takeovers begin with, to see whether it can be read."""
    for next_hop in tuple(delivery_queues(reader))[:QUEUES_PROVED_MAX]:
        due(reader, next_hop, now, 1)
    shadow_groups(reader)


def waited_for(reader: Reader) -> tuple[ServerName, ...]:
    """The servers that forks wait for."""
    return tuple(map(ServerName, reader.connection.scalars(SELECT_WAITED_FOR).all()))


def submission_count(reader: Reader) -> int:
    """Messages in the queue Submission."""
    return max(int(reader.connection.scalar(counters.SELECT_ONE, {"kind": counters.SUBMISSION, "name": ""}) or 0), 0)


def listed_counts(reader: Reader) -> Mapping[ServerName, int]:
    """For each server, how many unfinished primary messages have it on their list."""
    return {ServerName(name): count for name, _, count, _ in counters.of_kind(reader.connection, counters.LISTED)}


def discard_counts(reader: Reader) -> Mapping[ServerName, int]:
    """For each server, how many discard notifications it has not fetched yet."""
    found: dict[ServerName, int] = {}
    for name, _, count, _ in counters.of_kind(reader.connection, counters.DISCARD):
        asker = ServerName(name.partition(" ")[0])
        found[asker] = found.get(asker, 0) + count
    return found


def older_claims(reader: Reader, after: int) -> tuple[tuple[MessageId, ...], int]:
    """Messages that this node claims since before its database was renamed, under a number of another database of its own, with internal
    ids above `after`; and up to which id was read: it is `identity.older_until` at the end."""
    identity = reader.state.identity
    is_claimed = or_(
        _M.role.in_([Role.PRIMARY.value, Role.HANDED_OVER.value]), and_(_M.role == Role.SET_ASIDE.value, _M.primary_server == "")
    )
    is_older = and_(is_claimed, _M.number_database != identity.database).label("is_older")
    rows_of_page = select(_M.internal_id, _M.message_id, is_older).where(_M.internal_id > after, _M.internal_id <= identity.older_until)
    many = reader.connection.execute(rows_of_page.order_by(_M.internal_id).limit(OLDER_CLAIMS_READ)).fetchall()
    found = tuple([MessageId(message_id) for _, message_id, wanted in many if wanted])
    return found, int(many[-1][0]) if len(many) == OLDER_CLAIMS_READ else identity.older_until


def copies_of(reader: Reader, primary: ServerName, database: DatabaseId, limit: int, after: int = 0) -> tuple[HeldCopy, ...]:
    """As `shadows_of`, with only the fields that STATUS questions need. A corrupt number is asked about as it stands: the answer finds the
    row, and sets it aside."""
    many = fetch(reader.connection, page(held_for(primary, database), after, limit).with_only_columns(*OF_A_COPY))
    return tuple(
        [
            HeldCopy(internal_id, MessageId(message_id), CopyNumber(*number), rows.decode_instant(keep_until))
            for internal_id, message_id, keep_until, *number in many
        ]
    )


def placed_by(reader: Reader, server: ServerName) -> HeldFor:
    """What this peer has placed here, in whichever of its databases."""
    ((count, octets, recipients),) = reader.connection.exec_driver_sql(SELECT_PLACED_BY, (server,)).fetchall()
    return HeldFor(count, octets or 0, recipients or 0)


def shadow_groups(reader: Reader) -> tuple[ShadowGroup, ...]:
    """The groups come from the index, one look-up for each, because takeovers depend on them; their sizes come from the counters."""
    counts = {(name, number): count for name, number, count, _ in counters.of_kind(reader.connection, counters.SHADOW)}
    found: list[ShadowGroup] = []
    for server in reader.connection.scalars(SELECT_GROUP_SERVERS).all():
        for database in reader.connection.scalars(SELECT_GROUP_DATABASES, {"server": server}).all():
            of_group, name = {"server": server, "database": database}, f"{server} {database}"
            numbers = [counts.get((name, number), 0) for number in range(8)]
            handed = kept = handed_kept = 0
            if reader.connection.scalar(SELECT_ANY_HANDED, of_group) is not None:
                handed, handed_kept = max(sum(numbers[1::2]), 1), sum(numbers[5::2])
            if reader.connection.scalar(SELECT_ANY_KEPT, of_group) is not None:
                kept = max(sum(numbers[4:]), 1)
            count = max(sum(numbers[::2]) + handed, kept, 1)
            found.append(ShadowGroup(ServerName(server), DatabaseId(database), count, handed, kept, handed_kept))
    return tuple(found)


def survival(reader: Reader, servers: Sequence[ServerName]) -> Survival:
    """Of the unfinished primary messages, how many none of these servers may have a copy of. Counters say how many there are, and the
    index by server which of them are listed there."""
    with one_moment(reader.connection):
        counted = [counters.of_kind(reader.connection, kind) for kind in (counters.SUBMISSION, counters.POISON, counters.HANDED_OVER)]
        count = sum(messages for found in counted for _, _, messages, _ in found) + int(reader.connection.scalar(SELECT_WITH_RETRIES) or 0)
        named = {"wanted": json.dumps(list(servers))}
        kept = (
            listed_counts(reader).get(servers[0], 0)
            if len(servers) == 1
            else int(reader.connection.scalar(SELECT_LISTED_ON_ANY, named) or 0)
        )
        uncertain = int(reader.connection.scalar(SELECT_UNPLACED_ON_ANY, named) or 0)
    return Survival(count, max(count - kept, 0), uncertain)


def discards_for(reader: Reader, asker: ServerName, database: DatabaseId, maximum: int, now: int, *, with_forks: bool) -> DiscardReply:
    """The first notifications, ascending, without those that wait for a generated message's copy; see `Ledger.discards_for`."""
    many = fetch(reader.connection, (SELECT_DISCARDS if with_forks else SELECT_DISCARDS_BUT_FORKS, (asker, database, maximum)))
    remaining = 0
    if len(many) == maximum:
        remaining = max(0, counters.discards(reader.connection, asker, {database, NO_DATABASE}) - len(many))
    events = []
    for sequence, message_id, status, ordinals, created_at, next_hop in many:
        try:
            is_reached = status == tables.REACHED and abs(now - created_at) <= REACHED_MICROSECONDS_MAX
            decoded = rows.decode_ordinals(ordinals)
            events.append(DiscardEvent(sequence, MessageId(message_id), STATUSES[status], decoded, next_hop, is_reached))
        except (ValueError, KeyError):  # a corrupt row is skipped; STATUS will answer instead
            continue
    return DiscardReply(tuple(events), remaining)


def has_unacknowledged(reader: Reader, asker: ServerName, database: DatabaseId) -> bool:
    """Whether this asker, in this database, has unacknowledged notifications, besides forks, those included that wait for the copy of a
    DSN. Does not count as a poll."""
    of_asker = {"asker": asker, "database": database}
    return any(reader.connection.scalar(question, of_asker) is not None for question in (SELECT_UNTOLD, SELECT_UNSAID))


def unreported(reader: Reader, message_id: MessageId) -> Ordinals:
    """Recipients that are done but must not be reported to any peer yet, because their DSNs are on this disk only. A corrupt row is
    skipped: the notification will report its recipients later."""
    found = NO_ORDINALS
    for ordinals in reader.connection.scalars(select(_W.ordinals).where(_W.message_id == message_id, _SAYS_DELIVERED)):
        with suppress(ValueError):
            found |= rows.decode_ordinals(ordinals)
    return found


def unreported_of(reader: Reader, message_ids: Collection[MessageId]) -> Mapping[MessageId, Ordinals]:
    """The same for many messages; only those that have any. Empty ordinals mean all recipients that are done."""
    found: dict[MessageId, Ordinals] = {}
    statement = select(_W.message_id, _W.ordinals).where(_W.message_id.in_(message_ids), _SAYS_DELIVERED)
    for message_id, ordinals in reader.connection.execute(statement).fetchall():
        with suppress(ValueError):
            decoded, before = rows.decode_ordinals(ordinals), found.get(message_id)
            found[message_id] = NO_ORDINALS if not decoded or before == NO_ORDINALS else decoded | (before or NO_ORDINALS)
    return found


def awaited(reader: Reader, message_id: MessageId) -> tuple[MessageId, ...]:
    """The generated messages for whose copies, or end, the notifications about this message wait."""
    found = reader.connection.execute(select(_W.side, _W.more_sides).where(_W.message_id == message_id).order_by(_W.id)).fetchall()
    return tuple(dict.fromkeys(MessageId(side) for first, more in found for side in (first, *more.split())))


def untold(reader: Reader) -> Untold | None:
    """The messages about which notifications wait so; None: there are none."""
    oldest = reader.connection.execute(select(_W.message_id, _W.side, _W.created_at).order_by(_W.id).limit(1)).first()
    if oldest is None:
        return None
    message_id, generated, since = oldest
    count = reader.connection.scalar(select(func.count(_W.message_id.distinct())))
    return Untold(count or 0, rows.decode_instant(since), MessageId(message_id), MessageId(generated))


def acknowledged(reader: Reader, primary: ServerName, database: DatabaseId, incarnation: int) -> int:
    """The highest sequence committed from that primary in that database and incarnation; 0 for none."""
    known = tables.ACKNOWLEDGED.c
    key = (known.primary_server == primary, known.database == database, known.incarnation == incarnation)
    return int(reader.connection.scalar(select(known.sequence).where(*key)) or 0)
