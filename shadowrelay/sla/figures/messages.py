"""Messages as their figures are counted from, the exact way; and which of them clients sent again. docs/sla.md, 3."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures.causes import UNEXPLAINED
from shadowrelay.sla.figures.first_pass import id_high, id_low
from shadowrelay.sla.figures.timelines import is_counted


def exact_messages(lines: DataFrame, exposed: DataFrame, duplicates: DataFrame) -> DataFrame:
    """One line a message.

    Shapes: `lines` from `timelines` joined with `ends`; `exposed` from `exposures_by_message`; `duplicates` from `causes`.
    """
    unexplained = duplicates.where(F.col("cause") == UNEXPLAINED).groupBy("message").agg(F.count(F.lit(1)).alias("unexplained"))
    joined = lines.join(exposed, on="message", how="left").join(unexplained, on="message", how="left")
    internet_id = F.when(F.col("internet_message_id") != "", F.col("internet_message_id"))
    return joined.select(
        "message", "kind", "at", "server", "pair_server", "is_redundant", "shadow_us", "ack_us", "done_at", "last_delivery_at",
        *[_or_none(name) for name in ("recipients_count", "exposure_count", "exposure_us", "exposure_max_us")],
        *[_or_none(name) for name in ("lost", "duplicated", "unexplained")],
        id_high(internet_id).alias("id_high"), id_low(internet_id).alias("id_low"),
        "addressed", F.when(F.col("client").isNotNull(), F.xxhash64("client")).alias("client_hash"),
    )  # fmt: skip


def _or_none(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(0).cast("long")).alias(name)


def sent_again(messages: DataFrame, names: DataFrame) -> DataFrame:
    """(at, server, pair_server) of each acknowledged message that a client sent, which is no logged server, and whose internet message id
    and recipients one bears that was acknowledged to such a client earlier.

    Shapes: `messages` all of them, `names` from `server_names`; all are compared by their hashes, so that the aggregate is of fixed width.
    """
    key = ("id_high", "id_low", "addressed")
    is_relayed = F.broadcast(names.select(F.col("name_hash").alias("client_hash")))
    bearing = messages.where(is_counted() & F.col("id_high").isNotNull() & F.col("addressed").isNotNull())
    bearing = bearing.join(is_relayed, on="client_hash", how="left_anti")
    first = bearing.groupBy(*key).agg(F.count(F.lit(1)).alias("count"), F.min("at").alias("first_at"))
    several = first.where(F.col("count") > 1).select(*key, "first_at")
    joined = bearing.select("at", "server", "pair_server", *key).join(several, on=list(key), how="inner")
    return joined.where(F.col("at") > F.col("first_at")).select("at", "server", "pair_server")
