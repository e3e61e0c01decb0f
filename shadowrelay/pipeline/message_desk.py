"""Requests of administrators about single messages: suspend, resume, resubmit, release, remove, export. docs/design.md 6.9, 6.12.

docs/reference.md "Queues and messages by hand" describes the commands. Each request is checked twice: on the message as read, so that a
refusal states the reason, and again in the transaction. The commit and the changes in memory after it are one task of the node, which
completes even if the administrator does not wait for the answer.

A message that is delivered normally may be removed only under the conditions of its expiry: with the leases of the servers on its list, or
where `delivery_without_lease` waives them, and while no attempt runs. Otherwise another server could deliver a message whose sender was
notified of its removal.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial

import structlog

from shadowrelay.model.ids import NO_SERVERS, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Content
from shadowrelay.model.ownership import Claim, Role, Transition
from shadowrelay.model.queue import AttemptRecord, GeneratedMessage, StoredMessage, Suspension
from shadowrelay.model.replies import ContentCorrupt, Reply, RequestRefused
from shadowrelay.model.tracking import Acknowledged, EventSource, TrackingEvent
from shadowrelay.ownership import claims, rules
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.pipeline.generated_messages import Notices
from shadowrelay.pipeline.review import ReviewService
from shadowrelay.protocol import tracking
from shadowrelay.protocol.replay import format_envelope_lines
from shadowrelay.rules import delivery, flight
from shadowrelay.rules.delivery import AttemptOutcome
from shadowrelay.rules.dsn import promotion_header
from shadowrelay.store import promises, reading

REMOVED = Reply(554, "5.3.0", "Removed from the queue by an administrator")  # RFC 3463 X.3.0
CHANGED = "it changed at this moment: look at it again"
WAIT_SECONDS = 4.0  # for leases and for an attempt to end; less than the client of the API waits
LOOK_SECONDS = 0.1

_log = structlog.get_logger()


def messages_queued_as(queue_id: str, rows: Iterable[TrackingEvent]) -> tuple[MessageId, ...]:
    """Whose replies have this id of a next hop, as a word."""
    word = re.compile(rf"(?<![\w.-]){re.escape(queue_id)}(?![\w-])")
    named = [row.network_message_id for row in rows if any(map(word.search, row.recipient_statuses))]
    return tuple(MessageId(each) for each in dict.fromkeys(named) if each)


async def withheld_content() -> Content:
    """The content may be poison: the DSN does not read it, and quotes an empty header."""
    return Content(1, b"", b"")


class MessageDesk:
    """All methods raise RequestRefused, with reason and remedy, or LedgerUnavailable. `False`: there is no such message."""

    def __init__(
        self, context: Context, deliver: DeliverService, review: ReviewService, notices: Notices, wake_placement: Callable[[], None]
    ) -> None:
        self._context = context
        self._deliver = deliver
        self._review = review
        self._wake_placement = wake_placement
        self._notices = notices

    async def suspend(self, message_id: MessageId, by: str) -> bool:
        """Start no attempt on it any more. It keeps its copy, and expires as usual."""
        stored = await self._context.ledger.read(reading.load, message_id)
        if stored is None:
            return False
        _refuse_if(delivery.reason_against_suspension(stored))
        suspension = Suspension(self._context.now(), by)
        await self._context.tasks.whole(self._record_suspended(stored, suspension), "suspend")
        return True

    async def resume(self, message_id: MessageId, by: str) -> bool:
        """Attempt all its forks now. A message that was set aside is released."""
        stored = await self._context.ledger.read(reading.load, message_id)
        if stored is None:
            return False
        if stored.claim.role is Role.SET_ASIDE:
            return await self.release(message_id)
        _refuse_if("" if stored.suspended is not None else "it is not suspended")
        await self._context.tasks.whole(self._record_suspended(stored, None, by), "resume")
        return True

    async def _record_suspended(self, stored: StoredMessage, suspension: Suspension | None, by: str = "") -> None:
        context = self._context
        message_id = stored.envelope.message_id
        forks = [] if stored.retries or suspension is None else self._deliver.forks_of(stored)
        next_hops = await context.ledger.commit(promises.suspended, message_id, suspension, forks)
        self._deliver.changed(message_id, next_hops)
        if not next_hops:
            return  # it was already
        if suspension is not None:
            _log.warning("message.suspended", message_id=message_id, by=suspension.by)
        elif stored.suspended is not None:
            _log.warning("message.resumed", message_id=message_id, by=by, suspended_since=stored.suspended.since.isoformat())

    async def release(self, message_id: MessageId) -> bool:
        """Put a message that was set aside back into delivery, no longer as a suspect."""
        context = self._context
        stored = await context.ledger.read(reading.load, message_id)
        if stored is None:
            return False
        _refuse_if(delivery.reason_against_release(stored))
        await context.tasks.whole(self._record_released(stored), "release")
        return True

    async def _record_released(self, stored: StoredMessage) -> None:
        context = self._context
        message_id = stored.envelope.message_id
        transition = await context.ledger.commit(promises.taken_back, message_id, lambda _, claim: claims.taken_back(claim))
        _refuse_if("" if transition.changed else CHANGED)
        _log.warning("message.released", message_id=message_id, was=stored.set_aside_reason)
        reason = f"released by an administrator; it was set aside because {stored.set_aside_reason}"
        context.tracking.write(tracking.poison(context.me.server, stored, at=context.now(), reason=reason))
        self._deliver.wake()

    async def remove(self, message_id: MessageId, *, with_dsn: bool) -> bool:
        """End it for all remaining recipients: FAIL, a DSN to the sender if `with_dsn`, and notifications to the servers that may
        hold a copy, in one commit."""
        context = self._context
        stored = await context.ledger.read(reading.load, message_id)
        if stored is None:
            return False
        _refuse_if(delivery.reason_against_removal(stored))
        if stored.claim.role is not Role.PRIMARY:
            await context.tasks.whole(self._record_removed(stored, with_dsn=with_dsn), "remove")
            return True
        _refuse_if(self._unasked(stored))
        await self._wait_for_leases(stored)
        await self._reserve(message_id)
        await context.tasks.whole(self._remove_reserved(message_id, with_dsn=with_dsn), "remove")
        return True

    def _unasked(self, stored: StoredMessage) -> str:
        """Rule *rolled back*: nothing ends before all nodes were asked about it."""
        is_older = rules.is_of_older_copy(stored.claim, self._context.me)
        return (
            "it is from an older copy of the queue database, and other nodes are asked about it first: try again later" if is_older else ""
        )

    def _without_lease(self, stored: StoredMessage) -> frozenset[ServerName]:
        """The servers that could take the message over, or have."""
        missing = frozenset(rules.without_lease(stored.claim, partial(self._context.leases.suffices, stored.envelope.message_id)))
        return NO_SERVERS if self._review.may_go_without(missing) else missing

    async def _wait_for_leases(self, stored: StoredMessage) -> None:
        """After a start nobody has asked the servers on the list yet: nothing was to be attempted."""
        if not self._without_lease(stored):
            return
        message_id = stored.envelope.message_id
        self._review.request(message_id)
        end_at = self._context.clock.awake() + WAIT_SECONDS
        while missing := self._without_lease(stored):
            if self._context.clock.awake() >= end_at:
                raise RequestRefused(f"{', '.join(sorted(missing))} may hold a copy and deliver it, and does not answer: try again later")
            await asyncio.sleep(LOOK_SECONDS)
            current = await self._context.ledger.read(reading.load, message_id)
            stored = current or stored

    async def _reserve(self, message_id: MessageId) -> None:
        """From now on nothing else is attempted, and its claim does not end, until `flight.release`."""
        end_at = self._context.clock.awake() + WAIT_SECONDS
        while not self._context.flights.happens(message_id, flight.reserve):
            if self._context.clock.awake() >= end_at:
                raise RequestRefused("an attempt to deliver it is running: suspend it, and remove it when that attempt has ended")
            await asyncio.sleep(LOOK_SECONDS)

    async def _remove_reserved(self, message_id: MessageId, *, with_dsn: bool) -> None:
        """An attempt that ended a moment ago is recorded by now."""
        context = self._context
        try:
            stored = await context.ledger.read(reading.load, message_id)
            _refuse_if(CHANGED if stored is None or stored.claim.role is not Role.PRIMARY or not stored.is_decided else "")
            assert stored is not None
            _refuse_if(CHANGED if self._without_lease(stored) else self._unasked(stored))
            await self._record_removed(stored, with_dsn=with_dsn)
        finally:
            context.flights.happens(message_id, flight.release)

    async def _record_removed(self, stored: StoredMessage, *, with_dsn: bool) -> None:
        context = self._context
        message_id = stored.envelope.message_id
        if not stored.claim.is_primary:  # an unreadable copy: its primary has the message
            (transition,) = await context.ledger.commit(
                promises.transition, [message_id], lambda _, claim: claims.unreadable_removed(claim)
            )
            _refuse_if("" if transition.changed else CHANGED)
            _log.warning("message.removed", message_id=message_id, recipients=0, dsn=False)
            return
        left = stored.envelope.ordinals - stored.claim.done
        outcome = AttemptOutcome(NO_ORDINALS, dict.fromkeys(sorted(left), REMOVED), None)
        notices: tuple[GeneratedMessage, ...] = ()
        is_readable = stored.claim.role is Role.PRIMARY and stored.place is not None and not stored.deaths_count
        if with_dsn:
            read = partial(context.read_content, stored.place) if is_readable and stored.place is not None else withheld_content
            notices = await self._notices.about(stored, read, outcome, "", passes_dsn=False, is_limited=False)
        transport = context.settings.transport
        now = context.now()
        keep_until, remember_until = delivery.safety_net_until(now, transport), delivery.remember_until(now, transport)
        record = AttemptRecord(message_id, "", left, None, (), notices, keep_until, remember_until)

        def decide(_: MessageId, claim: Claim | None) -> Transition:
            if claim is None or claim.role is not stored.claim.role or claim.done != stored.claim.done or delivery.handed_to(claim):
                raise RequestRefused(CHANGED)
            return claims.recorded(claim, left)

        if stored.claim.role is Role.PRIMARY and not stored.is_promoted:  # promoted: all nodes are asked first, see `Notices`
            for notice in notices:
                context.leases.inherit(notice.message.envelope.message_id, message_id)
        context.delayed.caused(message_id, [notice.message.envelope.message_id for notice in notices])
        await context.ledger.commit(promises.attempt, record, decide)
        context.leases.forget(message_id)
        context.delayed.end(message_id, Acknowledged.REMOVED)
        _log.warning("message.removed", message_id=message_id, recipients=len(left), dsn=bool(notices))
        context.tracking.write(
            tracking.fail(context.me.server, stored, at=now, server="", replies=outcome.failed, source=EventSource.ADMIN)
        )
        for notice in notices:
            context.tracking.write(tracking.generated(context.me.server, notice, at=now, original=stored.envelope))
        if notices:
            self._wake_placement()
            self._deliver.wake()

    async def resubmit(self, message_id: MessageId, by: str) -> bool:
        """Route it anew and attempt it at once; forks that wait for a server or a copy go on waiting. A message that was set aside
        is released."""
        stored = await self._context.ledger.read(reading.load, message_id)
        if stored is None:
            return False
        if stored.claim.role is Role.SET_ASIDE:
            return await self.release(message_id)
        _refuse_if(delivery.reason_against_suspension(stored))
        _refuse_if("it is suspended: resume it" if stored.suspended is not None else "")
        await self._context.tasks.whole(self._record_resubmitted(message_id, by), "resubmit")
        return True

    async def _record_resubmitted(self, message_id: MessageId, by: str) -> None:
        next_hops = await self._context.ledger.commit(promises.resubmitted, message_id)
        self._deliver.changed(message_id, next_hops)
        self._deliver.wake()
        _log.warning("message.resubmitted", message_id=message_id, by=by)

    async def content(self, message_id: MessageId, *, with_envelope: bool = False) -> tuple[bytes, Content] | None:
        """What would be delivered: header lines before the content, and the content; `with_envelope`: before these the envelope.
        None: there is no such message."""
        context = self._context
        stored = await context.ledger.read(reading.load, message_id)
        if stored is None:
            return None
        if stored.place is None:
            raise RequestRefused("its content is not here any more")
        try:
            content = await context.ledger.read_content(stored.place)
        except ContentCorrupt as error:
            raise RequestRefused(f"its content is damaged: {error}") from error
        prefix = promotion_header(stored.promoted_from, context.me.server, message_id, context.now()) if stored.is_promoted else b""
        if with_envelope:
            prefix = format_envelope_lines(stored.envelope, stored.claim.done) + prefix
        return prefix, content

    async def events(self, message_id: MessageId) -> Sequence[TrackingEvent]:
        """The rows of this node's tracking log that name this message, oldest first."""
        stored = await self._context.ledger.read(reading.load, message_id)
        return await self._rows(message_id, None if stored is None else stored.envelope.arrived_at)

    async def queued_as(self, queue_id: str) -> tuple[MessageId, ...]:
        """The messages of which a next hop said this id in its reply, oldest first."""
        return messages_queued_as(queue_id, await self._rows(queue_id, None))

    async def _rows(self, text: str, since: datetime | None) -> Sequence[TrackingEvent]:
        try:
            return await self._context.tracking.about(text, since)
        except OSError as error:
            raise RequestRefused(f"the message tracking log cannot be read: {error}") from error


def _refuse_if(reason: str) -> None:
    if reason:
        raise RequestRefused(reason)
