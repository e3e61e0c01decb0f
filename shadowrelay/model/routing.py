"""Routing values: server addresses, destinations (next hops) and forks. docs/design.md 2."""

from enum import StrEnum

from shadowrelay.model.message import Ordinals
from shadowrelay.model.protection import Protection
from shadowrelay.model.values import dataclass


@dataclass(frozen=True, slots=True)
class HostPort:
    """A server to connect to. `host` is a name or a bare IP address (IPv6 without brackets). `scheme`: empty, or `protection.SMTPS`."""

    host: str
    port: int = 25
    scheme: str = ""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Reach(StrEnum):
    """Which servers a message may be sent to, where no route names them."""

    ANYWHERE = "anywhere"
    BEYOND_THIS_MACHINE = "beyond-this-machine"  # neither this machine nor its link
    PUBLIC = "public"  # nor a private network


@dataclass(frozen=True, slots=True)
class Destination:
    """A next hop as chosen by routing: an ordered list of servers (a route), or a domain to look up in DNS (MX).

    Shapes: exactly one of `hosts` and `domain` is set. `key` identifies it in listings, logs and retry rows:
    "mailstore.corp.example:25" (first host) or the domain; with "~hub1.corp.example:2525" after it, without that server.
    `avoided`: servers that DNS may name, and that must not be connected to; empty with `hosts`.
    """

    key: str
    hosts: tuple[HostPort, ...] = ()
    domain: str = ""
    inside_boundary: bool = False
    tracks: bool = False  # this node keeps the shadow of what it relays to a host that is a peer (`TRACK`)
    avoided: frozenset[HostPort] = frozenset()
    concurrency: int = 0  # sessions at once; 0: `send.concurrency_per_destination`
    is_literal: bool = False  # the address of the recipient names the server, not a route
    protection: Protection | None = None  # of its sessions, as its route demands
    xclient: bool = False  # it is told the client by XCLIENT, or by XFORWARD, if it offers that
    xforward: bool = False


@dataclass(frozen=True, slots=True)
class Fork:
    """The recipients of one message that share a next hop."""

    destination: Destination
    ordinals: Ordinals
