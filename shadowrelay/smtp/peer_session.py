"""One session to a peer that knows XSHADOW: who we are, copies, XQDISCARD. Source: DESIGN 4, docs/protocol.md.

The rule kept here: `CopyInFlight.sent` turns true right before the bytes of COMMIT go out, because without COMMIT nothing
is kept there, and after it only a reply tells.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shadowrelay.model.errors import PeerUnavailable, WireError
from shadowrelay.model.ids import DatabaseId, ServerName
from shadowrelay.model.message import Content
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.replies import SUPERSEDED
from shadowrelay.smtp.client import Opened
from shadowrelay.smtp.errors import ENHANCED, SessionBroken
from shadowrelay.smtp.next_hop import BLOCK_OCTETS, opened
from shadowrelay.smtp.pipeline import SERVICE_CLOSING, Answer, Pipeline
from shadowrelay.wire.addresses import format_mail, format_rcpt
from shadowrelay.wire.status import (
    ANSWERS_OCTETS_MAX,
    QUESTIONS_PER_LINE_MAX,
    format_question_block,
    format_status,
    format_status_block,
    parse_answer_lines,
    parse_superseded,
)
from shadowrelay.wire.xqdiscard import DiscardQuery, format_query, parse_reply_lines
from shadowrelay.wire.xshadow import format_commit, format_envelope, format_hello, format_hold, parse_hello, parse_position


@dataclass(slots=True)
class CopyInFlight:
    """What is known of a copy whatever happens: `began_awake` (of Clock.awake), and whether it may be stored there."""

    offer: CopyOffer
    began_awake: float = 0.0
    sent: bool = False


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

    async def shake_hands(self, own: PeerIdentity) -> PeerIdentity:
        """Say who we are, learn who that is. Raises PeerUnavailable, SessionBroken."""
        # A node whose redundancy is switched off does not show the keyword, and still answers for what others hold.
        answer = await self._ask(f"XSHADOW {format_hello(own)}\r\n".encode())
        if answer.code != 250:
            is_shown = "xshadow" in self._opened.extensions
            raise PeerUnavailable(self._server, str(answer.reply) if is_shown else f"does not offer XSHADOW to this node ({answer.reply})")
        try:
            identity = parse_hello(text_of(answer))
        except WireError as error:
            raise PeerUnavailable(self._server, f"its identity cannot be read: {error.reply.text}") from error
        if identity.server != self._server:
            raise PeerUnavailable(self._server, f"the server there is {identity.server}")
        if identity.boundary != own.boundary:
            raise PeerUnavailable(self._server, f"it belongs to the boundary {identity.boundary}")
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
            raise PeerUnavailable(self._server, "does not offer HOLD now")
        envelope, content = copy.offer.envelope, copy.offer.content
        extra = f"XSHADOW={format_hold(envelope.message_id, copy.offer.number)}"
        lines = [f"MAIL {format_mail(envelope, content.size, extra=extra)}\r\n"]
        lines += [f"RCPT {format_rcpt(recipient, dsn=True)}\r\n" for recipient in envelope.recipients]
        lines.append(f"XSHADOW ENVELOPE {format_envelope(envelope, copy.offer.done)}\r\n")
        commit = f"XSHADOW COMMIT {format_commit(content.size, content.sha256)}\r\n".encode("ascii")
        replies_count = len(lines)
        try:
            if content.data is not None:
                lines.append(f"BDAT {content.size}\r\n")
                replies_count += 2
                copy.sent = True
                self.pipeline.write(b"".join(("".join(lines).encode(), content.data, commit)), replies_count)
            else:
                self.pipeline.write("".join(lines).encode(), replies_count)
                replies_count += await self._stream(content)
                if not self.pipeline.has_refusal():
                    copy.sent = True
                    replies_count += 1
                    self.pipeline.write(commit, 1)
            return self._verdict(await self.pipeline.answers(replies_count, None), copy)
        except SessionBroken:
            if copy.sent:
                refusal = self._refusal_in(self.pipeline.taken())
                if refusal is not None:  # it said no before it went
                    return self._superseded(refusal, copy)
            raise

    async def _stream(self, content: Content) -> int:
        """A file in counted chunks; ends early at a refusal. How many replies it will get."""
        chunks_count = 0
        with opened(content) as file:
            while block := await asyncio.to_thread(file.read, BLOCK_OCTETS):
                self.pipeline.write(b"BDAT %d\r\n" % len(block) + block, 1)
                chunks_count += 1
                await self.pipeline.drain(None)
                if self.pipeline.has_refusal():
                    break
        return chunks_count

    def _verdict(self, answers: Sequence[Answer], copy: CopyInFlight) -> StatusAnswer | None:
        refusal = self._refusal_in(answers)
        if refusal is not None:
            return self._superseded(refusal, copy)
        if any(answer.code >= 300 for answer in answers):  # a 3xx, or the 421 of a server that closes
            self.pipeline.abort()
            raise self.pipeline.broken or PeerUnavailable(self._server, "its reply breaks the protocol", sent=copy.sent)
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
        raise PeerUnavailable(self._server, str(refusal.reply))

    async def _ask(self, command: bytes) -> Answer:
        self.pipeline.write(command, 1)
        return await self.pipeline.answer(None)

    def _check(self, answer: Answer) -> None:
        if answer.code == SERVICE_CLOSING and self.pipeline.broken is not None:
            raise self.pipeline.broken
        if answer.code >= 300:
            raise PeerUnavailable(self._server, str(answer.reply))
        position = parse_position(answer.lines[-1])
        if position is not None:
            self._position = position

    def _garbled(self, error: WireError) -> PeerUnavailable:
        self.pipeline.abort()
        return PeerUnavailable(self._server, error.reply.text)
