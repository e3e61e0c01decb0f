"""A receiving server for the lab: real SMTP by our own receiver, which writes down what arrives, or defers everything."""

import hashlib
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shadowrelay.model.ids import BoundaryName, DatabaseId, ServerName
from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.replies import Reply, queued_as
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import ReceiveConnector
from shadowrelay.service.clock import SystemClock
from shadowrelay.smtp.server import ReceiverServer
from shadowrelay.smtp.session import Reception

DEFERRED = Reply(451, "4.3.2", "The receiving server takes nothing now")

_NETWORK_ID = re.compile(rb"^Received:(?:(?!^\S)[\s\S])*?\bid ([0-9a-f-]{36})", re.MULTILINE)
_PROMOTED = b"ShadowRedundancy"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message that arrived for one recipient.

    Shapes: `network_ids` of the Received lines, newest first, without ours; `own_sha256` of the bytes after the nodes'
    trace headers. Units: `at` is time.time.
    """

    at: float
    recipient: str
    network_id: str
    internet_message_id: str
    client_name: str
    is_promoted: bool
    own_sha256: str


class Sink:
    """`is_deferring` refuses all content with a 4xx. `arrivals` in order. Listens on `host` for mail from `network`."""

    def __init__(self, host: str = "127.0.0.1", network: str = "127.0.0.0/8") -> None:
        self.arrivals: list[Arrival] = []
        self.is_deferring = False
        self.deferred_count = 0
        self.decide: Callable[[Envelope], Reply | None] = lambda envelope: None
        self._spool = tempfile.TemporaryDirectory(prefix="shadowrelay-sink-")
        values = {"name": "sink", "listen": f"{host}:0", "relay_from": [network], "max_sessions_per_address": 5000}
        connector = ReceiveConnector.model_validate(values)
        name, boundary, spool = ServerName("sink.example"), BoundaryName("sink"), Path(self._spool.name)
        reception = Reception(name, boundary, connector, {}, self, _NoPeers(), SystemClock(), spool, is_advertised=False)
        self._server = ReceiverServer(reception)

    async def start(self) -> HostPort:
        """Listen on a free port."""
        await self._server.start()
        return self._server.address

    async def close(self) -> None:
        """End all sessions."""
        await self._server.close()
        self._spool.cleanup()

    def refusal(self) -> Reply | None:
        """See `ports.Acceptor`: the content is what is refused, as by a server whose store is down."""
        return None

    async def accept(self, envelope: Envelope, content: Content) -> Reply:
        """See `ports.Acceptor`."""
        refusal = DEFERRED if self.is_deferring else self.decide(envelope)
        if refusal is not None:
            self.deferred_count += 1
            return refusal
        data = content.data if content.data is not None else content.path.read_bytes() if content.path is not None else b""
        at = time.time()
        ids = [found.decode() for found in _NETWORK_ID.findall(data[: 64 * 1024])][1:]  # the first is this server's own
        own = data[data.index(b"X-Lab:") :] if b"X-Lab:" in data else data
        digest = hashlib.sha256(own).hexdigest()
        for recipient in envelope.recipients:
            name, is_promoted = envelope.client_name, _PROMOTED in data[:8192]
            network_id = ids[-1] if ids else ""
            self.arrivals.append(Arrival(at, recipient.address, network_id, envelope.internet_message_id, name, is_promoted, digest))
        return queued_as(envelope.message_id)


class _NoPeers:
    """A receiving server has no peers."""

    position = 0

    def own_identity(self, listener: ServerName) -> PeerIdentity:
        raise NotImplementedError

    def refusal(self, identity: PeerIdentity) -> Reply | None:
        return None

    async def greeted(self, identity: PeerIdentity) -> None:
        raise NotImplementedError

    def offers_hold(self) -> bool:
        return False

    async def hold(self, peer: PeerIdentity, offer: CopyOffer) -> Reply:
        raise NotImplementedError

    async def discards(self, peer: PeerIdentity, maximum: int, acknowledged: int | None) -> DiscardReply:
        raise NotImplementedError

    async def status(self, peer: PeerIdentity, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        raise NotImplementedError

    def heard(self, server: ServerName, database: DatabaseId) -> None:
        raise NotImplementedError

    def proved(self, server: ServerName, database: DatabaseId, answered_awake: float) -> None:
        raise NotImplementedError
