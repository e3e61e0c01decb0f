"""One run: clients send `messages`, the receiving server takes the last one, the clock stops. Each run has servers of its own.

The receiving server (smtp-sink -M) exits with the last message, before its reply; so the sender still holds that one, and
servers of a former run would send it into the next. That is why each run starts its own, outside the time measured.
"""

import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.postfix import running_postfix
from tests.kit.processes import wait_until_peers_know_each_other
from tests.kit.smtp_programs import SmtpSink, running_sink, source_command

SESSIONS = 20
SIZE = 4096
RUN_SECONDS_MAX = 120.0
PLACES = (Place("a.east.example", "east"), Place("b.west.example", "west"))
PRODUCT_TIMES = {  # the defaults of the product instead of the lab's short times
    "shadow_heartbeat_frequency": "2m",
    "shadow_resubmit_time_span": "3h",
    "discard_poll_interval": "1s",
    "shadow_timeout": "5s",
    "reject_message_on_shadow_failure": True,  # a message without a copy would be refused, and end the run
}
POSTFIX = {
    "default_process_limit": "100",
    "initial_destination_concurrency": str(SESSIONS),  # no slow start
    "default_destination_concurrency_limit": str(SESSIONS),
    "in_flow_delay": "0",  # do not slow clients down while delivery lags
}


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run. `held_count`: HARECEIVE rows, for the relay; `synchronous`: as each node read it back."""

    name: str
    messages: int
    seconds: float
    held_count: int | None = None
    synchronous: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Messages per second, end to end."""
        return self.messages / self.seconds


@contextlib.contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """A directory of its own that Postfix's user may pass through."""
    with tempfile.TemporaryDirectory(prefix="shadowrelay-bench-", dir=parent) as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def run_postfix(parent: Path, messages: int) -> Run:
    """Postfix alone: 20 sessions in, relayhost to the sink, its queue on the same disk."""
    (port,) = free_ports(1)
    with workplace(parent) as directory:
        settings = {**POSTFIX, "relayhost": f"[127.0.0.1]:{port}"}
        with running_postfix(directory, settings) as postfix:
            seconds = await timed(port, [postfix.port], messages)
    return Run("Postfix alone", messages, seconds)


async def run_checkout(checkout: Path, parent: Path, messages: int) -> Run:
    """The same by another checkout of the project, whose own benchmark starts its nodes, as their settings were then: with the Python and
    the packages that its own set-up installed, or, if it has no .venv, with those of this checkout."""
    own_python = checkout.resolve() / ".venv/bin/python"
    python = str(own_python) if own_python.exists() else sys.executable
    code = (
        "import asyncio, pathlib, sys; from benchmarks.throughput import run_shadowrelay; "
        "run = asyncio.run(run_shadowrelay(pathlib.Path(sys.argv[1]), int(sys.argv[2]), entries=2)); print(run.seconds, run.held_count)"
    )
    process = await asyncio.create_subprocess_exec(
        python, "-c", code, str(parent), str(messages), cwd=checkout, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
    )  # fmt: skip
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"the benchmark of {checkout} failed")
    seconds, held_count = output.split()[-2:]
    return Run(f"shadowrelay, {checkout}", messages, float(seconds), int(held_count))


async def run_shadowrelay(parent: Path, messages: int, *, entries: int) -> Run:
    """Two nodes; the sessions go to `entries` of them. Checks the copies and the durability."""
    (port,) = free_ports(1)
    with workplace(parent) as directory:
        next_hop = HostPort("127.0.0.1", port)
        async with Cluster(PLACES, next_hop, directory=directory, transport=PRODUCT_TIMES) as cluster:
            nodes = list(cluster.nodes.values())
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            seconds = await timed(port, [node.address.port for node in nodes[:entries]], messages)
            synchronous = tuple(read_synchronous(node) for node in nodes)
        held_count = sum(count_rows(node.tracking, "HARECEIVE") for node in nodes)  # after the stop: all is written
    name = "shadowrelay, sessions on both nodes" if entries == 2 else "shadowrelay, all sessions on one node"
    run = Run(name, messages, seconds, held_count, synchronous)
    if held_count != messages or set(synchronous) != {"FULL"}:
        raise RuntimeError(f"not a fair run: {held_count} HARECEIVE rows for {messages} messages, synchronous {synchronous}")
    return run


async def timed(sink_port: int, ports: Sequence[int], messages: int) -> float:
    """From the start of the clients until the receiving server has the last message."""
    with running_sink(sink_port, "-M", str(messages)) as sink:
        shares = [messages // len(ports) + (index < messages % len(ports)) for index in range(len(ports))]
        sessions = SESSIONS // len(ports)
        began = time.monotonic()
        clients = await asyncio.gather(
            *(_start(source_command(port, messages=share, sessions=sessions, size=SIZE)) for port, share in zip(ports, shares, strict=True))
        )
        try:
            await _all_taken(sink, clients, began + RUN_SECONDS_MAX)
            seconds = time.monotonic() - began
            for client in clients:
                await _succeeded(client)
        finally:
            for client in clients:
                with contextlib.suppress(ProcessLookupError):
                    client.kill()
                await client.wait()
    return seconds


async def _start(command: Sequence[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )


async def _all_taken(sink: SmtpSink, clients: Sequence[asyncio.subprocess.Process], deadline: float) -> None:
    """Until the receiving server exits; a client that fails before is an error at once, not after the time limit."""
    taken: asyncio.Task[object] = asyncio.create_task(asyncio.to_thread(sink.process.wait, RUN_SECONDS_MAX))
    waiting: set[asyncio.Task[object]] = {taken, *(asyncio.create_task(_succeeded(client)) for client in clients)}
    try:
        while not taken.done():
            done, waiting = await asyncio.wait(waiting, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise RuntimeError(f"after {RUN_SECONDS_MAX:.0f} s the receiving server has not got everything")
            for task in done:
                task.result()
    finally:
        sink.process.kill()  # ends the thread that waits for it
        await asyncio.gather(taken, *waiting, return_exceptions=True)


async def _succeeded(client: asyncio.subprocess.Process) -> None:
    await client.wait()
    if client.returncode != 0:
        output = await client.stdout.read() if client.stdout is not None else b""
        raise RuntimeError(f"smtp-source: {output.decode(errors='replace')}")


def count_rows(tracking: Path, event_id: str) -> int:
    """Rows of one event in a tracking log. The event is the ninth field, and none before it is ever quoted."""
    count = 0
    for path in sorted(tracking.glob("MSGTRK*.LOG")):
        for line in path.read_bytes().splitlines():
            fields = line.split(b",", 9)
            count += len(fields) > 9 and fields[8] == event_id.encode()
    return count


def read_synchronous(node: NodeProcess) -> str:
    """The durability that the node read back from its database when it opened it: a label in its metrics."""
    with urllib.request.urlopen(f"http://{node.admin}/metrics", timeout=10) as answer:
        found = re.search(rb'database_info\{[^}]*synchronous="(\w+)"', answer.read())
    return found[1].decode() if found else "unknown"
