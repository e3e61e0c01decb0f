"""Collects the changes of one transaction, and writes them in few statements. docs/architecture.md "On disk".

A *promise* is one write call of the ledger (`commit.py`). Promises in one transaction see each other's changes to a row, and only the last
state is written: if an acceptance and its verdict share a commit, there is one INSERT. A promise makes all its decisions before it changes
anything here, so that a `decide` that raises leaves nothing behind; `changes_count` lets the writer check that.

`flush` writes. A statement is compiled once, at import, and the driver runs it for each row, which costs little more than SQLite's work.
The order: deleted rows before new ones (a message that is held again has the same id), rows before the rows that refer to them, waiting
notifications before those that are released, counters last.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as insert_or

from shadowrelay.model.ids import NO_SERVER, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Content, ContentPlace, Ordinals
from shadowrelay.model.ownership import Claim, DiscardStatus, Notification, Role, Transition
from shadowrelay.model.queue import NEVER, SUSPENDED, WAITS_FOR_COPY, ForkRetry, NewMessage, Origin
from shadowrelay.model.replies import LOCAL_ERROR, IllegalTransition, LedgerUnavailable
from shadowrelay.model.values import replace
from shadowrelay.store import counters, rows, tables
from shadowrelay.store.content import NO_PLACES
from shadowrelay.store.dialect import CrossJoin, compiled, constant, upsert
from shadowrelay.store.rows import LARGE, NEEDS_CONTENT, Row, decode_retry
from shadowrelay.store.writing import WriterConnection, WriterState

_M, _R, _D, _W, _F = tables.MESSAGE.c, tables.RETRY.c, tables.DISCARD.c, tables.WAITING.c, tables.SHADOW_FORK.c
_WANTED = func.json_each(bindparam("wanted")).table_valued("value", name="wanted")

SELECT_ROWS = compiled(
    select(*[_M[name] for name in rows.KEPT]).select_from(CrossJoin(_WANTED, tables.MESSAGE, _M.message_id == _WANTED.c.value))
)
SELECT_RETRIES = compiled(select(*list(_R)[1:]).where(_R.message == bindparam("message")))
SELECT_RETRIES_GONE = compiled(select(_R.message, _R.next_hop).select_from(CrossJoin(_WANTED, tables.RETRY, _R.message == _WANTED.c.value)))
SELECT_SHADOW_FORKS = compiled(select(_F.queue, _F.ordinals).where(_F.message == bindparam("message")))
SELECT_SHADOW_FORKS_GONE = compiled(
    select(_F.message, _F.queue).select_from(CrossJoin(_WANTED, tables.SHADOW_FORK, _F.message == _WANTED.c.value))
)
SELECT_AWAITED = compiled(  # few rows: DSNs that have no second copy yet
    select(_W.side, _W.more_sides).where(_W.message_id == bindparam("message_id"))
)
SELECT_WAITING = compiled(
    select(_W.id, _W.more_sides, _W.asker, _W.asker_database, _W.message_id, _W.status, _W.ordinals, _W.created_at)
    .where(_W.side == bindparam("side"))
    .order_by(_W.id)
)

INSERT_MESSAGE = compiled(insert(tables.MESSAGE))
_THIS_MESSAGE = _M.internal_id == bindparam("message")
UPDATE_MESSAGE = compiled(update(tables.MESSAGE).where(_THIS_MESSAGE), rows.CHANGING)
UPDATE_OFTEN_CHANGED = compiled(update(tables.MESSAGE).where(_THIS_MESSAGE), rows.OFTEN_CHANGED)
DELETE_MESSAGE = compiled(delete(tables.MESSAGE).where(_THIS_MESSAGE))
INSERT_LISTING = compiled(insert_or(tables.LISTING).on_conflict_do_nothing())
DELETE_LISTING = compiled(
    delete(tables.LISTING).where(tables.LISTING.c.server == bindparam("server"), tables.LISTING.c.message == bindparam("message"))
)
INSERT_RETRY = compiled(insert_or(tables.RETRY).on_conflict_do_nothing())
DELETE_RETRY = compiled(delete(tables.RETRY).where(_R.message == bindparam("message")))
INSERT_SHADOW_FORK = compiled(insert_or(tables.SHADOW_FORK).on_conflict_do_nothing())
DELETE_SHADOW_FORKS = compiled(delete(tables.SHADOW_FORK).where(_F.message == bindparam("message")))
DELETE_FORKS = compiled(
    delete(tables.DISCARD)
    .where(_D.status == constant(DiscardStatus.FORKS.value), _D.message_id.in_(select(_WANTED.c.value)))
    .returning(_D.asker, _D.asker_database)
)
_COUNTER = tables.COUNTER.c
UPSERT_COUNTER = upsert(tables.COUNTER, lambda new: {"count": _COUNTER["count"] + new["count"], "octets": _COUNTER.octets + new.octets})
DELETE_COUNTER = compiled(
    delete(tables.COUNTER).where(
        _COUNTER.kind == bindparam("kind"),
        _COUNTER.name == bindparam("name"),
        _COUNTER.number == bindparam("number"),
        _COUNTER["count"] == constant(0),
    )
)
INSERT_DISCARD = compiled(insert(tables.DISCARD))
INSERT_WAITING = compiled(insert(tables.WAITING), [column.name for column in _W][1:])
_SEGMENT = tables.SEGMENT.c
UPSERT_SEGMENT = upsert(
    tables.SEGMENT,
    lambda new: {
        "pinned_count": _SEGMENT.pinned_count + new.pinned_count,
        "keep_until": func.max(_SEGMENT.keep_until, new.keep_until),
        "first_id": func.min(_SEGMENT.first_id, new.first_id),
        "last_id": func.max(_SEGMENT.last_id, new.last_id),
    },
)
DELETE_SEGMENT = compiled(delete(tables.SEGMENT).where(_SEGMENT.segment == bindparam("segment")))
UPSERT_DELIVERED = upsert(tables.DELIVERED_TO, lambda new: {"delivered_at": new.delivered_at, "message_id": new.message_id})
UPSERT_ASKER = upsert(tables.ASKER, lambda new: {"asked_at": new.asked_at})
UPDATE_PEER_POSITION = compiled(update(tables.PEER).where(tables.PEER.c.server == bindparam("of_server")), ["position"])
UPDATE_DATABASE = compiled(update(tables.DATABASE), ["position", "internal_id", "sequence"])  # it has one row


class SegmentChange:
    """What a transaction changes in one row of `segment`."""

    __slots__ = ("first_id", "keep_until", "last_id", "pinned_count")

    def __init__(self, internal_id: int) -> None:
        self.pinned_count = 0
        self.keep_until = 0
        self.first_id = internal_id
        self.last_id = internal_id


class UnitOfWork:
    """One transaction's changes; used by one thread at a time, between BEGIN and COMMIT."""

    def __init__(self, writer: WriterConnection, state: WriterState) -> None:
        self.connection: Connection = writer.get()
        self.execute_many = writer.execute_many
        self.select = writer.select
        self.state = state
        self.now = state.now()
        self.now_microseconds = rows.encode_instant(self.now)
        self.changes_count = 0
        self.places = NO_PLACES  # of the files that came with the present promise
        self.rows: dict[MessageId, Row | None] = {}
        self.new: dict[MessageId, str] = {}  # their envelopes
        self.dirty: dict[MessageId, None] = {}
        self.deleted: list[int] = []
        self.listing_gone: list[tuple[str, int]] = []
        self.listing_new: list[tuple[str, int]] = []
        self.retries: dict[int, dict[str, ForkRetry]] = {}  # by internal id: the new rows of `retry`
        self.retries_gone: list[int] = []  # messages that had rows before
        self.retries_octets: dict[int, int] = {}
        self.retries_found: dict[int, dict[str, ForkRetry]] = {}  # rows as they are in the file
        self.forks_to_report: dict[MessageId, None] = {}  # primary messages whose forks are to be reported to their shadow servers
        self.fork_reports_stale: list[MessageId] = []  # messages whose queued reports of forks are out of date
        self.shadow_forks: dict[int, dict[str, Ordinals]] = {}  # by internal id: the new rows of `shadow_fork`, by queue
        self.shadow_forks_gone: list[int] = []  # messages that had rows before
        self.shadow_forks_octets: dict[int, int] = {}
        self.counts: list[tuple[counters.Key, int, int]] = []  # changes of `counter`: key, messages, octets
        self.delivered: list[tuple[bytes, int, MessageId]] = []  # rows of `delivered_to`
        self.discards: list[tuple[Any, ...]] = []
        self.waiting: list[tuple[Any, ...]] = []
        self.generated_ready: list[MessageId] = []
        self.segments: dict[int, SegmentChange] = {}
        self.segments_gone: list[int] = []
        self.large_gone: list[int] = []
        self.after_commit: list[Callable[[], object]] = []
        self.after_rollback: list[Callable[[], object]] = []

    # reading
    def preload(self, message_ids: Iterable[MessageId]) -> None:
        """Load these rows, in at most one query. An unknown id is remembered as unknown."""
        wanted = []
        for message_id in message_ids:
            if message_id in self.rows:
                continue
            row = self.state.rows.get(message_id)
            self.rows[message_id] = row
            if row is None:
                wanted.append(message_id)
        if not wanted:
            return
        for columns in self.select(SELECT_ROWS, (json.dumps(wanted),)):
            row = rows.decode_row(columns)
            self.rows[row.message_id] = row
            if row.set_aside_reason and columns[5] != Role.SET_ASIDE:
                self.state.corrupt_rows_count += 1
                self.changed(row)

    def row(self, message_id: MessageId) -> Row | None:
        if message_id not in self.rows:
            self.preload((message_id,))
        return self.rows[message_id]

    def claim(self, message_id: MessageId) -> Claim | None:
        row = self.row(message_id)
        return None if row is None else row.claim

    # messages
    def store_content(self, content: Content) -> ContentPlace:
        """Returns where the content is stored. A large content was stored before, as a file."""
        return self.state.contents.append(content, self.now) if content.path is None else self.places[content.path]

    def insert(self, message: NewMessage, place: ContentPlace, *, is_decided: bool) -> Row:
        """Add a row. Raises: LedgerUnavailable if the id exists already. If its row was not loaded, the INSERT fails."""
        message_id = message.envelope.message_id
        if self.rows.get(message_id) is not None:
            raise LedgerUnavailable(LOCAL_ERROR, f"{message_id} is there already")
        self.changes_count += 1
        self.state.internal_id += 1
        row = rows.new_row(self.state.internal_id, message, place, is_decided=is_decided)
        self.rows[message_id] = row
        self.new[message_id] = rows.encode_envelope(message.envelope, row.arrived_at)
        if row.claim.role in NEEDS_CONTENT:
            self._pin(row, 1, 0)
        if row.claim.copies:
            self._update_listing(row)
        if row.claim.role is Role.SHADOW and row.claim.primary not in self.state.shadow_queues:
            self._add_shadow_queue(row.claim.primary)
        return row

    def apply(
        self,
        message_id: MessageId,
        transition: Transition,
        *,
        keep_until: int | None = None,
        remember_until: int = 0,
        keeps_content: bool = True,
    ) -> Row | None:
        """Change the row to the claim `after`. The keywords are for a claim that becomes DELIVERED."""
        row, after = self.rows[message_id], transition.after
        if after == (None if row is None else row.claim):
            return row
        if row is None:
            assert after is not None
            return self._insert_finished(message_id, after)
        if after is None:
            self.delete(row)
            return None
        before = row.claim
        row.claim = after
        if row.forks_count:
            self._follow_forks(row, before)
        if before.role is not after.role:
            if keep_until is None:
                keep_until = self.now_microseconds + self.state.safety_net_hold_microseconds
            self._change_role(row, before, keep_until, remember_until, keeps_content=keeps_content)
        if row.claim.role is Role.SHADOW and row.claim.primary not in self.state.shadow_queues:
            self._add_shadow_queue(row.claim.primary)
        self.changed(row)
        if after.copies or row.listed:
            self._update_listing(row)
        if row.blocks_notifications and row.is_safe:
            self.release_generated(row)
        if row.retries_count and after.missing_count < before.missing_count:
            if row.is_placed:
                self._end_wait_for_copy(row)
            self.forks_to_report[message_id] = None
            self.fork_reports_stale.append(message_id)
        return row

    def _end_wait_for_copy(self, row: Row) -> None:
        retries = self.retries_of(row)
        if any(retry.waits_for == WAITS_FOR_COPY for retry in retries.values()):
            due = {
                key: replace(retry, waits_for=NO_SERVER, attempts_next_at=self.now) if retry.waits_for == WAITS_FOR_COPY else retry
                for key, retry in retries.items()
            }
            self.replace_retries(row, due)

    def _insert_finished(self, message_id: MessageId, claim: Claim) -> Row:
        """The row of a message that this node never stored, and only knows to be finished."""
        if claim.role in NEEDS_CONTENT:
            raise IllegalTransition(f"{message_id}: {claim.role} without an envelope")
        self.state.internal_id += 1
        keep_until = self.now_microseconds + self.state.shadow_keep_microseconds
        row = Row(self.state.internal_id, message_id, Origin.SHADOW, self.now_microseconds, claim, None, keep_until, keep_until)
        row.is_shadow_side = True
        self.rows[message_id] = row
        self.new[message_id] = ""
        self.changes_count += 1
        return row

    def _change_role(self, row: Row, before: Claim, keep_until: int, remember_until: int, *, keeps_content: bool = True) -> None:
        role = row.claim.role
        had_content, has_content = before.role in NEEDS_CONTENT, role in NEEDS_CONTENT
        row.due_at = self.now_microseconds if role is Role.PRIMARY else None
        row.suspended_at, row.suspended_by = None, ""  # a change of role ends a suspension
        if role is Role.PRIMARY:
            row.is_decided = True
            row.set_aside_reason = ""
            if before.role is Role.SHADOW:
                row.is_promoted, row.promoted_from = True, before.primary
        elif role is Role.SHADOW:
            row.keep_until = max(row.keep_until, self.now_microseconds + self.state.shadow_keep_microseconds)
            row.remember_until = max(row.remember_until, row.keep_until)
        elif role is Role.DELIVERED:
            row.is_shadow_side = before.role is Role.SHADOW
            if row.is_shadow_side or (row.claim.primary and row.delivered_at is None):  # another server reported it
                row.delivered_at = self.now_microseconds
            row.keep_until = keep_until
            row.remember_until = max(row.remember_until, remember_until, keep_until)
            # Safety Net keeps the original that was relayed, so the kept shadow does not go there.
            if row.is_shadow_side and before.is_kept:
                row.is_shadow_side, row.delivered_at, row.keep_until = False, None, 0
        if role is not Role.PRIMARY and row.retries_count:
            self.replace_retries(row, {})
        if had_content and not has_content:
            self._pin(row, -1, row.keep_until if role is Role.DELIVERED and keeps_content else 0)
        elif has_content and not had_content and row.place is not None:
            self._pin(row, 1, 0)
        if not has_content and row.place is not None:
            self.state.contents.recent.drop(row.place)
            if role is Role.RELEASED or (role is Role.DELIVERED and not (row.keep_until and keeps_content)):
                self._drop_content(row)

    def _drop_content(self, row: Row) -> None:
        if row.place is not None and row.place.segment == LARGE:
            self.large_gone.append(row.place.offset)
        row.place = None

    def delete(self, row: Row) -> None:
        """Delete the row and everything that belongs to it."""
        self.changes_count += 1
        if row.claim.role in NEEDS_CONTENT:
            self._pin(row, -1, 0)
        if row.retries_count:
            self.replace_retries(row, {})
        if row.forks_count:
            self._replace_shadow_forks(row, {})
        self._drop_content(row)
        if row.blocks_notifications:
            self.release_generated(row)
        self.listing_gone.extend([(server, row.internal_id) for server in row.listed])
        row.listed = ()
        self.rows[row.message_id] = None
        self.state.rows.drop(row.message_id)
        self.dirty.pop(row.message_id, None)
        if row.counted is not None:
            self.counts.append((row.counted[0], -1, -row.counted[1]))
        if self.new.pop(row.message_id, None) is None:
            self.deleted.append(row.internal_id)

    def retries_of(self, row: Row) -> dict[str, ForkRetry]:
        """The forks of the message that wait in queues, by next hop, as this transaction leaves them."""
        pending = self.retries.get(row.internal_id)
        if pending is not None:
            return pending
        if not row.retries_count:
            return {}
        present = self.retries_found.get(row.internal_id)
        if present is None:
            found = (decode_retry(columns) for columns in self.select(SELECT_RETRIES, (row.internal_id,)))
            present = self.retries_found[row.internal_id] = {retry.next_hop: retry for retry in found if retry is not None}
        return present

    def replace_retries(self, row: Row, retries: Mapping[str, ForkRetry]) -> None:
        """From now on exactly these forks of the message wait in queues."""
        if not retries and not row.retries_count:
            return
        # The caller may have read the message before it was suspended or resumed.
        if row.suspended_at is not None:
            retries = {key: replace(retry, waits_for=SUSPENDED, attempts_next_at=NEVER) for key, retry in retries.items()}
        elif any(retry.waits_for == SUSPENDED for retry in retries.values()):
            retries = {
                key: replace(retry, waits_for=NO_SERVER, attempts_next_at=self.now) if retry.waits_for == SUSPENDED else retry
                for key, retry in retries.items()
            }
        self.changes_count += 1
        is_told = bool(retries and self.state.peers.offer_forks)
        if is_told:
            before = self.retries_of(row)
            is_told = any(key not in before or not retry.ordinals <= before[key].ordinals for key, retry in retries.items())
        if is_told:
            self.forks_to_report[row.message_id] = None
        if row.retries_count:
            if is_told or not retries:
                self.fork_reports_stale.append(row.message_id)
            self.retries_gone.append(row.internal_id)
        row.retries_count = len(retries)
        self.retries[row.internal_id] = dict(retries)
        self.retries_octets[row.internal_id] = 0 if row.place is None else row.place.size
        self.changed(row)

    # the forks of shadow messages
    def note_fork(self, row: Row, next_hop: str, ordinals: Ordinals) -> None:
        """The primary server reported a fork. These recipients now belong to that fork and to no other. Only listings read this, so invalid
        reports are ignored."""
        claim = row.claim
        if claim.role is not Role.SHADOW:
            return
        undone = frozenset(ordinal for ordinal in ordinals - claim.done if ordinal <= claim.recipients_count)
        present, queue = self._shadow_forks_of(row), f"{claim.primary} {next_hop}"
        forks = {name: left for name, known in present.items() if name != queue and (left := known - undone)}
        if in_queue := present.get(queue, NO_ORDINALS) | undone:
            forks[queue] = in_queue
        if forks != present:
            self._replace_shadow_forks(row, forks)

    def _follow_forks(self, row: Row, before: Claim) -> None:
        """Remove recipients that are done from the reported forks. Remove all forks if the primary server or the role changed."""
        claim = row.claim
        if claim.role is not Role.SHADOW or (claim.primary, claim.database) != (before.primary, before.database):
            self._replace_shadow_forks(row, {})
        elif claim.done != before.done:
            present = self._shadow_forks_of(row)
            forks = {queue: left for queue, known in present.items() if (left := known - claim.done)}
            if forks != present:
                self._replace_shadow_forks(row, forks)

    def _shadow_forks_of(self, row: Row) -> dict[str, Ordinals]:
        """By queue, as this transaction leaves them."""
        pending = self.shadow_forks.get(row.internal_id)
        if pending is not None:
            return pending
        if not row.forks_count:
            return {}
        present = {}
        for queue, ordinals in self.select(SELECT_SHADOW_FORKS, (row.internal_id,)):
            with suppress(ValueError):  # an invalid row is deleted with the next change
                present[queue] = rows.decode_ordinals(ordinals)
        return present

    def _replace_shadow_forks(self, row: Row, forks: dict[str, Ordinals]) -> None:
        self.changes_count += 1
        if row.forks_count:
            self.shadow_forks_gone.append(row.internal_id)
        row.forks_count = len(forks)
        self.shadow_forks[row.internal_id] = forks
        self.shadow_forks_octets[row.internal_id] = 0 if row.place is None else row.place.size
        self.changed(row)

    def changed(self, row: Row) -> None:
        """A field of the row was changed, so it is written."""
        self.changes_count += 1
        if row.message_id not in self.new:
            self.dirty[row.message_id] = None

    def _update_listing(self, row: Row) -> None:
        wanted = row.should_be_listed()
        if wanted == row.listed:
            return
        for server in row.listed:
            if server not in wanted:
                self.listing_gone.append((server, row.internal_id))
        for server in wanted:
            if server not in row.listed:
                self.listing_new.append((server, row.internal_id))
        row.listed = wanted

    def _pin(self, row: Row, by: int, keep_until: int) -> None:
        """Count the messages for which a segment must stay."""
        place = row.place
        if place is None or place.segment == LARGE:
            return
        change = self.segments.get(place.segment)
        if change is None:
            change = self.segments[place.segment] = SegmentChange(row.internal_id)
        change.pinned_count += by
        change.keep_until = max(change.keep_until, keep_until)
        change.first_id = min(change.first_id, row.internal_id)
        change.last_id = max(change.last_id, row.internal_id)

    def _add_shadow_queue(self, primary: ServerName) -> None:
        """Give the primary its stable number in listings."""
        number = max(self.state.shadow_queues.values(), default=0) + 1
        self.connection.execute(insert(tables.SHADOW_QUEUE).values(number=number, primary_server=primary))
        self.state.shadow_queues[primary] = number
        self.after_rollback.append(lambda: self.state.shadow_queues.pop(primary, None))

    # notifications
    def tell(self, message_id: MessageId, transition: Transition, generated: Sequence[MessageId] = ()) -> None:
        """Queue the discard notifications. With `generated`, each waits for all of these messages. A `delivered` also waits for the
        generated messages that earlier notifications still wait for: it must not overtake them."""
        if not transition.tell:
            return
        self.changes_count += 1
        earlier = self._awaited(message_id) if transition.before is not None and transition.before.done else []
        for notification in transition.tell:
            columns = self.notification(message_id, notification)
            awaited = [*generated, *earlier] if notification.status is DiscardStatus.DELIVERED else generated
            if awaited:
                self.waiting.append((awaited[0], " ".join(awaited[1:]), *columns))
            else:
                self.state.sequence += 1
                self.discards.append((self.state.sequence, *columns, ""))

    def delete_discards(self, condition: ColumnElement[bool]) -> None:
        """Delete notifications that were committed earlier, and count them down. They should be few."""
        self.changes_count += 1
        grouped = select(_D.asker, _D.asker_database, func.count()).where(condition).group_by(_D.asker, _D.asker_database)
        for asker, database, count in self.connection.execute(grouped).fetchall():
            self.counts.append(((counters.DISCARD, f"{asker} {database}", 0), -count, 0))
        self.connection.execute(delete(tables.DISCARD).where(condition))

    def _awaited(self, message_id: MessageId) -> list[MessageId]:
        """The generated messages that notifications about this one wait for."""
        found = [(first, more) for first, more, _, _, about, *_ in self.waiting if about == message_id]
        found += self.select(SELECT_AWAITED, (message_id,))
        ids = dict.fromkeys(MessageId(generated) for first, more in found for generated in (first, *more.split()))
        return [generated for generated in ids if (row := self.row(generated)) is not None and row.blocks_notifications]

    def notification(self, message_id: MessageId, notification: Notification) -> tuple[Any, ...]:
        ordinals = rows.encode_ordinals(notification.ordinals) if notification.ordinals else ""
        status = tables.REACHED if notification.is_reached else str(notification.status)
        return (notification.server, notification.database, message_id, status, ordinals, self.now_microseconds)

    def release_generated(self, row: Row) -> None:
        """Nothing waits for this generated message any more."""
        row.blocks_notifications = False
        self.generated_ready.append(row.message_id)
        if self.rows.get(row.message_id) is row:
            self.changed(row)


def flush(work: UnitOfWork) -> None:
    """Write everything but the database row. Raises: any error of SQLAlchemy or sqlite3; then nothing may be committed."""
    if work.deleted:
        work.execute_many(DELETE_MESSAGE, [(internal_id,) for internal_id in work.deleted])
    if work.new:
        _insert(work)
    _write_waiting(work)
    if work.dirty:
        _update(work)
    if work.forks_to_report or work.fork_reports_stale:
        _tell_forks(work)
    _write_lists(work)
    write_retries(work)
    if work.shadow_forks:
        _write_shadow_forks(work)
    if work.delivered:
        work.execute_many(UPSERT_DELIVERED, work.delivered)
        work.state.may_be_delivered.add(map(itemgetter(0), work.delivered))
    if work.discards:
        work.execute_many(INSERT_DISCARD, work.discards)
        for _, asker, database, *_ in work.discards:
            work.counts.append(((counters.DISCARD, f"{asker} {database}", 0), 1, 0))
    if work.segments:
        changes = [
            (number, change.pinned_count, change.keep_until, change.first_id, change.last_id)
            for number, change in work.segments.items()
            if number not in work.segments_gone
        ]
        work.execute_many(UPSERT_SEGMENT, changes)
    if work.segments_gone:
        work.execute_many(DELETE_SEGMENT, [(number,) for number in work.segments_gone])
    if work.counts:
        _write_counters(work)


def _insert(work: UnitOfWork) -> None:
    fresh = []
    for message_id, envelope in work.new.items():
        if (row := work.rows[message_id]) is not None:
            row.written_seldom_changed, row.counted = row.seldom_changed(), row.to_be_counted()
            if row.counted is not None:
                work.counts.append((row.counted[0], 1, row.counted[1]))
            fresh.append(
                (row.internal_id, message_id, str(row.origin), row.arrived_at, envelope, row.claim.recipients_count, *row.changing())
            )  # the columns `rows.ALL`
    work.execute_many(INSERT_MESSAGE, fresh)


def _count(work: UnitOfWork, row: Row) -> None:
    """Count the message in its present queue, and no longer in its former one."""
    before, after = row.counted, row.to_be_counted()
    if before == after:
        return
    if before is not None:
        work.counts.append((before[0], -1, -before[1]))
    if after is not None:
        work.counts.append((after[0], 1, after[1]))
    row.counted = after


def _count_retries(work: UnitOfWork) -> None:
    """Call this before the rows are written: the queues of the rows to delete are read from the table."""
    if work.retries_gone:
        for internal_id, next_hop in work.select(SELECT_RETRIES_GONE, (json.dumps(list(set(work.retries_gone))),)):
            work.counts.append(((counters.DELIVERY, next_hop, 0), -1, -work.retries_octets[internal_id]))
    for internal_id, forks in work.retries.items():
        for next_hop in forks:
            work.counts.append(((counters.DELIVERY, next_hop, 0), 1, work.retries_octets[internal_id]))


def _write_counters(work: UnitOfWork) -> None:
    sums: dict[counters.Key, list[int]] = {}
    for key, count, octets in work.counts:
        change = sums.setdefault(key, [0, 0])
        change[0] += count
        change[1] += octets
    changes = [(*key, count, octets) for key, (count, octets) in sums.items() if count or octets]
    work.execute_many(UPSERT_COUNTER, changes)
    work.execute_many(DELETE_COUNTER, [(kind, name, number) for kind, name, number, count, _ in changes if count < 0])


def _update(work: UnitOfWork) -> None:
    """If only the columns `OFTEN_CHANGED` changed, a shorter UPDATE spares SQLite the indexes and their pages."""
    often, others = [], []
    for message_id in work.dirty:
        row = work.rows[message_id]
        if row is None:
            continue
        seldom = row.seldom_changed()
        is_seldom_same = seldom == row.written_seldom_changed
        # Of the columns `OFTEN_CHANGED`, only the number of retries decides in which queue a message counts: a primary message counts in
        # Submission only while it has none. Count it again if `counted` contradicts that.
        if not is_seldom_same or bool(row.retries_count) is not (row.counted is None):
            _count(work, row)
        if is_seldom_same:
            often.append((*row.often_changed(), row.internal_id))
        else:
            row.written_seldom_changed = seldom
            others.append((*row.changing(), row.internal_id))
    if often:
        work.execute_many(UPDATE_OFTEN_CHANGED, often)
    if others:
        work.execute_many(UPDATE_MESSAGE, others)


def _write_lists(work: UnitOfWork) -> None:
    if work.listing_new and work.listing_gone:
        # An entry may have been added and removed within this transaction, or the reverse: only the net change is written.
        left = Counter(work.listing_new)
        left.subtract(work.listing_gone)
        work.listing_new = [entry for entry, count in left.items() if count > 0]
        work.listing_gone = [entry for entry, count in left.items() if count < 0]
    if work.listing_new:
        work.execute_many(INSERT_LISTING, work.listing_new)
    if work.listing_gone:
        work.execute_many(DELETE_LISTING, work.listing_gone)
    for entries, by in ((work.listing_new, 1), (work.listing_gone, -1)):
        for server, _ in entries:
            work.counts.append(((counters.LISTED, server, 0), by, 0))


def _write_shadow_forks(work: UnitOfWork) -> None:
    """Like the delivery queues."""
    octets = work.shadow_forks_octets
    if work.shadow_forks_gone:
        for internal_id, queue in work.select(SELECT_SHADOW_FORKS_GONE, (json.dumps(list(set(work.shadow_forks_gone))),)):
            work.counts.append(((counters.SHADOW_FORK, queue, 0), -1, -octets[internal_id]))
        work.execute_many(DELETE_SHADOW_FORKS, [(internal_id,) for internal_id in work.shadow_forks_gone])
    fresh = []
    for internal_id, forks in work.shadow_forks.items():
        for queue, ordinals in forks.items():
            work.counts.append(((counters.SHADOW_FORK, queue, 0), 1, octets[internal_id]))
            fresh.append((internal_id, queue, rows.encode_ordinals(ordinals)))
    if fresh:
        work.execute_many(INSERT_SHADOW_FORK, fresh)


def _tell_forks(work: UnitOfWork) -> None:
    """Queue the forks for each shadow server that understands them, replacing reports that it has not fetched yet."""
    if work.fork_reports_stale:
        for asker, database in work.select(DELETE_FORKS, (json.dumps(work.fork_reports_stale),)):
            work.counts.append(((counters.DISCARD, f"{asker} {database}", 0), -1, 0))
    for message_id in work.forks_to_report:
        row = work.rows.get(message_id)
        if row is None or row.claim.role is not Role.PRIMARY:
            continue
        retries = work.retries_of(row)
        for copy in row.claim.copies:
            if copy.server not in work.state.peers.offer_forks or copy.choice.awaits_acknowledgement:
                continue
            for next_hop, retry in retries.items():
                work.state.sequence += 1
                about = Notification(copy.server, copy.database, DiscardStatus.FORKS, retry.ordinals)
                work.discards.append((work.state.sequence, *work.notification(message_id, about), next_hop))


def write_retries(work: UnitOfWork) -> None:
    """Write the delivery queues before a statement that reads or changes them."""
    work.retries_found.clear()
    if not work.retries:
        return
    _count_retries(work)
    work.execute_many(DELETE_RETRY, [(internal_id,) for internal_id in work.retries_gone])
    fresh = [rows.encode_retry(internal_id, retry) for internal_id, forks in work.retries.items() for retry in forks.values()]
    work.execute_many(INSERT_RETRY, fresh)
    work.retries_gone, work.retries = [], {}


def _write_waiting(work: UnitOfWork) -> None:
    """Also releases those whose generated message is safe now."""
    if work.waiting:
        work.execute_many(INSERT_WAITING, work.waiting)
    while work.generated_ready:
        generated = work.generated_ready.pop()
        for waiting_id, more_sides, *columns in work.select(SELECT_WAITING, (generated,)):
            _release(work, waiting_id, more_sides.split(), columns)


def _release(work: UnitOfWork, waiting_id: int, more_sides: list[str], columns: list[Any]) -> None:
    """A waiting notification moves to its next generated message, or gets its sequence now, so that peers see ascending sequences."""
    while more_sides:
        following = more_sides.pop(0)
        row = work.row(MessageId(following))
        if row is not None and row.blocks_notifications:
            moved = {"side": following, "more_sides": " ".join(more_sides)}
            work.connection.execute(update(tables.WAITING).where(_W.id == waiting_id).values(moved))
            return
    work.connection.execute(delete(tables.WAITING).where(_W.id == waiting_id))
    if columns[0] == NO_SERVER:
        return
    work.state.sequence += 1
    work.discards.append((work.state.sequence, *columns, ""))


def write_database_row(work: UnitOfWork, position: int) -> None:
    """The counters and the position of this commit, the peers that polled recently, and the positions that peers told."""
    state = work.state
    work.execute_many(UPDATE_DATABASE, [(position, state.internal_id, state.sequence)])
    peers = state.peers
    if peers.asked_unsaved:
        servers = list(peers.asked_unsaved)
        work.execute_many(UPSERT_ASKER, [(server, peers.asked_at[server]) for server in servers])
        work.after_commit.append(lambda: peers.asked_unsaved.difference_update(servers))
    if peers.told_unsaved:
        now = rows.encode_instant(state.now())
        if told := peers.rows_as_told(now):
            work.execute_many(UPDATE_PEER_POSITION, [(row.position, row.server) for row in told])
            work.after_commit.append(lambda: peers.saved(told, now))
