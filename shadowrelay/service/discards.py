"""HADISCARD: the rows for shadow messages that are not needed any more, whoever said so and in whatever way."""

from collections.abc import Iterable

from shadowrelay.core import tracking_rows
from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import DiscardEvent, DiscardStatus, Role, Transition
from shadowrelay.service.context import Context

ENDINGS = (DiscardStatus.DELIVERED, DiscardStatus.RELEASED)


def discarded(events: Iterable[DiscardEvent], transitions: Iterable[Transition]) -> list[DiscardEvent]:
    """Those of the events that changed a shadow message of ours, and say that it is done or not needed."""
    return [
        event
        for event, transition in zip(events, transitions, strict=True)
        if event.status in ENDINGS
        and transition.before is not None
        and transition.after is not None
        and transition.before.role is Role.SHADOW
        and transition.before != transition.after
    ]


async def track(context: Context, primary: ServerName, events: list[DiscardEvent]) -> None:
    """One row each; after the commit, so that no row says what did not happen. Raises: LedgerUnavailable."""
    if not events:
        return
    stored = {message.envelope.message_id: message for message in await context.ledger.load_many([event.message_id for event in events])}
    now = context.now()
    for event in events:
        message = stored.get(event.message_id)
        context.tracking.write(
            tracking_rows.hadiscard(
                context.me.server,
                event.message_id,
                at=now,
                primary=primary,
                envelope=message.envelope if message else None,
                ordinals=event.ordinals,
                status=event.status.value,
                internal_id=message.internal_id if message else 0,
            )
        )
    context.metrics.discarded(sum(event.status is DiscardStatus.DELIVERED for event in events))
