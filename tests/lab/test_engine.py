"""What is told to the programs of Docker, and in which environment: a `docker` of our own in PATH writes it down."""

import json
import os
from pathlib import Path

import pytest

from shadowrelay.lab.engine import Engine
from shadowrelay.lab.state import State
from shadowrelay.lab.topology import LabError
from tests.lab.conftest import a_program, run

TELL = 'case "$*" in ps*) /bin/cat "$LISTING" ;; *) echo "$*" >>"$TOLD"; /usr/bin/env >"$TOLD.env" ;; esac'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project directory named Main.Two, a Docker without containers, and no other programs."""
    directory = tmp_path / "Main.Two"
    directory.mkdir()
    (directory / "docker-compose.yml").write_text("services: {}\n")
    (tmp_path / "bin").mkdir()
    a_program(tmp_path / "bin", "docker", TELL)
    (tmp_path / "listing").touch()
    for name, value in {"PATH": tmp_path / "bin", "LISTING": tmp_path / "listing", "TOLD": tmp_path / "told"}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("COMPOSE_PROJECT_NAME", "LAB_NET", "LAB_QUEUE_SIZE", "DOCKER_BUILDKIT"):
        monkeypatch.delenv(name, raising=False)
    return directory


def there_is(project: Path, directory: Path, name: str = "maintwo") -> None:
    """A container of that directory's lab."""
    with (project.parent / "listing").open("a", encoding="utf-8") as file:
        file.write(f"abc123|mx1.east|False|{name}|{directory}\n")


def told(project: Path) -> list[str]:
    file = project.parent / "told"
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def environment(project: Path) -> dict[str, str]:
    lines = (project.parent / "told.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize("command", ["up", "down"])
def test_a_lab_of_the_same_name_elsewhere_is_left_alone(project: Path, command: str) -> None:
    there_is(project, Path("/elsewhere/Main.Two"))
    code, error = run(project, command)

    assert (1, True) == (code, "containers of /elsewhere/Main.Two have the same project name, maintwo" in error)
    assert [] == [line for line in told(project) if "down" in line or "up" in line or "kill" in line]


def test_a_lab_of_another_name_elsewhere_is_nobodys_concern(project: Path) -> None:
    there_is(project, Path("/elsewhere/other"), "other")
    Engine(project).compose("build", "dns")

    assert "compose --project-name maintwo" in told(project)[-1]


def test_the_name_is_that_of_the_containers_that_are_there(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", "mine")
    assert "mine" == Engine(project).project()
    there_is(project, project, "earlier")

    assert "earlier" == Engine(project).project()


def test_the_name_may_stand_where_compose_reads_it(project: Path) -> None:
    (project / ".env").write_text('LAB_NET=10.9\nCOMPOSE_PROJECT_NAME="Fromfile"\n')

    assert "fromfile" == Engine(project).project()


def test_a_checkout_by_a_symbolic_link_is_the_same_checkout(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = project.parent / "link"
    link.symlink_to(project)
    monkeypatch.chdir(link)
    monkeypatch.setenv("PWD", str(link))
    there_is(project, link)  # what Compose 2 writes when it is called by hand there
    engine = Engine(Path())
    engine.compose("build", "dns")

    assert (str(project), {"mx1.east": "abc123"}) == (environment(project)["PWD"], engine.containers())


def test_all_of_an_earlier_name_goes_one_container_after_the_other(project: Path) -> None:
    there_is(project, project, "earlier")
    there_is(project, Path("/elsewhere"), "other")
    there_is(project, project, "earlier")
    kept = Engine(project).remove()
    *removals, down = [line for line in told(project) if line != "info --format {{.ServerVersion}}" and "version" not in line]

    assert ([], ["rm --force abc123"] * 2) == (kept, removals)
    assert "compose --project-name earlier --profile" in down
    assert down.endswith("down --volumes --remove-orphans")


@pytest.mark.parametrize(("words", "is_harmless"), [("network x has active endpoints", True), ("no space left on device", False)])
def test_a_network_that_docker_keeps_keeps_no_volume(project: Path, words: str, is_harmless: bool) -> None:
    fails = f"*down*) echo '{words}' >&2; exit 1 ;; volume\\ ls*) echo v1 v2 ;; network\\ ls*--format*) echo main_link ;;"
    a_program(project.parent / "bin", "docker", TELL.replace("*) echo", f"{fails} *) echo", 1))
    if not is_harmless:
        with pytest.raises(LabError, match=words):
            Engine(project).remove()
        return

    assert ["main_link"] == Engine(project).remove()
    assert "volume rm v1 v2" in told(project)


def test_a_colon_in_the_path_is_refused(project: Path) -> None:
    project = project.rename(project.parent / "a:b")
    code, error = run(project, "status")

    assert (1, True) == (code, "has a colon in its path" in error)


def test_one_builder_for_both_generations_of_compose_unless_another_is_wanted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Engine(project).compose("build", "dns")
    assert ("0", "0") == (environment(project)["COMPOSE_DOCKER_CLI_BUILD"], environment(project)["DOCKER_BUILDKIT"])
    monkeypatch.setenv("DOCKER_BUILDKIT", "1")
    Engine(project).compose("build", "dns")

    assert "1" == environment(project)["DOCKER_BUILDKIT"]


def test_addresses_and_sizes_are_remembered_until_the_lab_ends(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_NET", "10.99")
    state = State(project / ".lab")
    state.make()
    monkeypatch.delenv("LAB_NET")
    monkeypatch.setenv("LAB_QUEUE_SIZE", "1g")
    engine = Engine(project, state.settings)
    engine.compose("run", "sla")
    assert ("10.99", None) == (environment(project).get("LAB_NET"), environment(project).get("LAB_QUEUE_SIZE"))
    state.clear()
    engine.compose("run", "sla")

    assert (None, "1g") == (environment(project).get("LAB_NET"), environment(project).get("LAB_QUEUE_SIZE"))


def test_a_directory_that_docker_made_of_the_token_is_healed(project: Path) -> None:
    (project / ".lab" / "token").mkdir(parents=True)
    (project / ".lab" / "tls" / "mx1.east").mkdir(parents=True)
    code, error = run(project, "down")

    assert (0, False, False) == (code, (project / ".lab" / "token").exists(), "Traceback" in error)


def test_what_cannot_be_healed_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    (project / ".lab" / "token").mkdir(parents=True)
    monkeypatch.setattr("shadowrelay.lab.state.shutil.rmtree", refused)
    code, error = run(project, "down")

    assert (1, True) == (code, f"remove it (sudo rm -r {project / '.lab'})" in error)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "--profile", "nonsense"), "there are prometheus, grafana, spark"),
        (("kill", "mx9"), "the lab has mx1.east"),
        (("cut", "east", "nowhere"), "the lab has mx1.east"),
        (("cut", "east", "mx1.east"), "overlap: name two sites"),
        (("slow", "mx9"), "the lab has mx1.east"),
        (("slow", "east", "west", "--rate", "fast"), "64kbit"),
    ],
)
def test_what_there_is_not_is_a_usage_error_and_changes_nothing(project: Path, arguments: tuple[str, ...], words: str) -> None:
    code, error = run(project, *arguments)

    assert (2, True) == (code, words in error)
    assert ([], False) == (told(project), (project / ".lab").exists())


def test_a_scenario_that_there_is_not_is_a_usage_error(project: Path) -> None:
    code, error = run(project, "scenario", "nonsense")

    assert (2, True) == (code, "there is no scenario nonsense; there are new-database" in error)


def test_a_command_that_changes_the_lab_is_refused_while_another_does(project: Path) -> None:
    there_is(project, project)
    with State(project / ".lab").turn.taken("scenario sites-apart"):
        answers = {command[0]: run(project, *command) for command in (["heal"], ["kill", "mx1.east"], ["up"], ["down"])}

    assert {1} == {code for code, _ in answers.values()}
    words = f"another command is changing this lab: shadowrelay lab scenario sites-apart (process {os.getpid()})"
    assert [] == [command for command, (_, error) in answers.items() if words not in error]


def test_a_lock_goes_with_its_command(project: Path) -> None:
    turn = State(project / ".lab").turn
    with pytest.raises(KeyboardInterrupt), turn.taken("heal"):
        raise KeyboardInterrupt
    with State(project / ".lab").turn.taken("down"):
        pass
    with pytest.raises(LabError, match="shadowrelay lab down"), turn.taken("down"), State(project / ".lab").turn.taken("up"):
        pass


def test_the_settings_of_a_lab_are_plain(tmp_path: Path) -> None:
    state = State(tmp_path / ".lab")
    state.make()

    assert {"LAB_NET", "LAB_QUEUE_SIZE"} == set(json.loads((state.directory / "settings.json").read_text(encoding="utf-8")))
