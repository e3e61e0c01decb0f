"""Schema versions, by `PRAGMA user_version`. Forward only: a database of a newer version is refused.

`STEPS[n]` takes version n to n + 1. A new database is made from `tables.METADATA` at the present version at once, so a
step must give exactly what `tables.py` says.
"""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from shadowrelay.model.errors import ConfigurationError
from shadowrelay.store import counters, tables

Step = Callable[[Connection], None]


def new_schema(connection: Connection) -> None:
    tables.METADATA.create_all(connection)


def to_version_2(connection: Connection) -> None:
    """Delivery queues: `retry` says which server a fork waits for, and is read by next hop and time. Counters of all queues."""
    connection.exec_driver_sql("ALTER TABLE retry ADD COLUMN waits_for TEXT DEFAULT '' NOT NULL")
    connection.exec_driver_sql("ALTER TABLE retry ADD COLUMN notice_at INTEGER")
    connection.exec_driver_sql("UPDATE retry SET notice_at = attempts_next_at")  # then it is looked at, and gets its own
    connection.exec_driver_sql("DROP INDEX message_due")
    for table in (tables.RETRY, tables.MESSAGE):
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            index.create(connection, checkfirst=True)
    tables.COUNTER.create(connection)
    counters.recount(connection)


STEPS: tuple[Step, ...] = (new_schema, to_version_2)


def migrate(connection: Connection, steps: Sequence[Step] = STEPS) -> int:
    """Inside a transaction. Returns the version found.

    Raises: ConfigurationError for a newer version; whatever a step raises, and then nothing is changed.
    """
    newest = len(steps)
    found = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if found > newest:
        raise ConfigurationError(
            f"queue.db has schema version {found}, this program knows versions up to {newest}: "
            "install the newer shadowrelay again, or point data_directory elsewhere"
        )
    if found == 0:
        new_schema(connection)
    else:
        for step in steps[found:]:
            step(connection)
    if found != newest:
        connection.exec_driver_sql(f"PRAGMA user_version = {newest}")
    return found
