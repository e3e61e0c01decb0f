"""Adds shadow queues by next hop, and the number of wanted copies of a message: one for all existing. docs/design.md 6.2, 9.

The shadow queues have the forks that primary servers reported, and the notifications that report them.
"""

from alembic import op
from sqlalchemy import Column, Integer, Text, text

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("message", Column("forks_count", Integer, server_default="0", nullable=False))
    op.drop_index("message_shadow", "message")  # now with the count behind the id
    columns = ["role", "primary_server", "primary_database", "internal_id", "forks_count"]
    op.create_index("message_shadow", "message", columns, sqlite_where=text("role = 'shadow'"))
    op.create_table(
        "shadow_fork",
        Column("message", Integer, primary_key=True),
        Column("queue", Text, primary_key=True),
        Column("ordinals", Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("shadow_fork_queue", "shadow_fork", ["queue", "message"])
    op.add_column("discard", Column("next_hop", Text, server_default="", nullable=False))
    op.create_index("discard_forks", "discard", ["message_id"], sqlite_where=text("status = 'forks'"))
    op.add_column("message", Column("copies_wanted", Integer, server_default="1", nullable=False))
