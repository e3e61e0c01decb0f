"""What troubled neighbours cost mail that does not need them: a client's wait for its 250, at a fixed rate, in quiet and in trouble.

    .venv/bin/python -m benchmarks.isolation --messages 600 --rate 60

Two nodes, each message with a copy. Beside the mail that is measured flows half as much that needs a neighbour which hangs, resets, talks
nonsense, or answers after half a minute: a store, a filter, a token endpoint. Each round has a quiet half before its troubled half.
Printed is the wait that 99 of 100 messages do not exceed, in both, and what became of the acknowledged mail that waits.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.latency import percentile, waits
from benchmarks.throughput import PLACES
from shadowrelay.lab.cluster import Cluster, NodeProcess, free_ports
from tests.kit.clients import Client
from tests.kit.processes import address_of_connector, kept_count, wait_until_peers_know_each_other, waiting_count
from tests.kit.smtp_programs import running_sink

TROUBLES = ("hangs", "resets", "lies", "is late")
LATE_SECONDS = 30.0
NEEDS = ("store", "filter", "token")


class Neighbour:
    """Whatever is asked of it goes wrong, in the way that it has now."""

    def __init__(self) -> None:
        self.trouble = TROUBLES[0]
        self.asked_count = 0
        self._talks: set[asyncio.Task[Any]] = set()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        self.asked_count += 1
        try:
            if self.trouble == "is late":
                await asyncio.sleep(LATE_SECONDS)
            elif self.trouble == "hangs":
                await reader.read()
            elif self.trouble == "lies":
                writer.write(b"250 HTTP/1.1 200 OK\r\n354 {}\r\n" + os.urandom(500) + b"\r\n\r\n")
                await writer.drain()
                await reader.read(10_000)
            writer.transport.abort()
        except (ConnectionError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._talks.discard(task)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Its port."""
        server = await asyncio.start_server(self.talk, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in list(self._talks):
                task.cancel()


async def need(node: NodeProcess, what: str, count: int, seconds: float) -> int:
    """Send mail that needs the troubled neighbour; how much was acknowledged."""
    address = await address_of_connector(node, "filtered") if what == "filter" else node.address
    taken = 0

    async def one() -> None:
        nonlocal taken
        with contextlib.suppress(OSError, AssertionError, TimeoutError, asyncio.IncompleteReadError):
            client = await Client.to(address)
            try:
                await client.begin("EHLO c.example")
                taken += (await client.mail([f"user@{what}.example"])).startswith("250 ")
            finally:
                await client.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())
            await asyncio.sleep(seconds / count)
    return taken


async def measured(directory: Path, messages: int, rate: float) -> None:
    """Print a row for each neighbour and trouble."""
    neighbour, (sink_port,) = Neighbour(), free_ports(1)
    secret = directory / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    async with neighbour.serving() as port:
        tables: dict[str, Any] = {
            "[filters]": {"name": "f", "address": f"http://127.0.0.1:{port}", "timeout": "5s"},
            "[receive_connectors]": {
                "name": "filtered", "listen": "127.0.0.1:0", "relay_from": ["127.0.0.0/8"], "filters": ["f"], "accept_xshadow": False,
            },
            "[routes]": [
                {"recipients": ["*@corp.example"], "next_hop": f"127.0.0.1:{sink_port}"},
                {"recipients": ["*@store.example", "*@filter.example"], "next_hop": f"127.0.0.1:{port}"},
                {"recipients": ["*@token.example"], "next_hop": f"127.0.0.1:{sink_port}", "tls": "required"},
            ],
            "routes.auth": {"user": "relay"},
            "routes.auth.token": {
                "endpoint": f"http://127.0.0.1:{port}/token", "client_id": "c", "client_secret_file": str(secret), "scope": "s",
            },
        }  # fmt: skip
        with running_sink(sink_port):
            async with Cluster(PLACES[:2], None, directory=directory / "nodes", tables=tables) as cluster:
                first, second = cluster.nodes.values()
                await asyncio.to_thread(wait_until_peers_know_each_other, [first, second])
                await waits(first.address, 100, rate)
                print(f"{'neighbour':<10}{'trouble':<10}{'p99 quiet':>12}{'in trouble':>12}{'ratio':>8}{'waits':>8}{'copies':>8}")
                for what in NEEDS:
                    for neighbour.trouble in TROUBLES:
                        quiet = percentile(sorted(await waits(first.address, messages, rate)), 0.99)
                        background = asyncio.create_task(need(first, what, messages // 2, messages / rate))
                        troubled = percentile(sorted(await waits(first.address, messages, rate)), 0.99)
                        await background
                        left, copies = await asyncio.to_thread(lambda: (waiting_count(first), kept_count(second)))
                        print(
                            f"{what:<10}{neighbour.trouble:<10}{quiet * 1e3:>10.1f}ms{troubled * 1e3:>10.1f}ms"
                            f"{troubled / quiet:>8.2f}{left:>8}{copies:>8}"
                        )


def main() -> None:
    """See the module."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--messages", type=int, default=600, help="in each half")
    arguments.add_argument("--rate", type=float, default=60.0, help="messages a second")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="isolation-") as directory:
        asyncio.run(measured(Path(directory), asked.messages, asked.rate))


if __name__ == "__main__":
    main()
