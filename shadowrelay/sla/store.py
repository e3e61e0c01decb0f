"""Where a report is made: tables are written beside what is there, and take its place when all of them are whole."""

import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from shadowrelay.sla.places import is_local, located, written_whole
from shadowrelay.sla.summary import is_instant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = "tables"
PUBLISHED = frozenset({"messages", "copies", "takeovers", "duplicates", "losses", "orphans", "exposures", "figures", "quarantine"})
COMPRESSION, COMPRESSION_OF_WORK = "zstd", "lz4_raw"  # what is kept for years; what is read once
WRITERS_MAX = 4
ABANDONED_AFTER = timedelta(days=1)  # longer than any report takes
MAKING = ".making-"  # what a directory's name begins with in which a report is made


class Store:
    """One report's directory while it is made: `making` in `output`. Tables that are not `PUBLISHED` are for this run only."""

    def __init__(self, spark: "SparkSession", output: str) -> None:
        self._spark = spark
        self._output = output.rstrip("/")
        self.making = f"{MAKING}{uuid.uuid4().hex}"
        self._work = f"{self._output}/{self.making}"

    def keep(self, frames: Mapping[str, Callable[[], DataFrame]]) -> dict[str, DataFrame]:
        """Write each under its name, and give back what is stored.

        All at once, and each is planned while others run: a small job leaves most of the machine idle, and planning takes longer than it.
        """
        with ThreadPoolExecutor(WRITERS_MAX) as writers:
            writing = {name: writers.submit(self._keep, name, planned) for name, planned in frames.items()}
            return {name: written.result() for name, written in writing.items()}

    def _keep(self, name: str, planned: Callable[[], DataFrame]) -> DataFrame:
        frame = planned()
        if name not in PUBLISHED:
            path = f"{self._work}/{name}"
            frame.write.option("compression", COMPRESSION_OF_WORK).parquet(path)
            return self._spark.read.schema(frame.schema).parquet(path)
        instants = [field.name for field in frame.schema if _is_instant(field)]
        table = frame.withColumns({column: F.timestamp_micros(column) for column in instants}) if instants else frame
        path = f"{self._work}/{TABLES}/{name}"
        table.write.option("compression", COMPRESSION).parquet(path)
        stored = self._spark.read.schema(StructType(table.schema.fields)).parquet(path)
        return stored.withColumns({column: F.unix_micros(column) for column in instants}) if instants else stored

    def publish(self, pages: Mapping[str, bytes]) -> None:
        """Tables and `pages` (by file name) take the place of those of the report before: all is on the disk before any of it does."""
        for name, content in pages.items():
            with written_whole(f"{self._work}/{name}") as file:
                file.write(content)
        files, new = located(f"{self._work}/{TABLES}")
        _, target = located(f"{self._output}/{TABLES}")
        _, old = located(f"{self._work}/old")
        with _alone(self._output):
            if files.exists(target):
                files.mv(target, old, recursive=True)
            files.mv(new, target, recursive=True)
            for name in pages:
                files.mv(located(f"{self._work}/{name}")[1], located(f"{self._output}/{name}")[1])

    def clear(self) -> None:
        """What is only for this run goes."""
        files, work = located(self._work)
        if files.exists(work):
            files.rm(work, recursive=True)


@contextlib.contextmanager
def _alone(output: str) -> Iterator[None]:
    """While no other report takes its place there. Only a local directory can be locked."""
    files, top = located(output)
    if not is_local(files):
        yield
        return
    directory = os.open(top, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def sweep_reports(output: str, *, older_than: timedelta = timedelta()) -> None:
    """Take away what reports left that were killed. Shapes: younger ones than `older_than` may be of a report that somebody else makes."""
    files, top = located(output)
    for path in files.ls(top, detail=False) if files.isdir(top) else ():
        if path.rstrip("/").rpartition("/")[2].startswith(MAKING) and (not older_than or _age(files, path) > older_than):
            files.rm(path, recursive=True)


def _age(files: Any, path: str) -> timedelta:
    """Since it was written to last; none where the store does not tell."""
    try:
        modified: datetime = files.modified(path)
    except (NotImplementedError, OSError):
        return timedelta()
    return datetime.now(UTC) - modified.astimezone(UTC)


def _is_instant(field: StructField) -> bool:
    return isinstance(field.dataType, LongType) and is_instant(field.name)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Of a frame that is known to be small."""
    return [row.asDict(recursive=True) for row in frame.collect()]
