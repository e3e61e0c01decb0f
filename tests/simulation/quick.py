"""The store's questions without SQLAlchemy's bookkeeping, which costs a world more than all that SQLite does.

The text is the one that SQLAlchemy makes of the statement, for the same dialect and with the same cache key; the same driver runs it, on
the same connection. What is not a plain SELECT goes to SQLAlchemy as before, and so do transactions.
"""

from collections.abc import Mapping
from typing import Any
from unittest import mock

from sqlalchemy import Connection, Engine, Select, create_engine
from sqlalchemy.engine import Compiled

from shadowrelay.store import counters, opening, promises, queues, reading

Text = tuple[str, tuple[str, ...], Compiled]
CONSTANT = {
    id(value) for module in (counters, opening, promises, queues, reading) for value in vars(module).values() if type(value) is Select
}
_texts: dict[Any, Text | None] = {}  # by cache key, or by the address of a constant; None: SQLAlchemy runs it


_first: list[Engine] = []


def engines_share_what_they_compile() -> Any:
    """While this patch is in force. An engine compiles a statement once, and each start of a node makes two engines."""

    def create(*arguments: Any, **options: Any) -> Engine:
        engine = create_engine(*arguments, **options)
        _first[:] = _first or [engine]
        engine.dialect, engine._compiled_cache = _first[0].dialect, _first[0]._compiled_cache
        return engine

    return mock.patch("shadowrelay.store.connection.create_engine", create)


class Rows(list[Any]):
    """What the store uses of a `CursorResult` and of a `ScalarResult`."""

    def fetchall(self) -> "Rows":
        return self

    all = fetchall

    def first(self) -> Any:
        return self[0] if self else None

    def one(self) -> Any:
        (row,) = self
        return row

    def one_or_none(self) -> Any:
        return self.one() if self else None

    def scalar(self) -> Any:
        return self[0][0] if self else None


class QuickConnection:
    """A `Connection` of SQLAlchemy with a short way for what is asked all the time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        driver: Any = connection.connection.dbapi_connection
        self._driver, self._cursor = driver, driver.cursor()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def exec_driver_sql(self, text: str, parameters: tuple[Any, ...] = ()) -> "Rows":
        return Rows(self._cursor.execute(text, parameters).fetchall())

    def execute(self, statement: Any, parameters: Any = None) -> Any:
        asked = self._text_of(statement, parameters)
        return self.connection.execute(statement, parameters) if asked is None else Rows(self._cursor.execute(*asked).fetchall())

    def scalars(self, statement: Any, parameters: Any = None) -> Any:
        asked = self._text_of(statement, parameters)
        if asked is None:
            return self.connection.scalars(statement, parameters)
        return Rows([row[0] for row in self._cursor.execute(*asked).fetchall()])

    def scalar(self, statement: Any, parameters: Any = None) -> Any:
        return self.execute(statement, parameters).scalar()

    def _text_of(self, statement: Any, parameters: Mapping[str, Any] | None) -> tuple[str, tuple[Any, ...]] | None:
        if type(statement) is not Select:
            return None
        cache_key = None if id(statement) in CONSTANT else statement._generate_cache_key()
        key = id(statement) if cache_key is None else cache_key.key
        if key not in _texts:
            _texts[key] = self._compiled(statement, cache_key)
        if (known := _texts[key]) is None:
            return None
        text, names, compiled = known
        if cache_key is None and parameters is not None and len(parameters) == len(names):
            return text, tuple([parameters[name] for name in names])
        extracted = None if cache_key is None else cache_key.bindparams
        values: Any = compiled.construct_params(dict(parameters or {}), extracted_parameters=extracted)
        return text, tuple([values[name] for name in names])

    def _compiled(self, statement: Select[Any], cache_key: Any) -> Text | None:
        dialect: Any = self.connection.dialect
        compiled = dialect.statement_compiler(dialect, statement, cache_key=cache_key)
        is_plain = not compiled.post_compile_params and not compiled.literal_execute_params and not compiled._bind_processors
        converted = [column for column in compiled._result_columns if column.type.dialect_impl(dialect).result_processor(dialect, None)]
        if not is_plain or converted:
            return None
        return compiled.string, tuple(compiled.positiontup or ()), compiled
