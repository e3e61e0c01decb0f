"""Instants as `YYYY-MM-DDTHH:MM:SS.ffffffZ`: always UTC, always microseconds."""

import re
from datetime import UTC, datetime

from shadowrelay.wire.refusals import bad_argument

INSTANT_OCTETS = 27

_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")


def format_instant(at: datetime) -> str:
    """`at` must be aware."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    return at.isoformat("T", "microseconds")[:26] + "Z"


def parse_instant(text: str) -> datetime:
    """Inverse of `format_instant`. Raises: WireError 501 5.5.4."""
    if _INSTANT.fullmatch(text) is None:
        raise bad_argument("Bad time")
    try:
        return datetime.fromisoformat(text[:26]).replace(tzinfo=UTC)
    except ValueError:  # the thirtieth of February
        raise bad_argument("Bad time") from None
