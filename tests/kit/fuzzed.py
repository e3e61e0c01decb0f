"""Sessions of clients that say anything. Strangers and peers have a grammar each, and most of their words are right: they get deep.

A client writes its lines in groups, cut anywhere, and reads what comes. What it says depends on its seed only.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import math
import random
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shadowrelay.lab.cluster import NodeProcess
from shadowrelay.model.routing import HostPort
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.processes import a_node_process

PEER, STRANGER, FRIEND = "127.0.0.1", "127.0.0.2", "127.0.0.3"
CONNECTOR = f"""
externally_secured = ["{PEER}/32"]
relay_from = ["{FRIEND}/32"]
max_protocol_errors = 25
redundancy = "both"
max_acknowledgement_delay = "0s"
connection_inactivity_timeout = "8s"
connection_timeout = "20s"
"""
TABLES = """
[[peers]]
name = "b.example"
site = "west"
boundary = "corp"
address = "127.0.0.1:9"

[transport]
reject_message_on_shadow_failure = false
max_copies_per_peer = 1000
"""
REPLY = re.compile(rb"[2-5][0-9]{2}[ -][\x20-\x7e]*")
JUNK = [
    b"", b"\x00", b"\xff\xfe", b"\x80", "ü".encode(), b"\x1b[2J", b"<", b">", b"@", b"=", b" ", b"\t", b"%",
    b"!", b'"', b"\\", b"-1", b"0", b"1e9",
    b"9" * 21, b"9" * 4301, b"x" * 300, b"x" * 9000, b"[127.0.0.1]", b"[IPv6:::1]", b"..",
    b"\xe2\x80\xae", b"NaN", b"None", b"{}", b"[" * 500,
]  # fmt: skip
BREAKS = [b"\r", b"\n", b"\n\r", b"\r\r\n", b"\x0b", b"\x0c"]


class Whole(bytes):
    """Octets that no line end follows: contents, and blocks of questions."""


Said = list[bytes]


@dataclass
class Tally:
    """What all clients did and got."""

    commands_count: int = 0
    sessions_count: int = 0
    accepted_count: int = 0
    held_count: int = 0
    replies: dict[bytes, int] = field(default_factory=dict)
    malformed: list[bytes] = field(default_factory=list)  # replies that are none
    stuck: list[str] = field(default_factory=list)  # sessions that did not end


def garbled(chance: random.Random, line: bytes, share: float) -> bytes:
    """With this probability something in it is wrong."""
    if chance.random() >= share:
        return line
    at, junk = chance.randrange(len(line) + 1), chance.choice(JUNK)
    match chance.randrange(6):
        case 0:
            return line[:at] + junk + line[at:]
        case 1:
            return line[:at] + junk + line[at + chance.randrange(1, 9) :]
        case 2:
            return line[:at]
        case 3:
            return line[at:] + line[:at]
        case 4:
            return line[:at] + bytes([chance.randrange(256)]) + line[at + 1 :]
        case _:
            return line + b" " + junk


def address(chance: random.Random) -> bytes:
    return chance.choice([
        b"a@x.example", b"user@here.example", b"nobody@here.example", b'"a b"@here.example', b"a%b@here.example", b"postmaster", b"",
        b"@here.example:a@x.example", b"b!a@here.example", b"a@[10.0.0.1]", "ü@here.example".encode(), b"x" * 70 + b"@here.example",
    ])  # fmt: skip


def content(chance: random.Random) -> bytes:
    """With its final dot; now and then with what must not end it."""
    lines = [
        b"Subject: x",
        b"Message-ID: <%d@x.example>" % chance.getrandbits(64),
        b"Date: Fri, 27 Nov 2026 12:00:00 +0000",
        b"Received: by x",
    ]
    chance.shuffle(lines)
    lines = lines[: chance.randrange(5)] + [b""] * chance.randrange(2)
    lines += [
        garbled(chance, chance.choice([b"body", b"..", b"From x", b"=?utf-8?b?/w==?=", b"x" * 1500]), 0.3)
        for _ in range(chance.randrange(6))
    ]
    end = b"\r\n.\r\n" if chance.random() < 0.97 else chance.choice(BREAKS) + b".\r\n"
    return Whole(b"\r\n".join(lines) + end)


def of_a_stranger(chance: random.Random) -> Said:
    """Transactions, and all that stands beside them."""
    said: Said = [b"EHLO client.example"]
    for _ in range(chance.randrange(1, 8)):
        if chance.random() < 0.35:
            words = [
                b"NOOP", b"RSET", b"HELP", b"VRFY a@here.example", b"EXPN list", b"STARTTLS", b"AUTH PLAIN AGEAYg==", b"HELO x",
                b"EHLO [1.2.3.4]",
                b"XCLIENT ADDR=10.0.0.1", b"XFORWARD NAME=x", b"BDAT 5 LAST", b"DATA", b"RCPT TO:<user@here.example>",
                b"ETRN x",
                b"XSHADOW server=b", b"XQDISCARD 400",
                b"MAIL FROM:<> XSHADOW=HOLD:%s:1.1" % str(uuid.UUID(int=chance.getrandbits(128))).encode(), b"QUIT now",
            ]  # fmt: skip
            said.append(garbled(chance, chance.choice(words), 0.3))
            continue
        parameters = chance.sample(
            [b"SIZE=%d" % chance.choice([1, 10**9]), b"BODY=8BITMIME", b"SMTPUTF8", b"RET=HDRS", b"ENVID=x+2B"], chance.randrange(3)
        )
        said.append(garbled(chance, b" ".join([b"MAIL FROM:<%s>" % address(chance), *parameters]), 0.2))
        for _ in range(chance.randrange(1, 5)):
            parameter = chance.choice([b"", b"", b" NOTIFY=SUCCESS,DELAY", b" NOTIFY=NEVER", b" ORCPT=rfc822;a+40b", b" ORCPT=x"])
            said.append(garbled(chance, b"RCPT TO:<%s>%s" % (address(chance), parameter), 0.2))
        if chance.random() < 0.8:
            said += [b"DATA", content(chance)]
    return [*said, b"QUIT"] if chance.random() < 0.7 else said


def of_a_peer(chance: random.Random) -> Said:
    """Copies, notifications and questions, and now and then mail."""
    # one in twenty is another server's of that name, and is refused
    database = uuid.UUID(int=0x4000 << 64 | 1 << 63 | (0 if chance.randrange(20) else chance.randrange(1, 4)))
    hello = f"XSHADOW server=b.example boundary=corp database={database} incarnation=1 began=1 position={chance.randrange(1, 99)} span=60"
    said: Said = [b"EHLO b.example", garbled(chance, hello.encode(), 0.1)]
    for _ in range(chance.randrange(1, 8)):
        number = f"{chance.randrange(1, 4)}.{chance.randrange(0, 4)}"
        message = uuid.UUID(int=0x4000 << 64 | 1 << 63 | chance.getrandbits(12))
        match chance.randrange(10):
            case 0 | 1:
                said.append(garbled(chance, f"XQDISCARD {chance.randrange(500)} {chance.randrange(9)}".encode(), 0.4))
            case 2 | 3:
                said.append(garbled(chance, f"XQDISCARD STATUS {message}:{number}.{database}".encode(), 0.4))
            case 4:
                block = b"".join(
                    garbled(chance, f"{message}:{number}.{database}".encode(), 0.2) + b"\r\n" for _ in range(chance.randrange(5))
                )
                said.append(garbled(chance, b"XQDISCARD STATUS BDAT %d" % len(block), 0.1))
                said.append(Whole(block))
            case 5:
                said += of_a_stranger(chance)[1:]
            case 6:
                said.append(
                    garbled(
                        chance, chance.choice([b"NOOP", b"RSET", hello.encode(), b"BDAT 3\r\nabc", b"XSHADOW COMMIT size=1 sha256=0"]), 0.3
                    )
                )
            case _:
                said += a_copy(chance, message, number)
    return [*said, b"QUIT"] if chance.random() < 0.7 else said


def a_copy(chance: random.Random, message: uuid.UUID, number: str) -> Said:
    kind = chance.choice(["HOLD", "HOLD", "HOLD", "TRACK"])
    said = [garbled(chance, f"MAIL FROM:<a@x.example> XSHADOW={kind}:{message}:{number}".encode(), 0.1)]
    good = b"user@here.example"
    said += [
        garbled(chance, b"RCPT TO:<%s>" % (address(chance) if chance.random() < 0.2 else good), 0.05) for _ in range(chance.randrange(1, 4))
    ]
    values: dict[str, object] = {
        "arrived": "2026-11-27T12:00:00.000000Z", "client_address": "10.0.0.1", "client_name": "c.example", "connector": "in",
        "internet_message_id": f"<{message}@x.example>", "subject": "x", "original_client": "ADDR=203.0.113.5 BY=10.0.0.1",
    }  # fmt: skip
    if chance.random() < 0.3:
        name = chance.choice([*values, "date", "fingerprint", "relayed_from", "resubmitted_from", "ret", "envid", "done"])
        values[name] = chance.choice(["", "1", "1-2", "<x@x>", "\x1b[2J", "\ud800", 7, None, [], "FULL", "x" * 1200, str(message), "~AA"])
    envelope = json.dumps(values).encode()
    if chance.random() < 0.1:
        envelope = garbled(chance, envelope, 1.0)
    said.append(garbled(chance, b"XSHADOW ENVELOPE " + base64.urlsafe_b64encode(envelope).rstrip(b"="), 0.05))
    octets = chance.randbytes(chance.choice([0, 1, 100, 3000]))
    said += [garbled(chance, b"BDAT %d" % len(octets), 0.03), Whole(octets)]
    size = len(octets) + (chance.random() < 0.05)
    return [*said, garbled(chance, f"XSHADOW COMMIT size={size} sha256={hashlib.sha256(octets).hexdigest()}".encode(), 0.05)]


async def one_session(at: HostPort, source: str, said: Said, chance: random.Random, tally: Tally) -> None:
    """Say it from that address, and read until the other side ends the session, or has nothing more to say after ours has ended."""
    try:
        reader, writer = await asyncio.open_connection(at.host, at.port, local_addr=(source, 0))
    except OSError:
        return
    tally.sessions_count += 1

    async def read() -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                text = line.removesuffix(b"\r\n")
                if not REPLY.fullmatch(text):
                    tally.malformed.append(text[:200])
                tally.replies[text[:3]] = tally.replies.get(text[:3], 0) + 1
                tally.accepted_count += b"Queued as" in text
                tally.held_count += text == b"250 2.0.0 Held" or text.startswith(b"250 2.0.0 Held ")

    reading = asyncio.ensure_future(read())
    with contextlib.suppress(OSError):
        octets = b""
        for line in said:
            octets += line if isinstance(line, Whole) else line + (b"\r\n" if chance.random() < 0.995 else chance.choice(BREAKS))
            tally.commands_count += not isinstance(line, Whole)
            if chance.random() < 0.4:
                at_octet = chance.randrange(len(octets) + 1)
                writer.write(octets[:at_octet])
                await writer.drain()
                await asyncio.sleep(0)
                octets = octets[at_octet:]
            if reading.done():
                break
        writer.write(octets)
        if chance.random() < 0.9 and not reading.done():
            writer.write_eof()
            try:
                await asyncio.wait_for(asyncio.shield(reading), PATIENCE_SECONDS)
            except TimeoutError:
                tally.stuck.append(repr(said)[:500])
    reading.cancel()
    writer.close()
    with contextlib.suppress(OSError, asyncio.CancelledError):
        await writer.wait_closed()


async def say_anything(
    at: HostPort,
    grammar: Callable[[random.Random], Said],
    source: str,
    commands: int,
    seed: int,
    tally: Tally,
    *,
    at_once: int = 8,
    rate: float = math.inf,
) -> None:
    """So many commands of all clients of this grammar together, `at_once` sessions at a time, at most `rate` commands a second."""
    before, began = tally.commands_count, time.monotonic()

    async def one(number: int) -> None:
        chance = random.Random(seed * 1000 + number)
        while (said := tally.commands_count - before) < commands:
            await asyncio.sleep(max(0.0, began + said / rate - time.monotonic()))
            await one_session(at, source, grammar(chance), chance, tally)

    async with asyncio.TaskGroup() as group:
        for number in range(at_once):
            group.create_task(one(number))


def a_fuzzed_node(directory: Path, sink: str) -> NodeProcess:
    """For these clients; its mail goes to `sink`. The peer needs no TLS."""
    node = a_node_process(directory / "a.example", connector=CONNECTOR, tables=TABLES)
    path = node.directory / "node.toml"
    path.write_text(path.read_text().replace('next_hop = "127.0.0.1:9"', f'next_hop = "{sink}"'))
    return node
