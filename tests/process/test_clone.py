"""A second machine with the name of a node that runs is refused over real sockets, and all are told of both. docs/design.md 6.6."""

import re
import shutil
import signal
from pathlib import Path

import pytest
import yaml

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, free_ports
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clients import submit, talking_to
from tests.kit.clock import until
from tests.kit.processes import api_of, figure, kept_count, operator_events, typed, wait_until_peers_know_each_other

EAST, WEST = "mx1.east.example", "mx1.west.example"
ALERTS = Path(__file__).parents[2] / "configs/prometheus/alerts.yml"


def a_clone(node: NodeProcess, directory: Path, *, is_copied: bool = False) -> NodeProcess:
    """The same name and configuration, an empty queue or a copy of its disk as it is, other ports."""
    smtp, admin = (HostPort(node.address.host, port) for port in free_ports(2))
    clone = NodeProcess(node.place, smtp, admin, directory, node.program)
    if is_copied:
        shutil.copytree(node.directory, clone.directory, ignore=shutil.ignore_patterns("*-shm"))
    else:
        clone.directory.mkdir()
    text = (node.directory / "node.toml").read_text()
    for before, after in ((str(node.address), str(smtp)), (str(node.admin), str(admin)), (str(node.directory), str(directory))):
        text = text.replace(f'"{before}', f'"{after}')
    (clone.directory / "node.toml").write_text(text)
    return clone


def alerts_that_fire(node: NodeProcess) -> set[str]:
    """Those whose expression is a comparison of one of its metrics with 0."""
    found = set()
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            match = re.fullmatch(r"shadowrelay_(peers_\w+) > 0", rule["expr"].strip())
            if match and figure(node, match[1]):
                found.add(rule["alert"])
    return found


@pytest.mark.heavy
async def test_a_clone_of_a_running_node_is_refused_and_log_status_metric_and_alert_name_both(tmp_path: Path) -> None:
    sink = Sink()
    sink.is_deferring = True
    try:
        async with Cluster([Place(EAST, "east"), Place(WEST, "west")], await sink.start(), directory=tmp_path) as cluster:
            east, west = cluster.nodes.values()
            wait_until_peers_know_each_other([east, west])
            await submit(east.address, "first@corp.example")
            clone = a_clone(east, tmp_path / "clone")
            try:
                await clone.start()
                await until(
                    lambda: bool(figure(west, "peers_in_conflict")) and bool(figure(clone, "peers_refusing_this_node")),
                    what=lambda: "\n".join(node.log_tail() for node in (east, west, clone)),
                )
                async with talking_to(clone.address) as client:
                    refused = await client.mail(["second@corp.example"])
                await submit(east.address, "third@corp.example")

                (reason,) = {row["reason"] for row in operator_events(west, "peer.identity_conflict")}
                with api_of(east) as client:
                    database = client.node()["database"]
                with api_of(clone) as client:
                    other = client.node()["database"]
                    reasons = client.ready()["reasons"]
                status, _ = await typed(west, "status", "--json", code=None)
                assert all(text in reason for text in (str(east.address), f"{clone.address.host}", database, other))
                assert reason.replace('"', '\\"') in status
                assert any("refuses this node" in each for each in reasons)
                assert refused.startswith("451 4.4.0 ")  # nothing that it takes would have a copy
                assert 2 == kept_count(west)  # of the running one
                assert {"ShadowrelayPeerRefused"} == alerts_that_fire(west)
                assert "ShadowrelayThisNodeRefused" in alerts_that_fire(clone)
                assert not [row for row in operator_events(west) if "promot" in row["event"] or "takeover" in row["event"]]
            finally:
                await clone.stop()
            await until(lambda: not figure(west, "peers_in_conflict"))
            sink.is_deferring = False
            await until(lambda: {"first@corp.example", "third@corp.example"} <= {arrival.recipient for arrival in sink.arrivals})
            assert len(sink.arrivals) == len({arrival.recipient for arrival in sink.arrivals})
    finally:
        await sink.close()


@pytest.mark.heavy
@pytest.mark.parametrize("is_copied", [False, True], ids=["empty", "copied"])
async def test_a_node_that_is_stopped_for_a_while_is_not_displaced_by_its_clone(tmp_path: Path, is_copied: bool) -> None:
    """A process that is stopped answers nothing, as one whose machine is slow or whose disk hangs."""
    sink = Sink()
    sink.is_deferring = True
    transport = {"shadow_resubmit_time_span": "5m"}
    try:
        places = [Place(EAST, "east"), Place(WEST, "west")]
        async with Cluster(places, await sink.start(), directory=tmp_path, transport=transport) as cluster:
            east, west = cluster.nodes.values()
            wait_until_peers_know_each_other([east, west])
            await submit(east.address, "first@corp.example")
            with api_of(east) as client:
                database = client.node()["database"]
            clone = a_clone(east, tmp_path / "clone", is_copied=is_copied)
            east.signal(signal.SIGSTOP)
            try:
                await clone.start()
                await until(
                    lambda: bool(figure(west, "peers_in_conflict")) and bool(figure(clone, "peers_refusing_this_node")),
                    what=lambda: "\n".join(node.log_tail() for node in (east, west, clone)),
                )
                assert any(
                    database in row["reason"] and "may still run" in row["reason"]
                    for row in operator_events(west, "peer.identity_conflict")
                )
                east.signal(signal.SIGCONT)
                await until(lambda: "answers" in operator_events(west, "peer.identity_conflict")[-1]["reason"])
                await submit(east.address, "second@corp.example")
                assert 2 == kept_count(west)
                with api_of(clone) as client:
                    assert any("refuses this node" in each for each in client.ready()["reasons"])
            finally:
                east.signal(signal.SIGCONT)
                await clone.stop()
            sink.is_deferring = False
            await until(lambda: {"first@corp.example", "second@corp.example"} <= {arrival.recipient for arrival in sink.arrivals})
            assert len(sink.arrivals) == len({arrival.recipient for arrival in sink.arrivals})
            assert not [row for row in operator_events(west) if "promot" in row["event"] or "takeover" in row["event"]]
            with api_of(east) as client:
                assert database == client.node()["database"]
    finally:
        await sink.close()
