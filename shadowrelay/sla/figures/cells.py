"""Counts by cell: one hour, one server, one pair. Windows and scopes are rolled up from cells, which are few, and not from rows.
docs/sla.md, 3.

A cell also has its `age`, in whole hours before now, for burn rates: these look back from now, and not from the turn of an hour.
"""

from collections.abc import Mapping
from functools import reduce

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


def message_facts(placed: DataFrame, *, shadow_within_us: int, delivery_within_us: int, exposure_within_us: int) -> DataFrame:
    """What each message counts for. Shapes: `placed` as from `placed_messages`. Units: microseconds."""
    acknowledged, delivery_us = is_counted(), delivery_us_of()
    has_both = F.col("shadow_us").isNotNull() & F.col("ack_us").isNotNull()
    is_judged = acknowledged & F.col("is_redundant").isNotNull()
    conditions = {
        "messages_acknowledged": acknowledged,
        "messages_reconstructed": F.col("kind") == RECONSTRUCTED,
        "messages_redundant": acknowledged & F.col("is_redundant"),
        "messages_not_redundant": acknowledged & ~F.col("is_redundant"),
        "messages_dsn": F.col("kind") == DSN,
        "messages_done": acknowledged & F.col("done_at").isNotNull(),
        "shadow_count": F.col("shadow_us").isNotNull(),
        "shadow_good": F.col("shadow_us") <= shadow_within_us,
        "delivery_count": delivery_us.isNotNull(),
        "delivery_good": delivery_us <= delivery_within_us,
        "exposure_judged": is_judged,
        "exposure_bad": is_judged & (F.col("exposure_us") > exposure_within_us),
        "clock_skews": delivery_us < 0,
    }
    numbers = {
        "shadow_share_us": F.when(has_both, F.col("shadow_us")),
        "ack_share_us": F.when(has_both, F.col("ack_us")),
        "exposure_count": F.col("exposure_count"),
        "exposure_us": F.col("exposure_us"),
        "exposure_max_us": F.col("exposure_max_us"),
        "recipients": F.when(acknowledged, F.col("recipients_count")),
        "recipients_lost": F.col("lost"),
        "recipients_duplicated": F.col("duplicated"),
        "recipients_duplicated_unexplained": F.col("unexplained"),
    }
    return _facts(placed, conditions, numbers)


def delivery_us_of() -> Column:
    """RECEIVE to the last delivery; null for a reconstructed message, of which nobody knows when it was received. May be negative."""
    return F.when(is_counted() & (F.col("kind") != RECONSTRUCTED), F.col("last_delivery_at") - F.col("at"))


def copy_facts(placed: DataFrame, *, lag_within_us: int) -> DataFrame:
    """What each copy counts for. Shapes: `placed` as from `placed_copies`. Units: microseconds."""
    lag_us = F.col("lag_us")
    conditions = {
        "copies": F.lit(True),
        "lag_count": lag_us.isNotNull(),
        "discards_late": lag_us > lag_within_us,
        "clock_skews": lag_us < 0,
    }
    return _facts(placed, conditions)


def promotion_facts(placed: DataFrame) -> DataFrame:
    """What each RESUBMIT row counts for. Shapes: `placed` as from `placed_promotions`."""
    in_time = {"takeovers_in_time": F.col("is_in_time"), "takeovers_late": ~F.col("is_in_time")}
    return _facts(placed, in_time, {"clock_skews": _one(F.col("detection_us") < 0) + _one(F.col("silence_us") < 0)})


def single_facts(placed: DataFrame, name: str) -> DataFrame:
    """Each line counts for one in `name`: a takeover, an orphan, a message that was sent again."""
    return _facts(placed, {name: F.lit(True)})


def _facts(placed: DataFrame, conditions: Mapping[str, Column], numbers: Mapping[str, Column] | None = None) -> DataFrame:
    """KEY, COUNTS and MAXIMA; 0 where nothing is said."""
    said = {name: _one(condition) for name, condition in conditions.items()} | dict(numbers or {})
    none = F.lit(0).cast("long")
    values = [F.coalesce(said[name], none) if name in said else none for name in (*COUNTS, *MAXIMA)]
    return placed.select(*KEY, *[value.alias(name) for name, value in zip((*COUNTS, *MAXIMA), values, strict=True)])


def _one(condition: Column) -> Column:
    return F.when(condition, F.lit(1).cast("long")).otherwise(F.lit(0).cast("long"))


def added() -> list[Column]:
    """COUNTS and MAXIMA of several lines."""
    return [*[F.sum(name).alias(name) for name in COUNTS], *[F.max(name).alias(name) for name in MAXIMA]]


def cells(facts: list[DataFrame]) -> DataFrame:
    """One line a cell."""
    return reduce(DataFrame.unionByName, facts).groupBy(*KEY).agg(*added())
