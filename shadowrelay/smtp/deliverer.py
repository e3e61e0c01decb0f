"""Delivers to next hops: transactions (`delivery_transaction`) over pooled sessions. Implements `ports.Deliverer`. RFC 5321 5.1.

The rules here:

- After a server that takes nothing for now, try the next one (`next_hop_rules`); replace a kept session if it turns out stale before its
  first reply; repeat nothing after the final dot.
- Read content only when a session is open.
"""

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from datetime import timedelta
from functools import partial
from math import inf
from pathlib import Path

import structlog

from shadowrelay.model.counts import SessionCounts
from shadowrelay.model.message import BodyType
from shadowrelay.model.queue import NextHopServer
from shadowrelay.model.replies import DeliveryError, PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass, replace
from shadowrelay.ports import DeliveryJob, DeliveryReport
from shadowrelay.smtp import next_hop_rules as rules
from shadowrelay.smtp.client import ConnectOptions, Opened, TlsFailed, TlsUse, open_session
from shadowrelay.smtp.client_session import CONNECTION_FAILED, SERVICE_CLOSING, SessionBroken
from shadowrelay.smtp.delivery_transaction import (
    NOT_FOR_THIS_SERVER,
    DeliveryTransaction,
    Unfinished,
    raised,
)
from shadowrelay.smtp.host_names import ADDRESS_SECONDS, HostNames
from shadowrelay.smtp.mta_sts import MtaSts
from shadowrelay.smtp.next_hop_questions import NextHopQuestions
from shadowrelay.smtp.next_hop_sessions import ADDRESSES_MAX, AddressSessions, NoSession, Opening, Sessions
from shadowrelay.smtp.next_hops import NextHopHost, NextHops
from shadowrelay.smtp.outgoing_message import CONTENT_UNREADABLE, NEEDS_BINARYMIME, Limits, OutgoingMessage
from shadowrelay.smtp.own_addresses import THIS_PROCESS, XSELF
from shadowrelay.smtp.resolver import LEADS_HERE, MAIL_LOOP, NO_USABLE_EXCHANGE, Exchange, MailResolver
from shadowrelay.smtp.route_sessions import RouteSessions
from shadowrelay.smtp.whose_mail import name_client

DECIDED_HERE = (*NOT_FOR_THIS_SERVER, MAIL_LOOP)


def _is_decided_here(reply: Reply) -> bool:
    """Whether this node says it of a server, whatever that would say."""
    return reply in DECIDED_HERE or reply.text.startswith(NEEDS_BINARYMIME.text)


def _end_if_silent(session: Opened, answers_count: int) -> None:
    """End a session in which no reply has come since there were so many."""
    if session.pipeline.answers_count == answers_count:
        session.pipeline.give_up()


MESSAGES_PER_SESSION_MAX = 100  # some servers defer after about as many
SMTP_PORT = 25
UNUSED_SECONDS = 2.0
RESTED_SECONDS = 0.5  # a session that was idle for so long may be dead without our knowing
FIRST_REPLY_SECONDS = 10.0  # then it counts as dead, and another one is opened
REPLACEMENTS_MAX = 3  # sessions that an attempt replaces at one address
PATIENCE_SECONDS = 30.0  # for a greeting or a free session where there is another address
HEAD_START_SECONDS = 0.25  # of an address before the next one of the same name, which may be of the other family. RFC 8305 5
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
    loop: asyncio.AbstractEventLoop
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
        late = self.loop.time() - self.began_at > ATTEMPT_SECONDS
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
    `policies`: of domains, which deliveries by MX obey. `source`: addresses to connect from, if no route says it."""

    def __init__(
        self,
        options: ConnectOptions,
        resolver: MailResolver,
        *,
        concurrency_per_destination: int,
        connection_inactivity_timeout: timedelta,
        sends_8bit: bool = True,
        sends_chunks: bool = True,
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
        source: Sequence[str] = (),
    ) -> None:
        self._policies = policies
        self._source = source
        self._connect_options = options
        self._to_peer = to_peer
        inactivity_seconds = connection_inactivity_timeout.total_seconds()
        unused_seconds = min(unused_session_timeout.total_seconds(), inactivity_seconds)
        self._route_sessions = RouteSessions(state_directory)
        is_by_name = options.tls is TlsUse.REQUIRED
        self._sessions = Sessions(unused_seconds, options.connect_seconds, is_by_name=is_by_name, sessions_max=sessions_max)
        self._next_hops = NextHops(resolver, self._sessions, mx_port, shuffle, names, is_own, policies)
        self.questions = NextHopQuestions(self._next_hops, self._sessions, self._open, concurrency_per_destination)
        self._sends_8bit, self._sends_chunks = sends_8bit, sends_chunks
        self._concurrency = concurrency_per_destination
        self._limits = limits.within(inactivity_seconds)
        self._log = structlog.get_logger().bind()
        self._is_verbose = self._log.is_enabled_for(logging.DEBUG)
        self._tried: dict[str, dict[NextHopHost, None]] = {}  # by next hop, for listings
        self._is_closed = False

    async def deliver(self, job: DeliveryJob) -> DeliveryReport:
        """See `ports.Deliverer`. Writes one line to the operator log."""
        if self._is_closed:
            raise TransientDeliveryError(CONNECTION_FAILED, job.destination.key, is_unreachable=True)
        loop = asyncio.get_running_loop()
        course = ServersInTurn(job, loop, loop.time(), tuple(sorted(job.ordinals)))
        report: DeliveryReport | None = None
        error: BaseException | None = None
        try:
            at_hand = self._next_hops.at_hand(job.destination, course.began_at)
            if at_hand is None or not await self._try(at_hand[0], course, at_hand[1]):
                await self._try_others(course, None if at_hand is None else at_hand[0])
            report = course.outcome()
            return report
        except BaseException as caught:
            error = caught
            raise
        finally:
            # Successes at debug level: the tracking log has them, and a busy server has hundreds a second.
            if report is None or max(report.replies.values()).code >= 300 or self._is_verbose:
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
                if await self._try(target, course, self._sessions.at(target)):
                    return
        if (put_off := course.impatient) is not None and not course.answers_count and course.may_go_on():
            await self._try(put_off, course, self._sessions.at(put_off), is_patient=True)

    def servers(self, key: str) -> Sequence[NextHopServer]:
        """See `ports.Deliverer`."""
        now = asyncio.get_running_loop().time()
        return [one for target in self._tried.get(key, ()) if (one := self._sessions.shown(target, str(target), now)) is not None]

    @property
    def counts(self) -> SessionCounts:
        """What sessions were opened, and what did not become one."""
        return self._route_sessions.counts

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

    async def _try(self, target: NextHopHost, course: ServersInTurn, address: AddressSessions, *, is_patient: bool = False) -> bool:
        """Run a transaction with this server, in a session with its `address`; whether no other server may be tried.

        If there is no session in `PATIENCE_SECONDS` and there is another server, it is put off, unless `is_patient`. What this node decides
        about a server, which lacks an extension or leads back here, is final only if there is no other one.
        """
        loop, destination = course.loop, course.job.destination
        try:
            if self._is_closed:
                closed = TransientDeliveryError(CONNECTION_FAILED, str(target), is_unreachable=True)
                return course.is_over(target, closed)
            if target not in (tried := self._tried.get(destination.key, ())):
                self._note_tried(destination.key, {target: None, **dict.fromkeys(tried)})
            for replacements_left in range(REPLACEMENTS_MAX, -1, -1):  # of kept sessions that turn out stale or used up
                taken = address.take()
                is_rested = taken is not None and loop.time() - taken[0] > RESTED_SECONDS
                session = taken[1] if taken is not None else await self._opened(target, course, address, is_patient=is_patient)
                if not isinstance(session, Opened):
                    return course.is_over(target, session)
                if destination.domain and session.called == self._connect_options.own_name.lower():
                    address.give_back(session, is_used_up=True)  # a load balancer or a translated address led back here
                    raise PermanentDeliveryError(MAIL_LOOP, session.server)
                if session.extensions.get(XSELF) == THIS_PROCESS:
                    address.give_back(session, is_used_up=True)
                    return course.is_over(target, TransientDeliveryError(LEADS_HERE, session.server, is_unreachable=True))
                if not session.server.startswith(f"{target.name} ["):  # opened for another name of this address
                    session.server = f"{target.name} {session.server.partition(' ')[2]}"
                timer = loop.call_later(FIRST_REPLY_SECONDS, _end_if_silent, session, session.pipeline.answers_count) if is_rested else None
                try:
                    result = await self._transact(address, session, course, may_replace=replacements_left > 0)
                finally:
                    if timer is not None:
                        timer.cancel()
                if result is not None:
                    return course.is_over(target, result)
        except PermanentDeliveryError as error:
            if not _is_decided_here(error.reply):
                raise
            course.unfit = error.reply, error.server
            return False
        raise AssertionError("the last session is not replaced")

    async def _opened(
        self, target: NextHopHost, course: ServersInTurn, address: AddressSessions, *, is_patient: bool
    ) -> Opened | TransientDeliveryError | None:
        """A session where none is idle, or why there is none; `None`: the server is put off."""
        destination = course.job.destination
        has_others = target.is_one_of_several or len(destination.hosts) > 1
        patience = PATIENCE_SECONDS if has_others and not is_patient else None
        head_start = HEAD_START_SECONDS if target.is_next and not is_patient else None
        got = await address.wait(
            partial(self._open, target, has_others=has_others),
            destination.concurrency or self._concurrency,
            patience,
            head_start,
            is_only=not has_others and (target.protection is None or target.protection.login is None),  # a login is not repeated
        )
        if not isinstance(got, NoSession):
            return got
        if got.is_patience:
            return None
        is_limited = (got.is_refusal or got.was_cut) and course.loop.time() - address.served_at < rules.LIMITED_SECONDS
        return TransientDeliveryError(got.reply, str(target), is_unreachable=True, is_limited=is_limited)

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
            may_send_chunks=self._sends_chunks
            and address.takes_chunks
            and (not address.loses_chunks or job.envelope.body is BodyType.BINARY_MIME),
        )
        answers_before = session.pipeline.answers_count
        transaction = DeliveryTransaction(session, work)
        try:
            await transaction.run()
        except Unfinished as error:
            address.drop(session)
            address.loses_chunks = address.loses_chunks or (transaction.is_chunked and error.dot_sent)
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
            self._put_back(address, session, error.reply, course.loop.time())
            error.__traceback__ = None
            return None if may_replace and not is_fresh and rules.may_be_about_session(error.reply) else error
        except PermanentDeliveryError as error:
            self._put_back(address, session, error.reply, course.loop.time())
            if session.put_off is not None and _is_decided_here(error.reply):  # it lacks an extension in this session
                return TransientDeliveryError(session.put_off, session.server)
            if not course.refused:
                raise
            return DeliveryReport(session.server, dict.fromkeys(work.ordinals, error.reply), tls=session.tls, login=session.login)
        except BaseException:
            address.drop(session)
            raise
        if transaction.is_bdat_unknown and may_replace:  # something between us has another opinion than the server
            address.takes_chunks = False
            address.drop(session)
            return None
        replies = transaction.replies
        worst = next(iter(replies.values())) if len(replies) == 1 else min(replies.values(), key=lambda reply: reply.code)
        is_kept = self._put_back(address, session, worst, course.loop.time(), is_out_of_step=transaction.is_out_of_step)
        if may_replace and not is_kept and not is_fresh and rules.is_about_server(worst):
            return None
        return DeliveryReport(session.server, replies, passes_dsn="dsn" in session.extensions, tls=session.tls, login=session.login)

    def _note_tried(self, key: str, targets: dict[NextHopHost, None]) -> None:
        if len(self._tried) >= ADDRESSES_MAX:
            self._tried.pop(next(iter(self._tried)))
        self._tried[key] = dict.fromkeys(list(targets)[:SHOWN_MAX])

    def _put_back(self, address: AddressSessions, session: Opened, reply: Reply, now: float, *, is_out_of_step: bool = False) -> bool:
        """Note what the reply to a transaction says of the server; whether the session may serve on. `reply`: the most favourable one; to
        another command, the server `is_out_of_step`."""
        if reply.code >= 400 and rules.is_about_server(reply):
            if session.messages_count == 1:  # in a kept session it may be about the session
                address.trouble = rules.after_failure(address.trouble, reply, now)
            address.give_back(session, is_used_up=True)
            return False
        address.trouble = None
        if reply.code < 300:
            address.served_at = now
        # Where the server limits its sessions, the next one might be refused
        is_old = (
            is_out_of_step or session.is_of_client or (session.messages_count >= MESSAGES_PER_SESSION_MAX and address.window.reply is None)
        )
        address.give_back(session, is_used_up=is_old)
        return True

    async def _open(self, target: NextHopHost, opening: Opening, *, has_others: bool = False) -> Opened:
        """`has_others`: another server may take EHLO, where this one puts it off. Raises SessionBroken."""
        if (session := await self._to_peer(HostPort(target.name.rstrip(".").lower(), target.host.port))) is not None:
            return session
        options = await self._route_sessions.options(self._connect_options, target.protection, target.name)

        source = (target.protection.source if target.protection is not None else ()) or self._source

        async def dial(host: HostPort) -> socket.socket:
            async with asyncio.timeout(ADDRESS_SECONDS if target.is_one_of_several else None):
                connection = await (options.dial(host, source) if source else options.dial(host))
            opening.connected_at = asyncio.get_running_loop().time()
            self._next_hops.reached(target)
            return connection

        try:
            session = await self._open_as(target, replace(options, dial=dial, helo_after_4xx=not has_others))
        except SessionBroken as error:
            if opening.connected_at == inf:
                self._next_hops.not_reached(target)
            self._route_sessions.note_failure(error)
            raise
        return self._route_sessions.opened(session, target.protection)

    async def _open_as(self, target: NextHopHost, options: ConnectOptions) -> Opened:
        """As its protection demands; where that is a trial, what fails is reported, and the session is one of a route without demands."""
        protection = target.protection
        if protection is None or not protection.is_trial:
            return await open_session(target.host, target.name, options)
        assert self._policies is not None
        if not self._policies.is_known_to_fail(target.name, protection.policy):
            try:
                session = await open_session(target.host, target.name, options)
            except TlsFailed as error:
                self._route_sessions.note_failure(error)
                self._policies.would_fail(target.name, protection.policy, error.reply)
            else:
                self._policies.passed(target.name)
                return session
        else:
            self._policies.fails_still()
        base = self._connect_options
        return await open_session(target.host, target.name, replace(base, dial=options.dial, helo_after_4xx=options.helo_after_4xx))

    def _log_attempt(self, job: DeliveryJob, began: float, report: DeliveryReport | None, error: BaseException | None) -> None:
        """Log one attempt."""
        replies = tuple(report.replies.values()) if report is not None else ()
        negative = [reply for reply in replies if reply.code >= 300]
        is_success = report is not None and not negative
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
