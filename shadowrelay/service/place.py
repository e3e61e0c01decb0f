"""Making redundant what is not: mail accepted without a copy, DSNs, promoted mail, mail whose shadow server was lost."""

import asyncio
from datetime import timedelta

import structlog

from shadowrelay.core import tracking_rows
from shadowrelay.core.ownership import meeting
from shadowrelay.core.ownership.values import Note
from shadowrelay.model.errors import ContentCorrupt, IllegalTransition, LedgerUnavailable
from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Claim, Transition
from shadowrelay.model.queue import StoredMessage
from shadowrelay.service.context import Context
from shadowrelay.service.copier import Copier, CopyResult
from shadowrelay.service.corrupt import set_aside_corrupt

AT_ONCE = 20  # copies under way; the receivers of copies have clients of their own
PAGE = 200
TRIED_MAX = 10_000  # in one round, without success
AGAIN_SECONDS = 5.0  # one lost answer leaves a message alone although nobody was away

_log = structlog.get_logger("shadowrelay.place")


class PlaceService:
    """Looks for unfinished primary messages without a chosen shadow server, and places them."""

    def __init__(self, context: Context, copier: Copier) -> None:
        self._context = context
        self._copier = copier
        self._event = asyncio.Event()
        self._busy: set[MessageId] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)

    def wake(self) -> None:
        """There is something to place, or somewhere to place it."""
        self._event.set()

    async def run(self) -> None:
        """Every few seconds, and whenever woken, while anybody can be tried."""
        while True:
            self._event.clear()
            if self._context.is_enabled:
                try:
                    await self._round()
                except LedgerUnavailable as error:
                    _log.warning("placement.waits", reason=error.reason)
            try:
                pause = min(self._context.heartbeat, AGAIN_SECONDS)
                await asyncio.wait_for(self._event.wait(), pause)
            except TimeoutError:
                continue

    async def _round(self) -> None:
        tried: set[MessageId] = set()  # else those that cannot be placed now would hide those behind them
        while any(self._context.peers.may_try(server) for server in self._context.peers.states):
            page = await self._context.ledger.unplaced(PAGE, (*self._busy, *tried))
            wanted = [message for message in page if not self._is_settling(message)]
            placed = await asyncio.gather(*(self._bounded(message) for message in wanted))
            tried |= {message.envelope.message_id for message in page}
            tried -= {message.envelope.message_id for message, is_placed in zip(wanted, placed, strict=True) if is_placed}
            if len(page) < PAGE or len(tried) >= TRIED_MAX:
                return

    def _is_settling(self, message: StoredMessage) -> bool:
        """Just accepted without a copy, and being delivered: a copy would come too late to matter."""
        fresh = timedelta(seconds=min(1.0, self._context.heartbeat))
        running = self._context.attempts.is_running(message.envelope.message_id)
        return running and self._context.now() - message.envelope.arrived_at < fresh

    async def _bounded(self, message: StoredMessage) -> bool:
        message_id = message.envelope.message_id
        if message_id in self._busy:
            return False
        self._busy.add(message_id)
        try:
            async with self._slots:
                self._context.placements.add(message_id)
                return await self.place(message)
        except ContentCorrupt as error:
            await self._set_aside(message, str(error))
        except LedgerUnavailable as error:
            _log.warning("placement.put_off", message_id=message_id, reason=error.reason)
        except IllegalTransition as error:
            _log.info("placement.obsolete", message_id=message_id, reason=str(error))
        except Exception:
            _log.exception("placement.failed", message_id=message_id)  # the others are placed all the same
        finally:
            self._busy.discard(message_id)
            self._context.placements.discard(message_id)
        return False

    async def place(self, message: StoredMessage) -> bool:
        """One message; True if it has a chosen shadow server now."""
        context = self._context
        message_id = message.envelope.message_id
        plan = self._copier.plan(message_id, message.claim)
        if not plan:
            return False
        if message.place is None:
            raise ContentCorrupt("its content is gone")
        content = await context.ledger.read_content(message.place)
        started = context.clock.awake()
        deadline = started + context.settings.transport.shadow_timeout.total_seconds()
        said = message.claim.done and message.claim.done - await context.ledger.unsaid(message_id)
        result = await self._copier.copy(
            message.envelope, content, message.claim, plan, is_first_listed=False, deadline=deadline, said=said
        )
        if result.superseded is not None:
            return await self._superseded(message_id, result)
        (transition,) = await context.ledger.transition([message_id], result.outcome)
        if transition.note != Note.CHOSEN or result.stored_on is None:
            return False
        elapsed = timedelta(seconds=context.clock.awake() - started)
        context.tracking.write(
            tracking_rows.haredirect(context.me.server, message, at=context.now(), server=result.stored_on.server, elapsed=elapsed)
        )
        return True

    async def _set_aside(self, message: StoredMessage, reason: str) -> None:
        """Not during an attempt, which has the content or finds out by itself: whoever is told `yours` promotes at once."""
        message_id = message.envelope.message_id
        if self._context.attempts.begin(message_id):
            try:
                await set_aside_corrupt(self._context, message, reason)
            finally:
                self._context.attempts.end(message_id)

    async def _superseded(self, message_id: MessageId, result: CopyResult) -> bool:
        """The server has a higher claim, or knows it delivered: what it says counts like an answer to STATUS."""
        assert result.superseded is not None
        party, answer = result.superseded

        def decide(_: MessageId, claim: Claim | None) -> Transition:
            known = result.verdict(message_id, claim).after
            if known is None or not known.is_primary:
                return Transition(claim, claim)
            learnt = meeting.settle(known, self._context.me, party, answer)
            if learnt is None:
                return Transition(claim, known)
            ends = learnt.after is None or not learnt.after.is_primary
            if ends and not self._context.attempts.end_claim(message_id):  # between two attempts
                return Transition(claim, known, note=Note.WAIT)
            return Transition(claim, learnt.after, learnt.tell, note=learnt.note)

        (transition,) = await self._context.end_claims([message_id], decide)
        _log.info("placement.superseded", message_id=message_id, server=party.server, note=transition.note)
        return False
