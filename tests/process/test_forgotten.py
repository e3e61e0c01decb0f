"""One of three nodes is destroyed for good while mail waits, and forgotten by command: all mail goes on, once. docs/design.md 6.4."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, Place, rows
from shadowrelay.lab.traffic import Load, Sink
from tests.kit.clock import until
from tests.kit.processes import api_of, held_by, operator_events, said, wait_until_peers_know_each_other

EAST, WEST, NORTH = "mx1.east.example", "mx1.west.example", "mx1.north.example"
PLACES = [Place(name, name.split(".")[1]) for name in (EAST, WEST, NORTH)]
COUNT = 20
LATER = 5


def forgotten_by(node) -> list[str]:
    with api_of(node) as client:
        return [peer["name"] for peer in client.peers() if peer["is_forgotten"]]


@pytest.mark.heavy
async def test_mail_goes_on_without_a_node_that_is_destroyed_and_forgotten(tmp_path: Path) -> None:
    sink, chance = Sink(), random.Random(3)
    try:
        async with Cluster(PLACES, await sink.start(), directory=tmp_path, transport={"delivery_without_lease": "defer"}) as cluster:
            east, west, north = nodes = list(cluster.nodes.values())
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            sink.is_deferring = True
            loads = [Load({node.name: node.address}, chance, recipients=_to(node.name)) for node in (east, west)]
            for load in loads:
                await load.run(COUNT, rate=100.0)
            copied = {row["network-message-id"] for row in rows(east.tracking) if _is_copy_on_west(row)}
            await west.kill()
            west.wipe()
            await until(lambda: operator_events(east, "peer.lost") and operator_events(north, "peer.lost"))
            sink.is_deferring = False
            await until(lambda: sink.arrivals)
            assert copied, "each of the two gets its share"
            assert not copied & {arrival.network_id for arrival in sink.arrivals}, "without its lease they are deferred"
            assert held_by(east)

            for node in (east, north):
                assert {"name": WEST, "is_forgotten": True} == await said(node, "peers", "forget", WEST)
            await until(lambda: len({arrival.recipient for arrival in sink.arrivals}) == 2 * COUNT)
            await east.stop()
            await east.start()
            assert [[WEST], [WEST]] == [forgotten_by(node) for node in (east, north)]
            await loads[0].run(LATER, rate=100.0)  # with a copy on north: a node that refuses would be tried again
            await until(lambda: len({arrival.recipient for arrival in sink.arrivals}) == 2 * COUNT + LATER)
            await until(lambda: not held_by(east) and not held_by(north))
            for load in loads:
                await load.close()
    finally:
        await sink.close()

    assert {} == {recipient: count for recipient, count in Counter(arrival.recipient for arrival in sink.arrivals).items() if count > 1}
    for node in (east, north):
        await until(lambda node=node: [WEST] == [line["server"] for line in operator_events(node, "peer.forgotten")])


def _to(name: str):
    return lambda number: (f"{name}.{number}@corp.example",)


def _is_copy_on_west(row: dict[str, str]) -> bool:
    return (row["event-id"], row["server-hostname"]) == ("HAREDIRECT", WEST)
