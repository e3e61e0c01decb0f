"""A data directory that was copied to another node: both refuse each other, say so, and a third one refuses the second of them."""

import asyncio
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from shadowrelay.model.ids import NO_DATABASE, DatabaseId, ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.peers import Alive
from shadowrelay.model.tracking import EventId
from shadowrelay.model.values import replace
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.pipeline.peerbook import contradiction
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, make_settings, nodes

ME = PeerDatabase(ServerName("mx1.example"), DatabaseId("1"))
PEER = PeerDatabase(ServerName("mx2.example"), DatabaseId("2"))
OTHER = PeerDatabase(ServerName("mx3.example"), DatabaseId("3"))


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        (PEER, ""),
        (PeerDatabase(PEER.server, DatabaseId("4")), ""),  # a new database of its own
        (PeerDatabase(PEER.server, NO_DATABASE), ""),
        (PeerDatabase(ME.server, DatabaseId("4")), "calls itself mx1.example"),
        (PeerDatabase(ME.server, ME.database), "calls itself mx1.example"),
        (PeerDatabase(PEER.server, ME.database), "this node's queue"),
        (PeerDatabase(PEER.server, OTHER.database), "the queue of mx3.example"),
    ],
)
def test_a_peer_with_the_name_or_queue_of_another_node_is_in_conflict(peer: PeerDatabase, said: str) -> None:
    reason = contradiction(ME, peer, [PEER, OTHER])

    assert bool(said) is bool(reason)
    assert said in reason


async def _copied(net: Net, source: ServerName, target: ServerName) -> None:
    """The operator copies a directory while its node is stopped, and starts both."""
    for name in (source, target):
        await net.kill(name)
    shutil.rmtree(net.directory / target)
    shutil.copytree(net.directory / source, net.directory / target)
    for name in (source, target):
        await net.start(name)


@in_virtual_time
async def test_two_nodes_with_one_queue_refuse_each_other_and_say_why(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await _copied(net, EAST, WEST)

        await asyncio.sleep(5)

        for me, peer in ((EAST, WEST), (WEST, EAST)):
            services = net.nodes[me].services
            services.readiness.is_running = True
            (row,) = await services.peers.views()
            is_ready, reasons = services.readiness.is_ready()
            assert (peer, False) == (row.name, row.is_reachable)
            assert "it has this node's queue" in row.conflict
            assert is_ready
            assert any(row.conflict in reason for reason in reasons)


@in_virtual_time
async def test_what_the_original_accepts_goes_on_and_the_copy_holds_nothing(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        await _copied(net, EAST, WEST)
        await asyncio.sleep(5)
        east, west, north = (net.nodes[name] for name in (EAST, WEST, NORTH))
        assert {EAST, WEST} & north.context.peers.conflicts.keys()

        assert OK.code == (await east.accept()).code
        await until(east.in_role(east.last, Role.DELIVERED), 10)

        assert await west.role(east.last) is None
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_a_conflict_ends_when_the_copy_has_a_queue_of_its_own(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await _copied(net, EAST, WEST)
        await asyncio.sleep(5)
        assert net.nodes[EAST].context.peers.conflicts

        await net.wipe(WEST)
        await net.start(WEST)
        await asyncio.sleep(10)

        assert {} == net.nodes[EAST].context.peers.conflicts == net.nodes[WEST].context.peers.conflicts
        assert OK.code == (await net.nodes[EAST].accept()).code
        await until(net.nodes[WEST].in_role(net.nodes[EAST].last, Role.DELIVERED), 5)


@in_virtual_time
async def test_a_new_database_that_could_not_be_recorded_is_recorded_when_that_is_possible(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        west = net.nodes[WEST]
        await asyncio.sleep(5)
        await net.wipe(EAST)
        west.ledger.fail("peer_heard", 3)
        east = await net.start(EAST)

        async def is_recorded() -> bool:
            return [east.ledger.identity.database] == [row.database for row in west.ledger.real.peers.listed()]

        await until(is_recorded, 10)


@in_virtual_time
async def test_a_second_server_with_the_name_of_one_that_answers_is_refused_and_both_are_named(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(5)
        former = west.context.peers.party(EAST).database
        present = east.services.peer_requests.own_identity(WEST)
        for second in (replace(present, database=DatabaseId(str(uuid4()))), replace(present, incarnation=2, began=present.began + 9)):
            reason = await west.services.peer_requests.second_server(second, "192.0.2.66", asyncio.get_running_loop().time())

            assert all(text in reason for text in (former, second.database, "192.0.2.66", f"{EAST}:2525"))
            assert {EAST: reason} == west.context.peers.conflicts
            assert any(reason in said for said in west.services.readiness.is_ready()[1])
        assert former == west.context.peers.party(EAST).database

        await asyncio.sleep(4 * HEARTBEAT)
        assert {} == west.context.peers.conflicts


@in_virtual_time
async def test_while_its_question_waits_any_number_of_processes_may_become_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(5)
        state, link = west.context.peers.states[EAST], west.context.links[EAST]
        second = replace(east.services.peer_requests.own_identity(WEST), incarnation=2)
        asked = []

        async def alive(known: Any, *, is_dialed: bool) -> Any:
            asked.append(known)
            if len(asked) < 3 * sys.getrecursionlimit():
                state.incarnation += 7
            return Alive.ANSWERS

        monkeypatch.setattr(link, "alive", alive)

        assert await west.services.peer_requests.second_server(second, "192.0.2.66", asyncio.get_running_loop().time())
        assert 3 * sys.getrecursionlimit() == len(asked)


@in_virtual_time
async def test_a_server_that_is_replaced_by_an_empty_one_is_accepted_at_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await asyncio.sleep(5)
        await net.wipe(EAST)
        east = await net.start(EAST, introduced=True)

        assert east.ledger.identity.database == net.nodes[WEST].context.peers.party(EAST).database
        assert {} == net.nodes[WEST].context.peers.conflicts


@pytest.mark.parametrize("is_peer_lost", [False, True])
@in_virtual_time
async def test_a_refused_clone_delivers_nothing_that_others_may_deliver_and_says_so(tmp_path: Path, is_peer_lost: bool) -> None:
    """With `delivery_without_lease = "deliver"` the peer that refused it counted as lost after a heartbeat."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await asyncio.sleep(5)
        assert (OK.code, OK.code) == ((await east.accept()).code, (await west.accept()).code)
        mine, theirs = east.last, west.last
        await net.stop(EAST)
        elsewhere = tmp_path / "elsewhere"
        shutil.copytree(net.directory / EAST, elsewhere / EAST)
        await net.start(EAST)
        await asyncio.sleep(2 * HEARTBEAT)
        clone = VirtualNode(net, EAST, make_settings(EAST, [WEST], elsewhere, delivery_without_lease="deliver"))
        await clone.open(introduced=True)
        clone.services.start()
        clone.services.readiness.is_running = True
        try:
            await asyncio.sleep(3 * SPAN)

            assert (Role.PRIMARY, Role.SHADOW) == (await clone.role(mine), await clone.role(theirs))
            assert [] == [row for row in clone.log.events if row.event in (EventId.DEFER, EventId.SEND, EventId.RESUBMIT)]
            assert any("refuses this node" in reason for reason in clone.services.readiness.is_ready()[1])
            assert [WEST] == list(clone.context.peers.refusing_us)

            if is_peer_lost:  # a refusal is a sign of life as long as it is heard: nothing waits for ever for who said it
                await net.kill(WEST)
            await net.kill(EAST)  # the old machine is off: this one is the replacement
            net.nodes[EAST] = clone
            net.sink.answer = lambda address: OK
            await until(lambda: len(net.sink.arrived) == 2, 4 * SPAN)
            assert is_peer_lost or {} == clone.context.peers.refusing_us
            await asyncio.sleep(2 * SPAN)
            assert {mine, theirs} == set(net.sink.message_ids)
            assert 2 == len(net.sink.arrived)
        finally:
            await clone.tasks.close()


@asynccontextmanager
async def a_clone_of(net: Net, name: ServerName, directory: Path, *, is_copied: bool) -> Any:
    """Another machine with the same name and configuration, on a copy of the disk or an empty one. Nobody reaches it."""
    peers = [other for other in net.settings["names"] if other != name]
    if is_copied:
        shutil.copytree(net.directory / name, directory / name, ignore=shutil.ignore_patterns("*-shm"))
    clone = VirtualNode(net, name, make_settings(name, peers, directory))
    clone.address = "192.0.2.66:2525"
    await clone.open(introduced=True)
    clone.services.start()
    clone.services.readiness.is_running = True
    try:
        yield clone
    finally:
        await clone.tasks.close()
        clone.ledger.real.abandon()
        await clone.ledger.real._readers.close()


@pytest.mark.parametrize("hangs_seconds", [HEARTBEAT, SPAN / 2])
@pytest.mark.parametrize("is_copied", [False, True], ids=["empty", "copied"])
@in_virtual_time
async def test_a_running_node_that_hangs_for_less_than_the_span_is_not_displaced_by_its_clone(
    tmp_path: Path, is_copied: bool, hangs_seconds: float
) -> None:
    """A slow machine or a hung disk misses every question whether it lives. That is no end."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await asyncio.sleep(5)
        assert OK.code == (await east.accept()).code
        known = west.context.peers.whole_incarnation(EAST)
        net.hung.add(east)
        await asyncio.sleep(2 * HEARTBEAT)  # its sessions are over
        async with a_clone_of(net, EAST, tmp_path / "elsewhere", is_copied=is_copied) as clone:
            await asyncio.sleep(hangs_seconds)

            assert known == west.context.peers.whole_incarnation(EAST)
            assert {EAST} == west.context.peers.conflicts.keys()
            assert [WEST] == list(clone.context.peers.refusing_us)

            net.hung.discard(east)
            net.sink.answer = lambda address: OK
            await until(east.in_role(east.last, Role.DELIVERED), 2 * SPAN)
            await asyncio.sleep(SPAN)
        assert known == west.context.peers.whole_incarnation(EAST)
        assert [EAST] == [server for server, _, _ in net.sink.arrived]
        assert [] == west.log.rows(EventId.RESUBMIT)


@in_virtual_time
async def test_a_node_that_is_heard_again_after_another_got_its_name_has_it_back_and_the_newer_one_is_refused(tmp_path: Path) -> None:
    """A replacement has the address, and the old machine lives after all: what others hold for it, and its leases, are of its database."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await asyncio.sleep(5)
        assert OK.code == (await east.accept("waits@corp.example")).code
        known = west.context.peers.whole_incarnation(EAST)
        net.hung.add(east)
        async with a_clone_of(net, EAST, tmp_path / "elsewhere", is_copied=False) as clone:
            net.nodes[EAST] = clone
            replacement = clone.ledger.identity.database
            await until(lambda: west.context.peers.party(EAST).database == replacement, SPAN)
            net.hung.discard(east)
            await until(lambda: west.context.peers.whole_incarnation(EAST) == known, 2 * HEARTBEAT)
            await asyncio.sleep(2 * HEARTBEAT)

            assert known == west.context.peers.whole_incarnation(EAST)
            assert all(text in west.context.peers.conflicts[EAST] for text in (known.database, replacement, east.address, clone.address))
            assert [WEST] == list(clone.context.peers.refusing_us)
            await clone.accept()
            assert [] == clone.log.rows(EventId.HAREDIRECT)  # nothing that it takes has a copy

            net.sink.answer = lambda address: OK
            await until(lambda: "waits@corp.example" in net.sink.addresses(), 2 * SPAN)
            await asyncio.sleep(2 * SPAN)
            assert 1 == net.sink.addresses().count("waits@corp.example")
            assert known == west.context.peers.whole_incarnation(EAST)
            net.nodes[EAST] = east


@in_virtual_time
async def test_a_node_that_was_started_again_takes_nothing_over_because_a_clone_of_a_hanging_peer_spoke_first(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await asyncio.sleep(5)
        assert OK.code == (await east.accept()).code
        net.hung.add(east)
        await net.kill(WEST)
        async with a_clone_of(net, EAST, tmp_path / "elsewhere", is_copied=False):
            west = await net.start(WEST)
            await asyncio.sleep(SPAN / 2)
            assert [] == west.log.rows(EventId.RESUBMIT)

            net.hung.discard(east)
            await until(lambda: west.context.peers.party(EAST).database == east.ledger.identity.database, 2 * HEARTBEAT)
            net.sink.answer = lambda address: OK
            await until(east.in_role(east.last, Role.DELIVERED), 2 * SPAN)
            await asyncio.sleep(2 * SPAN)
        assert [EAST] == [server for server, _, _ in net.sink.arrived]


@in_virtual_time
async def test_what_a_lost_peer_left_is_taken_over_after_the_span_although_only_an_unproved_successor_is_heard(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await asyncio.sleep(5)
        assert OK.code == (await east.accept()).code
        lost = east.last
        net.hung.add(east)  # for good: its machine is off, and at its address nobody answers
        await east.tasks.close()
        await net.kill(WEST)
        async with a_clone_of(net, EAST, tmp_path / "elsewhere", is_copied=False):
            west = await net.start(WEST)
            net.sink.answer = lambda address: OK
            await until(west.in_role(lost, Role.DELIVERED), 3 * SPAN)
        assert [WEST] == [server for server, _, _ in net.sink.arrived]


@in_virtual_time
async def test_what_a_displaced_server_took_is_its_own_while_it_may_run(tmp_path: Path) -> None:
    """Whoever ran before has the name back: that says nothing of the end of the other one, which has leases."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await asyncio.sleep(5)
        known = west.context.peers.whole_incarnation(EAST)
        net.hung.add(east)
        async with a_clone_of(net, EAST, tmp_path / "elsewhere", is_copied=False) as clone:
            net.nodes[EAST] = clone
            replacement = clone.ledger.identity.database
            await until(lambda: west.context.peers.party(EAST).database == replacement, 2 * SPAN)
            await until(lambda: clone.context.peers.is_available(WEST), 2 * SPAN)
            assert OK.code == (await clone.accept("waits@corp.example")).code
            net.hung.discard(east)
            await until(lambda: west.context.peers.whole_incarnation(EAST) == known, 4 * HEARTBEAT)
            await asyncio.sleep(SPAN / 2)
            assert [] == west.log.rows(EventId.RESUBMIT)

            await asyncio.sleep(SPAN)  # its leases are over, and it is refused: now it is taken for lost
            assert 1 == len(west.log.rows(EventId.RESUBMIT))
            net.sink.answer = lambda address: OK
            await until(west.in_role(clone.last, Role.DELIVERED), 2 * SPAN)
            await asyncio.sleep(2 * SPAN)
            assert [WEST] == [server for server, _, _ in net.sink.arrived]
            net.nodes[EAST] = east


@in_virtual_time
async def test_of_a_node_and_a_clone_that_begin_anew_the_one_at_the_address_has_the_name_and_what_the_other_took_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clone was accepted while nobody listened at the address, as the node began anew. That it answers there is no end of the clone."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(5)
        requests, peers, elsewhere = west.services.peer_requests, west.context.peers, "192.0.2.66"
        former = east.services.peer_requests.own_identity(WEST)
        clone, node = (replace(former, database=DatabaseId(str(uuid4())), incarnation=number, former=former.database) for number in (3, 2))
        net.hung.add(east)

        async def alive(known: Any, *, is_dialed: bool) -> Alive:
            return Alive.ENDED

        monkeypatch.setattr(west.context.links[EAST], "alive", alive)

        async def second(identity: Any, address: str, *, is_dialed: bool = False) -> str:
            return await requests.second_server(identity, address, asyncio.get_running_loop().time(), is_dialed=is_dialed)

        assert "" == await second(clone, elsewhere)
        await requests.greeted(clone)
        assert not peers.is_gone(PeerDatabase(EAST, former.database), SPAN)  # the node may start again with it
        await asyncio.sleep(0.1)

        assert "may still run" in await second(node, "10.0.0.1")  # whoever it is, nobody has met it at the address
        assert "" == await second(node, east.address, is_dialed=True)
        assert "" == await second(node, "10.0.0.1")  # another session, before that is recorded
        await requests.greeted(node)
        assert peers.is_gone(PeerDatabase(EAST, former.database), SPAN)
        assert not peers.is_gone(PeerDatabase(EAST, clone.database), SPAN)
        assert "" == await second(node, east.address, is_dialed=True)
        assert not peers.is_gone(PeerDatabase(EAST, clone.database), SPAN)
        await asyncio.sleep(0.1)

        monkeypatch.setattr(west.context.links[EAST], "alive", lambda known, *, is_dialed: asyncio.sleep(0, Alive.ANSWERS))
        assert "answers" in await second(clone, elsewhere)
        assert node.database == peers.party(EAST).database


@in_virtual_time
async def test_a_clone_that_was_never_met_at_the_address_says_nothing_of_the_database_that_it_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It spoke first after a start, and began anew. The node itself may still have that database; when it begins anew, it says so."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        await asyncio.sleep(5)
        net.hung.add(east)
        await net.kill(WEST)
        west = await net.start(WEST)
        requests, peers, elsewhere = west.services.peer_requests, west.context.peers, "192.0.2.66"
        former = east.services.peer_requests.own_identity(WEST)
        first = replace(former, incarnation=former.incarnation + 1, began=former.began + 9)
        clone, node = (replace(former, database=DatabaseId(str(uuid4())), incarnation=number, former=former.database) for number in (3, 2))
        monkeypatch.setattr(west.context.links[EAST], "alive", lambda known, *, is_dialed: asyncio.sleep(0, Alive.ENDED))

        async def accepted(identity: Any, address: str, *, is_dialed: bool = False) -> None:
            assert "" == await requests.second_server(identity, address, asyncio.get_running_loop().time(), is_dialed=is_dialed)
            await requests.greeted(identity)

        await accepted(first, elsewhere)
        await accepted(clone, elsewhere)
        assert not peers.is_gone(PeerDatabase(EAST, former.database), SPAN)
        await accepted(node, east.address, is_dialed=True)
        assert peers.is_gone(PeerDatabase(EAST, former.database), SPAN)
        assert not peers.is_gone(PeerDatabase(EAST, clone.database), SPAN)
