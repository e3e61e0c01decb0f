"""Schema versions, by `PRAGMA user_version`. Forward only: a database of a newer version is refused.

`STEPS[n]` takes version n to n + 1. A new database is made from `tables.METADATA` at the present version at once, so a
step must give exactly what `tables.py` says.
"""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from shadowrelay.model.errors import ConfigurationError
from shadowrelay.store import tables

Step = Callable[[Connection], None]


def first_schema(connection: Connection) -> None:
    tables.METADATA.create_all(connection)


STEPS: tuple[Step, ...] = (first_schema,)


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
        first_schema(connection)
    else:
        for step in steps[found:]:
            step(connection)
    if found != newest:
        connection.exec_driver_sql(f"PRAGMA user_version = {newest}")
    return found
