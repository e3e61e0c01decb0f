"""The dependencies shared by all services: clock, tasks, peers, leases, flights. docs/architecture.md "The packages".

Every task is owned by `Tasks`. A task that fails is logged and ends alone; the node keeps running.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import structlog

from shadowrelay.memory import ContentBudget
from shadowrelay.model.commit_failure import CommitFailure
from shadowrelay.model.counts import Counts
from shadowrelay.model.fate import NOT_SHARED, Shared
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX, Content, ContentPlace, Envelope
from shadowrelay.model.ownership import Claim, Decide, DiscardEvent, DiscardStatus, Role, Transition
from shadowrelay.model.replies import ContentUnreadable, LedgerUnavailable
from shadowrelay.model.settings import Settings
from shadowrelay.model.tracking import Acknowledged
from shadowrelay.model.values import replace
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.pipeline.delayed import Delayed
from shadowrelay.pipeline.flights import Flights
from shadowrelay.pipeline.leases import Leases
from shadowrelay.pipeline.own_disk import OwnDisk
from shadowrelay.pipeline.peerbook import PeerBook
from shadowrelay.pipeline.site_copies import SiteCopies
from shadowrelay.ports import Clock, PeerLink, TrackingLog
from shadowrelay.protocol import tracking
from shadowrelay.rules import delivery, flight
from shadowrelay.rules.back_pressure import NO_PRESSURE, Pressure
from shadowrelay.rules.repeats import Repeats
from shadowrelay.store import promises, reading
from shadowrelay.store.ledger import Ledger

TICK_SECONDS = 0.5
STALL_SECONDS_MAX = 2.0  # a longer gap between two ticks means that this process was stopped, not busy


class SystemClock:
    """Wall time, CLOCK_BOOTTIME, and the time during which this process actually ran (counted by `tick`)."""

    def __init__(self) -> None:
        self._ran = 0.0
        self._ticked_at = self.awake()

    now = staticmethod(partial(datetime.now, UTC))
    awake = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))  # called twenty times a message: no Python wrapper

    def ran(self) -> float:
        return self._ran + min(self.awake() - self._ticked_at, STALL_SECONDS_MAX)

    def tick(self) -> None:
        """Count the time since the last tick, at most `STALL_SECONDS_MAX` of it."""
        at = self.awake()
        self._ran += min(at - self._ticked_at, STALL_SECONDS_MAX)
        self._ticked_at = at

    async def run(self) -> None:
        """Tick forever."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()


BEGIN_ANEW_SECONDS = 1.0
PAGE = 400  # messages in one step of a loop; docs/protocol.md 14: questions in one XQDISCARD STATUS BDAT
LEDGER_AGAIN_SECONDS = 1.0  # what the ledger did not take is said again
CANCEL_AGAIN_SECONDS = 0.2
FINISH_SECONDS = 5.0  # at shutdown, for work that must complete: a commit and its tracking rows
T = TypeVar("T")
_log = structlog.get_logger()


class Tasks:
    """Owns the tasks of the services. `close` cancels the remaining ones and waits for them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._whole: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Start `work`; the returned task may be awaited (shielded) or left alone."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def whole(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Complete `work` even if the caller is cancelled: a commit and its tracking rows belong together.
        Raises: what `work` raises, which the caller has to log."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        for owner in (self._tasks, self._whole):
            owner.add(task)
            task.add_done_callback(owner.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._ended)
            raise

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> "asyncio.Task[None]":
        """Start a loop of the node. After an exception, which is logged, the loop restarts: without it the node would stall."""
        return self.spawn(self._kept(work, name), name)

    async def _kept(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        while True:
            try:
                await work()
                return
            except Exception:
                _log.exception("task.begins_anew", task=name)
                await asyncio.sleep(BEGIN_ANEW_SECONDS)

    def __len__(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """Cancel all running tasks and wait until they have ended. Those of `whole` get `FINISH_SECONDS` to complete."""
        loop = asyncio.get_running_loop()
        finish_at = loop.time() + FINISH_SECONDS
        while self._tasks:
            tasks = tuple(self._tasks)
            for task in tasks:
                if task not in self._whole or loop.time() >= finish_at:
                    task.cancel()
            # Repeatedly: `asyncio.wait_for` of Python 3.11 loses a cancellation that arrives together with its result.
            done, _ = await asyncio.wait(tasks, timeout=CANCEL_AGAIN_SECONDS)
            self._tasks.difference_update(done)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            is_expected = isinstance(error, LedgerUnavailable)  # the caller handles it
            _log.error("task.failed", task=task.get_name(), reason=str(error), exc_info=None if is_expected else error)


async def until_taken(call: Callable[[], Awaitable[T]], failed: Callable[[LedgerUnavailable], None] = lambda _: None) -> T:
    """Repeat what is said to the ledger until it takes it, because what follows depends on it. `failed`: each time that it does not."""
    while True:
        try:
            return await call()
        except LedgerUnavailable as error:
            failed(error)
        await asyncio.sleep(LEDGER_AGAIN_SECONDS)


async def woken_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether it is set within so many seconds; None: wait for as long as it takes. `asyncio.wait_for` of Python 3.11 starts a task for
    this, and loses a cancellation that arrives together with the result. The loops of an idle node do little else."""
    if event.is_set():
        await asyncio.sleep(0)  # others run, too
        return True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


@dataclass(slots=True)
class Context:
    """The node's shared parts. `settings` is replaced as a whole when the configuration is reloaded, `pressure` with each sample."""

    settings: Settings
    me: PeerDatabase
    clock: Clock
    ledger: Ledger
    links: Mapping[ServerName, PeerLink]
    tracking: TrackingLog
    leases: Leases
    peers: PeerBook
    tasks: Tasks
    budget: ContentBudget = field(default_factory=ContentBudget)
    counts: Counts = field(default_factory=Counts)
    is_draining: bool = field(default=False)  # takes no mail and starts no attempt: it drains, or stops
    is_stopping: bool = field(default=False)
    is_older_copy: bool = False  # its sessions are refused until it has started again, so no silence proves a loss: `pipeline.rolled_back`
    commit_failure: CommitFailure | None = None  # takes no mail, starts no attempt, and is silent to its peers: `pipeline.commit_watch`
    redirect_to: frozenset[ServerName] = frozenset()  # these get all copies, and then the messages: `pipeline.draining`
    pressure: Pressure = NO_PRESSURE
    safety_net_complete_since: datetime | None = None  # what was delivered before was dropped to make room
    route_digests: Mapping[str, str] = field(default_factory=dict)  # what peers compare of the demands of routes
    delayed: Delayed = field(default_factory=Delayed)
    site_copies: SiteCopies = field(init=False)
    repeats: Repeats = field(default_factory=Repeats)
    flights: Flights = field(default_factory=Flights)
    own_disk: OwnDisk = field(default_factory=OwnDisk)

    wall: delivery.WallClock | None = None
    set_backs_count: int = 0  # how often the wall clock was set back

    now: Callable[[], datetime] = field(init=False)

    def __post_init__(self) -> None:
        self.now = self.clock.now
        self.site_copies = SiteCopies(self.clock)

    def note_clock(self) -> timedelta:
        """How far the wall clock has jumped ahead of elapsed time: nothing expires by that part."""
        before = self.wall
        self.wall = delivery.next_reading(before, self.clock.now(), self.clock.awake())
        if self.wall.jump:
            seconds = round(self.wall.jump.total_seconds(), 3)
            _log.warning("clock.jumped", seconds=seconds, not_believed_seconds=round(self.wall.ahead.total_seconds(), 3))
            if seconds < 0:
                self.set_backs_count += 1
        elif before is not None and self.wall.ahead != before.ahead:
            _log.warning("clock.believed", seconds=round(before.ahead.total_seconds(), 3))
        return self.wall.ahead

    def why_silent(self) -> str:
        """Why this node says nothing to its peers; empty while it may."""
        return "" if self.commit_failure is None else f"this node cannot {self.commit_failure.cannot}: {self.commit_failure.reason}"

    def heard_at(self, server: ServerName) -> datetime | None:
        """When this process last heard the peer: of earlier ones, the ledger knows no more than when the last session was opened."""
        state = self.peers.states.get(server)
        if state is None or state.heard_awake is None:
            return None
        return self.now() - timedelta(seconds=self.clock.awake() - state.heard_awake)

    def shared_fate(self, server: ServerName) -> Shared:
        """With whom a peer shares its fate, as far as that matters: a redirect moves mail to servers that an administrator named."""
        return NOT_SHARED if self.redirect_to else self.peers.fates.counted.get(server, NOT_SHARED)

    @property
    def is_enabled(self) -> bool:
        return self.settings.transport.shadow_redundancy_enabled

    @property
    def heartbeat(self) -> float:
        """shadow_heartbeat_frequency in seconds."""
        return self.settings.transport.shadow_heartbeat_frequency.total_seconds()

    async def read_content(self, place: ContentPlace) -> Content:
        """`Ledger.read_content`, after waiting for memory: the bytes count against the budget until the result is released.

        Never call it while holding another such result: the waiting callers could deadlock.
        Raises: ContentCorrupt, LedgerUnavailable.
        """
        if place.size > CONTENT_IN_MEMORY_BYTES_MAX:  # it stays a file
            return await self._read_content(place)
        portion = await self.budget.reserve(place.size)
        try:
            content = await self._read_content(place)
        except BaseException:
            portion.release()
            raise
        return replace(content, portion=portion)

    async def _read_content(self, place: ContentPlace) -> Content:
        try:
            content = await self.ledger.read_content(place)
        except ContentUnreadable as error:
            is_lasting = self.own_disk.content_failed(place, self.clock.awake(), self.heartbeat)
            raise ContentUnreadable(error.reply, error.reason, is_lasting=is_lasting) from error
        self.own_disk.content_read(place)
        return content

    def call_off_done(self, message_id: MessageId, transition: Transition) -> bool:
        """Call off attempts on recipients that another node just reported as done. False: it reported nothing new.

        Called twice: before the commit, because an attempt could end its data right after it; and after the commit, because
        earlier reads still show the old claim.
        """
        before, after = transition.before, transition.after
        if before is None or after is None or after.done <= before.done:
            return False
        self.flights.happens(message_id, flight.call_off, after.done)
        return True

    async def end_claims(self, message_ids: Sequence[MessageId], decide: Decide) -> tuple[Transition, ...]:
        """`promises.transition` with a `decide` that acts on another node's report and may say `flight.end_claim`. Raises: as
        `promises.transition` does."""

        def deciding(message_id: MessageId, claim: Claim | None) -> Transition:
            transition = decide(message_id, claim)
            self.call_off_done(message_id, transition)
            return transition

        try:
            transitions = await self.ledger.commit(promises.transition, message_ids, deciding)
        except asyncio.CancelledError:
            self.tasks.spawn(self._settle_later(tuple(message_ids)), "claims")  # it may still be committed
            raise
        except BaseException:
            self._settle(message_ids)
            raise
        self._settle(message_ids)
        for message_id, transition in zip(message_ids, transitions, strict=True):
            self.call_off_done(message_id, transition)
            before, after = transition.before, transition.after
            if before is None or not before.is_primary:
                continue
            is_primary = after is not None and after.is_primary
            if not is_primary:
                self.leases.forget(message_id)
            if after is not None and after.role is Role.DELIVERED:
                self.delayed.end(message_id, Acknowledged.DONE)
            elif not is_primary or (after is not None and after.role is Role.HANDED_OVER):
                self.delayed.end(message_id, Acknowledged.HANDED_OVER)
        return transitions

    def _settle(self, message_ids: Sequence[MessageId]) -> None:
        for message_id in message_ids:
            if message_id in self.flights:
                self.flights.happens(message_id, flight.settle_claim)

    async def _settle_later(self, message_ids: Sequence[MessageId]) -> None:
        with contextlib.suppress(LedgerUnavailable):
            await self.ledger.commit(promises.transition, (), lambda _, claim: Transition(claim, claim))  # transactions keep their order
        self._settle(message_ids)

    async def log_discarded(
        self, primary: ServerName, events: Sequence[DiscardEvent], known: Mapping[MessageId, tuple[int, Envelope]] | None = None
    ) -> None:
        """Write a HADISCARD row for each shadow message that these ended, whichever way the node learned that. Called after the commit,
        because the commit may fail. `known`: their envelopes, where they were read before. Raises: LedgerUnavailable."""
        if not events:
            return
        envelopes = dict(known or {})
        if missing := [event.message_id for event in events if event.message_id not in envelopes]:
            envelopes |= await self.ledger.read(reading.envelopes, missing)
        now = self.now()
        for event in events:
            internal_id, envelope = envelopes.get(event.message_id, (0, None))
            self.tracking.write(
                tracking.hadiscard(
                    self.me.server,
                    event.message_id,
                    at=now,
                    primary=primary,
                    envelope=envelope,
                    ordinals=event.ordinals,
                    status=str(event.status),
                    internal_id=internal_id,
                    is_kept=envelope is not None and bool(envelope.relayed_from),
                )
            )
        self.counts.discarded += [event.status for event in events].count(DiscardStatus.DELIVERED)
