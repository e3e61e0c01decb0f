"""Shadow queues by next hop: what a primary server tells of its forks, and what its shadow servers show."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import QueueKind, QueueRow, QueueStatus
from shadowrelay.model.replies import PeerUnavailable, Reply, TransientDeliveryError
from shadowrelay.model.tracking import EventId
from shadowrelay.protocol.filters import MESSAGE_PROPERTIES, parse_filter
from shadowrelay.store import queues, reading
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, NORTH, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes

HOPS = [{"recipients": [f"*@{name}.example"], "next_hop": f"{name}.example:25"} for name in ("sick", "ill", "healthy")]
GONE = TransientDeliveryError(Reply(451, "4.4.1", "nobody listens"), "sick.example:25", is_unreachable=True)
RARELY = timedelta(hours=1)


async def shadow_queues(node: VirtualNode) -> dict[str, int]:
    return {row.identity.partition("\\")[2]: row.count for row in await node.services.queues.rows() if row.kind is QueueKind.SHADOW}


def sick(net: Net) -> None:
    """Nobody listens at sick.example, and ill.example has no time."""
    net.sink.answer = lambda address: GONE if "sick" in address else BUSY if "ill" in address else OK


@in_virtual_time
async def test_what_waits_for_a_next_hop_at_the_primary_server_is_in_a_shadow_queue_of_its_own(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        sick(net)
        await east.accept("a@healthy.example", "b@sick.example", "c@ill.example")
        await asyncio.sleep(5)

        held = await west.ledger.read(reading.load, east.last)
        found = await shadow_queues(west)
        condition = parse_filter(f"Queue -eq '{WEST}\\Shadow\\{EAST}\\sick.example:25'", MESSAGE_PROPERTIES)
        page = await west.ledger.read(queues.filtered, "", condition, timedelta(days=2), 9)
        net.sink.answer = lambda address: OK if "ill" in address else GONE
        await until(lambda: "c@ill.example" in net.sink.addresses(), 60)
        await asyncio.sleep(2)

        assert {f"Shadow\\{EAST}\\ill.example:25": 1, f"Shadow\\{EAST}\\sick.example:25": 1} == found
        assert held is not None
        assert {("sick.example:25", frozenset({2})), ("ill.example:25", frozenset({3}))} == {
            (fork.next_hop, fork.ordinals) for fork in held.forks
        }
        assert [east.last] == [message.envelope.message_id for message in page.messages]
        assert {f"Shadow\\{EAST}\\sick.example:25": 1} == await shadow_queues(west)


@in_virtual_time
async def test_mail_that_is_delivered_at_once_tells_no_forks(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, discard_poll_interval=timedelta(seconds=2)) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await east.accept("a@healthy.example", "b@sick.example")
        await asyncio.sleep(1)

        reply = await east.ledger.real.discards_for(WEST, west.ledger.identity.database, 99)

        assert {"delivered"} == {event.status for event in reply.events}
        assert {"Shadow\\1": 1} == await shadow_queues(west)


@in_virtual_time
@pytest.mark.parametrize("older", [EAST, WEST])
async def test_nodes_of_different_versions_show_one_queue_for_each_primary_server(tmp_path: Path, older: str) -> None:
    async with nodes(tmp_path, routes=HOPS) as net:
        net.without_forks = {name for name in (EAST, WEST) if name == older}
        east, west = await net.start(EAST, [WEST]), await net.start(WEST, [EAST])
        sick(net)
        await east.accept("b@sick.example")
        await west.accept("b@sick.example")
        await asyncio.sleep(5)

        expected = {True: {"Shadow\\1": 1}}
        assert expected.get(older == WEST, {f"Shadow\\{EAST}\\sick.example:25": 1}) == await shadow_queues(west)
        assert expected.get(older == EAST, {f"Shadow\\{WEST}\\sick.example:25": 1}) == await shadow_queues(east)
        net.sink.answer = lambda address: OK
        await until(lambda: 2 == len(net.sink.arrived), 3600)
        await until(west.in_role(east.last, Role.DELIVERED), 60)
        await until(east.in_role(west.last, Role.DELIVERED), 60)


@in_virtual_time
async def test_a_promoted_message_is_routed_anew_whatever_its_primary_server_said(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, routes=HOPS) as net:
        east = net.nodes[EAST]
        sick(net)
        await east.accept("a@healthy.example", "b@sick.example")
        await asyncio.sleep(5)
        (holder,) = [name for name in (WEST, NORTH) if await net.nodes[name].role(east.last) is Role.SHADOW]
        told = await shadow_queues(net.nodes[holder])

        await net.kill(EAST)
        net.sink.answer = lambda address: OK
        await until(lambda: ["a@healthy.example", "b@sick.example"] == net.sink.addresses(), 3 * SPAN)

        assert {f"Shadow\\{EAST}\\sick.example:25": 1} == told
        assert {} == await shadow_queues(net.nodes[holder])
        assert 1 == len(net.nodes[holder].log.rows(EventId.RESUBMIT))


@in_virtual_time
async def test_a_server_that_is_chosen_later_hears_of_the_forks_too(tmp_path: Path) -> None:
    async with nodes(tmp_path, routes=HOPS) as net:
        east = await net.start(EAST, [WEST])
        sick(net)
        await east.accept("b@sick.example")
        await asyncio.sleep(5)

        west = await net.start(WEST, [EAST])
        await until(west.in_role(east.last, Role.SHADOW), 60)
        await asyncio.sleep(5)

        assert {f"Shadow\\{EAST}\\sick.example:25": 1} == await shadow_queues(west)


async def in_queue(node: VirtualNode, name: str) -> QueueRow:
    (row,) = [row for row in await node.services.queues.rows() if row.identity.endswith(name)]
    return row


@in_virtual_time
async def test_retrying_a_shadow_queue_of_one_next_hop_forces_a_heartbeat(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, shadow_heartbeat_frequency=RARELY, shadow_resubmit_time_span=3 * RARELY) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        sick(net)
        await east.accept("b@sick.example")
        await asyncio.sleep(5)
        row = await in_queue(west, f"{EAST}\\sick.example:25")
        net.isolate(EAST)
        await asyncio.sleep(600)  # it tries less and less often
        net.heal()
        silence = west.context.peers.silence(EAST)

        retried = await west.services.queues.retry(f"Shadow\\{EAST}\\sick.example:25")
        assert retried is not None
        assert (row.identity, row.count) == (retried.identity, retried.count)
        await asyncio.sleep(3)

        assert [True, True] == [silence > 60, west.context.peers.silence(EAST) < 5]
        assert (EAST, 1) == (row.primary, row.count)


@in_virtual_time
async def test_a_shadow_queue_does_not_show_the_state_of_the_delivery_queue_of_the_same_next_hop(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: TransientDeliveryError(BUSY, "sink.example:25", is_unreachable=True)
        for name in (EAST, WEST):
            await net.nodes[name].accept()
        await asyncio.sleep(10)

        rows = [row for row in await net.nodes[EAST].services.queues.rows() if row.next_hop == "sink.example:25"]
        assert {(QueueKind.DELIVERY, QueueStatus.RETRY), (QueueKind.SHADOW, QueueStatus.READY)} == {(row.kind, row.status) for row in rows}


@in_virtual_time
async def test_a_drain_counts_a_held_message_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        sick(net)
        await east.accept("b@sick.example", "c@ill.example")
        await asyncio.sleep(5)

        assert {EAST: 1} == (await west.services.drain.view()).held
        assert {EAST: 1} == west.services.heartbeat.held()
        assert 2 == sum((await shadow_queues(west)).values())


@in_virtual_time
async def test_a_session_that_is_opened_for_anything_asks_for_discards_at_once(tmp_path: Path) -> None:
    """Long before the next poll is due."""
    async with nodes(
        tmp_path, EAST, WEST, discard_poll_interval=RARELY, shadow_heartbeat_frequency=RARELY, shadow_resubmit_time_span=4 * RARELY
    ) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(30)
        net.sink.answer = lambda address: OK
        assert (await east.accept()).is_positive
        await until(east.in_role(east.last, Role.DELIVERED), 60)
        assert await west.role(east.last) is Role.SHADOW

        net.isolate(WEST)
        with pytest.raises(PeerUnavailable):  # the session that was kept is gone
            await west.context.links[EAST].greet()
        net.heal()
        await west.context.links[EAST].greet()

        await until(west.in_role(east.last, Role.DELIVERED), 60)
