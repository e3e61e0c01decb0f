"""Makes the report: from the warehouse to `tables/`, summary.json, report.html and the text file for Prometheus. docs/sla.md, 6.

This is the job's I/O layer: it reads, calls the transforms of `figures`, and writes. It runs some dozens of Spark jobs: the first scans all
events, the second those of messages that are not plain, the others tables that these have written. No data that grows with the input
comes to the driver. Tables are written beside those of the previous report, and replace them when all are complete.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from shadowrelay.sla.figures.counting import HOUR_US, MINUTE_US, TimeSlots, Within, cells, figures, times
from shadowrelay.sla.figures.evidence import Evidence, Rules, evidence, within
from shadowrelay.sla.figures.first_pass import first_pass, odd_events, seen_counts, server_names, several_copies
from shadowrelay.sla.figures.log_writers import NOTHING_TOLD, Told, cut_names, identities, in_full, several, told, with_identities, words
from shadowrelay.sla.figures.slow import slow
from shadowrelay.sla.incident_list import cuts, incidents, with_cuts
from shadowrelay.sla.inspection import inspect, last_readings, remedy
from shadowrelay.sla.live import AHEAD_MAX
from shadowrelay.sla.objectives import (
    BURN_WINDOWS_HOURS,
    ServiceLevel,
    impossible,
    judged,
    not_computable,
    read_objectives,
    times_of,
    verdicts,
)
from shadowrelay.sla.parquet_files import COMPRESSION
from shadowrelay.sla.session import is_brief, is_quick, quick_plans, undivided
from shadowrelay.sla.spreadsheets import CSV, write_csv
from shadowrelay.sla.storage import alone, located, written_whole
from shadowrelay.sla.summary import (
    SCHEMA_VERSION,
    Inputs,
    Listed,
    figures_of,
    input_of,
    instant,
    is_instant,
    listed,
    logs,
    microseconds,
    no_figures,
    placed_figures,
    quarantined_once,
    read_inputs,
    rows_of,
    shown,
    traced,
    traces,
)
from shadowrelay.sla.warehouse import SERVERS, SITES, WarehouseUnusable, frame_of, read_events, read_quarantine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MICROSECOND = timedelta(microseconds=1)
TRIES = 3  # a concurrent ingest may merge small files that this report has listed but not read; then the report is restarted
FILE_VANISHED = "FAILED_READ_FILE.FILE_NOT_EXIST"  # Spark's error class for that
_EVENTS_READ = re.compile(r"events/date=[^/]+/server=([^/]+)/batch=[^/]+/[^/]+\.parquet")  # in its errors about a file

# ---- the directory of a report

TABLES = "tables"
PUBLISHED = frozenset({"messages", "copies", "takeovers", "duplicates", "losses", "orphans", "exposures", "slow", "figures", "quarantine"})
# For tables that are read a few times and deleted; lasting tables have land.COMPRESSION. Most columns are instants and hashes, of which a
# dictionary would have nearly as many entries as there are rows.
OF_WORK = {"compression": "snappy", "parquet.enable.dictionary": "false"}
WRITERS_MAX = 4
FEW_ROWS = 60_000  # that need the exact transforms: with so few, planning and compiling for many takes longer than computing
ABANDONED_AFTER = timedelta(days=1)  # longer than any report takes
SHORT = timedelta(hours=3)  # a period up to this length has figures by minute
MAKING = ".making-"  # prefix of the directory in which a report is built


class Store:
    """The directory of a report under construction: `making` in `output`. Tables that are not `PUBLISHED` are temporary: files, or
    blocks of the JVM if there is little input (`is_little`)."""

    def __init__(self, spark: "SparkSession", output: str, *, is_little: bool = False) -> None:
        self._spark = spark
        self._output = output.rstrip("/")
        self.making = f"{MAKING}{uuid.uuid4().hex}"
        self.work = f"{self._output}/{self.making}"
        self._is_little = is_little

    def keep(self, frames: Mapping[str, Callable[[], DataFrame]]) -> dict[str, DataFrame]:
        """Write each frame under its name, and return the stored frames.

        In parallel, planning included: a small job leaves most of the machine idle, and planning takes longer than it.
        """
        with ThreadPoolExecutor(WRITERS_MAX) as writers:
            writing = {name: writers.submit(self._keep, name, planned) for name, planned in frames.items()}
            return {name: written.result() for name, written in writing.items()}

    def _keep(self, name: str, planned: Callable[[], DataFrame]) -> DataFrame:
        frame = undivided(planned())
        if self._is_little:
            frame = frame.localCheckpoint(eager=name not in PUBLISHED)  # what is published is computed for that
            if name in PUBLISHED:
                self._publish(name, frame)
            return frame
        if name not in PUBLISHED and is_quick(self._spark):
            return frame.localCheckpoint()
        if name not in PUBLISHED:
            path = f"{self.work}/{name}"
            frame.write.options(**OF_WORK).parquet(path)
            return self._spark.read.schema(frame.schema).parquet(path)
        path, table, instants = self._publish(name, frame)
        stored = undivided(self._spark.read.schema(StructType(table.schema.fields)).parquet(path))
        return stored.withColumns({column: F.unix_micros(column) for column in instants}) if instants else stored

    def _publish(self, name: str, frame: DataFrame) -> tuple[str, DataFrame, list[str]]:
        """Write a table; returns where, as what, and its instants, which are numbers in `frame`."""
        instants = [field.name for field in frame.schema if isinstance(field.dataType, LongType) and is_instant(field.name)]
        table = frame.withColumns({column: F.timestamp_micros(column) for column in instants}) if instants else frame
        path = f"{self.work}/{TABLES}/{name}"
        table.write.option("compression", COMPRESSION).parquet(path)
        return path, table, instants

    def publish(self, pages: Mapping[str, bytes]) -> None:
        """Replace tables and pages (`pages` by file name) of the previous report, after all new ones are on disk."""
        for name, content in pages.items():
            with written_whole(f"{self.work}/{name}") as file:
                file.write(content)
        files, _ = located(self.work)
        with alone(self._output):
            for directory in (TABLES, CSV):
                new, target, old = (located(f"{place}/{directory}")[1] for place in (self.work, self._output, f"{self.work}/old"))
                if files.exists(target):
                    files.makedirs(located(f"{self.work}/old")[1], exist_ok=True)
                    files.mv(target, old, recursive=True)
                files.mv(new, target, recursive=True)
            for name in pages:
                files.mv(located(f"{self.work}/{name}")[1], located(f"{self._output}/{name}")[1])

    def clear(self) -> None:
        """Delete the temporary tables."""
        files, work = located(self.work)
        if files.exists(work):
            files.rm(work, recursive=True)


def sweep_reports(output: str, *, older_than: timedelta = timedelta()) -> None:
    """Delete directories left by killed reports. Shapes: those younger than `older_than` may belong to a running report."""
    files, top = located(output)
    for path in files.ls(top, detail=False) if files.isdir(top) else ():
        if path.rstrip("/").rpartition("/")[2].startswith(MAKING) and (not older_than or _age(files, path) > older_than):
            files.rm(path, recursive=True)


def _age(files: Any, path: str) -> timedelta:
    """Time since the last write; zero if the store does not tell."""
    try:
        modified: datetime = files.modified(path)
    except (NotImplementedError, OSError):
        return timedelta()
    return datetime.now(UTC) - modified.astimezone(UTC)


# ---- the report


class Rows(NamedTuple):
    """Number of rows, with repeats, and how many of them need the exact transforms."""

    all: int
    odd: int


def write_report(
    spark: "SparkSession",
    warehouse: str,
    output: str,
    *,
    objectives_file: str | None = None,
    now: datetime | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    is_final: bool = False,
    textfile: str | None = None,
    is_exact: bool = False,
    watch: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the report and return the content of summary.json. `is_exact`: use the exact transforms for every message, which is slow; for
    tests. `since`, `until`: report only what belongs to this interval. `watch`: the status of `sla watch`, see docs/sla.md, 7.

    Raises: ConfigurationError for the objectives.
    """
    promise = read_objectives(objectives_file)
    sweep_reports(output, older_than=ABANDONED_AFTER)
    for tries_left in reversed(range(TRIES)):
        try:
            summary = _make(
                spark, warehouse, output, promise, now=now, since=since, until=until, is_final=is_final, is_exact=is_exact, watch=watch
            )
            break
        except (PySparkException, Py4JJavaError) as exc:  # a job's failure may be either
            if FILE_VANISHED in str(exc):
                if tries_left:
                    continue
                raise WarehouseUnusable(
                    f"{warehouse}: another process merged files in it during each of {TRIES} tries; make the report again"
                ) from exc
            if (torn := _EVENTS_READ.search(str(exc))) is not None:
                raise WarehouseUnusable(
                    f"{warehouse}: damaged: {torn[0]} cannot be read; {remedy(warehouse, unquote(torn[1]) + '/*')}"
                ) from exc
            raise
    if textfile is not None:
        write_textfile(textfile, summary)
    return summary


def _make(
    spark: "SparkSession",
    warehouse: str,
    output: str,
    promise: ServiceLevel,
    *,
    now: datetime | None,
    since: datetime | None,
    until: datetime | None,
    is_final: bool,
    is_exact: bool,
    watch: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Write tables, summary.json and report.html; returns the summary."""
    inspect(warehouse)
    inputs = read_inputs(warehouse)
    generated_at = datetime.now(UTC).replace(microsecond=0)
    store = Store(spark, output, is_little=is_quick(spark))
    try:
        events, of_exchange = read_events(spark, warehouse), NOTHING_TOLD
        if inputs.of_exchange:
            events, inputs, of_exchange = _called_by_their_names(warehouse, events, inputs)
        log_ends = inputs.log_ends if now is not None else _not_ahead(events, inputs, microseconds(generated_at + AHEAD_MAX))
        newest = max((at for at in log_ends.values() if at is not None), default=microseconds(generated_at))
        judged_at = newest if now is None else microseconds(now)
        found, rows = _found(
            spark, events, inputs, log_ends, _rules(promise, judged_at, is_final), store, of_exchange=of_exchange, is_exact=is_exact
        )
        everything, period = found, Period.of(since, until, judged_at)
        if since is not None or until is not None:
            found = within(everything, period.since, period.until)
        first = min(inputs.beginnings, default=newest)
        slots = TimeSlots(judged_at, MINUTE_US if period.cut(first, newest) <= SHORT // MICROSECOND else HOUR_US)
        sites = frame_of(spark, SITES, [(name, site.site, site.boundary) for name, site in inputs.sites.items()])
        limits = _within(promise)

        def tell() -> tuple[Listed, dict[str, list[dict[str, Any]]]]:
            kept = store.keep(
                {
                    "copies": lambda: found.copies,
                    "messages": lambda: found.messages,
                    "slow": lambda: slow(found, everything.takeovers, sites, within=limits, now=judged_at, of_exchange=inputs.of_exchange),
                    "quarantine": lambda: quarantined_once(read_quarantine(spark, warehouse)),
                }
            )
            said = listed(found, kept["slow"], kept["quarantine"])
            return said, traces(events, traced(said.lists))

        def count() -> dict[str, DataFrame]:
            frames = {"cells": lambda: cells(found, slots, within=limits), "times": lambda: times(found, slots)}
            if period.before is not None:
                earlier = within(everything, *period.before)
                frames["cells_before"] = lambda: cells(earlier, TimeSlots(judged_at), within=limits)
                frames["times_before"] = lambda: times(earlier, TimeSlots(judged_at))
            kept = store.keep(frames)
            frames = {"figures": lambda: figures(kept["cells"], kept["times"], found, sites, slots)}
            if period.before is not None:
                frames["before"] = lambda: figures(kept["cells_before"], kept["times_before"], earlier, sites, TimeSlots(judged_at))
            return store.keep(frames)

        with ThreadPoolExecutor(1) as aside:  # lists are mostly planning, figures mostly computing
            telling = aside.submit(tell)
            counted = count()
            said, traced_rows = telling.result()
        inputs = replace(inputs, quarantined=said.quarantined)
        summary: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "generated_at": instant(generated_at),
            "now": instant(judged_at),
            "since": None if since is None else instant(since),
            "until": None if until is None else instant(until),
            "is_final": is_final,
            "input": input_of(inputs, rows=rows.all, rows_repeated=rows.odd - said.rows_once),
            **_figures(counted["figures"], promise, inputs),
            "before": _before(counted.get("before"), period, first, promise, inputs),
            **said.lists,
            "causes": said.causes,
            "slow_causes": said.slow_causes,
            "traces": traced_rows,
            **({} if watch is None else {"watch": dict(watch)}),
        }
        servers = summary["input"]["servers"]
        summary["takeovers"] = with_cuts(said.lists["takeovers"], servers, promise.times.shadow_heartbeat_frequency.total_seconds())
        summary["cuts"] = cuts(summary["takeovers"], servers)
        summary["incidents"] = incidents(summary)
        write_csv(f"{store.work}/{TABLES}", f"{store.work}/{CSV}", summary)
        store.publish(_pages(summary))
        return summary
    finally:
        store.clear()


def _called_by_their_names(warehouse: str, events: DataFrame, inputs: Inputs) -> tuple[DataFrame, Inputs, Told]:
    """Events and inputs by the servers of which the rows of Exchange's logs are, whatever the directories are called."""
    said = words(events)
    cut = cut_names(said, inputs.of_exchange)
    whole = {name: servers[0] for name, servers in cut.items() if len(servers) == 1}
    said = in_full(said, cut)
    called = identities(inputs.logs_by_server, said, whole=whole)
    if mixed := several(said, called.directories):
        of_files = in_full(words(events, mixed), cut)
        called = identities(inputs.logs_by_server, said, of_files, whole)
        said = [word for word in said if word.server not in mixed] + of_files
    if called.files:
        inputs = inputs.divided(logs(each._replace(server=called.of(each.server, each.file)) for each in last_readings(warehouse)), called)
    else:
        inputs = inputs.with_identities(called)
    found = told(said, called, inputs.logs_by_server, whole)
    unclear = [[name, *servers] for name, servers in sorted(cut.items()) if len(servers) > 1]
    inputs = replace(inputs, without_deliveries=sorted(found.without_deliveries), cut_names=unclear)
    return with_identities(events, called), inputs, found


def _not_ahead(events: DataFrame, inputs: Inputs, limit: int) -> dict[str, int | None]:
    """The last row of each log that is not later than `limit`: a wrong clock must not make the time of all mail be up."""
    newest = inputs.newest_at()
    if newest is None or newest <= limit:
        return inputs.log_ends
    at = F.unix_micros("at")
    found = events.where(at <= limit).groupBy("server").agg(F.max(at).alias("last_at")).collect()
    return dict.fromkeys(inputs.log_ends) | {row["server"]: row["last_at"] for row in found}


def _rules(promise: ServiceLevel, now: int, is_final: bool) -> Rules:
    times = promise.times
    return Rules(
        now=now,
        is_final=is_final,
        heartbeat_us=times.shadow_heartbeat_frequency // MICROSECOND,
        span_us=times.shadow_resubmit_time_span // MICROSECOND,
        hold_us=times.safety_net_hold_time // MICROSECOND,
        expiration_us=times.message_expiration_timeout // MICROSECOND,
    )


def _within(promise: ServiceLevel) -> Within:
    def us(within: timedelta | None) -> int:
        return (within or timedelta()) // MICROSECOND

    objectives = promise.objectives
    return Within(
        shadow_us=us(objectives.shadow_latency.within),
        delivery_us=us(objectives.delivery_latency.within),
        exposure_us=us(objectives.exposure.within),
        lag_us=us(promise.lag_within),
    )


def _found(
    spark: "SparkSession",
    events: DataFrame,
    inputs: Inputs,
    log_ends: Mapping[str, int | None],
    rules: Rules,
    store: Store,
    *,
    of_exchange: Told,
    is_exact: bool,
) -> tuple[Evidence, Rows]:
    names = frame_of(spark, SERVERS, [(name,) for name in inputs.servers])
    seen = None if is_exact else store.keep({"seen": lambda: first_pass(events, server_names(names), inputs.logged)})["seen"]
    copies = None
    if seen is None:
        count = events.count()
        odd, rows = events, Rows(count, count)
    else:
        counts = seen_counts(seen).collect()[0]
        if counts["several"]:
            copies = store.keep({"several": lambda: several_copies(events, seen)})["several"]
        rows = Rows(counts["rows"], counts["odd_rows"])
        odd = odd_events(events, seen, messages=counts["messages"], odd=counts["odd"])

    found = evidence(
        seen, copies, odd, events, log_ends,
        logs=inputs.logs_by_server, covered=inputs.covered, told=of_exchange, rules=rules, keep=store.keep,
        with_few_rows=partial(_quick, spark, rows.odd),
    )  # fmt: skip
    return found, rows


def _quick(spark: "SparkSession", rows: int) -> AbstractContextManager[None]:
    """For queries on this many rows of a larger input. A session that others use, too, keeps its settings."""
    return quick_plans(spark) if is_brief(spark) and rows <= FEW_ROWS else nullcontext()


def _figures(figures: DataFrame, promise: ServiceLevel, inputs: Inputs) -> dict[str, Any]:
    """`overall`, `objectives`, `not_computable` and `figures`."""
    selected = shown(figures)
    looking_back = {line["window"]: line for line in selected.lines if line["window"] in BURN_WINDOWS_HOURS}
    placed = [line for line in selected.lines if line["window"] not in BURN_WINDOWS_HOURS]
    overall = next((line for line in placed if line["window"] == "all" and line["scope"] == "all"), no_figures())
    objectives = judged(promise, overall, looking_back, impossible(inputs.formats))
    return {
        "verdict": verdicts(objectives),
        "overall": figures_of(overall) | {"lines_quarantined": inputs.lines_quarantined},
        "objectives": objectives,
        "times": times_of(promise),
        "not_computable": not_computable(inputs.formats),
        "figures": [placed_figures(line) for line in placed],
        "figures_left_out": selected.left_out,
    }


def _before(figures: DataFrame | None, period: "Period", first: int, promise: ServiceLevel, inputs: Inputs) -> dict[str, Any] | None:
    """`before` of summary.json. Shapes: `figures` of the period before, None if there is none; `first`: the first row of all logs."""
    if figures is None or period.before is None:
        return None
    found = rows_of(figures.where((F.col("window") == "all") & (F.col("scope") == "all")))
    overall = found[0] if found else no_figures()
    objectives = judged(promise, overall, {}, impossible(inputs.formats))
    since, until = period.before
    return {
        "since": instant(since),
        "until": instant(until),
        "is_whole": first <= since,
        "verdict": verdicts(objectives),
        "overall": figures_of(overall),
        "objectives": objectives,
    }


class Period(NamedTuple):
    """The interval of a report. `before` is that of the same length before it; None without a beginning. Units: microseconds."""

    since: int | None
    until: int | None
    before: tuple[int, int] | None

    @classmethod
    def of(cls, since: datetime | None, until: datetime | None, now: int) -> "Period":
        began, ended = (None if end is None else microseconds(end) for end in (since, until))
        end = now if ended is None else ended
        return cls(began, ended, None if began is None or end <= began else (began - (end - began), began))

    def cut(self, first: int, last: int) -> int:
        """The length of the part of `first` to `last` that is in it."""
        return (last if self.until is None else min(last, self.until)) - (first if self.since is None else max(first, self.since))


def _pages(summary: Mapping[str, Any]) -> dict[str, bytes]:
    from shadowrelay.sla.page.document import render

    return {
        "summary.json": json.dumps(summary, indent=1, ensure_ascii=False).encode("utf-8"),
        "report.html": render(summary).encode("utf-8"),
    }


# ---- the text file

PREFIX = "shadowrelay_sla_"
VERDICTS = {"met": 1, "missed": 0}


def write_textfile(path: str, summary: Mapping[str, Any]) -> None:
    """Atomically, because a collector may read at any time."""
    with written_whole(path) as file:
        file.write(formatted(summary).encode("utf-8"))


def formatted(summary: Mapping[str, Any]) -> str:
    """Shapes: `summary` as in summary.json. Nulls are left out. Units: as in the names; times are milliseconds in the summary, seconds
    here."""
    lines: list[str] = []
    for name, samples in _metrics(summary):
        known = [(labels, value) for labels, value in samples if value is not None]
        if known:
            lines += [f"# TYPE {PREFIX}{name} gauge", *(f"{PREFIX}{name}{_labels(labels)} {value}" for labels, value in known)]
    return "\n".join(lines) + "\n"


def _metrics(summary: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[dict[str, str], float | None]]]]:
    for name, value in summary["overall"].items():
        if not isinstance(value, Mapping):
            yield name, [({}, value)]
            continue
        if name == "messages_by_copies":
            yield name, [({"copies": copies}, count) for copies, count in value.items()]
            continue
        if name == "messages_redundant_by_way":
            yield name, [({"way": way}, count) for way, count in value.items()]
            continue
        base = name.removesuffix("_ms")
        yield f"{base}_count", [({}, value["count"])]
        quantiles = [({"quantile": key}, value[key] / 1000) for key in value if key != "count" and value[key] is not None]
        yield f"{base}_seconds", list(quantiles)
    yield "verdict", [({"kind": kind}, VERDICTS.get(each["verdict"])) for kind, each in summary["verdict"].items()]
    objectives = summary["objectives"]
    yield "objective_met", [({"objective": each["name"]}, VERDICTS.get(each["verdict"])) for each in objectives]
    yield "objective_budget_left", [({"objective": each["name"]}, each["budget_left"]) for each in objectives]
    burning = [({"objective": each["name"], "window": window}, rate) for each in objectives for window, rate in each["burn_rates"].items()]
    yield "objective_burn_rate", list(burning)
    if "watch" in summary:
        yield from _watch_metrics(summary["watch"])


def _watch_metrics(watch: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[dict[str, str], float | None]]]]:
    """Metrics of `sla watch` itself. docs/sla.md, 7."""
    yield "watch_updated_timestamp_seconds", [({}, datetime.fromisoformat(watch["updated_at"]).timestamp())]
    for name in ("interval_seconds", "batches", "late_rows", "ahead_rows", "missed_rows", "failures"):
        yield f"watch_{name}", [({}, watch[name])]
    yield "watch_failing", [({"step": step}, 1) for step in watch["failing"]]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
