"""Durations, sizes, addresses and patterns as an operator writes them: `parse_*` and `format_*` are inverses.

They are the only way by which text of a configuration becomes a value, so that "36MB" means the same everywhere. No defaults here.
"""

import re
from datetime import timedelta
from fractions import Fraction
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated

from pydantic import BeforeValidator

from shadowrelay.model.routing import HostPort

Network = IPv4Network | IPv6Network

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)?", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?", re.ASCII)
_DOMAIN = re.compile(r"(?:\*\.)?\w(?:[\w.-]{0,252}\w)?\.?")

_DURATION_UNITS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1000}  # in microseconds
# docs/design.md 7: MB = 1,000,000 bytes; the binary ones are for those who mean them
_SIZE_UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE_UNITS_WRITTEN = ("GB", "MB", "kB")


def parse_duration(value: object) -> timedelta:
    """ "90s", "2m", "1.5h", "2d", "250ms".

    Raises: ValueError with the remedy; a bare number is refused, because nobody can tell what it counts.
    """
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('is not a duration; write a number and its unit, like "90s", "2m", "3h", "2d" or "250ms"')
    try:
        return timedelta(microseconds=round(Fraction(match[1]) * _DURATION_UNITS[match[2]]))
    except OverflowError:
        raise ValueError("is a longer duration than can be counted") from None


def format_duration(value: timedelta) -> str:
    """The shortest text with one unit that `parse_duration` reads back to the same value."""
    microseconds = value // timedelta(microseconds=1)  # not total_seconds(), which is not exact
    for unit, length in _DURATION_UNITS.items():
        if microseconds % length == 0 and microseconds >= length:
            return f"{microseconds // length}{unit}"
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{seconds}.{rest:06d}".rstrip("0").rstrip(".") + "s"


def parse_size(value: object) -> int:
    """ "36MB", "64KiB", or a whole number of bytes. Units: bytes. Raises: ValueError with the remedy."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('is not a size; write a number and its unit, like "36MB" (36,000,000 bytes) or "64KiB"')
    return round(float(match[1]) * _SIZE_UNITS[match[2] or "B"])


def format_size(value: int) -> str:
    """The inverse of `parse_size`, in decimal units. Units: bytes."""
    for unit in _SIZE_UNITS_WRITTEN:
        if value % _SIZE_UNITS[unit] == 0 and value >= _SIZE_UNITS[unit]:
            return f"{value // _SIZE_UNITS[unit]}{unit}"
    return f"{value}B"


def parse_host_port(value: object, *, port_default: int | None = None) -> HostPort:
    """ "mx.example:25", "10.0.0.1:2525", "[::1]:25". Without a `port_default` the port must be there; 0 = any free one.

    Raises: ValueError with the remedy.
    """
    if isinstance(value, HostPort):
        return value
    wrong = ValueError('is not an address; write "host:port", like "mx1.example:25", "127.0.0.1:2525" or "[::1]:25"')
    if not isinstance(value, str):
        raise wrong
    host, port = _split(value.strip())
    if not host or (not port and port_default is None):
        raise wrong
    if port and not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"has the port {port!r}; a port is a number from 0 to 65535")
    if ":" not in host and not _HOST.fullmatch(host):
        raise wrong
    return HostPort(host, int(port) if port else port_default or 0)


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return (host, rest.removeprefix(":")) if ":" in host and (not rest or rest.startswith(":")) else ("", "")
    host, _, port = text.partition(":")
    return (host, port) if ":" not in port else ("", "")


def parse_name_server(value: object) -> HostPort:
    """An IP address; the port may be left out (53). A name cannot be looked up before there is a name server.

    Raises: ValueError with the remedy.
    """
    wrong = ValueError(
        "is not the address of a name server; write an IP address, with a port where it is not 53, like "
        '"192.0.2.53", "127.0.0.1:5353" or "[2001:db8::53]:5353"'
    )
    if isinstance(value, str) and _is_ip_address(value.strip()):
        return HostPort(value.strip(), 53)
    try:
        server = parse_host_port(value, port_default=53)
    except ValueError:
        raise wrong from None
    if not server.port or not _is_ip_address(server.host):
        raise wrong
    return server


def _is_ip_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def parse_next_hops(value: object) -> tuple[HostPort, ...]:
    """One "host:port" or an ordered list of them; the others are alternate routes. The port may be left out (25)."""
    entries = value if isinstance(value, list | tuple) else [value]
    if not entries:
        raise ValueError('is empty; name at least one server, like "mailstore.example:25"')
    return tuple(parse_host_port(entry, port_default=25) for entry in entries)


def parse_network(value: object) -> Network:
    """ "10.0.0.0/8", "192.0.2.7", "2001:db8::/32". Raises: ValueError with the remedy."""
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    try:
        return ip_network(value if isinstance(value, str) else "")
    except ValueError as exc:
        raise ValueError(f'is not a network ({exc}); write one like "10.0.0.0/8", "192.0.2.7" or "2001:db8::/32"') from None


def parse_name(value: object) -> str:
    """A host or domain name, made lower case. Raises: ValueError with the remedy."""
    if not isinstance(value, str) or not _HOST.fullmatch(value.strip()):
        raise ValueError('is not a host name; write one like "mx1.east.example" (letters, digits, dots and hyphens)')
    return value.strip().rstrip(".").lower()


def parse_domain(value: object) -> str:
    """A mail domain, or "*.domain" for all below it; letters of any script; made lower case. Raises: ValueError with the remedy."""
    if not isinstance(value, str) or not _DOMAIN.fullmatch(value.strip()):
        raise ValueError('is not a domain; write one like "corp.example", or "*.corp.example" for all below it')
    return value.strip().rstrip(".").lower()


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Address = Annotated[HostPort, BeforeValidator(parse_host_port)]
NameServer = Annotated[HostPort, BeforeValidator(parse_name_server)]
NextHops = Annotated[tuple[HostPort, ...], BeforeValidator(parse_next_hops)]
CheckedNetwork = Annotated[Network, BeforeValidator(parse_network)]
CheckedDomain = Annotated[str, BeforeValidator(parse_domain)]
