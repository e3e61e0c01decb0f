"""Classifies rows of logs: conditions on the columns of an event, and the columns that the exact figures need. docs/sla.md, 1 to 3.

Exchange refers to one server by several names, and the directory of its log may have any of them. `exact_rows` replaces each by the
name of the logged server.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from shadowrelay.protocol.tracking import KEPT_AS
from shadowrelay.sla.figures.exchange import (
    ACKNOWLEDGES,
    ALREADY_RECIPIENTS,
    DELIVERS,
    ENDS,
    HANDS_ON,
    REDIRECTING,
    REPLACES,
    WITHOUT_NETWORK_ID,
    does,
    in_lower_case,
    joined,
)
from shadowrelay.sla.figures.log_writers import NOTHING_TOLD, Told, in_whole

OWN_FORMAT = "shadowrelay"
CLOCKS_DIFFER_US = 120_000_000  # of two servers, at most; and SEND is logged after the RECEIVE of the server that it went to
HANDED_WITHIN_US = 600_000_000  # SEND and the RECEIVE of the same hand-over, whatever the clocks: Windows lets them differ by five minutes
COLUMNS = (
    "row_id", "at", "event", "source", "message", "internet_message_id", "client_hostname", "server_hostname", "source_context",
    "reference", "related_recipient", "sender", "subject", "return_path",
    "recipients", "recipients_hash", "replication", "copies", "ack_us", "shadow_us", "reason", "silent_since", "detected_at",
    "custom_data", "format", "server",
)  # fmt: skip
"""The events that figures use."""
ADDRESSES = ("client_ip", "server_ip")


def is_own() -> Column:
    """A row of this relay, not of Exchange."""
    return F.col("format") == OWN_FORMAT


def is_event(*names: str) -> Column:
    """The row has one of these event-ids."""
    return F.expr(f"event IN ({', '.join(map(repr, names))})")  # as text: a call to the JVM for each name takes longer than planning


def is_acknowledgement() -> Column:
    """RECEIVE of source SMTP: a client got 250."""
    return is_event("RECEIVE") & (F.col("source") == "SMTP")


def is_promotion() -> Column:
    """RESUBMIT of source REDUNDANCY: a shadow server took the message over."""
    return is_event("RESUBMIT") & (F.col("source") == "REDUNDANCY")


def is_from_safety_net() -> Column:
    """RESUBMIT of source SAFETYNET in our own log: the message was made of one in Safety Net. Exchange keeps the original's id."""
    return is_event("RESUBMIT") & (F.col("source") == "SAFETYNET") & is_own()


def is_deferred_by_next_hop() -> Column:
    """DEFER because the next hop, or its name, could not be reached, or because it wanted the message later. Of Exchange, a mailbox
    database and a foreign connector are next hops, too."""
    is_of_exchange = ~is_own() & F.col("source").isin("STOREDRIVER", "GATEWAY")
    return is_event("DEFER") & (F.col("source").isin("SMTP", "DNS") | is_of_exchange)


def is_generated_message() -> Column:
    """The row says that a DSN or a journal report was made, under its own id."""
    return is_event("DSN") | (is_event("RECEIVE") & (F.col("source") == "AGENT"))


def has_shared_fate(custom_data: Column, of_format: Column) -> Column:
    """HAREDIRECT: the copy is lost together with its primary server, or with another copy, and does not count; RECEIVE: such a copy was
    made."""
    return (of_format == OWN_FORMAT) & F.coalesce(custom_data.rlike("(?:^|;)S:SharedFate="), F.lit(False))


def is_told_delivered() -> Column:
    """HADISCARD because the primary was done, and not because the copy was not needed. Exchange does not log the reason."""
    return is_event("HADISCARD") & (~is_own() | (F.col("source_context") == "delivered"))


KEPT = "TRACK"
"""The source of rows HARECEIVE that `exact_rows` adds for kept copies."""


def is_relayed_and_kept() -> Column:
    """SEND by `TRACK`: this server keeps the shadow of the message that source-context names."""
    return is_event("SEND", "SENDEXTERNAL") & F.col("source_context").startswith(KEPT_AS) & is_own()


def is_replacement() -> Column:
    """Exchange: other recipients replace the related one: members, the resolved address, forwarding addresses, or one that is a
    recipient already."""
    return does(REPLACES) & (~is_event(*ALREADY_RECIPIENTS) | (F.col("related_recipient") != ""))


def is_end_of_exchange() -> Column:
    """Exchange: the row's recipients get nothing, and need nothing: dropped without a DSN, or rejected by a moderator.

    Source: msd-mt
    """
    return does(ENDS)


def has_no_recipients() -> Column:
    """A row without recipients."""
    return F.size("recipients") == 0


def is_expired_copy() -> Column:
    """EXPIRE of a shadow server, which names the primary. The row of the primary names nobody."""
    return is_event("EXPIRE") & (F.col("client_hostname") != "")


def is_end() -> Column:
    """The row ends its recipients, whichever server acknowledged the message. Needs `is_delivery`."""
    is_expired = is_event("EXPIRE") & ~is_expired_copy()
    return F.col("is_delivery") | is_event("FAIL", "DUPLICATEDELIVER") | is_expired | is_end_of_exchange()


def exact_rows(events: DataFrame, logs: Mapping[str, str | None], told: Told = NOTHING_TOLD) -> DataFrame:
    """Each row once, with instants as microseconds, servers by the names of their logs, `is_delivery`, and `replaced`: recipients that
    the row's recipients replace, `kept`: those that it leaves as they are. Addresses of Exchange are in lower case. A row by which a
    message was relayed and kept is followed by the HARECEIVE that it stands for, of the message that it names; the same relayed again is
    no delivery.

    Shapes: `logs`: the servers whose own log is in the input, with its format. Partitioned by message, by which all later steps group.
    `told`: what the logs of Exchange say about their servers.
    """
    logged_servers, has_exchange = list(logs), has_logs_of_exchange(logs)
    is_delivery = F.when(is_own(), is_event("SEND", "SENDEXTERNAL")).otherwise(does(DELIVERS) | (does(HANDS_ON) & ~F.col("is_hop")))
    is_itself = F.col("server_hostname") == F.col("server")
    offered_at = F.min(F.when(is_relayed_and_kept(), F.col("at"))).over(Window.partitionBy("message", "source_context"))
    is_offered_again = F.coalesce(is_relayed_and_kept() & (F.col("at") > offered_at), F.lit(False))
    is_on_the_way = does(ACKNOWLEDGES, HANDS_ON)
    addresses = [F.when(is_on_the_way & _tells(name), F.lower(name)).alias(name) for name in ADDRESSES] if has_exchange else []
    chosen = events.select(*COLUMNS, *addresses)
    rows = (
        _with_kept_copies(joined(chosen) if has_exchange else chosen)
        .hint("repartition", F.col("message"))  # a hint, which a session for little input leaves out
        .dropDuplicates(["message", "row_id"])
        .withColumns({name: F.unix_micros(name) for name in ("at", "silent_since", "detected_at")})
        .withColumn("server_hostname", F.when(_is_exchange_redirect(), _shadow_server()).otherwise(F.col("server_hostname")))
        .withColumns(_servers(logged_servers, told))
        .withColumn("server_hostname", F.when(_is_exchange_redirect() & is_itself, "").otherwise(F.col("server_hostname")))
        .withColumn("recipients", F.when(is_own(), F.col("recipients")).otherwise(in_lower_case(F.col("recipients"))))
        .withColumn("return_path", F.when(is_own(), F.lit("")).otherwise(F.lower("return_path")))
        .withColumns(_replaced())
    )
    rows = (
        _with_hops(_with_old_primaries(rows), logs, told.without_deliveries)
        if has_exchange
        else rows.withColumns({"is_hop": F.lit(False), "hop_to": F.lit(None).cast("string")})
    )
    rows = rows.withColumn("is_delivery", is_delivery & ~has_no_recipients() & ~is_offered_again)
    is_discard = is_event("HADISCARD") & ~is_own()
    rows = rows.withColumn("is_of_logged", is_discard & F.coalesce(F.col("client_hostname").isin(*logged_servers), F.lit(False)))
    return rows.withColumns({"is_replacing": is_replacement(), "is_ending": is_end()})


def has_logs_of_exchange(logs: Mapping[str, str | None]) -> bool:
    """Whether any of the logs is of Exchange."""
    return any(each not in (None, "", OWN_FORMAT) for each in logs.values())


def _with_old_primaries(rows: DataFrame) -> DataFrame:
    """Exchange: a RESUBMIT of source REDUNDANCY that names nobody is about the primary server of the copy that its server got last."""
    before = Window.partitionBy("message", "server").orderBy("at").rangeBetween(Window.unboundedPreceding, Window.currentRow)
    copy = F.max(F.when(is_event("HARECEIVE") & ~is_own(), F.struct("at", "client_hostname"))).over(before)
    is_unnamed = is_promotion() & ~is_own() & (F.col("reference") == "")
    return rows.withColumn("reference", F.when(is_unnamed, F.coalesce(copy["client_hostname"], F.lit(""))).otherwise(F.col("reference")))


def _tells(address: str) -> Column:
    """Whether an address shows which machine has it."""
    return (F.col(address) != "") & (F.col(address) != "::1") & ~F.col(address).startswith("127.")


def _is_from(arrival: Column, other: Column) -> Column:
    """Whether one server received from another one. Shapes: what both received."""
    return (arrival["client_hostname"] == other["server"]) | F.coalesce(arrival["client_ip"] == other["server_ip"], F.lit(False))


def _with_hops(rows: DataFrame, logs: Mapping[str, str | None], without_deliveries: Collection[str]) -> DataFrame:
    """`is_hop`: Exchange handed the message to a server that goes on with it under the same id, and whose log tells what became of it:
    its log is of Exchange, tells of deliveries, and identifies messages alike, or the same recipients were received from this server (by
    name or address), or later through one that has no log here, as through a filter. `hop_to`: that server."""
    telling = {server: each for server, each in logs.items() if server not in without_deliveries}
    oldest = [server for server, each in telling.items() if each == WITHOUT_NETWORK_ID]
    later = [server for server, each in telling.items() if each not in (None, "", OWN_FORMAT, WITHOUT_NETWORK_ID)]
    is_oldest = F.col("format") == WITHOUT_NETWORK_ID
    is_logged = F.when(is_oldest, F.col("server_hostname").isin(*oldest)).otherwise(F.col("server_hostname").isin(*later))
    arrival = F.when(does(ACKNOWLEDGES), F.struct("at", "server", "client_hostname", *ADDRESSES, F.col("recipients").alias("whom")))
    is_receipt, is_handing = is_event("RECEIVE") & ~is_own(), is_event("SEND", "SENDEXTERNAL") & ~is_own()
    arrived = (
        rows.where(is_receipt | is_handing)
        .groupBy("message")
        .agg(
            F.collect_list(arrival).alias("arrivals"),
            F.collect_set(F.when(is_receipt, F.col("server"))).alias("receiving"),
            F.collect_set(F.when(is_handing, F.col("server"))).alias("handing"),
        )
    )
    joined = rows.join(arrived, on="message", how="left")
    first_at = F.array_min(F.transform("arrivals", lambda arrival: arrival["at"]))

    def is_seen(arrival: Column) -> Column:
        is_other = arrival["server"] != F.col("server")
        is_near = (arrival["at"] >= F.col("at") - HANDED_WITHIN_US) & (arrival["at"] <= F.col("at") + HANDED_WITHIN_US)
        to = F.translate(F.lower("server_hostname"), "[]", "")
        is_to_it = (arrival["server_ip"] == F.col("server_ip")) | (arrival["server_ip"] == to)
        is_by_address = F.coalesce(is_to_it, F.lit(False)) | F.coalesce(arrival["client_ip"] == F.col("client_ip"), F.lit(False))
        is_from_it = (arrival["client_hostname"] == F.col("server")) | is_by_address
        is_after = F.when(is_other, arrival["at"] >= F.col("at") - CLOCKS_DIFFER_US).otherwise(arrival["at"] > F.col("at"))
        is_first_by_mistake = F.array_contains("receiving", F.col("server")) & ~F.array_contains("handing", arrival["server"])
        is_later = is_after & (arrival["at"] > first_at)
        of_other = F.filter("arrivals", lambda each: each["server"] == arrival["server"])
        is_earliest = is_other & (arrival["at"] == F.array_min(F.transform(of_other, lambda each: each["at"])))
        is_source = is_earliest & F.exists("arrivals", lambda each: (each["server"] == F.col("server")) & _is_from(each, arrival))
        is_stranger = ~arrival["client_hostname"].isin(*logs) & ~is_oldest & ~is_source
        is_by_stranger = is_stranger & (is_later | (is_other & is_near & is_first_by_mistake))
        is_of_hop = (is_other & is_near & is_from_it) | is_by_stranger
        return is_of_hop & (F.size(F.array_except("recipients", arrival["whom"])) == 0)

    seen = F.array_max(F.transform(F.filter("arrivals", is_seen), lambda arrival: F.struct(arrival["at"], arrival["server"])))
    to = F.when(does(HANDS_ON), F.when(is_logged, F.col("server_hostname")).otherwise(seen["server"]))
    return joined.withColumns({"is_hop": to.isNotNull(), "hop_to": to}).drop("arrivals", "receiving", "handing", *ADDRESSES)


def _with_kept_copies(events: DataFrame) -> DataFrame:
    is_copy = F.col("is_copy")
    said = {
        "event": F.lit("HARECEIVE"),
        "source": F.lit(KEPT),
        "message": F.substring_index("source_context", KEPT_AS, -1),
        "client_hostname": F.col("server_hostname"),
        "row_id": F.concat("row_id", F.lit(" kept")),
        "custom_data": F.lit(""),
    }
    each = events.withColumn(
        "is_copy", F.explode(F.when(is_relayed_and_kept(), F.array(F.lit(False), F.lit(True))).otherwise(F.array(F.lit(False))))
    )
    return each.withColumns({name: F.when(is_copy, value).otherwise(F.col(name)) for name, value in said.items()}).drop("is_copy")


def _is_exchange_redirect() -> Column:
    return is_event("HAREDIRECT") & ~is_own()


def _shadow_server() -> Column:
    """Exchange's HAREDIRECT has its own server as server-hostname, and the shadow server in source-context, as
    `EX2.corp.example = 250 2.6.0 … Queued mail for redundancy`. Source: kinesis"""
    named = F.regexp_extract("source_context", r"^\s*([^\s=]+)\s*=\s*250\b", 1)
    return F.when(named != "", named).otherwise(F.col("server_hostname"))


def _replaced() -> dict[str, Column]:
    """A group ends when it is expanded, whoever its members are. Any other recipient goes on if the row names it again."""
    related = in_lower_case(F.array_remove(F.split("related_recipient", ";"), ""))
    others = F.when(is_event("EXPAND"), related).otherwise(F.array_except(related, F.col("recipients")))
    kept = F.when(is_event(*REDIRECTING), F.array_intersect(related, F.col("recipients")))
    return {"replaced": F.when(is_replacement(), others), "kept": F.when(is_replacement(), kept)}


def _servers(logged_servers: Sequence[str], told: Told) -> dict[str, Column]:
    """The columns that name a server. Our own rows use only one name for each."""
    is_named = {"client_hostname": ~is_own(), "server_hostname": ~is_own(), "reference": ~is_own() & is_promotion()}

    def meant(name: str) -> Column:
        return logged_name(in_whole(F.col(name), told.whole), logged_servers, told.domains)

    named = {name: F.when(is_so, meant(name)).otherwise(F.col(name)) for name, is_so in is_named.items()}
    is_telling = ~is_own() & is_event("RECEIVE") & (F.col("replication") != "")
    if told.whole:
        named["replication"] = F.when(is_telling, in_whole(F.col("replication"), told.whole)).otherwise(F.col("replication"))
    return named | {"shadow_server": F.when(is_telling, meant("replication")).otherwise(F.lit(""))}


def logged_name(name: Column, logged_servers: Sequence[str], domains: Collection[str] = ()) -> Column:
    """The logged server that an Exchange log means by this name; unchanged if it means none of them, or may mean several.

    Shapes: `domains` of the servers of these logs, empty if none is known: `mail.kunde.example` is not the server `MAIL` of another domain.
    """
    key = F.lower(name)
    labels = _by(_first_label, logged_servers)
    short = {label: server for label, server in labels.items() if "." not in server}
    label = F.substring_index(key, ".", 1)
    is_of_ours = F.substr(key, F.length(label) + 2).isin(*sorted(domains)) if domains else F.lit(True)
    by_full_name = F.when(is_of_ours, _found(label, short))
    by_label = F.when(F.contains(key, F.lit(".")), by_full_name).otherwise(_found(key, labels))
    meant = F.coalesce(_found(key, _by(str.lower, logged_servers)), by_label, name)
    is_plain = (name == "") | name.isin(*logged_servers)  # first, because a map look-up scans the whole map
    return F.when(is_plain, name).otherwise(meant)


def _first_label(server: str) -> str:
    return server.lower().partition(".")[0]


def _by(key: Callable[[str], str], servers: Sequence[str]) -> dict[str, str]:
    """Servers by their key, without keys that several servers share."""
    counts = Counter(map(key, servers))
    return {key(server): server for server in servers if counts[key(server)] == 1}


def _found(key: Column, servers: Mapping[str, str]) -> Column:
    return F.try_element_at(_literal(servers, "string"), key)


def instant_of_server(server: Column, instants: Mapping[str, int]) -> Column:
    """The server's entry, null if there is none. Units: microseconds."""
    return F.try_element_at(_literal(instants, "bigint"), server)


def _literal(values: Mapping[str, str] | Mapping[str, int], kind: str) -> Column:
    # as one literal: building a map from hundreds of columns takes seconds
    return F.from_json(F.lit(json.dumps(values)), f"map<string,{kind}>")
