"""A network that is cut for longer than the span: what each `delivery_without_lease` repeats. docs/design.md 6.4, cause (c)."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.ids import DatabaseId
from shadowrelay.model.ownership import Claim, Copy, CopyNumber, Role
from shadowrelay.pipeline.leases import Leases
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, OK, POLL, SPAN, WEST, VirtualClock, in_virtual_time, make_settings, message_id, nodes

COUNT = 20
DATABASE = DatabaseId("11111111-1111-4111-8111-111111111111")


@pytest.mark.parametrize(("policy", "twice_count"), [("defer", 0), ("deliver", COUNT)])
@in_virtual_time
async def test_what_falls_due_during_a_cut_comes_twice_only_where_the_policy_is_deliver(
    tmp_path: Path, policy: str, twice_count: int
) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease=policy) as net:
        net.sink.answer = lambda address: BUSY
        east, west = net.nodes[EAST], net.nodes[WEST]
        ids = []
        for _ in range(COUNT):
            await east.accept()
            ids.append(east.last)
        await asyncio.sleep(2)

        net.isolate(EAST)
        await asyncio.sleep(SPAN / 6)  # the leases run for most of the span yet
        net.sink.answer = lambda address: OK
        for one in ids:
            await until(west.in_role(one, Role.DELIVERED), 2 * SPAN)
        net.heal()
        for one in ids:
            await until(east.in_role(one, Role.DELIVERED), 2 * SPAN)

        assert COUNT == len(net.sink.by(WEST))
        assert twice_count == len(net.sink.by(EAST))


@in_virtual_time
async def test_with_defer_a_cut_repeats_what_was_delivered_in_a_few_polls(tmp_path: Path) -> None:
    """Two messages in a poll, delivered at once."""
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        east = net.nodes[EAST]
        ids = []
        for number in range(80):
            if number == 40:
                net.isolate(EAST)
            await east.accept()
            ids.append(east.last)
            await asyncio.sleep(POLL / 2)
        await asyncio.sleep(2 * SPAN)
        net.heal()
        await asyncio.sleep(SPAN)

        # What was accepted after the cut has no copy, so that nobody else can deliver it.
        assert all([Role.DELIVERED is await east.role(one) for one in ids])
        assert 80 <= len(net.sink.arrived) <= 80 + 4


@in_virtual_time
async def test_an_idle_pair_goes_on_proving_for_messages_that_were_accepted_long_ago(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer", send={"message_retry_interval": "10m"}) as net:
        net.sink.answer = lambda address: BUSY
        east = net.nodes[EAST]
        await east.accept()
        await asyncio.sleep(20)
        stored = await east.message(east.last)
        assert stored is not None
        chosen = stored.claim.chosen()
        assert chosen is not None

        for _ in range(200):
            await asyncio.sleep(SPAN / 20)
            assert east.context.leases.suffices(east.last, chosen)


@in_virtual_time
async def test_a_message_that_was_deferred_goes_as_soon_as_the_peer_is_heard(tmp_path: Path) -> None:
    poll = timedelta(seconds=POLL / 2)  # what it proved is too old when the message is tried again
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer", discard_poll_interval=poll) as net:
        net.sink.answer = lambda address: BUSY
        east = net.nodes[EAST]
        await east.accept()
        await asyncio.sleep(2)
        net.isolate(EAST)
        net.sink.answer = lambda address: OK
        await asyncio.sleep(SPAN / 2)
        assert [] == net.sink.arrived

        net.heal()

        await until(east.in_role(east.last, Role.DELIVERED), 10)
        assert [EAST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_copy_whose_answer_was_lost_proves_nothing(tmp_path: Path) -> None:
    """It may be stored there: the server would deliver it after the span, and cannot hear that it was delivered here."""
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.hold_fault = lambda primary, shadow: "reply late"
        accepting = asyncio.ensure_future(east.accept())
        await asyncio.sleep(0.1)
        net.isolate(EAST)
        net.sink.answer = lambda address: BUSY
        await accepting
        await asyncio.sleep(5 * POLL)
        net.sink.answer = lambda address: OK

        await until(west.in_role(east.last, Role.DELIVERED), 2 * SPAN)
        net.heal()
        await until(east.in_role(east.last, Role.DELIVERED), 2 * SPAN)

        assert [WEST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_the_policy_follows_a_reload_and_a_slow_peer_is_heard_when_its_answer_comes(tmp_path: Path) -> None:
    transport = make_settings(EAST, [WEST], tmp_path, delivery_without_lease="defer").transport
    leases = Leases(VirtualClock(), transport, lambda _: False)
    one, copy = message_id("slow"), Copy(WEST, DATABASE)
    claim = Claim(Role.PRIMARY, CopyNumber(1, 1, DATABASE), 1, copies=(copy,))
    leases.began(one, WEST, 1000.0, is_confirmed=True)

    await asyncio.sleep(10)
    before = leases.suffices(one, copy), leases.may_end_data(one, claim, (), leases.ends(one))
    leases.proved(WEST, DATABASE, 1002.0)  # said eight seconds ago, and proved now
    heard = leases.suffices(one, copy), leases.may_end_data(one, claim, (), leases.ends(one))
    await asyncio.sleep(10)
    late = leases.suffices(one, copy)
    leases.configure(transport.model_copy(update={"delivery_without_lease": "deliver"}))

    assert ((False, False), (True, True), False, True) == (before, heard, late, leases.suffices(one, copy))
