"""Headers of the PROXY protocol as load balancers write them, and as nobody should."""

import socket
import struct

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
LOCAL, PROXY = 0x20, 0x21
TCP4, UDP4, TCP6, UNIX, UNSPEC = 0x11, 0x12, 0x21, 0x31, 0x00


def version_1(address: str = "203.0.113.5", port: int = 40_000) -> bytes:
    """The line of a client."""
    family = "TCP6" if ":" in address else "TCP4"
    return f"PROXY {family} {address} {'2001:db8::1' if ':' in address else '192.0.2.1'} {port} 25\r\n".encode()


def version_2(command: int = PROXY, family: int = TCP4, body: bytes | None = None, length: int | None = None) -> bytes:
    """With `body` as it is, and `length` whatever it is."""
    found = addresses() if body is None else body
    return SIGNATURE + struct.pack("!BBH", command, family, len(found) if length is None else length) + found


def addresses(client: str = "203.0.113.5", port: int = 40_000) -> bytes:
    """What stands behind the header for a client of this address."""
    family = socket.AF_INET6 if ":" in client else socket.AF_INET
    own = "2001:db8::1" if ":" in client else "192.0.2.1"
    return socket.inet_pton(family, client) + socket.inet_pton(family, own) + struct.pack("!HH", port, 25)


def tlv(kind: int, value: bytes, length: int | None = None) -> bytes:
    """One entry behind the addresses."""
    return struct.pack("!BH", kind, len(value) if length is None else length) + value


TLVS = tlv(0x05, b"id-1") + tlv(0x20, b"\x01" + b"\x00" * 4 + tlv(0x21, b"TLSv1.3")) + tlv(0xE0, b"x" * 300)

GOOD = [
    # name, octets, the client and port that they name; none: the connection's own
    ("version 1", version_1(), ("203.0.113.5", 40_000)),
    ("version 1, IPv6", version_1("2001:db8:1::5"), ("2001:db8:1::5", 40_000)),
    ("version 1, port 0", version_1(port=0), ("203.0.113.5", 0)),
    ("version 1, unknown", b"PROXY UNKNOWN\r\n", None),
    ("version 1, unknown with something behind it", b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
    ("version 1, the longest line", b"PROXY UNKNOWN " + b"f" * 91 + b"\r\n", None),
    ("version 2", version_2(), ("203.0.113.5", 40_000)),
    ("version 2, IPv6", version_2(family=TCP6, body=addresses("2001:db8:1::5")), ("2001:db8:1::5", 40_000)),
    ("version 2, IPv4 in IPv6", version_2(family=TCP6, body=addresses("::ffff:203.0.113.5")), ("203.0.113.5", 40_000)),
    ("version 2, entries behind the addresses", version_2(body=addresses() + TLVS), ("203.0.113.5", 40_000)),
    ("version 2, an entry that is cut short", version_2(body=addresses() + tlv(0x05, b"id", 900)), ("203.0.113.5", 40_000)),
    ("version 2, an entry that holds itself", version_2(body=addresses() + tlv(0x20, b"")), ("203.0.113.5", 40_000)),
    ("version 2, local", version_2(LOCAL, UNSPEC, b""), None),
    ("version 2, local with addresses", version_2(LOCAL, TCP4), None),
    ("version 2, local with entries", version_2(LOCAL, UNSPEC, TLVS), None),
    ("version 2, unspecified", version_2(PROXY, UNSPEC, b""), None),
    ("version 2, a Unix socket", version_2(PROXY, UNIX, b"/run/x".ljust(216, b"\x00")), None),
    ("version 2, the longest", version_2(body=addresses().ljust(4_080, b"\x00")), ("203.0.113.5", 40_000)),
]

BAD = [
    ("SMTP", b"EHLO client.example\r\n"),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("lower case", b"proxy TCP4 203.0.113.5 192.0.2.1 40000 25\r\n"),
    ("no space", b"PROXYTCP4 203.0.113.5 192.0.2.1 40000 25\r\n"),
    ("two spaces", b"PROXY  TCP4 203.0.113.5 192.0.2.1 40000 25\r\n"),
    ("a tab", b"PROXY\tTCP4 203.0.113.5 192.0.2.1 40000 25\r\n"),
    ("nothing but the word", b"PROXY\r\n"),
    ("nothing but the family", b"PROXY TCP4\r\n"),
    ("one address", b"PROXY TCP4 203.0.113.5\r\n"),
    ("no ports", b"PROXY TCP4 203.0.113.5 192.0.2.1\r\n"),
    ("one port", b"PROXY TCP4 203.0.113.5 192.0.2.1 40000\r\n"),
    ("more than ports", b"PROXY TCP4 203.0.113.5 192.0.2.1 40000 25 1\r\n"),
    ("no family that there is", b"PROXY TCP5 203.0.113.5 192.0.2.1 40000 25\r\n"),
    ("a family that the parser takes", b"PROXY TCPx4 203.0.113.5 192.0.2.1 40000 25\r\n"),
    ("datagrams", b"PROXY UDP4 203.0.113.5 192.0.2.1 40000 25\r\n"),
    ("the other family", b"PROXY TCP6 203.0.113.5 192.0.2.1 40000 25\r\n"),
    ("mixed families", b"PROXY TCP4 203.0.113.5 2001:db8::1 40000 25\r\n"),
    ("an address of five parts", b"PROXY TCP4 203.0.113.5.1 192.0.2.1 40000 25\r\n"),
    ("an address with zeros in front", b"PROXY TCP4 203.000.113.005 192.0.2.1 40000 25\r\n"),
    ("a name", b"PROXY TCP4 localhost 192.0.2.1 40000 25\r\n"),
    ("a zone", b"PROXY TCP6 fe80::1%eth0 fe80::2 40000 25\r\n"),
    ("a port above 65535", b"PROXY TCP4 203.0.113.5 192.0.2.1 65536 25\r\n"),
    ("a port with an underscore", b"PROXY TCP4 203.0.113.5 192.0.2.1 4_0 25\r\n"),
    ("a port with a sign", b"PROXY TCP4 203.0.113.5 192.0.2.1 +40 25\r\n"),
    ("a port of other digits", "PROXY TCP4 203.0.113.5 192.0.2.1 ٤٠ 25\r\n".encode()),
    ("a port with a zero in front", b"PROXY TCP4 203.0.113.5 192.0.2.1 040 25\r\n"),
    ("a NUL", b"PROXY TCP4 203.0.113.5\x00 192.0.2.1 40000 25\r\n"),
    ("a bare LF", b"PROXY TCP4 203.0.113.5 192.0.2.1 40000 25\n"),
    ("a CR within", b"PROXY UNKNOWN x\ry\r\n"),
    ("an escape sequence", b"PROXY TCP4 \x1b[2J 192.0.2.1 40000 25\r\n"),
    ("a line of 108 octets", b"PROXY UNKNOWN " + b"f" * 92 + b"\r\n"),
    ("a line without end", b"PROXY UNKNOWN " + b"f" * 30_000),
    ("half a signature", SIGNATURE[:8] + b"EHLO"),
    ("version 1 in the second form", SIGNATURE + b"\x11\x11\x00\x0c" + addresses()),
    ("version 3", SIGNATURE + b"\x31\x11\x00\x0c" + addresses()),
    ("a command that there is not", version_2(0x2F)),
    ("a family that there is not", version_2(PROXY, 0x41)),
    ("a protocol that there is not", version_2(PROXY, 0x13)),
    ("datagrams, version 2", version_2(PROXY, UDP4)),
    ("addresses cut short", version_2(body=addresses()[:8])),
    ("addresses of the other family", version_2(family=TCP6, body=addresses())),
    ("64 KiB", version_2(body=addresses().ljust(65_535, b"\x00"))),
    ("64 KiB announced", version_2(length=65_535)),
    ("one octet too long", version_2(body=addresses().ljust(4_081, b"\x00"))),
]
