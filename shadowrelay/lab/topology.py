"""What stands where in the lab of docker-compose.yml: nodes, sites, and the services around them. Pure."""

from dataclasses import dataclass
from itertools import product

from shadowrelay.model.replies import ShadowrelayError

DOMAIN = "example"
SENDER, DNS = "sender", "dns"
RECEIVERS = ("postfix", "exim")
SITES = ("east", "west")
LINK = "link"


class LabError(ShadowrelayError):
    """What a person must know or do; the text says it."""


class WrongUse(LabError):
    """What was asked for is nothing that there is: exit code 2, where other errors are 1."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One node: `short` is its service and what commands take, `server` its name in mail and logs."""

    short: str
    site: str

    @property
    def server(self) -> str:
        return f"{self.short}.{DOMAIN}"

    @property
    def network(self) -> str:
        """The service that holds its addresses and its queue volume."""
        return f"network-{self.short}"


MACHINES = (
    Machine("mx1.east", "east"),
    Machine("mx2.east", "east"),
    Machine("mx1.west", "west"),
    Machine("mx2.west", "west"),
)
NODES = tuple(machine.short for machine in MACHINES)


def machine(name: str) -> Machine:
    """By "mx1.east" or "mx1.east.example". Raises: WrongUse naming those that there are."""
    wanted = name.lower().removesuffix(f".{DOMAIN}")
    for one in MACHINES:
        if one.short == wanted:
            return one
    raise WrongUse(f"there is no node {name}; the lab has {', '.join(NODES)}")


def machines_of(name: str) -> tuple[Machine, ...]:
    """The nodes of a site, or the one node of that name. Raises: WrongUse."""
    if name.lower() in SITES:
        return tuple(one for one in MACHINES if one.site == name.lower())
    return (machine(name),)


def pairs(one: str, other: str) -> list[tuple[Machine, Machine]]:
    """Every pair of nodes between two places, each a site or a node. Raises: WrongUse."""
    found = [(left, right) for left, right in product(machines_of(one), machines_of(other)) if left != right]
    if not found or set(machines_of(one)) & set(machines_of(other)):
        raise WrongUse(f"{one} and {other} are not apart: name two sites, two nodes, or a site and a node of the other one")
    return found


def network_between(one: Machine, other: Machine) -> str:
    """By which network two nodes meet: their own site's, or the link between the sites."""
    return one.site if one.site == other.site else LINK


def peers_on(one: Machine, network: str) -> list[Machine]:
    """Whom a node reaches by this network."""
    return [other for other in MACHINES if other != one and network_between(one, other) == network]
