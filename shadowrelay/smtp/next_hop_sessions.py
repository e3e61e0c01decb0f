"""Sessions with the servers of next hops, by address and protection, whatever domain the mail is for. docs/design.md 6.10.

Transactions and connections are apart: a transaction takes the first session that becomes free, be it the one that was opened for it or one
that another transaction has ended with. So nothing waits for a greeting while a session stands idle, and one connection that never greets
holds up nobody. `next_hop_rules` decides how many connections are opened; a session that is not used is closed after a few seconds.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import NamedTuple, Protocol

import structlog

from shadowrelay.model.protection import Protection
from shadowrelay.model.queue import NextHopServer
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass, replace
from shadowrelay.smtp import next_hop_rules as rules
from shadowrelay.smtp.client import Opened
from shadowrelay.smtp.client_session import CONNECTION_FAILED, SessionBroken, on_behalf, was_cut

_log = structlog.get_logger()


class NoSession(NamedTuple):
    """Why there is no session. A value, not an exception: one that is raised repeatedly keeps the frames of all its attempts alive.

    `is_refusal`: the server said so; `was_slow`: a whole connect timeout has passed; `is_patience`: it may still become free; `was_cut`:
    the connection was refused or cut without a word.
    """

    reply: Reply
    is_refusal: bool = False
    was_slow: bool = False
    is_patience: bool = False
    was_cut: bool = False


@dataclass(slots=True, eq=False)
class Opening:
    """A connection that is being opened. Units: seconds of the event loop; `connected_at` infinite until it is connected."""

    task: "asyncio.Task[None] | None" = None
    began_at: float = 0.0
    connected_at: float = inf
    is_session: bool = False


OpenSession = Callable[[Opening], Awaitable[Opened]]
GIVES_WAY_SECONDS = 10.0  # where all sessions are taken, a connection that was not greeted for so long ends


class OutboundLimit:
    """How many sessions with all addresses may be open, or being opened, at a time. docs/security.md "Strangers".

    Who has to wait gets its turn when a session has ended: the address with the fewest first, and those with as many in order. An
    address with more sessions than one that waits gives some of them up, one by one, however much mail it has. Sooner ends what is idle,
    and what was not greeted: servers that never greet do not hold up those that do.
    """

    def __init__(self, sessions_max: float = inf) -> None:
        self.sessions_max = sessions_max
        self.count = 0
        self.end_idle: Callable[[], Opened | None] = lambda: None  # ends a session that is kept for later, if there is one
        self._openings: dict[Opening, AddressSessions] = {}  # in the order in which they began
        self.waiting: dict[AddressSessions, None] = {}  # changed only here
        self._ending_count = 0  # sessions and connections that end for the sake of those that wait
        self._timer: asyncio.TimerHandle | None = None

    def takes(self, opening: Opening, address: "AddressSessions") -> bool:
        """Whether this connection may be opened now; if not, `address` is told later."""
        if self.count >= self.sessions_max:
            self.waiting[address] = None
            self._make_room()
            return False
        self.count += 1
        self._openings[opening] = address
        return True

    def opened(self, opening: Opening) -> None:
        """It is a session now."""
        self._openings.pop(opening, None)

    def give_back(self, opening: Opening | None = None) -> None:
        """A session has ended, or could not be opened."""
        if opening is not None:
            self._openings.pop(opening, None)
        self.count -= 1
        if self.waiting:
            asyncio.get_running_loop().call_soon(self._wake)

    def ends_for_others(self, address: "AddressSessions", session: Opened) -> bool:
        """Whether this free session of `address` is to end, because another address waits and has fewer. The caller ends it then."""
        others = [one for one in self.waiting if one is not address and one.is_waiting]
        if self._ending_count >= len(others):
            return False
        left = address.held_count
        if address.is_waiting and not any(one.held_count < max(left, 1) for one in others):
            return False
        self._note_end(session)
        return True

    def _note_end(self, session: Opened) -> None:
        self._ending_count += 1
        session.pipeline.when_closed(self._ended)

    def _ended(self) -> None:
        self._ending_count -= 1

    def _wake(self) -> None:
        while self.waiting and self.count < self.sessions_max:
            first = min(self.waiting, key=_held)
            del self.waiting[first]
            first.open_more()
        self._make_room()

    def _make_room(self) -> None:
        if self._ending_count >= len(self.waiting):
            return
        if (session := self.end_idle()) is not None:
            self._note_end(session)
            return
        if self._timer is not None or not self._openings:
            return
        oldest, address = next(iter(self._openings.items()))
        loop = asyncio.get_running_loop()
        if (left := oldest.began_at + GIVES_WAY_SECONDS - loop.time()) > 0:
            self._timer = loop.call_later(left, self._look)
            return
        del self._openings[oldest]
        if oldest.task is not None:
            self._ending_count += 1
            oldest.task.add_done_callback(lambda _: self._ended())
        address.give_way(oldest)

    def _look(self) -> None:
        self._timer = None
        self._make_room()


def _held(address: "AddressSessions") -> int:
    return address.held_count


class AddressSessions:
    """The sessions with one address. No method but `wait` and `close` blocks.

    A session is idle, in use or leaving. While a transaction waits, none is idle, and one is in use or being opened.
    """

    def __init__(self, unused_seconds: float, slow_seconds: float, limit: OutboundLimit | None = None) -> None:
        self._limit = limit or OutboundLimit()
        self._unused_seconds = unused_seconds
        self._slow_seconds = slow_seconds
        self._loop = asyncio.get_running_loop()
        self._idle: list[tuple[float, Opened]] = []  # in the order of their last use
        self._busy: set[Opened] = set()
        self._leaving: set[Opened] = set()
        self._opening: set[Opening] = set()
        self._waiting: deque[asyncio.Future[Opened | NoSession]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._concurrency = 1
        self._open_session: OpenSession | None = None  # of the transaction that came last
        self._is_only = False  # that transaction has no other server
        self._cuts_count = 0  # connections in a row that were cut, for transactions that wait
        self.window = rules.OPEN_WINDOW
        self.trouble: rules.Trouble | None = None
        self.served_at = -inf  # when it last took a message
        self.takes_chunks = True  # false: it offered CHUNKING and then did not know BDAT
        self.loses_chunks = False  # a session was lost when the content went by BDAT: what can go by DATA does so

    @property
    def idle_count(self) -> int:
        """Sessions that are kept for later."""
        return len(self._idle)

    @property
    def standing_count(self) -> int:
        """Sessions that are open."""
        return len(self._idle) + len(self._busy)

    @property
    def opening_count(self) -> int:
        """Connections that are being opened."""
        return len(self._opening)

    @property
    def waiting_count(self) -> int:
        """Transactions that wait for a session."""
        return len(self._waiting)

    @property
    def held_count(self) -> int:
        """Sessions that are open or being opened."""
        return len(self._idle) + len(self._busy) + len(self._opening)

    @property
    def is_waiting(self) -> bool:
        """Whether a transaction waits for a session."""
        return any(not turn.done() for turn in self._waiting)

    @property
    def is_unused(self) -> bool:
        """Nothing is open and nobody waits."""
        return not (self._idle or self._busy or self._leaving or self._opening or self._waiting)

    def take(self) -> tuple[float, Opened] | None:
        """The idle session that was used last, and since when it is idle; end with `give_back` or `drop`."""
        while self._idle:
            found = self._idle.pop()
            if found[1].pipeline.is_usable:
                self._busy.add(found[1])
                return found
            found[1].pipeline.abort()
        return None

    async def wait(
        self,
        open_session: OpenSession,
        concurrency: int,
        patience: float | None,
        head_start: float | None = None,
        *,
        is_only: bool = False,
    ) -> Opened | NoSession:
        """A session that was opened or became free, or why there is none. Units: seconds. `patience`: how long to wait for it;
        `head_start`: how long for a connection, while there is none. `is_only`: there is no other server, so that a connection which is cut
        is opened again."""
        if self._is_closed:
            return NoSession(CONNECTION_FAILED)
        turn: asyncio.Future[Opened | NoSession] = self._loop.create_future()
        self._waiting.append(turn)
        self._open_session, self._concurrency, self._is_only = open_session, concurrency, is_only
        self.open_more()
        timer = None if patience is None else self._loop.call_later(patience, self._lose_patience, turn)
        early = None if head_start is None else self._loop.call_later(head_start, self._look_for_connection, turn)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and isinstance(got := turn.result(), Opened):
                self.give_back(got)
            raise
        finally:
            for each in (timer, early):
                if each is not None:
                    each.cancel()

    def _look_for_connection(self, turn: "asyncio.Future[Opened | NoSession]") -> None:
        if not self.standing_count and all(opening.connected_at == inf for opening in self._opening):
            self._lose_patience(turn)

    def _lose_patience(self, turn: "asyncio.Future[Opened | NoSession]") -> None:
        if not turn.done():
            reply = self.window.reply or CONNECTION_FAILED._replace(text=f"{CONNECTION_FAILED.text}: no greeting")
            turn.set_result(NoSession(reply, was_slow=not self.standing_count, is_patience=True))
            self._waiting.remove(turn)

    def give_back(self, session: Opened, *, is_used_up: bool = False) -> None:
        """The transaction is over: the session goes to the one that has waited longest. `is_used_up`: it takes no more."""
        self._busy.discard(session)
        if not session.pipeline.is_usable:
            session.pipeline.abort()
        elif is_used_up or self._is_closed or (self._limit.waiting and self._limit.ends_for_others(self, session)):
            self._end(session)
        else:
            self._hand_on(session)
            return
        self.open_more()

    def drop(self, session: Opened) -> None:
        """End it at once."""
        self._busy.discard(session)
        session.pipeline.abort()
        self.open_more()

    def _hand_on(self, session: Opened) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._busy.add(session)
                turn.set_result(session)
                return
        now = self._loop.time()
        self._idle.append((now, session))
        if len(self._idle) == 1:  # the others end later: `_look` sees to them then
            self._look_at(now + self._unused_seconds)

    # opening

    def open_more(self) -> None:
        """Open what transactions wait for, as far as that is possible now."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        if not self._waiting or self._is_closed or self._open_session is None:
            return
        now = self._loop.time()
        standing, opening, waiting = self.standing_count, len(self._opening), len(self._waiting)
        before = self.window
        count, self.window = rules.openings(before, self._concurrency, standing, opening, waiting, now)
        for number in range(count):
            if not self._begin(now):
                if not number:
                    self.window = before  # one more was to be tried: it is still to be
                break
        self._look_at(now + rules.MUTE_SECONDS)

    def _begin(self, now: float) -> bool:
        """False: all sessions are taken."""
        assert self._open_session is not None
        opening = Opening(began_at=now)
        if not self._limit.takes(opening, self):
            return False
        self._opening.add(opening)
        opening.task = self._loop.create_task(self._open(opening, self._open_session), name="session")
        opening.task.add_done_callback(lambda task: self._over(opening, task))
        return True

    def _over(self, opening: Opening, task: "asyncio.Task[None]") -> None:
        if not opening.is_session:
            self._opening.discard(opening)
            self._limit.give_back(opening)

    def give_way(self, opening: Opening) -> None:
        """The server has not greeted for long, and others wait."""
        if opening.task is not None:
            opening.task.cancel()
        self._opening.discard(opening)
        self._was_refused(NoSession(NOT_GREETED, was_slow=opening.connected_at == inf))
        self._look_at(self._loop.time())

    async def _open(self, opening: Opening, open_session: OpenSession) -> None:
        try:
            session = await open_session(opening)
        except asyncio.CancelledError:
            self._opening.discard(opening)
            raise
        except Exception as error:
            self._opening.discard(opening)
            broken = on_behalf(error)
            if not isinstance(error, SessionBroken):
                _log.exception("session.failed")
            is_slow = self._loop.time() - opening.began_at >= self._slow_seconds
            refused = NoSession(broken.reply, broken.is_refusal, is_slow and opening.connected_at == inf, was_cut=was_cut(error))
            self._was_refused(refused)
        else:
            opening.is_session = True
            self._cuts_count = 0
            self._opening.discard(opening)
            self._limit.opened(opening)
            session.pipeline.when_closed(self._limit.give_back)
            if self._is_closed:
                session.pipeline.abort()
                return
            self.window = rules.after_opened_session(self.window, self.standing_count + 1, self._loop.time())
            if not self.is_waiting and self._limit.ends_for_others(self, session):
                self._end(session)
            else:
                self._hand_on(session)

    def was_limited(self, reply: Reply, server: str) -> None:
        """It ended a session that it had just opened, while others stand."""
        before = self.window
        self.window = rules.after_refused_session(before, self.standing_count, reply, self._loop.time())
        if before.reply is None:
            _log.info("session.limited", server=server, sessions=self.standing_count, reply=str(reply))

    def _was_refused(self, refused: NoSession) -> None:
        now = self._loop.time()
        if self.standing_count:
            self.was_limited(refused.reply, "")
            self.open_more()
            return
        if any(not self._is_mute(opening, now) for opening in self._opening):
            return  # one of them may be taken
        if refused.was_cut and self._is_only and self.is_waiting and self._cuts_count < len(rules.AGAIN_SECONDS):
            self._loop.call_later(rules.AGAIN_SECONDS[self._cuts_count], self.open_more)
            self._cuts_count += 1
            return
        self._cuts_count = 0
        self.trouble = rules.after_failure(self.trouble, refused.reply, now, was_slow=refused.was_slow)
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(refused)

    def _is_mute(self, opening: Opening, now: float) -> bool:
        return now - opening.connected_at >= rules.MUTE_SECONDS

    # time

    def _look_at(self, at: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        """Close what nobody needs, and open another connection beside those that never greet."""
        self._timer = None
        now = self._loop.time()
        while self._idle and (self._idle[0][0] + self._unused_seconds <= now or not self._idle[0][1].pipeline.is_usable):
            self._end(self._idle.pop(0)[1])
        if self._idle:
            self._look_at(self._idle[0][0] + self._unused_seconds)
        if self._waiting:
            mute_count = sum(self._is_mute(opening, now) for opening in self._opening)
            if not self.standing_count and 0 < mute_count == len(self._opening) <= rules.MUTE_MAX:
                self._begin(now)
            self.open_more()
        elif self._opening:
            for opening in [one for one in self._opening if now - one.connected_at >= self._unused_seconds]:
                self._call_off(opening)  # the server has no place for it, and others may wait for one
            self._look_at(now + self._unused_seconds)

    def _call_off(self, opening: Opening) -> None:
        if self.window.grows_at == inf:
            self.window = replace(self.window, grows_at=self._loop.time() + self.window.wait)
        if opening.task is not None:
            opening.task.cancel()

    # ending

    def _end(self, session: Opened) -> None:
        session.pipeline.quit()
        self._leaving.add(session)
        session.pipeline.when_closed(lambda: self._leaving.discard(session))

    @property
    def idle_since(self) -> float:
        """When the session that is kept longest was used last."""
        return self._idle[0][0] if self._idle else inf

    def end_oldest_idle(self) -> Opened | None:
        """End the session that is kept longest; returns it."""
        if not self._idle:
            return None
        _, session = self._idle.pop(0)
        self._end(session)
        return session

    def end_idle(self) -> int:
        """End what is kept for later; returns how many sessions."""
        count = len(self._idle)
        while self.end_oldest_idle():
            pass
        return count

    async def close(self) -> None:
        """End all sessions: idle ones with QUIT, others at once. Returns when every connection is closed."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(NoSession(CONNECTION_FAILED))
        self.end_idle()
        tasks = [opening.task for opening in self._opening if opening.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for session in tuple(self._busy):
            session.pipeline.abort()
        for session in (*self._leaving, *self._busy):
            await session.pipeline.closed()


ADDRESSES_MAX = 1_000  # remembered
IDLE_SESSIONS_MAX = 200  # over all addresses
NOT_GREETED = CONNECTION_FAILED._replace(text=f"{CONNECTION_FAILED.text}: it gave way to others, no greeting for {GIVES_WAY_SECONDS:.0f} s")


class Addressed(Protocol):
    """A server at an address."""

    @property
    def host(self) -> HostPort: ...
    @property
    def name(self) -> str: ...
    @property
    def protection(self) -> Protection | None: ...


class Sessions:
    """All addresses. What an address showed is remembered as long as there is room. `is_by_name`: certificates must have the name of the
    server, so that a session serves one name only. A session with a protection serves nothing but mail that demands just that."""

    def __init__(self, unused_seconds: float, slow_seconds: float, *, is_by_name: bool, sessions_max: float = inf) -> None:
        self._limit = OutboundLimit(sessions_max)
        self._limit.end_idle = self._end_oldest_idle
        self._unused_seconds = unused_seconds
        self._slow_seconds = slow_seconds
        self._is_by_name = is_by_name
        self._all: dict[tuple[HostPort, str, Protection | None], AddressSessions] = {}

    def at(self, target: Addressed) -> AddressSessions:
        """The sessions with this address."""
        found = self._all.get(key := self._key(target))
        if found is None:
            self._make_room()
            found = self._all[key] = AddressSessions(self._unused_seconds, self._slow_seconds, self._limit)
        return found

    def known(self, target: Addressed) -> AddressSessions | None:
        """The same, if there is anything to know of it."""
        protection = target.protection
        return self._all.get((target.host, target.name if self._is_by_name or protection is not None else "", protection))

    def _key(self, target: Addressed) -> tuple[HostPort, str, Protection | None]:
        is_by_name = self._is_by_name or target.protection is not None
        return target.host, target.name if is_by_name else "", target.protection

    def shown(self, target: Addressed, server: str, now: float) -> NextHopServer | None:
        """What is known of this address."""
        found = self.known(target)
        return None if found is None else rules.shown(server, found.trouble, found.window, found.standing_count, now)

    def _end_oldest_idle(self) -> Opened | None:
        oldest = min((one for one in self._all.values() if one.idle_count), key=lambda one: one.idle_since, default=None)
        return None if oldest is None else oldest.end_oldest_idle()

    def _make_room(self) -> None:
        if len(self._all) >= ADDRESSES_MAX:
            unused = [key for key, one in self._all.items() if one.is_unused]
            for key in [key for key in unused if self._all[key].trouble is None] or unused[:1]:
                del self._all[key]
        excess = sum(one.idle_count for one in self._all.values()) - IDLE_SESSIONS_MAX
        for one in self._all.values():
            if excess <= 0:
                break
            excess -= one.end_idle()

    async def close(self) -> None:
        """End everything."""
        everything = list(self._all.values())
        self._all.clear()
        await asyncio.gather(*(one.close() for one in everything))
