"""A client that heard no reply sends its message to the next node of the cluster, as it would with two relay hosts: delivered once."""

import asyncio

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, free_ports
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clients import submit
from tests.kit.clock import until
from tests.kit.processes import wait_until_peers_know_each_other

pytestmark = pytest.mark.usefixtures("quiet")

EAST, WEST = "mx1.east.example", "mx1.west.example"
PLACES = (Place(EAST, "east"), Place(WEST, "west"))
CONTENT = b"Message-ID: <1@x.example>\r\nDate: Sun, 1 Mar 2026 12:00:00 +0000\r\nSubject: once\r\n\r\nonce\r\n"


def logged(node: NodeProcess, event: str, message_id: str) -> bool:
    """Whether its tracking log has such a row of the message."""
    lines = [line for path in node.tracking.glob("*.LOG") for line in path.read_text().splitlines()]
    return any(f",{event}," in line and message_id in line for line in lines)


@pytest.mark.parametrize("sender", ["a@x.example", "root", ""])
async def test_what_was_delivered(sink: Sink, sender: str) -> None:
    async with Cluster(PLACES, await sink.start()) as cluster:
        east, west = cluster.nodes[EAST], cluster.nodes[WEST]
        await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
        first = await submit(east.address, "u@corp.example", content=CONTENT, sender=sender)
        await until(lambda: logged(west, "HADISCARD", first))

        second = await submit(west.address, "u@corp.example", content=CONTENT, sender=sender)

        await until(lambda: logged(west, "DUPLICATEDELIVER", second))
        assert 1 == len(sink.arrivals)


async def test_what_is_not_delivered_yet(sink: Sink) -> None:
    (port,) = free_ports(1)
    async with Cluster(PLACES, HostPort("127.0.0.1", port)) as cluster:
        east, west = cluster.nodes[EAST], cluster.nodes[WEST]
        await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
        first = await submit(east.address, "u@corp.example", content=CONTENT)
        await until(lambda: logged(west, "HARECEIVE", first))
        second = await submit(west.address, "u@corp.example", content=CONTENT)
        late = Sink(port=port)
        await late.start()
        try:
            await until(lambda: logged(west, "DUPLICATEDELIVER", second))
            await until(lambda: logged(east, "SENDEXTERNAL", first) or logged(east, "SEND", first))
            assert 1 == len(late.arrivals)
        finally:
            await late.close()
