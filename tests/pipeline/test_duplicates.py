"""A message that a client sends again: recognised at its attempt, by what was delivered before. docs/design.md 6.5."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.counts import AttemptResult
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import Origin
from shadowrelay.model.replies import Reply, TransientDeliveryError
from shadowrelay.model.tracking import EventId
from shadowrelay.ownership import claims
from shadowrelay.rules.repeats import AWAITED_MAX
from shadowrelay.store import queues
from tests.kit.nodes import BUSY, EAST, NORTH, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes, until

DATE = "Sun, 1 Mar 2026 12:00:00 +0000"
HEADERS = {"internet_message_id": "<1@x.example>", "date": DATE, "fingerprint": "0" * 32}
WINDOW, CLEANUP = 600.0, 60.0
SETTINGS = {"duplicate_detection_window": timedelta(seconds=WINDOW), "duplicate_cleanup_interval": timedelta(seconds=CLEANUP)}
TWO_HOPS = [{"recipients": ["*@a.example"], "next_hop": "a.example:25"}, {"recipients": ["*@b.example"], "next_hop": "b.example:25"}]


async def rows_of(node: VirtualNode) -> int:
    """Recorded deliveries."""
    ask = node.ledger.real._readers.ask
    count: int = await ask(lambda connection: connection.exec_driver_sql("SELECT count(*) FROM delivered_to").scalar_one())
    return count


async def send(node: VirtualNode, *recipients: str, **fields: Any) -> str:
    """A message that is delivered, or ends; its id."""
    await node.accept(*recipients, **{**HEADERS, **fields})
    await until(node.in_role(node.last, Role.DELIVERED), 30)
    return node.last


# the second message
@in_virtual_time
async def test_a_message_that_a_client_sends_again_ends_as_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        first = await send(east, "u@a.example")

        second = await send(east, "u@a.example")

        assert ["u@a.example"] == net.sink.addresses()
        (row,) = east.log.rows(EventId.DUPLICATEDELIVER)
        assert (second, ("u@a.example",), f"delivered as {first}", first) == (
            row.network_message_id,
            row.recipients,
            row.source_context,
            row.reference,
        )
        assert 1 == east.context.counts.attempts[AttemptResult.DUPLICATE]
        assert [first] == [sent.network_message_id for sent in east.log.rows(EventId.SENDEXTERNAL)]
        await until(west.in_role(second, Role.DELIVERED), 30), "its discard is as usual"


@pytest.mark.parametrize(
    "change", [{"fingerprint": "1" * 32}, {"fingerprint": ""}, {"client_address": "192.0.2.9"}, {"connector": "from-the-filter"}]
)
@in_virtual_time
async def test_another_content_client_or_connector_makes_it_another_message(tmp_path: Path, change: dict[str, str]) -> None:
    """A device repeats its Message-ID and Date; a forger is first with them; a filter hands the message back without trace fields."""
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        await send(east, "u@a.example", client_address="192.0.2.1", connector="inbound")

        await send(east, "u@a.example", **{"client_address": "192.0.2.1", "connector": "inbound", **change})

        assert ["u@a.example"] * 2 == net.sink.addresses()


TRACE = f"Received: from client ([192.0.2.1])\r\n\tby {EAST} with ESMTP id 1;\r\n\tSun, 1 Mar 2026 12:00:00 +0000\r\n"
TAKEN_OVER = f"Received: from mx9.example by {EAST}\r\n\twith ShadowRedundancy id 1;\r\n\tSun, 1 Mar 2026 12:00:00 +0000\r\n"


@pytest.mark.parametrize("trace", [TRACE, TAKEN_OVER, ""], ids=["received here", "taken over here", "the filter removes trace fields"])
@in_virtual_time
async def test_what_this_node_has_passed_on_and_takes_over_again_is_no_duplicate(tmp_path: Path, trace: str) -> None:
    """EAST delivers to a filter, which hands the message to WEST; WEST places a copy on EAST, and is lost. Its 250 was a promise."""
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await send(east, "u@a.example")
        net.sink.answer = lambda address: BUSY
        assert 250 == (await west.accept("u@a.example", data=f"{trace}Subject: hello\r\n\r\nhello\r\n".encode(), **HEADERS)).code
        await until(east.in_role(west.last, Role.SHADOW), 30)
        await net.kill(WEST)
        net.sink.answer = lambda address: OK
        await until(east.in_role(west.last, Role.DELIVERED), 3 * SPAN)

        assert ["u@a.example"] * 2 == net.sink.addresses()
        assert [] == east.log.rows(EventId.DUPLICATEDELIVER)


@in_virtual_time
async def test_only_the_recipients_that_were_reached_are_left_out(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=TWO_HOPS, **SETTINGS) as net:
        east = net.nodes[EAST]
        await send(east, "one@a.example", "two@b.example")

        await send(east, "new@a.example", "one@a.example", "two@b.example", "new@b.example")

        assert ["new@a.example", "new@b.example", "one@a.example", "two@b.example"] == net.sink.addresses()
        assert [("one@a.example",), ("two@b.example",)] == sorted(row.recipients for row in east.log.rows(EventId.DUPLICATEDELIVER))


@in_virtual_time
async def test_more_recipients_than_one_transaction_has(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        await send(east, *(f"u{number}@a.example" for number in range(0, 250)))

        await send(east, *(f"u{number}@a.example" for number in range(100, 350)))

        assert sorted(f"u{number}@a.example" for number in range(350)) == net.sink.addresses()
        assert 150 == sum(len(row.recipients) for row in east.log.rows(EventId.DUPLICATEDELIVER))


@in_virtual_time
async def test_a_recipient_named_twice_in_one_message_gets_it_twice_as_before(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        recipients = [f"u{number}@a.example" for number in range(100)] + ["u0@a.example"]
        answers = iter((OK, BUSY, OK))  # the second one in a transaction of its own, and again after the first is recorded
        net.sink.answer = lambda address: next(answers) if address == "u0@a.example" else OK

        await send(net.nodes[EAST], *recipients)

        assert sorted(recipients) == net.sink.addresses()
        assert [] == net.nodes[EAST].log.rows(EventId.DUPLICATEDELIVER)


@in_virtual_time
async def test_the_sender_hears_of_the_delivery_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        await send(east, "u@a.example")
        await send(east, "u@a.example")
        await asyncio.sleep(5)

        assert [] == [message for message in await east.ledger.real.read(queues.messages, "", 9) if message.origin is Origin.DSN]
        assert [] == east.log.rows(EventId.DSN)


# what counts as delivered
@in_virtual_time
async def test_a_refusal_is_no_delivery(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: Reply(550, "5.1.1", "no such user") if address == "u@a.example" else OK
        await send(east, "u@a.example")
        net.sink.answer = lambda address: OK

        await send(east, "u@a.example")

        assert ["a@x.example", "u@a.example"] == net.sink.addresses(), "the notice, and the second message"


@in_virtual_time
async def test_a_delivery_without_an_answer_to_the_dot_is_not_counted(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        lost = TransientDeliveryError(BUSY, "sink.example", is_connection=True, dot_sent_unanswered=True)
        net.sink.answer = lambda address: lost
        await east.accept("u@a.example", **HEADERS)
        await until(lambda: 1 == len(east.log.rows(EventId.DEFER)))
        first = east.last
        net.sink.answer = lambda address: OK

        second = await send(east, "u@a.example")
        await until(east.in_role(first, Role.DELIVERED), 600)

        assert [second] == [row.network_message_id for row in east.log.rows(EventId.SENDEXTERNAL)]
        (row,) = east.log.rows(EventId.DUPLICATEDELIVER)
        assert first == row.network_message_id, "whichever is delivered first, the other is the duplicate"


# the window
@in_virtual_time
async def test_when_the_window_is_over_it_is_delivered_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        await send(east, "u@a.example")
        await asyncio.sleep(WINDOW - 10)
        await send(east, "u@a.example")
        assert 1 == len(net.sink.arrived), "a duplicate does not lengthen the window"

        await asyncio.sleep(15)
        await send(east, "u@a.example")
        assert 2 == len(net.sink.arrived)

        await asyncio.sleep(WINDOW - 10)
        await send(east, "u@a.example")
        assert 2 == len(net.sink.arrived), "the window begins anew with each delivery"


@in_virtual_time
async def test_the_length_of_the_window_is_the_setting(tmp_path: Path) -> None:
    for seconds, expected in ((60, 2), (120, 1)):
        async with nodes(tmp_path / str(seconds), EAST, duplicate_detection_window=timedelta(seconds=seconds)) as net:
            east = net.nodes[EAST]
            await send(east, "u@a.example")
            await asyncio.sleep(90)
            await send(east, "u@a.example")

            assert expected == len(net.sink.arrived)


@in_virtual_time
async def test_with_a_window_of_zero_nothing_is_compared_or_recorded(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, duplicate_detection_window=timedelta(0)) as net:
        east = net.nodes[EAST]
        await send(east, "u@a.example")
        await send(east, "u@a.example")

        assert ["u@a.example"] * 2 == net.sink.addresses()
        assert 0 == await rows_of(east)
        assert 0 == east.ledger.counts["may_be_delivered"]


# what is not recognised, as documented
@pytest.mark.parametrize(
    "difference",
    [{"internet_message_id": "<2@x.example>"}, {"date": "Sun, 1 Mar 2026 12:00:01 +0000"}, {"sender": "other@x.example"}],
)
def test_a_message_that_differs_is_another(tmp_path: Path, difference: dict[str, str]) -> None:
    @in_virtual_time
    async def both() -> None:
        async with nodes(tmp_path, EAST, **SETTINGS) as net:
            await send(net.nodes[EAST], "u@a.example")
            await send(net.nodes[EAST], "u@a.example", **difference)
            assert ["u@a.example"] * 2 == net.sink.addresses()

    both()


@pytest.mark.parametrize("missing", ["internet_message_id", "date"])
def test_a_message_without_message_id_or_date_is_never_a_duplicate(tmp_path: Path, missing: str) -> None:
    @in_virtual_time
    async def both() -> None:
        async with nodes(tmp_path, EAST, **SETTINGS) as net:
            await send(net.nodes[EAST], "u@a.example", **{missing: ""})
            await send(net.nodes[EAST], "u@a.example", **{missing: ""})
            assert ["u@a.example"] * 2 == net.sink.addresses()
            assert 0 == await rows_of(net.nodes[EAST])

    both()


# sent again to another node
def stuck(net: Net, *servers: str) -> None:
    """What these nodes deliver is deferred; the others deliver."""

    async def before_dot(server: str) -> None:
        if server in servers:
            raise TransientDeliveryError(BUSY, "sink.example")

    net.sink.before_dot = before_dot


async def held_by(net: Net, first: str, second: str) -> str:
    """A message that one node has accepted and cannot deliver, of which the other one holds the copy."""
    stuck(net, first)
    node = net.nodes[first]
    await node.accept("u@a.example", **HEADERS)
    await until(net.nodes[second].in_role(node.last, Role.SHADOW), 10)
    await until(lambda: 1 == len(node.log.rows(EventId.DEFER)), 10)
    return node.last


@in_virtual_time
async def test_what_another_node_delivered_is_recognised_by_the_node_that_held_the_copy(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        first = await send(east, "u@a.example")
        await until(west.in_role(first, Role.DELIVERED), 30)

        await send(west, "u@a.example")

        assert ["u@a.example"] == net.sink.addresses()
        (row,) = west.log.rows(EventId.DUPLICATEDELIVER)
        assert first == row.reference


@in_virtual_time
async def test_a_recipient_whom_the_other_node_did_not_reach_is_tried_again(tmp_path: Path) -> None:
    """Done is not delivered: the second message is ended only for whom the first node itself would have ended it."""
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: Reply(550, "5.1.1", "no such user") if address == "bad@a.example" else OK
        first = await send(east, "bad@a.example", "u@a.example")
        await until(west.in_role(first, Role.DELIVERED), 60)
        net.sink.answer = lambda address: OK

        await send(west, "bad@a.example", "u@a.example")

        assert ["a@x.example", "bad@a.example", "u@a.example"] == net.sink.addresses()
        assert [("u@a.example",)] == [row.recipients for row in west.log.rows(EventId.DUPLICATEDELIVER)]


@in_virtual_time
async def test_with_several_next_hops_each_recipient_is_judged_by_itself(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=TWO_HOPS, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: Reply(550, "5.1.1", "no such user") if address == "bad@b.example" else OK
        first = await send(east, "u@a.example", "bad@b.example")
        await until(west.in_role(first, Role.DELIVERED), 60)
        net.sink.answer = lambda address: OK

        await send(west, "u@a.example", "bad@b.example")

        assert ["a@x.example", "bad@b.example", "u@a.example"] == net.sink.addresses()


@pytest.mark.parametrize("change", [{"fingerprint": "1" * 32}, {"client_address": "192.0.2.9"}, {"connector": "from-the-filter"}])
@in_virtual_time
async def test_of_another_node_too_content_client_and_connector_count(tmp_path: Path, change: dict[str, str]) -> None:
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        first = await send(east, "u@a.example")
        await until(west.in_role(first, Role.DELIVERED), 30)

        await send(west, "u@a.example", **change)

        assert ["u@a.example"] * 2 == net.sink.addresses()


@in_virtual_time
async def test_what_a_filter_behind_the_other_node_hands_on_is_not_taken_for_a_repetition(tmp_path: Path) -> None:
    """It has the client's address and no trace of its first pass; that the two nodes send the mail to different servers tells it."""
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        await net.stop(WEST)
        west = await net.start(WEST, routes=[{"recipients": ["*"], "next_hop": "store.example:25"}])
        first = await send(net.nodes[EAST], "u@a.example")  # to the filter
        await until(west.in_role(first, Role.DELIVERED), 30)

        await send(west, "u@a.example")

        assert (["u@a.example"], ["u@a.example"]) == (net.sink.by(EAST), net.sink.by(WEST))


@in_virtual_time
async def test_a_third_node_does_not_know_of_the_delivery(tmp_path: Path) -> None:
    """Only the node that held the copy does. Cause (e)."""
    async with nodes(tmp_path, EAST, WEST, NORTH, **SETTINGS) as net:
        first = await send(net.nodes[EAST], "u@a.example")
        (third,) = [node for node in (net.nodes[WEST], net.nodes[NORTH]) if await node.role(first) is None]

        await send(third, "u@a.example")

        assert (["u@a.example"], ["u@a.example"]) == (net.sink.by(EAST), net.sink.by(third.name))


@in_virtual_time
async def test_while_another_node_has_yet_to_deliver_it_the_repetition_waits(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        first = await held_by(net, EAST, WEST)
        await west.accept("u@a.example", **HEADERS)
        second = west.last
        await asyncio.sleep(30)
        stored = await west.message(second)
        assert stored is not None
        assert f"Sent before, to {EAST} as {first}" in stored.retries[0].last_reply, "the queue says why it waits"
        assert [] == net.sink.addresses()
        stuck(net)
        await east.services.deliver.retry("a.example:25", 9)

        await until(west.in_role(second, Role.DELIVERED), 5), "not at the end of a minute"

        assert (["u@a.example"], []) == (net.sink.by(EAST), net.sink.by(WEST))
        (row,) = west.log.rows(EventId.DUPLICATEDELIVER)
        assert (second, first) == (row.network_message_id, row.reference)


@in_virtual_time
async def test_it_waits_for_a_limited_time_and_is_delivered(tmp_path: Path) -> None:
    """The other node defers the message for longer; and when it tries again, it knows what was delivered here."""
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        first = await held_by(net, EAST, WEST)
        await west.accept("u@a.example", **HEADERS)
        await asyncio.sleep(AWAITED_MAX.total_seconds() - 5)
        assert [] == net.sink.addresses()

        await until(west.in_role(west.last, Role.DELIVERED), 90)
        await until(east.in_role(west.last, Role.DELIVERED), 10)
        stuck(net)
        await until(east.in_role(first, Role.DELIVERED), 600)

        assert ([], ["u@a.example"]) == (net.sink.by(EAST), net.sink.by(WEST))
        assert [west.last] == [row.reference for row in east.log.rows(EventId.DUPLICATEDELIVER)]


@in_virtual_time
async def test_two_nodes_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Each holds the copy of what the other one accepted: the later one waits."""
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        stuck(net, EAST, WEST)
        await east.accept("u@a.example", **HEADERS)
        await west.accept("u@a.example", **HEADERS)
        await until(lambda: west.in_role(east.last, Role.SHADOW)(), 10)
        await until(lambda: east.in_role(west.last, Role.SHADOW)(), 10)
        stuck(net)

        for node in (east, west):
            await until(node.in_role(node.last, Role.DELIVERED), 150)

        assert ["u@a.example"] == net.sink.addresses()


@in_virtual_time
async def test_the_node_that_accepted_it_is_lost_and_the_repetition_ends_as_a_repeat_of_what_was_taken_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        west = net.nodes[WEST]
        first = await held_by(net, EAST, WEST)
        await net.kill(EAST)
        await west.accept("u@a.example", **HEADERS)

        await until(west.in_role(west.last, Role.DELIVERED), 3 * SPAN)

        assert ["u@a.example"] == net.sink.addresses()
        assert [first] == [row.reference for row in west.log.rows(EventId.DUPLICATEDELIVER)]


@in_virtual_time
async def test_a_copy_that_is_not_needed_any_more_holds_nothing_up(tmp_path: Path) -> None:
    """A client that was refused goes to the next server: what it sends there is delivered."""
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        first = await held_by(net, EAST, WEST)
        await east.context.end_claims([first], lambda _, claim: claims.client_refused(claim))
        await until(west.in_role(first, Role.RELEASED), 10)

        await send(west, "u@a.example")

        assert ["u@a.example"] == net.sink.by(WEST)


@in_virtual_time
async def test_after_a_restart_the_deliveries_of_copies_held_before_are_recorded(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east = net.nodes[EAST]
        first = await held_by(net, EAST, WEST)
        await net.kill(WEST)
        west = await net.start(WEST)
        stuck(net)
        await east.services.deliver.retry("a.example:25", 9)
        await until(west.in_role(first, Role.DELIVERED), 30)

        await send(west, "u@a.example")

        assert (["u@a.example"], []) == (net.sink.by(EAST), net.sink.by(WEST))


# with a shadow server
@in_virtual_time
async def test_a_promoted_message_is_delivered_although_its_client_sent_it_again_here(tmp_path: Path) -> None:
    """It may as well be one that a filter handed to the lost server: in doubt, deliver. Cause (e). A node that was started again does not
    wait for what it held before."""
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        first = await held_by(net, EAST, WEST)
        await net.kill(EAST)
        await net.kill(WEST)
        west = await net.start(WEST)
        await send(west, "u@a.example")  # its client had no reply from the first node

        await until(west.in_role(first, Role.DELIVERED), SPAN * 3)

        assert ["u@a.example"] * 2 == net.sink.addresses()
        assert [] == west.log.rows(EventId.DUPLICATEDELIVER)


@in_virtual_time
async def test_what_is_sent_again_after_a_takeover_is_recognised(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept("u@a.example", **HEADERS)
        await until(west.in_role(east.last, Role.SHADOW), 10)
        await net.kill(EAST)
        net.sink.answer = lambda address: OK
        await until(west.in_role(east.last, Role.DELIVERED), SPAN * 3)

        await send(west, "u@a.example")

        assert ["u@a.example"] == net.sink.addresses()
        (row,) = west.log.rows(EventId.DUPLICATEDELIVER)
        assert east.last == row.reference


@in_virtual_time
async def test_a_copy_from_a_version_that_does_not_say_its_date_is_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, **SETTINGS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        await east.accept("u@a.example", internet_message_id=HEADERS["internet_message_id"])
        await until(west.in_role(east.last, Role.SHADOW), 10)
        await net.kill(EAST)
        net.sink.answer = lambda address: OK
        await send(west, "u@a.example")

        await until(west.in_role(east.last, Role.DELIVERED), SPAN * 3)

        assert ["u@a.example"] * 2 == net.sink.addresses()


# two at a time
@in_virtual_time
async def test_while_one_is_being_delivered_the_other_waits_for_its_outcome(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        gate = asyncio.Event()
        net.sink.hang = lambda address: gate
        await east.accept("u@a.example", **HEADERS)
        first = east.last
        await until(lambda: 1 == net.sink.attempts_count)

        await east.accept("u@a.example", **HEADERS)
        await asyncio.sleep(30)
        assert 1 == net.sink.attempts_count
        gate.set()

        await until(east.in_role(east.last, Role.DELIVERED), 60)
        assert ["u@a.example"] == net.sink.addresses()
        (row,) = east.log.rows(EventId.DUPLICATEDELIVER)
        assert first == row.reference


@in_virtual_time
async def test_if_the_one_fails_the_other_is_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        gate = asyncio.Event()
        net.sink.hang = lambda address: gate
        answers = iter((Reply(550, "5.7.1", "no"), OK, OK))
        net.sink.answer = lambda address: next(answers) if address == "u@a.example" else OK
        await east.accept("u@a.example", **HEADERS)
        await until(lambda: 1 == net.sink.attempts_count)
        await east.accept("u@a.example", **HEADERS)
        gate.set()

        await until(east.in_role(east.last, Role.DELIVERED), 60)

        assert net.sink.addresses().count("u@a.example") == 1
        assert [] == east.log.rows(EventId.DUPLICATEDELIVER)


@in_virtual_time
async def test_a_whole_queue_of_the_same_message_is_delivered_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: TransientDeliveryError(BUSY, "sink.example", is_connection=True, is_unreachable=True)
        ids = []
        for _ in range(30):
            await east.accept("u@a.example", **HEADERS)
            ids.append(east.last)
        await asyncio.sleep(60)
        net.sink.answer = lambda address: OK

        for message_id in ids:
            await until(east.in_role(message_id, Role.DELIVERED), 1_200)

        assert ["u@a.example"] == net.sink.addresses()
        assert 29 == len(east.log.rows(EventId.DUPLICATEDELIVER))


# a queue in Retry
@in_virtual_time
async def test_a_duplicate_says_nothing_about_the_next_hop(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        await send(east, "u@a.example")
        net.sink.answer = lambda address: TransientDeliveryError(BUSY, "sink.example", is_connection=True, is_unreachable=True)
        await east.accept("other@a.example")
        queue = lambda: east.services.deliver.queues()["sink.example:25"].state  # noqa: E731
        await until(lambda: queue().retry is not None)
        since = queue().retry.since

        await east.accept("u@a.example", **HEADERS)
        await until(east.in_role(east.last, Role.DELIVERED), 600)

        assert since == queue().retry.since


# the ledger
@in_virtual_time
async def test_after_a_crash_the_deliveries_are_still_known(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        await send(net.nodes[EAST], "u@a.example")
        await net.kill(EAST)
        east = await net.start(EAST)

        await send(east, "u@a.example")

        assert ["u@a.example"] == net.sink.addresses()


@in_virtual_time
async def test_an_outcome_that_is_not_recorded_is_no_delivery(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        east.ledger.fail("attempt", 10_000)
        await east.accept("u@a.example", **HEADERS)
        await until(lambda: bool(net.sink.arrived))
        await net.kill(EAST)
        east = await net.start(EAST)

        await until(lambda: 2 == len(net.sink.arrived), 60)

        assert [] == east.log.rows(EventId.DUPLICATEDELIVER)


@in_virtual_time
async def test_while_the_ledger_cannot_be_read_a_likely_duplicate_waits(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        await send(east, "u@a.example")
        east.ledger.fail("delivered_before", 2)

        await send(east, "u@a.example")

        assert ["u@a.example"] == net.sink.addresses()
        assert 3 == east.ledger.counts["delivered_before"]


@in_virtual_time
async def test_an_ordinary_message_needs_no_look_up(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        for number in range(20):
            await send(net.nodes[EAST], "u@a.example", internet_message_id=f"<{number}@x.example>")

        assert 20 == net.nodes[EAST].ledger.counts["may_be_delivered"]
        assert 0 == net.nodes[EAST].ledger.counts["delivered_before"]


# cleaning up
@in_virtual_time
async def test_old_deliveries_are_removed_at_the_cleanup_interval(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(CLEANUP / 2)
        await send(east, "u@a.example")
        await asyncio.sleep(began + WINDOW + CLEANUP - 1 - asyncio.get_running_loop().time())
        assert 1 == await rows_of(east), "its window is over, but no cleanup was due"

        await asyncio.sleep(2)

        assert 0 == await rows_of(east)


@in_virtual_time
async def test_a_shorter_interval_removes_them_sooner(tmp_path: Path) -> None:
    for interval, expected in ((50.0, 1), (5.0, 0)):
        settings = {
            "duplicate_detection_window": timedelta(seconds=30),
            "duplicate_cleanup_interval": timedelta(seconds=interval),
        }
        async with nodes(tmp_path / str(interval), EAST, **settings) as net:
            await send(net.nodes[EAST], "u@a.example")
            await asyncio.sleep(40)

            assert expected == await rows_of(net.nodes[EAST])


@in_virtual_time
async def test_a_reload_changes_window_and_interval(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **{**SETTINGS, "duplicate_cleanup_interval": timedelta(days=1)}) as net:
        east = net.nodes[EAST]
        await send(east, "u@a.example")
        changes = {"duplicate_detection_window": timedelta(0), "duplicate_cleanup_interval": timedelta(seconds=10)}
        transport = east.context.settings.transport.model_copy(update=changes)
        east.context.settings = east.context.settings.model_copy(update={"transport": transport})

        await send(east, "u@a.example")
        assert 2 == len(net.sink.arrived)
        await asyncio.sleep(70)

        assert 0 == await rows_of(east)


@in_virtual_time
async def test_a_delivery_recorded_by_a_clock_that_was_years_ahead_is_forgotten(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, **SETTINGS) as net:
        east = net.nodes[EAST]
        east.clock.wall_shift = timedelta(days=3_650)
        await send(east, "u@a.example")
        east.clock.wall_shift = timedelta(0)

        await send(east, "u@a.example")
        assert 2 == len(net.sink.arrived)
        await asyncio.sleep(CLEANUP * 2)

        assert 1 == await rows_of(east)
        await send(east, "u@a.example")
        assert 2 == len(net.sink.arrived)
