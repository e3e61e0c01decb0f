"""The store on real files, at the call itself and yet with time passing: before a commit, and between it and the news of it.

So a crash, a cut or another task can come in between, which an inline commit would never allow.
"""

import asyncio
import errno
import os
import random
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Content, ContentPlace
from shadowrelay.model.replies import STORE_UNAVAILABLE, LedgerUnavailable
from shadowrelay.store import errors
from shadowrelay.store.commit import Call, Committer, InlineWriter, Prepared, settle
from shadowrelay.store.ledger import Ledger
from shadowrelay.store.rows import Row
from shadowrelay.store.work import UnitOfWork
from tests.kit.quick import Quick, QuickReaders, quicken

Watch = Callable[[Sequence[tuple[MessageId, Row | None]]], None]


class Sickness(StrEnum):
    """What is wrong with a disk."""

    NONE = "well"
    READ_ONLY = "read-only"  # what is there can be read
    ERRORS = "returns EIO"
    HANGS = "hangs"
    UNREADABLE = "takes commits, and cannot be read"
    HANGS_READING = "takes commits, and hangs when it is read"
    BAD_SECTORS = "has bad sectors"  # under every other content that is there when it begins, also if that is still in memory


DEAD = (Sickness.READ_ONLY, Sickness.ERRORS, Sickness.HANGS)
HALF_DEAD = (Sickness.UNREADABLE, Sickness.HANGS_READING)
READINGS_HANG = (Sickness.HANGS, Sickness.HANGS_READING)
HANGING_SECONDS = 0.1  # how often a hanging call looks whether the disk is back


class SlowDisk:
    """How slow it is, and whether it takes anything at all."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.is_full = False
        self.sickness = Sickness.NONE
        self.slowness = 1.0
        self.end_of_contents: Callable[[], tuple[int, int]] = lambda: (0, 0)  # segment and offset
        self._bad_until = (0, 0)

    def falls_sick(self, sickness: Sickness) -> None:
        self.sickness, self._bad_until = sickness, self.end_of_contents()

    @property
    def refuses(self) -> str:
        """Why nothing can be written, if so."""
        return "disk is full" if self.is_full else self.sickness.value if self.sickness in (Sickness.READ_ONLY, Sickness.ERRORS) else ""

    def lag(self) -> float:
        if self._chance.random() < 0.3:
            return 0.0
        return self._chance.expovariate(1 / 0.002) * self.slowness

    async def reads(self, place: ContentPlace | None = None) -> None:
        """Before a content is read, or a proof. Raises: LedgerUnavailable."""
        while self.sickness is Sickness.HANGS_READING:
            await asyncio.sleep(HANGING_SECONDS)
        if self.sickness is Sickness.UNREADABLE or (place is not None and self._is_bad(place)):
            raise _input_error()

    def _is_bad(self, place: ContentPlace) -> bool:
        is_there = (place.segment, place.offset) < self._bad_until
        return self.sickness is Sickness.BAD_SECTORS and is_there and place.sha256[0] % 2 == 0


def _input_error() -> LedgerUnavailable:
    cause = OSError(errno.EIO, os.strerror(errno.EIO))
    error = errors.unreadable(cause)
    error.__cause__ = cause
    return error


class LaggingWriter(InlineWriter):
    """Group commit like the thread's: whatever waits when a commit begins is in it."""

    def __init__(self, committer: Committer, closing: Callable[[Committer], None], disk: SlowDisk) -> None:
        super().__init__(committer, closing)
        self._disk = disk
        self._waiting: list[Call] = []
        self._is_busy = False

    def submit(self, call: Call) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.set_exception(LedgerUnavailable(STORE_UNAVAILABLE, "closed"))
            return future
        call.waiter = future
        self._waiting.append(call)
        self._begin()
        return future

    def _begin(self) -> None:
        if self._waiting and not self._is_busy:
            self._is_busy = True
            self._later(self._commit)

    def _commit(self) -> None:
        if self._is_closed:
            return
        batch, self._waiting = self._waiting, []
        if why := self._disk.refuses:
            for call in batch:
                call.error = LedgerUnavailable(STORE_UNAVAILABLE, why)
            self._later(self._committed, batch)
            return
        try:
            prepared = self._committer.try_prepare(batch)
        except Exception as error:
            self._committer.commit_after(error, batch)
            self._later(self._committed, batch)
            return
        if prepared is None:
            self._later(self._committed, batch)
        else:
            self._later(self._finish, batch, prepared)

    def _finish(self, batch: list[Call], prepared: Prepared) -> None:
        """It reaches the disk now; decided was before."""
        if not self._is_closed:
            self._committer.finish(batch, prepared)
            self._later(self._committed, batch)

    def _later(self, step: Callable[..., None], *arguments: Any) -> None:
        asyncio.get_running_loop().call_later(self._disk.lag(), self._when_it_goes, step, *arguments)

    def _when_it_goes(self, step: Callable[..., None], *arguments: Any) -> None:
        if self._disk.sickness is Sickness.HANGS and not self._is_closed:
            asyncio.get_running_loop().call_later(HANGING_SECONDS, self._when_it_goes, step, *arguments)
        else:
            step(*arguments)

    def _committed(self, batch: list[Call]) -> None:
        if not self._is_closed:
            settle(batch)
            self._is_busy = False
            self._begin()


class LaggingReaders(QuickReaders):
    """What is read may be old when it is known; not so `at_once`."""

    def __init__(self, path: Path, disk: SlowDisk) -> None:
        super().__init__(path)
        self._disk = disk
        self.at_once = super().ask

    def ask(self, question: Callable[[Any], Any]) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._later(self._read, question, answer)
        return answer

    def _read(self, question: Callable[[Any], Any], answer: "asyncio.Future[Any]") -> None:
        if answer.done():  # nobody waits any more
            return
        if self._disk.sickness in READINGS_HANG:
            asyncio.get_running_loop().call_later(HANGING_SECONDS, self._read, question, answer)
            return
        try:
            if self._disk.sickness is Sickness.ERRORS:
                raise LedgerUnavailable(STORE_UNAVAILABLE, Sickness.ERRORS.value)
            if self._disk.sickness is Sickness.UNREADABLE:
                raise _input_error()
            found = self.answer(question)
        except Exception as error:
            answer.set_exception(error)
        else:
            self._later(_known, answer, found)

    def _later(self, step: Callable[..., None], *arguments: Any) -> None:
        loop, lag = asyncio.get_running_loop(), self._disk.lag()
        if lag:
            loop.call_later(lag, step, *arguments)
        else:
            loop.call_soon(step, *arguments)


def _known(answer: "asyncio.Future[Any]", found: Any) -> None:
    if not answer.done():
        answer.set_result(found)


class WatchedCommitter(Committer):
    """`watch` is told of the rows of each commit, right after it."""

    def __init__(self, inner: Committer, watch: Watch) -> None:
        super().__init__(inner.connection, inner.state)
        self._watch = watch

    def _committed(self, works: Sequence[UnitOfWork]) -> None:
        rows = [(message_id, row) for work in works for message_id, row in work.rows.items()]
        super()._committed(works)
        self._watch(rows)


class Lagging(Quick):
    """A store on such a disk."""

    def __init__(self, disk: SlowDisk, watch: Watch) -> None:
        self._disk, self._watch = disk, watch

    def writer(self, committer: Committer, closing: Callable[[Committer], None]) -> LaggingWriter:
        quicken(committer.connection)
        return LaggingWriter(WatchedCommitter(committer, self._watch), closing, self._disk)

    def readers(self, path: Path) -> LaggingReaders:
        self.made_readers = LaggingReaders(path, self._disk)
        return self.made_readers


def read_through(ledger: Ledger, disk: SlowDisk) -> None:
    """Files of this ledger are read from the disk, also what it has in memory."""
    read_content, prove_read, contents = ledger.read_content, ledger.prove_read, ledger._contents
    disk.end_of_contents = lambda: (contents._last_segment, contents._end)

    async def content(place: ContentPlace) -> Content:
        await disk.reads(place)
        return await read_content(place)

    async def proof() -> None:
        await disk.reads()
        await prove_read()

    ledger.read_content, ledger.prove_read = content, proof  # type: ignore[method-assign]
