"""Delayed acknowledgement: a client's 250 waits until its message is delivered, or kept by two servers. docs/design.md 6.7."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.drain_progress import DrainState
from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import Reply
from shadowrelay.model.tracking import Acknowledged, EventId
from shadowrelay.pipeline.delayed import Delayed
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, make_settings, message_id
from tests.pipeline.edges import EDGE, HUB, an_edge

REFUSED = Reply(550, "5.1.1", "no such user")
DELAY = 30.0


def now() -> float:
    return asyncio.get_running_loop().time()


async def a_node(net: Net, redundancy: str = "previous-hop", **changes: Any) -> VirtualNode:
    return await net.start(EAST, [], redundancy=redundancy, **changes)


def counted(node: VirtualNode) -> set[Acknowledged]:
    return {why for why, count in node.context.counts.delayed.items() if count}


@in_virtual_time
async def test_the_250_waits_until_the_next_hop_has_the_message(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        node = await a_node(net)
        net.sink.answer = lambda address: BUSY if now() < 7 else OK

        reply = await node.accept(connector="default")

        assert 250 == reply.code
        assert 7 <= now() < DELAY
        assert ["user1@corp.example"] == net.sink.addresses()
        assert {Acknowledged.DONE} == counted(node)
        assert [] == node.log.rows(EventId.HAREDIRECTFAIL)
    finally:
        await net.close()


@in_virtual_time
async def test_after_the_delay_the_250_is_given_by_best_effort_and_logged_as_that(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        node = await a_node(net)
        net.sink.answer = lambda address: BUSY

        waiting = asyncio.ensure_future(node.accept(connector="default"))
        await asyncio.sleep(DELAY - 1)
        assert [] == node.log.rows(EventId.RECEIVE)
        reply = await waiting
        acknowledged_at = now()
        (received,) = node.log.rows(EventId.RECEIVE)
        assert "delayed: best effort" == received.source_context
        assert "Failed" == dict(received.custom_data)["Replication"]
        assert DELAY <= float(dict(received.custom_data)["AckElapsed"]) < DELAY + 1

        assert 250 == reply.code
        assert DELAY <= acknowledged_at < DELAY + 1
        assert {Acknowledged.BEST_EFFORT} == counted(node)
        (row,) = node.log.rows(EventId.HAREDIRECTFAIL)
        assert row.source_context == "Acknowledged after 30.000 s by best effort"
    finally:
        await net.close()


@in_virtual_time
async def test_a_message_acknowledged_by_best_effort_is_lost_with_its_only_disk(tmp_path: Path) -> None:
    """The example of the sources: an edge acknowledges what it cannot pass on, and burns. It is counted, not prevented."""
    async with an_edge(tmp_path, HUB) as net:
        edge = net.nodes[EDGE]
        net.isolate(EDGE)
        reply = await edge.accept(connector="default")
        log, counts = edge.log, edge.context.counts
        await net.wipe(EDGE)
        net.heal()
        await net.start(EDGE, [HUB], boundary="edge", redundancy="previous-hop")
        await asyncio.sleep(20 * HEARTBEAT)

        assert 250 == reply.code
        assert [] == net.sink.arrived
        assert 1 == counts.delayed[Acknowledged.BEST_EFFORT]
        assert 1 == len(log.rows(EventId.HAREDIRECTFAIL))


@in_virtual_time
async def test_what_is_relayed_is_acknowledged_at_once(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB) as net:
        net.sink.answer = lambda address: BUSY  # the hub's next hop
        began = now()

        reply = await net.nodes[EDGE].accept(connector="default")

        assert 250 == reply.code
        assert now() - began < 1


@in_virtual_time
async def test_with_promotion_a_copy_is_made_in_the_end(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        await net.start(WEST, [EAST])
        node = await net.start(EAST, [WEST], redundancy="previous-hop", shadow_redundancy_promotion=True)
        await asyncio.sleep(1)
        net.sink.answer = lambda address: BUSY

        reply = await node.accept(connector="default")

        assert 250 == reply.code
        assert Role.SHADOW is await net.nodes[WEST].role(node.last)
        assert {Acknowledged.COPIED} == counted(node)
        assert [] == node.log.rows(EventId.HAREDIRECTFAIL)
    finally:
        await net.close()


@in_virtual_time
@pytest.mark.parametrize(("is_stuck", "delay", "shadow_timeout", "longest"), [(True, 30, 2, 32), (False, 30, 2, 30), (True, 240, 300, 270)])
async def test_with_promotion_a_ledger_that_does_not_commit_delays_the_250_no_longer_than_a_copy(
    tmp_path: Path, is_stuck: bool, delay: float, shadow_timeout: float, longest: float
) -> None:
    net = Net(tmp_path)
    try:
        await net.start(WEST, [EAST])
        node = await net.start(
            EAST,
            [WEST],
            redundancy="previous-hop",
            connector={"max_acknowledgement_delay": timedelta(seconds=delay)},
            shadow_redundancy_promotion=True,
            shadow_timeout=timedelta(seconds=shadow_timeout),
        )
        await asyncio.sleep(1)
        net.sink.answer = lambda address: BUSY
        began = now()
        waiting = asyncio.ensure_future(node.accept(connector="default"))
        await asyncio.sleep(1)
        if is_stuck:
            node.ledger.gates["transition"] = asyncio.Event()
        else:
            node.ledger.fail("transition", 100)

        async with asyncio.timeout(1000):
            reply = await waiting

        assert (250, True) == (reply.code, longest <= now() - began < longest + 1)
        assert {Acknowledged.BEST_EFFORT} == counted(node)
    finally:
        await net.close()


@in_virtual_time
@pytest.mark.parametrize("redundancy", ["previous-hop", "none"])
async def test_mail_of_such_a_connector_is_not_copied_and_not_refused_for_that(tmp_path: Path, redundancy: str) -> None:
    net = Net(tmp_path)
    try:
        await net.start(WEST, [EAST])
        node = await net.start(EAST, [WEST], redundancy=redundancy, reject_message_on_shadow_failure=True)
        await asyncio.sleep(1)
        net.sink.answer = lambda address: BUSY if now() < 10 else OK

        reply = await node.accept(connector="default")
        await until(node.in_role(node.last, Role.DELIVERED), 10 * HEARTBEAT)

        assert 250 == reply.code
        assert None is await net.nodes[WEST].role(node.last)
        assert [] == node.log.rows(EventId.HAREDIRECT) + node.log.rows(EventId.HAREDIRECTFAIL)
        (received,) = node.log.rows(EventId.RECEIVE)
        said = (dict(received.custom_data)["Replication"], received.source_context)
        assert {"previous-hop": ("Success", "delayed: done"), "none": ("Disabled", "")}[redundancy] == said
        assert counted(node) == ({Acknowledged.DONE} if redundancy == "previous-hop" else set())
    finally:
        await net.close()


@in_virtual_time
@pytest.mark.parametrize("redundancy", ["previous-hop", "both"])
async def test_without_redundancy_no_250_is_delayed(tmp_path: Path, redundancy: str) -> None:
    net = Net(tmp_path)
    try:
        node = await a_node(net, redundancy, shadow_redundancy_enabled=False)
        net.sink.answer = lambda address: BUSY
        began = now()

        reply = await node.accept(connector="default")

        assert (250, True, set()) == (reply.code, now() - began < 1, counted(node))
    finally:
        await net.close()


@in_virtual_time
async def test_with_both_only_a_message_without_a_copy_waits(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        await net.start(WEST, [EAST])
        node = await net.start(EAST, [WEST], redundancy="both")
        await asyncio.sleep(1)
        net.sink.answer = lambda address: BUSY
        began = now()
        await node.accept(connector="default")
        with_a_copy = now() - began
        await net.kill(WEST)
        began = now()
        await node.accept(connector="default")
        without_a_copy = now() - began

        assert with_a_copy < 1
        assert without_a_copy >= DELAY
    finally:
        await net.close()


@in_virtual_time
async def test_a_node_that_stops_answers_at_once(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        node = await a_node(net)
        net.sink.answer = lambda address: BUSY
        waiting = asyncio.ensure_future(node.accept(connector="default"))
        await asyncio.sleep(2)
        is_waiting = not waiting.done()

        node.context.delayed.release(is_stopping=True)
        reply = await waiting

        assert is_waiting
        assert (250, True) == (reply.code, now() < 3)
        assert 0 == len(node.context.delayed)
    finally:
        await net.close()


@asynccontextmanager
async def a_client_waits(directory: Path, *peers: ServerName, **changes: Any) -> AsyncIterator[tuple[VirtualNode, "asyncio.Future[Reply]"]]:
    """For two seconds, at a node whose next hop defers."""
    net = Net(directory)
    try:
        for peer in peers:
            await net.start(peer, [EAST])
        node = await net.start(EAST, peers, **{"redundancy": "previous-hop", **changes})
        await asyncio.sleep(1)
        net.sink.answer = lambda address: BUSY
        waiting = asyncio.ensure_future(node.accept(connector="default"))
        await asyncio.sleep(2)
        assert not waiting.done()
        yield node, waiting
    finally:
        await net.close()


@in_virtual_time
async def test_the_wait_for_a_message_that_an_administrator_removes_ends_at_once(tmp_path: Path) -> None:
    async with a_client_waits(tmp_path) as (node, waiting):
        assert await node.services.messages.remove(node.last, with_dsn=False)
        began = now()
        reply = await waiting

        assert (250, True) == (reply.code, now() - began < 1)
        assert {Acknowledged.REMOVED} == counted(node)
        assert [] == node.log.rows(EventId.HAREDIRECTFAIL)


@in_virtual_time
async def test_the_wait_for_a_message_that_is_set_aside_ends_as_best_effort(tmp_path: Path) -> None:
    async with a_client_waits(tmp_path) as (node, waiting):
        node.corrupt()  # the next attempt finds that
        reply = await waiting
        acknowledged_at = now()
        await until(lambda: bool(node.log.rows(EventId.HAREDIRECTFAIL)), 20)

        assert (250, True) == (reply.code, acknowledged_at < 15)
        assert Role.SET_ASIDE is await node.role(node.last)
        assert {Acknowledged.SET_ASIDE} == counted(node)


@in_virtual_time
async def test_the_wait_for_a_message_that_gets_a_copy_to_be_redirected_ends_with_that(tmp_path: Path) -> None:
    async with a_client_waits(tmp_path, WEST) as (node, waiting):
        began = now()
        await node.services.drain.redirect([WEST])
        reply = await waiting
        at = now()
        await until(lambda: node.services.drain.state is DrainState.ACTIVE, 60)

        assert (250, True) == (reply.code, at - began < 5)
        assert {Acknowledged.COPIED} == counted(node)
        assert Role.PRIMARY is await node.net.nodes[WEST].role(node.last)


@in_virtual_time
async def test_the_wait_for_a_message_that_another_server_took_over_ends_at_once(tmp_path: Path) -> None:
    """It stored the copy, but its answer was lost; then it did not hear its primary for a span."""
    net = Net(tmp_path)
    try:
        west = await net.start(WEST, [EAST])
        node = await net.start(EAST, [WEST], redundancy="both", connector={"max_acknowledgement_delay": "4m"})
        await asyncio.sleep(1)
        net.sink.answer = lambda address: BUSY
        net.hold_fault = lambda primary, shadow: "reply late"
        waiting = asyncio.ensure_future(node.accept(connector="default"))
        await asyncio.sleep(1)
        net.isolate(EAST)
        await until(west.in_role(node.last, Role.PRIMARY), 3 * SPAN)
        is_waiting, began = not waiting.done(), now()
        net.heal()

        reply = await waiting

        assert (250, True) == (reply.code, is_waiting)
        assert now() - began < 4 * HEARTBEAT
        assert {Acknowledged.HANDED_OVER} == counted(node)
    finally:
        await net.close()


@in_virtual_time
async def test_a_client_that_gives_up_loses_nothing(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        node = await a_node(net)
        net.sink.answer = lambda address: BUSY if now() < 7 else OK
        waiting = asyncio.ensure_future(node.accept(connector="default"))
        await asyncio.sleep(2)
        waiting.cancel()

        await until(lambda: bool(net.sink.arrived), 20)
        await until(lambda: not len(node.context.delayed), 20)
    finally:
        await net.close()


@in_virtual_time
async def test_the_250_by_best_effort_does_not_need_the_ledger(tmp_path: Path) -> None:
    """The message is committed: an error here would have the client send it again."""
    net = Net(tmp_path)
    try:
        node = await a_node(net)
        net.sink.answer = lambda address: BUSY
        node.ledger.fail("load", 3)

        reply = await node.accept(connector="default")
        acknowledged_at = now()
        await until(lambda: bool(node.log.rows(EventId.HAREDIRECTFAIL)), 20)

        assert (250, True) == (reply.code, acknowledged_at < DELAY + 1)
        assert 0 == len(node.context.delayed)
    finally:
        await net.close()


@in_virtual_time
async def test_without_a_delay_the_250_is_given_at_once(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        node = await a_node(net, connector={"max_acknowledgement_delay": "0s"})
        net.sink.answer = lambda address: BUSY

        reply = await node.accept(connector="default")
        at = now()

        assert (250, True, set()) == (reply.code, at < 1, counted(node))
        (received,) = node.log.rows(EventId.RECEIVE)
        assert "Disabled" == dict(received.custom_data)["Replication"]
    finally:
        await net.close()


@in_virtual_time
async def test_a_message_of_several_forks_waits_for_the_last_of_them(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        routes = [{"recipients": [f"*@{name}.example"], "next_hop": f"{name}.example:25"} for name in ("a", "b", "c")]
        node = await a_node(net, routes=routes)
        net.sink.answer = lambda address: BUSY if address.endswith("@b.example") and now() < 12 else OK

        waiting = asyncio.ensure_future(node.accept("x@a.example", "x@b.example", "x@c.example", connector="default"))
        await asyncio.sleep(11)
        before = net.sink.addresses(), waiting.done()
        reply = await waiting

        assert (["x@a.example", "x@c.example"], False) == before
        assert (250, True) == (reply.code, 12 <= now() < DELAY)
        assert ["x@a.example", "x@b.example", "x@c.example"] == net.sink.addresses()
        assert {Acknowledged.DONE} == counted(node)
    finally:
        await net.close()


@in_virtual_time
@pytest.mark.parametrize(("taken_after", "why"), [(7.0, "done"), (1000.0, "best effort")])
async def test_what_is_returned_waits_for_its_dsn_which_is_on_this_disk_only(tmp_path: Path, taken_after: float, why: str) -> None:
    net = Net(tmp_path)
    answers = {"user1@corp.example": lambda: REFUSED, "a@x.example": lambda: BUSY if now() < taken_after else OK}
    try:
        node = await a_node(net)
        net.sink.answer = lambda address: answers.get(address, lambda: OK)()

        reply = await node.accept("user1@corp.example", "user2@corp.example", connector="default")
        at = now()

        assert (250, {why}) == (reply.code, counted(node))
        assert min(taken_after, DELAY) <= at < min(taken_after, DELAY) + 6
        assert (["a@x.example", "user2@corp.example"] if why == "done" else ["user2@corp.example"]) == net.sink.addresses()
        assert 0 == len(node.context.delayed)
    finally:
        await net.close()


@in_virtual_time
async def test_a_copy_of_the_dsn_ends_the_wait_for_what_is_returned(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        await net.start(WEST, [EAST])
        copying = {"name": "copying", "listen": "127.0.0.1:2526"}
        node = await net.start(EAST, [WEST], redundancy="previous-hop", more_connectors=[copying])
        await asyncio.sleep(1)
        net.sink.answer = lambda address: REFUSED if address == "user1@corp.example" else BUSY

        reply = await node.accept(connector="default")

        assert (250, True, {Acknowledged.DONE}) == (reply.code, now() < DELAY, counted(node))
    finally:
        await net.close()


@in_virtual_time
async def test_copying_the_delay_and_the_promotion_together_are_shorter_than_clients_wait(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        await net.start(WEST, [EAST])
        net.hold_fault = lambda primary, shadow: "slow"
        node = await net.start(
            EAST,
            [WEST],
            redundancy="both",
            connector={"max_acknowledgement_delay": "4m"},
            shadow_redundancy_promotion=True,
            shadow_timeout=timedelta(seconds=60),
        )
        await asyncio.sleep(1)
        net.sink.answer = lambda address: BUSY
        began = now()

        reply = await node.accept(connector="default")

        assert (250, {Acknowledged.BEST_EFFORT}) == (reply.code, counted(node))
        assert 240 <= now() - began < 271
    finally:
        await net.close()


@in_virtual_time
async def test_a_reload_changes_the_delay_of_what_comes_after_it(tmp_path: Path) -> None:
    async with a_client_waits(tmp_path) as (node, waiting):
        began = now() - 2
        shorter = {"redundancy": "previous-hop", "connector": {"max_acknowledgement_delay": "5s"}}
        node.context.settings = make_settings(EAST, [], tmp_path, **shorter)
        node.services.deliver.reload()
        second_began = now()
        await node.accept(connector="default")
        second = now() - second_began
        await waiting

        assert (True, True) == (5 <= second < 6, DELAY <= now() - began < DELAY + 1)


@in_virtual_time
async def test_the_wait_for_what_is_returned_ends_when_its_dsn_is_set_aside() -> None:
    delayed, message, dsn = Delayed(), message_id("message"), message_id("dsn")
    delayed.expect(message)
    delayed.caused(message, [dsn])
    delayed.end(message, Acknowledged.DONE)
    is_open = await delayed.wait(message, 1)
    delayed.end(dsn, Acknowledged.SET_ASIDE)
    how = await delayed.wait(message, 1)
    delayed.forget(message)

    assert (Acknowledged.BEST_EFFORT, Acknowledged.SET_ASIDE, 0) == (is_open, how, len(delayed))
