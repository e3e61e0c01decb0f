"""Clients: send numbered messages, try again elsewhere when refused or left without an answer, and remember every answer."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shadowrelay.lab.traffic import Submission, SubmissionResult
from shadowrelay.model.ids import MessageId
from shadowrelay.model.routing import HostPort
from tests.kit.clients import Client, queued_id
from tests.simulation.network import Network

CLIENT_HOST = "10.0.8.1"
ANSWER_SECONDS = 60.0
ELSEWHERE_SHARE = 0.1


@dataclass(slots=True)
class Sent:
    """One message and all its tries; `node` of a try is a host, and `network_id` of one that was refused is the reply."""

    number: int
    sender: str
    recipients: tuple[str, ...]
    own_sha256: str
    content: bytes
    tries: list[Submission] = field(default_factory=list)

    @property
    def acknowledged(self) -> str:
        """Its network message id, or nothing."""
        return next((one.network_id for one in self.tries if one.answer is SubmissionResult.ACKNOWLEDGED), "")


class Clients:
    """Each message is a task of the world."""

    def __init__(self, network: Network, hosts: Sequence[str], chance: random.Random, note: Callable[[str], None]) -> None:
        self._network, self.hosts, self._chance, self._note = network, hosts, chance, note
        self.sent: list[Sent] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_giving_up = False
        self.on_acknowledged: Callable[[str, MessageId], None] = lambda host, message_id: None
        self.elsewhere: random.Random | None = None  # decides which messages are sent again to another node, as if the 250 had been lost
        self.refused_share = 0.08  # of messages, that have a recipient whom the next hop refuses

    def send(self, to: str = "") -> None:
        """One more message; first to this host."""
        number = len(self.sent) + 1
        chance = self._chance
        recipients = [f"user{number}@corp.example"]
        if chance.random() < 0.35:
            recipients.append(f"user{number}@branch.example")
        if chance.random() < self.refused_share:
            recipients.append(f"bad{number}@corp.example")
        sender = "" if chance.random() < 0.1 else f"sender{number}@home.example"
        body = bytes(chance.choices(b"abcdefghij klmnop", k=chance.choice((10, 300, 5000))))
        lines = b"\r\n".join(body[start : start + 70] for start in range(0, len(body), 70))
        if chance.random() < 0.2:
            lines += b"\r\n.\r\n..leading dots\r\n."
        header = b"X-Sim: %d\r\nMessage-ID: <%d@client.example>\r\nSubject: %d\r\n" % (number, number, number)
        content = b"%sDate: Sun, 1 Mar 2026 12:00:00 +0000\r\n\r\n%s\r\n" % (header, lines)
        one = Sent(number, sender, tuple(recipients), hashlib.sha256(content).hexdigest(), content)
        self.sent.append(one)
        self.send_again(one, to)

    def send_again(self, one: Sent, to: str = "") -> None:
        """As a client does that never heard of its 250."""
        task = asyncio.get_running_loop().create_task(self._deliver(one, to))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _deliver(self, one: Sent, to: str) -> None:
        loop = asyncio.get_running_loop()
        for attempt in range(6):
            host = to if to and not attempt else self._chance.choice(self.hosts)
            answer, message_id = await self._try(one, host)
            one.tries.append(Submission(loop.time(), host, answer, message_id))
            self._note(f"client: message {one.number} to {host}: {answer.value} {message_id}")
            if answer is SubmissionResult.ACKNOWLEDGED:
                self.on_acknowledged(host, MessageId(message_id))
            if answer is SubmissionResult.ACKNOWLEDGED and not self.is_giving_up:
                await self._send_elsewhere(one, host)
            if answer is SubmissionResult.ACKNOWLEDGED or self.is_giving_up:
                return
            await asyncio.sleep(self._chance.uniform(0.5, 4.0) * (attempt + 1))

    async def _send_elsewhere(self, one: Sent, first: str) -> None:
        chance, others = self.elsewhere, [host for host in self.hosts if host != first]
        if chance is None or not others or chance.random() >= ELSEWHERE_SHARE:
            return
        await asyncio.sleep(chance.choice((0.0, 0.3, 1.5, 8.0)))
        await self.send_to(one, chance.choice(others))

    async def send_to(self, one: Sent, host: str) -> None:
        """Once more, and once only, to this host."""
        answer, message_id = await self._try(one, host)
        one.tries.append(Submission(asyncio.get_running_loop().time(), host, answer, message_id))
        self._note(f"client: message {one.number} again, to {host}: {answer.value} {message_id}")
        if answer is SubmissionResult.ACKNOWLEDGED:
            self.on_acknowledged(host, MessageId(message_id))

    async def _try(self, one: Sent, host: str) -> tuple[SubmissionResult, str]:
        connection = None
        try:
            async with asyncio.timeout(10.0):
                connection = await self._network.dial(CLIENT_HOST, HostPort(host, 25))
                reader, writer = await asyncio.open_connection(sock=connection)
        except (OSError, TimeoutError):
            if connection is not None:
                connection.close()
            return SubmissionResult.REFUSED, ""
        client = Client(reader, writer)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await client.reply()
                await client.ask("EHLO client.example")
                text = await client.mail(one.recipients, one.content, one.sender)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return (SubmissionResult.NOTHING if client.has_sent_content else SubmissionResult.REFUSED), ""
        finally:
            writer.close()
        return (SubmissionResult.ACKNOWLEDGED, queued_id(text)) if text[0] == "2" else (SubmissionResult.REFUSED, text)
