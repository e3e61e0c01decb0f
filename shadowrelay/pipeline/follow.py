"""Registers copies with the primary server to which their old one yielded. docs/design.md 6.2 "Several copies".

Where several copies are wanted, a primary server that yields releases none of the others: the new primary server needs them. It sends
`promoted` to their servers. Each of these asks it to which server it yielded, and asks that server, which lists it before it answers.
Nothing is copied. An unanswered question is repeated; if this node restarts meanwhile, its next reconciliation finds the message
(`pipeline.reconcile`).

A server that is not the primary of a copy may promote the message, too: both held a copy when they were cut off from each other. It is
asked in the same way. Of the two primary servers the lower one ends by that question, or by its own, when this node tells it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from shadowrelay.model.ids import NO_SERVER, MessageId, ServerName
from shadowrelay.model.ownership import Claim, DiscardEvent, DiscardStatus, Role, StatusAnswer, StatusQuestion, Transition
from shadowrelay.model.queue import StoredMessage
from shadowrelay.model.replies import LedgerUnavailable, PeerUnavailable
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome, PeerDatabase
from shadowrelay.pipeline.context import Context
from shadowrelay.store import reading

WANTED_MAX = 10_000  # the others are found by the next reconciliation
PAGE = 400  # docs/protocol.md 14: questions in one XQDISCARD STATUS BDAT

Event = Callable[[Claim | None, PeerDatabase, StatusAnswer], Transition]

_log = structlog.get_logger()


class FollowService:
    """A set of shadow messages whose primary servers have yielded."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._wanted: dict[MessageId, ServerName] = {}
        self._event = asyncio.Event()

    def want(self, message_id: MessageId, promoted_by: ServerName = NO_SERVER) -> None:
        """The primary server of this shadow message has yielded; or another server has promoted it (`promoted_by`)."""
        if len(self._wanted) < WANTED_MAX:
            self._wanted[message_id] = promoted_by
            self._event.set()

    async def run(self) -> None:
        """Ask about those wanted, page by page; again after a heartbeat about those for which there was no answer."""
        while True:
            await self._event.wait()
            self._event.clear()
            again: dict[MessageId, ServerName] = {}
            while self._wanted:
                page = dict([self._wanted.popitem() for _ in range(min(PAGE, len(self._wanted)))])
                try:
                    unanswered = await self._follow(page)
                except LedgerUnavailable as error:
                    _log.warning("following.waits", reason=error.reason)
                    unanswered = page.keys()
                again.update({message_id: page[message_id] for message_id in unanswered})
            if again:
                await asyncio.sleep(self._context.heartbeat)
                self._wanted = again | self._wanted
                self._event.set()

    async def _follow(self, wanted: Mapping[MessageId, ServerName]) -> Collection[MessageId]:
        """Returns those for which there was no answer."""
        held: dict[PeerDatabase, list[StoredMessage]] = defaultdict(list)
        moved: dict[ServerName, list[StoredMessage]] = defaultdict(list)
        promoted: dict[ServerName, list[StoredMessage]] = defaultdict(list)
        for message in await self._context.ledger.read(reading.load_many, list(wanted)):
            if message.claim.role is not Role.SHADOW:
                continue
            if promoted_by := wanted[message.envelope.message_id]:
                promoted[promoted_by].append(message)
            else:
                held[PeerDatabase(message.claim.primary, message.claim.database)].append(message)
        unanswered: set[MessageId] = set()
        for primary, messages in held.items():
            answers = await self._ask(primary.server, messages)
            if answers is None:
                unanswered.update(message.envelope.message_id for message in messages)
                continue
            for message, answer in zip(messages, answers[1], strict=True):
                if other := rules.yielded_to(answer, primary, self._context.me):
                    moved[other].append(message)
        for event, asked in ((claims.followed, moved), (claims.met, promoted)):
            for other, messages in asked.items():
                answers = await self._ask(other, messages)
                if answers is None:
                    unanswered.update(message.envelope.message_id for message in messages)
                else:
                    party, said = answers
                    await self._context.tasks.whole(self._settle(event, party, messages, said), f"follow {other}")
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

    async def _settle(self, event: Event, party: PeerDatabase, messages: Sequence[StoredMessage], answers: Sequence[StatusAnswer]) -> None:
        said = {message.envelope.message_id: answer for message, answer in zip(messages, answers, strict=True)}

        def decide(message_id: MessageId, claim: Claim | None) -> Transition:
            return event(claim, party, said[message_id])

        transitions = await self._context.end_claims(list(said), decide)
        followed = sum(transition.outcome == Outcome.YIELDED for transition in transitions)
        if followed:
            _log.info("shadows.followed", server=party.server, count=followed)
        for transition, message in zip(transitions, messages, strict=True):
            if transition.outcome == Outcome.DONE and transition.before is not None:
                ended = DiscardEvent(0, message.envelope.message_id, DiscardStatus.DELIVERED)
                await self._context.log_discarded(transition.before.primary, [ended])
