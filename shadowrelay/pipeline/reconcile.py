"""Asks a running primary server about the copies held for it, after it restarted and once a span. docs/protocol.md 10, `unknown`.

`rules.as_notification` interprets the answers. `unknown` from the incarnation that sent the copy means that the copy is not needed.
From a later incarnation of the same database it means that the primary crashed before its own commit, or that an older copy of its database
was restored: the message is taken over, after asking all nodes (`pipeline.promote`).
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Claim, DiscardEvent, StatusQuestion, StatusState, Transition
from shadowrelay.model.peers import Incarnation
from shadowrelay.model.queue import HeldCopy
from shadowrelay.model.replies import LedgerUnavailable, PeerUnavailable
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.pipeline.context import PAGE, Context
from shadowrelay.pipeline.promote import PromoteService
from shadowrelay.rules import delivery, flight
from shadowrelay.store import promises, reading

_log = structlog.get_logger()

AGAIN_SECONDS = 5.0
PAUSE_SECONDS_MAX = 1.0
KEPT_SPANS = 3  # a copy that would expire within so many spans is kept longer: a primary server is asked once a span, and may not answer


class ReconcileService:
    """Asks a restarted primary about every copy held for it, once per incarnation, and a living one once a span.

    `_reconciled` has, for each primary, the incarnation that answered about all its copies since this process started. Each copy still
    held for that primary was sent by this incarnation, or is known to it: a copy that an earlier incarnation sent and this one does not
    know is being taken over, and `PeerRequestService.hold` refuses copies from an earlier incarnation.
    """

    def __init__(self, context: Context, promote: PromoteService, on_yielded: Callable[[MessageId], None]) -> None:
        self._context = context
        self._promote = promote
        self._on_yielded = on_yielded  # the primary server of this shadow message has yielded to another one
        self._running: set[ServerName] = set()
        self._reconciled: dict[ServerName, Incarnation] = {}

    async def primary_restarted(self, server: ServerName) -> None:
        """Page through the shadow messages of this primary in its current database until all have been asked about. While the primary
        server runs, nobody takes its messages over; so a message that it does not know would never be delivered. If it restarts meanwhile,
        begin again."""
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
                # An empty transaction: copies that are being stored are committed before it.
                await context.ledger.commit(promises.transition, (), lambda _, claim: Transition(claim, claim))
                await self._ask_all(PeerDatabase(server, present.database))
                self._reconciled[server] = present
                return
            except (PeerUnavailable, LedgerUnavailable) as error:
                _log.warning("reconciliation.waits", server=server, reason=error.reason)
            await asyncio.sleep(min(context.heartbeat, AGAIN_SECONDS))

    async def run(self) -> None:
        """Once a span, ask each living primary about the copies held for it. The network may deliver a copy so late that the `released` for
        it was already received and acknowledged; nothing else would end such a copy."""
        context = self._context
        while True:
            await asyncio.sleep(context.settings.transport.shadow_resubmit_time_span.total_seconds())
            try:
                groups = await context.ledger.read(reading.shadow_groups)
            except LedgerUnavailable as error:
                _log.info("reconciliation.put_off", reason=error.reason)
                continue
            for group in groups:
                party = PeerDatabase(group.primary, group.database)
                sender = self._reconciled.get(group.primary)
                if sender is None or not self._is_present(party, sender) or group.primary in self._running:
                    continue
                try:
                    await self._ask_all(party, sender)
                except (PeerUnavailable, LedgerUnavailable) as error:  # the others are asked all the same
                    _log.info("reconciliation.put_off", server=group.primary, reason=error.reason)

    def _is_present(self, party: PeerDatabase, incarnation: Incarnation) -> bool:
        return party.database == incarnation.database and self._context.peers.whole_incarnation(party.server) == incarnation

    async def _ask_all(self, party: PeerDatabase, sender: Incarnation | None = None) -> None:
        """Ask page by page, and pause after each page for as long as it took, at most `PAUSE_SECONDS_MAX`. So half of the time is left for
        mail: after a restart both servers ask about everything they hold. `sender`: the incarnation that sent all these copies, or knows
        them; `None` if an older one may have sent them."""
        clock = self._context.clock
        after = 0
        began = clock.awake()
        while page := await self._context.ledger.read(reading.copies_of, party.server, party.database, PAGE, after):
            await self._ask(party, page, sender)
            after = page[-1].internal_id
            await asyncio.sleep(min(clock.awake() - began, PAUSE_SECONDS_MAX))
            began = clock.awake()

    async def _ask(self, party: PeerDatabase, page: Sequence[HeldCopy], sender: Incarnation | None) -> None:
        context = self._context
        link = context.links[party.server]
        questions = {held.message_id: StatusQuestion(held.message_id, held.number) for held in page}
        answers = dict(zip(questions, await link.status(list(questions.values())), strict=True))
        answering = None if link.identity is None else link.identity.whole_incarnation
        if sender is not None and (answering != sender or not self._is_present(party, sender)):
            return  # it restarted meanwhile, so everything is asked again
        from_sender = sender is not None
        meanings = {
            message_id: rules.as_notification(answer, context.me, from_sender=from_sender) for message_id, answer in answers.items()
        }
        events = [DiscardEvent(0, message_id, meant) for message_id, meant in meanings.items() if meant is not None]
        for message_id, answer in answers.items():
            if rules.yielded_to(answer, party, context.me):
                self._on_yielded(message_id)

        def decide(message_id: MessageId, claim: Claim | None) -> Transition:
            transition = claims.reconciled(claim, context.me, party, questions[message_id], answers[message_id], from_sender=from_sender)
            if not context.call_off_done(message_id, transition) and transition.changed:  # it may have been promoted since
                context.flights.happens(message_id, flight.change)
            return transition

        async def settle() -> None:
            transitions = await context.ledger.commit(promises.transition, [event.message_id for event in events], decide)
            for event, transition in zip(events, transitions, strict=True):  # before and after the commit: `Context.call_off_done` says why
                if not context.call_off_done(event.message_id, transition) and transition.changed:
                    context.flights.happens(event.message_id, flight.change)
            await context.log_discarded(party.server, rules.discarded(events, transitions))

        if events:
            await context.tasks.whole(settle(), f"reconcile {party.server}")
            _log.info("shadows.reconciled", server=party.server, asked=len(page), settled=len(events))
        await self._keep([held for held in page if answers[held.message_id].state is StatusState.PRIMARY])

    async def _keep(self, needed: Sequence[HeldCopy]) -> None:
        """Their primary server claims these: those that would expire soon are kept for as long again. With `defer` a message may wait for
        another server for longer than its copies are kept."""
        transport, now = self._context.settings.transport, self._context.now() - self._context.note_clock()
        soon = now + KEPT_SPANS * transport.shadow_resubmit_time_span
        if ids := [held.message_id for held in needed if held.keep_until <= soon]:
            await self._context.ledger.commit(promises.kept_longer, ids, delivery.shadow_keep_until(now, transport))
