"""What can be done to the nodes, networks and disks of a lab that is up.

Networks are cut and slowed in the network container of a node, by command lines that pure functions make. Nothing else filters there, so
that to heal is to flush. Packets are dropped, not refused: a cut cable gives no answer.

Each action takes its turn (`state.Turn`) and is written down (`fault_log`): before it is done if it begins a fault, after it if it ends
one. An interruption in between then leaves a fault in the log that is none, which `start`, `unpause` or `heal` ends; never one that nobody
knows of.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path

from shadowrelay.lab.engine import Engine, until_healthy
from shadowrelay.lab.fault_log import Happening, What, in_force
from shadowrelay.lab.state import State
from shadowrelay.lab.topology import LINK, MACHINES, NODES, LabError, Machine, machine, machines_of, network_between, pairs, peers_on

# ---- networks

Command = tuple[str, ...]

BURST = "16kb"
QUEUE_SECONDS = "5s"  # packets that would wait longer are dropped
QUEUE_PACKETS = "50"  # as much, in full packets at 128kbit


class Links:
    """The networks of the lab's nodes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def cut(self, one: Machine, other: Machine) -> None:
        """Drop everything between two nodes."""
        self._run(one, cut(self._engine.addresses(other.network).values()))

    def slow(self, one: Machine, network: str, peers: Sequence[Machine], rate: str) -> None:
        """Limit what a node sends to these peers by this network. What was said of the network before no longer counts."""
        (interface,) = self._interfaces(one, [network])
        if set(peers) == set(peers_on(one, network)):
            self._run(one, slow(interface, rate))
        else:
            self._run(one, slow_toward(interface, rate, [self._engine.addresses(peer.network)[network] for peer in peers]))

    def heal(self, one: Machine) -> None:
        """Undo both."""
        interfaces = self._interfaces(one, [LINK, one.site])
        self._run(one, [*heal(), *(command for interface in interfaces for command in unslow(interface))])

    def _interfaces(self, one: Machine, networks: Sequence[str]) -> list[str]:
        addresses = self._engine.addresses(one.network)
        listing = self._engine.execute(one.network, "ip", "-oneline", "-family", "inet", "address").decode()
        return [interface_of(listing, addresses[name]) for name in networks]

    def _run(self, one: Machine, commands: Sequence[Command]) -> None:
        self._engine.execute(one.network, "sh", "-ec", "\n".join(" ".join(command) for command in commands))


def cut(addresses: Iterable[str]) -> list[Command]:
    """Nothing goes to or comes from these addresses."""
    return [
        command for address in addresses for command in (_drop("INPUT", "--source", address), _drop("OUTPUT", "--destination", address))
    ]


def heal() -> list[Command]:
    """Whatever was cut is whole."""
    return [("iptables", "--flush", "INPUT"), ("iptables", "--flush", "OUTPUT")]


def slow(interface: str, rate: str) -> list[Command]:
    """Everything that leaves by this interface leaves at `rate` (as tc writes it: "128kbit")."""
    return [("tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate", rate, "burst", BURST, "latency", QUEUE_SECONDS)]


def slow_toward(interface: str, rate: str, addresses: Iterable[str]) -> list[Command]:
    """The same for what goes to these addresses; everything else leaves as ever."""
    device = ("dev", interface)
    to = [("u32", "match", "ip", "dst", f"{address}/32", "flowid", "1:10") for address in addresses]
    return [
        *unslow(interface),  # an older limit cannot be changed into this one
        ("tc", "qdisc", "replace", *device, "root", "handle", "1:", "htb"),
        ("tc", "class", "replace", *device, "parent", "1:", "classid", "1:10", "htb", "rate", rate, "burst", BURST, "cburst", BURST),
        ("tc", "qdisc", "replace", *device, "parent", "1:10", "pfifo", "limit", QUEUE_PACKETS),
        *(("tc", "filter", "add", *device, "parent", "1:", "protocol", "ip", "prio", "1", *match) for match in to),
    ]


def unslow(interface: str) -> list[Command]:
    """As it was."""
    return [("tc", "qdisc", "replace", "dev", interface, "root", "noqueue")]


def interface_of(listing: str, address: str) -> str:
    """Which interface has the address, out of `ip -oneline -family inet address`; empty if none has."""
    for line in listing.splitlines():
        _, name, *rest = line.split()
        if any(word.startswith(f"{address}/") for word in rest):
            return name
    return ""


def _drop(chain: str, side: str, address: str) -> Command:
    return ("iptables", "--append", chain, side, address, "--jump", "DROP")


# ---- all of it

STOP_SECONDS = 80  # as stop_grace_period in docker-compose.yml
RATE_DEFAULT = "128kbit"
QUEUE = "/queue"  # where the network container of a node has its queue volume
FILLER = f"{QUEUE}/filler"
RUNNING = ("healthy", "starting", "unhealthy", "running")
ALIVE = (*RUNNING, "paused")
PAUSED = "{node} is paused: shadowrelay lab unpause {node}"
DEAD = "{node} does not run: shadowrelay lab start {node}"

Tell = Callable[[str], None]


class Disturbances:
    """The lab of one project directory; nothing is kept in memory, so several may be made of the same."""

    def __init__(self, directory: Path | str = ".", *, tell: Tell = lambda text: None) -> None:
        self.state = State(Path(directory).resolve() / ".lab")
        self.engine = Engine(Path(directory), self.state.settings)
        self._links = Links(self.engine)
        self._tell = tell

    # ---- nodes

    def kill(self, node: str) -> None:
        """SIGKILL, of a paused node too. It stays dead until `start`."""
        one = self._known(node)
        with self.state.turn.taken(f"kill {one.short}"):
            was = self._state(one)
            if was not in ALIVE:
                raise LabError(DEAD.format(node=one.short))
            self._note(What.KILL, one)
            self.engine.docker("kill", self.engine.container(one.short))
            if was != "paused":  # else it has done nothing since it was
                self._note(What.KILL, one, self._finished_at(one))

    def start(self, node: str) -> None:
        """Start a node that was killed, and wait until it is healthy. Harmless if it runs."""
        one = self._known(node)
        with self.state.turn.taken(f"start {one.short}"):
            if self._state(one) == "paused":
                raise LabError(f"{one.short} is paused, not dead: shadowrelay lab unpause {one.short}")
            self.engine.docker("start", self.engine.container(one.short))
            self._note(What.START, one)
            until_healthy(self.engine, [one.short])

    def wipe(self, node: str, *, is_start_wanted: bool = True) -> None:
        """Kill it if it lives, destroy everything on its queue volume, and start it empty."""
        one = self._known(node)
        with self.state.turn.taken(f"wipe {one.short}"):
            if self._state(one) in ALIVE:
                self.kill(node)
            self._note(What.WIPE, one)
            self._empty(one)
            if is_start_wanted:
                self.start(node)

    def pause(self, node: str) -> None:
        """Freeze its process. The network still takes connections for it, as for a machine that hangs."""
        one = self._known(node)
        with self.state.turn.taken(f"pause {one.short}"):
            self._require_running(one)
            self._note(What.PAUSE, one)
            self.engine.docker("pause", self.engine.container(one.short))

    def unpause(self, node: str) -> None:
        """Let a paused node go on, as if nothing had happened. Harmless if it is not paused."""
        one = self._known(node)
        with self.state.turn.taken(f"unpause {one.short}"):
            was = self._state(one)
            if was not in ALIVE:
                raise LabError(f"{one.short} is dead, not paused: shadowrelay lab start {one.short}")
            if was == "paused":
                self.engine.docker("unpause", self.engine.container(one.short))
            self._note(What.UNPAUSE, one)

    def roll(self) -> list[str]:
        """Restart all nodes, one after the other, each when the one before is healthy. Returns their names in order."""
        self._known(NODES[0])
        with self.state.turn.taken("roll"):
            for one in MACHINES:
                self._require_running(one)
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
        apart = pairs(one, other)
        self._known(NODES[0])
        with self.state.turn.taken(f"cut {one} {other}"):
            for left, right in apart:
                self._note(What.CUT, left, other=right)
                self._links.cut(left, right)
        return [(left.short, right.short) for left, right in apart]

    def slow(self, one: str, other: str = "", rate: str = RATE_DEFAULT) -> list[str]:
        """Limit what two places, each a site or a node, send each other; of one place alone, all that it sends to other nodes.

        The rate is that of a node in a network. Returns the nodes whose sending is limited.
        """
        limits: dict[tuple[Machine, str], list[Machine]] = {}
        for left, right in pairs(one, other) if other else []:
            limits.setdefault((left, network_between(left, right)), []).append(right)
            limits.setdefault((right, network_between(left, right)), []).append(left)
        if not other:
            limits = {(each, network): peers_on(each, network) for each in machines_of(one) for network in (LINK, each.site)}
        self._known(NODES[0])
        slowed = [each for each in MACHINES if any(each == limited for limited, _ in limits)]
        with self.state.turn.taken(f"slow {one} {other}".strip()):
            for each in slowed:
                self._note(What.SLOW, each)
            for (each, network), peers in limits.items():
                self._links.slow(each, network, peers, rate)
        return [each.short for each in slowed]

    def heal(self) -> None:
        """End all cuts and slow networks."""
        self._known(NODES[0])
        with self.state.turn.taken("heal"):
            for one in MACHINES:
                self._links.heal(one)
            self._happened(What.HEAL)

    # ---- disks

    def fill_disk(self, node: str) -> int:
        """Fill its queue volume to the last byte. Returns the free bytes that are left: 0."""
        one = self._known(node)
        with self.state.turn.taken(f"fill-disk {one.short}"):
            self._note(What.FILL, one)
            self.engine.execute(one.network, "sh", "-c", f"cat /dev/zero >{FILLER} 2>/dev/null || true")
            return self._free_bytes(one)

    def free_disk(self, node: str) -> int:
        """Take the filler away. Returns the free bytes."""
        one = self._known(node)
        with self.state.turn.taken(f"fill-disk {one.short} --undo"):
            self.engine.execute(one.network, "rm", "-f", FILLER)
            self._note(What.FREE, one)
            return self._free_bytes(one)

    def save_database(self, node: str) -> Path:
        """Copy its queue volume as it is at this moment (it is frozen meanwhile) for `restore_old_database`. Returns the file."""
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
        """What nobody should do: put the copy of `save_database` in the place of the queue, and start the node on it."""
        one = self._known(node)
        path = self.state.saved(one.short)
        if not path.is_file():
            raise LabError(f"there is no older copy of {one.short}: make one first with `shadowrelay lab save-database {one.short}`")
        with self.state.turn.taken(f"restore-old-database {one.short}"):
            if self._state(one) in ALIVE:
                self.kill(node)
            self._note(What.RESTORE, one)
            self._empty(one)
            self.engine.execute(one.network, "tar", "-C", QUEUE, "-xpf", "-", data=path.read_bytes())
            self.start(node)

    def faults_in_force(self) -> list[str]:
        """What is still wrong with the lab, in words."""
        return in_force(self.state.faults.read())

    # ---- small things

    def _known(self, node: str) -> Machine:
        one = machine(node)
        self.engine.check()
        self.engine.container(one.short)
        return one

    def _state(self, one: Machine) -> str:
        return self.engine.states().get(one.short, "missing")

    def _require_running(self, one: Machine) -> None:
        state = self._state(one)
        if state not in RUNNING:
            raise LabError((PAUSED if state == "paused" else DEAD).format(node=one.short))

    def _finished_at(self, one: Machine) -> float:
        text = str(self.engine.inspect(one.short)["State"]["FinishedAt"])
        return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00").timestamp()

    def _empty(self, one: Machine) -> None:
        self.engine.execute(one.network, "find", QUEUE, "-mindepth", "1", "-delete")
        self._note(What.FREE, one)  # the filler is gone, too

    def _free_bytes(self, one: Machine) -> int:
        return int(self.engine.execute(one.network, "df", "--block-size=1", "--output=avail", QUEUE).split()[-1])

    def _note(self, what: What, one: Machine, at: float = 0.0, other: Machine | None = None) -> None:
        self._happened(what, one.server, at, other.server if other else "")

    def _happened(self, what: What, node: str = "", at: float = 0.0, other: str = "") -> None:
        self.state.faults.append(Happening(at or time.time(), what, node, other))
