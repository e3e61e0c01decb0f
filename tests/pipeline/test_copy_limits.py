"""How much one peer may have a node hold for it. docs/protocol.md 16"""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from shadowrelay.model.ids import ServerName
from shadowrelay.model.message import Envelope, Recipient
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import Reply
from shadowrelay.pipeline.copy_limits import CopyLimits
from shadowrelay.ports import Disk
from shadowrelay.store import reading
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, WEST, Net, VirtualNode, in_virtual_time, message_id, nodes
from tests.pipeline.scenes import holders


async def codes(node: VirtualNode, count: int, content: bytes = b"Subject: x\r\n\r\nx\r\n", *recipients: str) -> list[int]:
    return [(await node.accept(*recipients or ("a@corp.example",), data=content)).code for _ in range(count)]


def refused(node: VirtualNode, peer: ServerName) -> int:
    return node.context.counts.copies_over_limit[peer]


async def last_error(node: VirtualNode, peer: ServerName) -> str:
    return next(view.last_error for view in await node.services.peers.views() if view.name == peer)


def put_off(net: Net) -> None:
    net.sink.answer = lambda address: BUSY


LIMITS: list[dict[str, Any]] = [
    {"max_copies_per_peer": 5},
    {"max_copy_recipients_per_peer": 10},
    {"max_copies_size_per_peer": "5000"},
]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@in_virtual_time
async def test_a_peer_for_which_too_much_is_held_places_its_copies_on_another(limit: dict[str, Any], tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, **limit) as net:
        put_off(net)
        await net.kill(NORTH)
        east, west, content = net.nodes[EAST], net.nodes[WEST], b"Subject: x\r\n\r\n" + b"x" * 983 + b"\r\n"
        with structlog.testing.capture_logs() as lines:
            assert [250] * 8 == await codes(east, 8, content, "a@corp.example", "b@corp.example")
            await asyncio.sleep(2 * HEARTBEAT)

        assert 5 == (await west.ledger.read(reading.placed_by, EAST)).count
        assert refused(west, EAST) >= 1
        (name,) = limit
        assert f"{name} = " in await last_error(west, EAST)
        assert {(EAST, True)} == {(line["peer"], name in line["reason"]) for line in lines if line["event"] == "copy.refused"}
        await net.start(NORTH)
        await until(lambda: holders(net, east), 20 * HEARTBEAT)
        assert {NORTH} == await holders(net, east)

        net.sink.answer = lambda address: OK
        await until(lambda: len(net.sink.arrived) >= 16, 100)
        await until(lambda: _nothing_is_held(west), 100)
        put_off(net)
        assert [250] * 3 == await codes(east, 3, content)
        assert [Role.PRIMARY] == [await east.role(east.last)]
        assert "" == await last_error(west, EAST) or WEST not in await holders(net, east)


async def _nothing_is_held(node: VirtualNode) -> bool:
    return 0 == (await node.ledger.read(reading.placed_by, EAST)).count


@in_virtual_time
async def test_an_honest_peer_is_never_refused_however_much_it_relays(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, max_copies_per_peer=30, max_copies_size_per_peer="3000") as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        for _ in range(20):
            assert [[250]] * 15 == await asyncio.gather(*(codes(east, 1) for _ in range(15)))
            await asyncio.sleep(3)

        assert (300, 0) == (len(net.sink.arrived), refused(west, EAST))


@in_virtual_time
async def test_what_waits_from_before_a_restart_counts_and_what_ends_counts_no_more(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, max_copies_per_peer=4) as net:
        put_off(net)
        assert [250] * 3 == await codes(net.nodes[EAST], 3)
        await net.kill(WEST)
        await net.start(WEST)
        west = net.nodes[WEST]
        await asyncio.sleep(3 * HEARTBEAT)
        await codes(net.nodes[EAST], 3)
        await asyncio.sleep(3 * HEARTBEAT)

        assert 4 == (await west.ledger.read(reading.placed_by, EAST)).count
        assert refused(west, EAST) >= 1


@in_virtual_time
async def test_a_share_of_the_disk_is_counted_in_its_octets(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, max_copies_size_per_peer="10%") as net:
        put_off(net)
        await codes(net.nodes[EAST], 5, b"Subject: x\r\n\r\n" + b"x" * 983 + b"\r\n")
        west = net.nodes[WEST]
        envelope = Envelope(message_id("x"), "a@x.example", (Recipient("b@x.example"),), west.clock.now())

        async def reply(disk_size: int) -> Reply | None:
            machine: Any = SimpleNamespace(disk=lambda path: Disk(free=0, size=disk_size, device=1))
            return await CopyLimits(west.context, machine).refusal(EAST, envelope, 1000)

        assert None is await reply(60_000)
        refusal = await reply(59_900)
        assert refusal is not None
        assert (452, "4.3.1") == (refusal.code, refusal.enhanced)
