"""The queue database and the content of messages: SQLite with one writer, and append-only segments. docs/design.md 9.

Nothing above this package knows SQL, and nothing in it decides who owns a message: `shadowrelay.ownership` does, inside the transaction,
through the `decide` functions that come with a promise.
"""

from shadowrelay.store.ledger import Ledger

__all__ = ["Ledger"]
