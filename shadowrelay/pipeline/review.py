"""Asks the servers on a message's list about it when a lease is missing, before the next attempt. docs/design.md 6.2.

The rules *lease*, *everybody* and *meet*. Leases do not survive the process, so after a start every unfinished message is reviewed when it
is due; later, messages whose shadow server was lost or returned. A message that cannot be settled while a server is unreachable goes
back to delivery (`DeliverService.blocked`) and waits for that server in its queue, without further questions.
"""

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial

import structlog

from shadowrelay.model.ids import NO_SERVER, NO_SERVERS, MessageId, ServerName
from shadowrelay.model.ownership import Choice, Claim, Copy, CopyNumber, Role, StatusAnswer, StatusQuestion, Transition
from shadowrelay.model.queue import StoredMessage
from shadowrelay.model.replies import LedgerUnavailable, PeerUnavailable
from shadowrelay.model.settings import WithoutLease
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome, PeerDatabase
from shadowrelay.pipeline.context import PAGE, Context, woken_within
from shadowrelay.pipeline.copy_repair import CopyRepair
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.protocol import tracking
from shadowrelay.rules import delivery, flight
from shadowrelay.store import promises, reading

GONE = (Outcome.DROPPED, Outcome.EVERYBODY, Outcome.FORGOTTEN)  # the server reports that it holds no copy
FORGOTTEN = "forgotten"  # source-context of the row
SILENT_SECONDS = 5.0  # a server that did not answer is not asked again for this long, unless it contacts this node
PAUSE_SECONDS_MAX = 1.0
DOUBLINGS_MAX = 10
# After so many reviews, a message that waits for another node to act goes back to its queue and frees its place in memory.
REVIEWS_BEFORE_WAITING = 2
# A server whose question failed counts as answering again so many heartbeats after its next contact, if no other question fails.
TRUSTED_HEARTBEATS = 2
CLOCK_GRAIN_SECONDS = 0.1
REVIEW_AGAIN_SECONDS = 1800.0  # in case the event that wakes it was missed

_log = structlog.get_logger()


class ReviewService:
    """Reviews a set of messages. `deliver` receives the result of each, `place` those that need another copy. What it remembers:

    | messages              | contains                              | added by                    | removed by                         |
    |-----------------------|---------------------------------------|-----------------------------|------------------------------------|
    | `_wanted`             | to be reviewed                        | `request`; `run`            | `review_wanted`                    |
    | `_batch`              | in review now                         | `review_wanted`             | `review_wanted`                    |
    | `_later`, `_later_at` | to be reviewed again, and when        | `_again`                    | `run`, when due; `_ended`          |
    | `_tries`              | reviews in a row without a result     | `_again`                    | `_conclude`; `_ended`              |
    | `_suspects`           | servers to ask although leases run    | `suspect`; `request_server` | `_answered`; `_conclude`; `_ended` |
    | **servers**           |                                       |                             |                                    |
    | `_failed_at`          | last failed question since an answer  | `_note_failed`              | `_trust`                           |
    | `_failing_since`      | first failed question since an answer | `_note_failed`              | `_question`, by an answer          |
    | `_trusted_at`         | when one of these counts as answering | `returned`                  | `_trust`; `_note_failed`           |
    | `_waited_for`         | servers for which messages wait       | `_wait_for`; `run`          | `returned`; `run`                  |
    | `_unheard`            | without whose answer we proceeded     | `note_unheard`              | `request_server`, when it is over  |
    """

    def __init__(
        self,
        context: Context,
        deliver: DeliverService,
        copy_repair: CopyRepair,
        on_older_copy: Callable[[ServerName], None],
        meet: Callable[[MessageId, ServerName], None],
    ) -> None:
        self._context = context
        self._ask_promoter = meet
        self._on_older_copy = on_older_copy
        self._deliver = deliver
        self._copy_repair = copy_repair
        self._wanted: set[MessageId] = set()
        self._later: list[tuple[float, MessageId]] = []  # a heap by `Clock.awake`
        self._later_at: dict[MessageId, float] = {}  # the valid time of each message in `_later`; other entries there are stale
        self._batch: frozenset[MessageId] = frozenset()  # in review now
        self._tries: dict[MessageId, int] = {}  # unfinished reviews of each message
        self._failed_at: dict[ServerName, float] = {}  # `Clock.awake` of the last failed question, if none was answered since
        self._failing_since: dict[ServerName, float] = {}  # of the first failed question since the last answer
        self._logged_unanswering: set[ServerName] = set()
        self._trusted_at: dict[ServerName, float] = {}  # for servers in `_failed_at`: when all messages that wait for the server proceed
        self._suspects: dict[MessageId, set[ServerName]] = defaultdict(set)
        self._requested_servers: set[ServerName] = set()  # for which `request_server` runs
        self._waited_for: set[ServerName] = set()
        self._unheard: set[ServerName] = set()
        # by messages that have expired, or of an older copy of the database: for a span, not a heartbeat
        self._waited_for_longer: set[ServerName] = set()
        self._event = asyncio.Event()

    def request(self, message_id: MessageId) -> None:
        """Ask about this message soon."""
        self._wanted.add(message_id)
        self._event.set()

    def suspect(self, message_id: MessageId, server: ServerName) -> None:
        """Ask this server about this message soon, although a lease may run: it may have taken the message over."""
        self._suspects[message_id].add(server)
        self.request(message_id)

    def returned(self, server: ServerName) -> None:
        """The server contacted this node again, or was forgotten: messages that wait for it proceed. A server that polls may still not
        answer questions. If its last question failed, one message tries first; the others follow after an answer, or after a while
        without a failure."""
        self._waited_for.discard(server)
        self._waited_for_longer.discard(server)
        peers = self._context.peers
        if server not in self._failed_at or server not in peers or peers.is_forgotten(server):
            self._trust(server)
        elif server not in self._trusted_at:
            self._trusted_at[server] = self._context.clock.awake() + TRUSTED_HEARTBEATS * self._context.heartbeat
            self._deliver.wake_server(server, 1)

    def wake_if_back(self, server: ServerName) -> None:
        """Called after a message was queued to wait for this server: if the server returned while that was written, wake the message."""
        if self._context.peers.is_reachable(server):
            self.returned(server)

    def _trust(self, server: ServerName) -> None:
        self._failed_at.pop(server, None)
        self._trusted_at.pop(server, None)
        self._deliver.wake_server(server)

    def note_unheard(self, servers: Iterable[ServerName]) -> None:
        """Messages were taken over or claimed again without an answer of these servers, which are on their lists now."""
        self._unheard.update(servers)

    def is_unheard(self, server: ServerName) -> bool:
        """Whether `note_unheard` named it, and it was not asked since about all that it is listed for."""
        return server in self._unheard

    async def request_server(self, server: ServerName) -> None:
        """Ask about everything that this server may hold for us, although leases run: it was away, was started again, or its database is
        new. If it goes away again, its next return starts over. If it starts again meanwhile, so do the questions."""
        state = self._context.peers.states[server]
        state.to_confirm = state.whole_incarnation
        if server in self._requested_servers:
            return
        self._requested_servers.add(server)
        try:
            while (asked := state.to_confirm) is not None:
                if not await self._request_pages(server):
                    return
                if state.to_confirm == asked:
                    state.to_confirm = None
            self._unheard.discard(server)
        finally:
            self._requested_servers.discard(server)

    async def _request_pages(self, server: ServerName) -> bool:
        """Page by page, with a pause after each for as long as it took: half of the time is left for mail. False if it does not answer."""
        clock, after, began = self._context.clock, 0, self._context.clock.awake()
        while page := await self._context.ledger.read(reading.primaries_listed_on, server, PAGE, after):
            after = page[-1].internal_id
            for message in page:
                self._suspects[message.envelope.message_id].add(server)
            await self._review([message.envelope.message_id for message in page])
            if self._failed_recently(server):
                return False
            if len(page) < PAGE:
                break
            await asyncio.sleep(min(clock.awake() - began, PAUSE_SECONDS_MAX))
            began = clock.awake()
        return True

    async def count_as_lost(self, server: ServerName) -> None:
        """The server was unreachable for two heartbeats: place its copies on another server too."""
        after = 0
        while page := await self._context.ledger.read(reading.primaries_listed_on, server, PAGE, after):
            after = page[-1].internal_id
            ids = [message.envelope.message_id for message in page if message.claim.is_chosen(server)]
            await self._context.ledger.commit(promises.transition, ids, lambda _, claim: claims.no_longer_chosen(claim, server))
        self._copy_repair.wake(0)

    async def fate_is_shared(self, server: ServerName) -> None:
        """The server may be lost together with this one, or with another that holds copies: place what it holds on another one too."""
        after, shared = 0, self._context.shared_fate(server)
        while page := await self._context.ledger.read(reading.primaries_listed_on, server, PAGE, after):
            after = page[-1].internal_id
            ids = [message.envelope.message_id for message in page if message.claim.is_chosen(server)]
            await self._context.ledger.commit(promises.transition, ids, lambda _, claim: claims.fate_shared(claim, server, shared))
        self._copy_repair.wake(0)

    async def run(self) -> None:
        """Review requested messages in pages. If another node must act first, repeat later: soon at first, then less often."""
        try:
            self._waited_for |= set(await self._context.ledger.read(reading.waited_for)) & self._context.peers.states.keys()
        except LedgerUnavailable as error:
            _log.warning("review.waits", reason=error.reason)  # waiting messages are checked again in time
        while True:
            self._event.clear()
            now = self._context.clock.awake()
            while self._later and self._later[0][0] <= now:
                at, message_id = heapq.heappop(self._later)
                if self._later_at.get(message_id) == at:
                    del self._later_at[message_id]
                    self._wanted.add(message_id)
            for waited_for, patience in ((self._waited_for, None), (self._waited_for_longer, self._span)):
                for server in tuple(waited_for):
                    if self.may_go_without((server,), patience):
                        waited_for.discard(server)
                        self._trust(server)
            for server in [server for server, at in self._trusted_at.items() if at <= now]:
                self._trust(server)
            await self.review_wanted()
            if not self._wanted:
                poll = self._context.settings.transport.discard_poll_interval.total_seconds()
                await woken_within(self._event, poll)

    async def review_wanted(self) -> None:
        """Review one page of requested messages. No error makes it forget a message."""
        batch = [self._wanted.pop() for _ in range(min(PAGE, len(self._wanted)))]
        if not batch:
            return
        self._batch = frozenset(batch)
        try:
            await self._review(batch)
        except LedgerUnavailable as error:
            _log.warning("review.waits", reason=error.reason)
            for message_id in batch:
                self._again(message_id)
        except BaseException:
            for message_id in batch:
                self._again(message_id)
            raise
        finally:
            self._batch = frozenset()

    def is_pending(self, message_ids: Iterable[MessageId]) -> bool:
        """One of these was requested and not reviewed yet."""
        return any(message_id in self._wanted or message_id in self._batch for message_id in message_ids)

    def _again(self, message_id: MessageId) -> float:
        """Schedule another review: after a poll interval, then twice as long each time, up to a heartbeat. Returns the seconds."""
        poll = self._context.settings.transport.discard_poll_interval.total_seconds()
        tries = self._tries[message_id] = self._tries.get(message_id, 0) + 1
        pause = min(poll * 2.0 ** min(tries - 1, DOUBLINGS_MAX), max(self._context.heartbeat, poll))
        at = self._later_at[message_id] = self._context.clock.awake() + pause
        heapq.heappush(self._later, (at, message_id))
        return pause

    async def _review(self, batch: Sequence[MessageId]) -> None:
        context = self._context
        by_server: dict[ServerName, list[MessageId]] = defaultdict(list)
        older: list[MessageId] = []
        messages = {message.envelope.message_id: message for message in await context.ledger.read(reading.load_many, batch)}
        for message_id in batch:
            message = messages.get(message_id)
            if message is None or not message.claim.is_primary:
                for server in self._suspects.get(message_id, NO_SERVERS):
                    self._meet_as_shadow(message, server)
                self._ended(message_id)
                continue
            if rules.is_of_older_copy(message.claim, context.me):
                older.append(message_id)
                continue
            suspects = self._suspects.get(message_id, set())
            # Suspects need not be on the list: a forgotten peer that returned may have taken the message over.
            suspects.intersection_update(context.links)
            for server in suspects | set(rules.without_lease(message.claim, self._lease_suffices(message))):
                by_server[server].append(message_id)
        unreachable: set[ServerName] = await self._claim_again(older) if older else set()
        unsettled: set[MessageId] = set(older)
        asked: dict[MessageId, set[ServerName]] = defaultdict(set)
        while by_server:
            server, concerned = by_server.popitem()
            for message_id in concerned:
                asked[message_id].add(server)
            waiting = await self._ask(server, concerned)
            if waiting is None:
                unreachable.add(server)
            unsettled.update(concerned if waiting is None else waiting)
            for message_id in () if waiting is None else set(concerned).difference(waiting):
                self._answered(message_id, server)
            for message_id in concerned:  # an answer may name another server to be asked first
                for other in self._suspects.get(message_id, set()) - asked[message_id]:
                    asked[message_id].add(other)
                    by_server[other].append(message_id)
        for message in await context.ledger.read(reading.load_many, list(messages)):
            if message.claim.is_primary:
                self._conclude(message, unreachable, is_settled=message.envelope.message_id not in unsettled)
            else:
                self._ended(message.envelope.message_id)

    def _meet_as_shadow(self, message: StoredMessage | None, suspect: ServerName) -> None:
        """This node has yielded to one server before it asked another one that may have taken the message over, too: nobody else knows of
        both."""
        if message is not None and message.claim.role is Role.SHADOW and message.claim.primary != suspect:
            self._ask_promoter(message.envelope.message_id, suspect)

    def _ended(self, message_id: MessageId) -> None:
        """The message is no longer ours. Tell delivery as well: otherwise the message would wait for this review if it became ours
        again."""
        self._suspects.pop(message_id, None)
        self._later_at.pop(message_id, None)
        self._tries.pop(message_id, None)
        self._context.leases.forget(message_id)
        self._deliver.cleared(message_id, NO_SERVERS)

    def _answered(self, message_id: MessageId, server: ServerName) -> None:
        suspects = self._suspects.get(message_id)
        if suspects is not None:
            suspects.discard(server)
            if not suspects:
                del self._suspects[message_id]

    def _lease_runs(self, message: StoredMessage) -> Callable[[Copy], bool]:
        return lambda copy: self._context.leases.left(message.envelope.message_id, copy) > 0

    def _lease_suffices(self, message: StoredMessage) -> Callable[[Copy], bool]:
        """Servers whose lease is about to end are asked as well: the answer begins a new one."""
        return partial(self._context.leases.suffices, message.envelope.message_id)

    def _conclude(self, message: StoredMessage, unreachable: set[ServerName], *, is_settled: bool) -> None:
        message_id = message.envelope.message_id
        blocking = frozenset(rules.without_lease(message.claim, self._lease_suffices(message)))
        is_older = rules.is_of_older_copy(message.claim, self._context.me)
        if is_older:
            blocking |= unreachable  # rule *rolled back*: all nodes must answer
        leases_ended = blocking.issubset(rules.without_lease(message.claim, self._lease_runs(message)))
        away_unheard = {copy.server for copy in message.claim.copies if copy.choice is Choice.UNHEARD} & unreachable
        suspects = self._suspects.get(message_id, set()) - away_unheard  # those are asked when they return; nothing waits for them
        if is_settled and not blocking and not is_older:
            self._tries.pop(message_id, None)
            self._deliver.cleared(message_id, NO_SERVERS)
        elif (
            leases_ended
            and unreachable.issuperset(blocking | suspects)
            and self.may_go_without(blocking | suspects, self._patience(message))
            and not is_older
        ):
            self._suspects.pop(message_id, None)  # servers unreachable for so long are asked when they return
            self._tries.pop(message_id, None)
            self._deliver.cleared(message_id, blocking)
        elif away := {server for server in unreachable & blocking if not self._context.peers.is_reachable(server)}:
            self._wait_for(message, away)
            if suspects:
                self._again(message_id)
        else:
            pause = self._again(message_id)
            if self._tries[message_id] > REVIEWS_BEFORE_WAITING:
                self._deliver.blocked(message_id, NO_SERVER, pause)
        # For example, a draining server handed the message over and does not answer: place a copy instead of choosing its copy.
        # Or one has said that its copy is gone, and others that must be asked before it leaves the list are away.
        if (is_settled or unreachable) and not is_older and message.claim.missing_count:
            self._copy_repair.want(message_id)

    def _wait_for(self, message: StoredMessage, away: set[ServerName]) -> None:
        """Have the message wait for one of these servers. It wakes when the server returns, when `may_go_without` applies, or when a lease
        that is too short for an attempt ends."""
        leases = self._context.leases
        message_id = message.envelope.message_id
        server = min(away)
        listed = [copy for copy in message.claim.copies if copy.server in away and copy.choice is not Choice.UNHEARD]
        left = max((seconds for copy in listed if (seconds := leases.left(message_id, copy)) > 0), default=0.0)
        patience = self._patience(message)
        if rules.is_of_older_copy(message.claim, self._context.me):
            self._waited_for_longer.add(server)
        elif server in self._context.peers and not (left and self.may_go_without((server,), patience)):  # otherwise the lease is in the way
            (self._waited_for if patience is None else self._waited_for_longer).add(server)
        self._deliver.blocked(message_id, server, left + CLOCK_GRAIN_SECONDS if left else REVIEW_AGAIN_SECONDS)

    def _patience(self, message: StoredMessage) -> float | None:
        """For how long it waits for a server on its list that cannot be reached; None: as usual. One that has expired waits for a span: it
        was probably away itself, and has ended elsewhere (docs/design.md 6.3 "Long absences")."""
        return self._span if self._is_expired(message) else None

    def _is_expired(self, message: StoredMessage) -> bool:
        context = self._context
        now, timeout = context.now() - context.note_clock(), context.settings.transport.message_expiration_timeout
        return delivery.is_expired(message.envelope.arrived_at, now, timeout)

    def may_go_without(self, blocking: Iterable[ServerName], patience: float | None = None) -> bool:
        """Whether delivery need not wait for these servers: they are forgotten; or, with `delivery_without_lease = deliver`, each was
        unreachable for `patience` seconds (default: a heartbeat, because nodes that restart together must not consider each other lost)
        or answered no question for a span."""
        context = self._context
        seconds = context.heartbeat if patience is None else patience
        if context.is_older_copy:
            return False
        if context.settings.transport.delivery_without_lease is not WithoutLease.DELIVER:
            return all(context.peers.is_forgotten(server) for server in blocking)

        def is_lost(server: ServerName) -> bool:
            if server not in context.peers or context.peers.is_forgotten(server):
                return True
            if server in context.peers.refusing_us:  # this node may be the clone, and who has its name there delivers
                return context.peers.unreachable_for(server) >= self._span
            return context.peers.unreachable_for(server) >= seconds or self._is_unanswering(server)

        return all(is_lost(server) for server in blocking)

    async def _ask(self, server: ServerName, message_ids: Sequence[MessageId]) -> set[MessageId] | None:
        """Ask a server on the lists. Returns the messages for which another node must act first; None if it cannot be asked."""
        transitions = await self._question(server, message_ids, partial(question_number, server))
        if transitions is None:
            return None
        again = [message_id for message_id, transition in transitions.items() if transition.outcome == Outcome.CHOOSE_AGAIN]
        gone = {message_id: found.after for message_id, found in transitions.items() if found.outcome == Outcome.EVERYBODY and found.after}
        if again and not await self.choose_again(server, again):
            return None
        if gone:
            await self._ask_everybody(server, gone)
        return {message_id for message_id, transition in transitions.items() if transition.outcome == Outcome.WAIT}

    async def choose_again(self, server: ServerName, message_ids: Sequence[MessageId]) -> bool:
        """Give the copies on this server the next numbers. The numbers were just committed for this server alone: a placement in progress
        at the same time has different ones."""
        me = self._context.me
        raised = await self._context.ledger.commit(
            promises.transition, message_ids, lambda _, claim: claims.choosing_again(claim, me, server)
        )
        numbers = {
            message_id: transition.after.number
            for message_id, transition in zip(message_ids, raised, strict=True)
            if transition.outcome == Outcome.CHOOSE_AGAIN and transition.after is not None
        }
        return not numbers or await self._question(server, list(numbers), lambda message_id, _: numbers[message_id]) is not None

    async def _ask_everybody(self, server: ServerName, gone: Mapping[MessageId, Claim]) -> None:
        """The copies on `server` are gone and its lease had ended: ask whether any other node has taken these over."""
        others = [other for other in self._context.peers.states if other != server]
        loaded = await self._context.ledger.read(reading.load_many, sorted(gone))
        expired = {message.envelope.message_id for message in loaded if self._is_expired(message)}
        for asked, patience in ((gone.keys() - expired, None), (gone.keys() & expired, self._span)):
            unclaimed, unanswered, unheard = await self._unclaimed(asked, others, patience)
            decide = partial(nobody_claims_more, gone, server, unheard)
            if not unanswered and unclaimed:
                await self._context.ledger.commit(promises.transition, sorted(unclaimed), decide)

    async def _claim_again(self, message_ids: Sequence[MessageId]) -> set[ServerName]:
        """Rule *rolled back*: messages of an older copy of this database. Ask all nodes, and claim again the messages that none claims.
        Returns the servers that must answer first. A server that is down is waited for longer than usual, up to a span: it may be the
        only one that knows that a message is finished."""
        me = self._context.me
        unclaimed, unanswered, unheard = await self._unclaimed(message_ids, self._context.peers.states, self._span)
        if not unanswered:
            await self._context.ledger.commit(
                promises.transition, sorted(unclaimed), lambda _, claim: claims.claimed_again(claim, me, unheard)
            )
        return unanswered

    async def _unclaimed(
        self, message_ids: Iterable[MessageId], servers: Iterable[ServerName], patience: float | None = None
    ) -> tuple[set[MessageId], set[ServerName], set[ServerName]]:
        """Which of these messages none of these servers claims, and the servers that did not answer: those that must be waited for, and the
        others. Where one has heard of another that claims a message, the others are asked all the same: that one may be among them."""
        open_ids, claimed = set(message_ids), set[MessageId]()
        unanswered: set[ServerName] = set()
        unheard: set[ServerName] = set()
        for server in servers:
            if not open_ids:
                break
            transitions = await self._question(server, sorted(open_ids), partial(question_number, server))
            if transitions is None and not self._context.peers.is_forgotten(server):
                if not self.may_go_without((server,), patience):
                    unanswered.add(server)
                    continue
                _log.warning("everybody.unheard", server=server, count=len(open_ids))
                unheard.add(server)
            settled = (Outcome.YIELDED, Outcome.DONE, Outcome.FORGOTTEN, Outcome.OLDER_COPY)
            open_ids -= {message_id for message_id, transition in (transitions or {}).items() if transition.outcome in settled}
            claimed |= {message_id for message_id, transition in (transitions or {}).items() if transition.outcome == Outcome.WAIT}
        self.note_unheard(unheard)
        return open_ids - claimed, unanswered, unheard

    async def _question(
        self, server: ServerName, message_ids: Sequence[MessageId], number: Callable[[MessageId, Claim], CopyNumber]
    ) -> dict[MessageId, Transition] | None:
        """Send one XQDISCARD STATUS and apply the answers to our claims; None if the server cannot be asked."""
        context = self._context
        link = context.links.get(server)
        if link is None or self._failed_recently(server) or context.peers.is_forgotten(server):
            return None
        messages = {message.envelope.message_id: message for message in await context.ledger.read(reading.load_many, message_ids)}
        for message_id in [message_id for message_id, message in messages.items() if not message.claim.is_primary]:
            message = messages.pop(message_id)
            if server in self._suspects.get(message_id, NO_SERVERS):
                self._meet_as_shadow(message, server)
        if not messages:
            return {}
        wanted = [StatusQuestion(message_id, number(message_id, message.claim)) for message_id, message in messages.items()]
        asked_at = context.clock.awake()
        placing = context.flights.copying(messages)
        try:
            answers = await link.status(wanted)
        except PeerUnavailable as error:
            context.peers.failed(server, error.reason)
            self._note_failed(server, error.reason)
            return None
        self._failing_since.pop(server, None)
        self._logged_unanswering.discard(server)
        if server in self._failed_at:
            self._trust(server)
        assert link.identity is not None
        party = PeerDatabase(server, link.identity.database)
        answer_to = dict(zip(messages, answers, strict=True))
        expired = {message_id for message_id, message in messages.items() if self._is_expired(message)}
        runs = {
            message_id: (entry := message.claim.copy_on(server)) is not None and self._lease_runs(message)(entry)
            for message_id, message in messages.items()
        }

        def decide(message_id: MessageId, claim: Claim | None) -> Transition:
            transition = self._decide(
                message_id, claim, party, answer_to[message_id], lease_runs=runs[message_id], is_expired=message_id in expired
            )
            is_old = message_id in placing or not is_same_copy(claim, messages[message_id].claim, server)
            return Transition(claim, claim, outcome=Outcome.WAIT) if is_old and transition.outcome in GONE else transition

        transitions = await context.end_claims(list(answer_to), decide)
        outcome = dict(zip(answer_to, transitions, strict=True))
        if any(transition.outcome == Outcome.OLDER_COPY for transition in transitions):
            self._on_older_copy(server)
        for message_id, transition in outcome.items():
            self._log_forgotten(messages[message_id], server, transition)
            if transition.after is not None and transition.after.is_primary:
                self._meet(message_id, rules.yielded_to(answer_to[message_id], party, context.me))
            if transition.outcome == Outcome.CHOSEN:
                self._deliver.placed(message_id)
                if transition.before is not None and not transition.before.is_chosen(server):
                    self._log_chosen(messages[message_id], server, asked_at)
        for message_id, answer in answer_to.items():
            after = outcome[message_id].after
            if after is None or not after.is_primary:  # it ended here meanwhile, and nothing would end this lease
                continue
            if rules.holds_for(answer, context.me) and not answer.promoting:  # our question reset its silence timer
                context.leases.began(message_id, server, asked_at, is_confirmed=True)
        return outcome

    def _meet(self, message_id: MessageId, other: ServerName) -> None:
        """A server holds its copy for another one, which may be a primary server, too: ask that one, so that the two meet."""
        if other in self._context.links and self._context.peers.is_reachable(other):
            self.suspect(message_id, other)

    def _log_forgotten(self, message: StoredMessage, server: ServerName, transition: Transition) -> None:
        """HADISCARD: the message ended elsewhere while this node was away, and the server that had the copy has forgotten how."""
        if transition.outcome == Outcome.FORGOTTEN:
            context = self._context
            _log.warning("message.forgotten_elsewhere", message_id=message.envelope.message_id, server=server)
            row = tracking.hadiscard(
                context.me.server,
                message.envelope.message_id,
                at=context.now(),
                primary=server,
                envelope=message.envelope,
                ordinals=rules.everyone(message.claim) - message.claim.done,
                status=FORGOTTEN,
                internal_id=message.internal_id,
            )
            context.tracking.write(row)

    def _log_chosen(self, message: StoredMessage, server: ServerName, asked_at: float) -> None:
        """HAREDIRECT: a copy that the server held already counts again. None was sent."""
        context = self._context
        elapsed = timedelta(seconds=context.clock.awake() - asked_at)
        context.tracking.write(tracking.haredirect(context.me.server, message, at=context.now(), server=server, elapsed=elapsed))

    def _note_failed(self, server: ServerName, reason: str) -> None:
        """A question failed. A server that polls but answers no question for a span is logged once, and not waited for any longer."""
        now = self._failed_at[server] = self._context.clock.awake()
        self._trusted_at.pop(server, None)
        self._failing_since.setdefault(server, now)
        _log.info("review.unanswered", server=server, reason=reason)
        if self._is_unanswering(server) and server not in self._logged_unanswering and self._context.peers.unreachable_for(server) < 1:
            self._logged_unanswering.add(server)
            _log.warning("peer.answers_no_questions", server=server, reason=reason)

    def _is_unanswering(self, server: ServerName) -> bool:
        since = self._failing_since.get(server)
        return since is not None and self._context.clock.awake() - since >= self._span

    @property
    def _span(self) -> float:
        return self._context.settings.transport.shadow_resubmit_time_span.total_seconds()

    def _failed_recently(self, server: ServerName) -> bool:
        """It recently did not answer, and has not contacted this node since. Without this, each page of a long review would wait for it."""
        failed_at = self._failed_at.get(server)
        if failed_at is None or self._context.clock.awake() - failed_at > min(self._context.heartbeat, SILENT_SECONDS):
            return False
        heard_at = self._context.peers.states[server].heard_awake if server in self._context.peers else None
        return heard_at is None or heard_at < failed_at

    def _decide(
        self,
        message_id: MessageId,
        claim: Claim | None,
        party: PeerDatabase,
        answer: StatusAnswer,
        *,
        lease_runs: bool,
        is_expired: bool,
    ) -> Transition:
        context = self._context
        if claim is None:
            return Transition(None, None)
        shared = context.shared_fate(party.server)
        transition = claims.review(claim, context.me, party, answer, lease_runs, is_expired, shared)
        ends = claim.is_primary and transition.after is not None and not transition.after.is_primary
        if ends and not context.flights.happens(message_id, flight.end_claim):
            return Transition(claim, claim, outcome=Outcome.WAIT)  # an attempt runs: claims end only between attempts
        return transition


# What the answers mean for the claims that were asked about.


def nobody_claims_more(
    gone: Mapping[MessageId, Claim], server: ServerName, unheard: Collection[ServerName], message_id: MessageId, claim: Claim | None
) -> Transition:
    """All nodes were asked about a copy that is `gone`; applies only if none was placed there since."""
    if claim is None or not is_same_copy(claim, gone[message_id], server):
        return Transition(claim, claim)
    return claims.nobody_claims_more(claim, server, unheard)


def is_same_copy(claim: Claim | None, asked: Claim, server: ServerName) -> bool:
    """Whether no copy was placed since the question. An answer in transit during a placement does not cover that copy: applied
    to it, the server would leave the list, and the copy would never be discarded."""
    return claim is not None and claim.number == asked.number and claim.copy_on(server) == asked.copy_on(server)


def question_number(server: ServerName, _: MessageId, claim: Claim) -> CopyNumber:
    """As `claims.question_number`, for `functools.partial`."""
    return claims.question_number(claim, server)
