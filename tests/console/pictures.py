"""Makes the pictures of console and report for the README: `python -m tests.console.pictures`. Needs Debian's chromium, and Java."""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.sla_generate import generate
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import AdminRole
from tests.kit.clients import submit
from tests.kit.consoles import TOKENS, a_cluster_with_people, watched_browser
from tests.kit.processes import wait_until_peers_know_each_other

PICTURES = Path(__file__).parents[2] / "docs/pictures"
OCTETS_MAX = 200_000
REPORTED = {"seeds": [11], "messages": 400, "nodes": 3, "faults": 0.0, "spoilt": 0.0}  # of generated logs
NOWHERE = HostPort("127.0.0.1", 9)


async def console() -> None:
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
                await page.screenshot(path=PICTURES / "console.png")
    await sink.close()


async def report() -> None:
    """Of three nodes with a few faults."""
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory), **REPORTED)  # type: ignore[arg-type]
        command = ["sla", "report", "--logs", f"{directory}/logs", "--output", f"{directory}/report", "--final"]
        await asyncio.to_thread(subprocess.run, [sys.executable, "-m", "shadowrelay", *command], check=True)
        page_of_it = f"file://{directory}/report/report.html"
        async with watched_browser(page_of_it) as (page, _):
            await page.goto(page_of_it)
            await page.screenshot(path=PICTURES / "report.png")


async def main() -> None:
    """Both."""
    await console()
    await report()
    for picture in PICTURES.glob("*.png"):
        assert picture.stat().st_size < OCTETS_MAX, f"{picture} has {picture.stat().st_size} octets"


if __name__ == "__main__":
    asyncio.run(main())
