"""Recipients that got a message twice, and recipients that never got it: each with its cause. docs/sla.md, 4. Exact, for few messages."""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

DATABASE_LOST = ("DatabaseChanged", "DatabaseRolledBack")
UNEXPLAINED = "unexplained"


def duplicates(recipients: DataFrame, lines: DataFrame, *, together_us: int) -> DataFrame:
    """One line for each recipient with more than one delivery of an acknowledged message.

    Shapes: `recipients` from `ends.recipients`, `lines` from `timelines`. Units: microseconds; `together_us`: span + heartbeat.
    """
    twice = recipients.where(F.col("is_duplicated")).join(lines.select("message", "promotions", "loads"), on="message", how="inner")
    twice = twice.withColumns({"first": F.col("deliveries")[0], "later": F.col("deliveries")[1]})
    first, later = F.col("first.server"), F.col("later.server")
    twice = twice.withColumn("chained", F.concat(_chains(first, later), _chains(later, first)))
    return twice.select(
        "message", "recipient", F.col("deliveries_count").alias("count"), _cause_of_duplicate(together_us).alias("cause"),
        F.col("first.server").alias("first_server"), F.col("first.at").alias("first_at"),
        F.col("later.server").alias("later_server"), F.col("later.at").alias("later_at"),
    )  # fmt: skip


def _chains(one: Column, other: Column) -> Column:
    """The promotions by which what `one` held came to `other`, over others or at once: each has the one before as its old primary."""
    promotions = F.col("promotions")

    def reached(begin: Column, step: Callable[[Column], Column], end: Callable[[Column], Column]) -> Column:
        def again(found: Column, _: Column) -> Column:
            return F.array_union(found, F.transform(F.filter(promotions, lambda row: F.array_contains(found, step(row))), end))

        return F.aggregate(promotions, F.array(begin), again)  # as often as there are promotions: longer no chain can be

    after_one = reached(one, lambda row: row["reference"], lambda row: row["server"])
    before_other = reached(other, lambda row: row["server"], lambda row: row["reference"])
    return F.filter(promotions, lambda row: F.array_contains(after_one, row["reference"]) & F.array_contains(before_other, row["server"]))


def _cause_of_duplicate(together_us: int) -> Column:
    def is_between(row: Column) -> Column:
        return (F.col("first.at") <= row["at"]) & (row["at"] <= F.col("later.at"))

    def is_together(one: Column) -> Column:
        return F.exists(
            "promotions",
            lambda other: is_between(other) & (one["reference"] != other["reference"]) & (F.abs(one["at"] - other["at"]) <= together_us),
        )

    def is_fellow_heir(one: Column) -> Column:
        return F.exists(
            "promotions",
            lambda other: (
                (other["server"] == F.col("later.server"))
                & (one["reference"] == other["reference"])
                & (F.abs(one["at"] - other["at"]) <= together_us)
            ),
        )

    has_two_failed = F.exists("promotions", lambda row: is_between(row) & is_together(row))
    are_heirs = (F.col("first.server") != F.col("later.server")) & F.exists(
        "promotions", lambda row: (row["server"] == F.col("first.server")) & is_fellow_heir(row)
    )
    is_disk_lost = F.exists("chained", lambda row: row["reason"].isin(*DATABASE_LOST))
    is_cut_off = F.exists("chained", lambda row: row["reason"] == "Silence")
    is_loaded_again = F.exists("loads", lambda row: is_between(row) & (row["server"] == F.col("first.server")))
    is_handed_over = F.exists("promotions", lambda row: row["reason"] == "Handover")
    return (
        F.when(has_two_failed | are_heirs, "d")
        .when(is_disk_lost, "b")
        .when(is_cut_off, "c")
        .when(is_loaded_again | is_handed_over, "a")
        .otherwise(UNEXPLAINED)
    )


def losses(recipients: DataFrame, lines: DataFrame, log_ends: DataFrame, *, expiration_us: int) -> DataFrame:
    """One line for each recipient that was lost.

    Shapes: `log_ends`: server, last_at (of its log). Units: microseconds.
    """
    of_message = lines.select("message", "server", "promotions", "is_set_aside", "last_try_at", "discarded_for_all_at")
    lost = recipients.where(F.col("is_lost")).join(of_message, on="message", how="inner")
    lost = lost.join(F.broadcast(log_ends.select("server", "last_at")), on="server", how="left")
    return lost.select("message", "recipient", "acknowledged_at", "server", _cause_of_loss(expiration_us).alias("cause"))


def _cause_of_loss(expiration_us: int) -> Column:
    due_at = F.col("acknowledged_at") + expiration_us
    is_discarded = F.col("discarded_at").isNotNull() | F.col("discarded_for_all_at").isNotNull()
    is_log_over = F.col("last_at").isNull() | (F.col("last_at") < due_at)
    return (
        F.when(F.col("is_set_aside"), "set aside")
        .when(is_discarded, "discarded without delivery")
        .when((F.size("promotions") == 0) & is_log_over, "both copies gone")
        .when(F.col("last_try_at") >= due_at, "still queued")
        .otherwise("no trace")
    )
