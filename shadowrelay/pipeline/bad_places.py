"""Notes content that the disk cannot read, while it reads other content: a bad sector, a damaged directory. docs/design.md 6.9.

An I/O error alone says nothing about the content: the next reading may succeed. If it comes again after two heartbeats, and the disk was
proved readable meanwhile (`pipeline.commit_watch`), another server should use its copy.
"""

from shadowrelay.model.message import ContentPlace

HEARTBEATS_UNTIL_LASTING = 2
PLACES_MAX = 10_000  # I6; the oldest are forgotten, and begin anew


class BadPlaces:
    """The first failure at each place since it was read last. Instants are of `Clock.awake`."""

    def __init__(self) -> None:
        self._failed_at: dict[ContentPlace, float] = {}
        self.proved_at = float("-inf")  # the disk read something else

    def was_read(self, place: ContentPlace) -> None:
        """It is well."""
        if self._failed_at:
            self._failed_at.pop(place, None)

    def failed(self, place: ContentPlace, at: float, heartbeat: float) -> bool:
        """It could not be read: whether that lasts."""
        if place not in self._failed_at and len(self._failed_at) >= PLACES_MAX:
            del self._failed_at[next(iter(self._failed_at))]
        first = self._failed_at.setdefault(place, at)
        return at - first >= HEARTBEATS_UNTIL_LASTING * heartbeat and self.proved_at > first
