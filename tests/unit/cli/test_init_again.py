"""`shadowrelay init` in the directory of a cluster that lives: one argument suffices, and what it says to do is about this call only."""

import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from shadowrelay.settings import configuration
from shadowrelay.settings.certificates import refused_by_newer
from tests.kit.init_runs import EAST, MAIL, SOUTH, WEST, certificate, nodes, run
from tests.kit.old_authority import write_old_certificates

NAMES = ("mx1.east.example", "mx1.west.example")
RENEW_AUTHORITY = ("--renew", "--authority")


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    assert 0 == run(tmp_path, *nodes(EAST, WEST), *MAIL, "--boundary", "coast", "--relay-from", "10.0.0.0/8").exit_code
    return tmp_path


def again(directory: Path, *words: str) -> tuple[dict[str, list[str]], list[str]]:
    """Names of the files, below the cluster's directory, and what to do next."""
    result = run(directory, *words, "--json")
    assert 0 == result.exit_code, result.output
    said = json.loads(result.output)
    files = {kind: [str(Path(path).relative_to(directory)) for path in paths] for kind, paths in said["files"].items()}
    return files, said["next"]


def authorities(directory: Path, name: str) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates((directory / name / "peers.pem").read_bytes())


def accepted(directory: Path) -> None:
    """As the operator does who puts the new configurations into force."""
    for path in directory.glob("*/*.new"):
        path.rename(path.with_suffix(""))


def test_a_renewal_needs_no_other_argument_and_says_which_files_go_where(cluster: Path) -> None:
    before = certificate(cluster, NAMES[0])
    files, steps = again(cluster, "--renew")

    assert before.serial_number != certificate(cluster, NAMES[0]).serial_number
    assert [] == files["differing"]
    assert {f"{name}/node.{kind}" for name in NAMES for kind in ("pem", "key")} == set(files["new"])
    assert [
        f"scp {cluster}/mx1.east.example/node.pem {cluster}/mx1.east.example/node.key root@192.0.2.11:/etc/shadowrelay/",
        "on mx1.east.example: systemctl reload shadowrelay",
        f"scp {cluster}/mx1.west.example/node.pem {cluster}/mx1.west.example/node.key root@198.51.100.11:/etc/shadowrelay/",
        "on mx1.west.example: systemctl reload shadowrelay",
        "on one:  shadowrelay status --config /etc/shadowrelay/node.toml",
    ] == steps


def test_what_it_was_told_is_kept_and_an_option_changes_only_what_it_names(cluster: Path) -> None:
    again(cluster, "--next-hop", "other.corp.example")
    accepted(cluster)
    east = configuration.load(cluster / NAMES[0] / "node.toml").settings

    assert ("coast", ["other.corp.example:25"]) == (east.server.boundary, [str(hop) for hop in east.routes[0].next_hop])
    assert (("corp.example",), 1) == (east.receive_connectors[0].accepted_domains, len(east.receive_connectors[0].relay_from))


def test_to_add_a_node_one_argument_suffices_and_the_others_learn_of_it_first(cluster: Path) -> None:
    files, steps = again(cluster, "--node", SOUTH)
    first_for_south = next(number for number, step in enumerate(steps) if "mx1.south.example" in step)
    last_for_others = max(number for number, step in enumerate(steps) if "systemctl reload" in step)

    assert [f"{name}/node.toml" for name in NAMES] == files["differing"]
    assert last_for_others < first_for_south
    assert [] == [step for step in steps if "scp -r" in step and "south" not in step]  # nothing old goes over what is in use
    assert f"scp {cluster}/mx1.east.example/node.toml.new root@192.0.2.11:/etc/shadowrelay/" in steps
    assert f"here: mv {cluster}/mx1.east.example/node.toml.new {cluster}/mx1.east.example/node.toml" in steps
    assert [] == [step for step in steps if "on each" in step]
    accepted(cluster)
    assert ([], ["nothing: every node has what this call would write"]) == (again(cluster)[0]["new"], again(cluster)[1])


def test_a_node_that_goes_is_drained_forgotten_and_in_no_file_any_more(cluster: Path) -> None:
    again(cluster, "--node", SOUTH)
    accepted(cluster)
    files, steps = again(cluster, "--remove", "mx1.south.example")
    accepted(cluster)

    assert (["mx1.south.example.removed"], False) == (files["removed"], (cluster / "mx1.south.example").exists())
    assert [] == [path for path in cluster.glob("mx1*t.example/*") if "south" in path.read_text()]
    assert [True, True, True, True] == [
        words in step
        for words, step in zip(("drain", "disable --now", "peers list", "peers forget mx1.south.example"), steps, strict=False)
    ]
    assert ["nothing: every node has what this call would write"] == again(cluster)[1]


def test_the_directory_that_a_node_works_in_stays_when_it_goes(tmp_path: Path) -> None:
    here = [f"{name}.example,{name},127.0.0.1:{port}" for name, port in (("a", 2601), ("b", 2602), ("c", 2603))]
    assert 0 == run(tmp_path, *nodes(*here), *MAIL).exit_code
    (tmp_path / "c.example" / "data").mkdir()
    files, steps = again(tmp_path, "--remove", "c.example")

    assert (["c.example"], True) == (files["removed"], (tmp_path / "c.example" / "data").exists())
    assert f"shadowrelay drain --config {tmp_path}/c.example/node.toml" == steps[0]
    assert [f"shadowrelay peers forget c.example --config {tmp_path}/{name}.example/node.toml" for name in "ab"] == [steps[3], steps[5]]


def test_a_node_that_is_unknown_cannot_go_and_two_must_stay(cluster: Path) -> None:
    unknown, alone = run(cluster, "--remove", "mx9.example"), run(cluster, "--remove", NAMES[0])

    assert (2, True) == (unknown.exit_code, "--remove mx9.example: is not a node of this cluster; its nodes: mx1.east" in unknown.stderr)
    assert (2, True) == (alone.exit_code, "name two nodes at least" in alone.stderr)
    assert (cluster / NAMES[0]).exists()


def test_a_directory_of_an_earlier_version_is_named_once_more(cluster: Path) -> None:
    (cluster / "cluster.toml").unlink()
    without = run(cluster, "--renew")
    files, _ = again(cluster, *nodes(EAST, WEST), *MAIL, "--boundary", "coast", "--relay-from", "10.0.0.0/8", "--renew")

    assert (2, True) == (without.exit_code, "cluster.toml is missing" in without.stderr)
    assert [] == files["differing"]


def test_a_damaged_memory_is_named_with_its_remedy(cluster: Path) -> None:
    for damage, words in (("nodes = 3\n", "nodes is not what init writes there"), ("=", "is not TOML"), ("pass = true", "pass is not")):
        (cluster / "cluster.toml").write_text(damage)
        result = run(cluster, "--renew")

        assert (2, True, True) == (result.exit_code, words in result.stderr, "move it away" in result.stderr)


def test_another_authority_comes_in_three_steps_and_each_node_trusts_each_certificate_in_use(cluster: Path) -> None:
    write_old_certificates(cluster, NAMES)
    old = x509.load_pem_x509_certificate((cluster / "authority.pem").read_bytes())
    signed_by_old = certificate(cluster, NAMES[0])

    files, steps = again(cluster, *RENEW_AUTHORITY)
    assert {f"{name}/peers.pem" for name in NAMES} == set(files["new"])
    assert signed_by_old == certificate(cluster, NAMES[0])
    both = authorities(cluster, NAMES[0])
    assert (2, True) == (len(both), old in both)
    assert steps[-1].startswith("when all nodes have loaded both authorities, the next step: shadowrelay init")
    files, _ = again(cluster, "--node", SOUTH)  # during the change
    certificate(cluster, "mx1.south.example").verify_directly_issued_by(old)
    accepted(cluster)

    files, steps = again(cluster, *RENEW_AUTHORITY)
    new = x509.load_pem_x509_certificate((cluster / "authority.pem").read_bytes())
    for name in (*NAMES, "mx1.south.example"):
        certificate(cluster, name).verify_directly_issued_by(new)
        assert {old, new} == set(authorities(cluster, name))
    assert "the last step" in steps[-1]

    again(cluster, *RENEW_AUTHORITY)
    assert [[new]] * 2 == [authorities(cluster, name) for name in NAMES]
    assert ["authority.key", "authority.pem"] == sorted(path.name for path in cluster.glob("authority*"))
    assert None is refused_by_newer(configuration.load(cluster / NAMES[0] / "node.toml").settings)


def test_a_step_that_was_interrupted_is_taken_again(cluster: Path) -> None:
    again(cluster, *RENEW_AUTHORITY)
    old = (cluster / NAMES[1] / "node.pem").read_bytes()
    old_key = (cluster / NAMES[1] / "node.key").read_bytes()
    again(cluster, *RENEW_AUTHORITY)
    (cluster / NAMES[1] / "node.pem").write_bytes(old)  # as if it had ended before this node
    (cluster / NAMES[1] / "node.key").write_bytes(old_key)
    again(cluster, *RENEW_AUTHORITY)

    new = x509.load_pem_x509_certificate((cluster / "authority.pem").read_bytes())
    certificate(cluster, NAMES[1]).verify_directly_issued_by(new)
    assert 2 == len(authorities(cluster, NAMES[1]))


def test_an_authority_that_somebody_added_stays_trusted(cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    run(other, *nodes(EAST, WEST), *MAIL)
    added = (other / "authority.pem").read_bytes()
    with (cluster / NAMES[0] / "peers.pem").open("ab") as file:
        file.write(added)
    for _ in range(3):
        again(cluster, *RENEW_AUTHORITY)

    assert x509.load_pem_x509_certificate(added) in authorities(cluster, NAMES[0])
    assert [2, 1] == [len(authorities(cluster, name)) for name in NAMES]


def test_what_was_revoked_reaches_all_nodes_and_a_stolen_token_is_another_one_everywhere(cluster: Path) -> None:
    west = cluster / NAMES[1]
    stolen, read_only = (west / "node.pem").read_bytes(), (west / "read_only_token").read_text()
    by_hand = b"# of east alone: " + b"0" * 64 + b"\n"
    (cluster / NAMES[0] / "revoked.pem").write_bytes(by_hand)
    (cluster / "revoked.pem").write_bytes(stolen)
    for path in (west / "node.pem", west / "node.key", west / "token", *cluster.glob("*/read_only_token")):
        path.unlink()
    files, steps = again(cluster)

    assert {f"{name}/{file}" for name in NAMES for file in ("revoked.pem", "read_only_token")} < set(files["new"])
    assert [by_hand + stolen, True] == [(cluster / NAMES[0] / "revoked.pem").read_bytes(), stolen in (west / "revoked.pem").read_bytes()]
    assert [False, 1] == [
        read_only == (west / "read_only_token").read_text(),
        len({path.read_text() for path in cluster.glob("*/read_only_token")}),
    ]
    sent = {f"{cluster}/mx1.east.example/{file}" for file in ("read_only_token", "revoked.pem")}
    assert {"scp", "root@192.0.2.11:/etc/shadowrelay/"} | sent == set(steps[0].split())
    assert [
        "on mx1.east.example: chown -R root:shadowrelay /etc/shadowrelay && chmod -R g+rX /etc/shadowrelay",
        "on mx1.east.example: systemctl reload shadowrelay",
        "on mx1.east.example: systemctl restart shadowrelay and wait until `shadowrelay status` says that new mail is redundant, "
        "then the next node",
    ] == steps[1:4]
    other = certificate(cluster, NAMES[0]).public_bytes(serialization.Encoding.PEM)
    with (cluster / "revoked.pem").open("ab") as file:
        file.write(other)
    again(cluster, "--node", SOUTH)
    found = [(cluster / name / "revoked.pem").read_bytes() for name in (*NAMES, "mx1.south.example")]
    assert [(1, 1)] * 2 == [(each.count(stolen), each.count(other)) for each in found[1:]]
    assert (by_hand in found[0], other in found[0]) == (True, True)
    accepted(cluster)
    assert ["nothing: every node has what this call would write"] == again(cluster)[1]


def test_an_authority_needs_a_renewal(cluster: Path) -> None:
    result = run(cluster, "--authority")

    assert (2, True) == (result.exit_code, "--authority: needs --renew" in result.stderr)


def test_check_names_an_authority_that_newer_pythons_refuse(cluster: Path) -> None:
    loaded = configuration.load(cluster / NAMES[0] / "node.toml").settings
    assert None is refused_by_newer(loaded)
    write_old_certificates(cluster, NAMES)
    found = configuration.warnings(configuration.load(cluster / NAMES[0] / "node.toml").settings)
    (warning,) = [one for one in found if "accepted_domains" not in one]

    assert warning.startswith("tls.peer_authority: this authority is refused by Python 3.13 and later: path length given without")
    assert "init DIRECTORY --renew --authority" in warning
