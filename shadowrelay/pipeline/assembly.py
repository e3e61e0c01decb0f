"""Builds the services of one node; nodes, simulations and tests all use `Services`. docs/architecture.md "The packages"."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from shadowrelay.memory import ContentBudget
from shadowrelay.model.fate import NO_MACHINE, NOT_SHARED, Fate, machine_of
from shadowrelay.model.ids import DatabaseId, ServerName
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.queue import InForce
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.model.setting_texts import own_hosts
from shadowrelay.model.settings import Peer, Settings, Transport
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.pipeline.accept import AcceptService
from shadowrelay.pipeline.commit_watch import CommitWatch
from shadowrelay.pipeline.context import Context, Tasks
from shadowrelay.pipeline.copy_limits import CopyLimits
from shadowrelay.pipeline.copy_repair import CopyRepair
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.pipeline.draining import DrainService
from shadowrelay.pipeline.follow import FollowService
from shadowrelay.pipeline.forks import Forks, Verdicts
from shadowrelay.pipeline.heartbeat import HeartbeatService
from shadowrelay.pipeline.leases import Leases
from shadowrelay.pipeline.losses import WhatIfService
from shadowrelay.pipeline.membership import Membership
from shadowrelay.pipeline.message_desk import MessageDesk
from shadowrelay.pipeline.node_desk import NodeDesk
from shadowrelay.pipeline.peer_desk import PeerDesk
from shadowrelay.pipeline.peer_requests import PeerRequestService
from shadowrelay.pipeline.peerbook import PeerBook
from shadowrelay.pipeline.pressure import PressureService
from shadowrelay.pipeline.promote import PromoteService
from shadowrelay.pipeline.queue_desk import QueueDesk
from shadowrelay.pipeline.ready import ReadinessService
from shadowrelay.pipeline.reconcile import ReconcileService
from shadowrelay.pipeline.relay import RelayService
from shadowrelay.pipeline.returns import Returns
from shadowrelay.pipeline.review import ReviewService
from shadowrelay.pipeline.rolled_back import RolledBackService
from shadowrelay.pipeline.safety_net import SafetyNetService
from shadowrelay.pipeline.safety_net_size import SafetyNetSize
from shadowrelay.pipeline.shadow_copy import Copier
from shadowrelay.pipeline.sweep import SweepService
from shadowrelay.pipeline.track import TrackService
from shadowrelay.ports import Clock, Deliverer, Machine, PeerLink, TrackingLog
from shadowrelay.rules.fates import Fates
from shadowrelay.store import peer_promises
from shadowrelay.store.ledger import Ledger

AGAIN_SECONDS = 5.0

_log = structlog.get_logger()


@dataclass(slots=True)
class Outside:
    """The outside world of a node: time, disk, peers, next hops, logs, and chance.

    `link_to` creates the link to a peer once the services exist, because its sessions report to them. Without a `machine` the space on
    disks and the memory are not measured.
    """

    clock: Clock
    ledger: Ledger
    link_to: Callable[[Peer, "Services"], PeerLink]
    deliverer: Deliverer
    tracking: TrackingLog
    chance: random.Random
    tasks: Tasks = field(default_factory=Tasks)
    budget: ContentBudget = field(default_factory=ContentBudget)
    machine: Machine | None = None


class Services:
    """Everything between the ports. `start` begins the loops; they end with `context.tasks`.

    `in_force` gives the configuration, for the administration.
    """

    def __init__(self, settings: Settings, outside: Outside, in_force: Callable[[], InForce] = lambda: InForce({})) -> None:
        clock, transport = outside.clock, settings.transport
        links: dict[ServerName, PeerLink] = {}
        heartbeat_seconds = transport.shadow_heartbeat_frequency.total_seconds()
        machine = NO_MACHINE if outside.machine is None else machine_of(outside.machine.boot_id(), settings.server.boundary)
        fates = Fates(Fate(machine, settings.server.failure_domains), is_redundant=transport.shared_fate_is_redundant)
        peers = PeerBook(
            settings.linked_peers, clock, heartbeat_seconds, fates, own_hosts(one.listen for one in settings.receive_connectors)
        )
        self.context = context = Context(
            settings=settings,
            me=PeerDatabase(settings.server.name, outside.ledger.identity.database),
            clock=clock,
            ledger=outside.ledger,
            links=links,
            tracking=outside.tracking,
            leases=Leases(clock, transport, lambda server: not peers.is_reachable(server)),
            peers=peers,
            tasks=outside.tasks,
            budget=outside.budget,
            is_draining=outside.ledger.draining_since is not None,
        )
        copier = Copier(context, outside.chance)
        self.verdicts = Verdicts(context)
        self.relay = RelayService(context, lambda message_id: self.follow.want(message_id))  # created below, as others
        forks = Forks(context, outside.deliverer, self.relay)
        self.deliver = DeliverService(
            context,
            forks,
            self.verdicts,
            request_review=lambda message_id: self.review.request(message_id),  # created below: they depend on each other
            note_parked=lambda server: self.review.wake_if_back(server),
            want_copy=lambda message_id: self.copy_repair.want(message_id),
        )
        self.copy_repair = CopyRepair(
            context, copier, self.deliver.placed, ask=lambda message_id, server: self.review.suspect(message_id, server)
        )
        self.accept = AcceptService(context, copier, self.deliver, self.verdicts, self.copy_repair, forks.destination_of)
        self.review = ReviewService(
            context,
            self.deliver,
            self.copy_repair,
            lambda server: self.rolled_back.proved(server),
            lambda message_id, server: self.follow.want(message_id, server),
        )
        self.promote = PromoteService(
            context,
            self.deliver,
            self.copy_repair,
            self.review,
            expire=lambda: self.sweep.expire(),
            on_older_copy=lambda server: self.rolled_back.proved(server),
        )
        self.follow = FollowService(context)
        self.reconcile = ReconcileService(context, self.promote, self.follow.want)
        self.heartbeat = HeartbeatService(context, self.promote, self.review, self.follow, self.relay)
        self.drain = DrainService(context, self.deliver, self.copy_repair, self.review)
        self.sweep = SweepService(context, self.review, self.drain)
        self.rolled_back = RolledBackService(context, self.review)
        self.peer_requests = PeerRequestService(
            context,
            self.rolled_back,
            TrackService(context, self.deliver, self.copy_repair),
            CopyLimits(context, outside.machine),
        )
        self.safety_net_size = SafetyNetSize(context, outside.machine)
        self.pressure = PressureService(context, outside.machine, self.safety_net_size.look)
        self.commits = CommitWatch(context)
        self.commits.on_restored.append(self._commits_restored)
        self.messages = MessageDesk(context, self.deliver, self.review, forks.notices, self.copy_repair.wake)
        self.safety_net = SafetyNetService(context, self.deliver, forks.resubmitted_to, self.promote.is_lost)
        self.readiness = ReadinessService(context, self.rolled_back, self.drain, self.copy_repair)
        self.peers = PeerDesk(context, self._forgotten, self.promote.seconds_until_takeover)
        self.queues = QueueDesk(context, self.deliver, self.peers)
        self.node = NodeDesk(context, self.readiness, self.peers, in_force)
        self.what_if = WhatIfService(context, self.promote.seconds_until_takeover, self.readiness.new_mail)
        context.repeats.on_ended = self.deliver.first_ended
        context.peers.on_new_database.append(self._database_changed)
        context.peers.on_new_incarnation.append(self._restarted)
        context.peers.on_return.append(Returns(context, self._returned).note)
        context.peers.on_remembered.append(self._remembered)
        context.peers.on_fate.append(self._fate_changed)
        context.peers.on_available.append(Returns(context, lambda *_: self.copy_repair.available()).note)

        def link(peer: Peer) -> None:
            links[peer.name] = outside.link_to(peer, self)
            context.counts.handed_by_running.setdefault(peer.name, 0)  # so that its first increase shows
            context.counts.copies_over_limit.setdefault(peer.name, 0)

        self.membership = Membership(context, self.heartbeat, link)
        for peer in settings.linked_peers:
            link(peer)

    def start(self) -> None:
        """Start the loops, promotion and heartbeats even with redundancy disabled: shadow messages may remain from before."""
        tasks = self.context.tasks
        tasks.keep(self.commits.run, "commits")
        tasks.keep(self.deliver.run, "deliver scan")
        tasks.keep(self.verdicts.run, "verdicts")
        tasks.keep(self.copy_repair.run, "placement")
        tasks.keep(self.review.run, "review")
        tasks.keep(self.sweep.run, "sweep")
        tasks.keep(self.sweep.clean_up, "duplicate cleanup")
        tasks.keep(self.pressure.run, "back pressure")
        tasks.keep(self.promote.run, "promote")
        tasks.keep(self.safety_net.run, "safety net")
        tasks.keep(self.safety_net_size.run, "safety net size")
        tasks.keep(self.reconcile.run, "reconciliation")
        tasks.keep(self.follow.run, "following")
        tasks.keep(self.rolled_back.run, "older copy")
        self.heartbeat.start()
        self.drain.resume()

    def _database_changed(self, server: ServerName, before: DatabaseId, now: DatabaseId) -> None:
        _log.warning("peer.database_changed", server=server, before=before, database=now)
        self.promote.wake()
        self.copy_repair.wake(0)
        self.review.returned(server)
        self._spawn(partial(self.review.request_server, server), f"review {server}")
        self._spawn(partial(self.reconcile.primary_restarted, server), f"reconcile {server}")

    def _restarted(self, server: ServerName, is_known: bool) -> None:
        """The peer restarted, or this node did and hears it for the first time; `is_known`: this node had recorded that incarnation before.
        An older copy of the peer's disk may have been put back meanwhile: what it holds for us is asked, as what we hold for it."""
        self.review.returned(server)
        if not is_known:
            self._spawn(partial(self.review.request_server, server), f"review {server}")
        self._spawn(partial(self.reconcile.primary_restarted, server), f"reconcile {server}")

    def _fate_changed(self, server: ServerName) -> None:
        """It moved, or told for the first time: copies on it may count no more, or again."""
        shared, fates = self.context.shared_fate(server), self.context.peers.fates
        if fates.in_words(server):
            _log.warning("peer.shares_fate", server=server, shared=fates.in_words(server), is_redundant=fates.is_redundant)
        if shared == NOT_SHARED:
            self._spawn(partial(self.review.request_server, server), f"review {server}")
        else:
            self._spawn(partial(self.review.fate_is_shared, server), f"fate of {server}")

    def adopt_fates(self, transport: Transport) -> None:
        """A reload may have changed `shared_fate_is_redundant`."""
        fates = self.context.peers.fates
        if fates.is_redundant is not transport.shared_fate_is_redundant:
            fates.count(is_redundant=transport.shared_fate_is_redundant)
            for server in fates.sharers:
                self._fate_changed(server)

    def _commits_restored(self) -> None:
        """This node was silent to its peers: like one that was away, it asks them what they hold and may have taken over."""
        for server in self.context.peers.states:
            self.review.returned(server)
            self._spawn(partial(self.review.request_server, server), f"review {server}")
        self.copy_repair.wake(0)
        self.deliver.wake()

    def _forgotten(self, server: ServerName) -> None:
        self.membership.forgotten(server)
        self.copy_repair.wake(0)  # messages whose copies it held need new ones
        self.review.returned(server)

    def _remembered(self, identity: PeerIdentity) -> None:
        """The peer is no longer forgotten: record that, also if no new session was opened."""
        self._spawn(partial(self._record_heard, identity), f"remember {identity.server}")

    async def _record_heard(self, identity: PeerIdentity) -> None:
        await self.context.ledger.commit(peer_promises.peer_heard, identity, self.context.now())

    def _returned(self, server: ServerName, seconds: float) -> None:
        """Less than a heartbeat is no absence: no copy was given up, and no message can have been taken over, unless this node proceeded
        without the server's answer."""
        self.copy_repair.available()
        self.review.returned(server)
        self._spawn(partial(self.deliver.returned, server), f"queues to {server}")
        is_unconfirmed = self.context.peers.states[server].to_confirm is not None
        if seconds >= self.context.heartbeat or is_unconfirmed or self.review.is_unheard(server):
            self._spawn(partial(self.review.request_server, server), f"review {server}")

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self.context.tasks.spawn(self._until_available(work, name), name)

    async def _until_available(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Repeat `work` until the ledger is available: no other event would start it again."""
        while True:
            try:
                return await work()
            except LedgerUnavailable as error:
                _log.warning("work.put_off", work=name, reason=error.reason)
            await asyncio.sleep(min(self.context.heartbeat, AGAIN_SECONDS))
