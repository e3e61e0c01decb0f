"""The queue database: SQLite and content segments. docs/design.md 3, 9.

`commit` is given a promise of `promises`, `peer_promises` or `resubmit_requests`, `read` a question of `reading`, `queues` and their like,
each with its arguments. `steps` has what takes several commits. Only the connections that run them can be exchanged: threads, or `Inline`.
`tests/contract` is the contract.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Content, ContentPlace
from shadowrelay.model.peers import DiscardReply
from shadowrelay.model.replies import ContentCorrupt
from shadowrelay.store import content, errors, promises, readers, reading, rows
from shadowrelay.store.commit import Call, Committer, Files, InlineWriter, Promise, ThreadedWriter, Writer
from shadowrelay.store.content import ContentStore, LargeContents, WorkingFile, wrapped
from shadowrelay.store.opening import DATABASE_NAME, StoreFiles, abandon_store, close_store, open_store
from shadowrelay.store.readers import AsyncReaders, InlineReaders, Reader
from shadowrelay.store.writing import WriterState

P = ParamSpec("P")
T = TypeVar("T")
LOG_AGAIN_SECONDS = 10.0


class Inline:
    """The store at the call itself and without threads, for a deterministic simulation. Tests make other parts."""

    def writer(self, committer: Committer, closing: Callable[[Committer], None]) -> InlineWriter:
        return InlineWriter(committer, closing)

    def readers(self, path: Path) -> InlineReaders:
        return InlineReaders(path)


class Ledger:
    """Made by `open`. Shapes: `notes` are sentences for the operator log about what was found at opening; `is_new` and `was_damaged` say
    that this database id is a new one, and why; `last_id_at_start` is `StoredMessage.internal_id` of the last message that came before this
    process, so what came since has higher ones. `peers` and `suspended_queues`, by next hop, are from memory, as are the properties."""

    def __init__(self, opening: StoreFiles, committer: Committer, writer: Writer, readers: AsyncReaders | InlineReaders) -> None:
        self._opening = opening
        self._committer = committer
        self._state: WriterState = committer.state
        self._writer = writer
        self._readers = readers
        self._contents: ContentStore = opening.contents
        self._log_task: asyncio.Task[None] | None = None
        self._log_next_at = 0.0
        self.identity = committer.state.identity
        self.peers = committer.state.peers
        self.suspended_queues = committer.state.suspended_queues
        self.last_id_at_start = committer.state.internal_id
        self.notes = tuple(opening.notes)
        self.is_new = opening.is_new
        self.was_damaged = opening.was_damaged
        self._large = LargeContents(opening.contents, self.identity.incarnation, is_inline=isinstance(writer, InlineWriter))
        self.handling = opening.working.handling
        """Use around each step that parses or writes out the content of a message and does not wait. If the process dies in it,
        `deaths_count` rises, unless `stopping` was called before. The next `promises.attempt` resets it to 0."""
        self.stopping = opening.working.stopping
        """The process was asked to stop: from now on a death counts against no message. docs/design.md 6.9."""
        self.may_be_delivered = committer.state.may_be_delivered.has_any
        """False if `reading.delivered_before` certainly finds nothing since then."""
        self.limit_recent = opening.contents.recent.limit
        """How much of what was just written may be kept in memory to be read again."""
        if isinstance(writer, ThreadedWriter):
            writer.after_commit = self._bound_log

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
        before_commit: Callable[[], None] | None = None,
    ) -> "Ledger":
        """Without `inline`, a thread writes and others read; `before_commit` is called on the loop before each transaction.

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
        writer.before_commit = before_commit
        committer = await writer.open()
        return cls(opening, committer, writer, AsyncReaders(path))

    async def close(self) -> None:
        """Promises made before are kept; no thread is left. May be called twice. Raises: OSError if the disk takes no writes, when all is
        closed."""
        if isinstance(self._writer, ThreadedWriter):
            self._writer.after_commit = None
        if self._log_task is not None:
            await self._log_task
        await self._large.wait()
        await self._readers.close()
        try:
            await self._writer.close()
        finally:
            self._large.close()

    def abandon(self) -> None:
        """End like a killed process: nothing is committed any more, nothing is marked clean. Only with `inline`."""
        assert isinstance(self._writer, InlineWriter)
        self._writer.abandon()
        abandon_store(self._opening)
        self._large.close()

    # promises and questions
    def commit(self, promise: Promise[P, T], /, *arguments: P.args, **named: P.kwargs) -> "asyncio.Future[T]":
        """The result of the promise, once the commit that contains it is synced. It raises `LedgerUnavailable` (nothing was stored) or what
        the promise raised. Promises that wait at the same moment share one commit; each succeeds or fails alone; they are applied in the
        order of the calls. Cancelling the waiter does not withdraw it. docs/architecture.md "On disk"."""
        wants: Sequence[MessageId] = ()
        if promise.about is not None:
            wants = (promise.about(arguments[0]),)
        elif promise.wants is not None:
            wants = promise.wants(*arguments, **named)
        call = Call(promise, arguments, named, wants)
        files: Files = ()
        if promise.handing is not None:
            for argument in arguments:
                if type(argument) is Content and argument.path is not None:
                    files = ((argument, promise.handing),)
        elif promise.files is not None:
            files = promise.files(*arguments, **named)
        return asyncio.ensure_future(self._with_files(call, files)) if files else self._writer.submit(call)

    async def _with_files(self, call: Call, files: Files) -> Any:
        def promised(places: Mapping[Path, ContentPlace]) -> "asyncio.Future[Any]":
            call.places = places
            return self._writer.submit(call)

        return await self._large.stored_before(files, promised, call.promise.is_kept)

    async def read(self, question: Callable[Concatenate[Reader, P], T], /, *arguments: P.args, **named: P.kwargs) -> T:
        """The answer, as of some moment since the call. It never delays a commit. What could not be read is set aside in the file too;
        nobody waits for that. Raises: LedgerUnavailable."""
        corrupt: list[tuple[MessageId, str]] = []

        def ask(connection: Connection) -> T:
            reader = Reader(connection, self._state)
            answer = question(reader, *arguments, **named)
            corrupt.extend(reader.corrupt)
            return answer

        answer = await self._readers.ask(ask)
        for message_id, reason in corrupt:
            self.commit(promises.set_aside, message_id, reason).add_done_callback(lambda done: done.cancelled() or done.exception())
        return answer

    async def discards_for(self, asker: ServerName, database: DatabaseId, maximum: int) -> DiscardReply:
        """A poll: the first notifications, ascending, without those that wait for a generated message's copy."""
        now = self.peers.asked_at[asker] = rows.encode_instant(self._state.now())
        self.peers.asked_unsaved.add(asker)
        return await self.read(reading.discards_for, asker, database, maximum, now, with_forks=asker in self.peers.offer_forks)

    # from memory
    @property
    def position(self) -> int:
        """Raised by every commit."""
        return self._state.position

    @property
    def draining_since(self) -> datetime | None:
        """Since when this node drains, also across restarts; None if it does not."""
        return rows.decode_instant_or_none(self._state.draining_since)

    @property
    def spool_directory(self) -> Path:
        """Where the receiver puts contents over 1 MiB while they arrive. Emptied at each opening."""
        return self._contents.spool_directory

    @property
    def log_bytes(self) -> int:
        """Of the write-ahead log of queue.db."""
        return self._state.log_bytes

    @property
    def corrupt_rows_count(self) -> int:
        """Rows set aside since this opening because they could not be read."""
        return self._state.corrupt_rows_count

    @property
    def waiting_count(self) -> int:
        """Promises that wait for their commit."""
        return self._writer.waiting_count

    # files
    async def keep_reserve(self, spare_bytes: int) -> None:
        """Make the reserve for a start on a full disk, if there is none and `spare_bytes` are left beside it. Raises: nothing."""
        await self._large.on_file_thread(partial(content.make_reserve, self._opening.directory, spare_bytes))

    async def prove_read(self) -> None:
        """Read from the disk what was written to it last. Raises: LedgerUnavailable."""
        try:
            await self._large.on_file_thread(self._contents.prove_read)
        except FileNotFoundError:
            return  # removed meanwhile, or nothing was written yet: `ContentStore.read` tells a volume that is gone
        except OSError as exc:
            if exc.errno in errors.NOT_OF_THE_DISK:
                return  # nothing is known of the disk
            raise errors.unavailable(exc) from exc

    async def read_content(self, place: ContentPlace) -> Content:
        """Content up to 1 MiB is returned in memory, larger content as a file. Raises ContentCorrupt if the bytes are gone or do not
        match their SHA-256; LedgerUnavailable if they cannot be read now: try later, and draw no conclusion."""
        data = self._contents.recent.get(place)
        if data is not None:
            return Content(place.size, place.sha256, data)
        return await self._large.on_file_thread(partial(self._contents.read, place))

    async def wrapped(self, content: Content, before: bytes, after: bytes = b"") -> Content:
        """The content with these octets around it; a file of it is the caller's. Raises: LedgerUnavailable; ContentCorrupt: it is gone."""
        path = self.spool_directory / f"wrapped-{uuid.uuid4()}"
        try:
            return await self._large.on_file_thread(partial(wrapped, content, before, after, path))
        except OSError as error:
            if content.path is not None and not content.path.exists():
                raise ContentCorrupt("it is gone") from error
            raise errors.unavailable(error) from error

    # the write-ahead log
    def _bound_log(self) -> None:
        """After each commit: empty the write-ahead log where it has grown too large."""
        if self._state.log_bytes <= readers.LOG_BYTES_MAX or self._log_task is not None:
            return
        if time.monotonic() >= self._log_next_at:
            self._log_task = asyncio.get_running_loop().create_task(self._empty_log(), name="ledger log")

    async def _empty_log(self) -> None:
        writer, pool = self._writer, self._readers
        assert isinstance(writer, ThreadedWriter)
        assert isinstance(pool, AsyncReaders)
        try:
            async with pool.held_back():
                is_empty = await writer.between(Committer.empty_log)
            if not is_empty:  # another process reads from it
                self._log_next_at = time.monotonic() + LOG_AGAIN_SECONDS
        finally:
            self._log_task = None
