"""What became of the copies that we hold for a primary server that lives? Asked when it was restarted, and once a span.
docs/protocol.md 10, `unknown`; what an answer means is `core.ownership.shadow.meaning`.

A crash may have come between the copy and the primary's own commit, or an older copy of its database was restored: `unknown`
from a later incarnation of the same database means: take it over, after asking everybody. From the incarnation that sent the
copy it means that the copy is not needed.
"""

import asyncio
from collections.abc import Sequence

import structlog

from shadowrelay.core.ownership import shadow
from shadowrelay.core.ownership.values import Party
from shadowrelay.model.errors import LedgerUnavailable, PeerUnavailable
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Claim, DiscardEvent, StatusQuestion, Transition
from shadowrelay.model.peers import Incarnation
from shadowrelay.model.queue import HeldCopy
from shadowrelay.service import discards
from shadowrelay.service.context import Context
from shadowrelay.service.promote import PAGE, PromoteService

_log = structlog.get_logger("shadowrelay.reconcile")

AGAIN_SECONDS = 5.0
PAUSE_SECONDS_MAX = 1.0


class ReconcileService:
    """Asks a restarted primary about every copy held for it, once an incarnation, and a living one once a span.

    `_reconciled` has the incarnation of each primary with which the first was done since this process started. Each copy that
    is still held for it was sent by this incarnation, or is known to it: what an older one sent and this one does not
    know is being taken over, and `PeerDesk.hold` refuses a copy of an older one.
    """

    def __init__(self, context: Context, promote: PromoteService) -> None:
        self._context = context
        self._promote = promote
        self._running: set[ServerName] = set()
        self._reconciled: dict[ServerName, Incarnation] = {}

    async def primary_restarted(self, server: ServerName) -> None:
        """Page through the shadow messages of this primary in its present database, until all have been asked about: an
        unknown one would be nobody's while its primary lives. If it restarts meanwhile, begin again."""
        peers = self._context.peers
        if server in self._running:
            return
        self._running.add(server)
        try:
            while (present := peers.whole_incarnation(server)) is not None and self._reconciled.get(server) != present:
                await self._reconcile(server, present)
        finally:
            self._running.discard(server)
            self._promote.wake()

    async def _reconcile(self, server: ServerName, present: Incarnation) -> None:
        context = self._context
        while context.peers.whole_incarnation(server) == present:
            try:
                await context.ledger.transition((), lambda _, claim: Transition(claim, claim))  # after it, copies under way are stored
                await self._ask_all(Party(server, present.database))
                self._reconciled[server] = present
                return
            except (PeerUnavailable, LedgerUnavailable) as error:
                _log.warning("reconciliation.waits", server=server, reason=error.reason)
            await asyncio.sleep(min(context.heartbeat, AGAIN_SECONDS))

    async def run(self) -> None:
        """Once a span, ask about whatever is held for a primary that lives. Nothing else would ever end a copy that the
        network kept until its `released` had been heard and acknowledged."""
        context = self._context
        while True:
            await asyncio.sleep(context.settings.transport.shadow_resubmit_time_span.total_seconds())
            try:
                for group in await context.ledger.shadow_groups():
                    party = Party(group.primary, group.database)
                    sender = self._reconciled.get(group.primary)
                    if sender is not None and self._is_present(party, sender) and group.primary not in self._running:
                        await self._ask_all(party, sender)
            except (PeerUnavailable, LedgerUnavailable) as error:
                _log.info("reconciliation.put_off", reason=error.reason)

    def _is_present(self, party: Party, incarnation: Incarnation) -> bool:
        return party.database == incarnation.database and self._context.peers.whole_incarnation(party.server) == incarnation

    async def _ask_all(self, party: Party, sender: Incarnation | None = None) -> None:
        """Half of the time is left to the mail: after a restart both servers ask about all that they hold. `sender`: the
        incarnation that sent all these copies, or knows them; `None` if an older one may have sent them."""
        clock = self._context.clock
        after = 0
        began = clock.awake()
        while page := await self._context.ledger.copies_of(party.server, party.database, PAGE, after):
            await self._ask(party, page, sender)
            after = page[-1].internal_id
            await asyncio.sleep(min(clock.awake() - began, PAUSE_SECONDS_MAX))
            began = clock.awake()

    async def _ask(self, party: Party, page: Sequence[HeldCopy], sender: Incarnation | None) -> None:
        context = self._context
        link = context.links[party.server]
        questions = {held.message_id: StatusQuestion(held.message_id, held.number) for held in page}
        answers = dict(zip(questions, await link.status(list(questions.values())), strict=True))
        answering = None if link.identity is None else link.identity.whole_incarnation
        if sender is not None and (answering != sender or not self._is_present(party, sender)):
            return  # it was restarted meanwhile, so that all is asked again
        from_sender = sender is not None
        meanings = {message_id: shadow.meaning(answer, from_sender=from_sender) for message_id, answer in answers.items()}
        events = [DiscardEvent(0, message_id, meant) for message_id, meant in meanings.items() if meant is not None]

        def decide(message_id: MessageId, claim: Claim | None) -> Transition:
            transition = shadow.reconciled(claim, party, questions[message_id], answers[message_id], from_sender=from_sender)
            if not context.call_off_done(message_id, transition) and transition.changed:  # it may have been promoted since
                context.attempts.changed(message_id)
            return transition

        async def settle() -> None:
            transitions = await context.ledger.transition([event.message_id for event in events], decide)
            for event, transition in zip(events, transitions, strict=True):
                if not context.call_off_done(event.message_id, transition) and transition.changed:
                    context.attempts.changed(event.message_id)
            await discards.track(context, party.server, discards.discarded(events, transitions))

        if events:
            await context.tasks.whole(settle(), f"reconcile {party.server}")
            _log.info("shadows.reconciled", server=party.server, asked=len(page), settled=len(events))
