"""Tracking logs as bytes, and what the job reads from them, for tests."""

import io
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.protocol.tracking import format_header, format_line
from shadowrelay.sla.parse import LogFile

STARTED = datetime(2026, 11, 21, 12, tzinfo=UTC)


def an_event(message: str = "m1", event: EventId = EventId.RECEIVE, **values: Any) -> TrackingEvent:
    """One row; what is not named has a default."""
    values = {"at": STARTED, "source": EventSource.SMTP, "internal_message_id": 1} | values
    return TrackingEvent(event=event, network_message_id=message, **values)


def a_log(events: Iterable[TrackingEvent], version: str = "1.2.3") -> bytes:
    """A whole file of our own."""
    return format_header(version, STARTED) + b"".join(map(format_line, events))


def read_log(data: bytes, server: str = "mx1", name: str = "MSGTRK2026112112-1.LOG", **options: Any) -> tuple[LogFile, list, list]:
    """The file with its counts, its rows as dicts, its bad lines as (number, reason, text)."""
    log = LogFile(io.BytesIO(data), server, name, **options)
    rows: list[dict[str, Any]] = []
    bad: list[tuple[int, str, str]] = []
    for parsed in log:
        rows += parsed.rows.to_pylist()
        bad += [(number, str(reason), text) for number, reason, text in parsed.bad]
    return log, rows, bad
