"""All sessions of ours to one peer. Implements `ports.PeerLink`.

Copies go over pooled sessions; XQDISCARD, STATUS and NOOP over one kept control session. XQDISCARD is issued in every
session (docs/protocol.md 9): `on_open` is called for each with that session. Everything ends as an answer or as PeerUnavailable.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import structlog

from shadowrelay.model.errors import PeerSaid, PeerUnavailable, ShadowrelayError
from shadowrelay.model.ids import DatabaseId, ServerName
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass
from shadowrelay.ports import Clock
from shadowrelay.smtp.client import Opening, open_session
from shadowrelay.smtp.errors import SessionBroken
from shadowrelay.smtp.peer_session import CopyInFlight, DiscardTurn, PeerSession
from shadowrelay.smtp.pool import SessionPool

SESSIONS_MAX = 32  # for copies, at one time
IDLE_SECONDS = 60.0
CONTROL_SECONDS = 10.0  # one question on the control session, opening it included

log = structlog.stdlib.get_logger()
T = TypeVar("T")


class SessionLink(Protocol):
    """One session, for `on_open`. Both raise PeerUnavailable, or SessionBroken which the link handles."""

    @property
    def server(self) -> ServerName: ...

    @property
    def identity(self) -> PeerIdentity: ...

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply: ...

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]: ...


@dataclass(frozen=True, slots=True)
class Held:
    """See `ports.HoldAnswer`."""

    superseded: StatusAnswer | None
    began_awake: float
    server_database: DatabaseId


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """What the node wants to know. `own_identity` gives our XSHADOW line for this peer, `conflict` why it cannot be who it says."""

    own_identity: Callable[[], PeerIdentity]
    conflict: Callable[[PeerIdentity], str] = lambda identity: ""
    on_identity: Callable[[PeerIdentity], None] = lambda identity: None
    on_heard: Callable[[ServerName, DatabaseId], None] = lambda server, database: None
    on_offer: Callable[[ServerName, bool], None] = lambda server, is_offered: None  # HOLD in the EHLO of a session, whatever it is for
    on_open: Callable[[SessionLink], Awaitable[None]] | None = None


class SmtpPeerLink:
    """See `ports.PeerLink`. Units: seconds."""

    def __init__(
        self,
        server: ServerName,
        address: HostPort,
        opening: Opening,
        clock: Clock,
        events: LinkEvents,
        *,
        sessions_max: int = SESSIONS_MAX,
        idle_seconds: float = IDLE_SECONDS,
        control_seconds: float = CONTROL_SECONDS,
    ) -> None:
        self._server = server
        self._address = address
        self._opening = opening
        self._clock = clock
        self._events = events
        self._control_seconds = control_seconds
        self._pool: SessionPool[PeerSession] = SessionPool(sessions_max, idle_seconds)
        self._control: PeerSession | None = None
        self._control_lock = asyncio.Lock()
        self._turn = DiscardTurn()
        self._latest: PeerSession | None = None
        self._is_closed = False

    @property
    def server(self) -> ServerName:
        """The peer."""
        return self._server

    @property
    def identity(self) -> PeerIdentity | None:
        """From the latest session."""
        return self._latest.identity if self._latest is not None else None

    async def hold(self, offer: CopyOffer, deadline: float, still: float | None = None) -> Held:
        """See `ports.PeerLink`."""
        copy = CopyInFlight(offer)
        seconds = deadline - self._clock.awake()
        if seconds <= 0:
            raise PeerUnavailable(self._server, "no time is left")
        try:
            async with asyncio.timeout(seconds if still is None else min(seconds, still)) as bound:
                if still is not None:
                    copy.on_progress = _extending(bound, seconds, still)
                await self._pool.enter()
                try:
                    return await self._hold(copy)
                finally:
                    self._pool.leave()
        except (SessionBroken, OSError, ValueError) as error:
            raise self._unavailable(error, seconds if still is None else min(seconds, still), is_sent=copy.sent) from error

    async def _hold(self, copy: CopyInFlight) -> Held:
        session = self._pool.take(self._server)
        if session is not None:
            try:
                return await self._place(session, copy)
            except SessionBroken:
                if copy.sent:
                    raise
                # It was dead already, and nothing can be stored there: a fresh session, once.
        session = await self._open("copy")
        self._pool.add(session)
        return await self._place(session, copy)

    async def _place(self, session: PeerSession, copy: CopyInFlight) -> Held:
        copy.began_awake = self._clock.awake()
        if copy.on_progress is not None:
            copy.on_progress()
        session.pipeline.on_progress = copy.on_progress
        try:
            superseded = await session.hold(copy)
        except BaseException:
            self._pool.drop(session)
            raise
        finally:
            session.pipeline.on_progress = None
        self._heard(session)
        self._pool.keep(self._server, session)
        return Held(superseded, copy.began_awake, session.database)

    async def greet(self) -> PeerIdentity:
        """See `ports.PeerLink`."""

        async def ask(session: PeerSession) -> PeerIdentity:
            await session.noop()
            return session.identity

        return await self._on_control(ask)

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply:
        """See `ports.PeerLink`. What did not come from the present incarnation of the peer is not acknowledged to it."""
        return await self._on_control(lambda session: session.discards(maximum, acknowledged))

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        """See `ports.PeerLink`."""
        return await self._on_control(lambda session: session.status(questions))

    def renew(self, opening: Opening) -> None:
        """Open sessions this way from now on; those that are open stay."""
        self._opening = opening

    async def close(self) -> None:
        """End all sessions; returns when every connection is gone."""
        self._is_closed = True
        control, self._control = self._control, None
        if control is not None:
            control.pipeline.quit()
        await self._pool.close()
        if control is not None:
            await control.pipeline.closed()

    async def _on_control(self, ask: Callable[[PeerSession], Awaitable[T]]) -> T:
        """Questions change nothing when repeated: one that met a dead session is asked again on a new one."""
        try:
            async with asyncio.timeout(self._control_seconds), self._control_lock:
                if self._control is not None and self._control.pipeline.is_usable:
                    try:
                        return await self._asked(self._control, ask)
                    except SessionBroken:
                        pass
                self._control = await self._open("control")
                return await self._asked(self._control, ask)
        except (SessionBroken, OSError, ValueError) as error:
            raise self._unavailable(error, self._control_seconds, is_sent=False) from error

    async def _asked(self, session: PeerSession, ask: Callable[[PeerSession], Awaitable[T]]) -> T:
        try:
            answer = await ask(session)
        except PeerUnavailable:
            raise  # it answered no; the session is as good as before, or ended already
        except BaseException:
            session.pipeline.abort()  # an answer may still come: it would be taken for the next one's
            raise
        self._heard(session)
        return answer

    async def _open(self, purpose: str) -> PeerSession:
        """Connection, EHLO, TLS, XSHADOW, and the node's questions. Raises SessionBroken, PeerUnavailable."""
        if self._is_closed:
            raise PeerUnavailable(self._server, "this node is stopping")
        opened = await open_session(self._address, self._server, self._opening)
        session = PeerSession(opened, self._server, self._turn)
        try:
            identity = await session.shake_hands(self._events.own_identity(), self._events.conflict)
            self._latest = session
            self._events.on_identity(identity)
            self._events.on_offer(self._server, session.offers_hold)
            self._heard(session)
            if self._events.on_open is not None:
                await self._questions(session, self._events.on_open)
            if self._is_closed:
                raise PeerUnavailable(self._server, "this node is stopping")
        except BaseException:
            session.pipeline.abort()
            raise
        log.info("peer.session_opened", server=self._server, address=str(self._address), purpose=purpose, tls=session.is_tls)
        return session

    async def _questions(self, session: PeerSession, on_open: Callable[[SessionLink], Awaitable[None]]) -> None:
        try:
            await on_open(session)
        except SessionBroken:
            raise
        except ShadowrelayError as error:
            # What could not be asked or recorded now is asked again by the poll; the session itself is sound.
            if session.pipeline.broken is not None:
                raise session.pipeline.broken.error() from error
            log.warning("peer.questions_failed", server=self._server, error=str(error))

    def _heard(self, session: PeerSession) -> None:
        self._events.on_heard(self._server, session.database)

    def _unavailable(self, error: Exception, seconds: float, *, is_sent: bool) -> PeerUnavailable:
        """Whatever happened while an answer was waited for. The bound includes waiting for a session and opening it."""
        if isinstance(error, TimeoutError):
            return PeerUnavailable(self._server, f"no answer in {seconds:.3g} s", sent=is_sent)
        if isinstance(error, SessionBroken):
            was_refused = isinstance(error.__cause__, ConnectionRefusedError)
            said = PeerSaid.NO_SESSION if error.is_refusal else PeerSaid.NOTHING
            return PeerUnavailable(self._server, str(error.reply), sent=is_sent, was_refused=was_refused, said=said)
        # OSError, ValueError: the content's file; an envelope that no parser let in
        return PeerUnavailable(self._server, f"the copy cannot be written: {error}", sent=is_sent)


def _extending(bound: asyncio.Timeout, seconds: float, still: float) -> Callable[[], None]:
    """Gives the copy under way `still` seconds more from now, but not more than `seconds` altogether."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    def extend() -> None:
        if not bound.expired():
            bound.reschedule(min(loop.time() + still, end))

    return extend
