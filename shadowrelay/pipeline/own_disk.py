"""What this node has noticed of its own disk while it worked: content that cannot be read, outcomes that cannot be recorded, mail that
could not be stored. docs/design.md 5, 6.9, 6.14.

One I/O error says nothing about the content: the next reading may succeed. If it comes again after two heartbeats, and the disk was proved
readable meanwhile, another server should use its copy. Likewise a commit that fails once may succeed the next time. `commit_watch`, `ready`
and the loops draw the conclusions.
"""

from datetime import datetime
from operator import attrgetter

from shadowrelay.model.commit_failure import HEARTBEATS_WITHOUT_COMMIT
from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX, ContentPlace
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.model.values import dataclass
from shadowrelay.rules.placement import REFUSED_SECONDS_MAX

HEARTBEATS_UNTIL_LASTING = 2
PLACES_MAX = 10_000  # I6; the oldest are forgotten, and begin anew


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """An outcome that the ledger does not take: since when, in `Clock.ran` and as a time, and why it did not the last time."""

    since_ran: float
    since: datetime
    error: LedgerUnavailable


@dataclass(frozen=True, slots=True)
class Unstored:
    """The last message that was to be accepted could not be stored: when, in `Clock.awake`, and why."""

    at_awake: float
    reason: str


class OwnDisk:
    """Bounded by `PLACES_MAX` and by the attempts that run. Units: `heartbeat` seconds."""

    def __init__(self) -> None:
        self._failed_at: dict[ContentPlace, float] = {}  # the first failure at each place since it was read last; in `Clock.awake`
        self.read_proved_at = float("-inf")  # likewise: it read something else
        self._unrecorded: dict[MessageId, Unrecorded] = {}
        self._unstored: Unstored | None = None

    def content_read(self, place: ContentPlace) -> None:
        """It is well."""
        if self._failed_at:
            self._failed_at.pop(place, None)

    def content_failed(self, place: ContentPlace, awake: float, heartbeat: float) -> bool:
        """It could not be read: whether that lasts."""
        if place not in self._failed_at and len(self._failed_at) >= PLACES_MAX:
            del self._failed_at[next(iter(self._failed_at))]
        first = self._failed_at.setdefault(place, awake)
        return awake - first >= HEARTBEATS_UNTIL_LASTING * heartbeat and self.read_proved_at > first

    def outcome_failed(self, message_id: MessageId, ran: float, now: datetime, error: LedgerUnavailable) -> None:
        """The outcome of an attempt could not be recorded, and will be tried again."""
        first = self._unrecorded.get(message_id)
        since_ran, since = (ran, now) if first is None else (first.since_ran, first.since)
        self._unrecorded[message_id] = Unrecorded(since_ran, since, error)

    def outcome_over(self, message_id: MessageId) -> None:
        """It is recorded, or will not be tried again."""
        if self._unrecorded:
            self._unrecorded.pop(message_id, None)

    def stuck_outcome(self, ran: float, heartbeat: float) -> Unrecorded | None:
        """The oldest that could not be recorded for so long that other commits do not help it."""
        if not self._unrecorded:
            return None
        oldest = min(self._unrecorded.values(), key=attrgetter("since_ran"))
        return oldest if ran - oldest.since_ran >= HEARTBEATS_WITHOUT_COMMIT * heartbeat else None

    def mail_stored(self) -> None:
        """A message was accepted."""
        self._unstored = None

    def mail_failed(self, size: int, awake: float, reason: str) -> None:
        """A message of `size` octets was refused, because it could not be stored. A large one says nothing about others: with one that
        does not fit, a stranger would make this node look unfit."""
        if size <= CONTENT_IN_MEMORY_BYTES_MAX:
            self._unstored = Unstored(awake, reason)

    def why_no_mail(self, awake: float) -> str:
        """Why the next message will be refused, it seems; empty if it may be taken, and when no message has shown it for a while."""
        unstored = self._unstored
        return "" if unstored is None or awake - unstored.at_awake >= REFUSED_SECONDS_MAX else unstored.reason
