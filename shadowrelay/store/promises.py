"""What the ledger promises about messages and queues, as functions on a `UnitOfWork`. docs/design.md 3, 9.

`ledger.commit(promises.verdict, message_id, decide)` returns after the commit that contains it is synced, and raises `LedgerUnavailable`
(nothing was stored) or what the function raised. `commit.py` runs several in one transaction. They run inside the transaction, on the event
loop's thread or, if that takes long or failed there, on the writer's. Each decides everything first and changes the `UnitOfWork`
afterwards, so that a `decide` that raises leaves nothing behind. `peer_promises` has those about peers, `expiry` what removes rows.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from types import MappingProxyType

from sqlalchemy import and_, bindparam, delete, func, select, tuple_, update

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Content, ContentPlace, Ordinals
from shadowrelay.model.ownership import Claim, Decide, DiscardEvent, DiscardStatus, Notification, Role, Transition
from shadowrelay.model.queue import SUSPENDED, AttemptRecord, ForkRetry, GeneratedMessage, NewMessage, StoredMessage, Suspension
from shadowrelay.model.replies import LOCAL_ERROR, LedgerUnavailable, RequestRefused
from shadowrelay.model.values import replace
from shadowrelay.ownership.claims import generated_claim
from shadowrelay.ownership.rules import Outcome
from shadowrelay.rules.delivery import LadderStep
from shadowrelay.store import counters, rows, tables
from shadowrelay.store.commit import ITSELF, promise
from shadowrelay.store.content import Handing
from shadowrelay.store.dialect import compiled, constant, upsert
from shadowrelay.store.rows import LARGE, NEEDS_CONTENT, Row
from shadowrelay.store.work import UnitOfWork, write_retries
from shadowrelay.store.writing import put_back

_R, _D, _W = tables.RETRY.c, tables.DISCARD.c, tables.WAITING.c
UPSERT_ACKNOWLEDGED = upsert(tables.ACKNOWLEDGED, lambda new: {"sequence": func.max(tables.ACKNOWLEDGED.c.sequence, new.sequence)})
_FORK = tuple_(_R.message, _R.next_hop)
_FORKS = select(_R.message, _R.next_hop).limit(bindparam("limit")).correlate(None)  # not the rows of the UPDATE around it
WAKE = (
    update(tables.RETRY)
    .where(_FORK.in_(_FORKS.where(_R.waits_for == bindparam("server"), _R.waits_for != constant(""))))
    .values(attempts_next_at=bindparam("now"), waits_for="")
    .returning(_R.next_hop)
)
_LATER = _FORKS.where(_R.next_hop == bindparam("queue"), _R.attempts_next_at > bindparam("latest_at"))
_AT_STEP = and_(_R.kind == bindparam("step"), _R.failures_count.between(bindparam("failures_min"), bindparam("failures_max")))
HASTEN = (
    update(tables.RETRY)
    .where(_FORK.in_(_LATER.where(_R.waits_for == constant(""), _AT_STEP)))
    .values(attempts_next_at=bindparam("latest_at"))
)
HASTEN_WAITING = (
    update(tables.RETRY)
    .where(_FORK.in_(_LATER.where(_R.waits_for.not_in([constant(""), constant(SUSPENDED)]))))
    .values(attempts_next_at=bindparam("latest_at"))
)
_REACHED = and_(
    _D.asker == bindparam("asker"),
    _D.asker_database.in_([bindparam("database"), constant(NO_DATABASE)]),
    _D.sequence <= bindparam("sequence"),
)
SELECT_REACHED = compiled(select(_D.message_id, _D.status, _D.asker_database).where(_REACHED).order_by(_D.sequence))
DELETE_REACHED = compiled(delete(tables.DISCARD).where(_REACHED))
UPSERT_SUSPENDED = upsert(tables.SUSPENDED_QUEUE, lambda new: {"suspended_at": new.suspended_at, "suspended_by": new.suspended_by})
SUSPENDED_QUEUES_MAX = 10_000
NO_KEYS: Mapping[MessageId, Mapping[int, bytes]] = MappingProxyType({})


def _of_messages(message_ids: Sequence[MessageId], *_: object, **__: object) -> Sequence[MessageId]:
    return message_ids


@promise(handing=Handing.GIVEN)
def accepted(work: UnitOfWork, message: NewMessage, content: Content, *, decided: bool) -> StoredMessage:
    """A new primary message; `message.claim.copies` names the first server. `decided` False: the verdict follows. A file of `content` is
    handed over by the call. The commit goes on while the caller does something else."""
    if work.rows.get(message.envelope.message_id) is not None:
        raise LedgerUnavailable(LOCAL_ERROR, f"{message.envelope.message_id} is there already")
    row = work.insert(message, work.store_content(content), is_decided=decided)
    if row.place is not None and content.data is not None:
        work.after_commit.append(partial(work.state.contents.recent.put, row.place, content.data))
    return StoredMessage(
        row.internal_id, message.envelope, message.claim, message.origin, row.place, message.due_at,
        is_decided=decided, keep_until=message.keep_until,
    )  # fmt: skip


def stores_copy(transition: Transition) -> bool:
    """Whether `hold` stores the content that came with it."""
    after = transition.after
    return after is not None and after.role is Role.SHADOW and after != transition.before


@promise(about=attrgetter("envelope.message_id"), handing=Handing.GIVEN, is_kept=stores_copy)
def hold(work: UnitOfWork, message: NewMessage, content: Content, decide: Decide) -> Transition:
    """A shadow copy. `decide` receives the current claim. If `after` is a shadow claim other than `before`, the message is inserted or
    replaced, with this envelope and content. Else a change is applied to the message that is here, and the content is dropped; `answer` is
    set if the copy is superseded."""
    message_id = message.envelope.message_id
    row = work.row(message_id)
    before = None if row is None else row.claim
    transition = decide(message_id, before)
    if stores_copy(transition):
        if row is not None:
            work.delete(row)  # a copy placed anew brings its envelope and content with it
        assert transition.after is not None
        fresh = NewMessage(message.envelope, transition.after, message.origin, None, message.keep_until)
        work.insert(fresh, work.store_content(content), is_decided=True)
    elif transition.changed:
        work.apply(message_id, transition)
    work.tell(message_id, transition)
    return transition


@promise(wants=_of_messages)
def transition(work: UnitOfWork, message_ids: Sequence[MessageId], decide: Decide) -> tuple[Transition, ...]:
    """Read, decide and write each claim. `tell` becomes discard notifications. Copies, done, number, role, asked, handed are stored from
    `after`. `after is None` deletes the row. A claim that turns PRIMARY (promotion) becomes due now; one that turns DELIVERED or RELEASED
    loses its retries."""
    work.preload(message_ids)
    claims: dict[MessageId, Claim | None] = {}
    transitions = []
    for message_id in message_ids:
        done = decide(message_id, claims[message_id] if message_id in claims else work.claim(message_id))
        claims[message_id] = done.after
        transitions.append(done)
    for message_id, done in zip(message_ids, transitions, strict=True):
        if done.changed:
            work.apply(message_id, done)
            work.tell(message_id, done)
    return tuple(transitions)


@promise(wants=_of_messages)
def kept_longer(work: UnitOfWork, message_ids: Sequence[MessageId], keep_until: datetime) -> None:
    """Their primary server needs these shadow messages: they do not expire before then."""
    work.preload(message_ids)
    until = rows.encode_instant(keep_until)
    for message_id in message_ids:
        row = work.row(message_id)
        if row is not None and row.claim.role is Role.SHADOW and row.keep_until < until:
            row.keep_until = until
            row.remember_until = max(row.remember_until, until)
            work.changed(row)


@promise(about=ITSELF)
def verdict(work: UnitOfWork, message_id: MessageId, decide: Decide) -> Transition:
    """`transition` of one message that also records the accept verdict (`is_decided`)."""
    transition = decide(message_id, work.claim(message_id))
    row = work.apply(message_id, transition)
    if row is not None and not row.is_decided:
        row.is_decided = True
        work.changed(row)
    work.tell(message_id, transition)
    return transition


def _with_attempt(record: AttemptRecord, *_: object, **__: object) -> Sequence[tuple[Content, Handing]]:
    if not record.generated and record.kept_content is None:
        return ()
    files = [(generated.content, Handing.GIVEN) for generated in record.generated if generated.content.path is not None]
    if record.kept_content is not None and record.kept_content.path is not None:
        files.append((record.kept_content, Handing.LENT))
    return files


@promise(about=attrgetter("message_id"), files=_with_attempt)
def attempt(work: UnitOfWork, record: AttemptRecord, decide: Decide) -> Transition:
    """Outcomes, generated messages and their notifications. Notifications of ordinals whose DSN is in `generated` wait until that message
    has a chosen copy, is done, or is removed. If this process handled the content and did not die, another message caused the earlier
    deaths, and they are forgotten."""
    message_id = record.message_id
    row = work.row(message_id)
    claim = None if row is None else row.claim
    transition = decide(message_id, claim)
    if record.delivered:
        work.changes_count += 1
        for key in record.delivered:
            work.delivered.append((key, work.now_microseconds, message_id))
    blocking: list[Row] = []
    if record.generated:
        blocking = [_generated(work, generated, claim) for generated in record.generated]
    for kept in record.kept:
        if record.kept_content is not None:
            place = None if record.kept_content.path is None else work.places.get(record.kept_content.path)
        else:
            place = None if row is None else row.place
        _keep_shadow(work, kept, place)
    keep_until, remember_until = rows.encode_instant(record.keep_until), rows.encode_instant(record.remember_until)
    keeps_content = row is None or bool(record.kept) or rows.may_be_resubmitted(row.deliveries, record)
    changed = work.apply(message_id, transition, keep_until=keep_until, remember_until=remember_until, keeps_content=keeps_content)
    if changed is not None and changed.claim.role is Role.PRIMARY:
        _requeue(work, changed, record)
        if message_id in work.state.survived:
            changed.deaths_count = 0
            work.after_commit.append(partial(work.state.survived.discard, message_id))
        changed.is_decided = True  # nothing is attempted before the verdict, which may come in this very commit
        work.changed(changed)
    if record.sent and changed is not None:
        # The time of this commit: so no delivery is ever added to an interval that is already over.
        changed.delivered_at = work.now_microseconds
        changed.deliveries += rows.encode_delivery(work.now_microseconds, record.next_hop, record.sent, record.is_inside)
        if message_id not in work.dirty:
            work.changed(changed)
    waited_for = [row for row in blocking if not row.is_safe] if blocking else []
    told = transition
    if waited_for and not any(notification.status is DiscardStatus.DELIVERED for notification in transition.tell):
        # No server has to be notified now. But a server that gets a copy, or asks, must not learn of these recipients, or that the
        # message is done, before the generated messages are safe.
        unreported = Notification(NO_SERVER, NO_DATABASE, DiscardStatus.DELIVERED, record.done)
        told = replace(transition, tell=(*transition.tell, unreported))
    for row in waited_for:
        row.blocks_notifications = True
        work.changed(row)
    work.tell(message_id, told, [row.message_id for row in waited_for] if waited_for else ())
    return transition


def _requeue(work: UnitOfWork, row: Row, record: AttemptRecord) -> None:
    """Put what is left of this fork into its queue. A message either has no row in any queue, and then it is in Submission with all undone
    recipients; or it has one row for each undone fork, including a fork that is being attempted."""
    retries = dict(work.retries_of(row))
    was_queued = bool(retries)
    retries.pop(record.next_hop, None)
    if record.retry is not None:
        retries[record.next_hop] = record.retry
        if not was_queued:
            retries |= {other.next_hop: other for other in record.others}
    done = row.claim.done
    if done:
        retries = {key: _undone(retry, done) for key, retry in retries.items() if not retry.ordinals <= done}
    work.replace_retries(row, retries)


def _undone(retry: ForkRetry, done: Ordinals) -> ForkRetry:
    return replace(retry, ordinals=retry.ordinals - done) if retry.ordinals & done else retry


@promise(about=ITSELF)
def queued(
    work: UnitOfWork, message_id: MessageId, retries: Sequence[ForkRetry], gone: Sequence[str] = (), decide: Decide | None = None
) -> None:
    """Put these forks into their queues, and take the message out of the queues `gone`. The given and the queued forks together must cover
    all undone recipients. `decide` is a verdict that was not recorded yet.

    The caller read the message some time ago. A fork that was queued or attempted since then keeps its failures; if it is due, it gets the
    due time of the given one.
    """
    if decide is not None:
        verdict(work, message_id, decide)
    row = work.row(message_id)
    if row is None or row.claim.role is not Role.PRIMARY:
        return
    now = rows.decode_instant(work.now_microseconds)
    wanted = {key: retry for key, retry in work.retries_of(row).items() if key not in gone}
    for retry in retries:
        present = wanted.get(retry.next_hop)
        if present is not None:
            wanted[retry.next_hop] = _waiting(present, retry, now)
        elif not retry.ordinals <= row.claim.done:
            wanted[retry.next_hop] = _undone(retry, row.claim.done)
    row.is_decided = True
    work.replace_retries(row, wanted)


def _waiting(present: ForkRetry, given: ForkRetry, now: datetime) -> ForkRetry:
    if present.attempts_next_at > now or given.attempts_next_at <= now:
        return present
    last_reply = given.last_reply or present.last_reply
    return replace(
        present, attempts_next_at=given.attempts_next_at, waits_for=given.waits_for, notice_at=given.notice_at, last_reply=last_reply
    )


@promise(is_heavy=True)
def wake(work: UnitOfWork, server: ServerName, limit: int) -> dict[str, int]:
    """Forks that wait for this server are due now: how many, by next hop; at most `limit`."""
    write_retries(work)
    found = work.connection.scalars(WAKE, {"now": work.now_microseconds, "server": server, "limit": limit}).all()
    if found:
        work.changes_count += 1
    counts: dict[str, int] = {}
    for next_hop in found:
        counts[next_hop] = counts.get(next_hop, 0) + 1
    return counts


@promise(is_heavy=True)
def hasten(work: UnitOfWork, next_hop: str, step: LadderStep | None, latest_at: datetime, limit: int) -> int:
    """Forks in this queue and at this step of the ladder that are due after `latest_at` become due then, at most `limit`. Without a step:
    those that wait for a server or a copy. Returns how many."""
    write_retries(work)
    parameters = {"queue": next_hop, "latest_at": rows.encode_instant(latest_at), "limit": limit}
    if step is None:
        done = work.connection.execute(HASTEN_WAITING, parameters)
    else:
        at_step = {"step": step.kind.value, "failures_min": step.failures_min, "failures_max": step.failures_max}
        done = work.connection.execute(HASTEN, parameters | at_step)
    count = done.rowcount
    if count:
        work.changes_count += 1
    return count


@promise(about=ITSELF)
def suspended(work: UnitOfWork, message_id: MessageId, suspension: Suspension | None, forks: Sequence[ForkRetry] = ()) -> tuple[str, ...]:
    """Suspend a decided primary message: none of its forks is due until it is resumed (`None`), and then all are due now. `forks` are for
    a message in no queue. The next hops of its forks; empty: nothing changed. Raises: RequestRefused for any other message. A claim that
    ends, and a message set aside, are suspended no more."""
    row = work.row(message_id)
    if row is None or row.claim.role is not Role.PRIMARY or not row.is_decided:
        raise RequestRefused("it changed at this moment: look at it again")
    if (row.suspended_at is None) is (suspension is None):
        return ()
    row.suspended_at = None if suspension is None else rows.encode_instant(suspension.since)
    row.suspended_by = "" if suspension is None else suspension.by
    retries = work.retries_of(row) or {
        fork.next_hop: _undone(fork, row.claim.done) for fork in forks if not fork.ordinals <= row.claim.done
    }
    work.replace_retries(row, retries)
    work.changed(row)
    return tuple(retries)


@promise(about=ITSELF)
def resubmitted(work: UnitOfWork, message_id: MessageId) -> tuple[str, ...]:
    """Make the forks of a primary message due now, except those that wait for a server, a copy or an administrator. The next hops of its
    forks."""
    row = work.row(message_id)
    if row is None or row.claim.role is not Role.PRIMARY:
        return ()
    retries = work.retries_of(row)
    due = {
        key: retry if retry.waits_for else replace(retry, attempts_next_at=min(retry.attempts_next_at, work.now))
        for key, retry in retries.items()
    }
    if due != retries:
        work.replace_retries(row, due)
    return tuple(due)


@promise()
def queue_suspended(work: UnitOfWork, next_hop: str, suspension: Suspension | None) -> bool:
    """Remember that an administrator suspended this delivery queue, or resumed it (`None`). False: it was already. Raises: RequestRefused
    if too many are."""
    known = work.state.suspended_queues
    before = known.get(next_hop)
    if (before is None) is (suspension is None):
        return False
    if suspension is None:
        work.connection.execute(delete(tables.SUSPENDED_QUEUE).where(tables.SUSPENDED_QUEUE.c.next_hop == next_hop))
        known.pop(next_hop)
    else:
        if len(known) >= SUSPENDED_QUEUES_MAX:
            raise RequestRefused(f"{SUSPENDED_QUEUES_MAX} queues are suspended already")
        work.execute_many(UPSERT_SUSPENDED, [(next_hop, rows.encode_instant(suspension.since), suspension.by)])
        known[next_hop] = suspension
    work.changes_count += 1
    work.after_rollback.append(partial(put_back, known, next_hop, before))
    return True


def _generated(work: UnitOfWork, generated: GeneratedMessage, original: Claim | None) -> Row:
    """The same DSN or report has the same id on whichever server makes it, so it may be here already, and then is not made again."""
    message = generated.message
    row = work.row(message.envelope.message_id)
    if row is None:
        if original is not None:
            message = replace(message, claim=generated_claim(original, message.claim))
        return work.insert(message, work.store_content(generated.content), is_decided=True)
    if generated.content.path is not None:
        work.large_gone.append(work.places[generated.content.path].offset)
    return row


def _keep_shadow(work: UnitOfWork, message: NewMessage, place: ContentPlace | None) -> None:
    """What was relayed by TRACK stays here as a shadow message, with the same octets."""
    if place is None:
        raise LedgerUnavailable(LOCAL_ERROR, f"{message.envelope.message_id}: the content of what was relayed is gone")
    if work.row(message.envelope.message_id) is None:
        work.insert(message, place, is_decided=True)
    elif place.segment == LARGE:
        work.large_gone.append(place.offset)


def _of_events(
    primary: ServerName, database: DatabaseId, incarnation: int, events: Sequence[DiscardEvent], *_: object, **__: object
) -> Sequence[MessageId]:
    return [event.message_id for event in events]


@promise(wants=_of_events)
def discards(
    work: UnitOfWork,
    primary: ServerName,
    database: DatabaseId,
    incarnation: int,
    events: Sequence[DiscardEvent],
    decide: Callable[[DiscardEvent, Claim | None], Transition],
    keep_until: datetime,
    keys: Mapping[MessageId, Mapping[int, bytes]] = NO_KEYS,
) -> tuple[Transition, ...]:
    """Events that this node fetched by XQDISCARD, and its acknowledgement up to the last sequence. `keys`: of the recipients of messages
    that are recorded as delivered if an event says that they were reached (`reading.delivered_before`)."""
    work.preload([event.message_id for event in events])
    claims: dict[MessageId, Claim | None] = {}
    transitions = []
    for event in events:
        message_id = event.message_id
        transition = decide(event, claims[message_id] if message_id in claims else work.claim(message_id))
        claims[message_id] = transition.after
        transitions.append(transition)
    kept = rows.encode_instant(keep_until)
    for event, transition in zip(events, transitions, strict=True):
        if transition.changed:
            work.apply(event.message_id, transition, keep_until=kept)
            work.tell(event.message_id, transition)
            if event.message_id in keys and event.is_reached:
                _reached(work, event, keys[event.message_id], transition)
        elif transition.outcome == Outcome.FORKS and (row := work.row(event.message_id)) is not None:
            work.note_fork(row, event.next_hop, event.ordinals)
    if events:
        work.changes_count += 1
        work.execute_many(UPSERT_ACKNOWLEDGED, [(primary, database, incarnation, max(event.sequence for event in events))])
    return tuple(transitions)


def _reached(work: UnitOfWork, event: DiscardEvent, keys: Mapping[int, bytes], transition: Transition) -> None:
    """Its primary server delivered what this node held a copy of: recognise it here, too, when it is sent again. docs/design.md 6.5."""
    before = transition.before
    if before is None or before.role is not Role.SHADOW or before.is_kept:
        return
    for ordinal, key in keys.items():
        if not event.ordinals or ordinal in event.ordinals:
            work.delivered.append((key, work.now_microseconds, event.message_id))


@promise()
def forget_acknowledged(work: UnitOfWork, asker: ServerName, database: DatabaseId, sequence: int, decide: Decide) -> tuple[Transition, ...]:
    """Delete the notifications up to `sequence` for this asker. Run `decide` on the claim of each message whose `released` is deleted, and
    return these transitions."""
    reached = work.select(SELECT_REACHED, (asker, database, sequence))
    ids = list(dict.fromkeys([MessageId(message_id) for message_id, status, _ in reached if status == DiscardStatus.RELEASED]))
    work.preload(ids)
    known = [message_id for message_id in ids if work.row(message_id) is not None]
    transitions = transition(work, known, decide)
    if reached:
        work.changes_count += 1
        work.execute_many(DELETE_REACHED, [(asker, database, sequence)])
        for of_database, count in Counter([asker_database for _, _, asker_database in reached]).items():
            work.counts.append(((counters.DISCARD, f"{asker} {of_database}", 0), -count, 0))
    return transitions


@promise(about=ITSELF)
def set_aside(work: UnitOfWork, message_id: MessageId, reason: str, decide: Decide | None = None) -> None:
    """`decide` may hand it over in the same commit; the role becomes SET_ASIDE in any case."""
    row = work.row(message_id)
    if row is None or row.claim.role not in NEEDS_CONTENT:
        return
    if reason.startswith(rows.CORRUPT_ROW) and not row.set_aside_reason:  # its envelope, which only readers see
        work.state.corrupt_rows_count += 1
    transition = Transition(row.claim, row.claim) if decide is None else decide(message_id, row.claim)
    after = transition.after or row.claim
    work.apply(message_id, Transition(row.claim, replace(after, role=Role.SET_ASIDE)))
    row.set_aside_reason = reason
    work.changed(row)
    work.tell(message_id, transition)


@promise(about=ITSELF)
def taken_back(work: UnitOfWork, message_id: MessageId, decide: Decide) -> Transition:
    """A message that was set aside is delivered again, and suspected no more."""
    transition = decide(message_id, work.claim(message_id))
    if transition.changed and (row := work.apply(message_id, transition)) is not None:
        row.deaths_count = 0
        work.changed(row)
        work.tell(message_id, transition)
    return transition


@promise()
def nothing(work: UnitOfWork) -> None:
    """A commit that only raises the position: it proves that the disk takes commits."""
    work.changes_count += 1


@promise()
def draining(work: UnitOfWork, since: datetime | None) -> None:
    """`drain`, and with None `undrain`."""
    at = None if since is None else rows.encode_instant(since)
    work.connection.execute(update(tables.DATABASE).values(draining_since=at))  # it has one row
    work.changes_count += 1

    def keep() -> None:
        work.state.draining_since = at

    work.after_commit.append(keep)


@promise()
def died(work: UnitOfWork, message_ids: Sequence[MessageId]) -> None:
    """The process died while it handled the content of these."""
    work.preload(message_ids)
    for message_id in message_ids:
        row = work.row(message_id)
        if row is not None and row.claim.role in (Role.PRIMARY, Role.SHADOW):
            row.deaths_count += 1
            work.changed(row)
