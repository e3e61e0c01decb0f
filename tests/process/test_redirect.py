"""Mail that waits for a dead next hop is redirected to another node by command, and delivered by it, once. docs/design.md 6.11."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, free_ports
from shadowrelay.lab.traffic import Load, Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clock import until
from tests.kit.processes import api_of, held_by, said, wait_until_peers_know_each_other, waiting_count

SOURCE, TARGET, OTHER = "mx1.east.example", "mx1.west.example", "mx1.north.example"
PLACES = [Place(name, name.split(".")[1]) for name in (SOURCE, TARGET, OTHER)]
COUNT = 50


def status_of(node: NodeProcess) -> dict[str, object]:
    with api_of(node) as client:
        return client.drain_status()


@pytest.mark.slow
@pytest.mark.parametrize(
    "killed",
    ["", *(pytest.param(name, marks=pytest.mark.heavy) for name in (SOURCE, TARGET))],
    ids=["undisturbed", "source killed", "target killed"],
)
async def test_what_is_redirected_is_delivered_once(tmp_path: Path, killed: str) -> None:
    (port,) = free_ports(1)
    sink, chance = Sink(port=port), random.Random(7)
    next_hop = HostPort("127.0.0.1", port)
    try:
        async with Cluster(PLACES, next_hop, directory=tmp_path, transport={"shadow_resubmit_time_span": "60s"}) as cluster:
            nodes = list(cluster.nodes.values())
            source, target, _ = nodes
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            load = Load({SOURCE: source.address}, chance, recipients=lambda number: (f"user{number}@corp.example",))
            await load.run(COUNT, rate=100.0)
            await load.close()
            await until(lambda: waiting_count(source) == COUNT)
            if not killed:
                status = await said(source, "queue", "redirect", "--to", TARGET)
                assert ("active", [TARGET], COUNT, 0) == tuple(status[name] for name in ("state", "targets", "moved_count", "left_count"))
                assert (0, COUNT) == (waiting_count(source), waiting_count(target))
            else:
                with api_of(source) as client:
                    assert "redirecting" == client.redirect(TARGET)["state"]
                await until(lambda: status_of(source)["moved_count"])
                await cluster.nodes[killed].kill()
                await cluster.nodes[killed].start()
                await until(lambda: status_of(source)["state"] == "active")
            await sink.start()
            await until(lambda: len({arrival.recipient for arrival in sink.arrivals}) == COUNT)
            for node in nodes:
                await until(lambda node=node: not held_by(node))
    finally:
        await sink.close()

    assert {} == {recipient: count for recipient, count in Counter(arrival.recipient for arrival in sink.arrivals).items() if count > 1}
    by = {arrival.client_name for arrival in sink.arrivals}
    assert {TARGET} == by or killed
