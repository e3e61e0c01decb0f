"""The store's questions without SQLAlchemy's bookkeeping, which costs several nodes in one process more than all that SQLite does.

The text is the one that SQLAlchemy makes of the statement, for the same dialect and with the same cache key; the same driver runs it, on
the same connection. What is not a plain SELECT goes to SQLAlchemy as before, and so do transactions.
"""

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, exc
from sqlalchemy.engine import Compiled

from shadowrelay.store import counters, dialect, errors, expiry, opening, peer_promises, promises, queues, readers, reading, writing
from shadowrelay.store.commit import Committer, InlineWriter
from shadowrelay.store.ledger import Inline
from shadowrelay.store.readers import InlineReaders
from shadowrelay.store.writing import WriterConnection

Text = tuple[str, tuple[str, ...], Compiled]
CONSTANT = {
    id(value)
    for module in (counters, expiry, opening, peer_promises, promises, queues, reading)
    for value in vars(module).values()
    if type(value) is Select
}
_texts: dict[Any, Text | None] = {}  # by cache key, or by the address of a constant; None: SQLAlchemy runs it


class SharedTexts(dict[Any, Any]):
    """Statements compiled once in a process, not once by each of its thousand engines: by the kind of their dialect, not by itself."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((type(key[0]), *key[1:]), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__((type(key[0]), *key[1:]), compiled)


_shared, _use_queue_compiler = SharedTexts(), dialect.use_queue_compiler


def share_texts() -> None:
    """From now on, for all engines of the store in this process."""

    def use_both(engine: Any) -> None:
        _use_queue_compiler(engine)
        engine.update_execution_options(compiled_cache=_shared)

    writing.use_queue_compiler = readers.use_queue_compiler = use_both


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

    def scalar_one(self) -> Any:
        return self.one()[0]


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


class QuickReaders(InlineReaders):
    """They keep their connection."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._connection: QuickConnection | None = None

    async def ask(self, question: Callable[[Any], Any]) -> Any:
        """Raises: LedgerUnavailable."""
        return self.answer(question)

    def answer(self, question: Callable[[Any], Any]) -> Any:
        """At once. Raises: LedgerUnavailable."""
        if self._connection is None:
            self._connection = QuickConnection(self._engine.connect())
        try:
            return question(self._connection)
        except (exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise errors.unavailable(error) from error

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        await super().close()


def quicken(writer: WriterConnection) -> None:
    """What it gives to the store asks without bookkeeping."""
    get = writer.get
    made: list[QuickConnection] = []

    def quick() -> Connection:
        connection = get()
        if not made or made[-1].connection is not connection:
            made[:] = [QuickConnection(connection)]
        return made[0]  # type: ignore[return-value]

    writer.get = quick  # type: ignore[method-assign]


class Quick(Inline):
    """A store without bookkeeping."""

    def writer(self, committer: Committer, closing: Callable[[Committer], None]) -> InlineWriter:
        quicken(committer.connection)
        return super().writer(committer, closing)

    def readers(self, path: Path) -> QuickReaders:
        return QuickReaders(path)
