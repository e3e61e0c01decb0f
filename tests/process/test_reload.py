"""SIGHUP at a real node: what changes at once does, what needs a restart is named and stays, a wrong file changes nothing."""

import asyncio
import signal
import smtplib
from pathlib import Path

import httpx
import pytest
import structlog

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.model.routing import HostPort
from shadowrelay.node import Node
from shadowrelay.settings import configuration
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.node_log import operator_events

pytestmark = pytest.mark.slow


async def reloaded(node: NodeProcess) -> dict[str, object]:
    """SIGHUP, and the line that it leaves."""

    def answers() -> list[dict[str, object]]:
        return [line for line in operator_events(node) if line["event"].startswith("configuration.")]

    before = len(answers())
    node.signal(signal.SIGHUP)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(answers()) == before:
            await asyncio.sleep(0.05)
    return answers()[before]


async def test_sighup_takes_what_it_can_and_names_the_rest(tmp_path: Path) -> None:
    async with Cluster((Place("a.east.example", "east"),), HostPort("127.0.0.1", 9), directory=tmp_path) as cluster:
        (node,) = cluster.nodes.values()
        file = node.directory / "node.toml"
        before = file.read_text()
        file.write_text(before.replace("[transport]", '[transport]\nsafety_net_hold_time = "5m"\ndelivery_without_lease = "defer"'))
        file.write_text(file.read_text().replace("[[receive_connectors]]", "[[receive_connectors]]\nmax_message_size = 4321"))
        first = await reloaded(node)
        again = await reloaded(node)
        file.write_text("rubbish")
        wrong = await reloaded(node)

        token = (node.directory / "token").read_text().strip()
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_SECONDS) as client:
            settings = (await client.get(f"http://{node.admin}/api/v1/node")).raise_for_status().json()["settings"]
        with smtplib.SMTP(node.address.host, node.address.port, timeout=PATIENCE_SECONDS) as session:
            session.ehlo()

    named = ["transport.safety_net_hold_time"]
    assert [named, named, None] == [line.get("needs_restart") for line in (first, again, wrong)]
    assert "configuration.refused" == wrong["event"]
    assert ("2d", "defer") == tuple(settings[f"transport.{key}"] for key in ("safety_net_hold_time", "delivery_without_lease"))
    assert "4321" == session.esmtp_features["size"]


async def test_a_sighup_while_the_node_starts_waits_for_that(tmp_path: Path) -> None:
    async with Cluster((Place("a.east.example", "east"),), HostPort("127.0.0.1", 9), directory=tmp_path) as cluster:
        (process,) = cluster.nodes.values()
        await process.kill()
        file = process.directory / "node.toml"
        node = Node(configuration.load(file))
        file.write_text(file.read_text().replace("[[receive_connectors]]", "[[receive_connectors]]\nmax_message_size = 4321"))
        node.reload()
        with structlog.testing.capture_logs() as said:
            await node.start()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                reader, writer = await asyncio.open_connection(process.address.host, process.address.port)
                writer.write(b"EHLO there\r\n")
                answer = await reader.readuntil(b"SIZE 4321")
                writer.close()
        finally:
            await node.stop()

    assert ["node.started", "configuration.reloaded"] == [line["event"] for line in said][-2:]
    assert answer.startswith(b"220 ")
