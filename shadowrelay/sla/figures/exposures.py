"""Exposure: when an acknowledged message that was not done had fewer than two copies. docs/sla.md, 3. Exact, for few messages."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from shadowrelay.sla.figures.timelines import is_counted

NO_COPY, HOLDER_LOST = "no copy at acknowledgement", "holder lost"


def exposures(lines: DataFrame, *, now: int) -> DataFrame:
    """One line an interval; overlapping ones are one, and those of no length are none.

    Shapes: `lines` as from `timelines`, with `done_at`. Units: microseconds.
    """
    begun = lines.where(is_counted()).select(
        "message", "server", "at", "done_at", "redirects", F.explode(F.array_distinct(_beginnings())).alias("beginning")
    )
    began_at = F.col("beginning.began_at")
    later = F.filter("redirects", lambda row: row["at"] > F.col("beginning.began_at"))
    over_at = F.least(F.try_element_at(later, F.lit(1))["at"], F.col("done_at"))
    parts = begun.select(
        "message", "server", "at", began_at.alias("began_at"), F.coalesce(over_at, F.lit(now)).alias("ended_at"),
        over_at.isNull().alias("is_open"), F.col("beginning.is_holder_lost").alias("is_holder_lost"),
    )  # fmt: skip
    return _united(parts.where(F.col("ended_at") > F.col("began_at")))


def _beginnings() -> Column:
    """(began_at, is_holder_lost) of a message: RECEIVE without a copy, and the last sign of life of each holder that was lost."""
    without_copy = F.array(F.struct(F.col("at").alias("began_at"), F.lit(False).alias("is_holder_lost")))
    is_known = F.filter("promotions", lambda row: row["silent_since"].isNotNull())
    holders_lost = F.transform(
        is_known, lambda row: F.struct(F.greatest(row["silent_since"], F.col("at")).alias("began_at"), F.lit(True).alias("is_holder_lost"))
    )
    return F.when(~F.col("is_redundant"), F.concat(without_copy, holders_lost)).otherwise(holders_lost)


def _united(parts: DataFrame) -> DataFrame:
    in_order = Window.partitionBy("message").orderBy("began_at", "is_holder_lost", "ended_at")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    until_here = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    parts = parts.withColumn("ended_before", F.max("ended_at").over(before))
    is_new = F.col("ended_before").isNull() | (F.col("began_at") >= F.col("ended_before"))
    parts = parts.withColumn("number", F.sum(is_new.cast("long")).over(until_here))
    united = parts.groupBy("message", "server", "at", "number").agg(
        F.min(F.struct("began_at", "is_holder_lost")).alias("beginning"),
        F.max("ended_at").alias("ended_at"),
        F.max("is_open").alias("is_open"),
    )
    cause = F.when(F.col("beginning.is_holder_lost"), HOLDER_LOST).otherwise(NO_COPY)
    return united.select(
        "message", "server", "beginning.began_at", "ended_at",
        (F.col("ended_at") - F.col("beginning.began_at")).alias("exposed_us"), "is_open", cause.alias("cause"),
    )  # fmt: skip


def exposures_by_message(exposures: DataFrame) -> DataFrame:
    """One line for each message that was exposed."""
    return exposures.groupBy("message").agg(
        F.count(F.lit(1)).alias("exposure_count"),
        F.sum("exposed_us").alias("exposure_us"),
        F.max("exposed_us").alias("exposure_max_us"),
    )
