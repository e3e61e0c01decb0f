"""What every service works with, put together once by the node."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from shadowrelay.core import clock_jumps
from shadowrelay.core.ownership.values import Party
from shadowrelay.model.errors import LedgerUnavailable
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Transition
from shadowrelay.model.settings import Settings
from shadowrelay.ports import Clock, Decide, Ledger, Metrics, PeerLink, TrackingLog
from shadowrelay.service.attempts import Attempts
from shadowrelay.service.leases import Leases
from shadowrelay.service.peerbook import PeerBook
from shadowrelay.service.tasks import Tasks

_log = structlog.get_logger("shadowrelay.context")


@dataclass(slots=True)
class Context:
    """The node's parts. `settings` is replaced as a whole when the configuration is reloaded."""

    settings: Settings
    me: Party
    clock: Clock
    ledger: Ledger
    links: Mapping[ServerName, PeerLink]
    tracking: TrackingLog
    metrics: Metrics
    leases: Leases
    attempts: Attempts
    peers: PeerBook
    tasks: Tasks
    is_draining: bool = field(default=False)
    placements: set[MessageId] = field(default_factory=set)  # a copy is under way, or what came of it is not recorded yet

    wall: clock_jumps.WallClock | None = None

    def now(self) -> datetime:
        return self.clock.now()

    def clock_ahead(self) -> timedelta:
        """How far the wall clock has jumped ahead of the time that passed: nothing ends by that age."""
        before = self.wall
        self.wall = clock_jumps.seen(before, self.clock.now(), self.clock.awake())
        if before is not None and self.wall.ahead != before.ahead:
            _log.warning("clock.jumped", not_believed_seconds=self.wall.ahead.total_seconds())
        return self.wall.ahead

    @property
    def is_enabled(self) -> bool:
        return self.settings.transport.shadow_redundancy_enabled

    @property
    def heartbeat(self) -> float:
        """shadow_heartbeat_frequency in seconds."""
        return self.settings.transport.shadow_heartbeat_frequency.total_seconds()

    async def end_claims(self, message_ids: Sequence[MessageId], decide: Decide) -> tuple[Transition, ...]:
        """`Ledger.transition` with a `decide` that may call `attempts.end_claim`. Raises: as that does."""
        try:
            transitions = await self.ledger.transition(message_ids, decide)
        except asyncio.CancelledError:
            self.tasks.spawn(self._settle_later(tuple(message_ids)), "claims")  # nobody waits for it, yet it may be committed
            raise
        except BaseException:
            self.attempts.settle(message_ids)
            raise
        self.attempts.settle(message_ids)
        for message_id, transition in zip(message_ids, transitions, strict=True):
            before, after = transition.before, transition.after
            if before is not None and before.is_primary and not (after is not None and after.is_primary):
                self.leases.forget(message_id)
        return transitions

    async def _settle_later(self, message_ids: Sequence[MessageId]) -> None:
        with contextlib.suppress(LedgerUnavailable):
            await self.ledger.transition((), lambda _, claim: Transition(claim, claim))  # promises are kept in their order
        self.attempts.settle(message_ids)
