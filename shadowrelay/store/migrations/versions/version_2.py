"""Adds delivery queues to `retry`, with the server that a fork waits for, and counters of all queues. docs/architecture.md "On disk"."""

from alembic import op
from sqlalchemy import Column, Integer, Text, text

revision = "0002"
down_revision = "0001"

COUNT = """
    INSERT INTO counter
    SELECT 'submission', '', 0, count(*), sum(coalesce(size, 0)) FROM message
    WHERE role = 'primary' AND retries_count = 0 HAVING count(*)
    UNION ALL SELECT 'shadow', primary_server || ' ' || primary_database, handed, count(*), sum(coalesce(size, 0)) FROM message
    WHERE role = 'shadow' GROUP BY 2, 3
    UNION ALL SELECT 'safety-net', CAST(is_shadow_side AS TEXT), keep_until / 60000000, count(*), sum(coalesce(size, 0)) FROM message
    WHERE role = 'delivered' GROUP BY 2, 3
    UNION ALL SELECT 'poison', '', 0, count(*), sum(coalesce(size, 0)) FROM message WHERE role = 'set-aside' HAVING count(*)
    UNION ALL SELECT 'delivery', next_hop, 0, count(*), sum(coalesce(message.size, 0)) FROM retry
    LEFT JOIN message ON message.internal_id = retry.message GROUP BY 2
    UNION ALL SELECT 'listed', server, 0, count(*), 0 FROM listing GROUP BY 2
    UNION ALL SELECT 'discard', asker || ' ' || asker_database, 0, count(*), 0 FROM discard GROUP BY 2
"""


def upgrade() -> None:
    op.add_column("retry", Column("waits_for", Text, server_default="", nullable=False))
    op.add_column("retry", Column("notice_at", Integer))
    op.execute("UPDATE retry SET notice_at = attempts_next_at")  # each is then looked at once, and gets its own
    op.create_index("retry_due", "retry", ["next_hop", "attempts_next_at", "message"])
    op.create_index("retry_notice", "retry", ["notice_at"], sqlite_where=text("notice_at IS NOT NULL"))
    op.create_index("retry_waits_for", "retry", ["waits_for", "message"], sqlite_where=text("waits_for != ''"))
    op.drop_index("message_due", "message")
    for name, columns, condition in (
        ("message_submission", ["role", "internal_id"], "role = 'primary' AND retries_count = 0 AND is_decided = 1"),
        ("message_undecided", ["role"], "role = 'primary' AND is_decided = 0"),
        ("message_content", ["segment"], "role IN ('primary', 'shadow', 'set-aside')"),
        ("message_large", ["segment", "offset"], "segment = 0"),
    ):
        op.create_index(name, "message", columns, sqlite_where=text(condition))
    op.create_table(
        "counter",
        Column("kind", Text, primary_key=True),
        Column("name", Text, primary_key=True),
        Column("number", Integer, primary_key=True),
        Column("count", Integer, nullable=False),
        Column("octets", Integer, nullable=False),
        sqlite_with_rowid=False,
    )
    op.execute(COUNT)
