"""Counts evidence into the figures of every window and scope. docs/sla.md, 2 and 3.

1. *Cells* count events by hour (of a short period by minute), server and pair. There are few cells, so all further sums are computed
   from them and not from rows.
   A cell also has its `age` in whole hours before now, for burn rates, whose windows end now and not at the full hour.
2. *Times* are lists of whole milliseconds for each cell. Percentiles are exact, and need no second scan of the rows.
3. *Windows and scopes* (all, day, hour; everything, boundary, site, server, pair) add up cells and join their times.

All of it is SQL: as objects, the columns would be thousands of calls to the JVM, and Spark would analyze the plan after each step.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from shadowrelay.sla.figures.evidence import Evidence
from shadowrelay.sla.figures.exact import COUNTED, DSN, RECONSTRUCTED, WAYS
from shadowrelay.sla.objectives import BURN_WINDOWS_HOURS, LOG_ENDS

# ---- cells

HOUR_US = 3_600_000_000
MINUTE_US = 60_000_000
CELL_KEY = "slot, age, server, pair_from, pair_to"
MAXIMA = ("exposure_max_us",)
COPIES_MAX = 3  # of `shadow_copies`; more, in a log of another version, count as so many
BY_COPIES = tuple(f"messages_of_{number}_copies" for number in range(COPIES_MAX + 1))
BY_WAY = tuple(f"messages_redundant_{way}" for way in WAYS)
COUNTS = (
    "messages_acknowledged", "messages_reconstructed", "messages_redundant", "messages_not_redundant", *BY_COPIES, *BY_WAY, "messages_dsn",
    "messages_sent_again",
    "messages_done", "shadow_share_us", "ack_share_us", "shadow_count", "shadow_good", "delivery_count", "delivery_good",
    "exposure_count", "messages_exposed", "messages_exposure_unknown", "exposure_us", "exposure_judged", "exposure_bad",
    "recipients", "recipients_lost", "recipients_duplicated", "recipients_duplicated_unexplained",
    "copies", "lag_count", "discards_late", "shadows_orphaned", "promotions", "takeovers_in_time", "takeovers_late", "clock_skews",
    "shadows_kept", "shadows_taken_back", "shadows_rerouted",
)  # fmt: skip
"""Counts that are summed over cells."""

IS_COUNTED = f"kind IN {COUNTED}"
DELIVERY_US = f"CASE WHEN {IS_COUNTED} AND kind <> '{RECONSTRUCTED}' THEN last_delivery_at - `at` END"
"""RECEIVE to the last delivery; null for a reconstructed message, whose RECEIVE is unknown. May be negative."""


@dataclass(frozen=True, slots=True)
class TimeSlots:
    """How events are placed in time. `slot_us` is the length of the shortest window: an hour or a minute. Units: microseconds."""

    now: int
    slot_us: int = HOUR_US

    def cell(self, server: str, pair_from: str, pair_to: str, at: str = "`at`") -> str:
        """The columns CELL_KEY. A pair without one of its servers does not count as a pair."""
        is_pair = f"{pair_from} <> '' AND {pair_to} <> ''"
        return f"""{at} - pmod({at}, {self.slot_us}L) AS slot, floor(({self.now}L - {at}) / {HOUR_US}L) AS age, {server} AS server,
            CASE WHEN {is_pair} THEN {pair_from} END AS pair_from, CASE WHEN {is_pair} THEN {pair_to} END AS pair_to"""


@dataclass(frozen=True, slots=True)
class Within:
    """Time limits for good events. Units: microseconds."""

    shadow_us: int
    delivery_us: int
    exposure_us: int
    lag_us: int


def _events(slots: TimeSlots) -> dict[str, str]:
    """What is counted: messages when and where they were acknowledged, copies with their HARECEIVE, RESUBMIT rows, takeovers, orphans.

    And `again`: messages that a client (not a logged server) had acknowledged, if one with the same internet message id and recipients was
    acknowledged to a client earlier, be it before the interval.
    """
    return {
        "message": f"""
            SELECT {slots.cell("server", "server", "pair_server")}, kind, is_redundant, copies, way, shadow_us, ack_us, done_at,
                {DELIVERY_US} AS delivery_us, recipients_count, is_exposure_known, exposure_count, exposure_us, exposure_max_us,
                lost, duplicated, unexplained
            FROM {{messages}} WHERE `at` IS NOT NULL""",
        "copy": f"SELECT {slots.cell('`primary`', '`primary`', 'server')}, lag_us, is_kept, is_promoted, is_rerouted FROM {{copies}}",
        "promotion": f"""
            SELECT {slots.cell("new_primary", "old_primary", "new_primary")}, message, is_in_time, detection_us, silence_us
            FROM {{promotions}}""",
        "takeover": f"SELECT {slots.cell('new_primary', 'old_primary', 'new_primary', 'first_resubmit_at')} FROM {{takeovers}}",
        "orphan": f"SELECT {slots.cell('`primary`', '`primary`', 'server')} FROM {{orphans}} WHERE cause <> '{LOG_ENDS}'",
        "again": f"""
            SELECT {slots.cell("server", "server", "pair_server")} FROM {{repeated}}
            WHERE `at` > first_at AND `at` >= {{since}}L AND `at` < {{until}}L""",
    }


def _facts(within: Within) -> Iterator[str]:
    """The counts of each event."""
    is_judged = f"{IS_COUNTED} AND is_redundant IS NOT NULL"
    is_too_long = f"exposure_us > {within.exposure_us}L"
    has_both = "shadow_us IS NOT NULL AND ack_us IS NOT NULL"
    conditions = {
        "messages_acknowledged": IS_COUNTED,
        "messages_reconstructed": f"kind = '{RECONSTRUCTED}'",
        "messages_redundant": f"{IS_COUNTED} AND is_redundant",
        "messages_not_redundant": f"{IS_COUNTED} AND NOT is_redundant",
        **{name: f"{is_judged} AND least(copies, {COPIES_MAX}) = {number}" for number, name in enumerate(BY_COPIES)},
        **{name: f"{IS_COUNTED} AND way = '{way}'" for name, way in zip(BY_WAY, WAYS, strict=True)},
        "messages_dsn": f"kind = '{DSN}'",
        "messages_done": f"{IS_COUNTED} AND done_at IS NOT NULL",
        "shadow_count": "shadow_us IS NOT NULL",
        "shadow_good": f"shadow_us <= {within.shadow_us}L",
        "delivery_count": "delivery_us IS NOT NULL",
        "delivery_good": f"delivery_us <= {within.delivery_us}L",
        "messages_exposed": f"{IS_COUNTED} AND exposure_count > 0",
        "messages_exposure_unknown": f"{is_judged} AND NOT is_exposure_known",
        "exposure_judged": f"{is_judged} AND (is_exposure_known OR {is_too_long})",
        "exposure_bad": f"{is_judged} AND {is_too_long}",
        "clock_skews": "delivery_us < 0L",
    }
    numbers = {
        "shadow_share_us": f"CASE WHEN {has_both} THEN shadow_us END",
        "ack_share_us": f"CASE WHEN {has_both} THEN ack_us END",
        "exposure_count": "exposure_count",
        "exposure_us": "exposure_us",
        "exposure_max_us": "exposure_max_us",
        "recipients": f"CASE WHEN {IS_COUNTED} THEN recipients_count END",
        "recipients_lost": "lost",
        "recipients_duplicated": "duplicated",
        "recipients_duplicated_unexplained": "unexplained",
    }
    yield _counts_of("message", conditions, numbers)
    lags = {"lag_count": "lag_us IS NOT NULL", "discards_late": f"lag_us > {within.lag_us}L", "clock_skews": "lag_us < 0L"}
    is_taken_back = "is_kept AND is_promoted"
    kept = {"shadows_kept": "is_kept", "shadows_taken_back": is_taken_back, "shadows_rerouted": f"{is_taken_back} AND is_rerouted"}
    yield _counts_of("copy", {"copies": "true", **lags, **kept})
    skews = {"clock_skews": f"{_one('detection_us < 0L')} + {_one('silence_us < 0L')}"}
    yield _counts_of("promotion", {"takeovers_in_time": "is_in_time", "takeovers_late": "NOT is_in_time"}, skews)
    for table, name in (("takeover", "promotions"), ("orphan", "shadows_orphaned"), ("again", "messages_sent_again")):
        yield _counts_of(table, {name: "true"})


def _counts_of(table: str, conditions: Mapping[str, str], numbers: Mapping[str, str] | None = None) -> str:
    """CELL_KEY, COUNTS and MAXIMA; 0 for counts that are not given."""
    said = {name: _one(condition) for name, condition in conditions.items()} | dict(numbers or {})
    values = [f"coalesce({said.get(name, '0L')}, 0L) AS {name}" for name in (*COUNTS, *MAXIMA)]
    return f"SELECT {CELL_KEY}, {', '.join(values)} FROM {table}"


def _one(condition: str) -> str:
    return f"CASE WHEN {condition} THEN 1L ELSE 0L END"


ADDED = ", ".join(f"{how}({name}) AS {name}" for how, names in (("sum", COUNTS), ("max", MAXIMA)) for name in names)
"""Sums of COUNTS and MAXIMA over several lines."""

# ---- times

METRICS = ("shadow_latency", "discard_lag", "delivery_latency", "takeover_detection", "takeover_silence")
PERCENTS = (50, 95, 99)
RANKS = ("count", "max", *(f"p{percent}" for percent in PERCENTS))
TIMES_OF = {
    "message": {"shadow_latency": "shadow_us", "delivery_latency": "delivery_us"},
    "copy": {"discard_lag": "lag_us"},
    "promotion": {"takeover_detection": "detection_us", "takeover_silence": "silence_us"},
}


def _times(table: str) -> str:
    """(place, metric, ms), one line per time. Negative times count as 0."""
    values = ", ".join(f"named_struct('metric', {METRICS.index(name)}, 'us', {time})" for name, time in TIMES_OF[table].items())
    return f"""
        SELECT slot, server, pair_from, pair_to, metric, floor(greatest(us, 0L) / 1000L) AS ms
        FROM {table} LATERAL VIEW inline(array({values})) times AS metric, us WHERE us IS NOT NULL"""


def percentiles(histogram: str, *keys: str) -> str:
    """Nearest rank: of n sorted values the ceil(p * n)-th. One line for each of `keys`, with RANKS of each metric.

    Shapes: a query; `histogram` is a table: keys, metric (index into METRICS), ms, count; each (keys, metric, ms) once.
    """
    return _by_metric(_ranks_of_histogram(histogram, *keys), *keys)


def _ranks_of_histogram(histogram: str, *keys: str) -> str:
    """RANKS, one line for each of `keys` and each metric."""
    keyed = "".join(f"{key}, " for key in keys)
    sorted_times = f"PARTITION BY {keyed}metric ORDER BY ms ROWS BETWEEN UNBOUNDED PRECEDING AND"
    reached = ", ".join(f"min(CASE WHEN upto * 100 >= total * {percent} THEN ms END) AS p{percent}" for percent in PERCENTS)
    return f"""
        SELECT {keyed}metric, max(total) AS count, max(ms) AS max, {reached} FROM (
            SELECT {keyed}metric, ms, sum(count) OVER ({sorted_times} CURRENT ROW) AS upto,
                sum(count) OVER ({sorted_times} UNBOUNDED FOLLOWING) AS total
            FROM {histogram}
        ) GROUP BY ALL"""


def _ranks_of_list(table: str, *keys: str) -> str:
    """The same. Shapes: `table` has keys, metric, and `sorted`, all times in order, at least one."""
    keyed = "".join(f"{key}, " for key in keys)
    reached = ", ".join(f"sorted[(size(sorted) * {percent} + 99) DIV 100 - 1] AS p{percent}" for percent in PERCENTS)
    return f"SELECT {keyed}metric, CAST(size(sorted) AS BIGINT) AS count, sorted[size(sorted) - 1] AS max, {reached} FROM {table}"


def _by_metric(ranks: str, *keys: str) -> str:
    """One line for each of `keys`, from one for each of its metrics."""
    columns = ", ".join(
        f"max(CASE WHEN metric = {number} THEN {rank} END) AS {metric}_{rank}" for number, metric in enumerate(METRICS) for rank in RANKS
    )
    return f"SELECT {''.join(f'{key}, ' for key in keys)}{columns} FROM ({ranks}) GROUP BY ALL"


# ---- windows and scopes

DAY_US = 24 * HOUR_US
MINUTE = "minute"
FIGURE_KEY = "`window`, `start`, scope, name, other"
TIMES = tuple(f"{metric}_{column}" for metric in METRICS for column in RANKS)
SCOPES = {
    "all": ("''", "''"),
    "boundary": ("boundary", "''"),
    "site": ("site", "''"),
    "server": ("server", "''"),
    "pair": ("pair_from", "pair_to"),
}
"""Scope -> name and other, for a line with its place, site and boundary. One with an empty name does not exist."""
PLACED = "(SELECT /*+ BROADCAST(sites) */ * FROM {} LEFT JOIN {{sites}} AS sites USING (server))"
"""A table with the sites and boundaries of its servers."""


def _windows(*, has_minutes: bool) -> dict[str, str]:
    """Name -> start, for a line with its slot."""
    day, hour = (f"slot - pmod(slot, {length}L)" for length in (DAY_US, HOUR_US))
    return {"all": "CAST(NULL AS BIGINT)", "day": day, "hour": hour} | ({MINUTE: "slot"} if has_minutes else {})


def _scoped(table: str, columns: str, *, has_minutes: bool) -> str:
    """Repeat each line for all time, its day, its hour and, if there are any, its minute; in these for each scope that it has."""
    windows = [f"named_struct('window', '{name}', 'start', {start})" for name, start in _windows(has_minutes=has_minutes).items()]
    scopes = [
        f"CASE WHEN {_is_scope(scope, '`window`')} THEN named_struct('scope', '{scope}', 'name', {name}, 'other', {other}) END"
        for scope, (name, other) in SCOPES.items()
    ]
    return f"""
        SELECT {FIGURE_KEY}, {columns} FROM {PLACED.format(table)}
        LATERAL VIEW inline(array({", ".join(windows)})) windows AS `window`, `start`
        LATERAL VIEW inline(array({", ".join(scopes)})) scopes AS scope, name, other
        WHERE scope IS NOT NULL"""


def _is_scope(scope: str, window: str) -> str:
    """Whether a line counts in this scope. Minutes exist for scope `all` only. Shapes: `window` is SQL."""
    return "true" if scope == "all" else f"{window} <> '{MINUTE}' AND {SCOPES[scope][0]} <> ''"


def _looking_back(columns: str) -> str:
    """Sums over the last hours before now, for scope `all` only."""
    windows = ", ".join(f"named_struct('window', '{name}', 'hours', {hours})" for name, hours in BURN_WINDOWS_HOURS.items())
    return f"""
        SELECT `window`, CAST(NULL AS BIGINT) AS `start`, 'all' AS scope, '' AS name, '' AS other, {columns}
        FROM {{cells}} LATERAL VIEW inline(array({windows})) windows AS `window`, hours WHERE age >= 0 AND age < hours"""


def _places(windows: Iterable[str], *, has_minutes: bool) -> str:
    """An array of the places in which a line with its site and boundary counts; null for a scope that it does not have."""
    starts = _windows(has_minutes=has_minutes)
    places = ", ".join(
        f"CASE WHEN {_is_scope(scope, repr(window))} THEN {_place(repr(window), starts[window], repr(scope), name, other)} END"
        for window in windows
        for scope, (name, other) in SCOPES.items()
        if window != MINUTE or scope == "all"
    )
    return f"array({places})"


def _ranks(*, has_minutes: bool) -> dict[str, str]:
    """Steps up to `timed`: RANKS of each metric for every window and scope, by place.

    Each time counts in up to fifteen of them, which is most of the work here, so `place` is a single number, and no text is copied,
    compared or sorted. The times of a day fit into memory: sorted as one list, they take a fifth of the time that a histogram takes. The
    whole period may be of any length, and has a histogram.
    """
    whole, *parts = _windows(has_minutes=has_minutes)
    counted = """(
        SELECT server, pair_from, pair_to, metric, ms, count(1) AS count FROM {times} LATERAL VIEW explode(times) each AS ms
        GROUP BY ALL)"""
    compact = "(SELECT * EXCEPT (times), array_compact(times) AS times FROM {times})"  # lists without nulls are sorted as numbers
    return {
        "counted": f"""
            SELECT place, metric, ms, sum(count) AS count
            FROM {PLACED.format(counted)} LATERAL VIEW explode({_places([whole], has_minutes=has_minutes)}) places AS place
            WHERE place IS NOT NULL GROUP BY place, metric, ms""",
        "listed": f"""
            SELECT place, metric, sort_array(flatten(collect_list(times))) AS sorted
            FROM {PLACED.format(compact)} LATERAL VIEW explode({_places(parts, has_minutes=has_minutes)}) places AS place
            WHERE place IS NOT NULL GROUP BY place, metric""",
        "timed": _by_metric(f"{_ranks_of_histogram('counted', 'place')} UNION ALL {_ranks_of_list('listed', 'place')}", "place"),
    }


def _place(*key: str) -> str:
    """A 64-bit key for a window and scope, of which there are at most some hundred thousand."""
    return f"xxhash64({', '.join(key)})"


# ---- all figures


def cells(found: Evidence, slots: TimeSlots, *, within: Within) -> DataFrame:
    """One line per cell."""
    text = f"SELECT {CELL_KEY}, {ADDED} FROM ({' UNION ALL '.join(_facts(within))}) GROUP BY {CELL_KEY}"
    return _asked(text, _events(slots), found)


def times(found: Evidence, slots: TimeSlots) -> DataFrame:
    """(slot, server, pair_from, pair_to, metric) -> times, all that were measured, in milliseconds."""
    text = f"""
        SELECT slot, server, pair_from, pair_to, metric, collect_list(ms) AS times FROM ({" UNION ALL ".join(map(_times, TIMES_OF))})
        GROUP BY ALL"""
    return _asked(text, {name: step for name, step in _events(slots).items() if name in TIMES_OF}, found)


def figures(cells: DataFrame, times: DataFrame, found: Evidence, sites: DataFrame, slots: TimeSlots) -> DataFrame:
    """One line for each window and scope with events; windows like "6h" end now, and exist for scope `all` only, as do minutes.

    Shapes: `cells` and `times` as from the functions of these names, stored: they are read more than once; `sites` is small: server,
    site, boundary. `start` is in microseconds, null for `all` and for windows that end now.
    """
    has_minutes, columns = slots.slot_us < HOUR_US, ", ".join((*COUNTS, *MAXIMA))
    nothing = ", ".join(f"NULL AS {name}" for name in (*COUNTS, *MAXIMA, *TIMES))
    steps = {
        "promotion": _events(slots)["promotion"],
        **_ranks(has_minutes=has_minutes),
        "added": f"""
            SELECT {FIGURE_KEY}, {ADDED} FROM ({_scoped("{cells}", columns, has_minutes=has_minutes)} UNION ALL {_looking_back(columns)})
            GROUP BY {FIGURE_KEY}""",
        "promoted": f"""
            SELECT {FIGURE_KEY}, count(1) AS messages_promoted
            FROM (SELECT DISTINCT * FROM ({_scoped("promotion", "message", has_minutes=has_minutes)})) GROUP BY {FIGURE_KEY}""",
        "together": f"""
            SELECT {FIGURE_KEY}, {columns}, {", ".join(TIMES)}, NULL AS messages_promoted
            FROM added LEFT JOIN timed ON {_place(FIGURE_KEY)} = place
            UNION ALL SELECT {FIGURE_KEY}, {nothing}, messages_promoted FROM promoted""",
    }
    numbers = ", ".join(map(_number, (*COUNTS, *MAXIMA, "messages_promoted", *TIMES)))
    text = f"SELECT {FIGURE_KEY}, {numbers} FROM together GROUP BY {FIGURE_KEY}"
    return _asked(text, steps, found, cells=cells, times=times, sites=sites)


def _asked(text: str, steps: Mapping[str, str], found: Evidence, **frames: DataFrame) -> DataFrame:
    """Shapes: `text` is a query of `steps`, by their names, and these of tables, by their names in braces."""
    named: dict[str, Any] = {
        name: getattr(found, name) for name in ("repeated", "messages", "copies", "promotions", "takeovers", "orphans")
    }
    since, until = found.interval
    before = ", ".join(f"{name} AS ({step})" for name, step in steps.items())
    return found.messages.sparkSession.sql(f"WITH {before} {text}", None, since=since, until=until, **named, **frames)


def _number(name: str) -> str:
    """At most one of the lines of a window and scope has the value. A time without events stays null; a count is 0."""
    is_time = name in TIMES and not name.endswith("_count")
    return f"max({name}) AS {name}" if is_time else f"coalesce(max({name}), 0L) AS {name}"
