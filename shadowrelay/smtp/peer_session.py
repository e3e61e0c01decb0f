"""One session to a peer, after its EHLO: XSHADOW identity, copies, XQDISCARD. For one task at a time. docs/protocol.md 5, 6, 9, 10.

`smtp/peer_link.py` chooses the session for each call, `smtp/kept_sessions.py` keeps those for copies.

The rule here: `CopyInFlight.sent` becomes true right before the bytes of COMMIT are written, because without COMMIT the peer
keeps nothing, and after it only the reply tells whether the copy is stored.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import field

from shadowrelay.model.ids import BoundaryName, DatabaseId, ServerName
from shadowrelay.model.message import BodyType, Content
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion
from shadowrelay.model.peers import NO_INCARNATION, CopyOffer, DiscardReply, Incarnation, PeerIdentity
from shadowrelay.model.printable import printable
from shadowrelay.model.replies import STORE_UNAVAILABLE, SUPERSEDED, LedgerUnavailable, PeerSaid, PeerUnavailable, Reply, WireError
from shadowrelay.model.values import dataclass, replace
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
    EARLY,
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
from shadowrelay.rules.placement import LARGE_OCTETS
from shadowrelay.smtp.client import Opened
from shadowrelay.smtp.client_session import ENHANCED, SERVICE_CLOSING, Pipeline, RawReply, SessionBroken
from shadowrelay.smtp.outgoing_message import BLOCK_OCTETS, opened

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


def unwritable(error: Exception) -> LedgerUnavailable:
    """This node cannot write its own message, which says nothing about the peer: its file (OSError names it) cannot be read now, or its
    envelope is one that no parser would have accepted (ValueError)."""
    return LedgerUnavailable(STORE_UNAVAILABLE, f"this server cannot read its own message: {type(error).__name__}: {error}")


async def _blocks(content: Content) -> AsyncGenerator[bytes, None]:
    """Raises: LedgerUnavailable."""
    if content.data is not None:
        yield content.data
        return
    try:
        with opened(content) as file:
            while block := await asyncio.to_thread(file.read, BLOCK_OCTETS):
                yield block
    except OSError as error:
        raise unwritable(error) from error


def hello_line(own: PeerIdentity) -> bytes:
    """XSHADOW with our identity."""
    return f"XSHADOW {format_hello(own)}\r\n".encode()


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
        self.opened_at = asyncio.get_running_loop().time()
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
        self.offers_early = EARLY in offered
        self.features = tuple(offered)
        self.was_kept = False  # it rested, or served a copy: it may have ended, and what its EHLO offered may have changed
        self.has_asked = False  # the questions that are asked in every session
        self.is_asked = False  # these, or for a sign of life, now
        self.pipeline.reply_octets_max = ANSWERS_OCTETS_MAX  # for 400 answers to STATUS
        self.pipeline.is_lenient = self.pipeline.skips_nonsense = False

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

    def is_with_other(self, incarnation: Incarnation) -> bool:
        """Whether another process of the peer has identified itself in this session."""
        return self._incarnation not in (NO_INCARNATION, incarnation)

    @property
    def is_tls(self) -> bool:
        """The session is encrypted."""
        return self.opened.is_tls

    async def shake_hands(
        self, own: PeerIdentity, conflict: Callable[[PeerIdentity], str] = lambda identity: "", *, is_said: bool = False
    ) -> PeerIdentity:
        """Exchange identities. `conflict` returns why the peer's identity is refused; `is_said`: our hello went out with EHLO.
        Raises PeerUnavailable, SessionBroken."""
        # A node with redundancy switched off hides the keyword, but still answers about copies that other nodes hold.
        answer = await (self.pipeline.answer(None) if is_said else self._ask(hello_line(own)))
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

    async def settle(self) -> None:
        """Read the replies that are left of a copy. Raises SessionBroken, PeerUnavailable after a refusal: a transaction may be open."""
        answers = await self.pipeline.answers(self.pipeline.outstanding, None)
        if (refusal := self._refusal_in(answers)) is not None:
            raise PeerUnavailable(self._server, str(refusal.reply))
        self._note_position(answers[-1])

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
        LedgerUnavailable: this node's own message cannot be read now; nothing is stored.
        """
        if not copy.in_session:
            raise PeerUnavailable(self._server, f"does not offer {TRACK if copy.is_tracked else HOLD} now", said=PeerSaid.NO_SESSION)
        envelope, content = copy.offer.envelope, copy.offer.content
        if envelope.body is BodyType.BINARY_MIME and "binarymime" not in self.opened.extensions:
            raise PeerUnavailable(self._server, "does not take binary content (BINARYMIME)", said=PeerSaid.NOT_THIS)
        extra = f"XSHADOW={format_hold(envelope.message_id, copy.offer.number, is_tracked=copy.is_tracked)}"
        try:
            lines = [f"MAIL {format_mail(envelope, content.size, extra=extra)}\r\n"]
            lines += [f"RCPT {format_rcpt(recipient, dsn=True)}\r\n" for recipient in envelope.recipients]
            lines.append(f"XSHADOW ENVELOPE {format_envelope(envelope, copy.offer.done)}\r\n")
        except ValueError as error:
            raise unwritable(error) from error
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
        if self.pipeline.surplus or not self._note_position(answers[-1]):  # that to COMMIT has one, and that to a chunk before it none
            self.pipeline.abort()
            raise PeerUnavailable(self._server, "its reply is none to COMMIT", sent=copy.sent)
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

    def _note_position(self, answer: RawReply) -> bool:
        """Whether it has one."""
        position = parse_position(answer.lines[-1])
        if position is not None and position > self._position:
            self._position = position
            self._on_position(self._incarnation, position)
        return position is not None

    def _garbled(self, error: WireError) -> PeerUnavailable:
        self.pipeline.abort()
        return PeerUnavailable(self._server, error.reply.text)
