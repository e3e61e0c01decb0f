"""`python -m tests.simulation.run SEED [--steps N]` replays a world and prints its trace; `--seeds 1-200` runs many, `--jobs` at once, and
says what they were in all; `--without RULE` switches a rule off; `--script NAME` runs a world in which nothing is left to chance but
the grain of time; `--plain` one without loss of power, partitions, half-open connections and TLS; `--machines` has several nodes on each.

Runs itself again with hashing and addresses that are the same each time: sets decide the order of some things.
"""

# ruff: noqa: E402

import ctypes
import os
import sys

NO_RANDOM_ADDRESSES = 0x0040000
AGAIN = "SIMULATION_IS_FIXED"


def fix_order() -> None:
    """Same seed, same world: also in another process."""
    if os.environ.get(AGAIN):
        return
    ctypes.CDLL(None).personality(NO_RANDOM_ADDRESSES)
    os.environ[AGAIN] = "1"
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]])


if __name__ == "__main__":
    fix_order()  # before the imports, which take longer than a short world

import argparse
import gc
import json
import pickle
import select
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache, partial

from tests.kit.quick import share_texts
from tests.simulation.fates import FatedWorld
from tests.simulation.kinds import ALL_KINDS, EVERY_KIND, KINDS
from tests.simulation.rules_off import RULES, without
from tests.simulation.scripts import SCRIPTS
from tests.simulation.world import STEPS, Result, World

COMPLAINTS_SHOWN = 10
KINDS_FROM = {100_000: KINDS, 400_000: ALL_KINDS, 700_000: EVERY_KIND}  # the kinds of faults of the seeds from there on
WARM_SEED = 1
FAULTS = (
    *("kill", "power loss", "wipe", "put back", "pause", "cut", "cut one way", "partition, cut", "partition, cut one way", "half open"),
    *("slow", "break", "clock jump", "full disk", "sink away", "siege", "restore", "restore, of a node that was down"),
    *("cut in three and more", "cut of a part", "power lost in turn", "power lost in turn, of a node", "absence"),
    *("disk read-only", "disk returns EIO", "disk hangs", "disk takes commits, and cannot be read"),
    *(
        "disk takes commits, and hangs when it is read",
        "disk has bad sectors",
        "machine without power",
        "machine destroyed",
        "wipe, of a node that was down",
    ),
    *("clone, on an empty disk", "clone, on a copied disk", "hostile peer"),
)
OTHERS = ("copies of a hostile peer", "journaled")
MESSAGES = ("sent", "acknowledged", "redundant", "lost with its only disk", "promoted", "sent again and recognised", *OTHERS)


def run(seed: int, arguments: argparse.Namespace, *, is_traced: bool) -> Result:
    """One world. Whatever fails in it is a complaint."""
    with without(*arguments.without) if arguments.without else nullcontext():
        if arguments.script:
            world: World = SCRIPTS[arguments.script](is_traced=is_traced)
        else:
            kind = partial(FatedWorld, is_trusting=arguments.trusting) if arguments.machines else World
            world = kind(
                seed,
                steps=arguments.steps,
                is_traced=is_traced,
                is_plain=arguments.plain,
                copies=arguments.copies,
                nodes=arguments.nodes,
                messages=arguments.messages,
                kinds=_kinds_of(seed) if arguments.faults is None else arguments.faults,
            )
        try:
            return world.run()
        except Exception:
            return Result(seed, [traceback.format_exc()], world.__dict__.get("counts", Counter()), world.trace)


def _kinds_of(seed: int) -> Sequence[str]:
    return next((kinds for first, kinds in reversed(KINDS_FROM.items()) if seed >= first), ())


@cache
def warm_up() -> None:
    """What every world needs is made once, and inherited: modules, compiled SQL, certificates. Nothing of it is looked at again by the
    collector of garbage, which a world of a minute does without."""
    share_texts()
    World(WARM_SEED, steps=1, nodes=(2,), messages=2).run()
    gc.collect()
    gc.freeze()
    gc.disable()


def begin(seed: int, arguments: argparse.Namespace, *, is_traced: bool) -> tuple[int, int]:
    """Run it in a process of its own, so that no world depends on the one before: its id, and where its result can be read."""
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        return child, reading
    os.close(reading)
    began = time.process_time()
    result = run(seed, arguments, is_traced=is_traced)
    result.seconds = time.process_time() - began
    with os.fdopen(writing, "wb") as pipe:
        pickle.dump(result, pipe)
    os._exit(0)


def results(seeds: Iterable[int], arguments: argparse.Namespace, *, is_traced: bool = False) -> Iterator[Result]:
    """As they end; `--jobs` of them run at once."""
    if not arguments.script:
        warm_up()
    waiting = iter(seeds)
    running: dict[int, tuple[int, int]] = {}  # by what its result is read from: seed, process
    while True:
        while len(running) < arguments.jobs and (seed := next(waiting, None)) is not None:
            child, reading = begin(seed, arguments, is_traced=is_traced)
            running[reading] = seed, child
        if not running:
            return
        reading = select.select(running, (), ())[0][0]
        seed, child = running.pop(reading)
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        yield pickle.loads(data) if data else Result(seed, [f"its process ended with {code}"], Counter())


def totals(counts: Counter[str], worlds_count: int, failed_count: int) -> str:
    """What all of it was."""
    causes = sorted(name for name in counts if name.startswith("duplicate ("))
    excused = sorted(name for name in counts if name.startswith("excused: "))
    hours = counts["virtual seconds"] / 3600
    lines = [f"{worlds_count} worlds, {hours:.1f} virtual hours, {failed_count} failed", "", "faults"]
    lines += [f"  {name:<33}{counts[name]:>9,}" for name in FAULTS]
    lines += ["messages", *(f"  {name:<28}{counts[name]:>9,}" for name in MESSAGES)]
    lines += ["duplicates, by cause", *(f"  {name[-3:]:<28}{counts[name]:>9,}" for name in causes)]
    return "\n".join([*lines, *(f"{name} {counts[name]:,}" for name in excused)])


def many(seeds: Sequence[int], arguments: argparse.Namespace) -> int:
    """Exit status 1 if one failed."""
    counts: Counter[str] = Counter()
    began, failed_count, seconds = time.monotonic(), 0, 0.0
    for number, result in enumerate(results(seeds, arguments), 1):
        counts.update(result.counts)
        failed_count += bool(result.complaints)
        seconds += result.seconds
        left = (time.monotonic() - began) / number * (len(seeds) - number)
        print(f"{number:>5}/{len(seeds)}  {result}  ({result.seconds:.1f} s; {left / 60:.0f} min left)")
        print("".join(f"    {complaint}\n" for complaint in result.complaints[:COMPLAINTS_SHOWN]), end="", flush=True)
        if result.complaints and arguments.first:
            break
    print(f"\n{totals(counts, number, failed_count)}")
    print(f"\n{seconds:.0f} s of a processor, {seconds / number:.1f} s for each world; {time.monotonic() - began:.0f} s in all")
    return min(failed_count, 1)


def serve() -> int:
    """Each line has the arguments of a run, which inherits all that is imported, compiled and made; the answer is its status, and what it
    said. For tests: the imports take longer than a short world."""
    warm_up()
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as said:
            if not (child := os.fork()):
                for number in (1, 2):
                    os.dup2(said.fileno(), number)
                sys.argv[1:] = json.loads(line)
                code = main()
                sys.stdout.flush()
                os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            print(json.dumps([code, said.read()]), flush=True)
    return 0


def _range(text: str) -> Sequence[int]:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _kinds(text: str) -> Sequence[str]:
    chosen = [] if text == "none" else text.split(",")
    if unknown := set(chosen) - set(EVERY_KIND):
        raise argparse.ArgumentTypeError(f"no such kinds: {', '.join(sorted(unknown))}")
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--seeds", type=_range, help="from-to")
    parser.add_argument("--jobs", type=int, default=1, help="worlds at once")
    parser.add_argument("--first", action="store_true", help="end with the first that fails")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--without", choices=sorted(RULES), action="append", default=[], metavar="RULE", help=", ".join(sorted(RULES)))
    parser.add_argument("--script", choices=sorted(SCRIPTS))
    parser.add_argument("--trace", action="store_true", help="of a script")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--nodes", type=_range, default=(), help="3-4: the seed chooses the number of nodes from these")
    names = ", ".join(EVERY_KIND)
    parser.add_argument("--faults", type=_kinds, help=f"kinds, with commas: {names}; or none. From seed {max(KINDS_FROM)} on all")
    parser.add_argument("--machines", action="store_true", help="several nodes on each machine, which is destroyed with all of them")
    parser.add_argument("--trusting", action="store_true", help="with --machines: shared_fate_is_redundant")
    parser.add_argument("--messages", type=int, help="exactly so many, in place of about 100")
    parser.add_argument("--copies", type=int, default=1, help="shadow_copies; as many disks are destroyed at once")
    arguments = parser.parse_args()
    if arguments.seeds:
        return many(arguments.seeds, arguments)
    (result,) = results([arguments.seed or 0], arguments, is_traced=arguments.trace or not arguments.script)
    print("\n".join([*result.trace, str(result), *(f"    {complaint}" for complaint in result.complaints[:COMPLAINTS_SHOWN])]))
    return bool(result.complaints)


if __name__ == "__main__":
    sys.exit(serve() if sys.argv[1:] == ["--serve"] else main())
