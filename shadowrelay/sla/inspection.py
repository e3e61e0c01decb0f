"""Compares the rows in `events` and `quarantine` with the table `files`, to detect a damaged warehouse. docs/sla.md, 1, "Damage".

Works without Spark: only footers of Parquet files are read. A file of events is named after its log (`Source.key`), so missing logs can be
named, and `read_again` reads them again.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from shadowrelay.sla.land import land_here
from shadowrelay.sla.logs import NoLogs, Source, require_logs
from shadowrelay.sla.parquet_files import parquet_rows, read_parquet, write_parquet
from shadowrelay.sla.sites import read_shipping, write_shipping
from shadowrelay.sla.storage import located
from shadowrelay.sla.warehouse import (
    OF_BATCH,
    Merge,
    WarehouseUnusable,
    batches_in,
    complete_batches,
    is_of_several,
    landed_batches,
    landed_tables,
    listed,
    lost_batches,
    prune,
    read_merges,
    read_pruned,
    require_version,
    the_only_one,
)

READERS_MAX = 8
TRIES = 3  # a compaction may end while the files are listed
NAMED_MAX = 3  # logs, or servers, in an error


class Damage(NamedTuple):
    """Something that is missing or torn, and the logs `SERVER/FILE` to read again."""

    what: str
    logs: Sequence[str]


class Part(NamedTuple):
    """A file of events: `place` is its path below `events`."""

    place: str
    day: str
    server: str
    batch: str
    key: str


class Reading(NamedTuple):
    """A row of `files`: a log as it was read in a batch."""

    server: str
    file: str
    bytes: int
    lines: int
    rows: int
    quarantined: int
    format: str
    first_at: datetime | None
    last_at: datetime | None
    batch: str

    @property
    def key(self) -> tuple[str, str]:
        return self.batch, Source("", self.server, self.file).key


def inspect(warehouse: str) -> None:
    """Count the rows of each log in each complete batch.

    Raises: WarehouseUnusable for one of another version, or if rows are missing; the text names the logs, and the remedy.
    """
    require_version(warehouse)
    for tries_left in reversed(range(TRIES)):
        merges, quarantine = read_merges(warehouse), _bad_lines_of_several(warehouse)
        try:
            _inspect(warehouse, merges)
            return
        except WarehouseUnusable:
            if not tries_left or (read_merges(warehouse).keys() == merges.keys() and _bad_lines_of_several(warehouse) == quarantine):
                raise


def complete_parts(warehouse: str) -> list[Part]:
    """The files of events that readers see. Raises: WarehouseUnusable."""
    require_version(warehouse)
    landed, merges, pruned = landed_batches(warehouse), read_merges(warehouse), read_pruned(warehouse)
    return [part for part in _complete(warehouse, landed, merges) if pruned is None or part.day >= pruned.isoformat()]


def _complete(warehouse: str, landed: Collection[str], merges: Mapping[str, Merge]) -> list[Part]:
    obsolete = {place for merge in merges.values() for place in merge.parts}
    return [part for part in _parts(warehouse) if part.place not in obsolete and (part.batch in landed or part.batch in merges)]


def _inspect(warehouse: str, merges: Mapping[str, Merge]) -> None:
    landed = landed_batches(warehouse)
    found = readings(warehouse)
    parts = _complete(warehouse, landed, merges)
    damages = [
        *_lost_batches(warehouse, landed | merges.keys()),
        *_lost_tables(warehouse, parts, {each.batch for each in found} | merges.keys()),
        *_torn_events(warehouse, merges, found, parts),
        *_lost_quarantine(warehouse, landed, found),
    ]
    if damages:
        raise _damaged(warehouse, damages)


def _torn_events(warehouse: str, merges: Mapping[str, Merge], found: Sequence[Reading], parts: Sequence[Part]) -> Iterator[Damage]:
    files, top = located(f"{warehouse}/events")
    rows: Counter[tuple[str, str]] = Counter()  # by batch and log, or by compaction and day
    torn: set[tuple[str, str]] = set()
    for part, count in zip(parts, _counts(files, [f"{top}/{part.place}" for part in parts]), strict=True):
        counted = part.batch, part.day if part.batch in merges else part.key
        if count is None:
            torn.add(counted)
            yield Damage(f"events/{part.place} is torn", _logs_of(part, found))
        rows[counted] += count or 0
    for merge in merges.values():
        for place, count in merge.parts.items():
            part = _part(place)
            rows[part.batch, part.day if part.batch in merges else part.key] += count
    pruned = read_pruned(warehouse)

    def is_whole(reading: Reading) -> bool:
        """Whether nothing of it was pruned."""
        return pruned is None or reading.first_at is None or reading.first_at.date() >= pruned

    for reading in filter(is_whole, found):
        if rows[reading.key] != reading.rows and reading.key not in torn:
            what = f"of {reading.rows} rows of {reading.server}/{reading.file} (batch {reading.batch}) {rows[reading.key]} are left"
            yield Damage(what, [f"{reading.server}/{reading.file}"])
    for name, merge in merges.items():
        for day, rows_merged in merge.rows.items():
            if rows[name, day] != rows_merged and (name, day) not in torn and (pruned is None or day >= pruned.isoformat()):
                what = f"of {rows_merged} rows of {day} that were merged ({name}) {rows[name, day]} are left"
                yield Damage(what, [f"{_part(place).server}/*" for place in merge.parts if f"date={day}" in place])


def _lost_batches(warehouse: str, complete: Set[str]) -> Iterator[Damage]:
    for batch in lost_batches(warehouse, complete):
        yield Damage(f"files/batch={batch} is missing", _logs_in(warehouse, _parts(warehouse), batch))


def _lost_tables(warehouse: str, parts: Sequence[Part], known: Set[str]) -> Iterator[Damage]:
    for batch in sorted({part.batch for part in parts} - known):
        yield Damage(f"files/batch={batch} has lost its table", _logs_in(warehouse, parts, batch))


def _logs_in(warehouse: str, parts: Iterable[Part], batch: str) -> list[str]:
    """The logs of which a batch has rows, by these rows. Where they cannot be read, all of the server."""
    files, top = located(f"{warehouse}/events")

    def logs_of(part: Part) -> list[str]:
        try:
            names = read_parquet(files, f"{top}/{part.place}", ["file"]).column("file").unique().to_pylist()
        except (OSError, pa.ArrowException):
            return [f"{part.server}/*"]
        return [f"{part.server}/{name}" for name in names]

    return sorted({log for part in parts if part.batch == batch for log in logs_of(part)})


def _lost_quarantine(warehouse: str, landed: Set[str], found: Iterable[Reading]) -> Iterator[Damage]:
    files, top = located(f"{warehouse}/quarantine")
    lines: Counter[tuple[str, str]] = Counter()
    together: set[str] = set()
    for path in _bad_lines_of_several(warehouse):
        try:
            columns = read_parquet(files, path, [OF_BATCH, "server", "file"]).to_pydict()
        except (OSError, pa.ArrowException):
            continue  # its lines are missing
        together |= set(columns[OF_BATCH])
        for (batch, server, name), count in Counter(zip(*columns.values(), strict=True)).items():
            lines[batch, Source("", server, name).key] += count
    single = [path for path in files.glob(f"{top}/batch=*/*.parquet") if _batch_of(path) in landed - together]
    for path, rows in zip(single, _counts(files, single), strict=True):
        lines[_batch_of(path), path.rpartition("/")[2].rpartition("-")[0]] += rows or 0
    for reading in found:
        if lines[reading.key] != reading.quarantined:
            log = f"{reading.server}/{reading.file}"
            what = f"of {reading.quarantined} quarantined lines of {log} (batch {reading.batch}) {lines[reading.key]} are left"
            yield Damage(what, [log])


def _bad_lines_of_several(warehouse: str) -> list[str]:
    """The files of `quarantine` that have the lines of several batches."""
    files, top = located(f"{warehouse}/quarantine")
    return sorted(path for path in files.glob(f"{top}/batch=*/*.parquet") if is_of_several(_batch_of(path)))


def readings(warehouse: str) -> list[Reading]:
    """All of complete batches; after a compaction that was killed, some twice. Raises: WarehouseUnusable."""
    return listed(warehouse, lambda: _readings(warehouse))


def last_readings(warehouse: str) -> list[Reading]:
    """Each log once, as read last, when it was longest. Those that ended before what was pruned are left out. Raises: WarehouseUnusable."""
    pruned = read_pruned(warehouse)
    last: dict[tuple[str, str], Reading] = {}
    for each in readings(warehouse):
        before = last.get((each.server, each.file))
        if before is None or (each.bytes, each.batch) > (before.bytes, before.batch):  # a log only grows
            last[each.server, each.file] = each
    return [each for each in last.values() if pruned is None or each.last_at is None or each.last_at.astimezone(UTC).date() >= pruned]


def _readings(warehouse: str) -> list[Reading]:
    files, top = located(f"{warehouse}/files")
    landed = landed_tables(warehouse)
    for name in filter(is_of_several, landed):
        batches_in(warehouse, name)  # says so if it is damaged
    paths = [path for path in sorted(files.glob(f"{top}/batch=*/*.parquet")) if _batch_of(path) in landed]

    def read(path: str) -> list[Reading]:
        batch = _batch_of(path)
        columns = [OF_BATCH if is_of_several(batch) and name == "batch" else name for name in Reading._fields]
        try:
            table = read_parquet(files, path, columns)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException):
            what = f"{path} is torn; delete the directory files/batch={batch}"
            raise _damaged(warehouse, [Damage(what, _logs_in(warehouse, _parts(warehouse), batch))]) from None
        return [Reading(**{"batch": row.pop(OF_BATCH, batch)} | row) for row in table.to_pylist()]

    with ThreadPoolExecutor(READERS_MAX) as readers:
        return [reading for found in readers.map(read, paths) for reading in found]


def _batch_of(path: str) -> str:
    return path.rsplit("/", 2)[1].removeprefix("batch=")


def _parts(warehouse: str) -> Iterator[Part]:
    files, top = located(f"{warehouse}/events")
    for path in files.glob(f"{top}/date=*/server=*/batch=*/*.parquet"):
        yield _part(path[len(top) :].strip("/"))


def _part(place: str) -> Part:
    day, server, batch, name = place.split("/")
    return Part(
        place, day.removeprefix("date="), unquote(server.removeprefix("server=")), batch.removeprefix("batch="), name.rpartition("-")[0]
    )


def _counts(files: Any, paths: Sequence[str]) -> Iterator[int | None]:
    def count(path: str) -> int | None:
        try:
            return parquet_rows(files, path)
        except (OSError, pa.ArrowException):
            return None

    with ThreadPoolExecutor(READERS_MAX) as readers:
        yield from readers.map(count, paths)


def _logs_of(part: Part, readings: Iterable[Reading]) -> list[str]:
    return [f"{each.server}/{each.file}" for each in readings if each.key == (part.batch, part.key)] or [f"{part.server}/*"]


def _damaged(warehouse: str, damages: Sequence[Damage]) -> WarehouseUnusable:
    more = f" (and {len(damages) - 1} more)" if len(damages) > 1 else ""
    logs = _named(sorted({log for each in damages for log in each.logs}))
    return WarehouseUnusable(f"{warehouse}: damaged: {damages[0].what}{more}; {remedy(warehouse, *logs)}")


def remedy(warehouse: str, *logs: str) -> str:
    """The commands that make a warehouse whole of which these logs are damaged. Shapes: `SERVER/FILE`, or a pattern."""
    again = " ".join(f"--again {_quoted(log)}" for log in logs)
    read_it = f"`shadowrelay sla ingest --logs DIR --warehouse {warehouse} {again}`"
    return f"read it again: {read_it}; if the log no longer exists, forget it: `{_without(warehouse, 'SERVER/FILE')}`"


def _without(warehouse: str, log: str) -> str:
    return f"shadowrelay sla prune --warehouse {warehouse} --log {log}"


def _named(logs: Sequence[str]) -> Sequence[str]:
    """All of them, by patterns if there are many. Shapes: `SERVER/FILE`, sorted."""
    servers = sorted({f"{log.partition('/')[0]}/*" for log in logs})
    return next((names for names in (logs, servers) if len(names) <= NAMED_MAX), ["*"])


def _quoted(name: str) -> str:
    """For a shell."""
    return "'" + name.replace("'", "'\"'\"'") + "'"


# ---- reading again


def read_again(logs: str, warehouse: str, patterns: Sequence[str]) -> int:
    """Read the logs `SERVER/FILE` anew, and forget what was read of them before; returns how many. In this process, without Spark.

    Shapes: in a pattern `*` stands for any text. Raises: NoLogs if a pattern finds none, InUse, WarehouseUnusable.
    """
    sources = require_logs(logs)
    require_version(warehouse)
    wanted, missing = _meant(sources, patterns)
    if missing:
        raise NoLogs(f"{logs}/{missing}: no such log; to do without it: `{_without(warehouse, _quoted(missing))}`")
    with the_only_one(warehouse):
        batch = f"again-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        landed = {(row["server"], row["file"]) for row in land_here(wanted, warehouse, batch)}
        read = [each for each in wanted if (each.server, each.name) in landed]  # one that was deleted meanwhile stays as it was
        _forget(warehouse, read, batch)
    return len(read)


def _meant(sources: Iterable[Source], patterns: Iterable[str]) -> tuple[list[Source], str]:
    """Those that the patterns mean, and the first pattern that means none.

    Only `*` is special: names may have brackets and question marks.
    """
    found = {
        pattern: [each for each in sources if re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), f"{each.server}/{each.name}")]
        for pattern in patterns
    }
    meant = {each for those in found.values() for each in those}
    return sorted(meant), next((pattern for pattern, those in found.items() if not those), "")


def leave_out(warehouse: str, patterns: Sequence[str]) -> int:
    """Forget what was read of the logs `SERVER/FILE`, which no longer exist; returns how many. From then on they are missing files.

    Shapes: as in `read_again`. Raises: NoLogs if nothing was read of a pattern, InUse, WarehouseUnusable.
    """
    require_version(warehouse)
    with the_only_one(warehouse):
        lost = lost_batches(warehouse, complete_batches(warehouse))
        of_lost = [log for batch in lost for log in _logs_in(warehouse, _parts(warehouse), batch)]
        known = {(each.server, each.file) for each in readings(warehouse)}
        known |= {(server, name) for server, _, name in (log.partition("/") for log in of_lost) if name != "*"}
        gone, unread = _meant([Source("", *log) for log in sorted(known)], patterns)
        if unread:
            raise NoLogs(f"{warehouse}: nothing was read of {unread}")
        shipping = read_shipping(warehouse)
        missing = {*shipping.missing, *((each.server, each.name) for each in gone)}
        write_shipping(warehouse, shipping._replace(missing=tuple(sorted(missing))))  # first: nobody must see less without a word
        _forget(warehouse, gone, "")
    return len(gone)


def keep(warehouse: str, span: timedelta) -> int:
    """Forget the days that ended longer than `span` ago; returns how many. Raises: InUse, WarehouseUnusable."""
    require_version(warehouse)
    with the_only_one(warehouse):
        today = datetime.now(UTC)
        return prune(warehouse, (today - min(span, today - datetime.min.replace(tzinfo=UTC))).date())


def _forget(warehouse: str, sources: Sequence[Source], batch: str) -> None:
    """Remove what was read of these logs in other batches than `batch`."""
    files, top = located(f"{warehouse}/events")
    keys = {source.key for source in sources}
    names = {f"{source.server}/{source.name}" for source in sources}
    merges = read_merges(warehouse)
    left = {each.key for each in readings(warehouse)}
    elsewhere = {key for _, key in left} | {Source("", *log).key for log in read_shipping(warehouse).missing}

    def is_needed(of_batch: str, key: str) -> bool:
        """Whether these rows of a compaction count still: the log is none of these, and was not read again or left out before."""
        return key not in keys and ((of_batch, key) in left or key not in elsewhere)

    for name, merge in merges.items():
        if not any(is_needed(*each) for each in _read_as(name, merges)):
            _delete(files, [f"{top}/{place}" for place in merge.parts])
            _delete(files, files.glob(f"{top}/date=*/server=*/batch={name}/*.parquet"))
            _delete(files, [f"{top.rpartition('/')[0]}/merged/{name}.json"])
    for table in ("events/date=*/server=*", "quarantine"):
        of_table, place = located(f"{warehouse}/{table}")
        for path in of_table.glob(f"{place}/batch=*/*.parquet"):
            if path.rpartition("/")[2].rpartition("-")[0] in keys and f"/batch={batch}/" not in path:
                _delete(of_table, [path])
    for path in _tables(warehouse):
        if f"/batch={batch}/" in path:
            continue
        try:
            table = read_parquet(files, path)
        except (OSError, pa.ArrowException):  # the lines of other logs in it are missed, and told
            _delete(files, [path])
            continue
        kept = table.filter(pc.invert(pc.is_in(pc.binary_join_element_wise(table["server"], table["file"], "/"), pa.array(sorted(names)))))
        if kept.num_rows < table.num_rows:
            _delete(files, [f"{path.rpartition('/')[0]}/.{path.rpartition('/')[2]}.crc"])  # Hadoop's, of the former content
            write_parquet(kept, path)


def _tables(warehouse: str) -> list[str]:
    """Those with rows of several logs."""
    files, top = located(f"{warehouse}/files")
    return [*files.glob(f"{top}/batch=*/*.parquet"), *_bad_lines_of_several(warehouse)]


def _read_as(name: str, merges: Mapping[str, Merge]) -> set[tuple[str, str]]:
    """Batches and logs of which a compaction has rows, by way of earlier ones too. A log that was read again has another batch since."""
    parts = [_part(place) for place in merges[name].parts]
    direct = {(part.batch, part.key) for part in parts if part.batch not in merges}
    return direct.union(*[_read_as(part.batch, merges) for part in parts if part.batch in merges])


def _delete(files: Any, paths: Iterable[str]) -> None:
    for path in paths:
        if files.exists(path):
            files.rm(path)
