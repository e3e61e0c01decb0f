"""Adds kept shadows: shadow messages of what this node relayed by TRACK. docs/design.md 6.7."""

from alembic import op
from sqlalchemy import Column, Integer, text

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("message", Column("is_kept", Integer, server_default="0", nullable=False))
    columns = ["role", "primary_server", "primary_database", "internal_id"]
    op.create_index("message_kept", "message", columns, sqlite_where=text("role = 'shadow' AND is_kept = 1"))
