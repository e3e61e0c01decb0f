"""`status --if-lost` is asked, then exactly that is killed and wiped, and the answer is compared with what happened."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, rows
from shadowrelay.lab.traffic import DEFERRED, Load, Sink
from tests.kit.clock import until
from tests.kit.processes import held_by, said, typed, wait_until_peers_know_each_other

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.slow]

NAMES = ("mx1.east.example", "mx1.west.example", "mx1.north.example")
PLACES = tuple(Place(name, name.split(".")[1]) for name in NAMES)
SPAN = 8.0
TRANSPORT = {
    "shadow_resubmit_time_span": f"{SPAN:.0f}s",
    "shadow_heartbeat_frequency": "1s",
    "discard_poll_interval": "250ms",
    "shadow_timeout": "15s",
}
COUNT = 40


def with_one_token(cluster: Cluster) -> None:
    """So that a command may ask all of them."""
    first, *others = cluster.nodes.values()
    for node in others:
        (node.directory / "token").write_text((first.directory / "token").read_text())


async def asked(node: NodeProcess, *words: str) -> Any:
    return await said(node, "status", "--if-lost", *words, code=None)


@pytest.mark.heavy
async def test_what_was_said_to_be_lost_is_lost_and_the_rest_is_taken_over_in_time(tmp_path: Path) -> None:
    sink = Sink()
    sink.decide = lambda envelope: DEFERRED
    next_hop = await sink.start()
    try:
        async with Cluster(PLACES, next_hop, directory=tmp_path, transport=TRANSPORT) as cluster:
            with_one_token(cluster)
            for node in cluster.nodes.values():
                await node.stop()
            for node in cluster.nodes.values():
                await node.start()
            east, west, north = (cluster.nodes[name] for name in NAMES)
            wait_until_peers_know_each_other([east, west, north])
            load = Load({east.name: east.address}, random.Random(7), size=2048)
            await load.run(COUNT, rate=20.0)
            await load.close()
            wanted = {network_id for sent in load.sent for network_id in sent.acknowledged_ids}
            assert len(wanted) > COUNT // 2

            safe = await asked(north, "east")
            assert (0, len(wanted), []) == (safe["lost_count"], safe["taken_over_count"], safe["missing"])
            assert {"copied", "refused"} >= {one["outcome"] for one in safe["new_mail"]}

            told = await asked(north, f"{east.name},west", "--list")
            assert told["lost"] == sorted((east.name, west.name))
            assert (told["lost_count"], told["lost_count"]) == (len(told["message_ids"]), len(wanted) - told["taken_over_count"])
            assert 0 < told["lost_count"] < len(wanted), "the copies went to both"
            assert {"refused"} == {one["outcome"] for one in told["new_mail"]}
            assert all(one["age_seconds"] < 30 for one in told["answers"])
            output, _ = await typed(north, "status", "--if-lost", f"{east.name},west", code=1)
            assert f"{told['lost_count']} acknowledged messages are lost" in output

            for node in (east, west):
                node.kill_now()
            for node in (east, west):
                await node.kill()
                node.wipe()
            sink.decide = lambda envelope: None
            within = max(one["within_seconds"] for one in told["taken_over"])
            assert within <= SPAN
            saved = wanted - set(told["message_ids"])
            await until(lambda: saved <= {arrival.network_id for arrival in sink.arrivals})
            await until(lambda: not held_by(north))
            silent = await asked(north, east.name)
            assert ([east.name], {east.name, west.name}) == (silent["not_told"], {one["node"] for one in silent["missing"]})
            taken = [row for row in rows(north.tracking) if row["event-id"] == "RESUBMIT"]
    finally:
        await sink.close()

    arrived = Counter(arrival.network_id for arrival in sink.arrivals)
    assert saved == set(arrived) & wanted
    assert len(saved) == len(taken) == told["taken_over_count"]
