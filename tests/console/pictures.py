"""Makes the picture of the console for the README: `python -m tests.console.pictures`. Needs Debian's chromium."""

import asyncio
import tempfile
from pathlib import Path

from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import AdminRole
from tests.kit.clients import submit
from tests.kit.consoles import TOKENS, a_cluster_with_people, watched_browser
from tests.kit.processes import wait_until_peers_know_each_other

PICTURE = Path(__file__).parents[2] / "docs/pictures/console.png"
NOWHERE = HostPort("127.0.0.1", 9)


async def main() -> None:
    """Three nodes, of which one is destroyed while mail waits."""
    sink = Sink()
    with tempfile.TemporaryDirectory() as directory:
        span = {"shadow_resubmit_time_span": "600s"}
        async with a_cluster_with_people(
            Path(directory) / "nodes", await sink.start(), count=3, routes={"*@slow.example": NOWHERE}, **span
        ) as cluster:
            nodes = list(cluster.nodes.values())
            wait_until_peers_know_each_other(nodes)
            for number in range(30):
                await submit(nodes[number % 3].address, f"user{number}@slow.example")
            await nodes[1].kill()
            served = f"http://{nodes[0].admin}"
            async with watched_browser(served) as (page, _):
                await page.goto(served)
                await page.fill("#token", TOKENS[AdminRole.VIEWER])
                await page.keyboard.press("Enter")
                await page.wait_for_selector("text=takes over in")
                await page.screenshot(path=PICTURE)
    await sink.close()


if __name__ == "__main__":
    asyncio.run(main())
