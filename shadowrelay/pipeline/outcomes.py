"""Records verdicts (accepted) and outcomes of attempts. docs/design.md 5.

An outcome is one commit with the side messages and discard notifications that it causes. An unrecorded outcome would cause a duplicate
after a crash, or at the next attempt. So recording is repeated until it succeeds, and `can_record` blocks all other deliveries meanwhile.

A verdict need not be synced before the 250, because a message found without one counts as accepted. So it joins the commit
that records the first attempt or, if that takes too long, gets a commit of its own.
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
from shadowrelay.ports import Decide

RECORD_AGAIN_SECONDS = 1.0
OWN_COMMIT_AFTER_SECONDS = 0.25  # most messages are delivered by then

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
                await asyncio.sleep(RECORD_AGAIN_SECONDS)


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
