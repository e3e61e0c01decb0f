"""Recipes of docs/operations.md "When something is wrong", on real nodes: what is printed there is typed, and says what is said there."""

import asyncio
import os
import random
import re
import shutil
import signal
import sys
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
from tests.kit.processes import held_by, operator_events, wait_until_peers_know_each_other
from tests.tidy.house import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EAST, WEST, NORTH = "mx1.east.example", "mx1.west.example", "mx1.north.example"
PLACES = [Place(name, name.split(".")[1]) for name in (EAST, WEST, NORTH)]
PROGRAM = f'#!/bin/sh\nexec "{sys.executable}" -m shadowrelay "$@"\n'


def printed(recipe: str) -> list[str]:
    """The commands of the recipe that begins with this bold text, without what is said about them."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    text = page.partition(f"**{recipe}")[2].partition("\n\n**")[0]
    lines = re.findall(r"^    (.+)$", text, re.MULTILINE)
    assert lines, f"{recipe} is not in the document"
    return [line.partition("  #")[0].rstrip() for line in lines]


@dataclass
class Shell:
    """Of an operator on the machine of a node."""

    directory: Path

    async def types(self, node: NodeProcess, command: str, code: int | None = 0) -> str:
        """What the command says there; DIRECTORY is that of its tracking log."""
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
        command = command.replace("DIRECTORY", str(node.tracking))
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


@pytest.mark.usefixtures("quiet")
async def test_x(tmp_path: Path, sink: Sink) -> None:
    async with a_cluster(tmp_path, sink, PLACES[:2], shadow_resubmit_time_span="60s") as (cluster, load):
        east, west = cluster.nodes.values()
        shell = Shell(tmp_path)
        await load.run(10, rate=50.0)
        east.signal(signal.SIGSTOP)
        shutil.copytree(east.directory / "data", tmp_path / "snapshot")
        east.signal(signal.SIGCONT)
        await load.run(10, rate=50.0)
        print(await shell.types(west, "shadowrelay peers list"))
        await east.kill()
        east.wipe()
        shutil.copytree(tmp_path / "snapshot", east.directory / "data")
        await east.start()
        for i in range(5):
            for c in printed("somebody has restored one"):
                print(i, c)
                print(await shell.types(east, c, None))
                print(await shell.types(west, c, None))
            await asyncio.sleep(1)
        print([e for e in operator_events(east, "database")])
        sink.is_deferring = False
        await until(lambda: not held_by(east) and not held_by(west))
        for c in printed("somebody has restored one"):
            print(c)
            print(await shell.types(east, c, None))
            print(await shell.types(west, c, None))
