"""A receive connector as a listening socket in the node's own loop: open, drain, close."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from shadowrelay.memory import ContentBudget
from shadowrelay.model.ids import ServerName
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Peer, ReceiveConnector, Route, Settings
from shadowrelay.ports import Acceptor, Clock, PeerDesk
from shadowrelay.smtp.answers import SHUTTING_DOWN
from shadowrelay.smtp.lifetime import BoundedReading, Lifetime
from shadowrelay.smtp.limits import Descriptors
from shadowrelay.smtp.listener import Factory, Listener
from shadowrelay.smtp.peer_commands import PeerReceiver
from shadowrelay.smtp.session import Reception
from shadowrelay.smtp.tls import TlsContexts

LOOK_SECONDS = 0.1


def reception_for(
    settings: Settings,
    connector: ReceiveConnector,
    *,
    acceptor: Acceptor,
    desk: PeerDesk,
    clock: Clock,
    spool_directory: Path,
    budget: ContentBudget,
    descriptors: Descriptors,
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
        budget=budget,
        descriptors=descriptors,
        tls_context=None if tls is None else tls.receiving(connector),
        routes=settings.routes,
        is_advertised=settings.transport.shadow_redundancy_enabled,
    )


COMMAND_SECONDS = 5.0  # for a command to end whose connection was cut

OpenListener = Callable[[Factory, HostPort, Descriptors], Awaitable[Listener]]


class ReceiverServer:
    """The sessions of one receive connector."""

    def __init__(self, reception: Reception, open_listener: OpenListener = Listener.open) -> None:
        self.reception = reception
        self._open_listener = open_listener
        self._listener: Listener | None = None
        self._sessions: set[Lifetime] = set()

    async def start(self) -> None:
        """Listen. Raises: OSError when the address cannot be had."""
        self._listener = await self._open_listener(self.factory, self.reception.connector.listen, self.reception.descriptors)

    def factory(self) -> asyncio.BufferedProtocol:
        """A protocol for a new connection."""
        return BoundedReading(PeerReceiver(self.reception, asyncio.get_running_loop(), self._sessions))

    @property
    def address(self) -> HostPort:
        """Where it listens really, when `listen` has port 0."""
        assert self._listener is not None
        return self._listener.address

    @property
    def sessions_count(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    def reload(self, connector: ReceiveConnector, routes: Sequence[Route], tls: TlsContexts | None = None) -> None:
        """Follow changed settings and TLS files without closing a session. `listen` stays as it is."""
        self.reception.adopt(connector, routes)
        self.reception.tls_context = None if tls is None else tls.receiving(connector)

    def stop_accepting(self) -> None:
        """New connections are refused from now on. May be called twice."""
        if self._listener is not None:
            self._listener.close()

    async def drain(self, seconds: float) -> None:
        """Take no more mail: idle sessions end with 421 now, the others after their transaction, or cut off after `seconds`.

        Where peers may come it goes on listening until `close`, and their sessions stay: they ask what is done. Whoever comes
        with mail gets 421 to MAIL.
        """
        self.reception.is_draining = True
        if not self.reception.connector.accept_xshadow:
            self.stop_accepting()
        for session in tuple(self._sessions):
            session.end_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while waited_for := [session for session in self._sessions if session.is_waited_for()]:
                    await asyncio.wait({session.gone for session in waited_for}, timeout=LOOK_SECONDS)
        if waited_for := [session for session in self._sessions if session.is_waited_for()]:
            for session in waited_for:
                session.cut()
            await asyncio.wait({session.gone for session in waited_for})

    def dismiss(self) -> None:
        """Say 421 to whoever is still there; `close` then ends it."""
        self.stop_accepting()
        for session in tuple(self._sessions):
            session.hang_up(SHUTTING_DOWN, "shutdown")

    async def close(self) -> None:
        """End everything now. Promises that were being made go on in the node; commands that wait for one come to their end,
        so that what was committed is also told in the tracking log."""
        self.stop_accepting()
        for session in tuple(self._sessions):
            session.cut()
        await self._emptied()
        if running := self.reception.running:
            await asyncio.wait(tuple(running), timeout=COMMAND_SECONDS)

    async def _emptied(self) -> None:
        while self._sessions:
            await asyncio.wait({session.gone for session in self._sessions}, return_when=asyncio.FIRST_COMPLETED)
