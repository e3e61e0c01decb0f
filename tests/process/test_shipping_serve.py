"""A running `shadowrelay serve` ships its tracking log: after the interval, at SIGTERM, and after SIGKILL at the next start."""

import asyncio
import json
import re
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from tests.kit.clients import submit
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.processes import a_node_process

SHIPPING = """
[shipping]
target = "{target}"
interval = "1s"
"""


def rows_in(paths: list[Path]) -> list[bytes]:
    lines = [line for path in sorted(paths) for line in path.read_bytes().splitlines() if line.strip() and not line.startswith(b"#")]
    return [line for line in lines if b",RECEIVE," in line]


def shipping_figures(metrics: str) -> dict[str, float]:
    """Name behind `shadowrelay_shipping_` -> value, of what has no labels."""
    return {name: float(value) for name, value in re.findall(r"(?m)^shadowrelay_shipping_(\w+) (\S+)$", metrics)}


@pytest.mark.slow
async def test_a_running_node_ships_what_it_logged_and_loses_nothing_of_it_to_signals(tmp_path: Path) -> None:
    landing = tmp_path / "landing" / "a.example"
    node = a_node_process(tmp_path / "a.example", tables=SHIPPING.format(target=f"file://{tmp_path}/landing"))

    def shipped() -> list[bytes]:
        return rows_in(list(landing.glob("MSGTRK*.LOG")))

    def logged() -> int:
        return len(rows_in(list(node.tracking.glob("MSGTRK*.LOG"))))

    try:
        await node.start()
        await submit(node.address, "b@here.example")
        await until(lambda: len(shipped()) == 1)  # after the interval
        token = (node.directory / "token").read_text().strip()
        figures: dict[str, float] = {}
        async with (
            httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_SECONDS) as client,
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            # it is counted a moment after it is there; a row that comes late has a second file
            while not figures.get("shipped_files_total") or figures["waiting_files"]:
                figures = shipping_figures((await client.get(f"http://{node.admin}/metrics")).text)
        await submit(node.address, "b@here.example")
        await node.stop()  # SIGTERM
        after_stop = len(shipped())
        await node.start()
        await submit(node.address, "b@here.example")
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
    node = a_node_process(tmp_path, tables=SHIPPING.format(target="nonsense://u:hunter2@host/logs"))

    with pytest.raises(RuntimeError, match=r"shipping\.target: nonsense:// is unknown to fsspec"):
        await node.start()

    assert "hunter2" not in node.log_tail()
    assert not (tmp_path / "data").exists()
