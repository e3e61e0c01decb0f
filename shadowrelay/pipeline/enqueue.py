"""Records forks in the ledger's delivery queues, with due time and what they wait for. docs/architecture.md "The queues of next hops".

A message is recorded there when its queues have no room in memory, when it waits for a server or a copy, when its routes changed,
or when an attempt had no result. Each method is one transaction; afterwards `NextHopQueues.note_due` informs the queues.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

import structlog

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Claim, Transition
from shadowrelay.model.queue import WAITS_FOR_COPY, ForkRetry, Origin, StoredMessage
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.model.routing import Fork
from shadowrelay.model.values import replace
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.forks import Forks
from shadowrelay.pipeline.next_hop_queue import NextHopQueues
from shadowrelay.pipeline.outcomes import Verdicts

RECORD_AGAIN_SECONDS = 1.0
OF_NO_CLIENT = (Origin.DSN, Origin.JOURNAL, Origin.SAFETY_NET)

_log = structlog.get_logger()


class Enqueuer:
    """Methods raise LedgerUnavailable unless they say otherwise. `want_copy` requests a copy of a message."""

    def __init__(
        self, context: Context, forks: Forks, verdicts: Verdicts, queues: NextHopQueues, want_copy: Callable[[MessageId], None]
    ) -> None:
        self._context = context
        self._forks = forks
        self._verdicts = verdicts
        self._queues = queues
        self._want_copy = want_copy

    async def accepted(self, stored: StoredMessage, forks: Sequence[Fork]) -> bool:
        """Record a message just accepted for which a queue has no room, together with its verdict. False: not possible now."""
        message_id = stored.envelope.message_id

        def unchanged(_: MessageId, claim: Claim | None) -> Transition:
            return Transition(claim, claim)

        now = self._context.now()
        decide, has_verdict = self._verdicts.joined(message_id, unchanged)
        try:
            retries = [self._forks.queued(stored, fork, now) for fork in forks]
            await self._context.ledger.record_queued(message_id, retries, (), decide if has_verdict else None)
        except LedgerUnavailable as error:
            _log.warning("delivery.unqueued", message_id=message_id, reason=error.reason)
            if has_verdict:
                self._verdicts.add(message_id, decide)
            return False
        if has_verdict:
            self._verdicts.recorded(message_id)
        for fork in forks:
            self._queues.note_due(fork.destination.key, now)
        return True

    async def found(self, stored: StoredMessage, forks: Sequence[Fork]) -> None:
        """Record a message found in Submission: due now, or when it has a copy."""
        now = self._context.now()
        until = self._copy_awaited_until(stored)
        retries = [self._forks.queued(stored, fork, now) for fork in forks]
        if self.needs_copy_first(stored):
            self._want_copy(stored.envelope.message_id)
            retries = [replace(retry, waits_for=WAITS_FOR_COPY, attempts_next_at=until) for retry in retries]
        await self._context.ledger.record_queued(stored.envelope.message_id, retries)
        self._forks.track_transfer(stored, forks)
        for retry in retries:
            self._queues.note_due(retry.next_hop, retry.attempts_next_at)

    async def rerouted(self, stored: StoredMessage, key: str) -> None:
        """Record the current forks, each in its queue: routes changed since it was queued, or a fork is in no queue."""
        now = self._context.now()
        forks = self._forks.of(stored)
        present = {retry.next_hop for retry in stored.retries}
        fresh = [fork for fork in forks if fork.destination.key not in present]
        gone = () if any(fork.destination.key == key for fork in forks) else (key,)
        await self._context.ledger.record_queued(
            stored.envelope.message_id, [self._forks.queued(stored, fork, now) for fork in fresh], gone
        )
        self._forks.track_transfer(stored, fresh)
        for fork in (*fresh, *forks):
            self._queues.note_due(fork.destination.key, now)

    async def parked(self, stored: StoredMessage, server: ServerName, until: datetime) -> None:
        """Let the message wait in its queues for this server, whose return wakes it, at most until `until`."""
        now = self._context.now()
        retries = {retry.next_hop: retry for retry in stored.retries}
        waiting = [
            replace(
                retries.get(fork.destination.key) or self._forks.queued(stored, fork, now),
                waits_for=server,
                attempts_next_at=until,
            )
            for fork in self._forks.of(stored)
        ]
        if server != WAITS_FOR_COPY:  # without a lease this node may not declare it late or expired
            waiting = [replace(retry, notice_at=max(retry.notice_at or until, until)) for retry in waiting]
        await self._context.ledger.record_queued(stored.envelope.message_id, waiting)
        for retry in waiting:
            self._queues.note_due(retry.next_hop, until)

    async def returned(self, stored: StoredMessage) -> None:
        """Return a loaded message to its queues; record it there if it is in none."""
        now = self._context.now()
        keys = [retry.next_hop for retry in stored.retries]
        if not keys:
            forks = self._forks.of(stored)
            await self._context.ledger.record_queued(stored.envelope.message_id, [self._forks.queued(stored, fork, now) for fork in forks])
            keys = [fork.destination.key for fork in forks]
        for key in keys:
            self._queues.note_due(key, now)

    async def put_off(self, stored: StoredMessage, fork: Fork, retry: ForkRetry | None) -> None:
        """Postpone a fork whose attempt had no result: its content cannot be read now, or the failure was unexpected. It waits as
        after a first refusal, and keeps its place in memory until that is recorded; other mail proceeds. Raises nothing."""
        context = self._context
        while True:
            now = context.now()
            waiting = retry or self._forks.queued(stored, fork, now)
            later = now + context.settings.send.queue_glitch_retry_interval
            others = [] if stored.retries else [self._forks.queued(stored, other, now) for other in self._forks.of(stored) if other != fork]
            try:
                await context.ledger.record_queued(stored.envelope.message_id, [replace(waiting, attempts_next_at=later), *others])
                break
            except LedgerUnavailable:
                if context.is_draining:
                    return
                await asyncio.sleep(RECORD_AGAIN_SECONDS)
        self._queues.note_due(fork.destination.key, later)
        for other in others:
            self._queues.note_due(other.next_hop, now)

    # in reject mode, mail for which no client waits must have a copy first

    def needs_copy_first(self, stored: StoredMessage) -> bool:
        """Whether it waits for its copies before its first attempt, for one span at most."""
        transport = self._context.settings.transport
        if not (self._context.is_enabled and transport.reject_message_on_shadow_failure):
            return False
        if not stored.claim.missing_count or not (stored.is_promoted or stored.origin in OF_NO_CLIENT):
            return False
        if any(retry.failures_count for retry in stored.retries):
            return False  # it already waited before its first attempt
        return self._context.now() < self._copy_awaited_until(stored)

    async def parked_for_copy(self, stored: StoredMessage) -> None:
        """Let the message wait for its copy; see `needs_copy_first`."""
        self._want_copy(stored.envelope.message_id)
        await self.parked(stored, WAITS_FOR_COPY, self._copy_awaited_until(stored))

    def _copy_awaited_until(self, stored: StoredMessage) -> datetime:
        since, now = stored.due_at or stored.envelope.arrived_at, self._context.now()
        if since > now:
            return now  # the clock was ahead: how long it has waited is unknown
        return since + self._context.settings.transport.shadow_resubmit_time_span
