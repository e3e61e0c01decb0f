"""Promotes shadow messages when their primary server is lost, after asking all other nodes. docs/design.md 6.1, 6.2.

A primary server that runs is asked by `pipeline.reconcile`.

A *kept shadow* is a message that this node relayed by TRACK (`Claim.is_kept`; `kept` in what follows). It has its own limit of silence. It
is taken back, that is, promoted, only if it can go another way: over another route, or to the primary server itself once that answers from
a new database (docs/design.md 6.7). At the end of message_expiration_timeout it is taken back to be returned to its sender.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from shadowrelay.model.ids import NO_DATABASE, MessageId, ServerName
from shadowrelay.model.ownership import (
    Claim,
    Decide,
    DiscardEvent,
    DiscardStatus,
    Role,
    StatusAnswer,
    StatusQuestion,
    StatusState,
    Transition,
)
from shadowrelay.model.peers import Incarnation
from shadowrelay.model.queue import ShadowGroup, StoredMessage
from shadowrelay.model.replies import ContentCorrupt, ContentUnreadable, LedgerUnavailable, PeerUnavailable
from shadowrelay.model.tracking import ResubmitReason
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome, PeerDatabase
from shadowrelay.pipeline.context import PAGE, Context, woken_within
from shadowrelay.pipeline.copy_repair import CopyRepair
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.pipeline.poison import set_aside_corrupt
from shadowrelay.pipeline.review import ReviewService
from shadowrelay.protocol import tracking
from shadowrelay.rules import delivery
from shadowrelay.store import promises, reading


@dataclass(slots=True)
class AskedNodes:
    """The nodes that a takeover asks, and the last known incarnation of the lost primary when it began."""

    parties: dict[ServerName, PeerDatabase]
    primary_incarnation: Incarnation | None


OnPromoted = Callable[[Sequence[StoredMessage]], None]

_log = structlog.get_logger()


class PromoteService:
    """Watches the shadow queues for lost primaries."""

    def __init__(
        self,
        context: Context,
        deliver: DeliverService,
        copy_repair: CopyRepair,
        review: ReviewService,
        *,
        expire: Callable[[], Awaitable[None]],
        on_older_copy: Callable[[ServerName], None],
    ) -> None:
        self._context = context
        self._expire = expire
        self._on_older_copy = on_older_copy
        self._deliver = deliver
        self._copy_repair = copy_repair
        self._review = review
        self._event = asyncio.Event()
        self._corrupt: dict[MessageId, str] = {}  # messages whose content is corrupt, and the reason, which is logged once
        self._unreadable: set[MessageId] = set()  # messages whose content could not be read; logged once until it can be read again
        self._without_route: dict[PeerDatabase, float] = {}  # `Clock.awake` at which to look again for another route

    def wake(self) -> None:
        """Check now: a database changed, a message was handed over, or there may be other routes."""
        self._without_route.clear()
        self._event.set()

    async def run(self) -> None:
        """Check once a heartbeat or poll, whichever is shorter, and whenever woken."""
        while True:
            transport = self._context.settings.transport
            pause = min(transport.shadow_heartbeat_frequency, max(transport.discard_poll_interval, timedelta(milliseconds=100)))
            self._event.clear()
            try:
                for group in await self._context.ledger.read(reading.shadow_groups):
                    for kept in (False, True):
                        reason = self.reason(group, kept=kept)
                        if reason is not None and (group.kept_count if kept else group.count > group.kept_count):
                            await self._take_over_or_log(group, reason, kept=kept)
            except LedgerUnavailable as error:
                _log.warning("promotion.waits", reason=error.reason)
            await woken_within(self._event, pause.total_seconds())

    def reason(self, group: ShadowGroup, *, kept: bool = False) -> ResubmitReason | None:
        """Why the messages of this group must be taken over now, or None. `kept`: those that were relayed by TRACK."""
        primary = PeerDatabase(group.primary, group.database)
        if kept and self._context.clock.awake() < self._without_route.get(primary, 0.0):
            return None
        handover = ResubmitReason.HANDOVER if group.handed_count else None
        return self._loss(primary, kept=kept) or handover

    def seconds_until_takeover(self, group: ShadowGroup) -> float:
        """How long the silence of its primary server still has to last until messages of this group are taken over. 0: they are now."""
        if self.reason(group) is not None or (group.kept_count and self._loss(PeerDatabase(group.primary, group.database), kept=True)):
            return 0.0
        leases = self._context.leases
        is_only_kept = group.count <= group.kept_count
        limits = [] if is_only_kept else [leases.silence_limit(group.primary)]
        limits += [leases.silence_limit_of_kept()] if group.kept_count else []
        return max(min(limits) - self._context.peers.silence(group.primary), 0.0)

    def is_lost(self, primary: PeerDatabase) -> bool:
        """Whether this database of the server is gone, or the server was silent for the span."""
        return self._loss(primary) is not None

    def _loss(self, primary: PeerDatabase, *, kept: bool = False) -> ResubmitReason | None:
        peers, leases = self._context.peers, self._context.leases
        if peers.is_gone(primary, leases.silence_limit(primary.server)):
            is_older_copy = peers.states[primary.server].former == primary.database
            return ResubmitReason.DATABASE_ROLLED_BACK if is_older_copy else ResubmitReason.DATABASE_CHANGED
        limit = leases.silence_limit_of_kept() if kept else leases.silence_limit(primary.server)
        is_silent = peers.silence(primary.server) >= limit
        return ResubmitReason.SILENCE if is_silent else None

    def _servers_that_must_answer(self, claim: Claim, asked: AskedNodes) -> frozenset[ServerName]:
        """The servers that must have answered before this claim is promoted. Called in the transaction that would promote.

        They include the primary server if it contacted this node since the round began, because our answer may have renewed its lease. They
        also include it if it restarted since then, because it may have told other nodes of deliveries after those nodes had answered us.
        They are all peers if this node is an older copy that has yet to start again: its own sessions refuse them.
        """
        if self._context.is_older_copy:
            return frozenset(self._context.peers.states)
        is_lost = claim.handed or self._loss(PeerDatabase(claim.primary, claim.database), kept=claim.is_kept) is not None
        is_same = self._context.peers.whole_incarnation(claim.primary) == asked.primary_incarnation
        servers = frozenset(asked.parties)
        return servers if is_lost and is_same else servers | {claim.primary}

    def _may_take_back(self, message: StoredMessage) -> bool:
        """Whether a message that was relayed by TRACK can go another way, or its time is over."""
        context, primary = self._context, message.claim.primary
        if context.peers.is_available(primary):
            return True  # it answers, but has lost the message or hands it over: it can be relayed there again
        timeout = context.settings.transport.message_expiration_timeout
        if delivery.is_expired(message.envelope.arrived_at + context.note_clock(), context.now(), timeout):
            return True
        return self._deliver.forks.has_other_route(message, primary)

    def _note_without_route(self, primary: PeerDatabase, count: int) -> None:
        """These messages stay shadow messages. A route may appear (reload, DNS, a returning peer): look again in a heartbeat."""
        if primary not in self._without_route:
            _log.warning("shadows.no_other_route", primary=primary.server, count=count)
        self._without_route[primary] = self._context.clock.awake() + self._context.heartbeat

    async def _take_over_or_log(self, group: ShadowGroup, reason: ResubmitReason, *, kept: bool) -> None:
        """The failure of one group delays no other. Raises: LedgerUnavailable."""
        try:
            await self._take_over(group, reason, kept=kept)
        except LedgerUnavailable:
            raise
        except Exception:
            _log.exception("takeover.failed", primary=group.primary, database=group.database)

    async def _take_over(self, group: ShadowGroup, reason: ResubmitReason, *, kept: bool) -> None:
        context = self._context
        await self._expire()  # what this node kept for too long, while it was away, nobody delivers any more
        detected_at = context.now()
        silent_since = detected_at - timedelta(seconds=context.peers.silence(group.primary))
        is_handover = reason is ResubmitReason.HANDOVER
        asked = await self._nodes_to_ask(group.primary, is_handover=is_handover)
        if self.reason(group, kept=kept) is not reason:
            return  # the primary answered; messages handed over nevertheless follow in the next check
        if kept and not await self._any_may_be_taken_back(group, is_handover=is_handover):
            return
        _log.warning(
            "primary.lost",
            primary=group.primary,
            database=group.database,
            reason=reason.value,
            count=group.count_of(kept=kept, handed=is_handover),
            asking=sorted(asked.parties),
        )

        def on_promoted(promoted: Sequence[StoredMessage]) -> None:
            for message in promoted:
                context.tracking.write(
                    tracking.resubmit(
                        context.me.server,
                        message,
                        at=context.now(),
                        primary=group.primary,
                        reason=reason,
                        silent_since=silent_since,
                        detected_at=detected_at,
                    )
                )
            if promoted:
                context.counts.promoted[reason] += len(promoted)
                if is_handover and not context.peers.drains(group.primary):
                    running = context.counts.handed_by_running
                    running[group.primary] = running.get(group.primary, 0) + len(promoted)
                _log.warning("messages.promoted", primary=group.primary, count=len(promoted), reason=reason.value)
                if is_handover and context.peers.drains(group.primary):
                    # The draining server still has a good copy of each, and yields when asked. The review asks it and chooses that copy, so
                    # none is sent.
                    for message in promoted:
                        self._review.suspect(message.envelope.message_id, group.primary)
                else:
                    self._copy_repair.wake(promoted[0].internal_id - 1)
                self._deliver.wake()

        after = left_count = 0
        while is_handover or self.reason(group, kept=kept) is reason:  # a long queue takes many rounds: the primary may return meanwhile
            page = await context.ledger.read(
                reading.shadows_of, group.primary, group.database, PAGE, after, handed_only=is_handover, kept=kept
            )
            if not page:
                break
            after = page[-1].internal_id
            if kept:
                going = [message for message in page if self._may_take_back(message)]
                left_count += len(page) - len(going)
                page = tuple(going)
            await self._ask_and_promote(page, asked, on_promoted)
        if left_count:
            self._note_without_route(PeerDatabase(group.primary, group.database), left_count)

    async def _any_may_be_taken_back(self, group: ShadowGroup, *, is_handover: bool) -> bool:
        """Whether any message of this group that was relayed by TRACK can go another way. Otherwise no node needs to be asked."""
        after = 0
        while page := await self._context.ledger.read(
            reading.shadows_of, group.primary, group.database, PAGE, after, handed_only=is_handover, kept=True
        ):
            if any(map(self._may_take_back, page)):
                return True
            after = page[-1].internal_id
        if after:
            self._note_without_route(PeerDatabase(group.primary, group.database), group.kept_count)
        return False

    async def _nodes_to_ask(self, primary: ServerName, *, is_handover: bool) -> AskedNodes:
        context = self._context

        async def greet(server: ServerName) -> PeerDatabase | None:
            try:
                identity = await context.links[server].greet()
            except PeerUnavailable as error:
                context.peers.failed(server, error.reason)
                return None
            return PeerDatabase(server, identity.database)

        servers = [
            server for server in context.peers.states if not (is_handover and server == primary) and not context.peers.is_forgotten(server)
        ]
        parties = await asyncio.gather(*(greet(server) for server in servers))
        found = {party.server: party for party in parties if party is not None}
        return AskedNodes(found, context.peers.whole_incarnation(primary))

    async def _ask_and_promote(self, page: Sequence[StoredMessage], asked: AskedNodes, on_promoted: OnPromoted) -> None:
        """Ask one round of questions about these messages; `on_promoted` is called with those that are ours now."""
        context = self._context
        by_id = {message.envelope.message_id: message for message in page if await self._is_intact(message)}
        await self._set_aside_damaged([message for message in page if message.envelope.message_id in self._corrupt], asked)
        questions = [StatusQuestion(message_id, message.claim.number) for message_id, message in by_id.items()]
        promoted: set[MessageId] = set()
        is_first = True
        for server, party in tuple(asked.parties.items()):
            try:
                answers = await context.links[server].status(questions)
            except PeerUnavailable as error:
                context.peers.failed(server, error.reason)
                del asked.parties[server]
                continue
            answer_to = dict(zip(by_id, answers, strict=True))
            decide = self._decide_on_answers(party, answer_to, by_id, asked, is_first=is_first)
            promoted |= await context.tasks.whole(self._commit_decisions(by_id, list(answer_to), decide, on_promoted), "promote")
            is_first = False
        rest = [message_id for message_id in by_id if message_id not in promoted]
        unheard = self._unheard(asked)

        def without_answer(message_id: MessageId, claim: Claim | None) -> Transition:
            if claim is not None and not rules.is_still_asked(claim, by_id[message_id].claim):
                return Transition(claim, claim)
            must_answer = () if claim is None else self._servers_that_must_answer(claim, asked)
            return claims.nobody_left_to_ask(claim, context.me, must_answer, self._copies_wanted(claim), unheard)

        await context.tasks.whole(self._commit_decisions(by_id, rest, without_answer, on_promoted), "promote")

    def _unheard(self, asked: AskedNodes) -> frozenset[ServerName]:
        """The peers that are not asked in this round, because they cannot be reached. They are asked when they can."""
        peers = self._context.peers
        unheard = frozenset([server for server in peers.states if server not in asked.parties and not peers.is_forgotten(server)])
        self._review.note_unheard(unheard)
        return unheard

    async def _commit_decisions(
        self, by_id: Mapping[MessageId, StoredMessage], ids: Sequence[MessageId], decide: Decide, on_promoted: OnPromoted
    ) -> set[MessageId]:
        """Commit the decisions of `decide`, and report at once the messages that are ours, and those known to be delivered."""
        transitions = await self._context.ledger.commit(promises.transition, ids, decide)
        ours = _ours(ids, transitions)
        after = {message_id: transition.after for message_id, transition in zip(ids, transitions, strict=True)}
        # With the claim as it is now: recipients may have been reported done since the page was read.
        on_promoted(
            [replace(by_id[message_id], claim=claim) for message_id, claim in after.items() if claim is not None and message_id in ours]
        )
        await self._log_ended(ids, transitions)
        return ours

    async def _is_intact(self, message: StoredMessage) -> bool:
        """I5: the SHA-256 is checked before promotion. A server does not take over a message whose content it cannot read: the primary may
        return, and another server may hold a good copy."""
        message_id = message.envelope.message_id
        try:
            if message.place is None:
                raise ContentCorrupt("it is gone")
            await self._context.read_content(message.place)
        except ContentCorrupt as error:
            await self._note_damaged(message, str(error))
            return False
        except LedgerUnavailable as error:  # not now: the next check reads again
            if isinstance(error, ContentUnreadable) and error.is_lasting:
                await self._note_damaged(message, error.reason)
                return False
            self._corrupt.pop(message_id, None)
            if message_id not in self._unreadable:
                _log.warning("shadow.unreadable", message_id=message_id, primary=message.claim.primary, reason=error.reason)
                self._unreadable.add(message_id)
            return False
        self._unreadable.discard(message_id)
        self._corrupt.pop(message_id, None)
        return True

    async def _note_damaged(self, message: StoredMessage, reason: str) -> None:
        message_id = message.envelope.message_id
        if message_id not in self._corrupt:
            _log.error("shadow.corrupt", message_id=message_id, primary=message.claim.primary, reason=reason)
        self._corrupt[message_id] = reason
        # Its primary server has a copy and waits for this node to promote: end that wait.
        if message.claim.handed or self._is_rolled_back(message.claim):
            await set_aside_corrupt(self._context, message, reason)

    async def _set_aside_damaged(self, damaged: Sequence[StoredMessage], asked: AskedNodes) -> None:
        """Set damaged copies aside if another server has a copy, too: that server waits if our copy has the higher number, and a damaged
        copy is never promoted. A damaged copy that is the only one stays as it is, because the primary may return."""
        for server in tuple(asked.parties):
            if not damaged:
                return
            # Placement 0, so that no asked node begins its round again.
            questions = [StatusQuestion(message.envelope.message_id, replace(message.claim.number, placement=0)) for message in damaged]
            try:
                answers = await self._context.links[server].status(questions)
            except PeerUnavailable as error:
                self._context.peers.failed(server, error.reason)
                del asked.parties[server]
                continue
            only: list[StoredMessage] = []
            for message, answer in zip(damaged, answers, strict=True):
                if answer.state is StatusState.SHADOW:
                    await set_aside_corrupt(self._context, message, self._corrupt[message.envelope.message_id])
                else:
                    only.append(message)
            damaged = only

    def _is_rolled_back(self, claim: Claim) -> bool:
        """Its primary runs on an older copy of the database."""
        state = self._context.peers.states.get(claim.primary)
        return state is not None and state.former == claim.database != NO_DATABASE

    def _decide_on_answers(
        self,
        party: PeerDatabase,
        answer_to: Mapping[MessageId, StatusAnswer],
        by_id: Mapping[MessageId, StoredMessage],
        asked: AskedNodes,
        *,
        is_first: bool,
    ) -> Decide:
        """The first answer begins a new round: the claim may still contain answers of an interrupted round, which may be hours
        old."""
        me, unheard = self._context.me, self._unheard(asked)

        def decide(message_id: MessageId, claim: Claim | None) -> Transition:
            if claim is None or claim.role is not Role.SHADOW or not rules.is_still_asked(claim, by_id[message_id].claim):
                return Transition(claim, claim)
            before = claims.new_round(claim).after if is_first else claim
            must_answer = self._servers_that_must_answer(claim, asked)
            transition = claims.answered(before, me, party, answer_to[message_id], must_answer, self._copies_wanted(claim), unheard)
            if transition.outcome == Outcome.OLDER_COPY:
                self._on_older_copy(party.server)
            return replace(transition, before=claim)

        return decide

    def _copies_wanted(self, claim: Claim | None) -> int:
        """Once it is ours. What was copied is copied again, in whatever way this node takes mail."""
        settings = self._context.settings
        return settings.copies_wanted if claim is not None and claim.is_kept else settings.copies_without_client

    async def _log_ended(self, ids: Sequence[MessageId], transitions: Sequence[Transition]) -> None:
        """Write the rows of messages that another node reported delivered: they are no longer shadow messages."""
        by_primary: dict[ServerName, list[DiscardEvent]] = defaultdict(list)
        for message_id, transition in zip(ids, transitions, strict=True):
            if transition.outcome == Outcome.DONE and transition.before is not None:
                by_primary[transition.before.primary].append(DiscardEvent(0, message_id, DiscardStatus.DELIVERED))
        try:
            for primary, events in by_primary.items():
                await self._context.log_discarded(primary, events)
        except LedgerUnavailable as error:
            _log.warning("discards.untracked", reason=error.reason)  # messages promoted with them must still be reported


def _ours(ids: Sequence[MessageId], transitions: Sequence[Transition]) -> set[MessageId]:
    return {message_id for message_id, transition in zip(ids, transitions, strict=True) if transition.outcome == Outcome.PROMOTED}
