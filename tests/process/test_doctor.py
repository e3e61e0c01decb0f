"""`shadowrelay doctor` against real nodes and servers: each mistake is named with its remedy, and a healthy node gets no error."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shadowrelay.checkup import Finding, Look, Severity, _versions, examine, judged_rate
from shadowrelay.lab.cluster import NodeProcess, Place, free_ports
from shadowrelay.model.routing import HostPort
from shadowrelay.settings import cluster_files, configuration
from tests.kit.played_rspamd import played_rspamd
from tests.kit.processes import wait_until_peers_take_copies
from tests.kit.smtp_servers import HANG, ScriptedServer, name_server, serving

pytestmark = pytest.mark.slow

EAST, WEST = "mx1.east.example", "mx1.west.example"
TRIES = 10


@pytest.mark.parametrize(
    ("seconds", "later", "level", "text"),
    [
        (0.002, 3.002, Severity.OK, "at the rate of ours"),
        (0.002, 3.1, Severity.ERROR, "3.3% faster than ours"),
        (0.002, 2.9, Severity.ERROR, "3.3% slower than ours"),
        (0.2, 3.1, Severity.WARNING, "its answers took too long"),
    ],
)
def test_a_clock_of_another_rate_is_told_from_a_slow_answer(seconds: float, later: float, level: Severity, text: str) -> None:
    found = judged_rate("clock", Look(10, 10 + seconds, 100), Look(13, 13 + seconds, 100 + later))

    assert (level, True) == (found.level, text in found.text)


class Pair:
    """Two configured nodes, not started."""

    def __init__(self, directory: Path, next_hop: HostPort) -> None:
        self.directory = directory
        ports = free_ports(4)
        addresses = [HostPort("127.0.0.1", port) for port in ports[:2]]
        plan = cluster_files.planned(
            [f"{EAST},east,{addresses[0]}", f"{WEST},west,{addresses[1]}"], accepted_domains=["corp.example"], next_hops=[str(next_hop)]
        )
        cluster_files.write(plan, directory)
        self.for_peers = [node.for_peers for node in plan.nodes]
        self.nodes: list[NodeProcess] = []
        for node, address, port in zip(plan.nodes, addresses, ports[2:], strict=True):
            self.edit(node.name, f'listen = "{node.admin}"', f'listen = "127.0.0.1:{port}"')
            for other in plan.nodes:
                if other != node:
                    self.edit(other.name, f'admin = "http://{node.admin}"', f'admin = "http://127.0.0.1:{port}"')
            self.nodes.append(NodeProcess(Place(node.name, node.site), address, HostPort("127.0.0.1", port), directory / node.name))

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.directory / name / "node.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    async def findings(self, name: str = EAST) -> dict[str, Finding]:
        """Those that are not ok, by subject. On a busy machine clocks cannot be compared: it tries again then, as the finding says. How
        long a sync takes is the machine's."""
        for _ in range(TRIES):
            found = await examine(configuration.load(self.directory / name / "node.toml"))
            if not any("took too long" in one.text for one in found):
                break
        return {one.subject: one for one in found if one.level is not Severity.OK and "a sync takes" not in one.text}


@asynccontextmanager
async def a_pair(directory: Path, *started: str) -> AsyncIterator[Pair]:
    """With a next hop that answers."""
    sink = ScriptedServer()
    async with serving(sink):
        pair = Pair(directory, HostPort("127.0.0.1", sink.port))
        running = [node for node in pair.nodes if node.name in started]
        try:
            await asyncio.gather(*(node.start() for node in running))
            yield pair
        finally:
            await asyncio.gather(*(node.stop() for node in running))


def test_a_mixed_cluster_is_a_finding_also_if_a_peer_is_too_old_to_tell_but_not_before_it_was_met() -> None:
    peers = [{"name": name, "database": "d", "version": version} for name, version in (("b", "1.4.0"), ("c", "1.5.0"), ("d", ""))]
    (finding,) = _versions({"version": "1.4.0"}, [*peers, {"name": "e", "database": "", "version": ""}])

    assert (Severity.WARNING, "a mixed cluster: this node has 1.4.0, c has 1.5.0, d has an older one") == (finding.level, finding.text)
    assert [] == _versions({"version": "1.4.0"}, peers[:1])


async def test_a_healthy_node_gets_no_finding(tmp_path: Path) -> None:
    async with a_pair(tmp_path, EAST, WEST) as pair:
        await asyncio.to_thread(wait_until_peers_take_copies, pair.nodes)

        assert {} == await pair.findings()


async def test_the_next_hop_of_another_site_need_not_answer_here(tmp_path: Path) -> None:
    async with a_pair(tmp_path, EAST, WEST) as pair:
        route = (
            '[[routes]]\nrecipients = ["*@west.example"]\nsite = "{}"\nnext_hop = "127.0.0.1:1"\n[[site_links]]\nsites = ["east", "west"]\n'
        )
        pair.edit(EAST, "[tracking]", f"{route.format('west')}[tracking]")
        await asyncio.to_thread(wait_until_peers_take_copies, pair.nodes)
        elsewhere = await pair.findings()
        pair.edit(EAST, 'site = "west"\nnext_hop', 'site = "east"\nnext_hop')

        here = await pair.findings()
        # on a busy machine an answer may take so long that the peer's clock seems to be off; the node has not read what was edited
        assert [[], ["next hop 127.0.0.1:1"]] == [
            [name for name in found if not name.startswith(("clock of ", "configuration"))] for found in (elsewhere, here)
        ]


async def test_its_questions_leave_no_trace_on_a_peer(tmp_path: Path) -> None:
    """It is no second node with the same name, whose mail would be taken over."""
    async with a_pair(tmp_path, EAST, WEST) as pair:
        await asyncio.to_thread(wait_until_peers_take_copies, pair.nodes)
        await pair.findings()
        log = (pair.nodes[1].directory / "node.log").read_text()

        assert ("peer.database_new" in log, "peer.conflict" in log) == (False, False)
        assert {} == await pair.findings(WEST)


def of_another_authority(pair: Pair) -> None:
    plan = cluster_files.planned([f"{EAST},east,127.0.0.1:1", f"{WEST},west,127.0.0.1:2"], relay_from=["10.0.0.0/8"])
    cluster_files.write(plan, pair.directory / "others")
    for file in ("node.pem", "node.key"):
        shutil.copy(pair.directory / "others" / EAST / file, pair.directory / EAST / file)


def revoked(pair: Pair) -> None:
    shutil.copy(pair.directory / WEST / "node.pem", pair.directory / EAST / "revoked.pem")


def another_name(pair: Pair) -> None:
    pair.edit(EAST, f'name = "{WEST}"', 'name = "mx2.west.example"')


def without_tls(pair: Pair) -> None:
    pair.edit(EAST, 'site = "west"', 'site = "west"\nrequire_tls = false')


def a_filter_at(address: str) -> Callable[[Pair], None]:
    def mistake(pair: Pair) -> None:
        path = pair.directory / EAST / "node.toml"
        path.write_text(f'{path.read_text()}\n[[filters]]\nname = "rspamd"\naddress = "{address}"\n')

    return mistake


def a_route_to(next_hop: object) -> Callable[[Pair], None]:
    return lambda pair: pair.edit(EAST, "[tracking]", f'[[routes]]\nrecipients = ["*"]\nnext_hop = "{next_hop}"\n\n[tracking]')


def a_file_for_a_directory(pair: Pair) -> None:
    pair.edit(EAST, 'data_directory = "data"', 'data_directory = "node.pem"')


MISTAKES = (
    (of_another_authority, "certificate", "refuses it: unable to get local issuer certificate", "--renew"),
    (of_another_authority, f"peer {WEST}", "", "same peer_authority"),
    (revoked, f"peer {WEST}", "it was revoked", "key was stolen"),
    (another_name, "peer mx2.west.example", "mx2.west.example", "DNS names"),
    (without_tls, f"peer {WEST}", "does not offer XSHADOW", "peer_authority"),
    (a_route_to("127.0.0.1:1"), "next hop 127.0.0.1:1", "connection refused", "start it"),
    (a_filter_at("http://127.0.0.1:1"), "filter rspamd", "no verdict: ConnectError", "start it at http://127.0.0.1:1"),
    (a_file_for_a_directory, "data_directory", "is not a directory", "another"),
    (lambda pair: None, "node at", "it does not run", "start it"),
)


async def test_a_mistake_is_named_with_its_remedy(tmp_path: Path) -> None:
    wrong = []
    async with a_pair(tmp_path, WEST) as pair:
        kept = {path: path.read_bytes() for path in (tmp_path / EAST).iterdir()}
        for mistake, subject, text, remedy in MISTAKES:
            mistake(pair)
            found = await pair.findings()
            named = [one for name, one in found.items() if name.startswith(subject) and text in one.text and remedy in one.remedy]
            if not named:
                wrong.append((subject, text, remedy, found))
            for path, octets in kept.items():
                path.write_bytes(octets)

    assert [] == wrong


async def test_a_peer_that_is_down_and_one_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowrelay.checkup.TRIAL_SECONDS", 0.5)
    silent = ScriptedServer({"GREETING": HANG})
    async with serving(silent), a_pair(tmp_path) as pair:
        port = silent.port
        west = f"peer {WEST} at {pair.for_peers[1]}"
        down = (await pair.findings())[west]
        pair.edit(EAST, f'address = "{pair.for_peers[1]}"', f'address = "127.0.0.1:{port}"')
        hangs = (await pair.findings())[f"peer {WEST} at 127.0.0.1:{port}"]

    assert ("connection refused" in down.text, "start that node" in down.remedy) == (True, True)
    assert Severity.ERROR is hangs.level


async def test_names_and_name_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowrelay.checkup.TRIAL_SECONDS", 2.0)
    names = {(WEST, "A"): ["127.0.0.1"], ("me.example", "A"): ["127.0.0.1"]}
    async with name_server(names) as (_, port), a_pair(tmp_path, WEST) as pair:
        address = pair.for_peers[1]
        pair.edit(EAST, f'address = "{address}"', f'address = "{WEST}:{address.port}"')
        pair.edit(EAST, "[tracking]", f'[dns]\nnameservers = ["127.0.0.1:{port}"]\n[tracking]')
        known = await pair.findings()
        itself = f"me.example:{pair.nodes[0].address.port}"
        pair.edit(EAST, f'address = "{WEST}:{address.port}"', f'address = "{itself}"')
        a_route_to(itself)(pair)
        own = await pair.findings()
        pair.edit(EAST, f'address = "{itself}"', f'address = "nowhere.example:{address.port}"')
        unknown = await pair.findings()
        pair.edit(EAST, f'["127.0.0.1:{port}"]', '["127.0.0.1:9"]')
        dead = await pair.findings()

    assert ["node at"] == [subject[:7] for subject in known]
    assert [True, True] == ["this node itself" in own[subject].text for subject in (f"peer {WEST} at {itself}", f"next hop {itself}")]
    assert "its name is not found" in unknown[f"peer {WEST} at nowhere.example:{address.port}"].text
    assert Severity.ERROR is dead["name server 127.0.0.1:9"].level


async def test_a_filter_is_asked_for_a_verdict(tmp_path: Path) -> None:
    async with a_pair(tmp_path, WEST) as pair, played_rspamd() as played:
        a_filter_at(played.address)(pair)

        found = await examine(configuration.load(tmp_path / EAST / "node.toml"))

        assert Finding(Severity.OK, "filter rspamd", "gives verdicts (rspamd:no-action:0.10)") in found
