"""A lab for tests in containers, or the reason why there is none; and nodes that `init --compose` has made, each in a container."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.lab.compose import Lab
from shadowrelay.lab.engine import BUILDER
from tests.tidy.house import ROOT

IS_WANTED = os.environ.get("SHADOWRELAY_LAB") == "1"  # as for `make test-lab`: then a machine without Docker is a failure
NONE: Mapping[str, str] = {}
CONFIG = ("--config", "/etc/shadowrelay/node.toml")
STORE = "store.example"
TAKE = """
import time
from aiosmtpd.controller import Controller
class Store:
    async def handle_DATA(self, server, session, envelope):
        with open("/tmp/arrived", "a") as file:
            file.writelines(f"{session.host_name} {to}\\n" for to in envelope.rcpt_tos)
        return "250 2.0.0 OK"
Controller(Store(), hostname="0.0.0.0", port=2600).start()
time.sleep(3600)
"""


def say(text: str) -> None:
    """Progress, for those who watch with -s."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def lab_or_skip() -> Lab:
    """The lab of this checkout; whether it is up is another matter."""
    if not IS_WANTED:
        if shutil.which("docker") is None:
            pytest.skip("no Docker here")
        if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
            pytest.skip("no Docker engine answers here")
    return Lab(ROOT, tell=say)


def run(*command: str | Path, codes: tuple[int, ...] = (0,), **options: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode in codes, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def said(container: str, *words: str, codes: tuple[int, ...] = (0,)) -> Any:
    """What a command of shadowrelay says in this container, with --json."""
    return json.loads(run("docker", "exec", container, "shadowrelay", *words, "--json", *CONFIG, codes=codes) or "{}")


@contextlib.contextmanager
def nodes_in_containers(
    directory: Path,
    sites: Mapping[str, str],
    options: Sequence[str],
    change: Callable[[str], str] = str,
    witnesses: Mapping[str, str] = NONE,
) -> Iterator[tuple[dict[str, str], str]]:
    """Containers by the names of their nodes, and the network on which they know each other by these names. `options` are of `init`,
    `sites` and `witnesses` have the sites of the nodes, and `change` is done to each configuration. All run on this one machine."""
    compose = lab_or_skip().engine._compose
    run("docker", "build", "--target", "relay", "--tag", "shadowrelay-relay", ROOT, env=BUILDER | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    named = [word for name, site in sites.items() for word in ("--node", f"{name},{site},{name}:2525")]
    named += [word for name, site in witnesses.items() for word in ("--witness", f"{name},{site},{name}:2526")]
    run(sys.executable, "-m", "shadowrelay", "init", directory, "--compose", *options, *named)
    network = f"shadowrelay-{secrets.token_hex(4)}"
    started: dict[str, str] = {}
    run("docker", "network", "create", "--internal", network)
    try:
        for number, name in enumerate([*sites, *witnesses]):
            place, project = directory / name, f"{network}-{number}"
            file = place / "node.toml"
            text = file.read_text(encoding="utf-8").replace("[transport]\n", "[transport]\nshared_fate_is_redundant = true\n", 1)
            file.write_text(change(text), encoding="utf-8")
            own = ("docker", "run", "--rm", "--user", "0", "--volume", f"{place}:/x", "--entrypoint", "chown", "shadowrelay-relay")
            run(*own, "-R", "10001", "/x")
            # `run` publishes no ports: one machine cannot publish those of two nodes
            start = [*compose, "--project-name", project, "--file", place / "compose.yaml", "run", "--detach", "--name", project]
            run(*start, "shadowrelay", cwd=place)
            started[name] = project
            run("docker", "network", "connect", "--alias", name, network, project)
        yield started, network
    finally:
        for name, project in started.items():
            run("docker", "rm", "--force", "--volumes", project)
            run(*compose, "--project-name", project, "--file", directory / name / "compose.yaml", "down", "--volumes", cwd=directory / name)
        run("docker", "network", "rm", network)


@contextlib.contextmanager
def a_store(network: str) -> Iterator[str]:
    """A container with the store's name, in which nothing listens until it executes `TAKE`; then `arrivals` has what it took."""
    name = f"{network}-store"
    run("docker", "run", "--detach", "--name", name, "--entrypoint", "sleep", "shadowrelay-relay", "3600")
    try:
        run("docker", "network", "connect", "--alias", STORE, network, name)
        yield name
    finally:
        run("docker", "rm", "--force", "--volumes", name)


def takes_mail(store: str) -> None:
    """From now on."""
    run("docker", "exec", "--detach", store, "python3", "-c", TAKE)


def arrivals(store: str) -> list[tuple[str, str]]:
    """The server that delivered, and the recipient, in order."""
    lines = run("docker", "exec", store, "sh", "-c", "cat /tmp/arrived 2>/dev/null || true").splitlines()
    return [(server, recipient) for server, recipient in map(str.split, lines)]


def wipe(container: str) -> None:
    """The queue of a node that is not running is gone, with its disk."""
    gone = ("--entrypoint", "sh", "shadowrelay-relay", "-c", "rm -r /var/lib/shadowrelay/data")
    run("docker", "run", "--rm", "--volumes-from", container, *gone)


def until(is_so: Callable[[], object], what: str, seconds: float = 90.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(1)


def until_redundant(*containers: str) -> None:
    """Until each of these nodes says that new mail has its copies."""
    for container in containers:
        until(lambda one=container: said(one, "status", codes=(0, 1, 4)).get("is_redundant"), f"{container} is not ready")  # type: ignore[misc]


def held(container: str, kind: str) -> int:
    """Messages in its queues of this kind."""
    return sum(queue["count"] for queue in said(container, "queue", "list", codes=(0, 1)) if queue["kind"] == kind)
