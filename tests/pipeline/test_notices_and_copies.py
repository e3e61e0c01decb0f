"""A notice to the sender is part of what a message still owes: nobody may hear that its recipient is done while the notice
is on one disk only (I3; simulation seed 905)."""

import asyncio
from pathlib import Path

from shadowrelay.model.drain_progress import DrainState
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import PeerSaid, PeerUnavailable, Reply
from shadowrelay.model.tracking import EventId
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, SOUTH, SPAN, WEST, VirtualNode, in_virtual_time, nodes

NO_USER = Reply(550, "5.1.1", "no such user")
SENDER = "a@x.example"


def takes_no_copies(*servers: VirtualNode) -> None:
    """Too little room there, say: what they hold already they keep and discard as ever."""
    for server in servers:
        server.services.peer_requests.offers_hold = lambda: False


@in_virtual_time
async def test_the_last_recipient_does_not_overtake_the_notice_about_the_first(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: NO_USER if address.startswith("bad") else BUSY
        assert 250 == (await east.accept("bad@corp.example", "user@corp.example")).code
        takes_no_copies(west)
        await asyncio.sleep(2)

        net.sink.answer = lambda address: OK if address == "user@corp.example" else BUSY
        await until(east.in_role(east.last, Role.DELIVERED), 60)
        await asyncio.sleep(2)
        held = await west.role(east.last)
        await net.wipe(EAST)
        await net.start(EAST)
        net.sink.answer = lambda address: NO_USER if address.startswith("bad") else OK

        await until(lambda: "a@x.example" in net.sink.addresses(), 60)
        assert Role.SHADOW is held


@in_virtual_time
async def test_a_copy_that_is_placed_before_the_notice_does_not_say_that_its_recipient_is_done(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: NO_USER if address.startswith("bad") else BUSY
        assert 250 == (await east.accept("bad@corp.example", "user@corp.example")).code
        stored = await east.message(east.last)
        assert stored is not None
        first = net.nodes[stored.claim.copies[0].server]
        (second,) = {net.nodes[WEST], net.nodes[NORTH]} - {first}
        takes_no_copies(first, second)
        await asyncio.sleep(1)
        await net.kill(first.name)
        peer_requests = second.services.peer_requests
        peer_requests.offers_hold = lambda: True
        hold = peer_requests.hold

        async def only_the_original(peer, offer):
            return await hold(peer, offer) if offer.envelope.message_id == east.last else BUSY

        peer_requests.hold = only_the_original
        await until(second.in_role(east.last, Role.SHADOW), 10 * HEARTBEAT)
        held = await second.message(east.last)
        peer_requests.hold = hold

        await until(second.has_done(east.last, 1), 4 * HEARTBEAT)
        assert held is not None
        assert frozenset() == held.claim.done


@in_virtual_time
async def test_a_notice_handed_over_with_one_of_two_copies_does_not_end_its_original(tmp_path: Path) -> None:
    """The node that drains and the one that took the notice over burn at once: two servers, as many as there are copies."""
    async with nodes(tmp_path, EAST, WEST, NORTH, SOUTH, shadow_copies=2) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        assert 250 == (await east.accept()).code
        holders = [name for name, node in net.nodes.items() if await node.role(east.last) is Role.SHADOW]
        (other,) = {WEST, NORTH, SOUTH}.difference(holders)
        takes_no_copies(*(net.nodes[name] for name in holders))
        net.sink.answer = lambda address: NO_USER if address != SENDER else BUSY
        await until(lambda: bool(east.log.rows(EventId.DSN)), 30)
        notice = MessageId(east.log.rows(EventId.DSN)[0].network_message_id)
        await until(net.nodes[other].in_role(notice, Role.SHADOW), 10 * HEARTBEAT)

        await east.services.drain.begin()
        await until(net.nodes[other].in_role(notice, Role.PRIMARY), 10 * HEARTBEAT)
        await asyncio.sleep(4 * HEARTBEAT)
        await net.wipe(EAST)
        await net.wipe(other)
        for name in holders:
            net.nodes[name].services.peer_requests.offers_hold = lambda: True
        net.sink.answer = lambda address: NO_USER if address != SENDER else OK

        await until(lambda: SENDER in net.sink.addresses(), 3 * SPAN)


@in_virtual_time
async def test_a_node_that_drains_has_a_notice_copied_as_often_as_wanted_before_it_hands_it_over(tmp_path: Path) -> None:
    """Else the notifications about its original, and so the drain, would wait until the notice is delivered."""
    async with nodes(tmp_path, EAST, WEST, NORTH, shadow_copies=2) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        assert 250 == (await east.accept()).code

        def not_this(primary: ServerName, shadow: ServerName) -> str:
            """North takes copies, and not this one now."""
            if shadow == NORTH:
                raise PeerUnavailable(NORTH, "552 5.3.4 too large", said=PeerSaid.NOT_THIS)
            return ""

        net.hold_fault = not_this
        net.sink.answer = lambda address: NO_USER if address != SENDER else BUSY
        await until(lambda: bool(east.log.rows(EventId.DSN)), 30)
        notice = MessageId(east.log.rows(EventId.DSN)[0].network_message_id)
        await until(net.nodes[WEST].in_role(notice, Role.SHADOW), 10 * HEARTBEAT)

        await east.services.drain.begin()
        await asyncio.sleep(HEARTBEAT)
        assert Role.PRIMARY is await east.role(notice)
        net.hold_fault = lambda primary, shadow: ""

        await until(lambda: east.services.drain.state is DrainState.INACTIVE, SPAN)
        assert [] == net.sink.arrived
