"""Faults in the nodes, networks and disks of a running lab. docs/lab.md.

Networks are cut and slowed in the network container of a node, by command lines built in pure functions. No other filters exist there,
so that healing means flushing all rules. Packets are dropped, not rejected: a cut cable gives no answer.

Each action holds a lock (`state.Turn`) and is logged (`fault_log`): before it starts if it begins a fault, after it if it ends one. An
interruption then leaves at worst a logged fault that did not happen, which `start`, `unpause` or `heal` ends; it never leaves a fault
that is not logged.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from shadowrelay.lab.engine import Engine, ask, until_healthy
from shadowrelay.lab.fault_log import Change, Entry, in_force
from shadowrelay.lab.state import State
from shadowrelay.lab.topology import LINK, MACHINES, NODES, LabError, LabMachine, machine, machines_of, network_between, pairs, peers_on

# ---- networks

Command = tuple[str, ...]

BURST = "16kb"
QUEUE_SECONDS = "5s"  # packets that would wait longer are dropped
QUEUE_PACKETS = "50"  # about the same in full packets at 128kbit


class Links:
    """Cuts and limits on the networks of the nodes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def cut(self, one: LabMachine, other: LabMachine) -> None:
        """Drop all packets between two nodes."""
        self._run(one, cut(self._engine.addresses(other.network).values()))

    def slow(self, one: LabMachine, network: str, peers: Sequence[LabMachine], rate: str) -> None:
        """Limit what a node sends to these peers on this network. Replaces an earlier limit on the network."""
        (interface,) = self._interfaces(one, [network])
        if set(peers) == set(peers_on(one, network)):
            self._run(one, slow(interface, rate))
        else:
            self._run(one, slow_toward(interface, rate, [self._engine.addresses(peer.network)[network] for peer in peers]))

    def heal(self, one: LabMachine) -> None:
        """Remove cuts and limits."""
        interfaces = self._interfaces(one, [LINK, one.site])
        self._run(one, [*heal(), *(command for interface in interfaces for command in unslow(interface))])

    def _interfaces(self, one: LabMachine, networks: Sequence[str]) -> list[str]:
        addresses = self._engine.addresses(one.network)
        listing = self._engine.execute(one.network, "ip", "-oneline", "-family", "inet", "address").decode()
        return [interface_of(listing, addresses[name]) for name in networks]

    def _run(self, one: LabMachine, commands: Sequence[Command]) -> None:
        self._engine.execute(one.network, "sh", "-ec", "\n".join(" ".join(command) for command in commands))


def cut(addresses: Iterable[str]) -> list[Command]:
    """Drop packets to and from these addresses."""
    return [
        command for address in addresses for command in (_drop("INPUT", "--source", address), _drop("OUTPUT", "--destination", address))
    ]


def heal() -> list[Command]:
    """Remove all cuts."""
    return [("iptables", "--flush", "INPUT"), ("iptables", "--flush", "OUTPUT")]


def slow(interface: str, rate: str) -> list[Command]:
    """Limit all outgoing traffic of this interface to `rate` (in tc's syntax: "128kbit")."""
    return [("tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate", rate, "burst", BURST, "latency", QUEUE_SECONDS)]


def slow_toward(interface: str, rate: str, addresses: Iterable[str]) -> list[Command]:
    """Limit outgoing traffic to these addresses only."""
    device = ("dev", interface)
    to = [("u32", "match", "ip", "dst", f"{address}/32", "flowid", "1:10") for address in addresses]
    return [
        *unslow(interface),  # an existing limit cannot be changed into this one
        ("tc", "qdisc", "replace", *device, "root", "handle", "1:", "htb"),
        ("tc", "class", "replace", *device, "parent", "1:", "classid", "1:10", "htb", "rate", rate, "burst", BURST, "cburst", BURST),
        ("tc", "qdisc", "replace", *device, "parent", "1:10", "pfifo", "limit", QUEUE_PACKETS),
        *(("tc", "filter", "add", *device, "parent", "1:", "protocol", "ip", "prio", "1", *match) for match in to),
    ]


def unslow(interface: str) -> list[Command]:
    """Remove the limit."""
    return [("tc", "qdisc", "replace", "dev", interface, "root", "noqueue")]


def interface_of(listing: str, address: str) -> str:
    """The interface with this address, from `ip -oneline -family inet address`; empty if none has it."""
    for line in listing.splitlines():
        _, name, *rest = line.split()
        if any(word.startswith(f"{address}/") for word in rest):
            return name
    return ""


def _drop(chain: str, side: str, address: str) -> Command:
    return ("iptables", "--append", chain, side, address, "--jump", "DROP")


# ---- nodes, networks, disks

STOP_SECONDS = 80  # as stop_grace_period in docker-compose.yml
RATE_DEFAULT = "128kbit"
QUEUE = "/queue"  # mount point of the node's queue volume in its network container
CONFIG = "/etc/shadowrelay/node.toml"
DRAIN_SECONDS_MAX = 300.0  # sessions 30 s, attempts 30 s, and two minutes without progress
FILLER = f"{QUEUE}/filler"
RUNNING = ("healthy", "starting", "unhealthy", "running")
ALIVE = (*RUNNING, "paused")
PAUSED = "{node} is paused: shadowrelay lab unpause {node}"
DEAD = "{node} does not run: shadowrelay lab start {node}"

Tell = Callable[[str], None]


class Disturbances:
    """Faults in the lab of one project directory; has no state in memory, so several instances may coexist."""

    def __init__(self, directory: Path | str = ".", *, tell: Tell = lambda text: None) -> None:
        self.state = State(Path(directory).resolve() / ".lab")
        self.engine = Engine(Path(directory), self.state.settings)
        self._links = Links(self.engine)
        self._tell = tell

    # ---- nodes

    def kill(self, node: str) -> None:
        """SIGKILL the process, even if paused. It stays down until `start`."""
        one = self._known(node)
        with self.state.turn.taken(f"kill {one.short}"):
            was = self._state(one)
            if was not in ALIVE:
                raise LabError(DEAD.format(node=one.short))
            self._note(Change.KILL, one)
            self.engine.docker("kill", self.engine.container(one.short))
            if was != "paused":  # else it has done nothing since it was paused
                self._note(Change.KILL, one, self._finished_at(one))

    def start(self, node: str) -> None:
        """Start a killed node, and wait until it is healthy. No effect if it runs."""
        one = self._known(node)
        with self.state.turn.taken(f"start {one.short}"):
            if self._state(one) == "paused":
                raise LabError(f"{one.short} is paused, not killed: shadowrelay lab unpause {one.short}")
            self.engine.docker("start", self.engine.container(one.short))
            self._note(Change.START, one)
            until_healthy(self.engine, [one.short])

    def wipe(self, node: str, *, is_start_wanted: bool = True) -> None:
        """Kill the node if it runs, destroy everything on its queue volume, and start it empty."""
        one = self._known(node)
        with self.state.turn.taken(f"wipe {one.short}"):
            if self._state(one) in ALIVE:
                self.kill(node)
            self._note(Change.WIPE, one)
            self._empty(one)
            if is_start_wanted:
                self.start(node)

    def pause(self, node: str) -> None:
        """Freeze the process. The network still accepts connections for it, as for a machine that hangs."""
        one = self._known(node)
        with self.state.turn.taken(f"pause {one.short}"):
            self._require_running(one)
            self._note(Change.PAUSE, one)
            self.engine.docker("pause", self.engine.container(one.short))

    def unpause(self, node: str) -> None:
        """Resume a paused node. No effect if it is not paused."""
        one = self._known(node)
        with self.state.turn.taken(f"unpause {one.short}"):
            was = self._state(one)
            if was not in ALIVE:
                raise LabError(f"{one.short} is killed, not paused: shadowrelay lab start {one.short}")
            if was == "paused":
                self.engine.docker("unpause", self.engine.container(one.short))
            self._note(Change.UNPAUSE, one)

    def burn(self, *nodes: str) -> None:
        """Kill these nodes at once, destroy everything on their queue volumes, and start them empty."""
        burnt = [self._known(node) for node in nodes]
        with self.state.turn.taken(f"burn {' '.join(nodes)}"):
            for one in burnt:
                if self._state(one) in ALIVE:
                    self.kill(one.short)
            for one in burnt:
                self.wipe(one.short, is_start_wanted=False)
            for one in burnt:
                self.start(one.short)

    def roll(self) -> list[str]:
        """Restart all nodes in turn, each when the previous one is healthy. Returns their names in order."""
        self._known(NODES[0])
        with self.state.turn.taken("roll"):
            for one in MACHINES:
                self._require_running(one)
                self._tell(f"{one.short} drains and starts again")
                identity = self.engine.container(one.short)
                self._note(Change.STOP, one)
                self.engine.docker("stop", "--time", str(STOP_SECONDS), identity, seconds=STOP_SECONDS + 20)
                self.engine.docker("start", identity)
                until_healthy(self.engine, [one.short])
        return list(NODES)

    def drain(self, node: str) -> dict[str, Any]:
        """Drain the node, as an operator does, and wait until it is inactive. Returns what the command says. Raises: LabError if
        something is left. The health check fails until `shadowrelay undrain`, or an empty queue."""
        one = self._known(node)
        with self.state.turn.taken(f"drain {one.short}"):
            self._require_running(one)
            said = self.engine.execute(one.short, "shadowrelay", "drain", "--config", CONFIG, "--json", seconds=DRAIN_SECONDS_MAX)
            status: dict[str, Any] = json.loads(said)
            return status

    def redirect(self, node: str, target: str) -> None:
        """Redirect the queues of a node to another, as an operator does, and wait until that is over. Raises: LabError if something is
        left."""
        one, other = self._known(node), self._known(target)
        with self.state.turn.taken(f"redirect {one.short} {other.short}"):
            self._require_running(one)
            command = ("shadowrelay", "queue", "redirect", "--to", other.server, "--config", CONFIG, "--json")
            self.engine.execute(one.short, *command, seconds=DRAIN_SECONDS_MAX)

    def resubmit(self, primary: str, began_at: float) -> None:
        """Ask all other nodes to resubmit from Shadow Safety Net what this one has delivered since `began_at` (time.time), as an operator
        does after it was lost, and wait until they have."""
        lost = self._known(primary)
        times = [datetime.fromtimestamp(at, UTC).isoformat() for at in (began_at, time.time())]
        command = ("shadowrelay", "safety-net", "resubmit", "--from", times[0], "--to", times[1], "--primary", lost.server)
        others = [one for one in MACHINES if one != lost]
        with self.state.turn.taken(f"resubmit {lost.short}"):
            numbers = {one: json.loads(self.engine.execute(one.short, *command, "--config", CONFIG, "--json"))["number"] for one in others}
            for one, number in numbers.items():
                _wait(partial(self._is_resubmitted, one, number), f"request {number} of {one.short}")

    def _is_resubmitted(self, one: LabMachine, number: int) -> bool:
        return bool(ask(self.engine, one.short, f"/api/v1/safety-net/requests/{number}")["state"] == "done")

    def configure(self, setting: str, place: str = "") -> None:
        """Give the nodes of a site, one node, or all, these lines of tables besides (see `with_lines`); or, if empty, their own
        configuration. Nodes that run have read it then."""
        configured = machines_of(place) if place else MACHINES
        self._known(NODES[0])
        with self.state.turn.taken("configure"):
            for one in configured:
                path, text = self.state.configuration(one.short), with_lines(self.state.original(one.short).read_text("utf-8"), setting)
                if path.read_text(encoding="utf-8") == text:
                    continue
                is_running = self._state(one) in RUNNING
                before = self._settings_of(one) if is_running else None
                path.write_text(text, encoding="utf-8")  # in place: the container has mounted this very file
                if is_running:
                    self.engine.docker("kill", "--signal", "HUP", self.engine.container(one.short))
                    _wait(partial(self._has_other_settings, one, before), f"the reload of {one.short}")

    def _has_other_settings(self, one: LabMachine, before: object) -> bool:
        return self._settings_of(one) != before

    def _settings_of(self, one: LabMachine) -> object:
        return ask(self.engine, one.short, "/api/v1/node")["settings"]

    # ---- networks

    def cut(self, one: str, other: str) -> list[tuple[str, str]]:
        """Drop all packets between two sites, two nodes, or a site and a node. Returns the pairs of nodes."""
        apart = pairs(one, other)
        self._known(NODES[0])
        with self.state.turn.taken(f"cut {one} {other}"):
            for left, right in apart:
                self._note(Change.CUT, left, other=right)
                self._links.cut(left, right)
        return [(left.short, right.short) for left, right in apart]

    def slow(self, one: str, other: str = "", rate: str = RATE_DEFAULT) -> list[str]:
        """Limit traffic between two places, each a site or a node; for one place, all that it sends to other nodes.

        The rate applies to each node and network. Returns the nodes whose sending is limited.
        """
        limits: dict[tuple[LabMachine, str], list[LabMachine]] = {}
        for left, right in pairs(one, other) if other else []:
            limits.setdefault((left, network_between(left, right)), []).append(right)
            limits.setdefault((right, network_between(left, right)), []).append(left)
        if not other:
            limits = {(each, network): peers_on(each, network) for each in machines_of(one) for network in (LINK, each.site)}
        self._known(NODES[0])
        slowed = [each for each in MACHINES if any(each == limited for limited, _ in limits)]
        with self.state.turn.taken(f"slow {one} {other}".strip()):
            for each in slowed:
                self._note(Change.SLOW, each)
            for (each, network), peers in limits.items():
                self._links.slow(each, network, peers, rate)
        return [each.short for each in slowed]

    def heal(self) -> None:
        """Remove all cuts and limits."""
        self._known(NODES[0])
        with self.state.turn.taken("heal"):
            for one in MACHINES:
                self._links.heal(one)
            self._record(Change.HEAL)

    # ---- disks

    def fill_disk(self, node: str) -> int:
        """Fill the queue volume to the last byte. Returns the free bytes: 0."""
        one = self._known(node)
        with self.state.turn.taken(f"fill-disk {one.short}"):
            self._note(Change.FILL, one)
            self.engine.execute(one.network, "sh", "-c", f"cat /dev/zero >{FILLER} 2>/dev/null || true")
            return self._free_bytes(one)

    def free_disk(self, node: str) -> int:
        """Remove the filler. Returns the free bytes."""
        one = self._known(node)
        with self.state.turn.taken(f"fill-disk {one.short} --undo"):
            self.engine.execute(one.network, "rm", "-f", FILLER)
            self._note(Change.FREE, one)
            return self._free_bytes(one)

    def save_database(self, node: str) -> Path:
        """Copy the queue volume (the node is paused meanwhile) for `restore_old_database`. Returns the file."""
        one = self._known(node)
        path = self.state.saved(one.short)
        with self.state.turn.taken(f"save-database {one.short}"):
            path.parent.mkdir(exist_ok=True)
            is_running = self._state(one) in RUNNING
            try:
                if is_running:
                    self.pause(node)
                path.write_bytes(self.engine.execute(one.network, "tar", "-C", QUEUE, "--exclude=./filler", "-cf", "-", "."))
            finally:
                if is_running:
                    self.unpause(node)
        return path

    def restore_old_database(self, node: str) -> None:
        """Replace the queue by the copy of `save_database`, and start the node on it. Never do this in production."""
        one = self._known(node)
        path = self.state.saved(one.short)
        if not path.is_file():
            raise LabError(f"there is no older copy of {one.short}: make one first with `shadowrelay lab save-database {one.short}`")
        with self.state.turn.taken(f"restore-old-database {one.short}"):
            if self._state(one) in ALIVE:
                self.kill(node)
            self._note(Change.RESTORE, one)
            self._empty(one)
            self.engine.execute(one.network, "tar", "-C", QUEUE, "-xpf", "-", data=path.read_bytes())
            self.start(node)

    def faults_in_force(self) -> list[str]:
        """Active faults as text."""
        return in_force(self.state.faults.read())

    # ---- helpers

    def _known(self, node: str) -> LabMachine:
        one = machine(node)
        self.engine.check()
        self.engine.container(one.short)
        return one

    def _state(self, one: LabMachine) -> str:
        return self.engine.states().get(one.short, "missing")

    def _require_running(self, one: LabMachine) -> None:
        state = self._state(one)
        if state not in RUNNING:
            raise LabError((PAUSED if state == "paused" else DEAD).format(node=one.short))

    def _finished_at(self, one: LabMachine) -> float:
        text = str(self.engine.inspect(one.short)["State"]["FinishedAt"])
        return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00").timestamp()

    def _empty(self, one: LabMachine) -> None:
        self.engine.execute(one.network, "find", QUEUE, "-mindepth", "1", "-delete")
        self._note(Change.FREE, one)  # this removed the filler, too

    def _free_bytes(self, one: LabMachine) -> int:
        return int(self.engine.execute(one.network, "df", "--block-size=1", "--output=avail", QUEUE).split()[-1])

    def _note(self, what: Change, one: LabMachine, at: float = 0.0, other: LabMachine | None = None) -> None:
        self._record(what, one.server, at, other.server if other else "")

    def _record(self, what: Change, node: str = "", at: float = 0.0, other: str = "") -> None:
        self.state.faults.append(Entry(at or time.time(), what, node, other))


RELOAD_SECONDS_MAX = 30.0


def with_lines(text: str, setting: str) -> str:
    """A configuration with these lines in its tables. Shapes: `setting` has a table's header and lines for it, and an empty line before
    the next header. A table that is not there is appended."""
    for table in setting.split("\n\n") if setting else ():
        header, _, lines = table.partition("\n")
        is_there = f"\n{header}\n" in text
        text = text.replace(f"\n{header}\n", f"\n{header}\n{lines}\n", 1) if is_there else f"{text}\n{table}\n"
    return text


def _wait(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + RELOAD_SECONDS_MAX
    while not is_so():
        if time.monotonic() > deadline:
            raise LabError(f"{what} took longer than {RELOAD_SECONDS_MAX:.0f} s")
        time.sleep(0.5)
