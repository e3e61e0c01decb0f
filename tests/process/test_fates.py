"""Real nodes on this machine know that they share it. docs/design.md 6.15."""

import signal
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.model.routing import HostPort
from tests.kit.clients import talking_to
from tests.kit.clock import until
from tests.kit.processes import api_of, figure, said, typed, wait_until_peers_know_each_other

pytestmark = pytest.mark.slow

NOBODY = HostPort("127.0.0.1", 9)
EAST, WEST = Place("a.east.example", "east"), Place("b.west.example", "west")


def shared_fates(node: NodeProcess) -> list[str]:
    with api_of(node) as client:
        return [peer["shared_fate"] for peer in client.peers()]


@pytest.mark.parametrize("rejects", [True, pytest.param(False, marks=pytest.mark.heavy)])
async def test_two_nodes_on_one_machine_do_not_call_their_mail_redundant(tmp_path: Path, rejects: bool) -> None:
    strict = {"shared_fate_is_redundant": False, "reject_message_on_shadow_failure": rejects}
    async with Cluster((EAST, WEST), NOBODY, directory=tmp_path, transport=strict) as cluster:
        east = cluster.nodes[EAST.name]
        wait_until_peers_know_each_other(list(cluster.nodes.values()))
        await until(lambda: ["machine"] == shared_fates(east))

        async with talking_to(east.address) as client:
            reply = await client.mail(["b@y.example"])

        assert ("451" if rejects else "250") == reply[:3]
        await until(lambda: (0.0 if rejects else 1.0) == figure(east, "shared_fate_total"))
        await until(lambda: 1.0 == figure(east, "peers_sharing_fate"))
        output, _ = await typed(east, "status", code=1)
        assert ("REFUSED" if rejects else "no peer on another machine, with other failure_domains, takes copies now") in output
        fates = [one for one in (await said(east, "doctor", code=None))["findings"] if one["subject"] == "failure domains"]
        assert [("warning", True)] == [(one["level"], "copies there do not count as redundant" in one["text"]) for one in fates]


async def test_where_a_shared_fate_counts_it_is_said_and_a_reload_ends_it(tmp_path: Path) -> None:
    async with Cluster((EAST, WEST), NOBODY, directory=tmp_path) as cluster:
        east = cluster.nodes[EAST.name]
        wait_until_peers_know_each_other(list(cluster.nodes.values()))

        output, _ = await typed(east, "status", code=0)
        assert output.startswith(
            f"New mail is redundant on the nodes that answered; shared_fate_is_redundant on {EAST.name}: copies count that are lost"
        )
        output, _ = await typed(east, "check")
        assert "shared_fate_is_redundant = true means" in output

        file = east.directory / "node.toml"
        file.write_text(file.read_text().replace("shared_fate_is_redundant = true", "shared_fate_is_redundant = false"))
        east.signal(signal.SIGHUP)

        async def is_over() -> bool:
            return "NEW MAIL IS REFUSED" in (await typed(east, "status", code=None))[0]

        await until(is_over)
