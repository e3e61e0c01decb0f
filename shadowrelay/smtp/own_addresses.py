"""Recognises this node by its addresses: mail for them would come back. RFC 5321 5.1.

A name in DNS may lead here that nobody configured: an alias, an address literal, `localhost`, another interface. What counts is the
address and port that a connection would use, because another mail server may listen on another address or port of this machine.
"""

import ipaddress
import socket
from collections.abc import Callable, Iterable

from shadowrelay.model.routing import HostPort

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class OwnAddresses:
    """The addresses where this node accepts mail. `listening` gives the bound ones, at each call."""

    def __init__(self, listening: Callable[[], Iterable[HostPort]]) -> None:
        self._listening = listening

    def __contains__(self, host: HostPort) -> bool:
        """Whether a connection to this address, which is no name, would be one to this node."""
        bound = [_address(each.host) for each in self._listening() if each.port == host.port]
        address = _address(host.host) if bound else None
        if address is None:
            return False
        here = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
        meant = here if address.is_unspecified else address  # the kernel connects to itself
        is_on_all = any(each is not None and each.is_unspecified and each.version == meant.version for each in bound)
        return meant in bound or (is_on_all and is_local(meant))


def is_local(address: Address) -> bool:
    """Whether an interface of this machine has the address now: only then it can be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((str(address), 0))
    except OSError:
        return False
    return True


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
