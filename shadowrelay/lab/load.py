"""Clients of the lab: send numbered messages to several nodes, try again elsewhere, and write down every answer."""

import asyncio
import hashlib
import math
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum

from shadowrelay.model.errors import DeliveryError
from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Content, Envelope, Recipient
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.ports import DeliveryJob
from shadowrelay.smtp.client import Opening
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.smtp.next_hop import Limits
from shadowrelay.smtp.resolver import DnsResolver

RETRY_SECONDS = 0.2
_QUEUED = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Answer(Enum):
    """What a client heard for one submission."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    NOTHING = "nothing"  # the connection broke, or no reply came: the node may have it all the same


@dataclass(frozen=True, slots=True)
class Submission:
    """One try. Units: `at` is time.time, when the answer (or its absence) was known; `began_at` when the try began, 0 if unknown."""

    at: float
    node: str
    answer: Answer
    network_id: str = ""
    began_at: float = 0.0


@dataclass(slots=True)
class Sent:
    """One message of a client and all its tries. `own_sha256` of its content."""

    number: int
    internet_message_id: str
    recipients: tuple[str, ...]
    own_sha256: str
    tries: list[Submission] = field(default_factory=list)

    @property
    def acknowledged_ids(self) -> list[str]:
        """Network message ids that a node said 250 to."""
        return [one.network_id for one in self.tries if one.answer is Answer.ACKNOWLEDGED]


def one_recipient(number: int) -> tuple[str, ...]:
    """One of fifty."""
    return (f"user{number % 50}@corp.example",)


class Load:
    """Bounded in count; `stop` ends it early. Messages whose turn comes while every node refuses are tried again.

    Shapes: `recipients` gives those of each message by its number, from 1. `on_acknowledged` is called with the node's name
    at the very moment of its 250.
    """

    def __init__(
        self,
        nodes: dict[str, HostPort],
        chance: random.Random,
        *,
        size: int = 4096,
        sessions: int = 10,
        recipients: Callable[[int], tuple[str, ...]] = one_recipient,
    ) -> None:
        self.nodes = nodes
        self.sent: list[Sent] = []
        self._chance = chance
        self._size = size
        self._sessions = sessions
        self._recipients = recipients
        self.on_acknowledged: Callable[[str], None] = lambda node: None
        self._is_stopped = False
        self._client = SmtpDeliverer(
            Opening("client.example", connect_seconds=2.0, greeting_seconds=8.0, command_seconds=8.0),
            DnsResolver(("client.example",), (HostPort("127.0.0.1", 9),)),
            concurrency_per_destination=sessions,
            connection_inactivity_timeout=timedelta(seconds=30),
            limits=Limits(8.0, 8.0, 8.0, 12.0),
        )

    def stop(self) -> None:
        """No further message, and no further try."""
        self._is_stopped = True

    async def close(self) -> None:
        """End the clients' sessions."""
        await self._client.close()

    async def run(self, count: int, *, rate: float, on_sent: Callable[[], None] = lambda: None) -> None:
        """Send `count` messages, begun at `rate` a second, each until a node has said 250 or the load is stopped."""
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
            if not order:
                order = self._chance.sample(sorted(self.nodes), len(self.nodes))
            name, order = order[0], order[1:]
            submission = await self._submit(name, envelope, content)
            sent.tries.append(submission)
            if submission.answer is Answer.ACKNOWLEDGED:
                self.on_acknowledged(name)
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _submit(self, name: str, envelope: Envelope, content: Content) -> Submission:
        address = self.nodes[name]
        began_at = time.time()
        try:
            destination = Destination(str(address), (address,))

            async def read_content() -> Content:
                return content

            job = DeliveryJob(destination, envelope, envelope.ordinals, b"", read_content, lambda: True, lambda: math.inf)
            report = await self._client.deliver(job)
        except DeliveryError as error:
            return Submission(time.time(), name, Answer.NOTHING if error.dot_sent_unanswered else Answer.REFUSED)
        found = _QUEUED.search(report.replies[1].text)
        if all(reply.is_positive for reply in report.replies.values()) and found is not None:
            return Submission(time.time(), name, Answer.ACKNOWLEDGED, found.group(), began_at)
        return Submission(time.time(), name, Answer.NOTHING if report.dot_sent_unanswered else Answer.REFUSED)

    def _content(self, sent: Sent) -> bytes:
        head = (
            f"X-Lab: {sent.number}\r\nFrom: sender@client.example\r\nTo: {', '.join(sent.recipients)}\r\nSubject: message {sent.number}\r\n"
            f"Message-ID: {sent.internet_message_id}\r\nDate: Sat, 21 Nov 2026 12:00:00 +0000\r\n\r\n"
        )
        line = "All work and no copy makes a relay a dull server. " * 1 + "\r\n"
        return (head + line * max(1, (self._size - len(head)) // len(line))).encode()
