"""A few facts from a message's header, read from its bytes without touching the body.

Everything here takes what strangers wrote: nothing raises, everything is bounded, and no control character comes out.
Encoded words (RFC 2047) are left as they are: what was written is what is logged.
"""

import re

HEADER_BLOCK_OCTETS_MAX = 256 * 1024  # MaxHeaderSize of Exchange; 100 hops of Received at 1 kB are 100 kB
FIELD_OCTETS_MAX = 2_000  # two longest lines of RFC 5322 2.1.1; what is longer is cut

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WSP = (b" ", b"\t")


def header_block(content: bytes) -> bytes:
    """Everything before the first empty line, with the CRLF of its last line.

    Shapes: empty when the content begins with an empty line; at most 256 KiB, cut after a line; `content` may itself be
    only the beginning of a message.
    """
    if content.startswith(b"\r\n"):
        return b""
    end = content.find(b"\r\n\r\n", 0, HEADER_BLOCK_OCTETS_MAX)
    if end < 0:
        end = content.rfind(b"\r\n", 0, HEADER_BLOCK_OCTETS_MAX)
    return content[: end + 2] if end >= 0 else b""


def field_of(block: bytes, name: str) -> str:
    """The first field of that name, unfolded and stripped; "" where there is none. `name` in any case, ASCII."""
    key = b"\r\n" + name.lower().encode("ascii") + b":"
    lowered = block.lower()
    start = len(key) - 2 if lowered.startswith(key[2:]) else lowered.find(key) + len(key)
    if start == len(key) - 1:  # not found
        return ""
    value = block[start : start + FIELD_OCTETS_MAX]
    end = value.find(b"\r\n")
    while end >= 0 and value[end + 2 : end + 3] in _WSP:
        end = value.find(b"\r\n", end + 2)
    if end >= 0:
        value = value[:end]
    text = value.replace(b"\r\n", b"").decode("utf-8", "replace")
    return _CONTROLS.sub(" ", text).strip()


def received_count(block: bytes) -> int:
    """How many servers have written a trace header. RFC 5321 6.3: more than 100 is a loop."""
    lowered = block.lower()
    return lowered.count(b"\r\nreceived:") + lowered.startswith(b"received:")
