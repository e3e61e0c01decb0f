"""Messages per second, end to end, against Debian's Postfix in the same run; and what the copy adds to a client's wait.

A pair is: Postfix alone, then shadowrelay with the sessions on both nodes, then with all on one; with `--checkout`, then another
checkout of shadowrelay with the sessions on both nodes. The figure that counts is the median of the ratios of the pairs: a machine
that gets slower for a while slows both. `make bench`; docs/performance.md.
"""

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.latency import Round, measure_rounds, percentile
from benchmarks.throughput import SESSIONS, SIZE, Run, run_checkout, run_postfix, run_shadowrelay
from tests.kit import postfix, smtp_programs

RATE = 100.0  # messages a second while waits are measured
SYNCS = 200
console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Pair:
    """One alternation."""

    postfix: Run
    both: Run
    one: Run
    other: Run | None  # of the other checkout


async def measure_pairs(parent: Path, pairs: int, messages: int, checkout: Path | None) -> list[Pair]:
    """A warm-up of each, a quarter as long, and then the pairs."""
    found = []
    for number in range(pairs + 1):
        count = messages if number else max(messages // 4, SESSIONS)
        pair = Pair(
            await run_postfix(parent, count),
            await run_shadowrelay(parent, count, entries=2),
            await run_shadowrelay(parent, count, entries=1),
            None if checkout is None else await run_checkout(checkout, parent, count),
        )
        other = "" if pair.other is None else f"; {pair.other.rate:.0f}/s by the other checkout"
        console.print(
            f"{'pair ' + str(number) if number else 'warm-up'}: Postfix {pair.postfix.rate:.0f}/s, shadowrelay {pair.both.rate:.0f}/s "
            f"on both nodes, {pair.one.rate:.0f}/s on one; HARECEIVE rows {pair.both.held_count} and {pair.one.held_count}{other}"
        )
        if number:
            found.append(pair)
    return found


def summary_of(pairs: list[Pair], rounds: list[Round], machine: dict[str, object], began_at: datetime) -> dict[str, object]:
    """Everything as plain values; rates per second, waits in milliseconds."""
    waits = {
        name: {
            share: round(1000 * statistics.median(percentile(getattr(one, name), number) for one in rounds), 2)
            for share, number in (("p50", 0.50), ("p99", 0.99))
        }
        for name in ("with_copy", "without_copy")
    }
    ratios = [pair.both.rate / pair.other.rate for pair in pairs if pair.other is not None]
    added = [1000 * (percentile(one.with_copy, 0.99) - percentile(one.without_copy, 0.99)) for one in rounds]
    return {
        "began_at": began_at.isoformat(timespec="seconds"),
        "machine": machine,
        "messages": pairs[0].both.messages,
        "size": SIZE,
        "sessions": SESSIONS,
        "pairs": [
            {
                "postfix": round(pair.postfix.rate, 1),
                "shadowrelay_both": round(pair.both.rate, 1),
                "shadowrelay_one": round(pair.one.rate, 1),
                "ratio_both": round(pair.both.rate / pair.postfix.rate, 2),
                "ratio_one": round(pair.one.rate / pair.postfix.rate, 2),
                **({} if pair.other is None else {"ratio_to_other_checkout": round(pair.both.rate / pair.other.rate, 2)}),
                "hareceive_both": pair.both.held_count,
                "hareceive_one": pair.one.held_count,
                "synchronous": sorted({*pair.both.synchronous, *pair.one.synchronous}),
            }
            for pair in pairs
        ],
        "median": {
            "postfix": round(statistics.median(pair.postfix.rate for pair in pairs), 1),
            "shadowrelay_both": round(statistics.median(pair.both.rate for pair in pairs), 1),
            "shadowrelay_one": round(statistics.median(pair.one.rate for pair in pairs), 1),
            "ratio_both": round(statistics.median(pair.both.rate / pair.postfix.rate for pair in pairs), 2),
            "ratio_one": round(statistics.median(pair.one.rate / pair.postfix.rate for pair in pairs), 2),
            **({"ratio_to_other_checkout": round(statistics.median(ratios), 2)} if ratios else {}),
        },
        "acknowledgement_ms": {
            **waits,
            "rate": RATE,
            "samples": sum(len(one.with_copy) for one in rounds),
            "p99_added_by_the_copy": round(statistics.median(added), 2),
        },
    }


def print_tables(summary: dict[str, object]) -> None:
    """For people."""
    pairs, median, waits = summary["pairs"], summary["median"], summary["acknowledgement_ms"]
    assert isinstance(pairs, list)
    assert isinstance(median, dict)
    assert isinstance(waits, dict)
    table = Table(title=f"messages per second, end to end: {summary['messages']} of {SIZE} octets, {SESSIONS} sessions, synced")
    for heading in ("", "Postfix alone", "both nodes", "ratio", "one node", "ratio", "HARECEIVE"):
        table.add_column(heading, justify="right")
    for number, pair in enumerate([*pairs, median], start=1):
        is_pair = number <= len(pairs)
        table.add_row(
            str(number) if is_pair else "median",
            f"{pair['postfix']:.0f}",
            f"{pair['shadowrelay_both']:.0f}",
            f"{pair['ratio_both']:.2f}",
            f"{pair['shadowrelay_one']:.0f}",
            f"{pair['ratio_one']:.2f}",
            f"{pair['hareceive_both']}, {pair['hareceive_one']}" if is_pair else "",
            style="" if is_pair else "bold",
        )
    console.print(table)
    table = Table(title=f"wait for the 250 at {RATE:.0f} messages a second, milliseconds ({waits['samples']} messages each)")
    for heading in ("", "p50", "p99"):
        table.add_column(heading, justify="right")
    for name, label in (("with_copy", "with the copy"), ("without_copy", "shadow_redundancy_enabled = false")):
        table.add_row(label, f"{waits[name]['p50']:.1f}", f"{waits[name]['p99']:.1f}")
    console.print(table)
    console.print(f"p99 added by the copy: {waits['p99_added_by_the_copy']:.1f} ms")
    console.print(f"{median['ratio_both']:.2f} times Postfix with the shadow copy on", style="bold")
    if "ratio_to_other_checkout" in median:
        console.print(f"{median['ratio_to_other_checkout']:.2f} times the other checkout", style="bold")


def describe_machine(parent: Path) -> dict[str, object]:
    """What the figures were taken on; a sync of 4 KiB is the disk in one number."""
    found = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    version = subprocess.run(["/usr/sbin/postconf", "-d", "-h", "mail_version"], capture_output=True, text=True, check=False)
    return {
        "cpu": found[0] if found else platform.machine(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "postfix": version.stdout.strip(),
        "sync_ms_p50": round(1000 * _sync_seconds(parent), 2),
    }


def _sync_seconds(parent: Path) -> float:
    found = []
    with tempfile.TemporaryFile(dir=parent, buffering=0) as file:
        for _ in range(SYNCS):
            file.write(b"\0" * SIZE)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def parse_arguments() -> argparse.Namespace:
    """See --help."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="alternations after the warm-up (default 5)")
    parser.add_argument("--messages", type=int, default=5000, help="messages in each run (default 5000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the latency measurement (default 5)")
    parser.add_argument("--round-messages", type=int, default=400, help="messages in each half of a round (default 400)")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="all queues and logs, on one disk (default /var/tmp)")
    parser.add_argument("--checkout", type=Path, help="another checkout of the project, to be measured too")
    parser.add_argument("--json", type=Path, help="write the summary there too; it goes to standard output in any case")
    arguments = parser.parse_args()
    if min(arguments.pairs, arguments.rounds, arguments.round_messages) < 1 or arguments.messages < SESSIONS:
        parser.error(f"at least 1 pair and round, and {SESSIONS} messages")
    return arguments


def main() -> int:
    """Returns the exit status: 0, or 2 where it cannot be measured."""
    arguments = parse_arguments()
    if not (postfix.is_available() and smtp_programs.are_available()):
        console.print("this needs root and Debian's Postfix: apt-get install postfix", style="red")
        return 2
    began_at = datetime.now(UTC)
    machine = describe_machine(arguments.directory)
    pairs = asyncio.run(measure_pairs(arguments.directory, arguments.pairs, arguments.messages, arguments.checkout))
    rounds = asyncio.run(measure_rounds(arguments.directory, rounds=arguments.rounds, messages=arguments.round_messages, rate=RATE))
    summary = summary_of(pairs, rounds, machine, began_at)
    print_tables(summary)
    text = json.dumps(summary, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
