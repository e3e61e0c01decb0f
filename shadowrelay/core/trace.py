"""The trace header of a promoted message: who took it over from whom. Source: viktgin

It is made from names that other servers gave us: only what a host name may hold gets in.
"""

import re
from datetime import UTC, datetime

from shadowrelay.model.ids import MessageId, ServerName

NAME_OCTETS_MAX = 255  # RFC 5321 4.5.3.1.2

_NOT_NAME = re.compile(r"[^A-Za-z0-9._:\[\]-]")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def format_date(at: datetime) -> str:
    """RFC 5322 3.3, always UTC, whatever the locale. `at` must be aware."""
    at = at.astimezone(UTC)
    return f"{_DAYS[at.weekday()]}, {at.day} {_MONTHS[at.month - 1]} {at.year:04} {at.hour:02}:{at.minute:02}:{at.second:02} +0000"


def promotion_header(old_primary: ServerName, new_primary: ServerName, message_id: MessageId, now: datetime) -> bytes:
    """One folded `Received:` field with its CRLF, ASCII, no line over 600 octets."""
    lines = (
        f"Received: from {_named(old_primary)} by {_named(new_primary)}",
        f"\twith ShadowRedundancy id {_named(message_id)};",
        f"\t{format_date(now)}",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


def _named(name: str) -> str:
    return _NOT_NAME.sub("?", name[:NAME_OCTETS_MAX]) or "unknown"
