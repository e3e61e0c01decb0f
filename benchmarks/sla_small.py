"""What a small report costs: Spark jobs and tasks, calls of Py4J and seconds of processor for 600 messages. docs/performance.md.

python benchmarks/sla_small.py [--messages N] [--checkout DIRECTORY] [--keep FILE]
python benchmarks/sla_small.py --warehouse DIRECTORY     # the same of the report on a warehouse that benchmarks/sla.py scale has made

It generates the logs, then makes the report of them in a process of its own, once with `--logs` and once with `--warehouse`. Jobs, tasks
and calls are counted exactly and do not depend on the machine; processor time is of this process, the JVM and Spark's workers together, so
that other programs on the machine hardly change it. `--checkout` measures another checkout of the project on the same logs, and `--keep`
writes the summaries to compare (without `generated_at`).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NODES, SEED = 3, 7
NOW = "2026-03-09T00:00:00Z"  # of the generated logs

# Runs in the process that is measured. Every call to the JVM is one command on a connection of Py4J.
MEASURED = """
import json, os, sys
sys.path.insert(0, os.environ["SMALL_CHECKOUT"])
sys.argv[0] = "shadowrelay"
import py4j.clientserver, py4j.java_gateway
calls = 0
for connection in (py4j.clientserver.ClientServerConnection, py4j.java_gateway.GatewayConnection):
    def counting(self, command, send=connection.send_command):
        global calls
        calls += 1
        return send(self, command)
    connection.send_command = counting

def descendants(pid):
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append((int(name), sum(map(int, fields[11:15]))))
    found, waiting = 0, [pid]
    while waiting:
        for child, ticks in parents.get(waiting.pop(), ()):
            found += ticks
            waiting.append(child)
    return found

from shadowrelay.cli.main import app
try:
    app()
except SystemExit as end:
    assert not end.code, end.code
from pyspark import SparkContext
active = SparkContext._active_spark_context  # none where little was read without Spark
context = active._jsc.sc() if active else None
jobs = context.dagScheduler().numTotalJobs() if context else 0
tasks = context.statusStore().executorSummary("driver").totalTasks() if context else 0
own = sum(os.times()[:2])
seconds = own + descendants(os.getpid()) / os.sysconf("SC_CLK_TCK")
with open(os.environ["SMALL_RESULT"], "w") as file:
    json.dump({"jobs": jobs, "tasks": tasks, "calls": calls, "seconds": round(seconds, 1)}, file)
"""


def measured(checkout: Path, directory: Path, *words: str) -> dict[str, Any]:
    """Run `shadowrelay` with these words, and return what it cost."""
    result = directory / "measured.json"
    environment = os.environ | {"SMALL_CHECKOUT": str(checkout), "SMALL_RESULT": str(result), "PYTHONPATH": str(checkout)}
    with (directory / "said").open("wb") as said:
        subprocess.run([sys.executable, "-c", MEASURED, *words], env=environment, stdout=said, stderr=said, check=True)
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def summary_of(output: Path) -> dict[str, Any]:
    """What must be the same whichever way the report was made."""
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    del summary["generated_at"]
    return summary


def print_cost(name: str, checkout: Path, directory: Path, words: tuple[str, ...]) -> None:
    """Run `shadowrelay sla` with these words, and print it."""
    found = measured(checkout.resolve(), directory, "sla", *words)
    counts = ", ".join(f"{found[each]} {each}" for each in ("jobs", "tasks", "calls"))
    print(f"{name}: {counts}, {found['seconds']} s of processor", flush=True)


def main() -> None:
    """Generate, report from logs and from a warehouse, print."""
    parser = argparse.ArgumentParser(description="What a small report costs.")
    parser.add_argument("--warehouse", type=Path)
    parser.add_argument("--messages", type=int, default=600)
    parser.add_argument("--checkout", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks.sla_generate import generate

    directory = Path(tempfile.mkdtemp(prefix="sla-small-", dir="/var/tmp"))
    try:
        if options.warehouse is not None:
            judged_at = json.loads((options.warehouse / "truth.json").read_text())["now"]
            words = ("report", "--warehouse", str(options.warehouse), "--now", judged_at, "--output", str(directory / "one"))
            print_cost("report --warehouse", options.checkout, directory, words)
            return
        generate(directory, [SEED], messages=options.messages, nodes=NODES, faults=0.02)
        logs, warehouse = ("--logs", str(directory / "logs")), ("--warehouse", str(directory / "warehouse"))
        sites, now = ("--sites", str(directory / "sites.toml")), ("--now", NOW)
        runs = {
            "report --logs": ("report", *logs, *sites, *now, "--output", str(directory / "one")),
            "ingest": ("ingest", *logs, *sites, *warehouse),
            "report --warehouse": ("report", *warehouse, *now, "--output", str(directory / "two")),
        }
        for name, words in runs.items():
            print_cost(name, options.checkout, directory, words)
        if options.keep:
            options.keep.write_text(json.dumps([summary_of(directory / name) for name in ("one", "two")], indent=1))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
