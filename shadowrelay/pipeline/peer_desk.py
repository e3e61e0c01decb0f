"""Lists the peers, and forgets one for an administrator. docs/reference.md "Commands"."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import structlog

from shadowrelay.model.ids import NO_DATABASE, BoundaryName, ServerName, SiteName
from shadowrelay.model.queue import PeerView, ShadowGroup
from shadowrelay.model.readiness import Takes
from shadowrelay.model.replies import LedgerUnavailable, RequestRefused
from shadowrelay.pipeline.context import Context
from shadowrelay.store import reading, steps

NOT_CONFIGURED = "it is no peer in the configuration"

_log = structlog.get_logger()


class PeerDesk:
    """Reads the ledger and the peer book. All methods may raise LedgerUnavailable."""

    def __init__(
        self,
        context: Context,
        on_forgotten: Callable[[ServerName], None],
        seconds_until_takeover: Callable[[ShadowGroup], float],
    ) -> None:
        self._context = context
        self._on_forgotten = on_forgotten
        self._seconds_until_takeover = seconds_until_takeover

    def takeovers(self, groups: Sequence[ShadowGroup]) -> dict[ServerName, float]:
        """For each primary server that is not heard: in how many seconds its messages are taken over."""
        found: dict[ServerName, float] = {}
        for group in groups:
            seconds = self._seconds_until_takeover(group)
            if not seconds or not self.is_heard(group.primary):
                found[group.primary] = min(seconds, found.get(group.primary, seconds))
        return found

    def is_heard(self, server: ServerName) -> bool:
        """This process heard it, and nothing has failed since."""
        state = self._context.peers.states.get(server)
        return state is not None and state.unreachable_since is None and state.heard_awake is not None

    async def views(self) -> tuple[PeerView, ...]:
        """Configured peers of this boundary, in the file's order; then servers that are peers no more, but for which messages are
        held, or which may hold some of this node."""
        context = self._context
        groups = await context.ledger.read(reading.shadow_groups)
        takeovers = self.takeovers(groups)
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
                    is_reachable=self.is_heard(server),
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

        False: there is no such peer. Raises: RequestRefused.
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


def _time_left(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
