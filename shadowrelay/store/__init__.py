"""The queue database and the content of messages: SQLite with one writer, and append-only segments. docs/design.md 9.

Nothing above this package knows SQLAlchemy, and nothing in it decides who owns a message: `shadowrelay.ownership` does,
inside the transaction, through the `decide` functions of the port.
"""

from shadowrelay.store.ledger import SqliteLedger

__all__ = ["SqliteLedger"]
