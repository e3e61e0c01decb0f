"""What live figures are made from: of each landed batch the few columns that they need, once, in order. docs/sla.md, 7.

Lateness is decided here and nowhere else: by the mark, which moves with the batches and is kept with what was fed. So it does not depend
on when Spark looks, nor on how often the process was killed. A batch is fed after it has landed, which makes it immutable; its file
appears before the mark that knows it. What is killed in between is done again, with the same result under the same name.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import parquet

from shadowrelay.sla.columns import ARROW_EVENTS
from shadowrelay.sla.land import COMPRESSION, escaped, is_landed
from shadowrelay.sla.places import located, written_whole
from shadowrelay.sla.values import UTC_INSTANT

LATENESS = timedelta(hours=2)
AHEAD_MAX = timedelta(hours=1)
ROWS_AT_ONCE = 100_000
IN_TIME, LATE, AHEAD = "in time", "late", "ahead"

_TAKEN = ("row_id", "at", "event", "source", "replication", "shadow_us", "recipients")
FEED_DDL = (
    "row_id string, moment timestamp, standing string, server string, event string, source string, replication string, "
    "shadow_us long, recipients_count long"
)
"""A row of the feed. `moment`: its `at`; of rows that are late or ahead, an instant that Spark's watermark has not passed."""
ARROW_FEED = pa.schema(
    [("row_id", pa.string()), ("moment", UTC_INSTANT), ("standing", pa.string()), ("server", pa.string())]
    + [(name, ARROW_EVENTS.field(name).type) for name in ("event", "source", "replication", "shadow_us")]
    + [("recipients_count", pa.int64())]
)


class Mark(NamedTuple):
    """What was fed. `newest`: the newest instant that counts, None before there is one. `fed`: the last batch of each series.

    Units: `newest` in microseconds since 1970; the others are counts since the first.
    """

    newest: int | None = None
    fed: Mapping[str, str] = {}
    batches: int = 0
    rows: int = 0
    late_rows: int = 0
    ahead_rows: int = 0
    missed_rows: int = 0

    def is_fed(self, batch: str) -> bool:
        """Batches of a series are made in the order of their numbers."""
        series, number = _numbered(batch)
        last = self.fed.get(series)
        return last is not None and (len(number), number) <= (len(last), last)

    def instant(self) -> int | None:
        """Rows before this are late. Units: microseconds since 1970."""
        return None if self.newest is None else self.newest - LATENESS // timedelta(microseconds=1)


def _numbered(batch: str) -> tuple[str, str]:
    series, _, number = batch.rpartition("-")
    return series, number


def read_mark(warehouse: str) -> Mark | None:
    """`live/mark.json`; None before the first watch of this warehouse."""
    files, path = located(f"{warehouse}/live/mark.json")
    try:
        return Mark(**json.loads(files.cat_file(path)))
    except FileNotFoundError:
        return None


def begin(warehouse: str) -> Mark:
    """The mark; with the first watch all that has landed before is taken for fed. The feed's directory exists afterwards."""
    files, path = located(f"{warehouse}/live/feed")
    files.makedirs(path, exist_ok=True)
    mark = read_mark(warehouse)
    if mark is None:
        last: dict[str, str] = {}
        for batch in _batches(warehouse):
            series, number = _numbered(batch)
            last[series] = max(last.get(series, ""), number, key=lambda text: (len(text), text))
        mark = Mark(fed=last)
        _write_mark(warehouse, mark)
    return mark


def feed(warehouse: str, mark: Mark, *, now: datetime) -> Mark:
    """Feed what has landed since; gives the new mark. `now` is this machine's clock. Nobody may compact the warehouse meanwhile."""
    for batch in _batches(warehouse):
        if not mark.is_fed(batch) and is_landed(warehouse, batch):
            mark = _feed_batch(warehouse, batch, mark, now)
            _write_mark(warehouse, mark)
    return mark


def _write_mark(warehouse: str, mark: Mark) -> None:
    with written_whole(f"{warehouse}/live/mark.json") as file:
        file.write(json.dumps(mark._asdict(), indent=1).encode())


def _batches(warehouse: str) -> list[str]:
    """Those that have begun to land, in order within each series."""
    files, top = located(f"{warehouse}/files")
    if not files.isdir(top):
        return []
    names = [path.rstrip("/").rpartition("/")[2] for path in files.ls(top, detail=False)]
    batches = [name.removeprefix("batch=") for name in names if name.startswith("batch=")]
    return sorted(batches, key=lambda batch: (_numbered(batch)[0], len(batch), batch))


def _feed_batch(warehouse: str, batch: str, mark: Mark, now: datetime) -> Mark:
    limit = _microseconds(now + AHEAD_MAX)
    expected, parts = _parts(warehouse, batch)
    newest, counts = mark.newest, dict.fromkeys((IN_TIME, LATE, AHEAD), 0)
    if expected:
        with written_whole(f"{warehouse}/live/feed/{batch}.parquet") as file, parquet.ParquetWriter(
            file, ARROW_FEED, compression=COMPRESSION
        ) as writer:  # fmt: skip
            for server, rows in parts:
                standing = standings(rows.column("at"), mark.instant(), limit)
                for each in counts:
                    counts[each] += pc.sum(pc.equal(standing, each)).as_py() or 0
                writer.write_batch(_fed(rows, standing, server, mark.instant(), now))
                seen = pc.max(pc.filter(rows.column("at"), pc.not_equal(standing, AHEAD))).cast(pa.int64()).as_py()
                newest = max(filter(None, (newest, seen)), default=None)
    series, number = _numbered(batch)
    found = sum(counts.values())
    return Mark(
        newest=newest, fed={**mark.fed, series: number}, batches=mark.batches + 1, rows=mark.rows + found,
        late_rows=mark.late_rows + counts[LATE], ahead_rows=mark.ahead_rows + counts[AHEAD],
        missed_rows=mark.missed_rows + max(expected - found, 0),
    )  # fmt: skip


def standings(at: Any, mark: int | None, limit: int) -> Any:
    """Of each instant: in time, late (before the mark) or ahead (after the limit). Units: microseconds since 1970."""
    instants = at.cast(pa.int64())
    is_late = pc.less(instants, mark) if mark is not None else pa.array([False] * len(at))
    return pc.if_else(pc.greater(instants, limit), AHEAD, pc.if_else(is_late, LATE, IN_TIME)).cast(pa.string())


def _fed(rows: Any, standing: Any, server: str, mark: int | None, now: datetime) -> Any:
    at_mark = pa.scalar(mark if mark is not None else _microseconds(now), pa.int64()).cast(UTC_INSTANT)
    moment = pc.if_else(pc.equal(standing, IN_TIME), rows.column("at"), at_mark)
    taken = {name: rows.column(name) for name in _TAKEN if name not in ("at", "recipients")}
    sizes = pc.fill_null(pc.list_value_length(rows.column("recipients")), 0).cast(pa.int64())
    taken |= {"moment": moment, "standing": standing, "server": pa.array([server] * len(rows)), "recipients_count": sizes}
    return pa.RecordBatch.from_arrays([taken[name] for name in ARROW_FEED.names], schema=ARROW_FEED)


def _parts(warehouse: str, batch: str) -> tuple[int, Iterator[tuple[str, Any]]]:
    """How many rows the batch has, and those that stand there, with their servers."""
    files, top = located(f"{warehouse}/files/batch={batch}")
    paths = [path for path in files.find(top) if path.endswith(".parquet")]
    readings = [row for path in paths for row in _table(files, path, ["server", "rows", "first_at", "last_at"])]
    return sum(row["rows"] for row in readings), _rows(warehouse, batch, [row for row in readings if row["rows"]])


def _table(files: Any, path: str, columns: list[str]) -> list[dict[str, Any]]:
    with files.open(path, "rb") as file:
        rows: list[dict[str, Any]] = parquet.ParquetFile(file).read(columns).to_pylist()
        return rows


def _rows(warehouse: str, batch: str, readings: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    if not readings:
        return
    files, top = located(f"{warehouse}/events")
    first = min(row["first_at"] for row in readings).astimezone(UTC).date().isoformat()
    last = max(row["last_at"] for row in readings).astimezone(UTC).date().isoformat()
    for day in sorted(path for path in files.ls(top, detail=False) if first <= _date_of(path) <= last):
        for server in sorted({row["server"] for row in readings}):
            place = f"{day.rstrip('/')}/server={escaped(server)}/batch={batch}"
            for path in sorted(files.find(place)) if files.isdir(place) else ():
                if path.endswith(".parquet") and not path.rpartition("/")[2].startswith("."):
                    with files.open(path, "rb") as file:
                        for rows in parquet.ParquetFile(file).iter_batches(ROWS_AT_ONCE, columns=list(_TAKEN)):
                            yield server, rows


def _date_of(path: str) -> str:
    """ "2026-11-21" of a directory "…/date=2026-11-21"; empty for what is none."""
    name = path.rstrip("/").rpartition("/")[2]
    try:
        return date.fromisoformat(name.removeprefix("date=")).isoformat()
    except ValueError:
        return ""


def _microseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
