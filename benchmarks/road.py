"""The road of a message: how many Python functions are called, and how many of our files are opened, for one message.

python -m benchmarks.road [--messages N] [--files K] [--checkout DIRECTORY]. Two real nodes, all sessions on the first: it is
the primary server of every message, the second its shadow server. cProfile counts in each thread of both; a run of few
messages and one of many, which take the same time, are subtracted from each other, so what starting, greeting, polling and
ending cost is not in it. Counts do not depend on the machine's speed; they vary by some hundredths, because more or fewer
messages share a commit.

A resumed coroutine counts as a call, as cProfile counts. `--checkout` measures another checkout of the project, with the
clients and servers of this one.
"""

import argparse
import asyncio
import json
import os
from collections import Counter
from pathlib import Path

from benchmarks.throughput import PLACES, PRODUCT_TIMES, timed, workplace
from shadowrelay.lab.cluster import Cluster, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.processes import wait_until_peers_know_each_other

FEW = 500
FILE_CALLS_MIN = 0.1  # a message; what is called less often is not on the road of each one

# Runs in the node. A thread's profiler counts that thread only, so each has its own. All are written at the end of the node: threads that
# ended long ago, whose numbers others may have got, and daemon threads, which never end.
PROFILED = """
import cProfile, json, os, runpy, sys, threading
profilers = []
def profiled(call):
    profiler = cProfile.Profile(builtins=True)
    profilers.append(profiler)
    profiler.enable()
    try:
        call()
    finally:
        profiler.disable()
run_thread = threading.Thread.run
threading.Thread.run = lambda thread: profiled(lambda: run_thread(thread))
sys.path.insert(0, os.environ.get("ROAD_CHECKOUT", os.getcwd()))
sys.argv[0] = "shadowrelay"
try:
    profiled(lambda: runpy.run_module("shadowrelay", run_name="__main__", alter_sys=True))
finally:
    calls = {}  # not `dump_stats`: that keeps one of all functions with one name, such as the constructors of dataclasses
    for profiler in profilers:
        for entry in profiler.getstats():
            is_code = not isinstance(entry.code, str)
            function = (entry.code.co_filename, entry.code.co_firstlineno, entry.code.co_qualname) if is_code else ("~", 0, entry.code)
            key = json.dumps(function)
            calls[key] = calls.get(key, 0) + entry.callcount
    with open(f"{os.environ['ROAD_DIRECTORY']}/{os.getpid()}.calls", "w") as file:
        json.dump(calls, file)
"""

Calls = Counter[tuple[str, int, str]]


async def counted(messages: int, checkout: Path, seconds: float = 0.0) -> tuple[list[Calls], float]:
    """Calls of each function, for each node, and how long the messages took; it waits until at least `seconds` are over."""
    (port,) = free_ports(1)
    with workplace(Path("/var/tmp")) as directory:
        os.environ["ROAD_DIRECTORY"], os.environ["ROAD_CHECKOUT"] = str(directory), str(checkout)
        cluster = Cluster(PLACES, HostPort("127.0.0.1", port), directory=directory, transport=PRODUCT_TIMES)
        nodes = list(cluster.nodes.values())
        for node in nodes:
            node.program = ("-c", PROFILED, *node.program[2:])
        async with cluster:
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            took = await timed(port, [nodes[0].address.port], messages)
            await asyncio.sleep(3 + max(seconds - took, 0.0))  # the last discards are asked for and acknowledged
            pids = [node.process.pid for node in nodes if node.process is not None]
        found = []
        for pid in pids:
            counts: dict[str, int] = json.loads((directory / f"{pid}.calls").read_text())
            found.append(Counter({tuple(json.loads(function)): count for function, count in counts.items()}))
        return found, took


async def measure(messages: int, files_max: int, checkout: Path) -> None:
    """Print a block a node."""
    many, seconds = await counted(FEW + messages, checkout)
    few, _ = await counted(FEW, checkout, seconds)
    opened: set[str] = set()
    for role, before, after in zip(("primary server", "shadow server"), few, many, strict=True):
        each = {function: (count - before[function]) / messages for function, count in after.items()}
        python = {function: count for function, count in each.items() if not function[0].startswith("~")}
        files: Counter[str] = Counter()
        for (path, _, _), count in python.items():
            files[path] += count  # type: ignore[assignment]
        ours = {
            _shortened(path, checkout): count
            for path, count in files.items()
            if f"{checkout}/shadowrelay/" in path and count >= FILE_CALLS_MIN
        }
        opened |= set(ours)
        print(
            f"{role}: {sum(python.values()):.0f} Python calls a message, {sum(each.values()):.0f} with built-ins, {len(ours)} files of ours"
        )
        for path, count in sorted(files.items(), key=lambda item: -item[1])[:files_max]:
            print(f"    {count:7.1f} {_shortened(path, checkout)}")
            for (of, line, name), calls in sorted(python.items(), key=lambda item: -item[1]):
                if of == path and calls >= FILE_CALLS_MIN:
                    print(f"            {calls:7.2f} {line} {name}")
    print(f"both: {len(opened)} files of ours are opened")


def _shortened(path: str, checkout: Path) -> str:
    return path.removeprefix(f"{checkout}/").rpartition("site-packages/")[2]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=4000)
    parser.add_argument("--files", type=int, default=0, help="list so many files with their functions, those called most first")
    parser.add_argument("--checkout", type=Path, default=Path.cwd())
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.messages, arguments.files, arguments.checkout.resolve()))


if __name__ == "__main__":
    main()
