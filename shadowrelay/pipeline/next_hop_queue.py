"""The queues of next hops: in memory, with their turns, and in the ledger. docs/architecture.md "The queues of next hops".

A queue has loaded forks, forks that wait for a session, and messages that wait for room. `delivery` decides how much may be
loaded and when the next hop is probed; `deliver` gives the queues their turns.

A message is recorded in the ledger's queues when those in memory have no room, when it waits for a server or a copy, when its routes
changed, or when an attempt had no result. Each method of `Enqueuer` is one transaction; afterwards `note_due` informs the queues in memory.
"""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from math import inf
from typing import NamedTuple

import structlog

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Content
from shadowrelay.model.ownership import Claim, Transition
from shadowrelay.model.queue import NEVER, WAITS_FOR_COPY, ForkRetry, Origin, StoredMessage
from shadowrelay.model.replies import DeliveryError, LedgerUnavailable
from shadowrelay.model.routing import Fork
from shadowrelay.model.values import dataclass, replace
from shadowrelay.pipeline.context import LEDGER_AGAIN_SECONDS, PAGE, Context
from shadowrelay.pipeline.forks import Forks, Verdicts
from shadowrelay.rules import delivery, flight
from shadowrelay.rules.delivery import QueueState
from shadowrelay.store import promises

PARKED_MAX = timedelta(minutes=30)  # a message that waits for a server is checked again, in case the event was missed
ARRIVING_SECONDS = 0.2  # less than `pipeline.forks.OWN_COMMIT_AFTER_SECONDS`
ARRIVING_GRAIN_SECONDS = 0.01  # messages whose wait ends within this time are handled together
REVIEWING_MAX = 400  # per queue, in addition to what it may load: a page of questions
OF_NO_CLIENT = (Origin.DSN, Origin.JOURNAL, Origin.SAFETY_NET)

_log = structlog.get_logger()


class Arriving(NamedTuple):
    """A message just accepted, with one fork, for which there was no room. `until`: in time of the event loop."""

    stored: StoredMessage
    fork: Fork
    content: Content | None
    until: float


@dataclass(slots=True, eq=False)
class NextHopQueue:
    """The queue of one next hop in memory. `loaded` are the messages whose fork is being worked on or in review; `arriving`
    messages take their places in order as they become free.

    Shapes: `due_at` is when the first fork that is in the ledger but not loaded is due; `None`: there is none.
    """

    key: str
    concurrency: int
    state: QueueState
    loaded: set[MessageId] = field(default_factory=set)
    reviewing: set[MessageId] = field(default_factory=set)  # subset of `loaded`
    due_at: datetime | None = None
    noted_count: int = 0  # calls of `note_due`: a read does not include forks noted while it ran
    running_count: int = 0
    is_suspended: bool = False
    arriving: deque[Arriving] = field(default_factory=deque)
    arriving_timer: asyncio.TimerHandle | None = None
    _waiting: deque["asyncio.Future[bool]"] = field(default_factory=deque)

    async def session(self) -> bool:
        """Wait for a session, first come, first served; `release` gives it back. False: it was called off."""
        if self.running_count < self.concurrency:
            self.running_count += 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.release()
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self.running_count -= 1

    def call_off(self) -> None:
        """Send the forks that wait for a session back to the queue."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(False)

    @property
    def working_count(self) -> int:
        """Forks that use room. Those in review do not, so that a silent peer does not block other mail."""
        return len(self.loaded) - min(len(self.reviewing), REVIEWING_MAX)

    def is_behind(self, now: datetime) -> bool:
        """Whether due mail waits in the ledger."""
        return self.due_at is not None and self.due_at <= now


class NextHopQueues:
    """All queues in memory, by next hop, and when each needs a turn. `wake` is called when one needs it now, `without_room` with a
    message just accepted that has waited for room in vain. `concurrency_of`: how many sessions a next hop may have.

    A queue is in memory while something is loaded or waits; `forget_if_idle` drops it afterwards.
    """

    def __init__(
        self,
        context: Context,
        wake: Callable[[], None],
        without_room: Callable[[StoredMessage], None],
        concurrency_of: Callable[[str], int],
    ) -> None:
        self._context = context
        self._wake = wake
        self._concurrency_of = concurrency_of
        self._without_room = without_room
        self._queues: dict[str, NextHopQueue] = {}
        self._busy_count = 0  # queues with something loaded
        self._ready: dict[str, None] = {}  # queues that need a turn now, in order
        self._times: list[tuple[datetime, str]] = []  # heap: when a queue needs one
        self._suspended = set(context.ledger.suspended_queues)
        self._chance = random.Random()
        self.running_count = 0  # attempts: loaded, and not in review

    def __iter__(self) -> Iterator[NextHopQueue]:
        return iter(tuple(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def of(self, key: str) -> NextHopQueue:
        """The queue of this next hop, created if missing."""
        queue = self._queues.get(key)
        if queue is None:
            concurrency = self._concurrency_of(key)
            state = delivery.active(concurrency)
            queue = self._queues[key] = NextHopQueue(key, concurrency, state, is_suspended=key in self._suspended)
        return queue

    def suspend(self, key: str) -> NextHopQueue | None:
        """Nothing is loaded into this queue any more, and what waits in memory for a session goes back. `None`: it is not in memory."""
        self._suspended.add(key)
        queue = self._queues.get(key)
        if queue is not None:
            queue.is_suspended = True
            queue.call_off()
        return queue

    def resume(self, key: str) -> NextHopQueue:
        """Its turn is now."""
        self._suspended.discard(key)
        queue = self.of(key)
        queue.is_suspended = False
        self.want_turn(queue)
        return queue

    def forget_if_idle(self, queue: NextHopQueue) -> bool:
        """Drop the queue if nothing is loaded and nothing waits; returns whether it did. An earlier failure of the next hop need not be
        kept for the next message."""
        if not queue.loaded and queue.due_at is None and not queue.arriving:
            self._queues.pop(queue.key, None)
            return True
        return False

    # room

    def has_room(self, fork: Fork) -> bool:
        """Whether there is room for a message just accepted."""
        queue = self._queues.get(fork.destination.key)
        if queue is None:
            return fork.destination.key not in self._suspended
        now = self._context.now()
        is_behind = queue.is_behind(now)
        return delivery.takes_new(
            queue.state,
            self.room(queue, now),
            others_wait=bool(queue.arriving),
            is_behind=is_behind,
            has_free_session=not is_behind or queue.working_count < queue.concurrency,  # it matters only where due mail waits
        )

    def room(self, queue: NextHopQueue, now: datetime) -> int:
        """How many more forks it may load now."""
        if queue.is_suspended:
            return 0
        working_count = queue.working_count
        share = delivery.share(self._busy_count + (not queue.loaded), working_count, self.running_count)
        return delivery.room(queue.state, working_count, share, now)

    def add(self, queue: NextHopQueue, message_id: MessageId) -> None:
        """Give this message a place in the queue."""
        self._busy_count += not queue.loaded
        queue.loaded.add(message_id)

    def remove(self, queue: NextHopQueue, message_id: MessageId) -> None:
        """Free the place of this message, for due mail to take."""
        queue.loaded.remove(message_id)
        queue.reviewing.discard(message_id)
        self._busy_count -= not queue.loaded
        if queue.due_at is not None:
            self.use_room(queue)
        elif not queue.loaded:
            self.forget_if_idle(queue)

    def arrive(self, stored: StoredMessage, fork: Fork, content: Content | None) -> bool:
        """Wait briefly for room: a fast next hop makes room sooner than a round trip through the ledger would take."""
        queue = self.of(fork.destination.key)
        is_behind = queue.is_behind(self._context.now())
        if queue.is_suspended or not delivery.may_arrive(queue.state, len(queue.arriving), queue.concurrency, is_behind=is_behind):
            return False
        loop = asyncio.get_running_loop()
        until = loop.time() + ARRIVING_SECONDS
        if queue.arriving_timer is None:
            queue.arriving_timer = loop.call_at(until, self.end_arriving, queue)
        queue.arriving.append(Arriving(stored, fork, content, until))
        return True

    def end_arriving(self, queue: NextHopQueue, *, is_over: bool = False) -> None:
        """The wait is over for messages that waited long enough; for all of them if `is_over`."""
        loop = asyncio.get_running_loop()
        if queue.arriving_timer is not None:
            queue.arriving_timer.cancel()
            queue.arriving_timer = None
        ends_at = inf if is_over else loop.time() + ARRIVING_GRAIN_SECONDS
        while queue.arriving and queue.arriving[0].until <= ends_at:
            self._without_room(queue.arriving.popleft().stored)
        if queue.arriving:
            queue.arriving_timer = loop.call_at(queue.arriving[0].until, self.end_arriving, queue)

    # turns

    def use_room(self, queue: NextHopQueue) -> None:
        """Let due mail take a free place."""
        if queue.is_behind(self._context.now()) and queue.working_count <= queue.concurrency:
            self.want_turn(queue)

    def want_turn(self, queue: NextHopQueue) -> None:
        """Request a turn as soon as possible."""
        self._ready[queue.key] = None
        self._wake()

    def want_turn_at(self, queue: NextHopQueue, at: datetime) -> None:
        heapq.heappush(self._times, (at, queue.key))

    def note_due(self, key: str, at: datetime | None) -> None:
        """A fork in this queue of the ledger is due at that time."""
        if at is None or at >= NEVER:
            return
        queue = self.of(key)
        queue.noted_count += 1
        is_sooner = queue.due_at is None or at < queue.due_at
        if is_sooner:
            queue.due_at = at
        if at <= self._context.now():
            self.want_turn(queue)
        elif is_sooner:  # else it is found when the earlier ones are loaded
            self.want_turn_at(queue, at)

    def seconds_until_turn(self) -> float | None:
        """None: no queue needs a turn at a known time."""
        if not self._times:
            return None
        if self._ready:
            return 0.0
        return max((self._times[0][0] - self._context.now()).total_seconds(), 0.0)

    def turns(self, now: datetime) -> Iterator[NextHopQueue]:
        """The queues whose turn it is now, in order. A queue that requests another turn meanwhile gets it in the next round."""
        while self._times and self._times[0][0] <= now:
            _, key = heapq.heappop(self._times)
            self._ready[key] = None
        for key in tuple(self._ready):
            self._ready.pop(key, None)
            if (queue := self._queues.get(key)) is not None:
                yield queue

    async def hasten(self) -> None:
        """Shorten waits to their intervals: a row due later was written while the wall clock was ahead. Raises: LedgerUnavailable."""
        now, send = self._context.now(), self._context.settings.send
        for queue in self:
            queue.state = delivery.hastened(queue.state, now, send)
            if queue.state.retry is not None:
                self.want_turn_at(queue, queue.state.retry.probe_at)
            if queue.state.paused_until is not None:
                self.want_turn_at(queue, queue.state.paused_until)
            count = 0
            waits = [(step, step.wait) for step in delivery.ladder_steps(send)]
            for step, wait in (*waits, (None, min(PARKED_MAX, self._context.settings.transport.shadow_resubmit_time_span))):
                while page := await self._context.ledger.commit(promises.hasten, queue.key, step, now + wait, PAGE):
                    count += page
                    self.note_due(queue.key, now + wait)
            if count:
                _log.warning("queue.hastened", next_hop=queue.key, count=count)

    # what attempts show about the next hop

    def note_answer(self, queue: NextHopQueue, message_id: MessageId, failure: DeliveryError | None, began_at: float) -> None:
        """See `delivery`: the queue is in Retry, paced, or Active. `failure`: why there was no answer; None: there was one. `began_at`:
        when the attempt did, in `Clock.awake`."""
        context = self._context
        before, reply = queue.state, "" if failure is None else str(failure.reply)
        if failure is None:
            queue.state = delivery.after_answer(before, queue.concurrency)
        elif not failure.is_unreachable:
            queue.state = delivery.after_lost_session(before, message_id, queue.concurrency, context.now())
        else:
            send, chance, now = context.settings.send, self._chance.random(), context.now()
            queue.state = delivery.after_unreachable(
                before, reply, began_at, context.clock.awake(), now, send, chance, is_limited=failure.is_limited
            )
        after = queue.state
        if after is before:
            return
        if after.retry is not None:
            queue.call_off()
            self.want_turn_at(queue, after.retry.probe_at)
            if before.retry is None:
                _log.warning("queue.retry", next_hop=queue.key, reply=reply, probe_at=after.retry.probe_at.isoformat())
            return
        if before.retry is not None:
            _log.info("queue.active", next_hop=queue.key, since=before.retry.since.isoformat(), probes=before.retry.failures_count)
        if after.paused_until is not None:
            queue.call_off()
            self.want_turn_at(queue, after.paused_until)
            if before.paused_until is None:
                _log.warning("queue.sessions_lost", next_hop=queue.key, reply=reply)
            return
        if before.paused_until is not None:
            _log.info("queue.sessions_kept", next_hop=queue.key)
        self.want_turn(queue)


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
            await self._context.ledger.commit(promises.queued, message_id, retries, (), decide if has_verdict else None)
        except LedgerUnavailable as error:
            _log.warning("delivery.unqueued", message_id=message_id, reason=error.reason)
            if has_verdict:
                self._verdicts.add(message_id, decide)
            return False
        if has_verdict:
            self._context.flights.happens(message_id, flight.end_copy)
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
        await self._context.ledger.commit(promises.queued, stored.envelope.message_id, retries)
        self._forks.log_transfer(stored, forks)
        for retry in retries:
            self._queues.note_due(retry.next_hop, retry.attempts_next_at)

    async def rerouted(self, stored: StoredMessage, key: str) -> None:
        """Record the current forks, each in its queue: routes changed since it was queued, or a fork is in no queue."""
        now = self._context.now()
        forks = self._forks.of(stored)
        present = {retry.next_hop for retry in stored.retries}
        fresh = [fork for fork in forks if fork.destination.key not in present]
        gone = () if any(fork.destination.key == key for fork in forks) else (key,)
        await self._context.ledger.commit(
            promises.queued, stored.envelope.message_id, [self._forks.queued(stored, fork, now) for fork in fresh], gone
        )
        self._forks.log_transfer(stored, fresh)
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
        await self._context.ledger.commit(promises.queued, stored.envelope.message_id, waiting)
        for retry in waiting:
            self._queues.note_due(retry.next_hop, until)

    async def returned(self, stored: StoredMessage) -> None:
        """Return a loaded message to its queues; record it there if it is in none."""
        now = self._context.now()
        keys = [retry.next_hop for retry in stored.retries]
        if not keys:
            forks = self._forks.of(stored)
            await self._context.ledger.commit(
                promises.queued, stored.envelope.message_id, [self._forks.queued(stored, fork, now) for fork in forks]
            )
            keys = [fork.destination.key for fork in forks]
        for key in keys:
            self._queues.note_due(key, now)

    async def put_off(self, stored: StoredMessage, fork: Fork, retry: ForkRetry | None, reason: str = "") -> None:
        """Postpone a fork whose attempt had no result: its content cannot be read now, the same message comes first (`reason`), or the
        failure was unexpected. It waits as after a first refusal, and keeps its place in memory until that is recorded; other mail
        proceeds. Raises nothing."""
        context = self._context
        while True:
            now = context.now()
            waiting = retry or self._forks.queued(stored, fork, now)
            if reason:
                waiting = replace(waiting, last_reply=reason)
            later = now + context.settings.send.queue_glitch_retry_interval
            others = [] if stored.retries else [self._forks.queued(stored, other, now) for other in self._forks.of(stored) if other != fork]
            try:
                await context.ledger.commit(
                    promises.queued, stored.envelope.message_id, [replace(waiting, attempts_next_at=later), *others]
                )
                break
            except LedgerUnavailable:
                if context.is_draining:
                    return
                await asyncio.sleep(LEDGER_AGAIN_SECONDS)
        self._queues.note_due(fork.destination.key, later)
        for other in others:
            self._queues.note_due(other.next_hop, now)

    # in reject mode, mail for which no client waits must have a copy first

    def needs_copy_first(self, stored: StoredMessage) -> bool:
        """Whether it waits for its copies before its first attempt, for one span at most."""
        if not (stored.is_promoted or stored.origin in OF_NO_CLIENT) or not stored.claim.missing_count:
            return False
        if not (self._context.is_enabled and self._context.settings.transport.reject_message_on_shadow_failure):
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
