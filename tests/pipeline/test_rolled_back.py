"""Rule *rolled back*: a node whose queue database is an older copy delivers nothing before it has asked everybody. docs/design.md 6.2."""

import asyncio
from pathlib import Path

import pytest
import structlog

from shadowrelay.model.drain_progress import DrainState
from shadowrelay.model.ids import NO_DATABASE, MessageId
from shadowrelay.model.ownership import Choice, Role
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.replies import Reply
from shadowrelay.model.tracking import EventId, ResubmitReason
from shadowrelay.model.values import replace
from shadowrelay.ownership import rules
from shadowrelay.store import reading
from tests.kit.nodes import EAST, HEARTBEAT, NORTH, OK, SOUTH, SPAN, WEST, FakeLink, Net, VirtualNode, in_virtual_time, nodes, until
from tests.pipeline.scenes import put_back_running

LATER = Reply(451, "4.3.0", "later")


async def with_older_copy(net: Net, *recipients: str) -> tuple[VirtualNode, list[str]]:
    """East has a message for each recipient that is not delivered, is stopped, backed up and started again. Their ids."""
    net.sink.answer = lambda address: LATER
    east = net.nodes[EAST]
    ids = []
    for recipient in recipients:
        assert (await east.accept(recipient)).is_positive
        ids.append(east.last)
    await asyncio.sleep(3)
    await net.stop(EAST)
    net.back_up(EAST)
    return await net.start(EAST), ids


async def put_back(net: Net) -> VirtualNode:
    await net.stop(EAST)
    net.put_back(EAST)
    await asyncio.sleep(0.012345)  # the incarnation begins at another microsecond, and so at another position
    return await net.start(EAST, introduced=True)


@in_virtual_time
async def test_what_was_delivered_since_the_copy_is_not_delivered_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, (delivered,) = await with_older_copy(net, "user1@corp.example")
        former = east.ledger.identity.database
        net.sink.answer = lambda address: OK
        await until(east.in_role(delivered, Role.DELIVERED))
        await until(net.nodes[WEST].in_role(delivered, Role.DELIVERED))

        east = await put_back(net)

        assert (former, True) == (east.ledger.identity.former, east.ledger.identity.database not in (former, NO_DATABASE))
        await until(east.in_role(delivered, Role.DELIVERED), 4 * HEARTBEAT)
        await asyncio.sleep(2 * SPAN)
        assert [EAST] == [server for server, *_ in net.sink.arrived]


@in_virtual_time
async def test_what_is_undelivered_is_taken_over_by_the_server_with_the_copy_and_arrives_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        _, (waiting,) = await with_older_copy(net, "user1@corp.example")
        await asyncio.sleep(1)

        east = await put_back(net)
        net.sink.answer = lambda address: OK

        west = net.nodes[WEST]
        await until(west.in_role(waiting, Role.DELIVERED), 4 * HEARTBEAT)
        await until(east.in_role(waiting, Role.DELIVERED), 4 * SPAN)
        (row,) = west.log.rows(EventId.RESUBMIT)
        assert ("Reason", ResubmitReason.DATABASE_ROLLED_BACK) in row.custom_data
        assert [WEST] == [server for server, *_ in net.sink.arrived]


@in_virtual_time
async def test_what_was_accepted_since_the_copy_is_taken_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, _ = await with_older_copy(net, "user1@corp.example")
        await asyncio.sleep(1)
        assert (await east.accept("user2@corp.example")).is_positive
        unknown = east.last

        await put_back(net)
        net.sink.answer = lambda address: OK

        await until(net.nodes[WEST].in_role(unknown, Role.DELIVERED), 4 * HEARTBEAT)
        await asyncio.sleep(2 * SPAN)
        assert ["user1@corp.example", "user2@corp.example"] == net.sink.addresses()


@in_virtual_time
async def test_what_no_other_server_knows_is_claimed_again_and_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await net.kill(WEST)
        west = await net.start(WEST, shadow_redundancy_enabled=False)  # holds no copies, but polls
        await asyncio.sleep(HEARTBEAT)
        _, (alone,) = await with_older_copy(net, "user1@corp.example")
        await asyncio.sleep(HEARTBEAT)

        east = await put_back(net)
        net.sink.answer = lambda address: OK

        await until(east.in_role(alone, Role.DELIVERED), 10 * HEARTBEAT)
        message = await east.message(alone)
        assert message is not None
        assert east.ledger.identity.database == message.claim.number.database
        assert await west.role(alone) is None
        assert [EAST] == [server for server, *_ in net.sink.arrived]


@in_virtual_time
async def test_under_defer_nothing_is_delivered_until_every_peer_has_answered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        _, (waiting,) = await with_older_copy(net, "user1@corp.example")
        await asyncio.sleep(1)
        east = await put_back(net)
        net.isolate(EAST)
        net.sink.answer = lambda address: LATER
        message = await east.message(waiting)
        assert message is not None
        assert rules.is_of_older_copy(message.claim, east.context.me)
        assert east.services.rolled_back.is_asking

        _, reasons = east.services.readiness.is_ready()
        await asyncio.sleep(2 * SPAN)
        assert [] == net.sink.by(EAST)
        assert any("older copy" in reason for reason in reasons)

        net.heal()
        net.sink.answer = lambda address: OK
        await until(east.in_role(waiting, Role.DELIVERED), 4 * SPAN)
        await until(lambda: not east.services.rolled_back.is_asking, 4 * SPAN)
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_a_peer_that_cannot_be_reached_at_the_start_tells_it_later(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await with_older_copy(net, "user1@corp.example")
        await asyncio.sleep(1)
        net.isolate(EAST)
        east, west = await put_back(net), net.nodes[WEST]
        assert not east.services.rolled_back.found.is_set()

        refusal = east.services.peer_requests.refusal(west.services.peer_requests.own_identity(EAST))

        assert refusal is not None
        assert 451 == refusal.code
        assert east.services.rolled_back.found.is_set()
        ready, reasons = east.services.readiness.is_ready()
        assert (False, True) == (ready, any("older copy" in reason for reason in reasons))


@in_virtual_time
async def test_what_a_peer_has_seen_of_a_former_database_says_nothing_about_the_present_one(tmp_path: Path) -> None:
    """A node with an empty queue is not refused, nor are its peers, whatever they knew of the old queue."""
    async with nodes(tmp_path, EAST, WEST) as net:
        await asyncio.sleep(1)
        old = net.nodes[WEST].services.peer_requests.own_identity(EAST)
        await net.wipe(EAST)
        east = await net.start(EAST, introduced=True)

        assert old.seen is not None
        assert east.services.peer_requests.refusal(old) is None
        await asyncio.sleep(2 * HEARTBEAT)
        assert not east.services.rolled_back.found.is_set()
        assert east.ledger.identity.database == net.nodes[WEST].context.peers.party(EAST).database


@in_virtual_time
async def test_a_server_whose_copy_is_damaged_does_not_hold_up_the_older_copy(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        _, (waiting,) = await with_older_copy(net, "user1@corp.example")
        await asyncio.sleep(1)
        net.nodes[WEST].corrupt()

        east = await put_back(net)
        net.sink.answer = lambda address: OK

        await until(east.in_role(waiting, Role.DELIVERED), 4 * SPAN)
        assert [EAST] == [server for server, *_ in net.sink.arrived]


@in_virtual_time
async def test_many_messages_that_wait_are_scheduled_once_each(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        _, ids = await with_older_copy(net, *(f"user{number}@corp.example" for number in range(20)))
        await asyncio.sleep(1)
        east = await put_back(net)
        net.isolate(EAST)
        await asyncio.sleep(20 * HEARTBEAT)

        assert len(east.services.review._later_at) <= len(ids)
        assert len(east.services.review._later) <= 3 * len(ids)


@in_virtual_time
async def test_a_peer_that_never_answers_holds_up_a_start_for_shadow_timeout_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await net.stop(EAST)
        greet = FakeLink.greet

        async def silent(self: FakeLink) -> PeerIdentity:
            if self.server == WEST:
                await asyncio.sleep(1000)
            return await greet(self)

        monkeypatch.setattr(FakeLink, "greet", silent)
        began = asyncio.get_running_loop().time()
        east = await net.start(EAST, introduced=True)

        timeout = east.settings.transport.shadow_timeout.total_seconds()
        assert pytest.approx(timeout, abs=0.5) == asyncio.get_running_loop().time() - began
        assert not east.services.rolled_back.found.is_set()


@in_virtual_time
async def test_what_only_a_node_that_is_down_has_delivered_waits_for_it_for_a_span(tmp_path: Path) -> None:
    """Also with `deliver`: what is unfinished in an older copy has probably been finished since."""
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        net.isolate(NORTH)  # the copy is on west
        await asyncio.sleep(HEARTBEAT)
        net.sink.answer = lambda address: LATER
        east = net.nodes[EAST]
        assert (await east.accept("user1@corp.example")).is_positive
        message_id = east.last
        await asyncio.sleep(1)
        await net.kill(EAST)
        net.back_up(EAST)
        west = net.nodes[WEST]
        await until(west.in_role(message_id, Role.PRIMARY), 2 * SPAN)
        east = await net.start(EAST)  # yields to west, which needs no other copy
        await until(east.in_role(message_id, Role.SHADOW), 4 * HEARTBEAT)
        net.heal()
        await asyncio.sleep(2 * HEARTBEAT)
        net.sink.answer = lambda address: OK
        await until(east.in_role(message_id, Role.DELIVERED), 4 * HEARTBEAT)
        await asyncio.sleep(2 * SPAN)
        await net.kill(WEST)
        await asyncio.sleep(3 * HEARTBEAT)

        east = await put_back(net)

        await asyncio.sleep(SPAN / 2)
        assert [WEST] == [server for server, *_ in net.sink.arrived]
        await net.start(WEST)
        await until(east.in_role(message_id, Role.DELIVERED), 4 * HEARTBEAT)
        await until(lambda: not east.services.rolled_back.is_asking, 4 * HEARTBEAT)
        assert [WEST] == [server for server, *_ in net.sink.arrived]


@pytest.mark.parametrize("is_forgotten", [True, False])
@in_virtual_time
async def test_the_older_copy_waits_for_a_lost_node_until_it_is_forgotten_or_a_span_is_over(tmp_path: Path, is_forgotten: bool) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        net.isolate(NORTH)  # the copy is on west
        await asyncio.sleep(HEARTBEAT)
        await with_older_copy(net, "user1@corp.example")
        net.heal()
        await asyncio.sleep(2 * HEARTBEAT)
        await net.wipe(WEST)
        east = await put_back(net)
        net.sink.answer = lambda address: OK
        await asyncio.sleep(SPAN / 2)
        assert [] == net.sink.arrived

        if is_forgotten:
            assert await east.services.peers.forget(WEST)
            await until(lambda: bool(net.sink.arrived), 4 * HEARTBEAT)
        await asyncio.sleep(2 * SPAN)

        assert [EAST] == [server for server, *_ in net.sink.arrived]
        assert not east.services.rolled_back.is_asking


@in_virtual_time
async def test_the_older_copy_waits_also_for_a_node_that_was_unheard_before(tmp_path: Path) -> None:
    """No lease on it is in the way, so its lease says nothing about when to ask again."""
    async with nodes(tmp_path, EAST, NORTH, WEST) as net:
        net.isolate(NORTH)
        await asyncio.sleep(HEARTBEAT)
        net.sink.answer = lambda address: LATER
        west = net.nodes[WEST]
        assert (await west.accept("user1@corp.example")).is_positive
        message_id = west.last
        await asyncio.sleep(1)
        await net.kill(WEST)
        east = net.nodes[EAST]
        await until(east.in_role(message_id, Role.PRIMARY), 2 * SPAN)
        await net.kill(EAST)
        net.back_up(EAST)
        east = await net.start(EAST)
        await net.start(WEST)
        await asyncio.sleep(2 * HEARTBEAT)
        claim = (await east.ledger.read(reading.load, message_id)).claim
        assert claim.copy_on(NORTH).choice is Choice.UNHEARD

        with structlog.testing.capture_logs() as lines:
            east = await put_back(net)
            await asyncio.sleep(2 * HEARTBEAT)
            assert [] == [line for line in lines if line["event"] == "delivery.failed"]
        net.heal()
        net.sink.answer = lambda address: OK

        await until(east.in_role(message_id, Role.DELIVERED), 6 * HEARTBEAT)
        await asyncio.sleep(2 * SPAN)
        assert ["user1@corp.example"] == net.sink.addresses()


# with two copies


@in_virtual_time
async def test_with_two_copies_the_older_copy_delivers_nothing_again_and_what_it_lacks_arrives_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, SOUTH, shadow_copies=2) as net:
        east, (delivered, waiting) = await with_older_copy(net, "user1@corp.example", "user2@corp.example")
        net.sink.answer = lambda address: OK if address == "user1@corp.example" else LATER
        await until(east.in_role(delivered, Role.DELIVERED))
        assert (await east.accept("user3@corp.example")).is_positive
        await asyncio.sleep(HEARTBEAT)

        east = await put_back(net)
        net.sink.answer = lambda address: OK

        await until(lambda: 3 == len(net.sink.arrived), 2 * SPAN)
        await asyncio.sleep(2 * SPAN)
        assert ["user1@corp.example", "user2@corp.example", "user3@corp.example"] == net.sink.addresses()
        assert {Role.DELIVERED} == {await east.role(message_id) for message_id in (delivered, waiting)}
        assert not east.services.rolled_back.is_asking


@in_virtual_time
async def test_with_two_copies_the_second_knows_what_the_first_that_is_down_has_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, shadow_copies=2) as net:
        _, (message_id,) = await with_older_copy(net, "user1@corp.example")
        await net.kill(EAST)

        async def is_taken_over_by() -> VirtualNode | None:
            for name in (WEST, NORTH):
                if await net.nodes[name].role(message_id) is Role.PRIMARY:
                    return net.nodes[name]
            return None

        taker = await until(is_taken_over_by, 2 * SPAN)
        net.sink.answer = lambda address: OK
        other = net.nodes[NORTH if taker.name == WEST else WEST]
        await until(other.in_role(message_id, Role.DELIVERED), 4 * HEARTBEAT)
        await net.start(EAST)
        await asyncio.sleep(HEARTBEAT)
        await net.kill(taker.name)

        east = await put_back(net)

        await until(east.in_role(message_id, Role.DELIVERED), 4 * HEARTBEAT)
        await asyncio.sleep(2 * SPAN)
        assert 1 == len(net.sink.arrived)


# together with a drain


@pytest.mark.parametrize("is_drained_before", [True, False])
@in_virtual_time
async def test_a_drained_node_whose_older_copy_is_put_back_gives_nothing_away_twice(tmp_path: Path, is_drained_before: bool) -> None:
    """The copy is from before the drain, or from within it."""
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        net.sink.answer = lambda address: LATER
        east = net.nodes[EAST]
        for number in range(4):
            assert (await east.accept(f"user{number}@corp.example")).is_positive
        await asyncio.sleep(1)
        if is_drained_before:
            await east.services.drain.begin()
            await until(lambda: east.services.drain.state is DrainState.INACTIVE, SPAN)
        await net.stop(EAST)
        net.back_up(EAST)
        east = await net.start(EAST)
        if not is_drained_before:
            await east.services.drain.begin()
            await until(lambda: east.services.drain.state is DrainState.INACTIVE, SPAN)
        net.sink.answer = lambda address: OK
        await until(lambda: 4 == len(net.sink.arrived), SPAN)
        await asyncio.sleep(HEARTBEAT)

        east = await put_back(net)

        assert is_drained_before is east.context.is_draining
        await asyncio.sleep(2 * SPAN)
        assert [f"user{number}@corp.example" for number in range(4)] == net.sink.addresses()
        assert not east.services.rolled_back.is_asking
        if is_drained_before:
            assert DrainState.INACTIVE is east.services.drain.state


@in_virtual_time
async def test_an_older_copy_is_drained_when_all_of_it_was_asked_about(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        await with_older_copy(net, *(f"user{number}@corp.example" for number in range(4)))
        await asyncio.sleep(1)
        east = await put_back(net)

        await east.services.drain.begin()
        await until(lambda: east.services.drain.state is DrainState.INACTIVE, 2 * SPAN)
        net.sink.answer = lambda address: OK
        await until(lambda: 4 == len(net.sink.arrived), SPAN)
        await asyncio.sleep(2 * SPAN)

        assert [f"user{number}@corp.example" for number in range(4)] == net.sink.addresses()
        assert [] == net.sink.by(EAST)


async def from_before_its_copy(net: Net) -> tuple[VirtualNode, MessageId]:
    """An older copy of East's database in which a message has no copy yet, put back after West got one. East places none before it is
    asked."""
    await net.kill(WEST)
    _, (waiting,) = await with_older_copy(net, "user1@corp.example")
    await net.start(WEST)
    await until(net.nodes[WEST].in_role(waiting, Role.SHADOW), 4 * HEARTBEAT)
    await net.stop(EAST)
    net.put_back(EAST)
    return await net.start(EAST, shadow_redundancy_enabled=False), MessageId(waiting)


@in_virtual_time
async def test_a_number_shows_what_no_position_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """West polled for the last time before the message got its copy."""
    monkeypatch.setattr(rules, "is_older_copy", lambda *_: False)
    async with nodes(tmp_path, EAST, WEST) as net:
        east, _ = await from_before_its_copy(net)

        await until(east.services.rolled_back.found.is_set, 2 * SPAN)


@in_virtual_time
async def test_two_servers_that_hold_a_message_for_each_other_do_not_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However that came about."""
    monkeypatch.setattr(rules, "is_older_copy", lambda *_: False)
    monkeypatch.setattr(rules, "shows_lost_number", lambda *_: False)
    async with nodes(tmp_path, EAST, WEST) as net:
        _, waiting = await from_before_its_copy(net)
        net.sink.answer = lambda address: OK

        await until(net.nodes[WEST].in_role(waiting, Role.DELIVERED), 3 * SPAN)
        await asyncio.sleep(2 * SPAN)
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_a_copy_of_a_running_primary_server_is_recognised_by_what_its_replies_told(tmp_path: Path) -> None:
    """The peer was told the later positions in replies only, not in a hello."""
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: LATER
        east = net.nodes[EAST]
        assert (await east.accept("user1@corp.example")).is_positive
        await asyncio.sleep(3)
        net.back_up(EAST)
        former = east.ledger.identity.database
        assert (await east.accept("user2@corp.example")).is_positive
        since = east.last
        await asyncio.sleep(2 * HEARTBEAT)

        east = await put_back_running(net, EAST)
        net.sink.answer = lambda address: OK

        assert (former, True) == (east.ledger.identity.former, east.ledger.identity.database != former)
        await until(net.nodes[WEST].in_role(since, Role.DELIVERED), 4 * SPAN)
        await asyncio.sleep(2 * SPAN)
        assert ["user1@corp.example", "user2@corp.example"] == sorted(net.sink.addresses())


@in_virtual_time
async def test_what_replies_told_outlives_a_restart_of_the_peer(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: LATER
        await asyncio.sleep(1)
        net.back_up(EAST)
        assert (await net.nodes[EAST].accept("user1@corp.example")).is_positive
        former, told = net.nodes[EAST].ledger.identity.database, net.nodes[EAST].ledger.position
        await asyncio.sleep(4 * HEARTBEAT)
        await net.kill(EAST)
        await net.kill(WEST)
        west = await net.start(WEST)
        seen = west.ledger.peers.seen(EAST, former)

        assert seen is not None
        assert told <= seen.position
        net.put_back(EAST)
        east = await net.start(EAST, introduced=True)
        assert former == east.ledger.identity.former


@in_virtual_time
async def test_a_shadow_server_that_lost_copies_unnoticed_is_asked_and_gets_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody recognises the older copy, and its absence was shorter than a heartbeat."""
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: LATER
        east = net.nodes[EAST]
        await asyncio.sleep(1)
        net.back_up(WEST)
        accepted = []
        for number in range(3):
            assert (await east.accept(f"user{number}@corp.example")).is_positive
            accepted.append(east.last)
        monkeypatch.setattr(rules, "is_older_copy", lambda *_: False)

        west = await put_back_running(net, WEST)

        assert [None] * 3 == [await west.role(message_id) for message_id in accepted]
        for message_id in accepted:
            await until(west.in_role(message_id, Role.SHADOW), 2 * HEARTBEAT)
        state = east.context.peers.states[WEST]
        await until(lambda: state.to_confirm is None, HEARTBEAT)
        claim = await east.claim(accepted[0])
        assert claim is not None
        assert 0 == claim.missing_count


@in_virtual_time
async def test_until_it_is_asked_about_its_copies_a_returned_server_is_shown_as_unconfirmed(
    tmp_path: Path,
) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: LATER
        east = net.nodes[EAST]
        assert (await east.accept("user1@corp.example")).is_positive
        gate = asyncio.Event()
        east.ledger.gates["primaries_listed_on"] = gate
        await net.kill(WEST)
        await net.start(WEST)

        await until(lambda: east.context.peers.states[WEST].to_confirm is not None, 2 * HEARTBEAT)
        _, reasons = east.services.readiness.is_ready()
        assert any(f"copies on {WEST} are not confirmed" in reason for reason in reasons)

        gate.set()
        await until(lambda: east.context.peers.states[WEST].to_confirm is None, 2 * HEARTBEAT)
        assert not any("not confirmed" in reason for reason in east.services.readiness.is_ready()[1])


@in_virtual_time
async def test_an_older_copy_that_is_recognised_late_takes_nothing_over_while_it_closes(tmp_path: Path) -> None:
    """Its sessions are refused from then on, by itself: that silence proves nothing. Closing may take half a minute."""
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: LATER
        east = net.nodes[EAST]
        assert (await east.accept()).is_positive
        await until(net.nodes[WEST].in_role(east.last, Role.SHADOW))
        await net.stop(WEST)
        net.back_up(WEST)
        west = await net.start(WEST)
        await asyncio.sleep(HEARTBEAT)
        net.sink.answer = lambda address: OK
        await until(west.in_role(east.last, Role.DELIVERED), 4 * SPAN)
        await net.stop(WEST)
        net.put_back(WEST)

        west = await net.start(WEST)  # it greets nobody before it starts
        await until(west.services.rolled_back.found.is_set)
        identity = replace(east.services.peer_requests.own_identity(WEST), seen=None)  # whatever the peer says that it has seen
        assert west.services.rolled_back.check(identity)
        await asyncio.sleep(4 * SPAN)

        assert (await west.role(east.last), west.log.rows(EventId.RESUBMIT)) == (Role.SHADOW, [])
        assert [EAST] == [server for server, *_ in net.sink.arrived]
