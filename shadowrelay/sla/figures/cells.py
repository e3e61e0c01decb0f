"""Counts by cell: one hour, one server, one pair. Windows and scopes are rolled up from cells, which are few, and not from rows.
docs/sla.md, 3.

A cell also has its `age`, in whole hours before now, for burn rates: these look back from now, and not from the turn of an hour.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures.timelines import DSN, RECONSTRUCTED, is_counted

HOUR_US = 3_600_000_000
KEY = ("hour", "age", "server", "pair_from", "pair_to")
MAXIMA = ("exposure_max_us",)
COUNTS = (
    "messages_acknowledged", "messages_reconstructed", "messages_redundant", "messages_not_redundant", "messages_dsn",
    "messages_sent_again",
    "messages_done", "shadow_share_us", "ack_share_us", "shadow_count", "shadow_good", "delivery_count", "delivery_good",
    "exposure_count", "exposure_us", "exposure_judged", "exposure_bad", "recipients", "recipients_lost", "recipients_duplicated",
    "recipients_duplicated_unexplained",
    "copies", "lag_count", "discards_late", "shadows_orphaned", "promotions", "takeovers_in_time", "takeovers_late", "clock_skews",
)  # fmt: skip
"""What can be added up over cells."""


def placed(frame: DataFrame, at: Column, server: str, pair_from: str, pair_to: str, *, now: int) -> DataFrame:
    """With the columns of `KEY`. A pair that lacks one of its servers is none."""
    is_pair = (F.col(pair_from) != "") & (F.col(pair_to) != "")
    named = {
        "hour": at - F.pmod(at, F.lit(HOUR_US)),
        "age": F.floor((F.lit(now) - at) / F.lit(HOUR_US)),
        "server": F.col(server),
        "pair_from": F.when(is_pair, F.col(pair_from)),
        "pair_to": F.when(is_pair, F.col(pair_to)),
    }
    return frame.withColumns(named)


def placed_messages(messages: DataFrame, *, now: int) -> DataFrame:
    """Where a message belongs: when and by whom it was acknowledged."""
    return placed(messages.where(F.col("at").isNotNull()), F.col("at"), "server", "server", "pair_server", now=now)


def placed_copies(copies: DataFrame, *, now: int) -> DataFrame:
    """Where a copy belongs: its HARECEIVE."""
    renamed = copies.withColumnRenamed("server", "shadow")
    return placed(renamed, F.col("at"), "primary", "primary", "shadow", now=now)


def placed_promotions(promotions: DataFrame, *, now: int) -> DataFrame:
    """Where a RESUBMIT belongs."""
    return placed(promotions, F.col("at"), "new_primary", "old_primary", "new_primary", now=now)


def message_cells(placed: DataFrame, *, shadow_within_us: int, delivery_within_us: int, exposure_within_us: int) -> DataFrame:
    """Counts of messages. Shapes: `placed` as from `placed_messages`. Units: microseconds."""
    is_counted_, delivery_us, has_both = is_counted(), delivery_us_of(), F.col("shadow_us").isNotNull() & F.col("ack_us").isNotNull()
    is_judged = is_counted_ & F.col("is_redundant").isNotNull()
    return placed.groupBy(*KEY).agg(
        *_counted({
            "messages_acknowledged": is_counted_,
            "messages_reconstructed": F.col("kind") == RECONSTRUCTED,
            "messages_redundant": is_counted_ & F.col("is_redundant"),
            "messages_not_redundant": is_counted_ & ~F.col("is_redundant"),
            "messages_dsn": F.col("kind") == DSN,
            "messages_done": is_counted_ & F.col("done_at").isNotNull(),
            "shadow_count": F.col("shadow_us").isNotNull(),
            "shadow_good": F.col("shadow_us") <= shadow_within_us,
            "delivery_count": delivery_us.isNotNull(),
            "delivery_good": delivery_us <= delivery_within_us,
            "exposure_judged": is_judged,
            "exposure_bad": is_judged & (F.col("exposure_us") > exposure_within_us),
            "clock_skews": delivery_us < 0,
        }),
        F.sum(F.when(has_both, F.col("shadow_us"))).alias("shadow_share_us"),
        F.sum(F.when(has_both, F.col("ack_us"))).alias("ack_share_us"),
        F.sum("exposure_count").alias("exposure_count"),
        F.sum("exposure_us").alias("exposure_us"),
        F.max("exposure_max_us").alias("exposure_max_us"),
        F.sum(F.when(is_counted_, F.col("recipients_count"))).alias("recipients"),
        F.sum("lost").alias("recipients_lost"),
        F.sum("duplicated").alias("recipients_duplicated"),
        F.sum("unexplained").alias("recipients_duplicated_unexplained"),
    )  # fmt: skip


def delivery_us_of() -> Column:
    """RECEIVE to the last delivery; null for a reconstructed message, of which nobody knows when it was received. May be negative."""
    return F.when(is_counted() & (F.col("kind") != RECONSTRUCTED), F.col("last_delivery_at") - F.col("at"))


def sent_again_cells(placed: DataFrame) -> DataFrame:
    """Shapes: `placed` are the messages that were sent again."""
    return placed.groupBy(*KEY).agg(F.count(F.lit(1)).alias("messages_sent_again"))


def copy_cells(placed: DataFrame, *, lag_within_us: int) -> DataFrame:
    """Counts of copies. Shapes: `placed` as from `placed_copies`. Units: microseconds."""
    return placed.groupBy(*KEY).agg(
        *_counted({
            "copies": F.lit(True),
            "lag_count": F.col("lag_us").isNotNull(),
            "discards_late": F.col("lag_us") > lag_within_us,
            "clock_skews": F.col("lag_us") < 0,
        })
    )  # fmt: skip


def orphan_cells(placed: DataFrame) -> DataFrame:
    """Shapes: `placed` as from `placed_copies`, of orphans."""
    return placed.groupBy(*KEY).agg(F.count(F.lit(1)).alias("shadows_orphaned"))


def promotion_cells(placed: DataFrame) -> DataFrame:
    """Counts of RESUBMIT rows. Shapes: `placed` as from `placed_promotions`."""
    skews = (F.col("detection_us") < 0).cast("long"), (F.col("silence_us") < 0).cast("long")
    none = F.lit(0).cast("long")
    return placed.groupBy(*KEY).agg(
        *_counted({"takeovers_in_time": F.col("is_in_time"), "takeovers_late": ~F.col("is_in_time")}),
        F.sum(F.coalesce(skews[0], none) + F.coalesce(skews[1], none)).alias("clock_skews"),
    )


def takeover_cells(placed: DataFrame) -> DataFrame:
    """Shapes: `placed` as from `placed_promotions`, of takeovers, `at` being the first RESUBMIT."""
    return placed.groupBy(*KEY).agg(F.count(F.lit(1)).alias("promotions"))


def _counted(conditions: dict[str, Column]) -> list[Column]:
    return [F.count(F.when(condition, 1)).alias(name) for name, condition in conditions.items()]
