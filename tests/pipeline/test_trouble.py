"""One message, row, read or answer that goes wrong: the others go on, nothing goes twice, and nothing goes round in circles."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from shadowrelay.model.ids import DatabaseId, MessageId
from shadowrelay.model.ownership import CopyNumber, DiscardEvent, DiscardStatus, Role, StatusAnswer, StatusQuestion, StatusState
from shadowrelay.model.peers import DiscardReply
from shadowrelay.model.replies import STORE_UNAVAILABLE, LedgerUnavailable, PeerUnavailable, Reply, TransientDeliveryError
from shadowrelay.rules import delivery
from shadowrelay.store import reading
from tests.kit.clock import until
from tests.kit.nodes import (
    BUSY,
    EAST,
    HEARTBEAT,
    NO_SUCH_USER,
    OK,
    POLL,
    SPAN,
    WEST,
    Net,
    VirtualNode,
    in_virtual_time,
    make_settings,
    nodes,
)

HOPS = [{"recipients": [f"*@{name}.example"], "next_hop": f"{name}.example:25"} for name in ("sick", "healthy")]
UNREADABLE = LedgerUnavailable(STORE_UNAVAILABLE, "EIO")
LATER = StatusAnswer(StatusState.PRIMARY, CopyNumber(0, 1, DatabaseId("another")))  # "I yield to you": wait for it, and ask again


def gone(address: str) -> TransientDeliveryError:
    return TransientDeliveryError(Reply(451, "4.4.1", "nobody listens"), "sick.example:25", is_unreachable=True)


async def queued(net: Net, count: int) -> list[MessageId]:
    """So many messages for a next hop that is out of reach."""
    east = net.nodes[EAST]
    net.sink.answer = gone
    ids = []
    for number in range(count):
        await east.accept(f"u{number}@sick.example")
        ids.append(east.last)
    await asyncio.sleep(1)
    return ids


async def cannot_be_read(east: VirtualNode, ids: Sequence[MessageId]) -> list[int]:
    """Their contents; what is returned counts who tried."""
    places = {(await east.message(message_id)).place for message_id in ids}  # type: ignore[union-attr]
    read_content, tries = east.ledger.real.read_content, [0]

    async def read(place):
        if place in places:
            tries[0] += 1
            raise LedgerUnavailable(STORE_UNAVAILABLE, "EIO")
        return await read_content(place)

    east.ledger.instead["read_content"] = read
    return tries


# contents and rows that cannot be read


@in_virtual_time
async def test_contents_that_cannot_be_read_now_do_not_hold_up_those_that_can(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        ids = await queued(net, 100)
        tries = await cannot_be_read(net.nodes[EAST], ids[:45])

        net.sink.answer = lambda address: OK
        await asyncio.sleep(60)

        assert 55 == len(net.sink.arrived)
        assert tries[0] <= 45 * 60 / 5  # queue_glitch_retry_interval


@in_virtual_time
async def test_a_probe_whose_content_cannot_be_read_has_reached_the_next_hop_all_the_same(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        east = net.nodes[EAST]
        await queued(net, 50)
        (first,) = await east.ledger.real.read(reading.due, "sick.example:25", east.clock.now(), 1)
        await cannot_be_read(east, [first.envelope.message_id])

        net.sink.answer = lambda address: OK
        await asyncio.sleep(30)

        assert 49 == len(net.sink.arrived)


@in_virtual_time
async def test_a_corrupt_row_makes_nothing_else_of_its_queue_forgotten(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        ids = await queued(net, 100)
        with contextlib.closing(sqlite3.connect(tmp_path / EAST / "queue.db")) as connection, connection:
            connection.execute("UPDATE message SET envelope = '{' WHERE message_id = ?", (ids[3],))

        net.sink.answer = lambda address: OK
        await asyncio.sleep(30)

        assert 99 == len(net.sink.arrived)


# outcomes


@in_virtual_time
async def test_what_is_set_aside_is_not_attempted_by_who_had_it_in_memory(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        east = net.nodes[EAST]
        tries = iter([UNREADABLE])
        net.sink.answer = lambda address: next(tries, OK) if "healthy" in address else OK
        east.ledger.fail("attempt", 1, ValueError("a bug"))

        await east.accept("a@sick.example", "b@healthy.example")
        await asyncio.sleep(60)

        assert (["a@sick.example"], Role.SET_ASIDE) == (net.sink.addresses(), await east.role(east.last))


@in_virtual_time
async def test_an_outcome_that_can_never_be_recorded_is_not_forgotten_because_setting_aside_fails_too(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        east = net.nodes[EAST]
        east.ledger.fail("attempt", 1, ValueError("a bug"))
        east.ledger.fail("set_aside", 3)

        await east.accept("a@sick.example")
        await asyncio.sleep(60)

        assert (["a@sick.example"], Role.SET_ASIDE) == (net.sink.addresses(), await east.role(east.last))


@in_virtual_time
async def test_a_dot_without_an_answer_is_not_sent_again_because_the_other_fork_goes_back_to_its_queue(tmp_path: Path) -> None:
    send = {"concurrency_per_destination": 1, "queue_glitch_retry_interval": timedelta(seconds=60)}
    async with nodes(tmp_path, EAST, routes=HOPS, send=send) as net:
        east = net.nodes[EAST]
        dots_count, is_lost = 0, asyncio.Event()

        async def before_dot(server: str) -> None:
            await is_lost.wait()
            raise gone("")

        def answer(address: str) -> Reply | Exception:
            nonlocal dots_count
            if "sick" in address:
                return OK
            dots_count += 1
            return TransientDeliveryError(Reply(451, "4.4.2", "no reply"), "healthy.example:25", dot_sent_unanswered=True)

        net.sink.answer, net.sink.before_dot = answer, before_dot
        await east.accept("first@sick.example")  # has the only session
        await east.accept("a@sick.example", "b@healthy.example")
        await asyncio.sleep(1)
        is_lost.set()
        await asyncio.sleep(10)

        assert 1 == dots_count


# other settings, other times


@in_virtual_time
async def test_new_routes_send_nobody_what_an_attempt_on_the_old_ones_is_sending(tmp_path: Path) -> None:
    send = {"queue_glitch_retry_interval": timedelta(seconds=20)}
    async with nodes(tmp_path, EAST, routes=HOPS, send=send) as net:
        east, may_end = net.nodes[EAST], asyncio.Event()
        net.sink.answer = lambda address: BUSY if "healthy" in address else OK
        net.sink.hang = lambda address: may_end if "sick" in address else None
        await east.accept("a@sick.example", "b@healthy.example")
        await asyncio.sleep(1)

        east.context.settings = make_settings(
            EAST, [], tmp_path, routes=[{"recipients": ["*"], "next_hop": "healthy.example:25"}], send=send
        )
        east.services.deliver.reload()
        net.sink.answer = lambda address: OK
        await asyncio.sleep(60)
        may_end.set()
        await asyncio.sleep(60)

        assert ["a@sick.example", "b@healthy.example"] == net.sink.addresses()


async def a_notice_that_waits_for_its_copy(net: Net) -> VirtualNode:
    """Reject mode: a DSN was made when no peer took copies."""
    east, may_go_on = net.nodes[EAST], asyncio.Event()
    net.sink.answer = lambda address: NO_SUCH_USER if "user1" in address else OK
    net.sink.hang = lambda address: may_go_on if "user1" in address else None
    await east.accept("user1@corp.example")
    await asyncio.sleep(1)

    async def refuse(*arguments, **named):
        raise PeerUnavailable(WEST, "452 full")

    east.context.links[WEST].hold = refuse
    may_go_on.set()
    await asyncio.sleep(20)
    assert [] == net.sink.addresses()
    return east


@in_virtual_time
async def test_what_waits_for_a_copy_waits_no_longer_because_the_clock_was_wrong(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        net.nodes[EAST].clock.wall_shift = timedelta(days=1)
        east = await a_notice_that_waits_for_its_copy(net)

        east.clock.wall_shift = timedelta(0)
        await asyncio.sleep(2 * SPAN)

        assert ["a@x.example"] == net.sink.addresses()


@in_virtual_time
async def test_what_waits_for_a_copy_goes_when_no_copy_is_asked_for_any_more(tmp_path: Path) -> None:
    span = {"shadow_resubmit_time_span": timedelta(hours=3)}
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True, **span) as net:
        east = await a_notice_that_waits_for_its_copy(net)

        transport = east.context.settings.transport.model_copy(update={"reject_message_on_shadow_failure": False})
        east.context.settings = east.context.settings.model_copy(update={"transport": transport})
        east.services.deliver.reload()
        await asyncio.sleep(60)

        assert ["a@x.example"] == net.sink.addresses()


# what grows


@in_virtual_time
async def test_next_hops_that_died_leave_nothing_behind(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=[], message_expiration_timeout=timedelta(seconds=30)) as net:
        east = net.nodes[EAST]
        net.sink.answer = gone
        for number in range(15):
            await east.accept(f"u@d{number}.example", sender="")
        assert 15 == len(east.services.deliver.queues())

        await asyncio.sleep(3600)

        assert {} == east.services.deliver.queues()


@in_virtual_time
async def test_a_queue_remembers_when_its_first_message_is_due_not_when_each_is(tmp_path: Path) -> None:
    send = {"queue_glitch_retry_interval": timedelta(minutes=15)}
    async with nodes(tmp_path, EAST, routes=HOPS, send=send) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        for number in range(200):
            await east.accept(f"u{number}@sick.example")
        await asyncio.sleep(10)
        waiting = len(east.services.deliver._queues._times)
        net.sink.answer = lambda address: OK
        await asyncio.sleep(1200)

        assert (200, True) == (len(net.sink.arrived), waiting < 20)


@in_virtual_time
async def test_many_silent_next_hops_together_load_no_more_than_the_bound_and_one_each(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=[]) as net:
        east, may_end = net.nodes[EAST], asyncio.Event()
        net.sink.hang = lambda address: may_end
        for hop in range(40):
            for number in range(40):
                await east.accept(f"u{number}@d{hop}.example", sender="")
        await asyncio.sleep(1)
        loaded = sum(len(queue.loaded) for queue in east.services.deliver._queues)
        may_end.set()

        assert delivery.LOADED_MAX <= loaded <= delivery.LOADED_MAX + 40


@in_virtual_time
async def test_a_ledger_that_refuses_is_not_asked_to_hasten_every_queue_each_time(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=[]) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        for number in range(20):
            await east.accept(f"u@d{number}.example", sender="")
        await asyncio.sleep(2)
        before = east.ledger.counts["hasten"]

        east.ledger.fail("notices_due", 10)
        await asyncio.sleep(60)

        assert before == east.ledger.counts["hasten"]


# peers


@in_virtual_time
async def test_a_message_that_stays_in_review_leaves_the_probe_to_others(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        ids = await queued(net, 10)
        for message_id in ids:
            east.context.leases.forget(message_id)
        link, stuck = east.context.links[WEST], ids[0]  # whose attempt would be the probe
        status, asked_count = link.status, 0

        async def all_but_one(questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
            """West is primary of one of them too, and about to yield: it is asked about that one again."""
            nonlocal asked_count
            answers = await status(questions)
            asked_count += stuck in [question.message_id for question in questions]
            return tuple(LATER if asked.message_id == stuck else answer for asked, answer in zip(questions, answers, strict=True))

        link.status = all_but_one  # type: ignore[method-assign]
        net.sink.answer = lambda address: OK
        await until(lambda: 9 == len(net.sink.arrived))
        assert 1 == asked_count, "it is still in its first review"
        await asyncio.sleep(60)

        assert 9 == len(net.sink.arrived)


@in_virtual_time
async def test_a_peer_that_answers_polls_but_no_questions_is_tried_by_one_message_at_a_time(tmp_path: Path) -> None:
    """East starts anew, so that all that waits must be asked about."""
    async with nodes(tmp_path, EAST, WEST) as net:
        west = net.nodes[WEST]
        net.sink.answer = gone
        for number in range(50):
            await net.nodes[EAST].accept(f"u{number}@corp.example")
        await asyncio.sleep(2)
        await net.kill(EAST)
        west.ledger.fail("transition", 10**9)
        net.sink.answer = lambda address: OK
        east = await net.start(EAST)
        await asyncio.sleep(30)
        before = east.ledger.real.position
        await asyncio.sleep(60)
        commits_count = east.ledger.real.position - before
        west.ledger.fail("transition", 0)
        await asyncio.sleep(4 * HEARTBEAT)

        assert commits_count < 600
        assert 50 == len(set(net.sink.addresses()))


@in_virtual_time
async def test_a_peer_that_answers_no_question_for_a_span_is_not_waited_for_any_longer(
    tmp_path: Path, logged: list[dict[str, Any]]
) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="deliver") as net:
        net.sink.answer = gone
        await net.nodes[EAST].accept()
        await asyncio.sleep(1)
        await net.kill(EAST)
        net.nodes[WEST].ledger.fail("transition", 10**9)
        net.sink.answer = lambda address: OK
        await net.start(EAST)
        await asyncio.sleep(SPAN - HEARTBEAT)
        before = net.sink.addresses()
        await asyncio.sleep(2 * HEARTBEAT + SPAN)

        assert ([], ["user1@corp.example"]) == (before, net.sink.addresses())
        assert 1 == sum(line["event"] == "peer.answers_no_questions" for line in logged)


@in_virtual_time
async def test_a_peer_that_repeats_what_was_acknowledged_is_asked_again_only_by_the_next_poll(
    tmp_path: Path, logged: list[dict[str, Any]]
) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        link, asked_count = east.context.links[WEST], 0
        event = DiscardEvent(7, MessageId("00000000-0000-4000-8000-000000000001"), DiscardStatus.DELIVERED)

        async def repeat(maximum, acknowledged):
            nonlocal asked_count
            asked_count += 1
            return DiscardReply((event,), 999_999)

        link.discards = repeat
        await asyncio.sleep(20 * HEARTBEAT)

        assert 10 < asked_count < 20 * HEARTBEAT / POLL + 10
        assert 1 == sum(line["event"] == "discards.repeated" for line in logged)


@in_virtual_time
async def test_a_new_database_is_asked_about_although_the_ledger_failed_just_then(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = gone
        ids = []
        for number in range(3):
            await east.accept(f"u{number}@corp.example")
            ids.append(east.last)
        await asyncio.sleep(2)
        await net.wipe(WEST)
        east.ledger.fail("primaries_listed_on", 1)

        west = await net.start(WEST)
        await asyncio.sleep(30)

        assert [Role.SHADOW] * 3 == [await west.role(message_id) for message_id in ids]


@in_virtual_time
async def test_small_repairs_do_not_wait_behind_large_ones(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, large_count, small_count = net.nodes[EAST], 220, 20
        net.sink.answer = gone
        await net.kill(WEST)
        await asyncio.sleep(12)
        for number in range(large_count):
            await east.accept(f"large{number}@corp.example", data=b"Subject: x\r\n\r\n" + b"x" * 263_000 + b"\r\n")
        for number in range(small_count):
            await east.accept(f"small{number}@corp.example")
        await net.start(WEST)
        link = east.context.links[WEST]
        hold, stored = link.hold, []

        async def slowly(offer, deadline, stall_seconds=None):
            if offer.content.size > 256 * 1024:
                await asyncio.sleep(5)
            answer = await hold(offer, deadline, stall_seconds)
            stored.append(offer.content.size)
            return answer

        link.hold = slowly
        await asyncio.sleep(60)
        assert small_count == sum(size < 1000 for size in stored)
        await asyncio.sleep(600)
        assert large_count + small_count == len(stored)
