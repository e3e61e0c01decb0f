"""Time in tests. A bound that something has to keep is generous, because a busy machine is no failure; one that has to run out is
either waited for where nothing can come any more, or runs out when the test says so."""

import asyncio

PATIENCE_SECONDS = 60.0  # below pytest's own bound, so that the failure says what was waited for


def let_pass(seconds: float) -> None:
    """The clock of the running loop (asyncio's own, not uvloop) jumps: whatever would be due by then is due now."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
