"""The five sites of seed-003 as real nodes: mail by TRACK from site to site, fan-out at the last common one. docs/design.md 6.7 "Sites"."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, Table, rows
from shadowrelay.lab.traffic import Load, Sink
from tests.kit.clock import until
from tests.kit.processes import held_by, kept_count, wait_until_peers_know_each_other, waiting_count
from tests.process.conftest import TIMES_OF_CHAINS

SITES = ("chicago", "new-york", "london", "dublin", "atlanta")
CHICAGO, NEW_YORK, LONDON, DUBLIN, ATLANTA = (f"hub.{site}.example" for site in SITES)
LINKS = (("chicago", "new-york"), ("atlanta", "new-york"), ("new-york", "london"), ("london", "dublin"))
COUNT = 60  # of them a third each to Dublin, to Atlanta, and to both
BY_SITE = 2 * COUNT // 3


def recipients_of(number: int) -> tuple[str, ...]:
    there, here = f"user{number}@dublin.example", f"user{number}@atlanta.example"
    return ((there,), (here,), (there, here))[number % 3]


def tables(sink: str) -> dict[str, Table | list[Table]]:
    routes: list[Table] = [
        {"recipients": [f"*@{site}.example"], "site": site, "next_hop": sink, "redundancy": "previous-hop", "inside_boundary": True}
        for site in ("dublin", "atlanta")
    ]
    return {
        "[routes]": routes,
        "[site_links]": [{"sites": list(pair), "cost": 10} for pair in LINKS],
        "[sites]": [{"name": site, "hub_site_enabled": True} for site in ("new-york", "london")],
    }


def sends(node: NodeProcess) -> Counter[str]:
    """Messages sent, by the server that took them."""
    return Counter(row["server-hostname"] for row in rows(node.tracking) if row["event-id"] == "SEND")


@pytest.mark.heavy
async def test_each_site_keeps_its_shadow_until_the_next_one_has_handed_on(tmp_path: Path) -> None:
    sink = Sink()
    sink.is_deferring = True
    address = await sink.start()
    places = [Place(f"hub.{site}.example", site, redundancy="previous-hop") for site in SITES]
    load = None
    try:
        async with Cluster(places, None, directory=tmp_path, transport=TIMES_OF_CHAINS, tables=tables(str(address))) as cluster:
            node = cluster.nodes
            await asyncio.to_thread(wait_until_peers_know_each_other, list(node.values()))
            load = Load({CHICAGO: node[CHICAGO].address}, random.Random(7), recipients=recipients_of)
            await load.run(COUNT, rate=60.0)
            await until(lambda: waiting_count(node[DUBLIN]) == waiting_count(node[ATLANTA]) == BY_SITE)
            # New York hears of what London has handed on with its next poll
            await until(lambda: not held_by(node[CHICAGO]) and kept_count(node[NEW_YORK]) == BY_SITE)
            kept = {name: kept_count(each) for name, each in node.items()}

            await node[DUBLIN].kill()
            node[DUBLIN].wipe()
            sink.is_deferring = False
            await asyncio.sleep(8)  # longer than the time-out times the count
            before = Counter(arrival.client_name for arrival in sink.arrivals)
            await node[DUBLIN].start()
            await until(lambda: len(sink.arrivals) >= 2 * BY_SITE)
            await until(lambda: not any(map(held_by, node.values())))
    finally:
        if load is not None:
            await load.close()
        await sink.close()

    # Chicago let go when New York had handed on; what was for two sites parted in New York
    assert {CHICAGO: 0, NEW_YORK: BY_SITE, LONDON: BY_SITE, DUBLIN: 0, ATLANTA: 0} == kept
    assert {NEW_YORK: COUNT} == sends(node[CHICAGO])
    assert {LONDON: BY_SITE, ATLANTA: BY_SITE} == sends(node[NEW_YORK])
    # no path goes around a lost site: its mail waits in London, and is relayed again when the site is back
    assert {ATLANTA: BY_SITE} == before
    assert {DUBLIN: 2 * BY_SITE} == sends(node[LONDON])
    assert {ATLANTA: BY_SITE, DUBLIN: BY_SITE} == Counter(arrival.client_name for arrival in sink.arrivals)
    assert {1} == set(Counter(arrival.recipient for arrival in sink.arrivals).values())
