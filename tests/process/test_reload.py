"""SIGHUP at a real node: what changes at once does, what needs a restart is named and stays, a wrong file changes nothing."""

import signal
from pathlib import Path

import pytest
import structlog

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.model.routing import HostPort
from shadowrelay.node import Node
from shadowrelay.settings import configuration
from tests.kit.clients import talking_to
from tests.kit.clock import until
from tests.kit.processes import api_of, operator_events, typed

pytestmark = pytest.mark.slow


async def reloaded(node: NodeProcess) -> dict[str, object]:
    """SIGHUP, and the line that it leaves."""

    before = len(operator_events(node, "configuration."))
    node.signal(signal.SIGHUP)
    (line,) = await until(lambda: operator_events(node, "configuration.")[before:])
    return line


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

        with api_of(node) as api:
            known = api.node()
        settings, taken = known["settings"], known["configuration"]
        file.write_text(before.replace("[transport]", "[transport]\nshadow_tiemout = 3"))
        said, warned = await typed(node, "status", code=None)
        _, examined = await typed(node, "doctor", code=2)
        async with talking_to(node.address) as client:
            extensions = await client.ask("EHLO again")

    assert [True, True, True] == ["refused" in said, "earlier state of" in said, "unknown key; did you mean shadow_timeout?" in warned]
    assert "the running node has read an earlier state of node.toml" in examined
    assert (str(file), ["transport.safety_net_hold_time"]) == (taken["file"], taken["needs_restart"])
    assert "not valid TOML" in taken["refusal"]
    named = ["transport.safety_net_hold_time"]
    assert [named, named, None] == [line.get("needs_restart") for line in (first, again, wrong)]
    assert "configuration.refused" == wrong["event"]
    assert ("2d", "defer") == tuple(settings[f"transport.{key}"] for key in ("safety_net_hold_time", "delivery_without_lease"))
    assert "250-SIZE 4321" in extensions.split("\n")


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
            async with talking_to(process.address) as client:
                extensions = await client.ask("EHLO again")
        finally:
            await node.stop()

    assert ["node.started", "configuration.reloaded"] == [line["event"] for line in said][-2:]
    assert "250-SIZE 4321" in extensions.split("\n")
