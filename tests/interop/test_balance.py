"""What those in front of several nodes do when one of them drains, dies, or is full: haproxy, and Postfix with several hosts as relayhost.

docs/reference.md "Which node a client uses".
"""

import asyncio
import signal
import smtplib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, rows
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clients import Client
from tests.kit.clock import until
from tests.kit.haproxy import HAPROXY, haproxy, states_of
from tests.kit.postfix import running_postfix
from tests.kit.processes import api_of, typed, wait_until_peers_know_each_other

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.usefixtures("quiet")]

EAST, WEST = Place("a.east.example", "east"), Place("b.west.example", "west")
FULL = '\n[back_pressure]\nfree_disk_space_min = "1000GB"\nresource_monitoring_interval = "100ms"\n'
MESSAGES_COUNT = 6


@pytest.fixture
async def nodes(workplace: Path) -> AsyncIterator[tuple[NodeProcess, NodeProcess]]:
    """Two, which take mail while only one is there."""
    sink = Sink()
    hop = await sink.start()
    async with Cluster((EAST, WEST), hop, directory=workplace / "nodes", transport={"reject_message_on_shadow_failure": False}) as cluster:
        east, west = cluster.nodes.values()
        wait_until_peers_know_each_other([east, west])
        yield east, west
    await sink.close()


def received_count(node: NodeProcess) -> int:
    return sum(row["event-id"] == "RECEIVE" and row["source"] == "SMTP" for row in rows(node.tracking))


async def fill(node: NodeProcess) -> None:
    """Its disk, as far as it can see."""
    file = node.directory / "node.toml"
    file.write_text(file.read_text() + FULL)
    node.signal(signal.SIGHUP)

    def refuses() -> bool:
        with api_of(node) as client:
            return not client.ready()["is_ready"]

    await until(refuses)


async def one(address: HostPort) -> str:
    """A message in a session of its own: the reply to it, or to the first command that was refused."""
    client = await Client.to(address)
    try:
        for command in ("", "EHLO client.example"):
            reply = await (client.ask(command) if command else client.reply())
            if reply[0] != "2":
                return reply
        return await client.mail(["user@corp.example"])
    finally:
        await client.close()


async def codes(address: HostPort) -> Counter[str]:
    return Counter([(await one(address))[:9] for _ in range(MESSAGES_COUNT)])


@pytest.mark.skipif(HAPROXY is None, reason="needs haproxy: apt-get install haproxy")
async def test_haproxy_sends_no_client_to_a_node_that_drains_or_is_dead_and_a_full_one_says_so_itself(
    nodes: tuple[NodeProcess, NodeProcess], workplace: Path
) -> None:
    """On connectors that take peers, too: a peer is known by its name in EHLO, so whoever asks with another one is told to go away."""
    east, west = nodes

    async with haproxy(workplace, {"east": east.address, "west": west.address}) as (balancer, socket):

        async def state(server: str, *expected: str) -> None:
            while (await states_of(socket))[server][: len(expected)] != list(expected):
                await asyncio.sleep(0.1)

        await state("east", "UP")
        await state("west", "UP")
        assert {"250 2.0.0": MESSAGES_COUNT} == await codes(balancer)
        await until(lambda: min(received_count(east), received_count(west)) > 0)  # a row is written soon after the reply
        await until(lambda: received_count(east) + received_count(west) == MESSAGES_COUNT)

        await typed(east, "drain")
        assert "421 4.3.2" == (await one(east.address))[:9]
        await state("east", "DOWN", "L7STS", "421")
        before = received_count(east)
        assert {"250 2.0.0": MESSAGES_COUNT} == await codes(balancer)
        assert before == received_count(east)
        with api_of(west) as client:
            await until(lambda: [True] == [peer["is_reachable"] for peer in client.peers()])  # peers go on
        await typed(east, "undrain")
        await state("east", "UP")

        await west.kill()
        await state("west", "DOWN", "L4CON")
        assert {"250 2.0.0": MESSAGES_COUNT} == await codes(balancer)
        await west.start()
        await state("west", "UP")

        await fill(east)
        assert {"452 4.3.1", "250 2.0.0"} == set(await codes(balancer))  # to each in turn: who tries again is taken
        await state("east", "UP", "L7OK")


async def test_postfix_goes_on_to_the_next_of_its_relayhosts_in_the_same_attempt(
    nodes: tuple[NodeProcess, NodeProcess], workplace: Path
) -> None:
    east, west = nodes
    settings = {"relayhost": f"[127.0.0.1]:{east.address.port}, [127.0.0.1]:{west.address.port}"}

    with running_postfix(workplace / "postfix", settings) as postfix:

        def submit() -> None:
            with smtplib.SMTP("127.0.0.1", postfix.port, timeout=30) as client:
                client.sendmail("a@x.example", ["user@corp.example"], b"Subject: x\r\n\r\nx\r\n")

        async def sent(by: NodeProcess) -> None:
            before = received_count(by)
            await asyncio.to_thread(submit)
            await until(lambda: received_count(by) == before + 1)

        await sent(east)
        await typed(east, "drain")
        await sent(west)
        await typed(east, "undrain")
        await until(lambda: received_count(east) >= 1 and _takes_mail(east))
        await sent(east)
        await fill(east)
        await sent(west)
        await east.kill()
        await sent(west)
        log = postfix.log.read_text()

    assert 5 == log.count("status=sent"), log
    assert "status=deferred" not in log, log
    assert "said: 452 4.3.1" in log, log


def _takes_mail(node: NodeProcess) -> bool:
    with api_of(node) as client:
        return str(client.drain_status()["state"]) == "active"
