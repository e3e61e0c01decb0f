"""Mixed clusters of the last release and this checkout lose nothing, and every duplicate has a cause.

A failing seed prints how to replay it: `python -m tests.crash.mixed SEED`.
"""

import asyncio
import random
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Place
from shadowrelay.lab.traffic import Load, Sink
from tests.crash import mixed, ring
from tests.crash.plan import TIMES
from tests.kit.clock import until
from tests.kit.processes import kept_count
from tests.kit.releases import release_python

pytestmark = [pytest.mark.crash, pytest.mark.heavy, pytest.mark.usefixtures("quiet")]

MESSAGES_COUNT = 40


@pytest.mark.timeout(3600)
async def test_mixed_clusters_lose_nothing_and_explain_every_duplicate(tmp_path: Path) -> None:
    await asyncio.to_thread(release_python)
    episodes = [await mixed.run(seed, tmp_path / str(seed)) for seed in mixed.SEEDS_OF_A_TEST]
    print(ring.summary(episodes))

    assert "" == "\n".join(episode.explain() for episode in episodes if episode.complaints)
    assert sum(episode.result.taken_over for episode in episodes) > 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_forward", [True, False], ids=["to this checkout", "back to the last release"])
async def test_all_nodes_change_their_version_one_after_the_other_and_no_client_notices(tmp_path: Path, is_forward: bool) -> None:
    await asyncio.to_thread(release_python)
    episode = await mixed.roll(tmp_path, forward=is_forward)

    assert [] == episode.complaints, episode.explain()
    assert episode.result.accepted >= ring.ACKNOWLEDGED_MIN


@pytest.mark.timeout(300)
@pytest.mark.parametrize("old", ["edge", "hubs"])
async def test_an_edge_keeps_what_it_relays_by_track_to_hubs_of_the_other_version(tmp_path: Path, old: str) -> None:
    """One hub is destroyed with what was relayed to it; the edge sends that to the other one."""
    await asyncio.to_thread(release_python)
    hubs = ("hub1.example", "hub2.example")
    places = (
        Place("edge.example", "edge", redundancy="previous-hop", relays_to=hubs),
        *(Place(name, "hub", redundancy="both") for name in hubs),
    )
    sink = Sink()
    hop = await sink.start()
    sink.is_deferring = True
    names = frozenset({"edge.example"} if old == "edge" else hubs)
    times = {**ring.transport(TIMES), "shadow_heartbeat_timeout_interval": "2s", "shadow_heartbeat_retry_count": 3}
    times["reject_message_on_shadow_failure"] = False
    try:
        async with mixed.OfTwoVersions(places, hop, directory=tmp_path, transport=times, old=names) as cluster:
            edge, first, _ = cluster.nodes.values()
            load = Load({edge.name: edge.address}, random.Random(3), size=2048)
            try:
                await load.run(MESSAGES_COUNT, rate=20.0)
                await until(lambda: kept_count(edge) == MESSAGES_COUNT)
                await first.kill()
                first.wipe()
                sink.is_deferring = False
                await until(lambda: MESSAGES_COUNT == len({one.internet_message_id for one in sink.arrivals}), 120)
            finally:
                await load.close()
    finally:
        await sink.close()

    assert {sent.internet_message_id for sent in load.sent} == {one.internet_message_id for one in sink.arrivals}
