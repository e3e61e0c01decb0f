"""Bursts of messages through two nodes that stay up, on request: how `benchmarks.cost` measures two checkouts in turn.

python -P benchmarks/bursts.py ENTRIES, with PYTHONPATH at the checkout to be measured: its nodes, its load and its packages' versions. It
prints `ready` with the nodes' names; for each number of messages on a line of standard input the seconds until each had its 250 and each
node's nanoseconds of processor time, until the discards were fetched, too; an empty line ends it. The receiving server stays up: one that
ends leaves a queue in Retry, and the next burst would measure that.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.throughput import PLACES, PRODUCT_TIMES, SESSIONS, SIZE, workplace
from shadowrelay.lab.cluster import LOOPBACK, Cluster, NodeProcess, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.processes import wait_until_peers_know_each_other
from tests.kit.smtp_programs import running_sink, source_command

WARM_UP = 500
REST_SECONDS = 1.2  # a little longer than PRODUCT_TIMES' discard_poll_interval


def nanoseconds(node: NodeProcess) -> int:
    """Of the processor, in all threads, so far; a thread that has ended is missing."""
    assert node.process is not None
    spent = 0
    for task in Path(f"/proc/{node.process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            spent += int((task / "schedstat").read_text().split()[0])
    return spent


async def burst(ports: Sequence[int], messages: int) -> float:
    """The seconds until each message had its 250; then a rest. Raises: RuntimeError if one had not."""
    began = time.monotonic()
    share, sessions = messages // len(ports), SESSIONS // len(ports)
    commands = [source_command(port, messages=share, sessions=sessions, size=SIZE) for port in ports]
    clients = [await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL) for command in commands]
    if any([await client.wait() for client in clients]):
        raise RuntimeError("not each message was accepted")
    seconds = time.monotonic() - began
    await asyncio.sleep(REST_SECONDS)
    return seconds


async def main(entries: int) -> None:
    """See the module."""
    (port,) = free_ports(1)
    with workplace(Path("/var/tmp")) as directory, running_sink(port):
        async with Cluster(PLACES, HostPort(LOOPBACK, port), directory=directory, transport=PRODUCT_TIMES) as cluster:
            nodes = list(cluster.nodes.values())
            ports = [node.address.port for node in nodes[:entries]]
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            await burst(ports, WARM_UP)
            print("ready", *(node.name for node in nodes), flush=True)
            while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
                before = [nanoseconds(node) for node in nodes]
                seconds = await burst(ports, int(line))
                print(seconds, *(nanoseconds(node) - spent for node, spent in zip(nodes, before, strict=True)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
