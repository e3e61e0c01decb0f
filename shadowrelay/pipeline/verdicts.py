"""Holds the verdicts (accepted) that are not recorded yet. docs/design.md 5.

A verdict need not be synced before the 250, because a message found without one counts as accepted. So it joins the commit
that records the first attempt or, if that takes too long, gets a commit of its own.
"""

import asyncio

import structlog

from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Claim, Transition
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.pipeline.context import Context
from shadowrelay.ports import Decide

OWN_COMMIT_AFTER_SECONDS = 0.25  # most messages are delivered by then
RETRY_SECONDS = 1.0

_log = structlog.get_logger()


class Verdicts:
    """Each verdict is recorded once: by the attempt's commit or by one of its own."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: dict[MessageId, tuple[float, Decide]] = {}
        self._event = asyncio.Event()

    def add(self, message_id: MessageId, decide: Decide) -> None:
        """The message is accepted; its id stays in `Context.placements` until that is recorded."""
        self._waiting[message_id] = (self._context.clock.awake() + OWN_COMMIT_AFTER_SECONDS, decide)
        self._event.set()

    def joined(self, message_id: MessageId, decide: Decide) -> tuple[Decide, bool]:
        """`decide` for the attempt's commit with the verdict applied first, and whether there was one; if so, call `recorded`
        after the commit."""
        taken = self._waiting.pop(message_id, None)
        if taken is None:
            return decide, False
        _, verdict = taken

        def both(message_id: MessageId, claim: Claim | None) -> Transition:
            first = verdict(message_id, claim)
            second = decide(message_id, first.after)
            return Transition(claim, second.after, (*first.tell, *second.tell), second.answer, second.note)

        return both, True

    def recorded(self, message_id: MessageId) -> None:
        """The commit that included the verdict is synced."""
        self._context.placements.discard(message_id)

    async def run(self) -> None:
        """Forever, record the verdicts whose attempt takes too long."""
        while True:
            await self._event.wait()
            await asyncio.sleep(OWN_COMMIT_AFTER_SECONDS)
            now = self._context.clock.awake()
            late = [message_id for message_id, (due, _) in self._waiting.items() if due <= now]
            for message_id in late:
                _, decide = self._waiting.pop(message_id)
                self._context.tasks.spawn(self._record(message_id, decide), "verdict")
            if not self._waiting:
                self._event.clear()

    async def _record(self, message_id: MessageId, decide: Decide) -> None:
        while True:  # without its verdict the message would not be due again before the next start
            try:
                await self._context.ledger.record_verdict(message_id, decide)
                self.recorded(message_id)
                return
            except LedgerUnavailable as error:
                _log.warning("verdict.waits", message_id=message_id, reason=error.reason)
                await asyncio.sleep(RETRY_SECONDS)
