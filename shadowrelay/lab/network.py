"""Cutting and slowing the networks of the lab, in the network container of a node. The command lines are pure functions.

Nothing else filters there, so that to heal is to flush. Packets are dropped, not refused: a cut cable says nothing.
"""

from collections.abc import Iterable, Sequence

from shadowrelay.lab.engine import Engine
from shadowrelay.lab.places import LINK, Machine

Command = tuple[str, ...]

BURST = "16kb"
QUEUE_SECONDS = "5s"  # packets that would wait longer are dropped


class Links:
    """The networks of the lab's nodes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def cut(self, one: Machine, other: Machine) -> None:
        """Drop everything between two nodes."""
        self._run(one, cut(self._engine.addresses(other.network).values()))

    def slow(self, one: Machine, networks: Sequence[str], rate: str) -> None:
        """Limit what a node sends into these networks."""
        self._run(one, [command for interface in self._interfaces(one, networks) for command in slow(interface, rate)])

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
