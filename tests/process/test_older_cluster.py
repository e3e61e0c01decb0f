"""A cluster that an older `init` made goes on working, and what `check` and `doctor` say leads it to the present layout, step by step."""

import asyncio
import re
import signal
import tomllib
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess, Place, free_ports
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clients import submit
from tests.kit.clock import until
from tests.kit.init_runs import run
from tests.kit.old_init import write_old_cluster
from tests.kit.pages import OPERATORS
from tests.kit.processes import operator_events, typed, wait_until_peers_know_each_other

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

EAST, WEST = "mx1.east.example", "mx1.west.example"
SAME_MACHINE = "all peers that may hold copies run on this machine"
SHARED_CONNECTOR = (
    "strangers and peers share it, so that strangers can be in the way of copies: give the peers a connector of their own, in the steps of"
)
ONE_TOKEN = "admin.read_only_token_file is not set"
OLD_AUTHORITY = "this authority is refused by Python 3.13 and later"
STEPS = [SAME_MACHINE, SHARED_CONNECTOR, ONE_TOKEN, OLD_AUTHORITY]


class Old:
    """Its nodes, and the mail that goes through them."""

    def __init__(self, top: Path, next_hop: HostPort) -> None:
        self.top, self.sent, self.next_hop = top, 0, next_hop
        ports = [HostPort("127.0.0.1", port) for port in free_ports(6)]
        self.addresses = {EAST: (ports[0], ports[1]), WEST: (ports[2], ports[3])}
        self.peer_ports = {EAST: ports[4], WEST: ports[5]}
        write_old_cluster(top, self.addresses, next_hop)
        self.nodes = [NodeProcess(Place(name, name.split(".")[1]), *where, top / name) for name, where in self.addresses.items()]

    async def restart(self) -> None:
        """One after the other."""
        for number, node in enumerate(self.nodes):
            await node.stop()
            await node.start()
            await asyncio.to_thread(wait_until_peers_know_each_other, self.nodes[: number + 1])  # the others may have another token yet

    async def reload(self) -> None:
        for node in self.nodes:
            before = len(operator_events(node, "configuration.reloaded"))
            node.signal(signal.SIGHUP)
            await until(lambda: len(operator_events(node, "configuration.reloaded")) > before)  # noqa: B023

    async def relays(self, sink: Sink) -> None:
        """Both nodes take mail with a copy, and it arrives."""
        for node in self.nodes:
            await submit(node.address, f"user{self.sent}@corp.example")
            self.sent += 1
        await until(lambda: len(sink.arrivals) >= self.sent)

    def init(self, *words: object) -> str:
        done = run(self.top, *map(str, words))
        assert 0 == done.exit_code, done.output
        return done.output

    def replace(self, of: NodeProcess, *pairs: tuple[str, str]) -> None:
        path = of.directory / "node.toml"
        text = path.read_text()
        for before, after in pairs:
            assert before in text, before
            text = text.replace(before, after)
        path.write_text(text)

    async def told(self) -> list[str]:
        """Which of the steps `check` and `doctor` tell on each node, the same on both."""
        said = set()
        for node in self.nodes:
            for command in ("check", "doctor"):
                output, errors = await typed(node, command, code=None)
                said.add(tuple(step for step in STEPS if step in (output + errors).replace("\n", " ")))
        (steps,) = said
        return list(steps)


async def test_a_cluster_of_an_older_init_goes_on_and_is_led_to_the_present_layout(tmp_path: Path) -> None:
    sink = Sink()
    old = Old(tmp_path / "cluster", await sink.start())
    try:
        assert STEPS == await old.told()
        await asyncio.gather(*(node.start() for node in old.nodes))
        await asyncio.to_thread(wait_until_peers_know_each_other, old.nodes)

        # what was made for trying, on one machine: `init` in its directory writes the setting that check names
        options = [f"--node={name},{name.split('.')[1]},{where}" for name, (where, _) in old.addresses.items()]
        old.init(*options, "--accept", "corp.example", "--next-hop", old.next_hop)
        for node in old.nodes:
            new = tomllib.loads((node.directory / "node.toml.new").read_text())
            assert new["transport"]["shared_fate_is_redundant"]
            old.replace(node, ("[transport]\n", "[transport]\nshared_fate_is_redundant = true\n"))
        await old.restart()
        await old.relays(sink)
        assert STEPS[1:] == await old.told()

        # a connector for peers: the three steps of the page that check names
        page = OPERATORS.partition("\n### A connector for peers\n")[2].partition("\n### ")[0]
        (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
        for node in old.nodes:
            text = re.sub(r"(?m)^   ", "", block).replace("0.0.0.0:2555", str(old.peer_ports[node.name]))
            old.replace(node, ("[[peers]]\n", f"{text}\n[[peers]]\n"))
        await old.restart()
        await old.relays(sink)
        for node in old.nodes:
            peer = WEST if node.name == EAST else EAST
            old.replace(node, (f'address = "{old.addresses[peer][0]}"', f'address = "{old.peer_ports[peer]}"'))
        await old.restart()
        await old.relays(sink)
        for node in old.nodes:
            listen = f'listen = "{old.addresses[node.name][0]}"\n'
            old.replace(node, (listen, f"{listen}accept_xshadow = false\n"))
        await old.reload()
        await old.relays(sink)
        assert STEPS[2:] == await old.told()

        # tokens: delete each, and let `init` make them
        for node in old.nodes:
            (node.directory / "token").unlink()
            (node.directory / "read_only_token").unlink(missing_ok=True)
        old.init()
        for node in old.nodes:
            assert "read_only_token_file" in (node.directory / "node.toml.new").read_text()
            old.replace(node, ('token_file = "token"\n', 'token_file = "token"\nread_only_token_file = "read_only_token"\n'))
        await old.restart()
        await old.relays(sink)
        assert 2 == len({(node.directory / "token").read_text() for node in old.nodes})
        assert 1 == len({(node.directory / "read_only_token").read_text() for node in old.nodes})
        assert STEPS[3:] == await old.told()

        # an authority that every Python takes
        for _ in range(3):
            old.init("--renew", "--authority")
            await old.reload()
            await old.relays(sink)
        await old.restart()
        await old.relays(sink)
        assert [] == await old.told()
        said = [await typed(node, "doctor", code=None) for node in old.nodes]
        assert [] == [line for text in said for line in "".join(text).splitlines() if line.startswith("error")]
    finally:
        await asyncio.gather(*(node.stop() for node in old.nodes))
        await sink.close()

    recipients = sorted(arrival.recipient for arrival in sink.arrivals)
    assert sorted(f"user{number}@corp.example" for number in range(old.sent)) == recipients
