"""Bursts of messages through two nodes that stay up, on request: how `benchmarks.cost` measures two checkouts in turn.

python -P benchmarks/bursts.py ENTRIES, with PYTHONPATH at the checkout to be measured: its nodes, its load and its packages' versions. It
prints `ready` with the nodes' names; for each number of messages on a line of standard input the seconds and each node's nanoseconds of
processor time; an empty line ends it.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from benchmarks.throughput import PLACES, PRODUCT_TIMES, timed, workplace
from shadowrelay.lab.cluster import LOOPBACK, Cluster, NodeProcess, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.processes import wait_until_peers_know_each_other

WARM_UP = 500
REST_SECONDS = 0.05  # the last discards and commits belong to the burst


def nanoseconds(node: NodeProcess) -> int:
    """Of the processor, in all threads, so far; a thread that has ended is missing."""
    assert node.process is not None
    spent = 0
    for task in Path(f"/proc/{node.process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            spent += int((task / "schedstat").read_text().split()[0])
    return spent


async def main(entries: int) -> None:
    """See the module."""
    (port,) = free_ports(1)
    with workplace(Path("/var/tmp")) as directory:
        async with Cluster(PLACES, HostPort(LOOPBACK, port), directory=directory, transport=PRODUCT_TIMES) as cluster:
            nodes = list(cluster.nodes.values())
            ports = [node.address.port for node in nodes[:entries]]
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            await timed(port, ports, WARM_UP)
            print("ready", *(node.name for node in nodes), flush=True)
            while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
                before = [nanoseconds(node) for node in nodes]
                seconds = await timed(port, ports, int(line))
                await asyncio.sleep(REST_SECONDS)
                print(seconds, *(nanoseconds(node) - spent for node, spent in zip(nodes, before, strict=True)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
