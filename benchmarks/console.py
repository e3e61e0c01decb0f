"""What the console costs: pages with a million messages that wait, and accepting mail while twenty people look. docs/performance.md.

    python -m benchmarks.console [--count 1000000] [--viewers 20] [--rounds 6] [--seconds 8] [--only pages|viewers]

Two nodes with that many messages each: every page is asked several times by who is logged in. Then two nodes without any: so many browsers
with open pages (each the front page, queues or peers, live), and none, in turn, first while no mail comes and then while it is accepted.
Times on a busy machine say little: the processor time of both nodes is given, too, less what they use while nobody looks.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.backlog import acceptance, accepted_first, fill, idle_share, new_queue, next_hop, nodes_with, processor_seconds
from benchmarks.throughput import workplace
from shadowrelay.lab.cluster import NodeProcess, Place, free_ports
from shadowrelay.model.routing import HostPort

PLACES = (Place("a.east.example", "east"), Place("b.west.example", "west"))
PAGES = (
    "/",
    "/queues",
    "/queues?filter=MessageCount -gt 5",
    "/queues?page=1",
    "/messages",
    "/messages?order=oldest",
    "/messages?to=user@slow.example",
    "/peers",
    "/if-lost?servers=a.east.example",
)
LIVE = ("/", "/queues", "/peers")
ASKED_TIMES = 9
RATIO = "accepted with viewers, of the rate without"
WANTED_MS, WANTED_RATIO, WANTED_MB = 200.0, 0.97, 15.0


@asynccontextmanager
async def logged_in(node: NodeProcess) -> AsyncIterator[httpx.AsyncClient]:
    """The administrator's browser."""
    (token,) = node.directory.rglob("token")
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=f"http://{node.admin}", timeout=60, limits=limits) as client:
        response = await client.post("/login", data={"token": token.read_text().strip()})
        assert response.status_code == 303, response.status_code
        yield client


async def timed(client: httpx.AsyncClient, nodes: Sequence[NodeProcess], path: str, idle: float) -> tuple[float, float]:
    """The medians of time, and of the processor time of all nodes. `idle` as from `share`. Units: milliseconds."""
    took, spent = [], []
    for _ in range(ASKED_TIMES):
        await asyncio.sleep(1.1)  # so that nothing is left of the look before
        before, began = total(nodes), time.perf_counter()
        (await client.get(path)).raise_for_status()
        took.append(1000 * (time.perf_counter() - began))
        spent.append(1000 * (total(nodes) - before) - took[-1] * idle / 100)
    return round(statistics.median(took), 1), round(statistics.mean(spent), 1)  # a tick of the kernel has 10 ms


def total(nodes: Sequence[NodeProcess]) -> float:
    """Processor seconds of all nodes so far."""
    return sum(sum(processor_seconds(node)) for node in nodes)


async def share(nodes: Sequence[NodeProcess], seconds: float) -> float:
    """Of one processor, while no mail comes. Units: per cent."""
    before, began = total(nodes), time.monotonic()
    await asyncio.sleep(seconds)
    return 100 * (total(nodes) - before) / (time.monotonic() - began)


def resident(node: NodeProcess) -> float:
    """Units: megabytes."""
    assert node.process is not None
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024 / 1e6


def _look(address: tuple[str, int], cookie: str, count: int, parts: Any) -> None:
    """So many streams, read and thrown away. Browsers run on other machines: here at the lowest priority."""

    async def look(number: int) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(f"GET /live?path={LIVE[number % len(LIVE)]} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
        while octets := await reader.read(1 << 18):
            with parts.get_lock():
                parts.value += octets.count(b"event: part")

    async def all_of_them() -> None:
        await asyncio.gather(*(look(number) for number in range(count)))

    os.nice(19)
    asyncio.run(all_of_them())


@asynccontextmanager
async def viewers(client: httpx.AsyncClient, node: NodeProcess, count: int) -> AsyncIterator[Any]:
    """So many open live pages, in a process of their own; how many parts they got, as `value`."""
    context = multiprocessing.get_context("spawn")
    parts = context.Value("q", 0)
    cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    process = context.Process(target=_look, args=((node.admin.host, node.admin.port), cookie, count, parts), daemon=True)
    if count:
        process.start()
        while parts.value < count:
            await asyncio.sleep(0.1)
    try:
        yield parts
    finally:
        if count:
            process.terminate()
            process.join()


async def seconds_until_shown(client: httpx.AsyncClient, node: NodeProcess, next_hop: HostPort) -> list[float]:
    """From an act by the API (a next hop is held, and resumed) until an open page shows its state."""
    (token,) = node.directory.rglob("token")
    queue, found = f"{node.name}\\{next_hop}", []
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
    async with client.stream("GET", "/live", params={"path": "/queues"}) as response:
        lines = response.aiter_lines()
        for number in range(2 * ASKED_TIMES):
            verb = "resume" if number % 2 else "suspend"
            await asyncio.sleep(0.37 * (number % 5))  # not in step with the page
            began = time.perf_counter()
            parameters = {"queue": queue, "by": "benchmark"} | ({"hold": "true"} if verb == "suspend" else {})
            (await client.post(f"/api/v1/queues/{verb}", params=parameters, headers=headers)).raise_for_status()
            part = ""
            async for line in lines:
                part = "" if line.startswith("event: part") else part + line
                if not line and part and ("Suspended" in part) == (verb == "suspend"):
                    break
            found.append(time.perf_counter() - began)
    return found


async def accepted(node: NodeProcess, seconds: float) -> tuple[float, float]:
    """Messages a second; milliseconds of processor time of this node for each."""
    before, began = sum(processor_seconds(node)), time.monotonic()
    rate = await acceptance(node.address, seconds)
    spent, took = sum(processor_seconds(node)) - before, time.monotonic() - began
    return rate, 1000 * spent / max(rate * took, 1)


async def pages(options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """With a backlog."""
    (unused,) = free_ports(1)
    with next_hop(0.05) as slow, next_hop(0.0) as healthy, workplace(options.directory) as directory:
        hops = (HostPort("127.0.0.1", unused), slow.address, healthy.address)
        one, other = [await new_queue(place.name, directory / place.name / "data") for place in PLACES]
        half = options.count // 2
        for queue, peer in ((one, other), (other, one)):
            fill(queue, peer, half, half, (str(hops[0]), str(hops[1])))
        async with nodes_with(directory, hops, PLACES) as nodes:
            await accepted_first(nodes[0])
            async with logged_in(nodes[0]) as client:
                with slow.stopped():
                    for node in nodes:
                        await idle_share(node, 60)
                    idle = await share(nodes, 10)
                    return {path: await timed(client, nodes, path, idle) for path in PAGES}


async def watched(options: argparse.Namespace) -> dict[str, object]:
    """Without one."""
    with next_hop(0.0) as healthy, workplace(options.directory) as directory:
        hops = (healthy.address, healthy.address, healthy.address)
        async with nodes_with(directory, hops, PLACES) as nodes:
            node = nodes[0]
            await accepted_first(node)
            await acceptance(node.address, 2)
            async with logged_in(node) as client:
                without = resident(node)
                for path in PAGES * ASKED_TIMES:
                    await client.get(path)
                async with viewers(client, node, options.viewers):
                    await asyncio.sleep(options.seconds)
                shown = await seconds_until_shown(client, node, healthy.address)
                before, shares, rounds = resident(node), [], []
                for number in range(options.rounds):
                    share_of: dict[bool, float] = {}
                    both: dict[bool, tuple[float, float]] = {}
                    for is_watched in (True, False) if number % 2 else (False, True):
                        async with viewers(client, node, options.viewers if is_watched else 0):
                            await asyncio.sleep(1)
                            share_of[is_watched] = await share([node], options.seconds)
                            both[is_watched] = await accepted(node, options.seconds)
                    shares.append(share_of[True] - share_of[False])
                    rounds.append(both)
            after = resident(node)
    ratios = [statistics.median(each[True][at] / each[False][at] for each in rounds) for at in (0, 1)]
    return {
        "an act is shown by an open page after, s": [round(each, 2) for each in (statistics.median(shown), max(shown))],
        "viewers, % of a processor on the node": round(statistics.median(shares), 1),
        RATIO: round(ratios[0], 3),
        "processor time of the node a message, of that without": round(ratios[1], 3),
        "rates, with and without": [[round(each[one][0]) for one in (True, False)] for each in rounds],
        "memory more, MB": round(before - without, 1),
        "memory more by the mail of the measurement, MB": round(after - before, 1),
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    seen = await watched(options) if options.only != "pages" else {}
    print(json.dumps(seen), flush=True)
    if options.only == "viewers":
        return seen
    found = await pages(options)
    return seen | {
        "messages": options.count,
        "pages, ms": {path: each[0] for path, each in found.items()},
        "pages, ms of processor time of both nodes": {path: each[1] for path, each in found.items()},
    }


def main() -> int:
    """Returns the exit status: 1 where a figure misses what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000, help="messages in each of the two queues (default 1,000,000)")
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only", choices=("pages", "viewers"), help="one half of it")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="queues and logs (default /var/tmp)")
    figures = asyncio.run(measure(parser.parse_args()))
    print(json.dumps(figures, indent=2))
    missed = [
        name
        for name, is_well in (
            ("pages, ms", figures.get("pages, ms", {"/queues": 0.0})["/queues"] < WANTED_MS),
            ("memory more, MB", figures.get("memory more, MB", 0.0) <= WANTED_MB),
            (RATIO, figures.get(RATIO, 1.0) >= WANTED_RATIO),
        )
        if not is_well
    ]
    print(f"missed: {', '.join(missed)}" if missed else "all as wanted")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
