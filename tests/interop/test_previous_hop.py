"""Debian's Postfix in front of an edge that keeps shadows of what it relays to a hub, and behind the hub. docs/design.md 6.7."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, Place, free_ports, rows
from shadowrelay.model.routing import HostPort
from tests.kit.clock import until
from tests.kit.postfix import running_postfix
from tests.kit.processes import held_by, wait_until_peers_know_each_other
from tests.kit.smtp_programs import dumped_message_ids, running_sink, source_command

pytestmark = [pytest.mark.interop, pytest.mark.slow]

EDGE, HUB = "edge.dmz.example", "hub.east.example"
PLACES = (
    Place(EDGE, "dmz", boundary="dmz", redundancy="previous-hop", relays_to=(HUB,)),
    Place(HUB, "east", redundancy="previous-hop"),
)
TIMES = {"reject_message_on_shadow_failure": False, "shadow_resubmit_time_span": "60s"}
COUNT = 150


async def test_mail_of_postfix_passes_an_edge_and_a_hub_once_and_is_acknowledged_when_the_hub_has_it(workplace: Path) -> None:
    """smtp-source, Postfix, edge, hub, Postfix, smtp-sink. Neither Postfix knows TRACK."""
    arrived = workplace / "arrived"
    arrived.mkdir()
    arrived.chmod(0o777)
    (port,) = free_ports(1)
    with (
        running_sink(port, "-d", f"{arrived}/%M."),
        running_postfix(workplace / "receiving", {"relayhost": f"[127.0.0.1]:{port}"}) as receiving,
    ):
        next_hop = HostPort("127.0.0.1", receiving.port)
        async with Cluster(PLACES, next_hop, directory=workplace / "nodes", transport=TIMES) as cluster:
            nodes = list(cluster.nodes.values())
            edge, hub = nodes
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            with running_postfix(workplace / "sending", {"relayhost": f"[127.0.0.1]:{edge.address.port}"}) as sending:
                client = await asyncio.create_subprocess_exec(*source_command(sending.port, messages=COUNT, sessions=10, size=2000))
                assert 0 == await client.wait()
                await until(lambda: len(dumped_message_ids(arrived)) >= COUNT)
                await until(lambda: not any(held_by(node) for node in nodes))
        found = Counter(dumped_message_ids(arrived))

    assert (COUNT, {1}) == (len(found), set(found.values()))
    at_the_edge = Counter(row["event-id"] for row in rows(edge.tracking))
    assert (COUNT, COUNT, 0) == tuple(at_the_edge[event] for event in ("RECEIVE", "HADISCARD", "HAREDIRECTFAIL"))
    shadows_at = [row["custom-data"] for row in rows(hub.tracking) if row["event-id"] == "RECEIVE"]
    assert COUNT == sum(f"S:ShadowAt={EDGE}" in text for text in shadows_at)
