"""What a running node holds in memory: bounded, whatever strangers do with their sessions, and given back afterwards."""

import asyncio
import sys
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess
from tests.kit.clients import TO_DATA, Client
from tests.kit.clock import until
from tests.kit.processes import a_node_process, a_served_node, client_of, figure, rss_kilobytes

MB = 1_000_000
LINE = b"x" * 998 + b"\r\n"
EMPTY_NODE_MB = 150 if sys.version_info >= (3, 14) else 130  # with all libraries loaded: 118 on CPython 3.11, and 135 on 3.14
BUDGET_MB = 128 + 40  # the default of content_memory_limit, and what the allocator needs beside it


@pytest.fixture(autouse=True)
def _begin_warm() -> None:
    """Not here: the memory of a process that forked is not that of one that started."""


def resident_mb(node: NodeProcess) -> int:
    return rss_kilobytes(node) * 1024 // MB


async def in_content(node: NodeProcess, octets: bytes) -> Client:
    """A session that has sent this of its content, and not the end."""
    client = await client_of(node, *TO_DATA)
    await client.send(octets)
    return client


@pytest.mark.slow
async def test_unfinished_content_of_many_sessions_stays_within_the_budget_and_goes_back(tmp_path: Path) -> None:
    async with a_served_node(tmp_path) as node:
        before = resident_mb(node)
        clients = [await in_content(node, LINE * 1_040) for _ in range(190)]
        await asyncio.sleep(1)
        held = resident_mb(node)
        good = await client_of(node)  # the node takes mail all the while
        await good.send(b"EHLO c\r\n")
        await good.reply()
        for client in (*clients, good):
            client.writer.transport.abort()
        await until(lambda: resident_mb(node) <= before + 40, what=lambda: f"{before} MB before, {resident_mb(node)} MB after")

    assert before <= EMPTY_NODE_MB
    assert held <= EMPTY_NODE_MB + BUDGET_MB


async def deaf(node: NodeProcess) -> Client:
    """A session that pipelines commands and reads no reply."""
    client = await client_of(node)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.writer.write(b"EHLO c\r\n" * 120_000)
    return client


@pytest.mark.slow
async def test_one_address_that_stops_in_content_and_reads_no_replies_keeps_nobody_else_from_sending(tmp_path: Path) -> None:
    async with a_served_node(tmp_path) as node:
        clients = [await in_content(node, LINE * 1_040) for _ in range(66)]
        clients += [await deaf(node) for _ in range(14)]  # 30 MB of replies each
        await asyncio.sleep(3)
        replies = []
        for _ in range(5):
            good = await in_content(node, LINE + b".\r\n")
            replies.append((await good.reply())[:3])
            await good.close()
        held = resident_mb(node)
        for client in clients:
            client.writer.transport.abort()

    assert ["250"] * 5 == replies
    assert held <= EMPTY_NODE_MB + BUDGET_MB


@pytest.mark.slow
async def test_large_messages_of_many_sessions_do_not_stand_in_memory(tmp_path: Path) -> None:
    peak = 0

    async def one(node: NodeProcess) -> str:
        nonlocal peak
        client = await in_content(node, b"")
        for _ in range(15):  # 300 MB in all
            await client.send(LINE * 1_000)
            peak = max(peak, resident_mb(node))
        await client.send(b".\r\n")
        reply = await client.reply()
        await client.close()
        return reply[:3]

    async with a_served_node(tmp_path) as node:
        replies = await asyncio.gather(*(one(node) for _ in range(20)))

    assert ["250"] * 20 == replies
    assert peak < 250


@pytest.mark.heavy
async def test_five_thousand_idle_sessions_are_cheap(tmp_path: Path) -> None:
    async with a_served_node(tmp_path, "max_sessions_per_address = 6000") as node:
        clients = [await client_of(node) for _ in range(5_000)]
        held = resident_mb(node)
        for client in clients:
            client.writer.transport.abort()

    assert held < 400


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "is_spooled_early"), [("8MB", True), ("128MB", False)])
async def test_contents_go_to_disk_when_half_of_the_limit_is_used(tmp_path: Path, limit: str, is_spooled_early: bool) -> None:
    node = a_node_process(tmp_path / "a.example")
    file = node.directory / "node.toml"
    file.write_text(file.read_text().replace("[server]", f'[server]\ncontent_memory_limit = "{limit}"'))
    try:
        await node.start()
        clients = [await in_content(node, LINE * 900) for _ in range(10)]  # each below the 1 MiB above which content is spooled anyway
        if is_spooled_early:
            await until(lambda: figure(node, "contents_spooled_early_total") > 0)
        else:
            await until(lambda: figure(node, "content_memory_bytes") > 8 * MB, what=lambda: f"{figure(node, 'content_memory_bytes')}")
            assert 0 == figure(node, "contents_spooled_early_total")
        for client in clients:
            client.writer.transport.abort()
    finally:
        await node.stop()
