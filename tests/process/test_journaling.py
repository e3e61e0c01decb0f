"""Journal reports of real nodes, over real SMTP: a node that is killed in the middle, and one whose disk burns."""

import asyncio
import email
import email.policy
import random
from collections import Counter
from email.message import EmailMessage
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, rows
from shadowrelay.lab.traffic import Load, Sink
from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.replies import Reply
from tests.kit.clock import until
from tests.kit.processes import api_of, wait_until_peers_know_each_other

pytestmark = [pytest.mark.slow]

EAST, WEST, NORTH = "mx1.east.example", "mx1.west.example", "mx1.north.example"
PLACES = (Place(EAST, "east"), Place(WEST, "west"), Place(NORTH, "north"))
JOURNAL = "journal@archive.example"


class Archive(Sink):
    """A sink that keeps what comes for the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[bytes] = []
        self.decide = lambda envelope: None

    async def accept(self, envelope: Envelope, content: Content) -> Reply:
        reply = await super().accept(envelope, content)
        if reply.is_positive and envelope.recipients[0].address == JOURNAL:
            assert ("", 1) == (envelope.sender, len(envelope.recipients))
            assert content.data is not None
            self.reports.append(content.data)
        return reply

    def about(self) -> Counter[str]:
        """The Message-IDs of the messages that are attached."""
        found: Counter[str] = Counter()
        for data in self.reports:
            report = email.message_from_bytes(data, policy=email.policy.SMTP)
            assert isinstance(report, EmailMessage)
            text, attached = report.iter_parts()
            original = attached.get_content()
            assert f"Message-ID: {original['Message-ID']}" in text.get_content().splitlines()
            found[str(original["Message-ID"])] += 1
        return found


def journaling(node: NodeProcess) -> None:
    """Give its routes a journal recipient."""
    path = node.directory / "node.toml"
    path.write_text(path.read_text().replace("[[routes]]\n", f'[[routes]]\njournal_recipient = "{JOURNAL}"\n'))


def holds(nodes: list[NodeProcess], count: int) -> bool:
    """Whether these have so many shadow messages together."""
    found = 0
    for node in nodes:
        with api_of(node) as client:
            found += sum(queue["count"] for queue in client.queues() if queue["kind"] == "Shadow")
    return found == count


@pytest.mark.heavy
async def test_each_message_is_reported_once_although_nodes_die(tmp_path: Path) -> None:
    sink = Archive()
    next_hop = await sink.start()
    try:
        async with Cluster(PLACES, next_hop, directory=tmp_path) as cluster:
            nodes = [cluster.nodes[name] for name in (EAST, WEST, NORTH)]
            for node in nodes:
                await node.stop()
                journaling(node)
            await asyncio.gather(*(node.start() for node in nodes))
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            east = nodes[0]

            sink.is_deferring = True
            load = Load({EAST: east.address}, random.Random(1))
            await load.run(20, rate=100)
            await load.close()
            await east.kill()
            sink.is_deferring = False
            await east.start()
            await until(lambda: len(sink.reports) >= 20, what=lambda: f"{len(sink.reports)} reports")

            sink.is_deferring = True
            load = Load({EAST: east.address}, random.Random(2))
            await load.run(20, rate=100)
            await load.close()
            await until(lambda: asyncio.to_thread(holds, nodes[1:], 20), what="what was delivered is discarded")
            await east.kill()
            east.wipe()
            sink.is_deferring = False
            await until(lambda: len(sink.reports) >= 40, what=lambda: f"{len(sink.reports)} reports")
            await asyncio.sleep(5)

            about = sink.about()
            originals = {arrival.internet_message_id for arrival in sink.arrivals if arrival.recipient != JOURNAL}
            assert originals == about.keys()
            assert 40 == len(sink.reports)
            assert {1} == set(about.values())
            await asyncio.gather(*(node.stop() for node in nodes[1:]))
            made = [row for node in nodes for row in rows(node.tracking) if (row["event-id"], row["source"]) == ("RECEIVE", "AGENT")]
            assert 40 == len({row["network-message-id"] for row in made})
            assert {"JournalReport"} == {row["source-context"] for row in made}
    finally:
        await sink.close()
