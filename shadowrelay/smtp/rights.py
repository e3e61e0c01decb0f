"""Who may relay where: `relay_from` grants everything, `accepted_domains` their recipients, nothing else anything."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

from shadowrelay.model.quantities import Network
from shadowrelay.model.settings import ReceiveConnector
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
        """Whether anybody may send to this recipient. `Postmaster` without a domain is ours. RFC 5321 4.5.1."""
        domain = domain_of(recipient)
        return not domain or domain in self._domains or domain.endswith(self._parents)


def _is_in(text: str, networks: tuple[Network, ...]) -> bool:
    try:
        address: IPv4Address | IPv6Address = ip_address(text)
    except ValueError:  # no address: a socket without one
        return False
    return any(address in network for network in networks if isinstance(network, IPv6Network) == (address.version == 6))
