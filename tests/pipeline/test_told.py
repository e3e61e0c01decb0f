"""What an operator is told of takeovers, of copies held for nobody in the configuration, and of mail that is refused."""

import asyncio
from datetime import timedelta
from pathlib import Path

from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import PeerView, QueueKind, QueueRow
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, NORTH, SPAN, WEST, VirtualNode, in_virtual_time, nodes


async def view_of(node: VirtualNode, server: str) -> PeerView:
    return next(peer for peer in await node.services.peers.views() if peer.name == server)


@in_virtual_time
async def test_after_a_restart_the_time_until_a_takeover_is_what_the_node_counts(tmp_path: Path) -> None:
    """It counted from a session before the restart, so that it was over for as long as a span."""
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept()
        await net.kill(EAST)
        await asyncio.sleep(SPAN / 2)
        await net.stop(WEST)
        await asyncio.sleep(10 * SPAN)
        west = await net.start(WEST)
        await asyncio.sleep(SPAN / 2)

        peer = await view_of(west, EAST)
        queue = next(row for row in await west.services.queues.rows() if row.kind is QueueKind.SHADOW)

        assert peer.heard_at is None
        assert peer.takes_over_in == timedelta(seconds=SPAN / 2)
        assert queue.next_retry_at == west.clock.now() + timedelta(seconds=SPAN / 2)


@in_virtual_time
async def test_a_peer_that_answers_has_no_time_of_takeover(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept()
        await asyncio.sleep(5)

        peer = await view_of(net.nodes[WEST], EAST)

        assert (1, None) == (peer.held_for_count, peer.takes_over_in)


@in_virtual_time
async def test_what_is_held_for_a_server_that_is_no_peer_any_more_is_shown_with_its_takeover(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept()
        await net.kill(EAST)
        await net.stop(WEST)
        west = await net.start(WEST, peers=[NORTH])
        await asyncio.sleep(10)

        peer = await view_of(west, EAST)
        queue = next(row for row in await west.services.queues.rows() if row.kind is QueueKind.SHADOW)

        assert (1, False, False) == (peer.held_for_count, peer.is_configured, peer.is_reachable)
        assert peer.takes_over_in == timedelta(seconds=SPAN - 10)
        assert "no peer in the configuration" in queue.last_error
        assert queue.next_retry_at is not None
        await until(lambda: west.services.heartbeat.held())
        assert {EAST: 1} == west.services.heartbeat.held()


async def queue_of(node: VirtualNode, kind: QueueKind) -> QueueRow:
    return next(row for row in await node.services.queues.rows() if row.kind is kind)


@in_virtual_time
async def test_a_queue_says_that_its_mail_waits_for_a_copy(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        await net.kill(EAST)
        await until(west.in_role(east.last, Role.PRIMARY), 200)
        await asyncio.sleep(2)

        queue = await queue_of(west, QueueKind.DELIVERY)

        assert (1, "not attempted before another server has a copy") == (queue.count, queue.last_error)


@in_virtual_time
async def test_a_queue_names_the_server_without_whose_answer_its_mail_is_not_attempted(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        net.part([EAST], [WEST])
        await asyncio.sleep(SPAN / 2)

        queue = await queue_of(east, QueueKind.DELIVERY)

        assert (1, f"{BUSY}; not attempted before {WEST} answers, which may deliver it") == (queue.count, queue.last_error)


@in_virtual_time
async def test_a_shadow_queue_says_why_its_primary_server_is_not_heard(tmp_path: Path) -> None:
    """An edge has nothing but these queues when its hubs are away."""
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept()
        assert "" == (await queue_of(net.nodes[WEST], QueueKind.SHADOW)).last_error
        await net.kill(EAST)
        await asyncio.sleep(10)

        queue = await queue_of(net.nodes[WEST], QueueKind.SHADOW)

        assert (await view_of(net.nodes[WEST], EAST)).last_error == queue.last_error != ""


@in_virtual_time
async def test_a_node_that_refuses_every_message_is_not_ready(tmp_path: Path) -> None:
    """Two copies are wanted, and one of three nodes is down."""
    async with nodes(tmp_path, EAST, WEST, NORTH, shadow_copies=2, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]
        east.services.readiness.is_running = True
        assert 250 == (await east.accept()).code
        await until(lambda: (True, ()) == east.services.readiness.is_ready())

        await net.kill(NORTH)
        await until(lambda: not east.services.readiness.is_ready()[0])

        assert 451 == (await east.accept()).code
        assert east.services.readiness.is_ready()[1][0].startswith("new mail is refused with 451: ")
