"""Real nodes in a chain: an edge relays to a hub and keeps the shadow; the hub is killed and its disk destroyed. docs/design.md 6.7."""

import asyncio
import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.lab.cluster import Cluster, Place
from shadowrelay.lab.traffic import Load, Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clock import until
from tests.kit.processes import held_by, kept_count, wait_until_peers_know_each_other, waiting_count
from tests.process.conftest import TIMES_OF_CHAINS
from tests.sla.oracle import judge

EDGE, HUB, OTHER_HUB = "edge.dmz.example", "hub1.east.example", "hub2.east.example"
COUNT = 60
TIMES = TIMES_OF_CHAINS | {"shadow_heartbeat_retry_count": 10}  # a hub that a busy machine lets wait for seconds is not lost


def places(*hubs: str) -> list[Place]:
    edge = Place(EDGE, "dmz", boundary="dmz", redundancy="previous-hop", relays_to=hubs)
    return [edge, *(Place(hub, "east", redundancy="previous-hop") for hub in hubs)]


@asynccontextmanager
async def a_chain(directory: Path, sink: Sink, *hubs: str) -> AsyncIterator[Cluster]:
    """The hubs deliver to the sink. COUNT messages were taken by the edge and are in the first hub."""
    address = await sink.start()
    async with Cluster(places(*hubs), HostPort("127.0.0.1", address.port), directory=directory, transport=TIMES) as cluster:
        edge = cluster.nodes[EDGE]
        await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))
        others = [cluster.nodes[name] for name in hubs[1:]]
        await asyncio.gather(*(node.stop() for node in others))  # on a busy machine they would stand in for the first one
        load = Load({EDGE: edge.address}, random.Random(7), recipients=lambda number: (f"user{number}@corp.example",))
        await load.run(COUNT, rate=150.0)
        await load.close()
        assert COUNT == sum(bool(sent.acknowledged_ids) for sent in load.sent)
        hub = cluster.nodes[hubs[0]]
        await until(
            lambda: (kept_count(edge), waiting_count(hub)) == (COUNT, COUNT), what=lambda: f"{kept_count(edge)}, {waiting_count(hub)}"
        )
        await asyncio.gather(*(node.start() for node in others))
        await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))
        yield cluster


def reported_by_the_oracle(logs: Path) -> dict[str, Any]:
    """`overall` of these logs, as docs/sla.md defines it."""
    overall: dict[str, Any] = judge(logs, is_final=True)["overall"]
    return overall


def reported_by_the_job(logs: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "shadowrelay", "sla", "report", "--logs", str(logs), "--final", "--json"]
    done = subprocess.run([*command, "--output", str(logs.parent / "report")], capture_output=True, text=True, timeout=180, check=False)
    overall: dict[str, Any] = json.loads(done.stdout)["overall"]
    return overall


def each_once(sink: Sink) -> dict[str, int]:
    """Recipients that did not get exactly one message."""
    counts = Counter(arrival.recipient for arrival in sink.arrivals)
    return {name: counts[name] for name in (f"user{number}@corp.example" for number in range(1, COUNT + 1)) if counts[name] != 1}


@pytest.mark.slow
@pytest.mark.parametrize("reported", [reported_by_the_oracle, pytest.param(reported_by_the_job, marks=pytest.mark.heavy)])
async def test_a_burnt_next_hop_is_replaced_by_another_route(tmp_path: Path, reported: Callable[[Path], dict[str, Any]]) -> None:
    sink = Sink()
    sink.is_deferring = True
    try:
        async with a_chain(tmp_path, sink, HUB, OTHER_HUB) as cluster:
            hub, edge = cluster.nodes[HUB], cluster.nodes[EDGE]
            await hub.kill()
            hub.wipe()
            sink.is_deferring = False

            await until(lambda: len(sink.arrivals) >= COUNT)
            await hub.start()
            await until(lambda: not held_by(edge))
            nodes = list(cluster.nodes.values())
    finally:
        await sink.close()

    assert {} == each_once(sink)
    assert {OTHER_HUB} == {arrival.client_name for arrival in sink.arrivals}
    for node in nodes:
        shutil.copytree(node.tracking, tmp_path / "logs" / node.name)
    overall = await asyncio.to_thread(reported, tmp_path / "logs")
    assert (1.0, 0, 0) == (overall["redundancy_ratio"], overall["recipients_lost"], overall["recipients_duplicated"])
    assert {"shadow_server": 0, "previous_hop": 2 * COUNT, "next_hop": COUNT} == overall["messages_redundant_by_way"]
    assert (2 * COUNT, COUNT, COUNT) == (overall["shadows_kept"], overall["shadows_taken_back"], overall["shadows_rerouted"])
    assert COUNT == overall["discard_lag_ms"]["count"]


@pytest.mark.heavy
@pytest.mark.parametrize("is_wiped", [True, False], ids=["new database", "same database"])
async def test_without_another_route_it_waits_until_the_next_hop_is_back(tmp_path: Path, is_wiped: bool) -> None:
    sink = Sink()
    sink.is_deferring = True
    try:
        async with a_chain(tmp_path, sink, HUB) as cluster:
            hub, edge = cluster.nodes[HUB], cluster.nodes[EDGE]
            await hub.kill()
            if is_wiped:
                hub.wipe()
            sink.is_deferring = False
            await asyncio.sleep(25)  # longer than the time-out times the count
            held_meanwhile, arrived_meanwhile = kept_count(edge), len(sink.arrivals)

            await hub.start()
            await until(lambda: len(sink.arrivals) >= COUNT)
            await until(lambda: not held_by(edge))
    finally:
        await sink.close()

    assert (COUNT, 0) == (held_meanwhile, arrived_meanwhile)
    assert {} == each_once(sink)
