"""Messages that clients sent again, and the duplicates that came of them: cause (e). docs/sla.md, 3 and 4.

A client that never received the reply sends its message again, to the same node or to another one. Both messages have rows of their own, so
that only internet message id, recipients and client show that they are one. They are compared by hashes, so that the search over all
messages has fixed width; few messages remain, and only of these are rows read.
"""

import json
from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from shadowrelay.sla.figures.exact import ACKNOWLEDGED, is_counted
from shadowrelay.sla.figures.first_pass import RESENT_KEYS, id_high, id_low
from shadowrelay.sla.figures.rows import is_event

SENT_AGAIN = "e"
BORNE = RESENT_KEYS[:3]  # equal if two messages bear the same internet message id and recipients


def repeated(plain: DataFrame | None, lines: DataFrame, logged: Collection[str]) -> DataFrame:
    """Messages of clients whose internet message id and recipients several of them bear, with `first_at`: when the first of these was
    acknowledged.

    Shapes: `plain` as from `first_pass.plain_messages`, None if no message is; `lines` as from `exact.timelines`; `logged`: servers with a
    log.
    """
    columns = ("message", "kind", "at", "server", "pair_server", *RESENT_KEYS, "is_plain")
    internet_id = F.when(F.col("internet_message_id") != "", F.col("internet_message_id"))
    client = F.when(F.col("client").isNotNull(), F.xxhash64("client"))
    exact = lines.withColumns({"id_high": id_high(internet_id), "id_low": id_low(internet_id), "client_hash": client})
    sent = exact.withColumn("is_plain", F.lit(False)).select(*columns)
    if plain is not None:
        sent = sent.unionByName(plain.withColumn("is_plain", F.lit(True)).select(*columns))
    clients = sent.where(is_counted() & F.col("id_high").isNotNull() & F.col("addressed").isNotNull() & ~_is_relayed(logged))
    borne = clients.groupBy(*BORNE).agg(F.count(F.lit(1)).alias("bearers"), F.min("at").alias("first_at")).where("bearers > 1")
    return clients.join(borne.drop("bearers"), on=list(BORNE), how="inner")


def _is_relayed(logged: Collection[str]) -> Column:
    servers = F.from_json(F.lit(json.dumps(sorted(logged))), "array<string>")  # one literal, however many they are
    return F.coalesce(F.array_contains(F.transform(servers, lambda server: F.xxhash64(server)), F.col("client_hash")), F.lit(False))


def resent_rows(repeated: DataFrame, events: DataFrame) -> DataFrame:
    """The rows of plain messages that `delivered_again` reads. Shapes: `repeated` as from there, `events` as stored."""
    wanted = repeated.where(_is_named() & F.col("is_plain")).select("message", *RESENT_KEYS, F.col("at").alias("acknowledged_at"))
    rows = events.select("message", "event", F.unix_micros("at").alias("at"), "server", "recipients", "sender", "subject")
    return rows.join(F.broadcast(wanted), on="message", how="inner")


def delivered_again(repeated: DataFrame, recipients: DataFrame, lines: DataFrame, resent: DataFrame, duplicates: DataFrame) -> DataFrame:
    """One line for each recipient that got a message, and one that the same client had sent before; as from `incidents.duplicates`. It is
    about the later message. A recipient that got the later message twice is in `duplicates`, and not here.

    Shapes: `recipients` and `lines` as from `exact.recipients` and `exact.timelines`; `resent` as from `resent_rows`.
    """
    delivered = _of_plain(resent).unionByName(_of_others(repeated.where(_is_named()), recipients, lines))
    key = [*RESENT_KEYS, "recipient"]
    before = Window.partitionBy(*key).orderBy("acknowledged_at").rangeBetween(Window.unboundedPreceding, -1)
    delivered = delivered.withColumn("before", F.min("delivery").over(before)).where(F.col("before").isNotNull())
    both = F.sort_array(F.array("before", "delivery"))
    new = delivered.join(duplicates.select("message", "recipient"), on=["message", "recipient"], how="left_anti")
    return new.select(
        "message", "recipient", F.lit(2).cast("long").alias("count"), F.lit(SENT_AGAIN).alias("cause"),
        both[0]["server"].alias("first_server"), both[0]["at"].alias("first_at"),
        both[1]["server"].alias("later_server"), both[1]["at"].alias("later_at"), "sender", "subject",
    )  # fmt: skip


def _is_named() -> Column:
    """The message's client said its name."""
    return (F.col("kind") == ACKNOWLEDGED) & F.col("client_hash").isNotNull() & (F.col("client_hash") != F.xxhash64(F.lit("")))


def _of_plain(rows: DataFrame) -> DataFrame:
    """The first delivery of each recipient."""
    is_delivery = is_event("SEND", "SENDEXTERNAL")
    told = rows.groupBy("message", *RESENT_KEYS, "acknowledged_at").agg(
        F.max("sender").alias("sender"),
        F.max("subject").alias("subject"),
        F.collect_list(F.when(is_delivery, F.struct(F.struct("at", "server").alias("delivery"), "recipients"))).alias("sends"),
    )
    each = told.select("*", F.inline("sends")).drop("sends")
    return each.withColumn("recipient", F.explode("recipients")).drop("recipients")


def _of_others(sent: DataFrame, recipients: DataFrame, lines: DataFrame) -> DataFrame:
    wanted = sent.where(~F.col("is_plain")).select("message", *RESENT_KEYS, F.col("at").alias("acknowledged_at"))
    first = F.col("deliveries")[0]
    got = recipients.where(F.col("deliveries_count") > 0).select(
        "message", "recipient", F.struct(first["at"].alias("at"), first["server"].alias("server")).alias("delivery")
    )
    return got.join(wanted, on="message", how="inner").join(lines.select("message", "sender", "subject"), on="message", how="inner")


def repetitions_by_message(again: DataFrame) -> DataFrame:
    """How many recipients got a message again. Shapes: `again` as from `delivered_again`."""
    return again.groupBy("message").agg(F.count(F.lit(1)).alias("again"))


def with_repetitions(messages: DataFrame, counted: DataFrame) -> DataFrame:
    """The messages with these duplicates counted. Shapes: `counted` as from `repetitions_by_message`."""
    joined = messages.join(F.broadcast(counted), on="message", how="left")
    return joined.withColumn("duplicated", F.col("duplicated") + F.coalesce("again", F.lit(0).cast("long"))).drop("again")
