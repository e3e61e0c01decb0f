"""The next hop: takes mail, defers, refuses, and loses replies after the final dot, as the world's rng says."""

import asyncio
import hashlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.kit.smtp_servers import CLOSE, ScriptedServer, Session

NETWORK_ID = re.compile(rb"^Received:(?:(?!^\S)[\s\S])*?\bid ([0-9a-f-]{36})", re.MULTILINE)
DSN_ID = re.compile(rb"^Message-ID: <(?:journal\.)?([0-9a-f-]{36})", re.MULTILINE | re.IGNORECASE)
OWN = b"X-Sim: "
TAKEN = "250 2.0.0 taken"


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


class RecordingSink(ScriptedServer):
    """What arrived, and what was refused for good: (message id, recipient)."""

    def __init__(self, chance: random.Random, now: Callable[[], float]) -> None:
        super().__init__(extensions=("PIPELINING", "8BITMIME", "SIZE 36000000"))
        self.chance, self.now = chance, now
        self.on_dot: Callable[[str, str], None] = lambda message_id, client_host: None
        self.on_arrival: Callable[[Arrival], None] = lambda arrival: None
        self.on_refusal: Callable[[str, str], None] = lambda message_id, recipient: None
        self.behaviour = Behaviour()
        self.arrivals: list[Arrival] = []

    def may(self, probability: float) -> bool:
        return self.chance.random() < probability

    async def answer(self, verb: str, session: Session, default: str) -> str:
        if verb == "DOT":
            return await self._dot(session)
        if verb != "GREETING" and self.may(self.behaviour.drop_session):
            return CLOSE
        if verb == "RCPT":
            if session.address.startswith("bad"):
                return "550 5.1.1 no such user"
            return "450 4.2.1 later" if self.may(self.behaviour.defer_recipient) else default
        return "503 5.5.1 no recipients" if verb == "DATA" and not session.recipients else default

    async def _dot(self, session: Session) -> str:
        behaviour, content = self.behaviour, session.content
        message_id = _message_id(content)
        self.on_dot(message_id, session.host)
        if self.may(behaviour.refuse_dot):
            for recipient in session.recipients:
                self.on_refusal(message_id, recipient)
            return "554 5.7.1 not this one"
        if self.may(behaviour.defer_dot):
            return "451 4.3.0 later"
        start = content.find(OWN, 0, content.find(b"\r\n\r\n"))
        own = content[start:] if start >= 0 else b""
        number = int(own[len(OWN) :].split(b"\r\n", 1)[0]) if own else None
        digest = hashlib.sha256(own).hexdigest()
        arrivals = [
            Arrival(self.now(), recipient, message_id, session.client, session.host, number, digest) for recipient in session.recipients
        ]
        for arrival in arrivals:
            self.arrivals.append(arrival)
            self.on_arrival(arrival)
        fate = self.chance.random()
        if fate < behaviour.lose_reply:
            return CLOSE
        if fate < behaviour.lose_reply + behaviour.late_reply:
            await asyncio.sleep(self.chance.uniform(0.5, 15.0))
        self._note_when_read(session, TAKEN, arrivals)
        return TAKEN

    def _note_when_read(self, session: Session, reply: str, arrivals: list[Arrival]) -> None:
        socket = session.writer.get_extra_info("socket")
        stream = getattr(getattr(socket, "_sock", None), "_write_queue", None)
        if stream is None:
            return

        def read() -> None:
            for arrival in arrivals:
                arrival.reply_read_at = self.now()

        stream.on_read.append((stream.written_count + len(reply) + 2, read))


def _message_id(content: bytes) -> str:
    """The network message id: of the oldest Received line, or of a notification's own header."""
    header = content[: content.find(b"\r\n\r\n") + 2]
    if b"Auto-Submitted: auto-" in header and (made := DSN_ID.search(header)):
        return made.group(1).decode()
    ids = NETWORK_ID.findall(header)
    return ids[-1].decode() if ids else ""
