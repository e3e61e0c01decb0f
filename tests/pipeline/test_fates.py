"""Copies on servers that may be lost together do not count. docs/design.md 6.15."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.drain_progress import Obstacle
from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.readiness import NewMail
from shadowrelay.model.replies import NOT_MADE_REDUNDANT
from shadowrelay.model.settings import Transport
from shadowrelay.model.tracking import EventId, Replication
from shadowrelay.model.values import replace
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, SOUTH, SPAN, WEST, Net, VirtualNode, in_virtual_time
from tests.pipeline.scenes import holders


@asynccontextmanager
async def on_machines(directory: Path, places: dict[ServerName, str], **transport: Any) -> Any:
    """Nodes that run on these machines, and know each other."""
    net = Net(directory, names=tuple(places), transport=transport)
    net.sink.answer = lambda address: BUSY
    try:
        for name, machine in places.items():
            net.machines[name].boot = machine
            await net.start(name)
        for node in net.nodes.values():
            await until(lambda node=node: all(state.identity for state in node.context.peers.states.values()))
        yield net
    finally:
        await net.close()


async def missing(node: VirtualNode) -> int:
    await asyncio.sleep(1)  # the verdict is recorded after the reply
    claim = await node.claim(node.last)
    assert claim is not None
    return claim.missing_count


def has_chosen(node: VirtualNode, server: ServerName) -> Any:
    async def is_so() -> bool:
        claim = await node.claim(node.last)
        return claim is not None and claim.is_chosen(server)

    return is_so


def said(node: VirtualNode, event: EventId) -> list[dict[str, str]]:
    return [dict(row.custom_data) for row in node.log.rows(event)]


@in_virtual_time
async def test_a_copy_on_the_same_machine_is_kept_and_does_not_count(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "one"}) as net:
        east = net.nodes[EAST]

        assert 250 == (await east.accept()).code

        assert {WEST} == await holders(net, east)
        assert 1 == await missing(east)
        assert ["machine"] == [row.get("SharedFate") for row in said(east, EventId.HAREDIRECT)]
        (received,) = said(east, EventId.RECEIVE)
        assert (Replication.FAILED, WEST) == (received["Replication"], received["SharedFate"])
        assert (0, 1, 1) == (
            east.context.counts.acknowledged[Replication.SUCCESS], east.context.counts.acknowledged[Replication.FAILED],
            east.context.counts.shared_fate,
        )  # fmt: skip


@in_virtual_time
async def test_in_reject_mode_a_message_for_which_only_the_same_machine_has_room_is_refused(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "one"}, reject_message_on_shadow_failure=True) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]

        assert NOT_MADE_REDUNDANT == await east.accept()

        assert [] == west.log.rows(EventId.HARECEIVE)  # in vain, so it is not sent
        assert NewMail.REFUSED is east.services.readiness.new_mail().outcome
        assert "runs on this machine" in east.services.readiness.new_mail().sentence


@in_virtual_time
async def test_another_machine_comes_before_another_site(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "one", SOUTH: "two"}) as net:
        east = net.nodes[EAST]
        for _ in range(5):
            await east.accept()

            assert {SOUTH} == await holders(net, east)
            assert 0 == await missing(east)
        assert NewMail.COPIED is east.services.readiness.new_mail().outcome


@in_virtual_time
async def test_a_label_in_common_is_a_shared_fate_too(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "two"}) as net:
        east = net.nodes[EAST]
        fates = east.context.peers.fates
        fates.mine = replace(fates.mine, domains=("rack7", "power2"))
        fates.learn(WEST, replace(fates.told(WEST), domains=("power2", "rack9")))

        await east.accept()

        assert ["power2"] == [row.get("SharedFate") for row in said(east, EventId.HAREDIRECT)]
        assert "both have the label power2" in east.services.readiness.new_mail().sentence


@in_virtual_time
async def test_a_message_is_copied_elsewhere_as_soon_as_a_server_of_another_fate_is_there(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "one", SOUTH: "two"}) as net:
        east = net.nodes[EAST]
        await net.stop(SOUTH)
        await asyncio.sleep(3 * HEARTBEAT)
        await east.accept()
        assert {WEST} == await holders(net, east)
        await asyncio.sleep(300)  # the repair waits by now, and does not send the same copy again
        assert 1 == len(net.nodes[WEST].log.rows(EventId.HARECEIVE))

        await net.start(SOUTH)

        await until(has_chosen(east, SOUTH), 2 * HEARTBEAT)
        assert ["machine", None] == [row.get("SharedFate") for row in said(east, EventId.HAREDIRECT)]
        await until(lambda: holds_only(net, east, SOUTH), 2 * SPAN)


async def holds_only(net: Net, node: VirtualNode, server: ServerName) -> bool:
    return {server} == await holders(net, node)


@in_virtual_time
async def test_the_copy_on_the_same_machine_is_delivered_if_only_the_process_is_lost(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "one"}) as net:
        east = net.nodes[EAST]
        await east.accept()
        net.sink.answer = lambda address: OK

        await net.wipe(EAST)

        await until(net.nodes[WEST].in_role(east.last, Role.DELIVERED), 3 * SPAN)


@in_virtual_time
async def test_with_shared_fate_is_redundant_the_same_machine_is_as_good_as_another(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "one"}, shared_fate_is_redundant=True) as net:
        east = net.nodes[EAST]
        await east.accept()

        assert 0 == await missing(east)
        assert [None] == [row.get("SharedFate") for row in said(east, EventId.HAREDIRECT)]
        assert (NewMail.COPIED, (WEST,)) == ((new := east.services.readiness.new_mail()).outcome, new.shared_fate)

        east.services.adopt_fates(Transport(shared_fate_is_redundant=False))  # a reload
        await until(lambda: is_missing(east))

        east.services.adopt_fates(Transport(shared_fate_is_redundant=True))
        await until(has_chosen(east, WEST))


async def is_missing(node: VirtualNode) -> bool:
    return await missing(node) == 1


@in_virtual_time
async def test_two_copies_go_to_two_machines(tmp_path: Path) -> None:
    places = {EAST: "one", WEST: "two", NORTH: "two", SOUTH: "three"}
    async with on_machines(tmp_path, places, shadow_copies=2) as net:
        east = net.nodes[EAST]
        for _ in range(6):
            await east.accept()

            assert SOUTH in await holders(net, east)
            assert 0 == await missing(east)


@in_virtual_time
@pytest.mark.parametrize("rejects", [False, True])
async def test_of_two_copies_on_one_other_machine_one_counts(tmp_path: Path, rejects: bool) -> None:
    places = {EAST: "one", WEST: "two", NORTH: "two"}
    async with on_machines(tmp_path, places, shadow_copies=2, reject_message_on_shadow_failure=rejects) as net:
        east = net.nodes[EAST]
        reply = await east.accept()

        if rejects:
            assert NOT_MADE_REDUNDANT == reply
        else:
            assert ({WEST, NORTH}, 1) == (await holders(net, east), await missing(east))
            assert "1/2" == said(east, EventId.RECEIVE)[0]["Copies"]


@in_virtual_time
async def test_a_server_that_moves_to_this_machine_counts_no_more_and_another_gets_the_copy(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "two"}) as net:
        east = net.nodes[EAST]
        await east.accept()
        assert 0 == await missing(east)

        await net.stop(WEST)
        net.machines[WEST].boot = "one"
        await net.start(WEST)
        await until(lambda: is_missing(east), 3 * HEARTBEAT)

        await net.stop(WEST)
        net.machines[WEST].boot = "three"
        await net.start(WEST)
        await until(has_chosen(east, WEST), 3 * HEARTBEAT)


@in_virtual_time
async def test_a_fate_is_known_at_once_and_not_only_when_the_session_is_recorded(tmp_path: Path) -> None:
    """Or the copy that follows in the session would count while the disk is slow."""
    async with on_machines(tmp_path, {EAST: "one", WEST: "two"}) as net:
        peers, gate = net.nodes[EAST].context.peers, asyncio.Event()
        west = peers.states[WEST].identity
        assert west is not None
        net.nodes[EAST].ledger.gates["peer_heard"] = gate
        greeting = asyncio.create_task(net.nodes[EAST].services.peer_requests.greeted(replace(west, machine=peers.fates.mine.machine)))

        await asyncio.sleep(0)

        assert ((WEST,), False) == (peers.fates.own_sharers, greeting.done())
        gate.set()
        await greeting


@in_virtual_time
async def test_a_process_that_starts_again_on_the_same_boot_shares_the_same_fate(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "one"}) as net:
        await net.stop(WEST)
        await net.start(WEST)
        east = net.nodes[EAST]
        await east.accept()

        assert 1 == await missing(east)
        assert (WEST,) == east.context.peers.fates.own_sharers


@in_virtual_time
async def test_who_takes_over_on_the_same_machine_places_a_copy_on_another(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "one", SOUTH: "two"}) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.cut = {frozenset((EAST, SOUTH))}
        await asyncio.sleep(2 * HEARTBEAT)
        await east.accept()
        assert {WEST} == await holders(net, east)
        net.heal()

        await net.wipe(EAST)
        await until(west.in_role(east.last, Role.PRIMARY), 3 * SPAN)
        west.last = east.last

        await until(has_chosen(west, SOUTH), 3 * HEARTBEAT)


@in_virtual_time
async def test_a_drain_waits_for_a_server_of_another_fate_and_says_so(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "one"}) as net:
        east = net.nodes[EAST]
        await east.accept()
        await asyncio.sleep(2)
        await east.services.drain.begin()

        async def is_said() -> bool:
            return Obstacle.SHARED_FATE in {one.obstacle for one in (await east.services.drain.view()).waiting}

        await until(is_said)
        assert await east.services.drain.end()


@in_virtual_time
async def test_a_redirect_to_a_server_on_the_same_machine_moves_the_mail(tmp_path: Path) -> None:
    async with on_machines(tmp_path, {EAST: "one", WEST: "one"}) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await east.accept()
        await asyncio.sleep(2)
        await east.services.drain.redirect([WEST])

        await until(west.in_role(east.last, Role.PRIMARY), 60)


@in_virtual_time
@pytest.mark.parametrize("counts", [False, True])
async def test_a_machine_that_burns_with_two_nodes_takes_nothing_that_was_called_redundant(tmp_path: Path, counts: bool) -> None:
    """Where copies on one machine count, it does: so this would notice."""
    places = {EAST: "one", WEST: "one", NORTH: "two", SOUTH: "two"}
    async with on_machines(tmp_path, places, shared_fate_is_redundant=counts) as net:
        promised: set[str] = set()
        for number in range(24):
            node = net.nodes[(EAST, WEST)[number % 2]]
            if number == 12:
                net.cut = {frozenset((mine, other)) for mine in (EAST, WEST) for other in (NORTH, SOUTH)}
            address = f"user{number}@corp.example"
            assert 250 == (await node.accept(address)).code
            if dict(node.log.rows(EventId.RECEIVE)[-1].custom_data)["Replication"] == Replication.SUCCESS:
                promised.add(address)
            await asyncio.sleep(1)
        net.sink.answer = lambda address: OK

        await asyncio.gather(net.wipe(EAST), net.wipe(WEST))
        net.heal()
        await asyncio.sleep(4 * SPAN)

        assert len(promised) >= 12
        assert counts == bool(promised - set(net.sink.addresses()))


@in_virtual_time
async def test_who_yields_to_a_server_on_its_machine_leaves_the_copy_elsewhere_to_it(tmp_path: Path) -> None:
    """That server does not reach the other machine yet, so the copy there is the only one when theirs burns."""
    async with on_machines(tmp_path, {EAST: "one", WEST: "one", SOUTH: "two"}) as net:
        east, west, south = net.nodes[EAST], net.nodes[WEST], net.nodes[SOUTH]
        net.cut = {frozenset((EAST, SOUTH))}
        await asyncio.sleep(2 * HEARTBEAT)
        await east.accept()
        assert {WEST} == await holders(net, east)
        net.part([EAST], [WEST], [SOUTH])
        await until(west.in_role(east.last, Role.PRIMARY), 3 * SPAN)
        net.part([EAST, SOUTH], [WEST])
        await until(has_chosen(east, SOUTH), 4 * HEARTBEAT)

        net.cut = {frozenset((WEST, SOUTH))}
        await until(east.in_role(east.last, Role.SHADOW), 4 * HEARTBEAT)
        await asyncio.sleep(2 * HEARTBEAT)
        assert Role.SHADOW is await south.role(east.last)
        await asyncio.gather(net.wipe(EAST), net.wipe(WEST))

        await until(south.in_role(east.last, Role.PRIMARY), 3 * SPAN)
