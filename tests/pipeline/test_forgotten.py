"""`peers forget`: who is gone for good is neither asked nor given copies, until it is heard. docs/design.md 6.4."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, LedgerUnavailable, RequestRefused
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, SOUTH, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes, until


async def is_shown(node: VirtualNode) -> bool:
    """In `peers list`, about west."""
    return {row.name: row.is_forgotten for row in await node.services.peers.views()}[WEST]


async def is_recorded(node: VirtualNode) -> bool:
    return WEST in [row.server for row in node.ledger.peers.listed() if row.is_forgotten]


async def without_west(net: Net) -> VirtualNode:
    """East, which was told that west is gone for good."""
    await asyncio.sleep(HEARTBEAT)
    await net.kill(WEST)
    east = net.nodes[EAST]
    await until(lambda: not east.context.peers.is_reachable(WEST), 2 * HEARTBEAT)
    assert await east.services.peers.forget(WEST)
    return east


def count_questions(node: VirtualNode) -> list[str]:
    """What is asked of west, or sent to it, from now on. Its return is looked for by `greet`."""
    asked: list[str] = []
    link = node.context.links[WEST]
    status, hold = link.status, link.hold

    async def counted_status(questions):
        asked.append("status")
        return await status(questions)

    async def counted_hold(offer, deadline, **patience):
        asked.append("hold")
        return await hold(offer, deadline, **patience)

    link.status, link.hold = counted_status, counted_hold
    return asked


@in_virtual_time
async def test_a_forgotten_peer_is_asked_nothing_and_sent_no_copy_until_it_is_heard(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, delivery_without_lease="defer") as net:
        net.sink.answer = lambda address: BUSY
        for _ in range(4):
            await net.nodes[EAST].accept()
        east = await without_west(net)
        asked = count_questions(east)
        for _ in range(4):
            await east.accept()
        east.services.copy_repair.wake(0)
        net.sink.answer = lambda address: OK
        await until(lambda: 8 == len(net.sink.arrived), 3 * HEARTBEAT)
        assert ([], 1) == (asked, east.context.peers.forgotten_count())

        await net.start(WEST)
        await until(lambda: not east.context.peers.is_forgotten(WEST), 3 * HEARTBEAT)
        await net.kill(NORTH)
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await until(lambda: "hold" in asked, 3 * HEARTBEAT)


@in_virtual_time
async def test_a_peer_that_answers_is_forgotten_by_force_only_and_until_it_is_heard(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await asyncio.sleep(HEARTBEAT)
        services = net.nodes[EAST].services
        services.readiness.is_running = True
        with pytest.raises(RequestRefused, match="--force forgets it all the same"):
            await services.peers.forget(WEST)
        assert not await is_shown(net.nodes[EAST])

        assert await services.peers.forget(WEST, is_forced=True)
        assert await is_shown(net.nodes[EAST])
        assert f"{WEST}: it was forgotten" in services.readiness.is_ready()[1][0]
        await until(lambda: not net.nodes[EAST].context.peers.is_forgotten(WEST), 3 * HEARTBEAT)


@in_virtual_time
async def test_where_all_nodes_must_be_asked_it_is_left_out(tmp_path: Path) -> None:
    """The lease on north has ended and its disk is new: rule *everybody*. docs/design.md 6.2."""
    async with nodes(tmp_path, EAST, WEST, NORTH, delivery_without_lease="defer") as net:
        net.sink.answer = lambda address: BUSY
        for _ in range(4):
            await net.nodes[EAST].accept()
        east = await without_west(net)
        await asyncio.sleep(HEARTBEAT)  # all have a copy on north now
        await net.wipe(NORTH)
        await asyncio.sleep(1.5 * SPAN)
        asked = count_questions(east)
        net.sink.answer = lambda address: OK
        await net.start(NORTH)

        await until(lambda: 4 == len(net.sink.arrived), SPAN)
        assert [] == asked


@in_virtual_time
async def test_it_stays_forgotten_over_restarts_and_its_return_is_noticed_recorded_and_logged(
    tmp_path: Path, logged: list[dict[str, Any]]
) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await without_west(net)
        await net.kill(EAST)
        east = await net.start(EAST)
        await asyncio.sleep(3 * HEARTBEAT)
        assert (True, True) == (await is_shown(east), await is_recorded(east))

        await net.start(WEST)
        await until(lambda: not east.context.peers.is_forgotten(WEST), 3 * HEARTBEAT)
        await asyncio.sleep(1)

        assert (False, False) == (await is_shown(east), await is_recorded(east))
        assert [WEST] == [line["server"] for line in logged if line["event"] == "peer.remembered"]


@in_virtual_time
async def test_a_sign_of_life_in_a_session_that_was_open_before_counts_as_well(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await without_west(net)
        east.services.peer_requests.heard(WEST, east.context.peers.party(WEST).database)
        await asyncio.sleep(1)

        assert (False, False) == (await is_shown(east), await is_recorded(east))


@in_virtual_time
async def test_what_cannot_be_recorded_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await net.kill(WEST)
        east = net.nodes[EAST]
        await until(lambda: not east.context.peers.is_reachable(WEST), 2 * HEARTBEAT)

        async def full(server, after):
            raise LedgerUnavailable(INSUFFICIENT_RESOURCES, "disk full")

        east.ledger.instead["peer_forgotten"] = full
        with pytest.raises(LedgerUnavailable):
            await east.services.peers.forget(WEST)

        assert not await is_shown(east)


@in_virtual_time
async def test_a_forgotten_primary_that_comes_back_too_late_with_its_old_queue_delivers_nothing_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[WEST].accept()
        message_id = net.nodes[WEST].last
        east = await without_west(net)
        net.sink.answer = lambda address: OK
        await until(east.in_role(message_id, Role.DELIVERED), 2 * SPAN)

        west = await net.start(WEST)
        await until(west.in_role(message_id, Role.DELIVERED), 3 * HEARTBEAT)

        assert [EAST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_forgotten_primary_that_comes_back_in_time_delivers_its_mail_itself(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[WEST].accept()
        message_id = net.nodes[WEST].last
        east = await without_west(net)
        net.sink.answer = lambda address: OK
        await net.start(WEST)
        await until(east.in_role(message_id, Role.DELIVERED), SPAN)

        assert [WEST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_forgotten_shadow_server_that_comes_back_with_its_copy_neither_stops_nor_repeats_the_delivery(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept()
        message_id = net.nodes[EAST].last
        assert Role.SHADOW is await net.nodes[WEST].role(message_id)
        east = await without_west(net)
        west = await net.start(WEST)
        await asyncio.sleep(2 * SPAN)
        net.sink.answer = lambda address: OK
        await until(east.in_role(message_id, Role.DELIVERED), 2 * HEARTBEAT)
        await asyncio.sleep(3 * SPAN)

        assert [EAST] == [who for who, _, _ in net.sink.arrived]
        assert await west.role(message_id) in (Role.DELIVERED, Role.RELEASED)


# with two copies


async def chosen_of(node: VirtualNode) -> list[ServerName]:
    """The shadow servers of its last message, in the order of takeover."""
    stored = await node.message(node.last)
    assert stored is not None
    return [copy.server for copy in sorted(stored.claim.copies, key=lambda copy: -copy.placement) if stored.claim.is_chosen(copy.server)]


@in_virtual_time
async def test_of_two_shadow_servers_the_forgotten_one_is_replaced_and_the_message_is_delivered_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, SOUTH, shadow_copies=2, delivery_without_lease="defer") as net:
        net.sink.answer = lambda address: BUSY
        east = net.nodes[EAST]
        await east.accept()
        await asyncio.sleep(1)  # its verdict is recorded
        first, second = await chosen_of(east)
        (third,) = {WEST, NORTH, SOUTH} - {first, second}
        await net.kill(first)
        await until(lambda: not east.context.peers.is_reachable(first), 2 * HEARTBEAT)
        assert await east.services.peers.forget(first)

        async def is_replaced() -> bool:
            return {second, third} == set(await chosen_of(east))

        await until(is_replaced, 4 * HEARTBEAT)
        net.sink.answer = lambda address: OK
        await until(east.in_role(east.last, Role.DELIVERED), 4 * HEARTBEAT)
        back = await net.start(first)
        await until(back.in_role(east.last, Role.DELIVERED), 4 * HEARTBEAT)
        await asyncio.sleep(2 * SPAN)

        assert [EAST] == [who for who, _, _ in net.sink.arrived]


@pytest.mark.parametrize("forgetting", ["first", "second", "both"])
@in_virtual_time
async def test_of_two_shadow_servers_one_takes_over_from_a_forgotten_primary_whoever_forgets_it(tmp_path: Path, forgetting: str) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, shadow_copies=2, delivery_without_lease="defer") as net:
        net.sink.answer = lambda address: BUSY
        west = net.nodes[WEST]
        await west.accept()
        await asyncio.sleep(1)
        message_id = west.last
        shadows = await chosen_of(west)
        await net.kill(WEST)
        for name, which in zip(shadows, ("first", "second"), strict=True):
            node = net.nodes[name]
            await until(lambda node=node: not node.context.peers.is_reachable(WEST), 2 * HEARTBEAT)
            if forgetting in (which, "both"):
                assert await node.services.peers.forget(WEST)
        net.sink.answer = lambda address: OK

        await until(lambda: bool(net.sink.arrived), 3 * SPAN)
        west = await net.start(WEST)
        await until(west.in_role(message_id, Role.DELIVERED), 4 * HEARTBEAT)
        await asyncio.sleep(2 * SPAN)
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_the_second_shadow_server_does_not_wait_for_a_first_that_is_gone_and_forgotten(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, SOUTH, shadow_copies=2, delivery_without_lease="defer") as net:
        net.sink.answer = lambda address: BUSY
        east = net.nodes[EAST]
        await east.accept()
        await asyncio.sleep(1)  # its verdict is recorded
        first, second = await chosen_of(east)
        await net.wipe(EAST)
        await net.kill(first)
        taker = net.nodes[second]
        for name in (EAST, first):
            await until(lambda name=name: not taker.context.peers.is_reachable(name), 2 * HEARTBEAT)
            assert await taker.services.peers.forget(name)
        net.sink.answer = lambda address: OK

        await until(taker.in_role(east.last, Role.DELIVERED), 2 * SPAN)
        back = await net.start(first)  # with its copy, which has the higher number
        await until(back.in_role(east.last, Role.DELIVERED), 3 * SPAN)
        assert [second] == [who for who, _, _ in net.sink.arrived]
