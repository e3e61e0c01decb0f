"""An ingest by Spark's workers that is killed, at several points of its work, and started again loses nothing and doubles nothing.

`test_ingest.py` kills one without workers before and after each of its writes.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shadowrelay.sla.inspection import last_readings
from shadowrelay.sla.warehouse import read_events, read_quarantine, read_readings
from tests.kit.log_files import a_log, an_event

SERVERS, HOURS, ROWS = 3, 8, 400
MUCH = "from shadowrelay.cli.main import app; from shadowrelay.sla import ingest; ingest.is_little = lambda _: False; app()"


def write_logs(logs: Path) -> None:
    for server in range(SERVERS):
        directory = logs / f"mx:{server}"
        directory.mkdir(parents=True)
        for hour in range(HOURS):
            events = (an_event(f"{server}-{hour}-{number}") for number in range(ROWS))
            (directory / f"MSGTRK20261121{hour:02}-1.LOG").write_bytes(a_log(events) + b"torn")


def start(directory: Path) -> subprocess.Popen:
    words = ["sla", "ingest", "--logs", str(directory / "logs"), "--warehouse", str(directory / "w"), "--files-per-batch", "3"]
    words += ["--master", "local[2]", "--driver-memory", "1g"]
    with (directory / "output").open("ab") as output:
        return subprocess.Popen([sys.executable, "-c", MUCH, *words], stdout=output, stderr=output, start_new_session=True)


def kill_when(process: subprocess.Popen, is_time: Callable[[], bool]) -> bool:
    """SIGKILL to Python, the JVM and its workers; False when the process was done before."""
    deadline = time.monotonic() + 400
    while process.poll() is None and not is_time():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    was_running = process.poll() is None
    if was_running:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    return was_running


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_killed_at_several_points_every_line_is_in_the_warehouse_once(spark, tmp_path):
    write_logs(tmp_path / "logs")
    warehouse = tmp_path / "w"

    def count(pattern: str) -> int:
        return len(list(warehouse.glob(pattern)))

    points: list[Callable[[], bool]] = [
        lambda: count("events/*/*/*/*.parquet") >= 1,  # within the first batch: rows are there, no file is done
        lambda: count("files/batch=*/_SUCCESS") >= 2,  # between two batches
        lambda: count("quarantine/batch=ingest-000003/*.parquet") >= 2,  # within a later one
        lambda: count("files/batch=ingest-000005/*") >= 1,  # about when its table gets its mark
    ]
    kills = [kill_when(start(tmp_path), point) for point in points]
    done = start(tmp_path)

    assert 0 == done.wait(400), (tmp_path / "output").read_text()
    assert sum(kills) >= 3
    events = read_events(spark, str(warehouse))
    assert SERVERS * HOURS * ROWS == events.count() == events.select("row_id").distinct().count()
    assert SERVERS * HOURS == len(last_readings(str(warehouse))) == read_readings(spark, str(warehouse)).count()
    assert SERVERS * HOURS == read_quarantine(spark, str(warehouse)).count()
    assert SERVERS * HOURS == count("quarantine/*/*.parquet")
    assert [] == [path.name for path in warehouse.glob("events/**/.*") if not path.name.endswith(".crc")]
