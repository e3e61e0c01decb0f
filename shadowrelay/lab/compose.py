"""The lab in containers: `Lab` has one method for each `shadowrelay lab` command, and each returns what it found or did.

Synchronous: every step is a command of Docker. What is done to the lab is written down with its time (`fault_log`), because
`verify` must know which duplicates have a cause. All methods raise LabError. The mail that flows is `lab.mail`.
"""

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from shadowrelay.lab.engine import NOT_UP, Engine
from shadowrelay.lab.fault_log import Happening, What, faults, in_force
from shadowrelay.lab.health import until_healthy, until_listening
from shadowrelay.lab.mail import Mail
from shadowrelay.lab.network import Links
from shadowrelay.lab.places import LINK, MACHINES, NODES, RECEIVERS, SENDER, LabError, Machine, machine, machines_of, pairs
from shadowrelay.lab.reading import NodeStatus, node_status
from shadowrelay.lab.report_run import report_here, report_in_container
from shadowrelay.lab.state import State
from shadowrelay.lab.verification import Verification, injected, since, verify

BUILT = ("mx1.east", "dns")  # the services whose images all others use
PROFILE_SERVICES = {"prometheus": ("prometheus",), "spark": ("spark-master",)}
STOP_SECONDS = 70  # as stop_grace_period in docker-compose.yml
POLL_SECONDS = 1.0
RATE_DEFAULT = "128kbit"
QUEUE = "/queue"  # where the network container of a node has its queue volume
FILLER = f"{QUEUE}/filler"

Tell = Callable[[str], None]


class Lab:
    """The lab of one project directory; nothing is kept in memory, so several may be made of the same."""

    def __init__(self, directory: Path | str = ".", *, tell: Tell = lambda text: None) -> None:
        self.engine = Engine(Path(directory))
        self.state = State(self.engine.directory / ".lab")
        self.mail = Mail(self.engine, self.state)
        self._links = Links(self.engine)
        self._tell = tell

    # ---- the whole

    def up(self, profiles: Sequence[str] = (), *, is_build_wanted: bool = True) -> list[NodeStatus]:
        """Build what is missing or changed, start everything, and return when all nodes are healthy. Harmless if it is up."""
        self.engine.check()
        if not self._is_up():
            self.state.make()
        if is_build_wanted:
            self._tell("building the images (minutes the first time)")
            for service in (*BUILT, *(name for profile in profiles for name in PROFILE_SERVICES[profile])):
                self.engine.compose("build", service)
        self._tell("starting the containers")
        self.engine.compose("up", "--detach", "--no-build", profiles=profiles)
        self._tell("waiting until all nodes are healthy")
        until_healthy(self.engine, NODES)
        until_listening(self.engine, (SENDER, *RECEIVERS))
        return self.status()

    def down(self) -> None:
        """Remove containers, networks and volumes. The last report stays."""
        self.engine.check()
        if any(state == "paused" for state in self.engine.states().values()):
            self.engine.compose("unpause")
        if self.engine.containers():
            self.engine.compose("kill")  # nothing is worth draining
        self.engine.compose("down", "--volumes", "--remove-orphans")
        self.state.clear()

    def status(self) -> list[NodeStatus]:
        """Every node: its container, and what it says of itself."""
        self.engine.check()
        states = self.engine.states()
        if not any(node in states for node in NODES):
            raise LabError(NOT_UP)
        return [node_status(self.engine, node, states.get(node, "missing")) for node in NODES]

    # ---- nodes

    def kill(self, node: str) -> None:
        """SIGKILL. It stays dead until `start`."""
        one = self._running(node)
        self.engine.docker("kill", self.engine.container(one.short))
        self._note(What.KILL, one, self._finished_at(one))

    def start(self, node: str) -> None:
        """Start a node that was killed, and wait until it is healthy."""
        one = self._known(node)
        if self.engine.states().get(one.short) == "paused":
            raise LabError(f"{one.short} is paused, not dead: shadowrelay lab unpause {one.short}")
        self.engine.docker("start", self.engine.container(one.short))
        self._note(What.START, one)
        until_healthy(self.engine, [one.short])

    def wipe(self, node: str, *, is_start_wanted: bool = True) -> None:
        """Kill it if it runs, destroy everything on its queue volume, and start it empty."""
        one = self._known(node)
        if self._is_running(one):
            self.engine.docker("kill", self.engine.container(one.short))
            self._note(What.WIPE, one, self._finished_at(one))
        else:
            self._note(What.WIPE, one)
        self._empty(one)
        if is_start_wanted:
            self.start(node)

    def pause(self, node: str) -> None:
        """Freeze its process. The network still takes connections for it, as for a machine that hangs."""
        one = self._running(node)
        began_at = time.time()
        self.engine.docker("pause", self.engine.container(one.short))
        self._note(What.PAUSE, one, began_at)

    def unpause(self, node: str) -> None:
        """Let a paused node go on, as if nothing had happened."""
        one = self._known(node)
        self.engine.docker("unpause", self.engine.container(one.short))
        self._note(What.UNPAUSE, one)

    def roll(self) -> list[str]:
        """Restart all nodes, one after the other, each when the one before is healthy. Returns their names in order."""
        for one in MACHINES:
            self._running(one.short)
            self._tell(f"{one.short} drains and starts again")
            identity = self.engine.container(one.short)
            self._note(What.STOP, one)
            self.engine.docker("stop", "--time", str(STOP_SECONDS), identity, seconds=STOP_SECONDS + 20)
            self.engine.docker("start", identity)
            until_healthy(self.engine, [one.short])
        return list(NODES)

    # ---- networks

    def cut(self, one: str, other: str) -> list[tuple[str, str]]:
        """Drop everything between two sites, two nodes, or a site and a node. Returns the pairs of nodes."""
        self._known(NODES[0])
        apart = pairs(one, other)
        for left, right in apart:
            began_at = time.time()
            self._links.cut(left, right)
            self._note(What.CUT, left, began_at, right)
        return [(left.short, right.short) for left, right in apart]

    def slow(self, one: str, other: str = "", rate: str = RATE_DEFAULT) -> list[str]:
        """Limit what nodes send to each other: two sites, the link between them; one site or node, its site's network too.

        Returns the nodes whose sending is limited.
        """
        self._known(NODES[0])
        slowed = [*machines_of(one), *(machines_of(other) if other else ())]
        for each in slowed:
            self._links.slow(each, [LINK] if other else [LINK, each.site], rate)
            self._note(What.SLOW, each)
        return [each.short for each in slowed]

    def heal(self) -> None:
        """End all cuts and slow networks."""
        self._known(NODES[0])
        for one in MACHINES:
            self._links.heal(one)
        self._happened(What.HEAL)

    # ---- disks

    def fill_disk(self, node: str) -> int:
        """Fill its queue volume to the last byte. Returns the free bytes that are left: 0."""
        one = self._known(node)
        self.engine.execute(one.network, "sh", "-c", f"cat /dev/zero >{FILLER} 2>/dev/null || true")
        self._note(What.FILL, one)
        return self._free_bytes(one)

    def free_disk(self, node: str) -> int:
        """Take the filler away. Returns the free bytes."""
        one = self._known(node)
        self.engine.execute(one.network, "rm", "-f", FILLER)
        self._note(What.FREE, one)
        return self._free_bytes(one)

    def save_database(self, node: str) -> Path:
        """Copy its queue volume as it is at this moment (it is frozen meanwhile) for `restore_old_database`. Returns the file."""
        one = self._known(node)
        path = self.state.saved(one.short)
        path.parent.mkdir(exist_ok=True)
        is_running = self._is_running(one)
        if is_running:
            self.pause(node)
        try:
            path.write_bytes(self.engine.execute(one.network, "tar", "-C", QUEUE, "--exclude=./filler", "-cf", "-", "."))
        finally:
            if is_running:
                self.unpause(node)
        return path

    def restore_old_database(self, node: str) -> None:
        """What nobody should do: put the copy of `save_database` in the place of the queue, and start the node on it."""
        one = self._known(node)
        path = self.state.saved(one.short)
        if not path.is_file():
            raise LabError(f"there is no older copy of {one.short}: make one first with `shadowrelay lab save-database {one.short}`")
        if self._is_running(one):
            self.kill(node)
        self._empty(one)
        self.engine.execute(one.network, "tar", "-C", QUEUE, "-xpf", "-", data=path.read_bytes())
        self._note(What.RESTORE, one)
        self.start(node)

    # ---- mail

    def defer(self, is_on: bool) -> None:
        """The receiving servers answer every recipient with 451 (`is_on`), or take mail again. At once, in open sessions too."""
        self._known(NODES[0])
        for service in RECEIVERS:
            self.engine.execute(service, *(("touch", "/run/lab/defer") if is_on else ("rm", "-f", "/run/lab/defer")))
        self._happened(What.DEFER if is_on else What.TAKE)

    def verify(
        self, wait: float = 120.0, *, began_at: float = 0.0, on_look: Callable[[Verification], None] = lambda seen: None
    ) -> Verification:
        """Look until everything acknowledged has arrived and nothing can come any more, or for `wait` seconds. Then judge.

        `began_at` (time.time): only what was sent from then on. `on_look` sees what each look found.
        """
        self._known(NODES[0])
        deadline = time.monotonic() + wait
        while True:
            result, is_settled = self._look(began_at)
            on_look(result)
            if is_settled or time.monotonic() >= deadline:
                return result
            time.sleep(POLL_SECONDS)

    def _look(self, began_at: float) -> tuple[Verification, bool]:
        # queues first: what leaves them in between is then among the arrivals
        backlog = self.mail.backlog()
        given, arrived = since(injected(self.state.injected_lines()), self.mail.arrivals(), began_at)
        result = verify(
            self.mail.sent(given), arrived, faults(self.state.faults.read()), backlog.network_ids, is_receiver_busy=backlog.at_receivers > 0
        )
        is_complete = not (result.lost or result.still_queued)
        return result, is_complete and backlog.is_empty

    def faults_in_force(self) -> list[str]:
        """What is still wrong with the lab, in words."""
        return in_force(self.state.faults.read())

    def report(self, *, is_here: bool = False) -> Path:
        """Run the SLA job over the shipped logs: in the Spark container, or with the Spark of this environment. Returns the page."""
        self._known(NODES[0])
        make = report_here if is_here else report_in_container
        return make(self.engine, self.state, self._tell)

    # ---- small things

    def _is_up(self) -> bool:
        return any(node in self.engine.containers() for node in NODES)

    def _known(self, node: str) -> Machine:
        one = machine(node)
        self.engine.check()
        self.engine.container(one.short)
        return one

    def _running(self, node: str) -> Machine:
        one = self._known(node)
        if not self._is_running(one):
            raise LabError(f"{one.short} does not run: shadowrelay lab start {one.short}")
        return one

    def _is_running(self, one: Machine) -> bool:
        return self.engine.states().get(one.short) in ("healthy", "starting", "unhealthy", "running")

    def _finished_at(self, one: Machine) -> float:
        text = str(self.engine.inspect(one.short)["State"]["FinishedAt"])
        return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00").timestamp()

    def _empty(self, one: Machine) -> None:
        self.engine.execute(one.network, "find", QUEUE, "-mindepth", "1", "-delete")

    def _free_bytes(self, one: Machine) -> int:
        return int(self.engine.execute(one.network, "df", "--block-size=1", "--output=avail", QUEUE).split()[-1])

    def _note(self, what: What, one: Machine, at: float = 0.0, other: Machine | None = None) -> None:
        self._happened(what, one.server, at, other.server if other else "")

    def _happened(self, what: What, node: str = "", at: float = 0.0, other: str = "") -> None:
        self.state.faults.append(Happening(at or time.time(), what, node, other))
