"""Our sessions to one peer. Implements `ports.PeerLink`. docs/protocol.md 5, 6, 9, 15.

Copies use sessions that are kept and held ready (`smtp/kept_sessions.py`); XQDISCARD, STATUS and NOOP use one control session. Mail for
a next hop that is this peer goes over sessions of its own (`for_delivery`). `on_open` is called in every session, so that XQDISCARD is sent
in each: before anything else, or in one that a copy waits for right after that copy. Every other call ends with an answer or with
PeerUnavailable; a copy also with LedgerUnavailable, if this node cannot read its own message.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import structlog

from shadowrelay.model.ids import BoundaryName, DatabaseId, ServerName
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion
from shadowrelay.model.peers import Alive, CopyOffer, DiscardReply, Incarnation, PeerIdentity
from shadowrelay.model.replies import PeerSaid, PeerUnavailable, ShadowrelayError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass
from shadowrelay.ports import Clock, HoldAnswer
from shadowrelay.smtp.client import ConnectOptions, Opened, open_session
from shadowrelay.smtp.client_session import SessionBroken
from shadowrelay.smtp.kept_sessions import LIFE_SECONDS_MAX, SESSIONS_MAX, KeptSessions
from shadowrelay.smtp.peer_session import CopyInFlight, DiscardTurn, PeerSession, hello_line

PROOF_SECONDS = 3.0  # at most half of the time for a question: the process that seems to replace this one waits for its hello's reply
CONTROL_SECONDS = 10.0  # for one question on the control session, including opening it

_OFFERS_HOLD, _OFFERS_TRACK = attrgetter("offers_hold"), attrgetter("offers_track")
_log = structlog.get_logger()
T = TypeVar("T")


class SessionLink(Protocol):
    """One session, as passed to `on_open`. Both methods raise PeerUnavailable, or SessionBroken, which the link handles."""

    @property
    def server(self) -> ServerName: ...

    @property
    def identity(self) -> PeerIdentity: ...

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply: ...

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]: ...


async def _no_second(identity: PeerIdentity, began_at: float) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Callbacks of the node. `own_identity` returns our identity for this peer, `conflict` why the peer's identity is refused, `second`
    why a process is refused that answers in a session begun then, because another one has its name."""

    own_identity: Callable[[], PeerIdentity]
    conflict: Callable[[PeerIdentity], str] = lambda identity: ""
    second: Callable[[PeerIdentity, float], Awaitable[str]] = _no_second
    on_identity: Callable[[PeerIdentity], None] = lambda identity: None
    on_heard: Callable[[ServerName, DatabaseId], None] = lambda server, database: None
    on_position: Callable[[ServerName, Incarnation, int], None] = lambda server, incarnation, position: None  # that a reply told
    on_offer: Callable[[ServerName, bool], None] = lambda server, is_offered: None  # whether a session's EHLO offered HOLD
    on_forks: Callable[[ServerName, bool], None] = lambda server, is_offered: None  # and FORKS
    on_features: Callable[[ServerName, tuple[str, ...]], None] = lambda server, features: None  # all that it offered
    on_address: Callable[[str], None] = lambda address: None  # where the peer was met, once it has identified itself
    on_open: Callable[[SessionLink], Awaitable[None]] | None = None
    why_silent: Callable[[], str] = lambda: ""  # why nothing may be said to the peer now; empty if it may


class SmtpPeerLink:
    """See `ports.PeerLink`. Units: seconds."""

    def __init__(
        self,
        server: ServerName,
        address: HostPort,
        options: ConnectOptions,
        clock: Clock,
        events: LinkEvents,
        *,
        boundary: BoundaryName,
        sessions_max: int = SESSIONS_MAX,
        idle_seconds: float,
        control_seconds: float = CONTROL_SECONDS,
    ) -> None:
        self._server = server
        self._boundary = boundary  # that it should belong to
        self._address = address
        self._connect_options = options
        self._clock = clock
        self._events = events
        self._control_seconds = control_seconds
        opening = partial(self._open, "copy", is_awaited=True)
        self._copies = KeptSessions(server, opening, self._ask_kept, sessions_max=sessions_max, idle_seconds=idle_seconds)
        self._control: PeerSession | None = None
        self._control_lock = asyncio.Lock()
        self._turn = DiscardTurn()
        self._latest: PeerSession | None = None
        self._in_flight: dict[asyncio.Timeout, CopyInFlight] = {}
        self._delivering: list[Opened] = []  # given away by `for_delivery`
        self._is_closed = False
        self._is_early_offered = False  # by the last session: the peer takes our hello together with EHLO

    @property
    def server(self) -> ServerName:
        """The peer."""
        return self._server

    @property
    def address(self) -> HostPort:
        """Where sessions are opened."""
        return self._address

    @property
    def identity(self) -> PeerIdentity | None:
        """From the latest session."""
        return self._latest.identity if self._latest is not None else None

    def hold(self, offer: CopyOffer, deadline: float, stall_seconds: float | None = None) -> Coroutine[Any, Any, HoldAnswer]:
        """See `ports.PeerLink`."""
        return self._send(CopyInFlight(offer), deadline, stall_seconds)

    async def track(self, offer: CopyOffer, deadline: float, stall_seconds: float | None = None) -> HoldAnswer:
        """See `ports.PeerLink`."""
        return await self._send(CopyInFlight(offer, is_tracked=True), deadline, stall_seconds)

    async def _send(self, copy: CopyInFlight, deadline: float, stall_seconds: float | None) -> HoldAnswer:
        if reason := self._events.why_silent():
            raise PeerUnavailable(self._server, reason)
        copy.progress_awake = self._clock.awake()
        seconds = deadline - copy.progress_awake
        if seconds <= 0:
            raise PeerUnavailable(self._server, "no time is left")
        was_kept = False
        bound = asyncio.timeout(seconds if stall_seconds is None else min(seconds, stall_seconds))
        try:
            async with bound:
                self._in_flight[bound] = copy
                if stall_seconds is not None:
                    copy.on_progress = self._extending(bound, copy, seconds, stall_seconds)
                suits = _OFFERS_TRACK if copy.is_tracked else _OFFERS_HOLD
                session = await self._copies.take(suits)
                was_kept = session.was_kept
                try:
                    return await self._place(session, copy)
                except SessionBroken:
                    if copy.sent or not was_kept:
                        raise
                    # The session was dead and nothing can have been stored: retry once on a new one.
                    was_kept = copy.in_session = False
                return await self._place(await self._copies.take(suits, is_fresh=True), copy)
        except (SessionBroken, TimeoutError) as error:
            if isinstance(error, TimeoutError) and bound not in self._in_flight:
                raise PeerUnavailable(self._server, "it is lost: no answer to heartbeats either", sent=copy.sent) from error
            limit = seconds if stall_seconds is None else min(seconds, stall_seconds)
            failed = self._unavailable(error, limit, is_sent=copy.sent, was_kept=was_kept)
            failed.in_session = copy.in_session
            raise failed from error
        finally:
            self._in_flight.pop(bound, None)
            copy.on_progress = None
            # The exception of a cancelled task keeps this frame alive; break the cycle through the time-out, or the content would stay in
            # memory.
            del bound

    def give_up(self, quiet_seconds: float) -> int:
        """See `ports.PeerLink`."""
        now = self._clock.awake()
        quiet = [bound for bound, copy in self._in_flight.items() if now - copy.progress_awake >= quiet_seconds and not bound.expired()]
        for bound in quiet:
            del self._in_flight[bound]
            bound.reschedule(asyncio.get_running_loop().time())
        return len(quiet)

    def _extending(self, bound: asyncio.Timeout, copy: CopyInFlight, seconds: float, stall_seconds: float) -> Callable[[], None]:
        """Returns a callback that gives the copy `stall_seconds` more seconds from now, up to `seconds` in total."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds

        def extend() -> None:
            copy.progress_awake = self._clock.awake()
            if not bound.expired() and bound in self._in_flight:
                bound.reschedule(min(loop.time() + stall_seconds, end))

        return extend

    async def _place(self, session: PeerSession, copy: CopyInFlight) -> HoldAnswer:
        copy.began_awake, copy.in_session = self._clock.awake(), session.offers(copy)
        if copy.on_progress is not None:
            copy.on_progress()
        session.pipeline.on_progress = copy.on_progress
        try:
            superseded_by = await session.hold(copy)
        except BaseException:
            if copy.sent and session.pipeline.broken is None:  # its time is over, and not the session's: the replies still come
                self._copies.settle(session)
            else:
                self._copies.drop(session)
            raise
        finally:
            session.pipeline.on_progress = None
        database = session.database
        self._events.on_heard(self._server, database)
        self._copies.keep(session)
        return HoldAnswer(superseded_by, copy.began_awake, database)

    async def greet(self) -> PeerIdentity:
        """See `ports.PeerLink`."""

        async def ask(session: PeerSession) -> PeerIdentity:
            await session.noop()
            return session.identity

        return await self._on_control(ask)

    async def alive(self, incarnation: Incarnation, *, is_dialed: bool) -> Alive:
        """See `ports.PeerLink`."""
        session, until = self._control, asyncio.get_running_loop().time() + min(PROOF_SECONDS, self._control_seconds / 2)
        if session is not None and session.pipeline.is_usable and session.identity.whole_incarnation == incarnation:
            with contextlib.suppress(TimeoutError, SessionBroken, PeerUnavailable):
                async with asyncio.timeout_at(until), self._control_lock:
                    if session is self._control:
                        await self._asked(session, PeerSession.noop)
                        return Alive.ANSWERS
        if is_dialed:  # perhaps with the lock, so nothing more can be asked
            return Alive.ENDED
        try:
            async with asyncio.timeout_at(until):
                there = await self.greet()
        except TimeoutError:
            return Alive.SILENT
        except PeerUnavailable as error:
            return Alive.ENDED if error.was_refused else Alive.SILENT
        return Alive.ANSWERS if there.whole_incarnation == incarnation else Alive.ENDED

    def end_others(self, incarnation: Incarnation) -> None:
        """See `ports.PeerLink`."""
        if self._control is not None and self._control.is_with_other(incarnation):
            self._control.pipeline.abort()
        self._copies.end_those(lambda session: session.is_with_other(incarnation))

    async def announce(self) -> None:
        """See `ports.PeerLink`."""
        events = self._events
        events.on_identity(await self._on_control(lambda session: session.shake_hands(events.own_identity(), events.conflict)))

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply:
        """See `ports.PeerLink`. Acknowledges only sequences received from the peer's current incarnation."""
        return await self._on_control(lambda session: session.discards(maximum, acknowledged))

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        """See `ports.PeerLink`."""
        return await self._on_control(lambda session: session.status(questions))

    async def for_delivery(self) -> Opened | None:
        """A new session that is the caller's, to deliver mail to this peer as a next hop; identities were exchanged, and XQDISCARD was
        asked in it. None: it cannot be opened as a session between nodes now."""
        try:
            async with asyncio.timeout(self._control_seconds):
                opened = (await self._open("delivery")).opened
                self._delivering = [one for one in self._delivering if one.pipeline.is_usable] + [opened]
                return opened
        except (PeerUnavailable, SessionBroken, TimeoutError):
            return None  # the polls of the heartbeat log why

    def hold_ready(self, *, is_wanted: bool) -> None:
        """See `ports.PeerLink`."""
        self._copies.hold_ready(is_wanted=is_wanted and not self._is_closed)

    def renew(self, options: ConnectOptions) -> None:
        """Use these options for new sessions. Open sessions stay, but those whose server has a certificate that counts no more."""
        before, trust = self._connect_options.trust, options.trust
        self._connect_options = options
        if before is None or trust is None or before == trust:
            return

        def refused(opened: Opened) -> bool:
            return bool(trust.refusal_of_session(opened.shown, before))

        control = [] if self._control is None else [self._control.opened]
        ended = [opened for opened in (*control, *self._delivering) if opened.pipeline.is_usable and refused(opened)]
        for opened in ended:
            opened.pipeline.abort()
        if count := len(ended) + self._copies.end_those(lambda session: refused(session.opened)):
            _log.warning("peer.certificate_refused", server=self._server, address=str(self._address), sessions=count)

    def move(self, address: HostPort) -> None:
        """The peer is elsewhere: new sessions go there. Idle ones with the old address end; a copy that is under way may end well."""
        self._address = address
        if self._control is not None:
            self._control.pipeline.quit()
        self._copies.fall_silent()

    def fall_silent(self) -> None:
        """End the kept sessions without a word, because the peer takes every word for a proof of life. New ones need `why_silent`."""
        if self._control is not None:
            self._control.pipeline.abort()
        self._copies.fall_silent()

    def _may_speak(self) -> None:
        """Raises: PeerUnavailable while nothing may be said."""
        if reason := self._events.why_silent():
            raise PeerUnavailable(self._server, reason)

    async def close(self) -> None:
        """End all sessions; returns when every connection is closed."""
        self._is_closed = True
        control, self._control = self._control, None
        if control is not None:
            control.pipeline.quit()
        await self._copies.close()
        if control is not None:
            await control.pipeline.closed()

    async def _on_control(self, ask: Callable[[PeerSession], Awaitable[T]]) -> T:
        """Questions can be repeated safely: if the kept session is dead, ask again on a new one."""
        self._may_speak()
        try:
            async with asyncio.timeout(self._control_seconds), self._control_lock:
                if self._control is not None and asyncio.get_running_loop().time() >= self._control.opened_at + LIFE_SECONDS_MAX:
                    self._control.pipeline.quit()
                elif self._control is not None and self._control.pipeline.is_usable:
                    try:
                        return await self._asked(self._control, ask)
                    except SessionBroken:
                        pass
                self._control = await self._open("control")
                return await self._asked(self._control, ask)
        except (SessionBroken, TimeoutError) as error:
            raise self._unavailable(error, self._control_seconds, is_sent=False) from error

    async def _asked(self, session: PeerSession, ask: Callable[[PeerSession], Awaitable[T]]) -> T:
        try:
            answer = await ask(session)
        except PeerUnavailable:
            raise  # the peer refused; the session is still usable, or ended already
        except BaseException:
            session.pipeline.abort()  # a late answer would be taken for the answer to the next question
            raise
        self._heard(session)
        return answer

    async def _open(self, purpose: str, *, is_awaited: bool = False) -> PeerSession:
        """Connect, EHLO, TLS, XSHADOW, and the node's questions (`on_open`) unless a copy waits: they follow in `_ask_kept`.

        The hello goes out with EHLO if the peer offered that in the last session. Raises SessionBroken, PeerUnavailable.
        """
        self._may_speak()
        if self._is_closed:
            raise PeerUnavailable(self._server, "this node is stopping")
        own, is_early, self._is_early_offered = self._events.own_identity(), self._is_early_offered, False
        began_at = asyncio.get_running_loop().time()
        opened = await open_session(self._address, self._server, self._connect_options, hello_line(own) if is_early else b"")
        on_position = partial(self._events.on_position, self._server)
        session = PeerSession(opened, self._server, self._turn, self._boundary, on_position)
        try:
            identity = await session.shake_hands(own, self._events.conflict, is_said=is_early)
            if reason := await self._events.second(identity, began_at):
                raise PeerUnavailable(self._server, f"refused: {reason}")
            self._latest, self._is_early_offered = session, session.offers_early
            self._events.on_identity(identity)
            self._events.on_address(opened.address)
            self._events.on_offer(self._server, session.offers_hold)
            self._events.on_forks(self._server, session.offers_forks)
            self._events.on_features(self._server, session.features)
            self._heard(session)
            if not is_awaited:
                await self._questions(session)
            if self._is_closed:
                raise PeerUnavailable(self._server, "this node is stopping")
        except BaseException:
            session.pipeline.abort()
            raise
        _log.info("peer.session_opened", server=self._server, address=str(self._address), purpose=purpose, tls=session.is_tls)
        return session

    async def _ask_kept(self, session: PeerSession) -> None:
        """In a session for copies that no copy uses: read what is left to read, ask the node's questions, or later for a sign of life."""
        if session.pipeline.outstanding:
            await session.settle()
            if session.has_asked:
                return
        if not session.has_asked:
            await self._questions(session)
            return
        if not session.offers_hold:
            raise PeerUnavailable(self._server, "an old session, in which it offers no HOLD")
        await session.noop()
        self._heard(session)

    async def _questions(self, session: PeerSession) -> None:
        session.has_asked = True
        if self._events.on_open is None:
            return
        try:
            await self._events.on_open(session)
        except SessionBroken:
            raise
        except ShadowrelayError as error:
            # The poll repeats questions that failed; the session itself is usable.
            if session.pipeline.broken is not None:
                raise session.pipeline.broken.error() from error
            _log.warning("peer.questions_failed", server=self._server, error=str(error))

    def _heard(self, session: PeerSession) -> None:
        self._events.on_heard(self._server, session.database)

    def _unavailable(
        self, error: SessionBroken | TimeoutError, seconds: float, *, is_sent: bool, was_kept: bool = False
    ) -> PeerUnavailable:
        """PeerUnavailable for any failure while an answer was awaited. The time limit includes waiting for and opening a session."""
        if isinstance(error, TimeoutError):
            return PeerUnavailable(self._server, f"no answer in {seconds:.3g} s", sent=is_sent)
        was_refused = isinstance(error.__cause__, ConnectionRefusedError)
        said = PeerSaid.NO_SESSION if error.is_refusal else PeerSaid.NOTHING
        is_past = was_kept and not error.is_refusal
        return PeerUnavailable(self._server, str(error.reply), sent=is_sent, was_refused=was_refused, said=said, was_kept=is_past)
