"""Docker and Compose as the lab needs them: commands of their programs, with errors that say what to do.

Containers are found by the labels that both Compose 1.29 and 2 set, so the project's name does not matter.
"""

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shadowrelay.lab.places import LabError

PROFILES = ("prometheus", "spark", "report")
COMMAND_SECONDS_MAX = 60.0
BUILD_SECONDS_MAX = 1800.0

NO_DOCKER = "docker is not installed: the lab runs in containers; install Docker Engine and Compose (Debian: docker.io docker-compose)"
NO_COMPOSE = "neither `docker compose` nor `docker-compose` is there: install one of them (Debian: docker-compose)"
NO_FILE = "there is no docker-compose.yml in {directory}: change to the project's directory or name it with --project-directory"
NOT_UP = "the lab is not up: start it with `shadowrelay lab up`"


class Engine:
    """One project directory and what runs for it. All methods raise LabError."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()

    def check(self) -> None:
        """Everything is there that commands need: a compose file, Docker, an engine that answers."""
        if not (self.directory / "docker-compose.yml").is_file():
            raise LabError(NO_FILE.format(directory=self.directory))
        if shutil.which("docker") is None:
            raise LabError(NO_DOCKER)
        answer = subprocess.run(["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True, check=False)
        if answer.returncode:
            reason = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
            raise LabError(
                f"the Docker engine does not answer ({reason[-1] if reason else 'no reason given'}): start it, or get the right to use it"
            )

    @functools.cached_property
    def _compose(self) -> list[str]:
        is_plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
        if not is_plugin and shutil.which("docker-compose") is None:
            raise LabError(NO_COMPOSE)
        return ["docker", "compose"] if is_plugin else ["docker-compose"]

    def compose(self, *arguments: str, profiles: Sequence[str] = PROFILES, seconds: float = BUILD_SECONDS_MAX) -> bytes:
        """A Compose command. Returns its standard output."""
        flags = [text for profile in profiles for text in ("--profile", profile)]
        # one builder for both generations of Compose: images built by one are those that the other finds
        environment = {**os.environ, "COMPOSE_DOCKER_CLI_BUILD": "0"}
        return self._run([*self._compose, *flags, *arguments], seconds, environment=environment)

    def docker(self, *arguments: str, data: bytes | None = None, seconds: float = COMMAND_SECONDS_MAX) -> bytes:
        """A docker command. Returns its standard output."""
        return self._run(["docker", *arguments], seconds, data=data)

    def _run(
        self, command: Sequence[str], seconds: float, *, data: bytes | None = None, environment: dict[str, str] | None = None
    ) -> bytes:
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
        """The last words of a container; nodes log to standard error, which `docker logs` keeps apart."""
        both = ["bash", "-c", 'docker logs --tail 5 "$0" 2>&1', self.container(service)]
        return self._run(both, COMMAND_SECONDS_MAX).decode(errors="replace").strip()

    def containers(self) -> dict[str, str]:
        """Container id by service, stopped ones too, those of one-off commands not."""
        mine = f"label=com.docker.compose.project.working_dir={self.directory}"
        shape = '{{.ID}} {{.Label "com.docker.compose.service"}} {{.Label "com.docker.compose.oneoff"}}'
        found = {}
        for line in self.docker("ps", "--all", "--filter", mine, "--format", shape).decode().splitlines():
            identity, service, *oneoff = line.split()
            if oneoff[:1] != ["True"]:
                found[service] = identity
        return found

    def container(self, service: str) -> str:
        """Id of the container of a service. Raises LabError if the lab is not up."""
        found = self.containers().get(service)
        if found is None:
            raise LabError(NOT_UP)
        return found

    def states(self) -> dict[str, str]:
        """By service: "healthy", "starting", "unhealthy" (as its health check says), else Docker's own word ("running", "exited" …)."""
        services = self.containers()
        if not services:
            return {}
        answers: list[dict[str, Any]] = json.loads(self.docker("inspect", *services.values()))
        states = {answer["Id"]: answer["State"] for answer in answers}
        return {
            service: _state(next(state for full, state in states.items() if full.startswith(short))) for service, short in services.items()
        }

    def inspect(self, service: str) -> dict[str, Any]:
        """What Docker knows of the container of a service."""
        answers: list[dict[str, Any]] = json.loads(self.docker("inspect", self.container(service)))
        return answers[0]

    def addresses(self, service: str) -> dict[str, str]:
        """Address by network, as docker-compose.yml names it: {"link": "10.83.3.11"}."""
        networks: dict[str, dict[str, Any]] = self.inspect(service)["NetworkSettings"]["Networks"]
        return {name.rpartition("_")[2]: str(network["IPAddress"]) for name, network in networks.items()}

    def execute(self, service: str, *command: str, data: bytes | None = None, seconds: float = COMMAND_SECONDS_MAX) -> bytes:
        """A command in the running container of a service. Returns its standard output."""
        flags = ["--interactive"] if data is not None else []
        return self.docker("exec", *flags, self.container(service), *command, data=data, seconds=seconds)


def _state(state: dict[str, Any]) -> str:
    status = str(state["Status"])
    return str(state["Health"]["Status"]) if status == "running" and state.get("Health") else status


def _shown(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) <= 120 else f"{text[:117]}…"
