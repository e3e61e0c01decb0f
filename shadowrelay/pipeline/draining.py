"""Empties this node before maintenance: refuses mail, lets work end, hands over what is left, waits for the peers. docs/design.md 6.11.

The node drains from the commit that records it until `undrain`, also across restarts. One task does the steps; `undrain` cancels it. Each
step is a transaction and can be repeated, so after a crash the next process continues.

Handing over promises nothing new: the message stays claimed, with its copy, until the server that took it over shows its higher claim.

A redirect is a drain to certain peers that ends by itself: a message whose copy is elsewhere gets one on a target first. It is not
recorded: what was handed over is, and after a restart the rest is delivered here.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from shadowrelay.model.drain_progress import DrainState, DrainStep, DrainView, Obstacle, Waiting
from shadowrelay.model.ids import NO_SERVER, MessageId, ServerName
from shadowrelay.model.ownership import Choice, Claim, Role, Transition
from shadowrelay.model.queue import SUBMISSION, Origin, QueueKind, QueueRow, StoredMessage
from shadowrelay.model.replies import LedgerUnavailable, PeerUnavailable, RequestRefused
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome
from shadowrelay.pipeline.context import PAGE, Context, woken_within
from shadowrelay.pipeline.copy_repair import CopyRepair
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.pipeline.review import ReviewService
from shadowrelay.rules import flight
from shadowrelay.store import promises, queues, reading

GRACE_SECONDS = 30.0  # for sessions, then for attempts; after that the next step begins, and longer ones are waited for meanwhile
LOOK_SECONDS_MIN = 0.2
REDIRECT_STUCK_SECONDS = 60.0  # mail is refused meanwhile, so an unreachable target must not prolong it
WITHOUT_COPY = frozenset({Obstacle.NO_COPY, Obstacle.SHARED_FATE, Obstacle.NOT_ON_TARGET, Obstacle.DRAINING})
LOOK_SHARE = 10  # reading a long queue that cannot be handed over takes at most one part in this of the time
HANDED_OVER_QUEUE = "HandedOver"
UNDELIVERED = (QueueKind.SUBMISSION, QueueKind.DELIVERY)
GENERATED = (Origin.DSN, Origin.JOURNAL)
NOT_LEFT = frozenset({Obstacle.SESSION, Obstacle.ATTEMPT, Obstacle.TAKEOVER, Obstacle.TAKEOVER_AWAY})  # not counts of messages left here
Obstacles = Counter[tuple[Obstacle, ServerName]]

_log = structlog.get_logger()


async def _nothing_to_close(seconds: float) -> None:
    return None


@dataclass(slots=True)
class Doors:
    """The receive connectors of the node. `close` refuses mail at once, and gives open transactions this many seconds; `waited_for` counts
    the remaining ones."""

    close: Callable[[float], Awaitable[None]] = _nothing_to_close
    open: Callable[[], None] = lambda: None
    waited_for: Callable[[], int] = lambda: 0


class DrainService:
    """`begin` and `end` are drain and undrain; `view` reports the progress."""

    def __init__(self, context: Context, deliver: DeliverService, copy_repair: CopyRepair, review: ReviewService) -> None:
        self._context = context
        self._deliver = deliver
        self._copy_repair = copy_repair
        self._review = review
        self.doors = Doors()
        self._task: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._announcing: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._step = DrainStep.NONE
        self._waiting: tuple[Waiting, ...] = ()
        self._said: tuple[Waiting, ...] = ()
        self._redirected_to: tuple[ServerName, ...] = ()  # the targets of the last redirect, also when it is over
        self._moved_count = self._left_count = 0
        self._stuck_since: float | None = None  # `Clock.awake`

    @property
    def is_wanted(self) -> bool:
        """Whether the node was asked to drain, or to redirect its queues."""
        return self._context.ledger.draining_since is not None or bool(self._context.redirect_to)

    @property
    def state(self) -> DrainState:
        """For listings and metrics."""
        if self._context.redirect_to:
            return DrainState.REDIRECTING
        if not self.is_wanted:
            return DrainState.ACTIVE
        return DrainState.INACTIVE if self._step is DrainStep.INACTIVE else DrainState.DRAINING

    def resume(self) -> None:
        """At the start of the node: continue a drain that was not over when it stopped."""
        if self.is_wanted:
            _log.warning("drain.resumed", since=str(self._context.ledger.draining_since))
            self._start()

    async def begin(self) -> None:
        """Drain. Returns when it is recorded and mail is refused; the other steps follow in the background. Raises:
        RequestRefused, LedgerUnavailable."""
        self._refuse_while_stopping()
        await self._context.tasks.whole(self._begin(), "drain")

    async def end(self) -> bool:
        """Undrain: take and deliver mail again. False: it did not drain. Raises: RequestRefused, LedgerUnavailable."""
        if self._context.is_stopping:
            raise RequestRefused("this node is stopping: undrain it after the next start")
        return await self._context.tasks.whole(self._end(), "undrain")

    async def redirect(self, targets: Sequence[ServerName]) -> None:
        """Hand all active messages over to these peers, and take mail again after that. Returns when mail is refused. Raises:
        RequestRefused, LedgerUnavailable."""
        self._refuse_while_stopping()
        await self._context.tasks.whole(self._redirect(tuple(dict.fromkeys(targets))), "redirect")

    def _refuse_while_stopping(self) -> None:
        if self._context.is_stopping:
            raise RequestRefused("this node is stopping: its queue stays, and the next start goes on with it")

    async def _begin(self) -> None:
        async with self._changing:
            if self._context.ledger.draining_since is not None:
                self._wake.set()
                return
            await self._context.ledger.commit(promises.draining, self._context.now())
            if self._context.redirect_to:
                await self._cancel()
                self._over()
            _log.warning("drain.began")
            self._start()

    async def _redirect(self, targets: tuple[ServerName, ...]) -> None:
        async with self._changing:
            context = self._context
            if context.ledger.draining_since is not None:
                raise RequestRefused("this node drains, and hands everything over to the shadow servers: undrain it first")
            if context.redirect_to:
                raise RequestRefused(f"this node redirects to {', '.join(sorted(context.redirect_to))} now: `undrain` ends that")
            if not context.is_enabled:
                raise RequestRefused("shadow_redundancy_enabled is false: there are no peers that take messages over")
            for server in targets:
                if server not in context.peers:
                    raise RequestRefused(f"{server} is not a peer of this node that may hold copies")
            if not [server for server in targets if await self._reaches(server)]:
                raise RequestRefused("no target answers, or those that do drain")
            await context.ledger.commit(promises.draining, None)  # a commit, so that peers can distinguish this state from the earlier one
            context.redirect_to = frozenset(targets)
            self._redirected_to, self._moved_count, self._left_count, self._stuck_since = targets, 0, 0, None
            _log.warning("redirect.began", to=list(targets))
            self._start()

    async def _end(self) -> bool:
        async with self._changing:
            if not self.is_wanted:
                return False
            await self._context.ledger.commit(promises.draining, None)
            await self._cancel()
            if self._context.redirect_to:
                self._over()
            else:
                _log.warning("drain.ended")
            self._take_mail()
            return True

    async def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _over(self) -> None:
        """The redirect has ended, even if messages remain."""
        self._left_count = sum(waiting.count for waiting in self._waiting if waiting.obstacle not in NOT_LEFT)
        _log.warning("redirect.ended", to=list(self._redirected_to), moved=self._moved_count, left=self._left_count)
        self._context.redirect_to = frozenset()

    def _take_mail(self) -> None:
        self._step, self._waiting, self._said = DrainStep.NONE, (), ()
        self._context.is_draining = False
        self.doors.open()
        self._deliver.undrained()
        self._copy_repair.wake(0)
        self._announce()

    def _start(self) -> None:
        self._context.is_draining = True
        self._step = DrainStep.SESSIONS
        self._announce()
        self._task = self._context.tasks.keep(self._drain, "drain")

    def _announce(self) -> None:
        """Notify each peer until it has answered. A session that is opened meanwhile also notifies it."""
        for task in self._announcing:
            task.cancel()
        self._announcing = [
            self._context.tasks.spawn(self._announce_to(server), f"announce {server}") for server in self._context.peers.states
        ]

    async def _announce_to(self, server: ServerName) -> None:
        context = self._context
        while server in context.peers:
            try:
                await context.links[server].announce()
                return
            except PeerUnavailable as error:
                context.peers.failed(server, error.reason)
            await asyncio.sleep(context.heartbeat)

    # the steps

    async def _drain(self) -> None:
        self._enter(DrainStep.SESSIONS)
        await self.doors.close(GRACE_SECONDS)
        self._enter(DrainStep.ATTEMPTS)
        await self._deliver.drained(GRACE_SECONDS)
        while self.is_wanted:  # also because `asyncio.wait_for` of Python 3.11 may lose a cancellation
            self._wake.clear()
            pause = min(self._context.settings.transport.discard_poll_interval.total_seconds(), 1.0)
            began = self._context.clock.awake()
            try:
                await self._look()
            except LedgerUnavailable as error:
                _log.warning("drain.put_off", reason=error.reason)
            took = self._context.clock.awake() - began
            await woken_within(self._wake, max(pause, LOOK_SECONDS_MIN, LOOK_SHARE * took))

    def _enter(self, step: DrainStep) -> None:
        if step is not self._step or step is DrainStep.SESSIONS:
            self._step = step
            if step is DrainStep.INACTIVE:
                _log.warning("drain.inactive")
            else:
                _log.info("drain.step", step=step.value)

    async def _look(self) -> None:
        """One round: hand over what is possible, and find the obstacles."""
        context = self._context
        found: Obstacles = Counter()
        if sessions_count := self.doors.waited_for():
            found[Obstacle.SESSION, NO_SERVER] = sessions_count
        rows = await context.ledger.read(queues.queues)
        if _count(rows, *UNDELIVERED):
            self._enter(DrainStep.HANDING_OVER)
            await self._hand_over(found)
            rows = await context.ledger.read(queues.queues)
        undelivered_count = _count(rows, *UNDELIVERED)
        just_accepted_count = 0 if found or context.redirect_to else undelivered_count
        if attempts_count := max(context.flights.busy_count(), just_accepted_count):
            found[Obstacle.ATTEMPT, NO_SERVER] = max(attempts_count, found[Obstacle.ATTEMPT, NO_SERVER])
        await self._find_handed_over(_count(rows, QueueKind.HANDED_OVER), found)
        for server, state in tuple(context.peers.states.items()):
            if not context.redirect_to and await context.ledger.read(reading.has_unacknowledged, server, state.database):
                found[Obstacle.UNTOLD if context.peers.is_reachable(server) else Obstacle.UNTOLD_AWAY, server] = 1
        self._waiting = tuple([Waiting(obstacle, server, count) for (obstacle, server), count in sorted(found.items())])
        if context.redirect_to:
            await self._look_at_redirect()
        elif not found:
            self._enter(DrainStep.INACTIVE)
        elif not undelivered_count:
            self._enter(DrainStep.PEERS)
        self._say_what_is_in_the_way()

    async def _look_at_redirect(self) -> None:
        """End a redirect when the targets have everything, or when for a while every obstacle has been a lasting one."""
        clock = self._context.clock
        if self._waiting and not all(waiting.obstacle.is_lasting for waiting in self._waiting):
            self._stuck_since = None
            return
        self._stuck_since = clock.awake() if self._stuck_since is None else self._stuck_since
        if self._waiting and clock.awake() - self._stuck_since < REDIRECT_STUCK_SECONDS:
            return
        async with self._changing:  # a drain or undrain that holds it now cancels this task
            await self._context.ledger.commit(promises.draining, None)
            self._over()
            self._take_mail()

    def _say_what_is_in_the_way(self) -> None:
        """Log an obstacle that needs an operator, once."""
        stuck = tuple(waiting for waiting in self._waiting if waiting.obstacle.is_lasting)
        if [(one.obstacle, one.server) for one in stuck] != [(one.obstacle, one.server) for one in self._said]:
            self._said = stuck
            for waiting in stuck:
                _log.warning("drain.waits", reason=waiting.obstacle.value, server=waiting.server, count=waiting.count)

    async def _hand_over(self, found: Obstacles) -> None:
        reached: dict[ServerName, bool] = {}
        after = 0
        while page := await self._context.ledger.read(queues.undelivered, PAGE, after):
            after = page[-1].internal_id
            await self._hand_over_page(page, reached, found)

    async def _hand_over_page(self, page: Sequence[StoredMessage], reached: dict[ServerName, bool], found: Obstacles) -> None:
        context = self._context
        wanted: dict[MessageId, Claim] = {}
        elsewhere: dict[MessageId, ServerName] = {}
        again: dict[ServerName, list[MessageId]] = defaultdict(list)
        uncopied: list[MessageId] = []  # of connectors whose mail is not copied
        unreported = await context.ledger.read(
            reading.unreported_of, [message.envelope.message_id for message in page if message.claim.done]
        )
        for message in page:
            message_id, claim = message.envelope.message_id, message.claim
            if context.redirect_to and self._is_suspended(message):
                continue
            obstacle = await self._obstacle(message, reached)
            chosen = claim.chosen()
            if obstacle is Obstacle.NO_COPY and chosen is not None and rules.heir(claim) is None:
                again[chosen.server].append(message_id)
            server = NO_SERVER if chosen is None else chosen.server
            if obstacle is None and message_id in unreported:
                obstacle = Obstacle.NOTICE
            if obstacle is None:
                wanted[message_id] = claim
            else:
                found[obstacle, server] += 1
                if not claim.wanted and obstacle in WITHOUT_COPY:
                    uncopied.append(message_id)
                is_hopeless = obstacle in (Obstacle.DRAINING, Obstacle.NOT_ON_TARGET) or (
                    obstacle is Obstacle.AWAY and server not in context.peers
                )
                if is_hopeless and self._is_any_other_available(server):
                    elsewhere[message_id] = server
        if uncopied:
            copies = context.settings.transport.shadow_copies
            await context.ledger.commit(promises.transition, uncopied, lambda _, claim: claims.copies_now_wanted(claim, copies))
            self._copy_repair.wake(0)
        for server, message_ids in again.items():  # with the highest number it can take them over
            await self._review.choose_again(server, message_ids)
        if elsewhere:
            await context.ledger.commit(
                promises.transition, list(elsewhere), lambda message_id, claim: claims.no_longer_chosen(claim, elsewhere[message_id])
            )
            self._copy_repair.wake(0)
        if wanted:
            transitions = await context.end_claims(list(wanted), partial(self._decide, wanted))
            self._report(wanted, transitions, found)

    def _decide(self, wanted: Mapping[MessageId, Claim], message_id: MessageId, claim: Claim | None) -> Transition:
        """Whether nothing has changed since the read, and no attempt runs or can begin: the other server may deliver right after this."""
        known = wanted[message_id]
        if claim is None or not self.is_wanted or (claim.role, claim.done, claim.copies) != (known.role, known.done, known.copies):
            return Transition(claim, claim, outcome=Outcome.WAIT)
        transition = claims.handed_over_by_drain(claim)
        if transition.changed and not self._context.flights.happens(message_id, flight.end_claim):
            return Transition(claim, claim, outcome=Outcome.WAIT)
        return transition

    def _report(self, wanted: Mapping[MessageId, Claim], transitions: Sequence[Transition], found: Obstacles) -> None:
        handed: Counter[ServerName] = Counter()
        for message_id, transition in zip(wanted, transitions, strict=True):
            if transition.outcome == Outcome.HANDED:
                chosen = wanted[message_id].chosen()
                assert chosen is not None
                handed[chosen.server] += 1
            else:
                found[Obstacle.ATTEMPT, NO_SERVER] += 1
        for server, count in handed.items():
            self._moved_count += count
            _log.info("messages.handed_over", server=server, count=count)

    async def _obstacle(self, message: StoredMessage, reached: dict[ServerName, bool]) -> Obstacle | None:
        context = self._context
        message_id, chosen = message.envelope.message_id, message.claim.chosen()
        if context.flights[message_id].is_busy:
            return Obstacle.ATTEMPT
        if rules.is_of_older_copy(message.claim, context.me):
            return Obstacle.OLDER_COPY
        if chosen is None:
            if not context.is_enabled:
                return Obstacle.NO_REDUNDANCY
            if not context.peers.states:
                return Obstacle.NO_PEER
            if context.redirect_to:
                return self._on_no_target(message)
            if not self._is_any_other_available(NO_SERVER):
                return Obstacle.NO_PEER_TAKES_COPIES
            return Obstacle.NO_COPY if self._is_any_apart_available() else Obstacle.SHARED_FATE
        if chosen.choice is not Choice.CHOSEN or rules.heir(message.claim) is None:
            return Obstacle.NO_COPY
        server = chosen.server
        if context.redirect_to and server not in context.redirect_to:
            return self._on_no_target(message)
        if server not in context.peers:
            return Obstacle.AWAY
        state = context.peers.states[server]
        if state.is_draining:
            return Obstacle.DRAINING
        if server not in reached:
            reached[server] = await self._reaches(server)
        if not reached[server]:
            return Obstacle.AWAY
        if chosen.database != state.database:  # it is being asked what it holds
            return Obstacle.NO_COPY
        # The original of a DSN waits for all copies of the DSN. Once the DSN is taken over, this node only learns of its end.
        return Obstacle.NO_COPY if self._is_generated_and_lacks_a_copy(message) else None

    def _is_any_apart_available(self) -> bool:
        """Whether a peer of another fate takes copies: one of the same fate is chosen for nothing."""
        context = self._context
        return any(
            context.peers.may_try(server) and not state.is_draining and not context.shared_fate(server).is_own
            for server, state in context.peers.states.items()
        )

    def _is_generated_and_lacks_a_copy(self, message: StoredMessage) -> bool:
        """Whether the message lacks a copy, and a server without one takes it."""
        claim, peers = message.claim, self._context.peers
        if message.origin not in GENERATED or not claim.missing_count:
            return False
        without = [(server, state) for server, state in peers.states.items() if not claim.is_chosen(server)]
        return any(peers.may_try(server) and not state.is_draining for server, state in without)

    def _on_no_target(self, message: StoredMessage) -> Obstacle:
        """Place a copy on a target. A target with an older copy is asked about it first, and that copy is chosen again."""
        for server in self._context.redirect_to:
            if message.claim.copy_on(server) is not None:
                self._review.suspect(message.envelope.message_id, server)
        return Obstacle.NOT_ON_TARGET if self._is_any_other_available(NO_SERVER) else Obstacle.NO_TARGET

    def _is_suspended(self, message: StoredMessage) -> bool:
        """Whether an administrator suspended the message, or one of its queues: then it is not active, and stays."""
        suspended = self._context.ledger.suspended_queues
        queues = [retry.next_hop for retry in message.retries] or [SUBMISSION]
        return message.suspended is not None or any(queue in suspended for queue in queues)

    async def _reaches(self, server: ServerName) -> bool:
        """Whether the server answers now: a message handed over to an unreachable server would wait for it."""
        try:
            await self._context.links[server].greet()
        except PeerUnavailable as error:
            self._context.peers.failed(server, error.reason)
            return False
        return not self._context.peers.states[server].is_draining

    def _is_any_other_available(self, server: ServerName) -> bool:
        peers, targets = self._context.peers, self._context.redirect_to or self._context.peers.states.keys()
        return any(
            other != server and other in targets and not state.is_draining and peers.may_try(other) for other, state in peers.states.items()
        )

    async def _find_handed_over(self, count: int, found: Obstacles) -> None:
        """Find the servers that have not taken over yet. The first page is enough; the following pages wait for the same servers."""
        page = await self._context.ledger.read(queues.messages, HANDED_OVER_QUEUE, PAGE) if count else ()
        servers = Counter([_handed_to(message) for message in page])
        for server, share in servers.items():
            if self._context.redirect_to and server not in self._context.redirect_to:
                continue  # handed over before
            is_here = server in self._context.peers and self._context.peers.is_reachable(server)
            behind = count - len(page) if server == _handed_to(page[-1]) else 0
            found[Obstacle.TAKEOVER if is_here else Obstacle.TAKEOVER_AWAY, server] = share + max(behind, 0)

    async def ask_again(self) -> None:
        """Ask the servers to which messages were handed over, also after the drain: `promoted` may have been lost with a disk, or `yours`
        may have been deleted because the server was away for too long; then the review says it again. Raises: LedgerUnavailable."""
        after = 0
        while page := await self._context.ledger.read(queues.messages, HANDED_OVER_QUEUE, PAGE, after):
            after = page[-1].internal_id
            for message in page:
                server = _handed_to(message)
                if message.claim.role is Role.HANDED_OVER and self._context.peers.is_reachable(server):
                    self._review.suspect(message.envelope.message_id, server)

    async def view(self) -> DrainView:
        """How far it is, and what it waits for."""
        context = self._context
        rows = await context.ledger.read(queues.queues)
        held: Counter[str] = Counter()
        for group in await context.ledger.read(reading.shadow_groups):
            held[group.primary] += group.count
        return DrainView(
            state=self.state,
            since=context.ledger.draining_since,
            step=self._step,
            sessions_count=self.doors.waited_for() if self.is_wanted else 0,
            attempts_count=context.flights.busy_count(),
            undelivered_count=_count(rows, *UNDELIVERED),
            handed_over_count=_count(rows, QueueKind.HANDED_OVER),
            set_aside_count=_count(rows, QueueKind.POISON),
            held=held,
            waiting=self._waiting,
            targets=self._redirected_to,
            moved_count=self._moved_count,
            left_count=self._left_count,
        )


def _count(rows: Sequence[QueueRow], *kinds: QueueKind) -> int:
    return sum(row.count for row in rows if row.kind in kinds)


def _handed_to(message: StoredMessage) -> ServerName:
    chosen = message.claim.chosen()
    return NO_SERVER if chosen is None else chosen.server
