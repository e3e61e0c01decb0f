"""`spark.read.format("msgtrk")`: message tracking logs, ours and Exchange's, as a table of any Spark program. docs/spark.md.

A Python Data Source (Spark 4): one partition for each log file, parsed by `LogFile` into batches of Arrow. It needs pyarrow but not pandas.
The report's own ingest does not use it, because that counts and quarantines in the same pass.
"""

import fnmatch
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from shadowrelay.sla.land import ARROW_QUARANTINE
from shadowrelay.sla.logs import NAMES, Source, source_of
from shadowrelay.sla.parse import LogFile
from shadowrelay.sla.storage import located
from shadowrelay.sla.warehouse import EVENTS, QUARANTINE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "msgtrk"
OPTIONS = frozenset({"path", "names", "server", "quarantine"})
SETTLED_SECONDS = 10.0  # a stream reads a file this long after its last change: stores give times in seconds, by clocks of their own
_LIST = ArrayType(StringType(), containsNull=False)  # as the parser has them; Spark compares
COLUMNS = StructType(
    [
        StructField(field.name, _LIST if isinstance(field.dataType, ArrayType) else field.dataType)
        for field in EVENTS
        if field.name != "date"
    ]
)
"""As in the warehouse, without its partition by date."""


def register(spark: "SparkSession") -> None:
    """From then on this session knows the format `msgtrk`."""
    spark.dataSource.register(MessageTrackingLogs)


class MessageTrackingLogs(DataSource):
    """Options: `path` (what `load` is given): a log file, or a directory, searched with all below it. `names`: a pattern of file names
    (`MSGTRK*.LOG`). `server`: the server of all rows; by default each file's directory is named after its server. `quarantine`
    true: the lines that are not rows, with the reason, instead of the rows."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raises: ValueError naming an option that is not one of these: without effect, it would seem to have worked."""
        super().__init__(options)
        if unknown := sorted({name.lower() for name in options} - OPTIONS):
            raise ValueError(f"msgtrk: there is no option {unknown[0]}; there are {', '.join(sorted(OPTIONS))}")

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return QUARANTINE if _is_true(self.options, "quarantine") else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(dict(self.options))


def _is_true(options: Any, name: str) -> bool:
    value = str(options.get(name, "false")).lower()
    if value not in ("true", "false"):
        raise ValueError(f"msgtrk: {name} is {value!r}; write true or false")
    return value == "true"


class _LogPartition(InputPartition):
    """One file."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.path)
        self.source = source


class _Reader(DataSourceReader):
    """`partitions` is called in the driver, `read` in the workers."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = {key.lower(): value for key, value in options.items()}
        self._is_quarantine = _is_true(self._options, "quarantine")

    def partitions(self) -> list[InputPartition]:
        """Raises: FileNotFoundError, ValueError naming the option."""
        found = self.listed()
        if not found:
            files, top = located(self._path)
            if not files.exists(top):
                raise FileNotFoundError(f"msgtrk: {self._path}: no such file or directory")
            raise FileNotFoundError(f"msgtrk: no file {self._names} in {self._path}; the option names has another pattern")
        return [_LogPartition(self._source(path)) for path in sorted(found)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises: what the file system raises; a file that cannot be read fails the job."""
        source = partition.source  # type: ignore[attr-defined]
        files, path = located(source.path)
        with files.open(path, "rb") as stream:
            for parsed in LogFile(stream, source.server, source.name):
                if self._is_quarantine:
                    yield _quarantined(source, parsed.bad)
                elif parsed.rows.num_rows:
                    server = pa.repeat(pa.scalar(source.server), parsed.rows.num_rows)
                    yield parsed.rows.append_column("server", server)

    def listed(self) -> dict[str, float]:
        """Paths as `located` accepts them, with the time of their last change (0 where the store does not say)."""
        files, top = located(self._path)
        details = {top: files.info(top)} if files.isfile(top) else files.find(top, detail=True)
        matching = {
            path: info for path, info in details.items() if path == top or fnmatch.fnmatchcase(path.rpartition("/")[2], self._names)
        }
        return {files.unstrip_protocol(path): _changed_at(info) for path, info in matching.items()}

    @property
    def _path(self) -> str:
        path = self._options.get("path", "")
        if not path:
            raise ValueError('msgtrk: nothing to read; name a log file or a directory: load("…")')
        return path

    @property
    def _names(self) -> str:
        return self._options.get("names", NAMES)

    def _source(self, path: str) -> Source:
        source = source_of(path)
        return source._replace(server=self._options.get("server", source.server))


def _quarantined(source: Source, bad: list[Any]) -> pa.RecordBatch:
    rows = [
        {"server": source.server, "file": source.name, "line": line.number, "reason": str(line.reason), "text": line.text} for line in bad
    ]
    return pa.RecordBatch.from_pylist(rows, ARROW_QUARANTINE)


def _changed_at(info: dict[str, Any]) -> float:
    """Seconds since 1970. Stores give it under different names."""
    value = info.get("mtime") or info.get("LastModified") or info.get("last_modified") or info.get("updated") or 0.0
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, int | float) else datetime.fromisoformat(str(value)).timestamp()


class _StreamReader(_Reader, DataSourceStreamReader):
    """Offsets are times of last changes: {"until": seconds}. It is for complete files, as a node ships them: one that still grows would be
    read again from its beginning."""

    def initialOffset(self) -> dict[str, float]:
        return {"until": 0.0}

    def latestOffset(self, *_: Any) -> dict[str, float]:
        settled = time.time() - SETTLED_SECONDS
        return {"until": max((at for at in self.listed().values() if at <= settled), default=0.0)}

    def partitions(self, start: dict[str, float], end: dict[str, float]) -> list[InputPartition]:  # type: ignore[override]
        chosen = sorted(path for path, at in self.listed().items() if start["until"] < at <= end["until"])
        return [_LogPartition(self._source(path)) for path in chosen]

    def commit(self, end: dict[str, float]) -> None:
        """Nothing is kept here: Spark's checkpoint has the offsets."""
