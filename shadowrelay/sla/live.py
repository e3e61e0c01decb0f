"""Live figures: a feed of landed batches, and a stream that counts each row once, by minute and server. docs/sla.md, 7.

*The feed* has the few columns of each landed batch that live figures need, once, in order. Only the feed decides about lateness, by the
mark, which advances with the batches and is stored with the feed. Lateness is thus independent of when Spark polls and how often the
process is killed. A batch is fed after it has landed, which makes it immutable; its file is written before the mark that includes it. If
the process is killed in between, the same file is written again under the same name.

*The stream* writes differences. Its only state is the set of rows seen, bounded by the watermark. A batch writes its additions under its
number, replacing those of an attempt that was killed; the sum over batches is the figure. Old batches are merged into one, which records
the last batch that it includes.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import parquet
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shadowrelay.sla.checkpoints import require_whole
from shadowrelay.sla.columns import ARROW_EVENTS, UTC_INSTANT
from shadowrelay.sla.figures.counting import BY_COPIES, COPIES_MAX
from shadowrelay.sla.figures.exchange import is_said_redundant
from shadowrelay.sla.figures.rows import is_acknowledgement, is_event, is_promotion
from shadowrelay.sla.inspection import readings
from shadowrelay.sla.land import escaped, is_landed
from shadowrelay.sla.parquet_files import COMPRESSION, parquet_batches, read_parquet
from shadowrelay.sla.session import local_cores
from shadowrelay.sla.sites import ServerSite
from shadowrelay.sla.storage import located, written_whole
from shadowrelay.sla.summary import instant, microseconds, rows_of
from shadowrelay.sla.warehouse import is_of_several

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# ---- the feed

LATENESS = timedelta(hours=2)
AHEAD_MAX = timedelta(hours=1)
IN_TIME, LATE, AHEAD = "in time", "late", "ahead"

_TAKEN = ("row_id", "at", "event", "source", "replication", "copies", "shadow_us", "recipients")
FEED_DDL = (
    "row_id string, moment timestamp, standing string, server string, event string, source string, replication string, "
    "copies long, shadow_us long, recipients_count long"
)
"""A row of the feed. `moment`: its `at`; for rows that are late or ahead, an instant that Spark's watermark has not passed."""
ARROW_FEED = pa.schema(
    [("row_id", pa.string()), ("moment", UTC_INSTANT), ("standing", pa.string()), ("server", pa.string())]
    + [(name, ARROW_EVENTS.field(name).type) for name in ("event", "source", "replication", "copies", "shadow_us")]
    + [("recipients_count", pa.int64())]
)


class Mark(NamedTuple):
    """Progress of the feed. `newest`: the newest instant that counts, None at first. `fed`: the last batch of each series.

    Units: `newest` in microseconds since 1970; the others are counts since the beginning.
    """

    newest: int | None = None
    fed: Mapping[str, str] = {}
    batches: int = 0
    rows: int = 0
    late_rows: int = 0
    ahead_rows: int = 0
    missed_rows: int = 0

    def is_fed(self, batch: str) -> bool:
        """Whether the batch was fed. Batches of a series are created in the order of their numbers."""
        series, number = _numbered(batch)
        last = self.fed.get(series)
        return last is not None and (len(number), number) <= (len(last), last)

    def instant(self) -> int | None:
        """Rows before this instant are late. Units: microseconds since 1970."""
        return None if self.newest is None else self.newest - LATENESS // timedelta(microseconds=1)


def _numbered(batch: str) -> tuple[str, str]:
    series, _, number = batch.rpartition("-")
    return series, number


def read_mark(warehouse: str) -> Mark | None:
    """`live/mark.json`; None before the first watch of this warehouse."""
    files, path = located(f"{warehouse}/live/mark.json")
    try:
        return Mark(**json.loads(files.cat_file(path)))
    except FileNotFoundError:
        return None


def begin(warehouse: str) -> Mark:
    """The mark; the first watch treats all landed batches as fed. Creates the feed's directory."""
    files, path = located(f"{warehouse}/live/feed")
    files.makedirs(path, exist_ok=True)
    mark = read_mark(warehouse)
    if mark is None:
        last: dict[str, str] = {}
        for batch in _batches(warehouse):
            series, number = _numbered(batch)
            last[series] = max(last.get(series, ""), number, key=lambda text: (len(text), text))
        mark = Mark(fed=last)
        _write_mark(warehouse, mark)
        return mark
    return _without_merged(warehouse, mark)


def _without_merged(warehouse: str, mark: Mark) -> Mark:
    """The mark, after batches of which another ingest has merged the tables: their rows are missed."""
    alone, rows = set(_batches(warehouse)), Counter[str]()
    for each in readings(warehouse):
        if each.batch not in alone and not mark.is_fed(each.batch):
            rows[each.batch] += each.rows
    for batch in sorted(rows, key=lambda batch: (len(batch), batch)):
        series, number = _numbered(batch)
        mark = mark._replace(fed={**mark.fed, series: number}, batches=mark.batches + 1, missed_rows=mark.missed_rows + rows[batch])
    if rows:
        _write_mark(warehouse, mark)
    return mark


def feed(warehouse: str, mark: Mark, *, now: datetime) -> Mark:
    """Feed batches that have landed since; returns the new mark. `now` is this machine's clock. No compaction meanwhile."""
    for batch in _batches(warehouse):
        if not mark.is_fed(batch) and is_landed(warehouse, batch):
            mark = _feed_batch(warehouse, batch, mark, now)
            _write_mark(warehouse, mark)
    return mark


def _write_mark(warehouse: str, mark: Mark) -> None:
    with written_whole(f"{warehouse}/live/mark.json") as file:
        file.write(json.dumps(mark._asdict(), indent=1).encode())


def _batches(warehouse: str) -> list[str]:
    """Batches that have begun to land, in order within each series."""
    files, top = located(f"{warehouse}/files")
    if not files.isdir(top):
        return []
    names = [path.rstrip("/").rpartition("/")[2] for path in files.ls(top, detail=False)]
    batches = [name.removeprefix("batch=") for name in names if name.startswith("batch=")]
    batches = [batch for batch in batches if not is_of_several(batch)]
    return sorted(batches, key=lambda batch: (_numbered(batch)[0], len(batch), batch))


def _feed_batch(warehouse: str, batch: str, mark: Mark, now: datetime) -> Mark:
    limit = microseconds(now + AHEAD_MAX)
    expected, parts = _parts(warehouse, batch)
    newest, counts = mark.newest, dict.fromkeys((IN_TIME, LATE, AHEAD), 0)
    if expected:
        with written_whole(f"{warehouse}/live/feed/{batch}.parquet") as file, parquet.ParquetWriter(
            file, ARROW_FEED, compression=COMPRESSION
        ) as writer:  # fmt: skip
            for server, rows in parts:
                standing = standings(rows.column("at"), mark.instant(), limit)
                for each in counts:
                    counts[each] += pc.sum(pc.equal(standing, each)).as_py() or 0
                writer.write_batch(_fed(rows, standing, server, mark.instant(), now))
                seen = pc.max(pc.filter(rows.column("at"), pc.not_equal(standing, AHEAD))).cast(pa.int64()).as_py()
                newest = max(filter(None, (newest, seen)), default=None)
    series, number = _numbered(batch)
    found = sum(counts.values())
    return Mark(
        newest=newest, fed={**mark.fed, series: number}, batches=mark.batches + 1, rows=mark.rows + found,
        late_rows=mark.late_rows + counts[LATE], ahead_rows=mark.ahead_rows + counts[AHEAD],
        missed_rows=mark.missed_rows + max(expected - found, 0),
    )  # fmt: skip


def standings(at: Any, mark: int | None, limit: int) -> Any:
    """For each instant: in time, late (before the mark) or ahead (after the limit). Units: microseconds since 1970."""
    instants = at.cast(pa.int64())
    is_late = pc.less(instants, mark) if mark is not None else pa.array([False] * len(at))
    return pc.if_else(pc.greater(instants, limit), AHEAD, pc.if_else(is_late, LATE, IN_TIME)).cast(pa.string())


def _fed(rows: Any, standing: Any, server: str, mark: int | None, now: datetime) -> Any:
    at_mark = pa.scalar(mark if mark is not None else microseconds(now), pa.int64()).cast(UTC_INSTANT)
    moment = pc.if_else(pc.equal(standing, IN_TIME), rows.column("at"), at_mark)
    taken = {name: rows.column(name) for name in _TAKEN if name not in ("at", "recipients")}
    sizes = pc.fill_null(pc.list_value_length(rows.column("recipients")), 0).cast(pa.int64())
    taken |= {"moment": moment, "standing": standing, "server": pa.array([server] * len(rows)), "recipients_count": sizes}
    return pa.RecordBatch.from_arrays([taken[name] for name in ARROW_FEED.names], schema=ARROW_FEED)


def _parts(warehouse: str, batch: str) -> tuple[int, Iterator[tuple[str, Any]]]:
    """The batch's number of rows, and its rows in the warehouse, with their servers."""
    files, top = located(f"{warehouse}/files/batch={batch}")
    paths = [path for path in files.find(top) if path.endswith(".parquet")]
    readings = [row for path in paths for row in _table(files, path, ["server", "rows", "first_at", "last_at"])]
    return sum(row["rows"] for row in readings), _rows(warehouse, batch, [row for row in readings if row["rows"]])


def _table(files: Any, path: str, columns: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_parquet(files, path, columns).to_pylist()
    return rows


def _rows(warehouse: str, batch: str, readings: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    if not readings:
        return
    files, top = located(f"{warehouse}/events")
    first = min(row["first_at"] for row in readings).astimezone(UTC).date().isoformat()
    last = max(row["last_at"] for row in readings).astimezone(UTC).date().isoformat()
    for day in sorted(path for path in files.ls(top, detail=False) if first <= _date_of(path) <= last):
        for server in sorted({row["server"] for row in readings}):
            place = f"{day.rstrip('/')}/server={escaped(server)}/batch={batch}"
            for path in sorted(files.find(place)) if files.isdir(place) else ():
                if path.endswith(".parquet") and not path.rpartition("/")[2].startswith("."):
                    for rows in parquet_batches(files, path, tuple(_TAKEN)):
                        yield server, rows


def _date_of(path: str) -> str:
    """ "2026-11-21" for a directory "…/date=2026-11-21"; empty for others."""
    name = path.rstrip("/").rpartition("/")[2]
    try:
        return date.fromisoformat(name.removeprefix("date=")).isoformat()
    except ValueError:
        return ""


# ---- the stream

SLACK = timedelta(minutes=10)  # between the mark and Spark's watermark: Spark must drop nothing, because the feed decides about lateness
KEPT = timedelta(days=8)
FOLD_AT = 200  # batches: about half an hour
MINUTES, HOURS = 180, 48
BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
PERCENTS = (50, 95, 99)
COUNTS = (
    "rows", "messages_acknowledged", "messages_redundant", "messages_not_redundant", "copies_received", "copies_discarded", "promotions",
    "deliveries", "recipients_delivered", "deferrals", "failures", "dsns", "late_rows", "ahead_rows",
)  # fmt: skip
_LATENCIES = tuple(f"latency_{bound}" for bound in (*BUCKETS_MS, "more"))
_SUMS = (*COUNTS, *BY_COPIES, *_LATENCIES)
MINUTES_DDL = "minute timestamp, server string, " + ", ".join(f"{name} long" for name in _SUMS)
_BATCH = re.compile(r"batch=([0-9]+)")
_FOLDED = re.compile(r"upto=([0-9]+)")
Line = dict[str, Any]


def start(spark: "SparkSession", warehouse: str, *, interval: timedelta) -> "StreamingQuery":
    """The stream from `live/feed` to `live/minutes`. Shapes: the feed's directory exists."""
    require_whole(f"{warehouse}/live/checkpoint", f"delete {warehouse}/live, and start again; the live figures begin anew, reports do not")
    session = spark.newSession()  # separate settings, which do not affect the report
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
    """Counts (MINUTES_DDL) from rows of the feed without repeats."""
    is_in_time = F.col("standing") == IN_TIME
    is_said = F.when(F.coalesce("recipients_count", F.lit(0)) > 0, is_said_redundant(F.col("replication"), F.col("server")))
    said_copies = F.coalesce("copies", is_said.cast("long"))
    at_most = F.when(said_copies > COPIES_MAX, COPIES_MAX).otherwise(said_copies)  # `least` would take a null for the other value
    conditions = {
        "rows": F.lit(True),
        "messages_acknowledged": is_acknowledgement(),
        "messages_redundant": is_acknowledgement() & is_said,
        "messages_not_redundant": is_acknowledgement() & ~is_said,
        **{name: is_acknowledgement() & (at_most == number) for number, name in enumerate(BY_COPIES)},
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
    """Index of the first bound that the shadow latency does not exceed; null without a latency."""
    place = F.lit(len(BUCKETS_MS))
    for number, bound in reversed(list(enumerate(BUCKETS_MS))):
        place = F.when(F.col("shadow_us") <= bound * 1000, number).otherwise(place)
    return F.when(F.col("shadow_us").isNotNull(), place)


class Batches(NamedTuple):
    """The directories in `live/minutes`: one with everything up to batch `upto`, and one for each later batch."""

    upto: int
    numbers: tuple[int, ...]
    outdated: tuple[str, ...]

    @property
    def newest(self) -> int:
        """The last batch written; -1 if none."""
        return max((self.upto, *self.numbers))

    def paths(self) -> list[str]:
        """Directory names below `live/minutes`."""
        return [*([f"upto={self.upto}"] if self.upto >= 0 else ()), *(f"batch={number}" for number in self.numbers)]


def batches(warehouse: str) -> Batches:
    """The complete batches."""
    files, top = located(f"{warehouse}/live/minutes")
    paths = files.ls(top, detail=False) if files.isdir(top) else []
    names = [name for path in paths if files.exists(f"{path}/_SUCCESS") and (name := path.rstrip("/").rpartition("/")[2])]
    folded = [int(found[1]) for name in names if (found := _FOLDED.fullmatch(name))]
    upto = max(folded, default=-1)
    numbers = sorted(int(found[1]) for name in names if (found := _BATCH.fullmatch(name)))
    outdated = [f"upto={number}" for number in folded if number < upto] + [f"batch={number}" for number in numbers if number <= upto]
    return Batches(upto, tuple(number for number in numbers if number > upto), tuple(outdated))


def minutes(spark: "SparkSession", warehouse: str) -> DataFrame:
    """One line for each minute and server with events: MINUTES_DDL."""
    paths = [f"{warehouse}/live/minutes/{path}" for path in batches(warehouse).paths()]
    if not paths:
        return spark.createDataFrame([], MINUTES_DDL)
    written = spark.read.schema(MINUTES_DDL).parquet(*paths)
    return written.groupBy("minute", "server").agg(*[F.sum(name).alias(name) for name in _SUMS])


def fold(spark: "SparkSession", warehouse: str, *, at: int = FOLD_AT) -> bool:
    """Merge all batches but the last, which may be written again, once there are `at`; drop data older than KEPT."""
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


def recent(spark: "SparkSession", warehouse: str, sites: Mapping[str, ServerSite]) -> dict[str, list[Line]]:
    """`minutes` and `hours` of live.json. The driver's share is bounded by time and number of servers."""
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


def placed(rows: Iterable[Line], sites: Mapping[str, ServerSite], scopes: Iterable[str]) -> list[Line]:
    """Lines of live.json, in order. Shapes: `rows`: start (microseconds), server, and the sums."""
    wanted = frozenset(scopes)
    sums: dict[tuple[int, str, str], Line] = {}
    for row in rows:
        site = sites.get(row["server"], ServerSite())
        names = {"all": "", "boundary": site.boundary, "site": site.site, "server": row["server"]}
        for scope, name in names.items():
            if scope in wanted and (name or scope == "all"):
                line = sums.setdefault((row["start"], scope, name), dict.fromkeys(_SUMS, 0))
                for key in _SUMS:
                    line[key] += row[key]
    return [
        {"start": instant(start), "scope": scope, "name": name}
        | {key: line[key] for key in COUNTS}
        | {"messages_by_copies": {str(number): line[key] for number, key in enumerate(BY_COPIES)}}
        | {"shadow_latency_ms": latency([line[key] for key in _LATENCIES])}
        for (start, scope, name), line in sorted(sums.items())
    ]


def latency(buckets: list[int]) -> dict[str, int | None]:
    """Count and percentiles, each the upper bound of its bucket. Shapes: a count per bound, and one for longer times."""
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
