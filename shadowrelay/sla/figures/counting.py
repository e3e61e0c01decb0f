"""Counts evidence into the figures of every window and scope. docs/sla.md, 2 and 3.

1. *Cells* count events by hour (of a short period by minute), server and pair. There are few cells, so all further sums are computed
   from them and not from rows.
   A cell also has its `age` in whole hours before now, for burn rates, whose windows end now and not at the full hour.
2. *Histograms* count times in whole milliseconds. They are exact and can be merged, so the percentiles of a day need no second scan of
   the rows.
3. *Windows and scopes* (all, day, hour; everything, boundary, site, server, pair) add up cells and merge histograms.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from shadowrelay.sla.figures.evidence import Evidence, sent_again
from shadowrelay.sla.figures.exact import COUNTED, DSN, RECONSTRUCTED
from shadowrelay.sla.figures.first_pass import server_names
from shadowrelay.sla.figures.incidents import without_unknown
from shadowrelay.sla.objectives import BURN_WINDOWS_HOURS

# ---- cells

HOUR_US = 3_600_000_000
MINUTE_US = 60_000_000
CELL_KEY = ("slot", "age", "server", "pair_from", "pair_to")
MAXIMA = ("exposure_max_us",)
COPIES_MAX = 3  # of `shadow_copies`; more, in a log of another version, count as so many
BY_COPIES = tuple(f"messages_of_{number}_copies" for number in range(COPIES_MAX + 1))
COUNTS = (
    "messages_acknowledged", "messages_reconstructed", "messages_redundant", "messages_not_redundant", *BY_COPIES, "messages_dsn",
    "messages_sent_again",
    "messages_done", "shadow_share_us", "ack_share_us", "shadow_count", "shadow_good", "delivery_count", "delivery_good",
    "exposure_count", "messages_exposed", "exposure_us", "exposure_judged", "exposure_bad",
    "recipients", "recipients_lost", "recipients_duplicated", "recipients_duplicated_unexplained",
    "copies", "lag_count", "discards_late", "shadows_orphaned", "promotions", "takeovers_in_time", "takeovers_late", "clock_skews",
)  # fmt: skip
"""Counts that are summed over cells."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How events are placed in time. `slot_us` is the length of the shortest window: an hour or a minute. Units: microseconds."""

    now: int
    slot_us: int = HOUR_US


def placed(frame: DataFrame, server: str, pair_from: str, pair_to: str, clock: Clock) -> DataFrame:
    """Add the columns of `CELL_KEY`, by the column `at`. A pair without one of its servers does not count as a pair."""
    is_pair = f"{pair_from} <> '' AND {pair_to} <> ''"
    named = {
        "slot": f"`at` - pmod(`at`, {clock.slot_us}L)",
        "age": f"floor(({clock.now}L - `at`) / {HOUR_US}L)",
        "server": server,
        "pair_from": f"CASE WHEN {is_pair} THEN {pair_from} END",
        "pair_to": f"CASE WHEN {is_pair} THEN {pair_to} END",
    }
    return frame.withColumns({name: F.expr(text) for name, text in named.items()})


def placed_messages(messages: DataFrame, clock: Clock) -> DataFrame:
    """The place of a message: when and by which server it was acknowledged."""
    return placed(messages.where("`at` IS NOT NULL"), "server", "server", "pair_server", clock)


def placed_copies(copies: DataFrame, clock: Clock) -> DataFrame:
    """The place of a copy: its HARECEIVE."""
    return placed(copies.withColumnRenamed("server", "shadow"), "primary", "primary", "shadow", clock)


def placed_promotions(promotions: DataFrame, clock: Clock) -> DataFrame:
    """The place of a RESUBMIT row."""
    return placed(promotions, "new_primary", "old_primary", "new_primary", clock)


IS_COUNTED = f"kind IN {COUNTED}"
DELIVERY_US = f"CASE WHEN {IS_COUNTED} AND kind <> '{RECONSTRUCTED}' THEN last_delivery_at - `at` END"
"""RECEIVE to the last delivery; null for a reconstructed message, whose RECEIVE is unknown. May be negative."""


def message_facts(placed: DataFrame, *, shadow_within_us: int, delivery_within_us: int, exposure_within_us: int) -> DataFrame:
    """The counts of each message. Shapes: `placed` as from `placed_messages`. Units: microseconds."""
    is_judged = f"{IS_COUNTED} AND is_redundant IS NOT NULL"
    conditions = {
        "messages_acknowledged": IS_COUNTED,
        "messages_reconstructed": f"kind = '{RECONSTRUCTED}'",
        "messages_redundant": f"{IS_COUNTED} AND is_redundant",
        "messages_not_redundant": f"{IS_COUNTED} AND NOT is_redundant",
        **{name: f"{is_judged} AND least(copies, {COPIES_MAX}) = {number}" for number, name in enumerate(BY_COPIES)},
        "messages_dsn": f"kind = '{DSN}'",
        "messages_done": f"{IS_COUNTED} AND done_at IS NOT NULL",
        "shadow_count": "shadow_us IS NOT NULL",
        "shadow_good": f"shadow_us <= {shadow_within_us}L",
        "delivery_count": f"({DELIVERY_US}) IS NOT NULL",
        "delivery_good": f"({DELIVERY_US}) <= {delivery_within_us}L",
        "messages_exposed": f"{IS_COUNTED} AND exposure_count > 0",
        "exposure_judged": is_judged,
        "exposure_bad": f"{is_judged} AND exposure_us > {exposure_within_us}L",
        "clock_skews": f"({DELIVERY_US}) < 0L",
    }
    has_both = "shadow_us IS NOT NULL AND ack_us IS NOT NULL"
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
    return _facts(placed, conditions, numbers)


def delivery_us_of() -> Column:
    """`DELIVERY_US` as a column."""
    return F.expr(DELIVERY_US)


def copy_facts(placed: DataFrame, *, lag_within_us: int) -> DataFrame:
    """The counts of each copy. Shapes: `placed` as from `placed_copies`. Units: microseconds."""
    conditions = {
        "copies": "true",
        "lag_count": "lag_us IS NOT NULL",
        "discards_late": f"lag_us > {lag_within_us}L",
        "clock_skews": "lag_us < 0L",
    }
    return _facts(placed, conditions)


def promotion_facts(placed: DataFrame) -> DataFrame:
    """The counts of each RESUBMIT row. Shapes: `placed` as from `placed_promotions`."""
    in_time = {"takeovers_in_time": "is_in_time", "takeovers_late": "NOT is_in_time"}
    return _facts(placed, in_time, {"clock_skews": f"{_one('detection_us < 0L')} + {_one('silence_us < 0L')}"})


def single_facts(placed: DataFrame, name: str) -> DataFrame:
    """Each line counts once in `name`: a takeover, an orphan, a message that was sent again."""
    return _facts(placed, {name: "true"})


def _facts(placed: DataFrame, conditions: Mapping[str, str], numbers: Mapping[str, str] | None = None) -> DataFrame:
    """CELL_KEY, COUNTS and MAXIMA; 0 for counts that are not given.

    Shapes: conditions and numbers are SQL: as objects, each would be dozens of calls to the JVM.
    """
    said = {name: _one(condition) for name, condition in conditions.items()} | dict(numbers or {})
    values = [f"coalesce({said.get(name, '0L')}, 0L) AS {name}" for name in (*COUNTS, *MAXIMA)]
    return placed.selectExpr(*CELL_KEY, *values)


def _one(condition: str) -> str:
    return f"CASE WHEN {condition} THEN 1L ELSE 0L END"


def added() -> list[Column]:
    """Sums of COUNTS and MAXIMA over several lines."""
    return [F.expr(f"{how}({name}) AS {name}") for how, names in (("sum", COUNTS), ("max", MAXIMA)) for name in names]


def cells(facts: list[DataFrame]) -> DataFrame:
    """One line per cell."""
    return reduce(DataFrame.unionByName, facts).groupBy(*CELL_KEY).agg(*added())


# ---- histograms

METRICS = ("shadow_latency", "discard_lag", "delivery_latency", "takeover_detection", "takeover_silence")
PERCENTS = (50, 95, 99)
HISTOGRAM_KEY = ("slot", "server", "pair_from", "pair_to")


def message_times(placed: DataFrame) -> DataFrame:
    """The times of messages, one line per time. Shapes: `placed` as from `placed_messages`."""
    return _times(placed, {"shadow_latency": F.col("shadow_us"), "delivery_latency": delivery_us_of()})


def copy_times(placed: DataFrame) -> DataFrame:
    """The same for copies."""
    return _times(placed, {"discard_lag": F.col("lag_us")})


def promotion_times(placed: DataFrame) -> DataFrame:
    """The same for RESUBMIT rows."""
    return _times(placed, {"takeover_detection": F.col("detection_us"), "takeover_silence": F.col("silence_us")})


def _times(placed: DataFrame, times: Mapping[str, Column]) -> DataFrame:
    """(place, metric, ms). Negative times count as 0."""
    values = [F.struct(F.lit(METRICS.index(name)).alias("metric"), time.alias("us")) for name, time in times.items()]
    each = placed.select(*HISTOGRAM_KEY, F.explode(F.array(*values)).alias("time")).where(F.col("time.us").isNotNull())
    milliseconds = F.floor(F.greatest(F.col("time.us"), F.lit(0)) / F.lit(1000))
    return each.select(*HISTOGRAM_KEY, F.col("time.metric").alias("metric"), milliseconds.alias("ms"))


def histogram(times: list[DataFrame]) -> DataFrame:
    """(place, metric, ms) -> count."""
    return reduce(DataFrame.unionByName, times).groupBy(*HISTOGRAM_KEY, "metric", "ms").agg(F.count(F.lit(1)).alias("count"))


def percentiles(histogram: DataFrame, *keys: str) -> DataFrame:
    """Nearest rank: of n sorted values the ceil(p * n)-th. One line for each of `keys`, with count, p50, p95, p99 and max of each metric.

    Shapes: `histogram`: keys, metric (index into METRICS), ms, count; each (keys, metric, ms) once.
    """
    sorted_times = Window.partitionBy(*keys, "metric").orderBy("ms")
    upto = F.sum("count").over(sorted_times.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    all_of_it = F.sum("count").over(sorted_times.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing))
    ranked = histogram.withColumns({"upto": upto, "total": all_of_it})
    reached = {f"p{percent}": F.when(F.col("upto") * 100 >= F.col("total") * percent, F.col("ms")) for percent in PERCENTS}
    of_metric = ranked.groupBy(*keys, "metric").agg(
        F.max("total").alias("count"),
        F.max("ms").alias("max"),
        *[F.min(ms).alias(name) for name, ms in reached.items()],
    )
    columns = [
        F.max(F.when(F.col("metric") == number, F.col(column))).alias(f"{metric}_{column}")
        for number, metric in enumerate(METRICS)
        for column in ("count", "max", *reached)
    ]
    return of_metric.groupBy(*keys).agg(*columns)


# ---- windows and scopes

DAY_US = 24 * HOUR_US
FIGURE_KEY = ("window", "start", "scope", "name", "other")
TIMES = tuple(f"{metric}_{column}" for metric in METRICS for column in ("count", "max", *(f"p{percent}" for percent in PERCENTS)))


def figures(cells: DataFrame, histogram: DataFrame, promoted: DataFrame, sites: DataFrame, *, has_minutes: bool = False) -> DataFrame:
    """One line for each window and scope with events; windows like "6h" end now, and exist for scope `everything` only, as do minutes.

    Shapes: `cells` and `histogram` as from the functions of these names; `promoted` are the placed RESUBMIT rows; `sites` is small:
    server, site, boundary. `start` is in microseconds, null for `all` and for windows that end now.
    """
    counted = _scoped(_windowed(cells, has_minutes=has_minutes), sites).unionByName(_looking_back(cells)).groupBy(*FIGURE_KEY).agg(*added())
    timed = percentiles(_merged(histogram, sites, has_minutes=has_minutes), "place")
    counted = counted.withColumn("place", _place(*map(F.col, FIGURE_KEY))).join(timed, on="place", how="left").drop("place")
    promoted = promoted.select("slot", "server", "pair_from", "pair_to", "message")
    distinct = _scoped(_windowed(promoted, has_minutes=has_minutes), sites)
    different = (
        distinct.groupBy(*FIGURE_KEY, "message")
        .agg(F.lit(1).alias("one"))
        .groupBy(*FIGURE_KEY)
        .agg(F.count("one").alias("messages_promoted"))
    )
    together = counted.unionByName(different, allowMissingColumns=True)
    numbers = (*COUNTS, *MAXIMA, "messages_promoted", *TIMES)
    return together.groupBy(*FIGURE_KEY).agg(*[_number(name) for name in numbers])


def _number(name: str) -> Column:
    """At most one of the lines of a window and scope has the value. A time without events stays null; a count is 0."""
    is_time = name in TIMES and not name.endswith("_count")
    return F.expr(f"max({name}) AS {name}" if is_time else f"coalesce(max({name}), 0L) AS {name}")


def _merged(histogram: DataFrame, sites: DataFrame, *, has_minutes: bool) -> DataFrame:
    """place, metric, ms -> count for every window and scope. Each time counts in up to fifteen of them, which is most of the work here,
    so `place` is a single number, and no text is copied, compared or sorted."""
    places = [
        F.when(_is_scope(scope, name), _place(F.lit(window), start, F.lit(scope), name, other))
        for window, start in _windows(has_minutes=has_minutes).items()
        for scope, (name, other) in _scopes().items()
        if window != MINUTE or scope == "all"
    ]
    each = histogram.join(F.broadcast(sites), on="server", how="left").select(
        "metric", "ms", "count", F.explode(F.array(*places)).alias("place")
    )
    return each.where(F.col("place").isNotNull()).groupBy("place", "metric", "ms").agg(F.sum("count").alias("count"))


def _place(window: Column, start: Column, scope: Column, name: Column, other: Column) -> Column:
    """A 64-bit key for a window and scope, of which there are at most some hundred thousand."""
    return F.xxhash64(window, start, scope, name, other)


MINUTE = "minute"


def _windows(*, has_minutes: bool) -> dict[str, Column]:
    """Name -> start, for a line with its slot."""
    day, hour = (F.col("slot") - F.pmod(F.col("slot"), F.lit(length)) for length in (DAY_US, HOUR_US))
    return {"all": F.lit(None).cast("long"), "day": day, "hour": hour} | ({MINUTE: F.col("slot")} if has_minutes else {})


def _scopes() -> dict[str, tuple[Column, Column]]:
    """Scope -> name and other, for a line with its place, site and boundary."""
    none = F.lit("")
    return {
        "all": (none, none),
        "boundary": (F.col("boundary"), none),
        "site": (F.col("site"), none),
        "server": (F.col("server"), none),
        "pair": (F.col("pair_from"), F.col("pair_to")),
    }


def _is_scope(scope: str, name: Column) -> Column:
    """A scope with an empty name does not exist."""
    return F.lit(True) if scope == "all" else name != ""


def _windowed(frame: DataFrame, *, has_minutes: bool) -> DataFrame:
    """Repeat each line for all time, its day, its hour and, if there are any, its minute."""
    windows = [F.struct(F.lit(name).alias("window"), start.alias("start")) for name, start in _windows(has_minutes=has_minutes).items()]
    return frame.withColumn("of", F.explode(F.array(*windows))).select("*", "of.window", "of.start").drop("of")


def _scoped(frame: DataFrame, sites: DataFrame) -> DataFrame:
    """Repeat each line for scope `everything`, and for each scope of which it has a name."""
    is_placed = F.col("window") != MINUTE
    scopes = [
        F.when(
            _is_scope(scope, name) & (F.lit(scope == "all") | is_placed),
            F.struct(F.lit(scope).alias("scope"), name.alias("name"), other.alias("other")),
        )
        for scope, (name, other) in _scopes().items()
    ]
    each = frame.join(F.broadcast(sites), on="server", how="left").withColumn("of", F.explode(F.array(*scopes)))
    named = each.where(F.col("of").isNotNull()).select("*", "of.scope", "of.name", "of.other")
    return named.drop("of", "slot", "age", "server", "site", "boundary", "pair_from", "pair_to")


def _looking_back(cell: DataFrame) -> DataFrame:
    """Sums over the last hours before now."""
    windows = [F.struct(F.lit(name).alias("window"), F.lit(hours).alias("hours")) for name, hours in BURN_WINDOWS_HOURS.items()]
    each = cell.withColumn("of", F.explode(F.array(*windows)))
    is_in = (F.col("age") >= 0) & (F.col("age") < F.col("of.hours"))
    none = F.lit("")
    return each.where(is_in).select(
        F.col("of.window").alias("window"), F.lit(None).cast("long").alias("start"), F.lit("all").alias("scope"),
        none.alias("name"), none.alias("other"), *COUNTS, *MAXIMA,
    )  # fmt: skip


# ---- all figures


@dataclass(frozen=True, slots=True)
class Within:
    """Time limits for good events. Units: microseconds."""

    shadow_us: int
    delivery_us: int
    exposure_us: int
    lag_us: int


def counted(found: Evidence, sites: DataFrame, logged: DataFrame, clock: Clock, *, within: Within) -> DataFrame:
    """Lines as from `figures`. Shapes: `sites` is small: server, site, boundary; `logged` has the server of each log."""
    messages = placed_messages(found.messages, clock)
    copies = placed_copies(found.copies, clock)
    promotions = placed_promotions(found.promotions, clock)
    taken = placed_promotions(found.takeovers.withColumn("at", F.col("first_resubmit_at")), clock)
    again = placed(sent_again(found.messages, server_names(logged)), "server", "server", "pair_server", clock)
    facts = [
        message_facts(
            messages, shadow_within_us=within.shadow_us, delivery_within_us=within.delivery_us, exposure_within_us=within.exposure_us
        ),
        single_facts(again, "messages_sent_again"),
        copy_facts(copies, lag_within_us=within.lag_us),
        single_facts(placed_copies(without_unknown(found.orphans), clock), "shadows_orphaned"),
        promotion_facts(promotions),
        single_facts(taken, "promotions"),
    ]
    times = [message_times(messages), copy_times(copies), promotion_times(promotions)]
    return figures(cells(facts), histogram(times), promotions, sites, has_minutes=clock.slot_us < HOUR_US)
