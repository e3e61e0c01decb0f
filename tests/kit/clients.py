"""An SMTP client that speaks raw octets, over any connection, in real or in virtual time."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Self

from shadowrelay.model.routing import HostPort
from tests.kit.clock import PATIENCE_SECONDS

HELLO = b"Subject: hello\r\n\r\nhello\r\n"
SENDER = "sender@client.example"
TO_DATA = ("EHLO client.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA")  # what `receiving` takes
_QUEUED_AS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Client:
    """Octets out, replies in. `has_sent_content`: a final dot is on its way, so that the server may have the message."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.has_sent_content = False

    @classmethod
    async def to(cls, address: HostPort) -> Self:
        """A new connection; nothing is read."""
        return cls(*await asyncio.open_connection(address.host, address.port))

    async def send(self, octets: bytes) -> None:
        self.writer.write(octets)
        await self.writer.drain()

    async def reply(self) -> str:
        """The next reply as it came, lines joined by a newline."""
        lines: list[str] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                line = (await self.reader.readuntil(b"\r\n")).decode()
                lines.append(line[:-2])
                if line[3] == " ":
                    return "\n".join(lines)

    async def replies(self, count: int) -> list[str]:
        return [await self.reply() for _ in range(count)]

    async def ask(self, text: str) -> str:
        """One command, its reply."""
        await self.send(text.encode() + b"\r\n")
        return await self.reply()

    async def begin(self, *commands: str, banner: str = "220 ") -> None:
        """Read the banner and give these commands; each is answered 2xx or 3xx."""
        assert (greeting := await self.reply()).startswith(banner), greeting
        for command in commands:
            reply = await self.ask(command)
            assert reply[0] in "23", (command, reply)

    async def mail(self, recipients: Sequence[str], content: bytes = HELLO, sender: str = SENDER) -> str:
        """One message. The reply to its final dot, or to the first command that is refused."""
        for command in (f"MAIL FROM:<{sender}>", *(f"RCPT TO:<{recipient}>" for recipient in recipients), "DATA"):
            if (reply := await self.ask(command))[0] not in "23":
                return reply
        stuffed = (b"\r\n" + content).replace(b"\r\n.", b"\r\n..")[2:]
        self.has_sent_content = True
        await self.send(stuffed + b".\r\n")
        return await self.reply()

    async def rest(self) -> str:
        """Everything up to the end of the connection, which must come."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await self.reader.read()).decode()

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        await self.writer.start_tls(context, server_hostname=name)
        # Python 3.11 leaves the reader with the old transport.
        self.reader._transport = self.writer.transport

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def talking_to(address: HostPort) -> AsyncIterator[Client]:
    """A client that has said EHLO."""
    client = await Client.to(address)
    try:
        await client.begin("EHLO client.example")
        yield client
    finally:
        await client.close()


async def submit(address: HostPort, *recipients: str, content: bytes = HELLO, sender: str = SENDER) -> str:
    """One message, which must be acknowledged. Its network message id."""
    async with talking_to(address) as client:
        reply = await client.mail(recipients, content, sender)
    assert reply.startswith("250 "), reply
    return queued_id(reply)


def queued_id(reply: str) -> str:
    """The network message id in the reply to a final dot."""
    found = _QUEUED_AS.search(reply)
    assert found is not None, reply
    return found[0]
