"""Open sessions kept for reuse: bounded, the last used first, idle ones closed. Used by one destination or one peer.

The rule kept here: a slot is held from before a session is opened until it is kept or dropped, so that no more than
`slots` sessions are ever busy, and a cancelled task leaves neither a slot nor a connection behind.
"""

import asyncio
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from shadowrelay.smtp.pipeline import Pipeline


class Pooled(Protocol):
    """What is kept: anything on a pipeline."""

    @property
    def pipeline(self) -> Pipeline: ...


S = TypeVar("S", bound=Pooled)


class SessionPool(Generic[S]):
    """Sessions by key (a host). Units: seconds. Only `enter` and `close` wait."""

    def __init__(self, slots: int, idle_seconds: float, idle_max: int | None = None) -> None:
        self._free_count = slots
        self._waiting: deque[asyncio.Future[None]] = deque()  # for a slot, in order
        self._idle_seconds = idle_seconds
        self._idle_max = slots if idle_max is None else idle_max
        self._idle: dict[Hashable, list[tuple[float, S]]] = {}
        self._idle_count = 0
        self._leaving: set[S] = set()
        self._busy: set[S] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.users_count = 0  # who waits for a slot or has one

    @property
    def is_unused(self) -> bool:
        """Nobody uses it and nothing is kept in it."""
        return self.users_count == 0 and self._idle_count == 0 and not self._leaving

    @property
    def idle_count(self) -> int:
        """Sessions kept now."""
        return self._idle_count

    async def enter(self) -> None:
        """Wait for a slot; `leave` gives it back."""
        self.users_count += 1
        if self._free_count:
            self._free_count -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave()  # it was ours already
            else:
                self.users_count -= 1
            raise

    def leave(self) -> None:
        """Give the slot back, to whoever waits longest."""
        self.users_count -= 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free_count += 1

    def take(self, key: Hashable) -> S | None:
        """The usable session that was used last, if any is kept."""
        kept = self._idle.get(key)
        while kept:
            _, session = kept.pop()
            self._idle_count -= 1
            if not kept:
                del self._idle[key]
            if session.pipeline.is_usable:
                self._busy.add(session)
                return session
            session.pipeline.abort()
        return None

    def add(self, session: S) -> None:
        """A session that was opened outside is now in use; `keep` or `drop` it."""
        self._busy.add(session)

    def keep(self, key: Hashable, session: S) -> None:
        """Put it back for the next user; a broken one, or one too many, is ended."""
        self._busy.discard(session)
        if not session.pipeline.is_usable:
            session.pipeline.abort()
        elif self._is_closed or self._idle_count >= self._idle_max:
            self._end(session)
        else:
            loop = asyncio.get_running_loop()
            self._idle.setdefault(key, []).append((loop.time(), session))
            self._idle_count += 1
            if self._timer is None:
                self._timer = loop.call_later(self._idle_seconds, self._sweep)

    def drop(self, session: S) -> None:
        """End it at once."""
        self._busy.discard(session)
        session.pipeline.abort()

    def finish(self, session: S) -> None:
        """It was used enough: take leave."""
        self._busy.discard(session)
        self._end(session)

    def end_idle(self, count: int) -> int:
        """End up to so many of the kept ones; how many it were."""
        victims = list(self._idle.items())[:count]
        ended = 0
        for key, kept in victims:
            del self._idle[key]
            for _, session in kept:
                self._end(session)
            ended += len(kept)
        self._idle_count -= ended
        return ended

    def _end(self, session: S) -> None:
        session.pipeline.quit()
        self._leaving.add(session)
        session.pipeline.when_closed(lambda: self._leaving.discard(session))

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        due = loop.time() - self._idle_seconds
        oldest: float | None = None
        for key, kept in list(self._idle.items()):
            stay = [(since, session) for since, session in kept if since > due and session.pipeline.is_usable]
            for since, session in kept:
                if (since, session) not in stay:
                    self._idle_count -= 1
                    self._end(session)
            if stay:
                self._idle[key] = stay
                oldest = stay[0][0] if oldest is None else min(oldest, stay[0][0])
            else:
                del self._idle[key]
        if oldest is not None:
            self._timer = loop.call_at(oldest + self._idle_seconds, self._sweep)

    def _sessions(self) -> Iterator[S]:
        for kept in self._idle.values():
            yield from (session for _, session in kept)

    async def close(self) -> None:
        """End all: kept ones with QUIT, busy ones at once. Returns when every connection is gone."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for session in list(self._sessions()):
            self._end(session)
        self._idle.clear()
        self._idle_count = 0
        ending = [*self._leaving, *self._busy]
        for session in list(self._busy):
            session.pipeline.abort()
        for session in ending:
            await session.pipeline.closed()
