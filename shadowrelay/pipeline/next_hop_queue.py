"""The queue of one next hop in memory: what is loaded, who waits for a session, and who waits a moment for a place.

How much may be loaded, and when the next hop is probed, is `delivery_rules`; `deliver` gives the queues their turns.
"""

import asyncio
from collections import deque
from dataclasses import field
from datetime import datetime
from typing import NamedTuple

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Content
from shadowrelay.model.queue import StoredMessage
from shadowrelay.model.routing import Fork
from shadowrelay.model.values import dataclass
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
