"""What a node finds when it opens its database stands in its operator log."""

import asyncio
import contextlib
import os
import shutil
import sys
from pathlib import Path

import httpx
import pytest

from shadowrelay.admin.token import read_token
from shadowrelay.lab.cluster import Cluster, Place, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.processes import a_node_process, operator_events

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


async def test_a_damaged_database_is_set_aside_and_said(tmp_path: Path) -> None:
    async with Cluster((Place("a.east.example", "east"),), HostPort("127.0.0.1", 9), directory=tmp_path) as cluster:
        (node,) = cluster.nodes.values()
        await node.kill()
        (database,) = node.directory.rglob("queue.db")
        for path in database.parent.glob("queue.db*"):
            path.write_bytes(b"this is no database " * 500)
        await node.start()  # until it greets; what it found was said before that

        notes = await until(lambda: operator_events(node, "database.note"))

    assert [("warning", True)] == [(line["level"], line["text"].startswith("queue.db is damaged")) for line in notes]


async def test_queue_token_and_api_are_where_the_settings_say(tmp_path: Path) -> None:
    node = a_node_process(
        tmp_path / "a.example", tables='allowed_hosts = ["console.example"]\ntoken_file = "secret"\nread_only_token_file = "seen"'
    )
    try:
        await node.start()
        token, read_only = read_token(node.directory / "secret"), read_token(node.directory / "seen")
        assert not (node.directory / "token").exists()
        assert (node.directory / "data" / "queue.db").exists()
        answers = {
            (host, known): httpx.get(
                f"http://{node.admin}/api/v1/node",
                headers={"Host": host, "Authorization": f"Bearer {token if known else 'x' * 40}"},
                timeout=PATIENCE_SECONDS,
            )
            for host in ("console.example", "other.example", "a.example")
            for known in (True, False)
        }
        looked = httpx.get(f"http://{node.admin}/api/v1/node", headers={"Authorization": f"Bearer {read_only}"}, timeout=PATIENCE_SECONDS)
        touched = httpx.post(
            f"http://{node.admin}/api/v1/drain", headers={"Authorization": f"Bearer {read_only}"}, timeout=PATIENCE_SECONDS
        )
    finally:
        await node.stop()

    assert (200, 403) == (looked.status_code, touched.status_code)
    assert {
        ("console.example", True): 200,
        ("console.example", False): 401,
        ("other.example", True): 421,
        ("other.example", False): 421,
        ("a.example", True): 200,
        ("a.example", False): 401,
    } == {key: answer.status_code for key, answer in answers.items()}


@pytest.mark.parametrize("name", ["east1", "east2", "west1"])
async def test_a_shipped_configuration_starts_in_a_fresh_checkout(name: str, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    file = shutil.copy(ROOT / f"configs/{name}.toml", tmp_path / "configs")
    listen, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
    variables = {"SHADOWRELAY_RECEIVE_CONNECTORS__0__LISTEN": listen, "SHADOWRELAY_ADMIN__LISTEN": admin}
    node = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shadowrelay", "serve", "--config", str(file), env=os.environ | variables, stderr=asyncio.subprocess.PIPE
    )
    assert node.stderr is not None
    said: list[bytes] = []
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not said or b'"node.started"' not in said[-1]:
                said.append(await node.stderr.readline())
                assert said[-1], b"".join(said)
    finally:
        with contextlib.suppress(ProcessLookupError):
            node.kill()
        await node.communicate()
