"""Peers that come, move and go while the node runs, as a reload says. docs/operations.md "What SIGHUP changes".

A peer that is taken out of the configuration may have the only copies of messages, or this node may have those of its. So it is *leaving*:
it is asked and answered as before, gets no copies and places none, and has left when nothing of either kind is there, no notification waits
for it, or an administrator forgets it. After a restart it is a server that is no peer, as ever.
"""

import asyncio
from collections.abc import Callable

import structlog

from shadowrelay.model.ids import ServerName
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.model.settings import Peer, Settings
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.heartbeat import HeartbeatService
from shadowrelay.store import reading

_log = structlog.get_logger()


class Membership:
    """Who is a peer. `link` makes the link to a new one; `on_moved` and `on_left` tell who owns the sessions."""

    def __init__(self, context: Context, heartbeat: HeartbeatService, link: Callable[[Peer], None]) -> None:
        self._context = context
        self._heartbeat = heartbeat
        self._link = link
        self._looking: asyncio.Task[None] | None = None
        self.on_moved: Callable[[Peer], None] = lambda peer: None
        self.on_left: Callable[[ServerName], None] = lambda server: None

    async def adopt(self, settings: Settings) -> None:
        """The peers of these settings are the peers from now on. Raises: LedgerUnavailable."""
        states, wanted = self._context.peers.states, {peer.name: peer for peer in settings.linked_peers}
        rows = self._context.ledger.peers.listed()
        for name, peer in wanted.items():
            state = states.get(name)
            if state is None:
                self._context.peers.add(peer, rows)
                self._link(peer)
                self._heartbeat.add(name)
                _log.warning("peer.added", server=name, address=str(peer.address))
                continue
            before, state.peer = state.peer, peer
            if state.is_leaving:
                state.is_leaving = False
                _log.warning("peer.stays", server=name)
            if before.address != peer.address:
                _log.warning("peer.moved", server=name, before=str(before.address), address=str(peer.address))
                self.on_moved(peer)
                state.wake.set()
        for name, state in states.items():
            if name not in wanted and not state.is_leaving:
                state.is_leaving = True
                _log.warning("peer.leaving", server=name)
        await self._look()
        if self._looking is None and self._leaving():
            self._looking = self._context.tasks.keep(self._run, "leaving peers")

    def forgotten(self, server: ServerName) -> None:
        """An administrator says that it will not return: a leaving peer has left."""
        if (state := self._context.peers.states.get(server)) is not None and state.is_leaving:
            self._left(server)

    def _leaving(self) -> list[ServerName]:
        return [name for name, state in self._context.peers.states.items() if state.is_leaving]

    async def _run(self) -> None:
        while self._leaving():
            await asyncio.sleep(self._context.heartbeat)
            try:
                await self._look()
            except LedgerUnavailable as error:
                _log.warning("peer.still_leaving", servers=self._leaving(), reason=error.reason)
        self._looking = None

    async def _look(self) -> None:
        """Which of those that leave have nothing of this node any more, nor this node of theirs."""
        leaving = self._leaving()
        if not leaving:
            return
        ledger = self._context.ledger
        busy = {group.primary for group in await ledger.read(reading.shadow_groups) if group.count}
        busy |= {server for server, count in (await ledger.read(reading.listed_counts)).items() if count}
        for server in leaving:
            state = self._context.peers.states.get(server)  # None: an administrator forgot it meanwhile
            if state is None or server in busy or await ledger.read(reading.has_unacknowledged, server, state.database):
                continue
            if self._context.peers.is_leaving(server):
                self._left(server)

    def _left(self, server: ServerName) -> None:
        self._context.peers.dismiss(server)
        _log.warning("peer.left", server=server)
        self.on_left(server)
