"""Real processes that die again and again: of a message, or of somebody who kills them while messages wait."""

import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.lab.cluster import SERVE, Cluster, NodeProcess, Place, recipients, rows
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clients import HELLO, talking_to
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.processes import operator_events, said
from tests.kit.smtp_servers import HANG, ScriptedServer, serving

pytestmark = pytest.mark.slow

EAST, WEST = Place("a.east.example", "east"), Place("b.west.example", "west")
KILLER = """
import os
from shadowrelay.cli.main import app
from shadowrelay.smtp import delivery_transaction

def dies_of(step):
    def dies(data, **named):
        if b"X-Kills: yes" in data:
            os._exit(139)
        return step(data, **named)
    return dies

for name in ("stuffed_with_end", "whole_chunk"):  # before the content of DATA, and of BDAT
    setattr(delivery_transaction, name, dies_of(getattr(delivery_transaction, name)))
app()
"""


async def send(node: NodeProcess, addresses: list[str], content: bytes = HELLO) -> int:
    """Each address gets a message; how many were acknowledged."""
    count = 0
    with contextlib.suppress(OSError, EOFError):  # the node dies
        async with talking_to(node.address) as client:
            for address in addresses:
                if not (await client.mail([address], content)).startswith("250 "):
                    break
                count += 1
    return count


def in_queue(node: NodeProcess, question: str = "SELECT role, deaths_count, count(*) FROM message GROUP BY 1, 2") -> list[Any]:
    with contextlib.closing(sqlite3.connect(f"file:{node.directory}/data/queue.db?mode=ro", uri=True)) as connection:
        return connection.execute(question).fetchall()


SILENT = {"GREETING": HANG}
MUTE_AFTER_THE_DOT = {"DOT": HANG}


@contextlib.asynccontextmanager
async def a_world(
    directory: Path, *places: Place, killers: tuple[Place, ...] = (), hole: ScriptedServer | None = None
) -> AsyncIterator[Any]:
    """Nodes, and the server that takes what they deliver; recipients at hole.example are for the hole."""
    sink = Sink()
    try:
        async with serving(*[hole] if hole else []):
            routes = {"*@hole.example": HostPort("127.0.0.1", hole.port)} if hole else {}
            transport = {"reject_message_on_shadow_failure": len(places) > 1}
            cluster = Cluster(places, await sink.start(), directory=directory, routes=routes, transport=transport)
            for place in killers:
                cluster.nodes[place.name].program = ("-c", KILLER, "serve")
            async with cluster:
                yield [cluster.nodes[place.name] for place in places], sink
    finally:
        await sink.close()


async def heal(node: NodeProcess, sink: Sink) -> None:
    """The mail for the hole goes to the sink from now on."""
    file = node.directory / "node.toml"
    file.write_text(file.read_text().replace('recipients = ["*@hole.example"]', 'recipients = ["*@nobody.example"]'))
    await node.start()


@pytest.mark.heavy
async def test_no_message_that_only_waits_is_set_aside_whoever_kills_the_node(tmp_path: Path) -> None:
    async with a_world(tmp_path, EAST, hole=ScriptedServer(SILENT)) as ((node,), sink):
        addresses = [f"user{number}@hole.example" for number in range(300)]
        assert 300 == await send(node, addresses)
        for number in range(4):
            await asyncio.sleep(1)
            await node.kill()
            if number < 3:
                await node.start()
        assert [("primary", 0, 300)] == in_queue(node)

        await heal(node, sink)
        await until(lambda: 300 == len(sink.arrivals), what="not all of them arrived")

        assert set(addresses) == {arrival.recipient for arrival in sink.arrivals}


@pytest.mark.parametrize("asks_first", [pytest.param(True, marks=pytest.mark.heavy), False], ids=["docker stop", "kill"])
async def test_a_next_hop_that_never_answers_the_dot_makes_no_poison(tmp_path: Path, asks_first: bool) -> None:
    hole = ScriptedServer(MUTE_AFTER_THE_DOT)
    async with a_world(tmp_path, EAST, hole=hole) as ((node,), sink):
        assert 30 == await send(node, [f"user{number}@hole.example" for number in range(30)])
        before = 0
        for number in range(4):
            await until(lambda before=before: len(hole.messages) >= before + 10, what="nothing was tried")  # type: ignore[misc]
            if asks_first:
                node.signal(signal.SIGTERM)
                await asyncio.sleep(1)  # `docker stop` waits ten
                assert node.is_running, "it waits for the attempts"
            await node.kill()
            before = len(hole.messages)
            if number < 3:
                await node.start()

        deaths = {deaths_count: count for _, deaths_count, count in in_queue(node)}
        assert {"primary"} == {role for role, *_ in in_queue(node)}
        assert sum(deaths_count * count for deaths_count, count in deaths.items()) < 4 * 5, "only what had not reached its dot"
        await heal(node, sink)
        await until(lambda: 30 == len(sink.arrivals), what="not all of them arrived")


async def outlive(nodes: list[NodeProcess], claim: Callable[[], object], what: str) -> int:
    """Start again whoever died, as systemd does, until it is so; how often that was."""
    starts_count = 0

    async def keep_running() -> None:
        nonlocal starts_count
        while True:
            for node in nodes:
                if not node.is_running:
                    starts_count += 1
                    with contextlib.suppress(RuntimeError):  # it died again before it had answered
                        await node.start()
            await asyncio.sleep(0.05)

    keeper = asyncio.create_task(keep_running())
    try:
        await until(claim, 2 * PATIENCE_SECONDS, what)  # a node that dies is started again and again
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
    return starts_count


async def send_poison(node: NodeProcess) -> set[str]:
    """Among innocent messages. The innocents."""
    before = [f"before{number}@corp.example" for number in range(20)]
    await until(lambda: send(node, ["first@corp.example"]), what="the peer did not come")
    assert 20 == await send(node, before)
    await send(node, ["poison@corp.example"], b"Subject: poison\r\nX-Kills: yes\r\n\r\nhello\r\n")
    return {"first@corp.example", *before}


async def test_the_message_that_kills_is_found_and_its_shadow_server_delivers_it(tmp_path: Path) -> None:
    async with a_world(tmp_path, EAST, WEST, killers=(EAST,)) as ((east, west), sink):
        innocents = await send_poison(east)

        starts_count = await outlive(
            [east, west], lambda: "poison@corp.example" in {arrival.recipient for arrival in sink.arrivals}, "the poison did not arrive"
        )
        after = [f"after{number}@corp.example" for number in range(10)]
        assert 10 == await send(east, after)
        wanted = innocents | set(after) | {"poison@corp.example"}
        await until(lambda: wanted == {arrival.recipient for arrival in sink.arrivals}, what="innocent messages did not arrive")

        assert 3 == starts_count
        (aside,) = await until(lambda: operator_events(east, "message.set_aside"))
        assert "died 3 times" in str(aside["reason"])
        assert ["b.west.example"] == [arrival.client_name for arrival in sink.arrivals if arrival.recipient == "poison@corp.example"]
        await until(lambda: 1 == len([row for row in rows(east.tracking) if row["event-id"] == "POISONMESSAGE"]))
        await until(lambda: not [row for row in in_queue(east) if row[0] == "set-aside"], what="it did not yield")


@pytest.mark.heavy
async def test_the_message_that_kills_two_servers_stays_on_the_second_and_obeys_the_administrator(tmp_path: Path) -> None:
    async with a_world(tmp_path, EAST, WEST, killers=(EAST, WEST)) as ((east, west), sink):
        innocents = await send_poison(east)
        await outlive([east, west], lambda: [row for row in in_queue(west) if row[0] == "set-aside"], "it is not set aside on the second")
        await outlive(
            [east, west], lambda: innocents == {arrival.recipient for arrival in sink.arrivals}, "innocent messages did not arrive"
        )
        await until(
            # an innocent message may have been in an attempt at a death, too: it is delivered by now
            lambda: ("shadow", 1) in in_queue(east, "SELECT role, count(*) FROM message WHERE deaths_count > 0 GROUP BY role"),
            what="no copy is left",
        )

        (aside,) = await said(west, "messages", "list", "--queue", "Poison")
        assert ("set-aside", True) == (aside["role"], "died 3 times" in aside["set_aside_reason"])
        exported = await said(west, "messages", "export", aside["message_id"], "--output", str(tmp_path / "poison.eml"))
        assert exported["size"] == (tmp_path / "poison.eml").stat().st_size
        assert b"X-Kills: yes\r\n" in (tmp_path / "poison.eml").read_bytes()
        assert b"ShadowRedundancy" in (tmp_path / "poison.eml").read_bytes()
        west.program = SERVE  # a version without the bug
        await west.stop()
        await west.start()
        (released,) = await said(west, "messages", "release", "--all")
        assert {"message_id": aside["message_id"], "is_released": True} == released
        everybody = innocents | {"poison@corp.example"}
        await until(lambda: everybody == {arrival.recipient for arrival in sink.arrivals}, what="it was not delivered")


async def test_poison_that_is_removed_is_told_to_its_sender_and_comes_back_from_nowhere(tmp_path: Path) -> None:
    async with a_world(tmp_path, EAST, WEST, killers=(EAST, WEST)) as ((east, west), sink):
        innocents = await send_poison(east)
        await outlive([east, west], lambda: [row for row in in_queue(west) if row[0] == "set-aside"], "it is not set aside on the second")
        (aside,) = await said(west, "messages", "list", "--queue", "Poison")

        (removed,) = await said(west, "messages", "remove", aside["message_id"])

        assert {"message_id": aside["message_id"], "is_removed": True, "is_sender_told": True} == removed
        wanted = innocents | {"sender@client.example"}
        await outlive([east, west], lambda: wanted == {arrival.recipient for arrival in sink.arrivals}, "the notice did not arrive")
        await until(lambda: {"delivered"} == {role for role, *_ in (*in_queue(east), *in_queue(west))}, what="something is left of it")
        (row,) = [row for row in rows(west.tracking) if row["event-id"] == "FAIL"]
        assert ("ADMIN", ("poison@corp.example",)) == (row["source"], tuple(recipients(row)))
