"""Attempts one fork: runs its transactions and records their outcome, with the verdict if that is still missing. docs/design.md 5.

A fork of more than 100 recipients takes several transactions. Deliveries of each are recorded before the next begins, so that
a crash repeats at most one transaction. Failed recipients are recorded with the last one, with one DSN for all of them; until
then a restart would only try them again.

An outcome is one commit with the generated messages and discard notifications that it causes. An unrecorded outcome would cause a duplicate
after a crash, or at the next attempt. So recording is repeated until it succeeds, and all other deliveries are blocked meanwhile.

A verdict (the message is accepted) need not be synced before the 250, because a message found without one counts as accepted. So it joins
the commit that records the first attempt or, if that takes too long, gets a commit of its own.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType

import structlog

from shadowrelay.model.counts import AttemptResult
from shadowrelay.model.ids import NO_MESSAGE, NO_SERVER, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.ownership import Claim, Decide, Transition
from shadowrelay.model.queue import AttemptRecord, FailureKind, ForkRetry, GeneratedMessage, StoredMessage
from shadowrelay.model.replies import (
    LOCAL_ERROR,
    ContentCorrupt,
    DeliveryError,
    LeaseTooShort,
    LedgerUnavailable,
    Reply,
    TransientDeliveryError,
)
from shadowrelay.model.routing import Destination, Fork, HostPort, Reach
from shadowrelay.model.settings import Settings
from shadowrelay.model.tracking import EventSource
from shadowrelay.model.values import dataclass, replace
from shadowrelay.ownership import claims
from shadowrelay.pipeline.attempt import ForkAttempt
from shadowrelay.pipeline.context import LEDGER_AGAIN_SECONDS, Context, until_taken
from shadowrelay.pipeline.generated_messages import Journaling, Notices, Record
from shadowrelay.pipeline.joint_failures import Failures, JointFailures
from shadowrelay.pipeline.poison import set_aside
from shadowrelay.pipeline.relay import Relayed, RelayService
from shadowrelay.ports import Deliverer, DeliveryJob
from shadowrelay.protocol import tracking
from shadowrelay.rules import delivery, flight, journal, repeats, strangers
from shadowrelay.rules.delivery import AttemptOutcome
from shadowrelay.rules.dsn import promotion_header
from shadowrelay.rules.router import RECIPIENTS_PER_TRANSACTION_MAX, Router, routes_of
from shadowrelay.rules.site_links import sites_of
from shadowrelay.store import promises, reading

NO_KEYS: Mapping[int, bytes] = MappingProxyType({})
SAME_IN_PROGRESS = Reply(450, "4.3.0", "The same message is being delivered: waits for the outcome")
OWN_COMMIT_AFTER_SECONDS = 0.25  # most messages are delivered by then

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """`server` answered, or could not be reached. `ordinals` are those of the transaction; if it failed as a whole, also those
    of the transactions that would have followed."""

    ordinals: Ordinals
    result: Mapping[int, Reply] | DeliveryError
    server: str
    elapsed: timedelta
    passes_dsn: bool = True
    dot_sent_unanswered: bool = False
    relayed: Relayed | None = None
    session: tracking.CustomData = ()


class SameInProgress(Exception):
    """The same message, which a client sent twice, is being delivered by another attempt, or may be by another node: wait for its outcome.
    `reply` says for what it waits."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = reply


class Forks:
    """Bifurcation and attempts; uses routing, but neither ownership nor queues."""

    def __init__(self, context: Context, deliverer: Deliverer, relay: RelayService) -> None:
        self._context = context
        self.deliverer = deliverer
        self._relay = relay
        self.notices = Notices(context, self.destination_of)
        self._journaling = Journaling(context)
        self._joint = JointFailures()
        self._chance = random.Random()
        self._in_progress: set[bytes] = set()  # keys of the deliveries that run: `delivery.duplicate_keys`
        self.configure(context.settings)

    def configure(self, settings: Settings) -> None:
        """Apply the routes of the current configuration."""
        self.router = Router(routes_of(settings), settings.server.name, sites_of(settings))

    def destination_of(self, address: str) -> Destination:
        """Where mail for this recipient goes now."""
        return self.router.destination(address)

    def resubmitted_to(self, address: str) -> Destination:
        """`destination_of` for Safety Net: a peer that takes mail by TRACK counts as outside: that server can resubmit it itself."""
        destination = self.destination_of(address)
        return replace(destination, inside_boundary=False) if self._relay.is_to_peer(destination) else destination

    def of(self, stored: StoredMessage) -> tuple[Fork, ...]:
        """The forks of the recipients that are not done."""
        recipients = stored.envelope.recipients
        undone = frozenset(range(1, len(recipients) + 1)) - stored.claim.done
        if stored.claim.is_kept and not self._context.peers.is_available(stored.promoted_from):
            return self.router.forks(recipients, undone, self._addresses_of(stored.promoted_from))
        return self.router.forks(recipients, undone)

    def has_other_route(self, stored: StoredMessage, server: ServerName) -> bool:
        """Whether any of the recipients that are not done can be reached without this server."""
        recipients = stored.envelope.recipients
        undone = frozenset(range(1, len(recipients) + 1)) - stored.claim.done
        return self.router.has_other_route(recipients, undone, self._addresses_of(server))

    def _addresses_of(self, server: ServerName) -> frozenset[HostPort]:
        return frozenset([peer.address for peer in self._context.settings.peers if peer.name == server])

    def leads_to(self, key: str, server: ServerName) -> bool:
        """Whether this peer is a host of the next hop with this key."""
        destination = self.router.next_hop_of(key)
        return destination is not None and any(self._relay.server_at(host) == server for host in destination.hosts)

    def queued(self, stored: StoredMessage, fork: Fork, now: datetime) -> ForkRetry:
        """The row of a fork that waits in its queue and was never attempted."""
        context, settings = self._context, self._context.settings
        is_told = fork.ordinals <= delivery.told_of_delay(stored, context.heard_at(stored.promoted_from), settings.send)
        notice_at = delivery.notice_at(
            stored.envelope.arrived_at, settings.send, settings.transport.message_expiration_timeout, is_notified=is_told
        )
        return ForkRetry(fork.destination.key, fork.ordinals, 0, FailureKind.QUEUED, now, now, "", is_told, notice_at=notice_at)

    def log_transfer(self, stored: StoredMessage, forks: Sequence[Fork]) -> None:
        """Write TRANSFER: forks were made."""
        context = self._context
        now = context.now()
        for fork in forks:
            context.tracking.write(
                tracking.transfer(context.me.server, stored, at=now, next_hop=fork.destination.key, ordinals=fork.ordinals)
            )

    async def attempt(self, attempt: ForkAttempt, record: Record) -> bool:
        """Run and record all transactions of the fork. False: all recipients have the message already.

        Raises: LeaseTooShort, ContentCorrupt, LedgerUnavailable: the rest of the fork was not attempted; the part before is recorded.
        SameInProgress: nothing was attempted.
        """
        context, stored, ordinals = self._context, attempt.stored, attempt.fork.ordinals
        window = context.settings.transport.duplicate_detection_window
        keys = delivery.duplicate_keys(stored.envelope, ordinals) if window else NO_KEYS
        if not self._in_progress.isdisjoint(keys.values()):
            raise SameInProgress(SAME_IN_PROGRESS)
        self._in_progress.update(keys.values())
        try:
            if keys and not stored.is_promoted:  # before the look-up: what ends meanwhile is found by that
                now = context.now()
                if held := context.repeats.held(stored, keys, ordinals, now):
                    await self._wait_for_first(stored, ordinals, keys, held, now)
            # What was taken over was acknowledged by another server: only its own claim says who has it.
            if keys and not stored.is_promoted and context.ledger.may_be_delivered(keys.values(), context.now() - window):
                ordinals -= await self._end_duplicates(attempt, keys, window, record)
                if not ordinals:
                    return False
            prefix = b""
            if stored.is_promoted:
                prefix = promotion_header(stored.promoted_from, context.me.server, stored.envelope.message_id, context.now())
            if len(ordinals) > RECIPIENTS_PER_TRANSACTION_MAX:
                await self._attempt_in_parts(attempt, ordinals, prefix, keys, record)
                return True
            result = await self._transaction(attempt, ordinals, prefix)
            outcome = self._settle(attempt, result)
            if outcome.failed or stored.envelope.message_id in self._joint.waiting:
                await self._finish(attempt, record, outcome, result, keys)
            else:
                await self._commit(attempt, record, await self._record(attempt, outcome, result, keys))
            return True
        finally:
            self._in_progress.difference_update(keys.values())
            if attempt.in_flight:
                self._relay.end_in_flight(attempt.in_flight)

    async def _wait_for_first(
        self, stored: StoredMessage, ordinals: Ordinals, keys: Mapping[int, bytes], held: Collection[MessageId], now: datetime
    ) -> None:
        """`held`: copies here that may be the same message. Raises: SameInProgress while one of them is, sent to another node before.
        docs/design.md 6.5."""
        context = self._context
        wanted = {ordinal: keys[ordinal] for ordinal in ordinals}
        first = repeats.first_of(stored, wanted, await context.ledger.read(reading.load_many, list(held)))
        if first is not None:
            context.repeats.wait(stored, first.envelope.message_id, now)
            until = stored.envelope.arrived_at + repeats.AWAITED_MAX
            where = first.claim.primary or first.promoted_from
            text = f"Sent before, to {where} as {first.envelope.message_id}: waits for its delivery, until {until:%H:%M:%S}Z at the latest"
            raise SameInProgress(Reply(450, "4.3.0", text))

    async def _end_duplicates(self, attempt: ForkAttempt, keys: Mapping[int, bytes], window: timedelta, record: Record) -> Ordinals:
        """End the recipients to whom the same message was delivered within the window. docs/design.md 6.5."""
        context, stored, fork = self._context, attempt.stored, attempt.fork
        now = context.now()
        found = await context.ledger.read(reading.delivered_before, set(keys.values()), now - window, now + window)
        firsts: dict[MessageId, set[int]] = defaultdict(set)
        for ordinal, key in keys.items():
            if key in found and found[key].message_id != stored.envelope.message_id:
                firsts[found[key].message_id].add(ordinal)
        if not firsts:
            return NO_ORDINALS
        ended = frozenset().union(*firsts.values())
        rest = fork.ordinals - ended
        waiting = replace(attempt.retry or self.queued(stored, fork, now), ordinals=rest, attempts_next_at=now) if rest else None
        context.counts.attempts[AttemptResult.DUPLICATE] += 1
        for first, ordinals in firsts.items():  # before the commit, as in `_log_rows`: an extra row is better than a missing one
            at = context.now()
            context.tracking.write(tracking.duplicate(context.me.server, stored, at=at, ordinals=frozenset(ordinals), first=first))
            _log.info("delivery.duplicate", message_id=stored.envelope.message_id, delivered_as=first, recipients=len(ordinals))
        await self._commit(attempt, record, await self._record(attempt, AttemptOutcome(ended, {}, waiting), None))
        return ended

    async def _attempt_in_parts(
        self, attempt: ForkAttempt, ordinals: Ordinals, prefix: bytes, keys: Mapping[int, bytes], record: Record
    ) -> None:
        """Several transactions, each recorded before the next."""
        stored, fork = attempt.stored, attempt.fork
        places = sorted(ordinals)
        failed: dict[int, Reply] = {}
        deferred: ForkRetry | None = None
        expired = late = NO_ORDINALS
        for start in range(0, len(places), RECIPIENTS_PER_TRANSACTION_MAX):
            end = start + RECIPIENTS_PER_TRANSACTION_MAX
            result = await self._transaction(attempt, frozenset(places[start:end]), prefix)
            if isinstance(result.result, DeliveryError):  # the following transactions would end the same way
                end = len(places)
                result = replace(result, ordinals=frozenset(places[start:]))
            outcome = self._settle(attempt, result)
            failed |= outcome.failed
            expired |= outcome.expired
            late |= outcome.delayed_dsn
            if outcome.retry is not None:
                waiting = deferred.ordinals if deferred is not None else NO_ORDINALS
                deferred = replace(outcome.retry, ordinals=outcome.retry.ordinals | waiting)
            if end < len(places):
                now = self._context.now()
                rest = replace(attempt.retry or self.queued(stored, fork, now), ordinals=frozenset(places[end:]) | frozenset(failed))
                if deferred is not None:
                    rest = replace(rest, ordinals=rest.ordinals | deferred.ordinals)
                so_far = AttemptOutcome(outcome.delivered, {}, replace(rest, attempts_next_at=now))
                await self._commit(attempt, record, await self._record(attempt, so_far, result, keys))
            else:
                await self._finish(attempt, record, AttemptOutcome(outcome.delivered, failed, deferred, late, expired), result, keys)
                break
        if start and attempt.failure is not None and not attempt.failure.is_unreachable:
            attempt.failure = None  # it answered the transactions before

    async def age(self, attempt: ForkAttempt, last: Reply, record: Record) -> None:
        """For a fork that cannot be attempted now: notify its sender of the delay, or expire it, if that is due."""
        error = TransientDeliveryError(last, attempt.fork.destination.key, is_unreachable=True)
        result = TransactionResult(attempt.fork.ordinals, error, attempt.fork.destination.key, timedelta(0))
        outcome = self._outcome(attempt, result)
        if outcome.retry is not None and attempt.retry is not None:  # the time of its next attempt does not change
            outcome = replace(
                outcome,
                retry=replace(
                    attempt.retry,
                    ordinals=outcome.retry.ordinals,
                    delay_notified=outcome.retry.delay_notified,
                    notice_at=outcome.retry.notice_at,
                ),
            )
        if outcome.failed:
            self._log_rows(attempt, result, outcome, EventSource.QUEUE)
        await self._finish(attempt, record, outcome, result, NO_KEYS)

    async def _finish(
        self, attempt: ForkAttempt, record: Record, outcome: AttemptOutcome, result: TransactionResult, keys: Mapping[int, bytes]
    ) -> None:
        """Commit the outcome of the fork's last transaction, with failures of other forks that wait; or let one of them do so."""
        message_id, others = attempt.stored.envelope.message_id, attempt.others
        is_last = self._joint.is_last(message_id, others)
        if others and not is_last and outcome.failed and not outcome.delivered and outcome.retry is None:
            failures = Failures(attempt.fork.destination.key, outcome.failed, outcome.expired, result.server)
            if await self._joint.wait(message_id, failures):
                return
            is_last = True  # waits no longer
        joined = self._joint.take(message_id) if is_last else []
        try:
            await self._commit(attempt, record, await self._record(attempt, outcome, result, keys, joined))
        except BaseException:
            self._joint.end(joined, is_committed=False)
            raise
        self._joint.end(joined, is_committed=True)

    async def _transaction(self, attempt: ForkAttempt, ordinals: Ordinals, prefix: bytes) -> TransactionResult:
        stored, fork = attempt.stored, attempt.fork
        context = self._context
        began = context.clock.awake()
        job = DeliveryJob(
            fork.destination,
            stored.envelope,
            ordinals,
            prefix,
            attempt.read_content,
            partial(attempt.lease.may_end_data, ordinals),
            attempt.lease.reply_seconds,
            partial(context.ledger.handling, stored.envelope.message_id),
            Reach.ANYWHERE if stored.envelope.sender else strangers.reach(stored.envelope, context.settings),
        )
        relayed: Relayed | None = None
        try:
            if fork.destination.tracks:
                answer = await self._relay.relay(stored, job, attempt.in_flight)
                relayed, job = (answer, job) if isinstance(answer, Relayed) else (None, answer)
            report = await self.deliverer.deliver(job) if relayed is None else relayed.report
        except (LeaseTooShort, ContentCorrupt, LedgerUnavailable):
            raise
        except DeliveryError as error:
            failure, server = error.with_traceback(None), error.server
            attempt.failure = failure if failure.is_connection else None
        except Exception:
            # An unknown error is transient.
            _log.exception("attempt.failed", message_id=stored.envelope.message_id, next_hop=fork.destination.key)
            failure, server = TransientDeliveryError(LOCAL_ERROR, fork.destination.key), fork.destination.key
        else:
            elapsed = timedelta(seconds=context.clock.awake() - began)
            return TransactionResult(
                ordinals, report.replies, report.server, elapsed, report.passes_dsn, report.dot_sent_unanswered, relayed,
                tracking.session_data(report.tls, report.login) if report.tls or report.login else (),
            )  # fmt: skip
        elapsed = timedelta(seconds=context.clock.awake() - began)
        return TransactionResult(ordinals, failure, server, elapsed, dot_sent_unanswered=failure.dot_sent_unanswered)

    def _settle(self, attempt: ForkAttempt, result: TransactionResult) -> AttemptOutcome:
        delivered = delivery.delivered_of(result.ordinals, result.result)
        is_whole = len(delivered) == len(result.ordinals)
        outcome = AttemptOutcome(delivered, {}, None) if is_whole else self._outcome(attempt, result)
        self._context.counts.attempts[AttemptResult.DELIVERED if is_whole else _result_of(outcome)] += 1
        try:
            self._log_rows(attempt, result, outcome, EventSource.SMTP if is_whole else _source(result.result))
        except Exception:
            _log.exception("attempt.untracked", message_id=attempt.stored.envelope.message_id)  # the outcome stands nevertheless
        return outcome

    def _outcome(self, attempt: ForkAttempt, result: TransactionResult) -> AttemptOutcome:
        context = self._context
        settings = context.settings
        return delivery.settle_attempt(
            attempt.fork.destination.key,
            result.ordinals,
            result.result,
            attempt.retry,
            arrived_at=attempt.stored.envelope.arrived_at + context.note_clock(),
            now=context.now(),
            send=settings.send,
            message_expiration_timeout=settings.transport.message_expiration_timeout,
            jitter=self._chance.random(),
            dot_sent_unanswered=result.dot_sent_unanswered,
        )

    def _log_rows(self, attempt: ForkAttempt, result: TransactionResult, outcome: AttemptOutcome, source: EventSource) -> None:
        """Log the replies of the next hop before they are committed: they are facts, even if the commit fails."""
        context, stored, destination = self._context, attempt.stored, attempt.fork.destination
        me, now, key, server, elapsed = context.me.server, context.now(), destination.key, result.server, result.elapsed
        answer = result.result
        replies = dict.fromkeys(sorted(result.ordinals), answer.reply) if isinstance(answer, DeliveryError) else answer
        if outcome.delivered:
            is_whole = len(outcome.delivered) == len(replies)
            done = replies if is_whole else {ordinal: replies[ordinal] for ordinal in sorted(outcome.delivered)}
            external = not destination.inside_boundary
            kept = NO_MESSAGE if result.relayed is None or result.relayed.kept is None else result.relayed.kept.envelope.message_id
            context.tracking.write(
                tracking.send(
                    me, stored, at=now, server=server, replies=done, external=external, elapsed=elapsed, next_hop=key, kept=kept,
                    session=result.session,
                )
            )  # fmt: skip
        if destination.tracks and outcome.done:
            taken = NO_SERVER if result.relayed is None else result.relayed.server
            self._relay.log_ends_elsewhere(stored, destination, result.ordinals, taken)
        if outcome.expired:
            context.tracking.write(tracking.expire(me, stored, at=now, ordinals=outcome.expired))
        for cause, ordinals in ((source, outcome.failed.keys() - outcome.expired), (EventSource.QUEUE, outcome.expired)):
            if ordinals:
                failed = {ordinal: outcome.failed[ordinal] for ordinal in ordinals}
                context.tracking.write(
                    tracking.fail(
                        me, stored, at=now, server=server, replies=failed, elapsed=elapsed, source=cause, next_hop=key,
                        session=result.session,
                    )
                )  # fmt: skip
        if outcome.retry is not None:
            late = {ordinal: replies.get(ordinal, delivery.NO_REPLY) for ordinal in sorted(outcome.retry.ordinals)}
            unanswered = "no reply to the final dot" if result.dot_sent_unanswered else ""
            context.tracking.write(
                tracking.defer(
                    me, stored, at=now, server=server, replies=late, elapsed=elapsed, source=source, next_hop=key, context=unanswered,
                    session=result.session,
                )
            )  # fmt: skip

    async def _record(
        self,
        attempt: ForkAttempt,
        outcome: AttemptOutcome,
        result: TransactionResult | None,
        keys: Mapping[int, bytes] = NO_KEYS,
        joined: Sequence[Failures] = (),
    ) -> AttemptRecord:
        """The record to commit: the ordinals that ended, the rest of the fork, and the DSNs to the sender. Without a result nothing
        was attempted, and the sender gets no DSN. `joined`: of other forks, whose rows in queues end with their recipients."""
        transport = self._context.settings.transport
        now = self._context.now()
        relayed = None if result is None else result.relayed
        for one in joined:
            outcome = replace(outcome, failed={**outcome.failed, **one.failed}, expired=outcome.expired | one.expired)
        stored, key = attempt.stored, attempt.fork.destination.key
        others: tuple[ForkRetry, ...] = ()
        if outcome.retry is not None and not stored.retries:
            others = tuple(self.queued(stored, other, now) for other in self.of(stored) if other.destination.key != key)
        notices: tuple[GeneratedMessage, ...] = ()
        # The sender may have requested any of these reports.
        if result is not None and (outcome.failed or outcome.delayed_dsn or (outcome.delivered and not result.passes_dsn)):
            servers = {ordinal: one.server for one in joined for ordinal in one.failed}
            notices = await self.notices.about(
                stored, attempt.read_content, outcome, result.server, passes_dsn=result.passes_dsn, servers=servers
            )
        return AttemptRecord(
            stored.envelope.message_id,
            key,
            outcome.done,
            outcome.retry,
            others,
            notices,
            delivery.safety_net_until(now, transport),
            delivery.remember_until(now, transport),
            # Recipients that were only relayed are not recorded as delivered: the message may be taken back and delivered from here.
            tuple(map(keys.__getitem__, outcome.delivered)) if keys and relayed is None else (),
            sent=outcome.delivered,
            is_inside=attempt.fork.destination.inside_boundary,
            kept=() if relayed is None or relayed.kept is None else (relayed.kept,),
            kept_content=None if relayed is None else relayed.content,
        )

    def _commit(self, attempt: ForkAttempt, record: Record, outcome: AttemptRecord) -> Awaitable[None]:
        """Record the outcome; with journal reports if it is the first for one of the message's recipients."""
        stored, router = attempt.stored, self.router
        if router.is_journaling and outcome.done and not stored.claim.done and journal.is_journaled(stored.envelope):
            journal_recipients = router.journal_recipients(stored.envelope.recipients)
            if journal_recipients:
                return self._journaling.record(stored, outcome, journal_recipients, attempt.read_content, record)
        return record(outcome)


def _result_of(outcome: AttemptOutcome) -> AttemptResult:
    if outcome.delivered:
        return AttemptResult.PARTLY
    return AttemptResult.DEFERRED if outcome.retry is not None else AttemptResult.FAILED


def _source(result: Mapping[int, Reply] | DeliveryError) -> EventSource:
    if isinstance(result, DeliveryError) and result.reply.enhanced in ("5.1.2", "5.1.10", "4.4.3"):
        return EventSource.DNS
    return EventSource.SMTP


class Verdicts:
    """Each verdict is recorded once: by the attempt's commit or by one of its own."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: dict[MessageId, tuple[float, Decide]] = {}
        self._event = asyncio.Event()

    def add(self, message_id: MessageId, decide: Decide) -> None:
        """The message is accepted; its flight says `is_copying` until that is recorded."""
        self._waiting[message_id] = (self._context.clock.awake() + OWN_COMMIT_AFTER_SECONDS, decide)
        if len(self._waiting) == 1:
            self._event.set()

    def joined(self, message_id: MessageId, decide: Decide) -> tuple[Decide, bool]:
        """`decide` for the attempt's commit with the verdict applied first, and whether there was one; if so, its flight is told
        `end_copy` after the commit."""
        taken = self._waiting.pop(message_id, None)
        if taken is None:
            return decide, False
        _, verdict = taken

        def both(message_id: MessageId, claim: Claim | None) -> Transition:
            first = verdict(message_id, claim)
            second = decide(message_id, first.after)
            return Transition(claim, second.after, (*first.tell, *second.tell), second.answer, second.outcome)

        return both, True

    async def run(self) -> None:
        """Forever, record the verdicts whose attempt takes too long."""
        while True:
            await self._event.wait()
            await asyncio.sleep(OWN_COMMIT_AFTER_SECONDS)
            now = self._context.clock.awake()
            late = [message_id for message_id, (due, _) in self._waiting.items() if due <= now]
            for message_id in late:
                _, decide = self._waiting.pop(message_id)
                self._context.tasks.spawn(self._record(message_id, decide), "verdict")
            if not self._waiting:
                self._event.clear()

    async def _record(self, message_id: MessageId, decide: Decide) -> None:
        def failed(error: LedgerUnavailable) -> None:
            _log.warning("verdict.waits", message_id=message_id, reason=error.reason)

        # Without its verdict the message would not be due again before the next start.
        await until_taken(partial(self._context.ledger.commit, promises.verdict, message_id, decide), failed)
        self._context.flights.happens(message_id, flight.end_copy)


class Outcomes:
    """Records the outcomes of attempts, and blocks all deliveries while the ledger cannot record one.

    `note_due` is called with the queue and due time of each fork that waits, `on_generated` with the id of each generated message that was
    committed with an outcome, `on_done` with the id and the internal id of each message that is done.
    """

    def __init__(
        self,
        context: Context,
        verdicts: Verdicts,
        note_due: Callable[[str, datetime | None], None],
        on_generated: Callable[[MessageId], None],
        on_done: Callable[[MessageId, int], None],
    ) -> None:
        self._context = context
        self._verdicts = verdicts
        self._note_due = note_due
        self._on_generated = on_generated
        self._on_done = on_done
        self.is_blocked = False
        self._unblocked = asyncio.Event()
        self._unblocked.set()

    async def unblocked(self) -> None:
        """Wait until outcomes can be recorded."""
        await self._unblocked.wait()

    def _block(self) -> None:
        self.is_blocked = True
        self._unblocked.clear()

    def _unblock(self) -> None:
        self.is_blocked = False
        self._unblocked.set()

    async def record(self, stored: StoredMessage, record: AttemptRecord) -> None:
        """Return once the outcome is recorded, however long that takes.

        Raises: the ledger's error if the outcome can never be recorded. The message is then set aside.
        """
        context = self._context
        message_id = stored.envelope.message_id

        def decide(_: MessageId, claim: Claim | None) -> Transition:
            return claims.recorded(claim, record.done, record.sent if record.delivered else NO_ORDINALS)

        joined, has_verdict = self._verdicts.joined(message_id, decide)
        for generated in record.generated if not stored.is_promoted else ():  # promoted: all nodes are asked first, see `Notices`
            context.leases.inherit(generated.message.envelope.message_id, message_id)
        if record.generated:
            context.delayed.caused(message_id, [generated.message.envelope.message_id for generated in record.generated])
        while True:
            try:
                transition = await context.ledger.commit(promises.attempt, record, joined)
                break
            except LedgerUnavailable as error:
                if not self.is_blocked:
                    _log.error("outcome.unrecorded", message_id=message_id, reason=error.reason)
                self._block()
                context.own_disk.outcome_failed(message_id, context.clock.ran(), context.now(), error)
                await asyncio.sleep(LEDGER_AGAIN_SECONDS)
            except Exception:
                context.own_disk.outcome_over(message_id)
                # The outcome cannot be recorded: do not attempt the message again. An administrator has to decide.
                await self._set_aside_delivered(stored)
                self._unblock()
                context.flights.happens(message_id, flight.end_copy)
                raise
        if self.is_blocked:
            self._unblock()
        context.own_disk.outcome_over(message_id)
        if has_verdict:
            context.flights.happens(message_id, flight.end_copy)
        for retry in (record.retry, *(record.others if record.retry is not None else ())):
            if retry is not None:
                self._note_due(retry.next_hop, retry.attempts_next_at)
        for generated in record.generated:
            context.tracking.write(tracking.generated(context.me.server, generated, at=context.now(), original=stored.envelope))
            self._on_generated(generated.message.envelope.message_id)
        if transition.after is not None and transition.after.is_done:
            context.leases.forget(message_id)
            self._on_done(message_id, stored.internal_id)

    async def _set_aside_delivered(self, stored: StoredMessage) -> None:
        reason = "the outcome of an attempt could not be recorded: see the operator log"
        await until_taken(partial(set_aside, self._context, stored, reason), lambda _: self._block())
