"""What a backlog costs: two nodes with a million messages each, half their own and half held for the other.

Four fifths of a node's own mail wait for a next hop that is down, the rest for one that takes a second for each message; what is
accepted meanwhile goes to a healthy one. Measured are the start, acceptance compared with that of empty queues in the same run,
memory, listings and pages, the processor time of the node while no mail moves, and a takeover while mail is accepted.
docs/performance.md.

The databases are filled by SQL, in the schema and with the counters of this version. Messages share some thousand contents.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from sqlalchemy import Table, Text

from benchmarks.cost import processor_seconds
from benchmarks.latency import Session
from benchmarks.throughput import PLACES, PRODUCT_TIMES, SESSIONS, workplace
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, free_ports
from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Choice
from shadowrelay.model.routing import HostPort
from shadowrelay.store import Ledger, counters, tables
from shadowrelay.store.opening import DATABASE_NAME

CONTENT = b"Subject: report\r\n\r\n" + b"0123456789abcde\r\n" * 240  # about 4 KiB
CONTENTS_COUNT = 10_000
DOWN_SHARE, SLOW_SECONDS = 0.8, 1.0
ASKED_TIMES = 20
PAGE = 100
IDLE_SECONDS = 20.0
ROUNDS = 6
TAKEOVER_SHARE = 2.5  # so much longer is mail accepted during a takeover
EMPTY_PLACES = tuple(Place(f"empty-{place.name}", place.site) for place in PLACES)
IDLE_SHARE = 0.05  # of one processor; above it the node is not idle yet
DAY_MICROSECONDS = 86_400_000_000
WANTED: Mapping[str, Callable[[float], bool]] = {  # issue: what it must show
    "start to first acceptance, s": lambda value: value < 30,
    "acceptance, of that with empty queues": lambda value: value >= 0.9,
    "memory, MB": lambda value: value < 400,
    "queue list, ms": lambda value: value < 50,
    "metrics, ms": lambda value: value < 50,
    "slowest page, ms": lambda value: value < 50,
    "idle processor time, %": lambda value: value < 5,
    "takeover, of the acceptance rate": lambda value: value >= 0.8,
}


# the queues
@dataclass(frozen=True, slots=True)
class Queue:
    """One node's directory and what its database is called."""

    name: ServerName
    directory: Path
    database: str


async def new_queue(name: str, directory: Path) -> Queue:
    """An empty queue with an id of its own."""
    ledger = await Ledger.open(directory, server=ServerName(name), now=lambda: datetime.now(UTC))
    await ledger.close()
    return Queue(ServerName(name), directory, ledger.identity.database)


def fill(queue: Queue, other: Queue, primary: int, shadow: int, next_hops: tuple[str, str]) -> None:
    """So many messages of its own, copied to `other`, and so many held for it."""
    now = time.time_ns() // 1000
    contents = queue.directory / "content"
    size = len(CONTENT)
    sha256 = hashlib.sha256(CONTENT).digest()
    (contents / "1.segment").write_bytes(CONTENT * CONTENTS_COUNT)
    until = now + 4 * DAY_MICROSECONDS
    common = {
        "origin": "client", "arrived_at": now, "recipients_count": 1, "ownership": 1, "placement": 1, "keep_until": until,
        "remember_until": until, "is_decided": 1, "segment": 1, "size": size, "sha256": sha256,
    }  # fmt: skip
    down, slow = next_hops
    down_count = int(primary * DOWN_SHARE)

    def hop_of(number: int) -> tuple[str, int]:
        """Next hop, and when it is tried again."""
        return (down, now + 600_000_000 + number) if number <= down_count else (slow, now)

    def messages() -> Iterator[dict[str, Any]]:
        for number in range(1, primary + shadow + 1):
            is_own = number <= primary
            owner, index = (queue, number) if is_own else (other, number - primary)
            domain = "down.example" if index <= int((primary if is_own else shadow) * DOWN_SHARE) else "slow.example"
            envelope = f'["sender@client.example",["user@{domain}"],{now},"7BIT",0,null,null,"192.0.2.1","","loopback","<{index}@x>",""]'
            row = {
                **common, "internal_id": number, "message_id": _message_id(owner.name, index), "envelope": envelope,
                "offset": number % CONTENTS_COUNT * size, "number_database": owner.database,
            }  # fmt: skip
            if is_own:
                copies = f"{other.name} {other.database} {Choice.CHOSEN.value}"
                row |= {"role": "primary", "copies": copies, "is_placed": 1, "due_at": hop_of(number)[1], "retries_count": 1}
            else:
                row |= {"role": "shadow", "origin": "shadow", "primary_server": other.name, "primary_database": other.database}
                row |= {"expires_at": until}
            yield row

    def retries() -> Iterator[dict[str, Any]]:
        for number in range(1, primary + 1):
            next_hop, at = hop_of(number)
            yield {
                "message": number, "next_hop": next_hop, "ordinals": "1", "failures_count": 3, "kind": "connection", "first_failed_at": now,
                "attempts_next_at": at, "last_reply": "451 4.4.1 No server of the next hop could be reached",
            }  # fmt: skip

    position = primary + shadow + 1000
    with closing(sqlite3.connect(queue.directory / DATABASE_NAME)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        with connection:
            _insert(connection, tables.MESSAGE, messages())
            _insert(connection, tables.RETRY, retries())
            delivered = (
                {"key": hashlib.blake2b(b"%d" % number, digest_size=16).digest(), "delivered_at": now} for number in range(primary)
            )
            _insert(connection, tables.DELIVERED_TO, delivered)
            _insert(connection, tables.LISTING, ({"server": other.name, "message": number} for number in range(1, primary + 1)))
            _insert(
                connection, tables.SEGMENT, [{"segment": 1, "pinned_count": primary + shadow, "first_id": 1, "last_id": primary + shadow}]
            )
            _insert(connection, tables.SHADOW_QUEUE, [{"number": 1, "primary_server": other.name}])
            _insert(connection, tables.PEER_DATABASE, [{"database": other.database, "server": other.name}])
            peer = {"server": other.name, "database": other.database, "incarnation": 1, "began": 1, "position": 1000, "heard_at": now}
            _insert(connection, tables.PEER, [peer])
            connection.execute("UPDATE database SET internal_id = ?, position = ?", (primary + shadow, position))
            connection.execute("DELETE FROM counter")
            connection.execute(f"INSERT INTO counter {counters.RECOUNT}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _message_id(owner: str, index: int) -> str:
    return f"{ord(owner[0]):08x}-0000-7000-8000-{index:012x}"


def _insert(connection: sqlite3.Connection, table: Table, rows: Any) -> None:
    """Columns that are not given are empty, zero, or NULL where they may be."""
    columns = list(table.columns)
    empty = {column.name: None if column.nullable else "" if isinstance(column.type, Text) else 0 for column in columns}
    names = ",".join(f'"{column.name}"' for column in columns)
    values = ((empty | row) for row in rows)
    marks = ",".join("?" * len(columns))
    connection.executemany(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", (tuple(row.values()) for row in values))


# the next hops
def _serve(port: int, seconds: float) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(b"220 next hop\r\n")
            while line := await reader.readline():
                verb = line[:4].upper()
                if verb == b"EHLO":
                    writer.write(b"250-next hop\r\n250-PIPELINING\r\n250 8BITMIME\r\n")
                elif verb == b"DATA":
                    writer.write(b"354 go on\r\n")
                    await reader.readuntil(b"\r\n.\r\n")
                    await asyncio.sleep(seconds)
                    writer.write(b"250 2.0.0 taken\r\n")
                elif verb == b"QUIT":
                    break
                else:
                    writer.write(b"250 2.0.0 OK\r\n")
        writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(talk, "127.0.0.1", port, limit=1 << 20) as server:
            await server.serve_forever()

    asyncio.run(serve())


class NextHop(NamedTuple):
    """A server in a process of its own."""

    address: HostPort
    pid: int

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It answers nothing meanwhile: no mail moves to it."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


@contextmanager
def next_hop(seconds: float) -> Iterator[NextHop]:
    """One that takes everything, `seconds` after the final dot."""
    (port,) = free_ports(1)
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(port, seconds), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield NextHop(HostPort("127.0.0.1", port), process.pid)
    finally:
        process.terminate()
        process.join()


# what is asked of a node
async def acceptance(address: HostPort, seconds: float) -> float:
    """Messages a second over kept sessions, each with the next message as soon as it has its 250."""
    sessions = [await Session.open(address) for _ in range(SESSIONS)]
    until = time.monotonic() + seconds
    count = 0

    async def submit(session: Session) -> None:
        nonlocal count
        while time.monotonic() < until:
            await session.submit()
            count += 1

    await asyncio.gather(*(submit(session) for session in sessions))
    for session in sessions:
        session.close()
    return count / seconds


def memory(node: NodeProcess) -> float:
    """The largest resident set so far. Units: MB."""
    assert node.process is not None
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


class Api:
    """The administration of one node."""

    def __init__(self, node: NodeProcess) -> None:
        (token,) = node.directory.rglob("token")
        headers = {"authorization": f"Bearer {token.read_text().strip()}"}
        self._client = httpx.AsyncClient(base_url=f"http://{node.admin}", headers=headers, timeout=60)

    async def timed(self, path: str, **parameters: object) -> float:
        """The median of some requests. Units: milliseconds."""
        found = []
        for _ in range(ASKED_TIMES):
            began = time.perf_counter()
            (await self._client.get(path, params={key: str(value) for key, value in parameters.items()})).raise_for_status()
            found.append(1000 * (time.perf_counter() - began))
        return statistics.median(found)

    async def json(self, path: str, **parameters: object) -> Any:
        return (await self._client.get(path, params={key: str(value) for key, value in parameters.items()})).json()

    async def metric(self, name: str) -> float:
        """The sum of its series."""
        text = (await self._client.get("/metrics")).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    async def pages(self) -> dict[str, float]:
        """The first and the second page of each queue, and of all."""
        found = {}
        for queue in ["", *(row["identity"] for row in (await self.json("/api/v1/queues"))["queues"])]:
            found[f"{queue or 'all'}, page 1"] = await self.timed("/api/v1/messages", queue=queue, limit=PAGE)
            after = (await self.json("/api/v1/messages", queue=queue, limit=PAGE))["next_after"]
            if after is not None:
                found[f"{queue or 'all'}, page 2"] = await self.timed("/api/v1/messages", queue=queue, limit=PAGE, after=after)
        return found

    async def close(self) -> None:
        await self._client.aclose()


async def idle_share(node: NodeProcess, settle_seconds: float) -> float:
    """Of one processor, once the work of the start is done or `settle_seconds` are over."""
    until = time.monotonic() + settle_seconds
    while True:
        before, began = sum(processor_seconds(node)), time.monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        share = (sum(processor_seconds(node)) - before) / (time.monotonic() - began)
        if share < IDLE_SHARE or time.monotonic() > until:
            return share


# the measurement
@asynccontextmanager
async def nodes_with(
    directory: Path, hops: tuple[HostPort, HostPort, HostPort], places: Sequence[Place] = PLACES
) -> AsyncIterator[list[NodeProcess]]:
    """Two nodes whose queues are in `directory`; they start with what is in them."""
    down, slow, healthy = hops
    routes = {"*@down.example": down, "*@slow.example": slow}
    cluster = Cluster(places, healthy, directory=directory, transport=PRODUCT_TIMES, routes=routes)
    async with cluster:
        yield list(cluster.nodes.values())


async def accepted_first(node: NodeProcess) -> None:
    """Until a message has got its 250."""
    while True:
        with contextlib.suppress(OSError, RuntimeError):
            session = await Session.open(node.address)
            await session.submit()
            session.close()
            return
        await asyncio.sleep(0.05)


async def alternating(node: NodeProcess, empty: NodeProcess, seconds: float) -> list[tuple[float, float]]:
    """Acceptance on a node with a backlog, and on one of two others whose queues are empty, in turn: both know the same machine."""
    await accepted_first(empty)
    await acceptance(empty.address, 2)
    await acceptance(node.address, 2)
    found = []
    for number in range(ROUNDS):
        both = {}
        for one in (node, empty) if number % 2 else (empty, node):
            both[one.name] = await acceptance(one.address, seconds)
        found.append((both[node.name], both[empty.name]))
    return found


async def with_backlog(parent: Path, unused: HostPort, slow: NextHop, healthy: NextHop, options: argparse.Namespace) -> dict[str, Any]:
    """All but the takeover."""
    hops = (unused, slow.address, healthy.address)
    with workplace(parent) as directory:
        one, other = [await new_queue(place.name, directory / place.name / "data") for place in PLACES]
        half = options.count // 2
        began = time.monotonic()
        for queue, peer in ((one, other), (other, one)):
            fill(queue, peer, half, half, (str(hops[0]), str(hops[1])))
        print(f"filled 2 x {options.count} messages in {time.monotonic() - began:.0f} s", file=sys.stderr)
        began = time.monotonic()
        async with nodes_with(directory, hops) as (node, _):
            await accepted_first(node)
            started = time.monotonic() - began
            early = await acceptance(node.address, options.seconds)
            with slow.stopped():
                idle = await idle_share(node, options.settle)
            await asyncio.sleep(2)
            busy = await idle_share(node, 0)
            with workplace(parent) as another:
                async with nodes_with(another, hops, EMPTY_PLACES) as (empty, _):
                    rounds = await alternating(node, empty, options.seconds)
            api = Api(node)
            figures = {
                "start": started,
                "early": early,
                "rounds": rounds,
                "queue list": await api.timed("/api/v1/queues"),
                "metrics": await api.timed("/metrics"),
                "peers": await api.timed("/api/v1/peers"),
                "pages": await api.pages(),
                "idle": idle,
                "busy": busy,
                "memory": memory(node),
                "log": await api.metric("shadowrelay_wal_bytes") / 1e6,
            }
            await api.close()
    return figures


async def takeover(parent: Path, hops: tuple[HostPort, HostPort, HostPort], options: argparse.Namespace) -> dict[str, float]:
    """One node holds copies for another that comes back with an empty queue; mail is accepted meanwhile."""
    with workplace(parent) as directory:
        one, other = [await new_queue(place.name, directory / place.name / "data") for place in PLACES]
        fill(one, other, 0, options.takeover, (str(hops[0]), str(hops[1])))
        shutil.rmtree(other.directory)
        async with nodes_with(directory, hops) as (node, _):
            began = time.monotonic()
            api = Api(node)
            accepting = asyncio.create_task(acceptance(node.address, TAKEOVER_SHARE * options.seconds))
            promoted = 0.0
            while promoted < options.takeover and time.monotonic() - began < options.settle:
                await asyncio.sleep(0.25)
                promoted = await api.metric("shadowrelay_promoted_messages_total")
            rate = promoted / (time.monotonic() - began)
            await api.close()
            return {"rate": rate, "promoted": promoted, "accepted meanwhile": await accepting, "memory": memory(node)}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    (unused,) = free_ports(1)
    with next_hop(SLOW_SECONDS) as slow, next_hop(0.0) as healthy:
        hops = (HostPort("127.0.0.1", unused), slow.address, healthy.address)
        backlog = await with_backlog(options.directory, hops[0], slow, healthy, options)
        taken = await takeover(options.directory, hops, options)
    rate, empty = (statistics.median(each) for each in zip(*backlog["rounds"], strict=True))
    ratio = statistics.median(one / other for one, other in backlog["rounds"])
    return {
        "messages": options.count,
        "empty queues, messages/s": round(empty, 1),
        "backlog, messages/s": round(rate, 1),
        "backlog, right after the start, messages/s": round(backlog["early"], 1),
        "start to first acceptance, s": round(backlog["start"], 2),
        "acceptance, of that with empty queues": round(ratio, 2),
        "memory, MB": round(backlog["memory"]),
        "queue list, ms": round(backlog["queue list"], 1),
        "metrics, ms": round(backlog["metrics"], 1),
        "peers, ms": round(backlog["peers"], 1),
        "pages, ms": {name: round(value, 1) for name, value in backlog["pages"].items()},
        "slowest page, ms": round(max(backlog["pages"].values()), 1),
        "write-ahead log, MB": round(backlog["log"], 1),
        "idle processor time, %": round(100 * backlog["idle"], 1),
        "while the slow next hop takes 20 messages/s, %": round(100 * backlog["busy"], 1),
        "takeover, messages": round(taken["promoted"]),
        "takeover, messages/s": round(taken["rate"], 1),
        "takeover, of the acceptance rate": round(taken["rate"] / empty, 2),
        "accepted during the takeover, messages/s": round(taken["accepted meanwhile"], 1),
    }


def parse_arguments() -> argparse.Namespace:
    """See --help."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000, help="messages in each of the two queues (default 1,000,000)")
    parser.add_argument("--takeover", type=int, default=100_000, help="messages that are taken over (default 100,000)")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long acceptance is measured each time (default 8)")
    parser.add_argument("--settle", type=float, default=300.0, help="how long the work of a start, and a takeover, may take (default 300)")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="all queues and logs, on one disk (default /var/tmp)")
    parser.add_argument("--json", type=Path, help="write the figures there too; they go to standard output in any case")
    arguments = parser.parse_args()
    if min(arguments.count // 2, arguments.takeover) < 10:
        parser.error("at least 20 messages, and 10 to take over")
    return arguments


def main() -> int:
    """Returns the exit status: 1 where a figure misses what is wanted."""
    options = parse_arguments()
    figures = asyncio.run(measure(options))
    figures["missed"] = [name for name, holds in WANTED.items() if not holds(figures[name])]
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    return 1 if figures["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
