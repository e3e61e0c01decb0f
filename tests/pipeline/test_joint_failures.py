"""Failures of one message that become known together make one DSN. docs/design.md 5."""

import asyncio
from datetime import timedelta
from pathlib import Path

from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import Reply, TransientDeliveryError
from shadowrelay.model.tracking import EventId
from shadowrelay.pipeline.joint_failures import JOIN_SECONDS
from tests.kit.nodes import BUSY, EAST, OK, Net, in_virtual_time, nodes, until

NO = Reply(550, "5.1.1", "no such user")
HOPS = [{"recipients": [f"*@{name}.example"], "next_hop": f"{name}.example:25"} for name in ("a", "b", "c")]
ALL = ("u@a.example", "u@b.example", "u@c.example")


def refused(net: Net, *addresses: str) -> None:
    net.sink.answer = lambda address: NO if address in addresses else OK


async def dsns(net: Net) -> list[str]:
    """The texts of the DSNs that arrived."""
    return [data.decode() for _, address, data in net.sink.arrived if address == "a@x.example"]


@in_virtual_time
async def test_forks_that_fail_together_are_reported_together(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        east = net.nodes[EAST]
        refused(net, *ALL)
        await east.accept(*ALL)
        await until(east.in_role(east.last, Role.DELIVERED), 10)
        await until(lambda: "a@x.example" in net.sink.addresses(), 10)
        await asyncio.sleep(10)

        (text,) = await dsns(net)
        assert 3 == text.count("Final-Recipient:")
        assert all(f"rfc822;{address}" in text.replace(" ", "") for address in ALL)


@in_virtual_time
async def test_a_delivery_waits_for_no_failure_and_takes_those_that_wait(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        east = net.nodes[EAST]
        refused(net, "u@a.example", "u@c.example")
        await east.accept(*ALL)
        await until(east.in_role(east.last, Role.DELIVERED), 10)
        await asyncio.sleep(10)

        (text,) = await dsns(net)
        assert 2 == text.count("Final-Recipient:")
        assert "u@b.example" in net.sink.addresses()


@in_virtual_time
async def test_a_fork_that_takes_longer_is_not_waited_for(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        east, gate = net.nodes[EAST], asyncio.Event()
        refused(net, *ALL)
        net.sink.hang = lambda address: gate if address == "u@c.example" else None
        await east.accept(*ALL)
        await until(lambda: "a@x.example" in net.sink.addresses(), JOIN_SECONDS + 5)
        gate.set()
        await until(east.in_role(east.last, Role.DELIVERED), 10)
        await asyncio.sleep(10)

        assert [1, 2] == sorted(text.count("Final-Recipient:") for text in await dsns(net))


@in_virtual_time
async def test_a_fork_that_is_deferred_ends_the_wait_and_keeps_its_place_in_the_queue(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY if address == "u@c.example" else NO if address in ALL else OK
        await east.accept(*ALL)
        await until(east.has_done(east.last, 1, 2), 10)
        stored = await east.message(east.last)

        assert stored is not None
        assert [{3}] == [retry.ordinals for retry in stored.retries]
        await asyncio.sleep(2)
        (text,) = await dsns(net)
        assert 2 == text.count("Final-Recipient:")
        refused(net)
        await until(east.in_role(east.last, Role.DELIVERED), 60)
        assert "u@c.example" in net.sink.addresses()


@in_virtual_time
async def test_forks_that_expire_together_are_reported_together(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS, message_expiration_timeout=timedelta(seconds=60)) as net:
        east = net.nodes[EAST]
        lost = TransientDeliveryError(BUSY, "sink.example", is_connection=True, is_unreachable=True)
        net.sink.answer = lambda address: lost if address in ALL else OK
        await east.accept(*ALL)
        await until(east.in_role(east.last, Role.DELIVERED), 120)
        await asyncio.sleep(10)

        assert [3] == [text.count("Final-Recipient:") for text in await dsns(net) if "Action: failed" in text]


@in_virtual_time
async def test_a_node_that_dies_while_a_failure_waits_tries_again_and_reports_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        east, gate = net.nodes[EAST], asyncio.Event()
        refused(net, *ALL)
        net.sink.hang = lambda address: gate if address == "u@c.example" else None
        await east.accept(*ALL)
        await until(lambda: 2 == len(east.log.rows(EventId.FAIL)))
        last = east.last
        assert await east.has_done(last)(), "nothing is committed yet"
        await net.kill(EAST)
        net.sink.hang = lambda address: None
        east = await net.start(EAST)
        await until(east.in_role(last, Role.DELIVERED), 30)
        await asyncio.sleep(10)

        assert 3 == sum(text.count("Final-Recipient:") for text in await dsns(net))


@in_virtual_time
async def test_who_ends_it_fails_to_commit_and_the_others_do_it_themselves(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        east = net.nodes[EAST]
        refused(net, *ALL)
        east.ledger.fail("attempt", 3)
        await east.accept(*ALL)
        await until(east.in_role(east.last, Role.DELIVERED), 60)
        await asyncio.sleep(10)

        assert 3 == sum(text.count("Final-Recipient:") for text in await dsns(net))
