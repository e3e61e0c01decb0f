"""What became of an attempt, in real processes: recorded when it is known, whatever happens to the node, the notice or the clock.

And what waits for an attempt: it holds no drain and no memory.
"""

import asyncio
import signal
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from shadowrelay.admin.api_client import NodeError
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, Row, Table, recipients, rows
from shadowrelay.model.routing import HostPort
from shadowrelay.smtp.host_names import AT_ONCE
from shadowrelay.store.content import RECENT_BYTES_MAX
from tests.kit.clients import submit
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.processes import api_of, operator_events, rss_kilobytes, wait_until_peers_know_each_other, waiting_count
from tests.kit.smtp_servers import HANG, ScriptedServer, name_server, serving

pytestmark = pytest.mark.slow

ONE = (Place("mx1.east.example", "east"),)
TWO = (*ONE, Place("mx1.west.example", "west"))
LONG_SPAN: Table = {"shadow_resubmit_time_span": "10m", "reject_message_on_shadow_failure": False}  # nobody takes anything over
LATER = "451 4.2.1 Come back later"


def hop(server: ScriptedServer) -> HostPort:
    return HostPort("127.0.0.1", server.port)


def routes_to(servers: Mapping[str, ScriptedServer]) -> dict[str, HostPort]:
    return {f"*@{name}.example": hop(server) for name, server in servers.items()}


async def is_done(node: NodeProcess, message_id: str, ordinals: set[int]) -> bool:
    """These are what the node knows to be done."""

    def done() -> set[int]:
        with api_of(node) as client:
            try:
                message = client.message(message_id)
            except NodeError as error:
                if error.status != 404:
                    raise
                return set()
        return {one["ordinal"] for one in message["recipients"] if one["is_done"]}

    return ordinals == await asyncio.to_thread(done)


def offered(server: ScriptedServer) -> Counter[str]:
    """How often each address was named to this next hop."""
    return Counter(line.partition("<")[2].partition(">")[0] for line in server.lines if line.startswith("RCPT"))


def of_kind(node: NodeProcess, event: str) -> list[Row]:
    return [row for row in rows(node.tracking) if row["event-id"] == event]


def loaded(node: NodeProcess) -> Counter[str]:
    """How often each message was loaded at a start."""
    return Counter(row["network-message-id"] for row in of_kind(node, "LOAD"))


async def is_empty(node: NodeProcess) -> bool:
    """Everything is delivered."""
    return not await asyncio.to_thread(waiting_count, node)


class Gate:
    """Answers to the dot that wait until the gate is open."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, line: str) -> str:
        await self.opened.wait()
        return "250 2.0.0 taken in the end"


# What is done is recorded when it is done


# Rows wait an hour for others, instead of 5 ms.
LATE_ROWS = (
    "-c",
    "import sys; from shadowrelay.cli.main import app; from shadowrelay.tracking import writer\n"
    "writer.GATHER_SECONDS = 3600.0; app(['serve', *sys.argv[1:]])",
)


async def test_what_is_over_at_kill_9_has_its_rows_although_rows_wait_for_others(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with serving(server), Cluster(ONE, hop(server), directory=tmp_path, transport=LONG_SPAN, program=LATE_ROWS) as cluster:
        (node,) = cluster.nodes.values()
        sent = [await submit(node.address, f"u{number}@fast.example") for number in range(3)]
        await until(lambda: len(server.messages) == len(sent))
        await until(lambda: is_empty(node))
        await node.kill()

    for kind in ("SEND", "RECEIVE"):
        assert sent == [row["network-message-id"] for row in of_kind(node, kind)], kind


async def test_a_fast_fork_is_recorded_and_reported_while_a_slow_one_is_open_and_outlives_kill_9(tmp_path: Path) -> None:
    gate = Gate()
    servers = {"fast": ScriptedServer(), "slow": ScriptedServer({"DOT": gate})}
    async with (
        serving(*servers.values()),
        Cluster(TWO, None, directory=tmp_path, transport=LONG_SPAN, routes=routes_to(servers)) as cluster,
    ):
        east, west = cluster.nodes.values()
        await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
        message_id = await submit(east.address, "u@fast.example", "u@slow.example")
        await until(lambda: len(servers["slow"].messages) == 1)

        await until(lambda: is_done(east, message_id, {1}), what="the fast fork is recorded")
        await until(lambda: is_done(west, message_id, {1}), what="the shadow server has heard of it")
        await east.kill()
        gate.opened.set()
        await east.start()
        await until(lambda: is_empty(east), what="the slow fork is delivered")

    assert (1, 2) == (len(servers["fast"].messages), len(servers["slow"].messages))  # the second dot had no answer before the kill
    assert [["u@slow.example"]] == [recipients(row) for row in of_kind(east, "LOAD")]


async def test_each_transaction_of_a_hundred_recipients_is_recorded_by_itself(tmp_path: Path) -> None:
    gate = Gate()
    last = ScriptedServer({"DOT": [*["250 2.0.0 taken"] * 2, gate]})
    addresses = [f"u{number}@many.example" for number in range(1, 251)]
    async with serving(last), Cluster(TWO, None, directory=tmp_path, transport=LONG_SPAN, routes=routes_to({"many": last})) as cluster:
        east, west = cluster.nodes.values()
        await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
        message_id = await submit(east.address, *addresses)
        await until(lambda: len(last.messages) == 3)

        first = set(range(1, 201))
        await until(lambda: is_done(east, message_id, first), what="two transactions are recorded")
        await until(lambda: is_done(west, message_id, first), what="the shadow server has heard of them")
        await east.kill()
        gate.opened.set()
        await east.start()
        await until(lambda: is_empty(east), what="the third one is delivered")

    assert ({1}, {2}) == tuple({offered(last)[address] for address in part} for part in (addresses[:200], addresses[200:]))


async def test_every_start_loads_what_is_queued_into_the_log(tmp_path: Path) -> None:
    server = ScriptedServer({"RCPT": LATER})
    async with serving(server), Cluster(ONE, hop(server), directory=tmp_path, transport=LONG_SPAN) as cluster:
        (node,) = cluster.nodes.values()
        ids = [await submit(node.address, f"u{number}@late.example") for number in range(3)]
        await until(lambda: set(offered(server)) == {f"u{number}@late.example" for number in range(3)})
        for start in (1, 2):
            await node.stop()
            await node.start()
            wanted = Counter(dict.fromkeys(ids, start))
            await until(lambda wanted=wanted: wanted == loaded(node), what=str(wanted))


# An outcome survives its notice

WITHOUT_NOTICES = (
    "-c",
    """
import sys
from shadowrelay.cli.main import app
from shadowrelay.rules import dsn
def build(*_, **__):
    raise RuntimeError("no notice can be built")
dsn.build = build
app(["serve", *sys.argv[1:]])
""",
)


async def test_an_outcome_is_recorded_although_its_notice_cannot_be_built(tmp_path: Path) -> None:
    def answer(line: str) -> str:
        return "550 5.1.1 no such user" if "<bad@" in line else "250 2.1.5 ok"

    server = ScriptedServer({"RCPT": answer})
    async with serving(server), Cluster(ONE, hop(server), directory=tmp_path, transport=LONG_SPAN, program=WITHOUT_NOTICES) as cluster:
        (node,) = cluster.nodes.values()
        message_id = await submit(node.address, "good@here.example", "bad@here.example")

        await until(lambda: is_empty(node), what="both recipients are done")
        events = operator_events(node)

    about = [line for line in events if line.get("message_id") == message_id and line["level"] in ("warning", "error")]
    assert Counter({"good@here.example": 1, "bad@here.example": 1}) == offered(server) - Counter(["sender@client.example"])
    assert [["bad@here.example"]] == [recipients(row) for row in of_kind(node, "FAIL")]
    assert [] != about


# The wall clock is set wrong, and right again

WITH_ANOTHER_CLOCK = """
import sys
from datetime import timedelta
from pathlib import Path
from shadowrelay.cli.main import app
from shadowrelay.pipeline.context import SystemClock
right, file = SystemClock.now, Path({path!r})
SystemClock.now = staticmethod(lambda: right() + timedelta(days=int(file.read_text() or 0)))
app(["serve", *sys.argv[1:]])
"""


@pytest.mark.parametrize(
    "is_started_again", [pytest.param(False, marks=pytest.mark.heavy), True], ids=["in the same process", "in the next process"]
)
async def test_a_clock_that_was_a_day_ahead_keeps_no_message_longer_than_its_interval(tmp_path: Path, is_started_again: bool) -> None:
    days = tmp_path / "days"
    days.write_text("0")
    is_late = True
    server = ScriptedServer({"RCPT": lambda line: LATER if is_late else "250 2.1.5 ok"})
    program = ("-c", WITH_ANOTHER_CLOCK.format(path=str(days)))
    ladder: Table = {"transient_failure_retry_interval": "1h", "outbound_connection_failure_retry_interval": "1h"}  # not of these messages
    async with serving(server), Cluster(ONE, hop(server), directory=tmp_path, transport=LONG_SPAN, send=ladder, program=program) as cluster:
        (node,) = cluster.nodes.values()
        addresses = [f"u{number}@late.example" for number in range(5)]
        for address in addresses:
            await submit(node.address, address)
        days.write_text("1")
        before = offered(server)
        await until(lambda: all(offered(server)[address] > before[address] + 1 for address in addresses))
        await until(lambda: operator_events(node, "clock."), what="the jump ahead is logged")
        if is_started_again:
            await node.stop()
        days.write_text("0")
        is_late = False
        if is_started_again:
            await node.start()

        await until(lambda: is_empty(node), what="what was deferred by the wrong clock is delivered")
        jumps = operator_events(node, "clock.")

    # an empty one ends a DATA for which no recipient was left; a delay notice may be made by the wrong clock
    assert len(addresses) == len([message for message in server.messages if message and b"multipart/report" not in message])
    assert len(jumps) == (1 if is_started_again else 2)  # a process that starts has nothing to compare its clock with


# A slow next hop is no reason to send again

SPAN_SECONDS = 30  # so a final dot is given ten seconds where a lease is needed
SLOW_SECONDS = 12


@pytest.mark.parametrize(
    ("places", "transport"),
    [
        pytest.param(ONE, {}, marks=pytest.mark.heavy),
        pytest.param(TWO, {"shadow_redundancy_enabled": False}, marks=pytest.mark.heavy),
        (TWO, {}),
    ],
    ids=["without peers", "without redundancy", "with a lease that is renewed meanwhile"],
)
async def test_a_next_hop_that_is_slow_to_answer_the_dot_gets_each_message_once(
    tmp_path: Path, places: tuple[Place, ...], transport: Table
) -> None:
    async def answer(line: str) -> str:
        await asyncio.sleep(SLOW_SECONDS)
        return "250 2.0.0 taken"

    server = ScriptedServer({"DOT": answer})
    times: Table = {"shadow_resubmit_time_span": f"{SPAN_SECONDS}s", "reject_message_on_shadow_failure": False, **transport}
    async with serving(server), Cluster(places, hop(server), directory=tmp_path, transport=times) as cluster:
        east = next(iter(cluster.nodes.values()))
        if places == TWO and not transport:
            await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))
        addresses = [f"u{number}@slow.example" for number in range(5)]
        for address in addresses:
            await submit(east.address, address)

        await until(lambda: is_empty(east), what="everything is delivered")

    assert Counter(addresses) == offered(server)


# The next hop and the shadow server are both away, and one of them comes back

SHORT_SPAN: Table = {"shadow_resubmit_time_span": "3s", "shadow_heartbeat_frequency": "1s", "reject_message_on_shadow_failure": False}


async def test_a_next_hop_that_comes_back_while_the_shadow_server_is_away_gets_its_mail(tmp_path: Path) -> None:
    addresses = [f"u{number}@gone.example" for number in range(10)]
    server = ScriptedServer()
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        server.port = refusing.getsockname()[1]
        async with Cluster(TWO, hop(server), directory=tmp_path, transport=SHORT_SPAN) as cluster:
            east, west = cluster.nodes.values()
            await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
            for address in addresses:
                await submit(east.address, address)
            await west.kill()
            await until(lambda: no_lease(east), what="the lease on the shadow server has ended")
            refusing.close()
            async with serving(server):
                await until(lambda: is_empty(east), what="everything is delivered")

    assert Counter(addresses) == offered(server)


async def no_lease(node: NodeProcess) -> bool:
    with api_of(node) as client:
        peers = await asyncio.to_thread(client.peers)
    return [True] == [not peer["lease_seconds"] and not peer["is_reachable"] for peer in peers]


# What waits for a session

SESSIONS = 5
LARGE = b"Subject: large\r\n\r\n" + (b"x" * 98 + b"\r\n") * 9_000
WARM_UP_COUNT = RECENT_BYTES_MAX // len(LARGE) + SESSIONS  # fill the store's memory of what was written last
LARGE_COUNT = 120
WAITING_KILOBYTES_MAX = 40_000  # of 108,000 that wait; a session and its successor have 900 each


async def test_a_drain_finishes_what_is_in_a_session_and_lets_go_of_what_only_waits(tmp_path: Path) -> None:
    gate = Gate()
    server = ScriptedServer({"DOT": gate})
    send: Table = {"concurrency_per_destination": SESSIONS}
    addresses = [f"u{number}@slow.example" for number in range(8 * SESSIONS)]
    async with serving(server), Cluster(ONE, hop(server), directory=tmp_path, transport=LONG_SPAN, send=send) as cluster:
        (node,) = cluster.nodes.values()
        for address in addresses:
            await submit(node.address, address)
        await until(lambda: len(server.messages) == SESSIONS)
        node.signal(signal.SIGTERM)
        await until(lambda: operator_events(node, "node.draining"), what="it drains")
        gate.opened.set()
        assert node.process is not None
        await asyncio.wait_for(node.process.wait(), PATIENCE_SECONDS)
        in_the_drain = len(server.messages)
        await node.start()
        await until(lambda: is_empty(node), what="the rest is delivered after the start")

    assert SESSIONS == in_the_drain
    assert Counter(addresses) == offered(server)


async def test_a_drain_lets_go_of_what_only_waits_for_a_name(tmp_path: Path) -> None:
    names = [f"dead{number}.example" for number in range(AT_ONCE + 20)]
    async with name_server({(name, "MX"): None for name in names}) as (server, port):
        tables: dict[str, Table] = {"dns": {"nameservers": [f"127.0.0.1:{port}"]}}
        async with Cluster(ONE, None, directory=tmp_path, transport=LONG_SPAN, tables=tables) as cluster:
            (node,) = cluster.nodes.values()
            await submit(node.address, *(f"u@{name}" for name in names))
            await until(lambda: len(set(server.asked)) >= AT_ONCE, what="names are asked for")
            node.signal(signal.SIGTERM)
            assert node.process is not None
            await asyncio.wait_for(node.process.wait(), PATIENCE_SECONDS)

    assert [] == of_kind(node, "DEFER")


async def test_content_that_waits_for_a_session_is_not_in_memory(tmp_path: Path) -> None:
    server = ScriptedServer({"GREETING": HANG})
    send: Table = {"concurrency_per_destination": SESSIONS}
    async with serving(server), Cluster(ONE, hop(server), directory=tmp_path, transport=LONG_SPAN, send=send) as cluster:
        (node,) = cluster.nodes.values()
        for number in range(WARM_UP_COUNT):
            await submit(node.address, f"w{number}@silent.example", content=LARGE)
        before = rss_kilobytes(node)
        for number in range(LARGE_COUNT):
            await submit(node.address, f"u{number}@silent.example", content=LARGE)
        grown = rss_kilobytes(node) - before
        await server.stop()  # a greeting that never comes would keep the node from ending

    assert grown <= WAITING_KILOBYTES_MAX
