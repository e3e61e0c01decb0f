"""Peers that come and go while the node runs: no copy is orphaned by that, and none is placed on a server that leaves."""

import asyncio
from pathlib import Path

import pytest

from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.pipeline.peer_requests import NO_PEER_ANY_MORE
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, make_settings, nodes, until
from tests.pipeline.scenes import count_holds, holders

Listed = dict[ServerName, tuple[bool, bool]]


async def reload_peers(net: Net, node: VirtualNode, *peers: ServerName) -> None:
    """As a `Node` does at SIGHUP."""
    node.context.settings = make_settings(node.name, peers, net.directory, **net.settings["transport"])
    await node.services.membership.adopt(node.context.settings)


async def listed(node: VirtualNode) -> Listed:
    """In `peers list`: whether each is configured, and whether it is leaving."""
    return {row.name: (row.is_configured, row.is_leaving) for row in await node.services.peers.views()}


async def with_a_copy_on_west(net: Net) -> VirtualNode:
    """East has an undelivered message of which WEST has the copy, and WEST leaves."""
    net.sink.answer = lambda address: BUSY
    east = net.nodes[EAST]
    net.cut = {frozenset((EAST, NORTH))}
    assert 250 == (await east.accept()).code
    assert {WEST} == await holders(net, east)
    net.heal()
    await reload_peers(net, east, NORTH)
    return east


@in_virtual_time
async def test_a_peer_that_comes_gets_copies_without_a_restart(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        await net.start(NORTH, [EAST, WEST])
        await net.kill(WEST)
        refused = await net.nodes[EAST].accept()
        await reload_peers(net, net.nodes[EAST], WEST, NORTH)
        net.sink.answer = lambda address: BUSY
        taken = await net.nodes[EAST].accept()

        assert (451, 250) == (refused.code, taken.code)
        assert {NORTH} == await holders(net, net.nodes[EAST])


@in_virtual_time
async def test_a_peer_that_leaves_gets_no_copy_and_goes_when_what_it_held_is_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, reject_message_on_shadow_failure=True) as net:
        east = await with_a_copy_on_west(net)
        first = east.last
        sent = count_holds(east, WEST, NORTH)
        assert 250 == (await east.accept()).code
        while_it_leaves = await listed(east)
        assert Role.SHADOW is await net.nodes[WEST].role(first)  # its copy still counts, and is not forgotten
        net.sink.answer = lambda address: OK

        async def has_left() -> bool:
            return WEST not in await listed(east)

        await until(has_left, 10 * HEARTBEAT)

        assert {WEST: (False, True), NORTH: (True, False)} == while_it_leaves
        assert {NORTH} == set(sent)
        assert await net.nodes[WEST].role(first) is not Role.SHADOW  # it was told
        assert WEST not in east.context.peers
        assert WEST not in east.context.peers.heartbeat_ages()  # no alert is left behind
        assert 0 == east.context.peers.forgotten_count()


@in_virtual_time
async def test_what_a_leaving_peer_leaves_behind_is_taken_over(tmp_path: Path) -> None:
    """This node holds its copies: they are not forgotten with it."""
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        net.sink.answer = lambda address: BUSY
        west = net.nodes[WEST]
        net.cut = {frozenset((WEST, NORTH))}
        assert 250 == (await west.accept()).code
        net.heal()
        await reload_peers(net, net.nodes[EAST], NORTH)
        await asyncio.sleep(HEARTBEAT)
        before = await listed(net.nodes[EAST])
        await net.wipe(WEST)
        net.sink.answer = lambda address: OK
        await until(lambda: net.sink.arrived, SPAN + 10 * HEARTBEAT)

        assert (False, True) == before[WEST]
        assert {EAST} == {who for who, _, _ in net.sink.arrived}


@in_virtual_time
async def test_a_leaving_peer_places_no_copies_here(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        await with_a_copy_on_west(net)
        net.cut = {frozenset((WEST, NORTH))}
        await net.nodes[WEST].accept()

        assert set() == await holders(net, net.nodes[WEST])
        assert NO_PEER_ANY_MORE.text in net.nodes[WEST].context.peers.reason_against_copies(EAST)


@in_virtual_time
async def test_a_leaving_peer_that_is_forgotten_has_left_and_its_copies_are_placed_elsewhere(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = await with_a_copy_on_west(net)
        await net.wipe(WEST)
        await until(lambda: not east.context.peers.is_reachable(WEST), 3 * HEARTBEAT)
        assert await east.services.peers.forget(WEST)

        assert WEST not in await listed(east)
        await until(lambda: net.nodes[NORTH].role(east.last), 3 * HEARTBEAT)


@pytest.mark.parametrize("when", ["while it leaves", "when it has left"])
@in_virtual_time
async def test_a_peer_that_comes_back_is_one_as_before(tmp_path: Path, when: str) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = await with_a_copy_on_west(net)
        if when == "when it has left":
            net.sink.answer = lambda address: OK
            await until(lambda: WEST not in east.context.peers, 10 * HEARTBEAT)
        await reload_peers(net, east, WEST, NORTH)
        net.sink.answer = lambda address: BUSY
        await until(lambda: east.context.peers.is_reachable(WEST) and east.context.peers.states[WEST].heard_awake, 3 * HEARTBEAT)
        net.cut = {frozenset((EAST, NORTH))}
        assert 250 == (await east.accept()).code

        assert {WEST} == await holders(net, east)
        assert (True, False) == (await listed(east))[WEST]
