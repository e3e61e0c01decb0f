"""Many small Parquet files of a day that is over become few, and rows that stand in them twice stand there once. docs/sla.md, section 1.

The merged file is written before the small ones are deleted. What is killed in between leaves repeats, which every reader tolerates and
the next compaction takes out. A report that has listed the small ones and reads them later is made again (`report.TRIES`).
"""

import uuid
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F

from shadowrelay.sla.events import EVENTS
from shadowrelay.sla.land import COMPRESSION
from shadowrelay.sla.places import located

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BYTES = 16 * 1024 * 1024
FILES_MIN = 8  # in one directory of date and server; fewer are not worth the work
FILES_AT_ONCE = 2_000  # one job; about 4 GB of Parquet
ROWS_PER_FILE_MAX = 2_000_000


class Part(NamedTuple):
    """A Parquet file of the events; `place` is its `date=…/server=…`."""

    place: str
    path: str
    size: int


def compact(spark: "SparkSession", warehouse: str, *, before: date | None = None) -> int:
    """Merge small files of days before `before` (default: today, UTC); gives how many there were.

    Shapes: nobody else may write those days meanwhile: an ingest calls this between its batches.
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
    """Directories that are worth it, as many together as one job should take."""
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
