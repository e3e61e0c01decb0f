"""A receive connector as a listening socket in the node's own loop: open, drain, close."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

from shadowrelay.model.ids import ServerName
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Peer, ReceiveConnector, Settings
from shadowrelay.ports import Acceptor, Clock, PeerDesk
from shadowrelay.smtp.lifetime import Lifetime
from shadowrelay.smtp.peer_commands import PeerReceiver
from shadowrelay.smtp.session import Reception
from shadowrelay.smtp.tls import TlsContexts

BACKLOG = 1_024  # connections that the kernel keeps for us while the loop is busy


def reception_for(
    settings: Settings,
    connector: ReceiveConnector,
    *,
    acceptor: Acceptor,
    desk: PeerDesk,
    clock: Clock,
    spool_directory: Path,
    tls: TlsContexts | None = None,
) -> Reception:
    """What the sessions of this connector need. Without `tls` STARTTLS is not offered."""
    peers: Mapping[ServerName, Peer] = {peer.name: peer for peer in settings.peers}
    return Reception(
        name=settings.server.name,
        boundary=settings.server.boundary,
        connector=connector,
        peers=peers,
        acceptor=acceptor,
        desk=desk,
        clock=clock,
        spool_directory=spool_directory,
        tls_context=None if tls is None else tls.receiving(connector),
        is_advertised=settings.transport.shadow_redundancy_enabled,
    )


class ReceiverServer:
    """The sessions of one receive connector."""

    def __init__(self, reception: Reception) -> None:
        self.reception = reception
        self._server: asyncio.Server | None = None
        self._sessions: set[Lifetime] = set()

    async def start(self) -> None:
        """Listen. Raises: OSError when the address cannot be had."""
        listen = self.reception.connector.listen
        self._server = await asyncio.get_running_loop().create_server(self.factory, listen.host, listen.port, backlog=BACKLOG)

    def factory(self) -> asyncio.Protocol:
        """A protocol for a new connection; for tests that have no sockets."""
        return PeerReceiver(self.reception, asyncio.get_running_loop(), self._sessions)

    @property
    def address(self) -> HostPort:
        """Where it listens really, when `listen` has port 0."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return HostPort(host, port)

    @property
    def sessions_count(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    def reload(self, connector: ReceiveConnector, tls: TlsContexts | None = None) -> None:
        """Follow changed settings and TLS files without closing a session. `listen` stays as it is."""
        self.reception.adopt(connector)
        self.reception.tls_context = None if tls is None else tls.receiving(connector)

    def stop_accepting(self) -> None:
        """New connections are refused from now on. May be called twice."""
        if self._server is not None:
            self._server.close()

    async def drain(self, seconds: float) -> None:
        """Stop accepting; idle sessions end with 421 now, the others after their transaction, or cut off after `seconds`."""
        self.stop_accepting()
        for session in tuple(self._sessions):
            session.end_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._emptied()
        await self.close()

    async def close(self) -> None:
        """End everything now. Promises that were being made go on in the node."""
        self.stop_accepting()
        for session in tuple(self._sessions):
            session.cut()
        await self._emptied()

    async def _emptied(self) -> None:
        while self._sessions:
            await asyncio.wait({session.gone for session in self._sessions}, return_when=asyncio.FIRST_COMPLETED)
