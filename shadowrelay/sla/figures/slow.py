"""Which messages missed a speed target, and why: the next hop or a lost server, apart from our own delay. docs/sla.md, 4."""

from collections.abc import Collection
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures.counting import DELIVERY_US, Within
from shadowrelay.sla.figures.evidence import Evidence

NEXT_HOP_DOWN = "next hop was down"
SERVER_LOST = "server lost or cut off"
BOTH = f"{NEXT_HOP_DOWN} and {SERVER_LOST}"
NO_COPY_TAKEN = "a server took no copy"
OWN = "our own delay"
APPROVAL, PUT_OFF, WITHIN_EXCHANGE = "waited for approval", "put off by Exchange", "delay within Exchange"
SILENCE = "Silence"
DELIVERY, COPY = "delivery_latency", "shadow_latency"
COLUMNS = ("objective", "message", "server", "other", "at", "slow_us", "cause")


def slow(
    found: Evidence, takeovers: DataFrame, sites: DataFrame, *, within: Within, now: int, of_exchange: Collection[str] = ()
) -> DataFrame:
    """One line for each event that missed the time of its objective.

    Shapes: `takeovers` are all of them, also if `found` is of an interval; `sites` is small: server, site, boundary; `of_exchange`:
    servers whose delays are none of ours. Units: microseconds.
    """
    places = F.broadcast(sites.select("server", "boundary"))
    outages = F.broadcast(_outages(takeovers, places, heartbeat_us=within.lag_us, now=now))
    parts = [
        _messages(found, outages, places, within),
        _discards(found, outages, within.lag_us, of_exchange),
        _takeovers(found, outages),
    ]
    return reduce(DataFrame.unionByName, parts).select(*COLUMNS)


def _messages(found: Evidence, outages: DataFrame, places: DataFrame, within: Within) -> DataFrame:
    """What was delivered late, and what was copied late: in one look at all messages."""
    is_delivery = F.col("objective") == DELIVERY
    objectives = F.expr(
        f"array(named_struct('objective', '{DELIVERY}', 'us', {DELIVERY_US}), named_struct('objective', '{COPY}', 'us', shadow_us))"
    )
    limit = F.when(is_delivery, within.delivery_us).otherwise(within.shadow_us)
    is_late = (F.expr(DELIVERY_US) > within.delivery_us) | (F.col("shadow_us") > within.shadow_us)
    late = found.messages.where(F.coalesce(is_late, F.lit(False))).select("*", F.inline(objectives).alias("objective", "slow_us"))
    told = found.lines.select(
        "message", F.try_element_at("promotions", F.lit(1))["at"].alias("promoted_at"), "is_exchange", "is_moderated", "is_put_off",
        "is_redirect_failed",
    )  # fmt: skip
    joined = late.where(F.col("slow_us") > limit).join(told, on="message", how="left").join(places, on="server", how="left")
    cause = F.when(is_delivery, _cause_of_delivery()).otherwise(_cause_of_copy())
    other = F.when(is_delivery, "").otherwise(F.coalesce("pair_server", F.lit("")))
    return joined.crossJoin(outages).withColumns({"other": other, "cause": cause}).select(*COLUMNS)


def _cause_of_delivery() -> Column:
    is_deferred = F.coalesce(F.col("first_deferred_at") <= F.col("last_delivery_at"), F.lit(False))
    is_promoted = F.coalesce(F.col("promoted_at") <= F.col("last_delivery_at"), F.lit(False))
    of_exchange = F.when(F.col("is_put_off"), PUT_OFF).otherwise(WITHIN_EXCHANGE)
    return (
        F.when(F.col("is_moderated"), APPROVAL)
        .when(is_deferred & is_promoted, BOTH)
        .when(is_deferred, NEXT_HOP_DOWN)
        .when(is_promoted, SERVER_LOST)
        .when(F.col("is_exchange"), of_exchange)
        .otherwise(OWN)
    )


def _cause_of_copy() -> Column:
    """Attempts may have gone to a server of the boundary that was out, before another took the copy. After its takeover few do."""
    boundary = F.coalesce("boundary", F.lit(""))
    began_at = F.col("at") - F.col("slow_us")

    def is_meant(outage: Column) -> Column:
        return (outage["boundary"] == boundary) & _do_overlap(outage, began_at, F.col("at")) & (began_at <= outage["tried_until"])

    was_out = F.exists("outages", is_meant)
    return F.when(F.col("is_redirect_failed"), NO_COPY_TAKEN).when(was_out, SERVER_LOST).otherwise(OWN)


def _discards(found: Evidence, outages: DataFrame, within_us: int, of_exchange: Collection[str]) -> DataFrame:
    late = found.copies.withColumn("slow_us", F.col("lag_us")).where(F.col("slow_us") > within_us).crossJoin(outages)
    was_out = _was_out(F.col("discarded_at") - F.col("lag_us"), F.col("discarded_at"), F.col("server"), F.col("primary"))
    is_of_exchange = F.col("server").isin(*of_exchange)
    late = late.withColumn("at", F.col("discarded_at"))  # of a copy it is when it was made, with which nothing was wrong
    return _lines(late, "discard_lag", F.col("primary"), F.when(was_out, SERVER_LOST).when(is_of_exchange, WITHIN_EXCHANGE).otherwise(OWN))


def _takeovers(found: Evidence, outages: DataFrame) -> DataFrame:
    elapsed = F.when(F.col("reason") == "Silence", F.col("silence_us")).otherwise(F.col("detection_us"))
    late = found.promotions.where(~F.col("is_in_time")).withColumn("slow_us", elapsed).crossJoin(outages)
    was_out = _was_out(F.col("at") - F.col("slow_us"), F.col("at"), F.col("new_primary"))
    late = late.withColumn("server", F.col("new_primary"))
    return _lines(late, "takeover", F.col("old_primary"), F.when(was_out, SERVER_LOST).otherwise(OWN))


def _lines(late: DataFrame, objective: str, other: Column, cause: Column) -> DataFrame:
    named = {"objective": F.lit(objective), "other": other, "cause": cause}
    return late.withColumns(named).select(*COLUMNS)


def _outages(takeovers: DataFrame, places: DataFrame, *, heartbeat_us: int, now: int) -> DataFrame:
    """One line, with when each server that was taken over was out: until it returned or, if it had been running, until it was in touch
    again; `tried_until`: until when servers sent it copies. There are few takeovers."""
    was_running = F.coalesce((F.col("reason") == SILENCE) & (F.col("seen_at") > F.col("silent_since") + heartbeat_us), F.lit(False))
    outage = F.struct(
        F.col("old_primary").alias("server"),
        F.coalesce("boundary", F.lit("")).alias("boundary"),
        F.coalesce("silent_since", "first_resubmit_at").alias("since"),
        F.coalesce(F.when(was_running, F.col("in_touch_at")).otherwise(F.col("returned_at")), F.lit(now)).alias("until"),
        (F.col("last_resubmit_at") + heartbeat_us).alias("tried_until"),
    )
    placed = takeovers.join(places.withColumnRenamed("server", "old_primary"), on="old_primary", how="left")
    return placed.agg(F.collect_list(outage).alias("outages"))


def _was_out(since: Column, until: Column, *servers: Column) -> Column:
    def is_meant(outage: Column) -> Column:
        is_server = reduce(Column.__or__, [outage["server"] == server for server in servers])
        return is_server & _do_overlap(outage, since, until)

    return F.exists("outages", is_meant)


def _do_overlap(outage: Column, since: Column, until: Column) -> Column:
    return (outage["since"] <= until) & (outage["until"] >= since)
