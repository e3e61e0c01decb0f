"""Measures how fast queues drain: Exchange's Velocity, departures less arrivals a second over the last minute. Source: msd-qp

That difference is the change of the queue's depth, so depths are sampled instead of counting each message.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from heapq import nlargest

from shadowrelay.model.queue import QueueKind
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.ports import Clock

EVERY_SECONDS = 10.0
SPAN_SECONDS = 60.0
HISTORY_POINTS = 60  # one a minute
HISTORY_QUEUES_MAX = 1_000  # the most active of each minute; 60 x 1,000 numbers are 5 MB at most

Depths = Mapping[tuple[QueueKind, str], int]
"""Messages by kind and next hop of a queue; none for a queue that is empty."""


class Velocities:
    """The depths of the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, Depths]] = deque()
        self._history: deque[Depths] = deque(maxlen=HISTORY_POINTS)
        self._cut: deque[bool] = deque(maxlen=HISTORY_POINTS)  # whether that minute had more queues than are kept
        self._remembered_at = float("-inf")

    async def run(self, depths: Callable[[], Awaitable[Depths]]) -> None:
        """Sample forever."""
        while True:
            with contextlib.suppress(LedgerUnavailable):  # the older samples stand meanwhile
                self.note(await depths())
            await asyncio.sleep(EVERY_SECONDS)

    def note(self, depths: Depths) -> None:
        """These are the depths now."""
        now = self._clock.awake()
        self._samples.append((now, depths))
        while self._samples[0][0] < now - SPAN_SECONDS - EVERY_SECONDS / 2:
            self._samples.popleft()
        if now - self._remembered_at >= SPAN_SECONDS:
            self._remembered_at = now
            is_cut = len(depths) > HISTORY_QUEUES_MAX
            self._history.append(self._most_active(depths) if is_cut else depths)
            self._cut.append(is_cut)

    def _most_active(self, depths: Depths) -> Depths:
        """Those with most in them, or with most that came or left since the oldest sample."""
        _, before = self._samples[0]

        def activity(item: tuple[tuple[QueueKind, str], int]) -> int:
            key, depth = item
            return max(depth, abs(depth - before.get(key, 0)))

        return dict(nlargest(HISTORY_QUEUES_MAX, depths.items(), activity))

    def history_of(self, kind: QueueKind, next_hop: str, count: int) -> tuple[int, ...]:
        """How many messages that queue had each minute of the last hour, and has now; empty if it had none. It begins after the last minute
        in which the queue was not among those that are kept."""
        known: list[int] = []
        for depths, is_cut in zip(self._history, self._cut, strict=True):
            depth = depths.get((kind, next_hop))
            if depth is None and is_cut:
                known.clear()
            else:
                known.append(depth or 0)
        return (*known, count) if any(known) else ()

    def of(self, kind: QueueKind, next_hop: str, count: int) -> float:
        """Of the queue that has `count` messages now."""
        if not self._samples:
            return 0.0
        at, depths = self._samples[0]
        seconds = self._clock.awake() - at
        return (depths.get((kind, next_hop), 0) - count) / seconds if seconds >= 1.0 else 0.0
