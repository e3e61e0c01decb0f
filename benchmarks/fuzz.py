"""How long honest mail waits while strangers and a peer say anything: `python -m benchmarks.fuzz`. docs/performance.md "While others fuzz".

A client that may relay sends one message after the other, at a fixed rate, each in a session of its own: alone, and while two others
keep `--sessions` sessions of each grammar of `tests/kit/fuzzed.py` busy, with `--commands` a second. Rounds alternate, so that both see the
same machine. What counts is the time from the connection to the 250, without a copy: what is measured is the node itself.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.latency import percentile
from shadowrelay.lab.cluster import NodeProcess, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.fuzzed import FRIEND, PEER, STRANGER, Tally, a_fuzzed_node, of_a_peer, of_a_stranger, say_anything
from tests.kit.smtp_programs import running_sink

CONTENT = b"Subject: canary\r\n\r\n" + b"x" * 2000 + b"\r\n.\r\n"
EVER = 10**12


def fuzz(at: HostPort, is_peer: bool, sessions: int, rate: float, seed: int) -> None:
    """In a process of its own, until it is ended. Strangers have processors of their own: here they get what the others leave."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    grammar, source = (of_a_peer, PEER) if is_peer else (of_a_stranger, STRANGER)
    asyncio.run(say_anything(at, grammar, source, EVER, seed, Tally(), at_once=sessions, rate=rate))


async def canary(at: HostPort) -> float:
    """Seconds until the 250. Raises: RuntimeError for another reply."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(at.host, at.port, local_addr=(FRIEND, 0))
    try:
        for octets in (b"", b"EHLO c.example\r\n", b"MAIL FROM:<a@x.example>\r\nRCPT TO:<user@here.example>\r\nDATA\r\n", CONTENT):
            writer.write(octets)
            for _ in range(3 if octets.startswith(b"MAIL") else 1):
                while (line := await reader.readline())[3:4] == b"-":
                    pass
                if line[:1] not in (b"2", b"3"):
                    raise RuntimeError(line.decode(errors="replace"))
        return time.monotonic() - began
    finally:
        writer.close()


async def canaries(at: HostPort, count: int, rate: float) -> list[float]:
    """Begun by the clock, whether or not earlier ones were answered."""
    began = time.monotonic()
    waits = []
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        waits.append(asyncio.ensure_future(canary(at)))
    return list(await asyncio.gather(*waits))


@contextlib.asynccontextmanager
async def a_node(directory: Path) -> AsyncIterator[NodeProcess]:
    (port,) = free_ports(1)
    node = a_fuzzed_node(directory, f"127.0.0.1:{port}")
    with running_sink(port):
        try:
            await node.start()
            yield node
        finally:
            await node.stop()


async def measure(rounds: int, count: int, rate: float, sessions: int, commands: float) -> None:
    found: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="shadowrelay-fuzz-") as directory:
        async with a_node(Path(directory)) as node:
            await canaries(node.address, 50, rate)
            for number in range(2 * rounds):
                is_fuzzed = number % 2 == 1
                context = multiprocessing.get_context("spawn")
                others = [
                    context.Process(target=fuzz, args=(node.address, is_peer, sessions, commands, number)) for is_peer in (False, True)
                ]
                for other in others if is_fuzzed else ():
                    other.start()
                await asyncio.sleep(2 * is_fuzzed)
                waits = await canaries(node.address, count, rate)
                found[is_fuzzed] += waits
                for other in others if is_fuzzed else ():
                    other.terminate()
                    other.join()
                show("while others fuzz" if is_fuzzed else "alone", waits)
    alone, fuzzed = (sorted(found[which]) for which in (False, True))
    print(f"all rounds, p99: {percentile(fuzzed, 0.99) / percentile(alone, 0.99):.2f} times that alone")


def show(name: str, waits: list[float]) -> None:
    ordered = sorted(waits)
    print(f"{name:20} p50 {1000 * percentile(ordered, 0.5):7.1f} ms, p99 {1000 * percentile(ordered, 0.99):7.1f} ms", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=400, help="in each half of a round")
    parser.add_argument("--rate", type=float, default=20.0, help="messages a second")
    parser.add_argument("--sessions", type=int, default=4, help="of each grammar, at a time")
    parser.add_argument("--commands", type=float, default=500.0, help="of each grammar, a second")
    given = parser.parse_args()
    asyncio.run(measure(given.rounds, given.messages, given.rate, given.sessions, given.commands))
