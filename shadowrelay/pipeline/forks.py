"""Attempts one fork: runs its transactions, records their outcome, and builds the DSNs. RFC 3461, docs/design.md 5.

A fork of more than 100 recipients takes several transactions. Deliveries of each are recorded before the next begins, so that
a crash repeats at most one transaction. Failed recipients are recorded with the last one, with one DSN for all of them; until
then a restart would only try them again.

DSNs are messages of their own, committed with the outcome that caused them. A DSN that cannot be built must not prevent
recording that outcome: otherwise recipients already served would get the message repeatedly. In that case a plain DSN without any
content of the original is built; if that fails too, none, and the operator log reports it.
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType

import structlog

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import NO_ORDINALS, Content, Ordinals
from shadowrelay.model.queue import AttemptRecord, FailureKind, ForkRetry, NewMessage, Origin, SideMessage, StoredMessage
from shadowrelay.model.replies import (
    LOCAL_ERROR,
    ContentCorrupt,
    DeliveryError,
    LeaseTooShort,
    LedgerUnavailable,
    Reply,
    TransientDeliveryError,
)
from shadowrelay.model.routing import Destination, Fork
from shadowrelay.model.tracking import EventSource
from shadowrelay.model.values import dataclass, replace
from shadowrelay.ownership import primary
from shadowrelay.pipeline import delivery_rules, dsn, journal, tracking_rows
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.delivery_rules import NO_REPLY, AttemptOutcome
from shadowrelay.pipeline.dsn import Action, DsnKind, RecipientReport, promotion_header
from shadowrelay.pipeline.journaling import Journaling, Record, head_of
from shadowrelay.pipeline.routing import RECIPIENTS_PER_TRANSACTION_MAX, Router
from shadowrelay.ports import Deliverer, DeliveryJob
from shadowrelay.settings.values import Settings

ACTIONS = {DsnKind.FAILURE: Action.FAILED, DsnKind.DELAY: Action.DELAYED, DsnKind.SUCCESS: Action.RELAYED}
NO_KEYS: Mapping[int, bytes] = MappingProxyType({})
RELAYED = Reply(250, "2.0.0", "Relayed to a server that makes no further reports")


_log = structlog.get_logger()


class Notices:
    """Builds the DSNs of one commit: at most one for each kind."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def about(
        self,
        stored: StoredMessage,
        read_content: Callable[[], Awaitable[Content]],
        outcome: AttemptOutcome,
        server: str,
        *,
        passes_dsn: bool,
    ) -> tuple[SideMessage, ...]:
        """Shapes: empty if no DSN is due, as always for the null sender. `passes_dsn`: the next hop received the sender's DSN
        parameters and reports itself. The content is read only if a DSN is due."""
        if not stored.envelope.sender:
            return ()
        found: dict[DsnKind, dict[int, tuple[Reply, str]]] = {}
        if outcome.failed:
            found[DsnKind.FAILURE] = {
                ordinal: (reply, "" if ordinal in outcome.expired else server) for ordinal, reply in outcome.failed.items()
            }
        if outcome.delayed_dsn:
            found[DsnKind.DELAY] = {ordinal: (_last_reply(outcome), server) for ordinal in outcome.delayed_dsn}
        if outcome.delivered and not passes_dsn:
            found[DsnKind.SUCCESS] = dict.fromkeys(outcome.delivered, (RELAYED, server))
        sides = []
        for kind, replies in found.items():
            ordinals = dsn.notifiable(stored.envelope, replies, kind)
            if ordinals and (side := await self._side(stored, read_content, kind, ordinals, replies)) is not None:
                sides.append(side)
        return tuple(sides)

    async def _side(
        self,
        stored: StoredMessage,
        read_content: Callable[[], Awaitable[Content]],
        kind: DsnKind,
        ordinals: Ordinals,
        replies: dict[int, tuple[Reply, str]],
    ) -> SideMessage | None:
        message_id = stored.envelope.message_id
        try:
            try:
                head, is_whole = head_of(await read_content())
            except (ContentCorrupt, LedgerUnavailable, OSError) as error:
                _log.warning("notice.without_original", message_id=message_id, reason=str(error))
                head, is_whole = b"", False
            with self._context.ledger.handling(message_id):  # a DSN quotes the content
                return self._built(stored, head, kind, ordinals, replies, is_whole=is_whole)
        except Exception:
            _log.exception("notice.failed", message_id=message_id, kind=kind.value)
        try:
            plain = replace(stored, envelope=replace(stored.envelope, subject="", internet_message_id="", envid=None))
            return self._built(plain, b"", kind, ordinals, replies, is_whole=False)
        except Exception:
            _log.exception("notice.given_up", message_id=message_id, kind=kind.value, recipients=len(ordinals))
            return None

    def _built(
        self,
        stored: StoredMessage,
        head: bytes,
        kind: DsnKind,
        ordinals: Ordinals,
        replies: dict[int, tuple[Reply, str]],
        *,
        is_whole: bool,
    ) -> SideMessage:
        context = self._context
        now = context.now()
        transport = context.settings.transport
        original = stored.envelope
        dsn_id = dsn.dsn_message_id(original.message_id, ordinals, kind)
        until = original.arrived_at + transport.message_expiration_timeout if kind is DsnKind.DELAY else None
        reports = [self._report(stored, kind, ordinal, *replies[ordinal], now, until) for ordinal in sorted(ordinals)]
        data = dsn.build(kind, original, reports, head, dsn_id, node=context.me.server, now=now, is_whole=is_whole)
        envelope = dsn.envelope_for(original, dsn_id, now, context.me.server, kind)
        claim = primary.first_claim(context.me, 1, wanted=transport.shadow_copies)
        if stored.is_promoted:  # the lost primary may have made this DSN already, and any node may have taken that over
            claim = replace(claim, copies=context.peers.entries())
        message = NewMessage(envelope, claim, Origin.DSN, now, delivery_rules.remember_until(now, transport))
        return SideMessage(message, Content(len(data), hashlib.sha256(data).digest(), data), ACTIONS[kind].value)

    def _report(
        self, stored: StoredMessage, kind: DsnKind, ordinal: int, reply: Reply, server: str, now: datetime, until: datetime | None
    ) -> RecipientReport:
        recipient = stored.envelope.recipients[ordinal - 1]
        return RecipientReport(ordinal, recipient, ACTIONS[kind], reply, server, now, until)


def _last_reply(outcome: AttemptOutcome) -> Reply:
    return NO_REPLY if outcome.retry is None else reply_of(outcome.retry.last_reply)


def reply_of(text: str) -> Reply:
    """Parse the last reply of a retry, which is kept as text: `451 4.4.1 …`."""
    code, _, rest = text.partition(" ")
    enhanced, _, words = rest.partition(" ")
    if not code.isdigit():
        return NO_REPLY
    return Reply(int(code), enhanced, words) if enhanced[:2] in ("2.", "4.", "5.") else Reply(int(code), "", rest)


@dataclass(slots=True)
class ForkAttempt:
    """One attempt. `content` is read by `read_content` when a session is open. `retry` is the fork's row in its queue.

    Units: `reply_seconds` is how long the reply to the final dot may still take.
    """

    stored: StoredMessage
    fork: Fork
    retry: ForkRetry | None
    read_content: Callable[[], Awaitable[Content]]
    may_end_data: Callable[[Ordinals], bool]
    reply_seconds: Callable[[], float]


@dataclass(frozen=True, slots=True)
class NextHopNews:
    """What the attempt shows about the next hop. `failure`: why none of its hosts could be reached, or how the session was
    lost (`is_lost`); `None` if it answered."""

    failure: Reply | None
    is_lost: bool = False


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


class SameInProgress(Exception):
    """Another attempt delivers the same message, as a client sent it twice: wait for its outcome."""


class Forks:
    """Bifurcation and attempts; uses routing, but neither ownership nor queues."""

    def __init__(self, context: Context, deliverer: Deliverer) -> None:
        self._context = context
        self._deliverer = deliverer
        self._notices = Notices(context)
        self._journaling = Journaling(context)
        self._chance = random.Random()
        self._in_progress: set[bytes] = set()  # keys of what is being delivered: `delivery_rules.keys_of`
        self.configure(context.settings)

    def configure(self, settings: Settings) -> None:
        """Apply the routes of the current configuration."""
        self._router = Router(settings.routes, settings.server.name)

    def destination_of(self, address: str) -> Destination:
        """Where mail for this recipient goes now."""
        return self._router.destination(address)

    def of(self, stored: StoredMessage) -> tuple[Fork, ...]:
        """The forks of the recipients that are not done."""
        recipients = stored.envelope.recipients
        return self._router.forks(recipients, frozenset(range(1, len(recipients) + 1)) - stored.claim.done)

    def next_hop_of(self, name: str) -> Destination | None:
        """The next hop with this key, or for mail to this domain. Patterns for single addresses may send some of it elsewhere."""
        return self._router.next_hop_of(name)

    def queued(self, stored: StoredMessage, fork: Fork, now: datetime) -> ForkRetry:
        """The row of a fork that waits in its queue and was never attempted."""
        settings = self._context.settings
        notice_at = delivery_rules.notice_at(
            stored.envelope.arrived_at, settings.send, settings.transport.message_expiration_timeout, is_notified=False
        )
        return ForkRetry(fork.destination.key, fork.ordinals, 0, FailureKind.QUEUED, now, now, "", notice_at=notice_at)

    def track_transfer(self, stored: StoredMessage, forks: Sequence[Fork]) -> None:
        """Write TRANSFER: forks were made."""
        context = self._context
        now = context.now()
        for fork in forks:
            context.tracking.write(
                tracking_rows.transfer(context.me.server, stored, at=now, next_hop=fork.destination.key, ordinals=fork.ordinals)
            )

    async def attempt(self, attempt: ForkAttempt, record: Record) -> NextHopNews | None:
        """Run and record all transactions of the fork; None if all recipients have the message already.

        Raises: LeaseTooShort, ContentCorrupt, LedgerUnavailable: the rest of the fork was not attempted; the part before is recorded.
        SameInProgress: nothing was attempted.
        """
        context, stored, ordinals = self._context, attempt.stored, attempt.fork.ordinals
        window = context.settings.transport.duplicate_detection_window
        keys = delivery_rules.keys_of(stored.envelope, ordinals) if window else NO_KEYS
        if not self._in_progress.isdisjoint(keys.values()):
            raise SameInProgress
        self._in_progress.update(keys.values())
        try:
            if keys and context.ledger.may_be_delivered(keys.values(), context.now() - window):
                ordinals -= await self._end_duplicates(attempt, keys, window, record)
                if not ordinals:
                    return None
            prefix = b""
            if stored.is_promoted:
                prefix = promotion_header(stored.promoted_from, context.me.server, stored.envelope.message_id, context.now())
            if len(ordinals) > RECIPIENTS_PER_TRANSACTION_MAX:
                return await self._attempt_in_parts(attempt, ordinals, prefix, keys, record)
            result = await self._transaction(attempt, ordinals, prefix)
            await self._commit(attempt, record, await self._record(attempt, self._settle(attempt, result), result, keys))
            return _news(result)
        finally:
            self._in_progress.difference_update(keys.values())

    async def _end_duplicates(self, attempt: ForkAttempt, keys: Mapping[int, bytes], window: timedelta, record: Record) -> Ordinals:
        """End the recipients to whom the same message was delivered within the window. docs/design.md 6.5."""
        context, stored, fork = self._context, attempt.stored, attempt.fork
        now = context.now()
        found = await context.ledger.delivered_before(set(keys.values()), now - window, now + window)
        firsts: dict[MessageId, set[int]] = defaultdict(set)
        for ordinal, key in keys.items():
            if key in found and found[key].message_id != stored.envelope.message_id:
                firsts[found[key].message_id].add(ordinal)
        if not firsts:
            return NO_ORDINALS
        ended = frozenset().union(*firsts.values())
        rest = fork.ordinals - ended
        waiting = replace(attempt.retry or self.queued(stored, fork, now), ordinals=rest, attempts_next_at=now) if rest else None
        context.metrics.attempt("duplicate")
        for first, ordinals in firsts.items():  # before the commit, as in `_track`: a row too many explains more than one too few
            at = context.now()
            context.tracking.write(tracking_rows.duplicate(context.me.server, stored, at=at, ordinals=frozenset(ordinals), first=first))
            _log.info("delivery.duplicate", message_id=stored.envelope.message_id, delivered_as=first, recipients=len(ordinals))
        await self._commit(attempt, record, await self._record(attempt, AttemptOutcome(ended, {}, waiting), None))
        return ended

    async def _attempt_in_parts(
        self, attempt: ForkAttempt, ordinals: Ordinals, prefix: bytes, keys: Mapping[int, bytes], record: Record
    ) -> NextHopNews:
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
            else:
                so_far = AttemptOutcome(outcome.delivered, failed, deferred, late, expired)
            await self._commit(attempt, record, await self._record(attempt, so_far, result, keys))
            if end >= len(places):
                break
        news = _news(result)
        return NextHopNews(None) if news.is_lost and start else news  # it answered the transactions before

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
            self._track(attempt, result, outcome, EventSource.QUEUE)
        await self._commit(attempt, record, await self._record(attempt, outcome, result))

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
            partial(attempt.may_end_data, ordinals),
            attempt.reply_seconds,
            partial(context.ledger.handling, stored.envelope.message_id),
        )
        try:
            report = await self._deliverer.deliver(job)
        except (LeaseTooShort, ContentCorrupt, LedgerUnavailable):
            raise
        except DeliveryError as error:
            failure, server = error.with_traceback(None), error.server
        except Exception:
            # An unknown error is transient.
            _log.exception("attempt.failed", message_id=stored.envelope.message_id, next_hop=fork.destination.key)
            failure, server = TransientDeliveryError(LOCAL_ERROR, fork.destination.key), fork.destination.key
        else:
            elapsed = timedelta(seconds=context.clock.awake() - began)
            return TransactionResult(ordinals, report.replies, report.server, elapsed, report.passes_dsn, report.dot_sent_unanswered)
        elapsed = timedelta(seconds=context.clock.awake() - began)
        return TransactionResult(ordinals, failure, server, elapsed, dot_sent_unanswered=failure.dot_sent_unanswered)

    def _settle(self, attempt: ForkAttempt, result: TransactionResult) -> AttemptOutcome:
        delivered = delivery_rules.delivered_of(result.ordinals, result.result)
        is_whole = len(delivered) == len(result.ordinals)
        outcome = AttemptOutcome(delivered, {}, None) if is_whole else self._outcome(attempt, result)
        self._context.metrics.attempt("delivered" if is_whole else _metric_label(outcome))
        try:
            self._track(attempt, result, outcome, EventSource.SMTP if is_whole else _source(result.result))
        except Exception:
            _log.exception("attempt.untracked", message_id=attempt.stored.envelope.message_id)  # the outcome stands nevertheless
        return outcome

    def _outcome(self, attempt: ForkAttempt, result: TransactionResult) -> AttemptOutcome:
        context = self._context
        settings = context.settings
        return delivery_rules.settle_attempt(
            attempt.fork.destination.key,
            result.ordinals,
            result.result,
            attempt.retry,
            arrived_at=attempt.stored.envelope.arrived_at + context.clock_ahead(),
            now=context.now(),
            send=settings.send,
            message_expiration_timeout=settings.transport.message_expiration_timeout,
            jitter=self._chance.random(),
            dot_sent_unanswered=result.dot_sent_unanswered,
        )

    def _track(self, attempt: ForkAttempt, result: TransactionResult, outcome: AttemptOutcome, source: EventSource) -> None:
        """Log the replies of the next hop before they are committed: they are facts, even if the commit fails."""
        context, stored, destination = self._context, attempt.stored, attempt.fork.destination
        me, now, key, server, elapsed = context.me.server, context.now(), destination.key, result.server, result.elapsed
        said = result.result
        replies = said if isinstance(said, Mapping) else dict.fromkeys(sorted(result.ordinals), said.reply)
        if outcome.delivered:
            is_whole = len(outcome.delivered) == len(replies)
            done = replies if is_whole else {ordinal: replies[ordinal] for ordinal in sorted(outcome.delivered)}
            external = not destination.inside_boundary
            context.tracking.write(
                tracking_rows.send(me, stored, at=now, server=server, replies=done, external=external, elapsed=elapsed, next_hop=key)
            )
        if outcome.expired:
            context.tracking.write(tracking_rows.expire(me, stored, at=now, ordinals=outcome.expired))
        for cause, ordinals in ((source, outcome.failed.keys() - outcome.expired), (EventSource.QUEUE, outcome.expired)):
            if ordinals:
                failed = {ordinal: outcome.failed[ordinal] for ordinal in ordinals}
                context.tracking.write(
                    tracking_rows.fail(me, stored, at=now, server=server, replies=failed, elapsed=elapsed, source=cause, next_hop=key)
                )
        if outcome.retry is not None:
            late = {ordinal: replies.get(ordinal, delivery_rules.NO_REPLY) for ordinal in sorted(outcome.retry.ordinals)}
            unanswered = "no reply to the final dot" if result.dot_sent_unanswered else ""
            context.tracking.write(
                tracking_rows.defer(
                    me, stored, at=now, server=server, replies=late, elapsed=elapsed, source=source, next_hop=key, context=unanswered
                )
            )

    async def _record(
        self, attempt: ForkAttempt, outcome: AttemptOutcome, result: TransactionResult | None, keys: Mapping[int, bytes] = NO_KEYS
    ) -> AttemptRecord:
        """The record to commit: the ordinals that ended, the rest of the fork, and the DSNs to the sender. Without a result nothing
        was attempted, and the sender hears nothing."""
        transport = self._context.settings.transport
        now = self._context.now()
        stored, key = attempt.stored, attempt.fork.destination.key
        others: tuple[ForkRetry, ...] = ()
        if outcome.retry is not None and not stored.retries:
            others = tuple(self.queued(stored, other, now) for other in self.of(stored) if other.destination.key != key)
        sides: tuple[SideMessage, ...] = ()
        # The sender may have requested any of these reports.
        if result is not None and (outcome.failed or outcome.delayed_dsn or (outcome.delivered and not result.passes_dsn)):
            sides = await self._notices.about(stored, attempt.read_content, outcome, result.server, passes_dsn=result.passes_dsn)
        return AttemptRecord(
            stored.envelope.message_id,
            key,
            outcome.done,
            outcome.retry,
            others,
            sides,
            delivery_rules.safety_net_until(now, transport),
            delivery_rules.remember_until(now, transport),
            tuple(map(keys.__getitem__, outcome.delivered)) if keys else (),
            sent=outcome.delivered,
            is_inside=attempt.fork.destination.inside_boundary,
        )

    def _commit(self, attempt: ForkAttempt, record: Record, outcome: AttemptRecord) -> Awaitable[None]:
        """Record the outcome; with journal reports if it is the first for one of the message's recipients."""
        stored, router = attempt.stored, self._router
        if router.is_journaling and outcome.done and not stored.claim.done and journal.is_journaled(stored.envelope):
            journal_recipients = router.journal_recipients(stored.envelope.recipients)
            if journal_recipients:
                return self._journaling.record(stored, outcome, journal_recipients, attempt.read_content, record)
        return record(outcome)


def _news(result: TransactionResult) -> NextHopNews:
    error = result.result
    if isinstance(error, DeliveryError) and error.is_connection:
        return NextHopNews(error.reply, is_lost=not error.is_unreachable)
    return NextHopNews(None)


def _metric_label(outcome: AttemptOutcome) -> str:
    if outcome.delivered:
        return "partly"
    return "deferred" if outcome.retry is not None else "failed"


def _source(result: Mapping[int, Reply] | DeliveryError) -> EventSource:
    if isinstance(result, DeliveryError) and result.reply.enhanced in ("5.1.2", "5.1.10", "4.4.3"):
        return EventSource.DNS
    return EventSource.SMTP
