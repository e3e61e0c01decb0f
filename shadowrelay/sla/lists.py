"""The lists of summary.json: the worst first, at most `LIST_MAX` of each; and how often each cause was found. docs/sla.md, 6."""

from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures.causes import UNEXPLAINED
from shadowrelay.sla.figures.cells import HOUR_US
from shadowrelay.sla.figures.evidence import Evidence
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
CAUSED = ("duplicates", "losses", "orphans", "exposures")


def lists(found: Evidence) -> dict[str, list[dict[str, Any]]]:
    """`takeovers`, `duplicates`, `losses`, `orphans` and `exposures`; takeovers in their order, the newest where they are too many."""
    exposures = found.exposures.withColumn("seconds", F.col("exposed_us") / 1e6)
    is_explained = F.col("cause") != UNEXPLAINED
    elapsed = F.col("later_at") - F.col("first_at")
    newest = _first(found.takeovers, TAKEOVER, F.col("first_resubmit_at").desc(), F.col("new_primary"), F.col("old_primary"))
    return {
        "takeovers": newest[::-1],
        "duplicates": _first(found.duplicates, DUPLICATE, is_explained, elapsed.desc(), F.col("message"), F.col("recipient")),
        "losses": _first(found.losses, LOSS, F.col("acknowledged_at"), F.col("message"), F.col("recipient")),
        "orphans": _first(found.orphans, ORPHAN, F.col("at"), F.col("message"), F.col("server")),
        "exposures": _first(exposures, EXPOSURE, F.col("exposed_us").desc(), F.col("message"), F.col("began_at")),
    }


def _first(frame: DataFrame, columns: tuple[str, ...], *order: Column) -> list[dict[str, Any]]:
    return [with_instants(row) for row in rows_of(frame.orderBy(*order).limit(LIST_MAX).select(*columns))]


def causes(found: Evidence) -> dict[str, dict[str, int]]:
    """How many of each cause, of all and not only of those that are listed."""
    tables = {"duplicates": found.duplicates, "losses": found.losses, "orphans": found.orphans, "exposures": found.exposures}
    counted = [tables[name].groupBy("cause").agg(F.count(F.lit(1)).alias("count")).withColumn("list", F.lit(name)) for name in CAUSED]
    result: dict[str, dict[str, int]] = {name: {} for name in CAUSED}
    for row in rows_of(reduce(DataFrame.unionByName, counted).orderBy("list", "cause")):
        result[row["list"]][row["cause"]] = row["count"]
    return result


def shown(figures: DataFrame) -> list[dict[str, Any]]:
    """Lines of figures for summary.json, in order: all but the older hours."""
    newest_hour = figures.where(F.col("window") == "hour").agg(F.max("start").alias("start")).collect()[0]["start"]
    hours = F.when(F.col("scope").isin(*LONG_SCOPES), HOURS_OF_LONG).otherwise(HOURS_OF_REST)
    is_recent = F.col("start") > F.lit(newest_hour or 0) - hours * F.lit(HOUR_US)
    return rows_of(figures.where((F.col("window") != "hour") | is_recent).orderBy("window", "start", "scope", "name", "other"))
