"""Two copies on four nodes: the primary server and another one are destroyed at the same instant. docs/design.md 6.2 "Several copies"."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, Place, rows
from shadowrelay.lab.traffic import DEFERRED, Load, Sink
from tests.kit.clock import until
from tests.kit.processes import held_by, wait_until_peers_know_each_other

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.slow]

NAMES = ("mx1.east.example", "mx1.west.example", "mx2.west.example", "mx2.east.example")
PLACES = tuple(Place(name, name.split(".")[1]) for name in NAMES)
TRANSPORT = {
    "shadow_copies": 2,
    "shadow_resubmit_time_span": "20s",
    "shadow_heartbeat_frequency": "1s",
    "discard_poll_interval": "250ms",
    "shadow_timeout": "15s",
}
COUNT = 60


@pytest.mark.heavy
async def test_what_a_client_was_promised_survives_two_destroyed_disks_and_is_delivered_once(tmp_path: Path) -> None:
    sink = Sink()
    sink.decide = lambda envelope: DEFERRED
    next_hop = await sink.start()
    try:
        async with Cluster(PLACES, next_hop, directory=tmp_path, transport=TRANSPORT) as cluster:
            primary, first = cluster.nodes[NAMES[0]], cluster.nodes[NAMES[1]]
            await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))
            load = Load({primary.name: primary.address}, random.Random(7), size=2048)
            await load.run(COUNT, rate=30.0)
            await load.close()
            wanted = {network_id for sent in load.sent for network_id in sent.acknowledged_ids}
            for node in (primary, first):
                node.kill_now()
            for node in (primary, first):
                await node.kill()
                node.wipe()
            sink.decide = lambda envelope: None
            for node in (primary, first):
                await node.start()
            await until(lambda: wanted <= {arrival.network_id for arrival in sink.arrivals})
            await until(lambda: not any(map(held_by, cluster.nodes.values())))
            logs = {node.name: node.tracking for node in cluster.nodes.values()}
    finally:
        await sink.close()

    assert len(wanted) >= COUNT // 2, "the others were refused"
    arrived = Counter(arrival.network_id for arrival in sink.arrivals)
    assert {1} == {arrived[network_id] for network_id in wanted}
    taken = Counter(name for name, tracking in logs.items() for row in rows(tracking) if row["event-id"] == "RESUBMIT")
    assert {NAMES[2]} == set(taken), "both copies were in the other site, and one server was left there"
