"""Real processes whose disks turn read-only, return errors, hang in a sync, or cannot be read, and are well again. docs/design.md 6.14."""

import random
from collections import Counter
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, Place, rows
from shadowrelay.lab.traffic import Load, Sink
from tests.kit.bad_disk import BadDisk, DiskState
from tests.kit.clock import until
from tests.kit.processes import held_by, operator_events

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.slow, pytest.mark.heavy]

EAST, WEST, NORTH = "mx1.east.example", "mx1.west.example", "mx1.north.example"
COUNT = 20
SICK = [DiskState.READ_ONLY, DiskState.IO_ERROR, DiskState.HANGS, DiskState.UNREADABLE]


@pytest.mark.parametrize("state", SICK, ids=lambda state: state.name)
async def test_mail_of_a_node_with_a_dead_disk_is_taken_over_and_delivered_once(tmp_path: Path, sink: Sink, state: DiskState) -> None:
    sink.is_deferring = True
    next_hop = await sink.start()
    disk = BadDisk(Place(EAST, "east"), tmp_path)
    async with Cluster((disk.place, Place(WEST, "west"), Place(NORTH, "north")), next_hop, directory=tmp_path) as cluster:
        east = cluster.nodes[EAST]
        load = Load({EAST: east.address}, random.Random(7), size=2048)
        await load.run(COUNT, rate=20.0)
        await load.close()
        wanted = {network_id for sent in load.sent for network_id in sent.acknowledged_ids}
        disk.become(state)
        await until(lambda: operator_events(east, "commits.failing"))
        sink.is_deferring = False

        await until(lambda: wanted <= {arrival.network_id for arrival in sink.arrivals})
        taken_over_by = {arrival.client_name for arrival in sink.arrivals}
        disk.become(DiskState.WELL)
        await until(lambda: operator_events(east, "commits.restored"))
        await until(lambda: not any(map(held_by, cluster.nodes.values())))
        resubmitted = [row for node in cluster.nodes.values() for row in rows(node.tracking) if row["event-id"] == "RESUBMIT"]

    assert len(wanted) >= COUNT // 2, "the others were refused"
    assert EAST not in taken_over_by
    assert {1} == set(Counter(arrival.network_id for arrival in sink.arrivals).values())
    assert len(wanted) == len(resubmitted)


@pytest.mark.parametrize("state", SICK, ids=lambda state: state.name)
async def test_copies_on_a_dead_disk_are_replaced(tmp_path: Path, sink: Sink, state: DiskState) -> None:
    sink.is_deferring = True
    next_hop = await sink.start()
    disks = {name: BadDisk(Place(name, name.split(".")[1]), tmp_path) for name in (WEST, NORTH)}
    places = (Place(EAST, "east"), *(disk.place for disk in disks.values()))
    async with Cluster(places, next_hop, directory=tmp_path) as cluster:
        east = cluster.nodes[EAST]
        load = Load({EAST: east.address}, random.Random(7), size=2048)
        await load.run(COUNT, rate=20.0)
        await load.close()
        wanted = {network_id for sent in load.sent for network_id in sent.acknowledged_ids}
        lost, other = cluster.nodes[WEST], cluster.nodes[NORTH]
        disks[WEST].become(state)

        def held_elsewhere() -> bool:
            return wanted <= {row["network-message-id"] for row in rows(other.tracking) if row["event-id"] == "HARECEIVE"}

        await until(held_elsewhere)
        await east.kill()
        east.wipe()
        sink.is_deferring = False
        await until(lambda: wanted <= {arrival.network_id for arrival in sink.arrivals})
        disks[WEST].become(DiskState.WELL)
        await until(lambda: operator_events(lost, "commits.restored"))
        await until(lambda: not any(map(held_by, (lost, other))))

    assert {1} == set(Counter(arrival.network_id for arrival in sink.arrivals).values())
