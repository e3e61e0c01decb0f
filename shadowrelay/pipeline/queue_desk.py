"""Lists the queues, and tries, suspends and resumes one for an administrator. docs/reference.md "Queues and messages by hand"."""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial

import structlog

from shadowrelay.model.ids import ServerName
from shadowrelay.model.queue import QueueKind, QueueRow, QueueStatus, Suspension
from shadowrelay.model.replies import RequestRefused
from shadowrelay.model.values import replace
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.pipeline.next_hop_queue import NextHopQueue
from shadowrelay.pipeline.peer_desk import NOT_CONFIGURED, PeerDesk
from shadowrelay.pipeline.velocity import Velocities
from shadowrelay.rules.flight import not_before
from shadowrelay.rules.router import is_smart_host
from shadowrelay.store import promises, queues, reading

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

_log = structlog.get_logger()


class QueueDesk:
    """Reads the ledger and the memory of delivery. All methods may raise LedgerUnavailable."""

    def __init__(self, context: Context, deliver: DeliverService, peers: PeerDesk) -> None:
        self._context = context
        self._deliver = deliver
        self._peers = peers
        self._velocities = Velocities(context.clock)

    async def run(self) -> None:
        """Measure how fast the queues drain, forever."""
        await self._velocities.run(partial(self._context.ledger.read, queues.depths))

    async def rows(self) -> tuple[QueueRow, ...]:
        """All queues. One in Retry shows the result of its probes, which its messages do not have."""
        loaded = self._deliver.queues()
        velocity = self._velocities.of
        takeovers = self._peers.takeovers(await self._context.ledger.read(reading.shadow_groups))
        return tuple(
            [
                replace(
                    self._with_takeover(_with_state(row, loaded.get(row.next_hop)), takeovers),
                    velocity=velocity(row.kind, _depth_name(row), row.count),
                    servers=tuple(self._deliver.forks.deliverer.servers(row.next_hop)) if row.kind is QueueKind.DELIVERY else (),
                )
                for row in await self._context.ledger.read(queues.queues)
            ]
        )

    def history(self, row: QueueRow) -> tuple[int, ...]:
        """How many messages this queue had in each minute of the last hour, oldest first; empty if that is not known."""
        return self._velocities.history_of(row.kind, _depth_name(row), row.count)

    def _with_takeover(self, row: QueueRow, takeovers: Mapping[ServerName, float]) -> QueueRow:
        if row.kind is not QueueKind.SHADOW or not row.count or row.primary not in takeovers:
            return row
        state = self._context.peers.states.get(row.primary)
        error = row.last_error or (NOT_CONFIGURED if state is None else state.last_error)
        return replace(row, next_retry_at=self._context.now() + timedelta(seconds=takeovers[row.primary]), last_error=error)

    async def _named(self, queue: str) -> QueueRow | None:
        """The queue with this identity, with or without the server; a shadow queue also by the name of its primary server."""
        for row in await self.rows():
            server, _, name = row.identity.partition("\\")
            by_primary = f"Shadow\\{row.primary}"
            others = (by_primary, f"{server}\\{by_primary}") if row.kind is QueueKind.SHADOW and not row.is_of_forks else ()
            if queue in (row.identity, name, *others):
                return row
        return None

    async def suspend(self, queue: str, by: str, *, is_hold: bool = False) -> QueueRow | None:
        """Attempt nothing from this delivery queue, also after a restart; `is_hold`: also if nothing is in it now. Returns and raises as
        `retry`."""
        found = await self._named(queue)
        if found is None and is_hold:
            found = await self._named(next_hop := self._held(queue))
            found = found or QueueRow(f"{self._context.me.server}\\{next_hop}", QueueKind.DELIVERY, next_hop, 0, None)
        if found is None:
            return None
        if found.kind in _NOT_SUSPENDED:
            raise RequestRefused(f"{found.identity} cannot be suspended: {_NOT_SUSPENDED[found.kind]}")
        suspension = Suspension(self._context.now(), by)
        await self._context.tasks.whole(self._record_suspended(found.next_hop, suspension, by), "suspend queue")
        return found

    def _held(self, queue: str) -> str:
        """The key of a queue in which nothing is now. Raises: RequestRefused if no mail would ever come into it."""
        name = queue.partition("\\")[2] or queue
        destination = self._deliver.forks.router.next_hop_of(name)
        if destination is None:
            raise RequestRefused(f"{name} is neither a domain nor the next hop of a route")
        if destination.hosts and destination.key != name:
            raise RequestRefused(f"mail for {name} goes to {destination.key}, by a route: suspend that queue")
        return destination.key

    async def resume(self, queue: str, by: str) -> QueueRow | None:
        """Deliver from it again, at once. Returns and raises as `retry`."""
        found = await self._named(queue)
        if found is None:
            return None
        if found.suspended is None:
            raise RequestRefused(f"{found.identity} is not suspended")
        await self._context.tasks.whole(self._record_suspended(found.next_hop, None, by), "resume queue")
        return found

    async def _record_suspended(self, next_hop: str, suspension: Suspension | None, by: str) -> None:
        if not await self._context.ledger.commit(promises.queue_suspended, next_hop, suspension):
            return
        if suspension is None:
            self._deliver.resume(next_hop)
            _log.warning("queue.resumed", next_hop=next_hop, by=by)
        else:
            self._deliver.suspend(next_hop)
            _log.warning("queue.suspended", next_hop=next_hop, by=by)

    async def retry(self, queue: str) -> QueueRow | None:
        """Try what is in the queue with this identity at once; deferred messages become due page by page in the background. Returns the
        queue as it was, or `None` if there is none. Raises RequestRefused for a queue in which nothing is tried."""
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
