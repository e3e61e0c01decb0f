"""Times as histograms over whole milliseconds: exact, and mergeable, so that the percentiles of a day are not made from rows again.
docs/sla.md, 2.
"""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from shadowrelay.sla.figures.cells import delivery_us_of

METRICS = ("shadow_latency", "discard_lag", "delivery_latency", "takeover_detection", "takeover_silence")
PERCENTS = (50, 95, 99)
PLACE = ("hour", "server", "pair_from", "pair_to")


def message_times(placed: DataFrame) -> DataFrame:
    """The times of messages, one line a time. Shapes: `placed` as from `cells.placed_messages`."""
    return _times(placed, {"shadow_latency": F.col("shadow_us"), "delivery_latency": delivery_us_of()})


def copy_times(placed: DataFrame) -> DataFrame:
    """Likewise of copies."""
    return _times(placed, {"discard_lag": F.col("lag_us")})


def promotion_times(placed: DataFrame) -> DataFrame:
    """Likewise of RESUBMIT rows."""
    return _times(placed, {"takeover_detection": F.col("detection_us"), "takeover_silence": F.col("silence_us")})


def _times(placed: DataFrame, times: Mapping[str, Column]) -> DataFrame:
    """(place, metric, ms). What is negative counts as 0."""
    values = [F.struct(F.lit(METRICS.index(name)).alias("metric"), time.alias("us")) for name, time in times.items()]
    each = placed.select(*PLACE, F.explode(F.array(*values)).alias("time")).where(F.col("time.us").isNotNull())
    milliseconds = F.floor(F.greatest(F.col("time.us"), F.lit(0)) / F.lit(1000))
    return each.select(*PLACE, F.col("time.metric").alias("metric"), milliseconds.alias("ms"))


def histogram(times: list[DataFrame]) -> DataFrame:
    """(place, metric, ms) -> count."""
    return reduce(DataFrame.unionByName, times).groupBy(*PLACE, "metric", "ms").agg(F.count(F.lit(1)).alias("count"))


def percentiles(histogram: DataFrame, *keys: str) -> DataFrame:
    """Nearest rank: of n sorted values the ceil(p * n)-th. One line for each of `keys`: for each metric its count, p50, p95, p99 and max.

    Shapes: `histogram`: keys, metric (its place in METRICS), ms, count; each (keys, metric, ms) once.
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
