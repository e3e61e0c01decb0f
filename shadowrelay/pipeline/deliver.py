"""Delivers messages: one queue per next hop, served in turn. docs/architecture.md "The queues of next hops".

The path of a fork (the recipients of one message that share a next hop):

1. A message that was just accepted is loaded into the queues of its forks, if each has room. In a burst it waits briefly for
   room. Otherwise its forks are recorded in the table of delivery queues and leave memory, as do those of a message found in
   Submission at start, after a promotion, or because it is a new DSN.
2. A queue with due mail and room loads the next forks, at most twice its concurrency (`rules.delivery`). A loaded fork
   waits for one of the queue's sessions; its content is read when that session is open.
3. No attempt starts without the leases that `ownership.rules` require. A message that lacks one is reviewed
   (`pipeline.review`). If the review cannot settle it now, it waits in its queue for the server concerned, whose return wakes it
   (`wake_server`). In reject mode promoted mail and DSNs likewise wait for their copy. Waiting messages are not polled.
4. The outcome is committed as soon as the attempt ends, with the notifications and DSNs it causes. While outcomes cannot be
   recorded, nothing else is delivered: an unrecorded success would be a duplicate.

A restart needs no special path: whatever is due in the ledger is delivered.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

import structlog

from shadowrelay.model.ids import NO_SERVERS, MessageId, ServerName
from shadowrelay.model.message import Content, Ordinals
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import SUBMISSION, WAITS_FOR_COPY, ForkRetry, StoredMessage
from shadowrelay.model.replies import ContentCorrupt, ContentUnreadable, LeaseTooShort, LedgerUnavailable
from shadowrelay.model.routing import Fork
from shadowrelay.model.tracking import Acknowledged
from shadowrelay.ownership import rules
from shadowrelay.pipeline.attempt import ForkAttempt
from shadowrelay.pipeline.context import PAGE, Context, woken_within
from shadowrelay.pipeline.forks import Forks, Outcomes, SameInProgress, Verdicts
from shadowrelay.pipeline.leases import AttemptLease
from shadowrelay.pipeline.next_hop_queue import PARKED_MAX, Enqueuer, NextHopQueue, NextHopQueues
from shadowrelay.pipeline.poison import Suspects, set_aside_corrupt, set_aside_poison, setting_aside
from shadowrelay.protocol import tracking
from shadowrelay.rules import delivery, flight
from shadowrelay.rules.delivery import NO_REPLY, reply_of
from shadowrelay.store import promises, reading

NOTICES_PAGE = 200
TICK_SECONDS = 1.0  # how often the wall clock is checked and failed steps are repeated
SUBMISSION_SECONDS = 15.0  # between unrequested reads of Submission; only messages in progress stay there longer
SUSPENDED_SUBMISSION_SHARE = 20  # of the time, at most one part is spent on reading it
NOTICES_SECONDS = 5.0  # how late a delay notice or an expiry may be without an attempt
ALL = 2**31  # no limit on the messages to wake

_log = structlog.get_logger()


class DeliverService:
    """All delivery queues of the node. What it remembers of messages, besides the queues in memory (`NextHopQueues`):

    | attribute             | contains                           | added by                 | removed by                            |
    |-----------------------|------------------------------------|--------------------------|---------------------------------------|
    | `_fresh`              | messages to be read and examined   | `_look_at`, `placed`     | `_look_at_fresh`; put back on failure |
    | `_in_hand`            | recipients of each loaded fork     | `_load`                  | `_unload`                             |
    | `_in_review`          | loaded forks that lack a lease     | `_work`                  | `_after_review`                       |
    | `_cleared`            | reviewed: may be attempted         | `cleared`, by the review | `_after_review`; put back on failure  |
    | `_blocked`            | reviewed: wait for a server        | `blocked`, by the review | `_after_review`; put back on failure  |
    | `_woken`              | servers whose messages are to wake | `wake_server`            | `_wake_some`, page by page            |
    | `_loaded_since_start` | earlier messages with a LOAD row   | `_log_load`              | `_done`                               |

    A recipient is in at most one entry of `_in_hand`, so that two attempts never deliver to it at the same time. `_cleared` and
    `_blocked` contain only messages in `_in_review`, each in at most one of the two.
    """

    def __init__(
        self,
        context: Context,
        forks: Forks,
        verdicts: Verdicts,
        *,
        request_review: Callable[[MessageId], None],
        note_parked: Callable[[ServerName], None],
        want_copy: Callable[[MessageId], None],
    ) -> None:
        self._context = context
        self._request_review = request_review
        self._note_parked = note_parked
        self._want_copy = want_copy
        self._verdicts = verdicts
        self.forks = forks
        self._suspects = Suspects()
        self._event = asyncio.Event()
        self._queues = queues = NextHopQueues(context, self._event.set, self._without_room, self._concurrency_of)
        self._enqueuer = Enqueuer(context, forks, verdicts, queues, want_copy)
        self._loaded_since_start: set[int] = set()  # internal ids
        self._outcomes = Outcomes(context, verdicts, queues.note_due, self.copy_and_deliver, self._done)
        self._fresh: dict[MessageId, None] = {}
        self._in_hand: dict[MessageId, dict[str, Ordinals]] = {}  # by next hop
        self._in_review: dict[MessageId, dict[str, bool]] = {}  # by next hop: whether it is only `_age`d
        self._cleared: dict[MessageId, frozenset[ServerName]] = {}  # servers whose leases are waived
        self._blocked: dict[MessageId, tuple[ServerName, float]] = {}  # the server, and seconds to wait at most
        self._woken: dict[ServerName, int] = {}  # how many messages to wake
        self._is_submission_wanted = True
        self._are_queues_known = False  # those of the ledger
        self._submission_at = 0.0
        self._notices_at = 0.0
        self._set_backs_count = -1  # the clock may have been set back before the start

    # called by other services

    def reload(self) -> None:
        """Apply the routes and retries of the new configuration: each queue checks where its mail goes now."""
        self.forks.configure(self._context.settings)
        for queue in self._queues:
            queue.concurrency = concurrency = self._concurrency_of(queue.key)
            queue.state = delivery.active(concurrency)
            self._queues.want_turn(queue)
            self._queues.end_arriving(queue, is_over=True)
        for message_id in self._in_hand:
            self._context.flights.happens(message_id, flight.change)  # its forks may differ now
        self._end_wait_for_copies()

    def _concurrency_of(self, key: str) -> int:
        next_hop = self.forks.router.next_hop_of(key)
        return (0 if next_hop is None else next_hop.concurrency) or self._context.settings.send.concurrency_per_destination

    def wake(self) -> None:
        """Submission has a new message."""
        self._is_submission_wanted = True
        self._event.set()

    def copy_and_deliver(self, message_id: MessageId) -> None:
        """A message without a waiting client was committed (a DSN, or one from Safety Net): copy and deliver it."""
        self._want_copy(message_id)
        self._look_at(message_id)

    def _done(self, message_id: MessageId, internal_id: int) -> None:
        """Every recipient of the message is done, and that is recorded."""
        self._loaded_since_start.discard(internal_id)
        if self._context.repeats.waiting:
            self._context.repeats.ended(message_id)
        if self._context.delayed.waiting:
            self._context.delayed.end(message_id, Acknowledged.DONE)

    def first_ended(self, message_id: MessageId) -> None:
        """This message waited for another one with the same content, of which something became: attempt it now."""
        self._context.tasks.spawn(self._due_now(message_id), "repeated")

    async def _due_now(self, message_id: MessageId) -> None:
        for key in await self._context.ledger.commit(promises.resubmitted, message_id):
            self._queues.note_due(key, self._context.now())

    def wake_server(self, server: ServerName, limit: int = ALL) -> None:
        """Wake the messages that wait for this server, at most `limit`: it is back, need not be waited for any longer, or was
        forgotten."""
        self._woken[server] = max(self._woken.get(server, 0), limit)
        self._event.set()

    def _end_wait_for_copies(self) -> None:
        if not self._context.settings.transport.reject_message_on_shadow_failure:
            self.wake_server(WAITS_FOR_COPY)

    def placed(self, message_id: MessageId) -> None:
        """The message has a copy now. The ledger has made its forks due that waited for the copy."""
        self._context.delayed.end(message_id, Acknowledged.COPIED)
        if self._context.settings.transport.reject_message_on_shadow_failure:
            self._fresh[message_id] = None
            self._event.set()

    def cleared(self, message_id: MessageId, excused: frozenset[ServerName]) -> None:
        """Review is done: the message may be attempted, without the leases of `excused`. The waiver is single-use: the server
        may be back by the next attempt."""
        if message_id in self._in_review:
            self._blocked.pop(message_id, None)
            self._cleared[message_id] = excused
            self._event.set()

    def blocked(self, message_id: MessageId, server: ServerName, seconds: float) -> None:
        """Review cannot settle the message now: it waits for this server, at most `seconds`."""
        if message_id in self._in_review:
            self._cleared.pop(message_id, None)
            self._blocked[message_id] = (server, seconds)
            self._event.set()

    def queues(self) -> Mapping[str, NextHopQueue]:
        """The queues in memory, by next hop, for listings."""
        return {queue.key: queue for queue in self._queues}

    async def retry(self, key: str, count: int) -> None:
        """At an administrator's request, probe this next hop now and attempt deferred messages, at most `count`: those deferred again
        meanwhile keep their time. Those that wait for a server or a copy keep waiting. Raises: LedgerUnavailable."""
        context = self._context
        queue = self._queues.of(key)
        now = context.now()
        queue.state = delivery.probed_now(queue.state, now)
        self._queues.note_due(key, now)
        for step in delivery.ladder_steps(context.settings.send):
            while count > 0 and (hastened := await context.ledger.commit(promises.hasten, key, step, now, min(count, PAGE))):
                count -= hastened
                self._queues.note_due(key, now)

    async def returned(self, server: ServerName) -> None:
        """This peer answers again: probe the queues that lead to it now, and attempt what waits in them. Raises: LedgerUnavailable."""
        for queue in self._queues:
            if self.forks.leads_to(queue.key, server):
                await self.retry(queue.key, ALL)

    def suspend(self, key: str) -> None:
        """Start no attempt on this next hop until `resume`; those that run end normally. The ledger remembers it. Of Submission: take
        nothing out of it."""
        if key != SUBMISSION and (queue := self._queues.suspend(key)) is not None:
            self._queues.end_arriving(queue, is_over=True)

    def resume(self, key: str) -> None:
        """Deliver what is due for this next hop, and probe it now if it is in Retry."""
        if key == SUBMISSION:
            self.wake()
            return
        queue = self._queues.resume(key)
        queue.state = delivery.probed_now(queue.state, self._context.now())

    def changed(self, message_id: MessageId, next_hops: Iterable[str]) -> None:
        """An administrator suspended or resumed the message, whose forks are in these queues of the ledger."""
        self._context.flights.happens(message_id, flight.change)
        for key in next_hops:
            self._queues.note_due(key, self._context.now())

    def forks_of(self, stored: StoredMessage) -> list[ForkRetry]:
        """Its forks as they would wait in their queues."""
        now = self._context.now()
        return [self.forks.queued(stored, fork, now) for fork in self.forks.of(stored)]

    def deliver_accepted(self, stored: StoredMessage, content: Content | None) -> None:
        """Deliver a message that was just accepted, which is reserved, so that its claim cannot end. Without `content`
        it is read from the store."""
        message_id = stored.envelope.message_id
        if self._context.is_draining or self._outcomes.is_blocked:
            self._look_later(message_id)  # it is in Submission, once its verdict is recorded
            self._context.flights.happens(message_id, flight.release)
            return
        if SUBMISSION in self._context.ledger.suspended_queues:  # it stays there
            self._context.flights.happens(message_id, flight.release)
            return
        forks = self.forks.of(stored)
        self.forks.log_transfer(stored, forks)
        if all(map(self._queues.has_room, forks)):
            for fork in forks:
                self._load(stored, fork, None, content)
            self._context.flights.happens(message_id, flight.release)
        elif len(forks) != 1 or not self._queues.arrive(stored, forks[0], content):
            self._without_room(stored)

    def _without_room(self, stored: StoredMessage) -> None:
        self._context.tasks.spawn(self._enqueue_accepted(stored, self.forks.of(stored)), "queue")

    async def _enqueue_accepted(self, stored: StoredMessage, forks: Sequence[Fork]) -> None:
        try:
            if not await self._enqueuer.accepted(stored, forks):
                self._look_later(stored.envelope.message_id)
        finally:
            self._context.flights.happens(stored.envelope.message_id, flight.release)

    async def drained(self, seconds: float) -> bool:
        """Wait at most `seconds` until no attempt runs any more. Forks that only wait are released at once."""
        deadline = self._context.clock.awake() + seconds
        for queue in self._queues:
            queue.call_off()
            while queue.arriving:  # it is in Submission
                self._context.flights.happens(queue.arriving.popleft().stored.envelope.message_id, flight.release)
        await asyncio.sleep(0)  # let the called-off tasks finish
        while self._queues.running_count and self._context.clock.awake() < deadline:  # noqa: ASYNC110 - a count has no event
            await asyncio.sleep(0.05)
        return not self._queues.running_count

    def undrained(self) -> None:
        """Deliver again after a drain: read everything anew, because changes during the drain were not followed."""
        self._are_queues_known = False
        self.wake()

    # the loop

    async def run(self) -> None:
        """Give each queue its turn, forever."""
        self._are_queues_known = False  # also after an unexpected error, which may have come in the middle of a turn
        while True:
            self._event.clear()
            self._context.flights.begin_read()
            try:
                if not self._are_queues_known:
                    self._are_queues_known = True
                    await self._open()
                if not self._context.is_draining and self._context.commit_failure is None:
                    await self._turn()
            except LedgerUnavailable as error:
                _log.warning("delivery.waits", reason=error.reason)
                self._are_queues_known = False  # a failed commit may be on disk nevertheless: list the queues again
                await asyncio.sleep(TICK_SECONDS)
            await woken_within(self._event, self._pause())

    async def _open(self) -> None:
        """Note the queues that the ledger has."""
        for key, due_at in (await self._context.ledger.read(reading.delivery_queues)).items():
            self._queues.note_due(key, due_at)
        self._end_wait_for_copies()

    def _pause(self) -> float:
        seconds = self._queues.seconds_until_turn()
        if self._context.is_draining or self._context.commit_failure is not None or seconds is None:
            return TICK_SECONDS
        return min(seconds, TICK_SECONDS)

    async def _turn(self) -> None:
        await self._outcomes.unblocked()
        context = self._context
        ahead = context.note_clock()
        if (set_backs_count := context.set_backs_count) != self._set_backs_count:
            await self._queues.hasten()
            self._set_backs_count = set_backs_count
        await self._after_review()
        for server in tuple(self._woken):
            await self._wake_some(server)
        if self._fresh:
            await self._look_at_fresh()
        if self._is_submission_wanted or context.clock.awake() >= self._submission_at:
            self._is_submission_wanted = False
            self._submission_at = context.clock.awake() + SUBMISSION_SECONDS
            await self._categorize()
        if context.clock.awake() >= self._notices_at:
            self._notices_at = context.clock.awake() + min(NOTICES_SECONDS, context.heartbeat)
            await self._age(context.now() - ahead)
        now = context.now()
        for queue in self._queues.turns(now):
            try:
                await self._fill(queue, now)
            except LedgerUnavailable:
                self._queues.want_turn(queue)
                raise

    # queues

    async def _fill(self, queue: NextHopQueue, now: datetime) -> None:
        """Load due forks, as far as there is room."""
        if not queue.is_behind(now):
            self._queues.forget_if_idle(queue)
            return
        room = self._queues.room(queue, now)
        if room <= 0 or (queue.state.retry is None and queue.working_count > queue.concurrency):
            return  # its next turn comes with a free session, or at the time of the probe
        context = self._context
        wanted, noted_count = room + len(queue.loaded), queue.noted_count
        context.flights.begin_read()
        found = await context.ledger.read(reading.due, queue.key, now, wanted)
        is_all_loaded, is_rerouted = len(found) < wanted, False
        for stored in found:
            if stored.envelope.message_id in queue.loaded or stored.claim.role is not Role.PRIMARY:
                continue
            async with setting_aside(context, stored):
                forks = {fork.destination.key: fork for fork in self.forks.of(stored)}
                fork = forks.get(queue.key)
                if fork is None or len(forks) > len(stored.retries):
                    await self._enqueuer.rerouted(stored, queue.key)
                    is_rerouted = True
                elif room <= 0:
                    is_all_loaded = False  # some loaded forks came from Submission and are not in the ledger's queue
                elif self._load(stored, fork, None, None):
                    room -= 1
        if is_all_loaded:
            next_due_at = await context.ledger.read(reading.next_due_at, queue.key, now)
            if queue.noted_count == noted_count:
                queue.due_at = None
                self._queues.note_due(queue.key, next_due_at)
                self._queues.forget_if_idle(queue)
                return
            self._queues.want_turn(queue)
        elif self._queues.room(queue, now) > 0:
            if queue.state.retry is None or is_rerouted:
                self._queues.want_turn(queue)  # a message that was rerouted is no probe
            else:  # nor is one that changed since it was read: it may be another server's by now
                self._queues.want_turn_at(queue, now + timedelta(seconds=TICK_SECONDS))

    @property
    def _is_submission_suspended(self) -> bool:
        return SUBMISSION in self._context.ledger.suspended_queues

    async def _categorize(self) -> None:
        """Move the messages in Submission to the queues of their forks. While it is suspended, only end those that have expired."""
        began = self._context.clock.awake()
        after = 0
        while page := await self._read_submission(after):
            after = page[-1].internal_id
            if self._is_submission_suspended:
                await self._expire_in_submission(page)
            else:
                await self._load_or_record(page)
            if len(page) < PAGE:
                break
        if self._is_submission_suspended:  # it may be long, and is read as a whole
            took = self._context.clock.awake() - began
            self._submission_at = max(self._submission_at, began + SUSPENDED_SUBMISSION_SHARE * took)

    async def _expire_in_submission(self, messages: Sequence[StoredMessage]) -> None:
        context = self._context
        now = context.now() - context.note_clock()
        for stored in messages:
            message_id = stored.envelope.message_id
            if stored.claim.role is not Role.PRIMARY or message_id in self._in_review or context.flights[message_id].is_busy:
                continue
            async with setting_aside(context, stored):
                if delivery.is_expired(stored.envelope.arrived_at, now, context.settings.transport.message_expiration_timeout):
                    for fork in self.forks.of(stored):
                        self._load(stored, fork, None, None, is_aging=True)

    async def _look_at_fresh(self) -> None:
        fresh, self._fresh = self._fresh, {}
        self._context.flights.begin_read()
        try:
            found = await self._context.ledger.read(reading.load_many, list(fresh))
        except LedgerUnavailable:
            self._fresh = fresh | self._fresh
            raise
        await self._load_or_record([message for message in found if not message.retries])
        for message in found:
            for retry in message.retries:
                self._queues.note_due(retry.next_hop, retry.attempts_next_at)

    async def _load_or_record(self, messages: Sequence[StoredMessage]) -> None:
        """Load each message if all of its queues have room, else record it in the ledger's queues."""
        to_record: list[tuple[StoredMessage, Sequence[Fork]]] = []
        for stored in messages:
            message_id = stored.envelope.message_id
            if message_id in self._in_review or stored.claim.role is not Role.PRIMARY or self._is_submission_suspended:
                continue
            if not stored.is_decided:
                self._look_later(message_id)
                continue
            async with setting_aside(self._context, stored):
                forks = self.forks.of(stored)
                if not self._load_found(stored, forks):
                    to_record.append((stored, forks))
        if to_record:
            await asyncio.gather(*(self._enqueue_found(stored, forks) for stored, forks in to_record))

    def _load_found(self, stored: StoredMessage, forks: Sequence[Fork]) -> bool:
        """Load a message found in Submission, unless it is in use. False: it has to wait in the ledger's queues."""
        message_id = stored.envelope.message_id
        if self._context.flights[message_id].is_busy:
            if not all(message_id in self._queues.of(fork.destination.key).loaded for fork in forks):
                self._look_later(message_id)  # in use for a moment
            return True
        if stored.suspended is not None or self._enqueuer.needs_copy_first(stored) or not all(map(self._queues.has_room, forks)):
            return False
        self.forks.log_transfer(stored, forks)
        for fork in forks:
            self._load(stored, fork, None, None)
        return True

    async def _enqueue_found(self, stored: StoredMessage, forks: Sequence[Fork]) -> None:
        try:
            async with setting_aside(self._context, stored):
                await self._enqueuer.found(stored, forks)
        except LedgerUnavailable:
            self._is_submission_wanted = True
            raise

    async def _read_submission(self, after: int) -> tuple[StoredMessage, ...]:
        self._context.flights.begin_read()
        return await self._context.ledger.read(reading.submission, PAGE, after)

    async def _wake_some(self, server: ServerName) -> None:
        """Wake a page of the messages that wait for this server; the rest follow in the next turn."""
        limit = self._woken.pop(server)  # before the await: a request that arrives meanwhile may be for messages parked meanwhile
        page = min(limit, PAGE)
        try:
            counts = await self._context.ledger.commit(promises.wake, server, page)
        except LedgerUnavailable:
            self.wake_server(server, limit)
            raise
        now = self._context.now()
        for key in counts:
            self._queues.note_due(key, now)
        if sum(counts.values()) >= page and limit > page:
            self.wake_server(server, limit)

    # leases

    async def _after_review(self) -> None:
        cleared, self._cleared = self._cleared, {}
        blocked, self._blocked = self._blocked, {}
        if not cleared and not blocked:
            return
        self._context.flights.begin_read()
        try:
            found = await self._context.ledger.read(reading.load_many, [*cleared, *blocked])
        except LedgerUnavailable:
            self._cleared, self._blocked = cleared | self._cleared, blocked | self._blocked
            raise
        messages = {message.envelope.message_id: message for message in found}
        for message_id in (*cleared, *blocked):
            if message_id in self._cleared or message_id in self._blocked:
                continue  # review decided again while we read: handled in the next turn
            reviewed = self._in_review.pop(message_id, {})
            for key in reviewed:
                self._unload(self._queues.of(key), message_id)
            stored = messages.get(message_id)
            if stored is None or stored.claim.role is not Role.PRIMARY:
                continue
            try:
                if self._is_submission_suspended and not stored.retries and message_id in blocked:
                    continue
                if message_id in blocked:
                    server, seconds = blocked[message_id]
                    await self._enqueuer.parked(stored, server, self._context.now() + min(timedelta(seconds=seconds), PARKED_MAX))
                    self._note_parked(server)  # the server may have returned while this was written
                else:
                    await self._continue_reviewed(stored, reviewed, cleared[message_id])
            except LedgerUnavailable as error:
                _log.warning("delivery.put_off", message_id=message_id, reason=error.reason)
                self._look_later(message_id)
            except Exception:
                _log.exception("delivery.failed", message_id=message_id)
                self._look_later(message_id)

    async def _continue_reviewed(self, stored: StoredMessage, reviewed: Mapping[str, bool], excused: frozenset[ServerName]) -> None:
        """The leases suffice or are waived: continue the forks that requested the review. One whose route changed meanwhile goes back to
        its queue, which gives it to the right one."""
        forks = self.forks.of(stored)
        is_returned = not reviewed.keys() <= {fork.destination.key for fork in forks}
        for fork in forks:
            is_aging = reviewed.get(fork.destination.key)
            if is_aging is None:
                continue
            queue = self._queues.of(fork.destination.key)
            if is_aging or excused or self._queues.room(queue, self._context.now()) > 0:
                self._load(stored, fork, None, None, excused=excused, is_aging=is_aging)
            else:
                is_returned = True
        if is_returned:
            await self._enqueuer.returned(stored)

    def _without_lease(self, stored: StoredMessage, excused: frozenset[ServerName]) -> bool:
        """Rule *lease*: whether a lease neither suffices nor is waived. Rule *rolled back*: or other nodes must be asked first."""
        leases = self._context.leases
        message_id = stored.envelope.message_id
        if rules.is_of_older_copy(stored.claim, self._context.me):
            return True
        return not excused.issuperset(rules.without_lease(stored.claim, partial(leases.suffices, message_id)))

    # attempts

    def _load(
        self,
        stored: StoredMessage,
        fork: Fork,
        retry: ForkRetry | None,
        content: Content | None,
        *,
        excused: frozenset[ServerName] = NO_SERVERS,
        is_aging: bool = False,
    ) -> bool:
        """Start work on a fork; False if it must not start now, which a later read decides again."""
        context = self._context
        message_id, key = stored.envelope.message_id, fork.destination.key
        queue = self._queues.of(key)
        if message_id in queue.loaded or (stored.suspended is not None and not is_aging):
            return False
        in_hand = self._in_hand.get(message_id, {})
        if in_hand and any(fork.ordinals & ordinals for ordinals in in_hand.values()):
            self._look_later(message_id)  # routes changed: another fork has these recipients until its attempt is over
            return False
        lease = AttemptLease(context.leases, context.flights, stored, excused)  # servers listed from now on are not in this claim
        if not context.flights.happens(message_id, flight.load, key):
            self._look_later(message_id)
            return False
        if retry is None and stored.retries:
            retry = next((retry for retry in stored.retries if retry.next_hop == key), None)
        self._queues.add(queue, message_id)
        in_hand = self._in_hand.setdefault(message_id, in_hand)
        in_hand[key] = fork.ordinals
        self._queues.running_count += 1
        if stored.internal_id <= context.ledger.last_id_at_start:
            self._log_load(stored)
        attempt = ForkAttempt(context, stored, fork, retry, content, lease, in_hand, is_aging)
        context.tasks.spawn(self._work(queue, attempt), "deliver")
        return True

    def _log_load(self, stored: StoredMessage) -> None:
        """Write LOAD, once for each message from before this start."""
        context = self._context
        if stored.internal_id not in self._loaded_since_start:
            self._loaded_since_start.add(stored.internal_id)
            context.tracking.write(tracking.load(context.me.server, stored, at=context.now()))

    def _unload(self, queue: NextHopQueue, message_id: MessageId) -> None:
        if message_id not in queue.loaded:
            return
        in_hand = self._in_hand[message_id]
        del in_hand[queue.key]
        if not in_hand:
            del self._in_hand[message_id]
        self._queues.remove(queue, message_id)

    async def _work(self, queue: NextHopQueue, attempt: ForkAttempt) -> None:
        """Process one fork, from its place in memory to its recorded outcome."""
        stored, is_aging = attempt.stored, attempt.is_aging
        message_id = stored.envelope.message_id
        is_in_review = is_put_off = has_session = False
        reason = ""
        try:
            try:
                has_session = not is_aging and await queue.session()
                if is_aging or (has_session and self._is_open(queue)):
                    if self._context.flights.happens(message_id, flight.start, queue.key):
                        is_in_review = await self._attempt(queue, attempt)
                    else:
                        self._look_at(message_id)  # the message changed while the fork waited
                else:
                    await self._enqueuer.returned(stored)
            except LedgerUnavailable as error:
                _log.warning("delivery.put_off", message_id=message_id, next_hop=queue.key, reason=error.reason)
                is_put_off, reason = True, str(error)
            except SameInProgress as error:
                _log.info("delivery.same_in_progress", message_id=message_id, next_hop=queue.key, reason=error.reply.text)
                is_put_off, reason = True, str(error.reply)
            except Exception:
                _log.exception("delivery.failed", message_id=message_id, next_hop=queue.key)
                is_put_off = True
            finally:
                if has_session:
                    queue.release()
            if is_put_off:
                async with setting_aside(self._context, stored):
                    await self._enqueuer.put_off(stored, attempt.fork, attempt.retry, reason)
        finally:
            self._queues.running_count -= 1
            self._context.flights.happens(message_id, flight.end, queue.key)
            if is_in_review:
                self._in_review.setdefault(message_id, {})[queue.key] = is_aging
                queue.reviewing.add(message_id)
                self._queues.use_room(queue)
                self._request_review(message_id)
            else:
                self._unload(queue, message_id)
        if queue.arriving and queue.state.retry is None and self._queues.room(queue, self._context.now()) > 0:
            next_one = queue.arriving.popleft()
            next_id = next_one.stored.envelope.message_id
            if self._context.flights[next_id].is_changed_meanwhile:
                self._look_later(next_id)
            else:
                self._load(next_one.stored, next_one.fork, None, next_one.content)
            self._context.flights.happens(next_id, flight.release)

    def _is_open(self, queue: NextHopQueue) -> bool:
        """Whether the queue may be worked on or probed now."""
        if self._context.is_draining or queue.is_suspended:
            return False
        state, now = queue.state, self._context.now()
        if state.paused_until is not None and now < state.paused_until:
            return False
        return state.retry is None or now >= state.retry.probe_at

    def _look_later(self, message_id: MessageId) -> None:
        """Examine the message again in a moment: it could not be read or written now, or was in use."""
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._look_at, message_id)

    def _look_at(self, message_id: MessageId) -> None:
        self._fresh[message_id] = None
        self._event.set()

    async def _attempt(self, queue: NextHopQueue, attempt: ForkAttempt) -> bool:
        """True: its leases must be reviewed first."""
        context, stored = self._context, attempt.stored
        course = delivery.due_action(stored.deaths_count)
        if course is delivery.DueAction.SET_ASIDE:
            await set_aside_poison(context, stored)
            return False
        if self._without_lease(stored, attempt.lease.excused):
            return True
        if context.settings.transport.reject_message_on_shadow_failure and self._enqueuer.needs_copy_first(stored):
            await self._enqueuer.parked_for_copy(stored)
            return False
        record = partial(self._outcomes.record, stored)
        began_at = context.clock.awake()
        try:
            if attempt.is_aging:
                row = "" if attempt.retry is None else attempt.retry.last_reply
                last = row if queue.state.retry is None else queue.state.retry.last_reply
                await self.forks.age(attempt, reply_of(last) if last else NO_REPLY, record)
                return False
            if course is delivery.DueAction.GO:
                was_attempted = await self.forks.attempt(attempt, record)
            else:
                async with self._suspects.turn():
                    was_attempted = await self.forks.attempt(attempt, record)
            if was_attempted:
                self._queues.note_answer(queue, stored.envelope.message_id, attempt.failure, began_at)
        except (LeaseTooShort, ContentCorrupt, LedgerUnavailable) as error:
            if attempt.has_session and not attempt.is_aging:
                self._queues.note_answer(queue, stored.envelope.message_id, None, began_at)
            if isinstance(error, ContentCorrupt) or self._can_be_read_elsewhere(stored, error):
                await set_aside_corrupt(context, stored, str(error))
            elif isinstance(error, LedgerUnavailable):
                raise
            return isinstance(error, LeaseTooShort)
        return False

    def _can_be_read_elsewhere(self, stored: StoredMessage, error: Exception) -> bool:
        """Whether this disk cannot read the content for good, as it seems, and another server has a copy that it can use now."""
        if not (isinstance(error, ContentUnreadable) and error.is_lasting):
            return False
        heir = rules.heir(stored.claim)
        return heir is not None and self._context.peers.is_reachable(heir.server)

    async def _age(self, now: datetime) -> None:
        """Notify senders of late and expired messages that cannot be attempted now: the next hop is unreachable, or others come first."""
        context = self._context
        grace = context.settings.send.queue_glitch_retry_interval
        context.flights.begin_read()
        page = NOTICES_PAGE + min(self._queues.running_count, delivery.LOADED_MAX)
        for stored in await context.ledger.read(reading.notices_due, now, page):
            async with setting_aside(context, stored):
                forks = {fork.destination.key: fork for fork in self.forks.of(stored)}
                is_over = delivery.is_expired(stored.envelope.arrived_at, now, context.settings.transport.message_expiration_timeout)
                for retry in stored.retries:
                    if retry.notice_at is None or retry.notice_at > now or retry.next_hop not in forks:
                        continue
                    queue = self._queues.of(retry.next_hop)
                    if is_over and queue.state.retry is None and now < retry.notice_at + grace:
                        continue  # its last attempt is due now
                    self._load(stored, forks[retry.next_hop], retry, None, is_aging=True)
