"""docs/setup.md "On servers" with `init --compose`: each node in a container of its own, with its own name, on one network.

A node asks the API of the other by TLS, from what `init` wrote: `doctor`, `status`, `messages find` and `messages trace`.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.docker import CONFIG, nodes_in_containers, run, said

pytestmark = [pytest.mark.heavy, pytest.mark.lab, pytest.mark.timeout(900)]

EAST, WEST = "mx1.east.example", "mx1.west.example"
SEND = (
    "import smtplib\n"
    f'smtplib.SMTP("{EAST}", 2525).sendmail("a@example.org", "b@corp.example", "Message-ID: <1@x>\\r\\nSubject: x\\r\\n\\r\\nHello\\r\\n")'
)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Containers by the names of the nodes."""
    options = ("--accept", "corp.example", "--next-hop", "store.corp.example:2600")
    with nodes_in_containers(tmp_path, {EAST: "east", WEST: "west"}, options) as (started, _):
        yield started


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
