"""A client's address, as rights, limits and logs know it: of mail (`smtp`) and of the API (`admin`). docs/reference.md "IPv6"."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network

TRANSLATED = IPv6Network("64:ff9b::/96")  # RFC 6052: its last 32 bits are the IPv4 address


def client_ip(peername: object) -> str:
    """The address in a transport's `peername`; IPv4 for an IPv4 client of a dual-stack socket; empty if there is none."""
    if not isinstance(peername, tuple):
        return ""
    text = str(peername[0]).partition("%")[0]  # a link-local address is followed by its interface
    return text[7:] if text.startswith("::ffff:") and "." in text else text


def client_network(address: str) -> str:
    """What limits for one client count: an IPv4 address, also where a translator (RFC 6052) or 6to4 writes it as an IPv6 address, or the 64
    bits of IPv6 that one customer has at least."""
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address)
    except ValueError:
        return address
    if (inner := found.sixtofour) is not None:  # it has 65,536 networks of 64 bits
        return str(inner)
    if found in TRANSLATED:  # the whole Internet of IPv4 is in one of 64 bits
        return str(IPv4Address(int(found) & 0xFFFFFFFF))
    return str(IPv6Network((int(found) >> 64 << 64, 64)))
