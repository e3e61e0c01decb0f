"""How the report grows: events per second and peak memory at several sizes, beside DuckDB on the same Parquet in the same run; and the
ingest of CSV. docs/performance.md.

Everything that is timed runs in a process of its own, one at a time, in turns (DuckDB, the same question by the job's transforms, the whole
report; again). Timed is the work, without the start of Python or the JVM; Spark is as cold as a user's. Answers must be identical, to each
other and to the generator's truth, or it ends with an error.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

Answer = dict[str, Any]
PERCENTS = (50, 95, 99)
RUNS = ("duckdb", "question", "report")
OF_PLAIN_MESSAGES = ("message", "is_plain", "copies_count", "received_at", "sent_at", "shadow_us", "rows_count")

# One pass over all rows, and a second over the few messages that nobody received. Repeats need no pass of their own: minima and maxima
# do not mind them. Own logs only, as generated.
DUCKDB = """
CREATE TEMP TABLE seen AS
SELECT message,
  arg_min({{'replication': replication, 'shadow_us': shadow_us}}, "at") FILTER (WHERE event = 'RECEIVE' AND source = 'SMTP') AS receive,
  min("at") FILTER (WHERE event = 'RECEIVE' AND source = 'SMTP') AS received_at,
  min("at") FILTER (WHERE event = 'HAREDIRECT') AS redirected_at,
  max("at") FILTER (WHERE event IN ('SEND', 'SENDEXTERNAL') AND len(recipients) > 0) AS sent_at,
  count(*) FILTER (WHERE event = 'RECEIVE') AS receives,
  count(*) FILTER (WHERE event = 'DSN') AS dsns,
  count(*) FILTER (WHERE event = 'HAREDIRECTFAIL') AS failures,
  count(*) FILTER (WHERE event = 'HARECEIVE' OR event = 'RESUBMIT' AND source = 'REDUNDANCY') AS held,
  count(*) FILTER (WHERE event = 'RESUBMIT') AS resubmits,
  count(*) FILTER (WHERE event IN ('FAIL', 'DUPLICATEDELIVER') OR event IN ('SEND', 'SENDEXTERNAL') AND len(recipients) > 0
    OR event = 'EXPIRE' AND client_hostname = '' OR event = 'HADISCARD' AND source_context = 'delivered') AS ends
FROM read_parquet('{events}/*/*/*/*.parquet', hive_partitioning = true) GROUP BY message;

CREATE TEMP TABLE released AS
SELECT message FROM (
  SELECT message, server, bool_or(event = 'HARECEIVE') AS held, bool_or(event = 'HADISCARD' AND source_context = 'released') AS released
  FROM read_parquet('{events}/*/*/*/*.parquet', hive_partitioning = true)
  WHERE message IN (SELECT message FROM seen WHERE receives = 0 AND dsns = 0 AND held > 0 AND resubmits = 0 AND ends = 0)
  GROUP BY message, server)
GROUP BY message HAVING bool_or(held) AND bool_and(NOT held OR released);

CREATE TEMP TABLE messages AS
SELECT received_at IS NULL AS is_reconstructed,
  received_at IS NULL OR CASE WHEN receive.replication <> '' THEN receive.replication = 'Success'
    ELSE coalesce(redirected_at <= received_at, false) END AS is_redundant,
  receive.shadow_us // 1000 AS shadow_ms,
  CASE WHEN sent_at < received_at THEN 0 ELSE (epoch_us(sent_at) - epoch_us(received_at)) // 1000 END AS delivery_ms
FROM seen
WHERE dsns = 0 AND (received_at IS NOT NULL
  OR receives = 0 AND held > 0 AND failures = 0 AND message NOT IN (SELECT message FROM released));
"""
COUNTS = """SELECT count(*), count(*) FILTER (WHERE is_reconstructed), count(*) FILTER (WHERE is_redundant) FROM messages"""
HISTOGRAM = """SELECT {0} AS ms, count(*) AS n FROM messages WHERE {0} IS NOT NULL GROUP BY ms ORDER BY ms"""


def ask_duckdb(warehouse: Path, cores: int, memory: str) -> Answer:
    """The question in SQL."""
    import duckdb

    with tempfile.TemporaryDirectory(dir=warehouse) as spill:
        database = duckdb.connect(config={"threads": cores, "memory_limit": f"{memory.rstrip('gG')}GB", "temp_directory": spill})
        database.execute("SET preserve_insertion_order = false")
        for statement in DUCKDB.format(events=warehouse / "events").split(";\n"):
            if statement.strip():
                database.execute(statement)
        acknowledged, reconstructed, redundant = database.execute(COUNTS).fetchall()[0]
        times = {name: dict(database.execute(HISTOGRAM.format(name)).fetchall()) for name in ("shadow_ms", "delivery_ms")}
        return _answer(acknowledged, reconstructed, redundant, _ranks(times["shadow_ms"]), _ranks(times["delivery_ms"]))


def ask_spark(spark: Any, warehouse: Path, work: Path) -> Answer:
    """The question by the job's own transforms: the first look at every message, the exact way for those that are not plain."""
    from pyspark.sql import functions as F

    from shadowrelay.sla.figures.counting import DELIVERY_US, METRICS, percentiles
    from shadowrelay.sla.figures.exact import ACKNOWLEDGED, RECONSTRUCTED, is_counted, timelines
    from shadowrelay.sla.figures.first_pass import first_pass, odd_events, seen_counts, server_names
    from shadowrelay.sla.figures.rows import exact_rows
    from shadowrelay.sla.report import Store
    from shadowrelay.sla.sites import read_servers
    from shadowrelay.sla.warehouse import read_events

    store = Store(spark, str(work))
    try:
        events = read_events(spark, str(warehouse))
        logged = list(read_servers(str(warehouse)))
        servers = spark.createDataFrame([(name,) for name in logged], "server string")
        seen = store.keep({"seen": lambda: first_pass(events, server_names(servers), logged).select(*OF_PLAIN_MESSAGES)})["seen"]
        counts = seen_counts(seen).collect()[0]
        lines = timelines(exact_rows(odd_events(events, seen, messages=counts["messages"], odd=counts["odd"]), {}), {}, has_exchange=False)
        plain = seen.where(F.col("is_plain")).select(
            F.lit(ACKNOWLEDGED).alias("kind"), F.col("received_at").alias("at"), F.lit(True).alias("is_redundant"), "shadow_us",
            F.col("sent_at").alias("last_delivery_at"),
        )  # fmt: skip
        messages = plain.unionByName(lines.select(*plain.columns)).where(is_counted())
        times = F.explode(
            F.array(
                F.struct(F.lit(METRICS.index("shadow_latency")).alias("metric"), F.col("shadow_us").alias("us")),
                F.struct(F.lit(METRICS.index("delivery_latency")).alias("metric"), F.expr(DELIVERY_US).alias("us")),
                F.struct(F.lit(-1).alias("metric"), F.lit(0).cast("long").alias("us")),
            )
        )
        milliseconds = F.floor(F.greatest(F.col("time.us"), F.lit(0)) / F.lit(1000)).alias("ms")
        is_counting = F.col("time.metric") == -1
        cells = (
            messages.select("kind", "is_redundant", times.alias("time"))
            .where(F.col("time.us").isNotNull())
            .groupBy(F.col("time.metric").alias("metric"), milliseconds)
            .agg(
                F.count(F.lit(1)).alias("count"),
                F.count(F.when(is_counting & (F.col("kind") == RECONSTRUCTED), 1)).alias("reconstructed"),
                F.count(F.when(is_counting & F.col("is_redundant"), 1)).alias("redundant"),
            )
        )
        cells = store.keep({"cells": lambda: cells})["cells"]
        totals = cells.where(F.col("metric") == -1).collect()[0]
        line = spark.sql(percentiles("{times}"), times=cells.where(F.col("metric") >= 0)).collect()[0]
        ranks = [{name: line[f"{metric}_{name}"] for name in _RANKS} for metric in ("shadow_latency", "delivery_latency")]
        return _answer(totals["count"], totals["reconstructed"], totals["redundant"], *ranks)
    finally:
        store.clear()


def ask_report(spark: Any, warehouse: Path, work: Path) -> Answer:
    """The whole report, and from it the same answer."""
    from shadowrelay.sla.report import write_report

    now = datetime.fromisoformat(json.loads((warehouse / "truth.json").read_text())["now"])
    overall = write_report(spark, str(warehouse), str(work), now=now)["overall"]
    ranks = [{name: overall[key][name] for name in _RANKS} for key in ("shadow_latency_ms", "delivery_latency_ms")]
    return _answer(overall["messages_acknowledged"], overall["messages_reconstructed"], overall["messages_redundant"], *ranks)


def truth_of(warehouse: Path) -> Answer:
    """What the generator knows."""
    told = json.loads((warehouse / "truth.json").read_text())
    counts, times = told["counts"], told["milliseconds"]
    ranks = [_ranks(dict(times[name])) for name in ("shadow_latency_ms", "delivery_latency_ms")]
    return _answer(counts["messages_acknowledged"], counts["messages_reconstructed"], counts["messages_redundant"], *ranks)


_RANKS = ("count", "p50", "p95", "p99", "max")


def _answer(acknowledged: int, reconstructed: int, redundant: int, shadow: Answer, delivery: Answer) -> Answer:
    return {
        "messages_acknowledged": acknowledged, "messages_reconstructed": reconstructed,
        "messages_redundant": redundant, "redundancy_ratio": redundant / acknowledged if acknowledged else None,
        "shadow_latency_ms": shadow, "delivery_latency_ms": delivery,
    }  # fmt: skip


def _ranks(histogram: dict[int, int]) -> Answer:
    """Nearest rank."""
    total, seen = sum(histogram.values()), 0
    ranks: Answer = {"count": total, "p50": None, "p95": None, "p99": None, "max": max(histogram, default=None)}
    for value, count in sorted(histogram.items()):
        for percent in PERCENTS:
            if seen * 100 < total * percent <= (seen + count) * 100:
                ranks[f"p{percent}"] = value
        seen += count
    return ranks


def ingest_logs(spark: Any, logs: Path, work: Path) -> Answer:
    """CSV to Parquet, as `sla ingest` does it."""
    from shadowrelay.sla.ingest import ingest

    return ingest(lambda: spark, str(logs), str(work))._asdict()


def one_run(options: argparse.Namespace) -> None:
    """In a process of its own: do it, print what it took and what came out as JSON."""
    spark: Any = None
    if options.run_one != "duckdb":
        from shadowrelay.sla.session import spark_session

        spark = spark_session(options.master, driver_memory=options.driver_memory)
        spark.range(1).count()  # the JVM and Spark's context are there; its code is as cold as a user's
    work = Path(tempfile.mkdtemp(prefix=".scale-", dir=options.directory))
    do: dict[str, Callable[[], Answer]] = {
        "duckdb": lambda: ask_duckdb(options.warehouse, options.cores, options.driver_memory),
        "question": lambda: ask_spark(spark, options.warehouse, work),
        "report": lambda: ask_report(spark, options.warehouse, work),
        "ingest": lambda: ingest_logs(spark, options.warehouse, work),
    }
    try:
        began = time.perf_counter()
        answer = do[options.run_one]()
        print(json.dumps({"seconds": time.perf_counter() - began, "answer": answer}))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def measured(name: str, warehouse: Path, options: argparse.Namespace) -> Answer:
    """Seconds, answer, and of all its processes together, sampled ten times a second: the peak of resident memory (pages that forked
    Python workers share count for each), and the seconds of processor, which other programs of the machine hardly change. These have the
    start of Python and JVM in them."""
    command = [sys.executable, str(Path(__file__).resolve()), "--run-one", name, "--warehouse", str(warehouse)]
    command += ["--directory", str(options.directory), "--master", options.master, "--driver-memory", options.driver_memory]
    process = subprocess.Popen([*command, "--cores", str(options.cores)], stdout=subprocess.PIPE, text=True)
    peak, ticks, is_done = [0], dict[int, int](), threading.Event()

    def watch() -> None:
        while not is_done.wait(0.1):
            each = used(process.pid)
            peak[0] = max(peak[0], sum(pages for pages, _ in each.values()) * os.sysconf("SC_PAGE_SIZE"))
            ticks.update({pid: taken for pid, (_, taken) in each.items()})

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        output, _ = process.communicate()
    finally:
        is_done.set()
        watcher.join()
    if process.returncode:
        raise SystemExit(f"{name} of {warehouse} ended with {process.returncode}")
    seconds = sum(ticks.values()) / os.sysconf("SC_CLK_TCK")
    told = json.loads(output.strip().splitlines()[-1])
    return {**told, "processor_seconds": seconds, "peak_bytes": peak[0], "load": os.getloadavg()[0]}


def used(root: int) -> dict[int, tuple[int, int]]:
    """Resident pages and ticks of processor of a process and all below it."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            parents[int(path.name)], found[int(path.name)] = int(fields[1]), (int(fields[21]), int(fields[11]) + int(fields[12]))
        except (OSError, ValueError, IndexError):
            continue  # it has ended
    family, waiting = set(), [root]
    while waiting:
        each = waiting.pop()
        family.add(each)
        waiting += [child for child, parent in parents.items() if parent == each and child not in family]
    return {each: found[each] for each in family if each in found}


def scale(options: argparse.Namespace) -> None:
    """All sizes, then the ingest; figures as they come, and JSON at the end."""
    options.directory.mkdir(parents=True, exist_ok=True)
    result: Answer = {"machine": machine(), "rounds": options.rounds, "sizes": {}, "ingest": None}
    for events in options.events:
        warehouse = made(options.directory / f"events-{events}", events)
        count, truth = json.loads((warehouse / "truth.json").read_text())["counts"]["events"], truth_of(warehouse)
        rounds: list[dict[str, Answer]] = []
        for number in range(options.rounds):
            each: dict[str, Answer] = {}
            for name in options.runs:
                run = each[name] = measured(name, warehouse, options)
                took = f"{run['seconds']:.1f} s, {run['processor_seconds']:.1f} s of processor, {run['peak_bytes'] / 1e9:.2f} GB"
                print(f"{count} events, round {number + 1}, {name}: {took}", flush=True)
                if run["answer"] != truth:
                    raise SystemExit(f"{name} says {run['answer']}, the truth is {truth}")
            rounds.append(each)
        result["sizes"][str(count)] = summed(count, rounds)
        print(json.dumps(result["sizes"][str(count)]), flush=True)
    if options.lines:
        result["ingest"] = ingest_speed(options)
        print(json.dumps(result["ingest"]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


def summed(count: int, rounds: list[dict[str, Answer]]) -> Answer:
    """Medians; the ratio to DuckDB round by round."""
    result: Answer = {"events": count}
    for name in rounds[0]:
        seconds = [each[name]["seconds"] for each in rounds]
        result[name] = {
            "seconds": statistics.median(seconds), "all_seconds": seconds, "events_per_second": count / statistics.median(seconds),
            "processor_seconds": [each[name]["processor_seconds"] for each in rounds],
            "peak_bytes": max(each[name]["peak_bytes"] for each in rounds), "load": [each[name]["load"] for each in rounds],
        }  # fmt: skip
        if "duckdb" in rounds[0] and name != "duckdb":
            ratios = [each[name]["seconds"] / each["duckdb"]["seconds"] for each in rounds]
            result[name] |= {"ratio_to_duckdb": statistics.median(ratios), "all_ratios": ratios}
    return result


def made(warehouse: Path, events: int) -> Path:
    """Generated, unless it is there."""
    if not (warehouse / "truth.json").exists():
        from benchmarks.sla_bulk import generate_parquet

        shutil.rmtree(warehouse, ignore_errors=True)
        generate_parquet(warehouse, seed=1, events=events)
    return warehouse


def ingest_speed(options: argparse.Namespace) -> Answer:
    """Real logs of one boundary, each server's under several names until there are enough lines."""
    logs = options.directory / f"logs-{options.lines}"
    if not (logs / "whole").exists():
        from benchmarks.sla_generate import generate

        shutil.rmtree(logs, ignore_errors=True)
        generate(logs / "one", [1], messages=min(options.lines // 8, 40_000), nodes=4, faults=0.02, spoilt=0.02, rows_per_file=20_000)
        servers = [path for path in sorted((logs / "one" / "logs").iterdir()) if any(path.glob("MSGTRK*.LOG"))]
        lines = sum(file.read_bytes().count(b"\n") for path in servers for file in path.glob("MSGTRK*.LOG"))
        for number in range(-(-options.lines // lines)):
            for path in servers:
                shutil.copytree(path, logs / "all" / f"{path.name}-{number}", copy_function=os.link)
        (logs / "whole").touch()
    runs = [measured("ingest", logs / "all", options) for _ in range(options.rounds)]
    every, answer = [run["seconds"] for run in runs], runs[0]["answer"]
    seconds = statistics.median(every)
    return {
        **answer, "seconds": seconds, "all_seconds": every, "mb_per_second": answer["bytes"] / 1e6 / seconds,
        "lines_per_second": answer["lines"] / seconds, "peak_bytes": max(run["peak_bytes"] for run in runs),
    }  # fmt: skip


def machine() -> Answer:
    """What it ran on."""
    from importlib.metadata import version

    model = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = {name: version(name) for name in ("pyspark", "pyarrow", "duckdb")}
    return {"processor": model, "cores": os.cpu_count(), "memory_bytes": memory, "kernel": platform.release(), **versions}


def add_options(command: argparse.ArgumentParser) -> None:
    """Of `scale`."""
    command.add_argument("--directory", type=Path, default=Path("/var/tmp/shadowrelay-scale"), help="where it is all made, and stays")
    command.add_argument("--events", type=int, nargs="*", default=[1_000_000, 10_000_000, 50_000_000])
    command.add_argument("--lines", type=int, default=3_000_000, help="of CSV for the ingest; 0: none")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--runs", nargs="*", choices=RUNS, default=list(RUNS))
    command.add_argument("--master", default="local[2]")
    command.add_argument("--cores", type=int, default=2, help="of DuckDB")
    command.add_argument("--driver-memory", default="4g", help="Spark's heap, and DuckDB's limit")
    command.add_argument("--json", type=Path)


def main() -> None:
    """Without `--run-one` as `benchmarks/sla.py scale`."""
    parser = argparse.ArgumentParser(description="How the report grows.")
    add_options(parser)
    parser.add_argument("--run-one", choices=[*RUNS, "ingest"])
    parser.add_argument("--warehouse", type=Path)
    options = parser.parse_args()
    (one_run if options.run_one else scale)(options)


if __name__ == "__main__":
    main()
