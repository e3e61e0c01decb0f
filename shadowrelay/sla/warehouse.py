"""The tables of the warehouse: their schemas, readers, and the compaction of small files. docs/sla.md, section 1.

All code reads events through this module, with explicit schemas and never inferred ones: a server called "007" stays a text.
Text columns are empty and never null if the log has no value; numbers and instants are null then.

`compact` merges the small Parquet files of past days, and drops repeated rows in them. The merged file is written before the small ones
are deleted. A kill in between leaves repeats, which every reader tolerates and the next compaction removes. A report that has listed
the small files and reads them later is restarted (`report.TRIES`).
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

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

from shadowrelay.sla.columns import UTC_INSTANT
from shadowrelay.sla.land import COMPRESSION
from shadowrelay.sla.storage import located

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
LOGS = _struct(("server", _TEXT), ("file", _TEXT))


def frame_of(spark: "SparkSession", schema: StructType, rows: Iterable[Sequence[Any]] = ()) -> "DataFrame":
    """A small frame with these rows. By way of Arrow, because Spark starts a Python process to make one of tuples."""
    columns = pa.schema([(column.name, _ARROW[column.dataType]) for column in schema])
    return spark.createDataFrame(pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in rows], columns), schema)


def read_events(spark: "SparkSession", warehouse: str) -> "DataFrame":
    """All events, with repeats: code that counts must count each `row_id` once. Empty if nothing was ingested."""
    return _read(spark, f"{warehouse}/events", EVENTS)


def read_quarantine(spark: "SparkSession", warehouse: str) -> "DataFrame":
    """Quarantined lines; for a file that was read more than once, those of the last time."""
    lines = _read(spark, f"{warehouse}/quarantine", _in_batches(QUARANTINE))
    last = _last_readings(spark, warehouse).select("server", "file", "batch")
    return lines.join(last, on=["server", "file", "batch"], how="left_semi").select(*QUARANTINE.fieldNames())


def read_files(spark: "SparkSession", warehouse: str) -> "DataFrame":
    """Files that were read, each once, as read last, when it was longest."""
    return _last_readings(spark, warehouse).select(*FILES.fieldNames())


def read_readings(spark: "SparkSession", warehouse: str) -> "DataFrame":
    """Each reading of a file, with its `batch`."""
    return _read(spark, f"{warehouse}/files", _in_batches(FILES))


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
    return frame.select(*schema.fieldNames())


# ---- compaction

SMALL_BYTES = 16 * 1024 * 1024
FILES_MIN = 8  # in one directory of date and server; fewer are not worth compacting
FILES_AT_ONCE = 2_000  # one job; about 4 GB of Parquet
ROWS_PER_FILE_MAX = 2_000_000


class Part(NamedTuple):
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
    for parts in _groups(_parts(files, top), before or datetime.now(UTC).date()):
        _merge(spark, f"{warehouse}/events", parts, top)
        files.rm([part.path for part in parts])
        count += len(parts)
    return count


def _parts(files: Any, top: str) -> Iterator[Part]:
    if not files.exists(top):
        return
    for path, entry in files.find(top, detail=True).items():
        date_place, server_place, batch, name = (
            path[len(top) :].strip("/").split("/")[-4:] if path.count("/") - top.count("/") == 4 else [""] * 4
        )
        if batch and name.endswith(".parquet") and name[0] not in "._":
            yield Part(f"{date_place}/{server_place}", path, entry["size"])


def _groups(parts: Iterator[Part], before: date) -> Iterator[list[Part]]:
    """Directories worth compacting, grouped into jobs of at most FILES_AT_ONCE files."""
    small: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        if part.size < SMALL_BYTES and part.place[len("date=") :][:10] < before.isoformat():
            small[part.place].append(part)
    group: list[Part] = []
    for place in sorted(small):
        if len(small[place]) >= FILES_MIN:
            group += small[place]
        if len(group) >= FILES_AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def _merge(spark: "SparkSession", events: str, parts: list[Part], top: str) -> None:
    paths = [f"{events}{part.path[len(top) :]}" for part in parts]
    rows = spark.read.schema(EVENTS).option("basePath", events).parquet(*paths).select(*EVENTS.fieldNames())
    together = rows.repartition("date", "server").dropDuplicates(["date", "server", "row_id"])
    named = together.withColumn("batch", F.lit(f"merged-{uuid.uuid4().hex}")).sortWithinPartitions("date", "server", "batch", "at")
    writer = named.write.mode("append").partitionBy("date", "server", "batch").option("compression", COMPRESSION)
    writer.option("maxRecordsPerFile", ROWS_PER_FILE_MAX).parquet(events)
