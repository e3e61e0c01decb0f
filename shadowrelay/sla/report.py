"""The report: from the warehouse to `tables/`, summary.json and report.html. docs/sla.md, 6.

The job's shell: it reads, calls the transforms of `figures`, and writes. About twenty Spark jobs: the first looks at all events, the
second at those of messages that are not plain, the others at tables that these have written. Nothing that grows with the input comes to
the driver.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from shadowrelay.sla.budget import judged
from shadowrelay.sla.computable import impossible, not_computable
from shadowrelay.sla.events import read_events, read_quarantine
from shadowrelay.sla.figures.counting import BURN_WINDOWS_HOURS, Within, counted
from shadowrelay.sla.figures.evidence import Evidence, Rules, evidence
from shadowrelay.sla.figures.first_pass import BEARING, first_pass, odd_events, seen_counts, server_names
from shadowrelay.sla.inputs import Inputs, input_of, quarantined_once, read_inputs
from shadowrelay.sla.lists import listed, shown
from shadowrelay.sla.objectives import Promise, read_objectives
from shadowrelay.sla.store import ABANDONED_AFTER, Store, sweep_reports
from shadowrelay.sla.summary import SCHEMA_VERSION, figures_of, instant, microseconds, no_figures, placed_figures, traced
from shadowrelay.sla.textfile import write_textfile
from shadowrelay.sla.trace import traces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MICROSECOND = timedelta(microseconds=1)
TRIES = 3  # an ingest beside it may merge small files that this report has listed and not yet read; then it is made again
FILE_VANISHED = "FAILED_READ_FILE.FILE_NOT_EXIST"  # Spark's name for that


class Rows(NamedTuple):
    """How many rows there are, repeats included, and how many of them go the exact way."""

    all: int
    odd: int


def write_report(
    spark: "SparkSession",
    warehouse: str,
    output: str,
    *,
    objectives_file: str | None = None,
    now: datetime | None = None,
    is_final: bool = False,
    textfile: str | None = None,
    is_exact: bool = False,
    watch: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the report and return what summary.json says. `is_exact`: every message goes the exact way, which is slow; for tests.
    `watch`: what `sla watch` says of itself, see docs/sla.md, 7.

    Raises: ConfigurationError for the objectives.
    """
    promise = read_objectives(objectives_file)
    sweep_reports(output, older_than=ABANDONED_AFTER)
    for tries_left in reversed(range(TRIES)):
        try:
            summary = _make(spark, warehouse, output, promise, now=now, is_final=is_final, is_exact=is_exact, watch=watch)
            break
        except (PySparkException, Py4JJavaError) as exc:  # a job's failure is sometimes the one, sometimes the other
            if FILE_VANISHED not in str(exc) or not tries_left:
                raise
    if textfile is not None:
        write_textfile(textfile, summary)
    return summary


def _make(
    spark: "SparkSession",
    warehouse: str,
    output: str,
    promise: Promise,
    *,
    now: datetime | None,
    is_final: bool,
    is_exact: bool,
    watch: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Write tables, summary.json and report.html; gives the summary."""
    inputs = read_inputs(spark, warehouse)
    newest = inputs.newest_at()
    generated_at = datetime.now(UTC).replace(microsecond=0)
    judged_at = microseconds(now) if now is not None else newest if newest is not None else microseconds(generated_at)
    store = Store(spark, output)
    try:
        events = read_events(spark, warehouse)
        found, rows = _found(spark, events, inputs, _rules(promise, judged_at, is_final), store, is_exact=is_exact)
        sites = [(name, site.site, site.boundary) for name, site in inputs.sites.items()]
        logged = spark.createDataFrame([(name,) for name in inputs.logged], "server string")
        sites_frame = spark.createDataFrame(sites, "server string, site string, boundary string")
        figures = store.keep(
            {
                "messages": lambda: found.messages.drop(*BEARING),
                "copies": lambda: found.copies,
                "quarantine": lambda: quarantined_once(read_quarantine(spark, warehouse)),
                "figures": lambda: counted(found, sites_frame, logged, now=judged_at, within=_within(promise)),
            }
        )["figures"]
        said = listed(found)
        summary: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "generated_at": instant(generated_at),
            "now": instant(judged_at),
            "is_final": is_final,
            "input": input_of(inputs, rows=rows.all, rows_repeated=rows.odd - said.rows_once),
            **_figures(figures, promise, inputs),
            **said.lists,
            "causes": said.causes,
            "traces": traces(events, traced(said.lists)),
            **({} if watch is None else {"watch": dict(watch)}),
        }
        store.publish(_pages(summary))
        return summary
    finally:
        store.clear()


def _rules(promise: Promise, now: int, is_final: bool) -> Rules:
    times = promise.times
    return Rules(
        now=now,
        is_final=is_final,
        heartbeat_us=times.shadow_heartbeat_frequency // MICROSECOND,
        span_us=times.shadow_resubmit_time_span // MICROSECOND,
        hold_us=times.safety_net_hold_time // MICROSECOND,
        expiration_us=times.message_expiration_timeout // MICROSECOND,
    )


def _within(promise: Promise) -> Within:
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
    spark: "SparkSession", events: DataFrame, inputs: Inputs, rules: Rules, store: Store, *, is_exact: bool
) -> tuple[Evidence, Rows]:
    names = spark.createDataFrame([(name,) for name in inputs.servers], "server string")
    log_ends = spark.createDataFrame([(each["server"], each["last_at"]) for each in inputs.logs], "server string, last_at long")
    seen = None if is_exact else store.keep({"seen": lambda: first_pass(events, server_names(names))})["seen"]
    if seen is None:
        count = events.count()
        odd, rows = events, Rows(count, count)
    else:
        counts = seen_counts(seen).collect()[0]
        rows = Rows(counts["rows"], counts["odd_rows"])
        odd = odd_events(events, seen, messages=counts["messages"], odd=counts["odd"])
    found = evidence(seen, odd, events, log_ends, logged_servers=inputs.logged, rules=rules, keep=store.keep)
    return found, rows


def _figures(figures: DataFrame, promise: Promise, inputs: Inputs) -> dict[str, Any]:
    """`overall`, `objectives`, `not_computable` and `figures`."""
    told = shown(figures)
    looking_back = {line["window"]: line for line in told.lines if line["window"] in BURN_WINDOWS_HOURS}
    placed = [line for line in told.lines if line["window"] not in BURN_WINDOWS_HOURS]
    overall = next((line for line in placed if line["window"] == "all" and line["scope"] == "all"), no_figures())
    return {
        "overall": figures_of(overall) | {"lines_quarantined": inputs.lines_quarantined},
        "objectives": judged(promise, overall, looking_back, impossible(inputs.formats)),
        "not_computable": not_computable(inputs.formats),
        "figures": [placed_figures(line) for line in placed],
        "figures_left_out": told.left_out,
    }


def _pages(summary: Mapping[str, Any]) -> dict[str, bytes]:
    from shadowrelay.sla.page.document import render

    return {
        "summary.json": json.dumps(summary, indent=1, ensure_ascii=False).encode("utf-8"),
        "report.html": render(summary).encode("utf-8"),
    }
