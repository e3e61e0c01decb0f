"""A node on a disk without an octet left: it starts, refuses mail in words, delivers what it has, and is well again by itself."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from shadowrelay.store.content import RESERVE_NAME
from tests.kit.clients import talking_to
from tests.kit.clock import until
from tests.kit.processes import operator_events

VOLUME_BYTES = 100_000_000  # 54 MB that count as used, the reserve, and some
NAME = "a.east.example"
ALONE = {"reject_message_on_shadow_failure": False}

pytestmark = pytest.mark.slow


@contextmanager
def a_small_volume(directory: Path) -> Iterator[Path]:
    directory.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs", str(directory)]
    made = subprocess.run(mount, capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture
async def next_hop(sink: Sink) -> HostPort:
    return await sink.start()


def fill(volume: Path) -> Path:
    """To the last octet."""
    path = volume / "filler"
    with path.open("wb", buffering=0) as file:
        block = bytes(1_000_000)
        while block:
            try:
                file.write(block)
            except OSError:
                block = block[: len(block) // 2]
    return path


async def mail_from(node: NodeProcess, count: int) -> list[str]:
    """The last reply to each of so many messages; that to MAIL where it is refused."""
    async with talking_to(node.address) as client:
        return [await client.mail([f"user{number}@corp.example"], sender="a@x.example") for number in range(count)]


def said(node: NodeProcess, event: str) -> list[str]:
    return [line.get("text", "") or line.get("reason", "") for line in operator_events(node, event)]


async def test_a_node_starts_on_a_full_disk_delivers_and_takes_mail_when_there_is_room(
    tmp_path: Path, sink: Sink, next_hop: HostPort
) -> None:
    sink.is_deferring = True
    with a_small_volume(tmp_path / NAME / "data") as volume:
        async with Cluster((Place(NAME, "east"),), next_hop, directory=tmp_path, transport=ALONE) as cluster:
            node = cluster.nodes[NAME]
            accepted = await mail_from(node, 20)
            assert {"250"} == {reply[:3] for reply in accepted}
            await until((volume / RESERVE_NAME).exists)
            await node.kill()
            filler = fill(volume)
            sink.is_deferring = False
            await node.start()

            refused = await mail_from(node, 2)
            await until(lambda: len(sink.arrivals) == 20)
            await until(lambda: said(node, "pressure.increased"))
            filler.unlink()
            await until(lambda: said(node, "pressure.decreased"))
            await until((volume / RESERVE_NAME).exists)
            again = await mail_from(node, 1)

            assert {"250"} == {reply[:3] for reply in again}
            assert ["452 4.3.1 Insufficient system resources"] * 2 == refused
            told = [line for line in operator_events(node) if line["event"].startswith("pressure.")]
            assert [("error", "normal", "high"), ("warning", "high", "normal")] == [
                (line["level"], line["before"], line["after"]) for line in told
            ]
            await until(lambda: any("reserve" in text for text in said(node, "database.note")))
            assert not any(line["level"] == "error" and line["event"] != "pressure.increased" for line in operator_events(node))


async def test_a_start_that_a_full_disk_prevents_is_one_line(tmp_path: Path, next_hop: HostPort) -> None:
    with a_small_volume(tmp_path / NAME / "data") as volume:
        async with Cluster((Place(NAME, "east"),), next_hop, directory=tmp_path, transport=ALONE) as cluster:
            node = cluster.nodes[NAME]
            await until((volume / RESERVE_NAME).exists)
            await node.kill()
            (volume / RESERVE_NAME).unlink()
            fill(volume)
            before = len((node.directory / "node.log").read_text().splitlines())

            with pytest.raises(RuntimeError, match="did not start"):
                await node.start()

            assert node.process is not None
            assert 1 == node.process.returncode
            (reason,) = said(node, "node.cannot_start")
            lines = (node.directory / "node.log").read_text().splitlines()[before:]
            assert f"data_directory {volume} is full: 0 bytes are free" in reason
            assert [] == [line for line in lines if "Traceback" in line]
            assert 1 == len([line for line in lines if line.startswith("{")])
