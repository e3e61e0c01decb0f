"""Literal cases for tests of figures: one boundary each, all of them judged in one report, because each Spark job costs seconds.

Servers have the case's name as their domain ("p" of the case "gap" is "p.gap"), and messages begin with it ("gap/m"). Instants
are seconds after noon.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from shadowrelay.sla.columns import ARROW_EVENTS
from shadowrelay.sla.land import ARROW_QUARANTINE, escaped, write_parquet
from shadowrelay.sla.logs import Source
from shadowrelay.sla.warehouse import FILES, begin
from tests.kit.events import NOON, event_row

DAY = 86_400
LOG = "MSGTRK2026112112-1.LOG"
BOTH = ("a@x.example", "b@x.example")
BAD_AT, BAD_LINES = "p.plain", (7, 8, 8)  # in quarantine


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


class Case:
    """Rows of one boundary. Servers "p" (primary), "s" and "q" unless a test needs others."""

    def __init__(self, name: str, *, format: str = "shadowrelay", has_sites: bool = True) -> None:
        self.name, self.format, self.has_sites = name, format, has_sites
        self.rows: list[dict[str, Any]] = []
        self.servers: set[str] = set()
        self.without_log: set[str] = set()

    def host(self, server: str) -> str:
        return f"{server}.{self.name}" if server else ""

    def row(self, event: str, seconds: float, server: str, message: str = "m", to: Sequence[str] = BOTH, **columns: Any) -> None:
        """`client`, `peer` (server-hostname) and `reference` are servers by their short names."""
        self.servers.add(server)
        for short, column in {"client": "client_hostname", "peer": "server_hostname", "old": "reference"}.items():
            if short in columns:
                columns[column] = self.host(columns.pop(short))
        given = {
            "event": event,
            "at": at(seconds),
            "server": self.host(server),
            "message": f"{self.name}/{message}",
            "recipients": list(to),
        }
        self.rows.append(given | {"format": self.format, "internet_message_id": f"<{self.name}/{message}>"} | columns)

    def receive(self, seconds: float, message: str = "m", server: str = "p", replication: str = "Success", **columns: Any) -> None:
        self.row("RECEIVE", seconds, server, message, replication=replication, peer=server, **columns)

    def redirect(self, seconds: float, message: str = "m", server: str = "p", shadow: str = "s", **columns: Any) -> None:
        self.row("HAREDIRECT", seconds, server, message, client=server, peer=shadow, **columns)

    def hold(self, seconds: float, message: str = "m", shadow: str = "s", primary: str = "p", **columns: Any) -> None:
        self.row("HARECEIVE", seconds, shadow, message, client=primary, peer=shadow, **columns)

    def send(self, seconds: float, message: str = "m", server: str = "p", to: Sequence[str] = BOTH, **columns: Any) -> None:
        self.row("SENDEXTERNAL", seconds, server, message, to, client=server, **columns)

    def discard(
        self, seconds: float, message: str = "m", shadow: str = "s", said: str = "delivered", to: Sequence[str] = (), **columns: Any
    ) -> None:
        self.row("HADISCARD", seconds, shadow, message, to, source_context=said, client="p", **columns)

    def promote(
        self, seconds: float, message: str = "m", new: str = "s", old: str = "p", reason: str = "Silence", silent: float | None = None,
        detected: float | None = None, **columns: Any,
    ) -> None:  # fmt: skip
        silent_since, detected_at = (at(seconds - 600 if silent is None else silent)), at(seconds - 5 if detected is None else detected)
        self.row(
            "RESUBMIT",
            seconds,
            new,
            message,
            source="REDUNDANCY",
            old=old,
            reason=reason,
            silent_since=silent_since,
            detected_at=detected_at,
            **columns,
        )

    def held(self, seconds: float = 0, message: str = "m", **columns: Any) -> None:
        """Acknowledged with a copy."""
        self.redirect(seconds, message, **columns)
        self.hold(seconds, message, **columns)
        self.receive(seconds, message, **columns)

    def plain(self, seconds: float = 0, message: str = "m", **columns: Any) -> None:
        """What happens to nearly every message."""
        self.held(seconds, message, ack_us=40_000, shadow_us=20_999, **columns)
        self.row("TRANSFER", seconds, "p", message, source="ROUTING")
        self.send(seconds + 1.0005, message, to=BOTH[:1])
        self.send(seconds + 2.0009, message, to=BOTH[1:])
        self.discard(seconds + 3, message)

    def several(self, seconds: float, message: str, shadows: Sequence[str] = ("s", "q"), **columns: Any) -> None:
        """The same with several copies, all that were wanted."""
        for number, shadow in enumerate(shadows):
            self.redirect(seconds, message, shadow=shadow)
            self.hold(seconds - number / 10, message, shadow=shadow)
        self.receive(seconds, message, copies=len(shadows), ack_us=40_000, shadow_us=20_999, **columns)
        self.send(seconds + 1, message)
        for number, shadow in enumerate(shadows):
            self.discard(seconds + 2 + number, message, shadow=shadow, to=BOTH if number else ())

    def lives(self, seconds: float, *servers: str) -> None:
        """Their logs go on until then, with mail that is in no figure."""
        for server in servers:
            self.row("TRANSFER", seconds, server, f"other at {server}", ())


def write_warehouse(spark: SparkSession, cases: Sequence[Case], warehouse: Path) -> None:
    """A warehouse as ingestion makes it; sites are east for "p" and west for the rest."""
    numbered = enumerate((row for case in cases for row in case.rows), start=1)
    by_place: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in (event_row(number, given) for number, given in numbered):
        by_place.setdefault((row["date"].isoformat(), row["server"]), []).append(row)
    begin(str(warehouse))
    for (day, server), rows in by_place.items():
        key = Source("", server, LOG).key
        path = f"{warehouse}/events/date={day}/server={escaped(server)}/batch=1/{key}-0.parquet"
        write_parquet(pa.Table.from_pylist(rows, ARROW_EVENTS), path)
    _written(spark, list(_files(cases)), FILES, warehouse / "files" / "batch=1")
    bad = [{"server": BAD_AT, "file": LOG, "line": number, "reason": "fields", "text": "x"} for number in BAD_LINES]
    key = Source("", BAD_AT, LOG).key
    write_parquet(pa.Table.from_pylist(bad, ARROW_QUARANTINE), f"{warehouse}/quarantine/batch=1/{key}-0.parquet")
    sites = {
        case.host(server): {"site": "east" if server == "p" else "west", "boundary": case.name}
        if case.has_sites
        else {"site": "", "boundary": ""}
        for case in cases
        for server in case.servers | case.without_log
    }
    (warehouse / "servers.json").write_text(json.dumps(sites))


def _files(cases: Sequence[Case]) -> Iterator[tuple[Any, ...]]:
    for case in cases:
        for server in sorted(case.servers):
            instants = [row["at"] for row in case.rows if row["server"] == case.host(server)]
            first, last, count = min(instants), max(instants), len(instants)
            quarantined = len(BAD_LINES) if case.host(server) == BAD_AT else 0
            yield (case.host(server), LOG, 1, count + 5, count, quarantined, case.format, "1", first, last)


def _written(spark: SparkSession, rows: list[tuple[Any, ...]], schema: Any, path: Path) -> None:
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(path))
