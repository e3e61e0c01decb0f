"""docs/operations.md "On servers" with `init --compose`: each node in a container of its own, with its own name, on one network.

A node asks the API of the other by TLS, from what `init` wrote: `doctor`, `status`, `messages find` and `messages trace`.
"""

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.lab.engine import BUILDER
from tests.lab.docker import lab_or_skip
from tests.tidy.house import ROOT

pytestmark = [pytest.mark.heavy, pytest.mark.lab, pytest.mark.timeout(900)]

EAST, WEST = "mx1.east.example", "mx1.west.example"
CONFIG = ("--config", "/etc/shadowrelay/node.toml")
SEND = (
    "import smtplib\n"
    f'smtplib.SMTP("{EAST}", 2525).sendmail("a@example.org", "b@corp.example", "Message-ID: <1@x>\\r\\nSubject: x\\r\\n\\r\\nHello\\r\\n")'
)


def run(*command: str | Path, codes: tuple[int, ...] = (0,), **options: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode in codes, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Containers by the names of the nodes."""
    compose = lab_or_skip().engine._compose
    run("docker", "build", "--target", "relay", "--tag", "shadowrelay-relay", ROOT, env=BUILDER | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    run(
        sys.executable, "-m", "shadowrelay", "init", tmp_path, "--compose", "--accept", "corp.example",
        "--next-hop", "store.corp.example:2600", "--node", f"{EAST},east,{EAST}:2525", "--node", f"{WEST},west,{WEST}:2525",
    )  # fmt: skip
    network = f"shadowrelay-{secrets.token_hex(4)}"
    started = {}
    run("docker", "network", "create", "--internal", network)
    try:
        for name in (EAST, WEST):
            place, project = tmp_path / name, f"{network}-{name.split('.')[1]}"
            own = ("docker", "run", "--rm", "--user", "0", "--volume", f"{place}:/x", "--entrypoint", "chown", "shadowrelay-relay")
            run(*own, "-R", "10001", "/x")
            # `run` publishes no ports: one machine cannot publish those of two nodes
            start = [*compose, "--project-name", project, "--file", place / "compose.yaml", "run", "--detach", "--name", project]
            run(*start, "shadowrelay", cwd=place)
            started[name] = project
            run("docker", "network", "connect", "--alias", name, network, project)
        yield started
    finally:
        for name, project in started.items():
            run("docker", "rm", "--force", "--volumes", project)
            run(*compose, "--project-name", project, "--file", tmp_path / name / "compose.yaml", "down", "--volumes", cwd=tmp_path / name)
        run("docker", "network", "rm", network)


def said(container: str, *words: str, codes: tuple[int, ...] = (0,)) -> Any:
    return json.loads(run("docker", "exec", container, "shadowrelay", *words, "--json", *CONFIG, codes=codes) or "{}")


def test_nodes_on_machines_of_their_own_ask_each_other_by_tls(nodes: dict[str, str]) -> None:
    east, west = nodes[EAST], nodes[WEST]
    deadline = time.monotonic() + 120
    while not (status := said(west, "status", codes=(0, 1, 4))).get("is_redundant"):
        assert time.monotonic() < deadline, f"{status}\n{run('docker', 'logs', west)}"
        time.sleep(1)

    run("docker", "exec", west, "python3", "-c", SEND)
    found = said(west, "messages", "find", "--to", "b@corp.example")
    (message,) = found["messages"]
    story = run("docker", "exec", west, "shadowrelay", "messages", "trace", message["message_id"], *CONFIG)
    findings = {finding["subject"].partition(" at ")[0]: finding["level"] for finding in said(east, "doctor", codes=(1,))["findings"]}

    assert [] == status["missing"] == found["missing"]
    assert {EAST, WEST} <= {node["name"] for node in status["nodes"]}
    assert f"copy stored on {WEST}" in story
    assert ("ok", "ok", "error") == (
        findings[f"clock of {WEST}"],
        findings[f"peer {WEST}"],
        findings["next hop store.corp.example:2600"],  # there is none here
    )
