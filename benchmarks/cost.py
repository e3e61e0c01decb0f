"""Processor time per message, node by node: what a change costs or saves, little disturbed by what else the machine does.

python benchmarks/cost.py [--messages N] [--entries 1|2] [--profile DIRECTORY]. All sessions on the first node (entries 1) keep
the roles apart: the first is the primary of everything, the second the shadow server. `--profile` has py-spy write
collapsed stacks of each node there.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.throughput import PLACES, PRODUCT_TIMES, timed, workplace
from shadowrelay.lab.cluster import Cluster, NodeProcess, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.greeted import wait_until_peers_know_each_other

TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(node: NodeProcess) -> tuple[float, float]:
    """User and system, so far."""
    assert node.process is not None
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


def processor_seconds_of_threads(node: NodeProcess) -> dict[str, float]:
    """Of each thread, so far."""
    assert node.process is not None
    found = {}
    for task in sorted(Path(f"/proc/{node.process.pid}/task").iterdir(), key=lambda path: int(path.name)):
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        found[task.name] = (int(fields[11]) + int(fields[12])) / TICKS
    return found


async def _profiled(nodes: Sequence[NodeProcess], directory: Path) -> list[asyncio.subprocess.Process]:
    spy = shutil.which("py-spy") or str(Path(sys.executable).parent / "py-spy")
    return [
        await asyncio.create_subprocess_exec(
            spy, "record", "--format", "raw", "--rate", "200", "--threads", "--output", str(directory / f"{node.name}.raw"),
            "--pid", str(node.process.pid if node.process else 0), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )
        for node in nodes
    ]  # fmt: skip


async def measure(messages: int, entries: int, profile: Path | None) -> None:
    """Print a line a node."""
    (port,) = free_ports(1)
    with workplace(Path("/var/tmp")) as directory:
        async with Cluster(PLACES, HostPort("127.0.0.1", port), directory=directory, transport=PRODUCT_TIMES) as cluster:
            nodes = list(cluster.nodes.values())
            ports = [node.address.port for node in nodes[:entries]]
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            await timed(port, ports, 100)
            spies = await _profiled(nodes, profile) if profile is not None else []
            before = [(processor_seconds(node), processor_seconds_of_threads(node)) for node in nodes]
            seconds = await timed(port, ports, messages)
            after = [(processor_seconds(node), processor_seconds_of_threads(node)) for node in nodes]
            for spy in spies:
                with contextlib.suppress(ProcessLookupError):
                    spy.send_signal(signal.SIGINT)
                await spy.wait()
    print(f"{messages / seconds:.0f} messages/s")
    for node, ((user0, system0), threads0), ((user, system), threads) in zip(nodes, before, after, strict=True):
        each = 1000 / messages
        busy = {name: (spent - threads0.get(name, 0)) * each for name, spent in threads.items()}
        text = " ".join(f"{spent:.2f}" for spent in busy.values() if spent > 0.01)
        print(f"{node.name}: {(user - user0) * each:.2f} user + {(system - system0) * each:.2f} system ms a message; threads {text}")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--entries", type=int, choices=(1, 2), default=1)
    parser.add_argument("--profile", type=Path)
    arguments = parser.parse_args()
    if arguments.profile is not None:
        arguments.profile.mkdir(parents=True, exist_ok=True)
    asyncio.run(measure(arguments.messages, arguments.entries, arguments.profile))


if __name__ == "__main__":
    main()
