"""The lists of summary.json: the worst first, at most `LIST_MAX` of each; and how often each cause was found. docs/sla.md, 6."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures.counting import HOUR_US
from shadowrelay.sla.figures.evidence import Evidence
from shadowrelay.sla.figures.incidents import UNEXPLAINED
from shadowrelay.sla.store import rows_of
from shadowrelay.sla.summary import LIST_MAX, with_instants

TAKEOVER = (
    "old_primary", "new_primary", "reason", "silent_since", "detected_at", "first_resubmit_at", "last_resubmit_at", "messages",
    "delivered_at",
    "returned_at", "in_time",
)  # fmt: skip
DUPLICATE = ("message", "recipient", "count", "cause", "first_server", "first_at", "later_server", "later_at")
LOSS = ("message", "recipient", "acknowledged_at", "server", "cause")
ORPHAN = ("message", "server", "primary", "at", "cause")
EXPOSURE = ("message", "server", "began_at", "ended_at", "seconds", "is_open", "cause")
HOURS_OF_LONG, HOURS_OF_REST = 168, 48
LONG_SCOPES = ("all", "site")
FIGURES_MAX = 3000  # lines: about 4 MB of JSON
CAUSES, ROWS = "causes of ", "rows"
CAUSED = ("duplicates", "losses", "orphans", "exposures")


ORDER: dict[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]] = {
    "takeovers": lambda line: (line["first_resubmit_at"], line["new_primary"], line["old_primary"]),
    "duplicates": lambda line: (line["cause"] != UNEXPLAINED, line["first_at"] - line["later_at"], line["message"], line["recipient"]),
    "losses": lambda line: (line["acknowledged_at"], line["message"], line["recipient"]),
    "orphans": lambda line: (line["at"], line["message"], line["server"]),
    "exposures": lambda line: (-line["seconds"], line["message"], line["began_at"]),
}


@dataclass(frozen=True, slots=True)
class Listed:
    """Shapes: `lists` and `causes` as in summary.json; `rows_once`: rows of messages that went the exact way, each counted once."""

    lists: dict[str, list[dict[str, Any]]]
    causes: dict[str, dict[str, int]]
    rows_once: int


def listed(found: Evidence) -> Listed:
    """The lists, takeovers in their order and the newest where they are too many; and of all, how many there are of each cause.

    One query, because each costs more than what it finds.
    """
    exposures = found.exposures.withColumn("seconds", F.col("exposed_us") / 1e6)
    by_cause = F.col("cause") != UNEXPLAINED
    parts = [
        _first("takeovers", found.takeovers, TAKEOVER, F.col("first_resubmit_at").desc(), F.col("new_primary"), F.col("old_primary")),
        _first(
            "duplicates", found.duplicates, DUPLICATE, by_cause, F.col("first_at") - F.col("later_at"), F.col("message"), F.col("recipient")
        ),
        _first("losses", found.losses, LOSS, F.col("acknowledged_at"), F.col("message"), F.col("recipient")),
        _first("orphans", found.orphans, ORPHAN, F.col("at"), F.col("message"), F.col("server")),
        _first("exposures", exposures, EXPOSURE, F.col("exposed_us").desc(), F.col("message"), F.col("began_at")),
        *(_causes(name, getattr(found, name)) for name in CAUSED),
        found.lines.agg(F.coalesce(F.sum("rows_count"), F.lit(0)).alias("rows_once")).select(*_said(ROWS, ("rows_once",))),
    ]
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in (*ORDER, *(f"{CAUSES}{name}" for name in CAUSED), ROWS)}
    for row in rows_of(reduce(DataFrame.unionByName, parts)):
        lines[row["list"]].append(json.loads(row["line"]))
    return Listed(
        {name: [with_instants(line) for line in sorted(lines[name], key=order)] for name, order in ORDER.items()},
        {name: {line["cause"]: line["count"] for line in lines[f"{CAUSES}{name}"]} for name in CAUSED},
        lines[ROWS][0]["rows_once"],
    )


def _first(name: str, frame: DataFrame, columns: Sequence[str], *order: Column) -> DataFrame:
    return frame.orderBy(*order).limit(LIST_MAX).select(*_said(name, columns))


def _causes(name: str, table: DataFrame) -> DataFrame:
    counted = table.groupBy("cause").agg(F.count(F.lit(1)).alias("count")).orderBy("cause")
    return counted.select(*_said(f"{CAUSES}{name}", ("cause", "count")))


def _said(name: str, columns: Sequence[str]) -> tuple[Column, Column]:
    """A line of any list: lists of different columns have one shape as JSON."""
    return F.lit(name).alias("list"), F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}).alias("line")


@dataclass(frozen=True, slots=True)
class Shown:
    """Lines of figures in order, and how many did not fit."""

    lines: list[dict[str, Any]]
    left_out: int


def shown(figures: DataFrame) -> Shown:
    """Lines of figures for summary.json: all but the older hours, and of these at most FIGURES_MAX; small scopes' older days go first."""
    newest_hour = figures.where(F.col("window") == "hour").agg(F.max("start").alias("start")).collect()[0]["start"]
    hours = F.when(F.col("scope").isin(*LONG_SCOPES), HOURS_OF_LONG).otherwise(HOURS_OF_REST)
    is_recent = F.col("start") > F.lit(newest_hour or 0) - hours * F.lit(HOUR_US)
    wanted = figures.where((F.col("window") != "hour") | is_recent)
    rank = F.when(~F.col("window").isin("day", "hour"), 0).when(F.col("scope") == "all", 1).when(F.col("scope") == "pair", 3).otherwise(2)
    place = ("window", "start", "scope", "name", "other")
    lines = rows_of(wanted.orderBy(rank, F.col("start").desc(), *place).limit(FIGURES_MAX))
    left_out = wanted.count() - len(lines) if len(lines) == FIGURES_MAX else 0
    return Shown(sorted(lines, key=lambda line: tuple((line[key] is not None, line[key]) for key in place)), left_out)
