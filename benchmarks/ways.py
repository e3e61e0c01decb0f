"""The two ways to be redundant side by side: a copy on a peer before the 250, and a shadow that stays at the previous hop (`TRACK`).

Both have two servers, 20 sessions and one receiving server. `copy`: the sessions are on one node, which places a copy on its peer and
delivers. `previous-hop`: they are on an edge, which relays to a hub by TRACK, and the hub delivers; the client's 250 waits until the hub
has the message. Messages per second are from the first message to the last delivery, alternating. Octets between the two servers, in both
directions, are counted by a proxy in a run of its own; they are exact to some heartbeats. docs/performance.md.
"""

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.throughput import PRODUCT_TIMES, SIZE, timed, workplace
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.clock import until
from tests.kit.processes import api_of, wait_until_peers_know_each_other

COPY = (Place("a.east.example", "east"), Place("b.east.example", "east"))
PREVIOUS_HOP = (
    Place("edge.dmz.example", "dmz", boundary="dmz", redundancy="previous-hop", relays_to=("hub.east.example",)),
    Place("hub.east.example", "east", redundancy="previous-hop"),
)
WAYS = {"copy": COPY, "previous-hop": PREVIOUS_HOP}
console = Console(stderr=True)


def left(node: NodeProcess) -> int:
    """Messages in its longest queue, Safety Net apart."""
    with api_of(node) as client:
        return max((queue["count"] for queue in client.queues() if not queue["kind"].startswith("SafetyNet")), default=0)


async def run(parent: Path, places: Sequence[Place], messages: int, *, is_wired: bool) -> tuple[float, int]:
    """Seconds, and octets between the servers until both are done with all messages (0 unless `is_wired`)."""
    (port,) = free_ports(1)
    times = {**PRODUCT_TIMES, "reject_message_on_shadow_failure": places is COPY}
    if is_wired:
        times["shadow_heartbeat_frequency"] = "5s"  # so that the last discard notifications are not waited for
    with workplace(parent) as directory:
        async with Cluster(places, HostPort("127.0.0.1", port), directory=directory, transport=times, is_wired=is_wired) as cluster:
            nodes = list(cluster.nodes.values())
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            before = sum(wire.octets_count for wire in cluster.wires.values())
            seconds = await timed(port, [nodes[0].address.port], messages)
            if is_wired:
                await until(lambda: max(map(left, nodes)) <= 1, 60.0)  # the sink exits without an answer to the last one
            return seconds, sum(wire.octets_count for wire in cluster.wires.values()) - before


async def measure(parent: Path, pairs: int, messages: int) -> dict[str, object]:
    """Medians."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(pairs + 1):  # the first is a warm-up
        for way, places in WAYS.items():
            seconds, _ = await run(parent, places, messages if number else messages // 4, is_wired=False)
            if number:
                rates[way].append(messages / seconds)
                console.print(f"pair {number}, {way}: {rates[way][-1]:.0f} a second")
    octets = {way: (await run(parent, places, messages, is_wired=True))[1] / messages for way, places in WAYS.items()}
    ratios = [relayed / copied for relayed, copied in zip(rates["previous-hop"], rates["copy"], strict=True)]
    return {
        "messages": messages,
        "octets_of_content": SIZE,
        "rates": {way: round(statistics.median(found)) for way, found in rates.items()},
        "ratio_previous_hop_to_copy": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "octets_between_servers_a_message": {way: round(found) for way, found in octets.items()},
    }


def main() -> None:
    """Measure, and write the result to standard output as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="queues and logs (default /var/tmp)")
    options = parser.parse_args()
    json.dump(asyncio.run(measure(options.directory, options.pairs, options.messages)), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
