"""The texts of MTA-STS: the record in DNS, and the policy that a domain publishes over HTTPS. RFC 8461 3

Both are written by strangers. What is no policy by the letter is none, and raises ValueError with the reason.
"""

import re
from enum import StrEnum

from shadowrelay import credentials
from shadowrelay.model.numbers import decimal
from shadowrelay.model.values import dataclass

POLICY_OCTETS_MAX = 64 * 1024  # RFC 8461 3.3 suggests as much
MAX_AGE_MAX = 31_557_600  # RFC 8461 3.2
PATTERNS_MAX = 100
VERSION = "STSv1"
_STRINGS = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ID = re.compile(r"[A-Za-z0-9]{1,32}")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_PATTERN = re.compile(rf"(?=.{{1,253}}\Z)(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")


class Mode(StrEnum):
    """What a domain asks of who sends to it."""

    ENFORCE = "enforce"
    TESTING = "testing"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Policy:
    """Units: `max_age` in seconds."""

    mode: Mode
    max_age: int
    patterns: tuple[str, ...] = ()

    def covers(self, exchange: str) -> bool:
        """Whether this mail server is one of the domain's. RFC 8461 4.1"""
        return any(credentials.covers(pattern, exchange) or _covers_top(pattern, exchange) for pattern in self.patterns)


def _covers_top(pattern: str, exchange: str) -> bool:
    """`*.example` is legal here, other than in a certificate."""
    first, _, rest = exchange.lower().rstrip(".").partition(".")
    return pattern.startswith("*.") and bool(first) and pattern[2:].lower() == rest


def record_id(records: tuple[str, ...]) -> str:
    """The id in the TXT records of `_mta-sts.<domain>`, as DNS software prints them; empty if there is no single record. RFC 8461 3.1"""
    texts = ["".join(_STRINGS.findall(record)) for record in records]
    ours = [text for text in texts if re.match(rf"v={VERSION}[ \t]*;", text)]
    if len(ours) != 1:
        return ""
    found = [value.strip() for name, _, value in (part.strip().partition("=") for part in ours[0].split(";")) if name == "id"]
    return found[0] if len(found) == 1 and _ID.fullmatch(found[0]) else ""


def parse_policy(octets: bytes) -> Policy:
    """Raises: ValueError. RFC 8461 3.2"""
    if len(octets) > POLICY_OCTETS_MAX:
        raise ValueError("it is too long")
    try:
        text = octets.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is no text") from None
    fields: dict[str, str] = {}
    patterns: list[str] = []
    for line in re.split(r"\r?\n", text):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        name, value = name.strip(), value.strip(" \t")
        if not colon:
            raise ValueError("it has a line without a colon")
        if name == "mx":
            if _PATTERN.fullmatch(value) is None:
                raise ValueError("it has an mx that is no host name")
            patterns.append(value.lower())
        else:
            fields.setdefault(name, value)
    if fields.get("version") != VERSION:
        raise ValueError(f"it is not of version {VERSION}")
    try:
        mode = Mode(fields.get("mode", ""))
    except ValueError:
        raise ValueError("it has no mode that is known") from None
    max_age = decimal(fields.get("max_age", ""), MAX_AGE_MAX)
    if max_age is None:
        raise ValueError("it has no max_age from 0 to a year")
    if mode is not Mode.NONE and not patterns:
        raise ValueError("it names no mx")
    if len(patterns) > PATTERNS_MAX:
        raise ValueError("it names too many mx")
    return Policy(mode, max_age, tuple(dict.fromkeys(patterns)))
