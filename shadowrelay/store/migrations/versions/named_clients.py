"""Envelopes may name the original client. docs/architecture.md "On disk".

No table changes: an older program would take such rows for corrupt, and must not open them.
"""

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Rows without one stay as they are."""
