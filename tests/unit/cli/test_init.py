"""`shadowrelay init`: what it writes, what it keeps, and how it answers mistakes."""

import json
import os
import pty
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from shadowrelay.settings import configuration
from shadowrelay.settings.guarantees import promises
from shadowrelay.settings.warnings import warnings
from tests.kit.init_runs import EAST, MAIL, SOUTH, WEST, certificate, nodes, run
from tests.tidy.house import ROOT


def test_every_node_gets_what_it_needs_and_may_start(tmp_path: Path) -> None:
    result = run(tmp_path, *nodes(EAST, WEST, SOUTH), *MAIL, "--relay-from", "10.0.0.0/8", "--json")
    said = json.loads(result.output)
    east = configuration.load(tmp_path / "mx1.east.example" / "node.toml").settings

    assert {"mx1.east.example", "mx1.west.example", "mx1.south.example"} == said["warnings"].keys()
    assert {"receive connector inbound: any address of accepted_domains is accepted from anybody"} == {
        warning.partition(",")[0] for found in said["warnings"].values() for warning in found
    }
    assert ["198.51.100.11:2555", "mx1.south.example:2555"] == [str(peer.address) for peer in east.peers]
    assert [("inbound", "0.0.0.0:25", False), ("peers", "0.0.0.0:2555", True)] == [
        (each.name, str(each.listen), each.accept_xshadow) for each in east.receive_connectors
    ]
    assert ((), ()) == (east.receive_connectors[1].accepted_domains, east.receive_connectors[1].relay_from)
    assert east.transport.reject_message_on_shadow_failure
    assert ["store.corp.example:25"] == [str(hop) for hop in east.routes[0].next_hop]
    assert (ROOT / "shadowrelay/settings/shadowrelay.service").read_bytes() == (
        tmp_path / "mx1.west.example" / "shadowrelay.service"
    ).read_bytes()
    assert {"192.0.2.11", "198.51.100.11", "mx1.south.example"} == {
        command.partition("root@")[2].partition(":")[0] for command in said["next"] if "scp" in command
    }
    assert ("127.0.0.1:8025", "0.0.0.0:8026") == (str(east.admin.listen), str(east.admin.tls_listen))
    assert ["https://198.51.100.11:8026", "https://mx1.south.example:8026"] == [peer.admin for peer in east.peers]


def test_compose_runs_the_nodes_where_that_is_wanted(tmp_path: Path) -> None:
    result = run(tmp_path, *nodes(EAST, WEST), *MAIL, "--compose", "--json")
    west = (tmp_path / "mx1.west.example" / "compose.yaml").read_text()

    assert "    hostname: mx1.west.example\n" in west
    assert '    ports: ["2525:2525", "2555:2555", "8026:8026"]\n' in west
    assert [] == list(tmp_path.rglob("*.service"))
    (up,) = (command for command in json.loads(result.output)["next"] if "up" in command.split())
    assert up.endswith(" docker compose --file /etc/shadowrelay/compose.yaml up --detach")  # Compose 1.29 and 2 find it so


@pytest.mark.parametrize(
    ("addresses", "is_set"),
    [
        (("127.0.0.1:2601", "127.0.0.1:2602"), True),
        (("192.0.2.11:2601", "192.0.2.11:2602"), True),
        (("192.0.2.11:25", "198.51.100.11:25"), False),
        (("192.0.2.11:2601", "192.0.2.11:2602", "198.51.100.11:25"), False),  # the third can have the copies
    ],
)
def test_copies_on_one_machine_count_only_where_all_addresses_are_of_one_and_that_is_said(
    tmp_path: Path, addresses: tuple[str, ...], is_set: bool
) -> None:
    said = run(tmp_path, *nodes(*(f"n{number}.example,here,{address}" for number, address in enumerate(addresses))), *MAIL).output
    written = [configuration.load(path).settings.transport.shared_fate_is_redundant for path in tmp_path.glob("*/node.toml")]

    assert {is_set} == set(written)
    assert is_set == ("shared_fate_is_redundant = true is set, because all these addresses are of one machine" in said)


def test_several_nodes_of_a_machine_share_its_port_for_clients_and_what_is_common(tmp_path: Path) -> None:
    said = json.loads(run(tmp_path, *nodes(EAST, WEST), *MAIL, "--processes", "3", "--json").output)
    place = tmp_path / "mx1.east.example"
    found = [configuration.load(place / number / "node.toml").settings for number in ("1", "2", "3")]

    assert ["mx1-1.east.example", "mx1-2.east.example", "mx1-3.east.example"] == [one.server.name for one in found]
    assert {("0.0.0.0:25", True, False)} == {
        (str(one.receive_connectors[0].listen), one.receive_connectors[0].reuse_port, one.receive_connectors[0].accept_xshadow)
        for one in found
    }
    assert [2555, 2565, 2575] == [one.receive_connectors[1].listen.port for one in found]
    assert [8026, 8036, 8046] == [one.admin.tls_listen.port for one in found if one.admin.tls_listen is not None]
    assert 3 == len({one.server.data_directory for one in found}) == len({one.tracking.directory for one in found})
    assert {(place / "token", place / "peers.pem")} == {(one.admin.token_file, one.tls and one.tls.peer_authority) for one in found}
    assert 5 == len(found[0].peers) == len({str(peer.address) for peer in found[0].peers}) == len({peer.admin for peer in found[0].peers})
    assert "https://198.51.100.11:8036" in {peer.admin for peer in found[0].peers}
    assert not found[0].transport.shared_fate_is_redundant
    assert [f"scp -r {place}/. root@192.0.2.11:/etc/shadowrelay/"] == [
        step for step in said["next"] if "scp" in step and "192.0.2.11" in step
    ]
    assert ["on mx1.east.example: systemctl enable --now shadowrelay.target shadowrelay@1 shadowrelay@2 shadowrelay@3"] == [
        step for step in said["next"] if "enable" in step and "east" in step
    ]
    assert "Wants=shadowrelay@1.service shadowrelay@2.service shadowrelay@3.service" in (place / "shadowrelay.target").read_text()


def test_another_machine_changes_one_file_of_a_machine_with_several_nodes_and_all_of_them_load_it(tmp_path: Path) -> None:
    run(tmp_path, *nodes(EAST), *MAIL, "--processes", "2", "--witness", "w1.west.example,west,203.0.113.5")
    place = tmp_path / "mx1.east.example"
    limit = place / "machine.toml"
    limit.write_text(limit.read_text().replace("reuse_port = true", "reuse_port = true\nmax_sessions = 77"))
    said = json.loads(run(tmp_path, *nodes(SOUTH), "--json").output)
    found = [configuration.load(place / number / "node.toml").settings for number in ("1", "2")]

    assert [77, 77] == [one.receive_connectors[0].max_sessions for one in found]
    assert {str(limit), str(tmp_path / "w1.west.example" / "node.toml")} == set(said["files"]["differing"])
    assert ["on mx1-1.east.example: systemctl reload shadowrelay@1", "on mx1-2.east.example: systemctl reload shadowrelay@2"] == [
        step for step in said["next"] if "reload" in step and "east" in step
    ]


def test_a_machine_gets_another_node_or_loses_one_but_never_shares_a_port_that_it_had_alone(tmp_path: Path) -> None:
    run(tmp_path, *nodes(EAST), *MAIL, "--processes", "2")
    fewer_or_more = [json.loads(run(tmp_path, *nodes(EAST), *MAIL, "--processes", count, "--json").output) for count in ("3", "2")]
    alone = run(tmp_path, *nodes(EAST, WEST), *MAIL)

    assert [True, False] == [str(tmp_path / "mx1.east.example/3/node.toml") in said["files"]["new"] for said in fewer_or_more]
    assert [str(tmp_path / "mx1.east.example/3.removed")] == fewer_or_more[1]["files"]["removed"]
    assert f"shadowrelay drain --config {tmp_path}/mx1.east.example/3/node.toml" in fewer_or_more[1]["next"]
    assert (2, True) == (alone.exit_code, "mx1.east.example cannot change between one node and several" in alone.stderr)


def test_a_witness_has_no_clients_and_the_same_routes(tmp_path: Path) -> None:
    said = json.loads(run(tmp_path, *nodes(EAST, WEST), *MAIL, "--witness", "w1.south.example,south,203.0.113.5", "--json").output)
    gateway, witness = (configuration.load(tmp_path / name / "node.toml").settings for name in ("mx1.east.example", "w1.south.example"))

    assert [("peers", "0.0.0.0:2555", True, ())] == [
        (each.name, str(each.listen), each.accept_xshadow, each.accepted_domains) for each in witness.receive_connectors
    ]
    assert gateway.routes == witness.routes
    assert [False, True] == [any("This server is a witness" in line for line in promises(one)) for one in (gateway, witness)]
    assert "203.0.113.5:2555" in {str(peer.address) for peer in gateway.peers}
    assert {"mx1.east.example", "mx1.west.example"} == {peer.name for peer in witness.peers}
    assert [] == said["warnings"]["w1.south.example"]
    assert [] == [step for step in json.loads(run(tmp_path, "--json").output)["next"] if not step.startswith("nothing")]  # it is remembered


def test_compose_is_not_for_nodes_on_one_machine(tmp_path: Path) -> None:
    result = run(tmp_path, *nodes("a.example,here,127.0.0.1:2601", "b.example,here,127.0.0.1:2602"), *MAIL, "--compose")

    assert (2, True) == (result.exit_code, "shadowrelay lab up" in result.stderr)


def test_keys_and_tokens_are_for_their_owner_only_and_only_the_read_only_token_is_the_same(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run(tmp_path, *nodes(EAST, WEST), *MAIL)
    finally:
        os.umask(before)
    secret = [tmp_path / "authority.key", *tmp_path.glob("*/node.key"), *tmp_path.glob("*/token")]

    assert {0o600} == {stat.S_IMODE(path.stat().st_mode) for path in secret}
    assert 5 == len(secret)
    assert 2 == len({path.read_text() for path in tmp_path.glob("*/token")})
    assert 1 == len({path.read_text() for path in tmp_path.glob("*/read_only_token")})


def test_a_node_that_is_added_changes_nothing_of_the_others(tmp_path: Path) -> None:
    run(tmp_path, *nodes(EAST, WEST), *MAIL)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    result = run(tmp_path, *nodes(EAST, WEST, SOUTH), *MAIL)
    east = tmp_path / "mx1.east.example"
    (east / "node.toml.new").rename(east / "node.toml")

    assert before | {east / "node.toml": b""} == {path: path.read_bytes() for path in before} | {east / "node.toml": b""}
    assert f"differs  {east / 'node.toml'}" in result.output
    assert 2 == len(configuration.load(east / "node.toml").settings.peers)
    assert certificate(tmp_path, "mx1.south.example").issuer == certificate(tmp_path, "mx1.east.example").issuer
    certificate(tmp_path, "mx1.south.example").verify_directly_issued_by(x509.load_pem_x509_certificate((east / "peers.pem").read_bytes()))


def test_a_node_that_is_added_to_an_older_cluster_finds_it(tmp_path: Path) -> None:
    run(tmp_path, *nodes(EAST, WEST), *MAIL)
    for name, other in (("mx1.east.example", "198.51.100.11:2525"), ("mx1.west.example", "192.0.2.11:25")):
        path = tmp_path / name / "node.toml"
        text = path.read_text()
        before, _, rest = text.partition("\n# For the other nodes only")
        rest = "[[peers]]" + rest.partition("[[peers]]")[2]
        text = before.replace("accept_xshadow = false\n", "") + "\n" + re.sub(r'address = "[^"]*"', f'address = "{other}"', rest)
        path.write_text(text)
    result = run(tmp_path, *nodes(EAST, WEST, SOUTH), *MAIL)
    south = configuration.load(tmp_path / "mx1.south.example" / "node.toml").settings

    assert ["192.0.2.11:25", "198.51.100.11:2525"] == [str(peer.address) for peer in south.peers]
    assert [("inbound", True)] == [(each.name, each.accept_xshadow) for each in south.receive_connectors]
    assert 0 == result.exit_code
    east = configuration.load(tmp_path / "mx1.east.example" / "node.toml.new").settings
    assert ["198.51.100.11:2525", "mx1.south.example:25"] == [str(peer.address) for peer in east.peers]
    assert any("A connector for peers" in line for line in warnings(south))


def test_the_same_again_keeps_everything(tmp_path: Path) -> None:
    run(tmp_path, *nodes(EAST, WEST), *MAIL)
    said = json.loads(run(tmp_path, *nodes(EAST, WEST), *MAIL, "--json").output)

    assert ([], []) == (said["files"]["new"], said["files"]["differing"])
    assert [] == list(tmp_path.rglob("*.new"))


def test_a_renewal_makes_certificates_that_the_same_peers_trust(tmp_path: Path) -> None:
    run(tmp_path, *nodes(EAST, WEST), *MAIL)
    before = certificate(tmp_path, "mx1.east.example")
    result = run(tmp_path, *nodes(EAST, WEST), *MAIL, "--renew")
    after = certificate(tmp_path, "mx1.east.example")

    assert (0, True) == (result.exit_code, before.serial_number != after.serial_number)
    after.verify_directly_issued_by(x509.load_pem_x509_certificate((tmp_path / "authority.pem").read_bytes()))
    configuration.load(tmp_path / "mx1.east.example" / "node.toml")  # certificate and key belong together


def test_nodes_on_one_machine_have_their_own_ports_and_data(tmp_path: Path) -> None:
    run(tmp_path, *nodes("a.example,here,127.0.0.1:2601", "b.example,here,127.0.0.1:2602"), *MAIL)
    found = [configuration.load(tmp_path / name / "node.toml").settings for name in ("a.example", "b.example")]

    assert ["127.0.0.1:2601", "127.0.0.1:2602"] == [str(one.receive_connectors[0].listen) for one in found]
    assert 2 == len({str(one.admin.listen) for one in found})
    assert {tmp_path / "a.example" / "data", tmp_path / "b.example" / "data"} == {one.server.data_directory for one in found}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (nodes(EAST), "name two nodes at least"),
        (nodes(EAST, EAST), "two nodes have the name mx1.east.example"),
        (nodes(EAST, "other.example,west,192.0.2.11"), "two nodes have the address 192.0.2.11:25"),
        ([*nodes(EAST, WEST), "--processes", "99"], "runs 99 nodes; write a number from 1 to 16"),
        ([*nodes(EAST, WEST), "--processes", "2", "--compose"], "a container has one node"),
        (["--accept", "other.example", "--processes", "2"], "--processes: is for the machines that --node names in the same call"),
        ([*nodes(EAST, WEST), "--witness", "w,south,192.0.2.11:25"], "two nodes have the address 192.0.2.11:25"),
        (nodes(EAST, "mx1.west.example"), '--node mx1.west.example: is not a node; write "name,site"'),
        (nodes(EAST, "mx1.west.example,west,host:port"), "has the port 'port'"),
        (nodes(EAST, "mx1.west.example,west,host:0"), "has the port 0"),
        (nodes(EAST, "under_score!,west"), "is not a host name"),
        ([*nodes(EAST, WEST), "--relay-from", "10.0.0.1/8"], "--relay-from 10.0.0.1/8: is one address, not a network"),
        ([*nodes(EAST, WEST), "--accept", "corp example"], "--accept corp example: is not a domain"),
    ],
)
def test_a_mistake_is_named_with_its_remedy_and_nothing_is_written(tmp_path: Path, words: list[str], answer: str) -> None:
    result = run(tmp_path / "new", *words, *MAIL)

    assert (2, True) == (result.exit_code, answer in result.stderr), result.stderr
    assert not (tmp_path / "new").exists()


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    result = run(tmp_path / "new", *nodes("x", "y"), "--next-hop", "a b")

    assert 4 == len(result.stderr.splitlines()), result.stderr


def test_mail_needs_a_destination_that_is_not_a_node(tmp_path: Path) -> None:
    without = run(tmp_path / "new", *nodes(EAST, WEST), "--accept", "corp.example")
    circle = run(tmp_path / "new", *nodes(EAST, WEST), "--relay-from", "10.0.0.0/8", "--next-hop", "192.0.2.11")

    assert "--next-hop: name the server" in without.stderr
    assert "round in a circle" in circle.stderr


def test_a_damaged_authority_is_not_replaced(tmp_path: Path) -> None:
    run(tmp_path, *nodes(EAST, WEST), *MAIL)
    (tmp_path / "authority.key").write_text("no key")
    result = run(tmp_path, *nodes(EAST, WEST, SOUTH), *MAIL)

    assert (2, True) == (result.exit_code, "authority.key cannot be read" in result.stderr)
    assert not (tmp_path / "mx1.south.example").exists()


def test_it_asks_at_a_terminal_and_says_what_to_name_elsewhere(tmp_path: Path) -> None:
    wrong = {"a b": "a", "a.example": "is the name of a node above", "192.0.2.11:x": "has the port 'x'", "corp/example": "corp/example ",
        "10.0.0.1/8": "not a network", "192.0.2.11": "would go round in a circle"}  # fmt: skip
    answers = (
        *("", "a b", "a.example", "east", "192.0.2.11:x", "192.0.2.11", "", "a.example", "b.example", "west", "192.0.2.11", "", ""),
        *("corp/example", "corp.example", "10.0.0.1/8", "10.0.0.0/8", "", "192.0.2.11", "store.example"),
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "shadowrelay", "init", str(tmp_path / "cluster")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    asked = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
    output, _ = asked.communicate(timeout=240)
    os.close(ours)
    os.close(theirs)
    said = output.decode()
    assert 0 == asked.returncode, said
    found = configuration.load(tmp_path / "cluster" / "a.example" / "node.toml").settings
    command[-1] += "-elsewhere"
    elsewhere = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False)

    assert 10 == said.count("Error: "), said
    assert [] == [(given, remedy) for given, remedy in wrong.items() if remedy not in said], said
    assert ("b.example:2555", "192.0.2.11:2555") == (
        str(found.peers[0].address),
        str(configuration.load(tmp_path / "cluster" / "b.example" / "node.toml").settings.peers[0].address),
    )
    assert (2, True) == (elsewhere.returncode, "name at least two nodes" in elsewhere.stderr)
