"""Resubmission from Safety Net: requests on several nodes, with crashes between their steps."""

import asyncio
import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import Origin
from shadowrelay.model.replies import Reply, RequestRefused
from shadowrelay.model.resubmission import Criteria, RequestState
from shadowrelay.model.tracking import EventId, EventSource
from shadowrelay.pipeline import safety_net
from shadowrelay.rules.back_pressure import Pressure
from shadowrelay.store import queues, resubmit_requests
from tests.kit.clock import until
from tests.kit.nodes import EAST, HEARTBEAT, NORTH, SPAN, WEST, VirtualNode, in_virtual_time, nodes
from tests.pipeline.scenes import in_state, request_of, resubmit

INSIDE = [{"recipients": ["*@corp.example"], "next_hop": "store.example:25", "inside_boundary": True}]
SECOND = timedelta(seconds=1)


async def delivered(node: VirtualNode, *recipients: str, **more: Any) -> MessageId:
    """A message that its node has delivered."""
    await node.accept(*recipients, **more)
    message_id = node.last
    await until(node.in_role(message_id, Role.DELIVERED))
    return message_id


def resubmissions(node: VirtualNode) -> list[Any]:
    return [row for row in node.log.rows(EventId.RESUBMIT) if row.source is EventSource.SAFETYNET]


@in_virtual_time
async def test_a_delivered_message_is_delivered_again_as_a_message_of_its_own(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        east = net.nodes[EAST]
        original = await delivered(east, "one@corp.example")

        number = await resubmit(east)
        await until(in_state(east, number, RequestState.DONE))
        await until(lambda: ["one@corp.example"] * 2 == net.sink.addresses())

        (row,) = resubmissions(east)
        assert (original, "request 1", ("one@corp.example",)) == (row.reference, row.source_context, row.recipients)
        made = await east.message(MessageId(row.network_message_id))
        assert made is not None
        assert (Origin.SAFETY_NET, original) == (made.origin, made.envelope.resubmitted_from)
        first, second = (data for _, _, data in net.sink.arrived)
        header = (
            rf"Received: from {EAST} by {EAST}\r\n\twith SafetyNet id {row.network_message_id}\r\n"
            rf"\t\(resubmitted {original} request 1\);\r\n\t[^\r\n]+\r\n"
        )
        found = re.match(header.encode(), second)
        assert found is not None
        assert first == second[found.end() :]
        assert 1 == east.context.counts.resubmitted
        done = await request_of(east, number)
        assert (1, 1, 1, 0, 0) == (
            done.examined_count, done.resubmitted_count, done.redundant_count, done.outside_count, done.missing_count,
        )  # fmt: skip


@in_virtual_time
async def test_nothing_is_resubmitted_to_recipients_outside_the_boundary(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=[*INSIDE, {"recipients": ["*"], "next_hop": "sink.example:25"}]) as net:
        east = net.nodes[EAST]
        await delivered(east, "in@corp.example", "out@elsewhere.example")
        await delivered(east, "only@elsewhere.example")

        number = await resubmit(east)
        await until(in_state(east, number, RequestState.DONE))
        await until(lambda: 4 == len(net.sink.arrived))
        await asyncio.sleep(30)

        assert ["in@corp.example", "in@corp.example", "only@elsewhere.example", "out@elsewhere.example"] == net.sink.addresses()
        done = await request_of(east, number)
        assert (2, 1, 2) == (done.examined_count, done.resubmitted_count, done.outside_count)


@pytest.mark.parametrize(("accepted", "is_inside"), [(["corp.example"], True), (["other.example"], False)])
@in_virtual_time
async def test_mail_for_accepted_domains_is_inside_unless_its_route_says_otherwise(
    tmp_path: Path, accepted: list[str], is_inside: bool
) -> None:
    routes = [{"recipients": ["*@corp.example"], "next_hop": "store.example:25"}]
    async with nodes(tmp_path, EAST, WEST, routes=routes, connector={"accepted_domains": accepted}) as net:
        east = net.nodes[EAST]
        await delivered(east, "one@corp.example")

        number = await resubmit(east)
        await until(in_state(east, number, RequestState.DONE))
        done = await request_of(east, number)

        assert ((1, 0) if is_inside else (0, 1)) == (done.resubmitted_count, done.outside_count)
        assert (not is_inside) is bool(east.log.rows(EventId.SENDEXTERNAL))


@in_virtual_time
async def test_a_recipient_whose_route_leaves_the_boundary_now_is_left_out(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        await delivered(net.nodes[EAST], "one@corp.example")
        await net.kill(EAST)
        east = await net.start(EAST, routes=[{"recipients": ["*"], "next_hop": "store.example:25"}])

        number = await resubmit(east)
        await until(in_state(east, number, RequestState.DONE))

        assert 1 == (await request_of(east, number)).outside_count
        assert [] == resubmissions(east)


@in_virtual_time
async def test_failed_recipients_and_the_resubmitted_are_not_resubmitted(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: Reply(550, "5.1.1", "no") if address.startswith("no") else Reply(250, "2.0.0", "OK")
        await delivered(east, "yes@corp.example", "no@corp.example", sender="")

        for _ in range(2):
            number = await resubmit(east)
            await until(in_state(east, number, RequestState.DONE))
            await asyncio.sleep(5)

        assert [("yes@corp.example",)] * 2 == [row.recipients for row in resubmissions(east)], "the second request found the original only"
        assert ["yes@corp.example"] * 3 == net.sink.addresses()


@in_virtual_time
async def test_criteria_choose_messages_and_recipients(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        east = net.nodes[EAST]
        first = await delivered(east, "one@corp.example", "two@corp.example", sender="Ann@x.example")
        middle = east.clock.now()
        await asyncio.sleep(60)
        second = await delivered(east, "one@corp.example", sender="ben@x.example")

        async def chosen(begin: Any = None, **criteria: str) -> list[tuple[str, tuple[str, ...]]]:
            before = len(resubmissions(east))
            number = await resubmit(east, begin, **criteria)
            await until(in_state(east, number, RequestState.DONE))
            return [(row.reference, row.recipients) for row in resubmissions(east)[before:]]

        both, one = ("one@corp.example", "two@corp.example"), ("one@corp.example",)
        assert [(first, both), (second, one)] == await chosen()
        assert [(second, one)] == await chosen(middle + 30 * SECOND)
        assert [(first, both)] == await chosen(sender="ann@X.example")
        assert [(first, one), (second, one)] == await chosen(recipient="ONE@corp.example")
        assert [(second, one)] == await chosen(message_id=second)
        assert [(first, both), (second, one)] == await chosen(next_hop="store.example:25")
        assert [] == await chosen(next_hop="other.example:25")


@in_virtual_time
async def test_no_notice_is_sent_about_a_resubmitted_message(tmp_path: Path) -> None:
    """Neither of the delay nor of the failure, also where the sender asked for them."""
    send = {"delay_notification_timeout": timedelta(seconds=20)}
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE, send=send) as net:
        east = net.nodes[EAST]
        await delivered(east, "one@corp.example", sender="ann@corp.example")
        net.sink.answer = lambda address: Reply(451, "4.2.0", "later")
        number = await resubmit(east)
        await until(lambda: 1 == len(resubmissions(east)))
        await asyncio.sleep(60)
        net.sink.answer = lambda address: Reply(550, "5.1.1", "no")
        await until(lambda: bool(east.log.rows(EventId.FAIL)))
        await asyncio.sleep(10)

        assert [] == east.log.rows(EventId.DSN)
        await until(in_state(east, number, RequestState.DONE))


@in_virtual_time
async def test_a_request_is_done_only_when_its_messages_have_copies(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        east = net.nodes[EAST]
        await delivered(east, "one@corp.example")
        net.isolate(EAST)
        net.sink.answer = lambda address: Reply(451, "4.2.0", "later")
        number = await resubmit(east)
        await asyncio.sleep(40)

        waiting = await request_of(east, number)
        assert (RequestState.RUNNING, True, 1, 0) == (
            waiting.state, waiting.is_examined, waiting.resubmitted_count, waiting.redundant_count,
        )  # fmt: skip
        net.heal()
        await until(in_state(east, number, RequestState.DONE))
        assert 1 == (await request_of(east, number)).redundant_count
        held = [message.envelope.resubmitted_from for message in await net.nodes[WEST].ledger.real.read(queues.messages, "Shadow\\1", 9)]
        assert 1 == len([original for original in held if original])


@in_virtual_time
async def test_in_reject_mode_it_is_not_delivered_before_it_has_a_copy(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]
        await delivered(east, "one@corp.example")
        net.isolate(EAST)
        await resubmit(east)
        await asyncio.sleep(30)
        assert 1 == len(net.sink.arrived)

        net.heal()
        await until(lambda: 2 == len(net.sink.arrived))


@in_virtual_time
async def test_a_promoted_resubmission_is_known_as_one(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        original = await delivered(east, "one@corp.example", sender="ann@corp.example")
        net.sink.answer = lambda address: Reply(451, "4.2.0", "later")
        number = await resubmit(east)
        await until(in_state(east, number, RequestState.DONE))
        await net.wipe(EAST)
        net.sink.answer = lambda address: Reply(550, "5.1.1", "no")
        await until(lambda: bool(west.log.rows(EventId.FAIL)))

        (row,) = west.log.rows(EventId.RESUBMIT)
        promoted = await west.message(MessageId(row.network_message_id))
        assert promoted is not None
        assert original == promoted.envelope.resubmitted_from
        assert [] == west.log.rows(EventId.DSN)


@in_virtual_time
async def test_large_content_is_resubmitted_whole(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        east = net.nodes[EAST]
        for size in (CONTENT_IN_MEMORY_BYTES_MAX - 10, CONTENT_IN_MEMORY_BYTES_MAX + 10):
            await delivered(east, "one@corp.example", data=b"Subject: x\r\n\r\n" + b"x" * (size - 14))

        number = await resubmit(east)
        await until(in_state(east, number, RequestState.DONE))
        await until(lambda: 4 == len(net.sink.arrived))

        originals = sorted(data for _, _, data in net.sink.arrived[:2])
        again = sorted(data[data.index(b"Subject: x") :] for _, _, data in net.sink.arrived[2:])
        assert originals == again
        assert [] == list(east.ledger.real.spool_directory.iterdir())


@in_virtual_time
async def test_what_cannot_be_read_is_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        east = net.nodes[EAST]
        await delivered(east, "one@corp.example")
        east.corrupt()
        await delivered(east, "two@corp.example")

        number = await resubmit(east)
        await until(in_state(east, number, RequestState.DONE))

        done = await request_of(east, number)
        assert (2, 1, 1) == (done.examined_count, done.resubmitted_count, done.missing_count)
        assert [("two@corp.example",)] == [row.recipients for row in resubmissions(east)]


@in_virtual_time
async def test_a_request_goes_in_pages_and_waits_for_its_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety_net, "PAGE", 3)
    monkeypatch.setattr(safety_net, "UNFINISHED_MAX", 5)
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        east = net.nodes[EAST]
        for number in range(20):
            await delivered(east, f"user{number:02}@corp.example")
        net.sink.answer = lambda address: Reply(451, "4.2.0", "later")

        request = await resubmit(east)
        await asyncio.sleep(30)
        assert 5 == len(resubmissions(east)), "the next hop takes nothing: no more of them are in its queue"
        net.sink.answer = lambda address: Reply(250, "2.0.0", "OK")
        await until(in_state(east, request, RequestState.DONE))
        await until(lambda: 40 == len(net.sink.arrived))

        assert sorted([f"user{number:02}@corp.example" for number in range(20)] * 2) == net.sink.addresses()


@in_virtual_time
async def test_a_disabled_request_stops_and_goes_on_when_enabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safety_net, "UNFINISHED_MAX", 1)
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        east = net.nodes[EAST]
        desk = east.services.safety_net
        for number in range(3):
            await delivered(east, f"user{number}@corp.example")
        net.sink.answer = lambda address: Reply(451, "4.2.0", "later")
        request = await resubmit(east)
        await until(lambda: 1 == len(resubmissions(east)))

        with pytest.raises(RequestRefused, match="request 1 is running: disable it first"):
            await desk.remove(request)
        assert await desk.change(request, is_enabled=False) is not None
        with pytest.raises(RequestRefused, match="request 1 is disabled"):
            await desk.change(request, is_enabled=False)
        net.sink.answer = lambda address: Reply(250, "2.0.0", "OK")
        await until(lambda: 4 == len(net.sink.arrived))
        await asyncio.sleep(30)
        assert 1 == len(resubmissions(east))
        assert await desk.change(request, is_enabled=True) is not None
        await until(in_state(east, request, RequestState.DONE))
        await until(lambda: 6 == len(net.sink.arrived))
        assert await desk.remove(request)
        assert not await desk.remove(request)
        assert await desk.change(request, is_enabled=True) is None
        assert 2 == await resubmit(east), "a number is not given twice: ids are made of it"


@in_virtual_time
async def test_an_interval_must_be_over_and_not_empty(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        now = east.clock.now()
        with pytest.raises(RequestRefused, match="must be over"):
            await east.services.safety_net.request(Criteria(now, now + SECOND))
        with pytest.raises(RequestRefused, match="ends before it begins"):
            await east.services.safety_net.request(Criteria(now, now - SECOND))


@pytest.mark.parametrize("killed_after", range(1, 9))
def test_a_crash_between_steps_resubmits_nothing_twice_and_forgets_nothing(
    tmp_path: Path, killed_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safety_net, "PAGE", 2)

    @in_virtual_time
    async def run() -> None:
        async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
            east = net.nodes[EAST]
            for number in range(5):
                await delivered(east, f"user{number}@corp.example")
            net.sink.answer = lambda address: Reply(451, "4.2.0", "later")
            request = await resubmit(east)
            reached = asyncio.Event()
            real = partial(east.ledger.real.commit, resubmit_requests.progressed)
            steps = 0

            async def counted(*arguments: Any) -> Any:
                nonlocal steps
                result = await real(*arguments)
                steps += 1
                if steps >= killed_after:
                    reached.set()
                    await asyncio.Event().wait()  # committed, and nothing that follows happens
                return result

            east.ledger.instead["progressed"] = counted
            await reached.wait()
            await net.kill(EAST)
            east = await net.start(EAST)
            net.sink.answer = lambda address: Reply(250, "2.0.0", "OK")
            await until(in_state(east, request, RequestState.DONE))
            await until(lambda: 10 <= len(net.sink.arrived))
            await asyncio.sleep(60)

            assert sorted([f"user{number}@corp.example" for number in range(5)] * 2) == net.sink.addresses()
            assert 5 == (await request_of(east, request)).resubmitted_count
            assert 5 == (await request_of(east, request)).redundant_count

    run()


@in_virtual_time
async def test_a_request_waits_during_back_pressure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        east = net.nodes[EAST]
        await delivered(east, "one@corp.example")
        monkeypatch.setattr(Pressure, "may_resubmit", False)
        number = await resubmit(east)
        await asyncio.sleep(30)
        assert RequestState.PENDING is (await request_of(east, number)).state

        monkeypatch.setattr(Pressure, "may_resubmit", True)
        await until(in_state(east, number, RequestState.DONE))


@in_virtual_time
async def test_a_ledger_that_fails_for_a_while_puts_a_request_off(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        east = net.nodes[EAST]
        for number in range(3):
            await delivered(east, f"user{number}@corp.example")
        for name, times in (("progressed", 2), ("wrapped", 1), ("delivered", 1), ("settled", 1), ("change_state", 1)):
            east.ledger.fail(name, times)
        request = await resubmit(east)
        await until(in_state(east, request, RequestState.DONE))
        await asyncio.sleep(5)

        assert [f"user{number // 2}@corp.example" for number in range(6)] == net.sink.addresses()


# for a primary server that is lost
async def resubmit_for(node: VirtualNode, lost: str) -> int:
    return await resubmit(node, primary_server=lost)


async def asked_everywhere(net: Any, lost: str, *names: Any) -> None:
    """Every other node resubmits what the lost one delivered, and is done with it."""
    requests = [(net.nodes[name], await resubmit_for(net.nodes[name], lost)) for name in names]
    for node, number in requests:
        await until(in_state(node, number, RequestState.DONE))


@in_virtual_time
async def test_the_shadow_servers_resubmit_what_a_lost_node_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, routes=INSIDE) as net:
        east = net.nodes[EAST]
        recipients = [f"user{number}@corp.example" for number in range(8)]
        for recipient in recipients:
            await delivered(east, recipient)
        await asyncio.sleep(5)
        await net.wipe(EAST)
        await asyncio.sleep(SPAN + 2 * HEARTBEAT)

        await asked_everywhere(net, EAST, WEST, NORTH)
        await until(lambda: 16 <= len(net.sink.arrived))
        await asyncio.sleep(60)

        assert sorted(recipients * 2) == net.sink.addresses()
        assert {WEST, NORTH} == {by for by, _, _ in net.sink.arrived[8:]}, "each has resubmitted its part"
        counts = [await request_of(net.nodes[name], 1) for name in (WEST, NORTH)]
        assert 8 == sum(found.resubmitted_count for found in counts)

        await asked_everywhere(net, EAST, WEST, NORTH)
        await asyncio.sleep(60)
        assert 16 == len(net.sink.arrived), "once, however often they are asked"


@in_virtual_time
async def test_two_shadow_servers_with_the_same_message_resubmit_it_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, routes=INSIDE) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: Reply(451, "4.2.0", "later")
        await east.accept("one@corp.example")
        original = east.last
        await asyncio.sleep(1)
        first = WEST if await net.nodes[WEST].role(original) is Role.SHADOW else NORTH
        second = NORTH if first is WEST else WEST
        net.cut |= {frozenset((EAST, first))}
        await until(net.nodes[second].in_role(original, Role.SHADOW))
        net.sink.answer = lambda address: Reply(250, "2.0.0", "OK")
        await until(lambda: 1 == len(net.sink.arrived))
        net.heal()
        for name in (WEST, NORTH):
            await until(net.nodes[name].in_role(original, Role.DELIVERED))
        await net.wipe(EAST)
        await asyncio.sleep(SPAN + 2 * HEARTBEAT)

        await asked_everywhere(net, EAST, WEST, NORTH)
        await asyncio.sleep(120)

        assert 2 == len(net.sink.arrived)
        made = {row.network_message_id for name in (WEST, NORTH) for row in resubmissions(net.nodes[name])}
        assert 1 == len(made), "both made the same message"


@in_virtual_time
async def test_a_node_that_lives_resubmits_for_itself(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        west = net.nodes[WEST]
        await delivered(net.nodes[EAST], "one@corp.example")
        await asyncio.sleep(5)

        number = await resubmit_for(west, EAST)
        await until(in_state(west, number, RequestState.DONE))

        found = await request_of(west, number)
        assert (0, 1) == (found.resubmitted_count, found.elsewhere_count)
        with pytest.raises(RequestRefused, match="knows no other node mx9"):
            await resubmit_for(west, "mx9")
        with pytest.raises(RequestRefused, match="knows no other node"):
            await resubmit_for(west, WEST)


@in_virtual_time
async def test_of_a_node_with_a_new_database_the_missing_part_is_resubmitted(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=INSIDE) as net:
        await delivered(net.nodes[EAST], "old@corp.example")
        await asyncio.sleep(5)
        await net.wipe(EAST)
        east, west = await net.start(EAST), net.nodes[WEST]
        await delivered(east, "new@corp.example")
        await asyncio.sleep(5)

        own, of_east = await resubmit(east), await resubmit_for(west, EAST)
        await until(in_state(east, own, RequestState.DONE))
        await until(in_state(west, of_east, RequestState.DONE))
        await asyncio.sleep(60)

        assert ["new@corp.example"] * 2 + ["old@corp.example"] * 2 == net.sink.addresses()
        found = await request_of(west, of_east)
        assert (1, 1) == (found.resubmitted_count, found.elsewhere_count)
