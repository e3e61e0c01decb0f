"""Finds incidents: duplicates, losses and orphans with their causes, exposures, and takeovers. docs/sla.md, 3 and 4.

Exact, because few messages have any. A duplicate is a recipient that got a message twice, a loss one that never got it, an orphan a copy
that was neither discarded nor promoted. An exposure is a time in which an acknowledged, unfinished message had fewer than two copies. A
takeover is all that one shadow server promoted for a lost primary.
"""

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from shadowrelay.sla.figures.exact import is_counted
from shadowrelay.sla.figures.rows import instant_of_server, is_event, is_own, is_promotion
from shadowrelay.sla.objectives import COPIES_GONE, END_UNTOLD, FURTHER_HOP, LOG_ENDS, NO_END, NOT_SEEN, NOT_TAKEN_OVER, NOT_TOLD

# ---- duplicates, losses, orphans

LEFT_AT_END = "left when the log ends"
DATABASE_LOST = ("DatabaseChanged", "DatabaseRolledBack")
UNEXPLAINED = "unexplained"
TAKEN_OVER, SAFETY_NET, RECEIVED_AGAIN = "taken over", "Safety Net", "received again"


def duplicates(recipients: DataFrame, lines: DataFrame, *, together_us: int) -> DataFrame:
    """One line for each recipient with more than one delivery of an acknowledged message.

    Shapes: `recipients` and `lines` as from `exact.recipients` and `exact.timelines`. Units: microseconds; `together_us`: span + heartbeat.
    """
    twice = recipients.where(F.col("is_duplicated")).join(
        lines.select("message", "promotions", "loads", "safety_nets", "arrivals", "is_exchange", "sender", "subject"),
        on="message",
        how="inner",
    )
    twice = twice.withColumns({"first": F.col("deliveries")[0], "later": F.col("deliveries")[1]})
    first, later = F.col("first.server"), F.col("later.server")
    twice = twice.withColumn("chained", F.concat(_chains(first, later), _chains(later, first)))
    return twice.select(
        "message", "recipient", F.col("deliveries_count").alias("count"), _cause_of_duplicate(together_us).alias("cause"),
        F.col("first.server").alias("first_server"), F.col("first.at").alias("first_at"),
        F.col("later.server").alias("later_server"), F.col("later.at").alias("later_at"), "sender", "subject",
    )  # fmt: skip


def _chains(one: Column, other: Column) -> Column:
    """The promotions by which mail of `one` came to `other`, directly or over others: each promoted from the server of the one before."""
    promotions = F.col("promotions")

    def reached(begin: Column, step: Callable[[Column], Column], end: Callable[[Column], Column]) -> Column:
        def again(found: Column, _: Column) -> Column:
            return F.array_union(found, F.transform(F.filter(promotions, lambda row: F.array_contains(found, step(row))), end))

        return F.aggregate(promotions, F.array(begin), again)  # as many steps as promotions: no chain is longer

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

    def has_other_successor(one: Column) -> Column:
        return F.exists(
            "promotions",
            lambda other: (
                (other["server"] == F.col("later.server"))
                & (one["reference"] == other["reference"])
                & (F.abs(one["at"] - other["at"]) <= together_us)
            ),
        )

    has_two_failed = F.exists("promotions", lambda row: is_between(row) & is_together(row))
    are_both_successors = (F.col("first.server") != F.col("later.server")) & F.exists(
        "promotions", lambda row: (row["server"] == F.col("first.server")) & has_other_successor(row)
    )
    is_disk_lost = F.exists("chained", lambda row: row["reason"].isin(*DATABASE_LOST))
    is_cut_off = F.exists("chained", lambda row: row["reason"] == "Silence")
    is_loaded_again = F.exists("loads", lambda row: is_between(row) & (row["server"] == F.col("first.server")))
    is_handed_over = F.exists("promotions", lambda row: row["reason"] == "Handover")
    return (
        F.when(has_two_failed | are_both_successors, "d")
        .when(is_disk_lost, "b")
        .when(is_cut_off, "c")
        .when(is_loaded_again | is_handed_over, "a")
        .when(F.col("is_exchange"), _cause_in_exchange())
        .otherwise(UNEXPLAINED)
    )


def _cause_in_exchange() -> Column:
    """Exchange logs no reason of a takeover, and delivers on whichever server has the mailbox."""
    later_at = F.col("later.at")
    return (
        F.when(F.exists("promotions", lambda row: row["at"] <= later_at), TAKEN_OVER)
        .when(F.exists("loads", lambda row: (F.col("first.at") <= row["at"]) & (row["at"] <= later_at)), "a")
        .when(F.exists("safety_nets", lambda at: at <= later_at), SAFETY_NET)
        .when(F.exists("arrivals", lambda at: (F.col("first.at") < at) & (at <= later_at)), RECEIVED_AGAIN)
        .otherwise(NOT_TOLD)
    )


def losses(recipients: DataFrame, lines: DataFrame, log_ends: Mapping[str, int | None], *, expiration_us: int) -> DataFrame:
    """One line for each recipient that was lost, or of which nobody knows whether it was (`LOG_ENDS`). `server`: who acknowledged it; of
    Exchange, who had it last, by the last hop or takeover.

    Shapes: `log_ends`: last row of each server's log. Units: microseconds.
    """
    of_message = lines.select(
        "message",
        "server",
        "promotions",
        "holds",
        "is_set_aside",
        "last_try_at",
        "discarded_for_all_at",
        "discarded_for_all_of",
        "is_exchange",
        "seen_on",
        "sender",
        "subject",
    )
    lost = recipients.where(F.col("is_lost") | F.col("is_unknown")).join(of_message, on="message", how="inner")
    lost = lost.withColumn("last_at", instant_of_server(F.col("server"), with_rows(log_ends)))
    taken = F.transform("promotions", lambda row: F.struct(row["at"].alias("at"), row["server"].alias("server")))
    last = F.when(F.col("is_exchange"), F.array_max(F.concat(F.array("handed"), taken))["server"])
    return lost.withColumn("server", F.coalesce(last, "server")).select(
        "message",
        "recipient",
        "acknowledged_at",
        "server",
        _cause_of_loss(with_rows(log_ends), expiration_us).alias("cause"),
        "sender",
        "subject",
    )


def with_rows(log_ends: Mapping[str, int | None]) -> dict[str, int]:
    """The ends of logs that have a row."""
    return {server: at for server, at in log_ends.items() if at is not None}


def _cause_of_loss(log_ends: Mapping[str, int], expiration_us: int) -> Column:
    due_at = F.col("acknowledged_at") + expiration_us
    is_discarded = F.col("discarded_at").isNotNull() | F.col("discarded_for_all_at").isNotNull()
    discarded_of = F.concat("discarded_of", "discarded_for_all_of")
    is_done_with = F.array_contains(discarded_of, F.col("server")) | F.array_contains(discarded_of, "")
    is_log_over = F.col("last_at").isNull() | (F.col("last_at") < due_at)
    is_gone = (F.size("promotions") == 0) & is_log_over
    is_still_held = F.exists("holds", lambda row: F.coalesce(instant_of_server(row["server"], log_ends) >= due_at, F.lit(False)))
    return (
        F.when(F.col("is_unknown"), LOG_ENDS)
        .when(F.col("is_set_aside"), "set aside")
        .when(F.col("is_exchange") & ~F.col("is_over"), NO_END)
        .when(F.coalesce(~F.array_contains("seen_on", F.col("handed.server")), F.lit(False)), NOT_SEEN)
        .when(F.col("is_exchange") & is_done_with, END_UNTOLD)
        .when(~F.col("is_exchange") & is_discarded, "discarded without delivery")
        .when(is_gone & is_still_held, NOT_TAKEN_OVER)
        .when(is_gone, COPIES_GONE)
        .when(F.col("last_try_at") >= due_at, "still queued")
        .otherwise("no trace")
    )


def orphans(
    copies: DataFrame, log_ends: Mapping[str, int | None], known: Mapping[str, int], *, now: int, is_final: bool, hold_us: int
) -> DataFrame:
    """Copies neither discarded nor promoted although their time is up, with the cause; also those of which nobody knows it (`LOG_ENDS`).

    Shapes: `log_ends`: last row of each server's log; `known` as from `exact.known_until`. Units: microseconds; `hold_us` is
    safety_net_hold_time + message_expiration_timeout.
    """
    due_at = F.col("at") + hold_us
    known_until = instant_of_server(F.col("server"), known)
    is_up = F.lit(is_final) | F.coalesce(due_at <= known_until, F.lit(False))
    left = copies.where(~F.col("is_discarded") & ~F.col("is_promoted") & (is_up | (due_at <= now)))
    last_at = instant_of_server(F.col("server"), with_rows(log_ends))
    cause = (
        F.when(F.col("is_expired"), "expired")
        .when(~is_up, LOG_ENDS)
        .when(last_at.isNull() | ((last_at < due_at) & F.coalesce(due_at <= known_until, F.lit(False))), "log missing")
        .when(last_at < due_at, LEFT_AT_END)
        .otherwise("never told")
    )
    return left.select("message", "server", "primary", "at", cause.alias("cause"))


# ---- exposures

NO_COPY, HOLDER_LOST = "no copy at acknowledgement", "holder lost"
SHARED_FATE = "copy only on a shared fate"


def exposures(lines: DataFrame, stays: DataFrame | None = None, *, now: int) -> DataFrame:
    """One line per interval; overlapping intervals are merged, empty ones dropped. An open one lasts until the log of its server ends.

    Shapes: `lines` as from `timelines`, with `done_at`; `stays` as from `exchange.bare_stays`. Units: microseconds.
    """
    begun = lines.where(is_counted()).select(
        "message",
        "server",
        "at",
        "done_at",
        "known_until",
        "redirects",
        "is_fate_shared",
        F.explode(F.array_distinct(_beginnings())).alias("beginning"),
    )
    began_at = F.col("beginning.began_at")
    later = F.filter("redirects", lambda row: (row["at"] > F.col("beginning.began_at")) & row["counts"])
    over_at = F.least(F.try_element_at(later, F.lit(1))["at"], F.col("done_at"))
    parts = begun.select(
        "message", "server", "at", began_at.alias("began_at"), F.coalesce(over_at, "known_until", F.lit(now)).alias("ended_at"),
        over_at.isNull().alias("is_open"), F.col("beginning.is_holder_lost").alias("is_holder_lost"),
        F.coalesce("is_fate_shared", F.lit(False)).alias("is_fate_shared"), F.lit(False).alias("is_further"),
    )  # fmt: skip
    if stays is not None:
        ended_at = F.coalesce("over_at", "known_until", F.lit(now))
        of_stays = stays.select(
            "message", "server", "at", "began_at", ended_at.alias("ended_at"), F.col("over_at").isNull().alias("is_open"),
            F.lit(False).alias("is_holder_lost"), F.lit(False).alias("is_fate_shared"), "is_further",
        )  # fmt: skip
        parts = parts.unionByName(of_stays)
    return _united(parts.where(F.col("ended_at") > F.col("began_at")))


def _beginnings() -> Column:
    """(began_at, is_holder_lost) of a message: RECEIVE without a copy, and the last sign of life of each lost holder."""
    without_copy = F.array(F.struct(F.col("at").alias("began_at"), F.lit(False).alias("is_holder_lost")))
    is_last = F.filter("promotions", lambda row: row["silent_since"].isNotNull() & ~_has_outlived(row))
    holders_lost = F.transform(
        is_last, lambda row: F.struct(F.greatest(row["silent_since"], F.col("at")).alias("began_at"), F.lit(True).alias("is_holder_lost"))
    )
    # of Exchange, each stay without a copy is exposure of its own: `stays`
    return F.when((F.col("copies") == 0) & ~F.col("is_exchange"), F.concat(without_copy, holders_lost)).otherwise(holders_lost)


def is_exposure_untold() -> Column:
    """Whether a takeover by Exchange came before the message was done: since when the lost server was silent is not logged, and so not for
    how long there was one copy. Shapes: of a line of `exact.timelines` with `done_at`."""
    is_open = F.col("done_at").isNull()
    return F.exists("promotions", lambda row: row["is_untold"] & (is_open | (row["at"] < F.col("done_at"))))


def _has_outlived(promotion: Column) -> Column:
    """Whether another copy outlived the loss that this promotion reports: docs/sla.md, 3, "another copy outlived"."""
    lost = F.transform(F.filter("promotions", lambda row: row["at"] <= promotion["at"]), lambda row: row["reference"])

    def is_outliving(held: Column) -> Column:
        is_other = (held["server"] != promotion["server"]) & (held["server"] != promotion["reference"])
        is_from_lost = F.forall("holds", lambda row: (row["server"] != held["server"]) | F.array_contains(lost, row["primary"]))
        is_seen = F.exists("sightings", lambda row: (row["server"] == held["server"]) & (row["at"] > promotion["silent_since"]))
        return is_other & is_from_lost & is_seen

    return F.exists("holds", is_outliving)


def _united(parts: DataFrame) -> DataFrame:
    in_order = Window.partitionBy("message").orderBy("began_at", "is_holder_lost", "ended_at")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    until_here = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    parts = parts.withColumn("ended_before", F.max("ended_at").over(before))
    is_new = F.col("ended_before").isNull() | (F.col("began_at") >= F.col("ended_before"))
    parts = parts.withColumn("number", F.sum(is_new.cast("long")).over(until_here))
    united = parts.groupBy("message", "at", "number").agg(
        F.min(F.struct("began_at", "is_holder_lost", "server", "is_fate_shared", "is_further")).alias("beginning"),
        F.max("ended_at").alias("ended_at"),
        F.max("is_open").alias("is_open"),
    )
    without_copy = (
        F.when(F.col("beginning.is_fate_shared"), SHARED_FATE).when(F.col("beginning.is_further"), FURTHER_HOP).otherwise(NO_COPY)
    )
    cause = F.when(F.col("beginning.is_holder_lost"), HOLDER_LOST).otherwise(without_copy)
    return united.select(
        "message", "beginning.server", "beginning.began_at", "ended_at",
        (F.col("ended_at") - F.col("beginning.began_at")).alias("exposed_us"), "is_open", cause.alias("cause"),
    )  # fmt: skip


def exposures_by_message(exposures: DataFrame) -> DataFrame:
    """One line for each message that was exposed."""
    return exposures.groupBy("message").agg(
        F.count(F.lit(1)).alias("exposure_count"),
        F.sum("exposed_us").alias("exposure_us"),
        F.max("exposed_us").alias("exposure_max_us"),
    )


# ---- takeovers

KEY = ("new_primary", "old_primary", "reason", "detected_at")


def promotions(rows: DataFrame, *, span_us: int, heartbeat_us: int) -> DataFrame:
    """One line per RESUBMIT row of source REDUNDANCY. `is_in_time` is null if the row has no times (Exchange). Units: microseconds."""
    taken = rows.where(is_promotion()).select(
        "message",
        "at",
        F.col("server").alias("new_primary"),
        F.col("reference").alias("old_primary"),
        "reason",
        "silent_since",
        "detected_at",
    )
    in_time = F.when(F.col("reason") == "Silence", F.col("at") <= F.col("silent_since") + span_us + heartbeat_us).otherwise(
        F.col("at") <= F.col("detected_at") + heartbeat_us
    )
    return taken.select(
        "message", "at", *KEY, "silent_since",
        (F.col("at") - F.col("detected_at")).alias("detection_us"),
        (F.col("at") - F.col("silent_since")).alias("silence_us"),
        in_time.alias("is_in_time"),
    )  # fmt: skip


def takeovers(promotions: DataFrame, ends: DataFrame) -> DataFrame:
    """One line per takeover, without the return of the old primary. `in_time` counts messages without a late RESUBMIT row; null if the rows
    have no times (Exchange), because unknown does not mean late.

    Shapes: `ends` has message and `done_at`.
    """
    by_message = promotions.groupBy(*KEY, "message").agg(
        F.min("silent_since").alias("silent_since"),
        F.min("at").alias("first_resubmit_at"),
        F.max("at").alias("last_resubmit_at"),
        F.when(F.count("is_in_time") == F.count(F.lit(1)), F.min("is_in_time")).alias("is_in_time"),
    )
    by_message = by_message.join(ends.select("message", "done_at"), on="message", how="left")
    taken = by_message.groupBy(*KEY).agg(
        F.min("silent_since").alias("silent_since"),
        F.min("first_resubmit_at").alias("first_resubmit_at"),
        F.max("last_resubmit_at").alias("last_resubmit_at"),
        F.count(F.lit(1)).alias("messages"),
        F.count(F.when(F.col("done_at").isNull(), 1)).alias("open_count"),
        F.max("done_at").alias("last_done_at"),
        F.when(F.count("is_in_time") == F.count(F.lit(1)), F.count(F.when(F.col("is_in_time"), 1))).alias("in_time"),
    )
    delivered_at = F.when(F.col("open_count") == 0, F.col("last_done_at"))
    return taken.withColumn("delivered_at", delivered_at).drop("open_count", "last_done_at")


def with_return(takeovers: DataFrame, events: DataFrame) -> DataFrame:
    """Add what the logs tell of the old primary around the takeover: `seen_at`, its last row while it was silent; `returned_at`, its first
    row after the takeover's first RESUBMIT; `in_touch_at`, the first copy that went between the two servers after that.

    Shapes: `events` as stored, all of them: only five columns of these servers' rows are read.
    """
    ends = F.array(
        F.struct(F.col("old_primary").alias("server"), F.col("new_primary").alias("other"), F.lit(True).alias("is_old")),
        F.struct(F.col("new_primary").alias("server"), F.col("old_primary").alias("other"), F.lit(False).alias("is_old")),
    )
    asked = takeovers.select(*KEY, "silent_since", "first_resubmit_at", F.inline(ends))
    is_copy = is_event("HARECEIVE") & is_own()
    logged = events.select("server", F.unix_micros("at").alias("logged_at"), F.when(is_copy, F.col("client_hostname")).alias("copy_of"))
    is_in_touch = F.coalesce(F.col("copy_of") == F.col("other"), F.lit(False))
    is_after = F.col("logged_at") > F.col("first_resubmit_at")
    is_while_silent = (F.col("logged_at") > F.col("silent_since")) & ~is_after
    found = (
        logged.join(F.broadcast(asked), on="server", how="inner")
        .where(F.col("is_old") | is_in_touch)
        .groupBy(*KEY)
        .agg(
            F.max(F.when(F.col("is_old") & is_while_silent, F.col("logged_at"))).alias("seen_at"),
            F.min(F.when(F.col("is_old") & is_after, F.col("logged_at"))).alias("returned_at"),
            F.min(F.when(is_in_touch & is_after, F.col("logged_at"))).alias("in_touch_at"),
        )
    )
    is_same = [F.col(f"taken.{name}").eqNullSafe(F.col(f"found.{name}")) for name in KEY]
    joined = takeovers.alias("taken").join(found.alias("found"), on=is_same, how="left")
    return joined.select("taken.*", "found.seen_at", "found.returned_at", "found.in_touch_at")
