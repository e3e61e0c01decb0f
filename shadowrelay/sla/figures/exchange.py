"""What the rows of Exchange's logs do, as data, and what follows from several of them. docs/sla.md, 2, "Exchange, row by row".

`EFFECTS` is the table of that section. A row that is not in it changes nothing. `joined` gives what goes on under another id, as what a
moderator approved, the id of the message that it was; `handled` tells of each server when it got a recipient and when it was done with it,
from which follow the stays of a message (`bare_stays`) and the end of a hop (`hops_done`); `notifications` finds the message that a DSN is
about.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

ACKNOWLEDGES, BEGINS, GOES_ON, REPLACES, ADDS = "acknowledges", "begins", "goes on", "replaces", "adds"
HANDS_ON, DELIVERS, ENDS, WAITS, APPROVES, PUTS_OFF, REPORTS = "hands on", "delivers", "ends", "waits", "approves", "puts off", "reports"
BEGINS_COPY, MAKES_COPY, LACKS_COPY, ENDS_COPY, PROMOTES = "begins copy", "makes copy", "lacks copy", "ends copy", "promotes"
SETS_ASIDE, SENDS_AGAIN, NOTHING = "sets aside", "sends again", "nothing"
ANY = "any"

EFFECTS: dict[tuple[str, str], str] = {
    ("RECEIVE", "SMTP"): ACKNOWLEDGES,
    ("RECEIVE", "APPROVAL"): GOES_ON,
    ("RECEIVE", ANY): BEGINS,
    ("EXPAND", ANY): REPLACES,
    ("RESOLVE", ANY): REPLACES,
    ("REDIRECT", ANY): REPLACES,
    ("DUPLICATEEXPAND", ANY): REPLACES,
    ("DUPLICATEREDIRECT", ANY): REPLACES,
    ("TRANSFER", ANY): ADDS,
    ("DEFER", ANY): PUTS_OFF,
    ("SEND", "GATEWAY"): DELIVERS,
    ("SEND", ANY): HANDS_ON,
    ("SENDEXTERNAL", ANY): HANDS_ON,
    ("DELIVER", ANY): DELIVERS,
    ("FAIL", ANY): ENDS,
    ("BADMAIL", ANY): ENDS,
    ("DROP", ANY): ENDS,
    ("DUPLICATEDELIVER", ANY): ENDS,
    ("PROCESS", ANY): ENDS,
    ("PROCESSMEETINGMESSAGE", ANY): ENDS,
    ("SUPPRESSED", ANY): ENDS,
    ("MODERATORREJECT", ANY): ENDS,
    ("MODERATIONEXPIRE", ANY): ENDS,
    ("MODERATORSALLNDR", ANY): ENDS,
    ("INITMESSAGECREATED", ANY): WAITS,
    ("MODERATORAPPROVE", ANY): APPROVES,
    ("DSN", ANY): REPORTS,
    ("HARECEIVE", ANY): BEGINS_COPY,
    ("HAREDIRECT", ANY): MAKES_COPY,
    ("HAREDIRECTFAIL", ANY): LACKS_COPY,
    ("HADISCARD", ANY): ENDS_COPY,
    ("RESUBMIT", "REDUNDANCY"): PROMOTES,
    ("RESUBMIT", ANY): SENDS_AGAIN,
    ("POISONMESSAGE", ANY): SETS_ASIDE,
    **dict.fromkeys(
        (
            (event, ANY)
            for event in (
                "AGENTINFO", "CLIENTSUBMISSION", "DELIVERFAIL", "LOAD", "NOTIFYMAPI", "NOTIFYSHADOW", "RESUBMITDEFER", "RESUBMITFAIL",
                "SUBMIT", "SUBMITDEFER", "SUBMITFAIL", "THROTTLE",
            )
        ),
        NOTHING,
    ),
}  # fmt: skip
"""(event, source) -> what the row does. `ANY` stands for each source that the event has no entry of its own with."""

REPORTED_BEFORE_US = 60_000_000
"""A FAIL so much later than a report is the one of which the report tells."""
PUTTING_OFF = ("DEFER", "RESUBMITDEFER", "SUBMITDEFER", "THROTTLE")
ALREADY_RECIPIENTS = ("DUPLICATEEXPAND", "DUPLICATEREDIRECT")
"""With a related recipient they replace it. Without one they do nothing."""
DECISIONS = ("MODERATORREJECT", "MODERATIONEXPIRE", "MODERATORSALLNDR")
"""Without recipients they are about those that waited."""
REDIRECTING = ("REDIRECT", "DUPLICATEREDIRECT")
"""They may leave the related recipient what it was: deliver and forward."""
WITHOUT_NETWORK_ID = "exchange2010"
_ID = "internet_message_id"
OWN = "shadowrelay"


def does(*effects: str) -> Column:
    """The row is of Exchange and does one of these."""
    parts = []
    for (event, source), effect in EFFECTS.items():
        if effect in effects:
            others = [other for name, other in EFFECTS if name == event and other != ANY]
            of_source = f" AND source = '{source}'" if source != ANY else f" AND source NOT IN {_listed(others)}" if others else ""
            parts.append(f"(event = '{event}'{of_source})")
    return F.expr(f"format <> '{OWN}' AND ({' OR '.join(parts)})")


def _listed(names: list[str]) -> str:
    return f"({', '.join(map(repr, names))})"


# ---- what S:Replication says

_NO_COPY = (
    "failed", "fail", "failure", "error", "timeout", "timedout", "rejected", "refused", "disabled", "none", "skipped", "ignored", "never",
    "notrequired", "notneeded", "notattempted", "notsupported", "notavailable", "unavailable", "pending", "unknown", "false", "off", "no",
    "noshadow", "noshadowserver", "noshadowservers", "noshadowserveravailable",
)  # fmt: skip


_NO_HOST = "^([^a-z.:]*|n/?a)$"  # in small letters: neither a name nor an address


def is_said_redundant(replication: Column, server: Column) -> Column:
    """Null if S:Replication is empty: `Success`, or the name of the shadow server, which is another one. Sources: elastic, logdoc"""
    label = F.lower(F.substring_index(replication, ".", 1))
    said = F.lower(replication)
    is_named = ~said.rlike(_NO_HOST) & ~said.rlike(f"^({'|'.join(_NO_COPY)})\\b")
    is_copy = is_named & (label != F.lower(F.substring_index(server, ".", 1)))
    return F.when(replication == "Success", F.lit(True)).when(replication != "", is_copy)


# ---- messages that go on under another network id


def in_lower_case(addresses: Column) -> Column:
    """Exchange: also without the prefix that an address has in the directory (`SMTP:otto@nordhof.example`)."""
    return F.transform(addresses, lambda address: F.regexp_replace(F.lower(address), "^smtp:", ""))


def joined(events: DataFrame) -> DataFrame:
    """What goes on under a network id of its own is the message that it was: what a moderator approved, by the Message-ID of what had
    waited; what was taken over, or sent again from Safety Net, by that of what had been received or held. Of several it is the last with a
    recipient in common, else the last.

    Shapes: `events` have message, internet_message_id, event, source, format, at, recipients.
    """
    whom = in_lower_case(F.col("recipients"))
    waited = events.where(does(WAITS, APPROVES)).select(
        _ID, F.col("message").alias("original"), F.col("at").alias("original_at"), whom.alias("whom")
    )
    again = events.where(does(GOES_ON)).select(_ID, "message", F.col("at").alias("again_at"), whom.alias("to"))
    of_message = events.where(does(ACKNOWLEDGES, BEGINS_COPY))
    all_begun = of_message.groupBy(_ID, F.col("message").alias("original")).agg(F.min("at").alias("original_at"))
    is_sent_again = does(PROMOTES) | (does(SENDS_AGAIN) & (F.col("source") == "SAFETYNET"))
    everyone = F.flatten(F.collect_list(whom))
    sent = events.where(is_sent_again).groupBy(_ID, "message").agg(F.min("at").alias("again_at"), everyone.alias("to"))
    wanted = of_message.join(F.broadcast(sent.select(_ID).distinct()), on=_ID, how="left_semi")  # lists of recipients are large
    begun = wanted.groupBy(_ID, F.col("message").alias("original")).agg(F.min("at").alias("original_at"), everyone.alias("whom"))
    own = all_begun.groupBy(F.col("original").alias("message")).agg(F.min("original_at").alias("begun_at"))
    strange = sent.join(own, on="message", how="left").where(F.coalesce(F.col("begun_at") > F.col("again_at"), F.lit(True)))
    pairs = again.join(waited, on=_ID, how="inner").unionByName(strange.drop("begun_at").join(begun, on=_ID, how="inner"))
    alias = (
        pairs.where((F.col(_ID) != "") & (F.col("original_at") <= F.col("again_at")) & (F.col("original") != F.col("message")))
        .groupBy("message")
        .agg(F.max(F.struct(F.arrays_overlap("to", "whom"), "original_at", "original"))["original"].alias("original"))
    )
    named = events.join(F.broadcast(alias), on="message", how="left")
    return named.withColumn("message", F.coalesce("original", "message")).drop("original")


# ---- stays: what one server had, and when it was done with it


def handled(rows: DataFrame) -> DataFrame:
    """One line for each recipient on each server: `entered`, when the server got it, and `handed`, when it was done with it, in order.

    Shapes: `rows` as from `rows.exact_rows`; those of Exchange are used.
    """
    is_replaced = F.coalesce(F.array_contains("replaced", F.col("recipient")), F.lit(False))
    is_redirecting = F.col("event").isin(*REDIRECTING)
    is_stepping_in = F.col("is_replacing") & ~is_replaced
    is_got = does(ACKNOWLEDGES, ADDS, PUTS_OFF)
    is_entering = is_got | is_stepping_in
    is_done = does(HANDS_ON, DELIVERS, WAITS) | F.col("is_ending")
    each = (
        rows.where(is_got | is_done | F.col("is_replacing"))
        .withColumn("recipient", F.explode(F.array_union("recipients", F.coalesce("replaced", F.array().cast("array<string>")))))
        .groupBy("message", "server", "recipient")
        .agg(
            F.sort_array(F.collect_list(F.when(is_entering, F.col("at")))).alias("entered"),
            F.sort_array(F.collect_list(F.when(is_done | (is_replaced & ~is_redirecting), F.col("at")))).alias("done"),
            F.sort_array(F.collect_list(F.when(is_replaced & is_redirecting, F.col("at")))).alias("redirected"),
            F.max(F.coalesce(F.array_contains("kept", F.col("recipient")), F.lit(False))).alias("is_kept"),
        )
    )
    redirected = F.when(F.col("is_kept"), F.array().cast("array<bigint>")).otherwise(F.col("redirected"))
    return each.select("message", "server", "recipient", "entered", F.sort_array(F.concat("done", redirected)).alias("handed"))


def bare_stays(rows: DataFrame, lines: DataFrame, handled: DataFrame) -> DataFrame:
    """The stays without a copy: each RECEIVE of SMTP begins one on its server, which ends when that server has a copy made, or has
    handed on or ended all that it got. `over_at` is null for one that has not ended. Rows of one instant are one receipt.

    Shapes: `lines` as from `exact.timelines`, with `done_at`.
    """
    of_server = Window.partitionBy("message", "server").orderBy("at")
    before, after = of_server.rangeBetween(Window.unboundedPreceding, -1), of_server.rangeBetween(1, Window.unboundedFollowing)
    is_one = does(ACKNOWLEDGES) & (F.col("format") != WITHOUT_NETWORK_ID) & (F.size("recipients") > 0)
    begun = rows.where(is_one | does(GOES_ON)).select(
        "message", "server", "row_id", is_one.alias("is_one"), F.col("at").alias("began_at"),
        F.max("at").over(before).alias("before_at"), F.min("at").over(after).alias("next_at"),
        is_said_redundant(F.col("replication"), F.col("server")).alias("is_said"),
    )  # fmt: skip
    received = begun.where("is_one")
    of_message = lines.where(F.col("kind") == "acknowledged").select(
        "message", F.col("server").alias("first_server"), "at", "redirects", "done_at", "known_until"
    )
    joined = received.join(of_message, on="message", how="inner")
    own = F.filter("redirects", lambda row: row["server"] == F.col("server"))
    is_made = F.exists(own, lambda row: (row["at"] <= F.col("began_at")) & (F.col("before_at").isNull() | (row["at"] > F.col("before_at"))))
    later = F.filter(own, lambda row: row["at"] > F.col("began_at"))
    bare = joined.where(~F.coalesce("is_said", is_made)).withColumn("copied_at", F.try_element_at(later, F.lit(1))["at"])

    def is_of_stay(at: Column) -> Column:
        return (at >= F.col("began_at")) & (F.col("next_at").isNull() | (at < F.col("next_at")))

    handed_at = F.try_element_at(F.filter("handed", lambda at: at >= F.col("began_at")), F.lit(1))
    over = (
        bare.select("message", "server", "row_id", "began_at", "next_at")
        .join(handled, on=["message", "server"], how="inner")
        .where(F.exists("entered", is_of_stay))
        .groupBy("row_id")
        .agg(F.max(handed_at).alias("handed_at"), F.count(F.when(handed_at.isNull(), 1)).alias("open_count"))
    )
    ended = bare.join(over, on="row_id", how="left")
    handed = F.when(F.col("open_count") == 0, F.col("handed_at"))
    return ended.select(
        "message", "server", "at", "began_at", F.least("copied_at", handed, "done_at").alias("over_at"), "known_until",
        (F.col("server") != F.col("first_server")).alias("is_further"),
    )  # fmt: skip


def hops_done(copies: DataFrame, handled: DataFrame) -> DataFrame:
    """When the primary server of each copy was done with the message: the last of its recipients' first ends there.

    Shapes: `copies` of Exchange: message, server, primary, `since` (null, or the instant from which on ends count).
    """
    at_primary = handled.withColumnRenamed("server", "primary").where(F.size("handed") > 0)
    first = F.try_element_at(F.filter("handed", lambda at: F.col("since").isNull() | (at >= F.col("since"))), F.lit(1))
    joined = copies.select("message", "server", "primary", "since").join(at_primary, on=["message", "primary"], how="inner")
    return joined.groupBy("message", "server", "primary").agg(F.max(first).alias("hop_done_at"))


# ---- DSNs

UNDELIVERABLE = (
    "undeliverable", "unzustellbar", "non remis", "non distribuable", "échec de la remise", "no se puede entregar", "no entregado",
    "no entregable", "non recapitabile", "mancato recapito", "onbestelbaar", "não entregue", "nao entregue", "não é possível entregar",
    "não foi possível entregar", "kan inte levereras", "kan ikke leveres", "ei voi toimittaa", "ei voida toimittaa", "toimittamaton",
    "nie można dostarczyć", "niedostarczon", "nedoručiteln", "nelze doručit", "nedoručiteľn", "kézbesíthetetlen", "nelivrabil",
    "imposibil de livrat", "teslim edileme", "недоставлено", "не удается доставить", "не доставлено", "недоставен", "μη παραδοτέο",
    "δεν είναι δυνατή η παράδοση", "neisporučivo", "配信不能", "配信できません", "无法送达", "无法传递", "未送达", "無法傳遞", "無法送達",
    "未傳遞", "배달되지 않음", "배달할 수 없음", "전달할 수 없음", "לא ניתן למסירה", "غير قابل للتسليم", "تعذر التسليم",
)  # fmt: skip
"""How the subject of a non-delivery report begins. A notice of delay, of delivery or of relaying ends nothing."""


def notifications(rows: DataFrame, lines: DataFrame) -> DataFrame:
    """(message, notified_at): non-delivery reports of which no FAIL tells, with the message that each is about.

    A DSN under the id of a message that was acknowledged is about that one. One that a row of a message names (`reference`) is that
    message's, and the row says whom it ends. Any other is about the last message with that Message-ID that was acknowledged before it and
    came from whom it is addressed to, or about such a message that has a FAIL at that time.
    """
    is_failure = F.lower("subject").rlike(f"^\\s*({'|'.join(UNDELIVERABLE)})")
    failures = rows.where(does(REPORTS) & is_failure)
    reports = failures.where(F.col("reference") != "").select(
        "message", F.col("internet_message_id").alias("report"), F.col("reference").alias("internet_message_id"),
        F.col("at").alias("reported_at"), F.col("recipients").alias("told"),
    )  # fmt: skip
    named = rows.where((F.col("format") != OWN) & (F.col("event") != "DSN") & (F.col("reference") != ""))
    reports = reports.join(named.select(F.col("reference").alias("report")).distinct(), on="report", how="left_anti")
    bearers = lines.where(F.col("kind") != "dsn").select(
        "message", (F.col("kind") == "acknowledged").alias("is_acknowledged"), "internet_message_id",
        F.col("at").alias("acknowledged_at"), "fails", F.array_min("fails").alias("first_fail_at"),
        F.lower("sender").alias("from"), F.lower("return_path").alias("path"),
    )  # fmt: skip
    candidates = bearers.where("is_acknowledged")
    under_own_id = failures.select("message", F.col("at").alias("reported_at")).join(
        candidates.select("message", "first_fail_at"), on="message", how="inner"
    )
    reports = reports.join(candidates.select("message"), on="message", how="left_anti").drop("message")
    is_earlier = F.col("is_acknowledged") & (F.col("acknowledged_at") <= F.col("reported_at"))
    joined = reports.join(bearers, on="internet_message_id", how="inner").where(
        F.array_contains("told", F.col("from")) | F.array_contains("told", F.col("path")) | (F.size("told") == 0)
    )
    is_near = F.exists("fails", lambda at: F.abs(at - F.col("reported_at")) <= REPORTED_BEFORE_US)
    owner = joined.groupBy("report", "reported_at").agg(
        F.max(F.when(is_earlier, F.struct("acknowledged_at", "message", "first_fail_at"))).alias("owner"), F.max(is_near).alias("is_told")
    )
    owned = (
        owner.where(F.col("owner").isNotNull() & ~F.col("is_told"))
        .select("owner.message", "reported_at", "owner.first_fail_at")
        .unionByName(under_own_id)
    )
    is_untold = F.coalesce(F.col("first_fail_at") > F.col("reported_at") + REPORTED_BEFORE_US, F.lit(True))
    return owned.where(is_untold).groupBy("message").agg(F.min("reported_at").alias("notified_at"))
