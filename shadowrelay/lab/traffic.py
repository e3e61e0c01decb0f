"""Clients that send numbered messages through a cluster, and a receiving server; both record what they see. docs/lab.md.

The clients use several nodes, retry on others, and record every reply (`Sent`). The receiving server is our own receiver: it records
arrivals (`Arrival`), or defers everything.
"""

import asyncio
import hashlib
import math
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from pathlib import Path

from shadowrelay.model.ids import NO_DATABASE, BoundaryName, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Content, Envelope, Recipient
from shadowrelay.model.ownership import StatusAnswer, StatusQuestion
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.receive_settings import ReceiveConnector
from shadowrelay.model.replies import DeliveryError, Reply, queued_as
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.pipeline.context import SystemClock
from shadowrelay.ports import DeliveryJob
from shadowrelay.rules.back_pressure import NO_PRESSURE
from shadowrelay.smtp.client import ConnectOptions
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.smtp.listener import ReceiverServer
from shadowrelay.smtp.outgoing_message import Limits
from shadowrelay.smtp.reception import Reception
from shadowrelay.smtp.resolver import DnsResolver

# ---- clients

RETRY_SECONDS = 0.2
_QUEUED = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class SubmissionResult(Enum):
    """The result of one submission for the client."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    NOTHING = "nothing"  # the connection broke, or no reply came: the node may have the message nevertheless


@dataclass(frozen=True, slots=True)
class Submission:
    """One try. Units: `at` is time.time, when the reply (or its absence) was known; `began_at` when the try began, 0 if unknown."""

    at: float
    node: str
    answer: SubmissionResult
    network_id: str = ""
    began_at: float = 0.0


@dataclass(slots=True)
class Sent:
    """One message of a client and all its tries. `own_sha256` is the hash of its content."""

    number: int
    internet_message_id: str
    recipients: tuple[str, ...]
    own_sha256: str
    tries: list[Submission] = field(default_factory=list)

    @property
    def acknowledged_ids(self) -> list[str]:
        """Network message ids that a node acknowledged with 250."""
        return [one.network_id for one in self.tries if one.answer is SubmissionResult.ACKNOWLEDGED]


def one_recipient(number: int) -> tuple[str, ...]:
    """One of fifty addresses."""
    return (f"user{number % 50}@corp.example",)


class Load:
    """A bounded number of messages; `stop` ends it early. Messages are retried while every node refuses.

    Shapes: `recipients` returns those of each message by its number, from 1. `on_acknowledged` is called with the node's name
    as soon as its 250 arrives. `keeps_sessions`: else each try is one transaction; in a kept session that is refused, it may be several.
    Units: `patience` in seconds for each reply, a half more for the last.
    """

    def __init__(
        self,
        nodes: dict[str, HostPort],
        chance: random.Random,
        *,
        size: int = 4096,
        sessions: int = 10,
        recipients: Callable[[int], tuple[str, ...]] = one_recipient,
        patience: float = 8.0,
        keeps_sessions: bool = True,
    ) -> None:
        self.nodes = nodes
        self.sent: list[Sent] = []
        self._chance = chance
        self._size = size
        self._sessions = sessions
        self._recipients = recipients
        self.on_acknowledged: Callable[[str], None] = lambda node: None
        self._is_stopped = False
        self._keeps_sessions = keeps_sessions
        self._make_client = partial(
            SmtpDeliverer,
            ConnectOptions("client.example", connect_seconds=2.0, greeting_seconds=patience, command_seconds=patience),
            DnsResolver(("client.example",), (HostPort("127.0.0.1", 9),)),
            concurrency_per_destination=sessions,
            connection_inactivity_timeout=timedelta(seconds=30),
            limits=Limits(patience, patience, patience, 1.5 * patience),
        )
        self._client = self._make_client()

    def stop(self) -> None:
        """Start no further message, and no further try."""
        self._is_stopped = True

    async def close(self) -> None:
        """End the clients' sessions."""
        await self._client.close()

    async def run(self, count: int, *, rate: float, on_sent: Callable[[], None] = lambda: None) -> None:
        """Send `count` messages, started at `rate` a second, each until a node answers 250 or the load is stopped."""
        slots = asyncio.Semaphore(self._sessions)
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for index in range(count):
                if self._is_stopped:
                    break
                await asyncio.sleep(max(0.0, began + index / rate - time.monotonic()))
                await slots.acquire()
                group.create_task(self._one(slots, on_sent))

    async def _one(self, slots: asyncio.Semaphore, on_sent: Callable[[], None]) -> None:
        try:
            await self._send(self._new())
            on_sent()
        finally:
            slots.release()

    def _new(self) -> Sent:
        number = len(self.sent) + 1
        message_id = f"<{number}.{self._chance.getrandbits(64):x}@client.example>"
        sent = Sent(number, message_id, self._recipients(number), "")
        self.sent.append(sent)
        return sent

    async def _send(self, sent: Sent) -> None:
        data = self._content(sent)
        sent.own_sha256 = hashlib.sha256(data).hexdigest()
        content = Content(len(data), hashlib.sha256(data).digest(), data)
        recipients = tuple(Recipient(address) for address in sent.recipients)
        envelope = Envelope(MessageId(""), "sender@client.example", recipients, datetime.now(UTC))
        order: Sequence[str] = ()
        while not self._is_stopped:
            order = [name for name in order if name in self.nodes]  # they may be others since
            if not order:
                order = self._chance.sample(sorted(self.nodes), len(self.nodes))
            name, order = order[0], order[1:]
            submission = await self._submit(name, envelope, content)
            sent.tries.append(submission)
            if submission.answer is SubmissionResult.ACKNOWLEDGED:
                self.on_acknowledged(name)
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _submit(self, name: str, envelope: Envelope, content: Content) -> Submission:
        address = self.nodes[name]
        began_at = time.time()
        client = self._client if self._keeps_sessions else self._make_client()
        try:
            destination = Destination(str(address), (address,))

            async def read_content() -> Content:
                return content

            job = DeliveryJob(destination, envelope, envelope.ordinals, b"", read_content, lambda: True, lambda: math.inf)
            report = await client.deliver(job)
        except DeliveryError as error:
            return Submission(time.time(), name, SubmissionResult.NOTHING if error.dot_sent_unanswered else SubmissionResult.REFUSED)
        finally:
            if client is not self._client:
                await client.close()
        found = _QUEUED.search(report.replies[1].text)
        if all(reply.is_positive for reply in report.replies.values()) and found is not None:
            return Submission(time.time(), name, SubmissionResult.ACKNOWLEDGED, found.group(), began_at)
        return Submission(time.time(), name, SubmissionResult.NOTHING if report.dot_sent_unanswered else SubmissionResult.REFUSED)

    def _content(self, sent: Sent) -> bytes:
        head = (
            f"X-Lab: {sent.number}\r\nFrom: sender@client.example\r\nTo: {', '.join(sent.recipients)}\r\nSubject: message {sent.number}\r\n"
            f"Message-ID: {sent.internet_message_id}\r\nDate: Sat, 21 Nov 2026 12:00:00 +0000\r\n\r\n"
        )
        line = "All work and no copy makes a relay a dull server. " * 1 + "\r\n"
        return (head + line * max(1, (self._size - len(head)) // len(line))).encode()


# ---- the receiving server

DEFERRED = Reply(451, "4.3.2", "The receiving server takes nothing now")

_NETWORK_ID = re.compile(rb"^Received:(?:(?!^\S)[\s\S])*?\bid ([0-9a-f-]{36})", re.MULTILINE)
_PROMOTED = b"ShadowRedundancy"


@dataclass(frozen=True, slots=True)
class Arrival:
    """The arrival of one message for one recipient.

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
    is_resubmitted: bool = False  # from Safety Net


class Sink:
    """The receiving server. `is_deferring` refuses all content with a 4xx. `arrivals` in order. Accepts mail on `host` from `network`;
    without a `port`, on a free one."""

    def __init__(self, host: str = "127.0.0.1", network: str = "127.0.0.0/8", port: int = 0) -> None:
        self.arrivals: list[Arrival] = []
        self.is_deferring = False
        self.decide: Callable[[Envelope], Reply | None] = lambda envelope: None
        self._spool = tempfile.TemporaryDirectory(prefix="shadowrelay-sink-")
        values = {"name": "sink", "listen": f"{host}:{port}", "relay_from": [network], "max_sessions_per_address": 5000}
        connector = ReceiveConnector.model_validate(values)
        name, boundary, spool = ServerName("sink.example"), BoundaryName("sink"), Path(self._spool.name)
        reception = Reception(name, boundary, connector, {}, self, _NoPeers(), SystemClock(), spool, is_advertised=False)
        self._server = ReceiverServer(reception)

    async def start(self) -> HostPort:
        """Listen; returns the address."""
        await self._server.start()
        return self._server.address

    async def close(self) -> None:
        """End all sessions."""
        await self._server.close()
        self._spool.cleanup()

    pressure = NO_PRESSURE

    def refusal(self, *, is_inside: bool) -> Reply | None:
        """See `smtp.reception.Acceptor`. None, because content is refused instead, as by a server whose store is down."""
        return None

    async def accept(self, envelope: Envelope, content: Content) -> Reply:
        """See `smtp.reception.Acceptor`."""
        refusal = DEFERRED if self.is_deferring else self.decide(envelope)
        if refusal is not None:
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
    """A `PeerRequests` without peers."""

    position = 0

    def own_identity(self, listener: ServerName, database: DatabaseId = NO_DATABASE) -> PeerIdentity:
        raise NotImplementedError

    def refusal(self, identity: PeerIdentity) -> Reply | None:
        return None

    async def second_server(self, identity: PeerIdentity, address: str, began_at: float, *, is_dialed: bool = False) -> str:
        return ""

    async def greeted(self, identity: PeerIdentity) -> PeerIdentity:
        raise NotImplementedError

    def offers_track(self) -> bool:
        return False

    def offers_hold(self) -> bool:
        return False

    async def hold(self, peer: PeerIdentity, offer: CopyOffer) -> Reply:
        raise NotImplementedError

    async def track(self, peer: PeerIdentity, offer: CopyOffer, began_awake: float) -> Reply:
        raise NotImplementedError

    async def discards(self, peer: PeerIdentity, maximum: int, acknowledged: int | None) -> DiscardReply:
        raise NotImplementedError

    async def status(self, peer: PeerIdentity, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        raise NotImplementedError

    def heard(self, server: ServerName, database: DatabaseId) -> None:
        raise NotImplementedError

    def proved(self, server: ServerName, database: DatabaseId, answered_awake: float) -> None:
        raise NotImplementedError
