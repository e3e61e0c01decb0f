"""What an administrator does with a message that is set aside: look at its bytes, put it back into delivery, or remove it.

What is possible is decided twice: on the message as it was read, for a refusal that says why, and again in the transaction.
"""

from collections.abc import Callable

import structlog

from shadowrelay.core import poison, retention, tracking_rows
from shadowrelay.core.outcomes import AttemptOutcome
from shadowrelay.core.ownership import primary, shadow
from shadowrelay.core.trace import promotion_header
from shadowrelay.model.errors import ContentCorrupt, RequestRefused
from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import NO_ORDINALS, Content
from shadowrelay.model.ownership import Claim, Role, Transition
from shadowrelay.model.queue import AttemptRecord, SideMessage
from shadowrelay.model.replies import Reply
from shadowrelay.model.tracking import EventSource
from shadowrelay.service.context import Context
from shadowrelay.service.notify import Notices

REMOVED = Reply(554, "5.3.0", "Removed from the queue by an administrator")  # RFC 3463 X.3.0
CHANGED = "it changed at this moment: look at it again"

_log = structlog.get_logger("shadowrelay.poison")


async def nothing_of_it() -> Content:
    """It may be poison: a notice does not look at the content, and quotes an empty header."""
    return Content(1, b"", b"")


class PoisonDesk:
    """Raises, everywhere: RequestRefused with the reason and the remedy; LedgerUnavailable."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._notices = Notices(context)
        self.wake_delivery: Callable[[], None] = lambda: None
        self.wake_placement: Callable[[], None] = lambda: None

    async def release(self, message_id: MessageId) -> bool:
        """Deliver it again, as a message that nobody suspects. False: there is no such message."""
        context = self._context
        stored = await context.ledger.load(message_id)
        if stored is None:
            return False
        _refuse_if(poison.no_release(stored))
        transition = await context.ledger.record_taken_back(message_id, lambda _, claim: primary.taken_back(claim))
        _refuse_if("" if transition.changed else CHANGED)
        _log.warning("message.released", message_id=message_id, was=stored.set_aside_reason)
        reason = f"released by an administrator; it was set aside because {stored.set_aside_reason}"
        context.tracking.write(tracking_rows.poison(context.me.server, stored, at=context.now(), reason=reason))
        self.wake_delivery()
        return True

    async def remove(self, message_id: MessageId, *, with_dsn: bool) -> bool:
        """End it for all recipients that are left: FAIL, a notice to the sender if `with_dsn`, and notifications to whoever may hold a
        copy, in one commit. False: there is no such message."""
        context = self._context
        stored = await context.ledger.load(message_id)
        if stored is None:
            return False
        _refuse_if(poison.no_removal(stored))
        if not stored.claim.is_primary:  # an unreadable copy: its primary has the message
            (transition,) = await context.ledger.transition([message_id], lambda _, claim: shadow.dropped(claim))
            _refuse_if("" if transition.changed else CHANGED)
            _log.warning("message.removed", message_id=message_id, recipients=0, dsn=False)
            return True
        left = stored.envelope.ordinals - stored.claim.done
        outcome = AttemptOutcome(NO_ORDINALS, dict.fromkeys(sorted(left), REMOVED), None)
        sides: tuple[SideMessage, ...] = ()
        if with_dsn:
            sides = await self._notices.about(stored, nothing_of_it, outcome, "", passes_dsn=False)
        transport = context.settings.transport
        now = context.now()
        keep_until, remember_until = retention.safety_net_until(now, transport), retention.remember_until(now, transport)
        record = AttemptRecord(message_id, "", left, None, (), sides, keep_until, remember_until)

        def decide(_: MessageId, claim: Claim | None) -> Transition:
            if claim is None or claim.role is not Role.SET_ASIDE or claim.done != stored.claim.done or poison.handed_to(claim):
                raise RequestRefused(CHANGED)
            return primary.recorded(claim, left)

        await context.ledger.record_attempt(record, decide)
        context.leases.forget(message_id)
        _log.warning("message.removed", message_id=message_id, recipients=len(left), dsn=bool(sides))
        context.tracking.write(
            tracking_rows.fail(context.me.server, stored, at=now, server="", replies=outcome.failed, source=EventSource.ADMIN)
        )
        for side in sides:
            envelope, size = side.message.envelope, side.content.size
            context.tracking.write(
                tracking_rows.dsn(context.me.server, envelope, at=now, original=stored.envelope, action=side.action, size=size)
            )
        if sides:
            self.wake_placement()
            self.wake_delivery()
        return True

    async def content(self, message_id: MessageId) -> tuple[bytes, Content] | None:
        """What would be delivered: header lines that go before the content, and the content. None: there is no such message."""
        context = self._context
        stored = await context.ledger.load(message_id)
        if stored is None:
            return None
        if stored.place is None:
            raise RequestRefused("its content is not here any more")
        try:
            content = await context.ledger.read_content(stored.place)
        except ContentCorrupt as error:
            raise RequestRefused(f"its content is damaged: {error}") from error
        prefix = promotion_header(stored.promoted_from, context.me.server, message_id, context.now()) if stored.is_promoted else b""
        return prefix, content


def _refuse_if(reason: str) -> None:
    if reason:
        raise RequestRefused(reason)
