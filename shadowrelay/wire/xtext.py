"""xtext: any text as printable ASCII without `=`, `+` and space. Source: RFC 3461 section 4."""

import re

from shadowrelay.wire.refusals import bad_argument

_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-F]{2})*")
_ENCODED = re.compile(rb"\+([0-9A-F]{2})")
_NOT_PLAIN = re.compile(rb"[^!-*,-<>-~]")


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
