"""Several copies together with what else changes who holds a message: damage, redirect, journal reports, forks, `peers forget`."""

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.drain_progress import DrainState
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import PeerUnavailable
from shadowrelay.ports import PeerLink
from shadowrelay.store import promises
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes
from tests.pipeline.scenes import FOUR, a_waiting_message, holders, only_one


@in_virtual_time
async def test_a_damaged_copy_that_is_first_in_the_order_of_takeover_does_not_hold_the_good_one_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2) as net:
        east = await a_waiting_message(net)
        (first, second) = sorted((copy for copy in (await east.claim(east.last)).copies), key=lambda copy: -copy.placement)
        net.nodes[first.server].corrupt()
        await net.wipe(EAST)
        net.sink.answer = lambda address: OK

        await until(net.nodes[second.server].in_role(east.last, Role.DELIVERED), 3 * SPAN)
        assert second.server == only_one(net, FOUR)


async def redirected(east: VirtualNode, target: ServerName) -> None:
    """Until it is over."""
    await east.services.drain.redirect([target])
    await until(lambda: DrainState.ACTIVE is east.services.drain.state, 60)


@pytest.mark.parametrize("place", [0, 1])
@in_virtual_time
async def test_a_redirect_to_one_of_two_chosen_servers_keeps_both_copies(tmp_path: Path, place: int) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, shadow_copies=2) as net:
        east = await a_waiting_message(net)
        target = sorted((copy for copy in (await east.claim(east.last)).copies), key=lambda copy: -copy.placement)[place].server
        await redirected(east, target)

        async def is_whole() -> bool:
            claim = await net.nodes[target].claim(east.last)
            return claim.role is Role.PRIMARY and not claim.missing_count

        await until(is_whole, 4 * HEARTBEAT)
        net.sink.answer = lambda address: OK
        for name in (EAST, WEST, NORTH):
            await until(net.nodes[name].in_role(east.last, Role.DELIVERED), 10 * HEARTBEAT)
        assert target == only_one(net, FOUR)


@in_virtual_time
async def test_a_redirect_to_a_server_without_a_copy_leaves_no_copy_behind(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2) as net:
        east = await a_waiting_message(net)
        (target,) = set(FOUR) - {EAST} - await holders(net, east)
        await redirected(east, target)

        assert Role.PRIMARY is await net.nodes[target].role(east.last)
        await asyncio.sleep(4 * HEARTBEAT)
        claim = await net.nodes[target].claim(east.last)
        assert 0 == claim.missing_count
        net.sink.answer = lambda address: OK
        await until(net.nodes[target].in_role(east.last, Role.DELIVERED), 10 * HEARTBEAT)
        await asyncio.sleep(2 * SPAN)
        assert target == only_one(net, FOUR)
        for name in FOUR:
            assert await net.nodes[name].role(east.last) in (Role.DELIVERED, Role.RELEASED)


async def forks_on(net: Net, name: ServerName, message_id: MessageId) -> set[str]:
    stored = await net.nodes[name].message(message_id)
    assert stored is not None
    return {fork.next_hop for fork in stored.forks}


@in_virtual_time
async def test_a_server_that_gets_one_of_two_missing_copies_is_told_the_forks(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_copies=2, reject_message_on_shadow_failure=False) as net:
        await net.kill(WEST)
        east = await a_waiting_message(net)
        await asyncio.sleep(HEARTBEAT)
        await net.start(WEST)

        await until(net.nodes[WEST].in_role(east.last, Role.SHADOW), 20 * HEARTBEAT)
        await asyncio.sleep(2 * HEARTBEAT)
        assert await forks_on(net, WEST, east.last)


@in_virtual_time
async def test_after_a_promotion_the_forks_are_told_to_all_of_its_shadow_servers(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2) as net:
        east = await a_waiting_message(net)
        await asyncio.sleep(HEARTBEAT)
        for name in await holders(net, east):
            assert await forks_on(net, name, east.last), name
        await net.wipe(EAST)

        async def is_taken_over() -> bool:
            return any([await node.role(east.last) is Role.PRIMARY for node in net.nodes.values() if node is not east])

        await until(is_taken_over, SPAN + 10 * HEARTBEAT)
        await asyncio.sleep(4 * HEARTBEAT)
        for name in FOUR[1:]:
            if await net.nodes[name].role(east.last) is Role.SHADOW:
                assert await forks_on(net, name, east.last), name


@in_virtual_time
async def test_a_server_that_is_tried_again_stays_on_the_list_whatever_the_other_copy_does_meanwhile(tmp_path: Path) -> None:
    """Each of the first two fails once, at nearly the same time, while the commits take longer than the failures."""
    async with nodes(tmp_path, EAST, WEST, NORTH, shadow_copies=2, reject_message_on_shadow_failure=True) as net:
        await asyncio.sleep(HEARTBEAT)
        net.sink.answer = lambda address: BUSY
        east = net.nodes[EAST]
        for name, seconds in ((WEST, 0.010), (NORTH, 0.030)):
            east.context.links[name].hold = refused_once(east.context.links[name], seconds)
        transition = partial(east.ledger.real.commit, promises.transition)

        async def slow(*arguments: Any, **named: Any) -> Any:
            transitions = await transition(*arguments, **named)
            await asyncio.sleep(0.05)
            return transitions

        east.ledger.instead["transition"] = slow

        assert 250 == (await east.accept()).code
        await asyncio.sleep(0.1)
        claim = await east.claim(east.last)
        assert {WEST, NORTH} == await holders(net, east)
        assert {WEST, NORTH} == {copy.server for copy in claim.copies}


def refused_once(link: PeerLink, seconds: float) -> Callable[..., Any]:
    """`hold` of this link: first it fails after so many seconds, and certainly nothing was stored."""
    real, calls = link.hold, itertools.count()

    async def hold(*arguments: Any, **named: Any) -> Any:
        if next(calls):
            return await real(*arguments, **named)
        await asyncio.sleep(seconds)
        raise PeerUnavailable(link.server, "the session broke")

    return hold


@in_virtual_time
async def test_who_yields_before_it_has_asked_another_that_promoted_asks_that_one_as_a_shadow_server(tmp_path: Path) -> None:
    """`promoted` came while it was the primary server, and the review of that found it yielded to a third one."""
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = await a_waiting_message(net)
        (holder,) = (copy.server for copy in (await east.claim(east.last)).copies)
        shadow, other = net.nodes[holder], ({WEST, NORTH} - {holder}).pop()
        asked: list[tuple[MessageId, ServerName]] = []
        shadow.services.follow.want = lambda message_id, promoted_by: asked.append((message_id, promoted_by))

        shadow.services.review.suspect(east.last, EAST)
        shadow.services.review.suspect(east.last, other)

        await until(lambda: asked == [(east.last, other)], HEARTBEAT)
