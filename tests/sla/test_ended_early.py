"""A report that is told to end leaves nothing of the logs behind, and says nothing of its insides."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.log_files import a_log, an_event

WAIT_SECONDS_MAX = 200


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_temporary_goes(tmp_path: Path, number: signal.Signals) -> None:
    pytest.importorskip("pyspark")
    for name in ("logs/mx1", "temporary", "report"):
        (tmp_path / name).mkdir(parents=True)
    for hour in range(20):
        (tmp_path / "logs" / "mx1" / f"MSGTRK20261121{hour:02}-1.LOG").write_bytes(
            a_log(an_event(f"{hour}-{count}") for count in range(2000))
        )
    words = ["sla", "report", "--logs", str(tmp_path / "logs"), "--output", str(tmp_path / "report"), "--driver-memory", "1g"]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "shadowrelay", *words], stdout=said, stderr=said, start_new_session=True,
            env=os.environ | {"TMPDIR": str(tmp_path / "temporary")},
        )  # fmt: skip
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not list((tmp_path / "temporary").glob("shadowrelay-sla-*/events/*/*/*/*.parquet")):
            assert process.poll() is None, (tmp_path / "said").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)

        process.send_signal(number)

        assert 128 + number == process.wait(60)
    assert [] == list((tmp_path / "temporary").glob("shadowrelay-sla-*")) == list((tmp_path / "report").iterdir())
    assert "Traceback" not in (tmp_path / "said").read_text()
