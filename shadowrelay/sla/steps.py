"""Things that are to be done again and again, each on its own: what breaks is said, waits longer each time, and keeps nothing else from
going on. docs/sla.md, 7.
"""

import time
from collections.abc import Callable

from shadowrelay.model.errors import ShadowrelayError

FAILURES_MAX = 10  # running; with the waits about five minutes
WAIT_MAX_SECONDS = 60.0
TEXT_CHARACTERS_MAX = 500

Tell = Callable[[str], None]


class WatchFailed(ShadowrelayError):
    """A step failed too often running; the text says which, and why. All that was done stands."""


class Step:
    """One of them. `failing`: why it does not work now; None while it does."""

    def __init__(self, name: str, do: Callable[[], None], tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.failures = 0
        self.failing: str | None = None
        self._do = do
        self._tell = tell
        self._clock = clock
        self._running_failures = 0
        self._not_before = 0.0

    def run(self) -> None:
        """Do it, unless it failed a moment ago. Raises: WatchFailed."""
        if self._clock() < self._not_before:
            return
        try:
            self._do()
        except Exception as exc:  # whatever Spark, a file system or a log may bring: the other steps go on
            self.failed(exc)

    def worked(self) -> None:
        """To be called by what it does, when that did something: not to fail at once is no proof."""
        if self.failing is not None:
            self._tell(f"{self.name}: works again")
        self.failing, self._running_failures = None, 0

    def failed(self, exc: Exception) -> None:
        """Count it, say it, and wait. Raises: WatchFailed."""
        self.failures += 1
        self._running_failures += 1
        self.failing = shortened(exc)
        if self._running_failures >= FAILURES_MAX:
            raise WatchFailed(f"{self.name} failed {FAILURES_MAX} times running, the last time: {self.failing}") from exc
        wait = min(2.0 ** (self._running_failures - 1), WAIT_MAX_SECONDS)
        self._not_before = self._clock() + wait
        self._tell(f"{self.name}: {self.failing}; again in {wait:.0f} s")


def shortened(exc: Exception) -> str:
    """Its first line that says something: Spark's are followed by pages of stack trace."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return f"{type(exc).__name__}: {lines[0] if lines else ''}"[:TEXT_CHARACTERS_MAX]
