"""Messages that clients sent again, and the duplicates that came of them: cause (e). docs/sla.md, 3 and 4.

A client that never received the reply sends its message again, to the same node or to another one. Both messages have rows of their own, so
that only internet message id, recipients and client show that they are one. `first_pass` leaves all that may be meant to `exact`, so that
they are among its lines.
"""

import json
from collections.abc import Collection

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from shadowrelay.sla.figures.exact import ACKNOWLEDGED, is_counted

SENT_AGAIN = "e"
BORNE = ("borne_id", "addressed")  # equal if two messages bear the same internet message id and recipients


def repeated(lines: DataFrame, logged: Collection[str]) -> DataFrame:
    """Messages of clients whose internet message id and recipients several of them bear, with `first_at`: when the first of these was
    acknowledged.

    Shapes: `lines` as from `exact.timelines`; `logged`: servers with a log.
    """
    servers = F.from_json(F.lit(json.dumps(sorted(logged))), "array<string>")  # one literal, however many they are
    is_relayed = F.coalesce(F.array_contains(servers, F.col("client")), F.lit(False))
    clients = lines.where(is_counted() & (F.col("borne_id") != "") & F.col("addressed").isNotNull() & ~is_relayed)
    alike = Window.partitionBy(*BORNE)
    several = clients.select(
        "message", "kind", "at", "server", "pair_server", "client", *BORNE,
        F.count(F.lit(1)).over(alike).alias("bearers"), F.min("at").over(alike).alias("first_at"),
    )  # fmt: skip
    return several.where("bearers > 1").drop("bearers")


def delivered_again(repeated: DataFrame, recipients: DataFrame, lines: DataFrame) -> DataFrame:
    """One line for each recipient that got a message, and one that the same client had sent before; as from `incidents.duplicates`. It is
    about the later message. A recipient that got the later message twice is a line of `incidents.duplicates`, and not of these.

    Shapes: `repeated` as from there; `recipients` and `lines` as from `exact.recipients` and `exact.timelines`.
    """
    is_named = (F.col("kind") == ACKNOWLEDGED) & (F.col("client") != "")  # the message's client said its name
    sent = repeated.where(is_named).select("message", *BORNE, "client", F.col("at").alias("acknowledged_at"))
    first = F.col("deliveries")[0]
    got = recipients.where(F.col("deliveries_count") > 0).select(
        "message", "recipient", "is_duplicated", F.struct(first["at"].alias("at"), first["server"].alias("server")).alias("delivery")
    )
    delivered = got.join(sent, on="message", how="inner").join(lines.select("message", "sender", "subject"), on="message", how="inner")
    before = Window.partitionBy(*BORNE, "client", "recipient").orderBy("acknowledged_at").rangeBetween(Window.unboundedPreceding, -1)
    delivered = delivered.withColumn("before", F.min("delivery").over(before))
    both = F.sort_array(F.array("before", "delivery"))
    return delivered.where(F.col("before").isNotNull() & ~F.col("is_duplicated")).select(
        "message", "recipient", F.lit(2).cast("long").alias("count"), F.lit(SENT_AGAIN).alias("cause"),
        both[0]["server"].alias("first_server"), both[0]["at"].alias("first_at"),
        both[1]["server"].alias("later_server"), both[1]["at"].alias("later_at"), "sender", "subject",
    )  # fmt: skip
