"""A lab for tests in containers, or the reason why there is none; and nodes that `init --compose` has made, each in a container."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.lab.compose import Lab
from shadowrelay.lab.engine import BUILDER
from tests.tidy.house import ROOT

IS_WANTED = os.environ.get("SHADOWRELAY_LAB") == "1"  # as for `make test-lab`: then a machine without Docker is a failure
CONFIG = ("--config", "/etc/shadowrelay/node.toml")


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
    directory: Path, sites: Mapping[str, str], options: Sequence[str], change: Callable[[str], str] = str
) -> Iterator[tuple[dict[str, str], str]]:
    """Containers by the names of their nodes, and the network on which they know each other by these names. `options` are of `init`,
    `sites` those of the nodes, and `change` is done to each configuration."""
    compose = lab_or_skip().engine._compose
    run("docker", "build", "--target", "relay", "--tag", "shadowrelay-relay", ROOT, env=BUILDER | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    named = [word for name, site in sites.items() for word in ("--node", f"{name},{site},{name}:2525")]
    run(sys.executable, "-m", "shadowrelay", "init", directory, "--compose", *options, *named)
    network = f"shadowrelay-{secrets.token_hex(4)}"
    started: dict[str, str] = {}
    run("docker", "network", "create", "--internal", network)
    try:
        for name, site in sites.items():
            place, project = directory / name, f"{network}-{site}"
            file = place / "node.toml"
            file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")
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
