"""Finds the plain messages, which are most messages, and the data for their figures, in one aggregate over all events. docs/sla.md, 2.

Nearly all mail is *plain*: acknowledged once with all its copies, deferred once at most, delivered once to every recipient, discarded once
on each shadow server, nothing else. A few longs show whether a message is plain and hold the data for its figures: how many rows of which
kind, when, and sums of hashes of names, which are equal if the names are. Spark's hash aggregate updates longs in place; texts or lists in
an aggregate would sort all rows instead, which takes many times as long. Other messages are judged row by row (`exact`), which gives the
same figures for a plain message (tests/sla/figures/test_report.py). A repeated row makes its message odd, because every row of a plain
message is accounted for.

A message that a client may have sent again is odd, too, and so is the one that it repeats: what of them was delivered twice only their rows
show.
"""

from collections.abc import Collection
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from shadowrelay.sla.figures.exact import ACKNOWLEDGED
from shadowrelay.sla.figures.rows import (
    is_acknowledgement,
    is_deferred_by_next_hop,
    is_event,
    is_own,
    is_promotion,
    is_relayed_and_kept,
    is_told_delivered,
)

HASH_BITS = 48  # of a recipient's 64, so that the sum over a plain message's rows cannot overflow
ROWS_MAX = 2**12  # of a plain message, so that its counts of 12 bits each have no carry
RECEIVE, REDIRECT, HOLD, DISCARD, ODD, DEFER = (1 << (12 * place) for place in range(6))  # of DEFER there is room for seven
COPIES_MAX = 3  # of a plain message
COPY_SHAPE = REDIRECT | HOLD | DISCARD
ODD_BROADCAST_MAX = 1_000_000  # messages: about 100 MB per executor. More are joined by sorting all events: slow, but bounded memory
COLUMNS = (
    "at", "event", "source", "message", "internet_message_id", "client_hostname", "server_hostname", "source_context", "reference",
    "recipient_count", "recipients_hash", "replication", "copies", "ack_us", "shadow_us", "format", "server",
)  # fmt: skip

SEEN = (
    "copies", "received_at", "held_at", "sent_at", "discarded_at", "first_deferred_at", "shadow_us", "ack_us", "recipients_count",
    "rows_count",
)  # fmt: skip


def first_pass(events: DataFrame, names: DataFrame, logged: Collection[str]) -> DataFrame:
    """One line per message, with `is_plain`; for the others only `message` is valid.

    Shapes: `events` as stored, with repeats; `names` is small: (name_hash, name) of the servers, from `server_names`; `logged`: servers
    with a log.
    """
    seen = _summed(events, logged).withColumns({"is_plain": _is_plain(), "copies_count": _copies_count()})
    seen = seen.select(
        "message", "copies_count", "server_hash", "shadow_hash", *SEEN, (F.col("is_plain") & ~_may_be_repeated()).alias("is_plain")
    )
    primary = F.broadcast(names.select(F.col("name_hash").alias("server_hash"), F.col("name").alias("server")))
    shadow = F.broadcast(names.select(F.col("name_hash").alias("shadow_hash"), F.col("name").alias("pair_server")))
    seen = seen.join(primary, on="server_hash", how="left").join(shadow, on="shadow_hash", how="left")
    is_known = F.col("server").isNotNull() & F.col("pair_server").isNotNull()
    return seen.select("message", (F.col("is_plain") & is_known).alias("is_plain"), "copies_count", *SEEN, "server", "pair_server")


def _may_be_repeated() -> Column:
    """Whether another message bears its internet message id and its recipients, both of clients (docs/sla.md, 3), or may do so: the rows of
    an odd message may name several lists of recipients, and which of them counts `exact` tells."""
    is_of_client = F.col("internet_id").isNotNull() & F.col("addressed").isNotNull() & ~(F.col("is_plain") & F.col("is_relayed"))
    bearers = Window.partitionBy(F.coalesce("internet_id", F.xxhash64("message"))).orderBy("addressed")
    alike = bearers.rangeBetween(Window.currentRow, Window.currentRow)
    everyone = bearers.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    are_several = F.count(F.when(is_of_client, 1)).over(alike) > 1
    is_one_unsure = F.max(~F.col("is_plain") & (F.col("addressed") != F.col("addressed_least"))).over(everyone)
    return is_of_client & (are_several | F.coalesce(is_one_unsure, F.lit(False)))


def server_names(servers: DataFrame) -> DataFrame:
    """(name_hash, name) of each server. Shapes: `servers` has `server`, each once."""
    return servers.select(F.xxhash64("server").alias("name_hash"), F.col("server").alias("name"))


def _summed(events: DataFrame, logged: Collection[str]) -> DataFrame:
    is_receive, is_redirect = F.col("kind") == RECEIVE, F.col("kind") == REDIRECT
    is_hold, is_discard = F.col("kind") == HOLD, F.col("kind") == DISCARD
    is_send, is_transfer = is_event("SEND", "SENDEXTERNAL"), is_event("TRANSFER")
    is_naming = is_acknowledgement() | is_event("HARECEIVE") | is_promotion() | is_relayed_and_kept()  # any may show what a client sent
    values = {
        "kind": _kind(),
        "at": F.unix_micros("at"),
        "addressed": F.when(is_naming, F.col("recipients_hash")),
        "internet_id": F.when(is_naming & (F.col("internet_message_id") != ""), F.xxhash64("internet_message_id")),
    }
    rows = events.select(*COLUMNS).withColumns(values)
    names = F.col("recipients_hash").bitwiseAND(2**HASH_BITS - 1)
    return rows.groupBy("message").agg(
        F.count(F.lit(1)).alias("rows_count"),
        F.try_sum("kind").alias("shape"),  # null, and so not plain, if a hundred thousand rows have one id
        F.try_sum(_primaries()).alias("primaries"),
        F.try_sum(_shadows()).alias("shadows"),
        F.max(F.when(is_receive, names)).alias("received_for"),
        F.try_sum(F.when(is_send, names)).alias("sent_for"),
        F.try_sum(F.when(is_transfer, names)).alias("transferred_for"),
        F.try_sum(F.when(is_discard, _mark(_DISCARDED_FOR, "recipients_hash"))).alias("discarded_for"),
        F.max(F.when(is_receive, F.col("at"))).alias("received_at"),
        F.max(F.when(is_redirect, F.col("at"))).alias("redirected_at"),
        F.max(F.when(is_hold, F.col("at"))).alias("held_at"),
        F.max(F.when(is_send, F.col("at"))).alias("sent_at"),
        F.max(F.when(is_discard, F.col("at"))).alias("discarded_at"),
        F.max(F.when(is_deferred_by_next_hop(), F.col("at"))).alias("first_deferred_at"),
        F.max(F.when(is_receive, F.xxhash64("server"))).alias("server_hash"),
        F.max(F.when(is_redirect, F.xxhash64("server_hostname"))).alias("shadow_hash"),
        F.min(F.when(is_redirect, F.xxhash64("server_hostname"))).alias("least_shadow"),
        F.bit_xor(F.when(is_redirect, F.xxhash64("server_hostname"))).alias("mixed_shadows"),
        F.max(F.when(is_receive, F.col("recipient_count").cast("long"))).alias("recipients_count"),
        F.max(F.when(is_receive, F.coalesce("copies", F.lit(1)))).alias("copies"),
        F.max(F.when(is_receive, F.col("shadow_us"))).alias("shadow_us"),
        F.max(F.when(is_receive, F.col("ack_us"))).alias("ack_us"),
        F.max("addressed").alias("addressed"),
        F.min("addressed").alias("addressed_least"),
        F.max("internet_id").alias("internet_id"),
        F.max(F.when(is_receive, F.coalesce(F.col("client_hostname").isin(*logged), F.lit(False)))).alias("is_relayed"),
    )


def _kind() -> Column:
    """The value to add to `shape`; null for rows that are judged by their recipients."""
    size = F.col("recipient_count")
    has_copy = F.col("copies").isNull() | (F.col("copies") > 0)
    is_redundant = (F.col("replication") == "Success") & has_copy & (size > 0)
    has_each_once = F.col("recipients_hash").isNotNull()
    return (
        F.when(~is_own(), ODD)
        .when(~has_each_once, ODD)  # a sum of hashes cannot show that
        .when(is_event("RECEIVE", "SEND", "SENDEXTERNAL") & (F.col("source_context") != ""), ODD)  # delayed, or relayed and kept
        .when(is_event("RECEIVE") & (F.col("reference") != ""), ODD)  # relayed by TRACK: the previous hop's SEND row is a copy, too
        .when(is_event("SEND", "SENDEXTERNAL") & (size > 0), 0)
        .when(is_event("HAREDIRECT"), REDIRECT)
        .when(is_event("HARECEIVE"), HOLD)
        .when(is_acknowledgement() & is_redundant, RECEIVE)
        .when(is_told_delivered(), DISCARD)
        .when(is_event("TRANSFER"), 0)
        .when(is_event("DEFER"), DEFER)
        .otherwise(ODD)
    ).cast("long")


_REDIRECTED_TO, _DISCARDED_BY, _DISCARDED_FOR = 1, 2, 3
"""Marks that are hashed with a name, so that one sum of hashes compares several lists of names."""


def _mark(mark: int, name: str) -> Column:
    return F.xxhash64(F.lit(mark), name).bitwiseAND(2**HASH_BITS - 1)


def _primary_hash(hashed: Column) -> Column:
    return hashed.bitwiseAND(2**HASH_BITS - 1)


def _primaries() -> Column:
    """To be summed over a message: the sum shows whether all rows about its copies agree on the primary server."""
    return (
        F.when(F.col("kind") == REDIRECT, _primary_hash(F.xxhash64("server")))
        .when(F.col("kind") == HOLD, _primary_hash(F.xxhash64("client_hostname")))
        .otherwise(F.lit(0).cast("long"))
    )


def _shadows() -> Column:
    """To be summed over a message: 0 if HARECEIVE, HAREDIRECT and HADISCARD rows name the same shadow servers."""
    return (
        F.when(F.col("kind") == HOLD, _mark(_REDIRECTED_TO, "server") + _mark(_DISCARDED_BY, "server"))
        .when(F.col("kind") == REDIRECT, -_mark(_REDIRECTED_TO, "server_hostname"))
        .when(F.col("kind") == DISCARD, -_mark(_DISCARDED_BY, "server"))
        .otherwise(F.lit(0).cast("long"))
    )


def _copies_count() -> Column:
    """The HARECEIVE rows of a message whose shape is plain."""
    return F.shiftright("shape", 12 * 2).bitwiseAND(ROWS_MAX - 1)


def _is_plain() -> Column:
    all_bits = 2**HASH_BITS - 1
    count = _copies_count()
    shapes = [RECEIVE + number * COPY_SHAPE + deferred for number in range(1, COPIES_MAX + 1) for deferred in (0, DEFER)]
    is_plain_shape = F.col("shape").isin(shapes)
    is_whole = (F.col("rows_count") < ROWS_MAX) & is_plain_shape
    is_delivered_once = F.col("sent_for").bitwiseAND(all_bits) == F.col("received_for")
    is_forked_once = F.col("transferred_for").isNull() | (F.col("transferred_for").bitwiseAND(all_bits) == F.col("received_for"))
    for_all, for_nobody_named = _mark(_DISCARDED_FOR, "addressed"), F.xxhash64(F.lit(_DISCARDED_FOR), F.lit(0).cast("long"))
    for_nobody_named = for_nobody_named.bitwiseAND(all_bits)
    is_discarded_once = reduce(
        Column.__or__,
        [F.col("discarded_for") == named * for_all + (count - named) * for_nobody_named for named in range(COPIES_MAX + 1)],
    )
    agree = (F.col("primaries") == 2 * count * _primary_hash(F.col("server_hash"))) & (F.col("shadows") == 0)
    is_in_time = F.col("redirected_at") <= F.col("received_at")
    is_one_list = F.col("addressed") == F.col("addressed_least")
    is_plain = is_whole & is_one_list & is_delivered_once & is_forked_once & is_discarded_once & is_in_time & agree
    is_plain = is_plain & _are_distinct()
    return F.coalesce(is_plain, F.lit(False))


def _are_distinct() -> Column:
    """Whether up to three shadow servers are distinct, from the least and the greatest of their hashes and the XOR of all."""
    least, greatest, mixed = F.col("least_shadow"), F.col("shadow_hash"), F.col("mixed_shadows")
    are_two = least != greatest
    are_three = are_two & (mixed != least) & (mixed != greatest)
    return F.when(_copies_count() == 1, F.lit(True)).when(_copies_count() == 2, are_two).otherwise(are_three)


def seen_counts(seen: DataFrame) -> DataFrame:
    """One line: messages, rows (with repeats), odd messages and their rows, and plain messages with several copies."""
    is_odd = ~F.col("is_plain")
    return seen.agg(
        F.count(F.lit(1)).alias("messages"),
        F.count(F.when(is_odd, 1)).alias("odd"),
        F.count(F.when(F.col("is_plain") & _has_several(), 1)).alias("several"),
        F.coalesce(F.sum("rows_count"), F.lit(0)).alias("rows"),
        F.coalesce(F.sum(F.when(is_odd, F.col("rows_count"))), F.lit(0)).alias("odd_rows"),
    )


def odd_events(events: DataFrame, seen: DataFrame, *, messages: int, odd: int) -> DataFrame:
    """Events of messages that are not plain. Shapes: `messages` and `odd` as counted by `seen_counts`."""
    if odd == messages:
        return events
    wanted = seen.where(~F.col("is_plain")).select("message")
    return events.join(F.broadcast(wanted) if odd <= ODD_BROADCAST_MAX else wanted, on="message", how="left_semi")


def _has_several() -> Column:
    return F.col("copies_count") > 1


def several_copies(events: DataFrame, seen: DataFrame) -> DataFrame:
    """The copies of plain messages that have several: message, server, when each was placed, held and discarded.

    Fixed width again, in a second pass over the rows about copies: one aggregate cannot keep apart what several servers did.
    """
    wanted = seen.where(F.col("is_plain") & _has_several()).select("message")
    is_redirect = is_event("HAREDIRECT")
    rows = events.where(is_event("HAREDIRECT", "HARECEIVE", "HADISCARD")).join(wanted, on="message", how="left_semi")
    at, shadow = F.unix_micros("at"), F.when(is_redirect, F.col("server_hostname")).otherwise(F.col("server"))
    placed = rows.select("message", shadow.alias("server"), "event", at.alias("at"))
    return placed.groupBy("message", "server").agg(
        F.max(F.when(is_redirect, F.col("at"))).alias("redirected_at"),
        F.max(F.when(is_event("HARECEIVE"), F.col("at"))).alias("held_at"),
        F.max(F.when(is_event("HADISCARD"), F.col("at"))).alias("discarded_at"),
    )


def plain_messages(seen: DataFrame, several: DataFrame | None) -> DataFrame:
    """Lines as from `evidence.exact_messages`, for plain messages. Shapes: `seen` as from `first_pass`, `several` as from `several_copies`,
    None if there are none."""
    plain, none = seen.where(F.col("is_plain")), F.lit(0).cast("long")
    if several is not None:
        last = several.groupBy("message").agg(F.max(F.struct("redirected_at", "server"))["server"].alias("last_server"))
        plain = plain.join(last, on="message", how="left").withColumn("pair_server", F.coalesce("last_server", "pair_server"))
    return plain.select(
        "message", F.lit(ACKNOWLEDGED).alias("kind"), F.col("received_at").alias("at"), "server", "pair_server",
        F.lit(True).alias("is_redundant"), "copies", F.lit("shadow_server").alias("way"), "shadow_us", "ack_us",
        F.col("sent_at").alias("done_at"), F.col("sent_at").alias("last_delivery_at"), "first_deferred_at",
        F.lit(True).alias("is_exposure_known"), "recipients_count",
        none.alias("exposure_count"), none.alias("exposure_us"), none.alias("exposure_max_us"),
        none.alias("lost"), none.alias("duplicated"), none.alias("unexplained"),
    )  # fmt: skip


def plain_copies(seen: DataFrame, several: DataFrame | None) -> DataFrame:
    """Lines as from `exact.copies`, for plain messages. Shapes: as `plain_messages`."""
    plain = seen.where(F.col("is_plain"))
    if several is None:
        return _copies(plain)
    of_message = plain.where(_has_several()).select("message", F.col("server").alias("primary_server"), "sent_at")
    each = several.join(of_message, on="message", how="inner").withColumnsRenamed({"server": "pair_server", "primary_server": "server"})
    return _copies(plain.where(~_has_several())).unionByName(_copies(each))


def _copies(held: DataFrame) -> DataFrame:
    return held.select(
        "message", F.col("pair_server").alias("server"), F.col("server").alias("primary"), F.col("held_at").alias("at"),
        F.lit(True).alias("is_discarded"), F.lit(False).alias("is_promoted"), F.lit(False).alias("is_expired"),
        F.lit(False).alias("is_kept"), F.lit(False).alias("is_rerouted"), "discarded_at",
        (F.col("discarded_at") - F.col("sent_at")).alias("lag_us"),
    )  # fmt: skip
