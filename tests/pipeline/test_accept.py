"""Accepting: what the client is told, and what becomes of the message. docs/design.md 5."""

import asyncio
from pathlib import Path

import pytest

from shadowrelay.model.message import Content
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import NOT_MADE_REDUNDANT, STORE_UNAVAILABLE, LedgerUnavailable, Reply
from shadowrelay.model.tracking import EventId, Replication
from tests.kit.clock import until
from tests.kit.ledger import a_content, a_spooled_content, an_envelope
from tests.kit.nodes import BUSY, EAST, NORTH, WEST, in_virtual_time, nodes


def names(log) -> list[EventId]:
    return [event.event for event in log.events]


@in_virtual_time
async def test_a_message_is_answered_250_and_delivered_while_its_copy_is_discarded(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]

        reply = await east.accept("user1@corp.example")

        assert 250 == reply.code
        assert Role.SHADOW is await west.role(east.last)
        await until(west.in_role(east.last, Role.DELIVERED))
        assert [(EAST, "user1@corp.example")] == [(who, address) for who, address, _ in net.sink.arrived]
        assert [EventId.HAREDIRECT, EventId.RECEIVE] == names(east.log)[:2]
        assert 1 == len(west.log.rows(EventId.HADISCARD))


@in_virtual_time
async def test_a_node_is_the_primary_server_of_its_messages_and_the_shadow_server_of_others(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY

        await east.accept()
        await west.accept()

        assert (Role.PRIMARY, Role.SHADOW) == (await east.role(east.last), await east.role(west.last))
        assert (Role.SHADOW, Role.PRIMARY) == (await west.role(east.last), await west.role(west.last))


@in_virtual_time
async def test_haredirect_of_a_node_names_it_as_client_and_the_server_that_has_the_copy_as_server(tmp_path: Path) -> None:
    """Source: kinesis"""
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept()

        (row,) = east.log.rows(EventId.HAREDIRECT)
        holders = [server for server in (WEST, NORTH) if await net.nodes[server].role(east.last) is Role.SHADOW]
        assert (EAST, holders) == (row.client_hostname, [row.server_hostname])


@in_virtual_time
async def test_a_node_delivers_straight_to_the_next_hop_and_never_by_way_of_a_peer(tmp_path: Path) -> None:
    """Inside a boundary messages take few hops: one."""
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = net.nodes[EAST]
        await east.accept("one@corp.example", "two@other.example", "three@elsewhere.example")
        await until(east.in_role(east.last, Role.DELIVERED))
        await asyncio.sleep(30)

        assert {(EAST, "one@corp.example"), (EAST, "two@other.example"), (EAST, "three@elsewhere.example")} == {
            (who, address) for who, address, _ in net.sink.arrived
        }
        assert 3 == len(net.sink.arrived)
        others = [net.nodes[server].log.rows(event) for server in (WEST, NORTH) for event in (EventId.RECEIVE, EventId.SENDEXTERNAL)]
        assert [[]] * 4 == others


# without a copy
@in_virtual_time
async def test_without_any_peer_it_is_accepted_alone_and_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        reply = await net.nodes[EAST].accept()

        await until(lambda: bool(net.sink.arrived))
        assert 250 == reply.code
        assert [EventId.HAREDIRECTFAIL, EventId.RECEIVE] == names(net.nodes[EAST].log)[:2]


@in_virtual_time
async def test_in_reject_mode_without_anybody_to_try_nothing_is_stored(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]

        reply = await east.accept()

        assert reply == NOT_MADE_REDUNDANT
        assert await east.message(east.last) is None
        assert 0 == len(east.context.attempts)


@in_virtual_time
async def test_in_reject_mode_a_failed_copy_is_refused_after_the_unwinding_and_never_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]
        net.hold_fault = lambda primary, shadow: "slow"

        reply = await east.accept()

        assert reply == NOT_MADE_REDUNDANT
        assert Role.RELEASED is await east.role(east.last)
        await asyncio.sleep(30)
        assert [] == net.sink.arrived
        assert [EventId.HAREDIRECTFAIL] == names(east.log)


@in_virtual_time
async def test_in_reject_mode_a_server_that_stored_the_copy_but_answered_too_late_hears_released(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.hold_fault = lambda primary, shadow: "reply late"

        reply = await east.accept()

        assert reply == NOT_MADE_REDUNDANT
        await until(west.in_role(east.last, Role.RELEASED), 10)
        assert [] == net.sink.arrived


@in_virtual_time
async def test_the_451_does_not_leave_before_the_unwinding_is_committed(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]
        net.hold_fault = lambda primary, shadow: "slow"
        east.ledger.fail("verdict", 5)

        waiting = asyncio.ensure_future(east.accept())
        await asyncio.sleep(6)
        assert not waiting.done()

        assert NOT_MADE_REDUNDANT == await waiting
        assert Role.RELEASED is await east.role(east.last)


@in_virtual_time
async def test_accepted_without_a_copy_it_is_made_redundant_as_soon_as_a_peer_is_there(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        net.isolate(WEST)

        reply = await east.accept()

        assert 250 == reply.code
        assert await net.nodes[WEST].message(east.last) is None
        net.heal()
        await until(net.nodes[WEST].in_role(east.last, Role.SHADOW), 20)
        assert EventId.HAREDIRECT in names(east.log)


@in_virtual_time
async def test_a_message_that_one_lost_answer_left_alone_is_placed_although_nobody_was_away(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_heartbeat_frequency="2m") as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        faults = iter(["slow", "slow"])
        net.hold_fault = lambda primary, shadow: next(faults, "")

        await east.accept()

        await until(net.nodes[WEST].in_role(east.last, Role.SHADOW), 40)


# failover
@in_virtual_time
async def test_the_second_server_is_tried_when_the_first_does_not_answer(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = net.nodes[EAST]
        tried: list[str] = []

        def fault(primary: str, shadow: str) -> str:
            tried.append(shadow)
            return "slow" if len(tried) == 1 else ""

        net.hold_fault = fault
        net.sink.answer = lambda address: BUSY

        reply = await east.accept()

        assert 250 == reply.code
        assert 2 == len(set(tried))
        stored = await east.message(east.last)
        assert stored is not None
        assert [tried[1]] == [copy.server for copy in stored.claim.copies]


@in_virtual_time
async def test_the_leases_of_a_second_server_bind_the_first_attempt(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = net.nodes[EAST]
        faults = iter(["slow"])
        net.hold_fault = lambda primary, shadow: next(faults, "")

        async def paused(server: str) -> None:
            net.sink.before_dot = None
            net.isolate(EAST)
            await asyncio.sleep(50)  # more than the lease leaves for the dot's reply, less than the span

        net.sink.before_dot = paused
        await east.accept()
        await asyncio.sleep(51)

        assert [] == net.sink.arrived


@in_virtual_time
async def test_all_attempts_together_stay_below_shadow_timeout(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, shadow_timeout="4s") as net:
        east = net.nodes[EAST]
        net.hold_fault = lambda primary, shadow: "slow"
        began = east.clock.awake()

        await east.accept()

        assert 3.9 < east.clock.awake() - began <= 4.01


@in_virtual_time
async def test_a_server_that_cannot_be_listed_is_not_sent_a_copy(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = net.nodes[EAST]
        faults = iter(["slow"])
        net.hold_fault = lambda primary, shadow: next(faults, "")
        net.sink.answer = lambda address: BUSY
        await asyncio.sleep(1)  # the first questions to each peer are over
        east.ledger.fail("transition", 1)

        reply = await east.accept()

        assert 250 == reply.code
        assert [None, None] == [await net.nodes[other].role(east.last) for other in (WEST, NORTH)]


# the client
@pytest.mark.parametrize("reject", [False, True])
@in_virtual_time
async def test_a_client_that_vanished_before_the_copy_takes_no_promise_back(tmp_path: Path, reject: bool) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=reject) as net:
        east = net.nodes[EAST]
        session = asyncio.ensure_future(east.accept())
        await asyncio.sleep(0.001)

        session.cancel()

        await until(lambda: ["user1@corp.example"] == net.sink.addresses(), 10)
        await until(net.nodes[WEST].in_role(east.last, Role.DELIVERED), 10)


@pytest.mark.parametrize("reject", [False, True])
@in_virtual_time
async def test_a_client_that_vanished_before_a_failed_copy_leaves_what_the_mode_says(tmp_path: Path, reject: bool) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=reject) as net:
        east = net.nodes[EAST]
        net.hold_fault = lambda primary, shadow: "slow"
        session = asyncio.ensure_future(east.accept())
        await asyncio.sleep(0.5)

        session.cancel()
        await asyncio.sleep(10)

        assert (Role.RELEASED if reject else Role.DELIVERED) is await east.role(east.last)
        assert ([] if reject else ["user1@corp.example"]) == net.sink.addresses()


# the ledger
@in_virtual_time
async def test_a_commit_that_fails_is_refused_with_the_stores_reply_and_the_copy_released(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        east.ledger.fail("accepted", 1)

        reply = await east.accept()

        assert reply == STORE_UNAVAILABLE
        await until(west.in_role(east.last, Role.RELEASED), 10)
        assert [] == net.sink.arrived
        assert 0 == len(east.context.attempts)


@in_virtual_time
async def test_a_verdict_that_could_not_be_recorded_is_recorded_later_so_that_the_message_is_due_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        east.ledger.fail("verdict", 3)
        net.sink.answer = lambda address: BUSY

        assert 250 == (await east.accept()).code
        await until(lambda: 1 == net.sink.attempts_count)
        net.sink.answer = lambda address: Reply(250, "2.0.0", "OK")

        await until(lambda: ["user1@corp.example"] == net.sink.addresses(), 30)


@in_virtual_time
async def test_an_unexpected_error_in_copying_counts_as_no_copy(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]

        def broken(primary: str, shadow: str) -> str:
            raise KeyError("a bug")

        net.hold_fault = broken

        assert NOT_MADE_REDUNDANT == await east.accept()
        assert Role.RELEASED is await east.role(east.last)


@in_virtual_time
async def test_large_content_is_copied_from_where_the_store_keeps_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        data = b"Subject: large\r\n\r\n" + b"0123456789abcde\r\n" * 100_000
        content: Content = a_spooled_content(tmp_path, data)

        reply = await east.services.accept.accept(an_envelope(), content)

        assert 250 == reply.code
        await until(lambda: bool(net.sink.arrived))
        assert data == net.sink.arrived[0][2]
        assert 1 == len(net.nodes[WEST].log.rows(EventId.HARECEIVE))


@in_virtual_time
async def test_large_content_that_cannot_be_read_back_now_is_refused_and_not_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        content: Content = a_spooled_content(tmp_path, b"Subject: large\r\n\r\n" + b"0123456789abcde\r\n" * 100_000)
        envelope = an_envelope()
        east.ledger.fail("read_content", 1)

        reply = await east.services.accept.accept(envelope, content)

        await asyncio.sleep(30)
        assert 4 == reply.code // 100
        assert [] == net.sink.arrived
        assert Role.RELEASED is await east.role(envelope.message_id)


@pytest.mark.parametrize("rejects", [False, True])
@in_virtual_time
async def test_large_content_that_is_unreadable_while_it_is_copied_is_refused_and_no_peer_is_blamed(tmp_path: Path, rejects: bool) -> None:
    """Nobody could deliver it: it is readable neither here nor elsewhere."""
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=rejects) as net:
        east = net.nodes[EAST]
        content: Content = a_spooled_content(tmp_path, b"Subject: large\r\n\r\n" + b"0123456789abcde\r\n" * 100_000)
        envelope = an_envelope()

        async def unreadable(*_: object, **__: object) -> None:
            raise LedgerUnavailable(STORE_UNAVAILABLE, "content/large/1: Input/output error")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(east.context.links[WEST], "hold", unreadable)
            reply = await east.services.accept.accept(envelope, content)

        await asyncio.sleep(30)
        assert STORE_UNAVAILABLE == reply
        assert Role.RELEASED is await east.role(envelope.message_id)
        assert "closed" == east.context.peers.breaker_state(WEST)
        assert 250 == (await east.accept()).code
        assert Role.SHADOW is await net.nodes[WEST].role(east.last)


# switched off
@in_virtual_time
async def test_with_redundancy_switched_off_nothing_is_copied_nor_refused(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_redundancy_enabled=False, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]

        reply = await east.accept()

        assert 250 == reply.code
        await until(lambda: bool(net.sink.arrived))
        assert await net.nodes[WEST].message(east.last) is None
        assert 1 == east.context.counts.acknowledged[Replication.DISABLED]
        assert not east.services.peer_requests.offers_hold()


@in_virtual_time
async def test_a_large_message_that_needs_no_copy_is_delivered_at_the_first_attempt_though_its_spooled_file_is_gone(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, shadow_redundancy_enabled=False) as net:
        data = b"x" * 3_000_000
        content: Content = a_spooled_content(tmp_path, data)

        assert 250 == (await net.nodes[EAST].services.accept.accept(an_envelope(), content)).code
        assert content.path is not None
        content.path.unlink(missing_ok=True)  # as the session does
        await until(lambda: net.sink.attempts_count > 0)
        await until(lambda: bool(net.sink.arrived), seconds=5)

        assert (1, data) == (net.sink.attempts_count, net.sink.arrived[0][2][-len(data) :])


# whatever becomes of the promise, the session hears of it
@in_virtual_time
async def test_a_promise_that_ends_before_it_began_leaves_no_session_waiting(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        answer = net.nodes[EAST].services.accept.accept(an_envelope(), a_content())
        (promise,) = (task for task in asyncio.all_tasks() if task.get_name() == "accept")
        promise.cancel()

        with pytest.raises(asyncio.CancelledError):
            await answer


@in_virtual_time
async def test_trouble_with_the_trouble_is_told_to_the_session(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = net.nodes[EAST]
        east.ledger.fail("accepted", 1)
        east.context.counts.refused.clear()  # to count the refusal fails

        with pytest.raises(KeyError):
            await east.accept()
