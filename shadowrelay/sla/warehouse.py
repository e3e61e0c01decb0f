"""The tables of the warehouse: their schemas, readers, and the compaction of small files. docs/sla.md, section 1.

All code reads events through this module, with explicit schemas and never inferred ones: a server called "007" stays a text.
Text columns are empty and never null if the log has no value; numbers and instants are null then.

A batch counts when it is complete: `files/batch=N/_SUCCESS`, or the record of a compaction, is written last. Readers see no other rows.

`compact_files` makes one table `files` of those of many batches: one a batch would be tens of thousands a year, all of which every command
reads.

`compact` merges the small Parquet files of past days, and drops repeated rows in them. It writes the merged file, then a record of its
content (`merged/<name>.json`), and deletes the small ones last. A kill in between leaves repeats, which every reader tolerates and the next
compaction removes. A report that has listed the small files and reads them later is restarted (`report.TRIES`).
"""

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shadowrelay.model.replies import ShadowrelayError
from shadowrelay.sla.columns import UTC_INSTANT
from shadowrelay.sla.land import ARROW_FILES, ARROW_QUARANTINE, read_last
from shadowrelay.sla.parquet_files import COMPRESSION, parquet_rows, read_parquet, write_parquet
from shadowrelay.sla.session import undivided
from shadowrelay.sla.storage import alone, is_local, located, sweep, written_whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TEXT, _LONG, _INSTANT, _LIST = StringType(), LongType(), TimestampType(), ArrayType(StringType())


def _struct(*columns: tuple[str, StringType | LongType | IntegerType | TimestampType | DateType | ArrayType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


EVENTS = _struct(
    ("row_id", _TEXT),
    ("at", _INSTANT),
    ("event", _TEXT),
    ("source", _TEXT),
    ("message", _TEXT),
    ("internet_message_id", _TEXT),
    ("internal_message_id", _TEXT),
    ("client_ip", _TEXT),
    ("client_hostname", _TEXT),
    ("server_ip", _TEXT),
    ("server_hostname", _TEXT),
    ("source_context", _TEXT),
    ("connector_id", _TEXT),
    ("reference", _TEXT),
    ("subject", _TEXT),
    ("sender", _TEXT),
    ("return_path", _TEXT),
    ("related_recipient", _TEXT),
    ("message_info", _TEXT),
    ("directionality", _TEXT),
    ("tenant_id", _TEXT),
    ("original_client_ip", _TEXT),
    ("original_server_ip", _TEXT),
    ("custom_data", _TEXT),
    ("traffic_type", _TEXT),
    ("recipients", _LIST),
    ("recipient_statuses", _LIST),
    ("recipients_hash", _LONG),
    ("total_bytes", _LONG),
    ("recipient_count", IntegerType()),
    ("replication", _TEXT),
    ("copies", _LONG),
    ("ack_us", _LONG),
    ("shadow_us", _LONG),
    ("attempt_us", _LONG),
    ("reason", _TEXT),
    ("silent_since", _INSTANT),
    ("detected_at", _INSTANT),
    ("original_message", _TEXT),
    ("format", _TEXT),
    ("file", _TEXT),
    ("line", _LONG),
    ("server", _TEXT),
    ("date", DateType()),
)
"""One row of a log. The last two columns are partitions (directories), not in the Parquet files."""

QUARANTINE = _struct(("server", _TEXT), ("file", _TEXT), ("line", _LONG), ("reason", _TEXT), ("text", _TEXT))
"""A quarantined line, with at most its first 500 characters. `line` is 0 if the whole file could not be read."""

FILES = _struct(
    ("server", _TEXT),
    ("file", _TEXT),
    ("bytes", _LONG),
    ("lines", _LONG),
    ("rows", _LONG),
    ("quarantined", _LONG),
    ("format", _TEXT),
    ("version", _TEXT),
    ("first_at", _INSTANT),
    ("last_at", _INSTANT),
)
"""A file as read. `lines` counts all lines, including header, comments and empty lines."""


SERVERS = _struct(("server", _TEXT))
SITES = _struct(("server", _TEXT), ("site", _TEXT), ("boundary", _TEXT))
_ARROW = {
    _TEXT: pa.string(), _LONG: pa.int64(), IntegerType(): pa.int32(), _INSTANT: UTC_INSTANT, DateType(): pa.date32(),
    _LIST: pa.list_(pa.string()),
}  # fmt: skip


def frame_of(spark: "SparkSession", schema: StructType, rows: Iterable[Sequence[Any]] = ()) -> "DataFrame":
    """A small frame with these rows. By way of Arrow, because Spark starts a Python process to make one of tuples."""
    columns = pa.schema([(column.name, _ARROW[column.dataType]) for column in schema])
    return undivided(
        spark.createDataFrame(pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in rows], columns), schema)
    )


# ---- what is in it

SCHEMA_VERSION = 2  # 1 had no version, no column `copies`, and no records of compactions


class WarehouseUnusable(ShadowrelayError):
    """A warehouse that this version cannot read, or that is damaged. The text has the remedy."""


def begin(warehouse: str) -> None:
    """Write the version into a new warehouse. Raises: WarehouseUnusable for one of another version."""
    if read_version(warehouse) is None:
        with written_whole(f"{warehouse}/warehouse.json") as file:
            file.write(json.dumps({"schema_version": SCHEMA_VERSION}).encode())
    require_version(warehouse)


def require_version(warehouse: str) -> None:
    """Raises: WarehouseUnusable for one of another version. A directory without a warehouse is none."""
    version = read_version(warehouse)
    if version not in (None, SCHEMA_VERSION):
        which = "a later" if version > SCHEMA_VERSION else "an earlier"
        raise WarehouseUnusable(
            f"{warehouse}: this warehouse was written by {which} version of shadowrelay (schema {version}, this one has {SCHEMA_VERSION}); "
            "read the logs into a new one with `sla ingest --warehouse NEW`"
        )


def read_version(warehouse: str) -> int | None:
    """The schema version; None if there is no warehouse. Raises: WarehouseUnusable."""
    files, path = located(f"{warehouse}/warehouse.json")
    if not files.exists(path):
        return 1 if files.isdir(f"{path.rpartition('/')[0]}/events") else None
    try:
        return int(json.loads(files.cat_file(path))["schema_version"])
    except (ValueError, KeyError, TypeError):
        raise WarehouseUnusable(f'{path}: damaged; a warehouse of this version has {{"schema_version": {SCHEMA_VERSION}}} there') from None


class Merge(NamedTuple):
    """The record of a compaction. `rows`: of the merged files, by date. `parts`: rows of each file that was merged, by its path below
    `events`; these files count no more, also where they still exist."""

    rows: Mapping[str, int]
    parts: Mapping[str, int]


def read_merges(warehouse: str) -> dict[str, Merge]:
    """Compactions by the names of their batches. Raises: WarehouseUnusable."""
    files, top = located(f"{warehouse}/merged")
    found: dict[str, Merge] = {}
    for path in sorted(files.glob(f"{top}/merged-*.json")):
        try:
            found[path.rpartition("/")[2].removesuffix(".json")] = Merge(**json.loads(files.cat_file(path)))
        except (ValueError, TypeError):
            raise WarehouseUnusable(f"{path}: damaged; the warehouse has to be made anew") from None
    return found


SEVERAL = "several-"  # how the names of tables that have several batches begin
OF_BATCH = "of_batch"  # their column
ARROW_SEVERAL = ARROW_FILES.append(pa.field(OF_BATCH, pa.string()))
ARROW_BAD = ARROW_QUARANTINE.append(pa.field(OF_BATCH, pa.string()))
Found = TypeVar("Found")


def is_of_several(name: str) -> bool:
    """Whether a table of `files` has the rows of several batches."""
    return name.startswith(SEVERAL)


def landed_batches(warehouse: str) -> set[str]:
    """Complete batches of `files`. Raises: WarehouseUnusable for a damaged table of several."""

    def read() -> set[str]:
        return set(chain(*(batches_in(warehouse, name) if is_of_several(name) else [name] for name in landed_tables(warehouse))))

    return listed(warehouse, read)


def landed_tables(warehouse: str) -> set[str]:
    """Names of the directories below `files` that are complete, without `batch=`."""
    files, top = located(f"{warehouse}/files")
    return {path.rsplit("/", 2)[1].removeprefix("batch=") for path in files.glob(f"{top}/batch=*/_SUCCESS")}


def _begun_tables(warehouse: str) -> set[str]:
    files, top = located(f"{warehouse}/files")
    return {path.rstrip("/").rpartition("/batch=")[2] for path in files.glob(f"{top}/batch=*")}


def listed(warehouse: str, read: Callable[[], Found]) -> Found:
    """What `read` makes of a listing of `files`; again, if another process has put tables together meanwhile."""
    while True:
        before = _begun_tables(warehouse)
        try:
            found = read()
        except FileNotFoundError:
            if before <= _begun_tables(warehouse):
                raise
            continue
        if before <= _begun_tables(warehouse):
            return found


def batches_in(warehouse: str, name: str) -> set[str]:
    """Those of a table of several. Raises: WarehouseUnusable if it is damaged, FileNotFoundError if the next one has taken its place."""
    files, path = located(f"{warehouse}/files/batch={name}/part-0.parquet")
    try:
        return set(read_parquet(files, path, [OF_BATCH]).column(OF_BATCH).to_pylist())
    except FileNotFoundError:
        if files.exists(f"{path.rpartition('/')[0]}/_SUCCESS"):
            raise _several_unusable(warehouse, name) from None
        raise
    except (OSError, pa.ArrowException):
        raise _several_unusable(warehouse, name) from None


def _several_unusable(warehouse: str, name: str) -> WarehouseUnusable:
    return WarehouseUnusable(
        f"{warehouse}: damaged: files/batch={name} is torn or has lost its table; delete the directory and read all logs again: "
        f"`shadowrelay sla ingest --logs DIR --warehouse {warehouse} --again '*'`"
    )


def complete_batches(warehouse: str) -> set[str]:
    """Those, and those of compactions."""
    files, top = located(f"{warehouse}/merged")
    merged = {path.rpartition("/")[2].removesuffix(".json") for path in files.glob(f"{top}/merged-*.json")}
    return merged | landed_batches(warehouse)


def unknown_batches(warehouse: str, complete: Set[str]) -> list[str]:
    """Batches with events besides these: being written, or left by a process that was killed, which the next one repeats."""
    files, top = located(f"{warehouse}/events")
    there = {path.rsplit("/", 2)[1].removeprefix("batch=") for path in files.glob(f"{top}/date=*/server=*/batch=*/*.parquet")}
    return sorted(there - complete)


def lost_batches(warehouse: str, complete: Set[str]) -> list[str]:
    """Those of them that were complete once: the batches of a series land in the order of their numbers, and a later one was complete, or
    this one itself.

    Raises: DamagedFile.
    """
    once = set(read_last(warehouse).values())
    last: dict[str, int] = {}
    for series, number in map(_numbered, complete | once):
        last[series] = max(last.get(series, -1), number)
    numbered = [(batch, *_numbered(batch)) for batch in unknown_batches(warehouse, complete)]
    return [batch for batch, series, number in numbered if batch in once or -1 < number < last.get(series, -1)]


def next_number(warehouse: str, series: str) -> int:
    """Of the next batch of this series. Raises: DamagedFile."""
    batches = landed_batches(warehouse).union(read_last(warehouse).values())
    return max((number for each, number in map(_numbered, batches) if each == series), default=-1) + 1


def _numbered(batch: str) -> tuple[str, int]:
    """Series and number; -1 for a name that has none."""
    series, _, number = batch.rpartition("-")
    return series, int(number) if number.isdecimal() else -1


# ---- who writes into it


class InUse(ShadowrelayError):
    """Another process works on the warehouse. Nothing was done."""


@contextmanager
def the_only_one(warehouse: str) -> Iterator[None]:
    """Let no other `ingest` or `watch` of this machine work on the warehouse. Raises: InUse."""
    with ExitStack() as held:
        try:
            held.enter_context(alone(warehouse, is_waiting=False))
        except BlockingIOError:
            raise InUse(f"{warehouse}: another `sla ingest` or `sla watch` works on this warehouse; wait for its end, or end it") from None
        yield


def clean(warehouse: str) -> None:
    """Delete what killed processes have left: temporary files, and batches that are not complete. Their logs are new once more.

    Shapes: only within `the_only_one`. Nothing is deleted where that holds nobody off.
    """
    files, top = located(warehouse)
    if not is_local(files):
        return
    for table in ("events", "quarantine"):
        sweep(f"{warehouse}/{table}")
    complete = complete_batches(warehouse)
    kept = complete | landed_tables(warehouse) | set(lost_batches(warehouse, complete))  # what is damaged is for `inspect` to tell
    for pattern in ("events/date=*/server=*/batch=*", "quarantine/batch=*", "files/batch=*"):
        for path in files.glob(f"{top}/{pattern}"):
            batch = path.rpartition("/batch=")[2]
            if batch not in kept and not (pattern.startswith("quarantine") and is_of_several(batch)):
                files.rm(path, recursive=True)


# ---- what is left of it


def read_pruned(warehouse: str) -> date | None:
    """The first day that is left; None if nothing was pruned. Raises: WarehouseUnusable."""
    files, path = located(f"{warehouse}/pruned.json")
    try:
        return date.fromisoformat(json.loads(files.cat_file(path))["before"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise WarehouseUnusable(f"{path}: damaged; without it, what was pruned would count as missing: run `sla prune` again") from None


def prune(warehouse: str, before: date) -> int:
    """Forget the days before `before`; returns how many there were. Nothing else may write into the warehouse meanwhile."""
    with written_whole(f"{warehouse}/pruned.json") as file:  # readers see less from here on, before anything is deleted
        file.write(json.dumps({"before": before.isoformat()}).encode())
    files, top = located(f"{warehouse}/events")
    days = [path for path in files.glob(f"{top}/date=*") if path.rpartition("/date=")[2] < before.isoformat()]
    for path in days:
        files.rm(path, recursive=True)
    return len(days)


def _since(pruned: date | None, last_at: str) -> "Column":
    """Whether a row or a log is not older than what was pruned; the latter if it ended later, or has no rows at all."""
    return F.lit(True) if pruned is None else F.coalesce(F.col(last_at) >= F.lit(pruned).cast("timestamp"), F.lit(True))


def read_events(spark: "SparkSession", warehouse: str) -> "DataFrame":
    """All events of complete batches, with repeats: code that counts must count each `row_id` once. Empty if nothing was ingested."""
    complete, pruned = complete_batches(warehouse), read_pruned(warehouse)
    frame = _read(spark, f"{warehouse}/events", _in_batches(EVENTS))  # Spark lists the files here: a batch may begin or end meanwhile
    if unknown := unknown_batches(warehouse, complete):
        frame = frame.where(~F.col("batch").isin(*unknown))
    frame = frame.drop("batch")
    return frame if pruned is None else frame.where(F.col("date") >= F.lit(pruned))


def read_quarantine(spark: "SparkSession", warehouse: str) -> "DataFrame":
    """Quarantined lines; for a file that was read more than once, those of the last time."""
    lines = _read(spark, f"{warehouse}/quarantine", _in_batches(StructType([*QUARANTINE.fields, StructField(OF_BATCH, StringType())])))
    lines = lines.withColumn("batch", F.coalesce(OF_BATCH, "batch"))
    last = _last_readings(spark, warehouse).where(_since(read_pruned(warehouse), "last_at")).select("server", "file", "batch")
    return lines.join(last, on=["server", "file", "batch"], how="left_semi").select(*QUARANTINE.fieldNames())


def read_readings(spark: "SparkSession", warehouse: str) -> "DataFrame":
    """Each reading of a file, with its `batch`. After a compaction that was killed, some are there twice."""
    columns = StructType([*FILES.fields, StructField(OF_BATCH, StringType()), StructField("batch", StringType())])

    def read() -> "DataFrame":
        frame = _read(spark, f"{warehouse}/files", columns)
        unfinished = _begun_tables(warehouse) - landed_tables(warehouse)
        return frame.where(~F.col("batch").isin(*unfinished)) if unfinished else frame

    return listed(warehouse, read).withColumn("batch", F.coalesce(OF_BATCH, "batch")).drop(OF_BATCH)


def _last_readings(spark: "SparkSession", warehouse: str) -> "DataFrame":
    # a log only grows, so the longest reading is the last
    names = ["bytes", "batch", *(name for name in FILES.fieldNames() if name not in ("server", "file", "bytes"))]
    readings = read_readings(spark, warehouse).groupBy("server", "file").agg(F.max(F.struct(*names)).alias("last"))
    return readings.select("server", "file", "last.*")


def _in_batches(schema: StructType) -> StructType:
    return StructType([*schema.fields, StructField("batch", StringType())])


def _read(spark: "SparkSession", path: str, schema: StructType) -> "DataFrame":
    from pyspark.errors import AnalysisException

    try:
        frame = spark.read.schema(schema).parquet(path)
    except AnalysisException as exc:
        if exc.getCondition() != "PATH_NOT_FOUND":
            raise
        return frame_of(spark, schema)
    return undivided(frame.select(*schema.fieldNames()))


# ---- compaction

BATCHES_MIN = 64  # with a table of `files` each; fewer are not worth compacting
READERS_MAX = 8
SMALL_BYTES = 16 * 1024 * 1024
FILES_MIN = 8  # in one directory of date and server; fewer are not worth compacting
FILES_AT_ONCE = 2_000  # one job; about 4 GB of Parquet
ROWS_PER_FILE_MAX = 2_000_000


class EventsFile(NamedTuple):
    """A Parquet file of the events; `place` is its `date=…/server=…`."""

    place: str
    path: str
    size: int


def compact(spark: "SparkSession", warehouse: str, *, before: date | None = None) -> int:
    """Merge small files of days before `before` (default: today, UTC); returns how many were merged.

    Shapes: no other process may write those days meanwhile, so an ingest calls this between its batches.
    """
    files, top = located(f"{warehouse}/events")
    count = 0
    for merge in read_merges(warehouse).values():  # what an earlier compaction did not come to delete
        if left := [f"{top}/{path}" for path in merge.parts if files.exists(f"{top}/{path}")]:
            files.rm(left)
    for parts in _groups(_parts(files, top), before or datetime.now(UTC).date()):
        name = f"merged-{uuid.uuid4().hex}"
        _merge(spark, f"{warehouse}/events", parts, top, name)
        _record(warehouse, files, top, parts, name)
        files.rm([part.path for part in parts])
        count += len(parts)
    return count


def compact_files(warehouse: str) -> int:
    """Put tables of `files` together; returns how many there were. No other process may write into the warehouse meanwhile.

    Shapes: the last batch of a series stays by itself: its name says what the next one is called, and a stream may repeat it.
    """
    files, top = located(f"{warehouse}/files")
    found = landed_tables(warehouse)
    several = {name: batches_in(warehouse, name) for name in found if is_of_several(name)}
    for batch in _begun_tables(warehouse).intersection(chain(*several.values())):  # what an earlier compaction did not come to delete
        files.rm(f"{top}/batch={batch}", recursive=True)
        found.discard(batch)
    last: dict[str, tuple[int, str]] = {}
    for batch in found - several.keys():
        series, number = _numbered(batch)
        last[series] = max(last.get(series, (-1, "")), (number, batch))
    full = {name for name in several if files.size(f"{top}/batch={name}/part-0.parquet") >= SMALL_BYTES}
    chosen = sorted(found - full - {batch for _, batch in last.values()})
    if len(chosen) < BATCHES_MIN:
        return 0

    def read(batch: str) -> pa.Table:
        tables = []
        for path in files.glob(f"{top}/batch={batch}/*.parquet"):
            table = read_parquet(files, path)
            own = table if is_of_several(batch) else table.append_column(OF_BATCH, pa.repeat(pa.scalar(batch), table.num_rows))
            tables.append(own.select(ARROW_SEVERAL.names).cast(ARROW_SEVERAL))
        return pa.concat_tables(tables) if tables else ARROW_SEVERAL.empty_table()

    with ThreadPoolExecutor(READERS_MAX) as readers:
        whole = pa.concat_tables(readers.map(read, chosen)).group_by(ARROW_SEVERAL.names).aggregate([])  # each row once
    name = f"{SEVERAL}{uuid.uuid4().hex}"
    write_parquet(whole, f"{warehouse}/files/batch={name}/part-0.parquet")
    with written_whole(f"{warehouse}/files/batch={name}/_SUCCESS"):
        pass
    for batch in chosen:
        files.rm(f"{top}/batch={batch}", recursive=True)
    return len(chosen)


def compact_quarantine(warehouse: str) -> int:
    """Put the files of `quarantine` together, of which each log with a bad line has one; returns how many there were.

    Shapes: as `compact_files`. The one file is there at once and whole, so nothing marks it as complete.
    """
    files, top = located(f"{warehouse}/quarantine")
    paths = files.glob(f"{top}/batch=*/*.parquet")
    of_several = {path: read_parquet(files, path, [OF_BATCH]) for path in paths if is_of_several(_batch_of(path))}
    done = set(chain(*(set(table.column(OF_BATCH).to_pylist()) for table in of_several.values())))
    landed = landed_batches(warehouse)
    for batch in {_batch_of(path) for path in paths} & done:  # what an earlier compaction did not come to delete
        files.rm(f"{top}/batch={batch}", recursive=True)
    single = [path for path in paths if _batch_of(path) in landed - done]
    chosen = sorted([*single, *(path for path in of_several if files.size(path) < SMALL_BYTES)])
    if len(chosen) < BATCHES_MIN:
        return 0

    def read(path: str) -> pa.Table:
        table = read_parquet(files, path)
        return table if path in of_several else table.append_column(OF_BATCH, pa.repeat(pa.scalar(_batch_of(path)), table.num_rows))

    with ThreadPoolExecutor(READERS_MAX) as readers:
        whole = pa.concat_tables([table.select(ARROW_BAD.names).cast(ARROW_BAD) for table in readers.map(read, chosen)])
    write_parquet(whole, f"{warehouse}/quarantine/batch={SEVERAL}{uuid.uuid4().hex}/part-0.parquet")
    for batch in {_batch_of(path) for path in chosen}:
        files.rm(f"{top}/batch={batch}", recursive=True)
    return len(chosen)


def _batch_of(path: str) -> str:
    return path.rsplit("/", 2)[1].removeprefix("batch=")


def is_compactable(warehouse: str) -> bool:
    """Whether `compact` would merge anything now."""
    files, top = located(f"{warehouse}/events")
    return next(_groups(_parts(files, top), datetime.now(UTC).date()), None) is not None


def _parts(files: Any, top: str) -> Iterator[EventsFile]:
    if not files.exists(top):
        return
    for path, entry in files.find(top, detail=True).items():
        date_place, server_place, batch, name = (
            path[len(top) :].strip("/").split("/")[-4:] if path.count("/") - top.count("/") == 4 else [""] * 4
        )
        if batch and name.endswith(".parquet") and name[0] not in "._":
            yield EventsFile(f"{date_place}/{server_place}", path, entry["size"])


def _groups(parts: Iterator[EventsFile], before: date) -> Iterator[list[EventsFile]]:
    """Directories worth compacting, grouped into jobs of at most FILES_AT_ONCE files."""
    small: dict[str, list[EventsFile]] = defaultdict(list)
    for part in parts:
        if part.size < SMALL_BYTES and part.place[len("date=") :][:10] < before.isoformat():
            small[part.place].append(part)
    group: list[EventsFile] = []
    for place in sorted(small):
        if len(small[place]) >= FILES_MIN:
            group += small[place]
        if len(group) >= FILES_AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def _record(warehouse: str, files: Any, top: str, parts: list[EventsFile], name: str) -> None:
    rows: dict[str, int] = defaultdict(int)
    for path in files.glob(f"{top}/date=*/server=*/batch={name}/*.parquet"):
        rows[path[len(top) :].strip("/")[len("date=") :][:10]] += parquet_rows(files, path)
    merge = Merge(rows, {part.path[len(top) :].strip("/"): parquet_rows(files, part.path) for part in parts})
    with written_whole(f"{warehouse}/merged/{name}.json") as file:
        file.write(json.dumps(merge._asdict()).encode())


def _merge(spark: "SparkSession", events: str, parts: list[EventsFile], top: str, name: str) -> None:
    paths = [f"{events}{part.path[len(top) :]}" for part in parts]
    rows = spark.read.schema(EVENTS).option("basePath", events).parquet(*paths).select(*EVENTS.fieldNames())
    together = rows.repartition("date", "server").dropDuplicates(["date", "server", "row_id"])
    named = together.withColumn("batch", F.lit(name)).sortWithinPartitions("date", "server", "batch", "at")
    writer = named.write.mode("append").partitionBy("date", "server", "batch").option("compression", COMPRESSION)
    writer.option("maxRecordsPerFile", ROWS_PER_FILE_MAX).parquet(events)
