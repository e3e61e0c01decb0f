"""Finds messages that clients sent again, and recipients that got one again for that reason: cause e. docs/sla.md, 3 and 4."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from shadowrelay.sla.figures.exact import ACKNOWLEDGED, is_counted
from shadowrelay.sla.figures.rows import exact_rows

SENT_AGAIN = "e"
MARK = ("id_high", "id_low", "addressed")
"""What messages have in common of which one repeats the other: hashes of internet message id and recipients."""


def bearing(messages: DataFrame, logged_servers: Sequence[str]) -> DataFrame:
    """The acknowledged messages of clients (not of logged servers) that have a mark, with it and `at`. Fixed width."""
    is_relayed = F.coalesce(F.col("client_hash").isin([F.xxhash64(F.lit(name)) for name in logged_servers]), F.lit(False))
    has_mark = F.col("id_high").isNotNull() & F.col("addressed").isNotNull()
    columns = ("message", "kind", "at", "server", "pair_server", "last_delivery_at", *MARK)
    return messages.where(is_counted() & has_mark & ~is_relayed).select(*columns)


def several(messages: DataFrame, logged_servers: Sequence[str]) -> DataFrame:
    """The marks of more than one message, with the time of the first, `first_at`."""
    found = bearing(messages, logged_servers).groupBy(*MARK).agg(F.min("at").alias("first_at"), F.count(F.lit(1)).alias("count"))
    return found.where(F.col("count") > 1).drop("count")


def repeated(events: DataFrame, messages: DataFrame, marks: DataFrame, logged_servers: Sequence[str]) -> DataFrame:
    """One line for each recipient of a message sent again that got it, and had got an earlier one: as in `incidents.duplicates`, with the
    time and place of the message.

    Shapes: `marks` as from `several`. The first delivery is the earliest of messages that were acknowledged earlier.
    Reconstructed messages are left out: one that was relayed by TRACK looks like a repetition of itself.
    """
    is_known = (F.col("kind") == ACKNOWLEDGED) & F.col("last_delivery_at").isNotNull()
    members = bearing(messages, logged_servers).where(is_known).drop("kind").join(marks, on=[*MARK], how="inner")
    rows = exact_rows(events.join(members.select("message"), on="message", how="left_semi"), logged_servers)
    told = rows.groupBy("message").agg(F.max("sender").alias("sender"), F.max("subject").alias("subject"))
    each = rows.where(F.col("is_delivery")).select(
        "message", F.explode("recipients").alias("recipient"), F.struct("at", "server").alias("got")
    )
    reached = each.groupBy("message", "recipient").agg(F.min("got").alias("later"))
    earlier = Window.partitionBy(*MARK, "recipient").orderBy("acknowledged_at").rangeBetween(Window.unboundedPreceding, -1)
    joined = reached.join(members.withColumnRenamed("at", "acknowledged_at"), on="message", how="inner")
    found = joined.withColumn("first", F.min("later").over(earlier)).where(F.col("first").isNotNull())
    return found.join(told, on="message", how="inner").select(
        "message", "recipient", F.lit(2).cast("long").alias("count"), F.lit(SENT_AGAIN).alias("cause"),
        F.col("first.server").alias("first_server"), F.col("first.at").alias("first_at"),
        F.col("later.server").alias("later_server"), F.col("later.at").alias("later_at"), "sender", "subject",
        F.col("acknowledged_at").alias("at"), "server", "pair_server",
    )  # fmt: skip
