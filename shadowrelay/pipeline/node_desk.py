"""What a node says of itself. docs/design.md 8."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from shadowrelay import __version__
from shadowrelay.model.client_minute import ClientView
from shadowrelay.model.queue import InForce, LoneMessages, NodeView, Untold
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.peer_desk import PeerDesk
from shadowrelay.pipeline.ready import ReadinessService
from shadowrelay.store import lone_messages, reading


class NodeDesk:
    """Reads the ledger and what the other services know."""

    def __init__(self, context: Context, readiness: ReadinessService, peers: PeerDesk, in_force: Callable[[], InForce]) -> None:
        self._context = context
        self._readiness = readiness
        self._peers = peers
        self._in_force = in_force
        self._started_at = context.now()
        self.list_clients: Callable[[int], Awaitable[Sequence[ClientView]]] | None = None  # of the receive connectors

    async def view(self) -> NodeView:
        """Its identity, version, queue database and configuration in force."""
        context = self._context
        identity = context.ledger.identity
        server = context.settings.server
        return NodeView(
            name=server.name,
            site=server.site,
            boundary=server.boundary,
            version=__version__,
            started_at=self._started_at,
            state=self._readiness.state,
            database=identity.database,
            incarnation=identity.incarnation,
            began=identity.began,
            position=context.ledger.position,
            former_database=identity.former,
            in_force=self._in_force(),
            new_mail=self._readiness.new_mail(),
            safety_net_complete_since=context.safety_net_complete_since,
            untold=await self.untold(),
            machine=context.peers.fates.mine.machine,
            domains=context.peers.fates.mine.domains,
            is_witness=context.settings.is_witness,
        )

    async def untold(self) -> Untold | None:
        """See `store.reading.untold`. Only if the oldest waits for longer than a heartbeat: each message with a DSN does for a moment."""
        found = await self._context.ledger.read(reading.untold)
        is_old = found is not None and self._context.now() - found.since > timedelta(seconds=self._context.heartbeat)
        return found if is_old else None

    async def lone_messages(self) -> LoneMessages:
        """How many messages of this node lack copies now."""
        return await self._context.ledger.read(
            lone_messages.lone_messages, [server for server in self._context.peers.states if self._peers.is_heard(server)]
        )

    async def clients(self, limit: int) -> Sequence[ClientView]:
        """Clients of the receive connectors, those who were refused most first."""
        return () if self.list_clients is None else await self.list_clients(limit)
