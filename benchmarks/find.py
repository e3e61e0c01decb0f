"""What it costs to find a message among a million that a node still knows: `shadowrelay messages find`. docs/performance.md.

    python -m benchmarks.find [--count 1000000] [--directory DIR]

One message is accepted and delivered; its row is then copied with other ids, senders, recipients and subjects, as two days of mail leave
them. Each question is asked twice, page by page as the API does; the second time counts: the file system has the database in memory then.
"""

import argparse
import asyncio
import hashlib
import json
import random
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Content, Envelope, Recipient
from shadowrelay.model.ownership import Claim, CopyNumber, Role, Transition
from shadowrelay.model.queue import AttemptRecord, NewMessage, Origin
from shadowrelay.model.values import replace
from shadowrelay.protocol.filters import MESSAGE_PROPERTIES, parse_filter
from shadowrelay.store import Ledger, promises, queues

LIMIT = 100
HOLD = timedelta(days=2)
QUESTIONS = (
    "Recipients -like '*user777@corp.example*'",
    "Recipients -like '*nobody@corp.example*'",
    "FromAddress -like '*sender7@domain7.example*'",
    "Subject -like '*no such words*'",
    "InternetMessageId -like '*none@domain.example*'",
    "NetworkMessageId -like '019ac*'",
    "MessageLatency -le 2h -and Recipients -like '*nobody*'",
    "Role -eq primary",
)
WORDS = ("Invoice", "for", "your", "order", "Re:", "meeting", "status", "report", "weekly", "newsletter")


async def one_delivered(ledger: Ledger, now: datetime) -> None:
    """A row of the kind that is copied."""
    message_id = MessageId(str(uuid.uuid4()))
    envelope = Envelope(message_id, "ann@x.example", (Recipient("bob@corp.example"),), now, connector="inbound", subject="one")
    claim = Claim(Role.PRIMARY, CopyNumber(1, 1, ledger.identity.database), 1)
    data = b"Subject: one\r\n\r\n"
    new = NewMessage(envelope, claim, Origin.CLIENT, now, now + 2 * HOLD)
    await ledger.commit(promises.accepted, new, Content(len(data), hashlib.sha256(data).digest(), data), decided=True)
    done = frozenset({1})
    attempt = AttemptRecord(message_id, "store:25", done, None, (), (), now + HOLD, now + 2 * HOLD, sent=done, is_inside=True)
    await ledger.commit(promises.attempt, attempt, lambda *_: Transition(claim, replace(claim, role=Role.DELIVERED, done=done)))


def rows_like(row: dict[str, Any], count: int) -> Iterator[tuple[Any, ...]]:
    """Others of the last two days, in their order."""
    chance = random.Random(1)
    for number in range(2, count + 1):
        at = row["arrived_at"] - round((1 - number / count) * HOLD.total_seconds() * 1e6)
        envelope = json.loads(row["envelope"])
        envelope[0] = f"sender{chance.randrange(20_000)}@domain{chance.randrange(3_000)}.example"
        envelope[1] = [f"user{chance.randrange(50_000)}@corp.example" for _ in range(chance.choice((1, 1, 1, 2)))]
        envelope[2], envelope[7], envelope[8] = at, f"192.0.2.{chance.randrange(255)}", f"client{chance.randrange(3_000)}.example"
        envelope[10] = f"<{chance.getrandbits(80):x}.{number}@domain.example>"
        envelope[11] = f"{' '.join(chance.choices(WORDS, k=6))} {number}"
        changed = {
            "internal_id": number,
            "message_id": str(uuid.UUID(int=at // 1000 << 80 | 7 << 76 | 2 << 62 | chance.getrandbits(62))),
            "arrived_at": at,
            "delivered_at": at,
            "envelope": json.dumps(envelope, separators=(",", ":")),
            "keep_until": at + round(HOLD.total_seconds() * 1e6),
        }
        yield tuple((row | changed).values())


def fill(path: Path, count: int) -> None:
    """So many rows in the queue database."""
    with sqlite3.connect(path) as connection:
        cursor = connection.execute("SELECT * FROM message")
        row = dict(zip([each[0] for each in cursor.description], cursor.fetchone(), strict=True))
        connection.execute("PRAGMA synchronous = OFF")
        connection.executemany(f"INSERT INTO message VALUES ({','.join('?' * len(row))})", rows_like(row, count))
        connection.execute("UPDATE database SET internal_id = ?", (count,))
    connection.close()


async def asked(ledger: Ledger, text: str) -> tuple[int, float, float]:
    """How many were found; seconds, and seconds of processor time."""
    began, computed = time.perf_counter(), time.process_time()
    found, after = 0, 0
    while found < LIMIT:
        page = await ledger.read(queues.searched, parse_filter(text, MESSAGE_PROPERTIES), HOLD, LIMIT - found, after)
        found += len(page.messages)
        if page.next_after is None:
            break
        after = page.next_after
    return found, time.perf_counter() - began, time.process_time() - computed


async def measure(directory: Path, count: int) -> None:
    """Prints a line for each question."""
    now = datetime.now(UTC)
    path = directory / "queue.db"
    if not path.exists():
        ledger = await Ledger.open(directory, server=ServerName("mx1"), now=lambda: now)
        await one_delivered(ledger, now)
        await ledger.close()
        fill(path, count)
    ledger = await Ledger.open(directory, server=ServerName("mx1"), now=lambda: now)
    print(f"{count} messages, {path.stat().st_size / 1e6:.0f} MB")
    for text in QUESTIONS:
        await asked(ledger, text)
        found, seconds, processor = await asked(ledger, text)
        print(f"{seconds:5.2f} s, {processor:4.2f} s of processor time, {found:3} found: {text}")
    await ledger.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="messages (default 1,000,000)")
    parser.add_argument("--directory", type=Path, help="keep the queue database here, and use it again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(measure(arguments.directory or Path(temporary), arguments.count))


if __name__ == "__main__":
    main()
