"""Our sessions to one peer: XSHADOW identity, copies, XQDISCARD. Implements `ports.PeerLink`. docs/protocol.md 5, 6, 9, 15.

Copies use pooled sessions; XQDISCARD, STATUS and NOOP use one kept control session. Mail for a next hop that is this peer goes over
sessions of its own (`for_delivery`). `on_open` is called with every new session, so that XQDISCARD is sent in each. Every other call ends
with an answer or with PeerUnavailable.

The rule here: `CopyInFlight.sent` becomes true right before the bytes of COMMIT are written, because without COMMIT the peer
keeps nothing, and after it only the reply tells whether the copy is stored.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Protocol, TypeVar

import structlog

from shadowrelay.model.ids import BoundaryName, DatabaseId, ServerName
from shadowrelay.model.message import Content
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion
from shadowrelay.model.peers import NO_INCARNATION, CopyOffer, DiscardReply, Incarnation, PeerIdentity
from shadowrelay.model.printable import printable
from shadowrelay.model.replies import SUPERSEDED, PeerSaid, PeerUnavailable, Reply, ShadowrelayError, WireError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass, replace
from shadowrelay.pipeline.placement import LARGE_OCTETS
from shadowrelay.ports import Clock, HoldAnswer
from shadowrelay.protocol.fields import format_mail, format_rcpt
from shadowrelay.protocol.xqdiscard import (
    ANSWERS_OCTETS_MAX,
    QUESTIONS_PER_LINE_MAX,
    DiscardQuery,
    format_query,
    format_question_block,
    format_status,
    format_status_block,
    parse_answer_lines,
    parse_reply_lines,
    parse_superseded,
)
from shadowrelay.protocol.xshadow import (
    FORKS,
    HOLD,
    TRACK,
    format_commit,
    format_envelope,
    format_hello,
    format_hold,
    parse_hello,
    parse_position,
)
from shadowrelay.smtp.client import ConnectOptions, Opened, open_session
from shadowrelay.smtp.client_session import ENHANCED, SERVICE_CLOSING, Pipeline, RawReply, SessionBroken, SessionPool
from shadowrelay.smtp.deliverer import BLOCK_OCTETS, opened

CHUNK_OCTETS = 64 * 1024  # each is answered, so that both sides see progress this often
COMMAND_NOT_IMPLEMENTED, PARAMETER_NOT_KNOWN, TOO_LARGE = 502, 555, 552  # docs/protocol.md, section 13


@dataclass(slots=True)
class CopyInFlight:
    """The state of a copy while it is sent, also after an error. `began_awake`: when sending began (`Clock.awake`). `sent`: the peer may
    have stored it. `is_tracked`: it is relayed by TRACK. `in_session`: there was a session that offered what it needs."""

    offer: CopyOffer
    is_tracked: bool = False
    began_awake: float = 0.0
    sent: bool = False
    in_session: bool = False
    progress_awake: float = 0.0  # when it was begun, or made the last progress that is noted
    on_progress: Callable[[], None] | None = None  # called at each progress


@dataclass(slots=True)
class DiscardTurn:
    """Shared by all sessions to one peer: allows one XQDISCARD at a time, and records the highest sequence received, with the
    incarnation and database that it belongs to."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    origin: tuple[DatabaseId, int] | None = None
    sequence: int = 0

    def acknowledgeable(self, identity: PeerIdentity, acknowledged: int) -> int:
        """The sequence to acknowledge to `identity`; nothing unless it was received from this very incarnation.

        A caller may not know yet that the peer was restarted. Acknowledging too little costs a repetition;
        acknowledging another incarnation's sequence would delete notifications that were never received.
        """
        is_known = self.origin == (identity.database, identity.incarnation) and acknowledged <= self.sequence
        return acknowledged if is_known else 0

    def received(self, identity: PeerIdentity, reply: DiscardReply) -> None:
        """Record a reply."""
        origin = (identity.database, identity.incarnation)
        if self.origin != origin:
            self.origin, self.sequence = origin, 0
        if reply.events:
            self.sequence = max(self.sequence, reply.events[-1].sequence)


def text_of(answer: RawReply) -> str:
    """A one-line reply's text without its enhanced code, whole."""
    line = answer.lines[-1]
    found = ENHANCED.match(line)
    return line[found.end() :] if found is not None else line


async def _blocks(content: Content) -> AsyncGenerator[bytes, None]:
    if content.data is not None:
        yield content.data
        return
    with opened(content) as file:
        while block := await asyncio.to_thread(file.read, BLOCK_OCTETS):
            yield block


def refusal_scope(reply: Reply) -> PeerSaid:
    """Whether a negative reply concerns this copy only (its addresses, size or bytes) or copies in general."""
    subject = reply.enhanced[2:3]  # RFC 3463: 1 addressing, 5 protocol, 6 content
    is_for_all = reply.code in (COMMAND_NOT_IMPLEMENTED, PARAMETER_NOT_KNOWN)
    return PeerSaid.NOT_THIS if reply.code == TOO_LARGE or (subject in ("1", "5", "6") and not is_for_all) else PeerSaid.NO_COPY


class PeerSession:
    """A session after the handshake. For one task at a time."""

    def __init__(
        self,
        opened_session: Opened,
        server: ServerName,
        turn: DiscardTurn,
        boundary: BoundaryName,
        on_position: Callable[[Incarnation, int], None] = lambda incarnation, position: None,
    ) -> None:
        self.opened = opened_session
        self._server = server
        self._boundary = boundary
        self._turn = turn
        self._identity: PeerIdentity | None = None
        self._incarnation = NO_INCARNATION
        self._position = 0
        self._on_position = on_position
        self.pipeline: Pipeline = opened_session.pipeline
        offered = opened_session.extensions.get("xshadow", "").upper().split()
        self.offers_hold, self.offers_track, self.offers_forks = HOLD in offered, TRACK in offered, FORKS in offered  # in its EHLO reply
        self.pipeline.reply_octets_max = ANSWERS_OCTETS_MAX  # for 400 answers to STATUS

    @property
    def server(self) -> ServerName:
        """The peer."""
        return self._server

    @property
    def identity(self) -> PeerIdentity:
        """The peer's identity as reported in this session, with the latest position."""
        assert self._identity is not None
        if self._position > self._identity.position:
            self._identity = replace(self._identity, position=self._position)
        return self._identity

    @property
    def database(self) -> DatabaseId:
        """`identity.database`, without building an identity."""
        assert self._identity is not None
        return self._identity.database

    @property
    def is_tls(self) -> bool:
        """The session is encrypted."""
        return self.opened.is_tls

    async def shake_hands(self, own: PeerIdentity, conflict: Callable[[PeerIdentity], str] = lambda identity: "") -> PeerIdentity:
        """Exchange identities. `conflict` returns why the peer's identity is refused. Raises PeerUnavailable, SessionBroken."""
        # A node with redundancy switched off hides the keyword, but still answers about copies that other nodes hold.
        answer = await self._ask(f"XSHADOW {format_hello(own)}\r\n".encode())
        if answer.code != 250:
            is_shown = "xshadow" in self.opened.extensions
            reason = str(answer.reply) if is_shown else f"does not offer XSHADOW to this node ({answer.reply})"
            raise PeerUnavailable(self._server, reason, said=PeerSaid.NO_SESSION)
        try:
            identity = parse_hello(text_of(answer))
        except WireError as error:
            raise PeerUnavailable(self._server, f"its identity cannot be read: {error.reply.text}") from error
        if identity.server in (self._server, own.server) and (reason := conflict(identity)):
            raise PeerUnavailable(self._server, f"refused: {reason}")
        if identity.server != self._server:
            raise PeerUnavailable(self._server, f"the server there is {identity.server}", said=PeerSaid.NO_SESSION)
        if identity.boundary != self._boundary:
            raise PeerUnavailable(self._server, f"it belongs to the boundary {printable(identity.boundary)}", said=PeerSaid.NO_SESSION)
        self._identity, self._incarnation, self._position = identity, identity.whole_incarnation, identity.position
        return identity

    async def noop(self) -> None:
        """Send NOOP, as a proof of life. Raises SessionBroken, PeerUnavailable."""
        answer = await self._ask(b"NOOP\r\n")
        if answer.code >= 300:
            raise PeerUnavailable(self._server, str(answer.reply))

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply:
        """XQDISCARD. Raises SessionBroken, PeerUnavailable."""
        async with self._turn.lock:
            query = DiscardQuery(maximum, self._turn.acknowledgeable(self.identity, acknowledged))
            answer = await self._ask(f"XQDISCARD {format_query(query)}\r\n".encode("ascii"))
            self._check(answer)
            try:
                reply = parse_reply_lines(answer.lines)
            except WireError as error:
                raise self._garbled(error) from error
            self._turn.received(self.identity, reply)
            return reply

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        """XQDISCARD STATUS; at most 400. Raises SessionBroken, PeerUnavailable."""
        if not questions:
            return ()
        if len(questions) <= QUESTIONS_PER_LINE_MAX:
            command = f"XQDISCARD {format_status(questions)}\r\n".encode("ascii")
        else:
            block = format_question_block(questions)
            command = f"XQDISCARD {format_status_block(len(block))}\r\n".encode("ascii") + block
        async with self._turn.lock:
            answer = await self._ask(command)
        self._check(answer)
        try:
            answers = parse_answer_lines(answer.lines)
        except WireError as error:
            raise self._garbled(error) from error
        if len(answers) != len(questions):
            self.pipeline.abort()
            raise PeerUnavailable(self._server, f"{len(answers)} answers to {len(questions)} questions")
        return answers

    def offers(self, copy: CopyInFlight) -> bool:
        """Whether the reply to EHLO offered what this copy needs."""
        return self.offers_track if copy.is_tracked else self.offers_hold

    async def hold(self, copy: CopyInFlight) -> StatusAnswer | None:
        """Place a copy, or relay a message (`is_tracked`). Returns None if it is stored and synced, else the answer that superseded it.

        Raises: PeerUnavailable after a refusal: nothing is stored. SessionBroken: `copy.sent` tells whether it may be stored.
        """
        if not self.offers(copy):
            raise PeerUnavailable(self._server, f"does not offer {TRACK if copy.is_tracked else HOLD} now", said=PeerSaid.NO_SESSION)
        envelope, content = copy.offer.envelope, copy.offer.content
        extra = f"XSHADOW={format_hold(envelope.message_id, copy.offer.number, is_tracked=copy.is_tracked)}"
        lines = [f"MAIL {format_mail(envelope, content.size, extra=extra)}\r\n"]
        lines += [f"RCPT {format_rcpt(recipient, dsn=True)}\r\n" for recipient in envelope.recipients]
        lines.append(f"XSHADOW ENVELOPE {format_envelope(envelope, copy.offer.done)}\r\n")
        commit = f"XSHADOW COMMIT {format_commit(content.size, content.sha256)}\r\n".encode("ascii")
        replies_count = len(lines)
        try:
            if content.data is not None and content.size <= LARGE_OCTETS:
                lines.append(f"BDAT {content.size}\r\n")
                replies_count += 2
                copy.sent = True
                self.pipeline.write(b"".join(("".join(lines).encode(), content.data, commit)), replies_count)
            else:
                self.pipeline.write("".join(lines).encode(), replies_count)
                answers = await self.pipeline.answers(replies_count, None)  # wait one round trip rather than send megabytes in vain
                if any(answer.code >= 300 for answer in answers):
                    return self._verdict(answers, copy)
                replies_count = await self._stream(content)
                if not self.pipeline.has_refusal():
                    copy.sent = True
                    replies_count += 1
                    self.pipeline.write(commit, 1)
            return self._verdict(await self.pipeline.answers(replies_count, None), copy)
        except SessionBroken:
            refusal = self._refusal_in(self.pipeline.taken())
            # One refused line fails the whole copy, so nothing is stored, even if COMMIT was sent. docs/protocol.md 6.
            if refusal is not None:
                return self._superseded(refusal, copy)
            raise

    async def _stream(self, content: Content) -> int:
        """Send the content in counted chunks; stop at a refusal. Returns the number of replies to expect."""
        chunks_count = 0
        async with contextlib.aclosing(_blocks(content)) as blocks:
            async for block in blocks:
                for start in range(0, len(block), CHUNK_OCTETS):
                    chunk = block[start : start + CHUNK_OCTETS]
                    self.pipeline.write(b"BDAT %d\r\n" % len(chunk) + chunk, 1)
                    chunks_count += 1
                    await self.pipeline.drain(None)
                    if self.pipeline.has_refusal():
                        return chunks_count
        return chunks_count

    def _verdict(self, answers: Sequence[RawReply], copy: CopyInFlight) -> StatusAnswer | None:
        is_broken = False
        for answer in answers:
            if answer.code >= 300:
                if answer.code >= 400 and answer.code != SERVICE_CLOSING:
                    return self._superseded(answer, copy)
                is_broken = True
        if is_broken:  # a 3xx, or the 421 of a server that is closing
            if self.pipeline.broken is not None:
                raise self.pipeline.broken.error()
            self.pipeline.abort()
            raise PeerUnavailable(self._server, "its reply breaks the protocol", sent=copy.sent)
        self._note_position(answers[-1])
        return None

    def _refusal_in(self, answers: Sequence[RawReply]) -> RawReply | None:
        """The first negative reply, except 421: that means that the server closes, not that nothing is stored."""
        return next((answer for answer in answers if answer.code >= 400 and answer.code != SERVICE_CLOSING), None)

    def _superseded(self, refusal: RawReply, copy: CopyInFlight) -> StatusAnswer:
        copy.sent = False
        text = text_of(refusal)
        if refusal.code == 554 and text.startswith(SUPERSEDED):
            try:
                return parse_superseded(text)
            except WireError as error:
                raise self._garbled(error) from error
        # The state of the transaction depends on which line was refused: a new session is simpler than finding out.
        self.pipeline.abort()
        raise PeerUnavailable(self._server, str(refusal.reply), said=refusal_scope(refusal.reply), reply=refusal.reply)

    async def _ask(self, command: bytes) -> RawReply:
        self.pipeline.write(command, 1)
        return await self.pipeline.answer(None)

    def _check(self, answer: RawReply) -> None:
        if answer.code == SERVICE_CLOSING and self.pipeline.broken is not None:
            raise self.pipeline.broken.error()
        if answer.code >= 300:
            raise PeerUnavailable(self._server, str(answer.reply))
        self._note_position(answer)

    def _note_position(self, answer: RawReply) -> None:
        position = parse_position(answer.lines[-1])
        if position is not None and position > self._position:
            self._position = position
            self._on_position(self._incarnation, position)

    def _garbled(self, error: WireError) -> PeerUnavailable:
        self.pipeline.abort()
        return PeerUnavailable(self._server, error.reply.text)


SESSIONS_MAX = 32  # concurrent sessions for copies
PROOF_SECONDS = 3.0  # for the answer of a process that another one with its name seems to have replaced
CONTROL_SECONDS = 10.0  # for one question on the control session, including opening it

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


async def _no_second(identity: PeerIdentity) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Callbacks of the node. `own_identity` returns our identity for this peer, `conflict` why the peer's identity is refused, `second`
    whether another process with its name still answers."""

    own_identity: Callable[[], PeerIdentity]
    conflict: Callable[[PeerIdentity], str] = lambda identity: ""
    second: Callable[[PeerIdentity], Awaitable[str]] = _no_second
    on_identity: Callable[[PeerIdentity], None] = lambda identity: None
    on_heard: Callable[[ServerName, DatabaseId], None] = lambda server, database: None
    on_position: Callable[[ServerName, Incarnation, int], None] = lambda server, incarnation, position: None  # that a reply told
    on_offer: Callable[[ServerName, bool], None] = lambda server, is_offered: None  # whether a session's EHLO offered HOLD
    on_forks: Callable[[ServerName, bool], None] = lambda server, is_offered: None  # and FORKS
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
        self._pool: SessionPool[PeerSession] = SessionPool(sessions_max, idle_seconds)
        self._control: PeerSession | None = None
        self._control_lock = asyncio.Lock()
        self._turn = DiscardTurn()
        self._latest: PeerSession | None = None
        self._in_flight: dict[asyncio.Timeout, CopyInFlight] = {}
        self._is_closed = False

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

    async def hold(self, offer: CopyOffer, deadline: float, stall_seconds: float | None = None) -> HoldAnswer:
        """See `ports.PeerLink`."""
        return await self._send(CopyInFlight(offer), deadline, stall_seconds)

    async def track(self, offer: CopyOffer, deadline: float, stall_seconds: float | None = None) -> HoldAnswer:
        """See `ports.PeerLink`."""
        return await self._send(CopyInFlight(offer, is_tracked=True), deadline, stall_seconds)

    async def _send(self, copy: CopyInFlight, deadline: float, stall_seconds: float | None) -> HoldAnswer:
        self._may_speak()
        copy.progress_awake = self._clock.awake()
        seconds = deadline - copy.progress_awake
        if seconds <= 0:
            raise PeerUnavailable(self._server, "no time is left")
        bound = asyncio.timeout(seconds if stall_seconds is None else min(seconds, stall_seconds))
        try:
            async with bound:
                self._in_flight[bound] = copy
                if stall_seconds is not None:
                    copy.on_progress = self._extending(bound, copy, seconds, stall_seconds)
                await self._pool.enter()
                try:
                    while (session := self._pool.take(self._server)) is not None and not session.offers(copy):
                        self._pool.drop(session)  # the reply to its EHLO is an old one: ask the peer what it offers now
                    if session is not None:
                        try:
                            return await self._place(session, copy)
                        except SessionBroken:
                            if copy.sent:
                                raise
                            # The session was dead and nothing can have been stored: retry once on a new one.
                    copy.in_session = False
                    session = await self._open("copy")
                    self._pool.add(session)
                    return await self._place(session, copy)
                finally:
                    self._pool.leave()
        except (SessionBroken, OSError, ValueError) as error:
            if isinstance(error, TimeoutError) and bound not in self._in_flight:
                raise PeerUnavailable(self._server, "it is lost: no answer to heartbeats either", sent=copy.sent) from error
            failed = self._unavailable(error, seconds if stall_seconds is None else min(seconds, stall_seconds), is_sent=copy.sent)
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
            self._pool.drop(session)
            raise
        finally:
            session.pipeline.on_progress = None
        database = session.database
        self._events.on_heard(self._server, database)
        self._pool.keep(self._server, session)
        return HoldAnswer(superseded_by, copy.began_awake, database)

    async def greet(self) -> PeerIdentity:
        """See `ports.PeerLink`."""

        async def ask(session: PeerSession) -> PeerIdentity:
            await session.noop()
            return session.identity

        return await self._on_control(ask)

    async def answers(self, incarnation: Incarnation) -> bool:
        """See `ports.PeerLink`."""
        session = self._control
        if session is None or not session.pipeline.is_usable or session.identity.whole_incarnation != incarnation:
            return False
        try:
            async with asyncio.timeout(PROOF_SECONDS), self._control_lock:
                if session is not self._control:
                    return False
                await self._asked(session, PeerSession.noop)
        except (TimeoutError, SessionBroken, PeerUnavailable):
            return False
        return True

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
                return (await self._open("delivery")).opened
        except (PeerUnavailable, SessionBroken, TimeoutError):
            return None  # the polls of the heartbeat log why

    def renew(self, options: ConnectOptions) -> None:
        """Use these options for new sessions; open sessions stay."""
        self._connect_options = options

    def fall_silent(self) -> None:
        """End the kept sessions without a word, because the peer takes every word for a proof of life. New ones need `why_silent`."""
        if self._control is not None:
            self._control.pipeline.abort()
        while (session := self._pool.take(self._server)) is not None:
            self._pool.drop(session)

    def _may_speak(self) -> None:
        if reason := self._events.why_silent():
            raise PeerUnavailable(self._server, reason)

    async def close(self) -> None:
        """End all sessions; returns when every connection is closed."""
        self._is_closed = True
        control, self._control = self._control, None
        if control is not None:
            control.pipeline.quit()
        await self._pool.close()
        if control is not None:
            await control.pipeline.closed()

    async def _on_control(self, ask: Callable[[PeerSession], Awaitable[T]]) -> T:
        """Questions can be repeated safely: if the kept session is dead, ask again on a new one."""
        self._may_speak()
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
            raise  # the peer refused; the session is still usable, or ended already
        except BaseException:
            session.pipeline.abort()  # a late answer would be taken for the answer to the next question
            raise
        self._heard(session)
        return answer

    async def _open(self, purpose: str) -> PeerSession:
        """Connect, EHLO, TLS, XSHADOW, and the node's questions (`on_open`). Raises SessionBroken, PeerUnavailable."""
        self._may_speak()
        if self._is_closed:
            raise PeerUnavailable(self._server, "this node is stopping")
        opened = await open_session(self._address, self._server, self._connect_options)
        on_position = partial(self._events.on_position, self._server)
        session = PeerSession(opened, self._server, self._turn, self._boundary, on_position)
        try:
            identity = await session.shake_hands(self._events.own_identity(), self._events.conflict)
            if reason := await self._events.second(identity):
                raise PeerUnavailable(self._server, f"refused: {reason}")
            self._latest = session
            self._events.on_identity(identity)
            self._events.on_offer(self._server, session.offers_hold)
            self._events.on_forks(self._server, session.offers_forks)
            self._heard(session)
            if self._events.on_open is not None:
                await self._questions(session, self._events.on_open)
            if self._is_closed:
                raise PeerUnavailable(self._server, "this node is stopping")
        except BaseException:
            session.pipeline.abort()
            raise
        _log.info("peer.session_opened", server=self._server, address=str(self._address), purpose=purpose, tls=session.is_tls)
        return session

    async def _questions(self, session: PeerSession, on_open: Callable[[SessionLink], Awaitable[None]]) -> None:
        try:
            await on_open(session)
        except SessionBroken:
            raise
        except ShadowrelayError as error:
            # The poll repeats questions that failed; the session itself is usable.
            if session.pipeline.broken is not None:
                raise session.pipeline.broken.error() from error
            _log.warning("peer.questions_failed", server=self._server, error=str(error))

    def _heard(self, session: PeerSession) -> None:
        self._events.on_heard(self._server, session.database)

    def _unavailable(self, error: Exception, seconds: float, *, is_sent: bool) -> PeerUnavailable:
        """PeerUnavailable for any failure while an answer was awaited. The time limit includes waiting for and opening a session."""
        if isinstance(error, TimeoutError):
            return PeerUnavailable(self._server, f"no answer in {seconds:.3g} s", sent=is_sent)
        if isinstance(error, SessionBroken):
            was_refused = isinstance(error.__cause__, ConnectionRefusedError)
            said = PeerSaid.NO_SESSION if error.is_refusal else PeerSaid.NOTHING
            return PeerUnavailable(self._server, str(error.reply), sent=is_sent, was_refused=was_refused, said=said)
        # OSError, ValueError: the content's file; an envelope that no parser would have accepted
        return PeerUnavailable(self._server, f"the copy cannot be written: {error}", sent=is_sent)
