"""What is set aside: messages that cannot be read here, and messages that kill the node. docs/design.md 6.9.

Both are handed over. Of a corrupt message the shadow server has a good copy. A poison message may do no harm there: another
version, another route; if it kills that server too, it stays there, set aside (`core.poison.is_handed_over`).
"""

from collections.abc import Callable
from datetime import datetime

import structlog

from shadowrelay.core import poison, tracking_rows
from shadowrelay.core.ownership import primary
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Choice, Claim, Role, Transition
from shadowrelay.model.queue import StoredMessage
from shadowrelay.service.context import Context

POISON_QUEUE = "Poison"
PAGE = 200
REMINDED_EVERY_SECONDS = 3600.0

_log = structlog.get_logger("shadowrelay.corrupt")


async def set_aside_corrupt(context: Context, message: StoredMessage, reason: str) -> None:
    """Raises: LedgerUnavailable."""
    await set_aside(context, message, f"content is {poison.CORRUPT}: {reason}")


async def set_aside_poison(context: Context, message: StoredMessage) -> None:
    """Raises: LedgerUnavailable."""
    await set_aside(context, message, poison.reason_of(message.deaths_count))


async def set_aside(context: Context, message: StoredMessage, reason: str) -> None:
    """Visible, with its reason, and not worked on any more; handed over in the same commit where the rule says so.

    Raises: LedgerUnavailable."""
    message_id = message.envelope.message_id
    _log.error("message.set_aside", message_id=message_id, reason=reason)
    hands_over = poison.is_handed_over(reason, is_promoted=message.is_promoted)
    await context.ledger.record_set_aside(message_id, reason, _handing_over if hands_over else None)
    context.attempts.changed(message_id)
    context.tracking.write(tracking_rows.poison(context.me.server, message, at=context.now(), reason=reason))


class SetAside:
    """Looks after what is set aside, once a sweep."""

    def __init__(self, context: Context, suspect: Callable[[MessageId, ServerName], None]) -> None:
        self._context = context
        self._suspect = suspect
        self._reminds_at = context.clock.awake()

    async def look(self) -> int:
        """Hand over those whose shadow server was found since, or whose row only a reader saw; for the others `suspect` asks
        whoever may hold a copy. And remind of them: nothing is set aside in silence. Raises: LedgerUnavailable."""
        context = self._context
        after, count, handed_count = 0, 0, 0
        oldest: datetime | None = None
        while page := await context.ledger.messages(POISON_QUEUE, PAGE, after):
            after = page[-1].internal_id
            count += len(page)
            arrived = min(message.envelope.arrived_at for message in page)
            oldest = arrived if oldest is None else min(oldest, arrived)
            wanted = [message for message in page if poison.is_handed_over(message.set_aside_reason, is_promoted=message.is_promoted)]
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
