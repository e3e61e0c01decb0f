"""The text of delivery status notifications: clean, folded, bounded; and what of the original goes back.

Everything here comes from strangers. No control character passes, no line is longer than a mail line may be.
"""

import re
import textwrap

RETURNED_OCTETS_MAX = 64 * 1024  # of the original: a notification is no way to send somebody's mail to somebody else
LINE_OCTETS_MAX = 998  # RFC 5322 2.1.1
FOLD_COLUMN = 76
WORD_CHARACTERS_MAX = 200  # a longer word is broken; 4 octets each in UTF-8 stay under the line's limit
ADDRESS_CHARACTERS_MAX = 600  # RFC 3461 4.2: ORCPT is at most 500 octets

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_LONG_WORD = re.compile(rf"(\S{{{WORD_CHARACTERS_MAX}}})(?=\S)")
_NOT_ASCII = re.compile(r"[^ -~\r\n]")
_NOT_ASCII_OCTET = re.compile(rb"[\x80-\xff]")
_NOT_PLAIN = re.compile(r"[^ -~]|[\\+=]")
_NOT_PLAIN_UNITEXT = re.compile(r"[\\+=]")
_EMBEDDED = re.compile(r"\\x\{([0-9A-Fa-f]{2,6})\}")  # RFC 6533 3, EmbeddedUnicodeChar
_LONG_LINE = re.compile(rb"^([^\r\n]{%d})[^\r\n]+" % LINE_OCTETS_MAX, re.MULTILINE)  # anchored: linear
_ENCODED = re.compile(rb"\+([0-9A-F]{2})")


def clean(text: str) -> str:
    """Without control characters and lone surrogates."""
    return _CONTROLS.sub(" ", text).strip()


def field(name: str, value: str) -> str:
    """One header field, folded, without its last line end. RFC 5322 2.2.3"""
    return wrapped(f"{name}: {clean(value)}", "", " ")


def wrapped(text: str, first: str, later: str) -> str:
    """Lines of about 76 characters, each with its indent. Words are not broken unless they are monstrous."""
    lines = textwrap.wrap(
        _LONG_WORD.sub(r"\1 ", text),
        FOLD_COLUMN,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\r\n".join(lines)


def encoded(text: str, *, is_international: bool) -> bytes:
    """UTF-8, or ASCII with a question mark for whatever is none."""
    return text.encode("utf-8") if is_international else _NOT_ASCII.sub("?", text).encode("ascii")


def plain_address(address: str, *, is_international: bool) -> str:
    """utf-8-addr-unitext, or utf-8-addr-xtext where only ASCII may be: 大 is \\x{5927}. RFC 6533 3"""
    address = clean(address)[:ADDRESS_CHARACTERS_MAX]
    if is_international or address.isascii():
        return address
    return _NOT_PLAIN.sub(_embedded, address)


def typed_address(address: str, *, is_international: bool) -> str:
    """The value of Final-Recipient. RFC 3464 2.1.2, RFC 6533 3"""
    kind = "rfc822" if address.isascii() else "utf-8"
    return f"{kind}; {plain_address(address, is_international=is_international)}"


def original_address(orcpt: str, *, is_international: bool) -> str:
    """The value of Original-Recipient, from ORCPT as it came; empty if it is none. RFC 3461 4.2, RFC 6533 3"""
    kind, separator, address = orcpt.partition(";")
    if not separator:
        return ""
    if kind.lower() != "utf-8":
        return f"{clean(kind)[:40]}; {from_xtext(address)}"
    decoded = clean(_EMBEDDED.sub(_character, address))[:ADDRESS_CHARACTERS_MAX]
    pattern = _NOT_PLAIN_UNITEXT if is_international else _NOT_PLAIN
    return "utf-8; " + pattern.sub(_embedded, decoded)


def _embedded(found: re.Match[str]) -> str:
    return f"\\x{{{ord(found[0]):X}}}"


def _character(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    return chr(number) if number <= 0x10FFFF else found[0]


def from_xtext(text: str) -> str:
    """What xtext stands for; forgiving, because it is only shown."""
    octets = _ENCODED.sub(lambda found: bytes((int(found[1], 16),)), text.encode("utf-8", "replace"))
    return clean(octets.decode("utf-8", "replace"))[:ADDRESS_CHARACTERS_MAX]


def header_block(content: bytes) -> bytes:
    """Everything before the first empty line, with the CRLF of its last line.

    Shapes: empty when the content begins with an empty line; at most 64 KiB, cut after a line.
    """
    if content.startswith(b"\r\n"):
        return b""
    end = content.find(b"\r\n\r\n", 0, RETURNED_OCTETS_MAX)
    if end < 0:
        end = content.rfind(b"\r\n", 0, RETURNED_OCTETS_MAX)
    return content[: end + 2] if end >= 0 else b""


def returned_header(head: bytes, *, is_international: bool) -> bytes:
    """The original's header; longer lines are cut. `head` is the beginning of the original, or all of it."""
    block = _LONG_LINE.sub(rb"\1", header_block(head))
    if is_international:
        return block.decode("utf-8", "replace").encode("utf-8")
    return _NOT_ASCII_OCTET.sub(b"?", block)


def may_return_whole(content: bytes, *, is_international: bool) -> bool:
    """Small, with lines that any server takes, and 7-bit unless the notification is not."""
    if len(content) > RETURNED_OCTETS_MAX or _LONG_LINE.search(content):
        return False
    return is_international or content.isascii()
