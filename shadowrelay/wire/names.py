"""Names of servers and boundaries, and the xtext that a boundary travels in.

xtext is any text as printable ASCII without `=`, `+` and space. Source: RFC 3461 section 4.
"""

import re

from shadowrelay.model.ids import BoundaryName, ServerName
from shadowrelay.wire.refusals import bad_argument

SERVER_OCTETS_MAX = 255  # RFC 5321 4.5.3.1.2
BOUNDARY_OCTETS_MAX = 64  # UTF-8; 192 as xtext

_SERVER = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*")

_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-F]{2})*")
_ENCODED = re.compile(rb"\+([0-9A-F]{2})")
_NOT_PLAIN = re.compile(rb"[^!-*,-<>-~]")


def parse_server(text: str) -> ServerName:
    """A server's name, in lower case. Raises: WireError 501 5.5.4."""
    name = text.lower()
    if len(name) > SERVER_OCTETS_MAX or _SERVER.fullmatch(name) is None:
        raise bad_argument("Bad server name")
    return ServerName(name)


def parse_boundary(text: str) -> BoundaryName:
    """A boundary's name from xtext. Raises: WireError 501 5.5.4."""
    name = parse_xtext(text, "boundary")
    if not 0 < len(name.encode("utf-8")) <= BOUNDARY_OCTETS_MAX:
        raise bad_argument("Bad boundary")
    return BoundaryName(name)


def format_xtext(text: str) -> str:
    """UTF-8, with `+XX` for whatever is not plain. Raises UnicodeEncodeError for lone surrogates."""
    return _NOT_PLAIN.sub(lambda found: b"+%02X" % found[0][0], text.encode("utf-8")).decode("ascii")


def parse_xtext(text: str, what: str) -> str:
    """Inverse of `format_xtext`. Raises: WireError 501 5.5.4."""
    if _XTEXT.fullmatch(text) is None:
        raise bad_argument(f"Bad {what}")
    octets = _ENCODED.sub(lambda found: bytes((int(found[1], 16),)), text.encode("ascii"))
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        raise bad_argument(f"Bad {what}") from None
