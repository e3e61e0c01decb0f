"""The receive connectors of a node: opened and shut, moved by a reload, closed to mail for a while. docs/operations.md "Signals"."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from shadowrelay.model.client_minute import ClientView
from shadowrelay.model.commit_failure import CommitFailure
from shadowrelay.model.ids import ServerName
from shadowrelay.model.peers import Incarnation
from shadowrelay.model.receive_settings import ReceiveConnector
from shadowrelay.model.replies import ConfigurationError, Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.model.setting_texts import is_one_address, own_hosts
from shadowrelay.model.settings import Peer, Settings
from shadowrelay.node.closing import close_with
from shadowrelay.pipeline.context import Context, Tasks
from shadowrelay.smtp.client_limits import heaviest
from shadowrelay.smtp.limits import NOT_ACTIVE
from shadowrelay.smtp.listener import OpenListener, ReceiverServer
from shadowrelay.smtp.reception import Reception
from shadowrelay.smtp.recipient_sources import RecipientSources
from shadowrelay.smtp.tls import TlsContexts

REJOIN_SECONDS = 1.0
GRACE_SECONDS = 30.0  # for sessions and attempts in progress: SIGTERM, or a connector that left the configuration

_log = structlog.get_logger()


class Connectors:
    """`receivers` has those of the configuration; one that shares its port does not listen while the node takes no mail."""

    def __init__(
        self,
        context: Context,
        reception_of: Callable[[ReceiveConnector], Reception],
        open_listener: OpenListener,
        tasks: Tasks,
        opened: contextlib.AsyncExitStack,
    ) -> None:
        """`opened` closes what is opened here."""
        self._context = context
        self._reception_of = reception_of
        self._open_listener = open_listener
        self._tasks = tasks
        self._opened = opened
        self._is_started = False
        self._joining = asyncio.Lock()
        self.receivers: list[ReceiverServer] = []

    @property
    def addresses(self) -> list[HostPort]:
        """Where the node listens for mail."""
        return [address for receiver in self.receivers for address in receiver.addresses]

    @property
    def sessions_count(self) -> int:
        """Open sessions."""
        return sum(receiver.sessions_count for receiver in self.receivers)

    async def open(self, connector: ReceiveConnector) -> None:
        """Raises: ConfigurationError if its address cannot be bound."""
        receiver = ReceiverServer(self._reception_of(connector), self._open_listener)
        if self._context.is_draining:
            receiver.reception.closed_with = NOT_ACTIVE
        if self._is_started or not connector.reuse_port:  # a shared port has other nodes until this one has started
            await self._listen(receiver)
        self.receivers.append(receiver)
        close_with(self._opened, receiver.close)

    async def _listen(self, receiver: ReceiverServer) -> None:
        connector = receiver.reception.connector
        try:
            await receiver.join()
        except OSError as error:
            raise ConfigurationError(
                f"receive_connectors {connector.name}: cannot listen on {connector.listen} ({os.strerror(error.errno or 0)}); "
                f"choose another address or port, or stop what has it"
            ) from error
        if receiver.is_listening:
            _log.info("connector.listening", connector=connector.name, address=str(receiver.address))

    async def started(self) -> None:
        """The node has started: listen on shared ports as well. Raises: ConfigurationError."""
        await self._join()
        self._is_started = True

    async def _join(self) -> None:
        """Listen on the ports that are shared with other nodes, unless no mail is taken, and wherever another connector had to go first."""
        async with self._joining:
            for receiver in self.receivers:
                is_open = receiver.reception.closed_with is None or not receiver.reception.connector.reuse_port
                if is_open and not receiver.is_listening:
                    await self._listen(receiver)

    async def _rejoin(self) -> None:
        """As `_join`, until it succeeds."""
        while not self._context.is_stopping:
            try:
                return await self._join()
            except ConfigurationError as error:
                _log.error("connector.not_listening", reason=str(error))
            await asyncio.sleep(REJOIN_SECONDS)

    async def leave_shared(self) -> None:
        """Mail is going to be refused: first new clients go to the other nodes."""
        await asyncio.gather(*(receiver.leave() for receiver in self.receivers))

    async def refuse_mail(self, seconds: float) -> None:
        """The node drains. Open transactions have this long."""
        await self.leave_shared()
        self._context.delayed.release(is_stopping=True)
        await asyncio.gather(*(receiver.refuse_mail(seconds) for receiver in self.receivers))

    def take_mail(self) -> None:
        """After `refuse_mail`."""
        self._context.delayed.release(is_stopping=False)
        for receiver in self.receivers:
            receiver.take_mail()
        self._tasks.spawn(self._rejoin(), "join addresses")

    def waited_for_count(self) -> int:
        """Open transactions for which `refuse_mail` waits."""
        return sum(receiver.waited_for_count for receiver in self.receivers)

    def fall_silent(self, failure: CommitFailure) -> None:
        """The node cannot commit: nobody gets an answer but this failure's."""
        reply = Reply(421, failure.reply.enhanced, f"{failure.reply.text}, closing connection")
        self._tasks.spawn(self.leave_shared(), "leave shared ports")
        for receiver in self.receivers:
            receiver.fall_silent(reply)

    def speak_again(self) -> None:
        """After `fall_silent`."""
        if not self._context.is_stopping:
            for receiver in self.receivers:
                receiver.reception.closed_with = NOT_ACTIVE if self._context.is_draining else None
            self._tasks.spawn(self._rejoin(), "join addresses")

    def end_others(self, server: ServerName, incarnation: Incarnation) -> None:
        """End the sessions of other processes of this peer: if one lives after all, it has to say who it is."""
        for receiver in self.receivers:
            receiver.end_others(server, incarnation)

    def show_peers(self, peers: Mapping[ServerName, Peer], linked: Collection[ServerName]) -> None:
        """Who is a peer, and with whom there are links, from now on."""
        for receiver in self.receivers:
            receiver.adopt_peers(peers, linked)

    def note_address_of_peer(self, address: str) -> None:
        """A peer configured by its DNS name is recognised where it was met, also if strangers have all sessions after a start."""
        for receiver in self.receivers:
            if receiver.reception.connector.accept_xshadow:
                receiver.reception.peer_addresses.add(address)

    def reload(self, settings: Settings, tls: TlsContexts | None, recipients: RecipientSources) -> None:
        """Adopt what needs no other address; `follow` does the rest."""
        found = {connector.name: connector for connector in settings.receive_connectors}
        for receiver in self.receivers:
            running = receiver.reception.connector
            if (connector := found.get(running.name)) is not None:
                same_place = connector.model_copy(update={"listen": running.listen, "reuse_port": running.reuse_port})
                receiver.reload(same_place, settings.routes, tls, recipients.check_for(connector))

    async def follow(self, connectors: Sequence[ReceiveConnector]) -> None:
        """Shut, open and move, so that these are open. What cannot be opened is logged, and stays as it is."""
        wanted = {connector.name: connector for connector in connectors}
        running = {receiver.reception.connector.name: receiver for receiver in self.receivers}
        for name, receiver in running.items():
            if name not in wanted:
                self.receivers.remove(receiver)
                await receiver.shut()  # another one may have its address
                self._tasks.spawn(receiver.retire(GRACE_SECONDS), f"retire {name}")
                _log.info("connector.closed", connector=name)
        changed = {name: each for name, each in wanted.items() if name not in running or running[name].reception.connector != each}
        moving = {name: running[name] for name in changed if name in running}
        while changed:
            free = [name for name, connector in changed.items() if not _is_taken(connector, name, moving)]
            for name in free:
                await self._place(changed.pop(name), moving.pop(name, None))
            if not free:  # they wait for each other's addresses: one gives up its own, and listens when the others have moved
                name, receiver = moving.popitem()
                await receiver.shut()
                receiver.reception.connector = changed.pop(name)
        self._tasks.spawn(self._rejoin(), "join addresses")
        self._context.peers.adopt_hosts(own_hosts(one.listen for one in connectors))

    async def _place(self, connector: ReceiveConnector, receiver: ReceiverServer | None) -> None:
        """Let it listen where it is to; `receiver` is the one that has its name already."""
        try:
            if receiver is None:
                await self.open(connector)
                return
            before = receiver.reception.connector.listen
            await receiver.move(connector)
            if receiver.is_listening:
                _log.info("connector.listening", connector=connector.name, address=str(receiver.address), before=str(before))
        except (ConfigurationError, OSError) as error:
            _log.error("connector.not_listening", connector=connector.name, reason=str(error))

    async def drain(self) -> None:
        """The node stops: refuse new mail, and wait for the end of open transactions."""
        await asyncio.gather(*(receiver.drain(GRACE_SECONDS) for receiver in self.receivers))

    def dismiss(self) -> None:
        """End the sessions of peers, after `drain`."""
        for receiver in self.receivers:
            receiver.dismiss()

    async def clients(self, limit: int) -> list[ClientView]:
        """Clients of all connectors, those who were refused most first."""
        found = await asyncio.gather(*(receiver.clients(limit) for receiver in self.receivers))
        return heaviest([client for clients in found for client in clients], limit)


def _is_taken(connector: ReceiveConnector, name: str, moving: Mapping[str, ReceiverServer]) -> bool:
    """Whether another connector has its address, and is about to leave it."""
    wanted = connector.listen
    present = [receiver.reception.connector.listen for other, receiver in moving.items() if other != name]
    return any(wanted.port == taken.port and is_one_address(wanted.host, taken.host) for taken in present)
