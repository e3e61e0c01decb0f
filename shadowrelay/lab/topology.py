"""The nodes, sites and services of docker-compose.yml, and the lab's errors. Pure. docs/lab.md "The cluster"."""

from dataclasses import dataclass
from itertools import product

from shadowrelay.model.replies import ShadowrelayError

DOMAIN = "example"
SENDER, DNS = "sender", "dns"
RECEIVERS = ("postfix", "exim")
SITES = ("east", "west")
LINK = "link"


class LabError(ShadowrelayError):
    """An error for the user of the lab; the text says what is wrong and what to do."""


class WrongUse(LabError):
    """An unknown name or option: exit code 2; other errors have 1."""


@dataclass(frozen=True, slots=True)
class LabMachine:
    """One node: `short` is its service and name in commands, `server` its name in mail and logs."""

    short: str
    site: str

    @property
    def server(self) -> str:
        return f"{self.short}.{DOMAIN}"

    @property
    def network(self) -> str:
        """The service that has its network addresses and its queue volume."""
        return f"network-{self.short}"


MACHINES = (
    LabMachine("mx1.east", "east"),
    LabMachine("mx2.east", "east"),
    LabMachine("mx1.west", "west"),
    LabMachine("mx2.west", "west"),
)
NODES = tuple(machine.short for machine in MACHINES)


def machine(name: str) -> LabMachine:
    """The node "mx1.east" or "mx1.east.example". Raises: WrongUse, which lists the names."""
    wanted = name.lower().removesuffix(f".{DOMAIN}")
    for one in MACHINES:
        if one.short == wanted:
            return one
    raise WrongUse(f"there is no node {name}; the lab has {', '.join(NODES)}")


def machines_of(name: str) -> tuple[LabMachine, ...]:
    """The nodes of a site, or the one node of that name. Raises: WrongUse."""
    if name.lower() in SITES:
        return tuple(one for one in MACHINES if one.site == name.lower())
    return (machine(name),)


def pairs(one: str, other: str) -> list[tuple[LabMachine, LabMachine]]:
    """Every pair of nodes between two places, each a site or a node. Raises: WrongUse."""
    found = [(left, right) for left, right in product(machines_of(one), machines_of(other)) if left != right]
    if not found or set(machines_of(one)) & set(machines_of(other)):
        raise WrongUse(f"{one} and {other} overlap: name two sites, two nodes, or a site and a node of the other site")
    return found


def network_between(one: LabMachine, other: LabMachine) -> str:
    """The network that connects two nodes: their site's, or the link between the sites."""
    return one.site if one.site == other.site else LINK


def peers_on(one: LabMachine, network: str) -> list[LabMachine]:
    """The nodes that a node reaches on this network."""
    return [other for other in MACHINES if other != one and network_between(one, other) == network]
