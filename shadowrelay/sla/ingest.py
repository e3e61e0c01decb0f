"""`sla ingest`: a stream of log files into the warehouse, each file once. docs/sla.md, section 1.

Spark's checkpoint knows which files belong to which batch, and a batch that was killed is done again with the same files; `land` makes
that harmless. What the checkpoint does not know is that a file grew after it was read: for that, lengths are compared when the stream has
caught up, and what differs is read whole again. Rows that were there before are repeats, which every reader of events tolerates.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from shadowrelay.model.errors import ShadowrelayError
from shadowrelay.sla.compact import compact
from shadowrelay.sla.events import read_readings
from shadowrelay.sla.land import is_landed, land
from shadowrelay.sla.places import located, sweep, written_whole
from shadowrelay.sla.sites import Site
from shadowrelay.sla.warehouse import (
    LISTING,
    Ingested,
    counted,
    describe_servers,
    list_logs,
    listing_options,
    of_servers,
    require_logs,
    strange_names,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FILES_PER_BATCH = 200  # x 10 MB = 2 GB: some ten seconds a core
INTERVAL = timedelta(seconds=10)  # between two looks into the directory
REVIEW_EVERY = timedelta(minutes=1)  # for files that grew, for manifests, and for what is to be compacted
FILE_AGE_MAX = "36500d"  # Spark forgets files a week older than the newest one; a server may be behind for longer

Tell = Callable[[str], None]


class IngestFailed(ShadowrelayError):
    """The stream broke; the text is Spark's. What was read before stands, and the next run goes on from there."""


def ingest(
    spark: "SparkSession",
    logs: str,
    warehouse: str,
    *,
    sites: Mapping[str, Site] | None = None,
    is_continuous: bool = False,
    interval: timedelta = INTERVAL,
    files_per_batch: int = FILES_PER_BATCH,
    is_compacting: bool = True,
    tell: Tell = lambda _: None,
) -> Ingested:
    """Read what is new below `logs`, and go on for ever with `is_continuous`. `tell` is given a line for each thing that was done.

    Shapes: one ingest at a time for a warehouse.
    Raises: NoLogs, before anything is written; IngestFailed.
    """
    require_logs(logs, may_be_empty=is_continuous)
    for table in ("events", "quarantine"):
        sweep(f"{warehouse}/{table}")
    query = start(spark, logs, warehouse, interval if is_continuous else None, files_per_batch, tell)

    def look() -> None:
        review(spark, logs, warehouse, sites, is_known_only=query.isActive, is_compacting=is_compacting, tell=tell)

    try:
        while not query.awaitTermination(int(REVIEW_EVERY.total_seconds())):
            if is_continuous:
                look()
        look()
    except StreamingQueryException as exc:
        raise IngestFailed(str(exc)) from exc
    finally:
        query.stop()
    return counted(spark, warehouse)


def review(
    spark: "SparkSession",
    logs: str,
    warehouse: str,
    sites: Mapping[str, Site] | None,
    *,
    is_known_only: bool,
    is_compacting: bool,
    tell: Tell,
) -> None:
    """What the stream does not see: names that are none, files that grew, manifests, and small files of days that are over. See
    `read_again`."""
    for name in strange_names(logs):
        tell(f"{name}: not read, because its name is not UTF-8; rename it")
    if count := read_again(spark, logs, warehouse, is_known_only=is_known_only):
        tell(f"{count} files read again")
    describe_servers(spark, logs, warehouse, sites)
    if is_compacting and (merged := compact(spark, warehouse)):
        tell(f"{merged} small files merged")


def start(
    spark: "SparkSession", logs: str, warehouse: str, interval: timedelta | None, files_per_batch: int, tell: Tell
) -> "StreamingQuery":
    """The stream into the warehouse; with `interval` None it ends when all is read that was there."""
    stream = spark.readStream.format("binaryFile").schema(LISTING).options(**listing_options())
    stream = stream.option("maxFilesPerTrigger", files_per_batch).option("maxFileAge", FILE_AGE_MAX)
    run = _run_id(warehouse)

    def take(files: "DataFrame", number: int) -> None:
        began = time.monotonic()
        name = f"{run}-{number:06}"
        if not is_landed(warehouse, name):  # else it was killed before the checkpoint knew
            land(files, warehouse, name)
        row = read_readings(spark, warehouse).where(F.col("batch") == name).agg(F.count("file"), F.sum("bytes"), F.sum("rows")).first()
        if row is not None and row[0]:
            seconds = max(time.monotonic() - began, 1e-3)
            tell(f"batch {number}: {row[0]} files, {row[2]} rows, {row[1] / 1e6:.1f} MB at {row[1] / 1e6 / seconds:.0f} MB/s")

    listing = of_servers(stream.load(f"{logs}/*"), logs).select("path", "length")
    writer = listing.writeStream.foreachBatch(take).queryName("shadowrelay-sla-ingest")
    writer = writer.option("checkpointLocation", f"{warehouse}/ingest/checkpoint")
    if interval is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval.total_seconds()} seconds").start()


def _run_id(warehouse: str) -> str:
    """Part of the names of batches: a new one with each new checkpoint, whose batches are counted from 0 again."""
    files, path = located(f"{warehouse}/ingest/id")
    try:
        return str(files.cat_file(path).decode("ascii"))
    except FileNotFoundError:
        if files.exists(f"{path.rpartition('/')[0]}/checkpoint"):
            files.rm(f"{path.rpartition('/')[0]}/checkpoint", recursive=True)  # nobody knows its batches' names any more
        made = uuid.uuid4().hex[:8]
        with written_whole(f"{warehouse}/ingest/id") as file:
            file.write(made.encode("ascii"))
        return made


def read_again(spark: "SparkSession", logs: str, warehouse: str, *, is_known_only: bool = False) -> int:
    """Read files whose length is none with which they were read before; gives how many.

    `is_known_only`: leave files that were never read to the stream, which is still running.
    """
    parts = F.split("path", "/")
    names = (F.element_at(parts, -2).alias("server"), F.element_at(parts, -1).alias("file"))
    listing = list_logs(spark, logs).select("path", "length", *names)
    readings = read_readings(spark, warehouse).select("server", "file", F.col("bytes").alias("length"))
    other = listing.join(readings, on=["server", "file", "length"], how="left_anti")
    if is_known_only:
        other = other.join(readings, on=["server", "file"], how="left_semi")
    other = other.persist()
    try:
        count = other.count()
        if count:
            land(
                other.repartition(min(count, spark.sparkContext.defaultParallelism)),
                warehouse,
                f"again-{datetime.now(UTC):%Y%m%dT%H%M%S%f}",
            )
    finally:
        other.unpersist()
    return count
