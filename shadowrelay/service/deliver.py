"""Delivering: what is due goes to its next hops; outcomes are one commit with the notifications and DSNs they cause.

A message comes straight from its acceptance, or from the ledger when it is due: restart is nothing special. No attempt
starts without the leases that `core.ownership.rules` ask for, and none while outcomes cannot be recorded.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

import structlog

from shadowrelay.core import fencing, tracking_rows
from shadowrelay.core.ownership import primary, rules
from shadowrelay.model.errors import ContentCorrupt, LeaseTooShort, LedgerUnavailable
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Content
from shadowrelay.model.ownership import Claim, Transition
from shadowrelay.model.queue import AttemptRecord, Origin, StoredMessage
from shadowrelay.service.context import Context
from shadowrelay.service.corrupt import set_aside, set_aside_corrupt
from shadowrelay.service.forks import ForkResult, Forks
from shadowrelay.service.verdicts import Verdicts

WINDOW = 2000  # messages worked on at one time; the rest waits in the ledger
SCAN_SECONDS = 1.0
NOBODY: frozenset[ServerName] = frozenset()
DEATHS_MAX = 3  # DESIGN 6.9
RECORD_AGAIN_SECONDS = 1.0

_log = structlog.get_logger("shadowrelay.deliver")


class DeliverService:
    """The active window of the queue."""

    def __init__(self, context: Context, forks: Forks, verdicts: Verdicts) -> None:
        self._context = context
        self._verdicts = verdicts
        self._forks = forks
        self._event = asyncio.Event()
        self._active: set[MessageId] = set()
        self._blocked: set[MessageId] = set()  # in review, or waiting for a copy
        self._excused: dict[MessageId, frozenset[ServerName]] = {}  # may go without these servers' leases: they cannot be reached
        self._can_record = asyncio.Event()
        self._can_record.set()
        self._seen_at_start: set[MessageId] = set()
        self._started_at = context.now()
        self.request_review: Callable[[MessageId], None] = lambda message_id: None
        self.wake_placement: Callable[[], None] = lambda: None

    def reload(self) -> None:
        """Routes and retries of the present configuration."""
        self._forks.configure(self._context.settings)

    def wake(self) -> None:
        """Something is due."""
        self._event.set()

    def take_over(self, stored: StoredMessage, content: Content | None) -> None:
        """A message just accepted, its attempt already begun (`Attempts.begin`) so that its claim could not end. Without
        `content` it is read from the store."""
        message_id = stored.envelope.message_id
        if len(self._active) >= WINDOW or self._context.is_draining or not self._can_record.is_set():
            self._context.attempts.end(message_id)
            return  # due in the ledger: the scan finds it
        self._active.add(message_id)
        self._context.tasks.spawn(self._begun(stored, content), "deliver")

    def cleared(self, message_id: MessageId, excused: frozenset[ServerName]) -> None:
        """Review is done: the message may be attempted; without the leases of `excused`, if it waits for that now. An
        excuse does not keep: who was out of reach may be back, with the message, when it is due again."""
        was_blocked = message_id in self._blocked
        self._blocked.discard(message_id)
        self._excused.pop(message_id, None)
        if excused and was_blocked:
            self._excused[message_id] = excused
        if was_blocked:
            self._event.set()

    async def run(self) -> None:
        """Scan for what is due, for ever."""
        while True:
            self._event.clear()
            pause = SCAN_SECONDS
            try:
                if not self._context.is_draining:
                    pause = await self._scan()
            except LedgerUnavailable as error:
                _log.warning("delivery.waits", reason=error.reason)
            try:
                await asyncio.wait_for(self._event.wait(), pause)
            except TimeoutError:
                continue

    async def drained(self, seconds: float) -> bool:
        """Wait until no attempt runs any more, at most so long."""
        deadline = self._context.clock.awake() + seconds
        while self._active and self._context.clock.awake() < deadline:  # noqa: ASYNC110 - a set has no event
            await asyncio.sleep(0.05)
        return not self._active

    async def _scan(self) -> float:
        await self._can_record.wait()
        context = self._context
        room = WINDOW - len(self._active)
        if room <= 0:
            return SCAN_SECONDS
        now = context.now()
        context.attempts.reading()
        due = await context.ledger.due(now, room, self._active | self._blocked)
        for stored in due:
            self._load(stored)
        if len(due) == room:
            return 0.01
        due_next = await context.ledger.next_due_at()
        if due_next is None or due_next <= now:  # what is due is being worked on, or waits for something else
            return SCAN_SECONDS
        return min(max((due_next - now).total_seconds(), 0.05), SCAN_SECONDS)

    def _load(self, stored: StoredMessage) -> None:
        context = self._context
        message_id = stored.envelope.message_id
        if not context.attempts.begin(message_id):
            return  # what a later scan reads counts
        self._active.add(message_id)
        if stored.envelope.arrived_at < self._started_at and not stored.retries and message_id not in self._seen_at_start:
            self._seen_at_start.add(message_id)
            context.tracking.write(tracking_rows.load(context.me.server, stored, at=context.now()))
        context.tasks.spawn(self._begun(stored, None), "deliver")

    async def _begun(self, stored: StoredMessage, content: Content | None) -> None:
        message_id = stored.envelope.message_id
        try:
            await self._work(stored, content)
        except LedgerUnavailable as error:
            _log.warning("delivery.put_off", message_id=message_id, reason=error.reason)
        except Exception:
            _log.exception("delivery.failed", message_id=message_id)
            await self._put_off(message_id, self._context.settings.send.queue_glitch_retry_interval)
        finally:
            self._active.discard(message_id)
            self._context.attempts.end(message_id)

    async def _work(self, stored: StoredMessage, content: Content | None) -> None:
        context = self._context
        message_id = stored.envelope.message_id
        if stored.deaths_count >= DEATHS_MAX:
            await set_aside(context, stored, f"the node died {stored.deaths_count} times while it worked on this message")
            return
        if self._must_wait(stored):
            return
        if content is None:
            await context.ledger.record_working([message_id])
            try:
                if stored.place is None:
                    raise ContentCorrupt("it is gone")
                content = await context.ledger.read_content(stored.place)
            except ContentCorrupt as error:
                await set_aside_corrupt(context, stored, str(error))
                return
        excused = self._excused.pop(message_id, NOBODY)
        try:
            results = await self._forks.attempt(stored, content, MayEndData(context, stored, excused))
        except LeaseTooShort:
            self._block(message_id)
            await self._put_off(message_id, timedelta(0))
            return
        if results:
            await self._record(stored, content, results)
        else:  # what was due has another next hop now, which waits
            await self._put_off(message_id, self._forks.pause(stored))

    async def _put_off(self, message_id: MessageId, pause: timedelta) -> None:
        """No attempt was made; and if the node dies later, not of this message."""
        try:
            await self._context.ledger.record_due(message_id, self._context.now() + pause)
        except LedgerUnavailable as error:
            _log.warning("delivery.put_off", message_id=message_id, reason=error.reason)
            self._blocked.add(message_id)  # not at once again
            asyncio.get_running_loop().call_later(SCAN_SECONDS, self.cleared, message_id, NOBODY)

    def _must_wait(self, stored: StoredMessage) -> bool:
        """Rule *lease*, and in reject mode a copy first for mail that no client waits for."""
        context = self._context
        message_id = stored.envelope.message_id

        def runs(server: ServerName) -> bool:
            entry = stored.claim.copy_on(server)
            return entry is not None and context.leases.suffices(message_id, entry)

        if not self._excused.get(message_id, NOBODY).issuperset(rules.without_lease(stored.claim, runs)):
            self._block(message_id)
            return True
        if self._needs_copy_first(stored):
            self.wake_placement()
            self._blocked.add(message_id)
            asyncio.get_running_loop().call_later(min(0.5, context.heartbeat), self.cleared, message_id, NOBODY)
            return True
        return False

    def _block(self, message_id: MessageId) -> None:
        self._blocked.add(message_id)
        self.request_review(message_id)

    def _needs_copy_first(self, stored: StoredMessage) -> bool:
        transport = self._context.settings.transport
        if not (self._context.is_enabled and transport.reject_message_on_shadow_failure):
            return False
        if stored.claim.chosen() is not None or not (stored.is_promoted or stored.origin is Origin.DSN):
            return False
        if stored.retries:
            return False  # it has waited before its first attempt
        waited_from = stored.due_at or stored.envelope.arrived_at
        return self._context.now() - waited_from < transport.shadow_resubmit_time_span

    async def _record(self, stored: StoredMessage, content: Content, results: Sequence[ForkResult]) -> None:
        """Until it succeeds: an unrecorded success would be a duplicate, so nothing else is delivered meanwhile."""
        context = self._context
        message_id = stored.envelope.message_id
        record = self._forks.record(stored, content, results)

        def decide(_: MessageId, claim: Claim | None) -> Transition:
            return primary.recorded(claim, record.done)

        joined, has_verdict = self._verdicts.joined(message_id, decide)
        while True:
            try:
                transition = await context.ledger.record_attempt(record, joined)
                break
            except LedgerUnavailable as error:
                self._can_record.clear()
                _log.error("outcome.unrecorded", message_id=message_id, reason=error.reason)
                await asyncio.sleep(RECORD_AGAIN_SECONDS)
            except Exception:
                # Delivered, but it cannot be said: never again, then. Somebody has to look at it.
                self._can_record.set()
                self._verdicts.recorded(message_id)
                await set_aside(context, stored, "the outcome of an attempt could not be recorded: see the operator log")
                raise
        self._can_record.set()
        if has_verdict:
            self._verdicts.recorded(message_id)
        if transition.after is not None and transition.after.is_done:
            context.leases.forget(message_id)
        self._after_sides(stored, record)

    def _after_sides(self, stored: StoredMessage, record: AttemptRecord) -> None:
        context = self._context
        for side in record.sides:
            envelope, size = side.message.envelope, side.content.size
            row = tracking_rows.dsn(context.me.server, envelope, at=context.now(), original=stored.envelope, action=side.action, size=size)
            context.tracking.write(row)
        if record.sides:
            self.wake_placement()
            self._event.set()


class MayEndData:
    """Rule *dot*, asked right before the final dot: will the lease outlast its reply? Copies that were placed since the
    attempt began count too."""

    __slots__ = ("_context", "_excused", "_known", "_stored")

    def __init__(self, context: Context, stored: StoredMessage, excused: frozenset[ServerName]) -> None:
        self._context, self._stored, self._excused = context, stored, excused
        self._known = context.leases.servers(stored.envelope.message_id)

    def __call__(self) -> bool:
        leases = self._context.leases
        message_id = self._stored.envelope.message_id
        if self._context.attempts.is_called_off(message_id):
            return False
        left = leases.shortest(message_id, self._stored.claim, self._excused)
        if fresh := leases.servers(message_id) - self._known:
            left = min(left, leases.shortest_of(message_id, fresh))
        return fencing.may_end_data(left, leases.reply_allowance)
