"""A server at the edge, in a boundary of its own, which relays to hubs and keeps the shadow itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.pipeline.relay import relayed_id
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, WEST, Net

HUB, OTHER_HUB, EDGE = EAST, NORTH, WEST
KEPT_SPAN = 3 * HEARTBEAT  # the timeout interval times the retry count of these nodes


def route_to(*servers: ServerName) -> list[dict[str, Any]]:
    return [{"recipients": ["*"], "next_hop": [f"{server}:2525" for server in servers], "redundancy": "previous-hop"}]


@asynccontextmanager
async def an_edge(directory: Path, *hubs: ServerName, **changes: Any) -> AsyncIterator[Net]:
    """EDGE, a boundary of its own, relays to the first of these hubs that it can reach; they deliver to the sink."""
    net = Net(directory)
    try:
        for hub in hubs:
            await net.start(hub, [EDGE], redundancy="previous-hop", peer={EDGE: {"boundary": "edge"}})
        await net.start(EDGE, hubs, boundary="edge", redundancy="previous-hop", **{"routes": route_to(*hubs), **changes})
        await asyncio.sleep(1)
        yield net
    finally:
        await net.close()


async def a_relayed_message(net: Net, hub: ServerName = HUB) -> MessageId:
    """Taken by the edge and relayed to the hub, whose next hop defers. The id of what was relayed."""
    net.sink.answer = lambda address: BUSY
    edge = net.nodes[EDGE]
    assert 250 == (await edge.accept()).code
    relayed = relayed_id(edge.last, hub, frozenset((1,)))
    await until(edge.in_role(relayed, Role.SHADOW), 5)
    return relayed
