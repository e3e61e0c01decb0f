import errno
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shadowrelay import __version__
from shadowrelay.cli import main
from shadowrelay.cli.main import app
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.settings.configuration import LoadedSettings, example
from tests.kit.sealed import a_sealed_directory

NODE = '[server]\nname = "mx1.east.example"\nsite = "east"\n[[receive_connectors]]\nname = "in"\nlisten = "127.0.0.1:0"\n'


@pytest.fixture
def node_file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    places = 'data_directory = "data"\n', '[tracking]\ndirectory = "tracking"\n'
    path.write_text(NODE.replace("[[", f"{places[0]}{places[1]}[["), encoding="utf-8")
    return path


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the lazily imported modules are, by name."""
    fakes: dict[str, Any] = {}
    monkeypatch.setattr(main, "import_module", fakes.__getitem__)
    return fakes


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_version_is_the_packages() -> None:
    assert (0, f"shadowrelay {__version__}\n") == ((result := run("--version")).exit_code, result.output)


def test_a_reader_that_has_seen_enough_ends_a_command_in_silence() -> None:
    words = [sys.executable, "-m", "shadowrelay", "check", "--example"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()  # as `| head` does

        assert b"" == command.stderr.read()


def test_the_help_names_every_command_and_the_exit_codes() -> None:
    output = run("--help").output

    assert [] == [word for word in ("serve", "check", "demo", "queue", "messages", "peers", "Exit codes") if word not in output]


@pytest.mark.parametrize("group", [(), ("queue",), ("messages",), ("peers",), ("safety-net",), ("lab",), ("sla",)])
def test_the_help_fits_a_terminal_and_cuts_no_command_short(group: tuple[str, ...]) -> None:
    output = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*group, "--help"], prog_name="shadowrelay").output

    assert [] == [line for line in output.splitlines()[1:] if len(line) > 80 or line.endswith("...")]


def test_help_shows_brackets_and_no_type_of_a_flag() -> None:
    output = run("queue", "list", "--help").output + run("messages", "export", "--help").output

    assert (True, True, False) == ("http://127.0.0.1:8025" in output, "[ID.eml]" in output, "<bool>" in output)


def test_the_tab_key_completes_commands() -> None:
    asked = {"_SHADOWRELAY_COMPLETE": "complete_bash", "COMP_WORDS": "shadowrelay queue li", "COMP_CWORD": "2"}

    assert "list" == CliRunner(env=asked).invoke(app, [], prog_name="shadowrelay").output.strip()
    assert "--install-completion" in run("--help").output


@pytest.mark.parametrize("words", [("check",), ("serve",), ("nonsense",), ("check", "--nonsense"), ("messages", "show")])
def test_wrong_usage_ends_with_2(words: tuple[str, ...]) -> None:
    assert 2 == run(*words).exit_code


def test_check_shows_each_value_with_its_origin_and_the_warnings(node_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT", "2s")

    result, whole = run("check", "--config", node_file), run("check", "--config", node_file, "--all")

    rows, all_rows = ([re.split(r"\s{2,}", line.strip()) for line in each.output.splitlines()] for each in (result, whole))
    assert (0, 0) == (result.exit_code, whole.exit_code)
    for found in (rows, all_rows):
        assert ["server.site", "file", "east"] in found
        assert ["transport.shadow_timeout", "environment", "2s"] in found
    assert ["tracking.max_file_size", "default", "10MB"] in all_rows
    assert ["transport.shadow_redundancy_enabled", "default", "true"] in all_rows
    assert ([], True) == ([row for row in rows if "default" in row], "settings have their defaults: --all shows them" in result.output)
    assert "is valid, 2 warnings" in result.output
    assert "warning: no peer of boundary default may hold copies" in result.output


def test_check_as_json_is_one_document(node_file: Path) -> None:
    document = json.loads(run("check", "--config", node_file, "--json").output)

    assert (True, [], 2) == (document["is_valid"], document["errors"], len(document["warnings"]))
    assert {"value": "3h", "origin": "default"} == document["settings"]["transport.shadow_resubmit_time_span"]


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not everybody may make the default directory, and `check` says so."""
    monkeypatch.setenv("SHADOWRELAY_SERVER__DATA_DIRECTORY", str(tmp_path / "data"))


@pytest.mark.usefixtures("own_data")
def test_check_says_which_sites_and_servers_the_boundary_spans_and_whether_somebody_named_it(node_file: Path) -> None:
    peer = '[[peers]]\nname = "mx1.west.example"\nsite = "west"\naddress = "mx1.west.example:2525"\n'
    node_file.write_text(NODE + peer, encoding="utf-8")
    plain, as_json = run("check", "--config", node_file).output, run("check", "--config", node_file, "--json").output

    assert (
        "boundary default, which the configuration does not name, spans 2 sites: east (mx1.east.example), west (mx1.west.example)" in plain
    )
    sites = {"east": ["mx1.east.example"], "west": ["mx1.west.example"]}
    assert {"name": "default", "sites": sites} == json.loads(as_json)["boundary"]

    node_file.write_text(NODE.replace("[server]", '[server]\nboundary = "corp"'), encoding="utf-8")
    assert "boundary corp spans 1 site: east (mx1.east.example)" in run("check", "--config", node_file).output


@pytest.mark.usefixtures("own_data")
def test_check_of_a_wrong_file_lists_every_problem_and_ends_with_2(node_file: Path) -> None:
    node_file.write_text(NODE + "nope = 1\n[transport]\nshadow_timeout = 5\n", encoding="utf-8")

    plain, as_json = run("check", "--config", node_file), run("check", "--config", node_file, "--json")

    assert (2, 2) == (plain.exit_code, as_json.exit_code)
    assert ["transport.shadow_timeout", "receive_connectors[0].nope"] == re.findall(r"(?m)^shadowrelay: \S+: ([^:]+): ", plain.stderr)
    assert (False, 2) == ((document := json.loads(as_json.output))["is_valid"], len(document["errors"]))


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return a_sealed_directory(tmp_path / "sealed", monkeypatch)


def problem_of(key: str, directory: Path, node_file: Path) -> tuple[int, str]:
    """With the data directory, or the token, there."""
    value = directory if key == "server.data_directory" else directory / "token"
    variable = f"SHADOWRELAY_{key.upper().replace('.', '__')}"
    result = CliRunner(env={variable: str(value)}).invoke(app, ["check", "--config", str(node_file)])
    return result.exit_code, result.stderr


@pytest.mark.parametrize("key", ["server.data_directory", "admin.token_file"])
def test_check_tries_the_places_that_a_node_needs(key: str, node_file: Path, sealed: Path) -> None:
    (node_file.parent / "file").write_text("", encoding="utf-8")
    places = {
        sealed: f"{sealed} cannot be written (Permission denied)",
        sealed / "a" / "b": f"{sealed / 'a' / 'b'} cannot be made in {sealed} (Permission denied)",
        node_file.parent / "file" / "a": f"{node_file.parent / 'file'} is not a directory",
    }

    variable = f"SHADOWRELAY_{key.upper().replace('.', '__')}"
    for place, reason in places.items():
        code, said = problem_of(key, place, node_file)
        assert (2, True) == (code, said.startswith(f"shadowrelay: environment {variable}: {key}: "))
        assert f"{reason}; name a " in said
    assert (0, "") == problem_of(key, node_file.parent / "new" / "deep", node_file)
    assert not (node_file.parent / "new").exists(), "check makes nothing"


def test_check_only_warns_of_places_without_which_a_node_starts(node_file: Path, sealed: Path) -> None:
    given = {"SHADOWRELAY_TRACKING__DIRECTORY": str(sealed / "log"), "SHADOWRELAY_SHIPPING__TARGET": str(sealed / "shipped")}
    result = CliRunner(env=given).invoke(app, ["check", "--config", str(node_file)])

    assert 0 == result.exit_code
    for key, consequence in (("tracking.directory", "mail is relayed without evidence"), ("shipping.target", "nothing is shipped")):
        reason = rf"cannot be made in {sealed} \(Permission denied\)"
        assert re.search(rf"(?m)^warning: {key}: \S+ {reason}: {consequence}; name a directory", result.output)


def test_a_full_disk_is_no_error_of_the_configuration(node_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(dir: Path) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)

    assert 0 == run("check", "--config", node_file).exit_code


def test_check_prints_the_example() -> None:
    assert example() == run("check", "--example").output


def test_serve_runs_the_node_with_the_loaded_settings_and_ends_with_its_code(node_file: Path, modules: dict[str, Any]) -> None:
    served: list[LoadedSettings] = []

    def run_node(loaded: LoadedSettings) -> int:
        served.append(loaded)
        return 1

    modules["shadowrelay.node.process"] = SimpleNamespace(run=run_node)

    result = run("serve", "--config", node_file)

    assert (1, ["mx1.east.example"]) == (result.exit_code, [loaded.settings.server.name for loaded in served])
    assert "shadowrelay: warning: no peer of boundary default" in result.stderr


def raising(error: Exception) -> Callable[..., int]:
    def run_node(_: LoadedSettings) -> int:
        raise error

    return run_node


def test_what_the_node_finds_wrong_with_its_configuration_ends_with_2(node_file: Path, modules: dict[str, Any]) -> None:
    modules["shadowrelay.node.process"] = SimpleNamespace(run=raising(ConfigurationError("admin.token_file: cannot be made")))

    result = run("serve", "--config", node_file)

    assert (2, True) == (result.exit_code, "shadowrelay: admin.token_file: cannot be made\n" in result.stderr)


def test_serve_with_a_wrong_file_does_not_load_the_node(tmp_path: Path, modules: dict[str, Any]) -> None:
    result = run("serve", "--config", tmp_path / "missing.toml")

    assert (2, True) == (result.exit_code, "cannot be read" in result.stderr)


def test_demo_passes_its_options_and_ends_with_the_demos_code(modules: dict[str, Any], tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def run_demo(**options: Any) -> int:
        asked.append(options)
        return 3

    modules["shadowrelay.lab.demo"] = SimpleNamespace(run=run_demo)

    result = run("demo", "--messages", 7, "--directory", tmp_path, "--evidence", tmp_path, "--json")

    assert (3, [{"messages_count": 7, "directory": tmp_path, "evidence": tmp_path, "as_json": True}]) == (result.exit_code, asked)
