"""A node that cannot commit, or cannot read what it has stored: since when, and why. docs/design.md 6.14."""

from datetime import datetime

from shadowrelay.model.replies import Reply
from shadowrelay.model.values import dataclass

HEARTBEATS_WITHOUT_COMMIT = 2  # then the node falls silent
HEARTBEATS_READING = 4  # so long may a proof of reading take: a disk may be slow
READING_SECONDS_MIN = 10.0


@dataclass(frozen=True, slots=True)
class CommitFailure:
    """Nothing was committed since `since`; or, with `is_reading`, nothing read; or, with `is_outcome`, an outcome cannot be committed.
    `silent_since`: this node ended its sessions with peers, so their count of its silence began no later. `reply`: to clients whose mail
    cannot be stored."""

    since: datetime
    silent_since: datetime
    reason: str
    reply: Reply
    is_reading: bool = False
    is_outcome: bool = False

    @property
    def cannot(self) -> str:
        """What this node cannot do."""
        return "read what it has stored" if self.is_reading else "commit what it did" if self.is_outcome else "commit"

    @property
    def what(self) -> str:
        """For people, before a directory."""
        if self.is_outcome:
            return "what was delivered or returned cannot be committed in"
        return "nothing could be read from" if self.is_reading else "nothing was committed in"


def cannot_commit(now: float, committed_at: float, asked_at: float | None, heartbeat: float) -> bool:
    """Whether nothing was committed for two heartbeats. It must also have been tried for one: a node with nothing to commit, or one whose
    process was stopped, may just not have asked. Units: seconds of `Clock.ran`."""
    is_late = now - committed_at >= HEARTBEATS_WITHOUT_COMMIT * heartbeat
    return is_late and asked_at is not None and now - asked_at >= heartbeat


def reading_hangs(now: float, asked_at: float, heartbeat: float) -> bool:
    """Whether a proof of reading that has not ended was asked for so long ago that the disk is not just slow. Units as above."""
    return now - asked_at >= max(HEARTBEATS_READING * heartbeat, READING_SECONDS_MIN)
