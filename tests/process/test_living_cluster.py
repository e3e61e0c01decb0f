"""A cluster that lives: another authority, another Python, one node more and one less, by `shadowrelay init`, while mail flows."""

import asyncio
import os
import shlex
import signal
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess, Place, free_ports
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clients import talking_to
from tests.kit.clock import until
from tests.kit.init_runs import run
from tests.kit.old_authority import write_old_certificates
from tests.kit.processes import held_by, operator_events, said, typed, wait_until_peers_know_each_other

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.slow]

EAST, WEST, SOUTH = "mx1.east.example", "mx1.west.example", "mx1.south.example"
OTHER = os.environ.get("SHADOWRELAY_OTHER_PYTHON", "")  # of another version, with the packages of requirements/base.txt
QUICKLY = 'shadow_heartbeat_frequency = "1s"\nshadow_resubmit_time_span = "60s"\n'


class LivingCluster:
    """In `directory`, with addresses on loopback that are free; `python` starts the node of the west."""

    def __init__(self, directory: Path, next_hop: HostPort, python: str = "") -> None:
        self.directory = directory
        self.nodes: dict[str, NodeProcess] = {}
        self._python = python
        self._ports = {name: free_ports(6)[index : index + 2] for index, name in ((0, EAST), (2, WEST), (4, SOUTH))}
        self.told = ("--accept", "corp.example", "--next-hop", str(next_hop))

    def option(self, name: str) -> tuple[str, str]:
        return "--node", f"{name},{name.split('.')[1]},127.0.0.1:{self._ports[name][0]}"

    def init(self, *words: str) -> None:
        """And what it wrote is put into force, as its next steps say, with the API of each node at a free port."""
        result = run(self.directory, *words)
        assert 0 == result.exit_code, result.output
        for path in self.directory.glob("*/node.toml.new"):
            path.rename(path.with_suffix(""))
        for path in self.directory.glob("*/node.toml"):
            text = path.read_text()
            if QUICKLY not in text:
                text = text.replace("[transport]\n", f"[transport]\n{QUICKLY}")
            for number, name in enumerate(sorted(self.nodes or (EAST, WEST), key=list(self._ports).index)):
                text = text.replace(f"127.0.0.1:{8025 + number}", f"127.0.0.1:{self._ports[name][1]}")
            path.write_text(text)

    def add(self, name: str) -> NodeProcess:
        smtp, admin = (HostPort("127.0.0.1", port) for port in self._ports[name])
        inside = ("sh", "-c", f'shift; exec {shlex.quote(self._python)} "$@"', "sh") if self._python and name == WEST else ()
        self.nodes[name] = NodeProcess(Place(name, name.split(".")[1], inside=inside), smtp, admin, self.directory / name)
        return self.nodes[name]

    async def takes(self, *names: str) -> None:
        """Mail, at these nodes or at all: each says 250, for which another node must have the copy."""
        for name in names or self.nodes:
            node = self.nodes[name]
            await until(lambda: _is_taken(node))  # noqa: B023 - it is asked at once

    async def reload(self, name: str) -> None:
        node, event = self.nodes[name], "configuration.reloaded"
        before = len(operator_events(node, event))
        node.signal(signal.SIGHUP)
        await until(lambda: len(operator_events(node, event)) > before)

    async def restart(self, name: str) -> None:
        await self.nodes[name].stop()
        await self.nodes[name].start()

    async def knows_itself(self) -> None:
        await asyncio.to_thread(wait_until_peers_know_each_other, list(self.nodes.values()))


async def _is_taken(node: NodeProcess) -> bool:
    async with talking_to(node.address) as client:
        return (await client.mail(("somebody@corp.example",))).startswith("250 ")


async def changed_authority(cluster: LivingCluster, step: int) -> None:
    """The files of one step reach one node, which is started anew, and then the other: mail is taken by both nodes at each moment."""
    first, second = (EAST, WEST) if step % 2 else (WEST, EAST)
    place = cluster.directory / second
    before = {path: path.read_bytes() for path in place.glob("*.*")}
    cluster.init("--renew", "--authority")
    after = {path: path.read_bytes() for path in before}
    for path, content in before.items():
        path.write_bytes(content)  # has not arrived there yet
    await cluster.restart(first)
    await cluster.takes()
    for path, content in after.items():
        path.write_bytes(content)
    await cluster.reload(second)
    await cluster.restart(first)  # all sessions are new
    await cluster.takes()


@pytest.mark.parametrize("python", [pytest.param("", id="one Python"), pytest.param(OTHER, id="two Pythons")])
async def test_the_authority_changes_while_mail_flows(tmp_path: Path, sink: Sink, python: str, request: pytest.FixtureRequest) -> None:
    if not python and "two Pythons" in request.node.name:
        pytest.skip("SHADOWRELAY_OTHER_PYTHON names no other Python with the packages of requirements/base.txt")
    cluster = LivingCluster(tmp_path, await sink.start(), python)
    cluster.init(*cluster.option(EAST), *cluster.option(WEST), *cluster.told)
    write_old_certificates(tmp_path, (EAST, WEST))
    nodes = [cluster.add(name) for name in (EAST, WEST)]
    await asyncio.gather(*(node.start() for node in nodes))
    try:
        await cluster.knows_itself()
        await cluster.takes()
        found = await said(nodes[0], "doctor")
        assert 1 == sum("refused by Python 3.13 and later" in one["text"] for one in found["findings"] if one["level"] == "warning")
        for step in (1, 2, 3):
            await changed_authority(cluster, step)
        found = await said(nodes[0], "doctor")
        assert [] == [one for one in found["findings"] if one["level"] == "error" or "Python" in one["text"]]
        assert all(line["tls"] for node in nodes for line in operator_events(node, "peer.session_opened"))
        await until(lambda: not [line for node in nodes for line in held_by(node)])
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


async def test_a_node_comes_and_goes_and_nothing_knows_of_it_afterwards(tmp_path: Path, sink: Sink) -> None:
    cluster = LivingCluster(tmp_path, await sink.start())
    cluster.init(*cluster.option(EAST), *cluster.option(WEST), *cluster.told)
    east, west = (cluster.add(name) for name in (EAST, WEST))
    await asyncio.gather(east.start(), west.start())
    try:
        await cluster.knows_itself()
        south = cluster.add(SOUTH)
        cluster.init(*cluster.option(SOUTH))
        for name in (EAST, WEST):  # the others first, one after the other
            await cluster.restart(name)
        await south.start()
        await cluster.knows_itself()
        await cluster.takes()

        await typed(south, "drain")
        await south.stop()
        for node in (east, west):
            await until(lambda: _south_is_gone(node))  # noqa: B023 - it is asked at once
            await typed(node, "peers", "forget", SOUTH)
        del cluster.nodes[SOUTH]
        cluster.init("--remove", SOUTH)
        for name in (EAST, WEST):
            await cluster.restart(name)
        await cluster.knows_itself()
        await cluster.takes()

        async def is_whole() -> bool:  # each node is asked, and a busy one may answer too late
            status = await said(east, "status", code=None)
            names = {node["name"] for node in status["nodes"]}
            return (True, [], [], {EAST, WEST}) == (status["is_redundant"], status["missing"], status["unreached"], names)

        await until(is_whole)
        assert "south" not in (await typed(east, "status"))[0]
        assert "south" not in (await typed(west, "doctor"))[0]
    finally:
        await asyncio.gather(*(node.stop() for node in cluster.nodes.values()), south.stop())


async def _south_is_gone(node: NodeProcess) -> bool:
    """It holds nothing of this node any more, and this node has noticed that it is gone."""
    peers = await said(node, "peers", "list")
    return all(peer["held_by_count"] == 0 and not peer["is_reachable"] for peer in peers if peer["name"] == SOUTH)
