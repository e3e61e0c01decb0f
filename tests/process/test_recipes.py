"""Recipes of docs/operations.md for what may fail, on real nodes: what is printed there is typed, and says what is said there."""

import asyncio
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from shadowrelay.admin.token import read_token
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.lab.traffic import Load, Sink
from tests.kit.bad_disk import BadDisk, DiskState
from tests.kit.clock import until
from tests.kit.pages import OPERATORS
from tests.kit.processes import figure, held_by, kept_count, operator_events, wait_until_peers_know_each_other
from tests.tidy.house import ROOT

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.slow]

EAST, WEST, NORTH = "mx1.east.example", "mx1.west.example", "mx1.north.example"
PLACES = [Place(name, name.split(".")[1]) for name in (EAST, WEST, NORTH)]
PROGRAM = f'#!/bin/sh\nexec "{sys.executable}" -m shadowrelay "$@"\n'


def printed(recipe: str) -> list[str]:
    """The commands of the recipe that begins with this bold text, without what is said about them."""
    text = OPERATORS.partition(f"**{recipe}")[2].partition("\n\n**")[0]
    lines = re.findall(r"^    (.+)$", text, re.MULTILINE)
    assert lines, f"{recipe} is not in the document"
    return [line.partition("  #")[0].rstrip() for line in lines]


@dataclass
class Shell:
    """Of an operator on the machine of a node."""

    directory: Path

    async def types(self, node: NodeProcess, command: str, code: int | None = 0) -> str:
        """What the command says there; DIRECTORY is that of its tracking log, and its log is a file."""
        program = self.directory / "bin" / "shadowrelay"
        program.parent.mkdir(exist_ok=True)
        program.write_text(PROGRAM)
        program.chmod(0o755)
        environment = os.environ | {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SHADOWRELAY_NODE": f"http://{node.admin}",
            "SHADOWRELAY_ADMIN_TOKEN": read_token(node.directory / "token"),
            "COLUMNS": "250",
        }
        command = command.replace("DIRECTORY", str(node.tracking)).replace(
            "journalctl -u shadowrelay", f"cat {node.directory / 'node.log'}"
        )
        pipe = asyncio.subprocess.PIPE
        shell = await asyncio.create_subprocess_exec("bash", "-c", command, env=environment, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
        said = (await shell.communicate())[0].decode()
        assert code in (None, shell.returncode), f"{command}: {said}{node.log_tail()}"
        return said


@asynccontextmanager
async def a_cluster(directory: Path, sink: Sink, places: list[Place], **transport: object) -> AsyncIterator[tuple[Cluster, Load]]:
    """Nodes that know each other; all mail of the load goes to the first one. Nothing is delivered yet."""
    sink.is_deferring = True
    async with Cluster(places, await sink.start(), directory=directory, transport=transport) as cluster:
        await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))
        first = cluster.nodes[places[0].name]
        load = Load({first.name: first.address}, random.Random(5), recipients=lambda number: (f"user{number}@corp.example",))
        try:
            yield cluster, load
        finally:
            await load.close()


def copied(node: NodeProcess, to: Path) -> None:
    """As a snapshot of its machine."""
    node.signal(signal.SIGSTOP)
    try:
        shutil.copytree(node.directory / "data", to)
    finally:
        node.signal(signal.SIGCONT)


def each_once(load: Load, sink: Sink) -> dict[str, int]:
    """What was acknowledged and did not arrive exactly once, and whatever else arrived, such as a DSN."""
    counts = Counter(arrival.recipient for arrival in sink.arrivals)
    wanted = Counter(name for one in load.sent if one.acknowledged_ids for name in one.recipients)
    return {name: counts[name] for name in counts | wanted if counts[name] != wanted[name]}


@pytest.mark.heavy
async def test_the_snapshot_of_a_machine_is_put_back(tmp_path: Path, sink: Sink) -> None:
    status, log, peers = printed("somebody has restored one")
    async with a_cluster(tmp_path, sink, PLACES[:2], shadow_resubmit_time_span="60s") as (cluster, load):
        (east, west), shell = cluster.nodes.values(), Shell(tmp_path)
        await load.run(10, rate=50.0)
        copied(east, tmp_path / "snapshot")
        await load.run(10, rate=50.0)
        before = json.loads(await shell.types(west, peers))[0]
        await east.kill()
        east.wipe()
        shutil.copytree(tmp_path / "snapshot", east.directory / "data")
        await east.start()
        await until(lambda: operator_events(east, "database.asked"))
        said = await shell.types(east, log)
        after = json.loads(await shell.types(west, peers))[0]
        later = await shell.types(east, status)
        sink.is_deferring = False
        await until(lambda: not held_by(east) and not held_by(west))

    assert {} == each_once(load, sink)
    assert ["rolled_back", "asking", "asked"] == re.findall(r'"event":"database\.(\w+)"', said)
    assert before["database"] != after["database"]
    assert "older copy" not in later


@pytest.mark.heavy
@pytest.mark.parametrize("is_forgotten", [False, True], ids=["remembered", "forgotten"])
async def test_a_node_was_away_for_longer_than_its_peers_remember(tmp_path: Path, sink: Sink, is_forgotten: bool) -> None:
    queue, ended = printed("a node was away for a week.")
    times = {"safety_net_hold_time": "2s", "message_expiration_timeout": "40s", "shadow_resubmit_time_span": "5s"}
    async with a_cluster(tmp_path, sink, PLACES, **times) as (cluster, load):
        (east, *others), shell = cluster.nodes.values(), Shell(tmp_path)
        await load.run(10, rate=50.0)
        load.nodes = {node.name: node.address for node in others}
        await load.run(10, rate=50.0)
        assert kept_count(east), "each of the two gets its share"
        await east.kill()
        sink.is_deferring = False
        await until(lambda: len(sink.arrivals) >= 20 and not any(map(held_by, others)))
        if is_forgotten:
            for node in others:
                await shell.types(node, f"shadowrelay peers forget {EAST}")
        over_at = time.time() + 45
        await until(lambda: time.time() > over_at, 60)
        await east.start()
        await until(lambda: not any(map(held_by, cluster.nodes.values())))
        listed, found = await shell.types(east, queue), await shell.types(east, ended, None)
        expired = operator_events(east, "shadow.expired")
    assert {} == each_once(load, sink)
    assert "0 to deliver, 0 held for others" in listed
    assert not is_forgotten or expired
    assert is_forgotten == bool(found.strip())


@pytest.mark.heavy
@pytest.mark.parametrize("state", [DiskState.READ_ONLY, DiskState.IO_ERROR, DiskState.HANGS], ids=lambda state: state.name)
async def test_a_dead_disk_is_replaced_by_an_empty_one(tmp_path: Path, sink: Sink, state: DiskState) -> None:
    disk = BadDisk(PLACES[0], tmp_path)
    (status,) = printed("a disk died while its node goes on running")
    async with a_cluster(tmp_path, sink, [disk.place, *PLACES[1:]], shadow_resubmit_time_span="120s") as (cluster, load):
        east, shell = cluster.nodes[EAST], Shell(tmp_path)
        await load.run(20, rate=50.0)
        disk.become(state)
        await until(lambda: operator_events(east, "commits.failing"))
        said = await shell.types(east, status, None)
        metric = figure(east, "cannot_commit_seconds")
        sink.is_deferring = False
        began = time.monotonic()
        east.signal(signal.SIGTERM)
        assert east.process is not None
        await asyncio.wait_for(east.process.wait(), 120)
        print("stopped after", time.monotonic() - began, said)
        disk.become(DiskState.WELL)
        east.wipe()
        began = time.monotonic()
        await east.start()
        await until(lambda: not any(map(held_by, cluster.nodes.values())))
        print("settled after", time.monotonic() - began)

    assert {} == each_once(load, sink)
    assert metric > 0
    assert f"nothing was committed in {east.directory / 'data'}" in said.replace("\n", " ")
