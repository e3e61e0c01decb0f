"""One SMTP transaction with a next hop, from MAIL to the reply to the content. RFC 5321 4.1.1, 4.5.3.2; RFC 2920, RFC 3030.

The rules here:

- Where a reply more, or one that is none to its command, shows that replies and commands do not match, nothing is delivered or returned
  by any of this transaction: as far as that is seen before its end is recorded.
- Use only extensions that the next hop offers. Change the content by dot-stuffing only, and binary content as `protocol.conversion` does.
- Send the final dot, or the last chunk, only if `may_end_data` returns True. A reply that makes no sense ends the session as a transient
  failure.
- Where CHUNKING is offered the content goes by BDAT, whose octets are counted: no dot is stuffed, and nothing in it can end it.
- Each step that writes content runs in `with work.handling()`; no step that waits does.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache

from shadowrelay.model.message import BodyType
from shadowrelay.model.numbers import decimal
from shadowrelay.model.replies import LeaseTooShort, PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.values import dataclass, replace
from shadowrelay.protocol.fields import format_mail, format_rcpt
from shadowrelay.protocol.line_ends import LineEnds
from shadowrelay.smtp import next_hop_rules as rules
from shadowrelay.smtp.client import Opened
from shadowrelay.smtp.client_session import BROKEN_REPLY, SERVICE_CLOSING, RawReply, SessionBroken, failure
from shadowrelay.smtp.data import BARE_LINE_END, DotStuffer, check_line_ends, stuffed_with_end, whole_chunk
from shadowrelay.smtp.outgoing_message import BLOCK_OCTETS, CONTENT_UNREADABLE, Blocks, Form, OutgoingMessage, form_for

RSET = b"RSET\r\n"
SETTLE_SECONDS = 5.0  # where all is decided but whether the session can be used again
TLS_DEMANDED, LOGIN_REFUSED = 530, 535  # RFC 3207 4; RFC 4954 6

TOO_LARGE = Reply(552, "5.3.4", "The message is larger than the next hop takes")  # RFC 1870 6.1
NEEDS_8BITMIME = Reply(554, "5.6.3", "The content is 8-bit and the next hop does not offer 8BITMIME")  # RFC 6152 3
NEEDS_SMTPUTF8 = Reply(550, "5.6.7", "The message needs SMTPUTF8 and the next hop does not offer it")  # RFC 6531 3.5
BAD_ENVELOPE = Reply(554, "5.5.2", "The envelope cannot be written as SMTP commands")
BDAT_UNKNOWN = (500, 501, 502, 503, 504)  # to BDAT where RCPT was accepted: filters on the way take it for something else
_decimal = lru_cache(64)(decimal)  # next hops name the same sizes for every message
NOTHING_ASKED = RawReply(0, ("",))
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
    is_chunked: bool = False
    is_bdat_unknown: bool = False  # the server offers CHUNKING, and knows no BDAT
    is_out_of_step: bool = False  # the server said so: no other transaction
    _is_clean: bool = False  # the session can start another MAIL
    _lease_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Fill `replies` for every ordinal.

        Raises: DeliveryError: one outcome for all recipients; the session can be used again.
        LeaseTooShort, Unfinished: the session is ended; `replies` holds the recipients refused until then.
        """
        try:
            self._is_clean = True
            form = await form_for(self.work, self.session.extensions, self.session.server)
            self.is_chunked = is_chunked = self.work.may_send_chunks and "chunking" in self.session.extensions
            mail, rcpts = self._commands(form)
            self._is_clean = False
            self.session.messages_count += 1
            announce = self._announce_at_once if "pipelining" in self.session.extensions else self._announce_one_by_one
            may_follow = await announce(mail, rcpts, is_chunked=is_chunked)
            self._require_step()
            if not may_follow:
                return
            answer = await (self._chunks(form) if is_chunked else self._content(form))
            if answer is None:
                limit, left = self.work.limits.dot, self.work.reply_seconds()
                answer = (await self.session.pipeline.answers(1, limit))[0] if left >= limit else await self._reply_while_leased(left)
            pipeline = self.session.pipeline
            is_denied = answer.code < 300 and pipeline.was_denied
            if is_denied or answer.code in rules.OUT_OF_PLACE or pipeline.surplus - {answer.code // 100}:
                raise self._out_of_place(answer)
            self.is_bdat_unknown = is_chunked and answer.code in BDAT_UNKNOWN
        except SessionBroken as error:
            if self.session.pipeline.surplus:
                self.replies.clear()
            raise Unfinished(error, dot_sent=self.dot_sent) from error
        except BaseException:
            # A transaction cannot be undone halfway: end the session, unless a refused envelope has left it clean.
            if self.session.pipeline.broken is None and not self._is_clean:
                self.session.pipeline.abort()
            raise
        reply = answer.reply if answer.code < 500 else self._meaning(answer.reply, rules.ReplyTo.CONTENT)
        for ordinal in self.accepted:
            self.replies[ordinal] = reply

    async def _announce_at_once(self, mail: bytes, rcpts: Sequence[bytes], *, is_chunked: bool) -> bool:
        """Send MAIL, RCPT and DATA (not if `is_chunked`). True: the content may follow. False: no recipient was accepted."""
        pipeline, limits = self.session.pipeline, self.work.limits
        pipeline.write(b"".join((mail, *rcpts, b"" if is_chunked else b"DATA\r\n")), len(rcpts) + (1 if is_chunked else 2))
        answers: Sequence[RawReply] = ()
        try:
            answers = await pipeline.answers(len(rcpts) + 1, limits.command)
            is_decided = answers[0].code >= 400 or all(answer.code >= 400 for answer in answers[1:])
            data = NOTHING_ASKED if is_chunked else await pipeline.answer(min(limits.data, SETTLE_SECONDS) if is_decided else limits.data)
        except SessionBroken:
            self._note_early_refusals(answers or pipeline.taken(), mail, rcpts)
            if len(self.replies) == len(self.work.ordinals):
                return False
            raise
        self._require_step()
        if 200 <= data.code < 300:
            raise self._out_of_place(data)
        if answers[0].code >= 300 and not self._is_positive(answers[0]):
            if _may_go_on(data):  # it accepts DATA although MAIL was refused
                pipeline.abort()
            self._is_clean = True
            raise failure(self._meaning(answers[0].reply, rules.ReplyTo.MAIL, mail), self.session.server)
        for ordinal, rcpt, answer in zip(self.work.ordinals, rcpts, answers[1:], strict=True):
            if answer.code == 250:
                self.accepted.append(ordinal)
            else:
                self._note_recipient(ordinal, answer, rcpt)
        if self.accepted:
            return is_chunked or await self._may_follow(data)
        if _may_go_on(data):  # RFC 2920 3.1: the client must still end the content
            await self._settle(b".\r\n")
        else:
            await self._settle(RSET)
        return False

    async def _announce_one_by_one(self, mail: bytes, rcpts: Sequence[bytes], *, is_chunked: bool) -> bool:
        pipeline, limits = self.session.pipeline, self.work.limits
        pipeline.write(mail, 1)
        answer = await pipeline.answer(limits.command)
        self._require_step()
        if not self._is_positive(answer):
            self._is_clean = True
            raise failure(self._meaning(answer.reply, rules.ReplyTo.MAIL, mail), self.session.server)
        for ordinal, rcpt in zip(self.work.ordinals, rcpts, strict=True):
            pipeline.write(rcpt, 1)
            self._note_recipient(ordinal, await pipeline.answer(limits.command), rcpt)
        if not self.accepted:
            await self._settle(RSET)
            return False
        if is_chunked:
            return True
        pipeline.write(b"DATA\r\n", 1)
        return await self._may_follow(await pipeline.answer(limits.data))

    async def _may_follow(self, data: RawReply) -> bool:
        if _may_go_on(data):
            return True
        self._require_step()
        if self._is_positive(data):
            raise self._out_of_place(data)
        await self._settle(RSET)
        self._require_step()
        reply = self._meaning(data.reply, rules.ReplyTo.DATA)
        for ordinal in self.accepted:
            self.replies[ordinal] = reply
        if len(self.accepted) == len(self.work.ordinals):
            self._is_clean = True
            raise failure(reply, self.session.server)
        return False

    def _note_early_refusals(self, answers: Sequence[RawReply], mail: bytes, rcpts: Sequence[bytes]) -> None:
        """Record refusals that arrived before the server closed the connection, as some do after a 554."""
        if answers and answers[0].code >= 400 and answers[0].code != SERVICE_CLOSING:
            raise failure(self._meaning(answers[0].reply, rules.ReplyTo.MAIL, mail), self.session.server)
        for ordinal, rcpt, answer in zip(self.work.ordinals, rcpts, answers[1:], strict=False):
            if answer.code >= 400 and answer.code != SERVICE_CLOSING:
                self.replies[ordinal] = self._meaning(answer.reply, rules.ReplyTo.RCPT, rcpt)

    async def _settle(self, line: bytes) -> None:
        """Return the session to a state in which MAIL is possible. Recorded replies stay valid if that fails: nobody waits long for it.

        Raises: SessionBroken if the reply shows that they belong to other commands."""
        try:
            self.session.pipeline.write(line, 1)
            answer = await self.session.pipeline.answer(min(self.work.limits.command, SETTLE_SECONDS))
        except SessionBroken:
            self.session.pipeline.abort()
        else:
            if 300 <= answer.code < 400 and line == RSET:  # that to DATA: what was taken for it was none
                raise self._out_of_place(answer)
            if answer.code >= 300 and line == RSET:  # the next MAIL would be refused as one too many
                self.session.pipeline.abort()

    def _note_recipient(self, ordinal: int, answer: RawReply, rcpt: bytes) -> None:
        if self._is_positive(answer):
            self.accepted.append(ordinal)
        else:
            self.replies[ordinal] = self._meaning(answer.reply, rules.ReplyTo.RCPT, rcpt)

    def _meaning(self, reply: Reply, step: rules.ReplyTo, line: bytes = b"") -> Reply:
        """Some permanent replies are not, and these may be cured: what `next_hop_rules.meant` knows, the demand for TLS in a session that
        has none because TLS failed or EHLO was put off, and that for a login in one that had it."""
        if reply.code == TLS_DEMANDED and self.session.tls_failure is not None:
            failed = self.session.tls_failure.reply
            return failed._replace(text=f"{failed.text}; without TLS: {reply}")
        if reply.code == TLS_DEMANDED and self.session.put_off is not None:
            return self.session.put_off
        if self.session.login and reply.code in (TLS_DEMANDED, LOGIN_REFUSED):
            return Reply(451, "4.7.0", f"The next hop does not know this node's login any more: {reply}")
        self.is_out_of_step = self.is_out_of_step or rules.is_out_of_step(reply, step, len(line))
        return rules.meant(reply, step, len(line))

    def _is_positive(self, answer: RawReply) -> bool:
        if answer.code in rules.OUT_OF_PLACE:
            raise self._out_of_place(answer)
        if answer.code == SERVICE_CLOSING:
            broken = self.session.pipeline.broken
            raise self._out_of_place(answer) if broken is None else broken.error()
        return answer.code < 300

    def _require_step(self) -> None:
        """Raises: SessionBroken if more replies came than were owed: each may belong to another command."""
        pipeline = self.session.pipeline
        if pipeline.surplus and pipeline.broken is not None:
            self.replies.clear()
            raise pipeline.broken.error()

    def _out_of_place(self, answer: RawReply) -> SessionBroken:
        self.session.pipeline.abort()
        self.replies.clear()  # those before it may belong to other recipients
        return SessionBroken(BROKEN_REPLY._replace(text=f"{BROKEN_REPLY.text}: {answer.code} out of place"))

    # what goes out

    def _commands(self, form: Form) -> tuple[bytes, list[bytes]]:
        """Raises PermanentDeliveryError if the next hop does not offer an extension that the message needs."""
        work, offered, server = self.work, self.session.extensions, self.session.server
        envelope, needs = work.envelope, form.needs
        if 0 < (_decimal(offered.get("size", "")) or 0) < form.size:  # RFC 1870 3: 0 is no limit
            raise PermanentDeliveryError(TOO_LARGE, server)
        if needs.is_8bit and "8bitmime" not in offered and not (work.may_send_8bit or needs.is_binary):
            raise PermanentDeliveryError(NEEDS_8BITMIME, server)
        if envelope.smtputf8 and "smtputf8" not in offered:
            if needs.has_utf8_header or self._has_utf8_address():
                raise PermanentDeliveryError(NEEDS_SMTPUTF8, server)
            envelope = replace(envelope, smtputf8=False)
        if envelope.body is BodyType.BINARY_MIME and not needs.is_binary:
            envelope = replace(envelope, body=BodyType.EIGHT_BIT_MIME if needs.is_8bit else BodyType.SEVEN_BIT)
        dsn, has_body = "dsn" in offered, "8bitmime" in offered or needs.is_binary
        extra = "BODY=8BITMIME" if needs.is_8bit and has_body and envelope.body is BodyType.SEVEN_BIT else ""
        try:
            mail = format_mail(envelope, form.size if "size" in offered else None, extra=extra, dsn=dsn, body=has_body)
            rcpts = [f"RCPT {format_rcpt(envelope.recipients[ordinal - 1], dsn=dsn)}\r\n".encode() for ordinal in work.ordinals]
            return f"MAIL {mail}\r\n".encode(), rcpts
        except ValueError as error:  # control characters, lone surrogates
            raise PermanentDeliveryError(BAD_ENVELOPE, server) from error

    def _has_utf8_address(self) -> bool:
        envelope = self.work.envelope
        addresses = [envelope.sender, *(envelope.recipients[ordinal - 1].address for ordinal in self.work.ordinals)]
        return not all(map(str.isascii, addresses))

    async def _content(self, form: Form) -> RawReply | None:
        """Send the content and the dot. None: its reply is to come."""
        work, data = self.work, form.data
        end = b"" if data is not None else await self._stream(form)
        with work.handling():
            if data is not None:
                end = stuffed_with_end(data if form.is_checked else self._checked(data))
            self._end(end, 1)
        return None

    def _checked(self, data: bytes) -> bytes:
        """The whole content with the lines before it. Raises: PermanentDeliveryError for a bare CR or LF."""
        data = self.work.prefix + data
        check_line_ends(data, self.session.server)
        return data

    def _end(self, octets: bytes, replies_count: int) -> None:
        """Write the end of the content: from here on the server may have the message. Raises: LeaseTooShort."""
        if not self.work.may_end_data():
            self.session.pipeline.abort()
            raise LeaseTooShort(f"{self.session.server}: final dot not sent")
        if (broken := self.session.pipeline.broken) is not None:
            raise broken.error()  # what was not sent has no unknown outcome
        self.dot_sent = True
        self.session.pipeline.was_denied = False
        self.session.pipeline.write(octets, replies_count)

    async def _chunks(self, form: Form) -> RawReply | None:
        """Send the content by BDAT, and return the reply to the first chunk that is refused. None: that to the last one is to come."""
        work, pipeline = self.work, self.session.pipeline
        if form.data is not None:
            is_binary = form.needs.is_binary
            with work.handling():
                data = work.prefix + form.data if is_binary or form.is_checked else self._checked(form.data)
                self._end(whole_chunk(data, is_binary=is_binary), 1)
            return None
        sent_count, chunk = 0, work.prefix
        line_ends = LineEnds()
        try:
            with Blocks(work, form) as blocks:
                while block := await blocks.read():
                    if len(chunk) >= BLOCK_OCTETS:  # the last chunk is sent by itself, when it is known to be the last one
                        with work.handling():
                            pipeline.write(b"BDAT %d\r\n" % len(chunk) + chunk, 1)
                        sent_count, chunk = sent_count + 1, b""
                        await pipeline.drain(work.limits.block)
                        if pipeline.has_refusal():
                            break
                    if not (form.needs.is_binary or form.is_checked):
                        line_ends.take(block)
                    chunk += block
        except OSError as error:
            raise TransientDeliveryError(CONTENT_UNREADABLE, self.session.server) from error
        if sent_count and (refusal := await self._refusal_of_chunks(sent_count)) is not None:
            return refusal
        if not line_ends.are_right:  # known only now: where a chunk was refused, the rest was not read
            raise PermanentDeliveryError(BARE_LINE_END, self.session.server)
        with work.handling():
            self._end(whole_chunk(chunk, is_binary=form.needs.is_binary), 1)
        return None

    async def _refusal_of_chunks(self, count: int) -> RawReply | None:
        """The first refusal among the replies to so many chunks; the session can be used again. RFC 3030 2: nothing is taken then."""
        answers = await self.session.pipeline.answers(count, self.work.limits.block)
        refusal = next((answer for answer in answers if not self._is_positive(answer)), None)
        if refusal is not None:
            await self._settle(RSET)
        return refusal

    async def _stream(self, form: Form) -> bytes:
        """Send all but the end of the content, which is returned."""
        pipeline, handling = self.session.pipeline, self.work.handling
        stuffer = DotStuffer(self.session.server, is_checked=form.is_checked)
        pipeline.write(stuffer.feed(self.work.prefix), 0)
        try:
            with Blocks(self.work, form) as blocks:
                while block := await blocks.read():
                    with handling():
                        pipeline.write(stuffer.feed(block), 0)
                    await pipeline.drain(self.work.limits.block)
        except OSError as error:
            raise TransientDeliveryError(CONTENT_UNREADABLE, self.session.server) from error
        return stuffer.end()

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


def _may_go_on(data: RawReply) -> bool:
    """Whether the content may follow: 354, or any other code that means "go on". RFC 5321 4.2.1"""
    return 300 <= data.code < 400


def raised(unfinished: Unfinished, server: str) -> TransientDeliveryError:
    """The delivery error for a broken session: always transient, whatever the server's last reply was."""
    return TransientDeliveryError(unfinished.error.reply, server, is_connection=True, dot_sent_unanswered=unfinished.dot_sent)
