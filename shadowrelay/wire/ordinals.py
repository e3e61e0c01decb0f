"""Sets of recipient ordinals as text: ranges (`1-40,57`), or where those get long, a bit map.

Bounded before it is expanded: `1-999999999` costs a comparison, not a gigabyte.
"""

import base64
import re
from itertools import pairwise

from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.wire.refusals import bad_argument

ORDINAL_MAX = 5_000
"""Recipients of one message at most. Every second one of 5,000: 5x2 + 45x3 + 450x4 + 2,000x5 = 11,945 octets (a comma each) of
ranges, 24 lines of an XQDISCARD reply (24 x 79 octets beside them): 13.9 kB, so that one event always fits its 24 KiB."""

RANGES_OCTETS_MAX = 12_000  # 11,945, rounded up
DONE_RANGES_OCTETS_MAX = 512  # longer ones go as a bit map
DONE_OCTETS_MAX = 1 + 834  # "~" and base64url of 5,000 bits = 625 octets, without padding

_RANGES = re.compile(r"[1-9][0-9]{0,5}(?:-[1-9][0-9]{0,5})?(?:,[1-9][0-9]{0,5}(?:-[1-9][0-9]{0,5})?)*")
_BITS = re.compile(r"~[A-Za-z0-9_-]{2,834}")


def format_ordinals(ordinals: Ordinals) -> str:
    """Ascending, in the fewest ranges. Empty for the empty set."""
    return ",".join(format_ranges(ordinals))


def format_ranges(ordinals: Ordinals) -> list[str]:
    """The ranges of `format_ordinals`, apart, for text that is to be cut into lines."""
    if not ordinals:
        return []
    inside = sorted(ordinals)
    breaks = [(left, right) for left, right in pairwise(inside) if right != left + 1]
    firsts = [inside[0], *(right for _, right in breaks)]
    lasts = [*(left for left, _ in breaks), inside[-1]]
    return [str(first) if first == last else f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True)]


def parse_ordinals(text: str, highest: int = ORDINAL_MAX) -> Ordinals:
    """Inverse of `format_ordinals`. Ranges must ascend and not overlap; nothing above `highest`.

    Raises: WireError 501 5.5.4.
    """
    if not text:
        return NO_ORDINALS
    if len(text) > RANGES_OCTETS_MAX or _RANGES.fullmatch(text) is None:
        raise bad_argument("Bad recipient ordinals")
    found: list[int] = []
    before = 0
    for item in text.split(","):
        first_text, _, last_text = item.partition("-")
        first = int(first_text)
        last = int(last_text) if last_text else first
        if first <= before or last > highest or (last_text and last <= first):
            raise bad_argument("Bad recipient ordinals")
        found.extend(range(first, last + 1))
        before = last
    return frozenset(found)


def format_done(ordinals: Ordinals) -> str:
    """Ranges up to 512 octets, else `~` and a bit map in base64url: exact, and at most 835 octets.

    Shapes: bit 0 (the lowest of the first octet) is ordinal 1; trailing zero octets are left out.
    """
    text = format_ordinals(ordinals)
    if len(text) <= DONE_RANGES_OCTETS_MAX:
        return text
    bits = 0
    for ordinal in ordinals:
        bits |= 1 << (ordinal - 1)
    octets = bits.to_bytes((max(ordinals) + 7) // 8, "little")
    return "~" + base64.urlsafe_b64encode(octets).rstrip(b"=").decode("ascii")


def parse_done(text: str, highest: int = ORDINAL_MAX) -> Ordinals:
    """Inverse of `format_done`. Raises: WireError 501 5.5.4."""
    if not text.startswith("~"):
        return parse_ordinals(text, highest)
    if _BITS.fullmatch(text) is None or len(text) % 4 == 2:
        raise bad_argument("Bad recipient ordinals")
    octets = base64.urlsafe_b64decode(text[1:] + "=" * (-(len(text) - 1) % 4))
    bits = int.from_bytes(octets, "little")
    if bits.bit_length() > highest:
        raise bad_argument("Bad recipient ordinals")
    return frozenset(place for place, bit in enumerate(reversed(f"{bits:b}"), 1) if bit == "1")
