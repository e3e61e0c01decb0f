"""Writes log files into the warehouse: Spark's workers parse each log and write it as Parquet. docs/sla.md, section 1.

A batch has a name, and every file that it writes is named after its source. A repeated batch, after a kill, writes the same names again,
each atomically, so nothing is doubled. The row in `files` is written last and makes the file count.
Rows do not pass through the JVM: Spark transports only the list of files, and one row of `files` for each.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import date
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import parquet

from shadowrelay.sla.columns import ARROW_EVENTS, UTC_INSTANT
from shadowrelay.sla.lines import TEXT_CHARACTERS_MAX, Reason
from shadowrelay.sla.parse import BadLine, LogFile, Parsed
from shadowrelay.sla.storage import located, written_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAMES = "MSGTRK*.LOG"  # logs in a server's directory
ROWS_AT_ONCE = 200_000  # in a worker's memory before they are written: about 100 MB
COMPRESSION = "zstd"

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


class Source(NamedTuple):
    """A log file: `<logs>/<server>/<name>`."""

    path: str
    server: str
    name: str

    @property
    def key(self) -> str:
        """The name for files written from this source."""
        return blake2b(f"{self.server}/{self.name}".encode(), digest_size=8).hexdigest()


def source_of(path: str) -> Source:
    """The directory is named after the server."""
    directory, _, name = path.rstrip("/").rpartition("/")
    return Source(path, directory.rpartition("/")[2], name)


def land(listing: "DataFrame", warehouse: str, batch: str) -> None:
    """Read the files of `listing` and write them to the warehouse as batch `batch`, replacing an earlier attempt of that batch.

    Shapes: `listing` has the column path, one row per file.
    """
    from shadowrelay.sla.warehouse import FILES

    # rows as Python tuples, one per file: Spark's mapInArrow would need pandas as well as Arrow
    landed = listing.select("path").rdd.mapPartitions(partial(land_files, warehouse=warehouse, batch=batch))
    listing.sparkSession.createDataFrame(landed, FILES).write.mode("overwrite").parquet(f"{warehouse}/files/batch={batch}")


def land_here(paths: Iterable[str], warehouse: str, batch: str) -> None:
    """The same in this process, without Spark."""
    rows = [dict(zip(ARROW_FILES.names, row, strict=True)) for row in land_files(((path,) for path in paths), warehouse, batch)]
    write_parquet(pa.Table.from_pylist(rows, ARROW_FILES), f"{warehouse}/files/batch={batch}/part-0.parquet")
    with written_whole(f"{warehouse}/files/batch={batch}/_SUCCESS"):
        pass


def is_landed(warehouse: str, batch: str) -> bool:
    """Whether the whole batch is in the warehouse. Repeating it could change data that was read already, because a log may have grown."""
    files, path = located(f"{warehouse}/files/batch={batch}/_SUCCESS")  # Spark writes it last
    return bool(files.exists(path))


def land_files(listing: Iterable[tuple[str]], warehouse: str, batch: str) -> Iterator[tuple[Any, ...]]:
    """In a worker: for each path, write its rows, then yield its row of `files`."""
    for (path,) in listing:
        yield tuple(_land_file(source_of(path), warehouse, batch).values())


def _land_file(source: Source, warehouse: str, batch: str) -> dict[str, Any]:
    events = _Events(source, warehouse, batch)
    quarantine = _Quarantine(source, warehouse, batch)
    files, path = located(source.path)  # an unreachable store is not an error of the file: it fails the job
    log: LogFile | None = None
    for reading, parsed in _read(source, files, path):
        log = reading
        quarantine.add(parsed.bad)
        events.add(parsed.rows)
    events.flush()
    quarantine.close()
    return {
        "server": source.server, "file": source.name, "bytes": log.bytes if log else 0, "lines": log.lines if log else 0,
        "rows": log.rows if log else 0, "quarantined": quarantine.count, "format": log.format if log else "",
        "version": log.version if log else "", "first_at": log.first_at if log else None, "last_at": log.last_at if log else None,
    }  # fmt: skip


def _read(source: Source, files: Any, path: str) -> Iterator[tuple[LogFile | None, Parsed]]:
    """Parse the file in pieces; an error while reading becomes a line in quarantine, and the next run reads the file again."""
    nothing = pa.RecordBatch.from_pylist([], ARROW_EVENTS)
    log: LogFile | None = None
    try:
        with files.open(path, "rb") as stream:
            log = LogFile(stream, source.server, source.name)
            for parsed in log:
                yield log, parsed
        yield log, Parsed(nothing, [])  # a file without rows has counts too
    except Exception as exc:  # whatever fsspec's file system raises: other files must not be affected
        text = f"{type(exc).__name__}: {exc}"[:TEXT_CHARACTERS_MAX]
        yield log, Parsed(nothing, [BadLine(0, Reason.UNREADABLE, text)])


class _Events:
    """Buffered rows by date. Each write creates a separate file, numbered within its date."""

    def __init__(self, source: Source, warehouse: str, batch: str) -> None:
        self._directory = f"server={escaped(source.server)}/batch={batch}"
        self._top = f"{warehouse}/events"
        self._key = source.key
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
            path = f"{self._top}/date={day.isoformat()}/{self._directory}/{self._key}-{part}.parquet"
            write_parquet(pa.Table.from_batches(batches, ARROW_EVENTS), path)
        self._waiting = {}
        self._count = 0


class _Quarantine:
    """Buffered bad lines."""

    def __init__(self, source: Source, warehouse: str, batch: str) -> None:
        self.count = 0
        self._source = source
        self._stem = f"{warehouse}/quarantine/batch={batch}/{source.key}"
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
        while files.exists(f"{stem}-{part}.parquet"):
            files.rm(f"{stem}-{part}.parquet")
            part += 1

    def _flush(self) -> None:
        if not self._waiting:
            return
        server, name = self._source.server, self._source.name
        rows = [
            {"server": server, "file": name, "line": number, "reason": str(reason), "text": text} for number, reason, text in self._waiting
        ]
        write_parquet(pa.Table.from_pylist(rows, ARROW_QUARANTINE), f"{self._stem}-{self._parts}.parquet")
        self._waiting = []
        self._parts += 1


def write_parquet(table: Any, path: str) -> None:
    """Write one whole file."""
    with written_whole(path) as file:
        parquet.write_table(table, file, compression=COMPRESSION, row_group_size=ROWS_AT_ONCE)


def escaped(name: str) -> str:
    """A partition value as Spark writes it in a directory name."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", name)
