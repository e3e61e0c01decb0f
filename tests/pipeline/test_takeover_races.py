"""A primary that comes back in the middle of a takeover. The ownership ring promotes in one step; a service asks, waits and
reads pages, and what it knew when it began may be true no more (simulation seed 719)."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from shadowrelay.model.ownership import CopyNumber, DiscardStatus, Notification, Role, StatusQuestion, Transition
from shadowrelay.model.replies import STORE_UNAVAILABLE, LedgerUnavailable, Reply
from shadowrelay.rules import flight
from shadowrelay.rules.router import RECIPIENTS_PER_TRANSACTION_MAX
from shadowrelay.store import promises, reading
from shadowrelay.store.commit import Promise
from shadowrelay.store.work import UnitOfWork
from tests.kit.clock import until
from tests.kit.nodes import EAST, HEARTBEAT, NORTH, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes
from tests.pipeline.scenes import HeldDot, a_waiting_message, reasons


async def _holder_and_third(net: Net, east: VirtualNode) -> tuple[VirtualNode, VirtualNode]:
    holder, third = net.nodes[WEST], net.nodes[NORTH]
    return (holder, third) if Role.SHADOW is await holder.role(east.last) else (third, holder)


def _answers_late(link):
    """The server's answers are ready, and come later. Returns what is set when they are ready, and what lets them go."""
    status, was_asked, may_answer = link.status, asyncio.Event(), asyncio.Event()

    async def slowly(questions):
        answers = await status(questions)
        was_asked.set()
        await may_answer.wait()
        return answers

    link.status = slowly
    return was_asked, may_answer


@in_virtual_time
async def test_a_primary_that_comes_back_while_others_are_asked_is_not_taken_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, delivery_without_lease="defer") as net:
        east = await a_waiting_message(net)
        holder, third = await _holder_and_third(net, east)
        was_asked, may_answer = _answers_late(holder.context.links[third.name])
        net.isolate(EAST)
        await was_asked.wait()

        async def is_leased() -> bool:
            stored = await east.message(east.last)
            entry = None if stored is None else stored.claim.copy_on(holder.name)
            return entry is not None and east.context.leases.left(east.last, entry) > SPAN / 2

        net.heal()
        await until(is_leased, 2 * HEARTBEAT)  # it has asked about its copy, and counts from the answer
        may_answer.set()
        await asyncio.sleep(0.1)

        assert (True, Role.PRIMARY, Role.SHADOW) == (await is_leased(), await east.role(east.last), await holder.role(east.last))
        net.sink.answer = lambda address: OK
        await until(east.in_role(east.last, Role.DELIVERED), 30)
        await asyncio.sleep(SPAN)
        assert [EAST] == [who for who, _, _ in net.sink.arrived]
        assert [] == reasons(holder)


@in_virtual_time
async def test_a_copy_whose_message_ended_while_its_server_answered_leaves_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulation seed 310068."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await a_waiting_message(net)
        was_asked, may_answer = _answers_late(east.context.links[WEST])
        monkeypatch.setattr(east.context.flights, "copying", set)  # a copy is on its way as it is asked
        asking = asyncio.create_task(east.services.review.request_server(WEST))
        await was_asked.wait()
        net.sink.answer = lambda address: OK
        await until(east.in_role(east.last, Role.DELIVERED), 30)
        read, refused = east.context.ledger.read, []

        async def refusing(question, *arguments):
            if question is reading.load_many and not refused:
                refused.append(question)
                raise LedgerUnavailable(STORE_UNAVAILABLE, "the disk returns errors")
            return await read(question, *arguments)

        monkeypatch.setattr(east.context.ledger, "read", refusing)  # so the review begins again, with what is claimed then
        may_answer.set()
        with pytest.raises(LedgerUnavailable):
            await asking

        assert {} == east.context.leases.ends(east.last)


@in_virtual_time
async def test_a_server_that_took_the_message_over_while_its_answer_was_under_way_is_not_taken_over(tmp_path: Path) -> None:
    """The answer says that it only holds a copy, and comes when the asker holds one for it (simulation seed 600102)."""
    async with nodes(tmp_path, EAST, WEST, NORTH, delivery_without_lease="defer", shadow_copies=2) as net:
        east = await a_waiting_message(net)
        numbers = {name: (await net.nodes[name].message(east.last)).claim.number for name in (WEST, NORTH)}
        asker, first = (net.nodes[name] for name in sorted(numbers, key=numbers.__getitem__))
        link, other_link = asker.context.links[first.name], first.context.links[asker.name]
        status, other_status, was_asked = link.status, other_link.status, asyncio.Event()

        async def holds_for_it() -> bool:
            stored = await asker.message(east.last)
            return stored is not None and stored.claim.primary == first.name

        async def slowly(questions):
            link.status = status
            answers = await status(questions)
            was_asked.set()
            await until(holds_for_it, SPAN)
            return answers

        async def afterwards(questions):
            await was_asked.wait()
            return await other_status(questions)

        link.status, other_link.status = slowly, afterwards
        net.isolate(EAST)
        await until(first.in_role(east.last, Role.PRIMARY), 2 * SPAN)
        await until(holds_for_it, SPAN)
        await asyncio.sleep(2 * HEARTBEAT)

        assert (Role.PRIMARY, Role.SHADOW) == (await first.role(east.last), await asker.role(east.last))
        assert ([], ["Silence"]) == (reasons(asker), reasons(first))


@in_virtual_time
async def test_an_attempt_does_not_end_its_data_without_a_lease_on_who_was_listed_meanwhile(tmp_path: Path) -> None:
    """It asked with a lower number, so that it may hold a copy, and may not hear the answer (simulation seed 924)."""
    async with nodes(tmp_path, EAST, WEST, NORTH, delivery_without_lease="defer") as net:
        east = net.nodes[EAST]
        dot = HeldDot(net)
        await east.accept()
        await until(lambda: dot.waiting_count)
        _, third = await _holder_and_third(net, east)
        net.isolate(third.name)
        lower = CopyNumber(0, 1, third.ledger.identity.database)

        await east.services.peer_requests.status(third.services.peer_requests.own_identity(EAST), [StatusQuestion(east.last, lower)])
        dot.may_end.set()
        await asyncio.sleep(2 * HEARTBEAT)
        meanwhile = net.sink.addresses()
        net.heal()
        await until(east.in_role(east.last, Role.DELIVERED), 30)

        assert ([], ["user1@corp.example"]) == (meanwhile, net.sink.addresses())


@in_virtual_time
async def test_what_waits_for_a_session_is_not_delivered_without_a_lease_on_who_was_listed_meanwhile(tmp_path: Path) -> None:
    """Neither the claim that it was loaded with nor the leases that are new since its session opened have that server
    (simulation seed 22636)."""
    async with nodes(tmp_path, EAST, WEST, NORTH, delivery_without_lease="defer", send={"concurrency_per_destination": 1}) as net:
        east = net.nodes[EAST]
        may_end = asyncio.Event()
        net.sink.hang = lambda address: may_end if address.startswith("slow") else None
        await east.accept("slow@corp.example")
        await until(lambda: net.sink.attempts_count == 1, 1)
        await east.accept()
        _, third = await _holder_and_third(net, east)
        net.isolate(third.name)
        lower = CopyNumber(0, 1, third.ledger.identity.database)

        await east.services.peer_requests.status(third.services.peer_requests.own_identity(EAST), [StatusQuestion(east.last, lower)])
        may_end.set()
        await asyncio.sleep(2 * HEARTBEAT)
        meanwhile = net.sink.addresses()
        net.heal()
        await until(east.in_role(east.last, Role.DELIVERED), 30)

        assert (["slow@corp.example"], ["slow@corp.example", "user1@corp.example"]) == (meanwhile, net.sink.addresses())


@in_virtual_time
async def test_a_forgotten_peer_that_comes_back_and_has_taken_a_message_over_is_asked(tmp_path: Path) -> None:
    """It is on no list any more, and its word is all that there is."""
    async with nodes(tmp_path, EAST, WEST, NORTH, delivery_without_lease="defer") as net:
        east = await a_waiting_message(net)
        holder, _ = await _holder_and_third(net, east)
        net.isolate(holder.name)
        await until(lambda: not east.context.peers.is_reachable(holder.name), HEARTBEAT)
        assert await east.services.peers.forget(holder.name)
        await until(holder.in_role(east.last, Role.PRIMARY), 2 * SPAN)

        net.heal()
        await until(east.in_role(east.last, Role.SHADOW), 3 * HEARTBEAT)
        net.sink.answer = lambda address: OK
        await until(east.in_role(east.last, Role.DELIVERED), 30)

        assert [holder.name] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_shadow_server_whose_row_cannot_be_read_does_not_hold_its_primary_up(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        east, west = await a_waiting_message(net), net.nodes[WEST]

        def damaged(work: UnitOfWork) -> None:
            work.connection.exec_driver_sql("UPDATE message SET envelope = 'x'")
            work.changes_count = 1

        await west.ledger.real.commit(Promise(damaged))
        await west.message(east.last)
        await asyncio.sleep(1)
        assert Role.SET_ASIDE is await west.role(east.last)
        await net.kill(EAST)
        net.sink.answer = lambda address: OK

        again = await net.start(EAST)

        await until(again.in_role(east.last, Role.DELIVERED), 3 * SPAN)
        assert [EAST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_an_attempt_is_called_off_before_the_word_that_all_is_delivered_is_committed(tmp_path: Path) -> None:
    """Right after the commit the claim is over: a final dot in that moment was a duplicate (simulation seed 917)."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        dot = HeldDot(net)
        await east.accept()
        await until(lambda: dot.waiting_count)
        record = partial(east.ledger.real.commit, promises.discards)

        async def recorded(*arguments, **named):
            transitions = await record(*arguments, **named)
            dot.may_end.set()
            await asyncio.sleep(0.1)  # before whoever waits for the commit goes on
            return transitions

        east.ledger.instead["discards"] = recorded
        tell = (Notification(EAST, east.ledger.identity.database, DiscardStatus.DELIVERED),)
        await west.ledger.real.commit(promises.transition, [east.last], lambda _, claim: Transition(claim, claim, tell))
        await until(dot.may_end.is_set, 2 * HEARTBEAT)
        await asyncio.sleep(1)

        assert ([], Role.DELIVERED) == (net.sink.arrived, await east.role(east.last))


@in_virtual_time
async def test_an_attempt_on_recipients_that_another_node_has_done_is_called_off_and_the_others_go_on(tmp_path: Path) -> None:
    """Its recipients were done, as another server said, and the whole message was when its last fork was (simulation seed 22756)."""
    routes = [{"recipients": [f"*@{name}.example"], "next_hop": f"{name}.example:25"} for name in ("one", "two")]
    async with nodes(tmp_path, EAST, WEST, routes=routes) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        dot = HeldDot(net)
        await east.accept("a@one.example", "b@two.example")
        await until(lambda: 2 == dot.waiting_count)
        tell = (Notification(EAST, east.ledger.identity.database, DiscardStatus.DELIVERED, frozenset({2})),)
        await west.ledger.real.commit(promises.transition, [east.last], lambda _, claim: Transition(claim, claim, tell))

        await until(east.has_done(east.last, 2), 2 * HEARTBEAT)
        dot.may_end.set()
        await until(east.in_role(east.last, Role.DELIVERED), HEARTBEAT)

        assert ["a@one.example"] == net.sink.addresses()


@in_virtual_time
async def test_one_transaction_of_a_large_fork_is_called_off_and_the_next_goes_on(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        first, rest = RECIPIENTS_PER_TRANSACTION_MAX, 20
        dot = HeldDot(net)
        await east.accept(*(f"u{number}@corp.example" for number in range(1, first + rest + 1)))
        await until(lambda: dot.waiting_count)
        done = frozenset(range(1, first + 1))
        tell = (Notification(EAST, east.ledger.identity.database, DiscardStatus.DELIVERED, done),)
        await west.ledger.real.commit(promises.transition, [east.last], lambda _, claim: Transition(claim, claim, tell))

        await until(east.has_done(east.last, *done), 2 * HEARTBEAT)
        dot.may_end.set()
        await until(east.in_role(east.last, Role.DELIVERED), 2 * HEARTBEAT)

        assert sorted(f"u{number}@corp.example" for number in range(first + 1, first + rest + 1)) == sorted(net.sink.addresses())


@in_virtual_time
async def test_an_attempt_that_began_on_what_was_read_during_the_commit_is_called_off_too(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: Reply(451, "4.3.2", "not now")
        await east.accept()
        await asyncio.sleep(1)
        record, flights = partial(east.ledger.real.commit, promises.discards), east.context.flights
        began: list[bool] = []

        async def recorded(*arguments, **named):
            transitions = await record(*arguments, **named)
            flights.begin_read()  # a read that began before the commit, and shows the message as due
            began.append(
                flights.happens(east.last, flight.load, "corp.example:25") and flights.happens(east.last, flight.start, "corp.example:25")
            )
            return transitions

        east.ledger.instead["discards"] = recorded
        tell = (Notification(EAST, east.ledger.identity.database, DiscardStatus.DELIVERED),)
        await west.ledger.real.commit(promises.transition, [east.last], lambda _, claim: Transition(claim, claim, tell))
        await until(lambda: bool(began), 2 * HEARTBEAT)
        await asyncio.sleep(0.1)

        assert [True] == began
        assert flights[east.last].is_called_off(frozenset({1}))
        flights.happens(east.last, flight.end, "corp.example:25")
