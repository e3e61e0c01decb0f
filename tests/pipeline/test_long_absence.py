"""A server that was away for longer than the others remember: what has ended meanwhile is neither returned nor delivered again.
docs/design.md 6.3 "Long absences"."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Claim, Role
from shadowrelay.model.replies import PeerUnavailable
from shadowrelay.model.tracking import EventId
from shadowrelay.store import steps
from tests.kit.nodes import EAST, HEARTBEAT, NORTH, OK, SOUTH, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes, until
from tests.pipeline.scenes import a_waiting_message, holders

SHORT = {  # a message, and what is remembered of it, do not outlive the absence
    "safety_net_hold_time": timedelta(seconds=4 * SPAN),
    "message_expiration_timeout": timedelta(seconds=4 * SPAN),
    "shadow_message_auto_discard_interval": timedelta(seconds=2 * SPAN),
}
LONG = 12.0 * SPAN


async def holders_count(net: Net, node: VirtualNode) -> int:
    return len(await holders(net, node))


async def copied_again(net: Net, east: VirtualNode) -> tuple[ServerName, ServerName, Claim | None]:
    """Who held the copy and is away now; who holds one since; and the claim of that one."""
    (holder,) = await holders(net, east)
    other = NORTH if holder == WEST else WEST
    await net.stop(holder)
    await until(net.nodes[other].in_role(east.last, Role.SHADOW), 3 * SPAN)
    return holder, other, await net.nodes[other].claim(east.last)


def delivered_to(net: Net) -> list[tuple[ServerName, str]]:
    return [(server, address) for server, address, _ in net.sink.arrived]


@in_virtual_time
async def test_a_primary_that_was_away_for_long_hears_that_its_message_was_delivered_and_returns_nothing(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, **SHORT) as net:
        east = await a_waiting_message(net)
        await net.stop(EAST)
        net.sink.answer = lambda address: OK
        await until(net.nodes[WEST].in_role(east.last, Role.DELIVERED), 3 * SPAN)
        await asyncio.sleep(LONG)

        again = await net.start(EAST)

        await until(again.in_role(east.last, Role.DELIVERED), 4 * HEARTBEAT)
        await asyncio.sleep(SPAN)
        assert [(WEST, "user1@corp.example")] == delivered_to(net)
        assert [] == again.log.rows(EventId.DSN)


@in_virtual_time
async def test_what_only_the_server_with_the_copy_could_end_and_has_forgotten_ends_without_a_dsn(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, **SHORT) as net:
        east = await a_waiting_message(net)
        await net.stop(EAST)
        net.sink.answer = lambda address: OK
        west = net.nodes[WEST]
        await until(west.in_role(east.last, Role.DELIVERED), 3 * SPAN)
        await asyncio.sleep(LONG)
        await steps.forget_peer(west.ledger.real, EAST)  # as an earlier version forgets it
        await steps.expire(west.ledger.real, west.clock.now() + timedelta(days=9), 9)
        assert await west.role(east.last) is None

        again = await net.start(EAST)

        await until(again.in_role(east.last, Role.DELIVERED), 4 * HEARTBEAT)
        assert [(WEST, "user1@corp.example")] == delivered_to(net)
        assert [] == again.log.rows(EventId.DSN)
        (row,) = again.log.rows(EventId.HADISCARD)
        assert ("forgotten", WEST, ("user1@corp.example",)) == (row.source_context, row.client_hostname, row.recipients)


@in_virtual_time
async def test_a_shadow_server_that_was_away_for_long_delivers_nothing_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, **SHORT) as net:
        east = await a_waiting_message(net)
        await net.kill(WEST)
        net.sink.answer = lambda address: OK
        await until(east.in_role(east.last, Role.DELIVERED), 3 * SPAN)
        await asyncio.sleep(LONG)
        assert await east.role(east.last) is None

        again = await net.start(WEST)

        await until(again.in_role(east.last, Role.RELEASED), 4 * HEARTBEAT)
        await asyncio.sleep(2 * SPAN)
        assert [(EAST, "user1@corp.example")] == delivered_to(net)
        assert [str(east.last)] == [row.network_message_id for row in again.log.rows(EventId.EXPIRE)]


@pytest.mark.parametrize("first", [EAST, WEST])
@in_virtual_time
async def test_if_both_were_away_the_message_is_delivered_or_returned(tmp_path: Path, first: ServerName) -> None:
    """The copy has expired, and the primary server must not take that for an end."""
    async with nodes(tmp_path, EAST, WEST, **SHORT) as net:
        await a_waiting_message(net)
        await net.stop(EAST)
        await net.kill(WEST)
        net.sink.answer = lambda address: OK
        await asyncio.sleep(LONG)

        await net.start(first)
        await asyncio.sleep(LONG)
        await net.start(WEST if first == EAST else EAST)

        await until(lambda: net.sink.addresses(), 4 * SPAN)
        await asyncio.sleep(2 * SPAN)
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_a_primary_that_finds_everybody_gone_when_it_returns_waits_a_span_with_what_has_expired(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, **SHORT) as net:
        east = await a_waiting_message(net)
        await net.stop(EAST)
        net.sink.answer = lambda address: OK
        await until(net.nodes[WEST].in_role(east.last, Role.DELIVERED), 3 * SPAN)
        await asyncio.sleep(LONG)
        await net.stop(WEST)

        again = await net.start(EAST)
        await asyncio.sleep(SPAN - 2 * HEARTBEAT)
        assert await again.role(east.last) is Role.PRIMARY
        await net.start(WEST)

        await until(again.in_role(east.last, Role.DELIVERED), 4 * HEARTBEAT)
        assert [(WEST, "user1@corp.example")] == delivered_to(net)
        assert [] == again.log.rows(EventId.DSN)


@in_virtual_time
async def test_after_that_span_it_is_delivered(tmp_path: Path) -> None:
    """In doubt, deliver: nobody knows whether the others will ever return."""
    async with nodes(tmp_path, EAST, WEST, **SHORT) as net:
        east = await a_waiting_message(net)
        await net.stop(EAST)
        await net.stop(WEST)
        await asyncio.sleep(LONG)
        net.sink.answer = lambda address: OK

        again = await net.start(EAST)

        await until(again.in_role(east.last, Role.DELIVERED), SPAN + 4 * HEARTBEAT)
        assert [(EAST, "user1@corp.example")] == delivered_to(net)


@in_virtual_time
async def test_who_may_have_taken_over_what_has_expired_is_waited_for_as_well(tmp_path: Path) -> None:
    """The server with the copy is back with a new disk; the other one, which knows the end, is down."""
    async with nodes(tmp_path, EAST, WEST, NORTH, **SHORT) as net:
        east = await a_waiting_message(net)
        (holder,) = await holders(net, east)
        other = NORTH if holder == WEST else WEST
        await net.stop(EAST)
        await until(net.nodes[holder].in_role(east.last, Role.PRIMARY), 3 * SPAN)
        await asyncio.sleep(HEARTBEAT)
        await net.wipe(holder)
        net.sink.answer = lambda address: OK
        await until(net.nodes[other].in_role(east.last, Role.DELIVERED), 3 * SPAN)
        await net.start(holder)
        await asyncio.sleep(5 * SPAN)  # it has expired, and the other one remembers
        await net.stop(other)

        again = await net.start(EAST)
        await asyncio.sleep(SPAN - 2 * HEARTBEAT)
        assert await again.role(east.last) is Role.PRIMARY
        await net.start(other)

        await until(again.in_role(east.last, Role.DELIVERED), 4 * HEARTBEAT)
        assert [(other, "user1@corp.example")] == delivered_to(net)


@in_virtual_time
async def test_a_copy_is_kept_for_as_long_as_its_primary_server_needs_it(tmp_path: Path) -> None:
    """With `defer` the message waits for a server that is away, for longer than copies are kept."""
    async with nodes(tmp_path, EAST, WEST, NORTH, **SHORT, delivery_without_lease="defer") as net:
        east = await a_waiting_message(net)
        holder, other, first = await copied_again(net, east)

        await asyncio.sleep(LONG)

        assert (first, Role.PRIMARY) == (await net.nodes[other].claim(east.last), await east.role(east.last))
        await east.services.peers.forget(holder)  # it will not return; and what nobody needs goes
        net.sink.answer = lambda address: OK
        await until(net.nodes[other].in_role(east.last, Role.DELIVERED), 4 * HEARTBEAT)


@in_virtual_time
async def test_a_primary_server_that_does_not_answer_keeps_no_other_from_being_asked(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, **SHORT, delivery_without_lease="defer", shadow_copies=2) as net:
        east, first = await a_waiting_message(net), net.nodes[NORTH]
        assert 250 == (await first.accept()).code
        west = net.nodes[WEST]
        asked: list[str] = []
        for server in (EAST, NORTH):

            async def silent(questions, server=server):
                asked.append(server)
                raise PeerUnavailable(server, "no answer")

            west.context.links[server].status = silent

        await asyncio.sleep(1.1 * SPAN)

        assert {EAST, NORTH} == set(asked)
        assert Role.SHADOW is await west.role(east.last)


@in_virtual_time
async def test_a_copy_that_is_gone_is_placed_elsewhere_while_somebody_who_must_be_asked_is_away(tmp_path: Path) -> None:
    """Its server answers that it has none, after a start of the primary server, which has no lease there (simulation seed 700017)."""
    async with nodes(tmp_path, EAST, WEST, NORTH, SOUTH, **SHORT, delivery_without_lease="defer") as net:
        east = await a_waiting_message(net)
        (away,) = await holders(net, east)
        await net.stop(away)
        rest = [net.nodes[name] for name in (WEST, NORTH, SOUTH) if name != away]
        await until(lambda: holders_count(net, east), 3 * SPAN)
        (holder,) = await holders(net, east)
        await net.stop(EAST)
        await steps.expire(net.nodes[holder].ledger.real, net.nodes[holder].clock.now() + timedelta(days=9), 9)

        again = await net.start(EAST)
        again.last = east.last

        (third,) = [node for node in rest if node.name != holder]
        await until(third.in_role(east.last, Role.SHADOW), SPAN)
        assert Role.PRIMARY is await again.role(east.last)


@in_virtual_time
async def test_a_copy_that_expires_before_its_message_ends_is_placed_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, **SHORT, delivery_without_lease="defer") as net:
        east = await a_waiting_message(net)
        _, other, first = await copied_again(net, east)

        await steps.expire(net.nodes[other].ledger.real, net.nodes[other].clock.now() + timedelta(days=9), 9)
        await asyncio.sleep(SPAN)

        claim = await net.nodes[other].claim(east.last)
        assert first is not None
        assert claim is not None
        assert (claim.role, await east.role(east.last)) == (Role.SHADOW, Role.PRIMARY)
        assert claim.number > first.number
