"""The tables of the warehouse: their columns, and how they are read. docs/sla.md, section 1.

Whoever reads events reads them here: with the schema as it is written, never inferred. A server that is called "007" stays a text.
Text columns are empty where the log says nothing, and never null; numbers and instants are null there.
"""

from typing import TYPE_CHECKING

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
"""One row of a log. The last two are partitions (directories), not in the Parquet files."""

QUARANTINE = _struct(("server", _TEXT), ("file", _TEXT), ("line", _LONG), ("reason", _TEXT), ("text", _TEXT))
"""A line that is no row, with at most its first 500 characters. `line` is 0 where the file as a whole could not be read."""

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
"""A file as it was read. `lines` are all of it, header, comments and empty ones too."""


def read_events(spark: "SparkSession", warehouse: str) -> "DataFrame":
    """All events, repeats included: a reader that counts must count each `row_id` once. No rows where nothing was ingested."""
    return _read(spark, f"{warehouse}/events", EVENTS)


def read_quarantine(spark: "SparkSession", warehouse: str) -> "DataFrame":
    """Lines that are no rows; of a file that was read more than once, those of the last time."""
    lines = _read(spark, f"{warehouse}/quarantine", _in_batches(QUARANTINE))
    last = _last_readings(spark, warehouse).select("server", "file", "batch")
    return lines.join(last, on=["server", "file", "batch"], how="left_semi").select(*QUARANTINE.fieldNames())


def read_files(spark: "SparkSession", warehouse: str) -> "DataFrame":
    """Files that were read, each once: as it was the last time, when it was longest."""
    return _last_readings(spark, warehouse).select(*FILES.fieldNames())


def read_readings(spark: "SparkSession", warehouse: str) -> "DataFrame":
    """Each time that a file was read, and in which `batch`."""
    return _read(spark, f"{warehouse}/files", _in_batches(FILES))


def _last_readings(spark: "SparkSession", warehouse: str) -> "DataFrame":
    # a log only grows: the longest is the newest
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
        return spark.createDataFrame([], schema)
    return frame.select(*schema.fieldNames())
