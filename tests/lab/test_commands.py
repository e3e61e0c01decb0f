"""What the commands say when they cannot work, and the command lines and names that they are made of."""

from pathlib import Path

import pytest

from shadowrelay.lab.disturbance import cut, interface_of
from shadowrelay.lab.state import State
from shadowrelay.lab.topology import LabError, machine, machines_of, pairs
from tests.lab.conftest import a_program, run

COMMANDS = [
    ["up"], ["down"], ["status"], ["send"], ["verify"], ["kill", "mx1.east"], ["start", "mx1.east"], ["wipe", "mx1.east"],
    ["pause", "mx1.east"], ["unpause", "mx1.east"], ["cut", "east", "west"], ["heal"], ["slow", "east"], ["fill-disk", "mx1.east"],
    ["save-database", "mx1.east"], ["restore-old-database", "mx1.east"], ["roll"], ["defer", "on"], ["report"],
    ["report", "--watched"],
]  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project directory, and a machine without any program."""
    (tmp_path / "docker-compose.yml").write_text("services: {}\n")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_without_docker_every_command_says_what_to_install(project: Path, arguments: list[str]) -> None:
    code, error = run(project, *arguments)

    assert (1, True) == (code, "docker is not installed" in error)


@pytest.mark.parametrize("arguments", [each for each in COMMANDS if each[0] not in ("up", "down")], ids=lambda each: each[0])
def test_when_it_is_not_up_every_command_says_how_to_start_it(project: Path, arguments: list[str]) -> None:
    a_program(project / "bin", "docker", 'case "$1" in info) echo 28 ;; ps) ;; *) exit 1 ;; esac')

    code, error = run(project, *arguments)

    assert (1, True) == (code, "the lab is not up: start it with `shadowrelay lab up`" in error)


def test_an_engine_that_does_not_answer_is_told_with_its_reason(project: Path) -> None:
    a_program(project / "bin", "docker", "echo 'permission denied' >&2; exit 1")

    assert (1, True) == ((answer := run(project, "status"))[0], "does not answer (permission denied)" in answer[1])


def test_a_directory_without_the_file_is_told(tmp_path: Path) -> None:
    assert (1, True) == ((answer := run(tmp_path, "status"))[0], "there is no docker-compose.yml" in answer[1])


def test_a_wait_without_a_unit_is_a_usage_error(project: Path) -> None:
    assert 2 == run(project, "verify", "--wait", "20")[0]


def test_nodes_are_known_by_both_of_their_names() -> None:
    assert machine("mx1.east") is machine("MX1.east.example")
    with pytest.raises(LabError, match=r"there is no node mx3\.east; the lab has mx1\.east"):
        machine("mx3.east")


def test_places_are_sites_or_nodes() -> None:
    assert ["mx1.west", "mx2.west"] == [one.short for one in machines_of("west")]
    assert [("mx1.east", "mx1.west"), ("mx1.east", "mx2.west")] == [(left.short, right.short) for left, right in pairs("mx1.east", "west")]


@pytest.mark.parametrize(("one", "other"), [("east", "east"), ("mx1.east", "mx1.east"), ("east", "mx2.east")])
def test_what_is_not_apart_cannot_be_cut(one: str, other: str) -> None:
    with pytest.raises(LabError, match="overlap: name two sites"):
        pairs(one, other)


def test_a_cut_drops_both_ways() -> None:
    assert [
        ("iptables", "--append", "INPUT", "--source", "10.83.3.21", "--jump", "DROP"),
        ("iptables", "--append", "OUTPUT", "--destination", "10.83.3.21", "--jump", "DROP"),
    ] == cut(["10.83.3.21"])


def test_an_interface_is_found_by_its_whole_address() -> None:
    listing = (
        "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever\n"
        "35: eth1    inet 10.83.3.110/24 brd 10.83.3.255 scope global eth1\\       valid_lft forever\n"
        "37: eth2    inet 10.83.3.11/24 brd 10.83.3.255 scope global eth2\\       valid_lft forever\n"
    )

    assert ("eth2", "") == (interface_of(listing, "10.83.3.11"), interface_of(listing, "10.83.3.1"))


def test_a_new_lab_remembers_nothing_but_the_last_report(tmp_path: Path) -> None:
    state = State(tmp_path / ".lab")
    state.make()
    first = (state.directory / "token").read_text()
    state.sent.write_text("{}\n")
    state.report.mkdir()

    state.make()

    assert ([], True) == (state.injected_lines(), state.report.is_dir())
    assert first != (state.directory / "token").read_text()
    assert (state.directory / "tls" / "mx2.west" / "node.pem").is_file()
