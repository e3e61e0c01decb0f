"""The next hop: takes mail, defers, refuses, and loses replies after the final dot, as the world's rng says."""

import asyncio
import hashlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

NETWORK_ID = re.compile(rb"^Received:(?:(?!^\S)[\s\S])*?\bid ([0-9a-f-]{36})", re.MULTILINE)
DSN_ID = re.compile(rb"^Message-ID: <([0-9a-f-]{36})", re.MULTILINE | re.IGNORECASE)
OWN = b"X-Sim: "


@dataclass(slots=True)
class Arrival:
    """One message that was taken for one recipient. `reply_read_at`: when the node got the 250, if ever."""

    at: float
    recipient: str
    message_id: str
    client_name: str
    client_host: str
    number: int | None  # of the client's message; None for what a node made
    own_sha256: str
    reply_read_at: float | None = None


@dataclass(slots=True)
class Behaviour:
    """Probabilities, per message or recipient."""

    refuse_dot: float = 0.02
    defer_dot: float = 0.06
    defer_recipient: float = 0.04
    lose_reply: float = 0.03
    late_reply: float = 0.03
    drop_session: float = 0.01


CALM = Behaviour(0, 0, 0, 0, 0, 0)


@dataclass(slots=True)
class Sink:
    """What arrived, and what was refused for good: (message id, recipient)."""

    chance: random.Random
    now: Callable[[], float]
    on_dot: Callable[[str, str], None] = lambda message_id, client_host: None
    on_arrival: Callable[[Arrival], None] = lambda arrival: None
    on_refusal: Callable[[str, str], None] = lambda message_id, recipient: None
    behaviour: Behaviour = field(default_factory=Behaviour)
    arrivals: list[Arrival] = field(default_factory=list)

    def factory(self) -> asyncio.Protocol:
        return _Session(self)

    def may(self, probability: float) -> bool:
        return self.chance.random() < probability


class _Session(asyncio.Protocol):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._buffer = b""
        self._in_data = False
        self._is_waiting = False
        self._client = ""
        self._recipients: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._host = transport.get_extra_info("peername")[0]
        self._say("220 sink.example ESMTP")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._go()

    def _say(self, line: str) -> None:
        if not self._transport.is_closing():
            self._transport.write(line.encode() + b"\r\n")

    def _go(self) -> None:
        while not self._is_waiting and not self._transport.is_closing():
            if self._in_data:
                if self._buffer.startswith(b".\r\n"):
                    content, rest = b"", self._buffer[3:]
                else:
                    content, found, rest = self._buffer.partition(b"\r\n.\r\n")
                    if not found:
                        return
                self._buffer, self._in_data = rest, False
                self._dot(content + b"\r\n")
                continue
            line, found, rest = self._buffer.partition(b"\r\n")
            if not found:
                return
            self._buffer = rest
            self._command(line.decode("latin-1"))

    def _command(self, line: str) -> None:
        sink = self._sink
        verb = line[:4].upper()
        if sink.may(sink.behaviour.drop_session):
            self._transport.abort()
        elif verb == "EHLO":
            self._client = line[5:].strip()
            self._say("250-sink.example\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SIZE 36000000")
        elif verb == "MAIL":
            self._recipients = []
            self._say("250 2.1.0 ok")
        elif verb == "RCPT":
            self._recipient(line.partition("<")[2].partition(">")[0])
        elif verb == "DATA":
            if self._recipients:
                self._in_data = True
                self._say("354 go on")
            else:
                self._say("503 5.5.1 no recipients")
        elif verb == "QUIT":
            self._say("221 2.0.0 bye")
            self._transport.close()
        else:
            self._say("250 2.0.0 ok")

    def _recipient(self, address: str) -> None:
        sink = self._sink
        if address.startswith("bad"):
            self._say("550 5.1.1 no such user")
        elif sink.may(sink.behaviour.defer_recipient):
            self._say("450 4.2.1 later")
        else:
            self._recipients.append(address)
            self._say("250 2.1.5 ok")

    def _dot(self, content: bytes) -> None:
        sink, behaviour = self._sink, self._sink.behaviour
        content = content.replace(b"\r\n..", b"\r\n.")
        message_id = _message_id(content)
        sink.on_dot(message_id, self._host)
        if sink.may(behaviour.refuse_dot):
            for recipient in self._recipients:
                sink.on_refusal(message_id, recipient)
            self._say("554 5.7.1 not this one")
            return
        if sink.may(behaviour.defer_dot):
            self._say("451 4.3.0 later")
            return
        arrivals = self._take(content, message_id)
        fate = sink.chance.random()
        if fate < behaviour.lose_reply:
            self._transport.abort()
            return
        if fate < behaviour.lose_reply + behaviour.late_reply:
            self._is_waiting = True
            asyncio.get_running_loop().call_later(sink.chance.uniform(0.5, 15.0), self._late, arrivals)
            return
        self._taken(arrivals)

    def _take(self, content: bytes, message_id: str) -> list[Arrival]:
        start = content.find(OWN, 0, content.find(b"\r\n\r\n"))
        own = content[start:] if start >= 0 else b""
        number = int(own[len(OWN) :].split(b"\r\n", 1)[0]) if own else None
        digest = hashlib.sha256(own).hexdigest()
        arrivals = [
            Arrival(self._sink.now(), recipient, message_id, self._client, self._host, number, digest) for recipient in self._recipients
        ]
        for arrival in arrivals:
            self._sink.arrivals.append(arrival)
            self._sink.on_arrival(arrival)
        return arrivals

    def _late(self, arrivals: list[Arrival]) -> None:
        self._is_waiting = False
        self._taken(arrivals)
        self._go()

    def _taken(self, arrivals: list[Arrival]) -> None:
        self._say("250 2.0.0 taken")
        socket = self._transport.get_extra_info("socket")
        stream = getattr(getattr(socket, "_sock", None), "_write_queue", None)
        if stream is None:
            return

        def read() -> None:
            for arrival in arrivals:
                arrival.reply_read_at = self._sink.now()

        stream.on_read.append((stream.written_count, read))


def _message_id(content: bytes) -> str:
    """The network message id: of the oldest Received line, or of a notification's own header."""
    header = content[: content.find(b"\r\n\r\n") + 2]
    if b"Auto-Submitted: auto-replied" in header and (made := DSN_ID.search(header)):
        return made.group(1).decode()
    ids = NETWORK_ID.findall(header)
    return ids[-1].decode() if ids else ""
