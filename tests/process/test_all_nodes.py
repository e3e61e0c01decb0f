"""What an operator asks all nodes at once, of two real ones: a message is found, and its story told, after a takeover."""

import asyncio
import re
import smtplib
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.lab.traffic import Sink
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.processes import said, typed, wait_until_peers_know_each_other

pytestmark = [pytest.mark.slow]  # a takeover by silence, and a dozen commands
SPAN = {"shadow_resubmit_time_span": "20s"}  # a busy machine is no loss of the server
EAST, WEST = "mx1.east.example", "mx1.west.example"


def send(node: NodeProcess, recipient: str) -> str:
    """Returns the network message id."""
    with smtplib.SMTP(node.address.host, node.address.port, timeout=PATIENCE_SECONDS) as session:
        session.ehlo()
        session.mail("ann@x.example")
        session.rcpt(recipient)
        _, reply = session.data(b"Message-ID: <story@x.example>\r\nSubject: A story\r\n\r\nhello\r\n")
    return reply.decode().rpartition(" ")[2]


async def test_a_message_is_found_and_its_story_told_also_by_the_returned_primary(tmp_path: Path) -> None:
    for name in (EAST, WEST):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text("one-token-for-all-nodes\n", encoding="ascii")
    sink = Sink()
    address = await sink.start()
    try:
        async with Cluster((Place(EAST, "east"), Place(WEST, "west")), address, directory=tmp_path, transport=SPAN) as cluster:
            east, west = cluster.nodes.values()
            await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
            await typed(east, "queue", "suspend", str(address), "--hold")  # so that this node never delivers it
            message_id = await asyncio.to_thread(send, east, "bob@corp.example")

            async def find() -> Any:  # each node is asked, and a busy one may answer too late
                found = await said(west, "messages", "find", "--to", "bob@", "--status", "waiting", code=None)
                return found["messages"] and not found["missing"] and found

            waiting = await until(find)
            listed = await said(east, "messages", "list")
            on_machine = await said(west, "messages", "list", "--machine")
            queues, _ = await typed(west, "queue", "list", "--machine")

            async def holds() -> Any:
                status = await said(west, "status", code=None)
                return status["is_redundant"] and [(one["node"], one["primary"], one["count"]) for one in status["holds"]]

            held = await until(holds)
            table, _ = await typed(west, "status", code=None)
            await east.kill()
            await until(lambda: sink.arrivals)

            async def west_is_done() -> bool:
                found = await said(west, "messages", "find", "--id", message_id[:13])
                return bool(found["messages"][0]["role"] == "delivered")

            await until(west_is_done)
            alone, without = await typed(west, "messages", "trace", message_id)
            lonely = await said(west, "status", code=1)
            await east.start()

            async def east_knows() -> bool:  # it asked the other one before it would have delivered
                found = await said(east, "messages", "trace", "<story@x.example>", code=None)
                return EAST in found["messages"] and found["messages"][EAST]["role"] == "delivered"

            await until(east_knows)

            async def trace() -> Any:
                texts = await typed(east, "messages", "trace", message_id)
                return not texts[1] and texts

            told, complaints = await until(trace)
            own, _ = await typed(east, "messages", "show", message_id)
            shown, _ = await typed(east, "messages", "find", "--subject", "story")
            _, unknown = await typed(east, "messages", "list", "--queue", "nowhere", code=1)
    finally:
        await sink.close()

    (found,) = waiting["messages"]
    assert (message_id, ["bob@corp.example"], []) == (found["message_id"], found["to"], waiting["missing"])
    assert [(EAST, "primary")] == [(one["node"], one["role"]) for one in found["nodes"]]
    assert [message_id] == [row["message_id"] for row in listed]
    ((only,),) = [[row["nodes"] for row in on_machine]]
    assert [(EAST, "primary"), (WEST, "shadow")] == [(one["node"], one["role"]) for one in only]
    assert [True, True] == [f"{name}\\Submission" in queues for name in (EAST, WEST)]
    assert re.search(rf"1 to deliver, 1 held for others, on machine [0-9a-f]{{8}} by {WEST} and {EAST}\n", queues)
    assert [(WEST, EAST, 1)] == held
    assert [True, True] == [text in table for text in ("Held for", "running")]
    assert alone.startswith(f"Delivered by {WEST} after takeover from {EAST}, ")
    assert f"without {EAST}: " in without
    assert (False, [EAST]) == (lonely["is_redundant"], [one["node"] for one in lonely["missing"]])
    assert told.startswith(f"Delivered by {WEST} after takeover from {EAST}, ")
    assert own.startswith(f"Delivered by {WEST} after it took the message over from this server, which learned that at ")
    assert "its acceptance is in none of these logs" in alone.splitlines()[0]
    assert [True, True, True] == [text in told for text in ("accepted from", "took over from mx1.east.example", "bob@corp.example")]
    assert ("", True) == (complaints, message_id in shown)
    assert "no such queue: nowhere; there are mx1.east.example\\Submission" in unknown
