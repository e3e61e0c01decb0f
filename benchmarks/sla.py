"""The redundancy report on much data: `generate` makes it, with its truth. docs/sla.md.

python benchmarks/sla.py generate --output DIR [--seed N] [--seeds N] [--messages N] [--nodes N] [--faults SHARE] [--spoilt SHARE]
python benchmarks/sla.py generate --output DIR --events N [--seed N] [--nodes N] [--faults SHARE]     straight into Parquet

Without `--events`: DIR/logs/<server>/MSGTRK*.LOG, DIR/sites.toml, DIR/truth.json; a boundary for each of `--seeds` seeds from `--seed` on.
With it: DIR is a warehouse (DIR/events, DIR/servers.json) with DIR/truth.json.

python benchmarks/sla.py scale [--directory DIR] [--events N ...] [--lines N] [--rounds N] [--json FILE]      see docs/performance.md
"""

import argparse
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # as a script, from anywhere
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.sla_generate import generate
from benchmarks.sla_scale import add_options, scale

ROWS_PER_FILE = 20_000  # about 10 MB, as max_file_size


def _generate(options: argparse.Namespace) -> None:
    started = time.monotonic()
    if options.events:
        from benchmarks.sla_bulk import generate_parquet  # numpy and pyarrow only where they are needed

        faulty = 0.005 if options.faults is None else options.faults
        truth = generate_parquet(options.output, seed=options.seed, events=options.events, servers=options.nodes or 6, faulty=faulty)
        count = truth["counts"]["events"]
    else:
        truth = generate(
            options.output, range(options.seed, options.seed + options.seeds), messages=options.messages, nodes=options.nodes,
            faults=0.02 if options.faults is None else options.faults, spoilt=options.spoilt, has_late=options.late,
            rows_per_file=ROWS_PER_FILE,
        )  # fmt: skip
        count = truth["input"]["rows"]
    print(f"{count} events in {time.monotonic() - started:.1f} s; --now {truth['now']}")


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description="The redundancy report on much data.")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("generate", help="logs (or Parquet) of any size with faults, and the truth about them")
    command.add_argument("--output", type=Path, required=True)
    command.add_argument("--seed", type=int, default=1)
    command.add_argument("--seeds", type=int, default=1, help="boundaries, one a seed")
    command.add_argument("--messages", type=int, default=10_000, help="acknowledged messages a boundary, at least")
    command.add_argument("--nodes", type=int, default=0, help="servers a boundary")
    command.add_argument("--faults", type=float, help="share of messages with a fault (0.02; with --events 0.005)")
    command.add_argument("--spoilt", type=float, default=0.1, help="share of files with each fault of files")
    command.add_argument("--late", action="store_true", help="put some files into DIR/late, to arrive later")
    command.add_argument("--events", type=int, default=0, help="so many events straight into Parquet")
    command.set_defaults(run=_generate)
    command = commands.add_parser("scale", help="how time and memory grow, beside DuckDB; the ingest of CSV")
    add_options(command)
    command.set_defaults(run=scale)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
