"""Text of others: whatever a server, a client, DNS or a certificate says is cleaned here before it becomes part of a value. RFC 5321 4.2

Such text ends up in rows, logs, DSNs, JSON and terminals. None of these takes all characters: a lone surrogate (an octet that is not UTF-8)
cannot be encoded, a line end forges a line, and an escape sequence controls the terminal of whoever reads it.
"""

import json
import re

# Control characters of both sets, line and paragraph separators, marks that change the direction of text
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """One line that every encoding and terminal takes: controls become a space, an octet that is not UTF-8 becomes `\\xb7`."""
    if text.isprintable():
        return text
    return _SURROGATE.sub(_as_escape, _CONTROLS.sub(" ", text))


def escaped(text: str) -> str:
    """The same text with each character that is not printable as JSON's escape, like `\\u001b`: nothing is left out, nothing controls a
    terminal, and a JSON document stays one. An octet that is not UTF-8 is a lone surrogate here, and so `\\udcb7`."""
    return text if text.isprintable() else "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def _as_escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number - 0xDC00:02x}" if 0xDC80 <= number <= 0xDCFF else f"\\u{number:04x}"
