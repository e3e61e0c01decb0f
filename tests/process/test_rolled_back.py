"""A real node is started on an older copy of its data directory: nothing is lost, and nothing is delivered twice. docs/design.md 6.2."""

import asyncio
import contextlib
import json
import random
import shutil
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from shadowrelay.admin.api_client import NodeError
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.lab.traffic import Load, Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clients import submit
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.processes import api_of, held_by, operator_events, wait_until_peers_know_each_other
from tests.kit.smtp_servers import HANG, ScriptedServer, serving

EAST, WEST = "mx1.east.example", "mx1.west.example"
PLACES = [Place(EAST, "east"), Place(WEST, "west")]
QUEUED_COUNT, SINCE_COUNT = 20, 10


def identity_of(node: NodeProcess) -> dict[str, object]:
    with api_of(node) as client:
        return client.node()


async def until_renamed(node: NodeProcess) -> dict[str, object]:
    """It starts twice: on the older copy, and again under the new id."""
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        while True:
            with contextlib.suppress(NodeError):
                if (identity := await asyncio.to_thread(identity_of, node))["former_database"]:
                    return identity
            await asyncio.sleep(0.2)


async def until_nothing_is_queued(nodes: list[NodeProcess]) -> None:
    """Nor held: what the shadow server has not heard of is delivered again, cause (b)."""
    for node in nodes:
        await until(lambda node=node: not held_by(node))


@pytest.mark.slow
async def test_an_older_copy_of_a_queue_repeats_and_loses_nothing(tmp_path: Path) -> None:
    sink = Sink()
    try:
        async with Cluster(PLACES, await sink.start(), directory=tmp_path, transport={"shadow_resubmit_time_span": "60s"}) as cluster:
            east, west = nodes = list(cluster.nodes.values())
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            load = Load({EAST: east.address}, random.Random(1), recipients=lambda number: (f"user{number}@corp.example",))
            sink.is_deferring = True
            await load.run(QUEUED_COUNT, rate=100.0)
            await east.stop()
            shutil.copytree(east.directory / "data", tmp_path / "older")
            await east.start()
            former = (await asyncio.to_thread(identity_of, east))["database"]
            sink.is_deferring = False
            await until_nothing_is_queued(nodes)  # the copy has 20 messages that are delivered now
            sink.is_deferring = True
            await load.run(SINCE_COUNT, rate=100.0)  # and lacks these

            await east.kill()
            east.wipe()
            shutil.copytree(tmp_path / "older", east.directory / "data")
            sink.is_deferring = False
            await east.start()
            identity = await until_renamed(east)
            await until_nothing_is_queued(nodes)
            await load.close()
    finally:
        await sink.close()

    arrived = Counter(arrival.recipient for arrival in sink.arrivals)
    log = [json.loads(line)["event"] for line in (east.directory / "node.log").read_text().splitlines() if line.startswith("{")]
    assert {f"user{number}@corp.example" for number in range(1, QUEUED_COUNT + SINCE_COUNT + 1)} == set(arrived)
    assert {} == {recipient: count for recipient, count in arrived.items() if count > 1}
    assert (former, True) == (identity["former_database"], identity["database"] != former)
    assert {"database.rolled_back", "database.asking", "database.asked"} <= set(log)
    assert "DatabaseRolledBack" in (west.directory / "node.log").read_text()


@pytest.mark.heavy
async def test_an_older_copy_that_is_recognised_late_does_not_wait_for_attempts_that_hang(tmp_path: Path) -> None:
    """While it closes it neither takes mail nor answers its peers, and such attempts may record nothing that is new to them."""
    sink = Sink()
    silent = ScriptedServer({"MAIL": HANG})
    try:
        async with serving(silent):
            routes = {"hangs@corp.example": HostPort("127.0.0.1", silent.port)}
            places, transport = PLACES, {"shadow_resubmit_time_span": "60s"}
            async with Cluster(places, await sink.start(), directory=tmp_path, transport=transport, routes=routes) as cluster:
                east, west = cluster.nodes.values()
                await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
                await submit(east.address, "hangs@corp.example")
                await east.stop()
                shutil.copytree(east.directory / "data", tmp_path / "older")
                await east.start()
                await submit(east.address, "later@corp.example")
                await until(lambda: len(sink.arrivals) == 1)
                await east.kill()
                await west.kill()
                east.wipe()
                shutil.copytree(tmp_path / "older", east.directory / "data")
                sessions_count = len(silent.sessions)
                await east.start()  # nobody tells it
                await until(lambda: len(silent.sessions) > sessions_count)

                await west.start()
                await until_renamed(east)
    finally:
        await sink.close()

    begins, ends = (
        datetime.fromisoformat(operator_events(east, event)[0]["timestamp"]) for event in ("database.rolled_back", "database.asking")
    )
    assert ends - begins < timedelta(seconds=20)
