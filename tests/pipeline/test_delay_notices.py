"""A sender hears once that a message is late, however many servers of a chain it waits on. docs/design.md 6.7."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.drain_progress import DrainState
from shadowrelay.model.message import Recipient
from shadowrelay.model.ownership import Role
from shadowrelay.pipeline.relay import relayed_id
from shadowrelay.rules.dsn import without_delay
from tests.kit.clock import until
from tests.kit.nodes import BUSY, OK, SOUTH, SPAN, Net, in_virtual_time
from tests.pipeline.edges import EDGE, HUB, KEPT_SPAN, OTHER_HUB, route_to

SENDER, RECIPIENT = "a@x.example", "user1@corp.example"
LATE = {"delay_notification_timeout": timedelta(seconds=30)}


@asynccontextmanager
async def a_chain(directory: Path, *, hubs_copy: bool = True, hops: int = 2) -> AsyncIterator[Net]:
    """The edge relays by TRACK to one of two hubs, and they, with three hops, to a last server. The recipients' servers defer."""
    net = Net(directory)
    last = [SOUTH] if hops == 3 else []
    try:
        for server in last:
            await net.start(server, [HUB, OTHER_HUB], redundancy="previous-hop", send=LATE)
        for hub, other in ((HUB, OTHER_HUB), (OTHER_HUB, HUB)):
            routes = [{"recipients": [SENDER], "next_hop": "sink.example:25"}]
            routes += route_to(SOUTH) if last else [{"recipients": ["*"], "next_hop": "sink.example:25"}]
            peers = [EDGE, *last, *([other] if hubs_copy else [])]
            await net.start(hub, peers, redundancy="previous-hop", routes=routes, peer={EDGE: {"boundary": "edge"}}, send=LATE)
        edge_routes = [{"recipients": [SENDER], "next_hop": "sink.example:25"}, *route_to(HUB, OTHER_HUB)]
        await net.start(EDGE, [HUB, OTHER_HUB], boundary="edge", redundancy="previous-hop", routes=edge_routes, send=LATE)
        net.sink.answer = lambda address: OK if address == SENDER else BUSY
        await asyncio.sleep(1)
        yield net
    finally:
        await net.close()


def notices(net: Net) -> int:
    return net.sink.addresses().count(SENDER)


@pytest.mark.parametrize("hubs_copy", [True, False])
@in_virtual_time
async def test_a_hub_that_drains_leaves_no_second_notice_behind(tmp_path: Path, hubs_copy: bool) -> None:
    async with a_chain(tmp_path, hubs_copy=hubs_copy) as net:
        edge = net.nodes[EDGE]
        assert 250 == (await edge.accept(RECIPIENT, connector="default")).code
        await until(lambda: 1 == notices(net), 60)
        await asyncio.sleep(15)

        await net.nodes[HUB].services.drain.begin()

        relayed = relayed_id(edge.last, HUB, frozenset((1,)))
        again = relayed_id(relayed, OTHER_HUB, frozenset((1,)))
        await until(lambda: net.nodes[HUB].services.drain.state is DrainState.INACTIVE, 2 * SPAN)
        await asyncio.sleep(2 * SPAN)
        assert Role.PRIMARY in [await net.nodes[OTHER_HUB].role(each) for each in (again, relayed)]
        assert 1 == notices(net)


@pytest.mark.parametrize("hops", [2, 3])
@in_virtual_time
async def test_what_was_late_at_the_edge_is_not_late_again_at_each_hop(tmp_path: Path, hops: int) -> None:
    async with a_chain(tmp_path, hops=hops) as net:
        edge = net.nodes[EDGE]
        for hub in (HUB, OTHER_HUB):
            net.cut.add(frozenset((EDGE, hub)))
        assert 250 == (await edge.accept(RECIPIENT, connector="default")).code
        await until(lambda: 1 == notices(net), 90)

        net.heal()

        relayed = relayed_id(edge.last, HUB, frozenset((1,)))
        await until(edge.in_role(relayed, Role.SHADOW), 2 * SPAN)
        await asyncio.sleep(2 * SPAN)
        assert 1 == notices(net)


@in_virtual_time
async def test_a_hub_that_was_lost_before_the_message_was_late_has_told_nobody(tmp_path: Path) -> None:
    """So whoever has it then tells the sender."""
    async with a_chain(tmp_path) as net:
        edge = net.nodes[EDGE]
        assert 250 == (await edge.accept(RECIPIENT, connector="default")).code
        await net.wipe(HUB)

        await until(lambda: 1 == notices(net), 4 * KEPT_SPAN)

        await asyncio.sleep(2 * SPAN)
        assert 1 == notices(net)


@pytest.mark.parametrize(
    ("asked", "left"),
    [(None, "FAILURE"), ("DELAY", "NEVER"), ("SUCCESS,FAILURE,DELAY", "FAILURE,SUCCESS"), ("FAILURE", "FAILURE"), ("NEVER", "NEVER")],
)
def test_a_recipient_of_whose_delay_was_told_is_passed_on_without_that_word(asked: str | None, left: str) -> None:
    assert left == without_delay(Recipient(RECIPIENT, asked)).notify


@in_virtual_time
async def test_with_three_hops_the_last_one_tells_once_and_its_failure_is_told_too(tmp_path: Path) -> None:
    async with a_chain(tmp_path, hops=3) as net:
        edge = net.nodes[EDGE]
        assert 250 == (await edge.accept(RECIPIENT, connector="default")).code
        await until(lambda: 1 == notices(net), 60)
        net.cut = {frozenset((SOUTH, hub)) for hub in (HUB, OTHER_HUB)}
        await asyncio.sleep(6 * KEPT_SPAN)
        net.heal()
        await asyncio.sleep(4 * SPAN)

        assert 1 == notices(net)
