"""Resubmission from Safety Net with real nodes and the command: a killed node goes on, and shadow servers step in for a burnt one."""

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.lab.traffic import Load, Sink
from tests.kit.clock import until
from tests.kit.processes import api_of, held_by, said

pytestmark = [pytest.mark.slow]

EAST, WEST, NORTH = "mx1.east.example", "mx1.west.example", "mx1.north.example"
PLACES = (Place(EAST, "east"), Place(WEST, "west"), Place(NORTH, "north"))


async def done(node: NodeProcess, number: int) -> Any:
    """The request once it is done."""

    def request() -> Any:
        with api_of(node) as client:
            found = client.resubmit_request(number)
        return found if found["state"] == "done" else None

    return await until(lambda: asyncio.to_thread(request))


async def arrived(sink: Sink, count: int) -> Counter[str]:
    await until(lambda: len(sink.arrivals) >= count)
    return Counter(arrival.internet_message_id for arrival in sink.arrivals)


async def nothing_held(*nodes: NodeProcess) -> None:
    """They have fetched every discard: what they hold is delivered again when the primary server is destroyed."""
    await until(lambda: not [each for node in nodes for each in held_by(node)])


@pytest.mark.heavy
async def test_a_killed_node_goes_on_and_shadow_servers_step_in_for_a_burnt_one(tmp_path: Path) -> None:
    sink = Sink()
    next_hop = await sink.start()
    try:
        async with Cluster(PLACES, next_hop, directory=tmp_path) as cluster:
            east, west, north = (cluster.nodes[name] for name in (EAST, WEST, NORTH))
            load = Load({EAST: east.address}, random.Random(1))
            await load.run(30, rate=100)
            await load.close()
            await arrived(sink, 30)
            await nothing_held(west, north)
            interval = ("--from", "2026-01-01", "--to", datetime.now(UTC).isoformat())

            sink.is_deferring = True
            made = await said(east, "safety-net", "resubmit", *interval)
            await asyncio.sleep(1)
            await east.kill()
            sink.is_deferring = False
            await east.start()
            request = await done(east, made["number"])
            twice = await arrived(sink, 60)

            assert (30, 30, 0) == (request["resubmitted_count"], request["redundant_count"], request["missing_count"])
            assert {2} == set(twice.values())

            await nothing_held(west, north)
            await east.kill()
            east.wipe()
            await asyncio.sleep(10)  # the span, and a heartbeat
            for node in (west, north):
                await done(node, (await said(node, "safety-net", "resubmit", *interval, "--primary", EAST))["number"])
            thrice = await arrived(sink, 90)
            await asyncio.sleep(2)

            assert 90 == len(sink.arrivals)
            assert {3} == set(thrice.values())
    finally:
        await sink.close()
