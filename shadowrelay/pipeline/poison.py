"""Sets aside unreadable and poison messages. docs/design.md 6.9. What administrators do with them is in `message_desk`.

Both kinds are handed over. Of a corrupt message the shadow server has a good copy. A poison message may do no harm there, with
another version or another route; if it kills that server too, or came by TRACK, it stays set aside (`delivery.is_handed_over`).
Suspects are attempted one at a time, so that the next death has one cause.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

import structlog

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Choice, Claim, Role, Transition
from shadowrelay.model.queue import StoredMessage
from shadowrelay.model.tracking import Acknowledged
from shadowrelay.ownership import claims, rules
from shadowrelay.pipeline.context import Context
from shadowrelay.protocol import tracking
from shadowrelay.rules import delivery, flight
from shadowrelay.store import promises, queues

POISON_QUEUE = "Poison"
PAGE = 200
REMINDED_EVERY_SECONDS = 3600.0

_log = structlog.get_logger()


async def set_aside_corrupt(context: Context, message: StoredMessage, reason: str) -> None:
    """Raises: LedgerUnavailable."""
    await set_aside(context, message, f"content is {delivery.CORRUPT}: {reason}")


async def set_aside_poison(context: Context, message: StoredMessage) -> None:
    """Raises: LedgerUnavailable."""
    await set_aside(context, message, delivery.poison_reason(message.deaths_count))


async def set_aside(context: Context, message: StoredMessage, reason: str) -> None:
    """Stop work on the message and list it with the reason; in the same commit, hand it over if the rule says so, and give a copy up.

    Raises: LedgerUnavailable."""
    message_id = message.envelope.message_id
    _log.error("message.set_aside", message_id=message_id, reason=reason)
    hands_over = _hands_over(message, reason)

    def decide(_: MessageId, claim: Claim | None) -> Transition:
        given_up = claims.copy_given_up(claim)
        return claims.handing_over(claim) if hands_over and not given_up.changed else given_up

    await context.ledger.commit(promises.set_aside, message_id, reason, decide)
    context.flights.happens(message_id, flight.change)
    context.delayed.end(message_id, Acknowledged.SET_ASIDE)
    context.tracking.write(tracking.poison(context.me.server, message, at=context.now(), reason=reason))


NOT_PROCESSED = (ArithmeticError, LookupError, TypeError, ValueError)  # what values cause, and no condition that passes


@asynccontextmanager
async def setting_aside(context: Context, message: StoredMessage) -> AsyncIterator[None]:
    """Around what a scan does for one message: if its values make that fail, the message is set aside, and the scan goes on with the
    others. Not around attempts, which may fail by what a next hop replies. Raises: LedgerUnavailable."""
    try:
        yield
    except NOT_PROCESSED as error:
        _log.exception("message.not_processed", message_id=message.envelope.message_id)
        await set_aside(context, message, f"{delivery.NOT_PROCESSED}: {error!r}")


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
        while page := await context.ledger.read(queues.messages, POISON_QUEUE, PAGE, after):
            after = page[-1].internal_id
            count += len(page)
            arrived = min(message.envelope.arrived_at for message in page)
            oldest = arrived if oldest is None else min(oldest, arrived)
            wanted = [found for found in page if _hands_over(found, found.set_aside_reason)]
            for message in wanted:
                if rules.heir(message.claim) is None:
                    for copy in message.claim.copies:
                        self._suspect(message.envelope.message_id, copy.server)
            ids = [message.envelope.message_id for message in wanted if _can_be_handed_over(message.claim)]
            if ids:
                await context.ledger.commit(promises.transition, ids, _still_set_aside)
                _log.warning("messages.handed_over", count=len(ids))
                handed_count += len(ids)
        if oldest is not None and context.clock.awake() >= self._reminds_at:
            self._reminds_at = context.clock.awake() + REMINDED_EVERY_SECONDS
            age = (context.now() - oldest).total_seconds()
            _log.warning("messages.set_aside", count=count, oldest_seconds=round(age), look="shadowrelay messages list --queue Poison")
        return handed_count


def _hands_over(message: StoredMessage, reason: str) -> bool:
    return delivery.is_handed_over(reason, is_promoted=message.is_promoted, is_relayed=bool(message.envelope.relayed_from))


def _can_be_handed_over(claim: Claim) -> bool:
    heir = rules.heir(claim)
    return heir is not None and heir.choice is Choice.CHOSEN


def _still_set_aside(_: MessageId, claim: Claim | None) -> Transition:
    """An administrator may have released or removed it since it was read."""
    return Transition(claim, claim) if claim is None or claim.role is not Role.SET_ASIDE else claims.handing_over(claim)


TURN_SECONDS = 1.0  # content that kills does so while it is handled; anything longer is a wait for the network


class Suspects:
    """Lets one suspect at a time be attempted. All other messages proceed meanwhile: each message has its own mark."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Use around an attempt on a suspect (`DueAction.ALONE`). It waits for the previous turn to end: with its attempt, or after
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
