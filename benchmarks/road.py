"""The road of a message: how many Python functions are called, and how many of our files are opened, for one message.

python -m benchmarks.road [--messages N] [--files K] [--opcodes] [--checkout DIRECTORY]. Two real nodes, all sessions on the first:
it is the primary server of every message, the second its shadow server. cProfile counts in each thread of both; a run of few
messages and one of many, which take the same time, are subtracted from each other, so what starting, greeting, polling and
ending cost is not in it. Counts do not depend on the machine's speed; they vary by some hundredths, because more or fewer
messages share a commit.

A resumed coroutine counts as a call, as cProfile counts. `--opcodes` counts the interpreter's instructions in each function
instead (built-ins have none). `--checkout` counts in another checkout of the project as well, with its own settings, and lists
the functions by how much they differ.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

from benchmarks.throughput import PLACES, PRODUCT_TIMES, timed, workplace
from shadowrelay.lab.cluster import Cluster, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.processes import wait_until_peers_know_each_other

FEW = 500
COUNT_MIN = 0.1  # a message; what is called less often is not on the road of each one

# Runs in the node. A thread's profiler counts that thread only, so each has its own. All are written at the end of the node: threads that
# ended long ago, whose numbers others may have got, and daemon threads, which never end.
COUNTED = """
import cProfile, json, os, runpy, sys, threading
directory = os.environ['ROAD_DIRECTORY']
profilers = []
def calls():
    for profiler in profilers:
        for entry in profiler.getstats():  # not `dump_stats`: that keeps one of all functions with one name
            yield entry.code, entry.callcount
def start_profiler():
    profilers.append(cProfile.Profile(builtins=True))
    profilers[-1].enable()
start, counts = start_profiler, calls
if os.path.exists(f'{directory}/opcodes.so'):
    sys.path.insert(0, directory)
    import opcodes
    start, counts = opcodes.enable, opcodes.counts
def counted(call):
    start()
    call()
run_thread = threading.Thread.run
threading.Thread.run = lambda thread: counted(lambda: run_thread(thread))
sys.path.insert(0, os.getcwd())
sys.argv[0] = 'shadowrelay'
try:
    counted(lambda: runpy.run_module('shadowrelay', run_name='__main__', alter_sys=True))
finally:
    sys.setprofile(None)
    sys.settrace(None)
    found = {}
    for code, count in counts():
        is_code = not isinstance(code, str)
        key = json.dumps((code.co_filename, code.co_firstlineno, code.co_qualname) if is_code else ('~', 0, code))
        found[key] = found.get(key, 0) + count
    with open(f'{directory}/{os.getpid()}.counts', 'w') as file:
        json.dump(found, file)
"""
OPCODES = Path(__file__).with_name("opcodes.c")

Counts = Counter[tuple[str, int, str]]
Each = dict[tuple[str, int, str], float]  # of one message
ROLES = ("primary server", "shadow server")


async def counted(messages: int, seconds: float = 0.0) -> tuple[list[Counts], float]:
    """Counts of each function, for each node, and how long the messages took; it waits until at least `seconds` are over."""
    (port,) = free_ports(1)
    with workplace(Path("/var/tmp")) as directory:
        os.environ["ROAD_DIRECTORY"] = str(directory)
        if os.environ["ROAD_OPCODES"]:
            built = ("-shared", "-fPIC", "-O2", f"-I{sysconfig.get_path('include')}", "-o", str(directory / "opcodes.so"), str(OPCODES))
            subprocess.run(("cc", *built), check=True)
        cluster = Cluster(PLACES, HostPort("127.0.0.1", port), directory=directory, transport=PRODUCT_TIMES)
        nodes = list(cluster.nodes.values())
        for node in nodes:
            node.program = ("-c", COUNTED, *node.program[2:])
        async with cluster:
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            took = await timed(port, [nodes[0].address.port], messages)
            await asyncio.sleep(3 + max(seconds - took, 0.0))  # the last discards are asked for and acknowledged
            pids = [node.process.pid for node in nodes if node.process is not None]
        found = []
        for pid in pids:
            counts: dict[str, int] = json.loads((directory / f"{pid}.counts").read_text())
            found.append(Counter({_key(*json.loads(function)): count for function, count in counts.items()}))
        return found, took


def _key(path: str, line: int, name: str) -> tuple[str, int, str]:
    return path.removeprefix(f"{Path.cwd()}/").rpartition("site-packages/")[2], line, name


async def a_message(messages: int) -> list[Each]:
    """Counts of each function for one message, for each node."""
    many, seconds = await counted(FEW + messages)
    few, _ = await counted(FEW, seconds)
    return [
        {function: (count - before[function]) / messages for function, count in after.items()}
        for before, after in zip(few, many, strict=True)
    ]


async def a_message_in(checkout: Path, messages: int) -> list[Each]:
    """The same of another checkout, by this file with the modules and settings of that one."""
    with workplace(Path("/var/tmp")) as directory:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", str(Path(__file__).resolve()), "--messages", str(messages), "--counts", str(directory / "counts"),
            *(("--opcodes",) if os.environ["ROAD_OPCODES"] else ()), cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)},
        )  # fmt: skip
        if await process.wait() != 0:
            raise RuntimeError(f"counting in {checkout} failed")
        return read_counts(directory / "counts")


def read_counts(file: Path) -> list[Each]:
    """What `--counts` wrote."""
    return [{(path, line, name): count for path, line, name, count in each} for each in json.loads(file.read_text())]


def show(found: list[Each], files_max: int, unit: str) -> None:
    """Print a block a node."""
    opened: set[str] = set()
    for role, each in zip(ROLES, found, strict=True):
        python = {function: count for function, count in each.items() if not function[0].startswith("~")}
        files: Counter[str] = Counter()
        for (path, _, _), count in python.items():
            files[path] += count  # type: ignore[assignment]
        ours = {path for path, count in files.items() if path.startswith("shadowrelay/") and count >= COUNT_MIN}
        opened |= ours
        print(f"{role}: {sum(python.values()):.0f} {unit} a message, {sum(each.values()):.0f} with built-ins, {len(ours)} files of ours")
        for path, count in sorted(files.items(), key=lambda item: -item[1])[:files_max]:
            print(f"    {count:7.1f} {path}")
            for (of, line, name), calls in sorted(python.items(), key=lambda item: -item[1]):
                if of == path and calls >= COUNT_MIN:
                    print(f"            {calls:7.2f} {line} {name}")
    print(f"both: {len(opened)} files of ours are opened")


def show_difference(found: list[Each], other: list[Each]) -> None:
    """Print the functions of each node, what differs most first; lines are not compared, so what only moved in its file is the same."""
    for role, *both in zip(ROLES, found, other, strict=True):
        sums: list[Counter[tuple[str, str]]] = [Counter(), Counter()]
        for each, total in zip(both, sums, strict=True):
            for (path, _, name), count in each.items():
                total[path, name] += count  # type: ignore[assignment]
        this, that = sums
        print(f"{role}: {sum(this.values()):.0f} here, {sum(that.values()):.0f} there, a message")
        for function in sorted(this.keys() | that.keys(), key=lambda function: that[function] - this[function]):
            if abs(this[function] - that[function]) >= COUNT_MIN:
                difference = this[function] - that[function]
                print(f"    {difference:+8.1f} = {this[function]:7.1f} - {that[function]:7.1f} {' '.join(function)}")


async def measure(messages: int, files_max: int, unit: str, counts: Path | None, checkout: Path | None) -> None:
    """Count, and print."""
    found = await a_message(messages)
    show(found, files_max, unit)
    if counts is not None:
        counts.write_text(json.dumps([[(*function, count) for function, count in each.items()] for each in found]))
    if checkout is not None:
        show_difference(found, read_counts(checkout) if checkout.is_file() else await a_message_in(checkout, messages))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=4000)
    parser.add_argument("--files", type=int, default=0, help="list so many files with their functions, those that count most first")
    parser.add_argument("--opcodes", action="store_true", help="count the interpreter's instructions, not calls")
    parser.add_argument("--counts", type=Path, help="write the counts to this file")
    parser.add_argument("--checkout", type=Path, help="another checkout, or a file with its counts, to compare with")
    arguments = parser.parse_args()
    os.environ["ROAD_OPCODES"] = "yes" if arguments.opcodes else ""
    unit = "opcodes" if arguments.opcodes else "Python calls"
    checkout = arguments.checkout.resolve() if arguments.checkout else None
    asyncio.run(measure(arguments.messages, arguments.files, unit, arguments.counts, checkout))


if __name__ == "__main__":
    main()
