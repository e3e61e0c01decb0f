"""Statements over many rows as one step of SQLite.

`executemany` gives up the interpreter's lock and takes it again for each row, and beside a busy event loop each time
may have to wait for it. One statement with all rows of a batch waits once. The texts are made once for each power of
two, so that SQLite's statement cache has them.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Table

ROWS_PER_STATEMENT_MAX = 32  # x 33 columns = 1,056 parameters; SQLite's limit is 32,766


class ManyRows:
    """A statement with one group of parameters a row. `text` has `{rows}` where the groups go."""

    def __init__(self, text: str, columns_count: int) -> None:
        group = "(" + ",".join("?" * columns_count) + ")"
        self._texts: dict[int, str] = {}
        count = 1
        while count <= ROWS_PER_STATEMENT_MAX:
            self._texts[count] = text.format(rows=",".join([group] * count))
            count *= 2

    @property
    def text(self) -> str:
        """For one row; for `EXPLAIN QUERY PLAN`."""
        return self._texts[1]

    def execute(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """All rows, in their order."""
        start, left, size = 0, len(rows), ROWS_PER_STATEMENT_MAX
        while left:
            while size > left:
                size //= 2
            part = rows[start : start + size]
            connection.exec_driver_sql(self._texts[size], tuple(chain.from_iterable(part)))
            start += size
            left -= size


def insertion(table: Table, *, columns: Sequence[str] = (), conflict: str = "") -> ManyRows:
    """INSERT of whole rows, in the order of `columns` (the table's own unless given)."""
    names = list(columns) or [column.name for column in table.columns]
    return ManyRows(f"INSERT INTO {table.name} ({','.join(quoted(names))}) VALUES {{rows}} {conflict}", len(names))


def update(table: Table, key: str, columns: Sequence[str]) -> ManyRows:
    """UPDATE of `columns` by `key`; a group is the key and then the columns."""
    names = quoted(columns)
    alias = [f"c{number}" for number in range(len(names) + 1)]
    assignments = ",".join(f"{name}=v.{value}" for name, value in zip(names, alias[1:], strict=True))
    return ManyRows(
        f"WITH v({','.join(alias)}) AS (VALUES {{rows}}) UPDATE {table.name} SET {assignments} FROM v WHERE {table.name}.{key}=v.c0",
        len(alias),
    )


def deletion(table: Table, key: str) -> ManyRows:
    """DELETE by a key of one column; of several, SQLite would use the first only."""
    return ManyRows(f"DELETE FROM {table.name} WHERE {key} IN (VALUES {{rows}})", 1)


def quoted(names: Sequence[str]) -> list[str]:
    """`offset` is a word of SQL."""
    return [f'"{name}"' for name in names]
