"""Statements over many rows: the text is made from the schema once, and run by the driver once a row.

A row of `executemany` costs SQLite's work and little more. It gives up the interpreter's lock each time, which costs
nothing while the other thread waits for the disk.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Table

from shadowrelay.store.work import Work


class ManyRows:
    """A statement that is run for each row."""

    def __init__(self, text: str) -> None:
        self.text = text

    def execute(self, work: Work, rows: Sequence[tuple[Any, ...]]) -> None:
        """All rows, in their order. Raises: sqlite3.Error."""
        work.execute_many(self.text, rows)


def insertion(table: Table, *, columns: Sequence[str] = (), conflict: str = "") -> ManyRows:
    """INSERT of whole rows, in the order of `columns` (the table's own unless given)."""
    names = quoted(list(columns) or [column.name for column in table.columns])
    return ManyRows(f"INSERT INTO {table.name} ({','.join(names)}) VALUES ({','.join('?' * len(names))}) {conflict}".rstrip())


def update(table: Table, key: str, columns: Sequence[str]) -> ManyRows:
    """UPDATE of `columns` by `key`; a row is the columns and then the key."""
    return ManyRows(f"UPDATE {table.name} SET {','.join(f'{name}=?' for name in quoted(columns))} WHERE {key}=?")


def deletion(table: Table, *keys: str) -> ManyRows:
    """DELETE by a key."""
    return ManyRows(f"DELETE FROM {table.name} WHERE {' AND '.join(f'{key}=?' for key in keys)}")


def quoted(names: Sequence[str]) -> list[str]:
    """`offset` is a word of SQL."""
    return [f'"{name}"' for name in names]
