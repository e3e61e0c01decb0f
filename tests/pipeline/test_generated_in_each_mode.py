"""What a node makes because of a message is on another disk too, or keeps its original alive at the previous hop, in each mode of
redundancy. docs/design.md 5, "Generated messages before notifications"."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import Reply
from shadowrelay.model.resubmission import Criteria
from shadowrelay.model.tracking import Acknowledged, EventId
from shadowrelay.pipeline.relay import relayed_id
from shadowrelay.store import reading
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NO_SUCH_USER, NORTH, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes
from tests.pipeline.edges import EDGE, HUB, KEPT_SPAN, OTHER_HUB, route_to

JOURNAL, SENDER = "journal@archive.example", "a@x.example"
RECIPIENT = "user1@corp.example"
OUT = [{"recipients": ["*"], "next_hop": "sink.example:25", "journal_recipient": JOURNAL}]
PLAIN = [{"recipients": ["*"], "next_hop": "sink.example:25"}]
KINDS = ("report", "dsn", "expired", "removed")  # what ends the original, and so what is made


@asynccontextmanager
async def a_chain(directory: Path, redundancy: str, *, hubs_copy: bool, kind: str, other: str = "", **changes: Any) -> AsyncIterator[Net]:
    """The edge relays by TRACK to one of two hubs, which reach everybody but the sender and the journal. `other`: the other hub's mode."""
    net = Net(directory)
    routes = OUT if kind == "report" else PLAIN
    if kind == "expired":
        changes["message_expiration_timeout"] = timedelta(seconds=30)
    try:
        for hub, twin, mode in ((HUB, OTHER_HUB, redundancy), (OTHER_HUB, HUB, other or redundancy)):
            peers, peer = [EDGE, twin] if hubs_copy else [EDGE], {EDGE: {"boundary": "edge"}}
            net.again[hub] = partial(net.start, hub, peers, redundancy=mode, routes=routes, peer=peer, **changes)
            await net.again[hub]()
        await net.start(EDGE, [HUB, OTHER_HUB], boundary="edge", redundancy="previous-hop", routes=route_to(HUB, OTHER_HUB))
        net.sink.answer = answers(kind)
        await asyncio.sleep(1)
        yield net
    finally:
        await net.close()


def answers(kind: str, *, is_taken: bool = False) -> Callable[[str], Reply]:
    """Of the next hops; `is_taken`: what the relay made."""
    of_recipient = {"report": OK, "dsn": NO_SUCH_USER}.get(kind, BUSY)
    return lambda address: (OK if is_taken else BUSY) if address in (SENDER, JOURNAL) else of_recipient


async def an_ended_message(net: Net, kind: str) -> MessageId:
    """The edge has relayed it, and it is over at the hub."""
    edge, hub = net.nodes[EDGE], net.nodes[HUB]
    assert 250 == (await edge.accept(RECIPIENT, connector="default")).code
    relayed = relayed_id(edge.last, HUB, frozenset((1,)))
    if kind == "removed":
        await until(hub.in_role(relayed, Role.PRIMARY), 10)
        await asyncio.sleep(2)
        assert await hub.services.messages.remove(relayed, with_dsn=True)
    await until(hub.in_role(relayed, Role.DELIVERED), 60)
    return relayed


def has_arrived(net: Net, kind: str) -> Callable[[], bool]:
    return lambda: (JOURNAL if kind == "report" else SENDER) in net.sink.addresses()


def takes_no_copies(*servers: VirtualNode) -> None:
    for server in servers:
        server.services.peer_requests.offers_hold = lambda: False  # type: ignore[method-assign]


@pytest.mark.parametrize("redundancy", ["previous-hop", pytest.param("both", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hubs_copy", [True, False])
@in_virtual_time
async def test_what_a_hub_made_of_a_relayed_message_outlives_its_disk(tmp_path: Path, redundancy: str, kind: str, hubs_copy: bool) -> None:
    async with a_chain(tmp_path, redundancy, hubs_copy=hubs_copy, kind=kind) as net:
        relayed = await an_ended_message(net, kind)
        await asyncio.sleep(3 * HEARTBEAT)
        held = await net.nodes[EDGE].role(relayed)

        await net.wipe(HUB)
        net.sink.answer = answers("dsn" if kind == "removed" else kind, is_taken=True)

        await until(has_arrived(net, kind), SPAN + 20 * KEPT_SPAN)
        assert (Role.DELIVERED if hubs_copy else Role.SHADOW) is held


MODES = ("previous-hop", "both")


@pytest.mark.parametrize("modes", list(product(MODES, MODES)), ids="-".join)
@pytest.mark.parametrize("kind", ["report", "dsn"])
@pytest.mark.parametrize("hubs_copy", [True, pytest.param(False, marks=pytest.mark.heavy)])
@in_virtual_time
async def test_what_a_hub_made_of_mail_that_was_taken_back_outlives_its_disk(
    tmp_path: Path, modes: tuple[str, str], kind: str, hubs_copy: bool
) -> None:
    """The first hub burns with the message, and the other one, or the shadow server of the first, with what it made of it."""
    async with a_chain(tmp_path, modes[0], other=modes[1], hubs_copy=hubs_copy, kind=kind) as net:
        net.sink.answer = lambda address: BUSY
        edge = net.nodes[EDGE]
        assert 250 == (await edge.accept(RECIPIENT, connector="default")).code
        await until(net.nodes[HUB].in_role(relayed_id(edge.last, HUB, frozenset((1,))), Role.PRIMARY), 10)
        await net.wipe(HUB)
        taken = net.nodes[OTHER_HUB].log.rows
        await until(lambda: bool(taken(EventId.RECEIVE) or taken(EventId.RESUBMIT)), SPAN + 20 * KEPT_SPAN)
        net.sink.answer = answers(kind)
        await asyncio.sleep(SPAN)
        await net.again[HUB]()
        await asyncio.sleep(3 * HEARTBEAT)
        await net.wipe(OTHER_HUB)
        net.sink.answer = answers(kind, is_taken=True)

        await until(has_arrived(net, kind), 2 * SPAN + 20 * KEPT_SPAN)
        if kind == "report":
            await until(lambda: RECIPIENT in net.sink.addresses(), SPAN)
            assert SENDER not in net.sink.addresses()
        else:
            assert RECIPIENT not in net.sink.addresses()


@pytest.mark.parametrize("modes", list(product(MODES, MODES)), ids="-".join)
@in_virtual_time
async def test_what_is_resubmitted_outlives_the_disk_of_the_hub_that_resubmits_it(tmp_path: Path, modes: tuple[str, str]) -> None:
    """The previous hop was told that the original is done, and keeps nothing."""
    routes = [{"recipients": ["*"], "next_hop": "store.example:25", "inside_boundary": True}]
    net = Net(tmp_path)
    try:
        for hub, twin, mode in ((HUB, OTHER_HUB, modes[0]), (OTHER_HUB, HUB, modes[1])):
            await net.start(hub, [EDGE, twin], redundancy=mode, routes=routes, peer={EDGE: {"boundary": "edge"}})
        await net.start(EDGE, [HUB, OTHER_HUB], boundary="edge", redundancy="previous-hop", routes=route_to(HUB, OTHER_HUB))
        await asyncio.sleep(1)
        edge, hub = net.nodes[EDGE], net.nodes[HUB]
        assert 250 == (await edge.accept(RECIPIENT, connector="default")).code
        await until(lambda: [RECIPIENT] == net.sink.addresses(), 10)
        await asyncio.sleep(2 * HEARTBEAT)
        net.sink.answer = lambda address: BUSY
        now = hub.clock.now()
        await hub.services.safety_net.request(Criteria(now - timedelta(minutes=1), now))
        await until(lambda: bool(hub.log.rows(EventId.RESUBMIT)), SPAN)
        await asyncio.sleep(3 * HEARTBEAT)

        await net.wipe(HUB)
        net.sink.answer = lambda address: OK

        await until(lambda: [RECIPIENT, RECIPIENT] == net.sink.addresses(), 2 * SPAN)
    finally:
        await net.close()


async def _is_refused(net: Net, made: MessageId) -> None:
    """A DSN has no DSN: its sender is nobody."""
    net.sink.answer = lambda address: NO_SUCH_USER
    await until(lambda: bool(net.nodes[HUB].log.rows(EventId.FAIL)[1:]), 20)
    assert 1 == len(net.nodes[HUB].log.rows(EventId.DSN))


async def _takes_it(net: Net, made: MessageId) -> None:
    net.sink.answer = answers("dsn", is_taken=True)


async def _removes_it(net: Net, made: MessageId) -> None:
    assert await net.nodes[HUB].services.messages.remove(made, with_dsn=False)


async def _waits(net: Net, made: MessageId) -> None:
    await asyncio.sleep(20)


@pytest.mark.parametrize("end", [_takes_it, _is_refused, _removes_it, _waits])
@in_virtual_time
async def test_without_a_copy_the_original_waits_for_the_end_of_its_dsn_however_that_ends(
    tmp_path: Path, end: Callable[[Net, MessageId], Awaitable[None]]
) -> None:
    """The last: it expires."""
    async with a_chain(tmp_path, "previous-hop", hubs_copy=False, kind="dsn", message_expiration_timeout=timedelta(seconds=30)) as net:
        relayed = await an_ended_message(net, "dsn")
        (row,) = net.nodes[HUB].log.rows(EventId.DSN)
        await asyncio.sleep(2 * HEARTBEAT)
        held = await net.nodes[EDGE].role(relayed)

        await end(net, MessageId(row.network_message_id))

        await until(net.nodes[EDGE].in_role(relayed, Role.DELIVERED), 30)
        assert Role.SHADOW is held


@in_virtual_time
async def test_a_node_says_what_its_notifications_wait_for_and_since_when(tmp_path: Path) -> None:
    async with a_chain(tmp_path, "previous-hop", hubs_copy=False, kind="dsn") as net:
        hub = net.nodes[HUB]
        relayed = await an_ended_message(net, "dsn")
        ended_at = hub.clock.now()
        (row,) = hub.log.rows(EventId.DSN)
        node, ledger = hub.services.node, hub.services.context.ledger
        at_once = await node.untold()
        await asyncio.sleep(2 * HEARTBEAT)

        untold, awaited, said = await node.untold(), await ledger.read(reading.awaited, relayed), await node.view()
        net.sink.answer = answers("dsn", is_taken=True)
        await until(net.nodes[EDGE].in_role(relayed, Role.DELIVERED), 30)

        assert at_once is None
        assert untold is not None
        assert said.untold == untold
        assert (1, relayed, row.network_message_id) == (untold.count, untold.message_id, untold.generated)
        assert timedelta(seconds=2) > abs(untold.since - ended_at)
        assert (row.network_message_id,) == awaited
        assert (None, ()) == (await node.untold(), await ledger.read(reading.awaited, relayed))


@in_virtual_time
async def test_the_peer_that_takes_no_copies_is_not_waited_for_when_the_dsn_is_delivered(tmp_path: Path) -> None:
    async with a_chain(tmp_path, "previous-hop", hubs_copy=True, kind="dsn") as net:
        takes_no_copies(net.nodes[OTHER_HUB])
        relayed = await an_ended_message(net, "dsn")
        await asyncio.sleep(3 * HEARTBEAT)
        held = await net.nodes[EDGE].role(relayed)

        net.sink.answer = answers("dsn", is_taken=True)

        await until(net.nodes[EDGE].in_role(relayed, Role.DELIVERED), 30)
        assert Role.SHADOW is held


@pytest.mark.parametrize("redundancy", ["none", "previous-hop", "both"])
@in_virtual_time
async def test_whoever_takes_a_copy_over_has_it_copied_again_in_each_mode(tmp_path: Path, redundancy: str) -> None:
    """And the DSN that it makes of it: its disk may be the next to burn."""
    net = Net(tmp_path)
    try:
        await net.start(NORTH, [EAST, WEST])
        await net.start(WEST, [EAST, NORTH], redundancy=redundancy)
        east = await net.start(EAST, [WEST, NORTH])
        net.sink.answer = lambda address: BUSY
        takes_no_copies(net.nodes[NORTH])
        await asyncio.sleep(1)
        assert 250 == (await east.accept()).code
        net.nodes[NORTH].services.peer_requests.offers_hold = lambda: True
        await net.wipe(EAST)
        await until(net.nodes[WEST].in_role(east.last, Role.PRIMARY), 3 * SPAN)

        await until(net.nodes[NORTH].in_role(east.last, Role.SHADOW), SPAN)
        net.sink.answer = lambda address: BUSY if address == SENDER else NO_SUCH_USER
        await until(net.nodes[WEST].in_role(east.last, Role.DELIVERED), SPAN)
        (row,) = net.nodes[WEST].log.rows(EventId.DSN)
        await until(net.nodes[NORTH].in_role(MessageId(row.network_message_id), Role.SHADOW), SPAN)
    finally:
        await net.close()


@in_virtual_time
async def test_what_safety_net_resubmits_is_copied_in_each_mode(tmp_path: Path) -> None:
    routes = [{"recipients": ["*"], "next_hop": "store.example:25", "inside_boundary": True}]
    async with nodes(tmp_path, EAST, WEST, redundancy="previous-hop", routes=routes) as net:
        east = net.nodes[EAST]
        assert 250 == (await east.accept(connector="default")).code
        await until(east.in_role(east.last, Role.DELIVERED), 10)
        net.sink.answer = lambda address: BUSY
        now = east.clock.now()
        await east.services.safety_net.request(Criteria(now - timedelta(minutes=1), now))

        await until(lambda: bool(east.log.rows(EventId.RESUBMIT)), 30)
        made = MessageId(east.log.rows(EventId.RESUBMIT)[0].network_message_id)
        await until(net.nodes[WEST].in_role(made, Role.SHADOW), SPAN)


@pytest.mark.parametrize("peers", [(), (WEST,)])
@in_virtual_time
async def test_a_removed_message_is_acknowledged_when_its_dsn_is_copied_or_delivered(tmp_path: Path, peers: tuple[ServerName, ...]) -> None:
    net = Net(tmp_path)
    try:
        for peer in peers:
            await net.start(peer, [EAST])
        node = await net.start(EAST, peers, redundancy="previous-hop")
        net.sink.answer = lambda address: BUSY
        await asyncio.sleep(1)
        waiting = asyncio.ensure_future(node.accept(connector="default"))
        await asyncio.sleep(2)
        assert await node.services.messages.remove(node.last, with_dsn=True)
        await asyncio.sleep(2 * HEARTBEAT)
        is_answered = waiting.done()
        net.sink.answer = lambda address: OK

        reply = await waiting

        assert (250, bool(peers)) == (reply.code, is_answered)
        assert {Acknowledged.REMOVED} == {why for why, count in node.context.counts.delayed.items() if count}
    finally:
        await net.close()


@in_virtual_time
async def test_with_redundancy_switched_off_a_dsn_goes_at_once_and_ends_the_wait_for_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_redundancy_enabled=False, reject_message_on_shadow_failure=True) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: OK if address == SENDER else NO_SUCH_USER

        assert 250 == (await east.accept()).code

        await until(lambda: SENDER in net.sink.addresses(), 5)
        assert {} == await east.ledger.real.read(reading.unreported_of, [east.last])
        assert [] == west.log.rows(EventId.HARECEIVE)
