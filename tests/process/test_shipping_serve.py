"""A running `shadowrelay serve` ships its tracking log: after the interval, at SIGTERM, and after SIGKILL at the next start."""

import asyncio
import json
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from shadowrelay.lab.cluster import NodeProcess, Place, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.receiving import Client

CONFIGURATION = """
[server]
name = "a.example"
site = "east"
boundary = "corp"
data_directory = "data"

[[receive_connectors]]
name = "in"
listen = "{smtp}"
accepted_domains = ["here.example"]

[[routes]]
recipients = ["*"]
next_hop = "127.0.0.1:9"

[tracking]
directory = "tracking"

[shipping]
target = "{target}"
interval = "1s"

[admin]
listen = "{admin}"
"""
MAIL = b"EHLO client.example\r\nMAIL FROM:<a@x.example>\r\nRCPT TO:<b@here.example>\r\nDATA\r\n"


async def deliver(node: NodeProcess) -> None:
    client = Client(*await asyncio.open_connection(node.address.host, node.address.port))
    await client.reply()
    await client.send(MAIL)
    await client.replies(4)
    await client.send(b"Subject: hello\r\n\r\nhello\r\n.\r\n")
    assert (await client.reply()).startswith("250 ")
    await client.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():
            await asyncio.sleep(0.02)


def rows_in(paths: list[Path]) -> list[bytes]:
    lines = [line for path in sorted(paths) for line in path.read_bytes().splitlines() if line.strip() and not line.startswith(b"#")]
    return [line for line in lines if b",RECEIVE," in line]


def shipping_figures(metrics: str) -> dict[str, float]:
    """Name behind `shadowrelay_shipping_` -> value, of what has no labels."""
    return {name: float(value) for name, value in re.findall(r"(?m)^shadowrelay_shipping_(\w+) (\S+)$", metrics)}


@pytest.mark.slow
async def test_a_running_node_ships_what_it_logged_and_loses_nothing_of_it_to_signals(tmp_path: Path) -> None:
    smtp, admin = (HostPort("127.0.0.1", port) for port in free_ports(2))
    node = NodeProcess(Place("a.example", "east"), smtp, admin, tmp_path / "a.example")
    node.directory.mkdir()
    landing = tmp_path / "landing" / "a.example"
    (node.directory / "node.toml").write_text(CONFIGURATION.format(smtp=smtp, admin=admin, target=f"file://{tmp_path}/landing"))

    def shipped() -> list[bytes]:
        return rows_in(list(landing.glob("MSGTRK*.LOG")))

    def logged() -> int:
        return len(rows_in(list(node.tracking.glob("MSGTRK*.LOG"))))

    try:
        await node.start()
        await deliver(node)
        await until(lambda: len(shipped()) == 1)  # after the interval
        token = (node.directory / "token").read_text().strip()
        figures: dict[str, float] = {}
        async with (
            httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_SECONDS) as client,
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            # it is counted a moment after it is there; a row that comes late has a second file
            while not figures.get("shipped_files_total") or figures["waiting_files"]:
                figures = shipping_figures((await client.get(f"http://{admin}/metrics")).text)
        await deliver(node)
        await node.stop()  # SIGTERM
        after_stop = len(shipped())
        await node.start()
        await deliver(node)
        await until(lambda: logged() == 3)  # the reply leaves a pass of the loop before the row is in the file
        await node.kill()
        after_kill = logged()
        await node.start()
        await until(lambda: len(shipped()) == 3)
        await node.stop()
    finally:
        await node.kill()
    manifest = json.loads((landing / "manifest.json").read_bytes())

    assert (2, 3) == (after_stop, after_kill)
    assert rows_in(list(node.tracking.glob("MSGTRK*.LOG"))) == shipped()
    assert ("a.example", "east", "corp", []) == tuple(manifest[key] for key in ("server", "site", "boundary", "dropped"))
    assert {path.name: sha256(path.read_bytes()).hexdigest() for path in landing.glob("MSGTRK*.LOG")} == {
        entry["name"]: entry["sha256"] for entry in manifest["files"]
    }
    assert 0 == figures["dropped_files_total"]
    assert "shipping.failed" not in (node.directory / "node.log").read_text()


async def test_a_target_without_its_package_ends_the_start_before_a_socket_opens(tmp_path: Path) -> None:
    smtp, admin = (HostPort("127.0.0.1", port) for port in free_ports(2))
    node = NodeProcess(Place("a.example", "east"), smtp, admin, tmp_path)
    (tmp_path / "node.toml").write_text(CONFIGURATION.format(smtp=smtp, admin=admin, target="nonsense://u:hunter2@host/logs"))

    with pytest.raises(RuntimeError, match=r"shipping\.target: nonsense:// is unknown to fsspec"):
        await node.start()

    assert "hunter2" not in node.log_tail()
    assert not (tmp_path / "data").exists()
