"""The header of the PROXY protocol (versions 1 and 2), by which a load balancer names the client before that one's first octet.
docs/reference.md "Behind a load balancer".

aiosmtpd's parser knows the structure of both versions. What it leaves open is closed here, and a test pins each: it reads as much as a
header says (64 KiB) or until a line ends (16 KiB), for as long as that takes; it takes `TCPx4`, and ports like `1_0` or `+1`; it takes
datagrams; each bad header is a warning of a logger of its own. The time is limited by the caller.

What a header says is a label, and decides no right but one that an operator gives to such addresses: `reception.Reception.may_relay`.
"""

import logging
import re
from ipaddress import IPv6Address

from aiosmtpd.proxy_protocol import AF, PROTO, V2_CMD, get_proxy

from shadowrelay.model.values import dataclass
from shadowrelay.smtp.data import CommandReader

HEADER_OCTETS_MAX = 4_096  # of version 2, with what follows the addresses: haproxy's is below 600, or 3,000 with a client certificate
LINE_OCTETS_MAX = 107  # of version 1
HEADER_SECONDS = 5.0  # the specification asks for 3 at least: a lost packet is sent again within that
SIGNATURE_OCTETS = 5  # which the parser reads before it knows the version

# Of version 1. What stands behind UNKNOWN is to be ignored.
_LINE = re.compile(rb"PROXY (?:UNKNOWN(?: [^\r\n]*)?|TCP[46](?: [0-9A-Fa-f.:]+){2}(?: (?:0|[1-9][0-9]{0,4})){2})\r\n")

logging.getLogger("mail.debug").setLevel(logging.ERROR)  # the parser's


class BadProxyHeader(Exception):
    """There is no header, or one that means nothing. The text says why."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """`address` is empty where the header names no client of the Internet: UNKNOWN, UNSPEC, a Unix socket. `is_local`: the load balancer
    speaks for itself, as in its health checks."""

    is_local: bool
    address: str = ""
    port: int = 0


class _BoundedReader:
    """What the parser reads from."""

    def __init__(self, reader: CommandReader) -> None:
        self._reader = reader
        self._left = HEADER_OCTETS_MAX

    async def readexactly(self, n: int) -> bytes:
        """`n` octets."""
        self._left -= n
        if self._left < 0:
            raise BadProxyHeader(f"longer than {HEADER_OCTETS_MAX} octets")
        return await self._reader.readexactly(n)

    async def read(self, n: int = 0) -> bytes:
        """All of them: the parser would ask for the rest."""
        return await self.readexactly(n)

    async def readuntil(self, separator: bytes = b"\n") -> bytes:
        """The rest of a line of version 1."""
        rest = LINE_OCTETS_MAX - SIGNATURE_OCTETS
        while (end := self._reader.buffered.find(separator, 0, rest)) < 0:
            if len(self._reader.buffered) >= rest:
                raise BadProxyHeader(f"a line longer than {LINE_OCTETS_MAX} octets")
            await self._reader.more()
        return await self._reader.readexactly(end + len(separator))


async def read_proxy_header(reader: CommandReader) -> ProxyHeader:
    """Take the header, and nothing behind it. Raises: BadProxyHeader; IncompleteReadError, ConnectionError if nothing came."""
    found = await get_proxy(_BoundedReader(reader))
    if not found.valid:
        raise BadProxyHeader(found.error.removeprefix("PROXY exception: ") or "not a PROXY header")
    if found.version == 1 and _LINE.fullmatch(found.whole_raw) is None:
        raise BadProxyHeader("a line that means nothing")
    if found.version == 2 and found.command == V2_CMD.LOCAL:
        return ProxyHeader(is_local=True)
    if found.protocol == PROTO.DGRAM:
        raise BadProxyHeader("about datagrams")
    if found.family not in (AF.INET, AF.INET6) or found.protocol != PROTO.STREAM:
        return ProxyHeader(is_local=False)
    client = found.src_addr
    if isinstance(client, IPv6Address) and client.ipv4_mapped is not None:
        client = client.ipv4_mapped
    return ProxyHeader(False, str(client), found.src_port or 0)
