"""Delivers to next hops: SMTP transactions over pooled sessions. Implements `ports.Deliverer`. RFC 5321 4.1.1, 4.5.3.2; RFC 2920.

The rules here:

- Use only extensions that the next hop offers. Change the content by dot-stuffing only. Send the final dot only if `may_end_data`
  returns True. A reply that makes no sense ends the session as a transient failure.
- Try the next server only while no server has received a command; replace a kept session once if it turns out stale before its
  first reply; repeat nothing after the final dot.
- Read content only when a session is open. Each step that writes it runs in `with work.handling()`; no step that waits does.

The hosts of a route are tried in order; the exchanges of a domain by preference, shuffled among equals. A host that failed recently
is tried last. A host that cost a whole connect timeout is skipped for a while if another host was tried in the same attempt, so that a
dead server does not slow every attempt; if it is the only host, the queue's retry ladder decides (docs/design.md 6.10).
"""

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from datetime import timedelta
from io import FileIO
from math import inf
from typing import NamedTuple

import structlog

from shadowrelay.model.message import BodyType, Content, Envelope
from shadowrelay.model.replies import DeliveryError, LeaseTooShort, PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.model.values import dataclass, replace
from shadowrelay.ports import DeliveryJob, DeliveryReport
from shadowrelay.protocol.fields import format_mail, format_rcpt
from shadowrelay.smtp.client import ConnectOptions, Opened, open_session
from shadowrelay.smtp.client_session import BROKEN_REPLY, CONNECTION_FAILED, SERVICE_CLOSING, RawReply, SessionBroken, SessionPool, failure
from shadowrelay.smtp.data import DotStuffer, stuffed_with_end
from shadowrelay.smtp.resolver import MAIL_LOOP, NO_USABLE_EXCHANGE, Exchange, MailResolver

COMMAND_SECONDS = 300.0  # MAIL and RCPT. RFC 5321 4.5.3.2.2, 4.5.3.2.3
DATA_SECONDS = 120.0  # RFC 5321 4.5.3.2.4
BLOCK_SECONDS = 180.0  # RFC 5321 4.5.3.2.5
DOT_SECONDS = 600.0  # RFC 5321 4.5.3.2.6; a shorter time causes duplicates
BLOCK_OCTETS = 256 * 1024
SIZE = re.compile(r"[0-9]{1,20}")  # RFC 1870 3
TOO_MANY_RECIPIENTS_552, TLS_DEMANDED = 552, 530  # to RCPT; RFC 3207 4
TRANSIENT = re.compile(r"^5\.")

TOO_LARGE = Reply(552, "5.3.4", "The message is larger than the next hop takes")  # RFC 1870 6.1
NEEDS_8BITMIME = Reply(554, "5.6.3", "The content is 8-bit and the next hop does not offer 8BITMIME")  # RFC 6152 3
NEEDS_SMTPUTF8 = Reply(550, "5.6.7", "The message needs SMTPUTF8 and the next hop does not offer it")  # RFC 6531 3.5
BAD_ENVELOPE = Reply(554, "5.5.2", "The envelope cannot be written as SMTP commands")
CONTENT_UNREADABLE = Reply(451, "4.3.0", "The stored content cannot be read")


@dataclass(frozen=True, slots=True)
class Limits:
    """Units: seconds for each awaited reply. Shorter values are for tests."""

    command: float = COMMAND_SECONDS
    data: float = DATA_SECONDS
    block: float = BLOCK_SECONDS
    dot: float = DOT_SECONDS


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
    handling: Callable[[], AbstractContextManager[None]] = nullcontext  # see `ports.Ledger.handling`
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
            await self._settle(b"RSET\r\n", limits.command)
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
            await self._settle(b"RSET\r\n", limits.command)
            return False
        pipeline.write(b"DATA\r\n", 1)
        return await self._may_follow(await pipeline.answer(limits.data))

    async def _may_follow(self, data: RawReply) -> bool:
        if data.code == 354:
            return True
        if self._is_positive(data):
            raise self._out_of_place(data)
        await self._settle(b"RSET\r\n", self.work.limits.command)
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
            await self.session.pipeline.answer(seconds)
        except SessionBroken:
            self.session.pipeline.abort()

    def _note_recipient(self, ordinal: int, answer: RawReply) -> None:
        if self._is_positive(answer):
            self.accepted.append(ordinal)
        else:
            self.replies[ordinal] = self._meaning(answer.reply, to_rcpt=True)

    def _meaning(self, reply: Reply, *, to_rcpt: bool = False) -> Reply:
        """Two permanent replies are not: too many recipients in the words of old servers (RFC 5321 4.5.3.1.10), and the demand for TLS in a
        session that has none because TLS failed: that may be cured."""
        if to_rcpt and reply.code == TOO_MANY_RECIPIENTS_552:
            return Reply(452, TRANSIENT.sub("4.", reply.enhanced), reply.text)
        if reply.code == TLS_DEMANDED and self.session.tls_failure is not None:
            failed = self.session.tls_failure
            return failed._replace(text=f"{failed.text}; without TLS: {reply}")
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
        size_max = offered.get("size", "")
        if SIZE.fullmatch(size_max) and 0 < int(size_max) < work.size:
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


def opened(content: Content) -> FileIO:
    """Open content that is in a file. Read it by `asyncio.to_thread`, so that the loop does not wait for the disk."""
    assert content.path is not None
    return FileIO(content.path)


def raised(unfinished: Unfinished, server: str) -> DeliveryError:
    """The delivery error for a broken session: always transient, whatever the server's last reply was."""
    return TransientDeliveryError(unfinished.error.reply, server, is_connection=True, dot_sent_unanswered=unfinished.dot_sent)


MESSAGES_PER_SESSION_MAX = 100  # some servers defer after about as many
IDLE_SESSIONS_MAX = 200  # over all destinations
SMTP_PORT = 25


FAILED_HOSTS_MAX = 1000
FAILED_LATELY_SECONDS = 60.0  # tried after the others for so long
SKIPPED_SECONDS = 30.0  # skipped for so long if another host was tried: it cost a whole connect timeout


@dataclass(frozen=True, slots=True)
class NextHopHost:
    """A server to try; `name` is its name in MX or route."""

    host: HostPort
    name: str

    def __str__(self) -> str:
        return f"{self.name} [{self.host.host}]:{self.host.port}"


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure to open a session. Units: the loop's seconds."""

    failed_at: float
    was_slow: bool


class Hosts:
    """Orders hosts, and remembers failures. Units: the loop's seconds."""

    def __init__(
        self, resolver: MailResolver, mx_port: int, shuffle: Callable[[list[Exchange]], None], is_own: Callable[[HostPort], bool]
    ) -> None:
        self._is_own = is_own
        self._resolver = resolver
        self._mx_port = mx_port
        self._shuffle = shuffle
        self._failures: dict[HostPort, Failure] = {}

    def of_route(self, destination: Destination) -> list[NextHopHost]:
        """The hosts of a route in the order of trying, recently failed ones last. No look-up."""
        targets = []
        for host in destination.hosts:
            targets.append(NextHopHost(host, host.host))
        if len(targets) > 1:
            targets.sort(key=lambda target: (self._failed_lately(target.host), self.is_skipped(target.host)))
        return targets

    async def of_domain(self, destination: Destination) -> AsyncGenerator[NextHopHost, None]:
        """The exchanges of a domain in the order of trying, recently failed ones last. Raises DeliveryError, a transient
        one if no address is known because look-ups failed, or only servers that are avoided are left."""
        late: list[NextHopHost] = []
        unanswered: Reply | None = None
        is_found = is_left_out = is_loop = False
        avoided = await self._with_addresses(destination.avoided) if destination.avoided else destination.avoided
        try:
            exchanges = await self._resolver.exchanges(destination.domain)
        except PermanentDeliveryError as error:
            if not avoided:
                raise
            # The message came this way because a server is lost: that one may return, and then it has a route again
            raise TransientDeliveryError(_no_route_without(avoided, str(error.reply)), destination.key, is_unreachable=True) from error
        for exchange in self._shuffled(exchanges):
            try:
                hosts = await self._resolver.addresses(exchange.host, self._mx_port)
            except PermanentDeliveryError:
                continue  # not a legal name; the next exchange may have one
            except TransientDeliveryError as error:
                unanswered = error.reply
                continue
            if any(map(self._is_own, hosts)):  # only better ones may be tried. RFC 5321 5.1
                is_loop = True
                break
            name = HostPort(exchange.host.rstrip(".").lower(), self._mx_port)
            for host in hosts:
                if avoided and (host in avoided or name in avoided):
                    is_left_out = True
                    continue
                is_found = True
                target = NextHopHost(host, exchange.host)
                if self._failed_lately(host):
                    late.append(target)
                else:
                    yield target
        if unanswered is not None and not is_found:
            raise TransientDeliveryError(unanswered, destination.key, is_unreachable=True)
        if is_left_out and not is_found:
            why = "its MX records name no other server"
            raise TransientDeliveryError(_no_route_without(avoided, why), destination.key, is_unreachable=True)
        if is_loop and not is_found:
            raise PermanentDeliveryError(MAIL_LOOP, destination.domain)
        for target in sorted(late, key=lambda target: self.is_skipped(target.host)):
            yield target

    async def _with_addresses(self, avoided: frozenset[HostPort]) -> frozenset[HostPort]:
        """These servers under every address that they have: an exchange may be one of them under another name."""
        found = set(avoided)
        for server in avoided:
            with contextlib.suppress(DeliveryError):
                found.update(await self._resolver.addresses(server.host, server.port))
        return frozenset(found)

    def _shuffled(self, exchanges: tuple[Exchange, ...]) -> list[Exchange]:
        mixed = list(exchanges)
        if len(mixed) > 1:
            self._shuffle(mixed)
            mixed.sort(key=lambda exchange: exchange.preference)  # stable: equals stay shuffled
        return mixed

    def _failed_lately(self, host: HostPort) -> bool:
        failure = self._failures.get(host) if self._failures else None
        return failure is not None and asyncio.get_running_loop().time() - failure.failed_at < FAILED_LATELY_SECONDS

    def is_skipped(self, host: HostPort) -> bool:
        """Whether it cost a whole connect timeout recently."""
        failure = self._failures.get(host)
        return failure is not None and failure.was_slow and asyncio.get_running_loop().time() - failure.failed_at < SKIPPED_SECONDS

    def failed(self, host: HostPort, now: float, *, was_slow: bool) -> None:
        """Record that no session could be opened."""
        if len(self._failures) >= FAILED_HOSTS_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures[host] = Failure(now, was_slow)

    def reached(self, host: HostPort) -> None:
        """Record that a session was opened."""
        self._failures.pop(host, None)


def _no_route_without(avoided: frozenset[HostPort], reason: str) -> Reply:
    return Reply(451, "4.4.4", f"There is no other route than by {', '.join(sorted(map(str, avoided)))}: {reason}")  # RFC 3463 X.4.4


async def no_peer(address: HostPort) -> Opened | None:
    """For a node without peers."""
    return None


class SmtpDeliverer:
    """See `ports.Deliverer`. `to_peer` opens the session if the next hop at this name and port is a peer: XQDISCARD is asked in every
    session between nodes. If that is not possible, mail is delivered to it as to any other server."""

    def __init__(
        self,
        options: ConnectOptions,
        resolver: MailResolver,
        *,
        concurrency_per_destination: int,
        connection_inactivity_timeout: timedelta,
        sends_8bit: bool = True,
        is_own: Callable[[HostPort], bool] = lambda host: False,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        mx_port: int = SMTP_PORT,
        shuffle: Callable[[list[Exchange]], None] = random.shuffle,
        to_peer: Callable[[HostPort], Awaitable[Opened | None]] = no_peer,
    ) -> None:
        self._connect_options = options
        self._to_peer = to_peer
        self._hosts = Hosts(resolver, mx_port, shuffle, is_own)
        self._concurrency = concurrency_per_destination
        self._idle_seconds = connection_inactivity_timeout.total_seconds()
        self._limits = limits
        self._sends_8bit = sends_8bit
        self._log = structlog.get_logger().bind()
        self._pools: dict[str, SessionPool[Opened]] = {}
        self._is_closed = False

    async def deliver(self, job: DeliveryJob) -> DeliveryReport:
        """See `ports.Deliverer`. Writes one line to the operator log."""
        destination = job.destination
        if self._is_closed:
            raise TransientDeliveryError(CONNECTION_FAILED, destination.key, is_unreachable=True)
        pool = self._pools.get(destination.key)
        if pool is None:
            self._forget_empty_pools()
            pool = self._pools[destination.key] = SessionPool(self._concurrency, self._idle_seconds)
        await pool.enter()
        began = asyncio.get_running_loop().time()
        report: DeliveryReport | None = None
        failed: TransientDeliveryError | None = None
        error: BaseException | None = None
        try:
            if destination.hosts:
                for target in self._hosts.of_route(destination):
                    if failed is None or not self._hosts.is_skipped(target.host):
                        report, failed = await self._try(pool, target, job)
                        if report is not None:
                            return report
            else:
                async with contextlib.aclosing(self._hosts.of_domain(destination)) as targets:
                    async for target in targets:
                        if failed is None or not self._hosts.is_skipped(target.host):
                            report, failed = await self._try(pool, target, job)
                            if report is not None:
                                return report
            raise failed or TransientDeliveryError(NO_USABLE_EXCHANGE, destination.key, is_unreachable=True)
        except BaseException as caught:
            error = caught
            raise
        finally:
            pool.leave()
            if not pool.users_count and pool.is_unused:
                self._pools.pop(destination.key, None)
            self._log_attempt(job, began, report, error)
            failed = error = None  # break the cycle from frame to exception, which would keep the attempt's content alive

    async def close(self) -> None:
        """End all sessions; running deliveries get TransientDeliveryError."""
        self._is_closed = True
        pools = list(self._pools.values())
        self._pools.clear()
        await asyncio.gather(*(pool.close() for pool in pools))

    def _forget_empty_pools(self) -> None:
        """Remove pools whose sessions have all ended, and end idle sessions above the total limit."""
        for key in [key for key, pool in self._pools.items() if pool.is_unused]:
            del self._pools[key]
        excess = sum(pool.idle_count for pool in self._pools.values()) - IDLE_SESSIONS_MAX
        for pool in self._pools.values():
            if excess <= 0:
                break
            excess -= pool.end_idle(excess)

    async def _try(
        self, pool: SessionPool[Opened], target: NextHopHost, job: DeliveryJob
    ) -> tuple[DeliveryReport | None, TransientDeliveryError | None]:
        """Run a transaction with this server, or return why no session could be opened, so that another server may be tried. If a kept
        session is stale (it broke before its first reply), open a new one, once."""
        key = (target.host.host, target.host.port)
        session = pool.take(key)
        while True:
            is_fresh = session is None
            if session is None:
                try:
                    session = await self._open(target)
                except SessionBroken as error:
                    return None, TransientDeliveryError(error.reply, str(target), is_unreachable=True)
                pool.add(session)
                if job.destination.domain and session.called == self._connect_options.own_name.lower():
                    pool.finish(session)  # a load balancer or a translated address led back here
                    raise PermanentDeliveryError(MAIL_LOOP, session.server)
            try:
                content = await job.content()
            except BaseException:
                self._put_back(pool, key, session)
                raise
            ordinals = tuple(sorted(job.ordinals))
            work = OutgoingMessage(
                job.envelope,
                ordinals,
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
                pool.drop(session)
                answers_count = session.pipeline.answers_count - answers_before
                is_first_word = answers_count == 0 or (answers_count == 1 and error.error.reply.code == SERVICE_CLOSING)
                if not is_fresh and is_first_word and not error.dot_sent:
                    session = None
                    del content, work, transaction  # free this content before it is read again
                    continue
                if not transaction.replies:
                    raise raised(error, session.server) from error
                rest = dict.fromkeys(work.ordinals, error.error.reply)
                return DeliveryReport(session.server, rest | transaction.replies, error.dot_sent, "dsn" in session.extensions), None
            except DeliveryError:
                self._put_back(pool, key, session)
                raise
            except BaseException:
                pool.drop(session)
                raise
            self._put_back(pool, key, session)
            return DeliveryReport(session.server, transaction.replies, passes_dsn="dsn" in session.extensions), None

    async def _open(self, target: NextHopHost) -> Opened:
        """Raises SessionBroken."""
        if (session := await self._to_peer(HostPort(target.name.rstrip(".").lower(), target.host.port))) is not None:
            self._hosts.reached(target.host)
            return session
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            session = await open_session(target.host, target.name, self._connect_options)
        except SessionBroken:
            self._hosts.failed(target.host, loop.time(), was_slow=loop.time() - began >= self._connect_options.connect_seconds)
            raise
        self._hosts.reached(target.host)
        return session

    def _put_back(self, pool: SessionPool[Opened], key: tuple[str, int], session: Opened) -> None:
        if session.messages_count < MESSAGES_PER_SESSION_MAX:
            pool.keep(key, session)
        else:
            pool.finish(session)

    def _log_attempt(self, job: DeliveryJob, began: float, report: DeliveryReport | None, error: BaseException | None) -> None:
        """Log one attempt. Successes only at debug level: the tracking log has them, and a busy server has hundreds a second."""
        replies = tuple(report.replies.values()) if report is not None else ()
        negative = [reply for reply in replies if reply.code >= 300]
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
        if report is not None and not negative:
            self._log.debug("attempt.finished", **said)
        else:
            self._log.info("attempt.finished", **said)
