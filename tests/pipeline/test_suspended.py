"""What an administrator suspends: nothing is attempted, everything else goes on, and no restart forgets it."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.drain_progress import DrainState
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import QueueKind, QueueRow, QueueStatus
from shadowrelay.model.replies import STORE_UNAVAILABLE, LedgerUnavailable, Reply, RequestRefused, TransientDeliveryError
from shadowrelay.model.tracking import EventId, EventSource
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes

GONE = TransientDeliveryError(Reply(451, "4.4.1", "nobody listens"), "sick.example:25", is_unreachable=True)
HOPS = [{"recipients": [f"*@{name}.example"], "next_hop": f"{name}.example:25"} for name in ("sick", "healthy")]


async def a_waiting_message(node: VirtualNode, *recipients: str, **more: Any) -> MessageId:
    """Refused once, so that it waits in its queues."""
    node.net.sink.answer = lambda address: BUSY
    await node.accept(*recipients, **more)
    message_id = node.last
    await until(lambda: has_retries(node, message_id))
    node.net.sink.answer = lambda address: OK
    return message_id


async def has_retries(node: VirtualNode, message_id: MessageId) -> bool:
    stored = await node.message(message_id)
    return stored is not None and bool(stored.retries)


async def queue_of(node: VirtualNode, name: str) -> QueueRow:
    (row,) = [row for row in await node.services.queues.rows() if row.next_hop == name]
    return row


@in_virtual_time
async def test_a_suspended_message_is_not_attempted_until_it_is_resumed_and_then_at_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        message_id = await a_waiting_message(east)
        assert await east.services.messages.suspend(message_id, "ann")
        attempts = net.sink.attempts_count

        await asyncio.sleep(SPAN * 3)  # no server takes it over meanwhile: the leases go on

        stored = await east.message(message_id)
        assert stored is not None
        assert stored.suspended is not None
        assert ("ann", Role.PRIMARY, attempts) == (stored.suspended.by, stored.claim.role, net.sink.attempts_count)
        assert [] == net.sink.arrived
        assert Role.SHADOW is await net.nodes[WEST].role(message_id)
        assert await east.services.messages.resume(message_id, "ann")
        await until(lambda: 1 == len(net.sink.arrived), 1)
        await until(east.in_role(message_id, Role.DELIVERED))


@in_virtual_time
async def test_a_restart_forgets_neither_a_suspended_message_nor_a_suspended_queue(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS) as net:
        east = net.nodes[EAST]
        message_id = await a_waiting_message(east, "u@healthy.example")
        await east.services.messages.suspend(message_id, "ann")
        await east.services.queues.suspend("sick.example:25", "ann", is_hold=True)
        await east.accept("u@sick.example")
        await net.kill(EAST)

        east = await net.start(EAST)
        await asyncio.sleep(SPAN / 2)

        assert [] == net.sink.arrived
        row = await queue_of(east, "sick.example:25")
        assert (QueueStatus.SUSPENDED, 1) == (row.status, row.count)
        await east.services.queues.resume("Server\\sick.example:25".replace("Server", EAST), "ann")
        await until(lambda: ["u@sick.example"] == net.sink.addresses(), 10)
        await east.services.messages.resume(message_id, "ann")
        await until(lambda: ["u@healthy.example", "u@sick.example"] == net.sink.addresses(), 10)


@in_virtual_time
async def test_an_attempt_that_runs_ends_normally(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        answered = asyncio.Event()
        net.sink.hang = lambda address: answered
        await east.accept()
        await until(lambda: 1 == net.sink.attempts_count)
        await asyncio.sleep(1)  # its verdict is recorded
        await east.services.messages.suspend(east.last, "ann")
        await east.services.queues.suspend("sink.example:25", "ann", is_hold=True)

        answered.set()

        await until(east.in_role(east.last, Role.DELIVERED), 5)
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_what_a_running_attempt_leaves_of_a_suspended_message_is_suspended(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        answered = asyncio.Event()
        net.sink.hang = lambda address: answered
        net.sink.answer = lambda address: BUSY if address.startswith("b") else OK
        await east.accept("a@corp.example", "b@corp.example")
        await until(lambda: 1 == net.sink.attempts_count)
        await asyncio.sleep(1)
        await east.services.messages.suspend(east.last, "ann")
        answered.set()

        await asyncio.sleep(60)

        assert (1, ["a@corp.example"]) == (net.sink.attempts_count, net.sink.addresses())


@in_virtual_time
async def test_what_waits_in_memory_for_a_session_goes_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send={"concurrency_per_destination": 1}) as net:
        east, busy = net.nodes[EAST], asyncio.Event()
        net.sink.hang = lambda address: busy
        ids = []
        for number in range(8):  # one runs, one is loaded, the others arrive
            await east.accept(f"u{number}@sick.example")
            ids.append(east.last)
        await asyncio.sleep(1)
        await east.services.queues.suspend("sick.example:25", "ann")

        busy.set()
        await asyncio.sleep(30)

        assert 1 == len(net.sink.arrived)
        assert 7 == (await queue_of(east, "sick.example:25")).count
        await east.services.queues.resume("sick.example:25", "ann")
        await until(lambda: 8 == len(net.sink.arrived), 5)


@in_virtual_time
async def test_mail_that_arrives_for_a_suspended_queue_waits_and_other_mail_does_not(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS) as net:
        east = net.nodes[EAST]
        await east.services.queues.suspend("sick.example:25", "ann", is_hold=True)

        for number in range(30):
            assert (await east.accept(f"u{number}@sick.example", f"u{number}@healthy.example")).is_positive

        await until(lambda: 30 == len(net.sink.arrived), 20)
        assert {"healthy.example"} == {address.partition("@")[2] for address in net.sink.addresses()}
        assert 30 == (await queue_of(east, "sick.example:25")).count
        await east.services.queues.resume("sick.example:25", "ann")
        await until(lambda: 60 == len(net.sink.arrived), 20)


@in_virtual_time
async def test_a_suspended_queue_in_retry_is_not_probed_and_resuming_probes_it_at_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send={"queue_glitch_retry_interval": timedelta(minutes=2)}) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: GONE
        await east.accept("u@sick.example")
        await asyncio.sleep(1)
        await east.services.queues.suspend("sick.example:25", "ann")
        net.sink.answer = lambda address: OK
        await asyncio.sleep(300)
        with pytest.raises(RequestRefused, match="is suspended"):
            await east.services.queues.retry("sick.example:25")
        assert 1 == net.sink.attempts_count

        await east.services.queues.resume("sick.example:25", "ann")

        await until(lambda: 1 == len(net.sink.arrived), 5)


@in_virtual_time
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_suspended_message_and_a_message_in_a_suspended_queue_expire_with_a_notice(tmp_path: Path, is_restarted: bool) -> None:
    expiry = timedelta(minutes=5)
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, message_expiration_timeout=expiry) as net:
        east = net.nodes[EAST]
        first = await a_waiting_message(east, "u@sick.example", sender="")
        await east.services.messages.suspend(first, "ann")
        await east.services.queues.suspend("healthy.example:25", "ann", is_hold=True)
        await east.accept("u@healthy.example", sender="")
        second = east.last
        if is_restarted:
            await net.kill(EAST)
            east = await net.start(EAST)

        await until(east.in_role(first, Role.DELIVERED), 400)
        await until(east.in_role(second, Role.DELIVERED), 400)

        assert [] == net.sink.arrived
        statuses = [status for row in east.log.rows(EventId.FAIL) for status in row.recipient_statuses]
        assert 2 == len(statuses)
        assert all("QUEUE.Expired" in status for status in statuses)


@in_virtual_time
async def test_the_shadow_server_of_a_lost_primary_server_delivers_what_was_suspended_there(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        message_id = await a_waiting_message(net.nodes[EAST])
        await net.nodes[EAST].services.messages.suspend(message_id, "ann")
        await net.kill(EAST)

        await until(lambda: [WEST] == [server for server, *_ in net.sink.arrived], SPAN * 3)

        east = await net.start(EAST)  # it hears that it is over, and what it suspended is no longer its own
        await until(east.in_role(message_id, Role.DELIVERED), SPAN)
        stored = await east.message(message_id)
        assert stored is not None
        assert stored.suspended is None
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_a_message_suspended_without_a_copy_gets_one(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = net.nodes[EAST]
        message_id = await a_waiting_message(east)
        await east.services.messages.suspend(message_id, "ann")

        await net.kill(EAST)
        await net.start(WEST, peers=(EAST,))
        await net.start(EAST, peers=(WEST,))

        await until(net.nodes[WEST].in_role(message_id, Role.SHADOW), 60)
        assert [] == net.sink.arrived


@in_virtual_time
async def test_only_what_this_node_delivers_can_be_suspended_and_the_refusal_says_why(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        message_id = await a_waiting_message(east)
        messages, queues = west.services.messages, west.services.queues
        assert not await messages.suspend(MessageId("00000000-0000-4000-8000-000000000000"), "ann")
        with pytest.raises(RequestRefused, match=f"a copy held for {EAST}"):
            await messages.suspend(message_id, "ann")
        with pytest.raises(RequestRefused, match="not suspended"):
            await east.services.messages.resume(message_id, "ann")
        for queue in ("Shadow\\1", f"Shadow\\{EAST}", "SafetyNet\\Primary", "Poison"):
            with pytest.raises(RequestRefused, match="cannot be suspended"):
                await queues.suspend(queue, "ann")
        assert await queues.suspend("elsewhere.example", "ann") is None
        with pytest.raises(RequestRefused, match=r"goes to sink\.example:25"):
            await queues.suspend("corp.example", "ann", is_hold=True)
        for name in ("[192.0.2.1", "no domain", "", "a@b"):
            with pytest.raises(RequestRefused, match="neither a domain nor"):
                await queues.suspend(name or "Server\\", "ann", is_hold=True)
        with pytest.raises(RequestRefused, match="not suspended"):
            await east.services.queues.resume("sink.example:25", "ann")
        await until(east.in_role(message_id, Role.DELIVERED))
        with pytest.raises(RequestRefused, match="nothing is to be delivered"):
            await east.services.messages.suspend(message_id, "ann")


@in_virtual_time
async def test_an_administrator_who_does_not_wait_for_the_answer_has_suspended_it_nevertheless(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS) as net:
        east = net.nodes[EAST]
        gate = east.ledger.gates["queue_suspended, read"] = asyncio.Event()
        request = asyncio.create_task(east.services.queues.suspend("sick.example:25", "ann", is_hold=True))
        await until(lambda: 1 == east.ledger.counts["queue_suspended, read"])
        request.cancel()
        await asyncio.sleep(0.1)
        gate.set()
        await asyncio.sleep(0.1)

        await east.accept("u@sick.example")
        await asyncio.sleep(60)

        assert [] == net.sink.arrived


@in_virtual_time
async def test_a_suspension_that_cannot_be_recorded_does_not_hold_anything(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS) as net:
        east = net.nodes[EAST]
        east.ledger.fail("queue_suspended", 1, LedgerUnavailable(STORE_UNAVAILABLE, "planted"))
        with pytest.raises(LedgerUnavailable):
            await east.services.queues.suspend("sick.example:25", "ann", is_hold=True)

        await east.accept("u@sick.example")

        await until(lambda: 1 == len(net.sink.arrived), 5)


async def removed(net: Net, message_id: MessageId, *, with_dsn: bool) -> None:
    """What is true of a message that an administrator removed, on its primary server and its shadow server."""
    east, west = net.nodes[EAST], net.nodes[WEST]
    await until(east.in_role(message_id, Role.DELIVERED))
    await until(west.in_role(message_id, Role.DELIVERED), 60)
    (fail,) = east.log.rows(EventId.FAIL)
    assert (EventSource.ADMIN, ("user1@corp.example",)) == (fail.source, fail.recipients)
    assert ("554 5.3.0 Removed from the queue by an administrator",) == fail.recipient_statuses
    assert with_dsn is bool(east.log.rows(EventId.DSN))
    await until(lambda: (["a@x.example"] if with_dsn else []) == net.sink.addresses(), 60)


@in_virtual_time
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("with_dsn", [True, False])
async def test_a_waiting_message_is_removed_with_its_copy_and_its_sender_told(tmp_path: Path, with_dsn: bool, is_restarted: bool) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        message_id = await a_waiting_message(east)
        await until(net.nodes[WEST].in_role(message_id, Role.SHADOW))
        await east.services.messages.suspend(message_id, "ann")
        if is_restarted:  # leases do not survive it: the shadow server is asked first
            await net.kill(EAST)
            east = await net.start(EAST)

        assert await east.services.messages.remove(message_id, with_dsn=with_dsn)

        await removed(net, message_id, with_dsn=with_dsn)


@in_virtual_time
async def test_a_notice_of_a_removal_is_on_two_servers_before_the_copy_of_the_message_goes(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        message_id = await a_waiting_message(east)
        await until(west.in_role(message_id, Role.SHADOW))
        net.hold_fault = lambda primary, shadow: "slow"  # no copy of anything is made now
        net.sink.answer = lambda address: BUSY
        assert await east.services.messages.remove(message_id, with_dsn=True)
        await asyncio.sleep(SPAN / 2)
        assert Role.SHADOW is await west.role(message_id)

        net.hold_fault = lambda primary, shadow: ""

        await until(west.in_role(message_id, Role.DELIVERED), 400)


@in_virtual_time
async def test_a_message_is_not_removed_while_an_attempt_runs_or_a_server_may_have_taken_it_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        east = net.nodes[EAST]
        message_id = await a_waiting_message(east)
        net.sink.answer = lambda address: BUSY
        await until(net.nodes[WEST].in_role(message_id, Role.SHADOW))
        answered = asyncio.Event()
        net.sink.hang = lambda address: answered
        await until(lambda: 2 == net.sink.attempts_count, 60)
        with pytest.raises(RequestRefused, match="attempt to deliver it is running"):
            await east.services.messages.remove(message_id, with_dsn=True)
        await east.services.messages.suspend(message_id, "ann")
        answered.set()
        net.isolate(EAST)
        await asyncio.sleep(SPAN / 2)
        with pytest.raises(RequestRefused, match=f"{WEST} may hold a copy"):
            await east.services.messages.remove(message_id, with_dsn=True)
        assert [] == east.log.rows(EventId.FAIL)

        net.heal()
        await asyncio.sleep(10)

        assert await east.services.messages.remove(message_id, with_dsn=False)


@in_virtual_time
async def test_a_domain_is_held_by_the_name_that_its_mail_waits_under(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=[{"recipients": ["*@routed.example"], "next_hop": "sink.example:25"}]) as net:
        queues = net.nodes[EAST].services.queues
        for name in ("Shop.Example.", f"{EAST}\\bücher.example"):
            assert await queues.suspend(name, "ann", is_hold=True)

        await net.nodes[EAST].accept("u@shop.example", "u@xn--bcher-kva.example", "u@other.example")

        await until(lambda: ["u@other.example"] == net.sink.addresses())
        rows = {row.next_hop: (row.count, row.status, row.is_smart_host) for row in await queues.rows() if row.kind is QueueKind.DELIVERY}
        held = (1, QueueStatus.SUSPENDED, False)
        assert {"shop.example": held, "xn--bcher-kva.example": held} == rows
        assert await queues.suspend("shop.example", "bob", is_hold=True), "it is already"
        row = await queue_of(net.nodes[EAST], "shop.example")
        assert row.suspended is not None
        assert "ann" == row.suspended.by


@in_virtual_time
async def test_a_resubmitted_message_is_routed_anew_and_attempted_at_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send={"queue_glitch_retry_interval": timedelta(hours=1)}) as net:
        east = net.nodes[EAST]
        message_id = await a_waiting_message(east, "u@sick.example")
        await east.services.messages.suspend(message_id, "ann")
        with pytest.raises(RequestRefused, match="it is suspended"):
            await east.services.messages.resubmit(message_id, "ann")
        await east.services.messages.resume(message_id, "ann")
        await until(east.in_role(message_id, Role.DELIVERED), 5)

        message_id = await a_waiting_message(east, "v@sick.example")
        route = {"recipients": ["*"], "next_hop": "elsewhere.example:25"}
        settings = east.context.settings
        east.context.settings = settings.model_copy(update={"routes": (type(settings.routes[0]).model_validate(route),)})
        east.services.deliver.reload()
        assert await east.services.messages.resubmit(message_id, "ann")

        await until(east.in_role(message_id, Role.DELIVERED), 5)
        (row,) = [row for row in east.log.rows(EventId.SENDEXTERNAL) if row.recipients == ("v@sick.example",)]
        assert "elsewhere.example:25" in str(row)


# Submission


async def suspended_submission(net: Net, server: ServerName = EAST) -> VirtualNode:
    node = net.nodes[server]
    await asyncio.sleep(1)
    assert await node.services.queues.suspend("Submission", "ann")
    return node


@in_virtual_time
async def test_a_suspended_submission_takes_and_copies_mail_and_keeps_it_until_it_is_resumed(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        waiting = await a_waiting_message(net.nodes[EAST])
        east = await suspended_submission(net)
        assert (await east.accept("late@corp.example", "late@other.example")).is_positive
        late = east.last

        await asyncio.sleep(2 * SPAN)

        assert ["user1@corp.example"] == net.sink.addresses(), "what was in a delivery queue is delivered"
        assert Role.DELIVERED is await east.role(waiting)
        assert (Role.PRIMARY, Role.SHADOW) == (await east.role(late), await net.nodes[WEST].role(late))
        row = await queue_of(east, "Submission")
        assert (QueueStatus.SUSPENDED, 1, "ann") == (row.status, row.count, row.suspended and row.suspended.by)
        assert [] == [row for row in east.log.rows(EventId.TRANSFER) if row.network_message_id == late]
        with pytest.raises(RequestRefused, match="suspended: resume it"):
            await east.services.queues.retry("Submission")

        assert await east.services.queues.resume("Submission", "ann")

        await until(east.in_role(late, Role.DELIVERED), 5)
        assert ["late@corp.example", "late@other.example", "user1@corp.example"] == net.sink.addresses()


@in_virtual_time
async def test_a_restart_does_not_forget_that_submission_is_suspended_and_what_is_in_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await suspended_submission(net)
        await east.accept()
        await asyncio.sleep(1)
        await net.kill(EAST)

        east = await net.start(EAST)
        await asyncio.sleep(SPAN)

        row = await queue_of(east, "Submission")
        assert (QueueStatus.SUSPENDED, 1, []) == (row.status, row.count, net.sink.arrived)
        await east.services.queues.resume("Submission", "ann")
        await until(lambda: 1 == len(net.sink.arrived), 10)


@in_virtual_time
async def test_a_message_in_a_suspended_submission_expires_with_a_notice_that_waits_there_too(tmp_path: Path) -> None:
    changes = {"message_expiration_timeout": timedelta(minutes=5), "send": {"delay_notification_timeout": timedelta(minutes=1)}}
    async with nodes(tmp_path, EAST, WEST, **changes) as net:
        east = await suspended_submission(net)
        await east.accept("u@corp.example", "u@other.example")
        await asyncio.sleep(200)
        assert [] == east.log.rows(EventId.DSN)

        await until(east.in_role(east.last, Role.DELIVERED), 150)

        assert [EventSource.QUEUE] == [row.source for row in east.log.rows(EventId.FAIL)]
        assert 1 == len(east.log.rows(EventId.EXPIRE))
        assert (1, []) == ((await queue_of(east, "Submission")).count, net.sink.arrived)
        await east.services.queues.resume("Submission", "ann")
        await until(lambda: ["a@x.example"] == net.sink.addresses(), 10)


@in_virtual_time
async def test_a_redirect_leaves_what_a_suspended_submission_holds_and_a_drain_hands_it_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await suspended_submission(net)
        await east.accept()
        await asyncio.sleep(1)

        await east.services.drain.redirect([WEST])
        await until(lambda: east.services.drain.state is DrainState.ACTIVE, SPAN * 2)
        assert (Role.PRIMARY, []) == (await east.role(east.last), net.sink.arrived)

        await east.services.drain.begin()
        await until(net.nodes[WEST].in_role(east.last, Role.DELIVERED), SPAN)
        assert ["user1@corp.example"] == net.sink.by(WEST)
