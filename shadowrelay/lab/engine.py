"""Runs Docker and Compose commands for the lab, waits for healthy containers, and queries nodes inside theirs. docs/lab.md.

Errors include the remedy. Containers are found by the directory that both Compose 1.29 and 2 store in a label, while Compose identifies
a project by name. A Compose command is therefore refused if containers of another directory have the same project name.

A node is queried on its admin address, inside its container, without starting another Python.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadowrelay.lab.topology import LabError

PROFILES = ("prometheus", "grafana", "spark", "report")
COMMAND_SECONDS_MAX = 60.0
BUILD_SECONDS_MAX = 1800.0

NO_DOCKER = "docker is not installed: the lab runs in containers; install Docker Engine and Compose (Debian: docker.io docker-compose)"
NO_COMPOSE = "neither `docker compose` nor `docker-compose` is there: install one of them (Debian: docker-compose)"
NO_FILE = "there is no docker-compose.yml in {directory}: change to the project's directory or name it with --project-directory"
COLON = "{directory} has a colon in its path, which Docker reads as the end of it: move or rename the directory"
TAKEN = (
    "containers of {others} have the same project name, {name}, and would be confused with those of {mine}: remove them (`shadowrelay "
    "lab down` there), or set COMPOSE_PROJECT_NAME, and LAB_NET if they are a lab, for all commands here"
)
NOT_UP = "the lab is not up: start it with `shadowrelay lab up`"
LOST_COUNT = "has active endpoints"  # Docker's reason for not removing a network
TAG, IMAGES = "LAB_TAG", "shadowrelay-*"
LABEL = "com.docker.compose"
LABELS = (f"{LABEL}.service", f"{LABEL}.oneoff", f"{LABEL}.project", f"{LABEL}.project.working_dir")
# Both generations of Compose use the same builder, so that they share its cache: the variables of 1.29 and of 2.
BUILDER = {"COMPOSE_DOCKER_CLI_BUILD": "0", "DOCKER_BUILDKIT": "0"}


@dataclass(frozen=True, slots=True)
class _Container:
    """`directory`: of its project, None if its Compose did not store it; `is_one_off`: from `compose run`."""

    identity: str
    service: str
    is_one_off: bool
    project: str
    directory: Path | None


class Engine:
    """One project directory and its containers. All methods raise LabError.

    Shapes: `settings` are variables for every command of Compose, None for one that must not be set.
    """

    def __init__(self, directory: Path, settings: Callable[[], Mapping[str, str | None]] = dict) -> None:
        self.directory = directory.resolve()
        self._settings = settings

    def check(self) -> None:
        """Check the prerequisites: a compose file, Docker, an engine that responds."""
        if not (self.directory / "docker-compose.yml").is_file():
            raise LabError(NO_FILE.format(directory=self.directory))
        if ":" in str(self.directory):
            raise LabError(COLON.format(directory=self.directory))
        if shutil.which("docker") is None:
            raise LabError(NO_DOCKER)
        answer = subprocess.run(["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True, check=False)
        if answer.returncode:
            reason = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
            raise LabError(
                f"the Docker engine does not answer ({reason[-1] if reason else 'no reason given'}): start it, or get permission to use it"
            )

    @functools.cached_property
    def _compose(self) -> list[str]:
        is_plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
        if not is_plugin and shutil.which("docker-compose") is None:
            raise LabError(NO_COMPOSE)
        return ["docker", "compose"] if is_plugin else ["docker-compose"]

    def compose(self, *arguments: str, profiles: Sequence[str] = PROFILES, project: str = "", seconds: float = BUILD_SECONDS_MAX) -> bytes:
        """Run a Compose command. Returns its standard output."""
        flags = ["--project-name", project or self.project(), *(text for profile in profiles for text in ("--profile", profile))]
        wanted = {**BUILDER, TAG: self.tag, **os.environ, **self._settings()}
        environment = {name: text for name, text in wanted.items() if text is not None}
        return self._run([*self._compose, *flags, *arguments], seconds, environment=environment)

    @property
    def tag(self) -> str:
        """Of our images: two checkouts must not run each other's."""
        return os.environ.get(TAG) or f"lab-{hashlib.sha256(str(self.directory).encode()).hexdigest()[:8]}"

    def images(self) -> dict[str, str]:
        """Our images by name, with their size in words, which includes what they share with others."""
        lines = self.docker(
            "images", "--filter", f"reference={IMAGES}:{self.tag}", "--format", "{{.Repository}}:{{.Tag}}|{{.Size}}"
        ).decode()
        return dict(line.split("|", 1) for line in lines.splitlines())

    def remove_images(self) -> list[str]:
        """Their names. What other images share stays."""
        if names := list(self.images()):
            self.docker("rmi", *names)
        return names

    def project(self) -> str:
        """The Compose project name: that of our containers, else as Compose derives it. Raises LabError if it is taken."""
        found = self._containers()
        mine = sorted({one.project for one in found if one.directory == self.directory})
        name = mine[0] if mine else self._usual_project()
        others = {
            str(one.directory or "a directory that is not told") for one in found if one.project == name and one.directory != self.directory
        }
        if others:
            raise LabError(TAKEN.format(others=" and ".join(sorted(others)), name=name, mine=self.directory))
        return name

    def _usual_project(self) -> str:
        file = self.directory / ".env"  # Compose reads it too
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        said = [line.partition("=")[2].strip(" \t'\"") for line in lines if line.partition("=")[0].strip() == "COMPOSE_PROJECT_NAME"]
        name = os.environ.get("COMPOSE_PROJECT_NAME") or (said[-1] if said else "") or self.directory.name
        return re.sub("[^-_a-z0-9]", "", name.lower()).lstrip("-_") or "default"

    def docker(self, *arguments: str, data: bytes | None = None, seconds: float = COMMAND_SECONDS_MAX) -> bytes:
        """Run a docker command. Returns its standard output."""
        return self._run(["docker", *arguments], seconds, data=data)

    def _run(
        self, command: Sequence[str], seconds: float, *, data: bytes | None = None, environment: dict[str, str] | None = None
    ) -> bytes:
        # Compose 2 uses PWD, which may contain a symbolic link, and would label containers with that path
        environment = {**(environment or os.environ), "PWD": str(self.directory)}
        try:
            done = subprocess.run(
                command, cwd=self.directory, input=data, capture_output=True, timeout=seconds, check=False, env=environment,
                stdin=subprocess.DEVNULL if data is None else None,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise LabError(NO_DOCKER) from error
        except subprocess.TimeoutExpired as error:
            raise LabError(f"`{_shown(command)}` took longer than {seconds:.0f} s") from error
        if done.returncode:
            tail = done.stderr.decode(errors="replace").strip().splitlines()[-8:]
            raise LabError(f"`{_shown(command)}` failed with {done.returncode}: " + "\n".join(tail))
        return done.stdout

    def log_tail(self, service: str) -> str:
        """The end of a container's log; nodes log to standard error, which `docker logs` keeps separate."""
        both = ["bash", "-c", 'docker logs --tail 5 "$0" 2>&1', self.container(service)]
        return self._run(both, COMMAND_SECONDS_MAX).decode(errors="replace").strip()

    def containers(self) -> dict[str, str]:
        """Container id by service, including stopped containers, without one-off commands."""
        return {one.service: one.identity for one in self._containers() if one.directory == self.directory and not one.is_one_off}

    def _containers(self) -> list[_Container]:
        """Containers of all projects."""
        shape = "|".join(("{{.ID}}", *(f'{{{{.Label "{label}"}}}}' for label in LABELS)))
        found = []
        for line in self.docker("ps", "--all", "--filter", f"label={LABEL}.project", "--format", shape).decode().splitlines():
            identity, service, one_off, project, directory = line.split("|", 4)
            # a path with a symbolic link comes from a command run by hand
            found.append(_Container(identity, service, one_off == "True", project, Path(directory).resolve() if directory else None))
        return found

    def remove(self) -> list[str]:
        """Remove our containers, networks and volumes. Returns networks that Docker does not release although they are empty."""
        name = self.project()  # raises if another directory has the same project name
        for one in self._containers():
            if one.directory == self.directory:
                # One at a time: if many leave a network at once, Docker 20.10 sometimes miscounts them, and keeps the network for
                # ever (moby/moby, issue 42119). SIGKILL, because no mail needs to drain.
                with contextlib.suppress(LabError):  # removed meanwhile; other errors appear in Compose, too
                    self.docker("rm", "--force", one.identity)
        try:
            self.compose("down", "--volumes", "--remove-orphans", project=name)
        except LabError as error:
            if LOST_COUNT not in str(error):
                raise
        else:
            return []
        # Compose stops at the first such network, before it removes all volumes
        ours = ("--quiet", "--filter", f"label={LABEL}.project={name}")
        for network in self.docker("network", "ls", *ours).decode().split():
            with contextlib.suppress(LabError):
                self.docker("network", "rm", network)
        if volumes := self.docker("volume", "ls", *ours).decode().split():
            self.docker("volume", "rm", *volumes)
        return self.docker("network", "ls", *ours[1:], "--format", "{{.Name}}").decode().split()

    def container(self, service: str) -> str:
        """Id of the container of a service. Raises LabError if the lab is not up."""
        found = self.containers().get(service)
        if found is None:
            raise LabError(NOT_UP)
        return found

    def states(self) -> dict[str, str]:
        """State by service: "healthy", "starting", "unhealthy" (from its health check), else Docker's ("running", "exited" …)."""
        services = self.containers()
        if not services:
            return {}
        answers: list[dict[str, Any]] = json.loads(self.docker("inspect", *services.values()))
        states = {answer["Id"]: answer["State"] for answer in answers}
        return {
            service: _state(next(state for full, state in states.items() if full.startswith(short))) for service, short in services.items()
        }

    def inspect(self, service: str) -> dict[str, Any]:
        """The result of `docker inspect` for a service's container."""
        answers: list[dict[str, Any]] = json.loads(self.docker("inspect", self.container(service)))
        return answers[0]

    def addresses(self, service: str) -> dict[str, str]:
        """Address by network, with the network names of docker-compose.yml: {"link": "10.83.3.11"}."""
        networks: dict[str, dict[str, Any]] = self.inspect(service)["NetworkSettings"]["Networks"]
        return {name.rpartition("_")[2]: str(network["IPAddress"]) for name, network in networks.items()}

    def execute(self, service: str, *command: str, data: bytes | None = None, seconds: float = COMMAND_SECONDS_MAX) -> bytes:
        """Run a command in the running container of a service. Returns its standard output."""
        flags = ["--interactive"] if data is not None else []
        return self.docker("exec", *flags, self.container(service), *command, data=data, seconds=seconds)


def _state(state: dict[str, Any]) -> str:
    status = str(state["Status"])
    return str(state["Health"]["Status"]) if status == "running" and state.get("Health") else status


def _shown(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) <= 120 else f"{text[:117]}…"


# ---- health

HEALTHY_SECONDS_MAX = 90.0
HEALTHY_POLL_SECONDS = 0.5
ENDED = ("exited", "dead")


def until_healthy(engine: Engine, nodes: Sequence[str]) -> None:
    """Wait until all health checks pass. Raises: LabError; immediately if a node exits, quoting the end of its log."""

    def is_healthy() -> bool:
        states = engine.states()
        for node in nodes:
            if states.get(node) in ENDED:
                raise LabError(f"{node} has ended; its log: {engine.log_tail(node) or '(empty)'}")
        return all(states.get(node) == "healthy" for node in nodes)

    _until(is_healthy, f"not healthy: {', '.join(nodes)}")


def until_listening(engine: Engine, services: Sequence[str]) -> None:
    """Wait until each accepts SMTP connections. Raises: LabError."""
    _until(lambda: all(_listens(engine, service) for service in services), "the mail servers around the nodes do not answer")


def _listens(engine: Engine, service: str) -> bool:
    try:
        engine.execute(service, "bash", "-c", "</dev/tcp/127.0.0.1/25")
    except LabError:
        return False
    return True


def _until(is_so: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + HEALTHY_SECONDS_MAX
    while not is_so():
        if time.monotonic() > deadline:
            raise LabError(f"{complaint} after {HEALTHY_SECONDS_MAX:.0f} s; see `docker-compose logs`")
        time.sleep(HEALTHY_POLL_SECONDS)


# ---- what a node reports

TO_DELIVER = ("Submission", "Delivery")
HELD = "Shadow"
FINISHED = ("delivered", "released")
PAGE = 1000


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """`state` as from `Engine.states`. Counts of messages; None if the node does not answer."""

    node: str
    state: str
    to_deliver: int | None = None
    held: int | None = None
    peers_reachable: int | None = None


def node_status(engine: Engine, node: str, state: str) -> NodeStatus:
    """Does not raise if the node does not answer."""
    if state not in ("healthy", "unhealthy", "starting"):
        return NodeStatus(node, state)
    try:
        queues, peers = ask(engine, node, "/api/v1/queues")["queues"], ask(engine, node, "/api/v1/peers")["peers"]
    except LabError:
        return NodeStatus(node, state)
    to_deliver = sum(row["count"] for row in queues if row["kind"] in TO_DELIVER)
    held = sum(row["count"] for row in queues if row["kind"] == HELD)
    return NodeStatus(node, state, to_deliver, held, sum(peer["is_reachable"] for peer in peers))


def unfinished(engine: Engine, node: str) -> set[str]:
    """Network ids of this node's unfinished messages, as primary or as shadow server."""
    found: set[str] = set()
    after: int | None = 0
    while after is not None:
        page = ask(engine, node, f"/api/v1/messages?limit={PAGE}&after={after}")
        found |= {row["message_id"] for row in page["messages"] if row["role"] not in FINISHED}
        after = page["next_after"]
    return found


def ask(engine: Engine, node: str, path: str) -> dict[str, Any]:
    """Get one API resource. Raises: LabError if the node does not answer."""
    answer: dict[str, Any] = json.loads(engine.execute(node, "timeout", "10", "ask", path))
    return answer
