"""What the ledger promises in several steps, each a transaction of its own, so that acceptance goes on between them. docs/design.md 9."""

from datetime import datetime, timedelta

from shadowrelay.model.ids import ServerName
from shadowrelay.model.queue import StoredMessage
from shadowrelay.store import expiry, peer_promises, shedding
from shadowrelay.store.ledger import Ledger


async def expire(ledger: Ledger, now: datetime, limit: int) -> tuple[StoredMessage, ...]:
    """Remove expired messages and empty generations; returns shadow messages that expired unacknowledged, at most `limit`."""
    gone: list[StoredMessage] = []
    while len(gone) < limit:
        step = await ledger.commit(expiry.expired_removed, now, limit - len(gone))
        gone.extend(step.shadows)
        if not step.has_more:
            break
    return tuple(gone)


async def forget_unasked(ledger: Ledger, older_than: datetime) -> int:
    """shadow_message_auto_discard_interval: delete old notifications of askers that have not asked since. How many."""
    forgotten, has_more = 0, True
    while has_more:
        count, has_more = await ledger.commit(expiry.unasked_forgotten, older_than)
        forgotten += count
    return forgotten


async def forget_delivered(ledger: Ledger, window: timedelta) -> int:
    """Remove recorded deliveries longer ago than this, or as far in the future. How many."""
    forgotten = 0
    while count := await ledger.commit(expiry.deliveries_forgotten, window):
        forgotten += count
    return forgotten


async def forget_peer(ledger: Ledger, server: ServerName) -> None:
    """`peers forget`: remove the server from every list, and delete its notifications."""
    after: int | None = 0
    while after is not None:
        after = await ledger.commit(peer_promises.peer_forgotten, server, after)


async def shed_safety_net(ledger: Ledger, octets: int) -> tuple[int, int]:
    """Drop the oldest of Safety Net, so many octets or as many as can be dropped. How many messages and octets."""
    count = dropped = 0
    while dropped < octets:
        step = await ledger.commit(shedding.shed)
        count, dropped = count + step.count, dropped + step.octets
        if step.is_last:
            break
    return count, dropped
