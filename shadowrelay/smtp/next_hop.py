"""One mail transaction with a next hop over an open session. Source: RFC 5321 4.1.1, 4.5.3.2; RFC 2920 (pipelining).

The rules kept here: nothing is sent that the next hop did not offer, the content is changed by dot-stuffing only, the
final dot goes only after `may_end_data` said so, and a reply that makes no sense ends the session as a transient failure.
Each step that writes the content stands in `with work.handling()`, and no step that waits does.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from io import FileIO
from math import inf

from shadowrelay.model.errors import DeliveryError, LeaseTooShort, PermanentDeliveryError, TransientDeliveryError
from shadowrelay.model.message import BodyType, Content, Envelope
from shadowrelay.model.replies import Reply
from shadowrelay.model.values import dataclass
from shadowrelay.smtp.client import Opened
from shadowrelay.smtp.dots import DotStuffer, stuffed_with_end
from shadowrelay.smtp.errors import BROKEN_REPLY, SessionBroken, failure
from shadowrelay.smtp.pipeline import SERVICE_CLOSING, Answer
from shadowrelay.wire.addresses import format_mail, format_rcpt

COMMAND_SECONDS = 300.0  # MAIL and RCPT. RFC 5321 4.5.3.2.2, 4.5.3.2.3
DATA_SECONDS = 120.0  # RFC 5321 4.5.3.2.4
BLOCK_SECONDS = 180.0  # RFC 5321 4.5.3.2.5
DOT_SECONDS = 600.0  # RFC 5321 4.5.3.2.6; less makes duplicates
BLOCK_OCTETS = 256 * 1024

TOO_LARGE = Reply(552, "5.3.4", "The message is larger than the next hop takes")  # RFC 1870 6.1
NEEDS_8BITMIME = Reply(554, "5.6.3", "The content is 8-bit and the next hop does not offer 8BITMIME")  # RFC 6152 3
NEEDS_SMTPUTF8 = Reply(550, "5.6.7", "The message needs SMTPUTF8 and the next hop does not offer it")  # RFC 6531 3.5
BAD_ENVELOPE = Reply(554, "5.5.2", "The envelope cannot be written as SMTP commands")
CONTENT_UNREADABLE = Reply(451, "4.3.0", "The stored content cannot be read")


@dataclass(frozen=True, slots=True)
class Limits:
    """Units: seconds for each awaited reply. Shorter ones are for tests."""

    command: float = COMMAND_SECONDS
    data: float = DATA_SECONDS
    block: float = BLOCK_SECONDS
    dot: float = DOT_SECONDS


@dataclass(frozen=True, slots=True)
class Work:
    """What to deliver. `ordinals` ascending, not empty; `prefix` whole header lines or empty."""

    envelope: Envelope
    ordinals: tuple[int, ...]
    content: Content
    prefix: bytes
    may_end_data: Callable[[], bool]
    limits: Limits = Limits()
    reply_seconds: Callable[[], float] = lambda: inf
    handling: Callable[[], AbstractContextManager[None]] = nullcontext  # see `ports.Ledger.handling`

    @property
    def size(self) -> int:
        """Octets as SIZE counts them: no stuffing, no final dot. RFC 1870 5."""
        return len(self.prefix) + self.content.size


class Unfinished(Exception):
    """The session broke in the middle; never leaves this package."""

    def __init__(self, error: SessionBroken, *, dot_sent: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.dot_sent = dot_sent


@dataclass(slots=True)
class Transaction:
    """State of one transaction; `replies` by ordinal grows as they are known."""

    session: Opened
    work: Work
    replies: dict[int, Reply] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=list)
    dot_sent: bool = False
    _is_clean: bool = False  # the session can take another MAIL

    async def run(self) -> None:
        """Fills `replies` for every ordinal.

        Raises: DeliveryError: nothing decided recipient by recipient, the session can be used again.
        LeaseTooShort, Unfinished: the session is ended; `replies` holds the recipients refused until then.
        """
        try:
            self._is_clean = True
            mail, rcpts = self._commands()
            self._is_clean = False
            self.session.messages_count += 1
            announce = self._announce_at_once if "pipelining" in self.session.extensions else self._announce_one_by_one
            if not await announce(mail, rcpts):
                return
            answer = await self._content()
        except SessionBroken as error:
            raise Unfinished(error, dot_sent=self.dot_sent) from error
        except BaseException:
            # Whatever is half said cannot be taken back; a refusal of the envelope has left it clean.
            if self.session.pipeline.broken is None and not self._is_clean:
                self.session.pipeline.abort()
            raise
        for ordinal in self.accepted:
            self.replies[ordinal] = answer.reply

    async def _announce_at_once(self, mail: bytes, rcpts: Sequence[bytes]) -> bool:
        """MAIL, RCPT, DATA. True: the content may follow. False: no recipient was accepted."""
        pipeline, limits = self.session.pipeline, self.work.limits
        pipeline.write(b"".join((mail, *rcpts, b"DATA\r\n")), len(rcpts) + 2)
        try:
            answers = await pipeline.answers(len(rcpts) + 1, limits.command)
            data = await pipeline.answer(limits.data)
        except SessionBroken:
            self._note_last_words(pipeline.taken())
            raise
        if answers[0].code >= 300 and not self._is_positive(answers[0]):
            if data.code == 354:  # it wants content for nobody from nobody
                pipeline.abort()
            self._is_clean = True
            raise failure(answers[0].reply, self.session.server)
        for ordinal, answer in zip(self.work.ordinals, answers[1:], strict=True):
            self._note_recipient(ordinal, answer)
        if self.accepted:
            return await self._may_follow(data)
        if data.code == 354:  # RFC 2920 3.1: the client has to end what the server began
            await self._settle(b".\r\n", limits.dot)
        else:
            await self._settle(b"RSET\r\n", limits.command)
        return False

    async def _announce_one_by_one(self, mail: bytes, rcpts: Sequence[bytes]) -> bool:
        pipeline, limits = self.session.pipeline, self.work.limits
        pipeline.write(mail, 1)
        answer = await pipeline.answer(limits.command)
        if not self._is_positive(answer):
            self._is_clean = True
            raise failure(answer.reply, self.session.server)
        for ordinal, rcpt in zip(self.work.ordinals, rcpts, strict=True):
            pipeline.write(rcpt, 1)
            self._note_recipient(ordinal, await pipeline.answer(limits.command))
        if not self.accepted:
            await self._settle(b"RSET\r\n", limits.command)
            return False
        pipeline.write(b"DATA\r\n", 1)
        return await self._may_follow(await pipeline.answer(limits.data))

    async def _may_follow(self, data: Answer) -> bool:
        if data.code == 354:
            return True
        if self._is_positive(data):
            raise self._nonsense(data)
        await self._settle(b"RSET\r\n", self.work.limits.command)
        for ordinal in self.accepted:
            self.replies[ordinal] = data.reply
        if len(self.accepted) == len(self.work.ordinals):
            self._is_clean = True
            raise failure(data.reply, self.session.server)
        return False

    def _note_last_words(self, answers: Sequence[Answer]) -> None:
        """Refusals count although the server closed right behind them, as some do after a 554."""
        if answers and answers[0].code >= 400 and answers[0].code != SERVICE_CLOSING:
            raise failure(answers[0].reply, self.session.server)
        for ordinal, answer in zip(self.work.ordinals, answers[1:], strict=False):
            if answer.code >= 400 and answer.code != SERVICE_CLOSING:
                self.replies[ordinal] = answer.reply

    async def _settle(self, line: bytes, seconds: float) -> None:
        """Bring the session back to where MAIL is possible. What is decided stays so if that fails."""
        try:
            self.session.pipeline.write(line, 1)
            await self.session.pipeline.answer(seconds)
        except SessionBroken:
            self.session.pipeline.abort()

    def _note_recipient(self, ordinal: int, answer: Answer) -> None:
        if self._is_positive(answer):
            self.accepted.append(ordinal)
        else:
            self.replies[ordinal] = answer.reply

    def _is_positive(self, answer: Answer) -> bool:
        if 300 <= answer.code < 400:
            raise self._nonsense(answer)
        if answer.code == SERVICE_CLOSING:
            broken = self.session.pipeline.broken
            raise self._nonsense(answer) if broken is None else broken.error()
        return answer.code < 300

    def _nonsense(self, answer: Answer) -> SessionBroken:
        self.session.pipeline.abort()
        return SessionBroken(BROKEN_REPLY._replace(text=f"{BROKEN_REPLY.text}: {answer.code} out of place"))

    # what goes out

    def _commands(self) -> tuple[bytes, list[bytes]]:
        """Raises PermanentDeliveryError where the next hop does not offer what the message needs."""
        work, offered, server = self.work, self.session.extensions, self.session.server
        envelope = work.envelope
        size_max = offered.get("size", "")
        if size_max.isdecimal() and 0 < int(size_max) < work.size:
            raise PermanentDeliveryError(TOO_LARGE, server)
        data = work.content.data
        is_8bit = envelope.body is BodyType.EIGHT_BIT_MIME if data is None else not (data.isascii() and work.prefix.isascii())
        if is_8bit and "8bitmime" not in offered:
            raise PermanentDeliveryError(NEEDS_8BITMIME, server)
        if envelope.smtputf8 and "smtputf8" not in offered:
            if self._needs_smtputf8():
                raise PermanentDeliveryError(NEEDS_SMTPUTF8, server)
            envelope = replace(envelope, smtputf8=False)
        dsn = "dsn" in offered
        extra = "BODY=8BITMIME" if is_8bit and envelope.body is not BodyType.EIGHT_BIT_MIME else ""
        try:
            mail = format_mail(envelope, work.size if "size" in offered else None, extra=extra, dsn=dsn, body="8bitmime" in offered)
            rcpts = [format_rcpt(envelope.recipients[ordinal - 1], dsn=dsn) for ordinal in work.ordinals]
            return f"MAIL {mail}\r\n".encode(), [f"RCPT {rcpt}\r\n".encode() for rcpt in rcpts]
        except ValueError as error:  # control characters, lone surrogates
            raise PermanentDeliveryError(BAD_ENVELOPE, server) from error

    def _needs_smtputf8(self) -> bool:
        """Whether anything of it is not ASCII. A file's header is not looked at: what its client declared counts."""
        envelope, data = self.work.envelope, self.work.content.data
        if not envelope.sender.isascii() or not all(envelope.recipients[ordinal - 1].address.isascii() for ordinal in self.work.ordinals):
            return True
        return data is None or not data[: data.find(b"\r\n\r\n")].isascii()

    async def _content(self) -> Answer:
        """The content, the dot, and what is said to it."""
        work, pipeline, data = self.work, self.session.pipeline, self.work.content.data
        end = b"" if data is not None else await self._stream()
        with work.handling():
            if data is not None:
                end = stuffed_with_end(work.prefix + data if work.prefix else data, self.session.server)
            if not work.may_end_data():
                pipeline.abort()
                raise LeaseTooShort(f"{self.session.server}: final dot not sent")
            self.dot_sent = True
            pipeline.write(end, 1)
        left = work.reply_seconds()
        answer = await (pipeline.answer(work.limits.dot) if left >= work.limits.dot else self._reply_while_leased(left))
        if 300 <= answer.code < 400:
            raise self._nonsense(answer)
        return answer

    async def _reply_while_leased(self, left: float) -> Answer:
        """To the dot: ten minutes (RFC 5321 4.5.3.2.6), but no longer than the leases last, which peers renew meanwhile. An unknown
        outcome is recorded before another server may deliver. `left`: seconds that they last now."""
        pipeline, work = self.session.pipeline, self.work
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            left = work.reply_seconds()
            if left > 0:
                timer = loop.call_later(left, look)
            else:
                pipeline.give_up()

        timer = loop.call_later(max(left, 0.0), look)
        try:
            return await pipeline.answer(work.limits.dot)
        finally:
            timer.cancel()

    async def _stream(self) -> bytes:
        """All but the end, which is returned."""
        pipeline, handling = self.session.pipeline, self.work.handling
        stuffer = DotStuffer(self.session.server)
        pipeline.write(stuffer.feed(self.work.prefix), 0)
        try:
            with opened(self.work.content) as file:
                while block := await asyncio.to_thread(file.read, BLOCK_OCTETS):
                    with handling():
                        pipeline.write(stuffer.feed(block), 0)
                    await pipeline.drain(self.work.limits.block)
        except OSError as error:
            raise TransientDeliveryError(CONTENT_UNREADABLE, self.session.server) from error
        return stuffer.end()


def opened(content: Content) -> FileIO:
    """The file of a content that is not in memory. To be read by `asyncio.to_thread`: the loop does not wait for disks."""
    assert content.path is not None
    return FileIO(content.path)


def raised(unfinished: Unfinished, server: str) -> DeliveryError:
    """What a broken session is to the caller: always transient, whatever the server said on leaving."""
    return TransientDeliveryError(unfinished.error.reply, server, is_connection=True, dot_sent_unanswered=unfinished.dot_sent)
