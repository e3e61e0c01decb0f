"""Keeps the in-memory queues of next hops and schedules their turns. docs/architecture.md "The queues of next hops".

A queue has loaded forks, forks that wait for a session, and messages that wait for room. `delivery_rules` decides how much may be
loaded and when the next hop is probed; `deliver` gives the queues their turns.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import field
from datetime import datetime
from typing import NamedTuple

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Content
from shadowrelay.model.queue import NEVER, StoredMessage
from shadowrelay.model.routing import Fork
from shadowrelay.model.values import dataclass
from shadowrelay.pipeline import delivery_rules
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.delivery_rules import QueueState

REVIEWING_MAX = 400  # per queue, in addition to what it may load: a page of questions


class Arriving(NamedTuple):
    """A message just accepted, with one fork, for which there was no room. `until`: in time of the event loop."""

    stored: StoredMessage
    fork: Fork
    content: Content | None
    until: float


@dataclass(slots=True, eq=False)
class NextHopQueue:
    """The queue of one next hop in memory. `loaded` are the messages whose fork is being worked on or in review; `arriving`
    messages take their places in order as they become free.

    Shapes: `due_at` is when the first fork that is in the ledger but not loaded is due; `None`: there is none.
    """

    key: str
    concurrency: int
    state: QueueState
    loaded: set[MessageId] = field(default_factory=set)
    reviewing: set[MessageId] = field(default_factory=set)  # subset of `loaded`
    due_at: datetime | None = None
    noted_count: int = 0  # calls of `note_due`: a read does not include forks noted while it ran
    running_count: int = 0
    is_suspended: bool = False
    arriving: deque[Arriving] = field(default_factory=deque)
    arriving_timer: asyncio.TimerHandle | None = None
    _waiting: deque["asyncio.Future[bool]"] = field(default_factory=deque)

    async def session(self) -> bool:
        """Wait for a session, first come, first served; `release` gives it back. False: it was called off."""
        if self.running_count < self.concurrency:
            self.running_count += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self.running_count -= 1

    def call_off(self) -> None:
        """Send the forks that wait for a session back to the queue."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(False)

    @property
    def working_count(self) -> int:
        """Forks that use room. Those in review do not, so that a silent peer does not block other mail."""
        return len(self.loaded) - min(len(self.reviewing), REVIEWING_MAX)

    def is_behind(self, now: datetime) -> bool:
        """Whether due mail waits in the ledger."""
        return self.due_at is not None and self.due_at <= now


class NextHopQueues:
    """All queues in memory, by next hop, and when each needs a turn. `wake` is called when one needs it now.

    A queue is in memory while something is loaded or waits; `forget_if_idle` drops it afterwards.
    """

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        self._context = context
        self._wake = wake
        self._queues: dict[str, NextHopQueue] = {}
        self._busy_count = 0  # queues with something loaded
        self._ready: dict[str, None] = {}  # queues that need a turn now, in order
        self._times: list[tuple[datetime, str]] = []  # heap: when a queue needs one
        self._suspended = set(context.ledger.suspended_queues())
        self.running_count = 0  # attempts: loaded, and not in review

    def __iter__(self) -> Iterator[NextHopQueue]:
        return iter(tuple(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def of(self, key: str) -> NextHopQueue:
        """The queue of this next hop, created if missing."""
        queue = self._queues.get(key)
        if queue is None:
            concurrency = self._context.settings.send.concurrency_per_destination
            state = delivery_rules.active(concurrency)
            queue = self._queues[key] = NextHopQueue(key, concurrency, state, is_suspended=key in self._suspended)
        return queue

    def suspend(self, key: str) -> NextHopQueue | None:
        """Nothing is loaded into this queue any more, and what waits in memory for a session goes back. `None`: it is not in memory."""
        self._suspended.add(key)
        queue = self._queues.get(key)
        if queue is not None:
            queue.is_suspended = True
            queue.call_off()
        return queue

    def resume(self, key: str) -> NextHopQueue:
        """Its turn is now."""
        self._suspended.discard(key)
        queue = self.of(key)
        queue.is_suspended = False
        self.want_turn(queue)
        return queue

    def forget_if_idle(self, queue: NextHopQueue) -> bool:
        """Drop the queue if nothing is loaded and nothing waits; returns whether it did. An earlier failure of the next hop need not be
        kept for the next message."""
        if not queue.loaded and queue.due_at is None and not queue.arriving:
            self._queues.pop(queue.key, None)
            return True
        return False

    # room

    def has_room(self, fork: Fork) -> bool:
        """Whether there is room for a message just accepted."""
        queue = self._queues.get(fork.destination.key)
        if queue is None:
            return fork.destination.key not in self._suspended
        now = self._context.now()
        return delivery_rules.takes_new(
            queue.state,
            self.room(queue, now),
            others_wait=bool(queue.arriving),
            is_behind=queue.is_behind(now),
            has_free_session=queue.working_count < queue.concurrency,
        )

    def room(self, queue: NextHopQueue, now: datetime) -> int:
        """How many more forks it may load now."""
        if queue.is_suspended:
            return 0
        working_count = queue.working_count
        share = delivery_rules.share(self._busy_count + (not queue.loaded), working_count, self.running_count)
        return delivery_rules.room(queue.state, working_count, share, now)

    def add(self, queue: NextHopQueue, message_id: MessageId) -> None:
        """Give this message a place in the queue."""
        self._busy_count += not queue.loaded
        queue.loaded.add(message_id)

    def remove(self, queue: NextHopQueue, message_id: MessageId) -> None:
        """Free the place of this message, for due mail to take."""
        queue.loaded.remove(message_id)
        queue.reviewing.discard(message_id)
        self._busy_count -= not queue.loaded
        if queue.due_at is not None:
            self.use_room(queue)
        elif not queue.loaded:
            self.forget_if_idle(queue)

    # turns

    def use_room(self, queue: NextHopQueue) -> None:
        """Let due mail take a free place."""
        if queue.is_behind(self._context.now()) and queue.working_count <= queue.concurrency:
            self.want_turn(queue)

    def want_turn(self, queue: NextHopQueue) -> None:
        """Request a turn as soon as possible."""
        self._ready[queue.key] = None
        self._wake()

    def want_turn_at(self, queue: NextHopQueue, at: datetime) -> None:
        heapq.heappush(self._times, (at, queue.key))

    def note_due(self, key: str, at: datetime | None) -> None:
        """A fork in this queue of the ledger is due at that time."""
        if at is None or at >= NEVER:
            return
        queue = self.of(key)
        queue.noted_count += 1
        is_sooner = queue.due_at is None or at < queue.due_at
        if is_sooner:
            queue.due_at = at
        if at <= self._context.now():
            self.want_turn(queue)
        elif is_sooner:  # else it is found when the earlier ones are loaded
            self.want_turn_at(queue, at)

    def seconds_until_turn(self) -> float | None:
        """None: no queue needs a turn at a known time."""
        if not self._times:
            return None
        if self._ready:
            return 0.0
        return max((self._times[0][0] - self._context.now()).total_seconds(), 0.0)

    def turns(self, now: datetime) -> Iterator[NextHopQueue]:
        """The queues whose turn it is now, in order. A queue that requests another turn meanwhile gets it in the next round."""
        while self._times and self._times[0][0] <= now:
            _, key = heapq.heappop(self._times)
            self._ready[key] = None
        for key in tuple(self._ready):
            self._ready.pop(key, None)
            if (queue := self._queues.get(key)) is not None:
                yield queue
