"""`spark.read.format("msgtrk")`: message tracking logs, ours and Exchange's, as a table of any Spark program. docs/spark.md.

A Python Data Source (Spark 4): `LogFile` parses each log into batches of Arrow; small logs share a partition. It needs pyarrow, not pandas.
The report's own ingest does not use it, because that counts and quarantines in the same pass.
"""

import base64
import fnmatch
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from shadowrelay.sla.land import ARROW_QUARANTINE
from shadowrelay.sla.logs import NAMES, Source, files_below, is_log, source_of
from shadowrelay.sla.parse import LogFile
from shadowrelay.sla.storage import located
from shadowrelay.sla.warehouse import EVENTS, QUARANTINE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "msgtrk"
OPTIONS = frozenset({"path", "names", "server", "quarantine"})
SETTLED_SECONDS = 10.0  # a stream reads a file this long after its last change: stores give times in seconds, by clocks of their own
PARTITION_BYTES_MIN, PARTITION_BYTES_MAX = 1 << 20, 32 << 20  # of logs: less is not worth a task, more not a task's time
OPENING_BYTES = 64 << 10  # opening a log takes as long as parsing so much
PARTITIONS_PER_CORE = 4
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
    (`MSGTRK*.LOG`, also `.log` and `.LOG.gz`). `server`: the server of all rows; by default the name of each file's directory. `quarantine`
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
    """Some files."""

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__(sources[0].path)
        self.sources = tuple(sources)


def grouped(sources: Sequence[Source], cores: int) -> list[list[Source]]:
    """Logs in partitions of similar size, in their order: small ones together, else a month of a node would be 35,000 tasks."""
    weights = [source.weight + OPENING_BYTES for source in sources]
    limit = min(PARTITION_BYTES_MAX, max(PARTITION_BYTES_MIN, sum(weights) // (cores * PARTITIONS_PER_CORE)))
    groups: list[list[Source]] = []
    room = 0
    for source, weight in zip(sources, weights, strict=True):
        if weight > room or not groups:
            groups.append([])
            room = limit
        groups[-1].append(source)
        room -= weight
    return groups


class _Found(NamedTuple):
    """A file as it is listed. `at`: its last change in seconds since 1970, 0 where the store does not say."""

    size: int
    at: float


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
            raise FileNotFoundError(
                f"msgtrk: no file {self._options.get('names', NAMES)} in {self._path}; the option names has another pattern"
            )
        return self._divided(found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises: what the file system raises; a file that cannot be read fails the job."""
        for source in partition.sources:  # type: ignore[attr-defined]
            yield from self._read(source)

    def _read(self, source: Source) -> Iterator[pa.RecordBatch]:
        files, path = located(source.path)
        with files.open(path, "rb") as stream:
            for parsed in LogFile(stream, source.server, source.name):
                if self._is_quarantine:
                    yield _quarantined(source, parsed.bad)
                elif parsed.rows.num_rows:
                    server = pa.repeat(pa.scalar(source.server), parsed.rows.num_rows)
                    yield parsed.rows.append_column("server", server)

    def listed(self) -> dict[str, _Found]:
        """By paths as `located` accepts them. Links are followed, as the report does."""
        files, top = located(self._path)
        details = [(top, files.info(top))] if files.isfile(top) else files_below(files, top)
        return {
            files.unstrip_protocol(path): _Found(int(info.get("size") or 0), _changed_at(info))
            for path, info in details
            if path == top or self._is_wanted(path.rpartition("/")[2])
        }

    def _is_wanted(self, name: str) -> bool:
        names = self._options.get("names")
        return is_log(name) if names is None else fnmatch.fnmatchcase(name, names)

    def _divided(self, found: Mapping[str, _Found]) -> list[InputPartition]:
        sources = [self._source(path, found[path].size) for path in sorted(found)]
        return [_LogPartition(group) for group in grouped(sources, os.cpu_count() or 1)]

    @property
    def _path(self) -> str:
        path = self._options.get("path", "")
        if not path:
            raise ValueError('msgtrk: nothing to read; name a log file or a directory: load("…")')
        return path

    def _source(self, path: str, size: int) -> Source:
        source = source_of(path)
        return source._replace(server=self._options.get("server", source.server), size=size)


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


Offset = dict[str, Any]


class _StreamReader(_Reader, DataSourceStreamReader):
    """Offsets are the files that were read, with their sizes: {"files": packed}, about six octets each. The time of the last change would
    not do: a log that is copied with its times may come after a younger one. What is not listed for a while, as a share that is not
    mounted, stays in the offset. It is for complete files, as a node ships them: one that grows is read again from its beginning.

    Checkpoints of earlier versions have {"until": seconds}: everything that was changed until then was read.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._known: dict[str, int] = {}

    def initialOffset(self) -> Offset:
        return packed({})

    def latestOffset(self, *asked: Any) -> Offset:
        """Spark gives the last offset since 4.2. Before, one that starts cannot know what an earlier run has read, and so must not forget
        it either. Raises: FileNotFoundError."""
        start: Offset | None = asked[0] if asked else None
        if start is not None:
            self._learn(start)
        settled = time.time() - SETTLED_SECONDS
        now = {path: each.size for path, each in self.listed().items() if each.at <= settled}
        if not now and not self._known:
            if start is None:
                raise FileNotFoundError(f"msgtrk: no log in {self._path}; is it mounted? Before Spark 4.2 no stream begins without")
            return start
        self._known |= now
        return packed(self._known)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:  # type: ignore[override]
        """Raises: FileNotFoundError for a directory that was there a moment ago: without it the logs would count as read."""
        before, after = unpacked_offset(start), unpacked_offset(end)
        self._learn(start)
        self._learn(end)
        there = self.listed()
        if "until" in end:
            after = {path: each.size for path, each in there.items() if each.at <= end["until"]}
        chosen = {path for path, size in after.items() if before.get(path) != size}
        if "until" in start:
            chosen = {path for path in chosen if path not in there or there[path].at > start["until"]}
        for path in sorted(chosen - there.keys()):
            files, place = located(path)
            directory = place.rpartition("/")[0]
            if not files.exists(directory) or not files.ls(directory, detail=False):
                raise FileNotFoundError(f"msgtrk: {path}: was there a moment ago; is {directory} mounted?")
        return self._divided({path: there[path] for path in chosen & there.keys()})  # others were deleted, by retention

    def _learn(self, offset: Offset) -> None:
        self._known = unpacked_offset(offset) | self._known

    def commit(self, end: Offset) -> None:
        """Nothing is kept here: Spark's checkpoint has the offsets."""


def packed(sizes: Mapping[str, int]) -> Offset:
    """An offset of these files."""
    return {"files": base64.b85encode(zlib.compress(json.dumps(sorted(sizes.items())).encode())).decode("ascii")}


def unpacked_offset(offset: Offset) -> dict[str, int]:
    """The files of an offset."""
    return dict(json.loads(zlib.decompress(base64.b85decode(offset["files"])))) if "files" in offset else {}
