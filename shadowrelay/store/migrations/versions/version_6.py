"""Adds an index of the notifications before whose acknowledgement a finished message is not forgotten. docs/design.md 6.3."""

from alembic import op
from sqlalchemy import text

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_index("discard_ends", "discard", ["message_id"], sqlite_where=text("status IN ('promoted', 'released')"))
