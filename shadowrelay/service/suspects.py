"""Suspects go one at a time, so that the next death has one cause. docs/design.md 6.9."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TURN_SECONDS = 1.0  # a content that kills does so while it is handled; what takes longer waits for the network


class Suspects:
    """The turn of one message that two processes have died of. All other messages go on meanwhile: their marks are their own."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Use around an attempt on a suspect (`poison.Course.ALONE`). It waits for the turn of the one before it to end: with
        its attempt, or after `TURN_SECONDS`, because a silent next hop of one must not hold up the others."""
        await self._turn.acquire()
        is_mine = True

        def give_up() -> None:
            nonlocal is_mine
            if is_mine:
                is_mine = False
                self._turn.release()

        timer = asyncio.get_running_loop().call_later(TURN_SECONDS, give_up)
        try:
            yield
        finally:
            timer.cancel()
            give_up()
