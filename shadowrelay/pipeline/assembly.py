"""The services of one node, made and connected. They know each other only through what is set here."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from shadowrelay.model.ids import DatabaseId, ServerName
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.pipeline.accept import AcceptService
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.copier import Copier
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.pipeline.desk import PeerDesk
from shadowrelay.pipeline.forks import Forks
from shadowrelay.pipeline.heartbeat import HeartbeatService
from shadowrelay.pipeline.place import PlaceService
from shadowrelay.pipeline.poison import PoisonDesk
from shadowrelay.pipeline.promote import PromoteService, ReconcileService
from shadowrelay.pipeline.review import ReviewService
from shadowrelay.pipeline.sweep import SweepService
from shadowrelay.pipeline.verdicts import Verdicts
from shadowrelay.pipeline.view import View
from shadowrelay.ports import Deliverer

AGAIN_SECONDS = 5.0

_log = structlog.get_logger()


class Services:
    """Everything between the ports. `start` begins the loops; they end with `context.tasks`."""

    def __init__(self, context: Context, deliverer: Deliverer, chance: random.Random, effective: Callable[[], dict[str, object]]) -> None:
        self._context = context
        copier = Copier(context, chance)
        self.verdicts = Verdicts(context)
        self.deliver = DeliverService(context, Forks(context, deliverer), self.verdicts)
        self.accept = AcceptService(context, copier, self.deliver, self.verdicts)
        self.place = PlaceService(context, copier)
        self.review = ReviewService(context)
        self.promote = PromoteService(context, self.deliver, self.place)
        self.reconcile = ReconcileService(context, self.promote)
        self.heartbeat = HeartbeatService(context, self.promote, self.review)
        self.sweep = SweepService(context, self.review)
        self.desk = PeerDesk(context)
        self.poison = PoisonDesk(context)
        self.view = View(context, self.poison, context.now(), effective, self.deliver.states, self._forgotten)
        self._connect()

    def _connect(self) -> None:
        self.deliver.request_review = self.review.request
        self.deliver.want_copy = self.place.want
        self.place.on_placed = self.review.on_placed = self.deliver.placed
        self.poison.wake_delivery = self.deliver.wake
        self.poison.wake_placement = self.place.wake
        self.review.on_clear = self.deliver.cleared
        self.accept.on_unplaced = self.place.want
        self.review.on_unplaced = self.place.want
        self.review.on_lost = lambda: self.place.wake(0)
        self.review.on_blocked = self.deliver.blocked
        self.review.on_reachable = self.deliver.wake_server
        self.deliver.parked = self.review.parked
        peers = self._context.peers
        peers.on_new_database.append(self._database_changed)
        peers.on_new_incarnation.append(self._restarted)
        peers.on_return.append(self._returned)
        peers.on_available.append(lambda server: self.place.available())

    def start(self) -> None:
        """Begin the loops. Promotion and heartbeats too where redundancy is switched off: something may be left from before."""
        tasks = self._context.tasks
        tasks.keep(self.deliver.run, "deliver scan")
        tasks.keep(self.verdicts.run, "verdicts")
        tasks.keep(self.place.run, "placement")
        tasks.keep(self.review.run, "review")
        tasks.keep(self.sweep.run, "sweep")
        tasks.keep(self.promote.run, "promote")
        tasks.keep(self.reconcile.run, "reconciliation")
        self.heartbeat.start()

    def _database_changed(self, server: ServerName, before: DatabaseId, now: DatabaseId) -> None:
        _log.warning("peer.database_changed", server=server, before=before, database=now)
        self.promote.wake()
        self.place.wake(0)
        self.review.reachable(server)
        self._spawn(partial(self.review.request_server, server), f"review {server}")
        self._spawn(partial(self.reconcile.primary_restarted, server), f"reconcile {server}")

    def _restarted(self, server: ServerName) -> None:
        """The peer was, or this node: it is heard for the first time."""
        self.review.reachable(server)
        self._spawn(partial(self.reconcile.primary_restarted, server), f"reconcile {server}")

    def _forgotten(self, server: ServerName) -> None:
        self.place.wake(0)  # what it held has no copy now
        self.review.reachable(server)

    def _returned(self, server: ServerName, seconds: float) -> None:
        """A lost answer or two is no absence: nothing was given up for it, and nothing can have been taken over."""
        self.place.available()
        self.review.reachable(server)
        if seconds >= self._context.heartbeat:
            self._spawn(partial(self.review.request_server, server), f"review {server}")

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._context.tasks.spawn(self._until_available(work, name), name)

    async def _until_available(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Nobody asks for it a second time: while the ledger answers nothing, it begins anew."""
        while True:
            try:
                return await work()
            except LedgerUnavailable as error:
                _log.warning("work.put_off", work=name, reason=error.reason)
            await asyncio.sleep(min(self._context.heartbeat, AGAIN_SECONDS))
