"""What a peer's return causes is bounded, however often it comes and goes in a second. docs/architecture.md "Circuit breaker".

The first return is acted upon at once. What follows within the pause is one return, acted upon at its end if the peer is there then; each
makes the pause longer, until the peer has stayed for twice as long.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from shadowrelay.model.ids import ServerName
from shadowrelay.pipeline.context import Context

PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX = 1.0, 10.0


@dataclass(slots=True)
class Pause:
    """After an act. `until` in `Clock.awake`. `absence_seconds`: of the return that waits for its end; None: there is none."""

    until: float
    seconds: float
    absence_seconds: float | None = None


class Returns:
    """`act` is called with the server, and for how long it was away."""

    def __init__(self, context: Context, act: Callable[[ServerName, float], None]) -> None:
        self._context = context
        self._act = act
        self._pauses: dict[ServerName, Pause] = {}

    def note(self, server: ServerName, absence_seconds: float = 0.0) -> None:
        """It is back."""
        now, pause = self._context.clock.awake(), self._pauses.get(server)
        if pause is None or now >= pause.until + pause.seconds:
            pause = self._pauses[server] = Pause(now, PAUSE_SECONDS_FIRST / 2)
        if pause.absence_seconds is not None:
            pause.absence_seconds = max(pause.absence_seconds, absence_seconds)
        elif now >= pause.until:
            self._do(server, pause, absence_seconds)
        else:
            pause.absence_seconds = absence_seconds
            self._context.tasks.spawn(self._do_later(server, pause), f"return of {server}")

    async def _do_later(self, server: ServerName, pause: Pause) -> None:
        await asyncio.sleep(pause.until - self._context.clock.awake())
        absence_seconds, pause.absence_seconds = pause.absence_seconds or 0.0, None
        if self._context.peers.is_reachable(server):  # else its next return counts
            self._do(server, pause, absence_seconds)

    def _do(self, server: ServerName, pause: Pause, absence_seconds: float) -> None:
        pause.seconds = min(2 * pause.seconds, PAUSE_SECONDS_MAX)
        pause.until = self._context.clock.awake() + pause.seconds
        self._act(server, absence_seconds)
