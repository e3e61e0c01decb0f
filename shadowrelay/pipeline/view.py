"""Serves the administration API: listings, and requests to change the queues. Implements port `AdminView`. docs/design.md 8."""

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from shadowrelay import __version__
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Content
from shadowrelay.model.queue import NodeView, PeerRow, PeerView, QueueKind, QueueRow, QueueStatus, StoredMessage
from shadowrelay.model.replies import RequestRefused
from shadowrelay.model.values import replace
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.pipeline.next_hop_queue import NextHopQueue
from shadowrelay.pipeline.peerbook import PeerState
from shadowrelay.pipeline.poison import PoisonDesk

_NOTHING_TRIED = {
    QueueKind.SHADOW: "its primary server is no peer in the configuration",
    QueueKind.SAFETY_NET_PRIMARY: "its messages are delivered",
    QueueKind.SAFETY_NET_SHADOW: "its messages are delivered",
    QueueKind.POISON: "its messages are set aside; `messages release` puts them back into delivery",
}

_log = structlog.get_logger()


class View:
    """Reads the ledger and the services' memory. The changes it makes are `forget`, `release`, `remove` and `retry_queue`."""

    def __init__(
        self,
        context: Context,
        poison: PoisonDesk,
        deliver: DeliverService,
        started_at: datetime,
        effective: Callable[[], dict[str, object]],
        on_forgotten: Callable[[ServerName], None],
    ) -> None:
        self._context = context
        self._poison = poison
        self._started_at = started_at
        self._effective = effective
        self._deliver = deliver
        self._on_forgotten = on_forgotten
        self.is_running = False

    async def queues(self) -> tuple[QueueRow, ...]:
        """See `ports.AdminView`. A queue in Retry shows the result of its probes, which its messages do not have."""
        loaded = self._deliver.queues()
        return tuple([_with_state(row, loaded.get(row.next_hop)) for row in await self._context.ledger.queues()])

    async def retry_queue(self, queue: str) -> QueueRow | None:
        """See `ports.AdminView`. Deferred messages become due page by page in the background."""
        context = self._context
        found = next((row for row in await self.queues() if queue in (row.identity, row.identity.partition("\\")[2])), None)
        if found is None:
            return None
        if found.kind is QueueKind.SUBMISSION:
            self._deliver.wake()
        elif found.kind is QueueKind.DELIVERY:
            context.tasks.spawn(self._deliver.retry(found.next_hop, found.count), f"retry {found.next_hop}")
        elif found.kind is QueueKind.SHADOW and (state := context.peers.states.get(ServerName(found.next_hop))) is not None:
            state.wake.set()
        else:
            raise RequestRefused(f"nothing is tried in {found.identity}: {_NOTHING_TRIED[found.kind]}")
        _log.info("queue.retry_requested", queue=found.identity, count=found.count)
        return found

    async def messages(self, queue: str, limit: int, after: int = 0) -> tuple[StoredMessage, ...]:
        """See `ports.AdminView`."""
        return await self._context.ledger.messages(queue, limit, after)

    async def message(self, message_id: MessageId) -> StoredMessage | None:
        """See `ports.AdminView`."""
        return await self._context.ledger.load(message_id)

    async def content(self, message_id: MessageId) -> tuple[bytes, Content] | None:
        """See `ports.AdminView`."""
        return await self._poison.content(message_id)

    async def release(self, message_id: MessageId) -> bool:
        """See `ports.AdminView`."""
        return await self._poison.release(message_id)

    async def remove(self, message_id: MessageId, *, with_dsn: bool) -> bool:
        """See `ports.AdminView`."""
        return await self._poison.remove(message_id, with_dsn=with_dsn)

    async def peers(self) -> tuple[PeerView, ...]:
        """Configured peers of this boundary, in the file's order."""
        context = self._context
        known = {row.server: row for row in await context.ledger.peers()}
        held: dict[ServerName, int] = {}
        for group in await context.ledger.shadow_groups():
            held[group.primary] = held.get(group.primary, 0) + group.count
        held_by = await context.ledger.listed_counts()
        views = []
        for server, state in context.peers.states.items():
            row = known.get(server)
            left = context.leases.server_left(server)
            views.append(
                PeerView(
                    name=server,
                    site=state.peer.site,
                    boundary=state.peer.boundary,
                    address=str(state.peer.address),
                    database=state.database,
                    heard_at=self._heard_at(state, row),
                    is_reachable=state.unreachable_since is None and state.heard_awake is not None,
                    lease=None if left is None else timedelta(seconds=max(left, 0.0)),
                    breaker=context.peers.breaker_state(server),
                    refusal=state.breaker.reason,
                    held_for_count=held.get(server, 0),
                    held_by_count=held_by.get(server, 0),
                    is_forgotten=row is not None and row.is_forgotten,
                    conflict=context.peers.conflicts.get(server, ""),
                )
            )
        return tuple(views)

    def _heard_at(self, state: PeerState, row: PeerRow | None) -> datetime | None:
        """From memory if possible, because the ledger is updated only once a session."""
        if state.heard_awake is None:
            return row.heard_at if row is not None else None
        return self._context.now() - timedelta(seconds=self._context.clock.awake() - state.heard_awake)

    async def forget(self, server: ServerName) -> bool:
        """Cross off the copies and notifications of a peer that will not return. A peer that answers is refused.

        Raises: RequestRefused.
        """
        context = self._context
        silence = context.peers.silence(server)
        if server in context.peers and context.peers.is_back(server) and silence < context.heartbeat:
            raise RequestRefused(
                f"{server} was heard {silence:.1f} s ago: only a peer whose queue is destroyed for good may be forgotten. "
                f"Stop it, or take it out of the configuration"
            )
        is_known = server in context.peers or server in {row.server for row in await context.ledger.peers()}
        if not is_known and not await context.ledger.primaries_listed_on(server, 1):
            return False  # nor was it removed from the configuration with copies on it
        await context.ledger.record_forgotten(server)
        self._on_forgotten(server)
        return True

    async def node(self) -> NodeView:
        """See `ports.AdminView`."""
        context = self._context
        identity = context.ledger.identity
        server = context.settings.server
        return NodeView(
            name=server.name,
            site=server.site,
            boundary=server.boundary,
            version=__version__,
            started_at=self._started_at,
            state="draining" if context.is_draining else "running" if self.is_running else "starting",
            database=identity.database,
            incarnation=identity.incarnation,
            began=identity.began,
            position=context.ledger.position,
            settings=self._effective(),
        )

    def is_ready(self) -> tuple[bool, tuple[str, ...]]:
        """Whether mail is accepted now, and why not."""
        reasons = []
        if not self.is_running:
            reasons.append("starting")
        if self._context.is_draining:
            reasons.append("draining")
        if (reply := self._context.ledger.unavailable_reason()) is not None:
            reasons.append(f"queue database: {reply}")
        # Mail is still accepted: neither node knows which of the two is the copy, so both would refuse it.
        warnings = [f"peer {server} is refused: {reason}" for server, reason in self._context.peers.conflicts.items()]
        return not reasons, (*reasons, *warnings)


def _with_state(row: QueueRow, queue: NextHopQueue | None) -> QueueRow:
    if row.kind is not QueueKind.DELIVERY or queue is None:
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
