"""Two servers that took one message over while they were cut off from each other meet when they can. docs/design.md 6.2 "Unheard"."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import permutations
from pathlib import Path

import pytest

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Choice, Role
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, SOUTH, SPAN, WEST, Net, in_virtual_time, nodes, until
from tests.pipeline.scenes import FOUR, a_waiting_message, holders

MESSAGES = 4  # on each node: which of two primary servers the former one meets first is chance


async def waiting_messages(net: Net) -> list[MessageId]:
    """Accepted by all nodes with their copies, and deferred by the next hop."""
    net.sink.answer = lambda address: BUSY
    ids = []
    for node in tuple(net.nodes.values()):
        for _ in range(MESSAGES):
            assert 250 == (await node.accept()).code
            ids.append(node.last)
    await asyncio.sleep(HEARTBEAT)
    return ids


def have_one_primary_each(net: Net, message_ids: Sequence[MessageId]) -> Callable[[], Awaitable[bool]]:
    """For `until`."""

    async def have() -> bool:
        for message_id in message_ids:
            roles = [await node.role(message_id) for node in net.nodes.values()]
            if 1 != roles.count(Role.PRIMARY):
                return False
        return True

    return have


async def has_two_primaries(net: Net, message_ids: Sequence[MessageId]) -> bool:
    roles = [[await node.role(message_id) for node in net.nodes.values()] for message_id in message_ids]
    return any(each.count(Role.PRIMARY) > 1 for each in roles)


@pytest.mark.parametrize("policy", [pytest.param("deliver", marks=pytest.mark.heavy), "defer"])
@in_virtual_time
async def test_after_a_cut_in_four_one_server_owns_each_message_and_delivers_it_once(tmp_path: Path, policy: str) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2, delivery_without_lease=policy) as net:
        ids = await waiting_messages(net)
        net.part(*((server,) for server in FOUR))
        await asyncio.sleep(2 * SPAN)
        assert await has_two_primaries(net, ids)

        net.heal()

        await until(have_one_primary_each(net, ids), 2 * SPAN)
        net.sink.answer = lambda address: OK
        await until(lambda: len(net.sink.arrived) >= len(ids), 4 * SPAN)
        await asyncio.sleep(2 * SPAN)
        assert len(ids) == len(net.sink.arrived)


ORDERS = [pytest.param(order, marks=pytest.mark.heavy if number else ()) for number, order in enumerate(permutations(FOUR))]


@pytest.mark.parametrize("order", ORDERS)
@in_virtual_time
async def test_in_whatever_order_the_parts_are_joined(tmp_path: Path, order: tuple[ServerName, ...]) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2) as net:
        ids = await waiting_messages(net)
        net.part(*((server,) for server in FOUR))
        await asyncio.sleep(2 * SPAN)

        for joined in (2, 3, 4):
            net.part(order[:joined], *((server,) for server in order[joined:]))
            await asyncio.sleep(2 * HEARTBEAT)

        await until(have_one_primary_each(net, ids), 2 * SPAN)


@in_virtual_time
async def test_with_one_copy_two_sites_that_are_cut_off_one_after_the_other_meet_again(tmp_path: Path) -> None:
    """What the first one held is copied again; then the rest is cut, too."""
    async with nodes(tmp_path, *FOUR) as net:
        ids = await waiting_messages(net)
        net.part((EAST,), (WEST, NORTH, SOUTH))
        await asyncio.sleep(3 * HEARTBEAT)
        net.part(*((server,) for server in FOUR))
        await asyncio.sleep(2 * SPAN)
        assert await has_two_primaries(net, ids)

        net.heal()

        await until(have_one_primary_each(net, ids), 2 * SPAN)


@in_virtual_time
async def test_a_server_that_was_unheard_is_no_obstacle_while_it_is_away(tmp_path: Path) -> None:
    """Under `defer` as well: only its return makes it one."""
    async with nodes(tmp_path, EAST, WEST, NORTH, delivery_without_lease="defer") as net:
        east = await a_waiting_message(net, OK)
        net.sink.answer = lambda address: OK
        (holder,) = await holders(net, east)
        (other,) = {WEST, NORTH} - {holder}
        await net.kill(other)
        await net.wipe(EAST)

        await until(net.nodes[holder].in_role(east.last, Role.DELIVERED), 4 * SPAN)


@in_virtual_time
async def test_a_server_that_was_unheard_and_holds_nothing_leaves_the_list_when_it_answers(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, SOUTH) as net:
        east = await a_waiting_message(net)
        (holder,) = await holders(net, east)
        other, away = sorted({WEST, NORTH, SOUTH} - {holder})
        net.part((EAST,), (away,), (holder, other))
        node = net.nodes[holder]
        await until(node.in_role(east.last, Role.PRIMARY), 2 * SPAN)
        entry = (await node.claim(east.last)).copy_on(away)
        assert entry is not None
        assert Choice.UNHEARD is entry.choice

        net.part((EAST,), (away, holder, other))

        async def is_off_the_list() -> bool:
            return (await node.claim(east.last)).copy_on(away) is None

        await until(is_off_the_list, 4 * HEARTBEAT)
