"""What keeps the node going: loops that survive, sets that empty, questions that are asked in time, what is cleared away."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Envelope
from shadowrelay.model.ownership import Role, Transition
from shadowrelay.model.peers import DiscardReply
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, LedgerUnavailable, PeerUnavailable
from shadowrelay.model.tracking import EventId
from shadowrelay.pipeline.context import Tasks, woken_within
from shadowrelay.pipeline.copy_repair import RepairOutcome
from shadowrelay.rules import flight
from shadowrelay.store import queues, reading
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, OK, SPAN, WEST, in_virtual_time, nodes

ONE, TWO = MessageId("1"), MessageId("2")
UNEXPECTED = ValueError("a bug")


@in_virtual_time
async def test_a_cancelled_question_still_settles_what_it_may_have_ended(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        context = net.nodes[EAST].context

        async def never(*_: object) -> tuple[Transition, ...]:
            context.flights.happens(ONE, flight.end_claim)
            await asyncio.sleep(1000)
            return ()

        context.ledger.instead["transition"] = never
        asking = asyncio.ensure_future(context.end_claims([ONE], lambda _, claim: Transition(claim, claim)))
        await asyncio.sleep(0.01)
        del context.ledger.instead["transition"]
        asking.cancel()
        await asyncio.sleep(0.01)

        context.flights.begin_read()
        assert context.flights.happens(ONE, flight.reserve)


# loops
@in_virtual_time
async def test_a_loop_waits_until_it_is_woken_or_its_time_is_over_and_starts_no_task_for_that() -> None:
    woken, loop = asyncio.Event(), asyncio.get_running_loop()
    began, tasks_count = loop.time(), len(asyncio.all_tasks())

    assert not await woken_within(woken, 5.0)
    assert 5.0 <= loop.time() - began < 5.1
    loop.call_later(3.0, woken.set)
    loop.call_later(2.0, lambda: counted.append(len(asyncio.all_tasks())))
    counted: list[int] = []
    assert await woken_within(woken, None)
    assert [tasks_count] == counted
    assert await woken_within(woken, 0.0)
    woken.clear()
    assert not await woken_within(woken, 0.0)


@in_virtual_time
async def test_a_loop_that_is_cancelled_while_it_waits_ends_also_in_the_moment_that_it_is_woken() -> None:
    for wakes in (False, True):
        woken = asyncio.Event()
        waiting = asyncio.ensure_future(woken_within(woken, 5.0))
        await asyncio.sleep(1.0)
        if wakes:
            woken.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@in_virtual_time
async def test_closing_ends_a_task_that_loses_a_cancellation() -> None:
    tasks, losses = Tasks(), [1, 1]

    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                if not losses:
                    raise
                losses.pop()

    tasks.spawn(deaf(), "deaf")
    await asyncio.sleep(0)

    await tasks.close()

    assert 0 == len(tasks)


@in_virtual_time
async def test_work_that_is_done_to_its_end_is_stopped_neither_by_its_caller_nor_by_the_end_of_the_node() -> None:
    tasks, done = Tasks(), []

    async def work(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        done.append(name)

    async def caller() -> None:
        await tasks.whole(work("called", 1), "called")

    calling = tasks.spawn(caller(), "caller")
    await asyncio.sleep(0)
    calling.cancel()
    hanging = tasks.spawn(tasks.whole(work("never", 1000), "never"), "hanging")
    await asyncio.sleep(0)

    await tasks.close()

    assert (["called"], True, 0) == (done, hanging.cancelled(), len(tasks))


@in_virtual_time
async def test_what_work_that_is_done_to_its_end_fails_with_is_its_callers() -> None:
    async def fail() -> None:
        raise UNEXPECTED

    with pytest.raises(ValueError, match="a bug"):
        await Tasks().whole(fail(), "fails")


@in_virtual_time
async def test_discards_that_are_committed_are_told_in_the_log_although_the_node_ends(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        envelopes, is_telling = partial(west.ledger.real.read, reading.envelopes), asyncio.Event()

        async def slow(ids: Sequence[MessageId]) -> Mapping[MessageId, tuple[int, Envelope]]:
            is_telling.set()
            await asyncio.sleep(1)
            return await envelopes(ids)

        west.ledger.instead["envelopes"] = slow
        await east.accept()
        await is_telling.wait()
        assert [] == west.log.rows(EventId.HADISCARD)

        await west.tasks.close()

        assert [east.last] == [row.network_message_id for row in west.log.rows(EventId.HADISCARD)]


@in_virtual_time
async def test_content_that_is_read_waits_for_its_turn_and_counts_as_long_as_it_is_held(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        await east.accept()
        stored = await east.message(east.last)
        assert stored is not None
        assert stored.place is not None
        context, before = east.context, east.context.budget.used
        context.budget.limit_cache(0)
        first = await context.read_content(stored.place)
        assert before + stored.place.size == context.budget.used

        held = await context.budget.reserve(context.budget.bytes_max // 4 - stored.place.size)
        second = asyncio.ensure_future(context.read_content(stored.place))
        await asyncio.sleep(0)
        assert not second.done()
        del first
        await second
        held.release()
        del second

        await until(lambda: before == context.budget.used, 1)


@in_virtual_time
async def test_a_loop_that_fails_begins_anew_and_one_that_ends_has_ended() -> None:
    tasks, runs = Tasks(), []

    async def loop() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise UNEXPECTED

    await tasks.keep(loop, "loop")

    assert [0, 1, 2] == runs


@in_virtual_time
async def test_every_loop_survives_an_unexpected_error(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        for node in (east, west):
            reads = ("due", "unplaced", "shadow_groups", "load_many", "envelopes", "primaries_listed_on", "messages")
            for name in (*reads, "discards", "expired_removed"):
                node.ledger.fail(name, 3, UNEXPECTED)
        await asyncio.sleep(4 * HEARTBEAT)
        net.sink.answer = lambda address: OK

        await until(east.in_role(east.last, Role.DELIVERED), 60)
        await until(west.in_role(east.last, Role.DELIVERED), 60)
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_an_acknowledgement_costs_one_transaction_however_often_it_is_said(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, counts = net.nodes[EAST], net.nodes[EAST].ledger.counts
        for round_number in (1, 2):
            await east.accept()
            await until(lambda expected=round_number: expected == counts["forget_acknowledged"], 10 * HEARTBEAT)

            polls_count = counts["discards_for"]
            await until(lambda before=polls_count: counts["discards_for"] >= before + 3, 10 * HEARTBEAT)
            assert round_number == counts["forget_acknowledged"]


@in_virtual_time
async def test_a_ledger_that_takes_nothing_for_a_while_loses_nothing(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        net.sink.answer = lambda address: OK
        full = LedgerUnavailable(INSUFFICIENT_RESOURCES, "disk full")
        for node in (east, west):
            for name in ("attempt", "discards", "verdict", "transition", "forget_acknowledged", "hold"):
                node.ledger.fail(name, 20, full)

        await until(east.in_role(east.last, Role.DELIVERED), 200)
        await until(west.in_role(east.last, Role.DELIVERED), 200)
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_a_shadow_server_with_a_full_disk_refuses_the_copy_and_the_message_is_placed_later(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        west.ledger.fail("hold", 6, LedgerUnavailable(INSUFFICIENT_RESOURCES, "disk full"))

        assert 250 == (await east.accept()).code

        assert 1 == len(east.log.rows(EventId.HAREDIRECTFAIL))
        await until(west.in_role(east.last, Role.SHADOW), 60)


# review
@in_virtual_time
async def test_what_waits_for_another_review_is_reviewed_while_requests_keep_coming(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(1)
        await net.kill(WEST)

        async def crowd() -> None:
            while True:
                east.services.review.request(ONE)
                await asyncio.sleep(0.1)

        crowding = asyncio.ensure_future(crowd())
        await asyncio.sleep(SPAN + 10)
        net.sink.answer = lambda address: OK
        await until(lambda: bool(net.sink.arrived), 30)
        crowding.cancel()


@in_virtual_time
async def test_a_review_that_fails_unexpectedly_forgets_no_message(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        last = east.last
        await net.kill(EAST)
        net.sink.answer = lambda address: OK
        east = await net.start(EAST)  # without leases: everything is reviewed first
        east.ledger.fail("load_many", 2, UNEXPECTED)

        await until(east.in_role(last, Role.DELIVERED), 30)


# placement
@in_virtual_time
async def test_messages_that_cannot_be_placed_do_not_hide_those_behind_them(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        east.services.copy_repair.place, place = _never, east.services.copy_repair.place  # type: ignore[method-assign, assignment]
        net.isolate(WEST)
        for _ in range(205):
            await east.accept()
        last = east.last

        async def only_the_last(message):
            return await place(message) if message.envelope.message_id == last else RepairOutcome.AGAIN

        east.services.copy_repair.place = only_the_last  # type: ignore[method-assign]
        net.heal()

        await until(west.in_role(last, Role.SHADOW), 30)


async def _never(message) -> RepairOutcome:
    return RepairOutcome.AGAIN


# polling
@in_virtual_time
async def test_the_first_copy_after_a_quiet_time_is_asked_about_at_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_heartbeat_frequency="2m", shadow_resubmit_time_span="1h") as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await asyncio.sleep(10)

        await east.accept()

        await until(west.in_role(east.last, Role.DELIVERED), 3)


POLLS = [  # heartbeat, poll interval; questions in a minute to an idle peer, and to one whose messages are held
    ("5s", "500ms", 12, 120),
    ("10s", "500ms", 6, 120),
    ("5s", "1s", 12, 60),
    ("5s", "20s", 12, 12),
]


@pytest.mark.parametrize(("heartbeat", "poll", "idle_count", "holding_count"), POLLS)
@in_virtual_time
async def test_an_idle_peer_is_asked_once_a_heartbeat_and_one_whose_messages_are_held_once_a_poll(
    tmp_path: Path, heartbeat: str, poll: str, idle_count: int, holding_count: int
) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_heartbeat_frequency=heartbeat, discard_poll_interval=poll) as net:
        east, link = net.nodes[EAST], net.nodes[WEST].context.links[EAST]
        discards, asked = link.discards, [0]

        async def counted(maximum: int, acknowledged: int) -> DiscardReply:
            asked[0] += 1
            return await discards(maximum, acknowledged)

        link.discards = counted  # type: ignore[method-assign]

        async def in_a_minute() -> int:
            before = asked[0]
            await asyncio.sleep(60)
            return asked[0] - before

        await asyncio.sleep(30)
        idle = await in_a_minute()
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(30)
        holding = await in_a_minute()

        assert (idle_count, holding_count) == (pytest.approx(idle, rel=0.1), pytest.approx(holding, rel=0.1))


# housekeeping
@pytest.mark.parametrize(("hold_time", "is_kept"), [("10s", False), ("24s", True)])
@in_virtual_time
async def test_how_long_safety_net_keeps_what_was_delivered_or_discarded_is_a_setting(
    tmp_path: Path, hold_time: str, is_kept: bool
) -> None:
    async with nodes(tmp_path, EAST, WEST, safety_net_hold_time=hold_time) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await east.accept()
        await until(west.in_role(east.last, Role.DELIVERED))
        in_both = [
            len(await node.ledger.real.read(queues.messages, f"SafetyNet\\{kind}", 10))
            for node, kind in ((east, "Primary"), (west, "Shadow"))
        ]

        await asyncio.sleep(10 + 2 * HEARTBEAT)

        left = [
            len(await node.ledger.real.read(queues.messages, f"SafetyNet\\{kind}", 10))
            for node, kind in ((east, "Primary"), (west, "Shadow"))
        ]
        assert ([1, 1], [int(is_kept)] * 2) == (in_both, left)


@in_virtual_time
async def test_safety_net_is_emptied_as_fast_as_it_fills(tmp_path: Path) -> None:
    short = {"safety_net_hold_time": timedelta(seconds=10), "message_expiration_timeout": timedelta(seconds=5)}
    async with nodes(tmp_path, EAST, **short) as net:
        east = net.nodes[EAST]
        for _ in range(300):
            await east.accept()
        await until(lambda: 300 == len(net.sink.arrived))
        assert Role.DELIVERED is await east.role(east.last)

        await asyncio.sleep(15 + 2 * HEARTBEAT)

        assert () == await east.ledger.real.read(queues.messages, "SafetyNet\\Primary", 10)
        assert await east.message(east.last) is None


@pytest.mark.parametrize(("hold_time", "expiration"), [(20, 60), (60, 20), (40, 40)])
@in_virtual_time
async def test_a_shadow_message_that_nobody_acknowledged_expires_after_both_times_and_not_after_one(
    tmp_path: Path, hold_time: int, expiration: int
) -> None:
    times = {"safety_net_hold_time": timedelta(seconds=hold_time), "message_expiration_timeout": timedelta(seconds=expiration)}
    async with nodes(tmp_path, EAST, WEST, shadow_resubmit_time_span="1h", **times) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        net.isolate(WEST)

        await asyncio.sleep(hold_time + expiration - HEARTBEAT)
        before = await west.role(east.last)
        await asyncio.sleep(4 * HEARTBEAT)

        assert (Role.SHADOW, Role.RELEASED) == (before, await west.role(east.last))


@in_virtual_time
async def test_a_shadow_message_that_nobody_acknowledged_expires_with_a_row_that_says_so(tmp_path: Path) -> None:
    short = {"safety_net_hold_time": timedelta(seconds=10), "message_expiration_timeout": timedelta(seconds=10)}
    async with nodes(tmp_path, EAST, WEST, **short) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        net.isolate(WEST)

        await asyncio.sleep(20 + 2 * HEARTBEAT)

        assert Role.RELEASED is await west.role(east.last)
        assert [str(east.last)] == [event.network_message_id for event in west.log.rows(EventId.EXPIRE)]


@in_virtual_time
async def test_discard_status_survives_a_crash_and_is_told_afterwards(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        net.isolate(WEST)
        net.sink.answer = lambda address: OK
        await until(east.in_role(east.last, Role.DELIVERED), 2 * SPAN / 3)
        await net.kill(EAST)
        held = await west.role(east.last)

        await net.start(EAST)
        net.heal()

        await until(west.in_role(east.last, Role.DELIVERED), 2 * HEARTBEAT)
        assert Role.SHADOW is held
        assert [EAST] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_notifications_that_nobody_asks_for_are_deleted_in_the_end(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_message_auto_discard_interval=timedelta(seconds=30)) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        me = west.services.peer_requests.own_identity(EAST)
        net.sink.answer = lambda address: BUSY
        await east.accept()
        net.isolate(WEST)
        await asyncio.sleep(SPAN)
        net.sink.answer = lambda address: OK
        await until(east.in_role(east.last, Role.DELIVERED), 60)
        assert 1 == len((await east.ledger.real.discards_for(WEST, me.database, 10)).events)
        await net.kill(WEST)

        await asyncio.sleep(30 + 2 * HEARTBEAT)

        assert () == (await east.ledger.real.discards_for(WEST, me.database, 10)).events


@in_virtual_time
async def test_finished_messages_leave_nothing_in_memory(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        for _ in range(20):
            await east.accept()
        await until(net.nodes[WEST].in_role(east.last, Role.DELIVERED), 20)
        await asyncio.sleep(2)

        deliver, review = east.services.deliver, east.services.review
        left = (deliver._queues, deliver._in_review, deliver._fresh, review._wanted, review._later, review._tries, review._suspects)
        assert [0] * len(left) == [len(found) for found in left]
        assert (0, {}, set()) == (
            east.context.flights.busy_count(),
            east.context.leases._copies,
            east.context.flights.copying(list(east.context.flights)),
        )


@in_virtual_time
async def test_the_lease_of_a_copy_that_came_too_late_is_not_kept(tmp_path: Path) -> None:
    """The message was delivered while its copy was on its way, and that could not be recorded: the place service looks at it again."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        await east.accept()
        await until(east.in_role(east.last, Role.DELIVERED), 20)
        east.context.leases.began(east.last, WEST, east.clock.awake(), is_confirmed=True)

        east.services.copy_repair.want(east.last)

        await until(lambda: not east.context.leases._copies, 20)


@in_virtual_time
async def test_refused_messages_leave_nothing_in_memory(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]
        net.hold_fault = lambda primary, shadow: "reply late"

        await east.accept()
        await asyncio.sleep(5)

        assert (0, {}, set()) == (
            east.context.flights.busy_count(),
            east.context.leases._copies,
            east.context.flights.copying(list(east.context.flights)),
        )


# what is written down
@in_virtual_time
async def test_the_log_is_on_disk_before_a_shadow_server_hears_that_it_may_discard(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]

        await east.accept()
        await until(west.in_role(east.last, Role.DELIVERED), 10)

        sent = [number for number, event in enumerate(east.log.events) if event.event in (EventId.SEND, EventId.SENDEXTERNAL)]
        assert 1 == len(sent)
        assert east.log.synced_count > sent[0]


@in_virtual_time
async def test_nothing_is_old_because_the_wall_clock_has_jumped(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        await asyncio.sleep(2 * HEARTBEAT)

        for node in (east, west):
            node.clock.wall_shift = timedelta(days=300)
        await asyncio.sleep(10 * HEARTBEAT)
        net.sink.answer = lambda address: OK

        assert Role.SHADOW is await west.role(east.last)
        await until(east.in_role(east.last, Role.DELIVERED), 60)
        assert 1 == len(net.sink.arrived)
        assert [] == east.log.rows(EventId.EXPIRE) + east.log.rows(EventId.FAIL) + west.log.rows(EventId.EXPIRE)


@in_virtual_time
async def test_the_age_of_a_heartbeat_grows_until_the_peer_is_heard(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        await until(lambda: east.context.peers.heartbeat_ages()[WEST] < 1, 2 * HEARTBEAT)
        await net.kill(WEST)
        await asyncio.sleep(100)
        assert 100 <= east.context.peers.heartbeat_ages()[WEST] < 102

        await net.kill(EAST)
        east = await net.start(EAST, [WEST])  # it has not heard it since its start
        await asyncio.sleep(10)
        assert 10 <= east.context.peers.heartbeat_ages()[WEST] < 11


@in_virtual_time
async def test_the_age_of_a_heartbeat_grows_although_the_peer_still_reaches_this_node(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        await until(lambda: east.context.peers.heartbeat_ages()[WEST] < 1, 2 * HEARTBEAT)
        link = east.context.links[WEST]

        async def discards(maximum: int, acknowledged: int) -> DiscardReply:
            raise PeerUnavailable(WEST, "cannot be reached")

        link.discards = discards  # type: ignore[method-assign]
        await asyncio.sleep(100)

        assert 99 <= east.context.peers.heartbeat_ages()[WEST] < 102
        assert east.context.peers.silence(WEST) < HEARTBEAT + 1, "its own polls come"


@in_virtual_time
async def test_the_last_discard_is_acknowledged_in_the_next_poll_although_nothing_is_held_any_more(tmp_path: Path) -> None:
    async with nodes(
        tmp_path, EAST, WEST, shadow_heartbeat_frequency=timedelta(minutes=5), shadow_resubmit_time_span=timedelta(hours=1)
    ) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await east.accept()
        await until(west.in_role(east.last, Role.DELIVERED), 5)

        assert frozenset() == await east.services.peer_requests.wait_for_acknowledgements(2)


@in_virtual_time
async def test_waiting_until_all_is_told_ends_with_its_time_and_waits_for_nobody_who_is_away(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        west.ledger.fail("discards", 10**6)
        await east.accept()
        await until(east.in_role(east.last, Role.DELIVERED), 5)

        began = east.clock.awake()
        assert {WEST} == await east.services.peer_requests.wait_for_acknowledgements(3)
        assert 3 <= east.clock.awake() - began < 3.1
        net.isolate(EAST)
        await asyncio.sleep(2 * HEARTBEAT)
        assert frozenset() == await east.services.peer_requests.wait_for_acknowledgements(3)
