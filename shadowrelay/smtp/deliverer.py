"""Delivery to next hops over sessions pooled for each destination. Implements `ports.Deliverer`.

The rules kept here: the next server is tried only when none was spoken to yet; a kept session that turns out stale before
its first reply is replaced once; after the final dot nothing is repeated. Content is read when a session is open.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from datetime import timedelta

import structlog

from shadowrelay.model.errors import DeliveryError, TransientDeliveryError
from shadowrelay.model.replies import Reply
from shadowrelay.model.values import dataclass
from shadowrelay.ports import DeliveryJob
from shadowrelay.smtp.client import Opened, Opening, open_session
from shadowrelay.smtp.errors import CONNECTION_FAILED, SessionBroken
from shadowrelay.smtp.hosts import Hosts, Target
from shadowrelay.smtp.next_hop import Limits, Transaction, Unfinished, Work, raised
from shadowrelay.smtp.pipeline import SERVICE_CLOSING
from shadowrelay.smtp.pool import SessionPool
from shadowrelay.smtp.resolver import NO_USABLE_EXCHANGE, Exchange, MailResolver

MESSAGES_PER_SESSION_MAX = 100  # some servers begin to defer after as many
IDLE_SESSIONS_MAX = 200  # of all destinations together
SMTP_PORT = 25

log = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class Report:
    """See `ports.DeliveryReport`."""

    server: str
    replies: Mapping[int, Reply]
    dot_sent_unanswered: bool = False
    passes_dsn: bool = True  # the next hop was told the sender's DSN wishes, and reports itself


class SmtpDeliverer:
    """See `ports.Deliverer`."""

    def __init__(
        self,
        opening: Opening,
        resolver: MailResolver,
        *,
        concurrency_per_destination: int,
        connection_inactivity_timeout: timedelta,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        mx_port: int = SMTP_PORT,
        shuffle: Callable[[list[Exchange]], None] = random.shuffle,
    ) -> None:
        self._opening = opening
        self._hosts = Hosts(resolver, mx_port, shuffle)
        self._concurrency = concurrency_per_destination
        self._idle_seconds = connection_inactivity_timeout.total_seconds()
        self._limits = limits
        self._pools: dict[str, SessionPool[Opened]] = {}
        self._is_closed = False

    async def deliver(self, job: DeliveryJob) -> Report:
        """See `ports.Deliverer`. Leaves one line in the operator log."""
        destination = job.destination
        if self._is_closed:
            raise TransientDeliveryError(CONNECTION_FAILED, destination.key, is_unreachable=True)
        pool = self._pool(destination.key)
        await pool.enter()
        began = asyncio.get_running_loop().time()
        report: Report | None = None
        failed: TransientDeliveryError | None = None
        error: BaseException | None = None
        try:
            if destination.hosts:
                for target in self._hosts.of_route(destination):
                    if failed is None or not self._hosts.is_left_alone(target.host):
                        report, failed = await self._try(pool, target, job)
                        if report is not None:
                            return report
            else:
                async with contextlib.aclosing(self._hosts.of_domain(destination)) as targets:
                    async for target in targets:
                        if failed is None or not self._hosts.is_left_alone(target.host):
                            report, failed = await self._try(pool, target, job)
                            if report is not None:
                                return report
            raise failed or TransientDeliveryError(NO_USABLE_EXCHANGE, destination.key, is_unreachable=True)
        except BaseException as caught:
            error = caught
            raise
        finally:
            pool.leave()
            if pool.is_unused:
                self._pools.pop(destination.key, None)
            _log_attempt(job, began, report, error)
            failed = error = None  # a frame that keeps its own exception keeps all that the attempt held

    async def close(self) -> None:
        """End all sessions; whoever delivers now gets TransientDeliveryError."""
        self._is_closed = True
        pools = list(self._pools.values())
        self._pools.clear()
        await asyncio.gather(*(pool.close() for pool in pools))

    def _pool(self, key: str) -> SessionPool[Opened]:
        pool = self._pools.get(key)
        if pool is None:
            self._forget_empty_pools()
            pool = self._pools[key] = SessionPool(self._concurrency, self._idle_seconds)
        return pool

    def _forget_empty_pools(self) -> None:
        """Idle sessions end by themselves; their pool's entry, and what exceeds the bound of all, ends here."""
        for key in [key for key, pool in self._pools.items() if pool.is_unused]:
            del self._pools[key]
        excess = sum(pool.idle_count for pool in self._pools.values()) - IDLE_SESSIONS_MAX
        for pool in self._pools.values():
            if excess <= 0:
                break
            excess -= pool.end_idle(excess)

    async def _try(
        self, pool: SessionPool[Opened], target: Target, job: DeliveryJob
    ) -> tuple[Report | None, TransientDeliveryError | None]:
        """A transaction with this server, or why no session could be had; then another server may be tried. A kept session may be
        stale: then nothing was said on it, and a new one is opened, once."""
        session = pool.take(target.host)
        if session is not None:
            report = await self._use(pool, target, session, job, is_fresh=False)
            if report is not None:
                return report, None
        try:
            session = await self._open(target)
        except SessionBroken as error:
            return None, TransientDeliveryError(error.reply, str(target), is_unreachable=True)
        pool.add(session)
        return await self._use(pool, target, session, job, is_fresh=True), None

    async def _open(self, target: Target) -> Opened:
        """Raises SessionBroken."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            session = await open_session(target.host, target.name, self._opening)
        except SessionBroken:
            self._hosts.failed(target.host, loop.time(), was_slow=loop.time() - began >= self._opening.connect_seconds)
            raise
        self._hosts.reached(target.host)
        return session

    async def _use(self, pool: SessionPool[Opened], target: Target, session: Opened, job: DeliveryJob, *, is_fresh: bool) -> Report | None:
        """None: the session was stale, nothing was said on it, and a new one is worth trying."""
        try:
            content = await job.content()
        except BaseException:
            self._put_back(pool, target, session)
            raise
        ordinals = tuple(sorted(job.ordinals))
        work = Work(job.envelope, ordinals, content, job.prefix, job.may_end_data, self._limits, job.reply_seconds, job.handling)
        answers_before = session.pipeline.answers_count
        transaction = Transaction(session, work)
        try:
            await transaction.run()
        except Unfinished as error:
            pool.drop(session)
            answers_count = session.pipeline.answers_count - answers_before
            is_first_word = answers_count == 0 or (answers_count == 1 and error.error.reply.code == SERVICE_CLOSING)
            if not is_fresh and is_first_word and not error.dot_sent:
                return None
            if not transaction.replies:
                raise raised(error, session.server) from error
            rest = dict.fromkeys(work.ordinals, error.error.reply)
            return Report(session.server, rest | transaction.replies, error.dot_sent, "dsn" in session.extensions)
        except DeliveryError:
            self._put_back(pool, target, session)
            raise
        except BaseException:
            pool.drop(session)
            raise
        self._put_back(pool, target, session)
        return Report(session.server, transaction.replies, passes_dsn="dsn" in session.extensions)

    def _put_back(self, pool: SessionPool[Opened], target: Target, session: Opened) -> None:
        if session.messages_count < MESSAGES_PER_SESSION_MAX:
            pool.keep(target.host, session)
        else:
            pool.finish(session)


def _log_attempt(job: DeliveryJob, began: float, report: Report | None, error: BaseException | None) -> None:
    """What went well is told by the message tracking log too, and a busy server has hundreds of those a second: for debugging only."""
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
        log.debug("attempt.finished", **said)
    else:
        log.info("attempt.finished", **said)
