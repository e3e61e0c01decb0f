"""The real clock. See `ports.Clock` for what its three times mean."""

import asyncio
import time
from datetime import UTC, datetime
from functools import partial

TICK_SECONDS = 0.5
STALL_SECONDS_MAX = 2.0  # a longer gap between two ticks means that this process was stopped, not busy


class SystemClock:
    """Wall time, CLOCK_BOOTTIME, and the time during which this process really ran (it must be given `tick`)."""

    def __init__(self) -> None:
        self._ran = 0.0
        self._ticked_at = self.awake()

    now = staticmethod(partial(datetime.now, UTC))
    awake = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))  # asked twenty times a message, so no function of ours

    def ran(self) -> float:
        return self._ran + min(self.awake() - self._ticked_at, STALL_SECONDS_MAX)

    def tick(self) -> None:
        """Count the time since the last tick, at most `STALL_SECONDS_MAX` of it."""
        at = self.awake()
        self._ran += min(at - self._ticked_at, STALL_SECONDS_MAX)
        self._ticked_at = at

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()
