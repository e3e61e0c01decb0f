"""`python -m tests.simulation.run SEED [--steps N]` replays a world and prints its trace; `--seeds 1-200` runs many,
`--script NAME` a world in which nothing is left to chance but the grain of time.

Runs itself again with hashing and addresses that are the same each time: sets decide the order of some things.
"""

import argparse
import ctypes
import os
import sys
import time
import traceback

from tests.simulation.scripts import SCRIPTS
from tests.simulation.world import STEPS, Result, World

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


def run(seed: int, steps: int, *, is_traced: bool = False, script: str = "") -> Result:
    """One world. Whatever fails in it is a complaint."""
    world = SCRIPTS[script](is_traced=is_traced) if script else World(seed, steps=steps, is_traced=is_traced)
    try:
        return world.run()
    except Exception:
        return Result(seed, [traceback.format_exc()], world.__dict__.get("counts", {}), world.trace)


def report(seed: int, steps: int, *, is_traced: bool, script: str = "") -> int:
    """Run it in a process of its own, so that no world depends on the one before. 0, or 1 if it failed."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) and 1
    began = time.process_time()
    result = run(seed, steps, is_traced=is_traced, script=script)
    lines = [*result.trace, f"{result}  ({time.process_time() - began:.1f} s)" if not is_traced else str(result)]
    print("\n".join([*lines, *(f"    {complaint}" for complaint in result.complaints[:10])]), flush=True)
    os._exit(bool(result.complaints))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--seeds", help="from-to")
    parser.add_argument("--script", choices=sorted(SCRIPTS))
    parser.add_argument("--trace", action="store_true", help="of a script")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    if arguments.script:
        return report(0, 0, is_traced=arguments.trace, script=arguments.script)
    if arguments.seeds:
        first, _, last = arguments.seeds.partition("-")
        failed = sum(report(seed, arguments.steps, is_traced=False) for seed in range(int(first), int(last or first) + 1))
        print(f"{failed} failed")
        return min(failed, 1)
    return report(arguments.seed, arguments.steps, is_traced=True)


if __name__ == "__main__":
    fix_order()
    sys.exit(main())
