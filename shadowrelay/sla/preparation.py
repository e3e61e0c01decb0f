"""Makes the class-data archive (`class_data`), from the JVM of a report on a few rows. docs/sla.md "Make a report"."""

import os
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowrelay.model.replies import ShadowrelayError
from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.protocol.tracking import format_header, format_line
from shadowrelay.sla.class_data import archive_of, delete_unused
from shadowrelay.sla.ingest import ingest_once
from shadowrelay.sla.report import write_report
from shadowrelay.sla.session import find_java, spark_home, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END_SECONDS_MAX = 600.0  # of a JVM that writes the archive: usually twenty seconds, but minutes on a busy machine
_AT = datetime(2026, 1, 1, tzinfo=UTC)
_COPIED = (("Replication", "Success"), ("AckElapsed", "0.02"), ("ShadowElapsed", "0.01"))
ROWS: dict[str, tuple[tuple[str, EventId, EventSource, dict[str, Any]], ...]] = {
    "mx1": (
        ("m1", EventId.HAREDIRECT, EventSource.SMTP, {"server_hostname": "mx2"}),
        ("m1", EventId.RECEIVE, EventSource.SMTP, {"custom_data": _COPIED}),
        ("m1", EventId.SEND, EventSource.SMTP, {}),
        ("m2", EventId.HAREDIRECT, EventSource.SMTP, {"server_hostname": "mx2"}),
        ("m2", EventId.RECEIVE, EventSource.SMTP, {"custom_data": _COPIED}),
    ),
    "mx2": (
        ("m1", EventId.HARECEIVE, EventSource.SMTP, {"client_hostname": "mx1"}),
        ("m1", EventId.HADISCARD, EventSource.SMTP, {"source_context": "delivered"}),
        ("m2", EventId.HARECEIVE, EventSource.SMTP, {"client_hostname": "mx1"}),
        ("m2", EventId.RESUBMIT, EventSource.REDUNDANCY, {"reference": "mx1"}),
        ("m2", EventId.SEND, EventSource.SMTP, {}),
    ),
}
"""The log of each server: a plain message, and one that was taken over, so that the report uses all of its transforms."""


class NotPrepared(ShadowrelayError):
    """There is no archive; reports work without one."""


def prepare() -> Path:
    """Make the archive of this JVM and this Spark, replacing an older one. Ends the JVM of this process.

    Raises: NotPrepared, SparkUnavailable, OSError if the cache directory cannot be written.
    """
    archive = archive_of(find_java() or "", spark_home())
    if archive is None:
        raise NotPrepared("there is no directory for it: set XDG_CACHE_HOME")
    archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    delete_unused(archive.parent)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=archive.parent) as place:
        recorded = Path(place) / "spark.jsa"
        spark = spark_session(is_small=True, recording=recorded)
        _report(spark, Path(place))
        _end(spark)
        if not recorded.exists():
            raise NotPrepared("the JVM wrote no archive; its own message is above")
        recorded.chmod(0o600)
        os.replace(recorded, archive)
    return archive


def _report(spark: "SparkSession", place: Path) -> None:
    for server, rows in ROWS.items():
        log = place / "logs" / server / "MSGTRK2026010100-1.LOG"
        log.parent.mkdir(parents=True)
        lines = [
            format_line(TrackingEvent(_AT + timedelta(seconds=number), event, source, 1, message, recipients=("a@x.example",), **values))
            for number, (message, event, source, values) in enumerate(rows)
        ]
        log.write_bytes(format_header("0", _AT) + b"".join(lines))
    ingest_once(spark, str(place / "logs"), str(place / "warehouse"))
    write_report(spark, str(place / "warehouse"), str(place / "report"))
    shutil.rmtree(place / "report")


def _end(spark: "SparkSession") -> None:
    """Let the JVM exit, and wait until it has: it writes the archive last."""
    process: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    assert process.stdin is not None
    process.stdin.close()  # Spark's gateway exits then
    try:
        process.wait(END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        raise NotPrepared(f"the JVM took longer than {END_SECONDS_MAX:.0f} seconds to write it") from None
