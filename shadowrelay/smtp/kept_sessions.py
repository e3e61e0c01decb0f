"""Keeps the sessions to one peer that are for copies: the idle ones, those that open, and one ahead of need. docs/protocol.md 15.

A session to a far site takes eight round trips to open, a copy in an open session one. So a copy does not own the session that it asked
for: it takes the first that becomes free, and one that opens too late for it is kept for the next. Besides, while the peer takes copies one
idle session is held ready, and refreshed before anybody on the way forgets it.

Sessions in use, idle, opening and ready are together at most `sessions_max`. Most recently used ones are used first; the others end after
`idle_seconds`. Whoever waits for a session and is cancelled leaks neither it nor its place.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from shadowrelay.model.ids import ServerName
from shadowrelay.model.replies import PeerUnavailable
from shadowrelay.smtp.peer_session import PeerSession

SESSIONS_MAX = 32  # to one peer, for copies
OPENING_SECONDS = 10.0  # for a session to open, whoever waits: eight round trips of more than a second
OPENING_AWAITED_SECONDS = 5.0  # after which one that does not open is not counted on any more: another opens beside it
ASKING_SECONDS = 10.0  # for the questions of an idle session
ASKING_AWAITED_SECONDS = 1.0
REFRESHED_SHARE = 0.5  # of `idle_seconds`: when the session that is held ready is asked for a sign of life
LIFE_SECONDS_MAX = 30 * 60.0  # of a session, before the other side ends it
PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX = 1.0, 60.0  # before another one is opened ahead of need, if the last one came to nothing

_log = structlog.get_logger()


class KeptSessions:
    """See the module. `open_session` opens one; `ask` asks in one that becomes idle what is due, or whether it lives. Units: seconds."""

    def __init__(
        self,
        server: ServerName,
        open_session: Callable[[], Awaitable[PeerSession]],
        ask: Callable[[PeerSession], Awaitable[None]],
        *,
        sessions_max: int,
        idle_seconds: float,
    ) -> None:
        self._server = server
        self._open_session, self._ask = open_session, ask
        self._sessions_max, self._idle_seconds = sessions_max, idle_seconds
        self._idle: list[tuple[float, PeerSession]] = []  # since when; the last one was used last
        self._busy: set[PeerSession] = set()
        self._leaving: set[PeerSession] = set()
        self._coming: dict[asyncio.Task[None], float] = {}  # what opens or is asked, and until when it is counted on
        self._waiting: deque[asyncio.Future[PeerSession]] = deque()  # in order
        self._timer: asyncio.TimerHandle | None = None
        self._is_wanted = self._is_closed = False
        self._wasted_count = 0  # sessions in a row that were opened ahead of need and never used
        self._ready_next_at = 0.0  # when the next one may be opened

    # for copies

    async def take(self, suits: Callable[[PeerSession], bool], *, is_fresh: bool = False) -> PeerSession:
        """A session for one copy: the one used last, else the first that opens or becomes free. It must be given to `keep` or `drop`.

        `is_fresh`: do not take one that is idle, because one has just turned out to be dead. Raises what opening it raised.
        """
        while True:
            session = None if is_fresh else self._pop()
            if session is None:
                session = await self._next()
            if not session.was_kept or suits(session):
                return session
            self.drop(session)  # its reply to EHLO is an old one: the peer is asked what it offers now

    def keep(self, session: PeerSession) -> None:
        """The copy is placed: the session is for the next one."""
        self._wasted_count, session.was_kept = 0, True
        if not session.pipeline.is_usable or self._is_closed:
            self.drop(session)
        elif session.has_asked:
            self._put(session)
        else:
            self._begin(self._asked(session), ASKING_AWAITED_SECONDS)

    def settle(self, session: PeerSession) -> None:
        """The copy may have been stored, but nobody waits for the replies any more: read them, and keep the session."""
        if self._is_closed:
            self.drop(session)
        else:
            self._begin(self._asked(session), ASKING_AWAITED_SECONDS)

    def drop(self, session: PeerSession) -> None:
        """End it at once."""
        self._busy.discard(session)
        session.pipeline.abort()
        self._match()

    def _pop(self) -> PeerSession | None:
        while self._idle:
            _, session = self._idle.pop()
            if session.pipeline.is_usable:
                self._busy.add(session)
                return session
            session.pipeline.abort()
        return None

    async def _next(self) -> PeerSession:
        turn: asyncio.Future[PeerSession] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._match()
        try:
            return await turn
        except BaseException:
            with contextlib.suppress(ValueError):
                self._waiting.remove(turn)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._put(turn.result())  # it was this task's already
            raise
        finally:
            del turn  # the exception in it keeps this frame, and so the content that waits, alive: break the cycle

    def _put(self, session: PeerSession) -> None:
        """To who has waited longest, else to the idle ones. An old session ends: whoever has stolen one does not have it for ever."""
        now = asyncio.get_running_loop().time()
        if now >= session.opened_at + LIFE_SECONDS_MAX and not self._is_closed:
            self._busy.discard(session)
            self._end(session)
            self._match()
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._busy.add(session)
                turn.set_result(session)
                return
        self._busy.discard(session)
        if self._is_closed:
            self._end(session)
            return
        self._idle.append((now, session))
        if self._timer is None:
            self._set_timer()

    def _match(self) -> None:
        """Open as many as are waited for."""
        now = asyncio.get_running_loop().time()
        while (
            len(self._waiting) > sum(until > now for until in self._coming.values())
            and self._count() < self._sessions_max
            and not self._is_closed
        ):
            self._begin(self._opened(), OPENING_AWAITED_SECONDS)

    def _count(self) -> int:
        opening_count = len(self._coming) - sum(session.is_asked for session in self._busy)
        return len(self._idle) + len(self._busy) + opening_count

    def _begin(self, work: Awaitable[None], awaited_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        task: asyncio.Task[None] = loop.create_task(work)  # type: ignore[arg-type]
        self._coming[task] = loop.time() + awaited_seconds
        task.add_done_callback(self._came)

    def _came(self, task: "asyncio.Task[None]") -> None:
        del self._coming[task]
        if not task.cancelled():
            task.result()
        self._match()
        self._see_to_ready()

    async def _opened(self) -> None:
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                session = await self._open_session()
        except Exception as error:  # who waits knows the kinds
            self._failed(error)
            return
        session.pipeline.when_closed(lambda: self._gone(session))
        if self._waiting or session.has_asked:
            self._put(session)
        else:
            await self._asked(session)

    def _failed(self, error: Exception) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)
                return
        _log.info("peer.session_not_opened", server=self._server, reason=str(error))

    async def _asked(self, session: PeerSession) -> None:
        """What is due in it; then it is idle."""
        self._busy.add(session)
        session.is_asked, is_refreshed = True, session.has_asked
        try:
            async with asyncio.timeout(ASKING_SECONDS):
                await self._ask(session)
        except Exception as error:
            _log.debug("peer.session_dropped", server=self._server, reason=str(error))
            self._busy.discard(session)
            session.pipeline.abort()
            return
        except BaseException:
            self._busy.discard(session)
            session.pipeline.abort()
            raise
        finally:
            session.is_asked = False
        if is_refreshed:
            self._wasted_count = 0  # it lasts
        session.was_kept = True
        self._put(session)

    def end_those(self, is_ended: Callable[[PeerSession], bool]) -> int:
        """End these at once, whatever they do. How many there were."""
        found = [session for session in (*(session for _, session in self._idle), *self._busy) if is_ended(session)]
        for session in found:
            session.pipeline.abort()
        self._idle = [entry for entry in self._idle if entry[1] not in found]
        return len(found)

    # ahead of need

    def hold_ready(self, *, is_wanted: bool) -> None:
        """Whether one idle session is to be held ready from now on: the peer takes copies. Opens one if there is none."""
        self._is_wanted = is_wanted
        if is_wanted and not self._idle:
            self._see_to_ready()

    def _see_to_ready(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._is_closed or not self._is_wanted or self._idle or self._coming or self._count() >= self._sessions_max:
            return
        if now < self._ready_next_at:
            self._set_timer()
            return
        self._ready_next_at = now + min(PAUSE_SECONDS_FIRST * 2.0**self._wasted_count, PAUSE_SECONDS_MAX)
        self._wasted_count = min(self._wasted_count + 1, 6)  # 2**6 s is more than the longest pause
        self._begin(self._opened(), OPENING_AWAITED_SECONDS)

    def _gone(self, session: PeerSession) -> None:
        """It is closed, by whichever side."""
        self._leaving.discard(session)
        self._idle = [(since, other) for since, other in self._idle if other is not session]
        self._see_to_ready()

    # the timer: one, for all that is idle

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed:
            return
        due = [self._idle[0][0] + self._idle_seconds] if self._idle else []
        if self._idle and self._is_wanted:
            due = [self._idle[0][0] + self._idle_seconds] if len(self._idle) > 1 else []
            due.append(self._idle[-1][0] + self._idle_seconds * REFRESHED_SHARE)
        elif self._is_wanted and self._ready_next_at > asyncio.get_running_loop().time():
            due.append(self._ready_next_at)
        if due:
            self._timer = asyncio.get_running_loop().call_at(min(due), self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        ready = self._idle[-1] if self._idle and self._is_wanted else None
        for entry in tuple(self._idle):
            since, session = entry
            if entry is not ready and (since <= now - self._idle_seconds or not session.pipeline.is_usable):
                self._idle.remove(entry)
                self._end(session)
        if ready is not None and ready[0] <= now - self._idle_seconds * REFRESHED_SHARE:
            self._idle.remove(ready)
            self._busy.add(ready[1])
            self._begin(self._asked(ready[1]), ASKING_AWAITED_SECONDS)
        self._see_to_ready()
        if self._timer is None:
            self._set_timer()

    # ending

    def _end(self, session: PeerSession) -> None:
        self._leaving.add(session)  # until `_gone`
        session.pipeline.quit()

    def fall_silent(self) -> None:
        """End the sessions that are idle or open without a word; hold none ready."""
        self._is_wanted = False
        for task in tuple(self._coming):
            task.cancel()
        while (session := self._pop()) is not None:
            self.drop(session)

    async def close(self) -> None:
        """End all sessions: idle ones with QUIT, others at once. Returns when every connection is closed."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(PeerUnavailable(self._server, "this node is stopping"))
        for _, session in self._idle:
            self._end(session)
        self._idle.clear()
        tasks = list(self._coming)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ending = [*self._leaving, *self._busy]
        for session in tuple(self._busy):
            session.pipeline.abort()
        for session in ending:
            await session.pipeline.closed()
