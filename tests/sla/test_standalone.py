"""On a standalone master with two workers, each a process of its own, the report is the one of `local[2]`, figure by figure; also when a
worker is killed meanwhile."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | settings, cwd=log.parent, start_new_session=True)
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


class Cluster(NamedTuple):
    """A master with workers of one core and 1 GB each. `directory` has their logs, and `work-N` what the executors of worker N write."""

    url: str
    directory: Path
    workers: list[subprocess.Popen]

    def tasks_of(self, worker: int) -> int:
        """How many its executors have finished."""
        said = [path.read_text(errors="replace") for path in self.directory.glob(f"work-{worker}/app-*/*/stderr")]
        return sum(text.count("Finished task") for text in said)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("pyspark")
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    directory = tmp_path / "spark"
    directory.mkdir()
    with ExitStack() as stack:
        workers = []
        log = directory / "master.log"
        process = stack.enter_context(daemon("master.Master", log, "--host", LOOPBACK, "--port", str(port)))
        wait_for("I have been elected leader", log, process)
        for number in range(WORKERS):
            log = directory / f"worker-{number}.log"
            words = ("--host", LOOPBACK, "--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work-{number}"))
            worker = stack.enter_context(daemon("worker.Worker", log, *words, f"spark://{LOOPBACK}:{port}"))
            wait_for("Successfully registered with master", log, worker)
            workers.append(worker)
        yield Cluster(f"spark://{LOOPBACK}:{port}", directory, workers)


def start(logs: Path, output: Path, master: str) -> subprocess.Popen:
    words = ["sla", "report", "--logs", str(logs), "--output", str(output), "--master", master, "--driver-memory", "1g"]
    output.mkdir()
    with (output / "said").open("wb") as said:
        return subprocess.Popen([sys.executable, "-m", "shadowrelay", *words, "--now", "2027-01-01T00:00:00Z"], stdout=said, stderr=said)


def summary_of(process: subprocess.Popen, output: Path) -> dict[str, Any]:
    assert 0 == process.wait(JOB_SECONDS_MAX), (output / "said").read_text()
    return json.loads(MADE_AT.sub(r'"\1": ""', (output / "summary.json").read_text()))


def report(logs: Path, output: Path, master: str) -> dict[str, Any]:
    return summary_of(start(logs, output, master), output)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_two_workers_make_the_report_that_one_process_makes(cluster: Cluster, tmp_path: Path) -> None:
    generate(tmp_path / "made", list(range(7000, 7010)), messages=100)
    logs = tmp_path / "made" / "logs"

    by_workers = report(logs, tmp_path / "workers", cluster.url)
    alone = report(logs, tmp_path / "alone", "local[2]")

    assert alone == by_workers
    assert by_workers["overall"]["recipients_lost"] > 0
    assert by_workers["overall"]["messages_promoted"] > 0
    for number in range(WORKERS):  # each of them did some of it
        assert cluster.tasks_of(number)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_worker_that_is_killed_while_figures_are_computed_changes_none_of_them(cluster: Cluster, tmp_path: Path) -> None:
    generate(tmp_path / "made", list(range(7000, 7003)), messages=100)
    logs = tmp_path / "made" / "logs"
    alone = report(logs, tmp_path / "alone", "local[2]")
    running = start(logs, tmp_path / "workers", cluster.url)

    def has_first_tables() -> bool:
        assert running.poll() is None, (tmp_path / "workers" / "said").read_text()
        return any((tmp_path / "workers").glob(".making-*/*"))

    try:
        wait_until(has_first_tables, JOB_SECONDS_MAX)
        victim = max(range(WORKERS), key=cluster.tasks_of)  # it has results that later steps need
        os.killpg(cluster.workers[victim].pid, signal.SIGKILL)  # its executor too, which is a process of its own
        at_the_kill = cluster.tasks_of(1 - victim)
        by_the_other = summary_of(running, tmp_path / "workers")
    finally:
        running.kill()
        running.wait()

    assert alone == by_the_other
    assert cluster.tasks_of(1 - victim) > at_the_kill
    assert "Removing worker" in (cluster.directory / "master.log").read_text()
