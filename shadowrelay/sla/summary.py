"""The parts of summary.json: figures, input, lists and traces, with names and instants as defined in docs/sla.md, section 6.

Each list has the worst entries first and is bounded, so that the driver's data never grows with the input. `trace` also serves
`sla trace`: every row that all servers logged about one message.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from shadowrelay.sla.figures.counting import BY_COPIES, BY_WAY, COUNTS, HOUR_US, MAXIMA, TIMES
from shadowrelay.sla.figures.evidence import Evidence
from shadowrelay.sla.figures.exact import WAYS
from shadowrelay.sla.figures.incidents import UNEXPLAINED
from shadowrelay.sla.figures.log_writers import Identities
from shadowrelay.sla.figures.rows import CLOCKS_DIFFER_US, is_generated_message
from shadowrelay.sla.inspection import Reading, last_readings
from shadowrelay.sla.logs import is_of_mailboxes
from shadowrelay.sla.objectives import LOG_ENDS
from shadowrelay.sla.sites import ExpectedLogs, ServerSite, read_servers, read_shipping
from shadowrelay.sla.warehouse import read_events, read_pruned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA_VERSION = 1
LIST_MAX = 200
TRACED_MAX = 100
INSTANTS = frozenset({"at", "start", "silent_since"})  # and all names that end with _at: microseconds in transforms
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Line = Mapping[str, Any]


def instant(at: int | datetime | None) -> str | None:
    """ "2026-11-21T16:00:00Z", with microseconds unless they are 0. Shapes: microseconds since 1970, or an aware datetime."""
    if at is None:
        return None
    moment = at if isinstance(at, datetime) else _EPOCH + timedelta(microseconds=at)
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def microseconds(at: datetime) -> int:
    """Since 1970. Shapes: `at` is aware."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def figures_of(row: Line) -> dict[str, Any]:
    """One line of figures, nested as in `overall`, without figures of the input."""
    judged = row["messages_redundant"] + row["messages_not_redundant"]
    return {
        "messages_acknowledged": row["messages_acknowledged"],
        "messages_reconstructed": row["messages_reconstructed"],
        "messages_redundant": row["messages_redundant"],
        "messages_by_copies": {str(number): row[name] for number, name in enumerate(BY_COPIES)},
        "messages_redundant_by_way": {way: row[name] for way, name in zip(WAYS, BY_WAY, strict=True)},
        "redundancy_ratio": row["messages_redundant"] / judged if judged else None,
        "messages_dsn": row["messages_dsn"],
        "messages_sent_again": row["messages_sent_again"],
        "messages_done": row["messages_done"],
        "shadow_latency_ms": _times(row, "shadow_latency", with_p99=True),
        "shadow_share": row["shadow_share_us"] / row["ack_share_us"] if row["ack_share_us"] else None,
        "exposure_count": row["exposure_count"],
        "messages_exposed": row["messages_exposed"],
        "messages_exposure_unknown": row["messages_exposure_unknown"],
        "exposure_seconds": row["exposure_us"] / 1e6,
        "exposure_max_seconds": row["exposure_max_us"] / 1e6,
        "discard_lag_ms": _times(row, "discard_lag"),
        "discards_late": row["discards_late"],
        "delivery_latency_ms": _times(row, "delivery_latency", with_p99=True),
        "promotions": row["promotions"],
        "messages_promoted": row["messages_promoted"],
        "takeover_detection_ms": _times(row, "takeover_detection"),
        "takeover_silence_ms": _times(row, "takeover_silence"),
        "takeovers_late": row["takeovers_late"],
        "recipients_lost": row["recipients_lost"],
        "recipients_duplicated": row["recipients_duplicated"],
        "recipients_duplicated_unexplained": row["recipients_duplicated_unexplained"],
        "shadows_orphaned": row["shadows_orphaned"],
        "shadows_kept": row["shadows_kept"],
        "shadows_taken_back": row["shadows_taken_back"],
        "shadows_rerouted": row["shadows_rerouted"],
        "clock_skews": row["clock_skews"],
    }


def _times(row: Line, metric: str, *, with_p99: bool = False) -> dict[str, Any]:
    names = ("count", "p50", "p95", "p99", "max") if with_p99 else ("count", "p50", "p95", "max")
    return {name: row[f"{metric}_{name}"] for name in names}


def placed_figures(row: Line) -> dict[str, Any]:
    """A line of `figures`: window and scope first."""
    place = {"window": row["window"], "start": instant(row["start"]), "scope": row["scope"], "name": row["name"], "other": row["other"]}
    return place | figures_of(row)


def no_figures() -> dict[str, Any]:
    """The line for an input without events."""
    counts = dict.fromkeys((*COUNTS, *MAXIMA, "messages_promoted"), 0)
    return counts | {name: 0 if name.endswith("_count") else None for name in TIMES}


def is_instant(name: str) -> bool:
    """Whether a list's column has microseconds since 1970."""
    return name in INSTANTS or name.endswith("_at")


def with_instants(row: Line) -> dict[str, Any]:
    """A line of a list, with instants as text."""
    return {name: instant(value) if is_instant(name) else value for name, value in row.items()}


def traced(lists: Mapping[str, Iterable[Line]]) -> list[str]:
    """Messages to trace: those of losses and unexplained duplicates first, at most TRACED_MAX.

    Shapes: `lists` as in summary.json, in the same order.
    """
    duplicates = list(lists["duplicates"])
    lines = [
        *lists["losses"],
        *(line for line in duplicates if line["cause"] == "unexplained"),
        *(line for line in duplicates if line["cause"] != "unexplained"),
        *lists["orphans"],
        *lists["exposures"],
        *lists["slow"],
    ]
    return list(dict.fromkeys(line["message"] for line in lines))[:TRACED_MAX]


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a small frame."""
    return [row.asDict(recursive=True) for row in frame.collect()]


# ---- the input

EXAMPLES_MAX = 5


@dataclass(frozen=True, slots=True)
class Inputs:
    """Shapes: `logs` has, for each server with a log: server, format (of its newest file), formats, first_at, last_at (microseconds), rows,
    lines, files, alike (files with the rows of another one). `quarantined`: reason, count, examples; known last."""

    logs: list[dict[str, Any]]
    quarantined: list[dict[str, Any]]
    sites: dict[str, ServerSite] = field(default_factory=dict)
    shipping: ExpectedLogs = field(default_factory=ExpectedLogs)
    one_server: list[list[str]] = field(default_factory=list)  # directories that have one server's log
    one_directory: list[list[str]] = field(default_factory=list)  # a directory, and the servers whose logs it has
    cut_names: list[list[str]] = field(default_factory=list)  # a name that Windows cut, and the servers for which it may stand
    without_deliveries: list[str] = field(default_factory=list)  # servers without the log of what they delivered to mailboxes
    whole: list[tuple[str, str, int, int]] = field(default_factory=list)  # server, file without a bad line, its first and last row

    @property
    def servers(self) -> list[str]:
        """Servers with a log, and those known without one."""
        return sorted({*self.sites, *self.logged})

    @property
    def logged(self) -> list[str]:
        """Servers whose own log is in the input."""
        return [each["server"] for each in self.logs]

    @property
    def logs_by_server(self) -> dict[str, str | None]:
        """The format of each server's log."""
        return {each["server"]: each["format"] for each in self.logs}

    @property
    def of_exchange(self) -> list[str]:
        """Servers with a log of Exchange."""
        return [server for server, each in self.logs_by_server.items() if each and each != "shadowrelay"]

    def with_identities(self, identities: Identities) -> "Inputs":
        """As if each directory had its server's name; those of one server are one."""
        called = identities.directories
        merged: dict[str, dict[str, Any]] = {}
        for each in self.logs:
            name = called.get(each["server"], each["server"])
            merged[name] = _united(merged[name], each) | {"server": name} if name in merged else {**each, "server": name}
        sites = {called.get(name, name): site for name, site in self.sites.items()} | {
            name: site for name, site in self.sites.items() if name not in called and (site.site or site.boundary)
        }
        one_server: dict[str, set[str]] = {}
        for directory, name in called.items():
            one_server.setdefault(name, set()).update({directory, name} & {each["server"] for each in self.logs})
        several = [sorted(names) for names in one_server.values() if len(names) > 1]
        whole = [(identities.of(directory, file), file, first, last) for directory, file, first, last in self.whole]
        logs = sorted(merged.values(), key=lambda one: str(one["server"]))
        return replace(self, logs=logs, sites=sites, one_server=sorted(several), whole=whole)

    def divided(self, logs: list[dict[str, Any]], identities: Identities) -> "Inputs":
        """The same, where a directory has the logs of several servers. Shapes: `logs` with the files of each server."""
        named = self.with_identities(identities)
        servers: dict[str, set[str]] = {}
        for (directory, _), name in identities.files.items():
            servers.setdefault(directory, {identities.directories.get(directory, directory)}).add(name)
        there = {each["server"] for each in logs}
        mixed = [[directory, *sorted(names & there)] for directory, names in sorted(servers.items())]
        return replace(named, logs=sorted(logs, key=lambda one: str(one["server"])), one_directory=mixed)

    @property
    def formats(self) -> set[str]:
        """Formats of all files."""
        return {format_ for each in self.logs for format_ in each["formats"]}

    @property
    def lines_quarantined(self) -> int:
        """Quarantined lines, each counted once."""
        return sum(each["count"] for each in self.quarantined)

    @property
    def log_ends(self) -> dict[str, int | None]:
        """The last row of each log, None if it has none. Units: microseconds."""
        return {each["server"]: each["last_at"] for each in self.logs}

    @property
    def covered(self) -> dict[str, list[tuple[int, int]]]:
        """The times for which each server's log is whole, so that what it does not have did not happen. Units: microseconds."""
        found: dict[str, list[tuple[int, int]]] = {}
        for server, _, first, last in self.whole:
            if last - first >= 2 * CLOCKS_DIFFER_US:
                found.setdefault(server, []).append((first + CLOCKS_DIFFER_US, last - CLOCKS_DIFFER_US))
        return found

    @property
    def beginnings(self) -> list[int]:
        """The first row of each log that has one. Units: microseconds."""
        return [each["first_at"] for each in self.logs if each["first_at"] is not None]

    def newest_at(self) -> int | None:
        """The newest row. Units: microseconds."""
        return max((at for at in self.log_ends.values() if at is not None), default=None)


def read_inputs(warehouse: str) -> Inputs:
    """All inputs of a warehouse except its events and what is in quarantine."""
    files, pruned = last_readings(warehouse), read_pruned(warehouse)
    return Inputs(logs(files), [], read_servers(warehouse), read_shipping(warehouse), whole=[*_whole(files, pruned)])


def _whole(files: Iterable[Reading], pruned: date | None) -> Iterator[tuple[str, str, int, int]]:
    left = microseconds(datetime.combine(pruned, time(), UTC)) if pruned is not None else 0
    for each in files:
        if each.first_at is not None and each.last_at is not None and not each.quarantined and not is_of_mailboxes(each.file):
            first, last = (microseconds(at.astimezone(UTC)) for at in (each.first_at, each.last_at))
            yield each.server, each.file, max(first, left), last


def _united(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two directories with one server's log."""
    newest = max(one, other, key=lambda each: each["last_at"] or 0)
    ends = {
        name: choose((each[name] for each in (one, other) if each[name] is not None), default=None)
        for name, choose in (("first_at", min), ("last_at", max))
    }
    added = {name: one[name] + other[name] for name in ("files", "lines", "rows", "alike")}
    return {**newest, **ends, **added, "formats": sorted({*one["formats"], *other["formats"]})}


def logs(files: Iterable[Reading]) -> list[dict[str, Any]]:
    """One line per server. Shapes: each file once."""
    by_server: dict[str, list[Reading]] = {}
    for each in files:
        by_server.setdefault(each.server, []).append(each)
    return [_log(server, of_server) for server, of_server in sorted(by_server.items())]


def _log(server: str, files: Sequence[Reading]) -> dict[str, Any]:
    contents = [(each.rows, each.first_at, each.last_at) for each in files if each.rows]
    ended = [(each.last_at, each.format) for each in files if each.last_at is not None]
    first = min((each.first_at for each in files if each.first_at is not None), default=None)
    return {
        "server": server,
        "files": len(files),
        "lines": sum(each.lines for each in files),
        "rows": sum(each.rows for each in files),
        "format": max(ended)[1] if ended else None,
        "formats": sorted({each.format for each in files} - {""}),
        "alike": len(contents) - len(set(contents)),
        "first_at": None if first is None else microseconds(first),
        "last_at": microseconds(max(ended)[0]) if ended else None,
    }


def quarantined_once(quarantine: DataFrame) -> DataFrame:
    """Quarantined lines, with lines of a file that was read twice counted once."""
    return quarantine.dropDuplicates(["server", "file", "line", "reason"])


def input_of(inputs: Inputs, *, rows: int, rows_repeated: int) -> dict[str, Any]:
    """`input` of summary.json. Shapes: `rows` includes repeats."""
    servers = [
        {"name": each["server"], **inputs.sites.get(each["server"], ServerSite())._asdict(), "format": each["format"] or ""}
        | {"first_at": instant(each["first_at"]), "last_at": instant(each["last_at"]), "rows": each["rows"]}
        for each in inputs.logs
    ]
    first = min((each["first_at"] for each in inputs.logs if each["first_at"] is not None), default=None)
    return {
        "servers": servers,
        "files": sum(each["files"] for each in inputs.logs),
        "files_missing": len(inputs.shipping.missing),
        "lines": sum(each["lines"] for each in inputs.logs),
        "rows": rows,
        "rows_repeated": rows_repeated,
        "first_at": instant(first),
        "last_at": instant(inputs.newest_at()),
        "quarantine": inputs.quarantined,
        "dropped_before_shipping": [each._asdict() for each in inputs.shipping.dropped[:LIST_MAX]],
        "dropped_count": len(inputs.shipping.dropped),
        "one_server": inputs.one_server[:LIST_MAX],
        "one_directory": inputs.one_directory[:LIST_MAX],
        "cut_names": inputs.cut_names[:LIST_MAX],
        "without_deliveries": inputs.without_deliveries[:LIST_MAX],
        "files_alike": sum(each["alike"] for each in inputs.logs),
    }


# ---- lists

TAKEOVER = (
    "old_primary", "new_primary", "reason", "silent_since", "detected_at", "first_resubmit_at", "last_resubmit_at", "messages",
    "delivered_at",
    "returned_at", "in_time", "seen_at", "in_touch_at",
)  # fmt: skip
TAKEN_BY = ("new_primary", "old_primary", "reason")
DUPLICATE = ("message", "recipient", "count", "cause", "first_server", "first_at", "later_server", "later_at", "sender", "subject")
LOSS = ("message", "recipient", "acknowledged_at", "server", "cause", "sender", "subject")
ORPHAN = ("message", "server", "primary", "at", "cause")
EXPOSURE = ("message", "server", "began_at", "ended_at", "seconds", "is_open", "cause")
SLOW = ("objective", "message", "server", "other", "at", "seconds", "cause")
HOURS_OF_LONG, HOURS_OF_REST = 168, 48
LONG_SCOPES = ("all", "site")
FIGURES_MAX = 3000  # lines: about 4 MB of JSON
CAUSES, SLOW_CAUSES, ROWS, REASONS = "causes of ", "causes of slow", "rows", "reasons"
CAUSED = ("duplicates", "losses", "orphans", "exposures")


ORDER: dict[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]] = {
    "takeovers": lambda line: (*(line[name] for name in ("first_resubmit_at", *TAKEN_BY)), line["detected_at"] or 0),
    "duplicates": lambda line: (line["cause"] != UNEXPLAINED, line["first_at"] - line["later_at"], line["message"], line["recipient"]),
    "losses": lambda line: (line["cause"] == LOG_ENDS, line["acknowledged_at"], line["message"], line["recipient"]),
    "orphans": lambda line: (line["cause"] == LOG_ENDS, line["at"], line["message"], line["server"]),
    "exposures": lambda line: (not line["is_open"], -line["seconds"], line["message"], line["began_at"]),
    "slow": lambda line: (line["objective"], -line["seconds"], line["message"], line["server"], line["at"]),
}


@dataclass(frozen=True, slots=True)
class Listed:
    """Shapes: `lists`, `causes`, `slow_causes` and `quarantined` as in summary.json; `rows_once`: rows of messages that needed the exact
    transforms, without repeats."""

    lists: dict[str, list[dict[str, Any]]]
    causes: dict[str, dict[str, int]]
    slow_causes: dict[str, dict[str, int]]
    quarantined: list[dict[str, Any]]
    rows_once: int


def listed(found: Evidence, slow: DataFrame, quarantined: DataFrame) -> Listed:
    """The bounded lists, with takeovers in order of time and the newest of them if there are too many; and the number of entries by cause,
    of quarantined lines (as from `quarantined_once`) by reason.

    In one query, because each query costs more than its result.
    """
    exposures = found.exposures.withColumn("seconds", F.col("exposed_us") / 1e6)
    bounded = {name: F.left(name, F.lit(CHARACTERS_MAX)).alias(name) for name in ("sender", "subject")}
    duplicates, losses = found.duplicates.withColumns(bounded), found.losses.withColumns(bounded)
    by_cause, is_unknown = F.col("cause") != UNEXPLAINED, F.col("cause") == LOG_ENDS
    parts = [
        _first("takeovers", found.takeovers, TAKEOVER, F.col("first_resubmit_at").desc(), *map(F.col, (*TAKEN_BY, "detected_at"))),
        _first("duplicates", duplicates, DUPLICATE, by_cause, F.col("first_at") - F.col("later_at"), F.col("message"), F.col("recipient")),
        _first("losses", losses, LOSS, is_unknown, F.col("acknowledged_at"), F.col("message"), F.col("recipient")),
        _first("orphans", found.orphans, ORPHAN, is_unknown, F.col("at"), F.col("message"), F.col("server")),
        _first("exposures", exposures, EXPOSURE, ~F.col("is_open"), F.col("exposed_us").desc(), F.col("message"), F.col("began_at")),
        *(_causes(name, getattr(found, name)) for name in CAUSED),
        _slowest(slow),
        slow.groupBy("objective", "cause")
        .agg(F.count(F.lit(1)).alias("count"))
        .select(*_as_json(SLOW_CAUSES, ("objective", "cause", "count"))),
        found.lines.agg(F.coalesce(F.sum("rows_count"), F.lit(0)).alias("rows_once")).select(*_as_json(ROWS, ("rows_once",))),
        _reasons(quarantined),
    ]
    lines: dict[str, list[dict[str, Any]]] = {
        name: [] for name in (*ORDER, *(f"{CAUSES}{name}" for name in CAUSED), SLOW_CAUSES, ROWS, REASONS)
    }
    for row in rows_of(reduce(DataFrame.unionByName, parts)):
        lines[row["list"]].append(json.loads(row["line"]))
    return Listed(
        {name: [with_instants(line) for line in sorted(lines[name], key=order)] for name, order in ORDER.items()},
        {name: {line["cause"]: line["count"] for line in lines[f"{CAUSES}{name}"]} for name in CAUSED},
        _by_objective(lines[SLOW_CAUSES]),
        sorted(lines[REASONS], key=lambda line: str(line["reason"])),
        lines[ROWS][0]["rows_once"],
    )


def _first(name: str, frame: DataFrame, columns: Sequence[str], *order: Column) -> DataFrame:
    return frame.orderBy(*order).limit(LIST_MAX).select(*_as_json(name, columns))


def _slowest(slow: DataFrame) -> DataFrame:
    """The slowest of each objective."""
    slowest = Window.partitionBy("objective").orderBy(F.col("slow_us").desc(), "message", "server", "at")
    number = F.row_number().over(slowest.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    first = slow.withColumns({"number": number, "seconds": F.col("slow_us") / 1e6}).where(F.col("number") <= LIST_MAX)
    return first.select(*_as_json("slow", SLOW))


def _reasons(quarantined: DataFrame) -> DataFrame:
    """For each reason, the count and the first few lines."""
    in_order = Window.partitionBy("reason").orderBy("server", "file", "line")
    number = F.row_number().over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    example = F.when(F.col("number") <= EXAMPLES_MAX, F.struct("server", "file", "line"))
    counted = (
        quarantined.withColumn("number", number)
        .groupBy("reason")
        .agg(F.count(F.lit(1)).alias("count"), F.sort_array(F.collect_list(example)).alias("examples"))
    )
    return counted.select(*_as_json(REASONS, ("reason", "count", "examples")))


def _by_objective(lines: Sequence[Line]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for line in sorted(lines, key=lambda line: (line["objective"], line["cause"])):
        found.setdefault(line["objective"], {})[line["cause"]] = line["count"]
    return found


def _causes(name: str, table: DataFrame) -> DataFrame:
    counted = table.groupBy("cause").agg(F.count(F.lit(1)).alias("count")).orderBy("cause")
    return counted.select(*_as_json(f"{CAUSES}{name}", ("cause", "count")))


def _as_json(name: str, columns: Sequence[str]) -> tuple[Column, Column]:
    """A line of any list: as JSON, lists with different columns have one schema."""
    return F.lit(name).alias("list"), F.to_json(F.struct(*columns), {"ignoreNullFields": "false"}).alias("line")


@dataclass(frozen=True, slots=True)
class Shown:
    """Lines of figures in order, and how many were left out."""

    lines: list[dict[str, Any]]
    left_out: int


def shown(figures: DataFrame) -> Shown:
    """Lines of figures for summary.json, without older hours. Beyond FIGURES_MAX, older lines of small scopes are left out first."""
    wanted = f"""
        SELECT figures.* FROM {{figures}} AS figures
        CROSS JOIN (SELECT coalesce(max(`start`), 0L) AS newest FROM {{figures}} WHERE `window` = 'hour')
        WHERE `window` <> 'hour'
            OR `start` > newest - CASE WHEN scope IN {LONG_SCOPES} THEN {HOURS_OF_LONG} ELSE {HOURS_OF_REST} END * {HOUR_US}L"""
    rank = "CASE WHEN `window` NOT IN ('day', 'hour') THEN 0 WHEN scope = 'all' THEN 1 WHEN scope = 'pair' THEN 3 ELSE 2 END"
    place = ("window", "start", "scope", "name", "other")
    order = f"ORDER BY {rank}, `start` DESC, `window`, `start`, scope, name, other LIMIT {FIGURES_MAX}"
    lines = rows_of(figures.sparkSession.sql(f"{wanted} {order}", figures=figures))
    left_out = figures.sparkSession.sql(wanted, figures=figures).count() - len(lines) if len(lines) == FIGURES_MAX else 0
    return Shown(sorted(lines, key=lambda line: tuple((line[key] is not None, line[key]) for key in place)), left_out)


# ---- traces

TRACE_ROWS_MAX = 500  # of one message: one that was deferred for days has more, and the first rows show the reason
RECIPIENTS_MAX, CHARACTERS_MAX = 20, 1000  # of a row in summary.json
TRACE_COLUMNS = ("at", "server", "event", "source", "client", "to", "recipients", "recipients_count", "text")


def trace(spark: "SparkSession", warehouse: str, message_id: str) -> list[dict[str, Any]]:
    """Every row in order, by network message id or internet message id (with or without its angle brackets); including DSNs and
    journal reports about the message.

    Shapes: as in `traces`, and `message`, because several messages may have the same internet message id.
    """
    bare = message_id.strip().removeprefix("<").removesuffix(">")
    is_it = F.col("message").isin(message_id, bare, f"<{bare}>") | F.col("internet_message_id").isin(message_id, bare, f"<{bare}>")
    is_about_it = is_generated_message() & (F.col("original_message").isin(message_id) | F.col("reference").isin(bare, f"<{bare}>"))
    is_next_hop = (F.col("event") == "RECEIVE") & (F.col("source") == "SMTP") & F.col("reference").isin(message_id)  # relayed by TRACK
    rows = rows_of_trace(read_events(spark, warehouse).where(is_it | is_about_it | is_next_hop), F.col("message"))
    return [{"message": row["message"], **traced_row(row.asDict(recursive=True))} for row in sorted(rows.collect(), key=_in_order)]


def traces(events: DataFrame, messages: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """`traces` of summary.json. Shapes: `messages` is short."""
    if not messages:
        return {}
    wanted = list(messages)
    is_about_it = is_generated_message() & F.col("original_message").isin(wanted)
    of = F.when(F.col("message").isin(wanted), F.col("message")).otherwise(F.col("original_message"))
    rows = rows_of_trace(events.where(F.col("message").isin(wanted) | is_about_it), of)
    result: dict[str, list[dict[str, Any]]] = {message: [] for message in messages}
    cut = rows.withColumns({"recipients": F.slice("recipients", 1, RECIPIENTS_MAX), "text": F.left("text", F.lit(CHARACTERS_MAX))})
    for row in sorted(cut.collect(), key=_in_order):
        result[row["message"]].append(traced_row(row.asDict(recursive=True)))
    return result


def _in_order(row: Row) -> tuple[int, str, int]:
    """Here, because Spark would sort by reading everything twice."""
    return row["at_us"], row["server"], row["line"]


def rows_of_trace(events: DataFrame, message: Column) -> DataFrame:
    """Rows with the columns of a trace, without repeats, at most TRACE_ROWS_MAX per message."""
    said = events.select(
        message.alias("message"), "row_id", F.unix_micros("at").alias("at_us"), "server", "line", "event", "source",
        F.coalesce(F.nullif(F.col("client_hostname"), F.lit("")), "client_ip").alias("client"),
        F.coalesce(F.nullif(F.col("server_hostname"), F.lit("")), "server_ip").alias("to"),
        "recipients", F.size("recipients").alias("recipients_count"), _text().alias("text"),
    )  # fmt: skip
    in_order = Window.partitionBy("message").orderBy("at_us", "server", "line")
    numbered = (
        said.hint("repartition", F.col("message"))
        .dropDuplicates(["message", "row_id"])
        .withColumn("number", F.row_number().over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)))
    )
    return numbered.where(F.col("number") <= TRACE_ROWS_MAX).drop("number", "row_id")


def _text() -> Column:
    """The other information of a row: source-context, reference, replies of the recipients' servers, and our custom-data."""
    parts = ("source_context", "reference")
    statuses = F.array_join(F.array_distinct("recipient_statuses"), "; ")
    return F.concat_ws(
        " · ", *[F.nullif(F.col(part), F.lit("")) for part in parts], F.nullif(statuses, F.lit("")), F.nullif("custom_data", F.lit(""))
    )


def traced_row(row: dict[str, Any]) -> dict[str, Any]:
    """A line of a trace."""
    return {"at": instant(row["at_us"])} | {name: row[name] for name in TRACE_COLUMNS[1:]}
