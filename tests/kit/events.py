"""Events as literal dicts, for tests of figures: what a test does not name has a default."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from shadowrelay.sla.warehouse import EVENTS

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NULL_UNLESS_NAMED = {"total_bytes", "copies", "ack_us", "shadow_us", "attempt_us", "silent_since", "detected_at"}


def recipients_hash(recipients: Sequence[str]) -> int | None:
    """As docs/sla.md defines it: the sum of the first 8 octets of blake2b of each, modulo 2^64, signed; None where one is named twice."""
    if len(set(recipients)) < len(recipients):
        return None
    total = sum(int.from_bytes(blake2b(each.encode()).digest()[:8], "big") for each in recipients) % 2**64
    return total - 2**64 if total >= 2**63 else total


def event_row(number: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """All columns of one row. What follows from what is named is derived from it; the rest is empty, or null."""
    unknown = set(given) - set(EVENTS.fieldNames())
    assert set() == unknown, f"no such columns: {unknown}"
    row: dict[str, Any] = {name: None if name in NULL_UNLESS_NAMED else "" for name in EVENTS.fieldNames()}
    row |= {"at": NOON, "source": "SMTP", "format": "shadowrelay", "line": number, "file": "MSGTRK2026112112-1.LOG"}
    row |= {"server": "mx1.east.example", "message": "m1", "recipients": [], "recipient_statuses": []} | given
    row["row_id"] = given.get("row_id", blake2b(f"{number}".encode(), digest_size=16).hexdigest())
    row["recipients_hash"] = given.get("recipients_hash", recipients_hash(row["recipients"]))
    row["recipient_count"] = given.get("recipient_count", len(row["recipients"]))
    row["date"] = given.get("date", row["at"].astimezone(UTC).date())
    return row


def events(spark: SparkSession, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """`events(spark, [{"event": "RECEIVE", "message": "a", "at": …}, …])`: instants are aware; `row_id` differs from row to row."""
    complete = [event_row(number, given) for number, given in enumerate(rows, start=1)]
    return spark.createDataFrame([tuple(row[name] for name in EVENTS.fieldNames()) for row in complete], EVENTS)
