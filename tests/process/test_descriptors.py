"""A running node when descriptors are short: 421 before there are none, and it goes on listening when there are none all the same."""

import asyncio
import resource
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess
from tests.kit.clients import Client
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.processes import a_served_node, figure, operator_events

REFUSED = "421 4.3.2 Too many sessions, try again later\r\n"
BANNER = "220 a.example ESMTP\r\n"


def limit(node: NodeProcess, soft: int | None = None) -> int:
    """Its soft limit; set to this, if so."""
    assert node.process is not None
    now, hard = resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE)
    if soft is not None:
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    return now


def used(node: NodeProcess) -> int:
    assert node.process is not None
    return len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))


async def greeting(node: NodeProcess, clients: list[Client], seconds: float = PATIENCE_SECONDS) -> str:
    """What it says at the beginning; nothing, when it closes or is silent for so long."""
    client = await Client.to(node.address)
    clients.append(client)
    try:
        async with asyncio.timeout(seconds):
            return (await client.reader.readline()).decode()
    except (ConnectionError, TimeoutError):
        return ""


async def close_all(clients: list[Client]) -> None:
    for client in clients:
        client.writer.transport.abort()
    clients.clear()


async def logged(node: NodeProcess, count: int) -> list[str]:
    await until(lambda: len(operator_events(node, "descriptors.")) >= count)
    return [line["event"] for line in operator_events(node, "descriptors.")]


@pytest.mark.slow
async def test_sessions_are_refused_before_the_descriptors_end_and_said_once(tmp_path: Path) -> None:
    clients: list[Client] = []
    async with a_served_node(tmp_path) as node:
        raised = limit(node)
        few = 4 * used(node)
        limit(node, few)
        await until(lambda: few == figure(node, "descriptors_limit"))  # it looks every few seconds
        while (said := await greeting(node, clients)) == BANNER:
            pass
        assert REFUSED == said
        greetings = [await greeting(node, clients) for _ in range(few)]
        in_use = used(node)
        await close_all(clients)
        found = await logged(node, 2)
        after = await greeting(node, clients)
        await close_all(clients)

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == raised
    assert {REFUSED} == set(greetings)
    assert in_use < few
    assert (["descriptors.scarce", "descriptors.enough"], BANNER) == (found, after)


@pytest.mark.slow
async def test_a_node_that_has_no_descriptor_left_goes_on_listening(tmp_path: Path) -> None:
    clients: list[Client] = []
    async with a_served_node(tmp_path) as node:
        before = limit(node)
        limit(node, used(node))
        while_none = {await greeting(node, clients, 1) for _ in range(5)}
        limit(node, before)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await greeting(node, clients, 1) != BANNER:
                await asyncio.sleep(0.1)
        await close_all(clients)

    assert "" in while_none
