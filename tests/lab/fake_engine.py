"""An engine without containers: it remembers what it was told to do, and does it to states in a dictionary."""

import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from shadowrelay.lab.compose import Lab
from shadowrelay.lab.disturbance import Links
from shadowrelay.lab.engine import Engine
from shadowrelay.lab.topology import MACHINES, RECEIVERS, SENDER

SERVICES = (*(one.short for one in MACHINES), *(one.network for one in MACHINES), "dns", SENDER, *RECEIVERS)
NEXT = {"kill": "exited", "pause": "paused", "unpause": "healthy", "start": "healthy", "stop": "exited"}


class FakeEngine:
    """Shapes: `told` has every command; container ids are the names of services. `interrupts`: a command at whose beginning
    somebody presses Ctrl-C. `keeps`: networks that it cannot remove."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.is_up = dict.fromkeys(SERVICES, "healthy")
        self.told: list[tuple[str, ...]] = []
        self.interrupts = ""
        self.keeps: list[str] = []

    def check(self) -> None: ...

    def project(self) -> str:
        return "fake"

    def states(self) -> dict[str, str]:
        return dict(self.is_up)

    def containers(self) -> dict[str, str]:
        return {service: service for service in self.is_up}

    def container(self, service: str) -> str:
        return self.containers()[service]

    def _tell(self, *command: str) -> None:
        self.told.append(command)
        if self.interrupts and self.interrupts in command:
            raise KeyboardInterrupt

    def compose(self, *arguments: str, profiles: Sequence[str] = ()) -> bytes:
        self._tell("compose", *arguments)
        if arguments[0] == "up":
            self.is_up = {
                service: "healthy" if (was := self.is_up.get(service)) in (None, "exited", "created") else was for service in SERVICES
            }
        return b""

    def remove(self) -> list[str]:
        self._tell("remove")
        self.is_up.clear()
        return self.keeps

    def docker(self, *arguments: str, data: bytes | None = None, seconds: float = 0.0) -> bytes:
        self._tell(*arguments)
        for identity in itertools.takewhile(lambda text: text in self.is_up, reversed(arguments)):
            self.is_up[identity] = NEXT[arguments[0]]
        return b""

    def inspect(self, service: str) -> dict[str, Any]:
        return {"State": {"FinishedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")}}

    def addresses(self, service: str) -> dict[str, str]:
        (index,) = [index for index, one in enumerate(MACHINES) if one.network == service]
        return {MACHINES[index].site: f"10.0.1.{index}", "link": f"10.0.3.{index}"}

    def execute(self, service: str, *command: str, data: bytes | None = None, seconds: float = 0.0) -> bytes:
        self._tell("execute", service, *command)
        if command[0] == "ip":
            networks = self.addresses(service)
            return "".join(f"1: to-{name}    inet {address}/24 scope global\n" for name, address in networks.items()).encode()
        if "ask" in command:
            return json.dumps({"queues": [], "peers": []}).encode()
        return b"0"


def lab_with_fake(directory: Path) -> tuple[Lab, FakeEngine]:
    """A lab that is up, as `lab up` makes it."""
    lab, engine = Lab(directory), FakeEngine(directory)
    lab.engine = cast("Engine", engine)
    lab._links = Links(lab.engine)
    lab.state.make()
    return lab, engine
