"""Records the outcome of an attempt, in one commit with the side messages and discard notifications that it causes. docs/design.md 5.

An unrecorded outcome would cause a duplicate after a crash, or at the next attempt. So recording is repeated until it
succeeds, and `can_record` blocks all other deliveries meanwhile.
"""

import asyncio
from collections.abc import Callable

import structlog

from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Claim, Transition
from shadowrelay.model.queue import AttemptRecord, StoredMessage
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.ownership import primary
from shadowrelay.pipeline import tracking_rows
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.next_hop_queue import NextHopQueues
from shadowrelay.pipeline.poison import set_aside
from shadowrelay.pipeline.verdicts import Verdicts

RECORD_AGAIN_SECONDS = 1.0

_log = structlog.get_logger()


class Outcomes:
    """`on_side` is called with the id of each side message that was committed with an outcome, `on_done` with the internal id of each
    message that is done."""

    def __init__(
        self,
        context: Context,
        verdicts: Verdicts,
        queues: NextHopQueues,
        on_side: Callable[[MessageId], None],
        on_done: Callable[[int], None],
    ) -> None:
        self._context = context
        self._verdicts = verdicts
        self._queues = queues
        self._on_side = on_side
        self._on_done = on_done
        self.can_record = asyncio.Event()
        self.can_record.set()

    async def record(self, stored: StoredMessage, record: AttemptRecord) -> None:
        """Return once the outcome is recorded, however long that takes.

        Raises: the ledger's error if the outcome can never be recorded. The message is then set aside.
        """
        context = self._context
        message_id = stored.envelope.message_id

        def decide(_: MessageId, claim: Claim | None) -> Transition:
            return primary.recorded(claim, record.done)

        joined, has_verdict = self._verdicts.joined(message_id, decide)
        for side in record.sides if not stored.is_promoted else ():  # promoted: all nodes are asked first, see `Notices`
            context.leases.inherit(side.message.envelope.message_id, message_id)
        while True:
            try:
                transition = await context.ledger.record_attempt(record, joined)
                break
            except LedgerUnavailable as error:
                if self.can_record.is_set():
                    _log.error("outcome.unrecorded", message_id=message_id, reason=error.reason)
                self.can_record.clear()
                await asyncio.sleep(RECORD_AGAIN_SECONDS)
            except Exception:
                # The outcome cannot be recorded: do not attempt the message again. An administrator has to decide.
                await self._set_aside_delivered(stored)
                self.can_record.set()
                self._verdicts.recorded(message_id)
                raise
        self.can_record.set()
        if has_verdict:
            self._verdicts.recorded(message_id)
        for retry in (record.retry, *(record.others if record.retry is not None else ())):
            if retry is not None:
                self._queues.note_due(retry.next_hop, retry.attempts_next_at)
        for side in record.sides:
            context.tracking.write(tracking_rows.side(context.me.server, side, at=context.now(), original=stored.envelope))
            self._on_side(side.message.envelope.message_id)
        if transition.after is not None and transition.after.is_done:
            context.leases.forget(message_id)
            self._on_done(stored.internal_id)

    async def _set_aside_delivered(self, stored: StoredMessage) -> None:
        while True:
            try:
                await set_aside(self._context, stored, "the outcome of an attempt could not be recorded: see the operator log")
                return
            except LedgerUnavailable:
                self.can_record.clear()
                await asyncio.sleep(RECORD_AGAIN_SECONDS)
