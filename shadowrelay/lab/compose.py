"""The lab in containers: `Lab` has one method per `shadowrelay lab` command, each returning its result. docs/lab.md.

Synchronous: every step is a Docker command. Every change to the lab is logged with its time (`fault_log`), because `verify` must know
which duplicates have a cause. All methods raise LabError. `lab.mail` sends mail and reads arrivals; `lab.disturbance` makes faults
in nodes, networks and disks.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from shadowrelay.lab.disturbance import ALIVE, RUNNING, Disturbances, Tell
from shadowrelay.lab.engine import ENDED, NOT_UP, NodeStatus, node_status, until_healthy, until_listening
from shadowrelay.lab.fault_log import Change, faults
from shadowrelay.lab.mail import Mail
from shadowrelay.lab.sla_report import report_here, report_in_container, report_watched
from shadowrelay.lab.state import let_everybody_read
from shadowrelay.lab.topology import DNS, MACHINES, NODES, RECEIVERS, SENDER, LabError, WrongUse
from shadowrelay.lab.verification import Verification, injected, since, verify
from shadowrelay.signals import ended_in_order

BUILT = ("mx1.east", DNS)  # the services whose images all others use
PROFILE_SERVICES = {"prometheus": ("prometheus",), "grafana": ("grafana",), "spark": ("spark-master",)}
MOUNTED = ("lab/objectives.toml",)  # files of the checkout that containers mount
SERVERS = (SENDER, *RECEIVERS, DNS)
POLL_SECONDS = 1.0
NO_QUEUE = (
    "Docker, or the machine of {nodes}, was stopped, and queues and cuts in memory are lost: remove this lab with `shadowrelay lab "
    "down`, and start a new one with `shadowrelay lab up`"
)
KEPT = (
    "Docker miscounts the endpoints of {networks} (moby/moby, issue 42119) and keeps it, empty, until Docker is restarted; the next lab "
    "of this directory uses it"
)


class Lab(Disturbances):
    """The lab of one project directory; has no state in memory, so several instances may coexist."""

    def __init__(self, directory: Path | str = ".", *, tell: Tell = lambda text: None) -> None:
        super().__init__(directory, tell=tell)
        self.mail = Mail(self.engine, self.state)

    # ---- start and stop

    def up(self, profiles: Sequence[str] = (), *, is_build_wanted: bool = True) -> list[NodeStatus]:
        """Build what is missing or changed, start everything, and return when all nodes are healthy.

        A running lab keeps its containers, with their queues and cuts.
        """
        unknown = [name for name in profiles if name not in PROFILE_SERVICES]
        if unknown:
            raise WrongUse(f"there is no profile {unknown[0]}; there are {', '.join(PROFILE_SERVICES)}")
        self.engine.check()
        with self.state.turn.taken("up"):
            is_new = not self._is_up()
            if is_new:
                self._remove()  # containers of an earlier lab, or one started by hand: their volumes contain old mail
                self.state.make()
                let_everybody_read(path for pattern in MOUNTED for path in self.engine.directory.glob(pattern))
            if is_build_wanted:
                self._build([*(BUILT if is_new else ()), *(name for profile in profiles for name in PROFILE_SERVICES[profile])])
            if is_new:
                self._tell("starting the containers")
                self.engine.compose("up", "--detach", "--no-build", profiles=profiles)
            else:
                self._revive(profiles)
            self._tell("waiting until all nodes are healthy")
            until_healthy(self.engine, NODES)
            until_listening(self.engine, (SENDER, *RECEIVERS))
        return self.status()

    def down(self, *, with_images: bool = False) -> dict[str, str]:
        """Remove containers, networks and volumes. The last report stays, and so do the images, unless `with_images`: those that are left,
        with their sizes."""
        self.engine.check()
        with self.state.turn.taken("down"):
            self._remove()
            self.state.clear()
            if with_images:
                self.engine.remove_images()
            return self.engine.images()

    def addresses(self) -> list[str]:
        """Where this machine reaches what runs, one a line."""
        found = []
        containers = self.engine.containers()
        for node in NODES:
            if f"network-{node}" in containers and (host := self.engine.addresses(f"network-{node}").get("outside")):
                found.append(f"{node}: SMTP {host}:2525, API and console http://{host}:8025")
        if "prometheus" in containers:
            found.append(f"Prometheus: http://127.0.0.1:{os.environ.get('LAB_PROMETHEUS_PORT', '9090')}")
        if "grafana" in containers:
            found.append(f"Grafana: http://127.0.0.1:{os.environ.get('LAB_GRAFANA_PORT', '3000')}/dashboards")
        return [*found, f"token of the APIs: {self.state.token}"]

    @contextlib.contextmanager
    def playing(self, name: str) -> Iterator[None]:
        """While a scenario runs, no other command changes the lab or sends. Raises: LabError if one is already doing so."""
        self._known(NODES[0])
        with self.state.turn.taken(f"scenario {name}"), self.state.mail_turn.taken(f"scenario {name}"), ended_in_order():
            yield

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Mail may flow during any other command, but not during a scenario, which counts its own mail. Raises: LabError."""
        self._require_servers()
        with self.state.mail_turn.taken("send", is_shared=True):
            yield

    def status(self) -> list[NodeStatus]:
        """Every node: the state of its container, and its own figures."""
        self.engine.check()
        states = self.engine.states()
        if not any(node in states for node in NODES):
            raise LabError(NOT_UP)
        return [node_status(self.engine, node, states.get(node, "missing")) for node in NODES]

    # ---- mail

    def defer(self, is_on: bool) -> None:
        """Make the receiving servers answer every recipient with 451 (`is_on`), or accept mail. At once, also in open sessions."""
        self._require_servers()
        with self.state.turn.taken("defer"):
            if is_on:
                self._record(Change.DEFER)
            for service in RECEIVERS:
                self.engine.execute(service, *(("touch", "/run/lab/defer") if is_on else ("rm", "-f", "/run/lab/defer")))
            if not is_on:
                self._record(Change.TAKE)

    def verify(
        self, wait: float = 120.0, *, began_at: float = 0.0, on_look: Callable[[Verification], None] = lambda seen: None
    ) -> Verification:
        """Poll until everything acknowledged has arrived and no more can arrive, or for `wait` seconds. Then return the result.

        `began_at` (time.time): only messages sent from then on. `on_look` receives each intermediate result.
        """
        self._require_servers()
        deadline = time.monotonic() + wait
        while True:
            result, is_settled = self._look(began_at)
            on_look(result)
            if is_settled or time.monotonic() >= deadline:
                return result
            time.sleep(POLL_SECONDS)

    def _look(self, began_at: float) -> tuple[Verification, bool]:
        # queues before logs and arrivals: messages that leave a queue meanwhile are then found there; messages sent meanwhile are left out
        known = injected(self.state.injected_lines())
        backlog = self.mail.backlog()
        arrived = self.mail.arrivals()
        given, arrived = since(known, arrived, began_at, injected(self.state.injected_lines()))
        result = verify(
            self.mail.sent(given), arrived, faults(self.state.faults.read()), backlog.network_ids,
            at_sender={one.internet_message_id for one in given if one.queue_id in backlog.at_sender},
            is_receiver_busy=backlog.at_receivers > 0, silent=backlog.silent,
        )  # fmt: skip
        is_complete = not (result.lost or result.still_queued)
        return result, is_complete and backlog.is_empty

    def report(self, *, is_here: bool = False) -> Path:
        """Run the SLA job over the shipped logs: in the Spark container, or with the Spark of this environment. Returns the page."""
        self._known(NODES[0])
        make = report_here if is_here else report_in_container
        return make(self.engine, self.state, self._tell)

    def watched_report(self, *, wait: float = 0) -> Path:
        """Copy the newest page of the streaming job (profile `spark`) out of its volume; `wait`: for the first one, in seconds."""
        self._known(NODES[0])
        return report_watched(self.engine, self.state, self._tell, wait=wait)

    # ---- helpers

    def faults_in_force(self) -> list[str]:
        """Active faults as text."""
        return [*super().faults_in_force(), *(f"{service} has stopped" for service in self._ended_servers())]

    def _ended_servers(self) -> list[str]:
        states = self.engine.states()
        return [service for service in SERVERS if states.get(service) not in RUNNING]

    def _require_servers(self) -> None:
        """Require the servers that send, receive and resolve. Raises: LabError."""
        self._known(NODES[0])
        if ended := self._ended_servers():
            raise LabError(f"{' and '.join(ended)} of the lab has stopped: start it again with `shadowrelay lab up`")

    def _is_up(self) -> bool:
        return self.state.is_made and any(node in self.engine.containers() for node in NODES)

    def _build(self, services: Sequence[str]) -> None:
        if services and len(self.engine.images()) < len(services):
            self._tell("building the images (minutes the first time)")
        elif services:
            self._tell("comparing the images with the source, and building what is older")
        for service in services:
            self.engine.compose("build", service)

    def _revive(self, profiles: Sequence[str]) -> None:
        """Start missing or stopped containers, and log it."""
        self._tell("the lab is up: starting missing and stopped containers, replacing none (for new images: `lab down`, `lab up`)")
        states = self.engine.states()
        without_queue = [one.short for one in MACHINES if states.get(one.network) in ENDED]
        if without_queue:
            raise LabError(NO_QUEUE.format(nodes=", ".join(without_queue)))
        for one in MACHINES:
            if states.get(one.short) == "paused":
                self.unpause(one.short)
        try:
            self.engine.compose("up", "--detach", "--no-build", "--no-recreate", profiles=profiles)
        finally:
            states_now = self.engine.states()
            for one in MACHINES:
                if states.get(one.short) not in ALIVE and states_now.get(one.short) in ALIVE:
                    self._note(Change.START, one)

    def _remove(self) -> None:
        if kept := self.engine.remove():
            self._tell(KEPT.format(networks=", ".join(kept)))
