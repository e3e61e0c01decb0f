"""Delivers to next hops: SMTP transactions over pooled sessions. Implements `ports.Deliverer`. RFC 5321 4.1.1, 4.5.3.2; RFC 2920.

The rules here:

- Use only extensions that the next hop offers. Change the content by dot-stuffing only. Send the final dot only if `may_end_data`
  returns True. A reply that makes no sense ends the session as a transient failure.
- After a server that takes nothing for now, try the next one (`next_hop_rules`); replace a kept session if it turns out stale before its
  first reply; repeat nothing after the final dot.
- Read content only when a session is open. Each step that writes it runs in `with work.handling()`; no step that waits does.
"""

import asyncio
import contextlib
import logging
import random
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from datetime import timedelta
from functools import partial
from io import FileIO
from math import inf
from pathlib import Path
from typing import NamedTuple

import structlog

from shadowrelay.model.counts import SessionCounts
from shadowrelay.model.message import BodyType, Content, Envelope
from shadowrelay.model.numbers import decimal
from shadowrelay.model.queue import NextHopServer
from shadowrelay.model.replies import DeliveryError, LeaseTooShort, PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass, replace
from shadowrelay.ports import DeliveryJob, DeliveryReport
from shadowrelay.protocol.fields import format_mail, format_rcpt
from shadowrelay.smtp import next_hop_rules as rules
from shadowrelay.smtp.client import ConnectOptions, Opened, TlsUse, open_session
from shadowrelay.smtp.client_session import BROKEN_REPLY, CONNECTION_FAILED, SERVICE_CLOSING, RawReply, SessionBroken, failure
from shadowrelay.smtp.data import DotStuffer, stuffed_with_end
from shadowrelay.smtp.host_names import ADDRESS_SECONDS, HostNames
from shadowrelay.smtp.mta_sts import MtaSts
from shadowrelay.smtp.next_hop_questions import NextHopQuestions
from shadowrelay.smtp.next_hop_sessions import ADDRESSES_MAX, AddressSessions, NoSession, Opening, Sessions
from shadowrelay.smtp.next_hops import NextHopHost, NextHops
from shadowrelay.smtp.resolver import MAIL_LOOP, NO_USABLE_EXCHANGE, Exchange, MailResolver
from shadowrelay.smtp.route_sessions import RouteSessions
from shadowrelay.smtp.whose_mail import name_client

COMMAND_SECONDS = 300.0  # MAIL and RCPT. RFC 5321 4.5.3.2.2, 4.5.3.2.3
DATA_SECONDS = 120.0  # RFC 5321 4.5.3.2.4
BLOCK_SECONDS = 180.0  # RFC 5321 4.5.3.2.5
DOT_SECONDS = 600.0  # RFC 5321 4.5.3.2.6; a shorter time causes duplicates
BLOCK_OCTETS = 256 * 1024
RSET = b"RSET\r\n"
OUT_OF_ORDER = 503
TOO_MANY_RECIPIENTS_552, TLS_DEMANDED, LOGIN_REFUSED = 552, 530, 535  # to RCPT; RFC 3207 4; RFC 4954 6
TRANSIENT = re.compile(r"^5\.")

TOO_LARGE = Reply(552, "5.3.4", "The message is larger than the next hop takes")  # RFC 1870 6.1
NEEDS_8BITMIME = Reply(554, "5.6.3", "The content is 8-bit and the next hop does not offer 8BITMIME")  # RFC 6152 3
NEEDS_SMTPUTF8 = Reply(550, "5.6.7", "The message needs SMTPUTF8 and the next hop does not offer it")  # RFC 6531 3.5
BAD_ENVELOPE = Reply(554, "5.5.2", "The envelope cannot be written as SMTP commands")
DECIDED_HERE = (TOO_LARGE, NEEDS_8BITMIME, NEEDS_SMTPUTF8, MAIL_LOOP)
CONTENT_UNREADABLE = Reply(451, "4.3.0", "The stored content cannot be read")


@dataclass(frozen=True, slots=True)
class Limits:
    """Units: seconds for each awaited reply. Shorter values are for tests."""

    command: float = COMMAND_SECONDS
    data: float = DATA_SECONDS
    block: float = BLOCK_SECONDS
    dot: float = DOT_SECONDS

    def within(self, seconds: float) -> "Limits":
        """None longer than `seconds`."""
        return Limits(*(min(each, seconds) for each in (self.command, self.data, self.block, self.dot)))


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """The message to deliver. `ordinals` ascending, not empty; `prefix` whole header lines or empty."""

    envelope: Envelope
    ordinals: tuple[int, ...]
    content: Content
    prefix: bytes
    may_end_data: Callable[[], bool]
    limits: Limits = Limits()
    reply_seconds: Callable[[], float] = lambda: inf
    handling: Callable[[], AbstractContextManager[None]] = nullcontext  # see `store.ledger.Ledger.handling`
    may_send_8bit: bool = False  # also to a server that does not offer 8BITMIME

    @property
    def size(self) -> int:
        """Octets for SIZE: no stuffing, no final dot. RFC 1870 5."""
        return len(self.prefix) + self.content.size


class Needs(NamedTuple):
    """What content needs of a next hop: 8BITMIME, SMTPUTF8."""

    is_8bit: bool
    has_utf8_header: bool


NEEDS_NOTHING = Needs(is_8bit=False, has_utf8_header=False)


def needs_of_file(content: Content, prefix: bytes) -> Needs:
    """Reads until the answer is known. A header that does not end in the first block counts as that long. Raises: OSError."""
    with opened(content) as file:
        block = file.read(BLOCK_OCTETS)
        end = 0 if block.startswith(b"\r\n") else block.find(b"\r\n\r\n")
        has_utf8_header = not (prefix + (block if end < 0 else block[:end])).isascii()
        is_8bit = has_utf8_header
        while block and not is_8bit:
            is_8bit = not block.isascii()
            block = file.read(BLOCK_OCTETS)
    return Needs(is_8bit, has_utf8_header)


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


def _end_if_silent(session: Opened, answers_count: int) -> None:
    """End a session in which no reply has come since there were so many."""
    if session.pipeline.answers_count == answers_count:
        session.pipeline.give_up()


def opened(content: Content) -> FileIO:
    """Open content that is in a file. Read it by `asyncio.to_thread`, so that the loop does not wait for the disk."""
    assert content.path is not None
    return FileIO(content.path)


def raised(unfinished: Unfinished, server: str) -> TransientDeliveryError:
    """The delivery error for a broken session: always transient, whatever the server's last reply was."""
    return TransientDeliveryError(unfinished.error.reply, server, is_connection=True, dot_sent_unanswered=unfinished.dot_sent)


MESSAGES_PER_SESSION_MAX = 100  # some servers defer after about as many
SMTP_PORT = 25
UNUSED_SECONDS = 2.0
RESTED_SECONDS = 0.5  # a session that was idle for so long may be dead without our knowing
FIRST_REPLY_SECONDS = 10.0  # then it counts as dead, and another one is opened
REPLACEMENTS_MAX = 3  # sessions that an attempt replaces at one address
PATIENCE_SECONDS = 30.0  # for a greeting or a free session where there is another address
SHOWN_MAX = 40  # servers of a next hop, in listings
ATTEMPT_SECONDS = 600.0  # no further server gets the message after that


async def no_peer(address: HostPort) -> Opened | None:
    """For a node without peers."""
    return None


@dataclass(slots=True)
class ServersInTurn:
    """An attempt from server to server. `left`: recipients that a further server may get; `refused`: by replies that are final.

    `result`: what the last server did that answered, else what the last one did; `impatient`: the first one of which nothing is known,
    because it was not waited for; `unfit`: why, by our own decision, the last server of which that holds got nothing, and its name.
    """

    job: DeliveryJob
    began_at: float
    left: tuple[int, ...]
    refused: dict[int, Reply] = field(default_factory=dict)
    result: DeliveryReport | TransientDeliveryError | None = None
    answers_count: int = 0
    impatient: NextHopHost | None = None
    unfit: tuple[Reply, str] | None = None

    @property
    def leads_back(self) -> bool:
        """A server was this node: only better ones may get the mail. RFC 5321 5.1."""
        return self.unfit is not None and self.unfit[0] is MAIL_LOOP

    def is_over(self, target: NextHopHost, result: DeliveryReport | TransientDeliveryError | None) -> bool:
        """Note what a server did; whether no other server may be tried. See the table of `next_hop_rules`."""
        if result is None:
            self.impatient = self.impatient or target
            return False
        has_answered = isinstance(result, DeliveryReport) or not result.is_unreachable
        self.answers_count += has_answered
        if has_answered or not self.answers_count:
            self.result = result
        if result.dot_sent_unanswered:
            return True
        if not isinstance(result, DeliveryReport):
            return False
        if not rules.may_move_on(result.replies.values()):
            return True
        self.refused |= {ordinal: reply for ordinal, reply in result.replies.items() if reply.is_permanent}
        self.left = tuple([ordinal for ordinal in self.left if ordinal not in self.refused])
        return False

    def may_go_on(self) -> bool:
        """Whether time and leases allow a further server, after one that answered."""
        if not self.answers_count:
            return True
        late = asyncio.get_running_loop().time() - self.began_at > ATTEMPT_SECONDS
        return not late and self.answers_count < rules.SERVERS_MAX and self.job.may_end_data()

    def outcome(self) -> DeliveryReport:
        """The report of all servers. Raises what the last one did if it is the same for all recipients."""
        result = self.result
        if result is None and self.unfit is not None:
            raise PermanentDeliveryError(*self.unfit)
        if result is None:
            raise TransientDeliveryError(NO_USABLE_EXCHANGE, self.job.destination.key, is_unreachable=True)
        if isinstance(result, DeliveryReport):
            return replace(result, replies=self.refused | dict(result.replies)) if self.refused else result
        if self.refused:
            replies = self.refused | dict.fromkeys(self.left, result.reply)
            return DeliveryReport(result.server, replies, result.dot_sent_unanswered)
        try:
            raise result
        finally:
            del result  # see the end of `deliver`


class SmtpDeliverer:
    """See `ports.Deliverer`. `to_peer` opens the session if the next hop at this name and port is a peer: XQDISCARD is asked in every
    session between nodes. If that is not possible, mail is delivered to it as to any other server. Without `names`, names of hosts are
    resolved by `ConnectOptions.dial`. `state_directory`: for what token endpoints give this node to keep.
    `policies`: of domains, which deliveries by MX obey."""

    def __init__(
        self,
        options: ConnectOptions,
        resolver: MailResolver,
        *,
        concurrency_per_destination: int,
        connection_inactivity_timeout: timedelta,
        sends_8bit: bool = True,
        is_own: Callable[[HostPort], bool] = lambda host: False,
        unused_session_timeout: timedelta = timedelta(seconds=UNUSED_SECONDS),
        limits: Limits = Limits(),  # noqa: B008 - immutable
        mx_port: int = SMTP_PORT,
        shuffle: Callable[[list[Exchange]], None] = random.shuffle,
        to_peer: Callable[[HostPort], Awaitable[Opened | None]] = no_peer,
        names: HostNames | None = None,
        sessions_max: float = inf,
        state_directory: Path | None = None,
        policies: MtaSts | None = None,
    ) -> None:
        self._policies = policies
        self._connect_options = options
        self._to_peer = to_peer
        inactivity_seconds = connection_inactivity_timeout.total_seconds()
        unused_seconds = min(unused_session_timeout.total_seconds(), inactivity_seconds)
        self._route_sessions = RouteSessions(state_directory)
        is_by_name = options.tls is TlsUse.REQUIRED
        self._sessions = Sessions(unused_seconds, options.connect_seconds, is_by_name=is_by_name, sessions_max=sessions_max)
        self._next_hops = NextHops(resolver, self._sessions, mx_port, shuffle, names, is_own, policies)
        self.questions = NextHopQuestions(self._next_hops, self._sessions, self._open, concurrency_per_destination)
        self._sends_8bit = sends_8bit
        self._concurrency = concurrency_per_destination
        self._limits = limits.within(inactivity_seconds)
        self._log = structlog.get_logger().bind()
        self._tried: dict[str, dict[NextHopHost, None]] = {}  # by next hop, for listings
        self._is_closed = False

    async def deliver(self, job: DeliveryJob) -> DeliveryReport:
        """See `ports.Deliverer`. Writes one line to the operator log."""
        if self._is_closed:
            raise TransientDeliveryError(CONNECTION_FAILED, job.destination.key, is_unreachable=True)
        course = ServersInTurn(job, asyncio.get_running_loop().time(), tuple(sorted(job.ordinals)))
        report: DeliveryReport | None = None
        error: BaseException | None = None
        try:
            first = self._next_hops.at_hand(job.destination)
            if first is None or not await self._is_over(first, course):
                await self._try_others(course, first)
            report = course.outcome()
            return report
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._log_attempt(job, course.began_at, report, error)
            course.result = error = None  # break the cycle from frame to exception, which would keep the attempt's content alive

    async def _try_others(self, course: ServersInTurn, tried: NextHopHost | None) -> None:
        """Try server after server. Raises what is final for all recipients, except where some are refused already."""
        async with contextlib.aclosing(self._next_hops.targets(course.job.destination, course.job.reach)) as targets:
            async for target in targets:
                if course.leads_back or not course.may_go_on():
                    break
                if target == tried or (course.result is not None and self._next_hops.is_skipped(target)):
                    continue
                if await self._is_over(target, course):
                    return
        if course.impatient is not None and not course.answers_count and course.may_go_on():
            await self._is_over(course.impatient, course, is_patient=True)

    async def _is_over(self, target: NextHopHost, course: ServersInTurn, *, is_patient: bool = False) -> bool:
        """Try this server; whether no other one may be tried. What this node decides about a server, which lacks an extension or leads
        back here, is final only if there is no other one."""
        try:
            return course.is_over(target, await self._try(target, course, is_patient=is_patient))
        except PermanentDeliveryError as error:
            if error.reply not in DECIDED_HERE:
                raise
            course.unfit = error.reply, error.server
            return False

    def servers(self, key: str) -> Sequence[NextHopServer]:
        """See `ports.Deliverer`."""
        now = asyncio.get_running_loop().time()
        return [one for target in self._tried.get(key, ()) if (one := self._sessions.shown(target, str(target), now)) is not None]

    @property
    def counts(self) -> SessionCounts:
        """What sessions were opened, and what did not become one."""
        return self._route_sessions.counts

    @property
    def hung_reads_count(self) -> int:
        """Reads of the routes' files that hang."""
        return self._route_sessions.hung_reads_count

    @property
    def failing_logins_count(self) -> int:
        """Logins that are refused, or without a secret or token, now."""
        return self._route_sessions.failing_logins_count

    def reload(self) -> None:
        """Read the files of the routes again for the sessions that are opened from now on."""
        self._route_sessions.reload()

    async def close(self) -> None:
        """End all sessions; running deliveries get TransientDeliveryError."""
        self._is_closed = True
        self._route_sessions.close()
        if self._policies is not None:
            await self._policies.close()
        await self._sessions.close()

    async def _try(
        self, target: NextHopHost, course: ServersInTurn, *, is_patient: bool = False
    ) -> DeliveryReport | TransientDeliveryError | None:
        """Run a transaction with this server; None if there was no session in `PATIENCE_SECONDS` and there is another server, unless
        `is_patient`. A kept session that turns out stale, or at the end of what the server takes in a session, is replaced."""
        if self._is_closed:
            return TransientDeliveryError(CONNECTION_FAILED, str(target), is_unreachable=True)
        loop, address, destination = asyncio.get_running_loop(), self._sessions.at(target), course.job.destination
        if target not in (tried := self._tried.get(destination.key, ())):
            self._note_tried(destination.key, {target: None, **dict.fromkeys(tried)})
        for replacements_left in range(REPLACEMENTS_MAX, -1, -1):
            taken = address.take()
            is_rested = taken is not None and loop.time() - taken[0] > RESTED_SECONDS
            if taken is not None:
                session = taken[1]
            else:
                has_others = target.is_one_of_several or len(destination.hosts) > 1
                patience = PATIENCE_SECONDS if has_others and not is_patient else None
                got = await address.wait(partial(self._open, target), destination.concurrency or self._concurrency, patience)
                if isinstance(got, NoSession):
                    if got.is_patience:
                        return None
                    is_limited = got.is_refusal and loop.time() - address.served_at < rules.LIMITED_SECONDS
                    return TransientDeliveryError(got.reply, str(target), is_unreachable=True, is_limited=is_limited)
                session = got
            if destination.domain and session.called == self._connect_options.own_name.lower():
                address.give_back(session, is_used_up=True)  # a load balancer or a translated address led back here
                raise PermanentDeliveryError(MAIL_LOOP, session.server)
            if not session.server.startswith(f"{target.name} ["):  # opened for another name of this address
                session.server = f"{target.name} {session.server.partition(' ')[2]}"
            timer = loop.call_later(FIRST_REPLY_SECONDS, _end_if_silent, session, session.pipeline.answers_count) if is_rested else None
            try:
                result = await self._transact(address, session, course, may_replace=replacements_left > 0)
            finally:
                if timer is not None:
                    timer.cancel()
            if result is not None:
                return result
        raise AssertionError("the last session is not replaced")

    async def _transact(
        self, address: AddressSessions, session: Opened, course: ServersInTurn, *, may_replace: bool
    ) -> DeliveryReport | TransientDeliveryError | None:
        """Run the transaction in this session, and give it back or end it; None if it is to be replaced by another one."""
        job, is_fresh = course.job, session.messages_count == 0
        if job.destination.xclient or job.destination.xforward:
            try:
                await name_client(session, job.envelope, job.destination, self._connect_options.own_name, self._limits.command)
            except SessionBroken as error:
                address.drop(session)
                return None if may_replace and not is_fresh else raised(Unfinished(error, dot_sent=False), session.server)
            except TransientDeliveryError as error:
                address.give_back(session, is_used_up=True)
                error.__traceback__ = None
                return error
            except BaseException:
                address.drop(session)
                raise
        try:
            content = await job.content()
        except BaseException:
            address.give_back(session, is_used_up=session.is_of_client)
            raise
        work = OutgoingMessage(
            job.envelope,
            course.left,
            content,
            job.prefix,
            job.may_end_data,
            self._limits,
            job.reply_seconds,
            job.handling,
            may_send_8bit=job.destination.inside_boundary or self._sends_8bit,
        )
        answers_before = session.pipeline.answers_count
        transaction = DeliveryTransaction(session, work)
        try:
            await transaction.run()
        except Unfinished as error:
            address.drop(session)
            answers_count = session.pipeline.answers_count - answers_before
            is_first_word = answers_count == 0 or (answers_count == 1 and error.error.reply.code == SERVICE_CLOSING)
            if may_replace and is_first_word and not error.dot_sent and not (is_fresh and address.standing_count == 0):
                if is_fresh:
                    address.was_limited(error.error.reply, session.server)
                return None
            if not transaction.replies:
                return raised(error, session.server)
            rest = dict.fromkeys(work.ordinals, error.error.reply)
            replies = rest | transaction.replies
            return DeliveryReport(session.server, replies, error.dot_sent, "dsn" in session.extensions, session.tls, session.login)
        except TransientDeliveryError as error:  # MAIL or DATA was refused
            if error.reply is CONTENT_UNREADABLE:
                address.drop(session)
                raise
            self._put_back(address, session, error.reply)
            error.__traceback__ = None
            return None if may_replace and not is_fresh and rules.may_be_about_session(error.reply) else error
        except PermanentDeliveryError as error:
            if may_replace and not is_fresh and error.reply.code == OUT_OF_ORDER:  # something before, in this session
                address.drop(session)
                return None
            self._put_back(address, session, error.reply)
            if not course.refused:
                raise
            return DeliveryReport(session.server, dict.fromkeys(work.ordinals, error.reply), tls=session.tls, login=session.login)
        except BaseException:
            address.drop(session)
            raise
        replies = transaction.replies
        worst = next(iter(replies.values())) if len(replies) == 1 else min(replies.values(), key=lambda reply: reply.code)
        is_kept = self._put_back(address, session, worst)
        if may_replace and not is_kept and not is_fresh and rules.is_about_server(worst):
            return None
        return DeliveryReport(session.server, replies, passes_dsn="dsn" in session.extensions, tls=session.tls, login=session.login)

    def _note_tried(self, key: str, targets: dict[NextHopHost, None]) -> None:
        if len(self._tried) >= ADDRESSES_MAX:
            self._tried.pop(next(iter(self._tried)))
        self._tried[key] = dict.fromkeys(list(targets)[:SHOWN_MAX])

    def _put_back(self, address: AddressSessions, session: Opened, reply: Reply) -> bool:
        """Note what the reply to a transaction says of the server; whether the session may serve on. `reply`: the most favourable one."""
        now = asyncio.get_running_loop().time()
        if reply.code >= 400 and rules.is_about_server(reply):
            if session.messages_count == 1:  # in a kept session it may be about the session
                address.trouble = rules.after_failure(address.trouble, reply, now)
            address.give_back(session, is_used_up=True)
            return False
        address.trouble = None
        if reply.code < 300:
            address.served_at = now
        # Where the server limits its sessions, the next one might be refused
        is_old = session.is_of_client or (session.messages_count >= MESSAGES_PER_SESSION_MAX and address.window.reply is None)
        address.give_back(session, is_used_up=is_old)
        return True

    async def _open(self, target: NextHopHost, opening: Opening) -> Opened:
        """Raises SessionBroken."""
        if (session := await self._to_peer(HostPort(target.name.rstrip(".").lower(), target.host.port))) is not None:
            return session
        options = await self._route_sessions.options(self._connect_options, target.protection, target.name)

        async def dial(host: HostPort) -> socket.socket:
            async with asyncio.timeout(ADDRESS_SECONDS if target.is_one_of_several else None):
                connection = await options.dial(host)
            opening.connected_at = asyncio.get_running_loop().time()
            self._next_hops.reached(target)
            return connection

        try:
            session = await open_session(target.host, target.name, replace(options, dial=dial))
        except SessionBroken as error:
            if opening.connected_at == inf:
                self._next_hops.not_reached(target)
            self._route_sessions.note_failure(error)
            raise
        return self._route_sessions.opened(session, target.protection)

    def _log_attempt(self, job: DeliveryJob, began: float, report: DeliveryReport | None, error: BaseException | None) -> None:
        """Log one attempt. Successes only at debug level: the tracking log has them, and a busy server has hundreds a second."""
        replies = tuple(report.replies.values()) if report is not None else ()
        negative = [reply for reply in replies if reply.code >= 300]
        is_success = report is not None and not negative
        if is_success and not self._log.is_enabled_for(logging.DEBUG):
            return
        if report is not None:
            reply, server = str(negative[0] if negative else replies[0]), report.server
        elif isinstance(error, DeliveryError):
            reply, server = str(error.reply), error.server
        else:
            reply, server = type(error).__name__, job.destination.key
        said = {
            "message_id": job.envelope.message_id,
            "next_hop": job.destination.key,
            "server": server,
            "recipients": len(job.ordinals),
            "accepted": len(replies) - len(negative),
            "reply": reply,
            "seconds": round(asyncio.get_running_loop().time() - began, 6),
        }
        if report is not None and report.tls:
            said["tls"] = report.tls
        if report is not None and report.login:
            said["login"] = report.login
        if is_success:
            self._log.debug("attempt.finished", **said)
        else:
            self._log.info("attempt.finished", **said)
