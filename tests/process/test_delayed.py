"""Delayed acknowledgement of a real node: what clients read, and what its operator sees. docs/design.md 6.7."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, rows
from shadowrelay.lab.traffic import DEFERRED, Sink
from shadowrelay.model.message import Envelope
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import HostPort
from tests.kit.clients import queued_id, submit, talking_to
from tests.kit.clock import until
from tests.kit.processes import a_served_node, api_of, figure, operator_events

pytestmark = pytest.mark.slow

BEST_EFFORT, LATE = "message.acknowledged_by_best_effort", "message.acknowledged_late"
ACKNOWLEDGEMENTS = 'delayed_acknowledgements_total{{why="{}"}}'
TO = "user@here.example"
COUNT = 20


def why(node: NodeProcess) -> Counter[tuple[str, str]]:
    """Event and reason of each 250 in the operator log."""
    return Counter((line["event"], line["why"]) for line in operator_events(node, "message.acknowledged"))


def reasons(node: NodeProcess, event: str) -> dict[str, str]:
    """Network message id -> source-context of these rows."""
    return {row["network-message-id"]: row["source-context"] for row in rows(node.tracking) if row["event-id"] == event}


async def test_a_250_by_best_effort_is_in_the_log_in_the_tracking_log_and_in_the_metrics(tmp_path: Path) -> None:
    async with a_served_node(tmp_path, 'redundancy = "previous-hop"\nmax_acknowledgement_delay = "1s"') as node:  # its next hop is down
        message_id = await submit(node.address, TO)

        await until(lambda: {(BEST_EFFORT, "best effort"): 1} == why(node))
        (line,) = operator_events(node, BEST_EFFORT)
        assert (message_id, "warning") == (line["message_id"], line["level"])
        assert line["seconds"] > 0
        await until(lambda: 1 == figure(node, ACKNOWLEDGEMENTS.format("best effort")))
        assert figure(node, "acknowledgement_delay_seconds_total") > 0
        await until(lambda: list(reasons(node, "HAREDIRECTFAIL")) == [message_id])
        assert reasons(node, "HAREDIRECTFAIL")[message_id].endswith("s by best effort")


async def test_each_message_of_a_pipelining_session_waits_for_itself_and_the_answers_come_in_order(tmp_path: Path) -> None:
    sink = Sink()
    deferred = {f"user{number}@corp.example" for number in range(0, COUNT, 5)}  # once; a retry takes a second

    def decide(envelope: Envelope) -> Reply | None:
        address = envelope.recipients[0].address
        is_deferred = address in deferred
        deferred.discard(address)
        return DEFERRED if is_deferred else None

    sink.decide = decide
    address = await sink.start()
    try:
        places = (Place("mx1.east.example", "east", redundancy="previous-hop"),)
        send: dict[str, Any] = {"message_retry_interval": "100ms"}
        async with Cluster(places, HostPort("127.0.0.1", address.port), directory=tmp_path, send=send) as cluster:
            (node,) = cluster.nodes.values()
            ids, arrived_before = [], []
            async with talking_to(node.address) as client:
                for number in range(COUNT):  # each content, and the next message in the same packet
                    begins = f"MAIL FROM:<>\r\nRCPT TO:<user{number}@corp.example>\r\nDATA\r\n".encode()
                    await client.send((b"Subject: hello\r\n\r\nhello\r\n.\r\n" if number else b"") + begins)
                    if number:
                        ids.append(queued_id(await client.reply()))
                        arrived_before.append(len(sink.arrivals))
                    assert ["250", "250", "354"] == [reply[:3] for reply in await client.replies(3)]
                await client.send(b"Subject: hello\r\n\r\nhello\r\n.\r\n")
                ids.append(queued_id(await client.reply()))
                arrived_before.append(len(sink.arrivals))

            assert list(range(1, COUNT + 1)) == arrived_before
            assert [(f"user{number}@corp.example", ids[number]) for number in range(COUNT)] == [
                (arrival.recipient, arrival.network_id) for arrival in sink.arrivals
            ]
            await until(lambda: {(LATE, "done"): COUNT} == why(node))
            await until(lambda: (COUNT, 0) == (figure(node, ACKNOWLEDGEMENTS.format("done")), figure(node, "acknowledgements_waiting")))
    finally:
        await sink.close()


@pytest.mark.parametrize("how", ["SIGTERM", "drain"])
async def test_a_node_that_stops_or_drains_gives_the_answers_that_wait(tmp_path: Path, how: str) -> None:
    async with a_served_node(
        tmp_path, 'redundancy = "previous-hop"\nmax_acknowledgement_delay = "4m"'
    ) as node:  # longer than a test may take
        clients = [asyncio.ensure_future(submit(node.address, TO)) for _ in range(5)]
        await until(lambda: figure(node, "acknowledgements_waiting") == len(clients))
        if how == "drain":
            with api_of(node) as api:
                await asyncio.to_thread(api.drain)
            ids = await asyncio.gather(*clients)
            await until(lambda: 0 == figure(node, "acknowledgements_waiting"))
            with api_of(node) as api:
                await asyncio.to_thread(api.undrain)
            again = asyncio.ensure_future(submit(node.address, TO))  # waits as before
            await until(lambda: figure(node, "acknowledgements_waiting") == 1)
        else:
            again = None
        await node.stop()
        ids = await asyncio.gather(*clients, *([again] if again else []))

    assert {(BEST_EFFORT, "stopping"): len(ids)} == why(node)
    assert set(ids) == set(reasons(node, "HAREDIRECTFAIL"))
