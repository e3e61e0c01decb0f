"""Adds detection of older copies, drain, suspension, duplicates, and requests to resubmit. docs/design.md 6.2, 6.3, 6.5, 6.11, 6.12.

An older copy of a database is recognised by its own incarnations, and by what was seen of peers' former databases. New index: the
notifications that a peer has not acknowledged. Drain: whether this node drains, and messages handed over for that. Deliveries are
kept with their message. Earlier deliveries have no `delivered_at` and are not resubmitted, because nothing shows whether they left the
boundary.
"""

from alembic import op
from sqlalchemy import BLOB, Column, Integer, Text, text

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("database", Column("former", Text, server_default="", nullable=False))
    op.add_column("database", Column("older_until", Integer, server_default="0", nullable=False))
    op.create_table(
        "opening",
        Column("incarnation", Integer, primary_key=True),
        Column("began", Integer, nullable=False),
        Column("found", Integer, nullable=False),
    )
    for name in ("incarnation", "began", "position"):
        op.add_column("peer_database", Column(name, Integer, server_default="0", nullable=False))
    op.create_index("waiting_asker", "waiting", ["asker"])
    op.add_column("database", Column("draining_since", Integer))
    op.create_index("message_handed_over", "message", ["role"], sqlite_where=text("role = 'handed-over'"))
    op.drop_index("message_content", "message")  # what needs a segment
    unfinished = text("role IN ('primary', 'shadow', 'set-aside', 'handed-over')")
    op.create_index("message_content", "message", ["segment"], sqlite_where=unfinished)
    op.add_column("message", Column("suspended_at", Integer))
    op.add_column("message", Column("suspended_by", Text, server_default="", nullable=False))
    op.create_table(
        "suspended_queue",
        Column("next_hop", Text, primary_key=True),
        Column("suspended_at", Integer, nullable=False),
        Column("suspended_by", Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "delivered_to",
        Column("key", BLOB, primary_key=True),
        Column("delivered_at", Integer, nullable=False),
        Column("message_id", Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("delivered_to_at", "delivered_to", ["delivered_at"])
    op.add_column("message", Column("delivered_at", Integer))
    op.add_column("message", Column("deliveries", Text, server_default="", nullable=False))
    op.create_index("message_delivered", "message", ["is_shadow_side", "delivered_at"], sqlite_where=text("delivered_at IS NOT NULL"))
    op.create_table(
        "resubmit_request",
        Column("number", Integer, primary_key=True),
        *[Column(name, Integer, nullable=False) for name in ("created_at", "from_at", "to_at")],
        *[Column(name, Text, nullable=False) for name in ("next_hop", "sender", "recipient", "message_id", "primary_server", "state")],
        *[Column(name, Integer, nullable=False) for name in ("is_examined", "examined_at", "examined_id")],
        *[Column(f"{name}_count", Integer, nullable=False) for name in ("examined", "resubmitted", "redundant")],
        *[Column(f"{name}_count", Integer, nullable=False) for name in ("outside", "missing", "elsewhere")],
        sqlite_autoincrement=True,
    )
    op.create_table(
        "resubmitted",
        Column("number", Integer, primary_key=True),
        Column("message_id", Text, primary_key=True),
        Column("is_redundant", Integer, nullable=False),
        sqlite_with_rowid=False,
    )
