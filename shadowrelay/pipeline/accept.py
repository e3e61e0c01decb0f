"""Accepts a message: commits it here while a peer stores the copy, then decides the reply. docs/design.md 5.

The node owns the task, so it completes even if the client disconnects. The reply to the client (`reject` is
reject_message_on_shadow_failure with redundancy enabled; Source: seed-000):

| committed | copy   | reject | answer                                               |
|-----------|--------|--------|------------------------------------------------------|
| no        | any    | any    | the store's own reply; a copy is released            |
| yes       | stored | any    | 250                                                  |
| yes       | none   | no     | 250, logged as not redundant, copied later           |
| yes       | none   | yes    | 451 4.4.0 after the unwinding is committed           |

If mail of the connector is not copied (`redundancy`), the answer is that of a stored copy. With previous-hop and both, the 250 of a message
without a copy waits for its delivery (`pipeline.delayed`).

"Stored" means: on as many servers as `shadow_copies` wants, each of another fate (docs/design.md 6.15). In reject mode
without so many candidates, nothing is stored.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial

import structlog

from shadowrelay.model.counts import LATENCY_BUCKETS_SECONDS, Refusal
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.ownership import Claim, DiscardStatus, Notification, Transition
from shadowrelay.model.queue import NewMessage, Origin, StoredMessage
from shadowrelay.model.replies import (
    INSUFFICIENT_RESOURCES,
    LOCAL_ERROR,
    NOT_MADE_REDUNDANT,
    STORE_UNAVAILABLE,
    ContentCorrupt,
    LedgerUnavailable,
    Reply,
    queued_as,
)
from shadowrelay.model.routing import Destination
from shadowrelay.model.tracking import Acknowledged, Replication, TrackingEvent
from shadowrelay.ownership import claims
from shadowrelay.pipeline.context import Context, until_taken
from shadowrelay.pipeline.copy_repair import CopyRepair
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.pipeline.forks import Verdicts
from shadowrelay.pipeline.shadow_copy import Copier, CopyResult
from shadowrelay.protocol import tracking
from shadowrelay.rules import delivery, flight
from shadowrelay.rules.back_pressure import Pressure
from shadowrelay.rules.placement import apart
from shadowrelay.store import promises

_log = structlog.get_logger()

WAIT_SECONDS_MAX = 270.0  # for copies, delivery and promotion together: clients give up after 5 minutes


class AcceptService:
    """Implements `smtp.reception.Acceptor`."""

    def __init__(
        self,
        context: Context,
        copier: Copier,
        deliver: DeliverService,
        verdicts: Verdicts,
        copy_repair: CopyRepair,
        destination_of: Callable[[str], Destination],
    ) -> None:
        self._context = context
        self._destination_of = destination_of
        self._verdicts = verdicts
        self._copier = copier
        self._deliver = deliver
        self._copy_repair = copy_repair

    @property
    def pressure(self) -> Pressure:
        """See `smtp.reception.Acceptor`."""
        return self._context.pressure

    def refusal(self, *, is_inside: bool) -> Reply | None:
        """See `smtp.reception.Acceptor`."""
        if not self._context.pressure.refuses(is_inside=is_inside):
            return None
        self._context.counts.refused[Refusal.BACK_PRESSURE] += 1
        return INSUFFICIENT_RESOURCES

    def accept(self, envelope: Envelope, content: Content) -> Awaitable[Reply]:
        """See `smtp.reception.Acceptor`."""
        envelope = delivery.routed(envelope, self._destination_of)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        connector = self._context.settings.special_connectors.get(envelope.connector)
        is_delayed = connector is not None and connector.redundancy.tracks and self._context.is_enabled
        if connector is None or not (is_delayed and connector.max_acknowledgement_delay):
            work = self._accept(envelope, content)
        else:
            work = self._accept_delayed(envelope, [content], connector.max_acknowledgement_delay)
        self._context.tasks.spawn(work, "accept").add_done_callback(partial(_pass_on, answer))
        return answer

    async def _accept_delayed(self, envelope: Envelope, held: list[Content], delay: timedelta) -> Reply:
        """`_accept`, and then wait for the delivery of a message without a copy, not keeping its content. The RECEIVE row waits, too."""
        context, message_id = self._context, envelope.message_id
        started = context.clock.awake()
        accepted: list[tuple[StoredMessage, TrackingEvent]] = []
        context.delayed.expect(message_id)
        try:
            reply = await self._accept(envelope, held.pop(), accepted)
            if not reply.is_positive:
                return reply
            began = context.clock.awake()
            latest = started + WAIT_SECONDS_MAX
            how = await context.delayed.wait(message_id, min(delay.total_seconds(), max(latest - began, 0.0)))
            if how is Acknowledged.BEST_EFFORT and context.settings.promotes:
                how = await self._promoted_by_copy(message_id, latest)
        finally:
            context.delayed.forget(message_id)
        over, now = context.clock.awake(), context.now()
        seconds = over - began
        ((stored, received),) = accepted
        context.counts.delayed[how] += 1
        context.counts.delay_seconds += seconds
        if not how.is_safe:
            _log.warning("message.acknowledged_by_best_effort", message_id=message_id, seconds=round(seconds, 3), why=how.value)
            reason = f"Acknowledged after {seconds:.3f} s by best effort"
            context.tracking.write(tracking.haredirectfail(context.me.server, stored, at=now, reason=reason, size=received.total_bytes))
        else:
            _log.info("message.acknowledged_late", message_id=message_id, seconds=round(seconds, 3), why=how.value)
        context.tracking.write(tracking.acknowledged_late(received, at=now, how=how, ack_elapsed=timedelta(seconds=over - started)))
        context.counts.acknowledged[Replication.SUCCESS if how.is_safe else Replication.FAILED] += 1
        return reply

    async def _promoted_by_copy(self, message_id: MessageId, latest: float) -> Acknowledged:
        """shadow_redundancy_promotion: place a copy after all, if that is configured and a peer stores it within shadow_timeout. `latest`:
        the time of `Clock.awake` at which the client must have its 250."""
        context = self._context
        seconds = min(context.settings.transport.shadow_timeout.total_seconds(), latest - context.clock.awake())
        if seconds <= 0 or not context.is_enabled:
            return Acknowledged.BEST_EFFORT
        context.tasks.spawn(self._want_copy(message_id), "promotion")  # a slow commit does not hold the 250
        return await context.delayed.wait(message_id, seconds)

    async def _want_copy(self, message_id: MessageId) -> None:
        context = self._context
        copies = context.settings.transport.shadow_copies
        try:
            await context.ledger.commit(promises.transition, [message_id], lambda _, claim: claims.copies_now_wanted(claim, copies))
        except LedgerUnavailable:
            context.delayed.end(message_id, Acknowledged.BEST_EFFORT)
        else:
            context.flights.happens(message_id, flight.change)
            self._copy_repair.want(message_id)

    async def _accept(self, envelope: Envelope, content: Content, late: list[tuple[StoredMessage, TrackingEvent]] | None = None) -> Reply:
        """`late`: receives the RECEIVE row if the acknowledgement is delayed."""
        context, message_id = self._context, envelope.message_id
        started = context.clock.awake()
        settings, transport = context.settings, context.settings.transport
        is_copied = not settings.special_connectors or settings.is_copied(envelope.connector)
        is_enabled = transport.shadow_redundancy_enabled and is_copied
        wanted = transport.shadow_copies if is_enabled or not transport.shadow_redundancy_enabled else 0
        reject = is_enabled and transport.reject_message_on_shadow_failure
        try:
            if (failure := context.commit_failure) is not None:
                raise LedgerUnavailable(failure.reply, failure.reason)
            plan = self._copier.plan(message_id, copies=wanted, is_apart=reject) if is_enabled else ()
            firsts = plan[:1] if wanted == 1 else tuple(dict.fromkeys(plan))[:wanted]
            parties = tuple(map(context.peers.party, firsts))
            if wanted > 1:  # the highest number takes over first: not one that may be lost with this node
                parties = tuple(sorted(parties, key=lambda party: not context.shared_fate(party.server).is_own))
            claim = claims.first_claim(context.me, len(envelope.recipients), parties, wanted)
            now = context.now()
            message = NewMessage(envelope, claim, Origin.CLIENT, now, delivery.remember_until(now, transport))
            # for one copy, the plan has only servers on which it would count
            if reject and (len(firsts) < wanted or (wanted > 1 and self._share_fates(plan, firsts, wanted))):
                self._copier.note_sites(None)
                return self._refuse(StoredMessage(0, envelope, claim, Origin.CLIENT, None, None), [], content.size)
            # The claim must not end while the message is being accepted.
            context.flights.happens(message_id, flight.reserve, is_copying=bool(plan))
            if not plan:
                if wanted and is_enabled:
                    self._copier.note_sites(None)
                stored = await context.ledger.commit(promises.accepted, message, content, decided=True)
                return self._acknowledge(stored, content, started, None, late)
            commit = context.ledger.commit(promises.accepted, message, content, decided=False)
            if content.path is not None:  # the file moves into the store: the copy is read from there
                content = await self._moved(await commit, claim)
            try:
                result = await self._copier.copy(
                    envelope, content, claim, plan,
                    listed_count=len(claim.copies), is_client_waiting=True, copies=claim.wanted, started=started,
                )  # fmt: skip
            except Exception as error:
                # Continue without a copy. Servers that may have received one are on the list.
                _log.exception("copy.failed", message_id=message_id)
                result = CopyResult(claim, failures=[repr(error)])
            self._copier.note_sites(result)
            try:
                stored = await commit
            except Exception:
                self._release(message_id, result.known(claim))
                raise
            is_lost = bool(result.unreadable) and not result.stored  # here it cannot be read, and nobody else has it
            uncounted = result.not_redundant(message_id) if result.shared else ()
            if (reject and len(result.stored) - len(uncounted) < wanted) or is_lost:
                await self._unwind(message_id, result)
                if is_lost:
                    raise LedgerUnavailable(STORE_UNAVAILABLE, result.unreadable)
                context.leases.forget(message_id)
                return self._refuse(stored, result.failures, content.size)
            self._verdicts.add(message_id, result.verdict)
            after = result.verdict(message_id, result.claim).after
            assert after is not None
            stored = StoredMessage(stored.internal_id, envelope, after, stored.origin, stored.place, stored.due_at)
            return self._acknowledge(stored, content, started, result, late, uncounted)
        except LedgerUnavailable as error:
            context.counts.refused[Refusal.LEDGER] += 1
            _log.warning("message.refused", message_id=message_id, reason=error.reason)
            if context.commit_failure is None:
                context.own_disk.mail_failed(content.size, context.clock.awake(), error.reason)
            reply = error.reply
        except Exception:
            # An unknown error is transient: never 5xx, and the node keeps running.
            context.counts.refused[Refusal.ERROR] += 1
            _log.exception("message.failed", message_id=message_id)
            reply = LOCAL_ERROR
        context.flights.happens(message_id, flight.release)
        context.flights.happens(message_id, flight.end_copy)
        context.leases.forget(message_id)  # a copy may have been stored, and nothing else ends this entry
        return reply

    def _share_fates(self, plan: Sequence[ServerName], firsts: Sequence[ServerName], wanted: int) -> bool:
        """Whether these servers cannot hold so many copies that count."""
        shared = self._context.shared_fate
        return len(apart(firsts, shared)) < wanted and len(apart(dict.fromkeys(plan), shared)) < wanted

    async def _moved(self, stored: StoredMessage, claim: Claim) -> Content:
        """The content at its place in the store. A message whose content cannot be read back is not accepted."""
        assert stored.place is not None
        try:
            return await self._context.ledger.read_content(stored.place)
        except (ContentCorrupt, LedgerUnavailable):
            nothing_sent = tuple(copy.server for copy in claim.copies)
            await self._unwind(stored.envelope.message_id, CopyResult(claim, unsent=nothing_sent))
            raise

    def _release(self, message_id: MessageId, claim: Claim) -> None:
        """The message could not be committed: its copies are not needed."""
        if copies := claim.copies:
            tell = tuple(Notification(copy.server, copy.database, DiscardStatus.RELEASED) for copy in copies)
            self._context.tasks.spawn(self._until_committed(message_id, tell), "release")

    def _acknowledge(
        self,
        stored: StoredMessage,
        content: Content,
        started: float,
        result: CopyResult | None,
        late: list[tuple[StoredMessage, TrackingEvent]] | None,
        uncounted: Sequence[ServerName] = (),
    ) -> Reply:
        """`uncounted`: the servers whose copies do not count."""
        context = self._context
        context.own_disk.mail_stored()
        at, now = context.clock.awake(), context.now()
        elapsed = timedelta(seconds=at - started)
        me, size = context.me.server, content.size
        wanted, made = stored.claim.wanted, 0 if result is None else len(result.stored) - len(uncounted)
        for party, _ in result.stored if result is not None else ():
            shared = context.peers.fates.what_keeps(party.server) if party.server in uncounted else ""
            row = tracking.haredirect(me, stored, at=now, server=party.server, elapsed=elapsed, size=size, shared_fate=shared)
            context.tracking.write(row)
        if uncounted:
            context.counts.shared_fate += 1
        if made == wanted and wanted:
            if context.delayed.waiting:
                context.delayed.end(stored.envelope.message_id, Acknowledged.COPIED)
            replication, shadow_elapsed = Replication.SUCCESS, elapsed
            context.counts.latencies[bisect_left(LATENCY_BUCKETS_SECONDS, at - started)] += 1
            context.counts.latencies_seconds += at - started
        elif context.is_enabled and wanted:
            replication, shadow_elapsed = Replication.FAILED, None
            context.tracking.write(tracking.haredirectfail(me, stored, at=now, reason=_why(result), size=size))
            _log.warning(
                "message.accepted_without_copy", message_id=stored.envelope.message_id, copies=f"{made}/{wanted}",
                reason="; ".join(result.failures if result is not None and result.failures else context.peers.reasons_against_copies()),
            )  # fmt: skip
        else:
            replication, shadow_elapsed = Replication.DISABLED, None
        received = tracking.receive(
            me, stored, at=now, replication=replication, ack_elapsed=elapsed, shadow_elapsed=shadow_elapsed, size=size,
            copies=(made, wanted), shared_fate=uncounted,
        )  # fmt: skip
        if late is None:
            context.tracking.write(received)
            context.counts.acknowledged[replication] += 1
        else:
            late.append((stored, received))
        if replication is Replication.FAILED:
            self._copy_repair.want(stored.envelope.message_id)
        is_moving = result is None and content.path is not None  # the session's file is now in the store, and is read from there
        self._deliver.deliver_accepted(stored, None if is_moving else content)
        return queued_as(stored.envelope.message_id)

    def _refuse(self, stored: StoredMessage, failures: list[str], size: int) -> Reply:
        context = self._context
        reason = "; ".join(dict.fromkeys(failures)) or tracking.NO_SUITABLE_SHADOW_SERVERS
        context.tracking.write(tracking.haredirectfail(context.me.server, stored, at=context.now(), reason=reason, size=size))
        context.counts.refused[Refusal.NOT_REDUNDANT] += 1
        context.flights.happens(stored.envelope.message_id, flight.release)
        context.flights.happens(stored.envelope.message_id, flight.end_copy)
        return NOT_MADE_REDUNDANT

    async def _unwind(self, message_id: MessageId, result: CopyResult) -> None:
        def unwinding(_: MessageId, claim: Claim | None) -> Transition:
            return claims.client_refused(result.known(claim))

        def failed(error: LedgerUnavailable) -> None:
            _log.warning("unwinding.waits", message_id=message_id, reason=error.reason)

        # Send 451 only after this commit: otherwise the message could still be delivered.
        await until_taken(partial(self._context.ledger.commit, promises.verdict, message_id, unwinding), failed)

    async def _until_committed(self, message_id: MessageId, tell: tuple[Notification, ...]) -> None:
        def telling(_: MessageId, claim: Claim | None) -> Transition:
            return Transition(claim, claim, tell)

        await until_taken(partial(self._context.ledger.commit, promises.transition, [message_id], telling))


def _pass_on(answer: "asyncio.Future[Reply]", task: "asyncio.Task[Reply]") -> None:
    """Copy the task's result to the future that the caller awaits. Cheaper than `asyncio.shield`; the owner of the task logs failures."""
    if answer.done():  # the caller was cancelled
        return
    if task.cancelled():
        answer.cancel()
    elif (error := task.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


def _why(result: CopyResult | None) -> str:
    return "; ".join(dict.fromkeys(result.failures)) if result is not None and result.failures else tracking.NO_SUITABLE_SHADOW_SERVERS
