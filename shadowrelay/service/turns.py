"""Large copies to one peer take turns: all at once, none of a burst would arrive in time; one after the other, all do."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from shadowrelay.core.placement import LARGE_OCTETS, TURN_OCTETS_MAX


class Turns:
    """First come, first served; small copies wait for nobody. Units: octets."""

    def __init__(self, octets_max: int = TURN_OCTETS_MAX) -> None:
        self._octets_max = octets_max
        self._octets = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait for room among the copies under way; more than all the room is there for one that is alone."""
        if size <= LARGE_OCTETS:
            yield
            return
        await self._enter(size)
        try:
            yield
        finally:
            self._octets -= size
            self._let_in()

    async def _enter(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._let_in()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._octets -= size
            with contextlib.suppress(ValueError):
                self._waiting.remove((size, turn))
            self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting and (not self._octets or self._octets + self._waiting[0][0] <= self._octets_max):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._octets += size
                turn.set_result(None)
