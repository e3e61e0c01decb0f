"""Clients: send numbered messages, try again elsewhere when refused or left without an answer, and remember every answer."""

import asyncio
import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from shadowrelay.model.routing import HostPort
from tests.simulation.network import Network

QUEUED = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CLIENT_HOST = "10.0.8.1"
ANSWER_SECONDS = 60.0


class Answer(Enum):
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    NOTHING = "nothing"


@dataclass(slots=True)
class Try:
    at: float
    host: str
    answer: Answer
    message_id: str = ""


@dataclass(slots=True)
class Sent:
    """One message and all its tries."""

    number: int
    sender: str
    recipients: tuple[str, ...]
    own_sha256: str
    content: bytes
    tries: list[Try] = field(default_factory=list)

    @property
    def acknowledged(self) -> str:
        """Its network message id, or nothing."""
        return next((one.message_id for one in self.tries if one.answer is Answer.ACKNOWLEDGED), "")


class Clients:
    """Each message is a task of the world."""

    def __init__(self, network: Network, hosts: Sequence[str], chance: random.Random, note: Callable[[str], None]) -> None:
        self._network, self.hosts, self._chance, self._note = network, hosts, chance, note
        self.sent: list[Sent] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_giving_up = False

    def send(self) -> None:
        """One more message."""
        number = len(self.sent) + 1
        chance = self._chance
        recipients = [f"user{number}@corp.example"]
        if chance.random() < 0.35:
            recipients.append(f"user{number}@branch.example")
        if chance.random() < 0.08:
            recipients.append(f"bad{number}@corp.example")
        sender = "" if chance.random() < 0.1 else f"sender{number}@home.example"
        body = bytes(chance.choices(b"abcdefghij klmnop", k=chance.choice((10, 300, 5000))))
        lines = b"\r\n".join(body[start : start + 70] for start in range(0, len(body), 70))
        if chance.random() < 0.2:
            lines += b"\r\n.\r\n..leading dots\r\n."
        content = b"X-Sim: %d\r\nMessage-ID: <%d@client.example>\r\nSubject: %d\r\n\r\n%s\r\n" % (number, number, number, lines)
        one = Sent(number, sender, tuple(recipients), hashlib.sha256(content).hexdigest(), content)
        self.sent.append(one)
        task = asyncio.get_running_loop().create_task(self._deliver(one))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _deliver(self, one: Sent) -> None:
        loop = asyncio.get_running_loop()
        for attempt in range(6):
            host = self._chance.choice(self.hosts)
            answer, message_id = await self._try(one, host)
            one.tries.append(Try(loop.time(), host, answer, message_id))
            self._note(f"client: message {one.number} to {host}: {answer.value} {message_id}")
            if answer is Answer.ACKNOWLEDGED or self.is_giving_up:
                return
            await asyncio.sleep(self._chance.uniform(0.5, 4.0) * (attempt + 1))

    async def _try(self, one: Sent, host: str) -> tuple[Answer, str]:
        connection = None
        try:
            async with asyncio.timeout(10.0):
                connection = await self._network.dial(CLIENT_HOST, HostPort(host, 25))
                reader, writer = await asyncio.open_connection(sock=connection)
        except (OSError, TimeoutError):
            if connection is not None:
                connection.close()
            return Answer.REFUSED, ""
        is_sent = False
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await _reply(reader)
                recipients = [f"RCPT TO:<{recipient}>" for recipient in one.recipients]
                for line in ("EHLO client.example", f"MAIL FROM:<{one.sender}>", *recipients, "DATA"):
                    writer.write(line.encode() + b"\r\n")
                    if (code_text := await _reply(reader))[0] not in "23":
                        return Answer.REFUSED, code_text
                data = one.content.replace(b"\r\n.", b"\r\n..")
                is_sent = True
                writer.write(data + b".\r\n")
                text = await _reply(reader)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return (Answer.NOTHING if is_sent else Answer.REFUSED), ""
        finally:
            writer.close()
        if text[0] != "2":
            return Answer.REFUSED, text
        found = QUEUED.search(text)
        assert found is not None, text
        return Answer.ACKNOWLEDGED, found.group(0)


async def _reply(reader: asyncio.StreamReader) -> str:
    while True:
        line = (await reader.readuntil(b"\r\n")).decode()
        if line[3] != "-":
            return line.strip()
