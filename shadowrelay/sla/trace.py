"""`sla trace` without Spark: every row about one message, from few logs or a small warehouse. docs/sla.md "Make a report".

Starting a JVM would take longer than this reads. The rows are those of `summary.trace`, which reads any amount, in the same form.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from shadowrelay.sla.inspection import complete_parts
from shadowrelay.sla.logs import list_logs
from shadowrelay.sla.parquet_files import read_parquet
from shadowrelay.sla.parse import LogFile
from shadowrelay.sla.storage import located
from shadowrelay.sla.summary import TRACE_ROWS_MAX, microseconds, traced_row

_COLUMNS = (
    "message", "row_id", "at", "line", "event", "source", "client_hostname", "client_ip", "server_hostname", "server_ip", "recipients",
    "recipient_statuses", "source_context", "reference", "custom_data", "internet_message_id", "original_message",
)  # fmt: skip
Rows = Iterator[tuple[str, Any]]


def rows_of_logs(logs: str) -> Rows:
    """The server, and rows of it. What cannot be read is left out, as in `sla report`."""
    for source in list_logs(logs):
        files, place = located(source.path)
        try:
            with files.open(place, "rb") as stream:
                for parsed in LogFile(stream, source.server, source.name):
                    yield source.server, parsed.rows.select(_COLUMNS)
        except OSError:
            continue


def rows_of_warehouse(warehouse: str) -> Rows:
    """The same. Raises: WarehouseUnusable."""
    files, top = located(f"{warehouse}/events")
    for part in complete_parts(warehouse):
        yield part.server, read_parquet(files, f"{top}/{part.place}", _COLUMNS)


def trace(rows: Iterable[tuple[str, Any]], message_id: str) -> list[dict[str, Any]]:
    """As `summary.trace`."""
    bare = message_id.strip().removeprefix("<").removesuffix(">")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for server, batch in rows:
        for row in batch.filter(_is_about(batch, message_id, bare)).to_pylist():
            found.setdefault((row["message"], row["row_id"]), row | {"server": server, "at_us": microseconds(row["at"])})
    counts: dict[str, int] = defaultdict(int)
    lines = []
    for row in sorted(found.values(), key=lambda row: (row["at_us"], row["server"], row["line"])):
        counts[row["message"]] += 1
        if counts[row["message"]] <= TRACE_ROWS_MAX:
            lines.append({"message": row["message"], **traced_row(row | _shown(row))})
    return lines


def _is_about(batch: Any, message_id: str, bare: str) -> Any:
    def is_one(column: str, *ids: str) -> Any:
        return pc.is_in(batch.column(column), pa.array(ids, pa.string()))

    is_report = pc.and_(pc.equal(batch.column("event"), "RECEIVE"), pc.equal(batch.column("source"), "AGENT"))
    is_generated = pc.or_(pc.equal(batch.column("event"), "DSN"), is_report)
    is_told = pc.or_(is_one("original_message", message_id), is_one("reference", bare, f"<{bare}>"))
    ids = (message_id, bare, f"<{bare}>")
    is_client = pc.and_(pc.equal(batch.column("event"), "RECEIVE"), pc.equal(batch.column("source"), "SMTP"))
    is_next_hop = pc.and_(is_client, is_one("reference", message_id))  # relayed by TRACK: the only row of it if the reply was lost
    is_own = pc.or_(is_one("message", *ids), is_one("internet_message_id", *ids))
    return pc.or_(pc.or_(is_own, pc.and_(is_generated, is_told)), is_next_hop)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    statuses = "; ".join(dict.fromkeys(row["recipient_statuses"]))
    texts = (row["source_context"], row["reference"], statuses, row["custom_data"])
    return {
        "client": row["client_hostname"] or row["client_ip"],
        "to": row["server_hostname"] or row["server_ip"],
        "recipients_count": len(row["recipients"]),
        "text": " · ".join(filter(None, texts)),
    }
