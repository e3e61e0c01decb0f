"""The exact transforms: messages, recipients and copies, judged row by row. docs/sla.md, 2 to 4.

For the messages that `first_pass` could not judge. `timelines` collects one line per message: who acknowledged it, its kind, and the
few rows needed to judge it. From rows and timelines follow the recipients and when each was done (`recipients`, `ends`), and the copies on
shadow servers and how late each was discarded (`copies`). The lists of rows in a timeline are bounded by the events of one message, but
are too large to be built for all mail.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.protocol.tracking import DELAYED
from shadowrelay.sla.figures.rows import (
    KEPT,
    OWN_FORMAT,
    has_no_recipients,
    instant_of_server,
    is_acknowledgement,
    is_deferred_by_next_hop,
    is_end,
    is_event,
    is_expired_copy,
    is_from_safety_net,
    is_own,
    is_promotion,
    is_replacement,
    is_told_delivered,
)

# ---- timelines

WAYS = ("shadow_server", "previous_hop", "next_hop")
_SHADOW_AT = "(?:^|;)S:ShadowAt=([^;]*)"  # in custom-data
ACKNOWLEDGED, RECONSTRUCTED, DSN, REFUSED, UNKNOWN = "acknowledged", "reconstructed", "dsn", "refused", "unknown"
COUNTED = (ACKNOWLEDGED, RECONSTRUCTED)
WITHOUT_REDUNDANCY_EVENTS = "exchange2010"


def is_counted() -> Column:
    """Whether the message counts in figures about acknowledged messages."""
    return F.col("kind").isin(*COUNTED)


def known_until(rows: DataFrame, log_ends: Mapping[str, int | None], *, now: int) -> dict[str, int]:
    """The instant up to which the logs are complete, for each server: its last row; for a server that was lost, now, because it will log
    nothing more.

    Shapes: `rows` as from `exact_rows`; `log_ends`: last row of each server's log. A server without an entry is not known at all.
    """
    taken = rows.where(is_promotion()).groupBy("reference").agg(F.max("at").alias("at")).collect()
    known = {server: min(at, now) for server, at in log_ends.items() if at is not None}
    lost = {row["reference"] for row in taken if (log_ends.get(row["reference"]) or row["at"]) <= row["at"]}
    return known | dict.fromkeys(lost, now)


def timelines(rows: DataFrame, known: Mapping[str, int]) -> DataFrame:
    """Shapes: `rows` as from `exact_rows`, `known` as from `known_until`; one line per message. `pair_server` is null if there is no pair,
    `known_until` if no server that is responsible for the message is known."""
    lines = _gathered(rows)
    lines = lines.join(_exchange_notifications(rows), on="internet_message_id", how="left")
    lines = lines.withColumn("kind", _kind())
    is_reconstructed = F.col("kind") == RECONSTRUCTED
    acknowledged = F.when(F.col("kind") == ACKNOWLEDGED, F.struct("receive.at", "receive.server"))
    reconstructed = F.when(is_reconstructed, F.struct("holder.at", F.col("holder.primary").alias("server")))
    notification = F.when(F.col("kind") == DSN, F.struct("notification.at", "notification.server"))
    lines = lines.withColumn("belongs", F.coalesce(acknowledged, reconstructed, notification))
    lines = lines.withColumns({"at": F.col("belongs.at"), "server": F.col("belongs.server")})
    is_earlier = F.filter("redirects", lambda row: (row["at"] <= F.col("at")) & (row["server"] == F.col("server")))
    previous_hop = F.regexp_extract("receive.custom_data", _SHADOW_AT, 1)
    other = F.coalesce(F.try_element_at(is_earlier, F.lit(-1))["to"], F.when(previous_hop != "", previous_hop))
    pair_server = F.when(F.col("kind") == ACKNOWLEDGED, other)
    is_delayed = F.col("receive.source_context").startswith(DELAYED) & (F.col("receive.format") == OWN_FORMAT)
    last_delivery_at = F.when(is_delayed, F.greatest("last_delivery_at", "at")).otherwise(F.col("last_delivery_at"))
    responsible = F.array_union(F.array("server"), F.transform("promotions", lambda row: row["server"]))
    return lines.select(
        "message", "internet_message_id", "kind", "at", "server",
        F.when(is_reconstructed, F.col("held.server")).otherwise(pair_server).alias("pair_server"),
        _is_redundant().alias("is_redundant"),
        F.when(_is_redundant().isNotNull(), F.coalesce(_reported_copies(), _is_redundant().cast("long"))).alias("copies"),
        F.when(F.col("kind") == ACKNOWLEDGED, F.col("receive.shadow_us")).alias("shadow_us"),
        F.when(F.col("kind") == ACKNOWLEDGED, F.col("receive.ack_us")).alias("ack_us"),
        F.when(F.col("kind") == ACKNOWLEDGED, F.col("received_by")).otherwise(F.col("held_for")).alias("recipients"),
        _way(F.size(is_earlier) > 0).alias("way"),
        F.when(F.col("last_delivery_at").isNotNull(), last_delivery_at).alias("last_delivery_at"),
        "redirects", "promotions", "holds", "sightings", "loads", "notified_at", "discarded_for_all_at",
        "last_row.is_set_aside", "last_try_at", "first_deferred_at", "is_redirect_failed", "sender", "subject", "rows_count",
        F.array_max(F.transform(responsible, lambda server: instant_of_server(server, known))).alias("known_until"),
        F.when(F.col("kind") == ACKNOWLEDGED, F.col("receive.recipients_hash"))
        .otherwise(F.col("holder.recipients_hash"))
        .alias("addressed"),
        F.when(F.col("kind") == ACKNOWLEDGED, F.col("receive.client_hostname")).alias("client"),
    )  # fmt: skip


def _gathered(rows: DataFrame) -> DataFrame:
    """The required data of a message's rows, in one aggregate."""
    is_held = is_event("HARECEIVE")
    is_released = is_event("HADISCARD") & ~is_told_delivered() & (F.col("source_context") == "released")
    is_sighting = is_event("HADISCARD", "HAREDIRECT") | is_promotion()
    sighting = F.struct("at", F.when(is_event("HAREDIRECT"), F.col("server_hostname")).otherwise(F.col("server")).alias("server"))
    primary = F.when(is_held, F.col("client_hostname")).otherwise(F.col("reference"))
    promotion = F.struct("at", "server", "reference", "reason", "silent_since")
    receive = F.struct(
        "at",
        "server",
        "row_id",
        "replication",
        "copies",
        "shadow_us",
        "ack_us",
        "format",
        "client_hostname",
        "recipients_hash",
        "source_context",
        "custom_data",
    )
    lists = {
        "redirects": F.sort_array(_each(is_event("HAREDIRECT"), F.struct("at", "server", F.col("server_hostname").alias("to")))),
        "promotions": F.sort_array(_each(is_promotion(), promotion)),
        "holds": _each(is_held, F.struct("server", F.col("client_hostname").alias("primary"))),
        "sightings": _each(is_sighting, sighting),
        "loads": _each(is_event("LOAD"), F.struct("at", "server")),
        "received_by": F.array_distinct(F.flatten(_each(is_event("RECEIVE"), F.col("recipients")))),
        "held_for": F.array_distinct(F.flatten(_each(is_held | is_promotion(), F.col("recipients")))),
        "holders": F.collect_set(F.when(is_held, F.col("server"))),
        "released_by": F.collect_set(F.when(is_released, F.col("server"))),
    }
    return rows.groupBy("message").agg(
        *[gathered.alias(name) for name, gathered in lists.items()],
        F.max("internet_message_id").alias("internet_message_id"),
        F.min(F.when(is_acknowledgement(), receive)).alias("receive"),
        F.min(F.when(is_event("DSN"), F.struct("at", "server"))).alias("notification"),
        F.min(F.when(is_held | is_promotion(), F.struct("at", primary.alias("primary"), "recipients_hash"))).alias("holder"),
        F.min(F.when(is_held, F.struct("at", "server", (F.col("source") == KEPT).alias("is_kept")))).alias("held"),
        F.max(F.struct("at", is_event("POISONMESSAGE").alias("is_set_aside"))).alias("last_row"),
        F.max(F.when(is_event("DEFER", "RESUBMIT"), F.col("at"))).alias("last_try_at"),
        F.min(F.when(is_deferred_by_next_hop(), F.col("at"))).alias("first_deferred_at"),
        F.max("sender").alias("sender"),
        F.max("subject").alias("subject"),
        F.max(F.when(F.col("is_delivery"), F.col("at"))).alias("last_delivery_at"),
        F.min(F.when(is_told_delivered() & has_no_recipients(), F.col("at"))).alias("discarded_for_all_at"),
        F.max(is_event("RECEIVE")).alias("is_received"),
        F.max(is_event("HAREDIRECTFAIL")).alias("is_redirect_failed"),
        F.max(is_event("RESUBMIT")).alias("is_resubmitted"),
        F.max(is_from_safety_net()).alias("is_from_safety_net"),
        F.max(is_end() | is_told_delivered()).alias("is_ended"),
        F.count(F.when(F.col("source") != KEPT, 1)).alias("rows_count"),
    )


def _each(condition: Column, value: Column) -> Column:
    return F.collect_list(F.when(condition, value))


def _kind() -> Column:
    is_all_released = F.size(F.array_except("holders", "released_by")) == 0
    is_released = (F.size("holders") > 0) & is_all_released & ~F.col("is_resubmitted") & ~F.col("is_ended")
    is_refused = ~F.col("is_received") & (F.col("is_redirect_failed") | is_released)
    return (
        F.when(F.col("notification").isNotNull(), DSN)
        .when(F.col("receive").isNotNull(), ACKNOWLEDGED)
        .when(is_refused, REFUSED)
        .when(~F.col("is_received") & ~F.col("is_from_safety_net") & F.col("holder").isNotNull(), RECONSTRUCTED)
        .otherwise(UNKNOWN)
    )


def _is_redundant() -> Column:
    """Null if the logs do not show it."""
    is_copied_in_time = F.exists("redirects", lambda row: row["at"] <= F.col("at"))
    of_receive = (
        F.when(F.col("receive.replication") != "", F.col("receive.replication") == "Success")
        .when(F.col("receive.format") == WITHOUT_REDUNDANCY_EVENTS, F.lit(None))
        .otherwise(is_copied_in_time)
    )
    return F.when(F.col("kind") == ACKNOWLEDGED, of_receive).when(F.col("kind") == RECONSTRUCTED, F.lit(True))


def _way(is_copied: Column) -> Column:
    """Where the second copy was. Shapes: one of WAYS; null if there was none."""
    is_out_of_hand = (F.col("receive.source_context") == f"{DELAYED}done") & (F.col("receive.format") == OWN_FORMAT)
    of_receive = (
        F.when(is_out_of_hand, F.lit("next_hop"))
        .when(F.col("receive.custom_data").rlike(_SHADOW_AT) & ~is_copied, F.lit("previous_hop"))
        .otherwise(F.lit("shadow_server"))
    )
    of_copies = F.when(F.col("held.is_kept"), F.lit("previous_hop")).otherwise(F.lit("shadow_server"))
    return F.when(_is_redundant(), F.when(F.col("kind") == ACKNOWLEDGED, of_receive).otherwise(of_copies))


def _reported_copies() -> Column:
    return F.when(F.col("kind") == ACKNOWLEDGED, F.col("receive.copies"))


def _exchange_notifications(rows: DataFrame) -> DataFrame:
    """When Exchange first created a DSN about the message with that internet message id."""
    is_about_another = is_event("DSN") & ~is_own() & (F.col("reference") != "")
    return (
        rows.where(is_about_another)
        .groupBy(F.col("reference").alias("internet_message_id"))
        .agg(F.min("at").alias("notified_at"))
    )  # fmt: skip


# ---- recipients


def recipients(rows: DataFrame, lines: DataFrame, *, now: int, is_final: bool, expiration_us: int) -> DataFrame:
    """One line for each recipient in a message's rows. `is_named`: an original recipient, or a replacement of one. `is_unknown`: its time
    is up, but the logs about the message end earlier.

    Shapes: `rows` from `exact_rows`, `lines` from `timelines`; `deliveries` are the two earliest, (at, server). Units: microseconds.
    """
    held = is_event("HARECEIVE") | is_promotion()
    is_replaced = F.coalesce(F.array_contains("replaced", F.col("recipient")), F.lit(False))
    is_stepping_in = is_replacement() & ~is_replaced
    delivery = F.when(F.col("is_delivery"), F.struct("at", "server", "row_id"))
    of_recipient = (
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
        "message", "kind", "discarded_for_all_at", "notified_at", F.col("at").alias("acknowledged_at"), F.col("server").alias("primary"),
        "known_until",
    )  # fmt: skip
    is_named = F.when(F.col("kind") == ACKNOWLEDGED, F.col("is_received")).otherwise(F.col("is_held"))
    joined = of_recipient.join(of_message, on="message", how="inner").withColumns({"end_at": _end_at(), "is_named": is_named})
    due_at = F.col("acknowledged_at") + expiration_us
    is_open = is_counted() & F.col("is_named") & F.col("end_at").isNull()
    is_up = F.lit(is_final) | F.coalesce(due_at <= F.col("known_until"), F.lit(False))
    return joined.select(
        "message", "recipient", "kind", "acknowledged_at", "primary", "is_named", "end_at", "deliveries_count", "deliveries",
        "discarded_at",
        (is_open & is_up).alias("is_lost"),
        (is_open & ~is_up & (due_at <= now)).alias("is_unknown"),
        (is_counted() & (F.col("deliveries_count") > 1)).alias("is_duplicated"),
    )  # fmt: skip


def _end_at() -> Column:
    by_shadow_server = F.when(F.col("kind") == RECONSTRUCTED, F.least("discarded_at", "discarded_for_all_at"))
    return F.coalesce(F.least("first_end_at", by_shadow_server), F.col("notified_at"))


def ends(recipients: DataFrame) -> DataFrame:
    """One line per message: number of recipients, of lost ones and of duplicates, and when it was done (null: it is not)."""
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


# ---- copies


def copies(rows: DataFrame, lines: DataFrame) -> DataFrame:
    """One line per copy. `lag_us` is null if the message is not done, the copy was not discarded as delivered, or the message is
    reconstructed, because then only the discard shows that it was done. It may be negative.

    Shapes: `rows` from `exact_rows`; `lines` have message, kind, recipients (all its own) and `done_at`.
    """
    is_discard = is_event("HADISCARD")
    held = rows.groupBy("message", "server").agg(
        F.min(F.when(is_event("HARECEIVE"), F.struct("at", F.col("client_hostname").alias("primary")))).alias("first"),
        F.max(is_discard).alias("has_discard"),
        F.max(is_discard & has_no_recipients()).alias("is_discarded_for_all"),
        F.array_distinct(F.flatten(F.collect_list(F.when(is_discard, F.col("recipients"))))).alias("discarded_for"),
        F.max(F.when(is_told_delivered(), F.col("at"))).alias("told_at"),
        F.max(is_promotion()).alias("is_promoted"),
        F.max(is_expired_copy()).alias("is_expired"),
        F.min(F.when(is_event("HARECEIVE"), F.struct("at", "client_hostname", "source")))["source"].alias("first_source"),
        F.collect_set(F.when(is_event("SEND", "SENDEXTERNAL") & ~has_no_recipients(), F.col("server_hostname"))).alias("sent_to"),
    )
    held = held.where(F.col("first").isNotNull())
    joined = held.join(lines.select("message", "kind", "recipients", "done_at"), on="message", how="inner")
    is_for_all = F.col("is_discarded_for_all") | (F.size(F.array_except("recipients", "discarded_for")) == 0)
    return joined.select(
        "message", "server", "first.primary", "first.at",
        (F.col("has_discard") & is_for_all).alias("is_discarded"),
        "is_promoted", "is_expired", (F.col("first_source") == KEPT).alias("is_kept"),
        (F.size(F.array_remove("sent_to", F.col("first.primary"))) > 0).alias("is_rerouted"), F.col("told_at").alias("discarded_at"),
        F.when(F.col("kind") != RECONSTRUCTED, F.col("told_at") - F.col("done_at")).alias("lag_us"),
    )  # fmt: skip
