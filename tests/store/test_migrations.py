"""A queue database of each released schema version is brought forward with mail in every state."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import FailureKind
from shadowrelay.store.opening import DATABASE_NAME
from tests.kit.ledger import NOW, OUR_DATABASE, THEIR_DATABASE, THERE, a_content, a_ledger, a_new_message, a_retry, counts_in

VERSION_1 = Path(__file__).with_name("queue_version_1.sql")  # `.dump` of a database that commit af667f9 wrote
IDS = [MessageId(f"{number:08x}-0000-4000-8000-000000000000") for number in range(1, 18)]
WITHOUT_VERDICT, DUE, WITHOUT_COPY, PLACED, IN_TWO_QUEUES, IN_ONE_QUEUE, DELIVERED, *_ = IDS
WITH_DSN, DSN, SHADOW, HANDED, SHADOW_DONE, PROMOTED, YIELDED, _, SET_ASIDE, LARGE = IDS[7:]


def make_version_1(directory: Path) -> None:
    (directory / "content" / "large").mkdir(parents=True)
    (directory / "content" / "1.segment").write_bytes((a_content().data or b"") * 16)
    (directory / "content" / "large" / str((1 << 32) + 1)).write_bytes(b"large" * 300_000)
    with closing(sqlite3.connect(directory / DATABASE_NAME)) as connection:
        connection.executescript(VERSION_1.read_text(encoding="utf-8"))
        connection.execute("PRAGMA user_version = 1")


def schema_of(path: Path) -> dict[str, object]:
    """Names of tables and indexes, with the columns of each."""
    with closing(sqlite3.connect(path)) as connection:
        named = connection.execute("SELECT type, name FROM sqlite_master").fetchall()
        return {name: sorted(connection.execute(f"PRAGMA {kind}_xinfo('{name}')").fetchall()) for kind, name in named}


async def test_version_1_keeps_its_mail_in_every_state(tmp_path: Path) -> None:
    make_version_1(tmp_path)

    async with a_ledger(tmp_path) as ledger:
        roles = {message.envelope.message_id: message.claim.role for message in await ledger.messages("", 99)}
        queued = await ledger.load(IN_TWO_QUEUES)
        due = await ledger.submission(99)
        discards = await ledger.discards_for(THERE, THEIR_DATABASE, 99)
        without_verdict = await ledger.load(WITHOUT_VERDICT)
        large = await ledger.load(LARGE)
        assert large is not None
        assert large.place is not None
        content = await ledger.read_content(large.place)

        assert OUR_DATABASE == ledger.identity.database
        assert {
            **dict.fromkeys((WITHOUT_VERDICT, DUE, WITHOUT_COPY, PLACED, IN_TWO_QUEUES, IN_ONE_QUEUE, DSN, PROMOTED, LARGE), Role.PRIMARY),
            **dict.fromkeys((SHADOW, HANDED, YIELDED), Role.SHADOW),
            SET_ASIDE: Role.SET_ASIDE,
        } == roles
        assert {DELIVERED, WITH_DSN} == {message.envelope.message_id for message in await ledger.messages("mx1\\SafetyNet\\Primary", 99)}
        assert [SHADOW_DONE] == [message.envelope.message_id for message in await ledger.messages("mx1\\SafetyNet\\Shadow", 99)]
        assert queued is not None
        looked_at = NOW + timedelta(minutes=1)  # when it was due, and then by its own time
        assert (
            a_retry("one.example:25", frozenset({2}), notice_at=looked_at),
            a_retry("two.example:25", frozenset({3}), kind=FailureKind.MESSAGE, last_reply="451 4.3.0 later", notice_at=looked_at),
        ) == queued.retries
        assert {WITHOUT_VERDICT, DUE, WITHOUT_COPY, PLACED, DSN, PROMOTED, LARGE} == {message.envelope.message_id for message in due}
        assert without_verdict is not None
        assert without_verdict.is_decided
        assert [1, 2, 3] == [event.sequence for event in discards.events]
        assert 300_000 * 5 == content.size
        assert THERE == ledger.server_of(THEIR_DATABASE)
        assert ("queue.db migrated from schema version 1 to 2",) == ledger.notes[:1]


async def test_the_counters_of_a_migrated_database_are_what_its_tables_say(tmp_path: Path) -> None:
    make_version_1(tmp_path)

    async with a_ledger(tmp_path) as ledger:
        counts = {row.identity.partition("\\")[2]: row.count for row in await ledger.queues()}
        found, expected = await counts_in(ledger)

    assert expected == found
    assert {
        "Submission": 7,
        "one.example:25": 2,
        "two.example:25": 1,
        "Shadow\\1": 2,
        "Shadow\\2": 1,
        "SafetyNet\\Primary": 2,
        "SafetyNet\\Shadow": 1,
        "Poison": 1,
    } == counts


async def test_the_migrated_schema_is_that_of_a_new_database(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    make_version_1(tmp_path / "old")
    for name in ("old", "new"):
        async with a_ledger(tmp_path / name):
            pass

    assert schema_of(tmp_path / "new" / DATABASE_NAME) == schema_of(tmp_path / "old" / DATABASE_NAME)


async def test_a_migrated_database_goes_on(tmp_path: Path) -> None:
    make_version_1(tmp_path)
    async with a_ledger(tmp_path) as ledger:
        stored = await ledger.record_accepted(a_new_message(due_at=NOW + timedelta(minutes=1)), a_content(), decided=True)
    async with a_ledger(tmp_path) as ledger:
        assert stored == await ledger.load(stored.envelope.message_id)
        assert 3 == ledger.identity.incarnation
