"""Instants as `YYYY-MM-DDTHH:MM:SS.ffffffZ`: always UTC, always microseconds. Spans as seconds with up to six decimals."""

import re
from datetime import UTC, datetime, timedelta

from shadowrelay.wire.refusals import bad_argument

SPAN_SECONDS_MAX = 86_400  # ShadowResubmitTimeSpan: at most one day. Source: exchange-facts 3

_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_SPAN = re.compile(r"(0|[1-9][0-9]{0,5})(?:\.([0-9]{1,6}))?")


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


def format_span(span: timedelta) -> str:
    """Seconds, with as many decimals as there are."""
    seconds, rest = divmod(span, timedelta(seconds=1))
    return f"{seconds}.{rest.microseconds:06}".rstrip("0") if rest else str(seconds)


def parse_span(text: str) -> timedelta:
    """Inverse of `format_span`; more than nothing, at most a day. Raises: WireError 501 5.5.4."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise bad_argument("Bad span")
    span = timedelta(seconds=int(found[1]), microseconds=int((found[2] or "").ljust(6, "0")))
    if not timedelta() < span <= timedelta(seconds=SPAN_SECONDS_MAX):
        raise bad_argument("Bad span")
    return span
