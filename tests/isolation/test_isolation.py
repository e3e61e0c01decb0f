"""One bad next hop hurts nobody else: ten next hops, nine of them sick, and the mail of the healthy one does not notice.

What is shown here is order and number, not time: the healthy next hop has all its mail while that of the sick ones is queued.
"""

import asyncio
import math
import random
import re
import socket
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import dns.rcode
import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, Row, Table
from shadowrelay.lab.cluster import rows as tracking_rows
from shadowrelay.lab.traffic import Load, Sent, Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clock import until
from tests.kit.processes import operator_events, queues_of, rss_kilobytes, wait_until_peers_know_each_other
from tests.kit.smtp_servers import CLOSE, EXTENSIONS, HANG, ScriptedServer, name_server, serving

pytestmark = pytest.mark.usefixtures("quiet")

# Two nodes that are each other's shadow server, and ten next hops: one is healthy, each of the other nine is sick in its own way.
#
# The domain of a recipient names the next hop: mail to `user1@silent.example` goes to the one that is silent. `unresolvable` is either a
# domain without a route, for which the name server reports a failure, or a route to a name about which the name server is silent.
# The nodes know each other by name too: a resolver that is busy with a dead name must not keep them apart.

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

_MESSAGE_ID = re.compile(rb"(?im)^Message-ID: (\S+)\r$")


class TenNextHops:
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
        await until(lambda: len(self.arrivals(kind)) >= count, what=lambda: f"{len(self.arrivals(kind))} of {count} arrived at {kind}")

    def attempts(self, kind: str) -> int:
        """How often the node that takes the mail has tried this next hop in vain, by its operator log."""
        key = self.key(kind)
        return sum(line["next_hop"] == key for line in operator_events(self.entry, "attempt.finished"))

    def key(self, kind: str) -> str:
        """What the nodes call its queue."""
        return self.unresolvable if kind == "unresolvable" else str(self.address(kind))

    def address(self, kind: str) -> HostPort:
        """Of a next hop that is a route."""
        if kind == "refused":
            return HostPort("127.0.0.1", int(self._refused.getsockname()[1]))
        return HostPort("127.0.0.1", self.servers[kind].port)

    def queued(self) -> int:
        """Messages that the node that takes the mail has not delivered, as it says itself."""
        return sum(count for count, _ in queues_of(self.entry).values())

    async def until_queued(self, count: int) -> None:
        """Exactly so many are left: an outcome is recorded after the next hop has answered."""

        async def is_so() -> bool:
            return count == await asyncio.to_thread(self.queued)

        await until(is_so, what=lambda: f"{self.queued()} are queued, not {count}")

    async def heal_refused(self) -> ScriptedServer:
        """The one that refused connections listens now."""
        port = self.address("refused").port
        self._refused.close()
        server = self.servers["refused"] = ScriptedServer(port=port)
        await server.start()
        return server


@asynccontextmanager
async def world(
    directory: Path, *, slow_seconds: float | None = None, is_dns_silent: bool = False, send: Table | None = None, size: int = 1024
) -> AsyncIterator[TenNextHops]:
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
                found = TenNextHops(cluster, servers, sink, refused, size)
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


CONCURRENCY = 5
PROBE_SECONDS = 0.5  # the shortest interval of the ladder below
SEND = {
    "concurrency_per_destination": CONCURRENCY,
    "queue_glitch_retry_interval": f"{PROBE_SECONDS}s",
    "message_retry_interval": "1s",
}
STUCK = 750  # to each next hop that keeps its sessions busy; together more than a node ever works on at one time
EACH = 20
REASONS = {  # source and beginning of the reply in every DEFER row
    "refused": ("SMTP", "451 4.4.1 Could not connect to the server"),
    "unresolvable": ("DNS", "451 4.4.3 The domain name could not be looked up"),
    "dropping": ("SMTP", "451 4.4.2 Connection lost"),
    "untrusted": ("SMTP", "454 4.7.0 TLS first"),
    "greylisting": ("SMTP", "451 4.7.1 Greylisted"),
}


@pytest.mark.slow
async def test_the_healthy_next_hop_gets_its_mail_while_nine_are_sick(tmp_path: Path) -> None:
    async with world(tmp_path, send=SEND) as here:
        await here.send(kind for _ in range(STUCK) for kind in WAITING)
        refused_from = time.monotonic()
        await here.send(kind for _ in range(EACH) for kind in (*FAILING, *PASSING))
        await here.send([HEALTHY] * EACH)
        await here.until_arrived(HEALTHY, EACH)
        stuck = {kind: here.arrivals(kind).total() for kind in ("silent", "refused", "dripping", "untrusted")}
        answered = here.is_slow_released.is_set()
        for kind in PASSING:
            await here.until_arrived(kind, EACH)
        await here.until_queued(STUCK * len(WAITING) + EACH * len(FAILING))
        dials = {kind: here.attempts(kind) for kind in ("refused", "unresolvable")}
        dials_max = CONCURRENCY + 1 + (time.monotonic() - refused_from) / PROBE_SECONDS  # the first ones, then one probe an interval
        queues = {kind: (await asyncio.to_thread(queues_of, here.entry)).get(here.key(kind), (0, "")) for kind in FAILING}
        sessions = {kind: here.servers[kind].open_count_max for kind in here.servers}

        here.is_slow_released.set()
        await here.heal_refused()
        await here.until_arrived("slow", STUCK)
        await here.until_arrived("refused", EACH)
        await here.until_queued(STUCK * 2 + EACH * 3)
        times = {kind: set(here.arrivals(kind).values()) for kind in (HEALTHY, *PASSING, "slow", "refused")}
        reasons = deferred_because(rows(here.cluster))  # now: the servers end before the nodes, and a late probe finds nobody
    tracked = rows(here.cluster)
    told = {kind: (count, error.startswith(REASONS[kind][1])) for kind, (count, error) in queues.items()}
    wrong = {
        kind: found
        for kind, (source, reply) in REASONS.items()
        if not (found := reasons.get(kind)) or not all(row[0] == source and row[1].startswith(reply) for row in found)
    }

    assert ({"silent": 0, "refused": 0, "dripping": 0, "untrusted": 0}, False) == (stuck, answered)
    assert {} == {kind: (count, dials_max) for kind, count in dials.items() if not 1 <= count <= dials_max}
    assert dict.fromkeys(FAILING, (EACH, True)) == told
    assert {} == {kind: count for kind, count in sessions.items() if count > CONCURRENCY}
    assert {} == {kind: found for kind, found in times.items() if found != {1}}
    assert [] == without_copy(tracked, here.sent)
    assert ({}, set()) == (wrong, {HEALTHY, "one-by-one", "slow"} & set(reasons))


def test_every_sickness_has_its_place() -> None:
    assert 9 == len(set(SICK))


# The large one. Both worlds get the same load, one of it all to a healthy next hop: the difference is what sickness costs, on any
# machine. What the healthy next hop takes for its own tenth of the load is printed.

RATE = 10.0  # messages a second to each next hop
PHASE_SECONDS = 20
PHASES = 5
BULK = 3000  # messages before each phase, as fast as they are taken, to next hops that take none
BULK_FIRST = 10_000  # what the nodes keep in memory up to a bound, such as recent contents, is full then
WARM_UP = 100  # messages that open sessions
SLOW_SECONDS = 5.0
SLOWER_MAX = 2.0
RSS_KILOBYTES_MAX = 400_000
# Of each node, in the last two phases, which add 9,000 messages and 150 MB to the backlog. SQLite's page cache, 64 MiB at most, is not
# full by then.
GROWTH_KILOBYTES_MAX = 25_000
SIZE = 16_384
LARGE_SEND = {
    "queue_glitch_retry_interval": "2s",
    "transient_failure_retry_interval": "5s",
    "outbound_connection_failure_retry_interval": "10s",
    "message_retry_interval": "30s",
}


def is_to_healthy(one: Sent) -> bool:
    return one.recipients[0].endswith(f"@{HEALTHY}.example")


async def healthy_p99(here: TenNextHops, kinds: Sequence[str], rate: float) -> float:
    """From the beginning of a submission to the arrival, of the messages of this phase to the healthy next hop. Nearest rank."""
    start = len(here.sent)
    await here.send(kinds, rate=rate)
    await here.until_arrived(HEALTHY, sum(map(is_to_healthy, here.sent)))
    began_at = {one.internet_message_id: one.tries[-1].began_at for one in here.sent[start:] if is_to_healthy(one)}
    arrivals = here.sink.arrivals
    seconds = sorted(found.at - began_at[found.internet_message_id] for found in arrivals if found.internet_message_id in began_at)
    return seconds[math.ceil(0.99 * len(seconds)) - 1]


@pytest.mark.heavy
@pytest.mark.timeout(1800)
async def test_nine_sick_next_hops_cost_the_healthy_one_nothing_and_no_memory(tmp_path: Path) -> None:
    alone: list[float] = []
    among: list[float] = []
    rss: list[dict[str, int]] = []
    count = int(RATE * PHASE_SECONDS)
    kinds = (*SICK, HEALTHY)
    everything = RATE * len(kinds)
    async with (
        world(tmp_path / "well", send=LARGE_SEND, size=SIZE) as well,
        world(tmp_path / "sick", slow_seconds=SLOW_SECONDS, is_dns_silent=True, send=LARGE_SEND, size=SIZE) as sick,
    ):
        for here in (well, sick):
            here.load.nodes = {name: node.address for name, node in here.cluster.nodes.items()}
            await healthy_p99(here, [HEALTHY] * WARM_UP, RATE)
        for phase in range(1, PHASES + 1):
            await sick.send((*WAITING, "refused", "unresolvable")[number % 5] for number in range(BULK if phase > 1 else BULK_FIRST))
            own_load = await healthy_p99(well, [HEALTHY] * count, RATE)
            alone.append(await healthy_p99(well, [HEALTHY] * count * len(kinds), everything))
            among.append(await healthy_p99(sick, kinds * count, everything))
            rss.append({name: rss_kilobytes(node) for name, node in sick.cluster.nodes.items()})
            print(
                f"phase {phase}: p99 {own_load:.3f} s with its own load, {alone[-1]:.3f} s with the load of all, {among[-1]:.3f} s among "
                f"nine sick ones; RSS {sorted(rss[-1].values())} kB, {sick.queued()} queued on {EAST}"
            )
    half, end = rss[PHASES // 2], rss[-1]
    tracked = rows(sick.cluster)

    assert [] == without_copy(tracked, sick.sent)
    assert ({1}, PHASES * count + WARM_UP) == (set(sick.arrivals(HEALTHY).values()), len(sick.arrivals(HEALTHY)))
    assert statistics.median(among) <= SLOWER_MAX * statistics.median(alone), (among, alone)
    assert {} == {name: kilobytes for name, kilobytes in end.items() if kilobytes > RSS_KILOBYTES_MAX}
    assert {} == {name: (half[name], end[name]) for name in end if end[name] - half[name] > GROWTH_KILOBYTES_MAX}
