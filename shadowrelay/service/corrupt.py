"""A message that cannot be read here is set aside and handed over: its shadow server has a good copy. DESIGN 6.9."""

from collections.abc import Callable

import structlog

from shadowrelay.core import tracking_rows
from shadowrelay.core.ownership import primary
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Choice, Claim, Transition
from shadowrelay.model.queue import StoredMessage
from shadowrelay.service.context import Context

CORRUPT = "corrupt"  # stands in the reason of every row and content that could not be read
POISON_QUEUE = "Poison"
PAGE = 200

_log = structlog.get_logger("shadowrelay.corrupt")


async def set_aside_corrupt(context: Context, message: StoredMessage, reason: str) -> None:
    """Hand over first: were the process to end between the two commits, `hand_over_corrupt` would not find it.

    Raises: LedgerUnavailable."""
    await context.ledger.transition([message.envelope.message_id], _handing_over)
    await set_aside(context, message, f"content is {CORRUPT}: {reason}")


async def set_aside(context: Context, message: StoredMessage, reason: str) -> None:
    """Visible, with its reason, and not worked on any more. Raises: LedgerUnavailable."""
    message_id = message.envelope.message_id
    _log.error("message.set_aside", message_id=message_id, reason=reason)
    await context.ledger.record_set_aside(message_id, reason)
    context.tracking.write(tracking_rows.poison(context.me.server, message, at=context.now(), reason=reason))


async def hand_over_corrupt(context: Context, suspect: Callable[[MessageId, ServerName], None]) -> int:
    """Those set aside as corrupt whose shadow server was found since, or whose row only a reader saw; for the others
    `suspect` asks whoever may hold a copy. Raises: LedgerUnavailable."""
    after, count = 0, 0
    while page := await context.ledger.messages(POISON_QUEUE, PAGE, after):
        after = page[-1].internal_id
        corrupt = [message for message in page if CORRUPT in message.set_aside_reason]
        for message in corrupt:
            if message.claim.chosen() is None:
                for copy in message.claim.copies:
                    suspect(message.envelope.message_id, copy.server)
        ids = [message.envelope.message_id for message in corrupt if _can_be_handed_over(message.claim)]
        if ids:
            await context.ledger.transition(ids, _handing_over)
            _log.warning("messages.handed_over", count=len(ids))
            count += len(ids)
    return count


def _can_be_handed_over(claim: Claim) -> bool:
    chosen = claim.chosen()
    return chosen is not None and chosen.choice is Choice.CHOSEN


def _handing_over(_: MessageId, claim: Claim | None) -> Transition:
    return Transition(None, None) if claim is None else primary.handing_over(claim)
