"""Where a report is made: tables are written beside what is there, and take its place when all of them are whole."""

import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from shadowrelay.sla.places import located
from shadowrelay.sla.summary import is_instant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = "tables"
PUBLISHED = frozenset({"messages", "copies", "takeovers", "duplicates", "losses", "orphans", "exposures", "figures", "quarantine"})
COMPRESSION, COMPRESSION_OF_WORK = "zstd", "lz4_raw"  # what is kept for years; what is read once
WRITERS_MAX = 4
MAKING = ".making-"  # what a directory's name begins with in which a report is made


class Store:
    """One report's directory while it is made. Tables that are not `PUBLISHED` are for this run only."""

    def __init__(self, spark: "SparkSession", output: str) -> None:
        self._spark = spark
        self._output = output.rstrip("/")
        self._work = f"{self._output}/{MAKING}{uuid.uuid4().hex}"

    def keep(self, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Write each under its name, and give back what is stored. All at once: a small job leaves most of the machine idle."""
        with ThreadPoolExecutor(WRITERS_MAX) as writers:
            writing = {name: writers.submit(self._keep, name, frame) for name, frame in frames.items()}
            return {name: written.result() for name, written in writing.items()}

    def _keep(self, name: str, frame: DataFrame) -> DataFrame:
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

    def publish(self) -> None:
        """The tables take the place of those of the report before."""
        files, new = located(f"{self._work}/{TABLES}")
        _, target = located(f"{self._output}/{TABLES}")
        _, old = located(f"{self._work}/old")
        if files.exists(target):
            files.mv(target, old, recursive=True)
        files.mv(new, target, recursive=True)

    def clear(self) -> None:
        """What is only for this run goes."""
        files, work = located(self._work)
        if files.exists(work):
            files.rm(work, recursive=True)


def sweep_reports(output: str) -> None:
    """Take away what reports left that were killed: nobody else may be making one there."""
    files, top = located(output)
    for path in files.ls(top, detail=False) if files.isdir(top) else ():
        if path.rstrip("/").rpartition("/")[2].startswith(MAKING):
            files.rm(path, recursive=True)


def _is_instant(field: StructField) -> bool:
    return isinstance(field.dataType, LongType) and is_instant(field.name)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Of a frame that is known to be small."""
    return [row.asDict(recursive=True) for row in frame.collect()]
