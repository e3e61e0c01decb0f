"""A primary server was restarted: what became of the copies that we hold for it? DESIGN 4, `unknown`.

A crash may have come between the copy and the primary's own commit. `unknown` from a later incarnation of the same
database therefore means: take it over, after asking everybody.
"""

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from shadowrelay.core.ownership import shadow
from shadowrelay.core.ownership.values import Note, Party
from shadowrelay.model.errors import LedgerUnavailable, PeerUnavailable
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Claim, DiscardEvent, DiscardStatus, StatusAnswer, StatusQuestion, StatusState, Transition
from shadowrelay.model.queue import HeldCopy
from shadowrelay.service import discards
from shadowrelay.service.context import Context
from shadowrelay.service.promote import PAGE, PromoteService

_log = structlog.get_logger("shadowrelay.reconcile")

AGAIN_SECONDS = 5.0
PAUSE_SECONDS_MAX = 1.0
MEANING = {
    StatusState.UNKNOWN: DiscardStatus.YOURS,
    StatusState.DELIVERED: DiscardStatus.DELIVERED,
    StatusState.RELEASED: DiscardStatus.RELEASED,
}
# In the incarnation that sent the copy, unknown means that its first commit failed, and the client was refused.
KNOWN_MEANING: Mapping[StatusState, DiscardStatus] = {
    state: status for state, status in MEANING.items() if state is not StatusState.UNKNOWN
}


class ReconcileService:
    """Asks a restarted primary about every copy held for it, once an incarnation."""

    def __init__(self, context: Context, promote: PromoteService) -> None:
        self._context = context
        self._promote = promote
        self._running: set[Party] = set()

    async def primary_restarted(self, server: ServerName) -> None:
        """Page through the shadow messages of this primary in its present database, until all have been asked about: an
        unknown one would be nobody's while its primary lives."""
        context = self._context
        party = context.peers.party(server)
        if party in self._running:
            return
        self._running.add(party)
        after = 0
        try:
            while context.peers.party(server) == party:
                try:
                    after = await self._ask_all(party, after)
                    return
                except (PeerUnavailable, LedgerUnavailable) as error:
                    _log.warning("reconciliation.waits", server=server, reason=error.reason)
                await asyncio.sleep(min(context.heartbeat, AGAIN_SECONDS))
        finally:
            self._running.discard(party)
            self._promote.wake()

    async def run(self) -> None:
        """Once a span, ask about whatever is held for a primary that lives. A copy that the network kept for a while arrives
        after its `released` was heard and acknowledged: nothing else would ever end it."""
        context = self._context
        while True:
            await asyncio.sleep(context.settings.transport.shadow_resubmit_time_span.total_seconds())
            try:
                for group in await context.ledger.shadow_groups():
                    party = Party(group.primary, group.database)
                    if context.peers.party(group.primary) == party and party not in self._running:
                        await self._ask_all(party, 0, KNOWN_MEANING)
            except (PeerUnavailable, LedgerUnavailable) as error:
                _log.info("reconciliation.put_off", reason=error.reason)

    async def _ask_all(self, party: Party, after: int, meaning: Mapping[StatusState, DiscardStatus] = MEANING) -> int:
        """Half of the time is left to the mail: after a restart both servers ask about all that they hold."""
        clock = self._context.clock
        began = clock.awake()
        while page := await self._context.ledger.copies_of(party.server, party.database, PAGE, after):
            await self._ask(party, page, meaning)
            after = page[-1].internal_id
            await asyncio.sleep(min(clock.awake() - began, PAUSE_SECONDS_MAX))
            began = clock.awake()
        return after

    async def _ask(self, party: Party, page: Sequence[HeldCopy], meaning: Mapping[StatusState, DiscardStatus]) -> None:
        context = self._context
        questions = [StatusQuestion(held.message_id, held.number) for held in page]
        answers = await context.links[party.server].status(questions)
        said = {question.message_id: answer for question, answer in zip(questions, answers, strict=True) if answer.state in meaning}

        def decide(message_id: MessageId, claim: Claim | None) -> Transition:
            transition = shadow.heard(claim, party, _as_event(message_id, said[message_id]))
            if transition.note == Note.DONE:  # it may have been promoted since it was asked about
                context.attempts.call_off(message_id)
            elif transition.changed:
                context.attempts.changed(message_id)
            return transition

        async def settle() -> None:
            transitions = await context.ledger.transition(list(said), decide)
            events = [_as_event(message_id, answer) for message_id, answer in said.items()]
            await discards.track(context, party.server, discards.discarded(events, transitions))

        if said:
            await context.tasks.whole(settle(), f"reconcile {party.server}")
            _log.info("shadows.reconciled", server=party.server, asked=len(page), settled=len(said))


def _as_event(message_id: MessageId, answer: StatusAnswer) -> DiscardEvent:
    return DiscardEvent(0, message_id, MEANING[answer.state])
