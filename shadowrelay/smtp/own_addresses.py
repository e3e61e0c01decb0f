"""Recognises this node by its addresses: mail for them would come back. RFC 5321 5.1.

A name in DNS may lead here that nobody configured: an alias, an address literal, `localhost`, another interface. What counts is the
address and port that a connection would use, because another mail server may listen on another address or port of this machine.

Behind a load balancer or a translated address only the session itself shows it. A name is not enough for that: a filter of this machine may
have it. So to a client with this node's name EHLO has a word more, `XSELF`, with what only this process says.
"""

import ipaddress
import secrets
import socket
from collections.abc import Callable, Iterable

from shadowrelay.model.client_address import TRANSLATED
from shadowrelay.model.routing import HostPort, Reach

XSELF, THIS_PROCESS = "xself", secrets.token_hex(16)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
TRANSLATORS = (TRANSLATED, ipaddress.IPv6Network("64:ff9b:1::/48"), ipaddress.IPv6Network("::ffff:0:0:0/96"))  # RFC 8215, RFC 2765
COMPATIBLE = ipaddress.IPv6Network("::/96")  # RFC 4291 2.5.5.1
SHARED = ipaddress.IPv4Network("100.64.0.0/10")  # RFC 6598
THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")  # RFC 1122 3.2.1.3: some systems connect to themselves


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


def is_out_of_reach(host: HostPort, reach: Reach) -> bool:
    """Whether nothing may be sent to this address, which is no name. An IPv6 address that stands for an IPv4 address is both."""
    if reach is Reach.ANYWHERE:
        return False
    address = _address(host.host)
    return address is not None and any(_is_near(each) or (reach is Reach.PUBLIC and _is_private(each)) for each in _meant(address))


def leads_to_this_machine(mailbox: str) -> bool:
    """Whether the domain of this mailbox is a literal of an address that no mail of a stranger is returned to. RFC 5321 4.1.3"""
    if not mailbox.endswith("]"):
        return False
    text = mailbox.rpartition("@")[2][1:-1]
    return is_out_of_reach(HostPort(text[5:] if text[:5].lower() == "ipv6:" else text), Reach.BEYOND_THIS_MACHINE)


def _meant(address: Address) -> tuple[Address, ...]:
    """The address, and the IPv4 address in it."""
    if address.version == 4:
        return (address,)
    inner: list[Address] = [each for each in (address.sixtofour, *(address.teredo or ())) if each is not None]
    if address in COMPATIBLE or any(address in network for network in TRANSLATORS):
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return (address, *inner)


def _is_near(address: Address) -> bool:
    """This machine, its link, or no single machine at all."""
    is_near = address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    if address.version == 4:
        is_near = is_near or address in THIS_NETWORK or address.is_reserved  # 240.0.0.0/4, with the broadcast address
    return is_near or is_local(address)


def _is_private(address: Address) -> bool:
    """Not reachable from the Internet: also the site-local addresses of old, and those of carriers' translators."""
    if address.version == 4:
        return address.is_private or address in SHARED
    return (address.is_private or address.is_site_local) and address not in COMPATIBLE


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
