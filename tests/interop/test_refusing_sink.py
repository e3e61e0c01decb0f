"""smtp-source to smtp-sink under load, with the sink refusing in several ways first: all that was acknowledged arrives."""

import asyncio
import csv
from collections import Counter
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.model.routing import HostPort
from tests.kit.postfix import free_port
from tests.kit.processes import wait_until_peers_know_each_other
from tests.kit.smtp_programs import dumped_message_ids, running_sink, source_command

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PLACES = (Place("a.east.example", "east"), Place("b.west.example", "west"))
PATIENT = {"shadow_resubmit_time_span": "60s", "shadow_timeout": "20s"}  # smtp-source gives up at the first 451
REFUSALS = {
    "content with 450": ("-r", "."),
    "recipients with 450": ("-r", "RCPT"),
    "the connection with 421": ("-Q", "CONNECT"),
    "by breaking off after DATA": ("-q", "DATA"),
}
ARRIVAL_SECONDS_MAX = 120.0


async def send(nodes: list[NodeProcess], messages: int) -> None:
    """So many to each node; smtp-source fails at the first reply that is not what it wants."""
    clients = [
        await asyncio.create_subprocess_exec(
            *source_command(node.address.port, messages=messages, sessions=10, size=1000),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        for node in nodes
    ]
    said = [(await client.communicate())[0].decode() for client in clients]
    failures = [row for node in nodes for row in rows_of(node) if row[8] == "HAREDIRECTFAIL"]
    assert ([(0, "")] * len(nodes), []) == ([(client.returncode, text) for client, text in zip(clients, said, strict=True)], failures)


async def arrivals(directory: Path, count: int) -> Counter[str]:
    """Message-IDs in the sink's directory, as soon as `count` different ones are there."""
    for _ in range(int(ARRIVAL_SECONDS_MAX / 0.1)):
        found = Counter(dumped_message_ids(directory))
        if len(found) >= count:
            break
        await asyncio.sleep(0.1)
    return found


def rows_of(node: NodeProcess) -> list[list[str]]:
    """Its tracking log."""
    lines = (line for path in sorted(node.tracking.glob("MSGTRK*.LOG")) for line in path.read_text().splitlines())
    return [row for row in csv.reader(lines) if not row[0].startswith("#")]


def events_of(node: NodeProcess) -> Counter[str]:
    """How often each event is in its tracking log."""
    return Counter(row[8] for row in rows_of(node))


async def all_arrive_once_after(refusals: list[str], messages: int, workplace: Path) -> None:
    """A round of mail to each refusing sink in turn, all of it in the end to one that takes everything."""
    port = free_port()
    taken = workplace / "taken"
    taken.mkdir(mode=0o777)
    taken.chmod(0o777)  # smtp-sink runs as postfix
    total = messages * len(PLACES) * len(refusals)
    async with Cluster(PLACES, HostPort("127.0.0.1", port), directory=workplace / "nodes", transport=PATIENT) as cluster:
        nodes = list(cluster.nodes.values())
        await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
        for refusal in refusals:
            with running_sink(port, *REFUSALS[refusal]):
                await send(nodes, messages)
                await deferred(nodes)
        with running_sink(port, "-d", f"{taken}/m."):
            found = await arrivals(taken, total)
    events = sum((events_of(node) for node in nodes), Counter())
    assert total == len(found)
    assert {1} == set(found.values())
    assert {"RECEIVE": total, "HARECEIVE": total, "SEND": total, "FAIL": 0} == {
        name: events[name] for name in ("RECEIVE", "HARECEIVE", "SEND", "FAIL")
    }
    assert events["DEFER"] >= len(PLACES) * len(refusals)  # a queue that waits for its retry does not ask for each message


async def deferred(nodes: list[NodeProcess]) -> None:
    """Until each node has written down a refusal: the sink has really been asked."""
    while not all(events_of(node)["DEFER"] for node in nodes):
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("refusal", ["content with 450"])
async def test_all_that_was_acknowledged_arrives_once_although_the_next_hop_refused_it_first(refusal: str, workplace: Path) -> None:
    await all_arrive_once_after([refusal], 100, workplace)


@pytest.mark.heavy
async def test_all_that_was_acknowledged_arrives_once_after_every_kind_of_refusal(workplace: Path) -> None:
    await all_arrive_once_after(list(REFUSALS), 400, workplace)


async def test_a_sink_that_refuses_for_good_gets_each_message_once_and_every_sender_a_notice(workplace: Path) -> None:
    port = free_port()
    async with Cluster(PLACES, HostPort("127.0.0.1", port), directory=workplace / "nodes", transport=PATIENT) as cluster:
        nodes = list(cluster.nodes.values())
        await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
        with running_sink(port, "-f", "."):
            await send(nodes, 20)
            for node in nodes:
                while events_of(node)["FAIL"] < 40:  # each message, and then its notice
                    await asyncio.sleep(0.1)
    events = sum((events_of(node) for node in nodes), Counter())

    assert {"RECEIVE": 40, "DSN": 40, "FAIL": 80, "SEND": 0} == {name: events[name] for name in ("RECEIVE", "DSN", "FAIL", "SEND")}
