"""Takeovers: what shadow servers took over, how fast, when it was delivered. docs/sla.md, 3. Exact; `rows` are those of `exact_rows`."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures.rows import is_promotion

KEY = ("new_primary", "old_primary", "reason", "detected_at")


def promotions(rows: DataFrame, *, span_us: int, heartbeat_us: int) -> DataFrame:
    """One line a RESUBMIT row of source REDUNDANCY. `is_in_time` is null where the row says no times (Exchange). Units: microseconds."""
    taken = rows.where(is_promotion()).select(
        "message",
        "at",
        F.col("server").alias("new_primary"),
        F.col("reference").alias("old_primary"),
        "reason",
        "silent_since",
        "detected_at",
    )
    in_time = F.when(F.col("reason") == "Silence", F.col("at") <= F.col("silent_since") + span_us + heartbeat_us).otherwise(
        F.col("at") <= F.col("detected_at") + heartbeat_us
    )
    return taken.select(
        "message", "at", *KEY, "silent_since",
        (F.col("at") - F.col("detected_at")).alias("detection_us"),
        (F.col("at") - F.col("silent_since")).alias("silence_us"),
        in_time.alias("is_in_time"),
    )  # fmt: skip


def takeovers(promotions: DataFrame, ends: DataFrame) -> DataFrame:
    """One line a takeover, without when the old primary returned. `in_time` counts messages without a late RESUBMIT row; null where the
    rows do not say (Exchange): what is unknown is not late.

    Shapes: `ends` has message and `done_at`.
    """
    by_message = promotions.groupBy(*KEY, "message").agg(
        F.min("silent_since").alias("silent_since"),
        F.min("at").alias("first_resubmit_at"),
        F.max("at").alias("last_resubmit_at"),
        F.when(F.count("is_in_time") == F.count(F.lit(1)), F.min("is_in_time")).alias("is_in_time"),
    )
    by_message = by_message.join(ends.select("message", "done_at"), on="message", how="left")
    taken = by_message.groupBy(*KEY).agg(
        F.min("silent_since").alias("silent_since"),
        F.min("first_resubmit_at").alias("first_resubmit_at"),
        F.max("last_resubmit_at").alias("last_resubmit_at"),
        F.count(F.lit(1)).alias("messages"),
        F.count(F.when(F.col("done_at").isNull(), 1)).alias("open_count"),
        F.max("done_at").alias("last_done_at"),
        F.when(F.count("is_in_time") == F.count(F.lit(1)), F.count(F.when(F.col("is_in_time"), 1))).alias("in_time"),
    )
    delivered_at = F.when(F.col("open_count") == 0, F.col("last_done_at"))
    return taken.withColumn("delivered_at", delivered_at).drop("open_count", "last_done_at")


def with_return(takeovers: DataFrame, events: DataFrame) -> DataFrame:
    """`returned_at`: the first row of the old primary's log later than the takeover's first RESUBMIT.

    Shapes: `events` as they are stored, all of them: only the rows of old primaries are looked at, and of these two columns.
    """
    asked = takeovers.select(*KEY, "first_resubmit_at")
    logged = events.select(F.col("server").alias("old_primary"), F.unix_micros("at").alias("logged_at"))
    returned = (
        logged.join(F.broadcast(asked), on="old_primary", how="inner")
        .where(F.col("logged_at") > F.col("first_resubmit_at"))
        .groupBy(*KEY)
        .agg(F.min("logged_at").alias("returned_at"))
    )
    is_same = [F.col(f"taken.{name}").eqNullSafe(F.col(f"back.{name}")) for name in KEY]
    joined = takeovers.alias("taken").join(returned.alias("back"), on=is_same, how="left")
    return joined.select("taken.*", "back.returned_at")
