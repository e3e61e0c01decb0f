"""Batches in a warehouse as the ingest leaves them there, without Spark."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from shadowrelay.sla.land import ARROW_FILES, land_files
from shadowrelay.sla.logs import source_of
from shadowrelay.sla.warehouse import begin
from tests.kit.log_files import a_log, an_event

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def land(
    directory: Path, batch: str, server: str = "mx1", *, ago: list[timedelta], is_whole: bool = True, log_name: str = "", **values: Any
) -> None:
    """A log with a row for each of `ago` before NOW, landed in `<directory>/w`. Two of one `log_name` have the same rows."""
    begin(str(directory / "w"))
    name = log_name or batch
    log = directory / "logs" / server / f"MSGTRK-{name}.LOG"
    log.parent.mkdir(parents=True, exist_ok=True)
    values = {"recipients": ("a@b", "c@d")} | values
    log.write_bytes(a_log(an_event(f"{name}-{number}", at=NOW - each, **values) for number, each in enumerate(ago)))
    rows = list(land_files([source_of(str(log))], str(directory / "w"), batch))
    place = directory / "w" / "files" / f"batch={batch}"
    place.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows, ARROW_FILES), place / "part.parquet")
    if is_whole:
        (place / "_SUCCESS").touch()
