"""Logs in S3: a node ships them there, and `sla ingest`, `trace` and `report` read them there, without a jar of Hadoop. The store is
moto's server, a process of its own; node and commands reach it through s3fs, as they would S3."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shadowrelay.lab.cluster import free_ports
from tests.kit.clients import submit
from tests.kit.clock import PATIENCE_SECONDS, until, wait_until
from tests.kit.processes import a_node_process

MESSAGES = 3
SHIPPING = """
[shipping]
target = "s3://bucket/tracking"
interval = "1s"
options = {{ endpoint_url = "{endpoint}", key = "somebody", secret = "hidden" }}
"""
SECONDS_MAX = 300
MUCH = "from shadowrelay.cli.main import app; from shadowrelay.sla import ingest; ingest.is_little = lambda _: False; app()"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a store with an empty bucket."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    (port,) = free_ports(1)
    url, log = f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)], stdout=output, stderr=output
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.put(f"{url}/bucket", timeout=PATIENCE_SECONDS).is_success
        except httpx.TransportError:
            return False

    try:
        wait_until(answers, what=log.read_text)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def names_in(endpoint: str) -> list[str]:
    """Keys of the bucket."""
    return re.findall(
        "<Key>(.*?)</Key>", httpx.get(f"{endpoint}/bucket", params={"list-type": "2"}, timeout=PATIENCE_SECONDS).raise_for_status().text
    )


@pytest.fixture(scope="module")
def environment(endpoint: str) -> dict[str, str]:
    """The environment of those who read there."""
    return os.environ | {
        "FSSPEC_S3_ENDPOINT_URL": endpoint, "FSSPEC_S3_KEY": "somebody", "FSSPEC_S3_SECRET": "hidden", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip


async def ship(endpoint: str, directory: Path) -> list[str]:
    """A node that accepts some messages, ships its log, and ends. Gives their ids."""
    node = a_node_process(directory / "a.example", tables=SHIPPING.format(endpoint=endpoint))
    try:
        await node.start()
        messages = [await submit(node.address, "b@here.example") for _ in range(MESSAGES)]
        await until(lambda: any("MSGTRK" in name for name in names_in(endpoint)))  # while it runs
        await node.stop()  # the rest
    finally:
        await node.kill()
    assert "shipping.failed" not in (node.directory / "node.log").read_text()
    return messages


def run(environment: dict[str, str], *words: str, program: tuple[str, ...] = ("-m", "shadowrelay")) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, "sla", *words], capture_output=True, text=True, timeout=SECONDS_MAX, check=False, env=environment
    )


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
async def test_what_a_node_ships_to_s3_is_ingested_from_there_once_without_a_jvm(endpoint, environment, tmp_path):
    messages = await ship(endpoint, tmp_path)
    logs, words = ("--logs", "s3://bucket/tracking"), ("--warehouse", str(tmp_path / "w"), "--json")

    first, second = (run(environment, "ingest", *logs, *words) for _ in range(2))
    trace = run(environment, "trace", messages[0], *logs, "--json")

    assert 0 == first.returncode, first.stderr
    assert json.loads(first.stdout) == json.loads(second.stdout)
    assert ({"a.example/manifest.json"}, True) == (
        {name.removeprefix("tracking/") for name in names_in(endpoint) if "MSGTRK" not in name},
        json.loads(first.stdout)["rows"] >= MESSAGES,
    )
    assert sum("MSGTRK" in name for name in names_in(endpoint)) == json.loads(first.stdout)["files"]
    assert "batch 0: " in first.stderr
    assert "batch" not in second.stderr
    assert "starting Spark" not in first.stderr + second.stderr + trace.stderr
    assert "RECEIVE" in {row["event"] for row in json.loads(trace.stdout)}
    assert {"a.example": {"site": "east", "boundary": "corp"}} == json.loads((tmp_path / "w" / "servers.json").read_text())


@pytest.mark.timeout(SECONDS_MAX)
def test_a_bucket_that_is_not_there_and_a_store_that_does_not_answer_are_told_in_a_line(environment, tmp_path):
    words = ("--warehouse", str(tmp_path / "w"))
    (port,) = free_ports(1)
    deaf = environment | {"FSSPEC_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}"}

    missing = run(environment, "ingest", "--logs", "s3://elsewhere/tracking", *words)
    silent = run(deaf, "ingest", "--logs", "s3://bucket/tracking", *words)

    assert (1, 1) == (missing.returncode, silent.returncode)
    assert "shadowrelay: s3://elsewhere/tracking: no such directory" in missing.stderr
    assert re.search(rf"shadowrelay: s3://bucket/tracking: \w+: .*127\.0\.0\.1:{port}", silent.stderr), silent.stderr
    assert "Traceback" not in missing.stderr + silent.stderr


@pytest.mark.heavy
@pytest.mark.timeout(4 * SECONDS_MAX)
async def test_the_report_of_logs_in_s3_is_that_of_the_warehouse_made_of_them_by_workers(endpoint, environment, tmp_path):
    await ship(endpoint, tmp_path)
    logs, now = ("--logs", "s3://bucket/tracking"), ("--now", "2099-01-01T00:00:00Z")

    ingested = run(environment, "ingest", *logs, "--warehouse", str(tmp_path / "w"), program=("-c", MUCH))
    direct = run(environment, "report", *logs, "--output", str(tmp_path / "direct"), *now)
    by_way = run(environment, "report", "--warehouse", str(tmp_path / "w"), "--output", str(tmp_path / "by-way"), *now)

    assert [0, 0, 0] == [each.returncode for each in (ingested, direct, by_way)], ingested.stderr + direct.stderr + by_way.stderr
    assert "starting Spark" in ingested.stderr
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("direct", "by-way"))
    assert one["overall"] == other["overall"]
    assert one["input"] == other["input"]
    assert one["overall"]["messages_acknowledged"] >= MESSAGES
    assert 0 == one["overall"]["lines_quarantined"]
