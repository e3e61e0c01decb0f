"""The forks of one message: bifurcation, one attempt each, and the record of what came of them."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from shadowrelay.core import outcomes, retention, tracking_rows
from shadowrelay.core.outcomes import AttemptOutcome
from shadowrelay.core.routing import Router
from shadowrelay.core.trace import promotion_header
from shadowrelay.model.errors import DeliveryError, LeaseTooShort, TransientDeliveryError
from shadowrelay.model.message import NO_ORDINALS, Content, Ordinals
from shadowrelay.model.queue import AttemptRecord, ForkRetry, SideMessage, StoredMessage
from shadowrelay.model.replies import LOCAL_ERROR, Reply
from shadowrelay.model.routing import Fork
from shadowrelay.model.settings import Settings
from shadowrelay.model.tracking import EventSource
from shadowrelay.ports import Deliverer
from shadowrelay.service.context import Context
from shadowrelay.service.notify import Notices

_log = structlog.get_logger("shadowrelay.forks")


@dataclass(frozen=True, slots=True)
class ForkResult:
    """What came of one attempt. `server` answered, or could not be reached."""

    fork: Fork
    outcome: AttemptOutcome
    server: str
    passes_dsn: bool = True


class Forks:
    """Attempts for one message at a time; knows routing, not ownership."""

    def __init__(self, context: Context, deliverer: Deliverer) -> None:
        self._context = context
        self._deliverer = deliverer
        self._notices = Notices(context)
        self._chance = random.Random()
        self.configure(context.settings)

    def configure(self, settings: Settings) -> None:
        """Routes and retries of the present configuration."""
        self._router = Router(settings.routes, settings.server.name)

    def due(self, stored: StoredMessage, now: datetime) -> tuple[Fork, ...]:
        """The forks whose time has come, of the recipients that are not done."""
        forks = self._router.forks(stored.envelope.recipients, stored.envelope.ordinals - stored.claim.done)
        if not stored.retries:
            return forks
        waiting = {retry.next_hop: retry for retry in stored.retries}
        return tuple(fork for fork in forks if (retry := waiting.get(fork.destination.key)) is None or retry.attempts_next_at <= now)

    def pause(self, stored: StoredMessage) -> timedelta:
        """Until the first of the forks that are not due."""
        left = stored.envelope.ordinals - stored.claim.done
        keys = {fork.destination.key for fork in self._router.forks(stored.envelope.recipients, left)}
        now = self._context.now()
        return min((retry.attempts_next_at - now for retry in stored.retries if retry.next_hop in keys), default=timedelta(0))

    async def attempt(self, stored: StoredMessage, content: Content, may_end_data: Callable[[], bool]) -> list[ForkResult]:
        """One attempt on every fork that is due. Raises: LeaseTooShort if not one of them could be made for want of a lease."""
        context = self._context
        now = context.now()
        forks = self.due(stored, now)
        if not forks:
            return []
        if not stored.retries:
            for fork in forks:
                row = tracking_rows.transfer(
                    context.me.server, stored, at=now, next_hop=fork.destination.key, ordinals=fork.ordinals, size=content.size
                )
                context.tracking.write(row)
        prefix = b""
        if stored.is_promoted:
            prefix = promotion_header(stored.promoted_from, context.me.server, stored.envelope.message_id, now)
        if len(forks) == 1:
            results = [await self._attempt(stored, content, forks[0], prefix, may_end_data)]
        else:
            results = await asyncio.gather(*(self._attempt(stored, content, fork, prefix, may_end_data) for fork in forks))
        made = [result for result in results if result is not None]
        if not made:
            raise LeaseTooShort("no attempt could be made")
        return made

    async def _attempt(
        self, stored: StoredMessage, content: Content, fork: Fork, prefix: bytes, may_end_data: Callable[[], bool]
    ) -> ForkResult | None:
        context = self._context
        began = context.clock.awake()
        result: Mapping[int, Reply] | DeliveryError
        passes_dsn = True
        try:
            report = await self._deliverer.deliver(fork.destination, stored.envelope, fork.ordinals, content, prefix, may_end_data)
            result, server, passes_dsn = report.replies, report.server, report.passes_dsn
        except LeaseTooShort:
            return None
        except DeliveryError as error:
            result, server = error, error.server
        except Exception as error:
            # Unknown means transient; and what came of the other forks must not be lost with it.
            _log.exception("attempt.failed", message_id=stored.envelope.message_id, next_hop=fork.destination.key)
            server = fork.destination.key
            result = TransientDeliveryError(LOCAL_ERROR, server)
            result.__cause__ = error
        settings = context.settings
        before = next((retry for retry in stored.retries if retry.next_hop == fork.destination.key), None)
        outcome = outcomes.settle_attempt(
            fork.destination.key,
            fork.ordinals,
            result,
            before,
            arrived_at=stored.envelope.arrived_at + context.clock_ahead(),
            now=context.now(),
            send=settings.send,
            message_expiration_timeout=settings.transport.message_expiration_timeout,
            jitter=self._chance.random(),
        )
        try:
            self._track(stored, fork, result, outcome, server, timedelta(seconds=context.clock.awake() - began), content.size)
        except Exception:
            _log.exception("attempt.untracked", message_id=stored.envelope.message_id)  # it happened all the same
        return ForkResult(fork, outcome, server, passes_dsn)

    def _track(
        self,
        stored: StoredMessage,
        fork: Fork,
        result: Mapping[int, Reply] | DeliveryError,
        outcome: AttemptOutcome,
        server: str,
        elapsed: timedelta,
        size: int,
    ) -> None:
        """What the next hop said goes into the log before it is recorded: it happened, whatever comes next."""
        context = self._context
        me, now, key = context.me.server, context.now(), fork.destination.key
        replies = result if isinstance(result, Mapping) else dict.fromkeys(sorted(fork.ordinals), result.reply)
        if outcome.delivered:
            done = {ordinal: replies[ordinal] for ordinal in sorted(outcome.delivered)}
            external = not fork.destination.inside_boundary
            context.tracking.write(
                tracking_rows.send(
                    me, stored, at=now, server=server, replies=done, external=external, elapsed=elapsed, next_hop=key, size=size
                )
            )
        context.metrics.attempt("delivered" if len(outcome.delivered) == len(fork.ordinals) else _result(outcome))
        if outcome.failed:
            context.tracking.write(
                tracking_rows.fail(
                    me,
                    stored,
                    at=now,
                    server=server,
                    replies=outcome.failed,
                    elapsed=elapsed,
                    source=_source(result),
                    next_hop=key,
                    size=size,
                )
            )
        if outcome.retry is not None:
            late = {ordinal: replies.get(ordinal, outcomes.NO_REPLY) for ordinal in sorted(outcome.retry.ordinals)}
            context.tracking.write(
                tracking_rows.defer(
                    me,
                    stored,
                    at=now,
                    server=server,
                    replies=late,
                    elapsed=elapsed,
                    source=_source(result),
                    next_hop=key,
                    context="no reply to the final dot" if _is_unanswered(result) else "",
                    size=size,
                )
            )

    def record(self, stored: StoredMessage, content: Content, results: Sequence[ForkResult]) -> AttemptRecord:
        """What to commit: the ordinals that ended, the retries that are left, and the notices to the sender."""
        transport = self._context.settings.transport
        now = self._context.now()
        done: Ordinals = NO_ORDINALS
        for result in results:
            done |= result.outcome.done
        tried = {result.fork.destination.key for result in results}
        retries: list[ForkRetry] = [result.outcome.retry for result in results if result.outcome.retry is not None]
        left = stored.envelope.ordinals - stored.claim.done - done
        waiting = {fork.destination.key: fork.ordinals for fork in self._router.forks(stored.envelope.recipients, left)} if left else {}
        # A next hop that is no more (routes were changed) keeps no retry: its recipients belong to another fork now.
        retries += (retry for retry in stored.retries if retry.next_hop not in tried and retry.next_hop in waiting)
        is_untried = bool(waiting.keys() - {retry.next_hop for retry in retries})  # for want of a lease: due at once
        sides: tuple[SideMessage, ...] = self._notices.about(stored, content, results) if _is_worth_telling(results) else ()
        due_at = now if is_untried else min((retry.attempts_next_at for retry in retries), default=None)
        return AttemptRecord(
            stored.envelope.message_id,
            done,
            tuple(retries),
            due_at if left else None,
            sides,
            retention.safety_net_until(now, transport),
            retention.remember_until(now, transport),
        )


def _is_worth_telling(results: Sequence[ForkResult]) -> bool:
    """Something failed, is late, or was delivered to somebody who may have asked to be told."""
    return any(result.outcome.failed or result.outcome.delayed_dsn or result.outcome.delivered for result in results)


def _result(outcome: AttemptOutcome) -> str:
    if outcome.delivered:
        return "partly"
    return "deferred" if outcome.retry is not None else "failed"


def _source(result: Mapping[int, Reply] | DeliveryError) -> EventSource:
    if isinstance(result, DeliveryError) and result.reply.enhanced in ("5.1.2", "5.1.10", "4.4.3"):
        return EventSource.DNS
    return EventSource.SMTP


def _is_unanswered(result: Mapping[int, Reply] | DeliveryError) -> bool:
    return isinstance(result, DeliveryError) and result.dot_sent_unanswered
