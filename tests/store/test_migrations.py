"""A queue database of each schema version is brought forward with mail in every state, or stays as it was."""

import shutil
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import FailureKind
from shadowrelay.model.replies import ConfigurationError, LedgerUnavailable
from shadowrelay.store import queues, reading, versions
from shadowrelay.store.opening import DATABASE_NAME
from shadowrelay.store.tables import METADATA
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.ledger import NOW, OUR_DATABASE, THEIR_DATABASE, THERE, a_content, a_ledger, a_retry, accept, counts_in
from tests.tidy.house import ROOT

VERSION, NEXT_VERSION = versions.VERSION, versions.VERSION + 1
STAMP = (VERSION, [f"{VERSION:04}"])
VERSION_1 = Path(__file__).with_name("queue_version_1.sql")  # `.dump` of a database that commit af667f9 wrote
IDS = [MessageId(f"{number:08x}-0000-4000-8000-000000000000") for number in range(1, 18)]
WITHOUT_VERDICT, DUE, WITHOUT_COPY, PLACED, IN_TWO_QUEUES, IN_ONE_QUEUE, DELIVERED, *_ = IDS
WITH_DSN, DSN, SHADOW, HANDED, SHADOW_DONE, PROMOTED, YIELDED, _, SET_ASIDE, LARGE = IDS[7:]


def make_version(directory: Path, version: int = 1) -> None:
    """The same mail, in a database that has been opened by each version up to this one."""
    (directory / "content" / "large").mkdir(parents=True)
    (directory / "content" / "1.segment").write_bytes((a_content().data or b"") * 16)
    (directory / "content" / "large" / str((1 << 32) + 1)).write_bytes(b"large" * 300_000)
    with closing(sqlite3.connect(directory / DATABASE_NAME)) as connection:
        connection.executescript(VERSION_1.read_text(encoding="utf-8"))
        connection.execute("PRAGMA user_version = 1")
    for found in range(1, version):
        upgrade(directory, f"{found:04}", f"{found + 1:04}")
        change(directory, f"PRAGMA user_version = {found + 1}")


def upgrade(directory: Path, found: str, wanted: str) -> None:
    engine = create_engine(f"sqlite:///{directory / DATABASE_NAME}")
    config = Config(attributes={})
    config.set_main_option("script_location", str(versions.SCRIPTS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.stamp(config, found)
        command.upgrade(config, wanted)
    engine.dispose()


def schema_of(path: Path) -> dict[str, object]:
    """Tables and indexes: their columns, and what Alembic's comparison does not see (defaults, WITHOUT ROWID, partial indexes)."""
    with closing(sqlite3.connect(path)) as connection:
        found: dict[str, object] = {}
        for kind, name, text in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
            condition = " ".join((text or "").partition(" WHERE ")[2].split())
            columns = sorted(connection.execute(f"PRAGMA {kind}_xinfo('{name}')").fetchall())
            found[name] = (columns, condition, "WITHOUT ROWID" in (text or ""))
        return found


def versions_of(directory: Path) -> tuple[int, list[str]]:
    """What programs before Alembic look at, and Alembic's revisions."""
    with closing(sqlite3.connect(directory / DATABASE_NAME)) as connection:
        (counted,) = connection.execute("PRAGMA user_version").fetchone()
        is_there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
        return counted, [name for (name,) in connection.execute("SELECT * FROM alembic_version")] if is_there else []


def change(directory: Path, *statements: str) -> None:
    with closing(sqlite3.connect(directory / DATABASE_NAME)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script for what comes next, and a program that knows it. A test writes into it what it does."""
    scripts = tmp_path / "migrations %d"  # a per cent sign means something to Alembic's configuration
    shutil.copytree(versions.SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(versions, "SCRIPTS", scripts)
    monkeypatch.setattr(versions, "VERSION", NEXT_VERSION)
    return scripts / "versions" / f"version_{NEXT_VERSION}.py"


NEXT = f"""
from alembic import op
revision, down_revision = "{NEXT_VERSION:04}", "{VERSION:04}"
def upgrade():
    op.execute("CREATE TABLE later (id INTEGER PRIMARY KEY)")
"""


@pytest.mark.parametrize("version", range(1, VERSION))
async def test_an_older_version_keeps_its_mail_in_every_state(tmp_path: Path, version: int) -> None:
    make_version(tmp_path, version)
    found_version, _ = versions_of(tmp_path)

    async with a_ledger(tmp_path) as ledger:
        roles = {message.envelope.message_id: message.claim.role for message in await ledger.read(queues.messages, "", 99)}
        queued = await ledger.read(reading.load, IN_TWO_QUEUES)
        due = await ledger.read(reading.submission, 99)
        discards = await ledger.discards_for(THERE, THEIR_DATABASE, 99)
        without_verdict = await ledger.read(reading.load, WITHOUT_VERDICT)
        large = await ledger.read(reading.load, LARGE)
        assert large is not None
        assert large.place is not None
        content = await ledger.read_content(large.place)

        assert OUR_DATABASE == ledger.identity.database
        assert {
            **dict.fromkeys((WITHOUT_VERDICT, DUE, WITHOUT_COPY, PLACED, IN_TWO_QUEUES, IN_ONE_QUEUE, DSN, PROMOTED, LARGE), Role.PRIMARY),
            **dict.fromkeys((SHADOW, HANDED, YIELDED), Role.SHADOW),
            SET_ASIDE: Role.SET_ASIDE,
        } == roles
        assert {DELIVERED, WITH_DSN} == {
            message.envelope.message_id for message in await ledger.read(queues.messages, "mx1\\SafetyNet\\Primary", 99)
        }
        assert [SHADOW_DONE] == [
            message.envelope.message_id for message in await ledger.read(queues.messages, "mx1\\SafetyNet\\Shadow", 99)
        ]
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
        assert THERE == ledger.peers.server_of(THEIR_DATABASE)
        assert (f"queue.db migrated from schema version {found_version} to {VERSION}",) == ledger.notes[:1]


async def test_the_counters_of_a_migrated_database_are_what_its_tables_say(tmp_path: Path) -> None:
    make_version(tmp_path)

    async with a_ledger(tmp_path) as ledger:
        counts = {row.identity.partition("\\")[2]: row.count for row in await ledger.read(queues.queues)}
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


# the schema
async def test_the_migrated_schema_is_that_of_a_new_database(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    make_version(tmp_path / "old")
    for name in ("old", "new"):
        async with a_ledger(tmp_path / name):
            pass

    assert schema_of(tmp_path / "new" / DATABASE_NAME) == schema_of(tmp_path / "old" / DATABASE_NAME)


async def test_all_revisions_together_make_the_tables_that_the_program_uses(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    async with a_ledger(tmp_path / "new"):
        pass
    engine = create_engine(f"sqlite:///{tmp_path / DATABASE_NAME}")
    config = Config(attributes={})
    config.set_main_option("script_location", str(versions.SCRIPTS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), METADATA)
    engine.dispose()

    assert [] == differences
    assert schema_of(tmp_path / "new" / DATABASE_NAME) == schema_of(tmp_path / DATABASE_NAME)


def test_the_last_revision_is_the_version_that_the_program_wants() -> None:
    revisions = [script.revision for script in ScriptDirectory(str(versions.SCRIPTS)).walk_revisions()]

    assert [f"{version:04}" for version in range(versions.VERSION, 0, -1)] == revisions


# from one version to the next
async def test_a_migrated_database_goes_on(tmp_path: Path) -> None:
    make_version(tmp_path)
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger, due_at=NOW + timedelta(minutes=1))
    async with a_ledger(tmp_path) as ledger:
        assert stored == await ledger.read(reading.load, stored.envelope.message_id)
        assert 3 == ledger.identity.incarnation


async def test_a_new_database_has_the_newest_version(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        assert () == ledger.notes

    assert STAMP == versions_of(tmp_path)


async def test_a_database_from_before_alembic_gets_its_revision_and_goes_on(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger)
    change(tmp_path, "DROP TABLE alembic_version")
    assert (VERSION, []) == versions_of(tmp_path)

    async with a_ledger(tmp_path) as ledger:
        assert stored == await ledger.read(reading.load, stored.envelope.message_id)
        assert () == ledger.notes
    assert STAMP == versions_of(tmp_path)


async def test_an_older_database_migrates_forward_and_says_so(tmp_path: Path, next_revision: Path) -> None:
    make_version(tmp_path)
    next_revision.write_text(NEXT)

    async with a_ledger(tmp_path) as ledger:
        assert 13 == len(await ledger.read(queues.messages, "", 99))
        assert f"queue.db migrated from schema version 1 to {NEXT_VERSION}" == ledger.notes[0]

    assert (NEXT_VERSION, [f"{NEXT_VERSION:04}"]) == versions_of(tmp_path), (
        "a program from before Alembic knows by user_version that it must not open this"
    )


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path, next_revision: Path) -> None:
    make_version(tmp_path)
    before = schema_of(tmp_path / DATABASE_NAME)
    next_revision.write_text(f"{NEXT}    op.execute('SELECT * FROM nowhere')\n")

    with pytest.raises(LedgerUnavailable, match="nowhere"):
        async with a_ledger(tmp_path):
            pass

    assert (1, []) == versions_of(tmp_path)
    assert before == schema_of(tmp_path / DATABASE_NAME)
    next_revision.write_text(NEXT)
    async with a_ledger(tmp_path) as ledger:
        assert 13 == len(await ledger.read(queues.messages, "", 99))


@pytest.mark.slow
async def test_a_process_that_dies_while_it_migrates_leaves_the_old_version(tmp_path: Path) -> None:
    make_version(tmp_path)
    before = schema_of(tmp_path / DATABASE_NAME)
    script = f"""
import asyncio, os, signal
from pathlib import Path
from alembic import op
from shadowrelay.store import Ledger
from tests.kit.ledger import HERE, NOW
op.create_table = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(Ledger.open(Path({str(tmp_path)!r}), server=HERE, now=lambda: NOW))
"""
    finished = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, timeout=PATIENCE_SECONDS)

    assert -9 == finished.returncode
    assert (1, []) == versions_of(tmp_path)
    assert before == schema_of(tmp_path / DATABASE_NAME)
    async with a_ledger(tmp_path) as ledger:
        assert 13 == len(await ledger.read(queues.messages, "", 99))
        assert (f"queue.db migrated from schema version 1 to {VERSION}",) == ledger.notes[:1]


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("PRAGMA user_version = 77", f"schema version 77, this program knows versions up to {VERSION}"),
        ("UPDATE alembic_version SET version_num = '0077'", f"schema version 77, this program knows versions up to {VERSION}"),
        ("UPDATE alembic_version SET version_num = '1975ea83b712'", "schema revision '1975ea83b712', which no shadowrelay made"),
    ],
)
async def test_a_database_of_a_newer_version_is_refused(tmp_path: Path, statement: str, error: str) -> None:
    async with a_ledger(tmp_path):
        pass
    change(tmp_path, statement)
    before = versions_of(tmp_path)

    with pytest.raises(ConfigurationError, match=error):
        async with a_ledger(tmp_path):
            pass
    assert before == versions_of(tmp_path)


async def test_scripts_that_are_missing_are_an_error_that_names_the_remedy(tmp_path: Path, next_revision: Path) -> None:
    make_version(tmp_path)
    shutil.rmtree(next_revision.parents[1])

    with pytest.raises(ConfigurationError, match=r"queue\.db cannot be migrated: .*; install shadowrelay again"):
        async with a_ledger(tmp_path):
            pass
    assert (1, []) == versions_of(tmp_path)


# how it is installed
@pytest.mark.slow
def test_alembic_is_imported_only_where_there_is_something_to_migrate(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
from pathlib import Path
from shadowrelay.store import Ledger
from tests.kit.ledger import HERE, NOW
async def main():
    for _ in range(2):
        await (await Ledger.open(Path({str(tmp_path)!r}), server=HERE, now=lambda: NOW)).close()
asyncio.run(main())
sys.exit("alembic" in sys.modules)
"""
    assert 0 == subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, timeout=PATIENCE_SECONDS).returncode


@pytest.mark.slow
def test_the_wheel_has_every_revision(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, check=True, timeout=PATIENCE_SECONDS
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    assert {path.relative_to(ROOT).as_posix() for path in versions.SCRIPTS.rglob("*.py")} <= names
