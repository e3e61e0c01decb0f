"""The client for whom somebody else speaks: what a load balancer or a mail server in front says of it, and how that is written.
docs/protocol.md 6, docs/mtas.md "Whose mail it is".

Postfix's XCLIENT and XFORWARD name a client by attributes, `NAME=value`, values in xtext (RFC 3461). The same text, as one line of known
attributes, stands in the envelope of a message: in the queue database, in copies and in the tracking log. What does not fit is left out
of it, so that a copy never fails by it. All of it is somebody's word, and gives no right.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Any

from shadowrelay.model.numbers import decimal
from shadowrelay.model.printable import printable
from shadowrelay.model.replies import WireError
from shadowrelay.model.values import dataclass, replace
from shadowrelay.protocol.fields import bad_argument

XCLIENT = ("NAME", "ADDR", "PORT", "PROTO", "HELO", "LOGIN", "DESTADDR", "DESTPORT")
XFORWARD = ("NAME", "ADDR", "PORT", "PROTO", "HELO", "IDENT", "SOURCE")
UNAVAILABLE = "[UNAVAILABLE]"
TEMPORARILY_UNAVAILABLE = "[TEMPUNAVAIL]"
TEXT_OCTETS_MAX = 500  # of 6,144 octets of XSHADOW ENVELOPE: docs/protocol.md 14
LINE_OCTETS_MAX = 512  # of a command, with CRLF
NAME_OCTETS_MAX = 255  # of a host, and of any value. RFC 5321 4.5.3.1.2

_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
_PROTOCOL = re.compile(r"[A-Za-z0-9]{1,16}")
_VALUE = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-Fa-f]{2})*")
_HEX = re.compile(rb"\+([0-9A-Fa-f]{2})")
_LINE = re.compile(r"[!-~]+(?: [!-~]+)*")
_TO_ENCODE = re.compile(rb'[^!-~]|[+=;"\\]')  # beside xtext's own what the tracking log and JSON would escape


@dataclass(frozen=True, slots=True)
class OriginalClient:
    """Empty, or 0, is what is not known. `by`: the address of who says it."""

    address: str = ""
    port: int = 0
    name: str = ""
    helo: str = ""
    protocol: str = ""
    login: str = ""
    by: str = ""


NOBODY = OriginalClient()


def parse_attributes(argument: str, known: tuple[str, ...], before: OriginalClient) -> OriginalClient:
    """The argument of XCLIENT or XFORWARD, over what was said before. Raises: WireError 501 5.5.4."""
    found: dict[str, str] = {}
    for part in argument.split():
        key, equals, value = part.partition("=")
        key = key.upper()
        if not equals or key not in known or key in found:
            raise bad_argument("Bad attribute")
        found[key] = _decoded(value)
    if not found:
        raise bad_argument("Attributes are needed")
    values: dict[str, Any] = {name: check(found[key]) for key, (name, check) in _CHECKS.items() if key in found}
    return replace(before, **values)


def _decoded(value: str) -> str:
    if _VALUE.fullmatch(value) is None:
        raise bad_argument("Bad attribute value")
    octets = _HEX.sub(lambda code: bytes.fromhex(code[1].decode()), value.encode("ascii"))
    if len(octets) > NAME_OCTETS_MAX:
        raise bad_argument("Attribute value too long")
    text = octets.decode("utf-8", "backslashreplace")
    return "" if text.upper() in (UNAVAILABLE, TEMPORARILY_UNAVAILABLE) else printable(text)


def _address(text: str) -> str:
    bare = text[5:] if text[:5].upper() == "IPV6:" else text
    try:
        found = ip_address(bare) if text else None
    except ValueError:
        raise bad_argument("Bad ADDR") from None
    if isinstance(found, IPv6Address):
        if found.scope_id:
            raise bad_argument("Bad ADDR")
        found = found.ipv4_mapped or found
    return "" if found is None else str(found)


def checked_address(text: str) -> str:
    """The same address, empty if it is none."""
    try:
        return _address(text)
    except WireError:
        return ""


def _port(text: str) -> int:
    number = decimal(text, 65_535) if text else 0
    if number is None:
        raise bad_argument("Bad PORT")
    return number


def _name(text: str) -> str:
    if text and _NAME.fullmatch(text) is None:
        raise bad_argument("Bad NAME")
    return text


def _protocol(text: str) -> str:
    if text and _PROTOCOL.fullmatch(text) is None:
        raise bad_argument("Bad PROTO")
    return text.upper()


_CHECKS: Mapping[str, tuple[str, Callable[[str], str | int]]] = {
    "ADDR": ("address", _address),
    "PORT": ("port", _port),
    "BY": ("by", _address),
    "PROTO": ("protocol", _protocol),
    "HELO": ("helo", str),
    "LOGIN": ("login", str),
    "NAME": ("name", _name),
}
"""In the order of the text: what is left out first stands last. An IPv6 address is written without a prefix there."""


def format_original_client(client: OriginalClient) -> str:
    """The text of an envelope; empty for nobody."""
    text = ""
    for key, (name, _) in _CHECKS.items():
        if value := getattr(client, name):
            longer = f"{text} {key}={encoded(str(value))}" if text else f"{key}={encoded(str(value))}"
            if len(longer) <= TEXT_OCTETS_MAX:
                text = longer
    return text


def parse_original_client(text: str) -> OriginalClient:
    """Inverse of `format_original_client`. Attributes that are not known are ignored. Raises: WireError 501 5.5.4."""
    if not text:
        return NOBODY
    if len(text) > TEXT_OCTETS_MAX or _LINE.fullmatch(text) is None:
        raise bad_argument("Bad original client")
    known = " ".join(part for part in text.split(" ") if part.partition("=")[0] in _CHECKS)
    return parse_attributes(known, tuple(_CHECKS), NOBODY) if known else NOBODY


def checked_original_client(text: str) -> str:
    """The same text. Raises: WireError 501 5.5.4."""
    if text:
        parse_original_client(text)
    return text


def encoded(text: str) -> str:
    """As xtext."""
    octets = text.encode("utf-8", "backslashreplace")
    return _TO_ENCODE.sub(lambda found: b"+%02X" % found[0][0], octets).decode("ascii")


def format_commands(client: OriginalClient, verb: str, offered: frozenset[str]) -> Iterator[str]:
    """The lines, without CRLF, that tell a server of this client, in the attributes that it offers. What is not known is said to be
    unavailable, so that nothing of the connection is taken for it; but a protocol has to be one, and is left out."""
    line = verb
    for key in XCLIENT if verb == "XCLIENT" else XFORWARD:
        if key not in offered or key not in _CHECKS:
            continue
        value = str(getattr(client, _CHECKS[key][0]) or UNAVAILABLE)
        if key == "PROTO" and value not in ("SMTP", "ESMTP"):
            continue
        if key == "ADDR" and ":" in value:
            value = f"IPV6:{value}"
        part = f" {key}={encoded(value)}"
        if len(verb) + len(part) + 2 > LINE_OCTETS_MAX:  # what would not fit a line of its own
            part = f" {key}={UNAVAILABLE}"
        if len(line) + len(part) + 2 > LINE_OCTETS_MAX:
            yield line
            line = verb
        line += part
    if line != verb:
        yield line
