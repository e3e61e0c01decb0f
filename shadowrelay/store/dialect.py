"""SQL for SQLite from SQLAlchemy's expressions: index hints, fixed join orders, text compiled once. docs/architecture.md "The packages".

Listings, queue views and housekeeping run their expressions through SQLAlchemy. Statements that run for every message are compiled to text
at import and passed to the driver, because SQLAlchemy's bookkeeping for one statement costs more than SQLite's work.

The plans matter: a queue may hold a million messages. SQLite uses a partial index only if the statement repeats the index's
condition literally, so such a condition is written with `constant` and never with a parameter. Without statistics the planner
may still prefer another index or another order of tables; `through` and `CrossJoin` decide that here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Engine, Index, Integer, Select, Table, Text, func, literal_column, select, true
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.dialects.sqlite.pysqlite import dialect as pysqlite_dialect
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.selectable import Join

Columns = ReadOnlyColumnCollection[str, Any]


class CrossJoin(Join):
    """A join that SQLite's planner does not reorder: it reads the left side first."""

    __visit_name__ = "cross_join"
    inherit_cache = True


class QueueCompiler(SQLiteCompiler):
    """SQLite's compiler with index hints and CROSS JOIN, which the stock one does not write."""

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
        return text

    def visit_cross_join(self, join: CrossJoin, **arguments: Any) -> str:
        text: str = self.visit_join(join, **arguments)  # type: ignore[no-untyped-call]
        return text.replace(" JOIN ", " CROSS JOIN ", 1)  # the left side is a table: no JOIN in it

    def limit_clause(self, select: Any, **arguments: Any) -> str:
        """Without the stock `OFFSET ?`: compiled text would need a parameter for it, and no page is read by its offset."""
        return f"\n LIMIT {self.process(select._limit_clause, **arguments)}"


def use_queue_compiler(engine: Engine) -> None:
    """For every statement of this engine."""
    engine.dialect.statement_compiler = QueueCompiler


_DIALECT = pysqlite_dialect(paramstyle="qmark")
_DIALECT.statement_compiler = QueueCompiler


def compiled(statement: ClauseElement, columns: Sequence[str] | None = None) -> str:
    """Text for the driver, with a `?` for each `bindparam` in the order in which they stand in it.

    `columns` are those that an INSERT or UPDATE writes, in the order of the table; all of them unless given.
    """
    result = statement.compile(dialect=_DIALECT, column_keys=columns)
    assert isinstance(result, QueueCompiler)
    names = list(result.positiontup or ())
    assert all(parameter.required for parameter in result.binds.values()), "a value would be lost: use `constant`"
    assert len(names) == len(result.binds), "a parameter stands in two places"
    assert columns is None or list(columns) == names[: len(columns)], "the columns are not in the order of the table"
    return str(result)


def upsert(table: Table, changes: Callable[[Columns], Mapping[str, Any]]) -> str:
    """Text of an INSERT that makes these changes to the row that is there already; `changes` is given the columns of the new row."""
    statement = insert(table)
    return compiled(statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=changes(statement.excluded)))


def constant(value: str | int) -> ColumnElement[Any]:
    """Part of the statement's text, not a parameter. The value must be the program's own: nothing in it is quoted."""
    return literal_column(str(value), Integer) if isinstance(value, int) else literal_column(f"'{value}'", Text)


def by_way_of(index: Index, statement: Select[Any]) -> Select[Any]:
    """Read the index's table through this index; SQLite refuses the statement if it cannot."""
    assert index.table is not None
    return statement.with_hint(index.table, f"INDEXED BY {index.name}", "sqlite")


def condition_of(index: Index) -> ColumnElement[bool]:
    """Which rows are in an index; all of them, unless it is a partial one."""
    condition: ColumnElement[bool] | None = index.dialect_options["sqlite"]["where"]
    return true() if condition is None else condition


def through(index: Index, *columns: Any) -> Select[Any]:
    """SELECT these columns of all rows in an index by way of it."""
    return by_way_of(index, select(*columns)).where(condition_of(index))


def each_value(index: Index, column: ColumnElement[Any], *conditions: ColumnElement[bool]) -> Select[Any]:
    """Every value of a column once, as `value`: one look into the index for each, however many rows have it."""
    least = through(index, func.min(column).label("value")).where(*conditions)
    values = least.cte(f"each_{column.key}", recursive=True)
    following = least.where(column > values.c.value).correlate(values).scalar_subquery()
    values = values.union_all(select(following).where(values.c.value.is_not(None)))
    return select(values.c.value).where(values.c.value.is_not(None))
