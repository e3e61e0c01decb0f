"""Recipients of a message, and when each was done: the ends, deliveries and losses of docs/sla.md, 2 and 3. Exact, for few messages."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures.rows import is_end, is_event, is_promotion, is_replacement, is_told_delivered
from shadowrelay.sla.figures.timelines import ACKNOWLEDGED, RECONSTRUCTED, is_counted


def recipients(rows: DataFrame, lines: DataFrame, *, now: int, is_final: bool, expiration_us: int) -> DataFrame:
    """One line for each recipient that a row of the message names. `is_named`: it is one of the message's own, or took such a one's place.

    Shapes: `rows` from `exact_rows`, `lines` from `timelines`; `deliveries` are the two earliest, (at, server). Units: microseconds.
    """
    held = is_event("HARECEIVE") | is_promotion()
    is_replaced = F.coalesce(F.array_contains("replaced", F.col("recipient")), F.lit(False))
    is_stepping_in = is_replacement() & ~is_replaced
    delivery = F.when(F.col("is_delivery"), F.struct("at", "server", "row_id"))
    said = (
        rows.where(is_event("RECEIVE") | held | is_end() | is_told_delivered() | is_replacement())
        .withColumn("recipient", F.explode(F.array_union("recipients", F.coalesce("replaced", F.array().cast("array<string>")))))
        .groupBy("message", "recipient")
        .agg(
            F.max(is_event("RECEIVE") | is_stepping_in).alias("is_received"),
            F.max(held | is_stepping_in).alias("is_held"),
            F.min(F.when(is_end() | is_replaced, F.col("at"))).alias("first_end_at"),
            F.min(F.when(is_told_delivered(), F.col("at"))).alias("discarded_at"),
            F.count(delivery).alias("deliveries_count"),
            F.slice(F.sort_array(F.collect_list(delivery)), 1, 2).alias("deliveries"),
        )
    )
    of_message = lines.select(
        "message", "kind", "discarded_for_all_at", "notified_at", F.col("at").alias("acknowledged_at"), F.col("server").alias("primary")
    )
    is_named = F.when(F.col("kind") == ACKNOWLEDGED, F.col("is_received")).otherwise(F.col("is_held"))
    joined = said.join(of_message, on="message", how="inner").withColumns({"end_at": _end_at(), "is_named": is_named})
    is_up = F.lit(is_final) | (F.col("acknowledged_at") + expiration_us <= now)
    return joined.select(
        "message", "recipient", "kind", "acknowledged_at", "primary", "is_named", "end_at", "deliveries_count", "deliveries",
        "discarded_at",
        (is_counted() & F.col("is_named") & F.col("end_at").isNull() & is_up).alias("is_lost"),
        (is_counted() & (F.col("deliveries_count") > 1)).alias("is_duplicated"),
    )  # fmt: skip


def _end_at() -> Column:
    by_shadow_server = F.when(F.col("kind") == RECONSTRUCTED, F.least("discarded_at", "discarded_for_all_at"))
    return F.coalesce(F.least("first_end_at", by_shadow_server), F.col("notified_at"))


def ends(recipients: DataFrame) -> DataFrame:
    """One line a message: how many recipients it has, how many were lost or got it twice, and when it was done (null: it is not)."""
    is_named = F.col("is_named")
    is_open = is_named & F.col("end_at").isNull()
    counted = recipients.groupBy("message").agg(
        F.count(F.when(is_named, 1)).alias("recipients_count"),
        F.count(F.when(is_open, 1)).alias("open_count"),
        F.max(F.when(is_named, F.col("end_at"))).alias("last_end_at"),
        F.count(F.when(F.col("is_lost"), 1)).alias("lost"),
        F.count(F.when(F.col("is_duplicated"), 1)).alias("duplicated"),
    )
    done_at = F.when(F.col("open_count") == 0, F.col("last_end_at"))
    return counted.select("message", "recipients_count", "lost", "duplicated", done_at.alias("done_at"))
