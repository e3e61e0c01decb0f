"""Cutting and slowing the networks of the lab, in the network container of a node. The command lines are pure functions.

Nothing else filters there, so that to heal is to flush. Packets are dropped, not refused: a cut cable says nothing.
"""

from collections.abc import Iterable, Sequence

from shadowrelay.lab.engine import Engine
from shadowrelay.lab.places import LINK, Machine, peers_on

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
