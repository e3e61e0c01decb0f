"""Our sessions to one peer: who we are, copies, XQDISCARD. Implements `ports.PeerLink`. docs/protocol.md 5, 6, 9.

Copies go over pooled sessions; XQDISCARD, STATUS and NOOP over one kept control session. XQDISCARD is issued in every session:
`on_open` is called for each with that session. Everything ends as an answer or as PeerUnavailable.

The rule kept here: `CopyInFlight.sent` turns true right before the bytes of COMMIT go out, because without COMMIT nothing
is kept there, and after it only a reply tells.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import field
from typing import Protocol, TypeVar

import structlog

from shadowrelay.model.ids import DatabaseId, ServerName
from shadowrelay.model.message import Content
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.replies import SUPERSEDED, PeerSaid, PeerUnavailable, Reply, ShadowrelayError, WireError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass, replace
from shadowrelay.pipeline.placement import LARGE_OCTETS
from shadowrelay.ports import Clock
from shadowrelay.protocol.addresses import format_mail, format_rcpt
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
from shadowrelay.protocol.xshadow import format_commit, format_envelope, format_hello, format_hold, parse_hello, parse_position
from shadowrelay.smtp.client import Opened, Opening, SessionPool, open_session
from shadowrelay.smtp.client_session import ENHANCED, SERVICE_CLOSING, Answer, Pipeline, SessionBroken
from shadowrelay.smtp.deliverer import BLOCK_OCTETS, opened

CHUNK_OCTETS = 64 * 1024  # each is answered: a copy that gets on shows it this often
COMMAND_NOT_IMPLEMENTED, PARAMETER_NOT_KNOWN, TOO_LARGE = 502, 555, 552  # docs/protocol.md, section 13


@dataclass(slots=True)
class CopyInFlight:
    """What is known of a copy whatever happens: `began_awake` (of Clock.awake), and whether it may be stored there."""

    offer: CopyOffer
    began_awake: float = 0.0
    sent: bool = False
    on_progress: Callable[[], None] | None = None  # called whenever it gets on


@dataclass(slots=True)
class DiscardTurn:
    """Shared by all sessions to one peer: one XQDISCARD at a time, and the highest sequence that came in which
    incarnation of which of its databases."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    origin: tuple[DatabaseId, int] | None = None
    sequence: int = 0

    def acknowledgeable(self, identity: PeerIdentity, acknowledged: int) -> int:
        """What may be acknowledged to `identity`: nothing that did not come from this very incarnation.

        A caller may not know yet that the peer was restarted. To acknowledge too little costs a repetition; to
        acknowledge another incarnation's sequence would delete notifications that nobody has heard.
        """
        is_known = self.origin == (identity.database, identity.incarnation) and acknowledged <= self.sequence
        return acknowledged if is_known else 0

    def came(self, identity: PeerIdentity, reply: DiscardReply) -> None:
        """Note what came."""
        origin = (identity.database, identity.incarnation)
        if self.origin != origin:
            self.origin, self.sequence = origin, 0
        if reply.events:
            self.sequence = max(self.sequence, reply.events[-1].sequence)


def text_of(answer: Answer) -> str:
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


def what_is_refused(reply: Reply) -> PeerSaid:
    """Whether a negative reply to a copy is about this copy (its addresses, size or bytes) or about copies as such."""
    subject = reply.enhanced[2:3]  # RFC 3463: 1 addressing, 5 protocol, 6 content
    is_for_all = reply.code in (COMMAND_NOT_IMPLEMENTED, PARAMETER_NOT_KNOWN)
    return PeerSaid.NOT_THIS if reply.code == TOO_LARGE or (subject in ("1", "5", "6") and not is_for_all) else PeerSaid.NO_COPY


class PeerSession:
    """After the handshake. One task at a time."""

    def __init__(self, opened_session: Opened, server: ServerName, turn: DiscardTurn) -> None:
        self._opened = opened_session
        self._server = server
        self._turn = turn
        self._identity: PeerIdentity | None = None
        self._position = 0
        self.pipeline: Pipeline = opened_session.pipeline
        self.pipeline.reply_octets_max = ANSWERS_OCTETS_MAX  # 400 answers to STATUS

    @property
    def server(self) -> ServerName:
        """The peer."""
        return self._server

    @property
    def identity(self) -> PeerIdentity:
        """What the peer said of itself in this session, with the latest position."""
        assert self._identity is not None
        if self._position > self._identity.position:
            self._identity = replace(self._identity, position=self._position)
        return self._identity

    @property
    def database(self) -> DatabaseId:
        """That of `identity`, which need not be made for it."""
        assert self._identity is not None
        return self._identity.database

    @property
    def offers_hold(self) -> bool:
        """It said so in EHLO."""
        return "HOLD" in self._opened.extensions.get("xshadow", "").upper().split()

    @property
    def is_tls(self) -> bool:
        """The session is encrypted."""
        return self._opened.is_tls

    async def shake_hands(self, own: PeerIdentity, conflict: Callable[[PeerIdentity], str] = lambda identity: "") -> PeerIdentity:
        """Say who we are, learn who that is. `conflict` says why it cannot be that. Raises PeerUnavailable, SessionBroken."""
        # A node whose redundancy is switched off does not show the keyword, and still answers for what others hold.
        answer = await self._ask(f"XSHADOW {format_hello(own)}\r\n".encode())
        if answer.code != 250:
            is_shown = "xshadow" in self._opened.extensions
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
        if identity.boundary != own.boundary:
            raise PeerUnavailable(self._server, f"it belongs to the boundary {identity.boundary}", said=PeerSaid.NO_SESSION)
        self._identity = identity
        return identity

    async def noop(self) -> None:
        """A sign of life. Raises SessionBroken, PeerUnavailable."""
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
            self._turn.came(self.identity, reply)
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

    async def hold(self, copy: CopyInFlight) -> StatusAnswer | None:
        """Place a copy: None when it is stored and synced, else what superseded it.

        Raises: PeerUnavailable after a refusal: nothing is stored. SessionBroken: `copy.sent` says what may be.
        """
        if not self.offers_hold:
            raise PeerUnavailable(self._server, "does not offer HOLD now", said=PeerSaid.NO_SESSION)
        envelope, content = copy.offer.envelope, copy.offer.content
        extra = f"XSHADOW={format_hold(envelope.message_id, copy.offer.number)}"
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
                answers = await self.pipeline.answers(replies_count, None)  # a no is worth a round trip before megabytes of content
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
            if refusal is not None:  # it said no before it went
                return self._superseded(refusal, copy)
            raise

    async def _stream(self, content: Content) -> int:
        """The content in counted chunks; ends early at a refusal. How many replies it will get."""
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

    def _verdict(self, answers: Sequence[Answer], copy: CopyInFlight) -> StatusAnswer | None:
        is_broken = False
        for answer in answers:
            if answer.code >= 300:
                if answer.code >= 400 and answer.code != SERVICE_CLOSING:
                    return self._superseded(answer, copy)
                is_broken = True
        if is_broken:  # a 3xx, or the 421 of a server that closes
            if self.pipeline.broken is not None:
                raise self.pipeline.broken.error()
            self.pipeline.abort()
            raise PeerUnavailable(self._server, "its reply breaks the protocol", sent=copy.sent)
        position = parse_position(answers[-1].lines[-1])
        if position is not None:
            self._position = position
        return None

    def _refusal_in(self, answers: Sequence[Answer]) -> Answer | None:
        """The first negative reply. A 421 is none: it says that the server closes, not that nothing is stored."""
        return next((answer for answer in answers if answer.code >= 400 and answer.code != SERVICE_CLOSING), None)

    def _superseded(self, refusal: Answer, copy: CopyInFlight) -> StatusAnswer:
        copy.sent = False
        text = text_of(refusal)
        if refusal.code == 554 and text.startswith(SUPERSEDED):
            try:
                return parse_superseded(text)
            except WireError as error:
                raise self._garbled(error) from error
        # Where in the transaction it stands now depends on what was refused: a new session is cheaper than to know.
        self.pipeline.abort()
        raise PeerUnavailable(self._server, str(refusal.reply), said=what_is_refused(refusal.reply))

    async def _ask(self, command: bytes) -> Answer:
        self.pipeline.write(command, 1)
        return await self.pipeline.answer(None)

    def _check(self, answer: Answer) -> None:
        if answer.code == SERVICE_CLOSING and self.pipeline.broken is not None:
            raise self.pipeline.broken.error()
        if answer.code >= 300:
            raise PeerUnavailable(self._server, str(answer.reply))
        position = parse_position(answer.lines[-1])
        if position is not None:
            self._position = position

    def _garbled(self, error: WireError) -> PeerUnavailable:
        self.pipeline.abort()
        return PeerUnavailable(self._server, error.reply.text)


SESSIONS_MAX = 32  # for copies, at one time
IDLE_SECONDS = 60.0
CONTROL_SECONDS = 10.0  # one question on the control session, opening it included

_log = structlog.get_logger()
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
        _log.info("peer.session_opened", server=self._server, address=str(self._address), purpose=purpose, tls=session.is_tls)
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
            _log.warning("peer.questions_failed", server=self._server, error=str(error))

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
