"""On a standalone master with two workers, each a process of its own, the report is the one of `local[2]`, figure by figure."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sla_generate import generate
from tests.kit.clock import wait_until

LOOPBACK = "127.0.0.1"
WORKERS = 2
START_SECONDS_MAX = 120
JOB_SECONDS_MAX = 600
MADE_AT = re.compile(r'"(generated_at)": "[^"]*"')  # all else is a function of the logs


@contextmanager
def daemon(name: str, log: Path, *words: str) -> Iterator[subprocess.Popen]:
    """`org.apache.spark.deploy.<name>` of the Spark that is installed here; it ends with the block."""
    import pyspark

    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--webui-port", "0", *words]
    settings = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": LOOPBACK, "SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | settings, cwd=log.parent)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(text: str, log: Path, process: subprocess.Popen) -> None:
    def is_there() -> bool:
        assert process.poll() is None, log.read_text()
        return text in log.read_text(errors="replace")

    wait_until(is_there, START_SECONDS_MAX, log.read_text)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with its workers, of one core and 1 GB each."""
    pytest.importorskip("pyspark")
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    directory = tmp_path / "spark"
    directory.mkdir()
    with ExitStack() as stack:
        log = directory / "master.log"
        process = stack.enter_context(daemon("master.Master", log, "--host", LOOPBACK, "--port", str(port)))
        wait_for("I have been elected leader", log, process)
        for number in range(WORKERS):
            log = directory / f"worker-{number}.log"
            words = ("--host", LOOPBACK, "--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work-{number}"))
            worker = stack.enter_context(daemon("worker.Worker", log, *words, f"spark://{LOOPBACK}:{port}"))
            wait_for("Successfully registered with master", log, worker)
        yield f"spark://{LOOPBACK}:{port}"


def report(logs: Path, output: Path, master: str) -> dict[str, Any]:
    words = ["sla", "report", "--logs", str(logs), "--output", str(output), "--master", master, "--driver-memory", "1g"]
    done = subprocess.run(
        [sys.executable, "-m", "shadowrelay", *words, "--now", "2027-01-01T00:00:00Z"], capture_output=True, text=True,
        timeout=JOB_SECONDS_MAX, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    return json.loads(MADE_AT.sub(r'"\1": ""', (output / "summary.json").read_text()))


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_two_workers_make_the_report_that_one_process_makes(master: str, tmp_path: Path) -> None:
    generate(tmp_path / "made", list(range(7000, 7010)), messages=100)
    logs = tmp_path / "made" / "logs"

    by_workers = report(logs, tmp_path / "workers", master)
    alone = report(logs, tmp_path / "alone", "local[2]")

    assert alone == by_workers
    assert by_workers["overall"]["recipients_lost"] > 0
    assert by_workers["overall"]["messages_promoted"] > 0
    for number in range(WORKERS):  # each of them did some of it
        assert list((tmp_path / "spark" / f"work-{number}").glob("app-*/*/stderr"))
