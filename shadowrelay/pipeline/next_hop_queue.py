"""The queues of the next hops in memory: what is loaded, who waits for a session or for a place, and when each queue wants a turn.

How much may be loaded, and when the next hop is probed, is `delivery_rules`; `deliver` gives the queues their turns.
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
from shadowrelay.model.queue import StoredMessage
from shadowrelay.model.routing import Fork
from shadowrelay.model.values import dataclass
from shadowrelay.pipeline import delivery_rules
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.delivery_rules import QueueState

REVIEWING_MAX = 400  # of one queue, beside what it may load: a page of questions


class Arriving(NamedTuple):
    """A message that was just accepted, with one fork, and found no room. `until`: the loop's time."""

    stored: StoredMessage
    fork: Fork
    content: Content | None
    until: float


@dataclass(slots=True, eq=False)
class NextHopQueue:
    """The queue of one next hop in memory. `loaded` are the messages whose fork is being worked on or in review. `arriving`, in
    order, take the places that they leave.

    Shapes: `due_at` is when the first fork in the ledger that is not loaded is due; `None`: there is none.
    """

    key: str
    concurrency: int
    state: QueueState
    loaded: set[MessageId] = field(default_factory=set)
    reviewing: set[MessageId] = field(default_factory=set)  # of these
    due_at: datetime | None = None
    noted_count: int = 0  # how often `due_at` was noted: what is noted during a read is not in it
    running_count: int = 0
    arriving: deque[Arriving] = field(default_factory=deque)
    arriving_timer: asyncio.TimerHandle | None = None
    _waiting: deque["asyncio.Future[bool]"] = field(default_factory=deque)

    async def session(self) -> bool:
        """Wait for a turn to use a session, first come, first served; `release` gives it back. False: it was called off."""
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
        """Whoever waits for a session goes back to the queue."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(False)

    @property
    def working_count(self) -> int:
        """What takes up room: a peer that is silent must not hold up the mail of others, so what is in review does not."""
        return len(self.loaded) - min(len(self.reviewing), REVIEWING_MAX)

    def is_behind(self, now: datetime) -> bool:
        """Mail that is due waits in the ledger."""
        return self.due_at is not None and self.due_at <= now

    @property
    def is_idle(self) -> bool:
        """Nothing is loaded and nothing waits: that the next hop was out of reach says nothing about the day of the next message."""
        return not self.loaded and self.due_at is None and not self.arriving


class NextHopQueues:
    """All queues in memory, by next hop, and when each wants a turn. `wake` is called when one wants it now.

    A queue is in memory while something is loaded or waits; `forget_if_idle` drops it afterwards.
    """

    def __init__(self, context: Context, wake: Callable[[], None]) -> None:
        self._context = context
        self._wake = wake
        self._queues: dict[str, NextHopQueue] = {}
        self._busy_count = 0  # queues with something loaded
        self._ready: dict[str, None] = {}  # queues that want a turn, in order
        self._times: list[tuple[datetime, str]] = []  # heap: when a queue wants one
        self.running_count = 0  # attempts, those that are loaded and in no review

    def __iter__(self) -> Iterator[NextHopQueue]:
        return iter(tuple(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def of(self, key: str) -> NextHopQueue:
        """The queue of this next hop, made where there is none."""
        queue = self._queues.get(key)
        if queue is None:
            concurrency = self._context.settings.send.concurrency_per_destination
            queue = self._queues[key] = NextHopQueue(key, concurrency, delivery_rules.active(concurrency))
        return queue

    def forget_if_idle(self, queue: NextHopQueue) -> bool:
        """Whether it was idle."""
        if queue.is_idle:
            self._queues.pop(queue.key, None)
            return True
        return False

    # room

    def has_room(self, fork: Fork) -> bool:
        """For a message that was just accepted."""
        queue = self._queues.get(fork.destination.key)
        if queue is None:
            return True
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
        share = delivery_rules.share(self._busy_count + (not queue.loaded), queue.working_count, self.running_count)
        return delivery_rules.room(queue.state, queue.working_count, share, now)

    def add(self, queue: NextHopQueue, message_id: MessageId) -> None:
        """This message takes a place in it."""
        self._busy_count += not queue.loaded
        queue.loaded.add(message_id)

    def remove(self, queue: NextHopQueue, message_id: MessageId) -> None:
        """It leaves its place, which what is due may take."""
        queue.loaded.remove(message_id)
        queue.reviewing.discard(message_id)
        self._busy_count -= not queue.loaded
        if not self.forget_if_idle(queue):
            self.use_room(queue)

    # turns

    def use_room(self, queue: NextHopQueue) -> None:
        """What is due takes the place that was left."""
        if queue.is_behind(self._context.now()) and queue.working_count <= queue.concurrency:
            self.want_turn(queue)

    def want_turn(self, queue: NextHopQueue) -> None:
        """As soon as possible."""
        self._ready[queue.key] = None
        self._wake()

    def want_turn_at(self, queue: NextHopQueue, at: datetime) -> None:
        heapq.heappush(self._times, (at, queue.key))

    def note_due(self, key: str, at: datetime | None) -> None:
        """A fork in this queue of the ledger is due then."""
        if at is None:
            return
        queue = self.of(key)
        queue.noted_count += 1
        is_sooner = queue.due_at is None or at < queue.due_at
        if is_sooner:
            queue.due_at = at
        if at <= self._context.now():
            self.want_turn(queue)
        elif is_sooner:  # else it is found when those before it are loaded
            self.want_turn_at(queue, at)

    def seconds_until_turn(self) -> float | None:
        """None: nobody wants one at a known time."""
        if not self._times:
            return None
        if self._ready:
            return 0.0
        return max((self._times[0][0] - self._context.now()).total_seconds(), 0.0)

    def turns(self, now: datetime) -> Iterator[NextHopQueue]:
        """Whose turn it is now, in order. A queue that wants another one meanwhile has it in the next round."""
        while self._times and self._times[0][0] <= now:
            _, key = heapq.heappop(self._times)
            self._ready[key] = None
        for key in tuple(self._ready):
            self._ready.pop(key, None)
            if (queue := self._queues.get(key)) is not None:
                yield queue
