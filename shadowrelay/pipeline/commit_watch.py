"""Proves that this node can commit, and read what it has stored, and makes it silent while it cannot. docs/design.md 6.14.

A node whose disk fails or hangs can still read, poll and answer. If it did, its peers would wait for it: they would neither take its mail
over nor replace the copies that it holds. Every commit is a proof, and raises the position. If there was none for a heartbeat, one is asked
for. What was stored last is read once a heartbeat, and so is the queue database. An outcome that is not taken counts as no commit, whatever
else succeeds: its message would wait here for ever. Nothing here waits for the disk.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from shadowrelay.model.commit_failure import CommitFailure, cannot_commit, reading_hangs
from shadowrelay.model.replies import STORE_UNAVAILABLE, LedgerUnavailable
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.own_disk import Unrecorded
from shadowrelay.store import promises, reading
from shadowrelay.store.errors import is_of_the_disk

LOOKS_PER_HEARTBEAT = 4
LOOK_SECONDS_MAX = 5.0
HANGS = "the disk does not answer"

_log = structlog.get_logger()


class CommitWatch:
    """`Context.commit_failure` is its result. `on_silent` is called when that begins, `on_restored` when it is over."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.on_silent: list[Callable[[CommitFailure], None]] = []
        self.on_restored: list[Callable[[], None]] = []
        self._position = context.ledger.position
        self._committed_at = context.now()
        self._committed_ran = context.clock.ran()
        self._asked_ran: float | None = None  # when a commit was first asked for since the last one
        self._asking: asyncio.Task[None] | None = None
        self._error = LedgerUnavailable(STORE_UNAVAILABLE, HANGS)
        self._read_ran = context.clock.ran()  # when a proof of reading was asked for last
        self._reading: asyncio.Task[None] | None = None
        self._unread: tuple[datetime, LedgerUnavailable] | None = None  # the first failure since one succeeded, and the last error
        self._is_unreadable = False  # two failed in a row, a heartbeat apart

    async def run(self) -> None:
        """Look several times a heartbeat, forever."""
        while True:
            self.look()
            await asyncio.sleep(min(self._context.heartbeat / LOOKS_PER_HEARTBEAT, LOOK_SECONDS_MAX))

    def look(self) -> None:
        """Note a commit; without one for too long ask for one, and in the end fall silent. The same for reading, for which a disk may be
        slow."""
        context = self._context
        ran, position = context.clock.ran(), context.ledger.position
        if self._reading is None and ran - self._read_ran >= context.heartbeat:
            self._read_ran = ran
            self._reading = context.tasks.spawn(self._read(), "proof of reading")
        elif self._reading is not None and not self._is_unreadable and reading_hangs(ran, self._read_ran, context.heartbeat):
            self._unread = self._unread or (context.now(), LedgerUnavailable(STORE_UNAVAILABLE, HANGS))
            self._is_unreadable = True
        is_stuck = self._stuck_outcome() is not None
        if context.commit_failure is None and (self._is_unreadable or is_stuck):
            self._fall_silent()
        if position != self._position:
            self._position, self._committed_ran, self._committed_at, self._asked_ran = position, ran, context.now(), None
            if context.commit_failure is not None and not self._is_unreadable and not is_stuck:
                self._restore(context.commit_failure.since)
            return
        if ran - self._committed_ran < context.heartbeat:
            return
        if self._asked_ran is None:
            self._asked_ran = ran
        if self._asking is None:
            self._asking = context.tasks.spawn(self._commit(), "proof of commits")
        if context.commit_failure is None and cannot_commit(ran, self._committed_ran, self._asked_ran, context.heartbeat):
            self._fall_silent()

    def _stuck_outcome(self) -> Unrecorded | None:
        return self._context.own_disk.stuck_outcome(self._context.clock.ran(), self._context.heartbeat)

    def seconds(self) -> float:
        """Since the last commit while this node is silent, else 0."""
        failure = self._context.commit_failure
        return 0.0 if failure is None else (self._context.now() - failure.since).total_seconds()

    async def _commit(self) -> None:
        self._error = LedgerUnavailable(STORE_UNAVAILABLE, HANGS)
        try:
            await self._context.ledger.commit(promises.nothing)
        except LedgerUnavailable as error:
            self._error = error
        finally:
            self._asking = None

    async def _read(self) -> None:
        try:
            await self._context.ledger.prove_read()
            await self._read_database()
            self._context.own_disk.read_proved_at = self._context.clock.awake()
            self._unread, self._is_unreadable = None, False
        except LedgerUnavailable as error:  # one alone may be chance
            self._is_unreadable = self._unread is not None
            self._unread = (self._context.now() if self._unread is None else self._unread[0], error)
        finally:
            self._reading = None

    async def _read_database(self) -> None:
        """What deliveries and takeovers begin with. Raises: LedgerUnavailable, if the disk is the cause."""
        try:
            await self._context.ledger.read(reading.proof, self._context.now())
        except LedgerUnavailable as error:
            if is_of_the_disk(error):
                raise

    def _fall_silent(self) -> None:
        context = self._context
        if self._is_unreadable and self._unread is not None:
            since, error = self._unread
            failure = CommitFailure(since, context.now(), error.reason, error.reply, is_reading=True)
        elif (stuck := self._stuck_outcome()) is not None:
            failure = CommitFailure(stuck.since, context.now(), stuck.error.reason, stuck.error.reply, is_outcome=True)
        else:
            failure = CommitFailure(self._committed_at, context.now(), self._error.reason, self._error.reply)
        context.commit_failure = failure
        context.leases.are_suspended = True
        context.peers.pause()
        directory = str(context.settings.server.data_directory)
        _log.error("commits.failing", what=failure.what, since=failure.since.isoformat(), directory=directory, reason=failure.reason)
        for tell in self.on_silent:
            tell(failure)

    def _restore(self, since: datetime) -> None:
        """As after an absence: silence counts anew, and messages whose leases have ended are asked about before they are delivered."""
        context = self._context
        context.peers.resume()
        context.leases.are_suspended = context.is_older_copy
        context.commit_failure = None
        _log.warning("commits.restored", seconds=round((context.now() - since).total_seconds(), 1))
        for tell in self.on_restored:
            tell()


def explanation(context: Context, failure: CommitFailure) -> str:
    """One sentence: which disk, since when, and who takes over when."""
    directory = context.settings.server.data_directory
    ends = {server: failure.silent_since + timedelta(seconds=context.leases.silence_limit(server)) for server in context.peers.states}
    takers = ", ".join([f"{server} at {at:%Y-%m-%dT%H:%M:%SZ}" for server, at in ends.items()])
    takeover = f"; the peers that hold copies of its mail take it over: {takers}" if takers else ""
    return (
        f"{failure.what} {directory} since {failure.since:%Y-%m-%dT%H:%M:%SZ} ({failure.reason}): "
        f"no mail is taken or delivered, and this node is silent to its peers{takeover}"
    )
