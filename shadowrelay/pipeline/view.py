"""Serves the administration API: listings, and requests to change the queues. Implements `admin.api.AdminView`. docs/design.md 8."""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

import structlog

from shadowrelay import __version__
from shadowrelay.model.client_minute import ClientView
from shadowrelay.model.drain_progress import DrainState, DrainView
from shadowrelay.model.ids import NO_DATABASE, BoundaryName, MessageId, ServerName, SiteName
from shadowrelay.model.message import Content
from shadowrelay.model.queue import (
    InForce,
    LoneMessages,
    MessagePage,
    NodeView,
    PeerView,
    QueueKind,
    QueueRow,
    QueueStatus,
    ShadowGroup,
    StoredMessage,
    Suspension,
    Untold,
)
from shadowrelay.model.readiness import NewMail, NextMessage, Takes
from shadowrelay.model.replies import LedgerUnavailable, RequestRefused
from shadowrelay.model.resubmission import Criteria, ResubmitRequest
from shadowrelay.model.settings import BackPressure
from shadowrelay.model.survival import WhatIf
from shadowrelay.model.tracking import TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.pipeline.commit_watch import explanation
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.copy_repair import CopyRepair
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.pipeline.draining import DrainService
from shadowrelay.pipeline.losses import WhatIfService
from shadowrelay.pipeline.message_desk import MessageDesk
from shadowrelay.pipeline.next_hop_queue import NextHopQueue
from shadowrelay.pipeline.rolled_back import OLDER_COPY, RolledBackService
from shadowrelay.pipeline.safety_net import SafetyNetService
from shadowrelay.pipeline.velocity import Velocities
from shadowrelay.protocol.filters import Expression
from shadowrelay.rules import back_pressure
from shadowrelay.rules.back_pressure import Level, Pressure
from shadowrelay.rules.flight import Flight, not_before
from shadowrelay.rules.placement import apart, may_get_copies, new_mail, rule_of
from shadowrelay.rules.router import is_smart_host
from shadowrelay.store import lone_messages, promises, queues, reading, steps

NOT_CONFIGURED = "it is no peer in the configuration"
_NOTHING_TRIED = {
    QueueKind.SHADOW: "its primary server is no peer in the configuration",
    QueueKind.SAFETY_NET_PRIMARY: "its messages are delivered",
    QueueKind.SAFETY_NET_SHADOW: "its messages are delivered",
    QueueKind.HANDED_OVER: "its messages were handed over, and their shadow servers take them over",
    QueueKind.POISON: "its messages are set aside; `messages release` puts them back into delivery",
}
_NOT_SUSPENDED = {
    QueueKind.SHADOW: "its primary server delivers what is in it; suspend the queue there",
    QueueKind.SAFETY_NET_PRIMARY: "nothing is attempted in it",
    QueueKind.SAFETY_NET_SHADOW: "nothing is attempted in it",
    QueueKind.HANDED_OVER: "nothing is attempted in it",
    QueueKind.POISON: "nothing is attempted in it",
}

TAKERS = (Takes.YES, Takes.UNKNOWN, Takes.NO)

_log = structlog.get_logger()


def messages_queued_as(queue_id: str, rows: Iterable[TrackingEvent]) -> tuple[MessageId, ...]:
    """Whose replies have this id of a next hop, as a word."""
    word = re.compile(rf"(?<![\w.-]){re.escape(queue_id)}(?![\w-])")
    named = [row.network_message_id for row in rows if any(map(word.search, row.recipient_statuses))]
    return tuple(MessageId(each) for each in dict.fromkeys(named) if each)


class View:
    """Reads the ledger and the services' memory, and does what administrators ask for."""

    def __init__(
        self,
        context: Context,
        messages: MessageDesk,
        rolled_back: RolledBackService,
        drain: DrainService,
        deliver: DeliverService,
        copy_repair: CopyRepair,
        safety_net: SafetyNetService,
        started_at: datetime,
        in_force: Callable[[], InForce],
        on_forgotten: Callable[[ServerName], None],
        seconds_until_takeover: Callable[[ShadowGroup], float],
    ) -> None:
        self._what_if = WhatIfService(context, seconds_until_takeover, self.new_mail)
        self._context = context
        self._messages = messages
        self._rolled_back = rolled_back
        self._drain = drain
        self._started_at = started_at
        self._in_force = in_force
        self._deliver = deliver
        self._copy_repair = copy_repair
        self._safety_net = safety_net
        self._on_forgotten = on_forgotten
        self._seconds_until_takeover = seconds_until_takeover
        self._velocities = Velocities(context.clock)
        self.is_running = False
        self.list_clients: Callable[[int], Awaitable[Sequence[ClientView]]] | None = None  # of the receive connectors
        self.hanging: Callable[[], Iterable[str]] = tuple  # what hangs now without stopping mail, or only that of a route

    async def run(self) -> None:
        """Measure how fast the queues drain, forever."""
        await self._velocities.run(partial(self._context.ledger.read, queues.depths))

    async def clients(self, limit: int) -> Sequence[ClientView]:
        """See `admin.api.AdminView`."""
        return () if self.list_clients is None else await self.list_clients(limit)

    async def queues(self) -> tuple[QueueRow, ...]:
        """See `admin.api.AdminView`. A queue in Retry shows the result of its probes, which its messages do not have."""
        loaded = self._deliver.queues()
        velocity = self._velocities.of
        takeovers = self._takeovers(await self._context.ledger.read(reading.shadow_groups))
        return tuple(
            [
                replace(
                    self._with_takeover(_with_state(row, loaded.get(row.next_hop)), takeovers),
                    velocity=velocity(row.kind, _depth_name(row), row.count),
                    servers=self._deliver.forks.servers(row.next_hop) if row.kind is QueueKind.DELIVERY else (),
                )
                for row in await self._context.ledger.read(queues.queues)
            ]
        )

    def history(self, row: QueueRow) -> tuple[int, ...]:
        """See `admin.api.AdminView`."""
        return self._velocities.history_of(row.kind, _depth_name(row), row.count)

    def _takeovers(self, groups: Sequence[ShadowGroup]) -> dict[ServerName, float]:
        """For each primary server that is not heard: in how many seconds its messages are taken over."""
        found: dict[ServerName, float] = {}
        for group in groups:
            seconds = self._seconds_until_takeover(group)
            if not seconds or not self._is_heard(group.primary):
                found[group.primary] = min(seconds, found.get(group.primary, seconds))
        return found

    def _is_heard(self, server: ServerName) -> bool:
        """This process heard it, and nothing has failed since."""
        state = self._context.peers.states.get(server)
        return state is not None and state.unreachable_since is None and state.heard_awake is not None

    def _with_takeover(self, row: QueueRow, takeovers: Mapping[ServerName, float]) -> QueueRow:
        if row.kind is not QueueKind.SHADOW or not row.count or row.primary not in takeovers:
            return row
        state = self._context.peers.states.get(row.primary)
        error = row.last_error or (NOT_CONFIGURED if state is None else state.last_error)
        return replace(row, next_retry_at=self._context.now() + timedelta(seconds=takeovers[row.primary]), last_error=error)

    async def _named(self, queue: str) -> QueueRow | None:
        """The queue with this identity, with or without the server; a shadow queue also by the name of its primary server."""
        for row in await self.queues():
            server, _, name = row.identity.partition("\\")
            by_primary = f"Shadow\\{row.primary}"
            others = (by_primary, f"{server}\\{by_primary}") if row.kind is QueueKind.SHADOW and not row.is_of_forks else ()
            if queue in (row.identity, name, *others):
                return row
        return None

    async def suspend_queue(self, queue: str, by: str, *, is_hold: bool = False) -> QueueRow | None:
        """See `admin.api.AdminView`."""
        found = await self._named(queue)
        if found is None and is_hold:
            found = await self._named(next_hop := self._held(queue))
            found = found or QueueRow(f"{self._context.me.server}\\{next_hop}", QueueKind.DELIVERY, next_hop, 0, None)
        if found is None:
            return None
        if found.kind in _NOT_SUSPENDED:
            raise RequestRefused(f"{found.identity} cannot be suspended: {_NOT_SUSPENDED[found.kind]}")
        suspension = Suspension(self._context.now(), by)
        await self._context.tasks.whole(self._record_queue_suspended(found.next_hop, suspension, by), "suspend queue")
        return found

    def _held(self, queue: str) -> str:
        """The key of a queue in which nothing is now. Raises: RequestRefused if no mail would ever come into it."""
        name = queue.partition("\\")[2] or queue
        destination = self._deliver.forks.next_hop_of(name)
        if destination is None:
            raise RequestRefused(f"{name} is neither a domain nor the next hop of a route")
        if destination.hosts and destination.key != name:
            raise RequestRefused(f"mail for {name} goes to {destination.key}, by a route: suspend that queue")
        return destination.key

    async def resume_queue(self, queue: str, by: str) -> QueueRow | None:
        """See `admin.api.AdminView`."""
        found = await self._named(queue)
        if found is None:
            return None
        if found.suspended is None:
            raise RequestRefused(f"{found.identity} is not suspended")
        await self._context.tasks.whole(self._record_queue_suspended(found.next_hop, None, by), "resume queue")
        return found

    async def _record_queue_suspended(self, next_hop: str, suspension: Suspension | None, by: str) -> None:
        if not await self._context.ledger.commit(promises.queue_suspended, next_hop, suspension):
            return
        if suspension is None:
            self._deliver.resume(next_hop)
            _log.warning("queue.resumed", next_hop=next_hop, by=by)
        else:
            self._deliver.suspend(next_hop)
            _log.warning("queue.suspended", next_hop=next_hop, by=by)

    async def retry_queue(self, queue: str) -> QueueRow | None:
        """See `admin.api.AdminView`. Deferred messages become due page by page in the background."""
        context = self._context
        found = await self._named(queue)
        if found is None:
            return None
        if found.suspended is not None:
            raise RequestRefused(f"{found.identity} is suspended: resume it")
        if found.kind is QueueKind.SUBMISSION:
            self._deliver.wake()
        elif found.kind is QueueKind.DELIVERY:
            context.tasks.spawn(self._deliver.retry(found.next_hop, found.count), f"retry {found.next_hop}")
        elif found.kind is QueueKind.SHADOW and (state := context.peers.states.get(found.primary)) is not None:
            state.wake.set()
        else:
            raise RequestRefused(f"nothing is tried in {found.identity}: {_NOTHING_TRIED[found.kind]}")
        _log.info("queue.retry_requested", queue=found.identity, count=found.count)
        return found

    async def messages(self, queue: str, limit: int, after: int = 0, *, newest: bool = False) -> tuple[StoredMessage, ...]:
        """See `admin.api.AdminView`."""
        return await self._context.ledger.read(queues.messages, queue, limit, after, newest=newest)

    async def filtered_messages(
        self, queue: str, expression: Expression, limit: int, after: int = 0, *, newest: bool = False
    ) -> MessagePage:
        """See `admin.api.AdminView`."""
        expiry = self._context.settings.transport.message_expiration_timeout
        return await self._context.ledger.read(queues.filtered, queue, expression, expiry, limit, after, newest=newest)

    async def searched_messages(self, expression: Expression, limit: int, after: int = 0) -> MessagePage:
        """See `admin.api.AdminView`."""
        expiry = self._context.settings.transport.message_expiration_timeout
        return await self._context.ledger.read(queues.searched, expression, expiry, limit, after)

    async def message(self, message_id: MessageId) -> StoredMessage | None:
        """See `admin.api.AdminView`."""
        return await self._context.ledger.read(reading.load, message_id)

    def flight(self, message_id: MessageId) -> Flight:
        """See `admin.api.AdminView`."""
        return self._context.flights[message_id]

    async def awaited(self, message_id: MessageId) -> tuple[MessageId, ...]:
        """See `admin.api.AdminView`."""
        return await self._context.ledger.read(reading.awaited, message_id)

    async def untold(self) -> Untold | None:
        """See `admin.api.AdminView`. For a moment, each message with a DSN is one."""
        found = await self._context.ledger.read(reading.untold)
        is_old = found is not None and self._context.now() - found.since > timedelta(seconds=self._context.heartbeat)
        return found if is_old else None

    async def events(self, message_id: MessageId) -> Sequence[TrackingEvent]:
        """See `admin.api.AdminView`."""
        stored = await self._context.ledger.read(reading.load, message_id)
        return await self._rows(message_id, None if stored is None else stored.envelope.arrived_at)

    async def queued_as(self, queue_id: str) -> tuple[MessageId, ...]:
        """See `admin.api.AdminView`."""
        return messages_queued_as(queue_id, await self._rows(queue_id, None))

    async def _rows(self, text: str, since: datetime | None) -> Sequence[TrackingEvent]:
        try:
            return await self._context.tracking.about(text, since)
        except OSError as error:
            raise RequestRefused(f"the message tracking log cannot be read: {error}") from error

    async def content(self, message_id: MessageId, *, with_envelope: bool = False) -> tuple[bytes, Content] | None:
        """See `admin.api.AdminView`."""
        return await self._messages.content(message_id, with_envelope=with_envelope)

    async def suspend(self, message_id: MessageId, by: str) -> bool:
        """See `admin.api.AdminView`."""
        return await self._messages.suspend(message_id, by)

    async def resume(self, message_id: MessageId, by: str) -> bool:
        """See `admin.api.AdminView`."""
        return await self._messages.resume(message_id, by)

    async def resubmit(self, message_id: MessageId, by: str) -> bool:
        """See `admin.api.AdminView`."""
        return await self._messages.resubmit(message_id, by)

    async def release(self, message_id: MessageId) -> bool:
        """See `admin.api.AdminView`."""
        return await self._messages.release(message_id)

    async def remove(self, message_id: MessageId, *, with_dsn: bool) -> bool:
        """See `admin.api.AdminView`."""
        return await self._messages.remove(message_id, with_dsn=with_dsn)

    async def request_resubmission(self, criteria: Criteria) -> ResubmitRequest:
        """See `admin.api.AdminView`."""
        return await self._safety_net.request(criteria)

    async def resubmit_requests(self) -> tuple[ResubmitRequest, ...]:
        """See `admin.api.AdminView`."""
        return await self._safety_net.requests()

    async def change_request(self, number: int, *, is_enabled: bool) -> ResubmitRequest | None:
        """See `admin.api.AdminView`."""
        return await self._safety_net.change(number, is_enabled=is_enabled)

    async def remove_request(self, number: int) -> bool:
        """See `admin.api.AdminView`."""
        return await self._safety_net.remove(number)

    async def peers(self) -> tuple[PeerView, ...]:
        """Configured peers of this boundary, in the file's order; then servers that are peers no more, but for which messages are
        held, or which may hold some of this node."""
        context = self._context
        groups = await context.ledger.read(reading.shadow_groups)
        takeovers = self._takeovers(groups)
        held: dict[ServerName, int] = {}
        for group in groups:
            held[group.primary] = held.get(group.primary, 0) + group.count
        held_by = await context.ledger.read(reading.listed_counts)
        discards = await context.ledger.read(reading.discard_counts)
        views = []
        for server, state in context.peers.states.items():
            left, takes = context.leases.server_left(server), context.peers.takes_copies(server)
            views.append(
                PeerView(
                    name=server,
                    site=state.peer.site,
                    boundary=state.peer.boundary,
                    address=str(state.peer.address),
                    database=state.database,
                    heard_at=context.heard_at(server),
                    is_reachable=self._is_heard(server),
                    lease=None if left is None else timedelta(seconds=max(left, 0.0)),
                    breaker=context.peers.breaker_state(server),
                    refusal=state.breaker.reason,
                    held_for_count=held.get(server, 0),
                    held_by_count=held_by.get(server, 0),
                    is_forgotten=state.is_forgotten,
                    conflict=context.peers.conflicts.get(server, ""),
                    is_draining=state.is_draining,
                    differs="; ".join([f"{name} is {here} here, {there} there" for name, (here, there) in state.differs.items()]),
                    last_error=state.last_error
                    or state.copies_refused
                    or (context.peers.reason_against_copies(server) if takes is Takes.NO else ""),
                    takes_over_in=_time_left(takeovers.get(server)),
                    takes_copies=takes,
                    shared_fate=context.peers.fates.in_words(server),
                    domains=context.peers.fates.told(server).domains,
                    is_configured=not state.is_leaving,
                    is_leaving=state.is_leaving,
                    version="" if state.identity is None else state.identity.version,
                    features=state.features,
                    machine=context.peers.fates.told(server).machine,
                    discards_count=discards.get(server, 0),
                )
            )
        forgotten = {row.server: row.is_forgotten for row in context.ledger.peers.listed()}
        for server in sorted({*held, *held_by} - context.peers.states.keys()):
            views.append(
                PeerView(
                    name=server,
                    site=SiteName(""),
                    boundary=BoundaryName(""),
                    address="",
                    database=NO_DATABASE,
                    heard_at=None,
                    is_reachable=False,
                    lease=None,
                    breaker="open",
                    held_for_count=held.get(server, 0),
                    held_by_count=held_by.get(server, 0),
                    is_forgotten=forgotten.get(server, False),
                    last_error=NOT_CONFIGURED,
                    takes_over_in=_time_left(takeovers.get(server)),
                    is_configured=False,
                )
            )
        return tuple(views)

    async def forget(self, server: ServerName, *, is_forced: bool = False) -> bool:
        """Cross off the copies and notifications of a peer that will not return. A peer that answers is refused, unless `is_forced`: what
        it holds may then be delivered again, and it counts as a peer again as soon as it is heard.

        Raises: RequestRefused.
        """
        context = self._context
        silence = context.peers.silence(server)
        if not is_forced and server in context.peers and context.peers.is_reachable(server) and silence < context.heartbeat:
            raise RequestRefused(
                f"{server} was heard {silence:.1f} s ago: only a peer whose queue is destroyed for good may be forgotten. "
                f"Stop it first, or take it out of the configuration; --force forgets it all the same"
            )
        is_known = server in context.peers or server in {row.server for row in context.ledger.peers.listed()}
        if not is_known and not await context.ledger.read(reading.primaries_listed_on, server, 1):
            return False  # nor was it removed from the configuration with copies on it
        await context.tasks.whole(self._record_forgotten(server), "forget")
        return True

    async def _record_forgotten(self, server: ServerName) -> None:
        """The copies leave their lists last, so that none is listed there anew."""
        context = self._context
        context.peers.forget(server)
        try:
            await steps.forget_peer(context.ledger, server)
        except LedgerUnavailable:
            recorded = {row.server for row in context.ledger.peers.listed() if row.is_forgotten}
            context.peers.forget(server, server in recorded)
            raise
        _log.warning("peer.forgotten", server=server)
        self._on_forgotten(server)

    async def node(self) -> NodeView:
        """See `admin.api.AdminView`."""
        context = self._context
        identity = context.ledger.identity
        server = context.settings.server
        return NodeView(
            name=server.name,
            site=server.site,
            boundary=server.boundary,
            version=__version__,
            started_at=self._started_at,
            state=self._state(),
            database=identity.database,
            incarnation=identity.incarnation,
            began=identity.began,
            position=context.ledger.position,
            former_database=identity.former,
            in_force=self._in_force(),
            new_mail=self.new_mail(),
            safety_net_complete_since=context.safety_net_complete_since,
            untold=await self.untold(),
            machine=context.peers.fates.mine.machine,
            domains=context.peers.fates.mine.domains,
            is_witness=context.settings.is_witness,
        )

    def _state(self) -> str:
        if self._drain.state is not DrainState.ACTIVE:
            return self._drain.state.value
        return "draining" if self._context.is_draining else "running" if self.is_running else "starting"

    async def drain(self) -> DrainView:
        """See `admin.api.AdminView`."""
        if self._context.is_stopping:
            raise RequestRefused("this node is stopping: its queue stays, and the next start goes on with it")
        await self._drain.begin()
        return await self._drain.view()

    async def undrain(self) -> DrainView:
        """See `admin.api.AdminView`."""
        if self._context.is_stopping:
            raise RequestRefused("this node is stopping: undrain it after the next start")
        if not await self._drain.end():
            raise RequestRefused("this node does not drain")
        return await self._drain.view()

    async def redirect(self, targets: Sequence[ServerName]) -> DrainView:
        """See `admin.api.AdminView`."""
        if self._context.is_stopping:
            raise RequestRefused("this node is stopping: its queue stays, and the next start goes on with it")
        await self._drain.redirect(targets)
        return await self._drain.view()

    async def drain_view(self) -> DrainView:
        """See `admin.api.AdminView`."""
        return await self._drain.view()

    async def lone_messages(self) -> LoneMessages:
        """See `admin.api.AdminView`."""
        return await self._context.ledger.read(
            lone_messages.lone_messages, [server for server in self._context.peers.states if self._is_heard(server)]
        )

    def pressure(self) -> tuple[Pressure, BackPressure]:
        """See `admin.api.AdminView`."""
        return self._context.pressure, self._context.settings.back_pressure

    def is_ready(self) -> tuple[bool, tuple[str, ...]]:
        """See `admin.api.AdminView`."""
        reasons = []
        if not self.is_running:
            reasons.append("starting")
        if self._context.is_draining:
            reasons.append(self._state())
        context = self._context
        if context.commit_failure is not None:
            reasons.append(explanation(context, context.commit_failure))
        new_mail = self.new_mail()
        is_out = new_mail.outcome is NewMail.REFUSED and not self._may_recover()
        if is_out:
            reasons.append(new_mail.sentence)
        pressed = back_pressure.reasons(context.pressure, context.settings.back_pressure)
        if context.pressure.level is Level.HIGH:
            reasons.extend(pressed)
            pressed = ()
        rolled_back = self._rolled_back
        if rolled_back.found.is_set():
            reasons.append(f"{OLDER_COPY}: it starts again under a new database id")
        # Mail is still accepted: neither node knows which of the two is the copy, so both would refuse it.
        warnings = [*pressed, *self._unprotected()]
        if new_mail.sentence and not is_out:
            warnings.insert(len(pressed), new_mail.sentence)
        warnings += [f"peer {server} is refused: {reason}" for server, reason in context.peers.conflicts.items()]
        warnings += context.site_copies.sentences()
        warnings += [
            f"peer {server} refuses this node, so what it may hold of this node's mail is not delivered from here: {reason}"
            for server, reason in context.peers.refusing_us.items()
        ]
        warnings += self.hanging()
        if rolled_back.is_asking:
            until = context.ledger.identity.older_until
            warnings.append(
                f"the queue database was an older copy: peers are asked about each message in it before it is delivered, "
                f"{rolled_back.asked_until} of {until} internal ids so far"
            )
        return not reasons, (*reasons, *warnings)

    def new_mail(self, without: Collection[ServerName] = ()) -> NextMessage:
        """What happens to the next message: the only place that says so. Outcomes of placements decide, see `placement.CopyEvidence`.
        `without`: if these peers were lost."""
        context, settings = self._context, self._context.settings
        takers = [context.peers.takes_copies(server) for server in self._candidates_apart(without)]
        sharers = context.peers.fates.own_sharers
        taking, wanted = takers.count(Takes.YES), settings.copies_wanted if context.is_enabled else 0
        outcome = new_mail(takers, wanted, rejects=settings.transport.reject_message_on_shadow_failure)
        if outcome in (NewMail.COPIED, NewMail.NOT_COPIED):
            return NextMessage(outcome, taking, wanted, "", sharers)
        if outcome is NewMail.UNKNOWN:
            said = "may not get its copies"
        elif outcome is NewMail.REFUSED:
            said = "is refused with 451"
            if others := [each.name for each in settings.receive_connectors if not each.redundancy.copies]:
                outcome, said = NewMail.FEWER, f"{said}, except on {', '.join(others)}"
        else:
            said = f"is accepted {'without a copy' if not taking else f'with {taking} of {wanted} copies'}"
        reasons = [f"{server}: it would be lost" for server in sorted(without)]
        reasons += [*context.peers.reasons_against_copies(), *self._shared_fates()]
        return NextMessage(outcome, taking, wanted, f"new mail {said}: {'; '.join(reasons) or 'too few peers are configured'}", sharers)

    async def if_lost(self, servers: Collection[ServerName], ids_max: int) -> WhatIf:
        """See `admin.api.AdminView`."""
        return await self._what_if.ask(servers, ids_max)

    def _candidates_apart(self, without: Collection[ServerName] = ()) -> list[ServerName]:
        """The peers whose copies count at the same time; of those that share a fate, one that takes copies."""
        candidates, peers = [server for server in self._candidates() if server not in without], self._context.peers
        return apart(sorted(candidates, key=lambda server: TAKERS.index(peers.takes_copies(server))), self._context.shared_fate)

    def _shared_fates(self) -> Iterator[str]:
        """Why the copies of peers that take them do not count."""
        peers, counted = self._context.peers, self._candidates_apart()
        for server in self._candidates():
            if server not in counted and peers.takes_copies(server) is not Takes.NO:
                what = peers.fates.in_words(server)
                yield f"{server}: a copy there is not redundant, {_in_sharing_words(what)}"

    def _candidates(self) -> list[ServerName]:
        """The peers that may get copies."""
        settings = self._context.settings
        candidates = settings.shadow_candidates
        rule = rule_of(settings.transport, settings.server.site, [peer.site for peer in candidates])
        return [peer.name for peer in candidates if may_get_copies(peer.site, rule)]

    def _may_recover(self) -> bool:
        """Whether new mail would get its copies if the peers recover that live and store none: then it is refused, and yet this node is not
        out of service."""
        peers, wanted = self._context.peers, self._context.settings.copies_wanted
        able = [server for server in self._candidates() if peers.takes_copies(server) is Takes.YES or peers.may_recover(server)]
        return len(apart(able, self._context.shared_fate)) >= wanted

    def _unprotected(self) -> Iterator[str]:
        """Why mail that was accepted has fewer copies than it should."""
        if not self._context.is_enabled:
            return
        for server, state in self._context.peers.states.items():
            if state.to_confirm is not None:
                yield f"copies on {server} are not confirmed since it came back: it is asked about each, and what it lost is copied again"
        if count := self._copy_repair.failing_count:
            unreadable, reason = self._copy_repair.unreadable()
            own = f"; {unreadable} of them this node cannot read itself now: {reason}" if unreadable else ""
            yield f"accepted messages with fewer copies than wanted: {count}; the copies are tried again{own}"


def _in_sharing_words(what: str) -> str:
    if not what:
        return "as it may be lost together with another server that gets one"
    labels = what.removeprefix("machine").lstrip(", ")
    return "as " + " and ".join(["it runs on this machine"] * what.startswith("machine") + [f"both have the label {labels}"] * bool(labels))


def _time_left(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _depth_name(row: QueueRow) -> str:
    """As `queues.depths` names it."""
    return f"{row.primary} {row.next_hop}" if row.is_of_forks else row.next_hop


def _with_state(row: QueueRow, queue: NextHopQueue | None) -> QueueRow:
    if row.suspended is not None:
        row = replace(row, status=QueueStatus.SUSPENDED, next_retry_at=None)
    if row.kind is not QueueKind.DELIVERY:
        return row
    said = "; ".join(filter(None, (row.last_error, not_before(row.waits_for))))
    row = replace(row, is_smart_host=is_smart_host(row.next_hop), last_error=said)
    if row.suspended is not None or queue is None:
        return row
    if (retry := queue.state.retry) is None:
        return replace(row, status=QueueStatus.ACTIVE) if queue.loaded else row
    return replace(
        row,
        last_error=retry.last_reply,
        next_retry_at=retry.probe_at,
        status=QueueStatus.RETRY,
        retry_since=retry.since,
        probes_count=retry.failures_count,
    )
