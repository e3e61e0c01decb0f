"""Housekeeping: expires rows in small steps, and detects lost shadow servers. docs/design.md 6.3, 6.5, 9."""

import asyncio

import structlog

from shadowrelay.model.ids import ServerName
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.draining import DrainService
from shadowrelay.pipeline.poison import SetAside
from shadowrelay.pipeline.review import ReviewService
from shadowrelay.protocol import tracking
from shadowrelay.store import steps

STEP = 200  # rows per transaction: acceptance waits for at most one
LOOK_SECONDS = 60.0  # how late a changed duplicate_cleanup_interval may be noticed
HEARTBEATS_UNTIL_LOST = 2  # docs/design.md 6.2: unreachable for two heartbeats

_log = structlog.get_logger()


class SweepService:
    """Sweeps once a heartbeat (at most a minute apart)."""

    def __init__(self, context: Context, review: ReviewService, drain: DrainService) -> None:
        self._context = context
        self._drain = drain
        self._review = review
        self._set_aside = SetAside(context, review.suspect)
        self._lost: set[ServerName] = set()

    async def run(self) -> None:
        """Sweep forever."""
        self._context.note_clock()  # the first reading: jumps are detected from here on
        while True:
            await asyncio.sleep(min(self._context.heartbeat, 60.0))
            try:
                await self._notice_lost()
                await self._set_aside.look()
                await self._drain.ask_again()
                await self.expire()
                await self._forget_unasked()
            except LedgerUnavailable as error:
                _log.warning("sweep.waits", reason=error.reason)

    async def clean_up(self) -> None:
        """Remove recorded deliveries whose duplicate_detection_window is over, forever."""
        clock = self._context.clock
        cleaned_at = clock.awake()
        while True:
            transport = self._context.settings.transport  # a reload changes them
            left = cleaned_at + transport.duplicate_cleanup_interval.total_seconds() - clock.awake()
            if left > 0:
                await asyncio.sleep(min(left, LOOK_SECONDS))
                continue
            cleaned_at = clock.awake()
            try:
                await steps.forget_delivered(self._context.ledger, transport.duplicate_detection_window)
            except LedgerUnavailable as error:
                _log.warning("sweep.waits", reason=error.reason)

    async def _notice_lost(self) -> None:
        peers = self._context.peers
        seconds = HEARTBEATS_UNTIL_LOST * self._context.heartbeat
        for server in peers.states:
            is_lost = peers.unreachable_for(server) >= seconds
            if is_lost:
                self._give_up(server, seconds)
            if is_lost and server not in self._lost:
                _log.warning("peer.lost", server=server, silence=round(peers.silence(server), 1))
                await self._review.count_as_lost(server)
                self._lost.add(server)
            elif not is_lost:
                self._lost.discard(server)

    def _give_up(self, server: ServerName, seconds: float) -> None:
        """It may have hung, with its connections open. What still moves is let alone: only the questions may be slow."""
        if count := self._context.links[server].give_up(seconds):
            _log.warning("peer.given_up", server=server, copies=count)

    async def expire(self) -> None:
        """Expire what is due. Raises: LedgerUnavailable."""
        context = self._context
        now = context.now() - context.note_clock()
        while True:
            expired = await steps.expire(context.ledger, now, STEP)
            for message in expired:
                _log.warning("shadow.expired", message_id=message.envelope.message_id, primary=message.claim.primary)
                context.tracking.write(tracking.expire(context.me.server, message, at=context.now()))
            if len(expired) < STEP:
                break

    async def _forget_unasked(self) -> None:
        context = self._context
        unasked_since = context.now() - context.note_clock() - context.settings.transport.shadow_message_auto_discard_interval
        forgotten = await steps.forget_unasked(context.ledger, unasked_since)
        if forgotten:
            _log.warning("notifications.unasked", count=forgotten)
