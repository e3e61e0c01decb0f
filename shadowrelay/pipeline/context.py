"""What every service works with, put together once by the node: the clock, the tasks, the peers, leases and attempts.

Every task has an owner, `Tasks`. One that fails is logged and ends alone; the node goes on.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import structlog

from shadowrelay.memory import ContentBudget
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX, Content, ContentPlace
from shadowrelay.model.ownership import Claim, Transition
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.model.values import replace
from shadowrelay.ownership.rules import Party
from shadowrelay.pipeline import ages
from shadowrelay.pipeline.leases import Attempts, Leases
from shadowrelay.pipeline.peerbook import PeerBook
from shadowrelay.ports import Clock, Decide, Ledger, Metrics, PeerLink, TrackingLog
from shadowrelay.settings.values import Settings

TICK_SECONDS = 0.5
STALL_SECONDS_MAX = 2.0  # a longer gap between two ticks means that this process was stopped, not busy


class SystemClock:
    """Wall time, CLOCK_BOOTTIME, and the time during which this process really ran (it must be given `tick`)."""

    def __init__(self) -> None:
        self._ran = 0.0
        self._ticked_at = self.awake()

    now = staticmethod(partial(datetime.now, UTC))
    awake = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))  # asked twenty times a message, so no function of ours

    def ran(self) -> float:
        return self._ran + min(self.awake() - self._ticked_at, STALL_SECONDS_MAX)

    def tick(self) -> None:
        """Count the time since the last tick, at most `STALL_SECONDS_MAX` of it."""
        at = self.awake()
        self._ran += min(at - self._ticked_at, STALL_SECONDS_MAX)
        self._ticked_at = at

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()


BEGIN_ANEW_SECONDS = 1.0
CANCEL_AGAIN_SECONDS = 0.2
FINISH_SECONDS = 5.0  # at the end, for work that is done to its end: a commit and the rows that tell of it
T = TypeVar("T")
_log = structlog.get_logger()


class Tasks:
    """Holds the tasks of the services. `close` cancels those that are left and waits for them."""

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
        """Do `work` to its end: a commit and the rows that tell of it belong together, though the caller is cancelled in between.
        Raises: what `work` raises; nobody else logs it."""
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
        """Start a loop of the node. Whatever it fails with is logged, and it begins anew: without it the node would stand still."""
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
        """Cancel everything that still runs and wait until it has ended. What is done to its end gets a few seconds for that."""
        loop = asyncio.get_running_loop()
        finish_at = loop.time() + FINISH_SECONDS
        while self._tasks:
            tasks = tuple(self._tasks)
            for task in tasks:
                if task not in self._whole or loop.time() >= finish_at:
                    task.cancel()
            # Again and again: `asyncio.wait_for` of Python 3.11 loses a cancellation that comes together with its result.
            done, _ = await asyncio.wait(tasks, timeout=CANCEL_AGAIN_SECONDS)
            self._tasks.difference_update(done)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            is_expected = isinstance(error, LedgerUnavailable)  # whoever waits for it says what becomes of that
            _log.error("task.failed", task=task.get_name(), reason=str(error), exc_info=None if is_expected else error)


@dataclass(slots=True)
class Context:
    """The node's parts. `settings` is replaced as a whole when the configuration is reloaded."""

    settings: Settings
    me: Party
    clock: Clock
    ledger: Ledger
    links: Mapping[ServerName, PeerLink]
    tracking: TrackingLog
    metrics: Metrics
    leases: Leases
    attempts: Attempts
    peers: PeerBook
    tasks: Tasks
    budget: ContentBudget = field(default_factory=ContentBudget)
    is_draining: bool = field(default=False)
    placements: set[MessageId] = field(default_factory=set)  # a copy is under way, or what came of it is not recorded yet

    wall: ages.WallClock | None = None
    set_backs_count: int = 0  # how often the wall clock was set back

    now: Callable[[], datetime] = field(init=False)

    def __post_init__(self) -> None:
        self.now = self.clock.now

    def clock_ahead(self) -> timedelta:
        """How far the wall clock has jumped ahead of the time that passed: nothing ends by that age."""
        before = self.wall
        self.wall = ages.seen(before, self.clock.now(), self.clock.awake())
        if self.wall.jump:
            seconds = round(self.wall.jump.total_seconds(), 3)
            _log.warning("clock.jumped", seconds=seconds, not_believed_seconds=round(self.wall.ahead.total_seconds(), 3))
            if seconds < 0:
                self.set_backs_count += 1
        elif before is not None and self.wall.ahead != before.ahead:
            _log.warning("clock.believed", seconds=round(before.ahead.total_seconds(), 3))
        return self.wall.ahead

    @property
    def is_enabled(self) -> bool:
        return self.settings.transport.shadow_redundancy_enabled

    @property
    def heartbeat(self) -> float:
        """shadow_heartbeat_frequency in seconds."""
        return self.settings.transport.shadow_heartbeat_frequency.total_seconds()

    async def read_content(self, place: ContentPlace) -> Content:
        """`Ledger.read_content`, in its turn: the bytes count in the memory budget until nobody holds the result any more.

        Never to be called while another such result is held: all who wait could hold what the others wait for.
        Raises: ContentCorrupt, LedgerUnavailable.
        """
        if place.size > CONTENT_IN_MEMORY_BYTES_MAX:  # it stays a file
            return await self.ledger.read_content(place)
        portion = await self.budget.reserve(place.size)
        try:
            content = await self.ledger.read_content(place)
        except BaseException:
            portion.release()
            raise
        return replace(content, portion=portion)

    def call_off_done(self, message_id: MessageId, transition: Transition) -> bool:
        """Attempts on recipients that are done, as another node has just said, are called off. False: it said nothing new of them.

        Called twice: before the commit, because an attempt could end its data right after it; and when it is committed, because what
        is read before that still shows the claim as it was.
        """
        before, after = transition.before, transition.after
        if before is None or after is None or after.done <= before.done:
            return False
        self.attempts.call_off(message_id, after.done)
        return True

    async def end_claims(self, message_ids: Sequence[MessageId], decide: Decide) -> tuple[Transition, ...]:
        """`Ledger.transition` with a `decide` that another node's words are behind, and that may call `attempts.end_claim`. Raises:
        as that does."""

        def deciding(message_id: MessageId, claim: Claim | None) -> Transition:
            transition = decide(message_id, claim)
            self.call_off_done(message_id, transition)
            return transition

        try:
            transitions = await self.ledger.transition(message_ids, deciding)
        except asyncio.CancelledError:
            self.tasks.spawn(self._settle_later(tuple(message_ids)), "claims")  # nobody waits for it, yet it may be committed
            raise
        except BaseException:
            self.attempts.settle(message_ids)
            raise
        self.attempts.settle(message_ids)
        for message_id, transition in zip(message_ids, transitions, strict=True):
            self.call_off_done(message_id, transition)
            before, after = transition.before, transition.after
            if before is not None and before.is_primary and not (after is not None and after.is_primary):
                self.leases.forget(message_id)
        return transitions

    async def _settle_later(self, message_ids: Sequence[MessageId]) -> None:
        with contextlib.suppress(LedgerUnavailable):
            await self.ledger.transition((), lambda _, claim: Transition(claim, claim))  # promises are kept in their order
        self.attempts.settle(message_ids)
