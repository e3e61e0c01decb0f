"""Delivering: forks, outcomes, notices, leases, poison; and what the shadow server hears of it.

One file, because it is one service; each part is a section, and all play on the same two or three nodes.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.ownership import Copy, Role
from shadowrelay.model.queue import Origin
from shadowrelay.model.replies import Reply, RequestRefused
from shadowrelay.model.routing import HostPort
from shadowrelay.model.tracking import EventId, EventSource
from shadowrelay.ownership.claims import no_longer_chosen
from shadowrelay.store import promises, queues
from tests.kit.clock import until
from tests.kit.nodes import BASE, BUSY, EAST, HEARTBEAT, NO_SUCH_USER, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes

TWO_HOPS = [{"recipients": ["*@a.example"], "next_hop": "a.example:25"}, {"recipients": ["*@b.example"], "next_hop": "b.example:25"}]


def refusing(address: str, reply: Reply):
    return lambda asked: reply if asked == address else OK


async def dsn_of(node):
    """The one DSN that this node has."""
    found = [message for message in await node.ledger.real.read(queues.messages, "sink.example:25", 10) if message.origin is Origin.DSN]
    assert 1 == len(found)
    return found[0]


# recipients
@in_virtual_time
async def test_recipients_of_one_fork_are_discarded_while_the_other_waits(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=TWO_HOPS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = refusing("u@b.example", BUSY)

        await east.accept("u@a.example", "u@b.example")

        await until(west.has_done(east.last, 1), 10)
        assert Role.SHADOW is await west.role(east.last)
        net.sink.answer = lambda address: OK
        await until(west.in_role(east.last, Role.DELIVERED), 30)
        assert ["u@a.example", "u@b.example"] == net.sink.addresses()


@in_virtual_time
async def test_a_shadow_server_that_takes_over_delivers_only_to_those_who_are_not_done(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=TWO_HOPS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = refusing("u@b.example", BUSY)
        await east.accept("u@a.example", "u@b.example")
        await asyncio.sleep(3)

        await net.kill(EAST)
        net.sink.answer = lambda address: OK

        await until(west.in_role(east.last, Role.DELIVERED), 120)
        assert (["u@a.example"], ["u@b.example"]) == (net.sink.by(EAST), net.sink.by(WEST))
        assert [("u@b.example",)] == [row.recipients for row in west.log.rows(EventId.RESUBMIT)]


@in_virtual_time
async def test_an_error_in_one_fork_does_not_lose_what_came_of_the_other(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=TWO_HOPS) as net:
        east = net.nodes[EAST]
        answers = {"u@a.example": OK, "u@b.example": ZeroDivisionError("a bug")}
        net.sink.answer = lambda address: answers[address]

        await east.accept("u@a.example", "u@b.example")
        await asyncio.sleep(20)
        answers["u@b.example"] = OK

        await until(east.in_role(east.last, Role.DELIVERED), 60)
        assert ["u@a.example", "u@b.example"] == net.sink.addresses()


@in_virtual_time
async def test_a_fork_without_a_lease_for_its_dot_is_due_again_although_the_other_was_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=TWO_HOPS) as net:
        east = net.nodes[EAST]
        began = asyncio.Event()

        async def slow(server: str) -> None:
            if not began.is_set():
                began.set()
                return
            net.sink.before_dot = None
            net.isolate(EAST)
            await asyncio.sleep(50)
            net.heal()

        net.sink.before_dot = slow

        await east.accept("u@a.example", "u@b.example")

        await asyncio.sleep(49)
        assert 1 == len(net.sink.arrived)
        await until(lambda: ["u@a.example", "u@b.example"] == net.sink.addresses(), 60)


@in_virtual_time
async def test_changed_routes_leave_no_retry_behind_that_would_be_due_for_ever(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        route = east.settings.routes[0].model_copy(update={"next_hop": (HostPort("other.example", 25),)})

        east.context.settings = east.settings.model_copy(update={"routes": (route,)})
        east.services.deliver.reload()
        await asyncio.sleep(100)

        stored = await east.message(east.last)
        assert stored is not None
        assert ["other.example:25"] == [retry.next_hop for retry in stored.retries]
        assert net.sink.attempts_count < 30


# notices
@in_virtual_time
async def test_the_notification_waits_until_the_dsn_has_a_copy(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: NO_SUCH_USER if address == "user1@corp.example" else BUSY
        faults = [""]
        net.hold_fault = lambda primary, shadow: faults.pop() if faults else "slow"

        await east.accept("user1@corp.example")
        await asyncio.sleep(8)

        assert Role.DELIVERED is await east.role(east.last)
        assert Role.SHADOW is await west.role(east.last)
        net.hold_fault = lambda primary, shadow: ""
        await until(west.in_role(east.last, Role.DELIVERED), 20)
        assert Role.SHADOW is await west.role((await dsn_of(east)).envelope.message_id)


@in_virtual_time
async def test_a_notification_without_anybody_for_the_dsn_waits_no_longer_than_its_delivery(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = refusing("user1@corp.example", NO_SUCH_USER)
        faults = [""]
        net.hold_fault = lambda primary, shadow: faults.pop() if faults else "slow"

        await east.accept("user1@corp.example")

        await until(west.in_role(east.last, Role.DELIVERED), 20)
        assert ["a@x.example"] == net.sink.addresses()


@in_virtual_time
async def test_two_servers_that_make_the_same_dsn_make_it_under_one_id(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: NO_SUCH_USER if address == "user1@corp.example" else BUSY
        faults = [""]
        net.hold_fault = lambda primary, shadow: faults.pop() if faults else "slow"
        await east.accept("user1@corp.example")
        await until(east.in_role(east.last, Role.DELIVERED), 10)
        first = (await dsn_of(east)).envelope.message_id

        await net.kill(EAST)
        await until(west.in_role(east.last, Role.DELIVERED), 120)

        assert first == (await dsn_of(west)).envelope.message_id


@in_virtual_time
async def test_what_has_expired_comes_back_to_its_sender_and_the_shadow_server_hears_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, message_expiration_timeout=timedelta(seconds=30)) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = refusing("user1@corp.example", BUSY)

        await east.accept("user1@corp.example")

        await until(west.in_role(east.last, Role.DELIVERED), 60)
        assert ["a@x.example"] == net.sink.addresses()
        assert b"4.4.7" in net.sink.arrived[0][2]


@in_virtual_time
async def test_a_recipient_that_expires_in_an_attempt_is_logged_apart_from_one_that_is_refused(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, message_expiration_timeout=timedelta(seconds=30)) as net:
        east = net.nodes[EAST]
        loop = asyncio.get_running_loop()
        expires_at = loop.time() + 29

        def answer(address: str) -> Reply:
            if address == "a@x.example":
                return OK
            return NO_SUCH_USER if address.startswith("no") and loop.time() > expires_at else BUSY

        net.sink.answer = answer
        await east.accept("busy@corp.example", "no@corp.example", "none@corp.example")

        await until(east.in_role(east.last, Role.DELIVERED), 60)

        rows = [
            (row.event, row.source, row.recipients, [status[:9] for status in row.recipient_statuses])
            for row in east.log.rows(EventId.EXPIRE) + east.log.rows(EventId.FAIL)
        ]
        assert [
            (EventId.EXPIRE, EventSource.QUEUE, ("busy@corp.example",), ["550 4.4.7"]),
            (EventId.FAIL, EventSource.SMTP, ("no@corp.example", "none@corp.example"), ["550 5.1.1"] * 2),
            (EventId.FAIL, EventSource.QUEUE, ("busy@corp.example",), ["550 4.4.7"]),
        ] == rows
        assert ["", EAST] == [east.log.rows(EventId.EXPIRE)[0].client_hostname, east.log.rows(EventId.EXPIRE)[0].server_hostname]


# redundancy before delivery
@in_virtual_time
async def test_in_reject_mode_promoted_mail_waits_for_a_copy_at_most_a_span(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        net.sink.answer = lambda address: OK

        await net.kill(EAST)
        await until(west.in_role(east.last, Role.PRIMARY), 120)
        promoted_at = west.clock.awake()
        await asyncio.sleep(30)
        assert [] == net.sink.arrived

        await until(lambda: [WEST] == [who for who, _, _ in net.sink.arrived], 60)
        assert 55 < west.clock.awake() - promoted_at < 70


@in_virtual_time
async def test_in_reject_mode_promoted_mail_goes_as_soon_as_it_has_a_copy(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        net.sink.answer = lambda address: OK
        await net.wipe(EAST)
        await until(west.in_role(east.last, Role.PRIMARY), 120)

        await net.start(EAST)

        await until(lambda: [WEST] == [who for who, _, _ in net.sink.arrived], 20)
        assert 1 == len(net.nodes[EAST].log.rows(EventId.HARECEIVE))


@in_virtual_time
async def test_a_copy_that_arrives_after_the_delivery_is_discarded_too(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.hold_fault = lambda primary, shadow: "slow"
        holding, delivering = asyncio.Event(), asyncio.Event()
        hold = west.services.peer_requests.hold

        async def late(peer, offer):
            delivering.set()
            await holding.wait()
            return await hold(peer, offer)

        async def wait(server: str) -> None:
            net.hold_fault = lambda primary, shadow: ""
            await delivering.wait()

        west.services.peer_requests.hold = late  # type: ignore[method-assign]
        net.sink.before_dot = wait
        await east.accept()
        await until(east.in_role(east.last, Role.DELIVERED), 20)
        await asyncio.sleep(0.7)  # West asks, and hears of a message that it does not have yet
        assert await west.message(east.last) is None
        holding.set()

        await until(west.in_role(east.last, Role.DELIVERED), 10)


@in_virtual_time
async def test_a_copy_placed_during_an_attempt_binds_its_dot(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.hold_fault = lambda primary, shadow: "slow"

        async def wait(server: str) -> None:
            net.sink.before_dot = None
            net.hold_fault = lambda primary, shadow: ""
            await until(west.in_role(east.last, Role.SHADOW), 20)
            net.isolate(WEST)
            await asyncio.sleep(50)

        net.sink.before_dot = wait
        await east.accept()
        await until(lambda: net.sink.before_dot is None)
        await until(west.in_role(east.last, Role.SHADOW), 20)
        await asyncio.sleep(52)

        assert [] == net.sink.arrived


@pytest.mark.parametrize("fault", ["", "reply late"])
@in_virtual_time
async def test_a_copy_placed_during_an_attempt_binds_its_dot_where_the_server_had_one_before(tmp_path: Path, fault: str) -> None:
    """Its disk was destroyed, so that it was off the list when the attempt began (simulation seed 22955)."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, is_waiting = net.nodes[EAST], asyncio.Event()
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        may_try, east.context.peers.may_try = east.context.peers.may_try, lambda server: False  # no copy is placed yet
        await net.wipe(WEST)
        west = await net.start(WEST)

        async def is_off_the_list() -> bool:
            message = await east.message(east.last)
            return message is not None and message.claim.copies == ()

        await until(is_off_the_list, 2 * SPAN)

        async def wait(server: str) -> None:
            net.sink.before_dot = None
            is_waiting.set()
            await until(west.in_role(east.last, Role.SHADOW), SPAN)
            await asyncio.sleep(5)
            net.isolate(WEST)
            await asyncio.sleep(50)

        net.sink.before_dot = wait
        net.sink.answer = lambda address: OK
        await is_waiting.wait()
        assert await is_off_the_list()
        net.hold_fault = lambda primary, shadow: fault
        east.context.peers.may_try = may_try
        east.services.copy_repair.wake(0)
        await until(west.in_role(east.last, Role.SHADOW), SPAN)
        await asyncio.sleep(56)

        assert [] == net.sink.arrived


@in_virtual_time
async def test_a_copy_placed_between_reading_a_message_and_its_attempt_binds_its_dot(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, send={"message_retry_interval": timedelta(seconds=20)}) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        may_try, east.context.peers.may_try = east.context.peers.may_try, lambda server: False  # no copy is placed yet
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        net.sink.answer = lambda address: OK
        read = east.ledger.gates["due, read"] = asyncio.Event()
        await until(lambda: east.ledger.counts["due, read"] > 0, 30)

        east.context.peers.may_try = may_try
        east.services.copy_repair.wake(0)
        await until(west.in_role(east.last, Role.SHADOW), SPAN)
        await asyncio.sleep(5)
        is_tried = asyncio.Event()

        async def wait(server: str) -> None:
            net.sink.before_dot = None
            is_tried.set()
            net.isolate(WEST)
            await asyncio.sleep(50)

        net.sink.before_dot = wait
        del east.ledger.gates["due, read"]
        read.set()
        await is_tried.wait()
        await asyncio.sleep(52)

        assert [] == net.sink.arrived


# leases
@in_virtual_time
async def test_an_excuse_from_a_lease_is_for_one_attempt(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, send={"message_retry_interval": timedelta(seconds=20)}) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        await net.kill(WEST)
        await until(lambda: net.sink.attempts_count > 3, 120)  # without West's lease
        asked = []
        link = east.context.links[WEST]
        greet = link.status

        async def status(questions):
            asked.append(len(net.sink.arrived))
            return await greet(questions)

        link.status = status  # type: ignore[method-assign]
        await net.start(WEST)
        await until(lambda: east.context.peers.unreachable_for(WEST) == 0, 60)
        net.sink.answer = lambda address: OK

        await until(lambda: bool(net.sink.arrived), 60)
        assert 0 in asked


@in_virtual_time
async def test_without_its_lease_a_message_is_deferred_until_the_peer_is_forgotten(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        await net.kill(WEST)
        await asyncio.sleep(70)
        net.sink.answer = lambda address: OK

        await asyncio.sleep(100)
        assert [] == net.sink.arrived
        assert await east.services.peers.forget(WEST)

        await until(lambda: bool(net.sink.arrived), 10)


@in_virtual_time
async def test_without_its_lease_a_message_goes_where_the_policy_says_deliver(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        await net.kill(WEST)
        await asyncio.sleep(70)
        net.sink.answer = lambda address: OK

        await until(lambda: bool(net.sink.arrived), 20)


@in_virtual_time
async def test_a_peer_that_was_taken_out_of_the_configuration_can_be_forgotten(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept()
        last = net.nodes[EAST].last
        await net.kill(EAST)
        net.sink.answer = lambda address: OK
        east = await net.start(EAST, peers=())
        await asyncio.sleep(30)
        assert [] == net.sink.arrived

        assert await east.services.peers.forget(WEST)
        assert not await east.services.peers.forget("mx9.nowhere.example")  # type: ignore[arg-type]

        await until(east.in_role(last, Role.DELIVERED), 10)


@in_virtual_time
async def test_a_peer_that_answers_cannot_be_forgotten(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        await asyncio.sleep(2 * HEARTBEAT)

        with pytest.raises(RequestRefused, match=r"was heard .* s ago"):
            await east.services.peers.forget(WEST)

        assert [] == [row for row in east.ledger.peers.listed() if row.is_forgotten]


async def _with_a_chosen_server(net: Net, node: VirtualNode) -> Copy:
    """A message that waits at `node`; gives the server that holds its copy."""
    net.sink.answer = lambda address: BUSY
    await node.accept()
    await asyncio.sleep(1)  # the verdict is recorded with the first outcome
    stored = await node.message(node.last)
    assert stored is not None
    chosen = stored.claim.chosen()
    assert chosen is not None
    return chosen


@in_virtual_time
async def test_a_server_out_of_reach_for_two_heartbeats_is_replaced(tmp_path: Path) -> None:
    north = "mx1.north.example"
    async with nodes(tmp_path, EAST, WEST, north) as net:
        east = net.nodes[EAST]
        chosen = await _with_a_chosen_server(net, east)
        (other,) = {WEST, north} - {chosen.server}

        await net.kill(chosen.server)

        await until(net.nodes[other].in_role(east.last, Role.SHADOW), 40)


@in_virtual_time
async def test_a_returned_server_is_told_released_when_another_was_chosen(tmp_path: Path) -> None:
    north = "mx1.north.example"
    async with nodes(tmp_path, EAST, WEST, north) as net:
        east = net.nodes[EAST]
        chosen = await _with_a_chosen_server(net, east)
        (other,) = {WEST, north} - {chosen.server}
        net.isolate(chosen.server)
        await until(net.nodes[other].in_role(east.last, Role.SHADOW), 40)

        net.heal()

        await until(net.nodes[chosen.server].in_role(east.last, Role.RELEASED), 40)
        await asyncio.sleep(3)
        stored = await east.message(east.last)
        assert stored is not None
        assert [other] == [copy.server for copy in stored.claim.copies]


# trouble
@in_virtual_time
async def test_while_outcomes_cannot_be_recorded_nothing_else_is_delivered_and_nothing_twice(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        east.ledger.fail("attempt", 10)

        await east.accept("first@corp.example")
        await asyncio.sleep(1)
        await east.accept("second@corp.example")
        await asyncio.sleep(5)

        assert ["first@corp.example"] == net.sink.addresses()
        await until(lambda: ["first@corp.example", "second@corp.example"] == net.sink.addresses(), 20)
        await until(east.in_role(east.last, Role.DELIVERED))


@in_virtual_time
async def test_an_outcome_that_can_never_be_recorded_is_set_aside_and_not_delivered_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = net.nodes[EAST]
        east.ledger.fail("attempt", 1000, ValueError("a bug"))

        await east.accept("first@corp.example")
        await until(east.in_role(east.last, Role.SET_ASIDE), 10)
        await asyncio.sleep(60)

        assert ["first@corp.example"] == net.sink.addresses()


@in_virtual_time
async def test_deaths_do_not_add_up_over_attempts_that_were_survived(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept()
        last = net.nodes[EAST].last
        hanging = asyncio.Event()

        async def hang(server: str) -> None:
            hanging.set()
            await asyncio.sleep(10_000)

        for _ in range(4):
            net.sink.before_dot = hang
            hanging.clear()
            await hanging.wait()
            await net.kill(EAST)
            net.sink.before_dot = None
            attempts_count = net.sink.attempts_count
            await net.start(EAST)
            await until(lambda count=attempts_count: net.sink.attempts_count > count, 30)  # type: ignore[misc]
            await asyncio.sleep(1)

        assert Role.PRIMARY is await net.nodes[EAST].role(last)


@in_virtual_time
async def test_corrupt_content_is_handed_over_and_delivered_by_the_shadow_server(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        net.sink.answer = lambda address: OK

        east.corrupt()

        await until(west.in_role(east.last, Role.DELIVERED), 30)
        assert [WEST] == [who for who, _, _ in net.sink.arrived]
        await until(east.in_role(east.last, Role.DELIVERED), 30)
        assert 1 == len(east.log.rows(EventId.POISONMESSAGE))


@in_virtual_time
async def test_corrupt_content_without_a_chosen_copy_is_handed_over_when_the_holder_is_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        net.isolate(WEST)
        await east.ledger.commit(promises.transition, [east.last], lambda _, claim: no_longer_chosen(claim, WEST))
        east.corrupt()
        await until(east.in_role(east.last, Role.SET_ASIDE), 40)
        net.sink.answer = lambda address: OK

        net.heal()

        await until(lambda: [WEST] == [who for who, _, _ in net.sink.arrived], 60)


@in_virtual_time
async def test_content_that_is_gone_is_set_aside_instead_of_tried_for_ever(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)

        east.ledger.real._contents.segments.clear()

        await until(east.in_role(east.last, Role.SET_ASIDE), 20)


@in_virtual_time
async def test_wall_time_that_jumps_back_delays_no_message_that_is_being_accepted(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        east.clock.wall_shift = -timedelta(days=1)

        await east.accept()

        await until(net.nodes[WEST].in_role(east.last, Role.DELIVERED), 5)
        assert east.clock.now() < BASE


# draining
@in_virtual_time
async def test_a_draining_node_begins_no_attempt_and_keeps_what_it_accepted(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        go_on = asyncio.Event()

        async def wait(server: str) -> None:
            await go_on.wait()

        net.sink.before_dot = wait
        await east.accept("first@corp.example")
        await asyncio.sleep(1)
        east.context.is_draining = True
        await east.accept("second@corp.example")
        draining = asyncio.ensure_future(east.services.deliver.drained(30))
        await asyncio.sleep(1)
        assert not draining.done()
        go_on.set()

        assert await draining
        assert ["first@corp.example"] == net.sink.addresses()
        assert Role.PRIMARY is await east.role(east.last)
        assert ((False, ("starting", "draining"))) == east.services.readiness.is_ready()
