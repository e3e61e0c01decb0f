"""Nodes as processes: a configured one alone, what it shows, and what its API says. Several together: `shadowrelay.lab.cluster`."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from shadowrelay.admin.api_client import NodeClient
from shadowrelay.admin.token import read_token
from shadowrelay.lab.account import has_all_arrived
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, free_ports
from shadowrelay.lab.traffic import Load, Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clients import Client
from tests.kit.clock import PATIENCE_SECONDS, until, wait_until
from tests.kit.secrets_shown import heard

SETTLE_SECONDS_MAX = 240.0

CONFIGURATION = """
[server]
name = "{name}"
site = "east"
boundary = "corp"
data_directory = "data"

[[receive_connectors]]
name = "in"
listen = "{smtp}"
accepted_domains = ["here.example"]
{connector}

[[routes]]
recipients = ["*"]
next_hop = "127.0.0.1:9"

[tracking]
directory = "tracking"

[admin]
listen = "{admin}"
{tables}
"""
RUNNING_QUEUES = ("Submission", "Delivery")
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # else httpx loads public certificates each time, which takes longer than the answer


def a_node_process(directory: Path, *, connector: str = "", tables: str = "") -> NodeProcess:
    """Configured, not started: it takes mail for here.example. `connector`: further lines of its receive connector."""
    smtp, admin = (HostPort("127.0.0.1", port) for port in free_ports(2))
    node = NodeProcess(Place("a.example", "east"), smtp, admin, directory)
    node.directory.mkdir(exist_ok=True)
    text = CONFIGURATION.format(name=node.name, smtp=smtp, admin=admin, connector=connector, tables=tables)
    (node.directory / "node.toml").write_text(text)
    return node


@asynccontextmanager
async def a_served_node(directory: Path, connector: str = "") -> AsyncIterator[NodeProcess]:
    """Running."""
    node = a_node_process(directory / "a.example", connector=connector)
    try:
        await node.start()
        yield node
    finally:
        await node.stop()


async def client_of(node: NodeProcess, *commands: str) -> Client:
    """A new connection to `a_served_node`: these commands were answered 2xx or 3xx."""
    client = await Client.to(node.address)
    await client.begin(*commands, banner=f"220 {node.name} ESMTP")
    return client


# what it shows
def whole_lines(path: Path) -> list[str]:
    """Without the last one while it is being written: a reader may come in the middle of a write."""
    return path.read_text().rpartition("\n")[0].splitlines()


def operator_events(node: NodeProcess, event: str = "") -> list[dict[str, Any]]:
    """What stands in its operator log now, of events that begin so."""
    found = [json.loads(line) for line in whole_lines(node.directory / "node.log") if line.startswith("{")]
    return [line for line in found if line["event"].startswith(event)]


async def address_of_connector(node: NodeProcess, name: str) -> HostPort:
    """Where this connector of it listens, by its log, which may be a moment behind."""
    while not (found := [line["address"] for line in operator_events(node, "connector.listening") if line["connector"] == name]):
        await asyncio.sleep(0.05)
    host, _, port = found[-1].rpartition(":")
    return HostPort(host, int(port))


def rss_kilobytes(node: NodeProcess) -> int:
    """Resident memory."""
    assert node.process is not None
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


# what its API says
def api_of(node: NodeProcess) -> NodeClient:
    return NodeClient(f"http://{node.admin}", read_token(node.directory / "token"))


def figure(node: NodeProcess, metric: str) -> float:
    """Of its metrics; one that has labels is named with them, as they stand there."""
    text = httpx.get(f"http://{node.admin}/metrics", timeout=PATIENCE_SECONDS, verify=NO_TLS).raise_for_status().text
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"shadowrelay_{metric} "))


def queues_of(node: NodeProcess) -> dict[str, tuple[int, str]]:
    """Next hop, "" for Submission -> how many messages wait for it, and the last error."""
    with api_of(node) as client:
        return {queue["next_hop"]: (queue["count"], queue["last_error"]) for queue in client.queues() if queue["kind"] in RUNNING_QUEUES}


def held_by(node: NodeProcess) -> list[str]:
    """Queues that are not empty, Safety Net apart."""
    with api_of(node) as client:
        queues = [queue for queue in client.queues() if queue["count"] and not queue["kind"].startswith("SafetyNet")]
    return [f"{node.name}: {queue['count']} in {queue['identity']} ({queue['next_hop']})" for queue in queues]


async def settled(cluster: Cluster, load: Load, sink: Sink) -> None:
    """All has arrived, and nothing is queued or held."""

    def left() -> list[str]:
        return [line for node in cluster.nodes.values() for line in held_by(node)]

    await until(lambda: has_all_arrived(load.sent, sink.arrivals) and not left(), SETTLE_SECONDS_MAX, lambda: str(left()))


def waiting_count(node: NodeProcess) -> int:
    """Messages that are not delivered yet."""
    return sum(count for count, _ in queues_of(node).values())


def kept_count(node: NodeProcess) -> int:
    """Messages in its shadow queues."""
    with api_of(node) as client:
        return sum(queue["count"] for queue in client.queues() if queue["kind"] == "Shadow")


def wait_until_peers_know_each_other(nodes: Sequence[NodeProcess]) -> None:
    """Their kept sessions are open. Until then a message finds no shadow server, and is refused where that is wanted."""
    for node in nodes:
        with api_of(node) as client:
            wait_until(lambda: all(peer["heard_at"] and peer["database"] for peer in client.peers()), what=f"{node.name} hears its peers")


def wait_until_peers_take_copies(nodes: Sequence[NodeProcess]) -> None:
    """Each node has a session of its own with each peer: that it hears a peer may be the peer's session with it."""
    for node in nodes:
        with api_of(node) as client:
            wait_until(lambda: all(peer["takes_copies"] == "yes" for peer in client.peers()), what=f"the peers of {node.name} take copies")


# what its operator types
async def typed(node: NodeProcess, *words: str, code: int | None = 0) -> tuple[str, str]:
    """Standard output and standard error of a command with this node's configuration; `code` None: whatever it is."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "shadowrelay", *words, "--config", str(node.directory / "node.toml")),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=node.directory,
    )
    output, errors = (text.decode() for text in await process.communicate())
    heard.extend((output, errors))
    assert code in (None, process.returncode), f"{words}: {output}{errors}{node.log_tail()}"
    return output, errors


async def said(node: NodeProcess, *words: str, code: int | None = 0) -> Any:
    """The answer to a command as JSON."""
    return json.loads((await typed(node, *words, "--json", code=code))[0])
