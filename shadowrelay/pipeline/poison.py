"""Sets aside unreadable and poison messages, and lets administrators view, release or remove them. docs/design.md 6.9.

Both kinds are handed over. Of a corrupt message the shadow server has a good copy. A poison message may do no harm there, with
another version or another route; if it kills that server too, it stays there, set aside (`delivery_rules.is_handed_over`).
Suspects are attempted one at a time, so that the next death has one cause.

An administrator's request is checked twice: on the message as read, so that a refusal states the reason, and again in the
transaction.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

import structlog

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Content
from shadowrelay.model.ownership import Choice, Claim, Role, Transition
from shadowrelay.model.queue import AttemptRecord, SideMessage, StoredMessage
from shadowrelay.model.replies import ContentCorrupt, Reply, RequestRefused
from shadowrelay.model.tracking import EventSource
from shadowrelay.ownership import primary, shadow
from shadowrelay.pipeline import ages, delivery_rules, tracking_rows
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.delivery_rules import AttemptOutcome
from shadowrelay.pipeline.dsn import promotion_header
from shadowrelay.pipeline.forks import Notices

POISON_QUEUE = "Poison"
PAGE = 200
REMINDED_EVERY_SECONDS = 3600.0

_log = structlog.get_logger()


async def set_aside_corrupt(context: Context, message: StoredMessage, reason: str) -> None:
    """Raises: LedgerUnavailable."""
    await set_aside(context, message, f"content is {delivery_rules.CORRUPT}: {reason}")


async def set_aside_poison(context: Context, message: StoredMessage) -> None:
    """Raises: LedgerUnavailable."""
    await set_aside(context, message, delivery_rules.reason_of(message.deaths_count))


async def set_aside(context: Context, message: StoredMessage, reason: str) -> None:
    """Stop work on the message and list it with the reason; hand it over in the same commit if the rule says so.

    Raises: LedgerUnavailable."""
    message_id = message.envelope.message_id
    _log.error("message.set_aside", message_id=message_id, reason=reason)
    hands_over = delivery_rules.is_handed_over(reason, is_promoted=message.is_promoted)
    await context.ledger.record_set_aside(message_id, reason, _handing_over if hands_over else None)
    context.attempts.changed(message_id)
    context.tracking.write(tracking_rows.poison(context.me.server, message, at=context.now(), reason=reason))


class SetAside:
    """Checks the messages set aside, once a sweep."""

    def __init__(self, context: Context, suspect: Callable[[MessageId, ServerName], None]) -> None:
        self._context = context
        self._suspect = suspect
        self._reminds_at = context.clock.awake()

    async def look(self) -> int:
        """Hand over those whose shadow server became known since, or whose corrupt row only a reader saw; for the others `suspect`
        asks the servers that may hold a copy. Log a reminder periodically. Raises: LedgerUnavailable."""
        context = self._context
        after, count, handed_count = 0, 0, 0
        oldest: datetime | None = None
        while page := await context.ledger.messages(POISON_QUEUE, PAGE, after):
            after = page[-1].internal_id
            count += len(page)
            arrived = min(message.envelope.arrived_at for message in page)
            oldest = arrived if oldest is None else min(oldest, arrived)
            wanted = [found for found in page if delivery_rules.is_handed_over(found.set_aside_reason, is_promoted=found.is_promoted)]
            for message in wanted:
                if message.claim.chosen() is None:
                    for copy in message.claim.copies:
                        self._suspect(message.envelope.message_id, copy.server)
            ids = [message.envelope.message_id for message in wanted if _can_be_handed_over(message.claim)]
            if ids:
                await context.ledger.transition(ids, _still_set_aside)
                _log.warning("messages.handed_over", count=len(ids))
                handed_count += len(ids)
        if oldest is not None and context.clock.awake() >= self._reminds_at:
            self._reminds_at = context.clock.awake() + REMINDED_EVERY_SECONDS
            age = (context.now() - oldest).total_seconds()
            _log.warning("messages.set_aside", count=count, oldest_seconds=round(age), look="shadowrelay messages list --queue Poison")
        return handed_count


def _can_be_handed_over(claim: Claim) -> bool:
    chosen = claim.chosen()
    return chosen is not None and chosen.choice is Choice.CHOSEN


def _handing_over(_: MessageId, claim: Claim | None) -> Transition:
    return Transition(None, None) if claim is None else primary.handing_over(claim)


def _still_set_aside(message_id: MessageId, claim: Claim | None) -> Transition:
    """An administrator may have released or removed it since it was read."""
    return Transition(claim, claim) if claim is None or claim.role is not Role.SET_ASIDE else _handing_over(message_id, claim)


TURN_SECONDS = 1.0  # content that kills does so while it is handled; anything longer is a wait for the network


class Suspects:
    """Lets one suspect at a time be attempted. All other messages proceed meanwhile: each message has its own mark."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Use around an attempt on a suspect (`Course.ALONE`). It waits for the previous turn to end: with its attempt, or after
        `TURN_SECONDS`, because a silent next hop of one suspect must not block the others."""
        await self._turn.acquire()
        is_mine = True

        def give_up() -> None:
            nonlocal is_mine
            if is_mine:
                is_mine = False
                self._turn.release()

        timer = asyncio.get_running_loop().call_later(TURN_SECONDS, give_up)
        try:
            yield
        finally:
            timer.cancel()
            give_up()


REMOVED = Reply(554, "5.3.0", "Removed from the queue by an administrator")  # RFC 3463 X.3.0
CHANGED = "it changed at this moment: look at it again"


async def withheld_content() -> Content:
    """The content may be poison: the DSN does not read it, and quotes an empty header."""
    return Content(1, b"", b"")


class PoisonDesk:
    """All methods raise RequestRefused, with reason and remedy, or LedgerUnavailable."""

    def __init__(self, context: Context, wake_delivery: Callable[[], None], wake_placement: Callable[[], None]) -> None:
        self._context = context
        self._wake_delivery = wake_delivery
        self._wake_placement = wake_placement
        self._notices = Notices(context)

    async def release(self, message_id: MessageId) -> bool:
        """Put it back into delivery, no longer as a suspect. False: there is no such message."""
        context = self._context
        stored = await context.ledger.load(message_id)
        if stored is None:
            return False
        _refuse_if(delivery_rules.no_release(stored))
        transition = await context.ledger.record_taken_back(message_id, lambda _, claim: primary.taken_back(claim))
        _refuse_if("" if transition.changed else CHANGED)
        _log.warning("message.released", message_id=message_id, was=stored.set_aside_reason)
        reason = f"released by an administrator; it was set aside because {stored.set_aside_reason}"
        context.tracking.write(tracking_rows.poison(context.me.server, stored, at=context.now(), reason=reason))
        self._wake_delivery()
        return True

    async def remove(self, message_id: MessageId, *, with_dsn: bool) -> bool:
        """End it for all remaining recipients: FAIL, a DSN to the sender if `with_dsn`, and notifications to the servers that may
        hold a copy, in one commit. False: there is no such message."""
        context = self._context
        stored = await context.ledger.load(message_id)
        if stored is None:
            return False
        _refuse_if(delivery_rules.no_removal(stored))
        if not stored.claim.is_primary:  # an unreadable copy: its primary has the message
            (transition,) = await context.ledger.transition([message_id], lambda _, claim: shadow.dropped(claim))
            _refuse_if("" if transition.changed else CHANGED)
            _log.warning("message.removed", message_id=message_id, recipients=0, dsn=False)
            return True
        left = stored.envelope.ordinals - stored.claim.done
        outcome = AttemptOutcome(NO_ORDINALS, dict.fromkeys(sorted(left), REMOVED), None)
        sides: tuple[SideMessage, ...] = ()
        if with_dsn:
            sides = await self._notices.about(stored, withheld_content, outcome, "", passes_dsn=False)
        transport = context.settings.transport
        now = context.now()
        keep_until, remember_until = ages.safety_net_until(now, transport), ages.remember_until(now, transport)
        record = AttemptRecord(message_id, "", left, None, (), sides, keep_until, remember_until)

        def decide(_: MessageId, claim: Claim | None) -> Transition:
            if claim is None or claim.role is not Role.SET_ASIDE or claim.done != stored.claim.done or delivery_rules.handed_to(claim):
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
            self._wake_placement()
            self._wake_delivery()
        return True

    async def content(self, message_id: MessageId) -> tuple[bytes, Content] | None:
        """What would be delivered: header lines before the content, and the content. None: there is no such message."""
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
