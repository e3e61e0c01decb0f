"""Names of servers and boundaries."""

import re

from shadowrelay.model.ids import BoundaryName, ServerName
from shadowrelay.wire.refusals import bad_argument
from shadowrelay.wire.xtext import parse_xtext

SERVER_OCTETS_MAX = 255  # RFC 5321 4.5.3.1.2
BOUNDARY_OCTETS_MAX = 64  # UTF-8; 192 as xtext

_SERVER = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*")


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
