"""Builders for what the ledger stores, promises with them, and the plainest decisions on claims. Times start at NOW."""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, BoundaryName, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Content, Envelope, Ordinals, Recipient
from shadowrelay.model.ownership import Choice, Claim, Copy, CopyNumber, DiscardEvent, DiscardStatus, Notification, Role, Transition
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.queue import AttemptRecord, FailureKind, ForkRetry, GeneratedMessage, NewMessage, Origin, StoredMessage
from shadowrelay.model.values import replace
from shadowrelay.ownership.claims import released_acknowledged
from shadowrelay.ownership.rules import Outcome, PeerDatabase
from shadowrelay.store import Ledger, counters, promises, reading
from shadowrelay.store.content import RecentContents

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
HERE = ServerName("mx1.east.example")
THERE = ServerName("mx1.west.example")
OTHER = ServerName("mx2.west.example")
THEIR_DATABASE = DatabaseId("11111111-1111-4111-8111-111111111111")
NEW_DATABASE = DatabaseId("22222222-2222-4222-8222-222222222222")
OUR_DATABASE = DatabaseId("99999999-9999-4999-8999-999999999999")
DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
HELLO = b"Subject: hello\r\n\r\nhello\r\n"
HOP = "store.corp.example:25"

Counts = dict[counters.Key, tuple[int, int]]
"""Messages and octets of each counter."""


@asynccontextmanager
async def a_ledger(directory: Path, now: Callable[[], datetime] = lambda: NOW, **options: Any) -> AsyncIterator[Ledger]:
    """Open, and closed at the end."""
    ledger = await Ledger.open(directory, server=HERE, now=now, **options)
    try:
        yield ledger
    finally:
        await ledger.close()


async def counts_in(ledger: Ledger) -> tuple[Counts, Counts]:
    """The counters of its queues as they are kept, and as its tables say."""

    def counted(connection: Connection, statement: str) -> Counts:
        rows = connection.exec_driver_sql(statement).fetchall()
        return {(kind, name, int(number)): (count, octets or 0) for kind, name, number, count, octets in rows}

    kept = "SELECT kind, name, number, count, octets FROM counter"
    return await ledger._readers.ask(lambda connection: (counted(connection, kept), counted(connection, counters.RECOUNT)))


def forget_recent(ledger: Ledger) -> None:
    """The contents that it has in memory: it reads them from its disk."""
    ledger._contents.recent = RecentContents()


def a_message_id() -> MessageId:
    return MessageId(str(uuid4()))


def a_content(data: bytes = HELLO) -> Content:
    return Content(len(data), hashlib.sha256(data).digest(), data)


def a_spooled_content(directory: Path, data: bytes) -> Content:
    """In a file, as the receiver leaves it."""
    path = directory / f"spooled-{uuid4()}"
    path.write_bytes(data)
    return content_in(path)


def content_in(path: Path) -> Content:
    """What this file has."""
    data = path.read_bytes()
    return Content(len(data), hashlib.sha256(data).digest(), path=path)


def an_envelope(recipients_count: int = 1, message_id: MessageId | None = None, **changes: Any) -> Envelope:
    recipients = tuple(Recipient(f"user{number}@corp.example") for number in range(1, recipients_count + 1))
    envelope = Envelope(
        message_id or a_message_id(),
        "sender@elsewhere.example",
        recipients,
        NOW,
        client_address="192.0.2.1",
        client_name="client.example",
        connector="inbound",
        internet_message_id="<1@elsewhere.example>",
        subject="hello",
    )
    return replace(envelope, **changes)


def a_claim(role: Role = Role.PRIMARY, recipients_count: int = 1, **changes: Any) -> Claim:
    """A primary lists THERE; a shadow message is THERE's."""
    if role is Role.PRIMARY:
        claim = Claim(role, CopyNumber(1, 1, OUR_DATABASE), recipients_count, copies=(Copy(THERE, THEIR_DATABASE),))
    elif role is Role.SHADOW:
        claim = Claim(role, CopyNumber(1, 1, THEIR_DATABASE), recipients_count, primary=THERE, database=THEIR_DATABASE)
    else:
        claim = Claim(role, CopyNumber(1, 1, OUR_DATABASE), recipients_count)
    return replace(claim, **changes)


def a_new_message(
    role: Role = Role.PRIMARY, recipients_count: int = 1, message_id: MessageId | None = None, due_at: datetime | None = NOW, **claim: Any
) -> NewMessage:
    envelope = an_envelope(recipients_count, message_id)
    origin = Origin.SHADOW if role is Role.SHADOW else Origin.CLIENT
    due = None if role is Role.SHADOW else due_at
    return NewMessage(envelope, a_claim(role, recipients_count, **claim), origin, due, NOW + 4 * DAY)


def a_retry(next_hop: str = HOP, ordinals: Ordinals = frozenset({1}), **changes: Any) -> ForkRetry:
    retry = ForkRetry(next_hop, ordinals, 1, FailureKind.CONNECTION, NOW, NOW + timedelta(minutes=1), "421 4.4.1 no")
    return replace(retry, **changes)


def an_attempt(message_id: MessageId, done: Ordinals = frozenset({1}), **changes: Any) -> AttemptRecord:
    record = AttemptRecord(message_id, HOP, done, None, (), (), NOW + 2 * DAY, NOW + 4 * DAY)
    return replace(record, **changes)


def a_generated_message(message_id: MessageId | None = None) -> GeneratedMessage:
    message = a_new_message(message_id=message_id, copies=())
    return GeneratedMessage(replace(message, origin=Origin.DSN), a_content(b"dsn\r\n"))


def an_identity(
    server: ServerName = THERE, database: DatabaseId = THEIR_DATABASE, incarnation: int = 1, position: int = 10, began: int = 1
) -> PeerIdentity:
    return PeerIdentity(server, BoundaryName("example"), database, incarnation, began, position, timedelta(hours=3))


# promises
async def accept(ledger: Ledger, data: bytes = HELLO, *, decided: bool = True, **changes: Any) -> StoredMessage:
    """A client's message, unless `changes` say otherwise."""
    return await ledger.commit(promises.accepted, a_new_message(**changes), a_content(data), decided=decided)


async def hold(ledger: Ledger, recipients_count: int = 1) -> StoredMessage:
    """A shadow message of THERE."""
    message = a_new_message(Role.SHADOW, recipients_count)
    await ledger.commit(promises.hold, message, a_content(), keep_copy)
    return await known(ledger, message.envelope.message_id)


async def queue(ledger: Ledger, next_hop: str = HOP, at: datetime = NOW, **changes: Any) -> StoredMessage:
    """A message in one delivery queue."""
    message_id = (await accept(ledger)).envelope.message_id
    await ledger.commit(promises.queued, message_id, (a_retry(next_hop, attempts_next_at=at, **changes),))
    return await known(ledger, message_id)


async def known(ledger: Ledger, message_id: MessageId) -> StoredMessage:
    """As it is stored now."""
    found = await ledger.read(reading.load, message_id)
    assert found is not None
    return found


# decisions
def keep_copy(_: MessageId, before: Claim | None) -> Transition:
    """Store what was offered, as THERE's shadow message."""
    return Transition(before, a_claim(Role.SHADOW))


def choose(_: MessageId, before: Claim | None) -> Transition:
    """Every listed server is chosen."""
    assert before is not None
    return Transition(before, replace(before, copies=tuple(replace(copy, choice=Choice.CHOSEN) for copy in before.copies)))


def nothing(_: MessageId, before: Claim | None) -> Transition:
    return Transition(before, before)


def remove(_: MessageId, before: Claim | None) -> Transition:
    return Transition(before, None)


def promote(_: MessageId, before: Claim | None) -> Transition:
    assert before is not None
    return Transition(before, replace(before, role=Role.PRIMARY, primary=NO_SERVER, database=NO_DATABASE))


def all_done(_: MessageId, before: Claim | None) -> Transition:
    """Delivered to everybody; every listed server is told."""
    assert before is not None
    everybody = frozenset(range(1, before.recipients_count + 1))
    tell = tuple(Notification(copy.server, copy.database, DiscardStatus.DELIVERED) for copy in before.copies)
    return Transition(before, replace(before, role=Role.DELIVERED, done=everybody, copies=()), tell)


def some_done(*ordinals: int) -> Callable[[MessageId, Claim | None], Transition]:
    """Delivered to some; every listed server is told which."""

    def decide(_: MessageId, before: Claim | None) -> Transition:
        assert before is not None
        done = frozenset(ordinals)
        tell = tuple(Notification(copy.server, copy.database, DiscardStatus.DELIVERED, done) for copy in before.copies)
        return Transition(before, replace(before, done=before.done | done), tell)

    return decide


def release(_: MessageId, before: Claim | None) -> Transition:
    """This claim is over, and every listed server is told `released`; the list stays until they have heard it."""
    assert before is not None
    tell = tuple(Notification(copy.server, copy.database, DiscardStatus.RELEASED) for copy in before.copies)
    return Transition(before, replace(before, role=Role.RELEASED), tell)


def yield_to(server: ServerName, database: DatabaseId) -> Callable[[MessageId, Claim | None], Transition]:
    def decide(_: MessageId, before: Claim | None) -> Transition:
        assert before is not None
        return Transition(before, replace(before, role=Role.SHADOW, primary=server, database=database, copies=()))

    return decide


def discarded(_: DiscardEvent, before: Claim | None) -> Transition:
    """What XQDISCARD said of a shadow message: delivered to everybody."""
    if before is None:
        return Transition(None, None)
    everybody = frozenset(range(1, before.recipients_count + 1))
    return Transition(before, replace(before, role=Role.DELIVERED, done=everybody, primary=NO_SERVER, database=NO_DATABASE))


def forks_heard(_: DiscardEvent, before: Claim | None) -> Transition:
    """XQDISCARD told of a fork, which is noted."""
    return Transition(before, before, outcome=Outcome.FORKS)


def released_heard(_: MessageId, before: Claim | None) -> Transition:
    """THERE has acknowledged `released`, and no lease runs: it may have promoted before."""
    return released_acknowledged(before, PeerDatabase(THERE, THEIR_DATABASE), lease_runs=False)


class Refused(Exception):
    """What a `decide` raises."""


def refuse(_: MessageId, before: Claim | None) -> Transition:
    raise Refused(str(before))
