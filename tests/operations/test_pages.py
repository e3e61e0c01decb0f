"""What docs/operations.md says of the operator log, of SIGHUP and of the container is what the code and the image do."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath

from shadowrelay.model.settings import Settings
from shadowrelay.node.connectors import GRACE_SECONDS
from shadowrelay.settings.reload import FIXED_SEND, FIXED_TRANSPORT
from tests.tidy.house import ROOT, SOURCES, tree_of

OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
RUNBOOK = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
ELSEWHERE = {"lab", "sla", "cli"}  # no part of a running node
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
NAME = re.compile(r"`([a-z_]+\.[a-z_]+)`")


def section(heading: str) -> str:
    """Its text, up to the next heading."""
    return OPERATIONS.split(f"{heading}\n", 1)[1].split("\n#", 1)[0]


def logged_in(tree: ast.AST) -> Iterator[str]:
    """First arguments of `log.warning(…)` and its like; an event that is no plain text has no name to look for."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log" | "_log") | ast.Attribute(attr="_log"), attr=level), args=[first, *_]
            ) if level in LEVELS:
                yield first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else f"line {node.lineno}"


def events() -> set[str]:
    nodes = [path for path in SOURCES if path.relative_to(ROOT).parts[1] not in ELSEWHERE]
    return {name for path in nodes for name in logged_in(tree_of(path))}


def test_every_event_of_the_operator_log_is_explained() -> None:
    assert len(events()) > 60
    assert set() == events() - set(NAME.findall(section("### The operator log")))


def test_every_event_that_is_explained_exists() -> None:
    rows = re.findall(r"(?m)^\| (`.+?) \| ", section("### The operator log"))
    listed = [name for row in rows for name in NAME.findall(row)]
    subjects = {name.split(".")[0] for name in events()}
    told = {name for name in NAME.findall(RUNBOOK) if name.split(".")[0] in subjects and not name.endswith((".json", ".log"))}

    assert set() == set(listed) - events()
    assert sorted(set(listed)) == sorted(listed), "explained twice"
    assert set() == told - events()


def test_the_checks_see_an_event_in_every_form() -> None:
    source = "log.warning('a.b', x=1)\n_log.exception(\n'c.d')\nlog.info(f'{e}.f')\nmath.log(1)\nother.warning('g.h')"

    assert ["a.b", "c.d", "line 4"] == sorted(logged_in(ast.parse(source)))


def test_the_keys_that_need_a_restart_are_those_of_the_code() -> None:
    named = set(re.findall(r"`((?:transport|send)\.\w+)`", section("### What SIGHUP changes")))

    assert {*(f"transport.{name}" for name in FIXED_TRANSPORT), *(f"send.{name}" for name in FIXED_SEND)} == named


def test_a_container_as_described_can_write_where_the_node_writes() -> None:
    configuration, commands = re.findall(r"(?ms)^```\n(.+?)^```$", section("### In a container"))
    tables = tomllib.loads(configuration)
    tables["server"] |= {"name": "mx1.east.example", "site": "east"}
    settings = Settings.model_validate(tables)
    found = re.search(r"(?m)^VOLUME (\[.+\])$", DOCKERFILE)
    assert found is not None
    volumes = set(ast.literal_eval(found[1]))
    mounted = {words.split(":")[1] for words in re.findall(r"--volume (\S+)", commands) if not words.endswith(":ro")}
    written = (settings.server.data_directory, settings.tracking.directory, settings.admin.token_file)

    assert volumes == mounted
    assert [True] * 3 == [any(PurePosixPath(path).is_relative_to(volume) for volume in volumes) for path in written]
    assert f"--publish 25:{settings_of_example_port()}" in commands
    stop = re.search(r"--stop-timeout (\d+)", commands)
    assert stop is not None
    assert int(stop[1]) >= 2 * GRACE_SECONDS + 10


def settings_of_example_port() -> int:
    """Where the receive connector of the example listens."""
    example = tomllib.loads((ROOT / "configs/example.toml").read_text(encoding="utf-8"))
    return Settings.model_validate(example).receive_connectors[0].listen.port


def test_readme_and_architecture_agree_on_what_is_not_built() -> None:
    architecture = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## Not built yet\n", 1)[1].split("\n#", 1)[0]
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split("(docs/architecture.md#not-built-yet): ", 1)[1].split(".", 1)[0]

    assert re.findall(r"(?m)^\* (.+)$", architecture) == [item.strip() for item in readme.split(";")]
