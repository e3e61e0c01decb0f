"""An operator's hands on two real nodes: every command of this page of docs/operations.md, as it is typed."""

import asyncio
import smtplib
from email.utils import make_msgid
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, rows
from shadowrelay.lab.traffic import Sink
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.processes import operator_events, said, typed, wait_until_peers_know_each_other

pytestmark = pytest.mark.slow
EAST, WEST = "mx1.east.example", "mx1.west.example"
LONG = {"shadow_resubmit_time_span": "5m"}  # a restart on a busy machine is no loss of the server


def send(node: NodeProcess, *recipients: str, lines: int = 1) -> None:
    with smtplib.SMTP(node.address.host, node.address.port, timeout=PATIENCE_SECONDS) as session:
        body = f"Message-ID: {make_msgid()}\r\nSubject: by hand\r\n\r\n" + "hello there\r\n" * lines
        session.sendmail("ann@x.example", recipients, body)


async def test_an_operator_suspends_exports_filters_removes_and_resumes(tmp_path: Path) -> None:
    sink = Sink()
    address = await sink.start()
    next_hop = str(address)
    try:
        async with Cluster((Place(EAST, "east"), Place(WEST, "west")), address, directory=tmp_path, transport=LONG) as cluster:
            east, west = cluster.nodes.values()
            await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])

            await typed(east, "queue", "suspend", next_hop, "--hold", "--by", "ann")
            await asyncio.to_thread(send, east, "kept@corp.example")
            await asyncio.to_thread(send, east, "gone@corp.example", lines=200_000)  # a file, not memory
            await east.kill()
            await east.start()
            suspended = "Status -eq 'Suspended' -and DeliveryType -like 'SmartHost*'"

            async def both_are_suspended() -> bool:  # they leave the Submission queue one after the other
                return [2] == [queue["count"] for queue in await said(east, "queue", "list", "--filter", suspended)]

            await until(both_are_suspended)
            (queue,) = await said(east, "queue", "list", "--filter", suspended)
            assert ("ann", "SmartHostConnectorDelivery") == (queue["suspended_by"], queue["delivery_type"])
            assert "Suspended" in (await typed(east, "queue", "show", next_hop))[0]
            (large,) = await said(east, "messages", "list", "--filter", "Size -gt 1MB -and Recipients -like 'gone@*'")

            async def both_are_held() -> bool:
                return 2 == len(await said(west, "messages", "list", "--queue", f"Shadow\\{EAST}\\{next_hop}"))

            await until(both_are_held)
            assert "^" in (await typed(east, "messages", "list", "--filter", "Size -gt many", code=2))[1]

            await typed(east, "messages", "export", large["message_id"], "--output", "large.eml", "--envelope")
            exported = (east.directory / "large.eml").read_bytes()
            assert b"X-Receiver: <gone@corp.example>\r\n" in exported[:1000]
            assert exported.endswith(b"\r\n\r\n" + b"hello there\r\n" * 200_000)
            await typed(east, "messages", "remove", "--filter", "Size -gt 1MB", "--with-ndr")
            await typed(east, "messages", "suspend", "--filter", "Recipients -like 'kept@*'", "--by", "bob")
            await typed(east, "queue", "resume", next_hop)
            await until(lambda: ["ann@x.example"] == [arrival.recipient for arrival in sink.arrivals])  # the notice of the removal

            (kept,) = await said(east, "messages", "list", "--filter", "Status -eq Suspended")
            assert "bob" == kept["suspended_by"]
            await typed(east, "messages", "resubmit", kept["message_id"], code=1)
            await typed(east, "messages", "resume", kept["message_id"])
            await until(lambda: {"ann@x.example", "kept@corp.example"} == {arrival.recipient for arrival in sink.arrivals})
            await typed(east, "queue", "retry", "--all")
            await until(lambda: not _has_copies(west))
            events = {line["event"] for line in operator_events(east)}
            fails = [row for row in rows(east.tracking) if row["event-id"] == "FAIL"]
    finally:
        await sink.close()

    assert {"queue.suspended", "queue.resumed", "message.suspended", "message.resumed", "message.removed"} <= events
    assert [("ADMIN", "gone@corp.example")] == [(row["source"], row["recipient-address"]) for row in fails]


def _has_copies(node: NodeProcess) -> bool:
    return len([row for row in rows(node.tracking) if row["event-id"] == "HADISCARD"]) < 3
