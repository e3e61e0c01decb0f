"""Nodes that are each other's next hop: a message that goes round ends soon, and its sender is told. docs/design.md 6.5, "Mail loops"."""

from collections import Counter
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess, rows
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.replies import Reply
from tests.kit.clients import talking_to
from tests.kit.clock import until
from tests.kit.processes import a_node_process

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.slow]
ELSEWHERE = '[[routes]]\nrecipients = ["*"]\nnext_hop = "127.0.0.1:9"\n'


async def in_a_ring(directory: Path, names: list[str], sink: Sink) -> list[NodeProcess]:
    """Started; each relays mail of corp.example to the next one, and that of senders to the sink."""
    found = [a_node_process(directory / name, connector='relay_from = ["127.0.0.0/8"]') for name in names]
    senders = await sink.start()
    for node, name, other in zip(found, names, [*found[1:], found[0]], strict=True):
        file = node.directory / "node.toml"
        routes = ELSEWHERE.replace("127.0.0.1:9", str(senders))
        if other is not node:
            routes = f'[[routes]]\nrecipients = ["*@corp.example"]\nnext_hop = "{other.address}"\n' + routes
        text = file.read_text()
        assert ELSEWHERE in text
        file.write_text(text.replace(ELSEWHERE, routes).replace("a.example", name))
        await node.start()
    return found


def received_by(node: NodeProcess) -> int:
    return sum(row["event-id"] == "RECEIVE" and row["source"] == "SMTP" for row in rows(node.tracking))


@pytest.mark.parametrize("recipients", [["john@corp.example"], ["john@corp.example", "mary@corp.example"]], ids=["one", "two"])
@pytest.mark.parametrize("names", [["one.example", "two.example"], ["one.example", "two.example", "three.example"]], ids=["pair", "ring"])
async def test_a_message_that_goes_round_is_returned_after_a_few_rounds(
    names: list[str], recipients: list[str], sink: Sink, tmp_path: Path
) -> None:
    nodes = await in_a_ring(tmp_path, names, sink)
    try:
        async with talking_to(nodes[0].address) as client:
            assert (await client.mail(recipients, sender="ann@sender.example")).startswith("250")
        await until(lambda: bool(sink.arrivals))
        counts = Counter({node.directory.name: received_by(node) for node in nodes})
        failed = [row for node in nodes for row in rows(node.tracking) if row["event-id"] == "FAIL"]
    finally:
        for node in nodes:
            await node.stop()

    assert ["ann@sender.example"] == [arrival.recipient for arrival in sink.arrivals], "one DSN"
    assert max(counts.values()) <= (3 if len(recipients) == 1 else 6), counts
    assert {"554 5.4.6"} == {row["recipient-status"][:9] for row in failed}


class Mailbox(Sink):
    """Keeps the last message, with the Received field of its server."""

    last = b"From: ann@sender.example\r\nSubject: x\r\n\r\nhello\r\n"

    async def accept(self, envelope: Envelope, content: Content) -> Reply:
        assert content.data is not None
        self.last = content.data
        return await super().accept(envelope, content)


async def test_what_somebody_puts_back_from_a_mailbox_is_delivered_and_a_third_time_refused(tmp_path: Path) -> None:
    mailbox = Mailbox()
    (node,) = await in_a_ring(tmp_path, ["one.example"], mailbox)
    try:
        replies = []
        for count in (1, 2, 3, 4):
            async with talking_to(node.address) as client:
                replies.append(await client.mail(["bob@elsewhere.example"], mailbox.last, sender="ann@sender.example"))
            await until(lambda count=count: len(mailbox.arrivals) == min(count, 3))
    finally:
        await node.stop()
        await mailbox.close()

    assert ["250 2.0.0 Queued as"] * 3 == [reply[:19] for reply in replies[:3]]
    assert replies[3].startswith("554 5.4.6 Message loops")
