"""Answers what would be lost with certain servers, from indexes and counters. docs/reference.md "What if".

A message of this node is lost with it and the servers on its list. What is on other servers is taken over: they count that themselves.
"""

from collections.abc import Callable, Collection
from datetime import datetime

from shadowrelay.model.ids import NO_SERVER, MessageId, ServerName
from shadowrelay.model.queue import ShadowGroup, StoredMessage
from shadowrelay.model.readiness import NextMessage
from shadowrelay.model.survival import TakenOver, WhatIf
from shadowrelay.pipeline.context import PAGE, Context
from shadowrelay.store import reading

EXAMINED_MAX = 20_000  # messages read for a list of ids


class WhatIfService:
    """Reads only."""

    def __init__(
        self,
        context: Context,
        seconds_until_takeover: Callable[[ShadowGroup], float],
        new_mail: Callable[[Collection[ServerName]], NextMessage],
    ) -> None:
        self._context = context
        self._seconds_until_takeover = seconds_until_takeover
        self._new_mail = new_mail

    async def ask(self, lost: Collection[ServerName], ids_max: int) -> WhatIf:
        """What becomes of mail if these servers are lost at this moment, disks included. `ids_max`: how many ids to name."""
        context = self._context
        now, me, listed = context.now(), context.me.server, await context.ledger.read(reading.listed_counts)
        survivors = tuple(sorted({*listed, *context.peers.states} - {*lost, me}))
        if me in lost:
            survival = await context.ledger.read(reading.survival, survivors)
            is_asked = ids_max and survival.lost_count  # to look for ids, messages are read, and many where few are lost
            ids, are_all = await self._ids(frozenset(survivors), frozenset(lost), ids_max) if is_asked else ((), True)
            held_by = {server: listed[server] for server in survivors if listed.get(server)}
            return WhatIf(tuple(sorted(lost)), now, survival, held_by, (), None, None, ids, are_all)
        groups = [group for group in await context.ledger.read(reading.shadow_groups) if group.primary in lost]
        taken_over = tuple([TakenOver(group.primary, group.count, self._seconds_until_takeover(group)) for group in groups])
        return WhatIf(tuple(sorted(lost)), now, None, {}, taken_over, self._new_mail(lost), self._resubmittable_since(now))

    def _resubmittable_since(self, now: datetime) -> datetime | None:
        hold_time = self._context.settings.transport.safety_net_hold_time
        if not hold_time:
            return None
        complete = self._context.safety_net_complete_since
        return now - hold_time if complete is None else max(complete, now - hold_time)

    async def _ids(self, survivors: frozenset[ServerName], lost: frozenset[ServerName], ids_max: int) -> tuple[tuple[MessageId, ...], bool]:
        """Of messages that lack a copy, and of those that have theirs on lost servers only."""
        ledger = self._context.ledger
        found: dict[MessageId, None] = {}
        examined = 0
        for server in (NO_SERVER, *sorted(lost - {self._context.me.server})):
            after = 0
            while page := await (
                ledger.read(reading.primaries_listed_on, server, PAGE, after) if server else ledger.read(reading.unplaced, PAGE, after)
            ):
                after, examined = page[-1].internal_id, examined + len(page)
                found |= dict.fromkeys([message.envelope.message_id for message in page if _is_lost(message, survivors)])
                if len(found) > ids_max or examined >= EXAMINED_MAX:
                    return tuple(found)[:ids_max], False
        return tuple(found), True


def _is_lost(message: StoredMessage, survivors: frozenset[ServerName]) -> bool:
    return message.claim.is_primary and not any(copy.server in survivors for copy in message.claim.copies)
