"""Taking over: silence, new databases, hand-over, and primaries that come back. docs/design.md 6.1, 6.2, 6.4."""

import asyncio
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from shadowrelay.model.ids import DatabaseId, MessageId
from shadowrelay.model.message import NO_ORDINALS
from shadowrelay.model.ownership import Choice, CopyNumber, Role, StatusQuestion, StatusState, Transition
from shadowrelay.model.peers import CopyOffer
from shadowrelay.model.tracking import EventId
from shadowrelay.model.values import replace
from shadowrelay.ownership.claims import handing_over
from shadowrelay.store import promises
from tests.kit.clock import until
from tests.kit.ledger import a_content, an_envelope
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, SPAN, WEST, VirtualNode, in_virtual_time, nodes
from tests.pipeline.scenes import HeldDot, a_waiting_message, reasons


# why
@in_virtual_time
async def test_a_primary_that_is_silent_for_the_span_is_taken_over_and_not_before(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        await net.kill(EAST)

        await asyncio.sleep(SPAN - HEARTBEAT)
        assert Role.SHADOW is await west.role(east.last)
        await until(west.in_role(east.last, Role.DELIVERED), 3 * HEARTBEAT)

        assert ["Silence"] == reasons(west)
        assert [WEST] == [who for who, _, _ in net.sink.arrived]
        assert net.sink.arrived[0][2].endswith(b"Subject: hello\r\n\r\nhello\r\n")
        assert EAST.encode() in net.sink.arrived[0][2]


@in_virtual_time
async def test_a_primary_with_a_new_database_is_taken_over_within_a_heartbeat(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        await net.wipe(EAST)

        await net.start(EAST)

        await until(west.in_role(east.last, Role.DELIVERED), HEARTBEAT + 1)
        assert ["DatabaseChanged"] == reasons(west)


@in_virtual_time
async def test_a_corrupt_copy_is_not_promoted_and_its_primary_delivers_when_it_is_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        await net.kill(EAST)
        west.corrupt()

        await asyncio.sleep(3 * SPAN)
        role_meanwhile = await west.role(east.last)
        await net.start(EAST)

        await until(west.in_role(east.last, Role.DELIVERED), 10 * HEARTBEAT)
        assert Role.SHADOW is role_meanwhile
        assert [] == reasons(west)
        assert [EAST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_copy_that_cannot_be_read_now_is_promoted_when_it_can(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        west.ledger.fail("read_content", 1_000_000)
        await net.kill(EAST)

        await asyncio.sleep(2 * SPAN)
        role_meanwhile = await west.role(east.last)
        west.ledger.fail("read_content", 0)

        await until(west.in_role(east.last, Role.DELIVERED), 3 * HEARTBEAT)
        assert Role.SHADOW is role_meanwhile


@in_virtual_time
async def test_a_shadow_server_that_restarts_meanwhile_still_sees_that_the_database_is_new(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await a_waiting_message(net, afterwards=OK)
        await net.kill(WEST)
        await net.wipe(EAST)
        await net.start(EAST)

        west = await net.start(WEST)

        await until(west.in_role(east.last, Role.DELIVERED), HEARTBEAT + 1)


@in_virtual_time
async def test_a_primary_that_is_restarted_with_its_queue_is_not_taken_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        await net.kill(EAST)
        await asyncio.sleep(SPAN / 2)

        again = await net.start(EAST)

        await until(again.in_role(east.last, Role.DELIVERED), 30)
        await asyncio.sleep(SPAN)
        assert [EAST] == [who for who, _, _ in net.sink.arrived]
        assert Role.DELIVERED is await west.role(east.last)


@in_virtual_time
async def test_a_shadow_server_that_was_stopped_does_not_believe_that_all_others_died(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        net.isolate(WEST)
        await asyncio.sleep(SPAN - HEARTBEAT)

        west.clock.stopped += SPAN - HEARTBEAT
        await asyncio.sleep(3 * HEARTBEAT)

        assert Role.SHADOW is await west.role(east.last)


@in_virtual_time
async def test_a_handed_over_message_is_taken_over_at_once_and_the_speaker_becomes_its_shadow_server(
    tmp_path: Path, logged: list[dict[str, Any]]
) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        of_it = east.last
        assert 250 == (await east.accept()).code  # its copy is at WEST, too, and is not handed over
        east.last = of_it

        await east.ledger.commit(promises.transition, [east.last], lambda _, claim: handing_over(claim))

        await until(west.in_role(east.last, Role.PRIMARY), HEARTBEAT)
        assert ["Handover"] == reasons(west)
        assert [("Handover", 1)] == [(line["reason"], line["count"]) for line in logged if line["event"] == "primary.lost"]
        await until(east.in_role(east.last, Role.SHADOW), 3 * HEARTBEAT)

        async def chosen() -> bool:
            stored = await west.message(east.last)
            return stored is not None and [(EAST, Choice.CHOSEN)] == [(copy.server, copy.choice) for copy in stored.claim.copies]

        await until(chosen, 30)


# the other side
@in_virtual_time
async def test_an_old_primary_that_comes_back_with_its_queue_delivers_nothing_that_was_taken_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        await net.kill(EAST)
        await until(west.in_role(east.last, Role.DELIVERED), 2 * SPAN)

        again = await net.start(EAST)

        await until(again.in_role(east.last, Role.DELIVERED), 30)
        assert [WEST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_an_old_primary_that_comes_back_before_the_delivery_becomes_the_shadow_server(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await net.kill(EAST)
        await until(west.in_role(east.last, Role.PRIMARY), 2 * SPAN)

        again = await net.start(EAST)

        await until(again.in_role(east.last, Role.SHADOW), 60)
        net.sink.answer = lambda address: OK
        await until(again.in_role(east.last, Role.DELIVERED), 60)
        assert [WEST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_an_isolated_primary_that_defers_delivers_nothing_after_its_lease_and_yields_when_the_net_heals(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        net.isolate(EAST)
        await asyncio.sleep(SPAN)
        net.sink.answer = lambda address: OK

        await until(west.in_role(east.last, Role.DELIVERED), 30)
        await asyncio.sleep(SPAN)
        net.heal()

        await until(east.in_role(east.last, Role.DELIVERED), 60)
        assert [WEST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_claim_that_a_question_would_end_during_an_attempt_ends_after_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        dot = HeldDot(net)
        await east.accept()
        await asyncio.sleep(1)
        higher = CopyNumber(2, 0, west.ledger.identity.database)
        me = west.services.peer_requests.own_identity(EAST)

        (during,) = await east.services.peer_requests.status(me, [StatusQuestion(east.last, higher)])
        dot.may_end.set()
        await until(east.in_role(east.last, Role.DELIVERED), 10)
        (after,) = await east.services.peer_requests.status(me, [StatusQuestion(east.last, higher)])

        assert (StatusState.PRIMARY, StatusState.DELIVERED) == (during.state, after.state)


@in_virtual_time
async def test_a_claim_that_a_question_ended_is_not_attempted(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        higher = CopyNumber(2, 0, west.ledger.identity.database)

        (answer,) = await east.services.peer_requests.status(
            west.services.peer_requests.own_identity(EAST), [StatusQuestion(east.last, higher)]
        )
        await asyncio.sleep(20)

        assert StatusState.SHADOW is answer.state
        assert [] == net.sink.by(EAST)


# what a restarted primary does not know
@in_virtual_time
async def test_a_copy_that_a_restarted_primary_does_not_know_is_taken_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(1)
        envelope = an_envelope(arrived_at=east.clock.now())
        await _place(east, west, envelope)
        await asyncio.sleep(2 * HEARTBEAT)
        assert Role.SHADOW is await west.role(envelope.message_id)

        await net.kill(EAST)
        await net.start(EAST)

        await until(west.in_role(envelope.message_id, Role.DELIVERED), 2 * HEARTBEAT)
        assert [WEST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_reconciliation_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(1)
        envelope = an_envelope(arrived_at=east.clock.now())
        await _place(east, west, envelope)
        await net.kill(EAST)
        west.ledger.fail("copies_of", 2)
        await net.start(EAST)

        await until(west.in_role(envelope.message_id, Role.DELIVERED), 6 * HEARTBEAT)


@in_virtual_time
async def test_a_copy_that_the_process_that_sent_it_does_not_know_is_released(tmp_path: Path) -> None:
    """Its commit failed, the client was refused, and `released` was acknowledged before the copy arrived."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(1)
        envelope = an_envelope(arrived_at=east.clock.now())
        await _place(east, west, envelope)

        await until(west.in_role(envelope.message_id, Role.RELEASED), 2 * SPAN)

        assert [] == net.sink.arrived


@in_virtual_time
async def test_a_copy_of_a_message_that_is_being_accepted_is_kept(tmp_path: Path) -> None:
    """The copy is stored sooner than the primary's own commit."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(1)
        envelope = an_envelope(arrived_at=east.clock.now())
        east.context.attempts.begin(envelope.message_id)
        await _place(east, west, envelope)

        await asyncio.sleep(2 * SPAN)

        assert Role.SHADOW is await west.role(envelope.message_id)


@in_virtual_time
async def test_an_answer_of_a_primary_that_was_restarted_since_does_not_release_a_copy(tmp_path: Path) -> None:
    """An older copy of its database may have been restored."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(1)
        envelope = an_envelope(arrived_at=east.clock.now())
        await _place(east, west, envelope)
        link = west.context.links[EAST]
        status, greeted, was_asked = link.status, west.services.peer_requests.greeted, []

        async def asked_of_the_next_process(questions):
            if not was_asked:
                was_asked.append(questions)
                await net.kill(EAST)
                west.services.peer_requests.greeted = noted_later
                await net.start(EAST)
            return await status(questions)

        async def noted_later(identity):  # as in a node whose disk is slow: the answer is there before
            async def note():
                await asyncio.sleep(0.5)
                await greeted(identity)

            west.context.tasks.spawn(note(), "greeted")

        link.status = asked_of_the_next_process

        await until(west.in_role(envelope.message_id, Role.DELIVERED), 2 * SPAN)
        assert [WEST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_primary_that_is_restarted_while_it_is_asked_is_asked_again(tmp_path: Path) -> None:
    """The first process was still accepting the message, and the second has never heard of it."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(1)
        envelope = an_envelope(arrived_at=east.clock.now())
        await net.kill(EAST)
        east = await net.start(EAST)
        east.context.attempts.begin(envelope.message_id)
        await _place(east, west, envelope)
        link = west.context.links[EAST]
        status, was_restarted = link.status, asyncio.Event()

        async def answered_before_a_restart(questions):
            answers = await status(questions)
            if not was_restarted.is_set():
                was_restarted.set()
                await net.kill(EAST)
                await net.start(EAST)
                await asyncio.sleep(2 * HEARTBEAT)
            return answers

        link.status = answered_before_a_restart
        west.context.peers.states[EAST].incarnation = 0  # it is heard for the first time

        await until(west.in_role(envelope.message_id, Role.DELIVERED), 8 * HEARTBEAT)


@in_virtual_time
async def test_a_copy_that_was_still_being_written_when_its_primary_was_started_again_is_refused(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(1)
        before = east.services.peer_requests.own_identity(WEST)
        envelope = an_envelope(arrived_at=west.clock.now())
        record_hold = partial(west.ledger.real.commit, promises.hold)

        async def late(*arguments):
            await net.kill(EAST)
            await net.start(EAST)
            await asyncio.sleep(2 * HEARTBEAT)
            return await record_hold(*arguments)

        west.ledger.instead["hold"] = late

        reply = await west.services.peer_requests.hold(
            before, CopyOffer(CopyNumber(1, 1, before.database), envelope, NO_ORDINALS, a_content())
        )

        assert (451, None) == (reply.code, await west.role(envelope.message_id))


@in_virtual_time
async def test_a_copy_that_the_network_kept_until_its_primary_had_been_started_again_is_refused(tmp_path: Path) -> None:
    """Its client was never answered, and no later question would be about it (simulation seed 22321)."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(1)
        before = east.services.peer_requests.own_identity(WEST)
        await net.kill(EAST)
        await net.start(EAST)
        await asyncio.sleep(2 * HEARTBEAT)
        envelope = an_envelope(arrived_at=west.clock.now())

        reply = await west.services.peer_requests.hold(
            before, CopyOffer(CopyNumber(1, 1, before.database), envelope, NO_ORDINALS, a_content())
        )

        assert (451, None) == (reply.code, await west.role(envelope.message_id))


async def _place(east: VirtualNode, west: VirtualNode, envelope) -> None:
    """A copy on WEST whose primary died before its own commit."""
    database: DatabaseId = east.ledger.identity.database
    offer = CopyOffer(CopyNumber(1, 1, database), envelope, NO_ORDINALS, a_content())
    reply = await west.services.peer_requests.hold(east.services.peer_requests.own_identity(WEST), offer)
    assert 250 == reply.code


# three servers
@in_virtual_time
async def test_what_was_answered_in_a_round_that_was_broken_off_counts_no_more(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = await a_waiting_message(net, afterwards=OK)
        holder, third = (net.nodes[name] for name in (WEST, NORTH))
        if Role.SHADOW is not await holder.role(east.last):
            holder, third = third, holder

        def heard_long_ago(_, claim):
            return Transition(claim, replace(claim, asked=frozenset({third.name})))

        await holder.ledger.real.commit(promises.transition, [east.last], heard_long_ago)
        asked: list[tuple[str, Role | None]] = []
        for server, link in holder.context.links.items():
            link.status = noting(link.status, server, holder, east.last, asked)
        await net.wipe(EAST)

        await net.start(EAST)

        await until(holder.in_role(east.last, Role.DELIVERED), 2 * HEARTBEAT)
        in_the_round = [(server, role) for server, role in asked if role is Role.SHADOW]
        assert [(EAST, Role.SHADOW), (third.name, Role.SHADOW)] == in_the_round  # as the new primary it may ask about its own list


def noting(status, server: str, holder: VirtualNode, message_id: MessageId, asked: list[tuple[str, Role | None]]):
    """Who is asked, and what the holder is then."""

    async def noted(questions):
        asked.append((server, await holder.role(message_id)))
        return await status(questions)

    return noted


@in_virtual_time
async def test_two_servers_fail_one_after_the_other_and_the_third_delivers(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = await a_waiting_message(net, afterwards=OK)
        net.sink.answer = lambda address: BUSY
        stored = await east.message(east.last)
        assert stored is not None
        second = stored.claim.copies[0].server
        (third,) = {WEST, NORTH} - {second}
        await net.wipe(EAST)
        await until(net.nodes[second].in_role(east.last, Role.PRIMARY), 2 * SPAN)
        await until(net.nodes[third].in_role(east.last, Role.SHADOW), 2 * HEARTBEAT)
        net.sink.answer = lambda address: OK

        await net.wipe(second)

        await until(net.nodes[third].in_role(east.last, Role.DELIVERED), 2 * SPAN)
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_a_destroyed_shadow_server_gets_its_copies_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await a_waiting_message(net, afterwards=OK)
        net.sink.answer = lambda address: BUSY
        await net.wipe(WEST)

        west = await net.start(WEST)

        await until(west.in_role(east.last, Role.SHADOW), 3 * HEARTBEAT)


@in_virtual_time
async def test_a_shadow_server_destroyed_while_the_primary_was_down_gets_its_copies_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, send={"message_retry_interval": timedelta(hours=1)}) as net:
        east = await a_waiting_message(net, afterwards=OK)
        net.sink.answer = lambda address: BUSY
        await asyncio.sleep(10)
        await net.kill(EAST)
        await net.wipe(WEST)
        west = await net.start(WEST)

        await net.start(EAST)

        await until(west.in_role(east.last, Role.SHADOW), 5 * HEARTBEAT)


# configuration
@in_virtual_time
async def test_copies_of_a_peer_that_this_node_never_asks_are_not_held(tmp_path: Path) -> None:
    async with nodes(tmp_path) as net:
        west = await net.start(WEST, peers=(EAST,), peer={EAST: {"send_xshadow": False}})
        east = await net.start(EAST, peers=(WEST,))
        net.sink.answer = lambda address: BUSY

        await east.accept()

        assert await west.message(east.last) is None
        (reason,) = [event.source_context for event in east.log.rows(EventId.HAREDIRECTFAIL)]
        assert "send_xshadow is off here" in reason


@in_virtual_time
async def test_where_redundancy_was_switched_off_the_old_queue_is_delivered_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net, afterwards=OK), net.nodes[WEST]
        await net.kill(EAST)

        again = await net.start(EAST, shadow_redundancy_enabled=False)

        await until(again.in_role(east.last, Role.DELIVERED), 30)
        await asyncio.sleep(2 * SPAN)
        assert [EAST] == [who for who, _, _ in net.sink.arrived]
        assert Role.DELIVERED is await west.role(east.last)


@in_virtual_time
async def test_where_redundancy_was_switched_off_held_copies_are_still_taken_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await a_waiting_message(net, afterwards=OK)
        await net.kill(WEST)
        west = await net.start(WEST, shadow_redundancy_enabled=False)
        await asyncio.sleep(HEARTBEAT)

        await net.wipe(EAST)

        await until(west.in_role(east.last, Role.DELIVERED), 2 * SPAN)


@in_virtual_time
async def test_a_primary_on_whose_peers_the_span_is_shorter_trusts_the_shorter_one(tmp_path: Path) -> None:
    async with nodes(tmp_path) as net:
        await net.start(EAST, peers=(WEST,))
        await net.start(WEST, peers=(EAST,), shadow_resubmit_time_span=timedelta(seconds=20), delivery_without_lease="defer")
        east = net.nodes[EAST]
        await a_waiting_message(net, afterwards=OK)
        left = east.context.leases.server_left(WEST)

        assert left is not None
        assert 15 < left < 20
