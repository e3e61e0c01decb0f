"""Copies: pairs of message and shadow server; how late they were told, and which ones nobody told. docs/sla.md, 2 to 4. Exact, for few
messages.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures.rows import is_event, is_promotion, is_told_delivered, names_nobody
from shadowrelay.sla.figures.timelines import RECONSTRUCTED


def copies(rows: DataFrame, lines: DataFrame) -> DataFrame:
    """One line a copy. `lag_us` is null where the message is not done, the copy was not discarded as delivered, or the message is
    reconstructed: there the discard is what tells that it was done. It may be negative.

    Shapes: `rows` from `exact_rows`; `lines` have message, kind, recipients (all its own) and `done_at`.
    """
    is_discard = is_event("HADISCARD")
    held = rows.groupBy("message", "server").agg(
        F.min(F.when(is_event("HARECEIVE"), F.struct("at", F.col("client_hostname").alias("primary")))).alias("first"),
        F.max(is_discard).alias("has_discard"),
        F.max(is_discard & names_nobody()).alias("is_discarded_for_all"),
        F.array_distinct(F.flatten(F.collect_list(F.when(is_discard, F.col("recipients"))))).alias("discarded_for"),
        F.max(F.when(is_told_delivered(), F.col("at"))).alias("told_at"),
        F.max(is_promotion()).alias("is_promoted"),
        F.max(is_event("EXPIRE")).alias("is_expired"),
    )
    held = held.where(F.col("first").isNotNull())
    joined = held.join(lines.select("message", "kind", "recipients", "done_at"), on="message", how="inner")
    is_for_all = F.col("is_discarded_for_all") | (F.size(F.array_except("recipients", "discarded_for")) == 0)
    return joined.select(
        "message", "server", "first.primary", "first.at",
        (F.col("has_discard") & is_for_all).alias("is_discarded"),
        "is_promoted", "is_expired",
        F.when(F.col("kind") != RECONSTRUCTED, F.col("told_at") - F.col("done_at")).alias("lag_us"),
    )  # fmt: skip


def orphans(copies: DataFrame, log_ends: DataFrame, *, now: int, is_final: bool, hold_us: int) -> DataFrame:
    """Those neither discarded nor promoted although their time is up, with the cause.

    Shapes: `log_ends`: server, last_at (of its log). Units: microseconds; `hold_us` is safety_net_hold_time + message_expiration_timeout.
    """
    is_up = F.lit(is_final) | (F.col("at") + hold_us <= now)
    left = copies.where(~F.col("is_discarded") & ~F.col("is_promoted") & is_up)
    left = left.join(F.broadcast(log_ends.select("server", "last_at")), on="server", how="left")
    return left.select("message", "server", "primary", "at", _cause(hold_us).alias("cause"))


def _cause(hold_us: int) -> Column:
    is_log_missing = F.col("last_at").isNull() | (F.col("last_at") < F.col("at") + hold_us)
    return F.when(F.col("is_expired"), "expired").when(is_log_missing, "log missing").otherwise("never told")
