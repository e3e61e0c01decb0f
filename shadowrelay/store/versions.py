"""Finds the schema version of a `queue.db`, and upgrades it to this program's. Forward only. docs/architecture.md "On disk".

Alembic's table `alembic_version` names the revision, `0001`, `0002` …; its scripts are in `migrations`. `PRAGMA user_version` has the
same number, because programs from before Alembic read nothing else: with an old number there, such a program would open a newer
database, and write to tables that it does not know. A database that such a program made has no `alembic_version` yet and gets it here.

Everything happens in the caller's transaction, in which SQLite's DDL takes part: after a crash the database has its old version and its
old rows. A new database is made from `METADATA` directly. Alembic is imported only if there is a revision to run: the import takes longer
than the rest of an opening.
"""

import threading
from functools import cache
from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, delete, insert, inspect, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.store.tables import METADATA

VERSION = 8
SCRIPTS = Path(__file__).resolve().with_name("migrations")
ALEMBIC_VERSION = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))  # as Alembic makes it
_one_at_a_time = threading.Lock()  # `alembic.op` and `alembic.context` are one for the whole process


def migrate(connection: Connection) -> int:
    """Inside a transaction. Returns the version found; 0 for an empty file.

    Raises: ConfigurationError for a newer version, or scripts that are missing; whatever a script raises. The transaction must not
    be committed then.
    """
    assert connection.in_transaction()
    counted = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    revision = _revision(connection)
    found = counted if revision is None else _number(revision)
    if max(found, counted) > VERSION:
        raise ConfigurationError(
            f"queue.db has schema version {max(found, counted)}, this program knows versions up to {VERSION}: "
            "install the newer shadowrelay again, or point data_directory elsewhere"
        )
    if found == 0:
        for text in _schema():
            connection.exec_driver_sql(text)
        _stamp(connection, VERSION)
        return found
    if revision is None:
        _stamp(connection, found)
    if found < VERSION:
        _upgrade(connection)
        connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")
    return found


@cache
def _schema() -> tuple[str, ...]:
    """What makes an empty database. `METADATA.create_all` would ask for each table first, and compile all of it for each database."""
    made: list[CreateTable | CreateIndex] = []
    for table in METADATA.sorted_tables:
        made += [CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name)))]
    return tuple(str(each.compile(dialect=sqlite.dialect())) for each in made)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(ALEMBIC_VERSION.name):
        return None
    return connection.execute(select(ALEMBIC_VERSION.c.version_num)).scalar_one_or_none()


def _number(revision: str) -> int:
    if not revision.isdecimal():
        raise ConfigurationError(f"queue.db has schema revision {revision!r}, which no shadowrelay made: point data_directory elsewhere")
    return int(revision)


def _stamp(connection: Connection, version: int) -> None:
    ALEMBIC_VERSION.create(connection, checkfirst=True)
    connection.execute(delete(ALEMBIC_VERSION))
    connection.execute(insert(ALEMBIC_VERSION).values(version_num=f"{version:04}"))
    connection.exec_driver_sql(f"PRAGMA user_version = {version}")


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    try:
        with _one_at_a_time:
            command.upgrade(config, "head")
    except CommandError as error:
        raise ConfigurationError(f"queue.db cannot be migrated: {error}; install shadowrelay again") from error
