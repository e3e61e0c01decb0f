"""Writes log files into the warehouse: Spark's workers, or this process, parse each log and write it as Parquet. docs/sla.md, section 1.

A batch has a name, and every file that it writes is named after its source. A repeated batch, after a kill, writes the same names again,
each atomically, so nothing is doubled. Its table of `files` is written last and makes it count.
Rows do not pass through the JVM: Spark transports only the names of logs, and one row of `files` for each. Nothing here uses Hadoop.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from shadowrelay.sla.columns import ARROW_EVENTS, UTC_INSTANT
from shadowrelay.sla.lines import TEXT_CHARACTERS_MAX, Reason
from shadowrelay.sla.logs import Source
from shadowrelay.sla.parquet_files import ROWS_AT_ONCE, write_parquet
from shadowrelay.sla.parse import BadLine, LogFile, Parsed
from shadowrelay.sla.pieces import in_pieces, of_logs, piece_of
from shadowrelay.sla.sites import DamagedFile
from shadowrelay.sla.storage import located, written_whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAST = "landed.json"
HANDS_PER_CORE = 4  # fewer, and the last one is waited for; more, and tasks cost more than they even out

ARROW_QUARANTINE = pa.schema(
    [("server", pa.string()), ("file", pa.string()), ("line", pa.int64()), ("reason", pa.string()), ("text", pa.string())]
)

ARROW_FILES = pa.schema(
    [
        *((name, pa.string()) for name in ("server", "file")),
        *((name, pa.int64()) for name in ("bytes", "lines", "rows", "quarantined")),
        *((name, pa.string()) for name in ("format", "version")),
        *((name, UTC_INSTANT) for name in ("first_at", "last_at")),
    ]
)
"""The columns of `warehouse.FILES`."""

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^]""")
Landed = list[dict[str, Any]]
"""Rows of `files`: of each log that was there to be read."""


def land(spark: "SparkSession", sources: Sequence[Source], warehouse: str, batch: str) -> Landed:
    """Read these logs by Spark's workers and write them to the warehouse as batch `batch`, replacing an earlier attempt of that batch."""
    cores = spark.sparkContext.defaultParallelism
    hands = dealt(in_pieces(sources, cores), cores * HANDS_PER_CORE)
    written = spark.sparkContext.parallelize(hands, len(hands)).flatMap(partial(land_files, warehouse=warehouse, batch=batch))
    return _finished(of_logs(written.collect()), warehouse, batch)


def land_here(sources: Sequence[Source], warehouse: str, batch: str) -> Landed:
    """The same in this process, without Spark."""
    return _finished(of_logs(list(land_files(sources, warehouse, batch))), warehouse, batch)


def dealt(sources: Sequence[Source], count: int) -> list[list[Source]]:
    """At most `count` hands of logs, of nearly the same size each. Shapes: the largest logs come first; no hand is empty."""
    ordered = sorted(sources, key=lambda source: (-(source.size or 0), source.path))
    return [ordered[first::count] for first in range(min(count, len(ordered)))]


def _finished(rows: Landed, warehouse: str, batch: str) -> Landed:
    """Write the batch's table of `files`, and that it is complete."""
    files, place = located(f"{warehouse}/files/batch={batch}")
    if files.exists(place):  # of an attempt that was killed
        files.rm(place, recursive=True)
    write_parquet(pa.Table.from_pylist(rows, ARROW_FILES), f"{warehouse}/files/batch={batch}/part-0.parquet")
    with written_whole(f"{warehouse}/files/batch={batch}/_SUCCESS"):
        pass
    _tell_last(warehouse, batch)
    return rows


def _tell_last(warehouse: str, batch: str) -> None:
    known: dict[str, str] = {}
    with suppress(DamagedFile):  # then it is written anew
        known = read_last(warehouse)
    with written_whole(f"{warehouse}/{LAST}") as file:
        file.write(json.dumps(known | {batch.rpartition("-")[0]: batch}).encode())


def read_last(warehouse: str) -> dict[str, str]:
    """The last complete batch of each series, by the names of the series. Without it nobody would miss the newest table of `files`: its
    events would be those of a batch that is being written. Raises: DamagedFile."""
    files, path = located(f"{warehouse}/{LAST}")
    try:
        found: dict[str, str] = json.loads(files.cat_file(path))
        if isinstance(found, dict) and all(isinstance(each, str) for each in found.values()):
            return found
    except FileNotFoundError:
        return {}
    except ValueError:
        pass
    raise DamagedFile(f"{path}: damaged: delete it; the next batch writes it anew")


def is_landed(warehouse: str, batch: str) -> bool:
    """Whether the whole batch is in the warehouse. Repeating it could change data that was read already, because a log may have grown."""
    files, path = located(f"{warehouse}/files/batch={batch}/_SUCCESS")  # written last
    return bool(files.exists(path))


def land_files(sources: Iterable[Source], warehouse: str, batch: str) -> Iterator[dict[str, Any]]:
    """Write the rows of each log or piece, then yield its row of `files`. A log that was deleted since it was listed is left out."""
    for source in sources:
        row = _land_file(source, warehouse, batch)
        if row is not None:
            yield row


def _land_file(source: Source, warehouse: str, batch: str) -> dict[str, Any] | None:
    events = _Events(source, warehouse, batch)
    quarantine = _Quarantine(source, warehouse, batch)
    files, path = located(source.path)  # an unreachable store is not an error of the file: it fails the job
    log: LogFile | None = None
    is_there = False
    for reading, parsed in _read(source, files, path):
        log, is_there = reading, True
        quarantine.add(parsed.bad)
        events.add(parsed.rows)
    if not is_there:
        return None
    events.flush()
    quarantine.close()
    return {
        "server": source.server, "file": source.name, "bytes": log.bytes if log else 0, "lines": log.lines if log else 0,
        "rows": log.rows if log else 0, "quarantined": quarantine.count, "format": log.format if log else "",
        "version": log.version if log else "", "first_at": log.first_at if log else None, "last_at": log.last_at if log else None,
    }  # fmt: skip


def _read(source: Source, files: Any, path: str) -> Iterator[tuple[LogFile | None, Parsed]]:
    """Parse the file block by block; nothing if it is gone. An error of reading is a line in quarantine; the next run reads it again."""
    nothing = pa.RecordBatch.from_pylist([], ARROW_EVENTS)
    log: LogFile | None = None
    try:
        with files.open(path, "rb") as stream:
            log = LogFile(stream, source.server, source.name, piece=piece_of(stream, source))
            for parsed in log:
                yield log, parsed
        yield log, Parsed(nothing, [])  # a file without rows has counts too
    except Exception as exc:  # whatever fsspec's file system raises: other files must not be affected
        if log is None and isinstance(exc, FileNotFoundError) and source.is_whole:
            return  # of a piece the others may have been read
        text = f"{type(exc).__name__}: {exc}"[:TEXT_CHARACTERS_MAX]
        yield log, Parsed(nothing, [BadLine(0, Reason.UNREADABLE, text)])


class _Events:
    """Buffered rows by date. Each write creates a separate file, numbered within its date."""

    def __init__(self, source: Source, warehouse: str, batch: str) -> None:
        self._directory = f"server={escaped(source.server)}/batch={batch}"
        self._top = f"{warehouse}/events"
        self._key = source.key
        self._piece = f"{source.piece}." if source.piece else ""
        self._waiting: dict[date, list[Any]] = {}
        self._count = 0
        self._parts: dict[date, int] = {}

    def add(self, rows: Any) -> None:
        if not rows.num_rows:
            return
        days = pc.cast(rows.column("at"), pa.date32())
        different = days.unique().to_pylist()
        for day in different:
            of_day = rows if len(different) == 1 else rows.filter(pc.equal(days, pa.scalar(day, pa.date32())))
            self._waiting.setdefault(day, []).append(of_day)
        self._count += rows.num_rows
        if self._count >= ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        for day, batches in self._waiting.items():
            part = self._parts.get(day, 0)
            self._parts[day] = part + 1
            path = f"{self._top}/date={day.isoformat()}/{self._directory}/{self._key}-{self._piece}{part}.parquet"
            write_parquet(pa.Table.from_batches(batches, ARROW_EVENTS), path)
        self._waiting = {}
        self._count = 0


class _Quarantine:
    """Buffered bad lines."""

    def __init__(self, source: Source, warehouse: str, batch: str) -> None:
        self.count = 0
        self._source = source
        self._stem = f"{warehouse}/quarantine/batch={batch}/{source.key}-{f'{source.piece}.' if source.piece else ''}"
        self._waiting: list[BadLine] = []
        self._parts = 0

    def add(self, bad: list[BadLine]) -> None:
        self._waiting += bad
        self.count += len(bad)
        if len(self._waiting) >= ROWS_AT_ONCE:
            self._flush()

    def close(self) -> None:
        """Write the rest, and delete surplus files of an earlier attempt of this batch, for which the file was longer."""
        self._flush()
        files, stem = located(self._stem)
        part = self._parts
        while files.exists(f"{stem}{part}.parquet"):
            files.rm(f"{stem}{part}.parquet")
            part += 1

    def _flush(self) -> None:
        if not self._waiting:
            return
        server, name = self._source.server, self._source.name
        rows = [
            {"server": server, "file": name, "line": number, "reason": str(reason), "text": text} for number, reason, text in self._waiting
        ]
        write_parquet(pa.Table.from_pylist(rows, ARROW_QUARANTINE), f"{self._stem}{self._parts}.parquet")
        self._waiting = []
        self._parts += 1


def escaped(name: str) -> str:
    """A partition value as Spark writes it in a directory name."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", name)
