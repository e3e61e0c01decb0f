"""Queue databases of the schema version before, and of this one, with mail in every state: real processes open them, and deliver it all,
once."""

import asyncio
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import async_solipsism
import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, free_ports
from shadowrelay.lab.traffic import DEFERRED, Sink
from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.ownership import claims
from shadowrelay.pipeline.poison import set_aside_poison
from shadowrelay.store import promises
from shadowrelay.store.versions import VERSION
from tests.kit import nodes as kit
from tests.kit.clock import until
from tests.kit.nodes import EAST, NORTH, OK, SPAN, WEST, Net
from tests.kit.processes import api_of, held_by, operator_events

pytestmark = [pytest.mark.slow]

PLACES = (Place(EAST, "east"), Place(WEST, "west"), Place(NORTH, "north"))
SENDER = "a@x.example"  # to whom notices go
AT_ONCE = ("waiting", "submission", "handed", "held", "taken-over", "report")
LATER = ("suspended", "poison")
EXPIRED, IN_SUSPENDED_QUEUE = "expired@corp.example", "queue@suspended.example"


def answer(address: str) -> Reply:
    name = address.partition("@")[0]
    if name in ("delivered", "discarded", "journaled"):
        return OK
    return Reply(550, "5.1.1", "no such user") if name == "bad" else Reply(451, "4.3.2", "not now")


async def make_mail(directory: Path, port: int) -> None:
    """Three nodes, in virtual time, that end without an orderly stop."""
    here = f"127.0.0.1:{port}"
    routes = [
        {"recipients": ["journaled@corp.example"], "next_hop": here, "journal_recipient": "report@corp.example"},
        {"recipients": ["*@suspended.example"], "next_hop": f"localhost:{port}"},
        {"recipients": ["*"], "next_hop": here},
    ]
    net = Net(directory, names=(EAST, WEST, NORTH), transport={"routes": routes})
    net.without_forks |= {EAST, WEST, NORTH}  # those of the version before are never told forks
    net.sink.answer = answer
    net.sink.hang = lambda address: asyncio.Event() if address.startswith("submission@") else None
    try:
        for name in (EAST, WEST, NORTH):
            await net.start(name)
        await asyncio.sleep(1)
        await fill(net)
    finally:
        await net.close()


async def fill(net: Net) -> None:
    east, west, north = (net.nodes[name] for name in (EAST, WEST, NORTH))
    net.cut |= {frozenset((WEST, NORTH))}  # what others accept is held by east
    await asyncio.sleep(SPAN / 6)
    await north.accept("taken-over@corp.example")
    taken_over = north.last
    await asyncio.sleep(1)
    await net.kill(NORTH)
    await until(east.in_role(taken_over, Role.PRIMARY), 2 * SPAN)
    await net.start(NORTH)
    await west.accept("held@corp.example")
    await west.accept("discarded@corp.example")
    net.isolate(EAST)
    await east.accept("poison@corp.example")
    stored = await east.message(east.last)
    assert stored is not None
    await set_aside_poison(east.context, stored)
    net.heal()
    await asyncio.sleep(SPAN / 6)

    ids: dict[str, MessageId] = {}
    for address in (IN_SUSPENDED_QUEUE, EXPIRED, *(f"{name}@corp.example" for name in ("delivered", "waiting", "suspended", "handed"))):
        await east.accept(address)
        ids[address] = east.last
    for name in ("bad", "journaled", "submission"):
        await east.accept(f"{name}@corp.example")
    await asyncio.sleep(2)
    await east.services.messages.suspend(ids["suspended@corp.example"], "ann")
    (queue,) = [row.identity for row in await east.services.queues.rows() if "localhost" in row.next_hop]
    await east.services.queues.suspend(queue, "ann")
    (handed,) = await east.ledger.real.commit(
        promises.transition, [ids["handed@corp.example"]], lambda _, claim: claims.handed_over_by_drain(claim)
    )
    assert handed.outcome == "handed"


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


TO_VERSION_7 = (
    "DROP INDEX message_without_forks",
    "DROP INDEX message_shadow",
    "CREATE INDEX message_shadow ON message (role, primary_server, primary_database, internal_id, forks_count) WHERE role = 'shadow'",
    "UPDATE alembic_version SET version_num = '0007'",
    "PRAGMA user_version = 7",
)
TO_VERSION_5 = (*TO_VERSION_7, "DROP INDEX discard_ends")
TO_VERSION_4 = (
    *TO_VERSION_5,
    "DROP INDEX message_kept",
    "ALTER TABLE message DROP COLUMN is_kept",
    "UPDATE alembic_version SET version_num = '0004'",
    "PRAGMA user_version = 4",
)
TO_VERSION_3 = (
    *TO_VERSION_4,
    "DROP INDEX discard_forks",
    "ALTER TABLE discard DROP COLUMN next_hop",
    "DROP TABLE shadow_fork",
    "DROP INDEX message_shadow",
    "CREATE INDEX message_shadow ON message (role, primary_server, primary_database, internal_id) WHERE role = 'shadow'",
    "ALTER TABLE message DROP COLUMN forks_count",
    "ALTER TABLE message DROP COLUMN copies_wanted",
    "UPDATE alembic_version SET version_num = '0003'",
    "PRAGMA user_version = 3",
)


def let_expire(path: Path) -> None:
    """Accepted three days ago, and nobody has looked at it since."""
    days, of = 3 * 86_400_000_000, f"envelope LIKE '%{EXPIRED}%'"
    later = f"UPDATE message SET arrived_at = arrived_at - {days}, envelope = json_set(envelope, '$[2]', arrived_at - {days}) WHERE {of}"
    change(path, later, f"UPDATE retry SET notice_at = 1 WHERE message IN (SELECT internal_id FROM message WHERE {of})")


def states(path: Path) -> Counter[str]:
    with closing(sqlite3.connect(path)) as connection:
        return Counter(role for (role,) in connection.execute("SELECT role FROM message"))


async def arrived(sink: Sink, wanted: Counter[str]) -> None:
    """These, and no more."""

    def seen() -> Counter[str]:
        return Counter(arrival.recipient for arrival in sink.arrivals)

    await until(lambda: seen() >= wanted, what=lambda: f"missing {wanted - seen()}, besides {seen() - wanted}")
    assert wanted == seen()


def release(node: NodeProcess) -> None:
    """What administrators had held back."""
    with api_of(node) as client:
        for message in client.messages("", 50):
            if any(message["to"][0].startswith(f"{name}@") for name in LATER):
                client.resume_message(message["message_id"], "ann")
        (queue,) = [queue["identity"] for queue in client.queues() if queue["suspended_since"]]
        client.resume_queue(queue, "ann")


BACK: dict[int, tuple[str, ...]] = {3: TO_VERSION_3, 4: TO_VERSION_4, 7: TO_VERSION_7, VERSION: ()}


@pytest.mark.parametrize("version", [pytest.param(version, marks=pytest.mark.heavy if 3 < version < VERSION else ()) for version in BACK])
def test_mail_in_every_state_survives_the_change_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    monkeypatch.setattr(kit, "BASE", datetime.now(UTC) - timedelta(hours=1))
    (port,) = free_ports(1)
    loop = async_solipsism.EventLoop()
    try:
        loop.run_until_complete(make_mail(tmp_path / "before", port))
    finally:
        loop.close()
    for name in (EAST, WEST, NORTH):
        data = tmp_path / "nodes" / name / "data"
        shutil.copytree(tmp_path / "before" / name, data)
        change(data / "queue.db", *BACK[version])
    database = tmp_path / "nodes" / EAST / "data" / "queue.db"
    let_expire(database)
    assert {"primary", "shadow", "delivered", "set-aside", "handed-over"} <= states(database).keys()

    asyncio.run(deliver(tmp_path / "nodes", port, version))


async def deliver(directory: Path, port: int, version: int) -> None:
    sink = Sink(port=port)
    # else it may be delivered with the others of its queue before it is noticed
    sink.decide = lambda envelope: DEFERRED if EXPIRED in [one.address for one in envelope.recipients] else None
    await sink.start()
    routes = {"*@suspended.example": HostPort("localhost", port)}
    try:
        async with Cluster(PLACES, HostPort("127.0.0.1", port), directory=directory, routes=routes) as cluster:
            east = cluster.nodes[EAST]
            notes = [line["text"] for line in operator_events(east, "database.note")]
            assert ([f"queue.db migrated from schema version {version} to {VERSION}"] if version != VERSION else []) == notes
            wanted = Counter({f"{name}@corp.example": 1 for name in AT_ONCE} | {SENDER: 2})
            await arrived(sink, wanted)

            await asyncio.to_thread(release, east)
            await arrived(sink, wanted + Counter([IN_SUSPENDED_QUEUE, *(f"{name}@corp.example" for name in LATER)]))
            for node in cluster.nodes.values():
                await until(lambda node=node: not held_by(node), what=lambda node=node: str(held_by(node)))
    finally:
        await sink.close()
