"""Reads logs into a warehouse, each file once: `sla ingest`, and the temporary warehouse of a report from logs. docs/sla.md, 1.

A log is new if the table `files` does not have it with its present size: it was never read, has grown, or could not be read.
New logs are landed in batches, `ingest-000000` and so on. Readers ignore the rest of a batch that was killed; the next run deletes it,
and its logs are still new. So nothing but the warehouse is kept between two runs.

A log that grew is read again as a whole. Its earlier rows are then repeats, which every reader of events tolerates.

Spark's workers read large inputs. Small ones are read in this process, without a JVM, unless small files are to be merged.
"""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shadowrelay.sla.inspection import last_readings, readings
from shadowrelay.sla.land import Landed, land, land_here
from shadowrelay.sla.logs import LITTLE_BYTES, NoLogs, Source, is_little, list_logs, plain_name, require_logs, unreadable_names
from shadowrelay.sla.sites import (
    ExpectedLogs,
    Manifest,
    ServerSite,
    merged,
    read_manifests,
    read_servers,
    read_shipping,
    write_servers,
    write_shipping,
)
from shadowrelay.sla.storage import located
from shadowrelay.sla.warehouse import (
    begin,
    clean,
    compact,
    compact_files,
    compact_quarantine,
    is_compactable,
    next_number,
    the_only_one,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Session = Callable[[], "SparkSession"]
"""Gives the session, and starts it at its first call."""
Tell = Callable[[str], None]

# ---- all at once

REMOVALS_MAX, REMOVAL_PAUSE_SECONDS = 20, 0.25
PARQUET_SHARE = 4  # of the logs' size, and less for larger files


@contextmanager
def temporary_warehouse(
    spark: "SparkSession", logs: str, sites: Mapping[str, ServerSite] | None = None, directory: Path | None = None
) -> Iterator[str]:
    """A warehouse with all of these logs, deleted afterwards.

    Units: it takes about a quarter of the logs' disk space, in `directory`, or in the default directory for temporary files.
    """
    warehouse = tempfile.mkdtemp(prefix="shadowrelay-sla-", dir=directory)
    try:
        ingest_once(spark, logs, warehouse, sites)
        yield warehouse
    except (KeyboardInterrupt, SystemExit):
        with suppress(Exception):
            spark.stop()  # otherwise its workers continue writing
        raise
    finally:
        _remove(warehouse)


def _remove(directory: str) -> None:
    """Delete the directory even while a worker that is being stopped still writes there."""
    for _ in range(REMOVALS_MAX):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(REMOVAL_PAUSE_SECONDS)


def ingest_once(spark: "SparkSession", logs: str, warehouse: str, sites: Mapping[str, ServerSite] | None = None) -> None:
    """Read all logs into an empty warehouse, as one batch. Raises: NoLogs if no server's directory has a log."""
    sources = require_logs(logs)
    begin(warehouse)
    _land(None if is_little(sources) else spark, sources, warehouse, "once")
    describe_servers(logs, warehouse, sites, Known(warehouse))


def _land(spark: "SparkSession | None", sources: Sequence[Source], warehouse: str, batch: str) -> Landed:
    return land_here(sources, warehouse, batch) if spark is None else land(spark, sources, warehouse, batch)


# ---- what there is


class Ingested(NamedTuple):
    """The content of a warehouse. A file that was read twice counts once, as read last."""

    files: int
    bytes: int
    lines: int
    rows: int
    quarantined: int


def counted(warehouse: str) -> Ingested:
    """The current content of the warehouse, as `last_readings` has it."""
    kept = last_readings(warehouse)
    return Ingested(len(kept), *(sum(getattr(each, name) for each in kept) for name in Ingested._fields[1:]))


def is_little_warehouse(warehouse: str, bytes_max: int = LITTLE_BYTES) -> bool:
    """Whether a report of it is not worth compiling for, as in `is_little`. It stops to look as soon as it knows."""
    files, top = located(f"{warehouse}/events")
    octets = 0
    for _, _, found in files.walk(top, detail=True):
        octets += sum(entry["size"] or 0 for entry in found.values())
        if octets > bytes_max // PARQUET_SHARE:
            return False
    return True


def require_warehouse(warehouse: str) -> None:
    """Raises: NoLogs if nothing was ingested yet, because a report without data would look like a good result."""
    if not has_events(warehouse):
        raise NoLogs(f"{warehouse}: no warehouse: `shadowrelay sla ingest` makes one")


def has_events(warehouse: str) -> bool:
    """Whether anything was ingested."""
    files, top = located(warehouse)
    return bool(files.isdir(f"{top}/events"))


class Known:
    """The logs that `files` has, with the sizes that were read."""

    def __init__(self, warehouse: str) -> None:
        self._sizes: dict[tuple[str, str], set[int]] = {}
        for each in readings(warehouse):
            self._sizes.setdefault((each.server, each.file), set()).add(each.bytes)

    def add(self, landed: Landed) -> None:
        """What was read just now."""
        for row in landed:
            self._sizes.setdefault((row["server"], row["file"]), set()).add(row["bytes"])

    def has(self, server: str, name: str) -> bool:
        """Whether the log was read, at any size."""
        return (server, name) in self._sizes

    def has_packed(self, server: str, name: str) -> bool:
        """The same, also if it was packed since the node wrote it."""
        return self.has(server, name) or any(self.has(server, f"{name}{end}") for end in (".gz", ".GZ"))

    def is_new(self, source: Source) -> bool:
        """Whether the log was never read at this size. Without a size, a log that was read once is not new."""
        sizes = self._sizes.get((source.server, source.name))
        return sizes is None or (source.size is not None and source.size not in sizes)


# ---- servers


def describe_servers(logs: str, warehouse: str, sites: Mapping[str, ServerSite] | None, known: Known) -> None:
    """Write `servers.json` and `shipping.json`, from the current manifests and their previous content."""
    manifests = read_manifests(logs)
    write_servers(warehouse, merged(read_servers(warehouse), manifests, sites or {}))
    write_shipping(warehouse, _shipping(logs, warehouse, manifests, known))


def _shipping(logs: str, warehouse: str, manifests: Mapping[str, Manifest | None], known: Known) -> ExpectedLogs:
    """A manifest drops old entries, and may be missing or incomplete for a moment: its entries stay known until the file is read."""
    there = {(source.server, plain_name(source.name)) for source in list_logs(logs)}
    whole = [(server, manifest) for server, manifest in manifests.items() if manifest is not None]
    named = {(server, name) for server, manifest in whole for name in manifest.names}
    dropped = {each[:2]: each for _, manifest in whole for each in manifest.dropped}
    before = read_shipping(warehouse)
    forgotten = {each[:2]: each for each in before.dropped if each[:2] not in dropped}
    absent = (named - there) | set(before.missing)
    unread = {log for log in absent | forgotten.keys() if not known.has_packed(*log)}
    dropped |= {key: each for key, each in forgotten.items() if key in unread}  # a node may still ship a file that it was about to drop
    return ExpectedLogs(tuple(sorted(absent & unread)), tuple(sorted(dropped.values())))


# ---- what is new

SERIES = "ingest"  # batches: ingest-000000 …
FILES_PER_BATCH = 200  # x 10 MB = 2 GB: about ten seconds per core
INTERVAL = timedelta(seconds=10)  # between two listings
REVIEW_EVERY = timedelta(minutes=1)  # for logs that grew, manifests, names that cannot be read, and compaction


def ingest(
    session: Session,
    logs: str,
    warehouse: str,
    *,
    sites: Mapping[str, ServerSite] | None = None,
    is_continuous: bool = False,
    interval: timedelta = INTERVAL,
    files_per_batch: int = FILES_PER_BATCH,
    is_compacting: bool = True,
    tell: Tell = lambda _: None,
    stop: threading.Event | None = None,
) -> Ingested:
    """Read what is new below `logs`; with `is_continuous` again and again, until `stop` is set. `tell` receives a line for each step.

    Raises: NoLogs and InUse, before anything is written; what Spark raises. Batches before it are complete.
    """
    require_logs(logs, may_be_empty=is_continuous)
    stop = stop or threading.Event()
    with the_only_one(warehouse):
        begin(warehouse)
        clean(warehouse)
        known, number = Known(warehouse), next_number(warehouse, SERIES)
        reviewed_at: float | None = None
        while True:
            is_review = reviewed_at is None or time.monotonic() - reviewed_at >= REVIEW_EVERY.total_seconds()
            new = [source for source in list_logs(logs) if known.is_new(source)]
            if not is_review:  # a log that is being written would be read as a whole each time
                new = [source for source in new if not known.has(source.server, source.name)]
            spark = None if is_little(new) else session()
            for batch in _batches(new, files_per_batch):
                began = time.monotonic()
                landed = _land(spark, batch, warehouse, f"{SERIES}-{number:06}")
                tell(told(number, landed, time.monotonic() - began))
                if again := sum(known.has(row["server"], row["file"]) for row in landed):
                    tell(f"{again} files read again")
                known.add(landed)
                number += 1
            if is_review:
                review(session, logs, warehouse, sites, known, is_compacting=is_compacting, tell=tell)
                reviewed_at = time.monotonic()
            if not is_continuous or stop.wait(interval.total_seconds()):
                return counted(warehouse)


def _batches(sources: Sequence[Source], size: int) -> Iterable[Sequence[Source]]:
    return (sources[first : first + size] for first in range(0, len(sources), size))


def told(number: int, landed: Landed, seconds: float) -> str:
    """A line about a batch."""
    octets, rows = sum(row["bytes"] for row in landed) / 1e6, sum(row["rows"] for row in landed)
    return f"batch {number}: {len(landed)} files, {rows} rows, {octets:.1f} MB at {octets / max(seconds, 1e-3):.0f} MB/s"


def review(
    session: Session,
    logs: str,
    warehouse: str,
    sites: Mapping[str, ServerSite] | None,
    known: Known,
    *,
    is_compacting: bool,
    tell: Tell,
) -> None:
    """What need not be done for each batch: manifests, names that cannot be read, and small files of past days."""
    for name in unreadable_names(logs):
        tell(f"{name}: not read, because its name is not UTF-8; rename it")
    describe_servers(logs, warehouse, sites, known)
    if is_compacting and is_compactable(warehouse) and (count := compact(session(), warehouse)):
        tell(f"{count} small files merged")
    if is_compacting and (count := compact_files(warehouse)):
        tell(f"the tables of {count} batches merged")
    if is_compacting and (count := compact_quarantine(warehouse)):
        tell(f"{count} files of quarantine merged")
