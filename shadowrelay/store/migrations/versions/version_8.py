"""Adds an index of the shadow messages without forks, instead of a column in that of all. docs/architecture.md "On disk"."""

from alembic import op
from sqlalchemy import text

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    columns = ["role", "primary_server", "primary_database", "internal_id"]
    op.drop_index("message_shadow", "message")
    op.create_index("message_shadow", "message", columns, sqlite_where=text("role = 'shadow'"))
    op.create_index("message_without_forks", "message", columns, sqlite_where=text("role = 'shadow' AND forks_count = 0"))
