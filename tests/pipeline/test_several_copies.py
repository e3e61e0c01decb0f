"""Several copies of each message: what a client waits for, the order of takeover, and what replaces a lost one. docs/design.md 6.2."""

import asyncio
from pathlib import Path

import pytest

from shadowrelay.model.message import NO_ORDINALS
from shadowrelay.model.ownership import Role
from shadowrelay.model.tracking import EventId
from shadowrelay.pipeline.draining import DrainService
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, SOUTH, SPAN, WEST, in_virtual_time, nodes
from tests.pipeline.scenes import FOUR, a_waiting_message, count_holds, holders, only_one


# accepting
@pytest.mark.parametrize("copies", [1, 2, 3])
@in_virtual_time
async def test_the_250_says_that_the_message_is_on_as_many_other_servers_as_are_wanted(tmp_path: Path, copies: int) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=copies, reject_message_on_shadow_failure=True) as net:
        east = await a_waiting_message(net)

        claim = await east.claim(east.last)
        held = await holders(net, east)
        assert (copies, copies, 0) == (len(held), claim.wanted, claim.missing_count)
        assert {name for name in net.nodes if claim.is_chosen(name)} == held
        assert held == {row.server_hostname for row in east.log.rows(EventId.HAREDIRECT)}
        numbers = {(await net.nodes[name].claim(east.last)).number for name in held}
        assert copies == len(numbers)


@in_virtual_time
async def test_in_reject_mode_a_client_is_refused_where_a_copy_is_missing_and_no_copy_is_left(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=3, reject_message_on_shadow_failure=True) as net:
        net.hold_fault = lambda primary, shadow: "reply late" if shadow == SOUTH else ""
        east = net.nodes[EAST]

        reply = await east.accept()

        net.hold_fault = lambda primary, shadow: ""
        assert 451 == reply.code

        async def is_released() -> bool:
            return not await holders(net, east)

        await until(is_released, 10 * HEARTBEAT)
        assert [] == net.sink.arrived


@in_virtual_time
async def test_in_reject_mode_nothing_is_sent_where_there_are_fewer_servers_than_copies(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_copies=2, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]
        await asyncio.sleep(1)
        sent = count_holds(east, WEST)

        assert 451 == (await east.accept()).code
        assert [] == sent


@in_virtual_time
async def test_in_accept_mode_a_message_is_taken_with_as_many_copies_as_there_are_and_the_log_says_how_many(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, shadow_copies=3, reject_message_on_shadow_failure=False) as net:
        east = await a_waiting_message(net)

        assert {WEST, NORTH} == await holders(net, east)
        (row,) = east.log.rows(EventId.RECEIVE)
        assert ("2/3", "FAILED") == (dict(row.custom_data)["Copies"], dict(row.custom_data)["Replication"].upper())
        await net.start(SOUTH, [EAST, WEST, NORTH])
        net.sink.answer = lambda address: OK
        await until(east.in_role(east.last, Role.DELIVERED), 10 * HEARTBEAT)
        assert EAST == only_one(net, FOUR)


@in_virtual_time
async def test_a_server_that_fails_is_replaced_by_another_while_the_client_waits(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2, reject_message_on_shadow_failure=True) as net:
        await asyncio.sleep(1)
        await net.kill(WEST)

        east = await a_waiting_message(net)

        assert {NORTH, SOUTH} == await holders(net, east)
        assert 0 == (await east.claim(east.last)).missing_count


# afterwards
@in_virtual_time
async def test_every_copy_is_discarded_when_the_message_is_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=3) as net:
        east = await a_waiting_message(net)
        net.sink.answer = lambda address: OK

        for name in FOUR:
            await until(net.nodes[name].in_role(east.last, Role.DELIVERED), 10 * HEARTBEAT)
        assert EAST == only_one(net, FOUR)


@in_virtual_time
async def test_a_chosen_server_that_is_lost_is_replaced(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2, reject_message_on_shadow_failure=True) as net:
        east = await a_waiting_message(net)
        lost = (await holders(net, east)).pop()
        await net.kill(lost)

        async def is_replaced() -> bool:
            return len(await holders(net, east)) == 2 and not (await east.claim(east.last)).missing_count

        await until(is_replaced, 10 * HEARTBEAT)
        assert not (await east.claim(east.last)).is_chosen(lost)


@in_virtual_time
async def test_a_server_too_many_is_released(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2) as net:
        east = await a_waiting_message(net)
        away = (await holders(net, east)).pop()
        net.isolate(away)
        await asyncio.sleep(SPAN / 2)
        net.heal()

        async def are_two() -> bool:
            return len(await holders(net, east)) == 2 and len((await east.claim(east.last)).copies) == 2

        await until(are_two, 10 * HEARTBEAT)
        net.sink.answer = lambda address: OK
        await until(east.in_role(east.last, Role.DELIVERED), 10 * HEARTBEAT)
        assert EAST == only_one(net, FOUR)


@in_virtual_time
async def test_a_restart_finds_how_many_copies_there_are_and_sends_none(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2) as net:
        east = await a_waiting_message(net)
        before, held = await east.claim(east.last), await holders(net, east)
        await net.stop(EAST)
        again = await net.start(EAST)
        again.last = east.last
        sent = count_holds(again, WEST, NORTH, SOUTH)
        await asyncio.sleep(4 * HEARTBEAT)

        after = await again.claim(again.last)
        assert (2, before.number, held, []) == (after.wanted, after.number, await holders(net, again), sent)
        net.sink.answer = lambda address: OK
        await until(again.in_role(east.last, Role.DELIVERED), 10 * HEARTBEAT)
        assert EAST == only_one(net, FOUR)


@in_virtual_time
async def test_a_changed_setting_applies_to_new_messages(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=1) as net:
        east = await a_waiting_message(net)
        first = east.last
        transport = east.context.settings.transport.model_copy(update={"shadow_copies": 3})
        east.context.settings = east.context.settings.model_copy(update={"transport": transport})

        await east.accept()

        stored = await east.message(first)
        assert stored is not None
        assert (1, 3) == (stored.claim.wanted, (await east.claim(east.last)).wanted)
        assert 3 == len(await holders(net, east))


# taking over
@in_virtual_time
async def test_one_shadow_server_takes_over_and_the_other_becomes_its_shadow_server(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2) as net:
        east = await a_waiting_message(net)
        held = await holders(net, east)
        first = max(held, key=[copy.server for copy in sorted((await east.claim(east.last)).copies, key=lambda copy: copy.placement)].index)
        await net.wipe(EAST)

        async def is_taken_over() -> bool:
            taker = net.nodes[first]
            return await taker.role(east.last) is Role.PRIMARY and not (await taker.claim(east.last)).missing_count

        await until(is_taken_over, SPAN + 10 * HEARTBEAT)
        net.sink.answer = lambda address: OK
        await until(net.nodes[first].in_role(east.last, Role.DELIVERED), 10 * HEARTBEAT)
        assert first == only_one(net, FOUR)


@in_virtual_time
async def test_the_second_takes_over_when_the_primary_and_the_first_are_destroyed_at_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2) as net:
        east = await a_waiting_message(net)
        claim = await east.claim(east.last)
        (first, second) = sorted((copy for copy in claim.copies), key=lambda copy: -copy.placement)
        await net.wipe(EAST)
        await net.wipe(first.server)
        net.sink.answer = lambda address: OK

        await until(net.nodes[second.server].in_role(east.last, Role.DELIVERED), SPAN + 10 * HEARTBEAT)
        await net.start(EAST)
        await net.start(first.server)
        await asyncio.sleep(2 * SPAN)

        assert second.server == only_one(net, FOUR)


@in_virtual_time
async def test_a_primary_that_was_away_yields_and_no_copy_is_released_or_sent_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, shadow_copies=2) as net:
        east = await a_waiting_message(net)
        assert {WEST, NORTH} == await holders(net, east)
        await net.kill(EAST)
        taker = net.nodes[WEST], net.nodes[NORTH]

        async def is_taken_over() -> bool:
            return any([await other.role(east.last) is Role.PRIMARY for other in taker])

        await until(is_taken_over, SPAN + 10 * HEARTBEAT)
        sent = count_holds(taker[0], NORTH, EAST) + count_holds(taker[1], WEST, EAST)
        again = await net.start(EAST)
        again.last = east.last

        async def is_whole() -> bool:
            for other in taker:
                if await other.role(east.last) is Role.PRIMARY:
                    return not (await other.claim(east.last)).missing_count and await again.role(east.last) is Role.SHADOW
            return False

        await until(is_whole, 10 * HEARTBEAT)
        assert [] == sent
        net.sink.answer = lambda address: OK
        for name in (EAST, WEST, NORTH):
            await until(net.nodes[name].in_role(east.last, Role.DELIVERED), 10 * HEARTBEAT)
        only_one(net, (WEST, NORTH))


async def drained(service: DrainService) -> bool:
    return not (await service.view()).undelivered_count


@in_virtual_time
async def test_what_a_node_that_drains_hands_over_keeps_its_other_copy(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, shadow_copies=2) as net:
        east = await a_waiting_message(net)
        others = net.nodes[WEST], net.nodes[NORTH]
        await east.services.drain.begin()

        async def is_handed_over() -> bool:
            for other in others:
                claim = await other.claim(east.last)
                if claim.role is Role.PRIMARY:
                    return not claim.missing_count
            return False

        await until(is_handed_over, 20 * HEARTBEAT)
        roles = {await node.role(east.last) for node in (east, *others)}
        assert {Role.PRIMARY, Role.SHADOW} == roles
        net.sink.answer = lambda address: OK
        for node in (east, *others):
            await until(node.in_role(east.last, Role.DELIVERED), 10 * HEARTBEAT)
        only_one(net, (WEST, NORTH))


@in_virtual_time
async def test_what_a_primary_has_done_is_known_to_all_of_its_shadow_servers(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=3) as net:
        net.sink.answer = lambda address: OK if address.startswith("one") else BUSY
        east = net.nodes[EAST]
        await east.accept("one@corp.example", "two@corp.example")

        async def is_known() -> bool:
            return all([(await net.nodes[name].claim(east.last)).done - NO_ORDINALS == {1} for name in FOUR])

        await until(is_known, 10 * HEARTBEAT)
