"""Registers copies with the primary server to which their old one yielded. docs/design.md 6.2 "Several copies".

Where several copies are wanted, a primary server that yields releases none of the others: the new primary server needs them. It sends
`promoted` to their servers. Each of these asks it to which server it yielded, and asks that server, which lists it before it answers.
Nothing is copied. An unanswered question is repeated; if this node restarts meanwhile, its next reconciliation finds the message
(`pipeline.reconcile`).
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import structlog

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Claim, DiscardEvent, DiscardStatus, Role, StatusAnswer, StatusQuestion, Transition
from shadowrelay.model.queue import StoredMessage
from shadowrelay.model.replies import LedgerUnavailable, PeerUnavailable
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome, PeerDatabase
from shadowrelay.pipeline.context import Context

WANTED_MAX = 10_000  # the others are found by the next reconciliation
PAGE = 400  # docs/protocol.md 14: questions in one XQDISCARD STATUS BDAT

_log = structlog.get_logger()


class FollowService:
    """A set of shadow messages whose primary servers have yielded."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._wanted: set[MessageId] = set()
        self._event = asyncio.Event()

    def want(self, message_id: MessageId) -> None:
        """The primary server of this shadow message has yielded."""
        if len(self._wanted) < WANTED_MAX:
            self._wanted.add(message_id)
            self._event.set()

    async def run(self) -> None:
        """Ask about those wanted, page by page; again after a heartbeat about those for which there was no answer."""
        while True:
            await self._event.wait()
            self._event.clear()
            again: set[MessageId] = set()
            while self._wanted:
                page = [self._wanted.pop() for _ in range(min(PAGE, len(self._wanted)))]
                try:
                    again |= await self._follow(page)
                except LedgerUnavailable as error:
                    _log.warning("following.waits", reason=error.reason)
                    again.update(page)
            if again:
                await asyncio.sleep(self._context.heartbeat)
                self._wanted |= again
                self._event.set()

    async def _follow(self, message_ids: Sequence[MessageId]) -> set[MessageId]:
        """Returns those for which there was no answer."""
        held: dict[PeerDatabase, list[StoredMessage]] = defaultdict(list)
        for message in await self._context.ledger.load_many(message_ids):
            if message.claim.role is Role.SHADOW:
                held[PeerDatabase(message.claim.primary, message.claim.database)].append(message)
        unanswered: set[MessageId] = set()
        moved: dict[ServerName, list[StoredMessage]] = defaultdict(list)
        for primary, messages in held.items():
            answers = await self._ask(primary.server, messages)
            if answers is None:
                unanswered.update(message.envelope.message_id for message in messages)
                continue
            for message, answer in zip(messages, answers[1], strict=True):
                if other := rules.yielded_to(answer, primary, self._context.me):
                    moved[other].append(message)
        for other, messages in moved.items():
            answers = await self._ask(other, messages)
            if answers is None:
                unanswered.update(message.envelope.message_id for message in messages)
            else:
                party, said = answers
                await self._context.tasks.whole(self._settle(party, messages, said), f"follow {other}")
        return unanswered

    async def _ask(self, server: ServerName, messages: Sequence[StoredMessage]) -> tuple[PeerDatabase, tuple[StatusAnswer, ...]] | None:
        link = self._context.links.get(server)
        if link is None:
            return None
        try:
            answers = await link.status([StatusQuestion(message.envelope.message_id, message.claim.number) for message in messages])
        except PeerUnavailable as error:
            self._context.peers.failed(server, error.reason)
            _log.info("following.unanswered", server=server, reason=error.reason)
            return None
        assert link.identity is not None
        return PeerDatabase(server, link.identity.database), answers

    async def _settle(self, party: PeerDatabase, messages: Sequence[StoredMessage], answers: Sequence[StatusAnswer]) -> None:
        said = {message.envelope.message_id: answer for message, answer in zip(messages, answers, strict=True)}

        def decide(message_id: MessageId, claim: Claim | None) -> Transition:
            return claims.followed(claim, party, said[message_id])

        transitions = await self._context.end_claims(list(said), decide)
        followed = sum(transition.outcome == Outcome.YIELDED for transition in transitions)
        if followed:
            _log.info("shadows.followed", server=party.server, count=followed)
        for transition, message in zip(transitions, messages, strict=True):
            if transition.outcome == Outcome.DONE and transition.before is not None:
                event = DiscardEvent(0, message.envelope.message_id, DiscardStatus.DELIVERED)
                await self._context.log_discarded(transition.before.primary, [event])
