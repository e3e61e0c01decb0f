"""The promises about messages, as functions on a `Work`: they run inside the transaction, on the event loop's
thread or, when that takes long or failed there, on the writer's.

Each decides everything first and changes the `Work` afterwards: a `decide` that raises must leave nothing behind.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from shadowrelay.core.ownership.primary import released_acknowledged
from shadowrelay.core.ownership.values import Party
from shadowrelay.model.errors import LedgerUnavailable
from shadowrelay.model.ids import NO_DATABASE, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Content, ContentPlace
from shadowrelay.model.ownership import Claim, DiscardEvent, DiscardStatus, Role, Transition
from shadowrelay.model.queue import AttemptRecord, NewMessage, SideMessage, StoredMessage
from shadowrelay.model.replies import LOCAL_ERROR
from shadowrelay.ports import Decide
from shadowrelay.store import codec, prepared, tables
from shadowrelay.store.rows import Row, stored_message
from shadowrelay.store.work import Work

UPSERT_ACKNOWLEDGED = prepared.insertion(
    tables.ACKNOWLEDGED, conflict="ON CONFLICT DO UPDATE SET sequence = max(sequence, excluded.sequence)"
)
Placed = tuple[Content, ContentPlace | None]
"""A content and, where it is a file, its place already."""


def accepted(work: Work, message: NewMessage, placed: Placed, decided: bool) -> StoredMessage:
    if work.rows.get(message.envelope.message_id) is not None:
        raise LedgerUnavailable(LOCAL_ERROR, f"{message.envelope.message_id} is there already")
    row = work.insert(message, work.keep(*placed), is_decided=decided)
    return stored_message(row, message.envelope, ())


def hold(work: Work, message: NewMessage, placed: Placed, decide: Decide) -> Transition:
    """Whether the content was kept: see `is_kept`."""
    message_id = message.envelope.message_id
    row = work.row(message_id)
    before = None if row is None else row.claim
    transition = decide(message_id, before)
    if is_kept(transition):
        if row is not None:
            work.delete(row)  # a copy placed anew brings its envelope and content with it
        assert transition.after is not None
        fresh = NewMessage(message.envelope, transition.after, message.origin, None, message.keep_until)
        work.insert(fresh, work.keep(*placed), is_decided=True)
    elif transition.changed:
        work.apply(message_id, transition)
    work.tell(message_id, transition)
    return transition


def is_kept(transition: Transition) -> bool:
    """Whether `record_hold` stores the content that came with it."""
    after = transition.after
    return after is not None and after.role is Role.SHADOW and after != transition.before


def transition_of(work: Work, message_ids: Sequence[MessageId], decide: Decide) -> tuple[Transition, ...]:
    work.preload(message_ids)
    claims: dict[MessageId, Claim | None] = {}
    transitions = []
    for message_id in message_ids:
        transition = decide(message_id, claims[message_id] if message_id in claims else work.claim(message_id))
        claims[message_id] = transition.after
        transitions.append(transition)
    for message_id, transition in zip(message_ids, transitions, strict=True):
        if transition.changed:
            work.apply(message_id, transition)
            work.tell(message_id, transition)
    return tuple(transitions)


def verdict(work: Work, message_id: MessageId, decide: Decide) -> Transition:
    transition = decide(message_id, work.claim(message_id))
    row = work.apply(message_id, transition)
    if row is not None and not row.is_decided:
        row.is_decided = True
        work.changed(row)
    work.tell(message_id, transition)
    return transition


def attempt(work: Work, record: AttemptRecord, places: Sequence[ContentPlace | None], decide: Decide) -> Transition:
    message_id = record.message_id
    transition = decide(message_id, work.claim(message_id))
    sides = [_side(work, side, place) for side, place in zip(record.sides, places, strict=True)]
    keep_until, remember_until = codec.encode_instant(record.keep_until), codec.encode_instant(record.remember_until)
    changed = work.apply(message_id, transition, keep_until=keep_until, remember_until=remember_until)
    if changed is not None and changed.claim.role is Role.PRIMARY:
        work.replace_retries(changed, record.retries)
        changed.due_at = None if record.due_at is None else codec.encode_instant(record.due_at)
        changed.deaths_count = 0  # an attempt was survived: what killed the process was another message
        changed.is_decided = True  # nothing is attempted before the verdict, which may come in this very commit
        work.changed(changed)
    waited_for = [row for row in sides if transition.tell and row.claim.role is Role.PRIMARY and not row.is_placed]
    for row in waited_for:
        row.is_awaited = True
        work.changed(row)
    work.tell(message_id, transition, [row.message_id for row in waited_for])
    return transition


def _side(work: Work, side: SideMessage, place: ContentPlace | None) -> Row:
    """The same DSN has the same id on whichever server makes it, so it may be here already, and then is not made again."""
    row = work.row(side.message.envelope.message_id)
    if row is None:
        return work.insert(side.message, work.keep(side.content, place), is_decided=True)
    if place is not None:
        work.large_gone.append(place.offset)
    return row


def discards(
    work: Work,
    primary: ServerName,
    database: DatabaseId,
    incarnation: int,
    events: Sequence[DiscardEvent],
    decide: Callable[[DiscardEvent, Claim | None], Transition],
    keep_until: datetime,
) -> tuple[Transition, ...]:
    work.preload([event.message_id for event in events])
    claims: dict[MessageId, Claim | None] = {}
    transitions = []
    for event in events:
        message_id = event.message_id
        transition = decide(event, claims[message_id] if message_id in claims else work.claim(message_id))
        claims[message_id] = transition.after
        transitions.append(transition)
    kept = codec.encode_instant(keep_until)
    for event, transition in zip(events, transitions, strict=True):
        if transition.changed:
            work.apply(event.message_id, transition, keep_until=kept)
            work.tell(event.message_id, transition)
    if events:
        work.changes_count += 1
        UPSERT_ACKNOWLEDGED.execute(work, [(primary, database, incarnation, max(event.sequence for event in events))])
    return tuple(transitions)


def forget_acknowledged(
    work: Work, asker: ServerName, database: DatabaseId, sequence: int, decide: Decide | None
) -> tuple[Transition, ...]:
    reached = (asker, sequence, database, NO_DATABASE)
    where = "WHERE asker = ? AND sequence <= ? AND asker_database IN (?, ?)"
    released = work.connection.exec_driver_sql(
        f"SELECT DISTINCT message_id FROM discard {where} AND status = ?", (*reached, DiscardStatus.RELEASED.value)
    ).fetchall()
    ids = [MessageId(message_id) for (message_id,) in released]
    work.preload(ids)
    known = [message_id for message_id in ids if work.row(message_id) is not None]

    def without_lease(_: MessageId, claim: Claim | None) -> Transition:
        return released_acknowledged(claim, Party(asker, database), lease_runs=False)

    transitions = transition_of(work, known, decide or without_lease)
    work.changes_count += 1
    work.connection.exec_driver_sql(f"DELETE FROM discard {where}", reached)
    return transitions


def due(work: Work, message_id: MessageId, due_at: datetime) -> None:
    row = work.row(message_id)
    if row is not None and row.claim.role is Role.PRIMARY:
        row.due_at = codec.encode_instant(due_at)
        work.changed(row)


def side_released(work: Work, message_id: MessageId) -> None:
    row = work.row(message_id)
    if row is None:
        work.changes_count += 1
        work.sides_ready.append(message_id)
    elif row.is_awaited:
        work.release_side(row)


def set_aside(work: Work, message_id: MessageId, reason: str) -> None:
    row = work.row(message_id)
    if row is None or row.claim.role not in (Role.PRIMARY, Role.SHADOW, Role.SET_ASIDE):
        return
    work.apply(message_id, Transition(row.claim, replace(row.claim, role=Role.SET_ASIDE)))
    row.set_aside_reason = reason
    work.changed(row)


def died(work: Work, message_ids: Sequence[MessageId]) -> None:
    """The process died while it worked on these."""
    work.preload(message_ids)
    for message_id in message_ids:
        row = work.row(message_id)
        if row is not None and row.claim.role in (Role.PRIMARY, Role.SHADOW):
            row.deaths_count += 1
            work.changed(row)
