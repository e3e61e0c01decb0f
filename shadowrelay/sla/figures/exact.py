"""The exact transforms: messages, recipients and copies, judged row by row. docs/sla.md, 2 to 4.

For the messages that `first_pass` could not judge. `timelines` collects one line per message: who acknowledged it, its kind, and the
few rows needed to judge it. From rows and timelines follow the recipients and when each was done (`recipients`, `ends`), and the copies on
shadow servers and how late each was discarded (`copies`). The lists of rows in a timeline are bounded by the events of one message, but
are too large to be built for all mail.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.protocol.tracking import DELAYED
from shadowrelay.sla.figures.exchange import (
    ADDS,
    APPROVES,
    BEGINS_COPY,
    DECISIONS,
    ENDS_COPY,
    GOES_ON,
    PUTS_OFF,
    PUTTING_OFF,
    REDIRECTING,
    SENDS_AGAIN,
    WAITS,
    does,
    hops_done,
    is_said_redundant,
    notifications,
)
from shadowrelay.sla.figures.rows import (
    KEPT,
    OWN_FORMAT,
    has_no_recipients,
    has_shared_fate,
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
NOTHING_COVERED: Mapping[str, Sequence[tuple[int, int]]] = MappingProxyType({})
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


def timelines(
    rows: DataFrame,
    known: Mapping[str, int],
    covered: Mapping[str, Sequence[tuple[int, int]]] = NOTHING_COVERED,
    *,
    has_exchange: bool = True,
) -> DataFrame:
    """Shapes: `rows` as from `exact_rows`, `known` as from `known_until`; `covered`: the times for which each server's log is whole, from
    and until; one line per message. `pair_server` is null if there is no pair,
    `known_until` if no server that is responsible for the message is known."""
    lines = _judged(rows, known, covered)
    if not has_exchange:
        return lines.withColumn("notified_at", F.lit(None).cast("bigint"))
    return lines.join(notifications(rows, lines), on="message", how="left")


def _judged(rows: DataFrame, known: Mapping[str, int], covered: Mapping[str, Sequence[tuple[int, int]]]) -> DataFrame:
    lines = _gathered(rows).withColumn("kind", _kind(covered))
    is_reconstructed = F.col("kind") == RECONSTRUCTED
    acknowledged = F.when(F.col("kind") == ACKNOWLEDGED, F.struct("receive.at", "receive.server"))
    reconstructed = F.when(is_reconstructed, F.struct("holder.at", F.col("holder.primary").alias("server")))
    notification = F.when(F.col("kind") == DSN, F.struct("notification.at", "notification.server"))
    lines = lines.withColumn("belongs", F.coalesce(acknowledged, reconstructed, notification))
    lines = lines.withColumns({"at": F.col("belongs.at"), "server": F.col("belongs.server")})
    is_earlier = F.filter("redirects", lambda row: (row["at"] <= F.col("at")) & (row["server"] == F.col("server")))
    previous_hop = F.regexp_extract("receive.custom_data", _SHADOW_AT, 1)
    redundant = _is_redundant()  # built once: each part of it is a call to the JVM
    other = F.coalesce(
        F.try_element_at(is_earlier, F.lit(-1))["to"], F.when(previous_hop != "", previous_hop), _named_shadow_server(redundant)
    )
    pair_server = F.when(F.col("kind") == ACKNOWLEDGED, other)
    is_delayed = F.col("receive.source_context").startswith(DELAYED) & (F.col("receive.format") == OWN_FORMAT)
    last_delivery_at = F.when(is_delayed, F.greatest("last_delivery_at", "at")).otherwise(F.col("last_delivery_at"))
    last_holder = F.coalesce("last_stay.server", "server")
    responsible = F.array_union(F.array(last_holder), F.transform("promotions", lambda row: row["server"]))
    return lines.select(
        "message", "internet_message_id", "kind", "at", "server",
        F.when(is_reconstructed, F.col("held.server")).otherwise(pair_server).alias("pair_server"),
        redundant.alias("is_redundant"),
        F.when(redundant.isNotNull(), F.coalesce(_reported_copies(), redundant.cast("long"))).alias("copies"),
        F.when(F.col("kind") == ACKNOWLEDGED, F.col("receive.shadow_us")).alias("shadow_us"),
        F.when(F.col("kind") == ACKNOWLEDGED, F.col("receive.ack_us")).alias("ack_us"),
        F.when(F.col("kind") == ACKNOWLEDGED, F.col("received_by")).otherwise(F.col("held_for")).alias("recipients"),
        _way(redundant, is_copied=F.size(is_earlier) > 0).alias("way"),
        F.when(F.col("last_delivery_at").isNotNull(), last_delivery_at).alias("last_delivery_at"),
        "redirects", "promotions", "holds", "sightings", "loads", "discarded_for_all_at", "discarded_for_all_of",
        "last_row.is_set_aside", "last_try_at", "first_deferred_at", "is_redirect_failed", "sender", "subject", "rows_count",
        F.array_max(F.transform(responsible, lambda server: instant_of_server(server, known))).alias("known_until"),
        F.when(F.col("kind") == ACKNOWLEDGED, F.col("receive.recipients_hash"))
        .otherwise(F.col("holder.recipients_hash"))
        .alias("addressed"),
        F.when(F.col("kind") == ACKNOWLEDGED, F.col("receive.internet_message_id"))
        .otherwise(F.col("holder.internet_message_id"))
        .alias("borne_id"),
        F.when(F.col("kind") == ACKNOWLEDGED, F.col("receive.client_hostname")).alias("client"),
        has_shared_fate(F.col("receive.custom_data"), F.col("receive.format")).alias("is_fate_shared"),
        "is_exchange", "seen_on",
        "is_moderated", "is_put_off", "safety_nets", "arrivals", "fails", "return_path",
        F.least("ended_for_all_at", F.when(~F.col("is_waiting"), F.col("decided_for_all_at"))).alias("ended_for_all_at"),
        _told_by_discards("discards_for_all", F.col("server")).alias("told_for_all_at"),
        (F.col("is_approved_for_all") & F.col("decided_for_all_at").isNull()).alias("is_approved_for_all"),
    )  # fmt: skip


def _gathered(rows: DataFrame) -> DataFrame:
    """The required data of a message's rows, in one aggregate."""
    is_held = is_event("HARECEIVE")
    is_released = is_event("HADISCARD") & ~is_told_delivered() & (F.col("source_context") == "released")
    is_own_end = is_own() & is_told_delivered()
    is_about_copy = (is_event("HARECEIVE", "HAREDIRECT", "HADISCARD") & (F.col("source") != KEPT) & ~is_own_end) | is_expired_copy()
    is_sighting = is_event("HADISCARD", "HAREDIRECT") | is_promotion()
    sighting = F.struct("at", F.when(is_event("HAREDIRECT"), F.col("server_hostname")).otherwise(F.col("server")).alias("server"))
    counts = ~has_shared_fate(F.col("custom_data"), F.col("format"))
    redirect = F.struct("at", "server", F.col("server_hostname").alias("to"), counts.alias("counts"))
    primary = F.when(is_held, F.col("client_hostname")).otherwise(F.col("reference"))
    is_untold = ~is_own() & F.col("silent_since").isNull()
    is_ending_all = ~is_own() & F.col("is_ending") & has_no_recipients()
    promotion = F.struct("at", "server", "reference", "reason", "silent_since", is_untold.alias("is_untold"))
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
        "internet_message_id",
        "source_context",
        "custom_data",
        "shadow_server",
    )
    lists = {
        "redirects": F.sort_array(_each(is_event("HAREDIRECT"), redirect)),
        "promotions": F.sort_array(_each(is_promotion(), promotion)),
        "holds": _each(is_held, F.struct("at", "server", F.col("client_hostname").alias("primary"))),
        "sightings": _each(is_sighting, sighting),
        "loads": _each(is_event("LOAD"), F.struct("at", "server")),
        "received_by": F.array_distinct(F.flatten(_each(is_event("RECEIVE"), F.col("recipients")))),
        "held_for": F.array_distinct(F.flatten(_each(is_held | is_promotion(), F.col("recipients")))),
        "holders": F.collect_set(F.when(is_held, F.col("server"))),
        "safety_nets": _each(does(SENDS_AGAIN) & (F.col("source") == "SAFETYNET"), F.col("at")),
        "arrivals": _each(is_acknowledgement() & ~is_own(), F.col("at")),
        "discarded_for_all_of": F.collect_set(F.when(is_told_delivered() & has_no_recipients(), F.col("client_hostname"))),
        "discards_for_all": _each(is_told_delivered() & has_no_recipients(), _discard()),
        "fails": F.sort_array(_each(~is_own() & is_event("FAIL"), F.col("at"))),
        "released_by": F.collect_set(F.when(is_released, F.col("server"))),
    }
    return rows.groupBy("message").agg(
        *[gathered.alias(name) for name, gathered in lists.items()],
        F.coalesce(F.max(F.when(~is_event("DSN"), F.col("internet_message_id"))), F.max("internet_message_id")).alias(
            "internet_message_id"
        ),
        F.min(F.when(is_acknowledgement(), receive)).alias("receive"),
        F.min(F.when(is_event("DSN"), F.struct("at", "server", is_own().alias("is_own")))).alias("notification"),
        F.min(F.when(is_held | is_promotion(), F.struct("at", primary.alias("primary"), "recipients_hash", "internet_message_id"))).alias(
            "holder"
        ),
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
        F.min(is_about_copy).alias("is_of_copies"),
        F.max(is_event("RESUBMIT")).alias("is_resubmitted"),
        F.max(is_from_safety_net()).alias("is_from_safety_net"),
        F.max(is_end() | is_told_delivered()).alias("is_ended"),
        F.count(F.when(F.col("source") != KEPT, 1)).alias("rows_count"),
        F.max(~is_own()).alias("is_exchange"),
        F.collect_set(F.when(~is_own() & ~does(BEGINS_COPY, ENDS_COPY), F.col("server"))).alias("seen_on"),
        F.max(does(WAITS, APPROVES)).alias("is_moderated"),
        F.max(~is_own() & is_event(*PUTTING_OFF)).alias("is_put_off"),
        F.min(F.when(is_ending_all & ~is_event(*DECISIONS), F.col("at"))).alias("ended_for_all_at"),
        F.min(F.when(is_ending_all & is_event(*DECISIONS), F.col("at"))).alias("decided_for_all_at"),
        F.max(does(WAITS)).alias("is_waiting"),
        F.max(does(APPROVES, GOES_ON) & has_no_recipients()).alias("is_approved_for_all"),
        F.max(F.when(is_event("RECEIVE"), F.col("return_path"))).alias("return_path"),
        F.max(F.when(is_acknowledgement() & ~is_own(), F.struct("at", "server"))).alias("last_stay"),
    )


def _discard() -> Column:
    return F.struct("at", F.col("client_hostname").alias("primary"), "is_of_logged")


def _told_by_discards(name: str, primary: Column) -> Column:
    """When the first discard says that the message is done with: not one whose primary server took the message over and has a log."""
    is_telling = F.filter(name, lambda each: ~each["is_of_logged"] | (each["primary"] == primary))
    return F.array_min(F.transform(is_telling, lambda each: each["at"]))


def _each(condition: Column, value: Column) -> Column:
    return F.collect_list(F.when(condition, value))


def _is_never_accepted(covered: Mapping[str, Sequence[tuple[int, int]]]) -> Column:
    """Whether there is nothing but copies, and their primary servers' logs, which are here and whole, have no receipt."""
    if not covered:
        return F.lit(False)
    times = F.from_json(F.lit(json.dumps(dict(covered))), "map<string,array<array<bigint>>>")

    def is_covered(hold: Column) -> Column:
        of_primary = F.try_element_at(times, hold["primary"])
        return F.coalesce(F.exists(of_primary, lambda time: (hold["at"] >= time[0]) & (hold["at"] <= time[1])), F.lit(False))

    return F.col("is_of_copies") & (F.size("holds") > 0) & F.forall("holds", is_covered)


def _kind(covered: Mapping[str, Sequence[tuple[int, int]]]) -> Column:
    is_all_released = F.size(F.array_except("holders", "released_by")) == 0
    is_released = (F.size("holders") > 0) & is_all_released & ~F.col("is_resubmitted") & ~F.col("is_ended")
    # Exchange: a DSN row after the RECEIVE is about this message, and no message of its own
    is_first = F.coalesce(F.col("notification.is_own") | (F.col("notification.at") <= F.col("receive.at")), F.lit(True))
    is_made_here = F.col("notification").isNotNull() & is_first
    begun_at = F.least("receive.at", "holder.at")
    is_from_before = F.coalesce(F.array_min("safety_nets") <= begun_at, F.lit(False))  # Exchange sends it again
    is_refused = ~F.col("is_received") & (F.col("is_redirect_failed") | is_released)
    return (
        F.when(is_made_here, DSN)
        .when(is_from_before, UNKNOWN)
        .when(F.col("receive").isNotNull(), ACKNOWLEDGED)
        .when(is_refused | _is_never_accepted(covered), REFUSED)
        .when(~F.col("is_received") & ~F.col("is_from_safety_net") & F.col("holder").isNotNull(), RECONSTRUCTED)
        .otherwise(UNKNOWN)
    )


def _is_redundant() -> Column:
    """Null if the logs do not show it, or if there is nobody for whom it could be lost."""
    is_copied_in_time = F.exists("redirects", lambda row: (row["at"] <= F.col("at")) & row["counts"])
    of_receive = (
        F.when(F.col("receive.format") == WITHOUT_REDUNDANCY_EVENTS, F.lit(None))
        .when((F.col("receive.format") != OWN_FORMAT) & (F.size("received_by") == 0), F.lit(None))
        .otherwise(F.coalesce(is_said_redundant(F.col("receive.replication"), F.col("receive.server")), is_copied_in_time))
    )
    return F.when(F.col("kind") == ACKNOWLEDGED, of_receive).when(F.col("kind") == RECONSTRUCTED, F.lit(True))


def _way(redundant: Column, *, is_copied: Column) -> Column:
    """Where the second copy was. Shapes: one of WAYS; null if there was none."""
    is_out_of_hand = (F.col("receive.source_context") == f"{DELAYED}done") & (F.col("receive.format") == OWN_FORMAT)
    of_receive = (
        F.when(is_out_of_hand, F.lit("next_hop"))
        .when(F.col("receive.custom_data").rlike(_SHADOW_AT) & ~is_copied, F.lit("previous_hop"))
        .otherwise(F.lit("shadow_server"))
    )
    of_copies = F.when(F.col("held.is_kept"), F.lit("previous_hop")).otherwise(F.lit("shadow_server"))
    return F.when(redundant, F.when(F.col("kind") == ACKNOWLEDGED, of_receive).otherwise(of_copies))


def _reported_copies() -> Column:
    return F.when(F.col("kind") == ACKNOWLEDGED, F.col("receive.copies"))


def _named_shadow_server(redundant: Column) -> Column:
    """Exchange: S:Replication names it, of which no HAREDIRECT is left."""
    is_named = (F.col("receive.format") != OWN_FORMAT) & F.coalesce(redundant, F.lit(False))
    return F.when(is_named & (F.col("receive.replication") != "Success"), F.nullif(F.col("receive.shadow_server"), F.lit("")))


# ---- recipients


def recipients(rows: DataFrame, lines: DataFrame, *, now: int, is_final: bool, expiration_us: int) -> DataFrame:
    """One line for each recipient in a message's rows. `is_named`: an original recipient, or a replacement of one. `is_unknown`: its time
    is up, but the logs about the message end earlier.

    Shapes: `rows` from `exact_rows`, `lines` from `timelines`; `deliveries` are the two earliest, (at, server). Units: microseconds.
    """
    held = is_event("HARECEIVE") | is_promotion()
    is_replaced = F.coalesce(F.array_contains("replaced", F.col("recipient")), F.lit(False))
    is_stepping_in = (is_replacement() & ~is_replaced) | does(ADDS, PUTS_OFF)
    is_redirected = is_replaced & is_event(*REDIRECTING)
    delivery = F.when(F.col("is_delivery"), F.struct("at", "server", "row_id"))
    of_recipient = (
        rows.where(
            is_event("RECEIVE")
            | held
            | is_end()
            | is_told_delivered()
            | is_replacement()
            | does(ADDS, PUTS_OFF, WAITS, APPROVES)
            | F.col("hop_to").isNotNull()
        )
        .withColumn("recipient", F.explode(F.array_union("recipients", F.coalesce("replaced", F.array().cast("array<string>")))))
        .groupBy("message", "recipient")
        .agg(
            F.max(is_event("RECEIVE") | is_stepping_in).alias("is_received"),
            F.max(held | is_stepping_in).alias("is_held"),
            F.min(F.when(is_end() | (is_replaced & ~is_redirected), F.col("at"))).alias("first_end_at"),
            F.min(F.when(is_redirected, F.col("at"))).alias("redirected_at"),
            F.max(F.coalesce(F.array_contains("kept", F.col("recipient")), F.lit(False))).alias("is_kept"),
            F.min(F.when(does(WAITS), F.col("at"))).alias("waits_at"),
            F.max(does(APPROVES, GOES_ON)).alias("is_approved"),
            F.min(F.when(is_told_delivered(), F.col("at"))).alias("discarded_at"),
            _each(is_told_delivered(), _discard()).alias("discards"),
            F.collect_set(F.when(is_told_delivered(), F.col("client_hostname"))).alias("discarded_of"),
            F.max(F.when(F.col("hop_to").isNotNull(), F.struct("at", F.col("hop_to").alias("server")))).alias("handed"),
            F.count(delivery).alias("deliveries_count"),
            F.slice(F.sort_array(F.collect_list(delivery)), 1, 2).alias("deliveries"),
        )
    )
    of_message = lines.select(
        "message", "kind", "told_for_all_at", "notified_at", "ended_for_all_at", "known_until", "is_approved_for_all",
        F.col("at").alias("acknowledged_at"), F.col("server").alias("primary"),
    )  # fmt: skip
    is_named = F.when(F.col("kind") == ACKNOWLEDGED, F.col("is_received")).otherwise(F.col("is_held"))
    joined = of_recipient.join(of_message, on="message", how="inner").withColumns({"end_at": _end_at(), "is_named": is_named})
    due_at = F.col("acknowledged_at") + expiration_us
    is_open = is_counted() & F.col("is_named") & F.col("end_at").isNull()
    is_up = F.lit(is_final) | F.coalesce(due_at <= F.col("known_until"), F.lit(False))
    return joined.select(
        "message", "recipient", "kind", "acknowledged_at", "primary", "is_named", "end_at", "deliveries_count", "deliveries",
        "discarded_at", "discarded_of", "handed",
        (is_open & is_up).alias("is_lost"), F.coalesce(due_at <= F.col("known_until"), F.lit(False)).alias("is_over"),
        (is_open & ~is_up & (due_at <= now)).alias("is_unknown"),
        (is_counted() & (F.col("deliveries_count") > 1)).alias("is_duplicated"),
    )  # fmt: skip


def _end_at() -> Column:
    by_shadow_server = F.when(F.col("kind") == RECONSTRUCTED, F.least(_told_by_discards("discards", F.col("primary")), "told_for_all_at"))
    redirected_at = F.when(~F.col("is_kept"), F.col("redirected_at"))
    waits_at = F.when(~F.col("is_approved") & ~F.col("is_approved_for_all"), F.col("waits_at"))
    return F.coalesce(F.least("first_end_at", by_shadow_server, redirected_at, waits_at, "ended_for_all_at"), F.col("notified_at"))


def ends(recipients: DataFrame) -> DataFrame:
    """One line per message: number of recipients, of lost ones and of duplicates, when it was done (null: it is not), and when the last
    recipient had it for the first time."""
    is_named = F.col("is_named")
    is_open = is_named & F.col("end_at").isNull()
    counted = recipients.groupBy("message").agg(
        F.count(F.when(is_named, 1)).alias("recipients_count"),
        F.count(F.when(is_open, 1)).alias("open_count"),
        F.max(F.when(is_named, F.col("end_at"))).alias("last_end_at"),
        F.count(F.when(F.col("is_lost"), 1)).alias("lost"),
        F.count(F.when(F.col("is_duplicated"), 1)).alias("duplicated"),
        F.max(F.try_element_at("deliveries", F.lit(1))["at"]).alias("all_delivered_at"),
    )
    done_at = F.when(F.col("open_count") == 0, F.col("last_end_at"))
    return counted.select("message", "recipients_count", "lost", "duplicated", "all_delivered_at", done_at.alias("done_at"))


# ---- copies


def copies(rows: DataFrame, lines: DataFrame, handled: DataFrame | None = None) -> DataFrame:
    """One line per copy: of our own, for each message and shadow server; of Exchange, for each primary server that had it there.

    `lag_us` is null if the message is not done, the copy was not discarded as delivered, or the message is reconstructed, because then only
    the discard shows that it was done. It may be negative.

    Shapes: `rows` from `exact_rows`; `lines` have message, kind, recipients (all its own) and `done_at`; `handled` from
    `exchange.handled`, None without logs of Exchange.
    """
    is_discard, is_held = is_event("HADISCARD"), is_event("HARECEIVE")
    is_about = is_held | is_discard | is_promotion() | is_expired_copy() | is_event("SEND", "SENDEXTERNAL")
    by_server = rows.where(is_about).groupBy("message", "server")
    held = by_server.agg(
        F.sort_array(_each(is_held, F.struct("at", F.col("client_hostname").alias("primary"), "source", is_own().alias("is_own")))).alias(
            "holds"
        ),
        _each(is_discard, F.struct("at", F.col("client_hostname").alias("primary"), is_told_delivered().alias("is_told"))).alias(
            "discards"
        ),
        F.max(is_discard & has_no_recipients()).alias("is_discarded_for_all"),
        F.array_distinct(F.flatten(F.collect_list(F.when(is_discard, F.col("recipients"))))).alias("discarded_for"),
        F.max(is_promotion()).alias("is_promoted"),
        F.max(is_expired_copy()).alias("is_expired"),
        F.collect_set(F.when(is_event("SEND", "SENDEXTERNAL") & ~has_no_recipients(), F.col("server_hostname"))).alias("sent_to"),
    )
    first = F.col("holds")[0]
    held = held.where(F.size("holds") > 0).withColumn("is_own", first["is_own"])
    primaries = F.array_distinct(F.transform("holds", lambda hold: hold["primary"]))
    held = held.withColumn("primaries", primaries)
    held = held.withColumn("primary", F.explode(F.when(F.col("is_own"), F.array(first["primary"])).otherwise(F.col("primaries"))))
    is_all = F.col("is_own")
    of_primary = F.filter("holds", lambda hold: is_all | (hold["primary"] == F.col("primary")))

    def is_of_copy(discard: Column) -> Column:
        is_of_none = ~F.array_contains(F.col("primaries"), discard["primary"])
        return is_all | is_of_none | (discard["primary"] == F.col("primary"))

    held = held.withColumns({"holds": of_primary, "discards": F.filter("discards", is_of_copy)})
    last_hold_at = F.element_at("holds", -1)["at"]
    told = F.array_max(F.transform(F.filter("discards", lambda each: each["is_told"]), lambda each: each["at"]))
    held = held.withColumns({"told_at": told, "since": F.when(F.size("holds") > 1, last_hold_at)})
    joined = held.join(lines.select("message", "kind", "recipients", "done_at"), on="message", how="inner")
    ended_at = F.col("done_at")
    if handled is not None:
        joined = joined.join(hops_done(held.where(~F.col("is_own")), handled), on=["message", "server", "primary"], how="left")
        ended_at = F.when(F.col("is_own"), F.col("done_at")).otherwise(F.col("hop_done_at"))
    is_for_all = F.col("is_discarded_for_all") | (F.size(F.array_except("recipients", "discarded_for")) == 0)
    is_told_after = F.coalesce(F.col("since").isNull() | (F.col("told_at") >= F.col("since")), F.lit(False))
    is_discarded = F.when(F.col("is_own"), is_for_all).otherwise(is_told_after)
    return joined.select(
        "message", "server", "primary", first["at"].alias("at"),
        ((F.size("discards") > 0) & is_discarded).alias("is_discarded"),
        "is_promoted", "is_expired", (first["source"] == KEPT).alias("is_kept"),
        (F.size(F.array_remove("sent_to", F.col("primary"))) > 0).alias("is_rerouted"), F.col("told_at").alias("discarded_at"),
        F.when(F.col("kind") != RECONSTRUCTED, F.col("told_at") - ended_at).alias("lag_us"),
    )  # fmt: skip
