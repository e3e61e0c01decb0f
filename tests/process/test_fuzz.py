"""Half a million commands of strangers and of a peer, half of them wrong: no crash, traceback, growth, or session beyond its limit."""

import asyncio
import os
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess
from shadowrelay.lab.traffic import Sink
from tests.kit.clients import submit
from tests.kit.clock import until
from tests.kit.fuzzed import PEER, STRANGER, Tally, a_fuzzed_node, of_a_peer, of_a_stranger, say_anything
from tests.kit.processes import figure, operator_events, rss_kilobytes

COMMANDS = int(os.environ.get("FUZZED_COMMANDS", "500000"))
GROWTH_KILOBYTES_MAX = 48 * 1024


def open_files(node: NodeProcess) -> int:
    assert node.process is not None
    return len(os.listdir(f"/proc/{node.process.pid}/fd"))


async def hanging(node: NodeProcess, source: str, drip: bytes) -> float:
    """How long a session lasts that says something now and then, and nothing that ends."""
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection(node.address.host, node.address.port, local_addr=(source, 0))
    began = loop.time()

    async def dripping() -> None:
        writer.write(b"EHLO b.example\r\n")
        while drip:
            writer.write(drip)
            await writer.drain()
            await asyncio.sleep(1)

    task = asyncio.ensure_future(dripping())
    try:
        await asyncio.wait_for(reader.read(-1), 120)
    except ConnectionError:
        pass
    finally:
        task.cancel()
        writer.close()
        await asyncio.gather(task, return_exceptions=True)
    return loop.time() - began


@pytest.mark.heavy
@pytest.mark.timeout(3600)
async def test_half_a_million_commands_leave_the_node_as_it_was(tmp_path: Path) -> None:
    sink = Sink()
    node = a_fuzzed_node(tmp_path, str(await sink.start()))
    tally, share = Tally(), COMMANDS // 10
    try:
        await node.start()
        sessions = [hanging(node, source, drip) for source in (PEER, STRANGER) for drip in (b"", b"N", b"NOOP\r\n")]
        lasting = [asyncio.ensure_future(one) for one in sessions]
        sizes, process = [], node.process
        for part in range(5):
            await say_anything(node.address, of_a_stranger, STRANGER, share, 2 * part, tally)
            await say_anything(node.address, of_a_peer, PEER, share, 2 * part + 1, tally)
            sizes.append((rss_kilobytes(node), open_files(node)))
        lasted = await asyncio.gather(*lasting)
        await submit(node.address, "user@here.example")
        await until(lambda: figure(node, "sessions") == 0, 60)
        spooled = [path.name for path in (node.directory / "data").rglob("*.part")]
        events = operator_events(node)
        log = (node.directory / "node.log").read_text(errors="replace")
        assert node.is_running
        assert process is node.process
    finally:
        await node.stop()
        await sink.close()
    print(tally.commands_count, tally.sessions_count, tally.accepted_count, tally.held_count, tally.replies, sizes, lasted)

    assert tally.commands_count >= COMMANDS
    assert ([], []) == (tally.malformed[:5], tally.stuck[:3])
    assert "Traceback" not in log
    errors = [line for line in events if line.get("level") in ("error", "critical") or "exception" in line]
    assert [] == [line for line in errors if line["event"] != "peer.identity_conflict"][:5]  # a peer that lies is told of
    assert tally.accepted_count > COMMANDS // 500
    assert tally.held_count > COMMANDS // 1000
    assert sizes[-1][0] - sizes[0][0] < GROWTH_KILOBYTES_MAX
    assert sizes[-1][1] - sizes[0][1] < 16
    assert [] == spooled
    assert all(seconds < 60 for seconds in lasted), lasted
