"""Reads logs into a warehouse, each file once: all at once for a report from logs, or as the stream of `sla ingest`. docs/sla.md, 1.

Spark's checkpoint records which files belong to which batch, and a batch that was killed is repeated with the same files; `land` makes
that harmless. The checkpoint does not record that a file grew after it was read. So sizes are compared when the stream has caught up, and
a file whose size differs is read again as a whole. Its earlier rows are then repeats, which every reader of events tolerates.
"""

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

from shadowrelay.model.replies import ShadowrelayError
from shadowrelay.sla.land import NAMES, is_landed, land, land_here, source_of
from shadowrelay.sla.session import failure_of
from shadowrelay.sla.sites import (
    Manifest,
    Shipping,
    Site,
    merged,
    read_manifests,
    read_servers,
    read_shipping,
    write_servers,
    write_shipping,
)
from shadowrelay.sla.storage import alone, is_local, located, sweep, written_whole
from shadowrelay.sla.warehouse import LOGS, begin, compact, frame_of, read_files, read_readings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# ---- all at once

LISTING = "path string, modificationTime timestamp, length long, content binary"
"""Columns of Spark's source `binaryFile`. The content column is never selected, because it would be in memory as a whole."""
REMOVALS_MAX, REMOVAL_PAUSE_SECONDS = 20, 0.25
LITTLE_BYTES = 32 << 20  # of logs, about 60,000 events: up to this size, compiling a report takes longer than computing it
PARQUET_SHARE = 4  # of the logs' size, and less for larger files


class NoLogs(ShadowrelayError):
    """There is nothing to read; the text says where it was expected."""


class Ingested(NamedTuple):
    """The content of a warehouse. A file that was read twice counts once, as read last."""

    files: int
    bytes: int
    lines: int
    rows: int
    quarantined: int


@contextmanager
def temporary_warehouse(
    spark: "SparkSession", logs: str, sites: Mapping[str, Site] | None = None, directory: Path | None = None
) -> Iterator[str]:
    """A warehouse with all of these logs, deleted afterwards.

    Units: it takes about a quarter of the logs' disk space, in `directory`, or in the default directory for temporary files.
    """
    warehouse = tempfile.mkdtemp(prefix="shadowrelay-sla-", dir=directory)
    try:
        ingest_once(spark, logs, warehouse, sites)
        yield warehouse
    except (KeyboardInterrupt, SystemExit):
        with suppress(Exception):
            spark.stop()  # otherwise its workers continue writing
        raise
    finally:
        _remove(warehouse)


def _remove(directory: str) -> None:
    """Delete the directory even while a worker that is being stopped still writes there."""
    for _ in range(REMOVALS_MAX):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(REMOVAL_PAUSE_SECONDS)


def ingest_once(spark: "SparkSession", logs: str, warehouse: str, sites: Mapping[str, Site] | None = None) -> None:
    """Read all files below `logs` into an empty warehouse. Little input is read in this process: Spark's workers take longer to start.

    Raises: NoLogs if no server's directory has a log.
    """
    require_logs(logs)
    begin(warehouse)
    if is_little(logs):
        land_here(files_of(logs), warehouse, "once")
    else:
        land(list_logs(spark, logs), warehouse, "once")
    describe_servers(spark, logs, warehouse, sites)


def files_of(logs: str) -> list[str]:
    """The files that `list_logs` lists, without Spark."""
    files, top = located(logs)
    found = (path for path in files.glob(f"{top}/*/{NAMES}") if files.isfile(path))
    return sorted(path if is_local(files) else files.unstrip_protocol(path) for path in found)


def require_logs(logs: str, *, may_be_empty: bool = False) -> None:
    """Raises: NoLogs, also for names and directories that would fail the whole Spark job, or that it would not see."""
    files, top = located(logs)
    if not files.isdir(top):
        raise NoLogs(f"{logs}: no such directory")
    if strange := unreadable_names(logs):
        raise NoLogs(f"{logs}: the names of servers' directories and of logs must be UTF-8; rename {strange[0]}")
    if colons := [name for path in files.ls(top, detail=False) if ":" in (name := path.rstrip("/").rpartition("/")[2])]:
        raise NoLogs(f"{logs}/{colons[0]}: the name of a server's directory may not have a colon")
    if is_local(files) and (closed := [path for path in files.ls(top, detail=False) if _is_closed(path)]):
        raise NoLogs(f"{closed[0]}: this directory cannot be read: give this user the right to (chmod o+rx), or move it away")
    if not may_be_empty and not files.glob(f"{top}/*/{NAMES}"):
        raise NoLogs(f"{logs}: no logs: they are looked for as <server>/{NAMES}")


def unreadable_names(logs: str) -> list[str]:
    """Names of servers' directories and logs that Spark does not see because they are not UTF-8: quoted, for people."""
    files, top = located(logs)
    servers = files.ls(top, detail=False) if files.isdir(top) else []
    return [repr(path) for path in (*servers, *files.glob(f"{top}/*/{NAMES}")) if not _is_text(path)]


def _is_closed(path: str) -> bool:
    return os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK)


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_little(logs: str) -> bool:
    """Whether the input is so small that interpreting is faster than compiling, see `spark_session`."""
    files, top = located(logs)
    octets = 0
    for path in files.glob(f"{top}/*/{NAMES}"):
        with suppress(FileNotFoundError):  # deleted meanwhile, or a dangling link
            octets += files.size(path) or 0
    return octets <= LITTLE_BYTES


def is_little_warehouse(warehouse: str) -> bool:
    """The same for a warehouse. It stops to look as soon as it knows."""
    files, top = located(f"{warehouse}/events")
    octets = 0
    for _, _, found in files.walk(top, detail=True):
        octets += sum(entry["size"] or 0 for entry in found.values())
        if octets > LITTLE_BYTES // PARQUET_SHARE:
            return False
    return True


def require_warehouse(warehouse: str) -> None:
    """Raises: NoLogs if nothing was ingested yet, because a report without data would look like a good result."""
    if not has_events(warehouse):
        raise NoLogs(f"{warehouse}: no warehouse: `shadowrelay sla ingest` makes one")


def has_events(warehouse: str) -> bool:
    """Whether anything was ingested."""
    files, top = located(warehouse)
    return bool(files.isdir(f"{top}/events"))


def list_logs(spark: "SparkSession", logs: str) -> "DataFrame":
    """All files, with the columns path, modificationTime and length."""
    source = spark.read.format("binaryFile").schema(LISTING).options(**listing_options())
    try:
        return of_servers(source.load(f"{logs}/*"), logs).drop("content")
    except AnalysisException as exc:
        if exc.getCondition() != "PATH_NOT_FOUND":
            raise
        return spark.createDataFrame([], LISTING).drop("content")


def listing_options() -> dict[str, str]:
    """Options of the source `binaryFile`, as a batch and as a stream.

    Retention may delete a file between two listings. Without `recursiveFileLookup`, Spark takes a directory `archive=2025` for a
    partition, and repeats a batch of the stream for each name in it that contains a bracket.
    """
    return {"pathGlobFilter": NAMES, "ignoreMissingFiles": "true", "recursiveFileLookup": "true"}


def of_servers(files: "DataFrame", logs: str) -> "DataFrame":
    """The files `<logs>/<server>/<name>`. Shapes: `files` has the column path, in Spark's form."""
    spark = files.sparkSession
    jvm: Any = spark.sparkContext._jvm  # in Spark's form: with a scheme, without `..`
    path = jvm.org.apache.hadoop.fs.Path(logs)
    top = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).makeQualified(path).toString()
    return files.where(F.size(F.split("path", "/")) == len(top.rstrip("/").split("/")) + 2)


def describe_servers(spark: "SparkSession", logs: str, warehouse: str, sites: Mapping[str, Site] | None) -> None:
    """Write `servers.json` and `shipping.json`, from the current manifests and their previous content."""
    manifests = read_manifests(logs)
    write_servers(warehouse, merged(read_servers(warehouse), manifests, sites or {}))
    write_shipping(warehouse, _shipping(spark, logs, warehouse, manifests))


def _shipping(spark: "SparkSession", logs: str, warehouse: str, manifests: Mapping[str, Manifest | None]) -> Shipping:
    """A manifest drops old entries, and may be missing or incomplete for a moment: its entries stay known until the file is read."""
    files, top = located(logs)
    there = {source_of(path)[1:] for path in files.glob(f"{top}/*/{NAMES}")}
    known = [(server, manifest) for server, manifest in manifests.items() if manifest is not None]
    named = {(server, name) for server, manifest in known for name in manifest.names}
    dropped = {each[:2]: each for _, manifest in known for each in manifest.dropped}
    before = read_shipping(warehouse)
    forgotten = {each[:2]: each for each in before.dropped if each[:2] not in dropped}
    absent = (named - there) | set(before.missing)
    unread = _unread(spark, warehouse, absent | forgotten.keys())
    dropped |= {key: each for key, each in forgotten.items() if key in unread}  # a node may still ship a file that it was about to drop
    return Shipping(tuple(sorted(absent & unread)), tuple(sorted(dropped.values())))


def _unread(spark: "SparkSession", warehouse: str, logs: Set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Those that have not been read. Shapes: (server, name) of each."""
    if not logs:
        return set()
    unread = frame_of(spark, LOGS, sorted(logs)).join(read_readings(spark, warehouse), on=["server", "file"], how="left_anti")
    return {(row.server, row.file) for row in unread.collect()}


def counted(spark: "SparkSession", warehouse: str) -> Ingested:
    """The current content of the warehouse."""
    sums = [F.coalesce(F.sum(name), F.lit(0)) for name in Ingested._fields[1:]]
    row = read_files(spark, warehouse).agg(F.count("file"), *sums).first()
    assert row is not None, "an aggregate without groups has one row"
    return Ingested(*row)


# ---- the stream

FILES_PER_BATCH = 200  # x 10 MB = 2 GB: about ten seconds per core
INTERVAL = timedelta(seconds=10)  # between two listings of the directory
REVIEW_EVERY = timedelta(minutes=1)  # for files that grew, manifests, and compaction
FILE_AGE_MAX = "36500d"  # by default, Spark ignores files a week older than the newest one; a server may lag for longer

Tell = Callable[[str], None]


class IngestFailed(ShadowrelayError):
    """The stream failed; the text has Spark's first line, and a worker's reason. Batches before it are complete, and the next run
    continues from there."""


class InUse(ShadowrelayError):
    """Another process works on the warehouse. Nothing was done."""


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
    """Read new files below `logs`, for ever with `is_continuous`. `tell` receives a line for each completed step.

    Raises: NoLogs and InUse, before anything is written; IngestFailed.
    """
    require_logs(logs, may_be_empty=is_continuous)
    with the_only_one(warehouse):
        return _ingest(spark, logs, warehouse, sites, is_continuous, interval, files_per_batch, is_compacting, tell)


@contextmanager
def the_only_one(warehouse: str) -> Iterator[None]:
    """Let no other `ingest` or `watch` of this machine work on the warehouse. Raises: InUse."""
    with ExitStack() as held:
        try:
            held.enter_context(alone(warehouse, is_waiting=False))
        except BlockingIOError:
            raise InUse(f"{warehouse}: another `sla ingest` or `sla watch` works on this warehouse; wait for its end, or end it") from None
        yield


def _ingest(
    spark: "SparkSession",
    logs: str,
    warehouse: str,
    sites: Mapping[str, Site] | None,
    is_continuous: bool,
    interval: timedelta,
    files_per_batch: int,
    is_compacting: bool,
    tell: Tell,
) -> Ingested:
    begin(warehouse)
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
        raise IngestFailed(f"the stream failed: {failure_of(exc)}") from exc
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
    """Handle what the stream does not see: invalid names, files that grew, manifests, and small files of past days. See
    `read_again`."""
    for name in unreadable_names(logs):
        tell(f"{name}: not read, because its name is not UTF-8; rename it")
    if count := read_again(spark, logs, warehouse, is_known_only=is_known_only):
        tell(f"{count} files read again")
    describe_servers(spark, logs, warehouse, sites)
    if is_compacting and (merged := compact(spark, warehouse)):
        tell(f"{merged} small files merged")


def start(
    spark: "SparkSession", logs: str, warehouse: str, interval: timedelta | None, files_per_batch: int, tell: Tell
) -> "StreamingQuery":
    """Start the stream into the warehouse; with `interval` None it ends when all existing files are read."""
    stream = spark.readStream.format("binaryFile").schema(LISTING).options(**listing_options())
    stream = stream.option("maxFilesPerTrigger", files_per_batch).option("maxFileAge", FILE_AGE_MAX)
    run = _run_id(warehouse)

    def take(files: "DataFrame", number: int) -> None:
        began = time.monotonic()
        name = f"{run}-{number:06}"
        if not is_landed(warehouse, name):  # else the process was killed before the checkpoint was updated
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
    """Part of the names of batches: new with each new checkpoint, which counts its batches from 0 again."""
    files, path = located(f"{warehouse}/ingest/id")
    try:
        return str(files.cat_file(path).decode("ascii"))
    except FileNotFoundError:
        if files.exists(f"{path.rpartition('/')[0]}/checkpoint"):
            files.rm(f"{path.rpartition('/')[0]}/checkpoint", recursive=True)  # the names of its batches are unknown now
        made = uuid.uuid4().hex[:8]
        with written_whole(f"{warehouse}/ingest/id") as file:
            file.write(made.encode("ascii"))
        return made


def read_again(spark: "SparkSession", logs: str, warehouse: str, *, is_known_only: bool = False) -> int:
    """Read files whose size differs from every previous read; returns how many.

    `is_known_only`: skip files that were never read, because the stream is still running and reads them.
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
