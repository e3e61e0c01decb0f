"""Who may relay where: `relay_from` grants everything, `accepted_domains` their recipients, nothing else anything."""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

from shadowrelay.core.routing import Router
from shadowrelay.model.quantities import Network
from shadowrelay.model.settings import ReceiveConnector, Route
from shadowrelay.wire.addresses import domain_of

CACHED_MAX = 4_096  # addresses and domains whose answers are remembered


def client_ip(peername: object) -> str:
    """The address in a transport's `peername`, an IPv4 client of a dual socket as IPv4; empty where there is none."""
    if not isinstance(peername, tuple):
        return ""
    text = str(peername[0]).partition("%")[0]  # a link-local address has its interface behind it
    return text[7:] if text.startswith("::ffff:") and "." in text else text


class Rights:
    """What one receive connector grants to an address or a recipient's domain."""

    def __init__(self, connector: ReceiveConnector) -> None:
        self._relay_from: Final = connector.relay_from
        self._externally_secured: Final = connector.externally_secured
        names = connector.accepted_domains
        self._domains: Final = frozenset(domain_of(f"@{name}") for name in names if not name.startswith("*."))
        self._parents: Final = tuple(f".{domain_of(f'@{name[2:]}')}" for name in names if name.startswith("*."))
        self.may_relay = lru_cache(CACHED_MAX)(self._may_relay)
        self.is_externally_secured = lru_cache(CACHED_MAX)(self._is_externally_secured)

    def _may_relay(self, address: str) -> bool:
        return _is_in(address, self._relay_from)

    def _is_externally_secured(self, address: str) -> bool:
        return _is_in(address, self._externally_secured)

    def accepts(self, recipient: str) -> bool:
        """Whether anybody may send to this recipient, which has a domain."""
        domain = domain_of(recipient)
        return domain in self._domains or domain.endswith(self._parents)


def postmaster_homes(rights: Rights, connector: ReceiveConnector, server: str, routes: Sequence[Route]) -> tuple[str, str]:
    """Where a bare `Postmaster` lives for strangers, and for clients that may relay; empty: nowhere. RFC 5321 4.5.1.

    This server's name, where its mail is taken or has a route of its own, else the first accepted domain. A route for
    everything leads there too, but only for clients that may relay: what its next hop refuses comes back to them.
    """
    address = f"postmaster@{server}"
    own_routes = tuple(route for route in routes if not all(set(pattern) <= {"*", "@"} for pattern in route.recipients))
    if rights.accepts(address) or _has_route(own_routes, address):
        return server, server
    domain = next((name for name in connector.accepted_domains if not name.startswith("*.")), "")
    return domain, domain or (server if _has_route(routes, address) else "")


def _has_route(routes: Sequence[Route], address: str) -> bool:
    return bool(Router(routes).destination(address).hosts)


def _is_in(text: str, networks: tuple[Network, ...]) -> bool:
    try:
        address: IPv4Address | IPv6Address = ip_address(text)
    except ValueError:  # no address: a socket without one
        return False
    return any(address in network for network in networks if isinstance(network, IPv6Network) == (address.version == 6))
