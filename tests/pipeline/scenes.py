"""What several tests of whole nodes begin with, wait for and look at. The nodes: `tests/kit/nodes.py`."""

import asyncio
from datetime import timedelta
from typing import Any

from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import Reply
from shadowrelay.model.resubmission import Criteria, RequestState, ResubmitRequest
from shadowrelay.model.tracking import EventId
from tests.kit.nodes import BUSY, EAST, NORTH, SOUTH, WEST, Net, VirtualNode

FOUR = (EAST, WEST, NORTH, SOUTH)


class HeldDot:
    """Attempts wait before their final dot until they may end."""

    def __init__(self, net: Net) -> None:
        self.waiting_count, self.may_end = 0, asyncio.Event()
        net.sink.before_dot = self._wait

    async def _wait(self, server: ServerName) -> None:
        self.waiting_count += 1
        await self.may_end.wait()


async def a_waiting_message(net: Net, afterwards: Reply = BUSY) -> VirtualNode:
    """Accepted by EAST with its copies, and deferred by the next hop, which answers `afterwards` from then on."""
    net.sink.answer = lambda address: BUSY
    east = net.nodes[EAST]
    assert 250 == (await east.accept()).code
    await asyncio.sleep(1)
    net.sink.answer = lambda address: afterwards
    return east


def reasons(node: VirtualNode) -> list[str]:
    return [dict(event.custom_data)["Reason"] for event in node.log.rows(EventId.RESUBMIT)]


async def holders(net: Net, node: VirtualNode) -> set[ServerName]:
    """The other nodes with a copy of its last message."""
    return {name for name, other in net.nodes.items() if other is not node and await other.role(node.last) is Role.SHADOW}


def only_one(net: Net, names: tuple[ServerName, ...]) -> ServerName:
    (name,) = {who for who, _, _ in net.sink.arrived}
    assert name in names
    assert 1 == len(net.sink.arrived)
    return name


def count_holds(node: VirtualNode, *servers: str) -> list[str]:
    """The copies that this node sends from now on, by server."""
    sent: list[str] = []
    for server in servers:
        link = node.context.links[server]
        hold = link.hold

        async def counted(offer, deadline, hold=hold, server=server, **patience):
            sent.append(server)
            return await hold(offer, deadline, **patience)

        link.hold = counted
    return sent


async def put_back_running(net: Net, name: ServerName) -> VirtualNode:
    """The machine is reset, and runs on from the copy that was made while it ran."""
    await net.kill(name)
    net.put_back(name)
    await asyncio.sleep(0.012345)  # the incarnation begins at another microsecond, and so at another position
    return await net.start(name, introduced=True)


async def die_while_handling(net: Net, server: ServerName) -> None:
    """The next content that this node handles is the last thing that the process does."""
    handling = asyncio.Event()

    async def hang(who: ServerName) -> None:
        if who == server:
            handling.set()
            await asyncio.sleep(10_000)

    net.sink.before_dot = hang
    async with asyncio.timeout(120):
        await handling.wait()
    await net.kill(server)
    net.sink.before_dot = None


async def resubmit(node: VirtualNode, begin: Any = None, **criteria: str) -> int:
    """All that was delivered so far, and matches."""
    await asyncio.sleep(0.01)
    now = node.clock.now()
    request = await node.services.safety_net.request(Criteria(begin or now - timedelta(hours=1), now, **criteria))
    return request.number


async def request_of(node: VirtualNode, number: int) -> ResubmitRequest:
    return next(found for found in await node.services.safety_net.requests() if found.number == number)


def in_state(node: VirtualNode, number: int, state: RequestState) -> Any:
    async def is_so() -> bool:
        return (await request_of(node, number)).state is state

    return is_so
