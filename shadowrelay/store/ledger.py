"""Implements the port `Ledger` on SQLite and content segments; `ports.py` has the contract of each method. docs/design.md 3, 9.

This class only passes transactions to the writer and queries to the readers; `promises`, `reading` and `queues` have their code. It has
one method for each of the port's.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, and_

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Content, ContentPlace, Envelope, Ordinals
from shadowrelay.model.ownership import Claim, DiscardEvent, Role, Transition
from shadowrelay.model.peers import DiscardReply, Incarnation, PeerIdentity, Seen
from shadowrelay.model.queue import (
    AttemptRecord,
    DatabaseIdentity,
    DeliveredTo,
    ForkRetry,
    HeldCopy,
    HeldFor,
    LoneMessages,
    MessagePage,
    NewMessage,
    PeerRow,
    QueueKind,
    QueueRow,
    ShadowGroup,
    StoredMessage,
    Suspension,
    Untold,
)
from shadowrelay.model.replies import ContentCorrupt
from shadowrelay.model.resubmission import Criteria, Progress, RequestState, ResubmitRequest, Resubmitted
from shadowrelay.model.survival import Survival
from shadowrelay.ports import NO_KEYS, Decide
from shadowrelay.protocol.filters import Expression
from shadowrelay.rules.delivery import LadderStep
from shadowrelay.store import (
    content,
    counters,
    errors,
    filter_sql,
    lone_messages,
    promises,
    queues,
    reading,
    resubmit_requests,
    rows,
    shedding,
)
from shadowrelay.store.commit import Committer, InlineWriter, ThreadedWriter, Writer
from shadowrelay.store.content import ContentStore, LargeContents, WorkingFile, wrapped
from shadowrelay.store.opening import DATABASE_NAME, StoreFiles, abandon_store, close_store, open_store
from shadowrelay.store.reading import AsyncReaders, InlineReaders
from shadowrelay.store.writing import WriterState

LOG_AGAIN_SECONDS = 10.0
OLDER_CLAIMS_READ = 10_000  # rows in one step


class Inline:
    """The store at the call itself and without threads, for a deterministic simulation. Tests make other parts."""

    def writer(self, committer: Committer, closing: Callable[[Committer], None]) -> InlineWriter:
        return InlineWriter(committer, closing)

    def readers(self, path: Path) -> InlineReaders:
        return InlineReaders(path)


class SqliteLedger:
    """Made by `open`. Shapes: `notes` are sentences for the operator log about what was found at opening;
    `is_new` and `was_damaged` say that this database id is a new one, and why."""

    def __init__(self, opening: StoreFiles, committer: Committer, writer: Writer, readers: AsyncReaders | InlineReaders) -> None:
        self._opening = opening
        self.handling = opening.working.handling
        self.may_be_delivered = committer.state.may_be_delivered.has_any
        self._committer = committer
        self._state: WriterState = committer.state
        self.last_id_at_start = committer.state.internal_id
        self._writer = writer
        self._readers = readers
        self._contents: ContentStore = opening.contents
        self._large = LargeContents(opening.contents, self._state.identity.incarnation, is_inline=isinstance(writer, InlineWriter))
        self._log_task: asyncio.Task[None] | None = None
        self._log_next_at = 0.0
        if isinstance(writer, ThreadedWriter):
            writer.after_commit = self._bound_log
        self.notes = tuple(opening.notes)
        self.is_new = opening.is_new
        self.was_damaged = opening.was_damaged

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        server: ServerName,
        now: Callable[[], datetime],
        safety_net_hold_time: timedelta = timedelta(days=2),
        message_expiration_timeout: timedelta = timedelta(days=2),
        inline: Inline | None = None,
    ) -> "SqliteLedger":
        """Without `inline`, a thread writes and others read.

        Raises: ConfigurationError (in use, newer version, no WAL there); LedgerUnavailable (disk full, no rights).
        """
        opening = StoreFiles(
            directory,
            server,
            now,
            safety_net_hold_time,
            safety_net_hold_time + message_expiration_timeout,
            ContentStore(directory),
            WorkingFile(directory / "working"),
        )
        path = directory / DATABASE_NAME
        if inline is not None:
            committer = open_store(opening)
            return cls(opening, committer, inline.writer(committer, partial(close_store, opening)), inline.readers(path))
        writer = ThreadedWriter(partial(open_store, opening), partial(close_store, opening))
        committer = await writer.open()
        return cls(opening, committer, writer, AsyncReaders(path))

    async def close(self) -> None:
        """Promises made before are kept; no thread is left. May be called twice."""
        if isinstance(self._writer, ThreadedWriter):
            self._writer.after_commit = None
        if self._log_task is not None:
            await self._log_task
        await self._large.wait()
        await self._readers.close()
        await self._writer.close()
        self._large.close()

    def abandon(self) -> None:
        """End like a killed process: nothing is committed any more, nothing is marked clean. Only with `inline`."""
        assert isinstance(self._writer, InlineWriter)
        self._writer.abandon()
        abandon_store(self._opening)
        self._large.close()

    @property
    def identity(self) -> DatabaseIdentity:
        return self._state.identity

    @property
    def position(self) -> int:
        return self._state.position

    @property
    def spool_directory(self) -> Path:
        """Where the receiver puts contents over 1 MiB while they arrive. Emptied at each opening."""
        return self._contents.spool_directory

    @property
    def log_bytes(self) -> int:
        """Of the write-ahead log of queue.db."""
        return self._state.log_bytes

    def _bound_log(self) -> None:
        """After each commit: empty the write-ahead log where it has grown too large."""
        if self._state.log_bytes <= reading.LOG_BYTES_MAX or self._log_task is not None:
            return
        if time.monotonic() >= self._log_next_at:
            self._log_task = asyncio.get_running_loop().create_task(self._empty_log(), name="ledger log")

    async def _empty_log(self) -> None:
        writer, readers = self._writer, self._readers
        assert isinstance(writer, ThreadedWriter)
        assert isinstance(readers, AsyncReaders)
        try:
            async with readers.held_back():
                is_empty = await writer.between(Committer.empty_log)
            if not is_empty:  # another process reads from it
                self._log_next_at = time.monotonic() + LOG_AGAIN_SECONDS
        finally:
            self._log_task = None

    @property
    def corrupt_rows_count(self) -> int:
        """Rows set aside since this opening because they could not be read."""
        return self._state.corrupt_rows_count

    @property
    def waiting_count(self) -> int:
        return self._writer.waiting_count

    async def submission_count(self) -> int:
        return await self._readers.ask(counters.submission)

    async def keep_reserve(self, spare_bytes: int) -> None:
        await self._large.on_file_thread(partial(content.make_reserve, self._opening.directory, spare_bytes))

    async def prove_commit(self) -> None:
        await self._writer.submit(promises.nothing)

    async def prove_read(self) -> None:
        try:
            await self._large.on_file_thread(self._contents.prove_read)
        except FileNotFoundError:
            return  # removed meanwhile, or nothing was written yet: `ContentStore.read` tells a volume that is gone
        except OSError as exc:
            if exc.errno in errors.NOT_OF_THE_DISK:
                return  # nothing is known of the disk
            raise errors.unavailable(exc) from exc

    # accepting and holding
    def record_accepted(self, message: NewMessage, content: Content, *, decided: bool) -> asyncio.Future[StoredMessage]:
        run = partial(promises.accepted, message=message, decided=decided)
        if content.path is None:
            return self._writer.submit(partial(run, placed=(content, None)))
        return asyncio.ensure_future(
            self._large.promise((content,), lambda places: self._writer.submit(partial(run, placed=(content, places[0]))), lambda _: True)
        )

    def record_hold(self, message: NewMessage, content: Content, decide: Decide) -> Awaitable[Transition]:
        run, wants = partial(promises.hold, message=message, decide=decide), (message.envelope.message_id,)
        if content.path is None:
            return self._writer.submit(partial(run, placed=(content, None)), wants)
        return self._large.promise(
            (content,), lambda places: self._writer.submit(partial(run, placed=(content, places[0])), wants), promises.stores_copy
        )

    # ownership
    async def transition(self, message_ids: Sequence[MessageId], decide: Decide) -> tuple[Transition, ...]:
        ids = tuple(message_ids)
        done: tuple[Transition, ...] = await self._writer.submit(partial(promises.transition_of, message_ids=ids, decide=decide), ids)
        return done

    async def record_verdict(self, message_id: MessageId, decide: Decide) -> Transition:
        done: Transition = await self._writer.submit(partial(promises.verdict, message_id=message_id, decide=decide), (message_id,))
        return done

    async def record_discards(
        self,
        primary: ServerName,
        database: DatabaseId,
        incarnation: int,
        events: Sequence[DiscardEvent],
        decide: Callable[[DiscardEvent, Claim | None], Transition],
        keep_until: datetime,
        keys: Mapping[MessageId, Mapping[int, bytes]] = NO_KEYS,
    ) -> tuple[Transition, ...]:
        run = partial(
            promises.discards,
            primary=primary,
            database=database,
            incarnation=incarnation,
            events=tuple(events),
            decide=decide,
            keep_until=keep_until,
            keys=keys,
        )
        done: tuple[Transition, ...] = await self._writer.submit(run, [event.message_id for event in events])
        return done

    async def acknowledged(self, primary: ServerName, database: DatabaseId, incarnation: int) -> int:
        return await self._readers.ask(partial(reading.acknowledged, primary=primary, database=database, incarnation=incarnation))

    async def forget_acknowledged(self, asker: ServerName, database: DatabaseId, sequence: int, decide: Decide) -> tuple[Transition, ...]:
        run = partial(promises.forget_acknowledged, asker=asker, database=database, sequence=sequence, decide=decide)
        done: tuple[Transition, ...] = await self._writer.submit(run)
        return done

    async def discards_for(self, asker: ServerName, database: DatabaseId, maximum: int) -> DiscardReply:
        known = self._state.peers
        now = known.asked_at[asker] = rows.encode_instant(self._state.now())
        known.asked_unsaved.add(asker)
        with_forks = asker in self._state.tells_forks_to
        question = partial(reading.discards_for, asker=asker, database=database, maximum=maximum, now=now, with_forks=with_forks)
        return await self._readers.ask(question)

    async def has_unacknowledged(self, asker: ServerName, database: DatabaseId) -> bool:
        return await self._readers.ask(partial(reading.has_unacknowledged, asker=asker, database=database))

    def note_forks_offered(self, server: ServerName, is_offered: bool) -> None:
        if is_offered:
            self._state.tells_forks_to.add(server)
        else:
            self._state.tells_forks_to.discard(server)

    # delivery
    def record_attempt(self, attempt: AttemptRecord, decide: Decide) -> Awaitable[Transition]:
        has_survived = self._opening.working.has_survived(attempt.message_id)
        run = partial(promises.attempt, record=attempt, decide=decide, has_survived=has_survived)
        wants: tuple[MessageId, ...] = (attempt.message_id,)
        contents = [generated.content for generated in attempt.generated] if attempt.generated else []
        if attempt.kept:
            wants += tuple([kept.envelope.message_id for kept in attempt.kept])
            if attempt.kept_content is not None:
                contents.append(attempt.kept_content)
        if not contents or all(content.path is None for content in contents):
            return self._writer.submit(partial(run, places=[None] * len(contents)), wants)
        return self._large.promise(
            contents, lambda places: self._writer.submit(partial(run, places=places), wants), lambda _: True, stays=attempt.kept_content
        )

    async def record_queued(
        self, message_id: MessageId, retries: Sequence[ForkRetry], gone: Sequence[str] = (), decide: Decide | None = None
    ) -> None:
        run = partial(promises.queued, message_id=message_id, retries=tuple(retries), gone=tuple(gone), decide=decide)
        await self._writer.submit(run, (message_id,))

    async def delivered_before(self, keys: Collection[bytes], earliest: datetime, latest: datetime) -> Mapping[bytes, DeliveredTo]:
        at = rows.encode_instant(earliest), rows.encode_instant(latest)
        return await self._readers.ask(partial(reading.delivered_before, keys=keys, earliest=at[0], latest=at[1]))

    async def wake_waiting(self, server: ServerName, limit: int) -> dict[str, int]:
        counts: dict[str, int] = await self._writer.submit(partial(promises.wake, server=server, limit=limit), is_heavy=True)
        return counts

    async def hasten(self, next_hop: str, step: LadderStep | None, latest_at: datetime, limit: int) -> int:
        run = partial(promises.hasten, next_hop=next_hop, step=step, latest_at=latest_at, limit=limit)
        count: int = await self._writer.submit(run, is_heavy=True)
        return count

    async def record_suspended(
        self, message_id: MessageId, suspension: Suspension | None, forks: Sequence[ForkRetry] = ()
    ) -> tuple[str, ...]:
        run = partial(promises.suspended, message_id=message_id, suspension=suspension, forks=tuple(forks))
        next_hops: tuple[str, ...] = await self._writer.submit(run, (message_id,))
        return next_hops

    async def record_resubmitted(self, message_id: MessageId) -> tuple[str, ...]:
        next_hops: tuple[str, ...] = await self._writer.submit(partial(promises.resubmitted, message_id=message_id), (message_id,))
        return next_hops

    async def record_queue_suspended(self, next_hop: str, suspension: Suspension | None) -> bool:
        changed: bool = await self._writer.submit(partial(promises.queue_suspended, next_hop=next_hop, suspension=suspension))
        return changed

    def suspended_queues(self) -> Mapping[str, Suspension]:
        return self._state.suspended_queues

    def stopping(self) -> None:
        self._opening.working.stopping()

    async def record_set_aside(self, message_id: MessageId, reason: str, decide: Decide | None = None) -> None:
        await self._writer.submit(partial(promises.set_aside, message_id=message_id, reason=reason, decide=decide), (message_id,))

    async def record_taken_back(self, message_id: MessageId, decide: Decide) -> Transition:
        done: Transition = await self._writer.submit(partial(promises.taken_back, message_id=message_id, decide=decide), (message_id,))
        return done

    @property
    def draining_since(self) -> datetime | None:
        return rows.decode_instant_or_none(self._state.draining_since)

    async def record_draining(self, since: datetime | None) -> None:
        await self._writer.submit(partial(promises.draining, since=since))

    # reading
    async def load(self, message_id: MessageId) -> StoredMessage | None:
        return next(iter(await self.load_many((message_id,))), None)

    async def load_many(self, message_ids: Sequence[MessageId]) -> tuple[StoredMessage, ...]:
        return await self._ask(partial(reading.load_many, message_ids=tuple(message_ids), contents=self._contents))

    async def envelopes(self, message_ids: Sequence[MessageId]) -> Mapping[MessageId, tuple[int, Envelope]]:
        return await self._readers.ask(partial(reading.envelopes, message_ids=tuple(message_ids)))

    async def _find(self, statement: reading.Statement) -> tuple[StoredMessage, ...]:
        return await self._ask(partial(reading.found, statement=statement, contents=self._contents))

    async def _ask(self, question: Callable[[Connection], reading.FoundMessages]) -> tuple[StoredMessage, ...]:
        """What could not be read is set aside in the file too; nobody waits for that."""
        found = await self._readers.ask(question)
        for message_id, reason in found.corrupt:
            future = self._writer.submit(partial(promises.set_aside, message_id=message_id, reason=reason), (message_id,))
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return found.messages

    async def submission(self, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        return await self._find((reading.SELECT_SUBMISSION, (after, limit)))

    async def undelivered(self, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        while True:
            found = await self._ask(partial(queues.undelivered, limit=limit, after=after, contents=self._contents))
            if (wanted := _readable(found)) or len(found) < limit:
                return wanted
            after = found[-1].internal_id

    async def due(self, next_hop: str, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
        return await self._find((reading.SELECT_DUE, (next_hop, rows.encode_instant(now), limit)))

    async def next_due_at(self, next_hop: str, after: datetime) -> datetime | None:
        question = partial(reading.next_due, next_hop=next_hop, after=rows.encode_instant(after))
        return rows.decode_instant_or_none(await self._readers.ask(question))

    async def delivery_queues(self) -> dict[str, datetime]:
        found = await self._readers.ask(reading.delivery_queues)
        return {next_hop: rows.decode_instant(due_at) for next_hop, due_at in found.items()}

    async def notices_due(self, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
        return _readable(await self._find((reading.SELECT_NOTICES, (rows.encode_instant(now), limit))))

    async def waited_for(self) -> tuple[ServerName, ...]:
        return await self._readers.ask(reading.waited_for)

    async def unplaced(self, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        while True:
            found = await self._find((reading.SELECT_UNPLACED, (after, limit)))
            wanted = tuple([message for message in _readable(found) if not message.claim.is_done])
            if wanted or len(found) < limit:
                return wanted
            after = found[-1].internal_id

    async def unreported(self, message_id: MessageId) -> Ordinals:
        return await self._readers.ask(partial(reading.unreported, message_id=message_id))

    async def unreported_of(self, message_ids: Collection[MessageId]) -> Mapping[MessageId, Ordinals]:
        return await self._readers.ask(partial(reading.unreported_of, message_ids=message_ids))

    async def awaited(self, message_id: MessageId) -> tuple[MessageId, ...]:
        return await self._readers.ask(partial(reading.awaited, message_id=message_id))

    async def untold(self) -> Untold | None:
        return await self._readers.ask(reading.untold)

    async def primaries_listed_on(self, server: ServerName, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        return await self._find(reading.listed_on(server, after, limit))

    async def shadows_of(
        self, primary: ServerName, database: DatabaseId, limit: int, after: int = 0, *, handed_only: bool = False, kept: bool | None = None
    ) -> tuple[StoredMessage, ...]:
        return await self._find(reading.page(reading.shadows_of(primary, database, handed_only=handed_only, kept=kept), after, limit))

    async def copies_of(self, primary: ServerName, database: DatabaseId, limit: int, after: int = 0) -> tuple[HeldCopy, ...]:
        return await self._readers.ask(partial(reading.copies_of, primary=primary, database=database, after=after, limit=limit))

    async def shadow_groups(self) -> tuple[ShadowGroup, ...]:
        return await self._readers.ask(reading.shadow_groups)

    async def held_for(self, server: ServerName) -> HeldFor:
        return await self._readers.ask(partial(reading.held_for, server=server))

    async def survival(self, servers: Sequence[ServerName]) -> Survival:
        return await self._readers.ask(partial(reading.survival, servers=servers))

    async def listed_counts(self) -> Mapping[ServerName, int]:
        return await self._readers.ask(counters.listed)

    async def lone_messages(self, living: Collection[ServerName]) -> LoneMessages:
        return await self._readers.ask(partial(lone_messages.lone_messages, living=living))

    def limit_recent(self, bytes_max: int) -> None:
        """How much of what was just written may be kept in memory to be read again."""
        self._contents.recent.limit(bytes_max)

    async def read_content(self, place: ContentPlace) -> Content:
        data = self._contents.recent.get(place)
        if data is not None:
            return Content(place.size, place.sha256, data)
        return await self._large.on_file_thread(partial(self._contents.read, place))

    # resubmission from Safety Net
    async def record_request(self, criteria: Criteria) -> ResubmitRequest | None:
        made: ResubmitRequest | None = await self._writer.submit(partial(resubmit_requests.add, criteria=criteria))
        return made

    async def resubmit_requests(self) -> tuple[ResubmitRequest, ...]:
        return await self._readers.ask(resubmit_requests.requests)

    async def change_request(self, number: int, state: RequestState) -> ResubmitRequest | None:
        run = partial(resubmit_requests.change_state, number=number, state=state)
        changed: ResubmitRequest | None = await self._writer.submit(run)
        return changed

    async def remove_request(self, number: int) -> bool:
        is_removed: bool = await self._writer.submit(partial(resubmit_requests.remove, number=number))
        return is_removed

    async def delivered(self, after: tuple[datetime, int], limit: int, *, by_others: bool = False) -> tuple[StoredMessage, ...]:
        at, internal_id = after
        return await self._find(resubmit_requests.delivered(int(by_others), rows.encode_instant(at), internal_id, limit))

    async def record_progress(
        self, number: int, progress: Progress, message: NewMessage | None = None, content: Content | None = None
    ) -> StoredMessage | None:
        wants = () if message is None else (message.envelope.message_id,)

        def run(place: ContentPlace | None) -> Any:
            placed = None if content is None else (content, place)
            promise = partial(resubmit_requests.progressed, number=number, progress=progress, message=message, placed=placed)
            return self._writer.submit(promise, wants)

        made: StoredMessage | None = None
        if content is None or content.path is None:
            made = await run(None)
            return made
        try:
            made = await self._large.promise((content,), lambda places: run(places[0]), lambda made: made is not None)
        except asyncio.CancelledError:
            raise  # it goes on, and may still need the file
        except BaseException:
            content.path.unlink(missing_ok=True)
            raise
        if made is None:
            content.path.unlink(missing_ok=True)
        return made

    async def unfinished_resubmitted(self, number: int) -> tuple[Resubmitted, ...]:
        return await self._readers.ask(partial(resubmit_requests.unfinished, number=number))

    async def record_settled(self, number: int, redundant: Sequence[MessageId], finished: Sequence[MessageId]) -> None:
        run = partial(resubmit_requests.settled, number=number, redundant=tuple(redundant), finished=tuple(finished))
        await self._writer.submit(run)

    async def wrapped(self, content: Content, before: bytes, after: bytes = b"") -> Content:
        path = self.spool_directory / f"wrapped-{uuid.uuid4()}"
        try:
            return await self._large.on_file_thread(partial(wrapped, content, before, after, path))
        except OSError as error:
            if content.path is not None and not content.path.exists():
                raise ContentCorrupt("it is gone") from error
            raise errors.unavailable(error) from error

    # peers
    async def record_peer(self, identity: PeerIdentity, heard_at: datetime) -> None:
        await self._writer.submit(partial(promises.peer_heard, identity=identity, heard_at=heard_at))

    async def record_forgotten(self, server: ServerName) -> None:
        after: int | None = 0
        while after is not None:  # acceptance goes on between the steps
            after = await self._writer.submit(partial(promises.peer_forgotten, server=server, after=after), is_heavy=True)

    async def peers(self) -> tuple[PeerRow, ...]:
        return tuple(row for _, row in sorted(self._state.peers.rows.items()))

    def seen(self, server: ServerName, database: DatabaseId) -> Seen | None:
        return self._state.peers.seen(server, database)

    def note_told(self, server: ServerName, incarnation: Incarnation, position: int) -> None:
        self._state.peers.note_told(server, incarnation, position)

    def is_told_unsaved(self, server: ServerName) -> bool:
        return server in self._state.peers.told_unsaved

    def server_of(self, database: DatabaseId) -> ServerName:
        return self._state.peers.server_of(database)

    # an older copy of the database
    async def record_renamed(self) -> None:
        await self._writer.submit(partial(promises.database_renamed, database=DatabaseId(str(uuid4()))))

    async def older_claims(self, after: int) -> tuple[tuple[MessageId, ...], int]:
        identity = self._state.identity
        question = partial(
            reading.older_claims, database=identity.database, after=after, until=identity.older_until, limit=OLDER_CLAIMS_READ
        )
        return await self._readers.ask(question)

    async def record_older_claims_over(self) -> None:
        await self._writer.submit(promises.older_claims_over)

    # housekeeping and listings
    async def expire(self, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
        """In steps of `limit` rows, each a promise of its own, so that acceptance goes on between them."""
        gone: list[StoredMessage] = []
        while len(gone) < limit:
            step: promises.ExpiryStep = await self._writer.submit(partial(promises.expire, now=now, limit=limit - len(gone)), is_heavy=True)
            gone.extend(step.shadows)
            if not step.has_more:
                break
        return tuple(gone)

    async def safety_net_octets(self) -> int:
        now = rows.encode_instant(self._opening.now())
        return await self._readers.ask(partial(shedding.octets, now=now))

    async def shed_safety_net(self, octets: int) -> tuple[int, int]:
        """In steps, each a promise of its own."""
        count = dropped = 0
        while dropped < octets:
            step: shedding.ShedStep = await self._writer.submit(shedding.shed, is_heavy=True)
            count, dropped = count + step.count, dropped + step.octets
            if step.is_last:
                break
        return count, dropped

    async def safety_net_complete_since(self) -> datetime | None:
        found = await self._readers.ask(shedding.complete_since)
        return rows.decode_instant(found) if found else None

    async def forget_unasked(self, older_than: datetime) -> int:
        forgotten = 0
        while True:
            step: tuple[int, bool] = await self._writer.submit(partial(promises.forget_unasked, older_than=older_than), is_heavy=True)
            count, has_more = step
            forgotten += count
            if not has_more:
                return forgotten

    async def forget_delivered(self, window: timedelta) -> int:
        forgotten = 0
        while count := await self._writer.submit(partial(promises.forget_delivered, window=window), is_heavy=True):
            forgotten += count
        return forgotten

    async def queues(self) -> tuple[QueueRow, ...]:
        return await self._readers.ask(
            partial(
                queues.queues,
                server=self._opening.server,
                now=self._state.now(),
                numbers=dict(self._state.shadow_queues),
                suspended=dict(self._state.suspended_queues),
            )
        )

    async def depths(self) -> Mapping[tuple[QueueKind, str], int]:
        return await self._readers.ask(queues.depths)

    async def messages(self, queue: str, limit: int, after: int = 0, *, newest: bool = False) -> tuple[StoredMessage, ...]:
        question = partial(
            queues.messages,
            queue=queue,
            limit=limit,
            after=after,
            now=self._state.now(),
            numbers=dict(self._state.shadow_queues),
            contents=self._contents,
            newest=newest,
        )
        return await self._ask(question)

    async def filtered(
        self, queue: str, expression: Expression, expiry: timedelta, limit: int, after: int = 0, *, newest: bool = False
    ) -> MessagePage:
        now = self._state.now()
        next_after: int | None = None

        def ask(connection: Connection) -> reading.FoundMessages:
            nonlocal next_after
            found, next_after = queues.filtered(
                connection,
                queue,
                filter_sql.condition(expression, now, expiry, self._opening.server),
                limit,
                after,
                now,
                dict(self._state.shadow_queues),
                self._contents,
                newest=newest,
            )
            return found

        messages = await self._ask(ask)
        return MessagePage(messages, next_after)

    async def searched(self, expression: Expression, expiry: timedelta, limit: int, after: int = 0) -> MessagePage:
        next_after: int | None = None
        condition = filter_sql.condition(expression, self._state.now(), expiry, self._opening.server)
        wanted = and_(filter_sql.needed(expression), condition)

        def ask(connection: Connection) -> reading.FoundMessages:
            nonlocal next_after
            found, next_after = queues.searched(connection, wanted, filter_sql.id_prefix(expression), limit, after, self._contents)
            return found

        messages = await self._ask(ask)
        return MessagePage(messages, next_after)


def _readable(messages: tuple[StoredMessage, ...]) -> tuple[StoredMessage, ...]:
    return tuple([message for message in messages if message.claim.role is Role.PRIMARY])
