"""The logs of `sla watch`: Spark's stream of files into the warehouse. docs/sla.md, 7.

Spark's checkpoint records which files belong to which batch, and a batch that was killed is repeated. The checkpoint does not know what
`sla ingest` has read, so a batch leaves out the logs that `files` has. Nor does it know that a file grew after it was read: `read_again`
handles that. Hadoop lists the files, so there are limits that `sla ingest` does not have: `require_streamable`.
"""

import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from shadowrelay.sla.checkpoints import require_whole
from shadowrelay.sla.ingest import FILES_PER_BATCH, Known, Tell, told
from shadowrelay.sla.land import is_landed, land
from shadowrelay.sla.logs import GLOB, NoLogs, list_logs, source_of
from shadowrelay.sla.storage import located, written_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LISTING = "path string, modificationTime timestamp, length long, content binary"
"""Columns of Spark's source `binaryFile`. The content column is never selected, because it would be in memory as a whole."""
OPTIONS = {
    "pathGlobFilter": GLOB,
    "ignoreMissingFiles": "true",  # retention may delete a file between two listings
    # without it Spark takes a directory `archive=2025` for a partition, and repeats a batch for each name in it that has a bracket
    "recursiveFileLookup": "true",
    "maxFileAge": "36500d",  # by default it ignores files a week older than the newest one; a server may lag for longer
}


def require_streamable(logs: str) -> None:
    """Raises: NoLogs for a server's directory that Hadoop does not accept. Shapes: `require_logs` has found nothing wrong."""
    files, top = located(logs)
    names = [path.rstrip("/").rpartition("/")[2] for path in (files.ls(top, detail=False) if files.isdir(top) else ())]
    if colons := [name for name in names if ":" in name]:
        raise NoLogs(
            f"{logs}/{colons[0]}: the name of a server's directory may not have a colon in `sla watch`; "
            "`sla ingest --continuous` and `sla report` read it"
        )


def start(spark: "SparkSession", logs: str, warehouse: str, interval: timedelta, known: Known, tell: Tell) -> "StreamingQuery":
    """Start the stream into the warehouse. Shapes: `known` also gets what the stream reads, from another thread."""
    source = spark.readStream.format("binaryFile").schema(LISTING).options(**OPTIONS)
    source = source.option("maxFilesPerTrigger", FILES_PER_BATCH)
    require_whole(f"{warehouse}/ingest/checkpoint", f"delete {warehouse}/ingest, and start again; no log is read twice")
    run = _run_id(warehouse)

    def take(files: "DataFrame", number: int) -> None:
        name, began = f"{run}-{number:06}", time.monotonic()
        if is_landed(warehouse, name):  # the process was killed before the checkpoint was updated
            return
        listed = [source_of(row.path)._replace(size=row.length) for row in files.collect()]
        if new := [each for each in listed if known.is_new(each)]:
            landed = land(spark, new, warehouse, name)
            known.add(landed)
            tell(told(number, landed, time.monotonic() - began))

    listing = _of_servers(source.load(f"{logs}/*"), logs).select("path", "length")
    writer = listing.writeStream.foreachBatch(take).queryName("shadowrelay-sla-ingest")
    writer = writer.option("checkpointLocation", f"{warehouse}/ingest/checkpoint")
    return writer.trigger(processingTime=f"{interval.total_seconds()} seconds").start()


def _of_servers(files: "DataFrame", logs: str) -> "DataFrame":
    """The files `<logs>/<server>/<name>`. Shapes: `files` has the column path, in Spark's form."""
    spark = files.sparkSession
    jvm: Any = spark.sparkContext._jvm  # in Spark's form: with a scheme, without `..`
    path = jvm.org.apache.hadoop.fs.Path(logs)
    top = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).makeQualified(path).toString()
    return files.where(F.size(F.split("path", "/")) == len(top.rstrip("/").split("/")) + 2)


def _run_id(warehouse: str) -> str:
    """Part of the names of batches: new with each new checkpoint, which counts its batches from 0 again."""
    files, path = located(f"{warehouse}/ingest/id")
    checkpoint = f"{path.rpartition('/')[0]}/checkpoint"
    if files.exists(checkpoint):
        if files.exists(path):
            return str(files.cat_file(path).decode("ascii"))
        files.rm(checkpoint, recursive=True)  # the names of its batches are unknown now
    made = uuid.uuid4().hex[:8]
    with written_whole(f"{warehouse}/ingest/id") as file:
        file.write(made.encode("ascii"))
    return made


def read_again(spark: "SparkSession", logs: str, warehouse: str, known: Known) -> int:
    """Read the files whose size differs from every previous read; returns how many. The stream reads those that were never read."""
    grown = [source for source in list_logs(logs) if known.has(source.server, source.name) and known.is_new(source)]
    if not grown:
        return 0
    landed = land(spark, grown, warehouse, f"again-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    known.add(landed)
    return len(landed)
