"""Creates missing shadow copies. docs/architecture.md "Placing copies".

They are missing for mail accepted without (all) copies, DSNs, promoted mail, and mail whose shadow server was lost. Events drive it: a
cursor passes once through the unplaced messages in the order of their internal ids. It is set back when a message below it loses its
copy, and stops while no peer may be tried. A pass every ten minutes finds what no event reported. A message tried without success waits
individually, longer each time. After a failure one message is tried, then two, four, and so on, as long as copies are placed: a peer that
comes and goes must not have everything read again each time. Memory is bounded: the ids of waiting messages, and the envelopes of those in
progress.
"""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from enum import Enum

import structlog

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Claim, Role, Transition
from shadowrelay.model.queue import StoredMessage
from shadowrelay.model.replies import STORE_UNAVAILABLE, ContentCorrupt, IllegalTransition, LedgerUnavailable
from shadowrelay.model.values import dataclass
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome
from shadowrelay.pipeline.context import LEDGER_AGAIN_SECONDS, Context, woken_within
from shadowrelay.pipeline.poison import set_aside_corrupt
from shadowrelay.pipeline.shadow_copy import Copier, CopyResult
from shadowrelay.protocol import tracking
from shadowrelay.rules import flight, placement
from shadowrelay.store import promises, reading

AT_ONCE = 20  # copies in progress; the servers that receive them have clients of their own
LARGE_AT_ONCE = 4
LARGE_IN_HAND_MAX = 2 * LARGE_AT_ONCE  # each may take an hour: small ones must not wait for them
IN_HAND_MAX = 200  # messages whose turn it is, copies in progress included
READ_MAX = 50  # messages in one question: three milliseconds of a thread that the event loop competes with
WAITING_MAX = 10_000  # messages that wait individually; the cursor finds the others
LOOK_ANEW_SECONDS = 600.0  # then a scan finds messages that no event reported
SETTLING_SECONDS = 1.0  # after acceptance without a copy: the message is probably being delivered, and a copy would come too late
BLOCKED_SECONDS_MAX = 60.0

_log = structlog.get_logger()


class RepairOutcome(Enum):
    """The outcome of a message's turn."""

    OVER = "over"  # it has its chosen shadow servers now, or needs none from us
    NO_PEER = "no peer"  # no peer could be tried: it waits for the peers
    AGAIN = "again"  # tried without success
    BLOCKED = "blocked"  # the available peers are on its list, and must be reviewed before they get another copy
    LATER = "later"  # must not be tried yet


@dataclass(frozen=True, slots=True)
class WaitingRepair:
    """A message that waits individually. `due_at` in `Clock.awake`; `failures_count` in a row."""

    due_at: float
    failures_count: int
    is_blocked: bool = False
    unreadable: str = ""  # why this node cannot read its own content


class CopyRepair:
    """Places the unfinished primary messages that have fewer chosen shadow servers than wanted. `on_placed` is called for each that has
    all of them. `ask` has a server asked about a message: it is on its list, may hold a copy, and gets no other one before it is."""

    def __init__(
        self,
        context: Context,
        copier: Copier,
        on_placed: Callable[[MessageId], None],
        ask: Callable[[MessageId, ServerName], None],
    ) -> None:
        self._context = context
        self._copier = copier
        self._on_placed = on_placed
        self._ask = ask
        self._event = asyncio.Event()
        self._busy: set[MessageId] = set()
        self._in_hand_max = IN_HAND_MAX  # 1 after a failure; each copy that is placed doubles it
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._large_slots = asyncio.Semaphore(LARGE_AT_ONCE)  # separate, because large copies take long and take turns
        self._large_count = 0  # in progress
        self._large: deque[MessageId] = deque()  # waiting for their turn; `due_at` is infinite
        self._after = 0  # internal ids up to this one were examined
        self._is_behind = True  # there may be more above it
        self._waiting: dict[MessageId, WaitingRepair] = {}
        self._unreadable: dict[MessageId, str] = {}  # why this node could not read the content, in the turn that ends
        self._due: list[tuple[float, MessageId]] = []  # a heap; an entry counts if it is the one in `_waiting`

    def want(self, message_id: MessageId) -> None:
        """This message lacks a copy. If it waits already, this changes something only if its list blocked it."""
        entry = self._waiting.get(message_id)
        if message_id in self._busy or (entry is not None and not entry.is_blocked):
            return
        if entry is None and len(self._waiting) >= WAITING_MAX:
            self.wake(0)
        else:
            self._wait(message_id, min(SETTLING_SECONDS, self._context.heartbeat), 0)
            self._event.set()

    def wake(self, after: int | None = None) -> None:
        """There are messages without a copy: with internal ids above `after`, or newer than all examined."""
        if after is not None:
            self._after = min(self._after, after)
        self._is_behind = True
        self._event.set()

    @property
    def failing_count(self) -> int:
        """How many messages were tried and still have fewer copies than wanted. A lower bound: at most `WAITING_MAX` are known."""
        return sum(entry.failures_count > 0 for entry in self._waiting.values())

    def unreadable(self) -> tuple[int, str]:
        """How many of them this node cannot read itself, and the reason for one of these."""
        reasons = [entry.unreadable for entry in self._waiting.values() if entry.unreadable]
        return len(reasons), reasons[0] if reasons else ""

    def available(self) -> None:
        """A peer that could not be tried may be tried now, or has restarted: it may be one of another fate than those with copies."""
        for message_id, entry in tuple(self._waiting.items()):
            if entry.is_blocked and message_id not in self._busy:
                self._wait(message_id, 0.0, entry.failures_count)
        self._event.set()

    async def run(self) -> None:
        """Run forever. With nothing to place, or no peer to place it on, it waits to be woken."""
        while True:
            self._event.clear()
            pause = None
            if self._context.is_enabled:
                try:
                    await self._give_turns()
                    pause = self._pause()
                except LedgerUnavailable as error:
                    _log.warning("placement.waits", reason=error.reason)
                    pause = LEDGER_AGAIN_SECONDS
            if not await woken_within(self._event, LOOK_ANEW_SECONDS if pause is None else pause) and pause is None:
                self.wake(0)

    def _pause(self) -> float | None:
        """Seconds until a peer may be tried with a message that needs a copy; None: until an event."""
        context = self._context
        now = context.clock.awake()
        if self._room() <= 0:
            if self._busy or not (self._waiting or self._is_behind):
                return None  # the end of a turn wakes it, or `want` or `wake`
            trial_at = context.peers.trial_next_at()
            return None if trial_at is None else max(trial_at - now, 0.01)
        while self._due and self._is_stale(*self._due[0]):
            heapq.heappop(self._due)
        return max(self._due[0][0] - now, 0.01) if self._due else None

    def _room(self) -> int:
        """How many more messages may start now: one, on trial, if no breaker is closed. Many at once or none, because each time
        they are read from the ledger."""
        peers = self._context.peers
        states = [peers.breaker_state(server) for server in peers.states if peers.may_try(server)]
        if not states:
            return 0
        if "closed" not in states:
            return 1 - len(self._busy)
        free = self._in_hand_max - len(self._busy)
        return min(free, READ_MAX) if free >= (self._in_hand_max + 1) // 2 else 0

    def _is_stale(self, due_at: float, message_id: MessageId) -> bool:
        entry = self._waiting.get(message_id)
        return entry is None or entry.due_at != due_at or message_id in self._busy

    async def _give_turns(self) -> None:
        await self._give_turns_to_due()
        while self._is_behind and len(self._waiting) < WAITING_MAX and (room := self._room()) > 0:
            self._is_behind = False  # unless `wake` is called during the read
            after = self._after
            page = await self._context.ledger.read(reading.unplaced, room, after=after)
            if page and self._after == after:
                self._after, self._is_behind = page[-1].internal_id, True
            for message in page:
                if message.envelope.message_id not in self._waiting:
                    self._begin(message)

    async def _give_turns_to_due(self) -> None:
        now = self._context.clock.awake()
        due: list[MessageId] = []
        room = self._room()
        while self._due and len(due) < room and self._due[0][0] <= now:
            due_at, message_id = heapq.heappop(self._due)
            if not self._is_stale(due_at, message_id):
                due.append(message_id)
        if not due:
            return
        try:
            found = {message.envelope.message_id: message for message in await self._context.ledger.read(reading.load_many, due)}
        except BaseException:
            for message_id in due:
                heapq.heappush(self._due, (self._waiting[message_id].due_at, message_id))
            raise
        for message_id in due:
            message = found.get(message_id)
            if message is None or message.claim.role is not Role.PRIMARY or not message.claim.missing_count:
                self._waiting.pop(message_id, None)
                if message is None or not message.claim.is_primary:
                    self._context.leases.forget(message_id)  # a copy was stored after the message had ended, and that could not be recorded
            elif message.is_decided:
                self._begin(message)
            else:
                self._wait(message_id, SETTLING_SECONDS, 0)

    def _wait(self, message_id: MessageId, seconds: float, failures_count: int, *, is_blocked: bool = False, unreadable: str = "") -> None:
        due_at = self._context.clock.awake() + seconds
        self._waiting[message_id] = WaitingRepair(due_at, failures_count, is_blocked, unreadable)
        heapq.heappush(self._due, (due_at, message_id))

    def _begin(self, message: StoredMessage) -> None:
        message_id = message.envelope.message_id
        if message_id in self._busy:
            return
        if _is_large(message):
            if self._large_count >= LARGE_IN_HAND_MAX:
                entry = self._waiting.get(message_id)
                self._waiting[message_id] = WaitingRepair(math.inf, 0 if entry is None else entry.failures_count)
                self._large.append(message_id)
                return
            self._large_count += 1
        self._busy.add(message_id)
        self._context.tasks.spawn(self._turn(message), "place")

    async def _turn(self, message: StoredMessage) -> None:
        message_id = message.envelope.message_id
        outcome = RepairOutcome.AGAIN
        try:
            outcome = await self._supervised(message)
        finally:
            self._busy.discard(message_id)
            self._after_turn(message, outcome)
            if _is_large(message):
                self._large_count -= 1
                if self._large:
                    following = self._large.popleft()
                    self._wait(following, 0.0, self._waiting[following].failures_count)
            self._event.set()

    def _after_turn(self, message: StoredMessage, outcome: RepairOutcome) -> None:
        message_id = message.envelope.message_id
        entry = self._waiting.get(message_id)
        failures_count = 0 if entry is None else entry.failures_count
        unreadable = self._unreadable.pop(message_id, "")
        if outcome is RepairOutcome.OVER:
            self._waiting.pop(message_id, None)
        elif outcome is RepairOutcome.AGAIN:
            self._wait(message_id, placement.pause_after(failures_count + 1), failures_count + 1, unreadable=unreadable)
        elif outcome is RepairOutcome.BLOCKED:
            self._wait(message_id, min(placement.pause_after(failures_count + 1), BLOCKED_SECONDS_MAX), failures_count + 1, is_blocked=True)
        elif outcome is RepairOutcome.LATER:
            self._wait(message_id, SETTLING_SECONDS, failures_count)
        elif entry is not None:
            self._wait(message_id, 0.0, failures_count)  # the first to start when a peer may be tried
        else:
            self.wake(message.internal_id - 1)

    async def _supervised(self, message: StoredMessage) -> RepairOutcome:
        message_id = message.envelope.message_id
        try:
            async with self._large_slots if _is_large(message) else self._slots:
                if self._is_settling(message):
                    return RepairOutcome.LATER
                self._context.flights.happens(message_id, flight.begin_copy)
                try:
                    return await self.place(message)
                finally:
                    self._context.flights.happens(message_id, flight.end_copy)
        except ContentCorrupt as error:
            await self._set_aside(message, str(error))
        except LedgerUnavailable as error:
            _log.warning("placement.put_off", message_id=message_id, reason=error.reason)
        except IllegalTransition as error:
            _log.info("placement.obsolete", message_id=message_id, reason=str(error))
        except Exception:
            _log.exception("placement.failed", message_id=message_id)  # the others are still placed
        return RepairOutcome.AGAIN

    def _is_settling(self, message: StoredMessage) -> bool:
        fresh = timedelta(seconds=min(SETTLING_SECONDS, self._context.heartbeat))
        running = self._context.flights[message.envelope.message_id].is_busy
        return running and self._context.now() - message.envelope.arrived_at < fresh

    async def place(self, message: StoredMessage) -> RepairOutcome:
        """Place the missing copies of one message whose turn it is."""
        context = self._context
        message_id = message.envelope.message_id
        if rules.is_of_older_copy(message.claim, context.me):
            return RepairOutcome.OVER  # the review requests the placement after it has asked all nodes
        copies = message.claim.missing_count
        plan = self._copier.plan(message_id, message.claim, copies)
        if not plan:
            if not self._is_any_peer_available():
                self._in_hand_max = 1
                return RepairOutcome.NO_PEER
            for copy in message.claim.copies:  # its next attempt would ask as well, but its next hop may be away for days
                is_own = context.shared_fate(copy.server).is_own  # its copy will not count, whatever it answers
                if not message.claim.is_chosen(copy.server) and context.peers.is_reachable(copy.server) and not is_own:
                    self._ask(message_id, copy.server)
            return RepairOutcome.BLOCKED
        if message.place is None:
            raise ContentCorrupt("its content is gone")
        try:
            content = await context.read_content(message.place)
        except LedgerUnavailable as error:
            self._unreadable[message_id] = error.reason
            raise
        started = context.clock.awake()
        said = message.claim.done and message.claim.done - await context.ledger.read(reading.unreported, message_id)
        result = await self._copier.copy(
            message.envelope, content, message.claim, plan, listed_count=0, is_client_waiting=False, copies=copies, said=said
        )
        if result.superseded_by is not None:
            await self._superseded(message_id, result)
            return RepairOutcome.AGAIN
        (transition,) = await context.ledger.commit(promises.transition, [message_id], result.outcome)
        self._forget_leases_of_ended(message_id, transition)
        elapsed = timedelta(seconds=context.clock.awake() - started)
        after = transition.after
        for party, _ in result.stored:
            if party.server in result.shared and after is not None and after.is_primary and not after.is_chosen(party.server):
                shared = context.peers.fates.what_keeps(party.server)
                now = context.now()
                context.tracking.write(
                    tracking.haredirect(context.me.server, message, at=now, server=party.server, elapsed=elapsed, shared_fate=shared)
                )
            if after is not None and transition.outcome == Outcome.CHOSEN and after.is_chosen(party.server):
                row = tracking.haredirect(context.me.server, message, at=context.now(), server=party.server, elapsed=elapsed)
                context.tracking.write(row)
        if result.unreadable:
            self._unreadable[message_id] = result.unreadable
            raise LedgerUnavailable(STORE_UNAVAILABLE, result.unreadable)
        if transition.outcome != Outcome.CHOSEN or after is None or after.missing_count:
            self._in_hand_max = 1
            return RepairOutcome.AGAIN if result.attempts_count or self._is_any_peer_available() else RepairOutcome.NO_PEER
        self._in_hand_max = min(2 * self._in_hand_max, IN_HAND_MAX)
        self._on_placed(message_id)
        for copy in after.copies:
            if not after.is_chosen(copy.server) and context.shared_fate(copy.server).is_own:
                self._ask(message_id, copy.server)  # it is not needed any more, and is released when it has answered
        return RepairOutcome.OVER

    def _forget_leases_of_ended(self, message_id: MessageId, transition: Transition) -> None:
        """The message was delivered or given up while its copy was in transit: the answer began a lease that nothing else ends."""
        if transition.after is None or not transition.after.is_primary:
            self._context.leases.forget(message_id)

    def _is_any_peer_available(self) -> bool:
        peers = self._context.peers
        return any(peers.may_try(server) for server in peers.states)

    async def _set_aside(self, message: StoredMessage, reason: str) -> None:
        """Hand the message over, but not during an attempt, which has the content or detects the damage itself: a server that receives
        `yours` promotes at once."""
        message_id = message.envelope.message_id
        if self._context.flights.happens(message_id, flight.reserve):
            try:
                await set_aside_corrupt(self._context, message, reason)
            finally:
                self._context.flights.happens(message_id, flight.release)

    async def _superseded(self, message_id: MessageId, result: CopyResult) -> None:
        """The server has a higher claim, or knows that the message is delivered: its reply counts like an answer to STATUS."""
        assert result.superseded_by is not None
        party, answer = result.superseded_by

        def decide(_: MessageId, claim: Claim | None) -> Transition:
            known = result.verdict(message_id, claim).after
            if known is None or not known.is_primary:
                return Transition(claim, claim)
            learnt = claims.apply_answer(known, self._context.me, party, answer)
            if learnt is None:
                return Transition(claim, known)
            ends = learnt.after is None or not learnt.after.is_primary
            if ends and not self._context.flights.happens(message_id, flight.end_claim):  # claims end only between attempts
                return Transition(claim, known, outcome=Outcome.WAIT)
            return Transition(claim, learnt.after, learnt.tell, outcome=learnt.outcome)

        (transition,) = await self._context.end_claims([message_id], decide)
        self._forget_leases_of_ended(message_id, transition)
        _log.info("placement.superseded", message_id=message_id, server=party.server, outcome=transition.outcome)


def _is_large(message: StoredMessage) -> bool:
    return message.place is not None and message.place.size > placement.LARGE_OCTETS
