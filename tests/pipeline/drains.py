"""Nodes that are emptied: what tests of `drain` and of `queue redirect` begin with, wait for and look at."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

from shadowrelay.model.drain_progress import DrainState, DrainView, Obstacle
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.tracking import EventId
from tests.kit import nodes as kit
from tests.kit.nodes import BUSY, EAST, NORTH, OK, WEST, Net, until

ALL = (EAST, WEST, NORTH)
SPAN = 20.0
nodes = partial(
    kit.nodes, shadow_resubmit_time_span=timedelta(seconds=SPAN), shadow_heartbeat_frequency=timedelta(seconds=2)
)  # short: each virtual second costs


def is_in(net: Net, server: ServerName, state: DrainState) -> Callable[[], bool]:
    """For `until`; looked up each time, because a restarted node is another object."""
    return lambda: server in net.nodes and net.nodes[server].services.drain.state is state


def waits(net: Net, server: ServerName, obstacle: Obstacle) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        return obstacle in {one.obstacle for one in (await net.nodes[server].services.drain.view()).waiting}

    return is_so


async def view_of(net: Net, server: ServerName) -> DrainView:
    return await net.nodes[server].services.drain.view()


async def accept_deferred(net: Net, server: ServerName, count: int) -> list[MessageId]:
    """Messages that the next hop refuses for now; each has a copy."""
    net.sink.answer = lambda address: BUSY
    node, ids = net.nodes[server], []
    for number in range(count):
        assert (await node.accept(f"user{number}@corp.example")).is_positive
        ids.append(node.last)
    await asyncio.sleep(1)  # the verdicts are recorded, the first attempts are over
    return ids


def copies_stored(net: Net) -> int:
    return sum(len(node.log.rows(EventId.HARECEIVE)) for node in net.nodes.values())


async def until_delivered_once(net: Net, count: int) -> None:
    """And time does not make it twice: longer than the span."""
    net.sink.answer = lambda address: OK
    await until(lambda: len(net.sink.arrived) >= count)
    await asyncio.sleep(1.5 * SPAN)
    assert {f"user{number}@corp.example": 1 for number in range(count)} == Counter(net.sink.addresses())
