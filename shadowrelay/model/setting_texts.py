"""How values of a configuration are written: durations, sizes, addresses, patterns, targets. docs/design.md 7.

Durations, sizes, addresses and patterns are written as an operator writes them. `parse_*` and `format_*` are inverses, and the only
way in which text of a configuration becomes a value, so that "36MB" means the same everywhere. A target of tracking logs is shown
without its passwords and keys, which only the connecting library needs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, InstanceOf, PlainSerializer

from shadowrelay.model.event_names import CATALOGUE
from shadowrelay.model.ids import ServerName
from shadowrelay.model.numbers import decimal
from shadowrelay.model.protection import SMTPS
from shadowrelay.model.routing import HostPort

LEFT_OUT = "[left out]"

Option = str | bool | int

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+", re.ASCII)
_PASSWORD = re.compile(r"(?<=://)([^/:@]*):([^/]*)@")
_QUERY = re.compile(r"\?.*")
_HASH = re.compile(r"\$argon2(?:id|i|d)\$v=\d+\$m=\d{1,7},t=\d{1,3},p=\d{1,3}\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+")
_SECRET_NAME = re.compile(r"(?i)key|secret|token|pass|cred|sas|sign|auth|conn")
_SECRET_LENGTH_MIN = 4  # shorter text occurs in too many words to be replaced


def is_loopback(host: str) -> bool:
    """Whether this host is this machine, and no other."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


_ALL_ADDRESSES = {4: "0.0.0.0", 6: "::"}  # by version of IP


def is_one_address(host: str, other: str) -> bool:
    """Whether two sockets cannot both listen there on one port: the same address, or one of them is for all of that version of IP."""
    if host.lower() == other.lower():
        return True
    try:
        version, other_version = ip_address(host).version, ip_address(other).version
    except ValueError:
        return False
    return version == other_version and _ALL_ADDRESSES[version] in (host, other)


def own_hosts(listens: Iterable[HostPort]) -> frozenset[str]:
    """Hosts of this machine at which it listens, without those that stand for all its addresses."""
    return frozenset([listen.host for listen in listens]) - set(_ALL_ADDRESSES.values())


def checked_target(target: str) -> str:
    """Empty, an absolute directory or a URL. Raises: ValueError with the remedy, without the value: it may hold a password."""
    if "::" in target:
        raise ValueError('has "::" in it, which would chain stores; name the one place where the files shall lie')
    if target and not target.startswith("/") and _URL.fullmatch(target) is None:
        raise ValueError('is neither a URL nor an absolute directory; write one like "s3://bucket/tracking" or "/srv/tracking"')
    return target


def checked_options(options: object) -> object:
    """A table of text, whole numbers and truth values. Raises: ValueError with the remedy, without the values."""
    if not isinstance(options, Mapping):
        raise ValueError('is not a table; write one like { endpoint_url = "https://store.example" }, in the environment as JSON')
    wrong = [name for name, value in options.items() if not isinstance(value, str | bool | int)]
    if wrong:
        raise ValueError(f"{', '.join(map(str, wrong))}: is neither text, a whole number nor true or false; write it as one of them")
    return options


def shown_target(target: str) -> str:
    """The target without password and query."""
    return _QUERY.sub(f"?{LEFT_OUT}", _PASSWORD.sub(rf"\1:{LEFT_OUT}@", target)) if "://" in target else target


def shown_options(options: Mapping[str, Option]) -> dict[str, Option]:
    """The options; values named like secrets, or with a password in a URL, are left out."""
    return {name: LEFT_OUT if _is_secret(name, value) else value for name, value in options.items()}


def without_secrets(text: str, target: str, options: Mapping[str, Option]) -> str:
    """`text` of a library's error, without the secrets of the configuration."""
    found = _PASSWORD.search(target)
    secrets = [str(value) for name, value in options.items() if _is_secret(name, value)] + ([found[2]] if found else [])
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SECRET_LENGTH_MIN:
            text = text.replace(secret, LEFT_OUT)
    return text


def _is_secret(name: str, value: Option) -> bool:
    return _SECRET_NAME.search(name) is not None or _PASSWORD.search(str(value)) is not None


Network = IPv4Network | IPv6Network

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)?", re.ASCII)
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,255}}\Z){_LABEL}(?:\.{_LABEL})*", re.ASCII)  # as XSHADOW has it, docs/protocol.md 3
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?", re.ASCII)
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"  # RFC 5321 4.1.2
_MAILBOX = re.compile(rf"(?=.{{3,254}}\Z)(?=.{{1,64}}@){_ATOM}(?:\.{_ATOM})*@[A-Za-z0-9.-]+", re.ASCII)
_DOMAIN = re.compile(r"(?:\*\.)?\w(?:[\w.-]{0,252}\w)?\.?")

_DURATION_UNITS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1000}  # in microseconds
# docs/design.md 7: MB = 1,000,000 bytes; binary units have their own names
_SIZE_UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE_UNITS_WRITTEN = ("GB", "MB", "kB")


def parse_duration(value: object) -> timedelta:
    """ "90s", "2m", "1.5h", "2d", "250ms".

    Raises: ValueError with the remedy; a bare number is refused, because its unit would be a guess.
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


def rounded_size(value: float) -> str:
    """For reading: "97.6GB", "1.96kB", "223B". Units: bytes."""
    for unit in _SIZE_UNITS_WRITTEN:
        amount = value / _SIZE_UNITS[unit]
        if amount >= 1:
            return f"{amount:.0f}{unit}" if amount >= 100 else f"{amount:.3g}{unit}"
    return f"{value:.0f}B"


_SHARE = re.compile(r"([1-9][0-9]?|100)\s*%", re.ASCII)


def parse_size_or_share(value: object) -> str:
    """ "20%" of a disk, or a size; "0" is no limit. Raises: ValueError with the remedy."""
    if isinstance(value, str) and (share := _SHARE.fullmatch(value.strip())):
        return f"{share[1]}%"
    try:
        size = parse_size(value)
    except ValueError:
        raise ValueError('is neither a share of the disk nor a size; write "20%", "50GB", or "0" for no limit') from None
    if size < 0:
        raise ValueError('is less than nothing; write "0" for no limit')
    return format_size(size) if size else "0"


def size_of(limit: str, whole: int) -> int | None:
    """The octets that `parse_size_or_share` means of a disk of this size; None: no limit."""
    if limit.endswith("%"):
        return whole * int(limit[:-1]) // 100
    return parse_size(limit) or None


def parse_host_port(value: object, *, port_default: int | None = None) -> HostPort:
    """ "mx.example:25", "10.0.0.1:2525", "[::1]:25". Without a `port_default` the port is required; 0 = any free one.

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
    number = decimal(port, 65535)
    if port and number is None:
        raise ValueError(f"has the port {port[:20]!r}; a port is a number from 0 to 65535")
    if ":" not in host and not _HOST.fullmatch(host):
        raise wrong
    return HostPort(host, port_default or 0 if number is None else number)


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        host = host[5:] if host[:5].lower() == "ipv6:" else host  # as in an address of mail
        return (host, rest.removeprefix(":")) if ":" in host and is_ip_address(host) and (not rest or rest.startswith(":")) else ("", "")
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
    if isinstance(value, str) and is_ip_address(value.strip()):
        return HostPort(value.strip(), 53)
    try:
        server = parse_host_port(value, port_default=53)
    except ValueError:
        raise wrong from None
    if not server.port or not is_ip_address(server.host):
        raise wrong
    return server


def is_ip_address(text: str) -> bool:
    """Not a name, nor anything else."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def parse_next_hops(value: object) -> tuple[HostPort, ...]:
    """One "host:port" or an ordered list of them; the others are alternate routes. The port may be left out (25, or 465 of smtps://)."""
    entries = value if isinstance(value, list | tuple) else [value]
    if not entries:
        raise ValueError('is empty; name at least one server, like "mailstore.example:25"')
    return tuple(parse_next_hop(entry) for entry in entries)


def parse_next_hop(value: object) -> HostPort:
    """ "mailstore.example:25", "smtps://relay.example:465". Raises: ValueError with the remedy."""
    scheme, mark, rest = value.strip().partition("://") if isinstance(value, str) else ("", "", "")
    if not mark:
        return parse_host_port(value, port_default=25)
    if scheme.lower() != SMTPS:
        raise ValueError('has a scheme that is not known; write "host:port" for SMTP, or "smtps://host:port" for TLS from the first octet')
    server = parse_host_port(rest, port_default=465)
    return HostPort(server.host, server.port, SMTPS)


def format_next_hop(server: HostPort) -> str:
    """The inverse of `parse_next_hop`."""
    return f"{server.scheme}://{server}" if server.scheme else str(server)


def parse_network(value: object) -> Network:
    """ "10.0.0.0/8", "192.0.2.7", "2001:db8::/32". Raises: ValueError with the remedy."""
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    text = value.strip() if isinstance(value, str) else ""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError('is not a network; write one like "10.0.0.0/8", "192.0.2.7" or "2001:db8::/32"') from None
    if network.network_address != ip_address(text.partition("/")[0]):
        raise ValueError(f'is one address, not a network; write "{network}", or the address without "/{network.prefixlen}"')
    return network


def parse_name(value: object) -> str:
    """A host or domain name, made lower case. Raises: ValueError with the remedy."""
    name = value.strip().removesuffix(".") if isinstance(value, str) else ""
    if _NAME.fullmatch(name) is None:
        raise ValueError('is not a host name; write one like "mx1.east.example" (letters, digits, dots and hyphens)')
    return name.lower()


def parse_domain(value: object) -> str:
    """A mail domain, or "*.domain" for all below it; letters of any script; made lower case. Raises: ValueError with the remedy."""
    if not isinstance(value, str) or not _DOMAIN.fullmatch(value.strip()):
        raise ValueError('is not a domain; write one like "corp.example", or "*.corp.example" for all below it')
    return value.strip().rstrip(".").lower()


def parse_one_domain(value: object) -> str:
    """A mail domain, or "" for none. Raises: ValueError with the remedy."""
    text = value.strip() if isinstance(value, str) else "?"
    if text.startswith("*"):
        raise ValueError('is not one domain; write one like "corp.example"')
    return parse_domain(text) if text else ""


def parse_admin_url(value: object) -> str:
    """The address of a node's API, or nothing. Raises: ValueError with the remedy."""
    text = value.strip().rstrip("/") if isinstance(value, str) else "?"
    scheme, _, where = text.partition("://")
    try:
        if text and (scheme not in ("http", "https") or not parse_host_port(where, port_default=443).port):
            raise ValueError
    except ValueError:
        raise ValueError('is not the URL of a node\'s API; write one like "https://mx1.west.example:8026"') from None
    return text


def parse_filter_url(value: object) -> str:
    """Where a filter listens; the port may be left out (11333). Raises: ValueError with the remedy."""
    text = value.strip().rstrip("/") if isinstance(value, str) else ""
    scheme, _, where = text.partition("://")
    try:
        if scheme not in ("http", "https") or not (found := parse_host_port(where, port_default=11_333)).port:
            raise ValueError
    except ValueError:
        raise ValueError('is not the URL of a filter; write one like "http://127.0.0.1:11333"') from None
    return f"{scheme}://{found}"


def parse_mailbox(value: object) -> str:
    """An ASCII address, its domain made lower case; empty for none. Raises: ValueError with the remedy."""
    text = value.strip() if isinstance(value, str) else "?"
    if text and _MAILBOX.fullmatch(text) is None:
        raise ValueError('is not an address in ASCII; write one like "journal@archive.example"')
    local, _, domain = text.rpartition("@")
    return f"{local}@{parse_name(domain)}" if text else ""


def parse_pattern(value: object) -> str:
    """ "*@corp.example", "john@corp.example", "*@*.example", "*"; "postmaster" alone is an address, too (RFC 5321 4.5.1).

    Raises: ValueError with the remedy for a pattern that matches no address.
    """
    text = value.strip() if isinstance(value, str) else ""
    local, at, domain = text.rpartition("@")
    if (local and domain) if at else (text.startswith("*") or text.lower() == "postmaster"):
        return text
    raise ValueError(f'matches no address; write "*@{domain.strip("*.") or "corp.example"}", or "*" for all recipients')


def is_in_networks(text: str, networks: Sequence[Network]) -> bool:
    """Whether the text is an address in one of the networks."""
    try:
        address = ip_address(text)
    except ValueError:  # not an address: a socket without one
        return False
    return any(address in network for network in networks if network.version == address.version)


_AS_TEXT = PlainSerializer(str, when_used="json")
Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, when_used="json")]
SizeOrShare = Annotated[str, BeforeValidator(parse_size_or_share)]
Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, when_used="json")]
AdminUrl = Annotated[str, BeforeValidator(parse_admin_url)]
Address = Annotated[InstanceOf[HostPort], BeforeValidator(parse_host_port), _AS_TEXT]
NameServer = Annotated[InstanceOf[HostPort], BeforeValidator(parse_name_server), _AS_TEXT]
_AS_NEXT_HOP = PlainSerializer(format_next_hop, when_used="json")
NextHops = Annotated[tuple[Annotated[InstanceOf[HostPort], _AS_NEXT_HOP], ...], BeforeValidator(parse_next_hops)]
FilterUrl = Annotated[str, BeforeValidator(parse_filter_url)]
CheckedNetwork = Annotated[Network, BeforeValidator(parse_network)]
Mailbox = Annotated[str, BeforeValidator(parse_mailbox)]
CheckedDomain = Annotated[str, BeforeValidator(parse_domain)]
DefaultDomain = Annotated[str, BeforeValidator(parse_one_domain)]
Pattern = Annotated[str, BeforeValidator(parse_pattern)]
Name = Annotated[ServerName, BeforeValidator(parse_name)]


def checked_hash(text: object) -> object:
    """A hash by argon2, in its usual form. Raises: ValueError with the remedy, without the value."""
    if not isinstance(text, str) or _HASH.fullmatch(text) is None:
        raise ValueError("is no hash by argon2; `shadowrelay token` makes a token and its hash")
    return text


TokenHash = Annotated[str, BeforeValidator(checked_hash), PlainSerializer(lambda _: LEFT_OUT)]


def checked_webhook(url: str) -> str:
    """Where events are posted. Raises: ValueError with the remedy."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError('is not where events can be posted; write one like "https://hooks.example/shadowrelay"')
    return url


def checked_events(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of events. Raises: ValueError with those that there are not."""
    unknown = [name for name in names if name not in CATALOGUE]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: there is no such event; docs/operations.md lists them under Events")
    return names
