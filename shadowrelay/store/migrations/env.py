"""Alembic runs this for each upgrade, on the connection of `versions.migrate` and inside its transaction. docs/architecture.md "On disk".

Alembic's own template would open another connection, commit after each revision of an SQLite database, and configure logging.
"""

from alembic import context

connection = context.config.attributes["connection"]
assert connection.in_transaction()  # so Alembic leaves BEGIN and COMMIT alone
context.configure(connection=connection)
context.run_migrations()
