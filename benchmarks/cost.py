"""Processor time per message, node by node: what a change costs or saves, little disturbed by what else the machine does.

python -m benchmarks.cost [--messages N] [--entries 1|2] [--profile DIRECTORY] [--checkout DIRECTORY --rounds K] [--nodes 1 2 4 8]
[--shared-port]. All sessions on the first node (entries 1) keep the roles apart: the first is the primary of everything, the second the
shadow server. `--profile` has py-spy write collapsed stacks of each node there. `--checkout` measures another checkout of the project in
turn with this one, burst by burst. `--nodes` measures clusters in turn whose sessions, the same number in all, are shared by so many
nodes (1: one, and a peer). `--shared-port` measures in turn two nodes behind one port on all cores, one of them alone on a core with its
peer on another, and both on one core.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.throughput import PLACES, PRODUCT_TIMES, timed, workplace
from shadowrelay.lab.cluster import LOOPBACK, LOOPBACK_NETWORK, Cluster, NodeProcess, Place, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.processes import wait_until_peers_know_each_other

TICKS = os.sysconf("SC_CLK_TCK")
SHARED = {"name": "shared", "reuse_port": True, "accept_xshadow": False}
ON_CORE = ("taskset", "--cpu-list")
BURST = 1000  # messages: a second, so that both checkouts of a pair find the same machine


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
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
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


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run cost: messages a second, and milliseconds of processor time a message for each node."""

    rate: float
    milliseconds: dict[str, float]


async def measure(
    messages: int, entries: int, profile: Path | None, places: Sequence[Place] = PLACES, *, shares_port: bool = False
) -> Cost:
    """One run; prints a line a node. `shares_port`: the clients use one port of all nodes."""
    port, shared = free_ports(2)
    connector = {**SHARED, "listen": f"{LOOPBACK}:{shared}", "relay_from": [LOOPBACK_NETWORK]}
    tables = {"[receive_connectors]": connector} if shares_port else {}
    with workplace(Path("/var/tmp")) as directory:
        next_hop = HostPort(LOOPBACK, port)
        async with Cluster(places, next_hop, directory=directory, transport=PRODUCT_TIMES, tables=tables) as cluster:
            nodes = list(cluster.nodes.values())
            ports = [shared] if shares_port else [node.address.port for node in nodes[:entries]]
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
    each, cost = 1000 / messages, {}
    for node, ((user0, system0), threads0), ((user, system), threads) in zip(nodes, before, after, strict=True):
        busy = {name: (spent - threads0.get(name, 0)) * each for name, spent in threads.items()}
        text = " ".join(f"{spent:.2f}" for spent in busy.values() if spent > 0.01)
        print(f"{node.name}: {(user - user0) * each:.2f} user + {(system - system0) * each:.2f} system ms a message; threads {text}")
        cost[node.name] = (user - user0 + system - system0) * each
    return Cost(messages / seconds, cost)


class Checkout:
    """Two nodes of a checkout that stay up, with the settings of that time; see `benchmarks.bursts`. A context manager."""

    def __init__(self, path: Path, entries: int) -> None:
        self._path, self._entries = path, entries
        self.names: list[str] = []

    async def __aenter__(self) -> "Checkout":
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", Path(__file__).with_name("bursts.py").resolve(), str(self._entries), cwd=self._path,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(self._path.resolve())},
        )  # fmt: skip
        _, *self.names = await self._answer()
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ConnectionError):
            await self._process.communicate(b"\n")

    async def burst(self, messages: int) -> Cost:
        """So many messages."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % messages)
        seconds, *spent = map(float, await self._answer())
        return Cost(messages / seconds, dict(zip(self.names, (each / messages / 1e6 for each in spent), strict=True)))

    async def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode().split()
        if not line:
            raise RuntimeError(f"the nodes of {self._path} failed")
        return line


def _sum_of(costs: Sequence[Cost], name: str | None) -> float:
    return sum(sum(cost.milliseconds.values()) if name is None else cost.milliseconds[name] for cost in costs)


async def compare(messages: int, entries: int, rounds: int, checkout: Path) -> None:
    """Bursts through this checkout and the other one in turn, whose nodes stay up: a machine that becomes slower for some seconds does so
    for both. Prints what each round says, and all of them, whose standard error is that of the rounds."""
    here = Path(__file__).parents[1]
    async with Checkout(here, entries) as this, Checkout(checkout, entries) as other:
        found: list[tuple[list[Cost], list[Cost]]] = []
        for number in range(rounds):
            costs: tuple[list[Cost], list[Cost]] = ([], [])
            for burst in range(max(messages // BURST, 1)):
                pair = ((this, costs[0]), (other, costs[1]))
                for each, taken in pair if (number + burst) % 2 else reversed(pair):
                    taken.append(await each.burst(min(BURST, messages)))
            found.append(costs)
            print(f"round {number + 1}: {_sum_of(costs[0], None) / _sum_of(costs[1], None):.3f}", flush=True)
    for title, name in (*((name, name) for name in this.names), ("both nodes", None)):
        one, another = (sum(_sum_of(costs[side], name) for costs in found) for side in (0, 1))
        ratios = [_sum_of(costs[0], name) / _sum_of(costs[1], name) for costs in found]
        error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
        bursts = sum(len(costs[0]) for costs in found)
        print(f"{title}: {one / bursts:.3f} and {another / bursts:.3f} ms a message; ratio {one / another:.3f}, standard error {error:.3f}")
    rates = [sum(BURST / cost.rate for costs in found for cost in costs[side]) for side in (0, 1)]
    print(f"messages a second: {rates[1] / rates[0]:.2f} times the other's")


async def compare_numbers(messages: int, rounds: int, numbers: Sequence[int]) -> None:
    """Clusters of so many nodes in turn; prints the medians, and their ratio to the first number."""
    found: dict[int, list[Cost]] = {number: [] for number in numbers}
    for index in range(rounds):
        for number in sorted(numbers, reverse=bool(index % 2)):
            print(f"round {index + 1}, {number} nodes: ", end="", flush=True)
            places = [Place(f"n{one}.east.example", "east") for one in range(max(number, 2))]
            found[number].append(await measure(messages, number, None, places))
    for number, costs in found.items():
        each = [sum(cost.milliseconds.values()) for cost in costs]
        ratio = statistics.median(one / sum(first.milliseconds.values()) for one, first in zip(each, found[numbers[0]], strict=True))
        rate, milliseconds = statistics.median(cost.rate for cost in costs), statistics.median(each)
        print(f"{number} nodes: {milliseconds:.2f} ms a message in all, {rate:.0f} messages/s; ratio, median of the rounds {ratio:.2f}")


async def compare_shared_port(messages: int, rounds: int) -> None:
    """Two nodes behind one port, and one that takes all mail, on cores of their own or both on one; prints medians and ratios."""
    own_cores = [replace(place, inside=(*ON_CORE, str(core))) for core, place in enumerate(PLACES)]
    one_core = [replace(place, inside=(*ON_CORE, "0")) for place in PLACES]
    kinds = {"one node on a core, its peer on another": (own_cores, False), "both on one core": (one_core, False)}
    kinds["two nodes behind one port"] = (list(PLACES), True)
    found: dict[str, list[Cost]] = {name: [] for name in kinds}
    for index in range(rounds):
        for name in sorted(kinds, reverse=bool(index % 2)):
            print(f"round {index + 1}, {name}: ", end="", flush=True)
            places, shares_port = kinds[name]
            found[name].append(await measure(messages, 1, None, places, shares_port=shares_port))
    shared = found.pop("two nodes behind one port")
    print(f"two nodes behind one port: {statistics.median(cost.rate for cost in shared):.0f} messages/s")
    for name, costs in found.items():
        ratio = statistics.median(one.rate / other.rate for one, other in zip(shared, costs, strict=True))
        print(f"{name}: {statistics.median(cost.rate for cost in costs):.0f} messages/s, {ratio:.2f} times as many behind one port")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--entries", type=int, choices=(1, 2), default=1)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--checkout", type=Path, help="another checkout of the project, measured in turn with this one")
    parser.add_argument("--nodes", type=int, nargs="+", help="clusters of so many nodes, measured in turn")
    parser.add_argument("--shared-port", action="store_true", help="two nodes behind one port and one on a core, in turn; needs taskset")
    parser.add_argument("--rounds", type=int, default=5, help="with --checkout, --nodes or --shared-port (default 5)")
    arguments = parser.parse_args()
    if arguments.profile is not None:
        arguments.profile.mkdir(parents=True, exist_ok=True)
    if arguments.checkout is not None:
        asyncio.run(compare(arguments.messages, arguments.entries, arguments.rounds, arguments.checkout))
    elif arguments.shared_port:
        asyncio.run(compare_shared_port(arguments.messages, arguments.rounds))
    elif arguments.nodes is not None:
        asyncio.run(compare_numbers(arguments.messages, arguments.rounds, arguments.nodes))
    else:
        asyncio.run(measure(arguments.messages, arguments.entries, arguments.profile))


if __name__ == "__main__":
    main()
