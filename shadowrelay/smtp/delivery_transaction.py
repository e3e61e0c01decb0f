"""One SMTP transaction with a next hop, from MAIL to the reply to the content. RFC 5321 4.1.1, 4.5.3.2; RFC 2920.

The rules here:

- Use only extensions that the next hop offers. Change the content by dot-stuffing only. Send the final dot only if `may_end_data`
  returns True. A reply that makes no sense ends the session as a transient failure.
- Each step that writes content runs in `with work.handling()`; no step that waits does.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import field

from shadowrelay.model.message import BodyType
from shadowrelay.model.numbers import decimal
from shadowrelay.model.replies import LeaseTooShort, PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.values import dataclass, replace
from shadowrelay.protocol.fields import format_mail, format_rcpt
from shadowrelay.smtp.client import Opened
from shadowrelay.smtp.client_session import BROKEN_REPLY, SERVICE_CLOSING, RawReply, SessionBroken, failure
from shadowrelay.smtp.data import DotStuffer, stuffed_with_end
from shadowrelay.smtp.outgoing_message import BLOCK_OCTETS, NEEDS_NOTHING, Needs, OutgoingMessage, needs_of_file, opened

RSET = b"RSET\r\n"
TOO_MANY_RECIPIENTS_552, TLS_DEMANDED, LOGIN_REFUSED = 552, 530, 535  # to RCPT; RFC 3207 4; RFC 4954 6
TRANSIENT = re.compile(r"^5\.")

TOO_LARGE = Reply(552, "5.3.4", "The message is larger than the next hop takes")  # RFC 1870 6.1
NEEDS_8BITMIME = Reply(554, "5.6.3", "The content is 8-bit and the next hop does not offer 8BITMIME")  # RFC 6152 3
NEEDS_SMTPUTF8 = Reply(550, "5.6.7", "The message needs SMTPUTF8 and the next hop does not offer it")  # RFC 6531 3.5
BAD_ENVELOPE = Reply(554, "5.5.2", "The envelope cannot be written as SMTP commands")
CONTENT_UNREADABLE = Reply(451, "4.3.0", "The stored content cannot be read")
NOT_FOR_THIS_SERVER = (TOO_LARGE, NEEDS_8BITMIME, NEEDS_SMTPUTF8)  # another one may take it


class Unfinished(Exception):
    """The session broke during a transaction; never leaves this package."""

    def __init__(self, error: SessionBroken, *, dot_sent: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.dot_sent = dot_sent


@dataclass(slots=True)
class DeliveryTransaction:
    """State of one transaction; `replies` by ordinal is filled as replies arrive."""

    session: Opened
    work: OutgoingMessage
    replies: dict[int, Reply] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=list)
    dot_sent: bool = False
    _is_clean: bool = False  # the session can start another MAIL
    _lease_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Fill `replies` for every ordinal.

        Raises: DeliveryError: one outcome for all recipients; the session can be used again.
        LeaseTooShort, Unfinished: the session is ended; `replies` holds the recipients refused until then.
        """
        try:
            self._is_clean = True
            mail, rcpts = self._commands(await self._needs())
            self._is_clean = False
            self.session.messages_count += 1
            announce = self._announce_at_once if "pipelining" in self.session.extensions else self._announce_one_by_one
            if not await announce(mail, rcpts):
                return
            answer = await self._content()
        except SessionBroken as error:
            raise Unfinished(error, dot_sent=self.dot_sent) from error
        except BaseException:
            # A transaction cannot be undone halfway: end the session, unless a refused envelope has left it clean.
            if self.session.pipeline.broken is None and not self._is_clean:
                self.session.pipeline.abort()
            raise
        for ordinal in self.accepted:
            self.replies[ordinal] = answer.reply

    async def _announce_at_once(self, mail: bytes, rcpts: Sequence[bytes]) -> bool:
        """Send MAIL, RCPT and DATA. True: the content may follow. False: no recipient was accepted."""
        pipeline, limits = self.session.pipeline, self.work.limits
        pipeline.write(b"".join((mail, *rcpts, b"DATA\r\n")), len(rcpts) + 2)
        try:
            answers = await pipeline.answers(len(rcpts) + 1, limits.command)
            data = await pipeline.answer(limits.data)
        except SessionBroken:
            self._note_early_refusals(pipeline.taken())
            raise
        if answers[0].code >= 300 and not self._is_positive(answers[0]):
            if data.code == 354:  # it accepts DATA although MAIL was refused
                pipeline.abort()
            self._is_clean = True
            raise failure(self._meaning(answers[0].reply), self.session.server)
        for ordinal, answer in zip(self.work.ordinals, answers[1:], strict=True):
            if answer.code < 300:
                self.accepted.append(ordinal)
            else:
                self._note_recipient(ordinal, answer)
        if self.accepted:
            return data.code == 354 or await self._may_follow(data)
        if data.code == 354:  # RFC 2920 3.1: the client must still end the content
            await self._settle(b".\r\n", limits.dot)
        else:
            await self._settle(RSET, limits.command)
        return False

    async def _announce_one_by_one(self, mail: bytes, rcpts: Sequence[bytes]) -> bool:
        pipeline, limits = self.session.pipeline, self.work.limits
        pipeline.write(mail, 1)
        answer = await pipeline.answer(limits.command)
        if not self._is_positive(answer):
            self._is_clean = True
            raise failure(self._meaning(answer.reply), self.session.server)
        for ordinal, rcpt in zip(self.work.ordinals, rcpts, strict=True):
            pipeline.write(rcpt, 1)
            self._note_recipient(ordinal, await pipeline.answer(limits.command))
        if not self.accepted:
            await self._settle(RSET, limits.command)
            return False
        pipeline.write(b"DATA\r\n", 1)
        return await self._may_follow(await pipeline.answer(limits.data))

    async def _may_follow(self, data: RawReply) -> bool:
        if data.code == 354:
            return True
        if self._is_positive(data):
            raise self._out_of_place(data)
        await self._settle(RSET, self.work.limits.command)
        for ordinal in self.accepted:
            self.replies[ordinal] = data.reply
        if len(self.accepted) == len(self.work.ordinals):
            self._is_clean = True
            raise failure(data.reply, self.session.server)
        return False

    def _note_early_refusals(self, answers: Sequence[RawReply]) -> None:
        """Record refusals that arrived before the server closed the connection, as some do after a 554."""
        if answers and answers[0].code >= 400 and answers[0].code != SERVICE_CLOSING:
            raise failure(self._meaning(answers[0].reply), self.session.server)
        for ordinal, answer in zip(self.work.ordinals, answers[1:], strict=False):
            if answer.code >= 400 and answer.code != SERVICE_CLOSING:
                self.replies[ordinal] = self._meaning(answer.reply, to_rcpt=True)

    async def _settle(self, line: bytes, seconds: float) -> None:
        """Return the session to a state in which MAIL is possible. Recorded replies stay valid if that fails."""
        try:
            self.session.pipeline.write(line, 1)
            answer = await self.session.pipeline.answer(seconds)
        except SessionBroken:
            self.session.pipeline.abort()
        else:
            if answer.code >= 300 and line == RSET:  # the next MAIL would be refused as one too many
                self.session.pipeline.abort()

    def _note_recipient(self, ordinal: int, answer: RawReply) -> None:
        if self._is_positive(answer):
            self.accepted.append(ordinal)
        else:
            self.replies[ordinal] = self._meaning(answer.reply, to_rcpt=True)

    def _meaning(self, reply: Reply, *, to_rcpt: bool = False) -> Reply:
        """Three permanent replies are not: too many recipients in the words of old servers (RFC 5321 4.5.3.1.10), the demand for TLS in a
        session that has none because TLS failed, and that for a login in one that had it: these may be cured."""
        if to_rcpt and reply.code == TOO_MANY_RECIPIENTS_552:
            return Reply(452, TRANSIENT.sub("4.", reply.enhanced), reply.text)
        if reply.code == TLS_DEMANDED and self.session.tls_failure is not None:
            failed = self.session.tls_failure.reply
            return failed._replace(text=f"{failed.text}; without TLS: {reply}")
        if self.session.login and reply.code in (TLS_DEMANDED, LOGIN_REFUSED):
            return Reply(451, "4.7.0", f"The next hop does not know this node's login any more: {reply}")
        return reply

    def _is_positive(self, answer: RawReply) -> bool:
        if 300 <= answer.code < 400:
            raise self._out_of_place(answer)
        if answer.code == SERVICE_CLOSING:
            broken = self.session.pipeline.broken
            raise self._out_of_place(answer) if broken is None else broken.error()
        return answer.code < 300

    def _out_of_place(self, answer: RawReply) -> SessionBroken:
        self.session.pipeline.abort()
        return SessionBroken(BROKEN_REPLY._replace(text=f"{BROKEN_REPLY.text}: {answer.code} out of place"))

    # what goes out

    async def _needs(self) -> Needs:
        """By the octets, not by what a client declared. A file is read only if its declaration needs what is not offered."""
        work, offered = self.work, self.session.extensions
        envelope, content = work.envelope, work.content
        if content.data is not None:
            if content.data.isascii() and work.prefix.isascii():
                return NEEDS_NOTHING
            header = content.data[: content.data.find(b"\r\n\r\n")]
            return Needs(is_8bit=True, has_utf8_header=not (header.isascii() and work.prefix.isascii()))
        declared = Needs(envelope.body is BodyType.EIGHT_BIT_MIME, envelope.smtputf8)
        if (declared.is_8bit and "8bitmime" not in offered) or (declared.has_utf8_header and "smtputf8" not in offered):
            try:
                return await asyncio.to_thread(needs_of_file, content, work.prefix)
            except OSError as error:
                raise TransientDeliveryError(CONTENT_UNREADABLE, self.session.server) from error
        return declared

    def _commands(self, needs: Needs) -> tuple[bytes, list[bytes]]:
        """Raises PermanentDeliveryError if the next hop does not offer an extension that the message needs."""
        work, offered, server = self.work, self.session.extensions, self.session.server
        envelope = work.envelope
        if 0 < (decimal(offered.get("size", "")) or 0) < work.size:  # RFC 1870 3: 0 is no limit
            raise PermanentDeliveryError(TOO_LARGE, server)
        if needs.is_8bit and "8bitmime" not in offered and not work.may_send_8bit:
            raise PermanentDeliveryError(NEEDS_8BITMIME, server)
        if envelope.smtputf8 and "smtputf8" not in offered:
            if needs.has_utf8_header or self._has_utf8_address():
                raise PermanentDeliveryError(NEEDS_SMTPUTF8, server)
            envelope = replace(envelope, smtputf8=False)
        dsn = "dsn" in offered
        extra = "BODY=8BITMIME" if needs.is_8bit and "8bitmime" in offered and envelope.body is not BodyType.EIGHT_BIT_MIME else ""
        try:
            mail = format_mail(envelope, work.size if "size" in offered else None, extra=extra, dsn=dsn, body="8bitmime" in offered)
            rcpts = [f"RCPT {format_rcpt(envelope.recipients[ordinal - 1], dsn=dsn)}\r\n".encode() for ordinal in work.ordinals]
            return f"MAIL {mail}\r\n".encode(), rcpts
        except ValueError as error:  # control characters, lone surrogates
            raise PermanentDeliveryError(BAD_ENVELOPE, server) from error

    def _has_utf8_address(self) -> bool:
        envelope = self.work.envelope
        addresses = [envelope.sender, *(envelope.recipients[ordinal - 1].address for ordinal in self.work.ordinals)]
        return not all(map(str.isascii, addresses))

    async def _content(self) -> RawReply:
        """Send the content and the dot, and return the reply."""
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
        answer = (await pipeline.answers(1, work.limits.dot))[0] if left >= work.limits.dot else await self._reply_while_leased(left)
        if 300 <= answer.code < 400:
            raise self._out_of_place(answer)
        return answer

    async def _reply_while_leased(self, left: float) -> RawReply:
        """The reply to the dot: wait up to ten minutes (RFC 5321 4.5.3.2.6), but no longer than the leases last, which peers renew
        meanwhile: an unknown outcome must be recorded before another server may deliver. `left`: seconds that they last now."""
        self._lease_timer = asyncio.get_running_loop().call_later(max(left, 0.0), self._look_at_leases)
        try:
            return await self.session.pipeline.answer(self.work.limits.dot)
        finally:
            self._lease_timer.cancel()  # it lets go of this transaction, too, and so of the content

    def _look_at_leases(self) -> None:
        left = self.work.reply_seconds()
        if left > 0:
            self._lease_timer = asyncio.get_running_loop().call_later(left, self._look_at_leases)
        else:
            self.session.pipeline.give_up()

    async def _stream(self) -> bytes:
        """Send all but the end of the content, which is returned."""
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


def raised(unfinished: Unfinished, server: str) -> TransientDeliveryError:
    """The delivery error for a broken session: always transient, whatever the server's last reply was."""
    return TransientDeliveryError(unfinished.error.reply, server, is_connection=True, dot_sent_unanswered=unfinished.dot_sent)
