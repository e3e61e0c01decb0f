"""Live figures: a stream over the feed that counts each row once, by minute and server, as batches of differences. docs/sla.md, 7.

The only state is which rows were seen, and the watermark bounds it. A batch writes what it adds under its number, in place of what it has
written before when it was killed; the sum over batches is the figure. Old batches are folded into one, which names the last that it holds.
"""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.feed import AHEAD, FEED_DDL, IN_TIME, LATE, LATENESS
from shadowrelay.sla.figures.rows import is_acknowledgement, is_event, is_promotion
from shadowrelay.sla.places import located
from shadowrelay.sla.session import local_cores
from shadowrelay.sla.sites import Site
from shadowrelay.sla.store import COMPRESSION, rows_of
from shadowrelay.sla.summary import instant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SLACK = timedelta(minutes=10)  # between the mark and Spark's watermark: Spark drops nothing, because lateness was decided before
KEPT = timedelta(days=8)
FOLD_AT = 200  # batches: some half an hour of news
MINUTES, HOURS = 180, 48
BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
PERCENTS = (50, 95, 99)
COUNTS = (
    "rows", "messages_acknowledged", "messages_redundant", "messages_not_redundant", "copies_received", "copies_discarded", "promotions",
    "deliveries", "recipients_delivered", "deferrals", "failures", "dsns", "late_rows", "ahead_rows",
)  # fmt: skip
_LATENCIES = tuple(f"latency_{bound}" for bound in (*BUCKETS_MS, "more"))
_SUMS = (*COUNTS, *_LATENCIES)
MINUTES_DDL = "minute timestamp, server string, " + ", ".join(f"{name} long" for name in _SUMS)
_BATCH = re.compile(r"batch=([0-9]+)")
_FOLDED = re.compile(r"upto=([0-9]+)")
Line = dict[str, Any]


def start(spark: "SparkSession", warehouse: str, *, interval: timedelta) -> "StreamingQuery":
    """The stream from `live/feed` to `live/minutes`. Shapes: the feed's directory exists."""
    session = spark.newSession()  # its settings are of no concern to the report's
    session.conf.set("spark.sql.streaming.stateStore.providerClass", f"{_STATE}.RocksDBStateStoreProvider")
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    if cores := local_cores(spark.sparkContext.master or ""):
        session.conf.set("spark.sql.shuffle.partitions", str(cores))
    rows = session.readStream.schema(FEED_DDL).option("maxFilesPerTrigger", 1).option("cleanSource", "delete")
    once = (
        rows.parquet(f"{warehouse}/live/feed")
        .withWatermark("moment", f"{(LATENESS + SLACK).total_seconds():.0f} seconds")
        .dropDuplicatesWithinWatermark(["row_id"])
    )

    def write(new: DataFrame, number: int) -> None:
        changes = counted(new).coalesce(1).write.mode("overwrite").option("compression", COMPRESSION)
        changes.parquet(f"{warehouse}/live/minutes/batch={number}")

    writer = once.writeStream.foreachBatch(write).queryName("shadowrelay-sla-live")
    writer = writer.option("checkpointLocation", f"{warehouse}/live/checkpoint")
    return writer.trigger(processingTime=f"{interval.total_seconds()} seconds").start()


_STATE = "org.apache.spark.sql.execution.streaming.state"


def counted(rows: DataFrame) -> DataFrame:
    """MINUTES_DDL of rows of the feed, each of which is there once."""
    is_in_time = F.col("standing") == IN_TIME
    conditions = {
        "rows": F.lit(True),
        "messages_acknowledged": is_acknowledgement(),
        "messages_redundant": is_acknowledgement() & (F.col("replication") == "Success"),
        "messages_not_redundant": is_acknowledgement() & (F.col("replication") != "Success") & (F.col("replication") != ""),
        "copies_received": is_event("HARECEIVE"),
        "copies_discarded": is_event("HADISCARD"),
        "promotions": is_promotion(),
        "deliveries": is_event("SEND", "SENDEXTERNAL"),
        "deferrals": is_event("DEFER"),
        "failures": is_event("FAIL"),
        "dsns": is_event("DSN"),
    }
    columns = {name: F.count(F.when(is_in_time & condition, 1)) for name, condition in conditions.items()}
    delivered = F.when(is_in_time & conditions["deliveries"], F.col("recipients_count")).otherwise(F.lit(0))
    columns |= {"recipients_delivered": F.sum(delivered)}
    columns |= {name: F.count(F.when(F.col("standing") == standing, 1)) for name, standing in (("late_rows", LATE), ("ahead_rows", AHEAD))}
    bucket = F.when(is_in_time & is_acknowledgement(), _bucket())
    columns |= {name: F.count(F.when(bucket == number, 1)) for number, name in enumerate(_LATENCIES)}
    grouped = rows.groupBy(F.window("moment", "1 minute")["start"].alias("minute"), "server")
    return grouped.agg(*[columns[name].alias(name) for name in _SUMS])


def _bucket() -> Column:
    """Place of the first bound that the shadow latency does not pass; null where there is none."""
    place = F.lit(len(BUCKETS_MS))
    for number, bound in reversed(list(enumerate(BUCKETS_MS))):
        place = F.when(F.col("shadow_us") <= bound * 1000, number).otherwise(place)
    return F.when(F.col("shadow_us").isNotNull(), place)


class Batches(NamedTuple):
    """What stands in `live/minutes`: everything up to batch `upto` in one directory, and the batches after it."""

    upto: int
    numbers: tuple[int, ...]
    outdated: tuple[str, ...]

    @property
    def newest(self) -> int:
        """The last that was written; -1 before there is one."""
        return max((self.upto, *self.numbers))

    def paths(self) -> list[str]:
        """Below `live/minutes`."""
        return [*([f"upto={self.upto}"] if self.upto >= 0 else ()), *(f"batch={number}" for number in self.numbers)]


def batches(warehouse: str) -> Batches:
    """Those that are whole."""
    files, top = located(f"{warehouse}/live/minutes")
    paths = files.ls(top, detail=False) if files.isdir(top) else []
    names = [name for path in paths if files.exists(f"{path}/_SUCCESS") and (name := path.rstrip("/").rpartition("/")[2])]
    folded = [int(found[1]) for name in names if (found := _FOLDED.fullmatch(name))]
    upto = max(folded, default=-1)
    numbers = sorted(int(found[1]) for name in names if (found := _BATCH.fullmatch(name)))
    outdated = [f"upto={number}" for number in folded if number < upto] + [f"batch={number}" for number in numbers if number <= upto]
    return Batches(upto, tuple(number for number in numbers if number > upto), tuple(outdated))


def minutes(spark: "SparkSession", warehouse: str) -> DataFrame:
    """One line for each minute and server in which something was counted: MINUTES_DDL."""
    paths = [f"{warehouse}/live/minutes/{path}" for path in batches(warehouse).paths()]
    if not paths:
        return spark.createDataFrame([], MINUTES_DDL)
    written = spark.read.schema(MINUTES_DDL).parquet(*paths)
    return written.groupBy("minute", "server").agg(*[F.sum(name).alias(name) for name in _SUMS])


def fold(spark: "SparkSession", warehouse: str, *, at: int = FOLD_AT) -> bool:
    """All batches but the last, which may be written again, into one, when there are `at`; what is older than KEPT goes."""
    files, top = located(f"{warehouse}/live/minutes")
    there = batches(warehouse)
    for name in there.outdated:
        files.rm(f"{top}/{name}", recursive=True)
    if len(there.numbers) <= at:
        return False
    last = there.numbers[-2]
    paths = [f"{warehouse}/live/minutes/{path}" for path in there.paths()[:-1]]
    written = spark.read.schema(MINUTES_DDL).parquet(*paths).groupBy("minute", "server")
    sums = written.agg(*[F.sum(name).alias(name) for name in _SUMS])
    newest = spark.read.schema(MINUTES_DDL).parquet(*paths).agg(F.max("minute").alias("newest"))
    kept = sums.join(F.broadcast(newest), how="cross").where(F.col("minute") > F.col("newest") - F.lit(KEPT)).drop("newest")
    kept.coalesce(1).write.mode("overwrite").option("compression", COMPRESSION).parquet(f"{warehouse}/live/minutes/upto={last}")
    for name in batches(warehouse).outdated:
        files.rm(f"{top}/{name}", recursive=True)
    return True


def recent(spark: "SparkSession", warehouse: str, sites: Mapping[str, Site]) -> dict[str, list[Line]]:
    """`minutes` and `hours` of live.json. What comes to the driver is bounded by time and servers."""
    every = minutes(spark, warehouse).persist()
    try:
        newest = every.agg(F.unix_micros(F.max("minute")).alias("newest")).collect()[0]["newest"]
        if newest is None:
            return {"minutes": [], "hours": []}
        start = F.unix_micros("minute")
        last = every.where(start > newest - MINUTES * 60_000_000).select(start.alias("start"), "server", *_SUMS)
        hour = start - F.pmod(start, F.lit(3_600_000_000))
        hours = every.where(start > newest - HOURS * 3_600_000_000).groupBy(hour.alias("start"), "server")
        return {
            "minutes": placed(rows_of(last), sites, ("all", "site")),
            "hours": placed(rows_of(hours.agg(*[F.sum(name).alias(name) for name in _SUMS])), sites, ("all", "boundary", "site", "server")),
        }
    finally:
        every.unpersist()


def placed(rows: Iterable[Line], sites: Mapping[str, Site], scopes: Iterable[str]) -> list[Line]:
    """Lines of live.json, in order. Shapes: `rows`: start (microseconds), server, and the sums."""
    wanted = frozenset(scopes)
    sums: dict[tuple[int, str, str], Line] = {}
    for row in rows:
        site = sites.get(row["server"], Site())
        names = {"all": "", "boundary": site.boundary, "site": site.site, "server": row["server"]}
        for scope, name in names.items():
            if scope in wanted and (name or scope == "all"):
                line = sums.setdefault((row["start"], scope, name), dict.fromkeys(_SUMS, 0))
                for key in _SUMS:
                    line[key] += row[key]
    return [
        {"start": instant(start), "scope": scope, "name": name}
        | {key: line[key] for key in COUNTS}
        | {"shadow_latency_ms": latency([line[key] for key in _LATENCIES])}
        for (start, scope, name), line in sorted(sums.items())
    ]


def latency(buckets: list[int]) -> dict[str, int | None]:
    """Count and percentiles, each the upper bound of its bucket. Shapes: one count a bound, and the last for what is longer."""
    total = sum(buckets)
    bounds = [*BUCKETS_MS, None]
    percentiles: dict[str, int | None] = {}
    for percent in PERCENTS:
        rank, seen, place = math.ceil(total * percent / 100), 0, None
        for bound, count in zip(bounds, buckets, strict=True):
            seen += count
            if total and seen >= rank:
                place = bound
                break
        percentiles[f"p{percent}"] = place
    return {"count": total, **percentiles}
