"""Creates the first schema. docs/architecture.md "On disk".

No revision uses `tables.py`, which has the newest schema: a revision makes the schema of its own version.
"""

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = (
    """CREATE TABLE "database" (id INTEGER NOT NULL, "database" TEXT NOT NULL, created_at INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    began INTEGER NOT NULL, position INTEGER NOT NULL, internal_id INTEGER NOT NULL, sequence INTEGER NOT NULL, PRIMARY KEY (id))""",
    """CREATE TABLE message (internal_id INTEGER NOT NULL, message_id TEXT NOT NULL, origin TEXT NOT NULL, arrived_at INTEGER NOT NULL,
    envelope TEXT NOT NULL, recipients_count INTEGER NOT NULL, role TEXT NOT NULL, ownership INTEGER NOT NULL, placement INTEGER NOT NULL,
    number_database TEXT NOT NULL, done TEXT NOT NULL, primary_server TEXT NOT NULL, primary_database TEXT NOT NULL, asked TEXT NOT NULL,
    handed INTEGER NOT NULL, copies TEXT NOT NULL, is_placed INTEGER NOT NULL, due_at INTEGER, keep_until INTEGER NOT NULL,
    remember_until INTEGER NOT NULL, expires_at INTEGER, is_decided INTEGER NOT NULL, is_promoted INTEGER NOT NULL,
    promoted_from TEXT NOT NULL, is_shadow_side INTEGER NOT NULL, is_awaited INTEGER NOT NULL, deaths_count INTEGER NOT NULL,
    set_aside_reason TEXT NOT NULL, retries_count INTEGER NOT NULL, segment INTEGER, "offset" INTEGER, size INTEGER, sha256 BLOB,
    PRIMARY KEY (internal_id), UNIQUE (message_id))""",
    "CREATE INDEX message_due ON message (role, due_at) WHERE role = 'primary'",
    "CREATE INDEX message_unplaced ON message (role, is_placed) WHERE role = 'primary' AND is_placed = 0 AND is_decided = 1",
    "CREATE INDEX message_shadow ON message (role, primary_server, primary_database) WHERE role = 'shadow'",
    """CREATE INDEX message_handed ON message (handed, role, primary_server, primary_database)
    WHERE role = 'shadow' AND handed = 1""",
    "CREATE INDEX message_safety_net ON message (role, is_shadow_side, keep_until) WHERE role = 'delivered'",
    "CREATE INDEX message_set_aside ON message (role) WHERE role = 'set-aside'",
    "CREATE INDEX message_expires ON message (expires_at) WHERE expires_at IS NOT NULL",
    "CREATE TABLE listing (server TEXT NOT NULL, message INTEGER NOT NULL, PRIMARY KEY (server, message)) WITHOUT ROWID",
    """CREATE TABLE retry (message INTEGER NOT NULL, next_hop TEXT NOT NULL, ordinals TEXT NOT NULL, failures_count INTEGER NOT NULL,
    kind TEXT NOT NULL, first_failed_at INTEGER NOT NULL, attempts_next_at INTEGER NOT NULL, last_reply TEXT NOT NULL,
    delay_notified INTEGER NOT NULL, PRIMARY KEY (message, next_hop)) WITHOUT ROWID""",
    "CREATE INDEX retry_next_hop ON retry (next_hop, message)",
    """CREATE TABLE discard (sequence INTEGER NOT NULL, asker TEXT NOT NULL, asker_database TEXT NOT NULL, message_id TEXT NOT NULL,
    status TEXT NOT NULL, ordinals TEXT NOT NULL, created_at INTEGER NOT NULL, PRIMARY KEY (sequence))""",
    "CREATE INDEX discard_asker ON discard (asker, sequence)",
    """CREATE TABLE waiting (id INTEGER NOT NULL, side TEXT NOT NULL, more_sides TEXT NOT NULL, asker TEXT NOT NULL,
    asker_database TEXT NOT NULL, message_id TEXT NOT NULL, status TEXT NOT NULL, ordinals TEXT NOT NULL, created_at INTEGER NOT NULL,
    PRIMARY KEY (id))""",
    "CREATE INDEX waiting_side ON waiting (side)",
    """CREATE TABLE acknowledged (primary_server TEXT NOT NULL, "database" TEXT NOT NULL, incarnation INTEGER NOT NULL,
    sequence INTEGER NOT NULL, PRIMARY KEY (primary_server, "database", incarnation)) WITHOUT ROWID""",
    """CREATE TABLE peer (server TEXT NOT NULL, "database" TEXT NOT NULL, incarnation INTEGER NOT NULL, began INTEGER NOT NULL,
    position INTEGER NOT NULL, heard_at INTEGER, is_forgotten INTEGER NOT NULL, PRIMARY KEY (server))""",
    """CREATE TABLE peer_database ("database" TEXT NOT NULL, server TEXT NOT NULL, PRIMARY KEY ("database"))""",
    "CREATE TABLE asker (server TEXT NOT NULL, asked_at INTEGER NOT NULL, PRIMARY KEY (server))",
    """CREATE TABLE shadow_queue (number INTEGER NOT NULL, primary_server TEXT NOT NULL, PRIMARY KEY (number),
    UNIQUE (primary_server))""",
    """CREATE TABLE segment (segment INTEGER NOT NULL, pinned_count INTEGER NOT NULL, keep_until INTEGER NOT NULL,
    first_id INTEGER NOT NULL, last_id INTEGER NOT NULL, PRIMARY KEY (segment))""",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
