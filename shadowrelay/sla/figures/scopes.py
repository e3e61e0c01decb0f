"""From cells to windows and scopes: all, day and hour; everything, boundary, site, server and pair. docs/sla.md, 3."""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.figures.cells import COUNTS, HOUR_US, MAXIMA, added
from shadowrelay.sla.figures.percentiles import METRICS, PERCENTS, percentiles

DAY_US = 24 * HOUR_US
BURN_WINDOWS_HOURS = {"1h": 1, "6h": 6, "1d": 24, "30d": 720}
KEY = ("window", "start", "scope", "name", "other")
TIMES = tuple(f"{metric}_{column}" for metric in METRICS for column in ("count", "max", *(f"p{percent}" for percent in PERCENTS)))


def figures(cells: DataFrame, histogram: DataFrame, promoted: DataFrame, sites: DataFrame) -> DataFrame:
    """One line for each window and scope in which something happened; windows like "6h", of everything only, look back from now.

    Shapes: `cells` and `histogram` as from there; `promoted` are the placed
    RESUBMIT rows; `sites` is small: server, site, boundary. `start` is in microseconds, null of `all` and of those that look back.
    """
    counted = _scoped(_windowed(cells), sites).unionByName(_looking_back(cells)).groupBy(*KEY).agg(*added())
    timed = percentiles(_merged(histogram, sites), "place")
    counted = counted.withColumn("place", _place(*map(F.col, KEY))).join(timed, on="place", how="left").drop("place")
    distinct = _scoped(_windowed(promoted.select("hour", "server", "pair_from", "pair_to", "message")), sites)
    different = distinct.groupBy(*KEY, "message").agg(F.lit(1).alias("one")).groupBy(*KEY).agg(F.count("one").alias("messages_promoted"))
    together = _united([counted, different])
    numbers = (*COUNTS, *MAXIMA, "messages_promoted", *TIMES)
    return together.groupBy(*KEY).agg(*[_number(name) for name in numbers])


def _number(name: str) -> Column:
    """Of lines that stand for one window and scope at most one has it. A time without events stays null; a count is 0."""
    is_time = name in TIMES and not name.endswith("_count")
    return (F.max(name) if is_time else F.coalesce(F.max(name), F.lit(0).cast("long"))).alias(name)


def _united(frames: list[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _merged(histogram: DataFrame, sites: DataFrame) -> DataFrame:
    """place, metric, ms -> count of every window and scope. Each time counts in up to fifteen of them, which is most of the work here:
    so `place` is one number, and no text is copied, compared or sorted."""
    places = [
        F.when(_is_scope(scope, name), _place(F.lit(window), start, F.lit(scope), name, other))
        for window, start in _windows().items()
        for scope, (name, other) in _scopes().items()
    ]
    each = histogram.join(F.broadcast(sites), on="server", how="left").select(
        "metric", "ms", "count", F.explode(F.array(*places)).alias("place")
    )
    return each.where(F.col("place").isNotNull()).groupBy("place", "metric", "ms").agg(F.sum("count").alias("count"))


def _place(window: Column, start: Column, scope: Column, name: Column, other: Column) -> Column:
    """64 bits for a window and scope, of which there are at most some hundred thousand."""
    return F.xxhash64(window, start, scope, name, other)


def _windows() -> dict[str, Column]:
    """Name -> start, of a line with its hour."""
    day = F.col("hour") - F.pmod(F.col("hour"), F.lit(DAY_US))
    return {"all": F.lit(None).cast("long"), "day": day, "hour": F.col("hour")}


def _scopes() -> dict[str, tuple[Column, Column]]:
    """Scope -> name and other, of a line with its place, site and boundary."""
    none = F.lit("")
    return {
        "all": (none, none),
        "boundary": (F.col("boundary"), none),
        "site": (F.col("site"), none),
        "server": (F.col("server"), none),
        "pair": (F.col("pair_from"), F.col("pair_to")),
    }


def _is_scope(scope: str, name: Column) -> Column:
    """An empty name is none."""
    return F.lit(True) if scope == "all" else name != ""


def _windowed(frame: DataFrame) -> DataFrame:
    """Each line for all time, its day, its hour."""
    windows = [F.struct(F.lit(name).alias("window"), start.alias("start")) for name, start in _windows().items()]
    return frame.withColumn("of", F.explode(F.array(*windows))).select("*", "of.window", "of.start").drop("of")


def _scoped(frame: DataFrame, sites: DataFrame) -> DataFrame:
    """Each line for everything, and for each scope that it has a name of."""
    scopes = [
        F.when(_is_scope(scope, name), F.struct(F.lit(scope).alias("scope"), name.alias("name"), other.alias("other")))
        for scope, (name, other) in _scopes().items()
    ]
    each = frame.join(F.broadcast(sites), on="server", how="left").withColumn("of", F.explode(F.array(*scopes)))
    named = each.where(F.col("of").isNotNull()).select("*", "of.scope", "of.name", "of.other")
    return named.drop("of", "hour", "age", "server", "site", "boundary", "pair_from", "pair_to")


def _looking_back(cell: DataFrame) -> DataFrame:
    """Everything in the last hours before now."""
    windows = [F.struct(F.lit(name).alias("window"), F.lit(hours).alias("hours")) for name, hours in BURN_WINDOWS_HOURS.items()]
    each = cell.withColumn("of", F.explode(F.array(*windows)))
    is_in = (F.col("age") >= 0) & (F.col("age") < F.col("of.hours"))
    none = F.lit("")
    return each.where(is_in).select(
        F.col("of.window").alias("window"), F.lit(None).cast("long").alias("start"), F.lit("all").alias("scope"),
        none.alias("name"), none.alias("other"), *COUNTS, *MAXIMA,
    )  # fmt: skip
