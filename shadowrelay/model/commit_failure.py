"""A node that cannot commit, or cannot read what it has stored: since when, and why. docs/design.md 6.14."""

from datetime import datetime

from shadowrelay.model.replies import Reply
from shadowrelay.model.values import dataclass

HEARTBEATS_WITHOUT_COMMIT = 2  # then the node falls silent


@dataclass(frozen=True, slots=True)
class CommitFailure:
    """Nothing was committed since `since`, or with `is_reading`, nothing read. `silent_since`: this node ended its sessions with peers, so
    their count of its silence began no later. `reply`: to clients whose mail cannot be stored."""

    since: datetime
    silent_since: datetime
    reason: str
    reply: Reply
    is_reading: bool = False

    @property
    def cannot(self) -> str:
        """What this node cannot do."""
        return "read what it has stored" if self.is_reading else "commit"

    @property
    def what(self) -> str:
        """For people, before a directory."""
        return "nothing could be read from" if self.is_reading else "nothing was committed in"


def cannot_commit(now: float, committed_at: float, asked_at: float | None, heartbeat: float) -> bool:
    """Whether nothing was committed for two heartbeats. It must also have been tried for one: a node with nothing to commit, or one whose
    process was stopped, may just not have asked. Units: seconds of `Clock.ran`."""
    is_late = now - committed_at >= HEARTBEATS_WITHOUT_COMMIT * heartbeat
    return is_late and asked_at is not None and now - asked_at >= heartbeat
