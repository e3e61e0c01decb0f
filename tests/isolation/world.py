"""Two nodes that are each other's shadow server, and ten next hops: one is healthy, each of the other nine is sick in its own way.

The domain of a recipient names the next hop: mail to `user1@silent.example` goes to the one that is silent. `unresolvable` is either a
domain without a route, for which the name server reports a failure, or a route to a name about which the name server is silent.
The nodes know each other by name too: a resolver that is busy with a dead name must not keep them apart.
"""

import asyncio
import random
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import dns.rcode

from shadowrelay.admin.client import NodeClient
from shadowrelay.admin.token import read_token
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, Row, Table
from shadowrelay.lab.cluster import rows as tracking_rows
from shadowrelay.lab.traffic import Load, Sent, Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.greeted import wait_until_peers_know_each_other
from tests.kit.node_log import operator_events
from tests.kit.smtp_servers import CLOSE, EXTENSIONS, HANG, ScriptedServer, name_server, serving

EAST, WEST = "mx1.east.example", "mx1.west.example"
PLACES = (Place(EAST, "east"), Place(WEST, "west"))
HEALTHY = "healthy"
WAITING = ("silent", "slow", "dripping")  # each keeps its sessions busy
FAILING = ("refused", "unresolvable", "dropping", "untrusted")  # each attempt fails
PASSING = ("one-by-one", "greylisting")  # sick, but a message gets through
SICK = (*WAITING, *FAILING, *PASSING)
DEAD_NAME = "mailstore.unresolvable.example"
LONG_SPAN = "10m"  # nobody is to be taken over, and a dot may take minutes
SESSIONS = 50
RUNNING_QUEUES = {"Submission", "Delivery"}

_MESSAGE_ID = re.compile(rb"(?im)^Message-ID: (\S+)\r$")


class World:
    """Who arrived where, how often a next hop was called, and what the nodes logged."""

    def __init__(self, cluster: Cluster, servers: Mapping[str, ScriptedServer], sink: Sink, refused: socket.socket, size: int) -> None:
        self.cluster = cluster
        self.sink = sink
        self.servers = dict(servers)
        self.is_slow_released = asyncio.Event()
        self.unresolvable = "unresolvable.example"
        self.load = Load({EAST: cluster.nodes[EAST].address}, random.Random(1), size=size, sessions=SESSIONS, recipients=self._recipients)
        self._recipients_by_number: list[str] = []
        self._refused = refused

    def _recipients(self, number: int) -> tuple[str, ...]:
        return (self._recipients_by_number[number - 1],)

    @property
    def entry(self) -> NodeProcess:
        """The node that takes the mail, unless `load` was given another."""
        return self.cluster.nodes[EAST]

    @property
    def sent(self) -> list[Sent]:
        """Everything that was submitted."""
        return self.load.sent

    async def send(self, kinds: Iterable[str], *, rate: float = 10_000.0) -> None:
        """One message to each of these next hops, in this order; returns when all are acknowledged."""
        start = len(self._recipients_by_number)
        self._recipients_by_number += [f"user{start + place}@{kind}.example" for place, kind in enumerate(kinds)]
        await self.load.run(len(self._recipients_by_number) - start, rate=rate)

    def arrivals(self, kind: str) -> Counter[str]:
        """Message-ID -> how often its content came to the end there."""
        if kind == HEALTHY:
            return Counter(arrival.internet_message_id for arrival in self.sink.arrivals)
        server = self.servers.get(kind)
        found = [_MESSAGE_ID.search(content) for content in (server.messages if server is not None else ())]
        return Counter(match[1].decode() for match in found if match is not None)

    async def until_arrived(self, kind: str, count: int) -> None:
        """So many different messages have arrived there."""
        await until(lambda: len(self.arrivals(kind)) >= count, lambda: f"{len(self.arrivals(kind))} of {count} arrived at {kind}")

    def attempts(self, kind: str) -> int:
        """How often the node that takes the mail has tried this next hop in vain, by its operator log."""
        key = self.key(kind)
        return sum(line["event"] == "attempt.finished" and line["next_hop"] == key for line in operator_events(self.entry))

    def key(self, kind: str) -> str:
        """What the nodes call its queue."""
        return self.unresolvable if kind == "unresolvable" else str(self.address(kind))

    def address(self, kind: str) -> HostPort:
        """Of a next hop that is a route."""
        if kind == "refused":
            return HostPort("127.0.0.1", int(self._refused.getsockname()[1]))
        return HostPort("127.0.0.1", self.servers[kind].port)

    def queues(self) -> dict[str, tuple[int, str]]:
        """Next hop, or "Submission" -> how many messages the node that takes the mail has for it, and the last error."""
        with NodeClient(f"http://{self.entry.admin}", read_token(self.entry.directory / "token")) as client:
            found = [queue for queue in client.queues() if queue["kind"] in RUNNING_QUEUES]
        return {queue["next_hop"]: (queue["count"], queue["last_error"]) for queue in found}

    def queued(self) -> int:
        """Messages that the node that takes the mail has not delivered, as it says itself."""
        return sum(count for count, _ in self.queues().values())

    async def until_queued(self, count: int) -> None:
        """Exactly so many are left: an outcome is recorded after the next hop has answered."""
        await until(lambda: self.queued() == count, lambda: f"{self.queued()} are queued, not {count}")

    async def heal_refused(self) -> ScriptedServer:
        """The one that refused connections listens now."""
        port = self.address("refused").port
        self._refused.close()
        server = self.servers["refused"] = ScriptedServer(port=port)
        await server.start()
        return server


async def until(claim: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait for what nobody announces; the failure says how it was instead."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await asyncio.to_thread(claim):
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(0.1)


@asynccontextmanager
async def world(
    directory: Path, *, slow_seconds: float | None = None, is_dns_silent: bool = False, send: Table | None = None, size: int = 1024
) -> AsyncIterator[World]:
    """Everything runs, and the nodes know each other. The slow next hop answers a dot after so many seconds; by default when
    `is_slow_released`."""
    async with AsyncExitStack() as stack:
        refused = stack.enter_context(socket.socket())
        refused.bind(("127.0.0.1", 0))  # never listens: the port is ours, and refuses
        gate = asyncio.Event()
        servers = _sick_servers(gate, slow_seconds)
        sink = Sink()
        stack.push_async_callback(sink.close)
        healthy = await sink.start()
        failing = {("unresolvable.example", "MX"): dns.rcode.SERVFAIL, (DEAD_NAME, "A"): None, (DEAD_NAME, "AAAA"): None}
        _, port = await stack.enter_async_context(name_server(failing))
        async with serving(*servers.values()):
            routes = {f"*@{kind}.example": HostPort("127.0.0.1", server.port) for kind, server in servers.items()}
            routes |= {"*@refused.example": HostPort("127.0.0.1", refused.getsockname()[1]), f"*@{HEALTHY}.example": healthy}
            if is_dns_silent:
                routes["*@unresolvable.example"] = HostPort(DEAD_NAME, 25)
            transport: Table = {"shadow_resubmit_time_span": LONG_SPAN, "reject_message_on_shadow_failure": False}
            cluster = Cluster(
                PLACES, None, directory=directory, transport=transport, send=send, routes=routes,
                tables={"dns": {"nameservers": [f"127.0.0.1:{port}"]}}, peer_host="localhost",
            )  # fmt: skip
            async with cluster:
                await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))
                found = World(cluster, servers, sink, refused, size)
                found.is_slow_released = gate
                if is_dns_silent:
                    found.unresolvable = f"{DEAD_NAME}:25"
                stack.push_async_callback(found.load.close)
                yield found
                gate.set()
                for server in found.servers.values():  # before the nodes: a session in which nobody answers would keep a drain waiting
                    await server.stop()


def _sick_servers(gate: asyncio.Event, slow_seconds: float | None) -> dict[str, ScriptedServer]:
    seen: set[str] = set()

    async def after_a_while(line: str) -> str:
        await (gate.wait() if slow_seconds is None else asyncio.sleep(slow_seconds))
        return "250 2.0.0 taken in the end"

    def later(line: str) -> str:
        if line in seen:
            return "250 2.1.5 ok"
        seen.add(line)
        return "451 4.7.1 Greylisted, come back later"

    return {
        "silent": ScriptedServer({"GREETING": HANG}),
        "slow": ScriptedServer({"DOT": after_a_while}),
        "dripping": ScriptedServer(seconds_per_octet=1.0),
        "dropping": ScriptedServer({"DOT": CLOSE}),
        "untrusted": ScriptedServer(
            {"MAIL": "454 4.7.0 TLS first", "RCPT": "503 5.5.1 MAIL first", "DATA": "503 5.5.1 MAIL first"},
            extensions=(*EXTENSIONS, "STARTTLS"),
        ),
        "one-by-one": ScriptedServer({"DOT": "250 2.0.0 taken\r\n421 4.3.2 One message a session"}),
        "greylisting": ScriptedServer({"RCPT": later}),
    }


def rows(cluster: Cluster) -> list[Row]:
    """The tracking logs of all nodes that have ended."""
    return [row for node in cluster.nodes.values() for row in tracking_rows(node.tracking)]


def without_copy(tracked: Iterable[Row], sent: Iterable[Sent]) -> list[str]:
    """Acknowledged messages without proof that a second server had them by then: HAREDIRECT, and after it a RECEIVE that says so."""
    redirected: set[str] = set()
    proved: set[str] = set()
    for row in tracked:
        if row["event-id"] == "HAREDIRECT":
            redirected.add(row["network-message-id"])
        elif row["event-id"] == "RECEIVE" and "S:Replication=Success" in row["custom-data"] and row["network-message-id"] in redirected:
            proved.add(row["network-message-id"])
    return [found for one in sent for found in one.acknowledged_ids if found not in proved]


def deferred_because(tracked: Iterable[Row]) -> dict[str, set[tuple[str, str]]]:
    """Next hop -> the sources and replies of its DEFER rows, without what differs from run to run."""
    found: dict[str, set[tuple[str, str]]] = {}
    for row in tracked:
        if row["event-id"] == "DEFER":
            kind = row["recipient-address"].partition("@")[2].removesuffix(".example")
            found.setdefault(kind, set()).add((row["source"], row["recipient-status"]))
    return found
