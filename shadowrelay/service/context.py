"""What every service works with, put together once by the node."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import structlog

from shadowrelay.core import clock_jumps
from shadowrelay.core.ownership.values import Party
from shadowrelay.memory import ContentBudget
from shadowrelay.model.errors import LedgerUnavailable
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX, Content, ContentPlace
from shadowrelay.model.ownership import Claim, Transition
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
    budget: ContentBudget = field(default_factory=ContentBudget)
    is_draining: bool = field(default=False)
    placements: set[MessageId] = field(default_factory=set)  # a copy is under way, or what came of it is not recorded yet

    wall: clock_jumps.WallClock | None = None
    set_backs_count: int = 0  # how often the wall clock was set back

    now: Callable[[], datetime] = field(init=False)

    def __post_init__(self) -> None:
        self.now = self.clock.now

    def clock_ahead(self) -> timedelta:
        """How far the wall clock has jumped ahead of the time that passed: nothing ends by that age."""
        before = self.wall
        self.wall = clock_jumps.seen(before, self.clock.now(), self.clock.awake())
        if self.wall.jump:
            seconds = round(self.wall.jump.total_seconds(), 3)
            _log.warning("clock.jumped", seconds=seconds, not_believed_seconds=round(self.wall.ahead.total_seconds(), 3))
            if seconds < 0:
                self.set_backs_count += 1
        elif before is not None and self.wall.ahead != before.ahead:
            _log.warning("clock.believed", seconds=round(before.ahead.total_seconds(), 3))
        return self.wall.ahead

    @property
    def is_enabled(self) -> bool:
        return self.settings.transport.shadow_redundancy_enabled

    @property
    def heartbeat(self) -> float:
        """shadow_heartbeat_frequency in seconds."""
        return self.settings.transport.shadow_heartbeat_frequency.total_seconds()

    async def read_content(self, place: ContentPlace) -> Content:
        """`Ledger.read_content`, in its turn: the bytes count in the memory budget until nobody holds the result any more.

        Never to be called while another such result is held: all who wait could hold what the others wait for.
        Raises: ContentCorrupt, LedgerUnavailable.
        """
        if place.size > CONTENT_IN_MEMORY_BYTES_MAX:  # it stays a file
            return await self.ledger.read_content(place)
        portion = await self.budget.reserve(place.size)
        try:
            content = await self.ledger.read_content(place)
        except BaseException:
            portion.release()
            raise
        return replace(content, portion=portion)

    def call_off_done(self, message_id: MessageId, transition: Transition) -> bool:
        """Attempts on recipients that are done, as another node has just said, are called off. False: it said nothing new of them.

        Called twice: before the commit, because an attempt could end its data right after it; and when it is committed, because what
        is read before that still shows the claim as it was.
        """
        before, after = transition.before, transition.after
        if before is None or after is None or after.done <= before.done:
            return False
        self.attempts.call_off(message_id, after.done)
        return True

    async def end_claims(self, message_ids: Sequence[MessageId], decide: Decide) -> tuple[Transition, ...]:
        """`Ledger.transition` with a `decide` that another node's words are behind, and that may call `attempts.end_claim`. Raises:
        as that does."""

        def deciding(message_id: MessageId, claim: Claim | None) -> Transition:
            transition = decide(message_id, claim)
            self.call_off_done(message_id, transition)
            return transition

        try:
            transitions = await self.ledger.transition(message_ids, deciding)
        except asyncio.CancelledError:
            self.tasks.spawn(self._settle_later(tuple(message_ids)), "claims")  # nobody waits for it, yet it may be committed
            raise
        except BaseException:
            self.attempts.settle(message_ids)
            raise
        self.attempts.settle(message_ids)
        for message_id, transition in zip(message_ids, transitions, strict=True):
            self.call_off_done(message_id, transition)
            before, after = transition.before, transition.after
            if before is not None and before.is_primary and not (after is not None and after.is_primary):
                self.leases.forget(message_id)
        return transitions

    async def _settle_later(self, message_ids: Sequence[MessageId]) -> None:
        with contextlib.suppress(LedgerUnavailable):
            await self.ledger.transition((), lambda _, claim: Transition(claim, claim))  # promises are kept in their order
        self.attempts.settle(message_ids)
