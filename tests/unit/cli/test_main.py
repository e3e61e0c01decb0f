import json
import re
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

NODE = '[server]\nname = "mx1.east.example"\nsite = "east"\n[[receive_connectors]]\nname = "in"\nlisten = "127.0.0.1:0"\n'


@pytest.fixture
def node_file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(NODE, encoding="utf-8")
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


def test_the_help_names_every_command_and_the_exit_codes() -> None:
    output = run("--help").output

    assert [] == [word for word in ("serve", "check", "demo", "queue", "messages", "peers", "Exit codes") if word not in output]


@pytest.mark.parametrize("words", [("check",), ("serve",), ("nonsense",), ("check", "--nonsense"), ("messages", "show")])
def test_wrong_usage_ends_with_2(words: tuple[str, ...]) -> None:
    assert 2 == run(*words).exit_code


def test_check_shows_each_value_with_its_origin_and_the_warnings(node_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT", "2s")

    result = run("check", "--config", node_file)

    rows = [re.split(r"\s{2,}", line.strip()) for line in result.output.splitlines()]
    assert 0 == result.exit_code
    assert ["server.site", "east", "file"] in rows
    assert ["transport.shadow_timeout", "2s", "environment"] in rows
    assert ["tracking.max_file_size", "10MB", "default"] in rows
    assert ["transport.shadow_redundancy_enabled", "true", "default"] in rows
    assert "is valid, 2 warnings" in result.output
    assert "warning: no peer of boundary default may hold copies" in result.output


def test_check_as_json_is_one_document(node_file: Path) -> None:
    document = json.loads(run("check", "--config", node_file, "--json").output)

    assert (True, [], 2) == (document["is_valid"], document["errors"], len(document["warnings"]))
    assert {"value": "3h", "origin": "default"} == document["settings"]["transport.shadow_resubmit_time_span"]


def test_check_of_a_wrong_file_lists_every_problem_and_ends_with_2(node_file: Path) -> None:
    node_file.write_text(NODE + "nope = 1\n[transport]\nshadow_timeout = 5\n", encoding="utf-8")

    plain, as_json = run("check", "--config", node_file), run("check", "--config", node_file, "--json")

    assert (2, 2) == (plain.exit_code, as_json.exit_code)
    assert ["transport.shadow_timeout", "receive_connectors[0].nope"] == re.findall(r"(?m)^shadowrelay: \S+: ([^:]+): ", plain.stderr)
    assert (False, 2) == ((document := json.loads(as_json.output))["is_valid"], len(document["errors"]))


def test_check_prints_the_example() -> None:
    assert example() == run("check", "--example").output


def test_serve_runs_the_node_with_the_loaded_settings_and_ends_with_its_code(node_file: Path, modules: dict[str, Any]) -> None:
    served: list[LoadedSettings] = []

    def run_node(loaded: LoadedSettings) -> int:
        served.append(loaded)
        return 1

    modules["shadowrelay.node"] = SimpleNamespace(run=run_node)

    result = run("serve", "--config", node_file)

    assert (1, ["mx1.east.example"]) == (result.exit_code, [loaded.settings.server.name for loaded in served])
    assert "shadowrelay: warning: no peer of boundary default" in result.stderr


def raising(error: Exception) -> Callable[..., int]:
    def run_node(_: LoadedSettings) -> int:
        raise error

    return run_node


def test_what_the_node_finds_wrong_with_its_configuration_ends_with_2(node_file: Path, modules: dict[str, Any]) -> None:
    modules["shadowrelay.node"] = SimpleNamespace(run=raising(ConfigurationError("admin.token_file: cannot be made")))

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
