"""Numbers and instants in words, the same in commands and console. docs/reference.md "Commands"."""

from collections.abc import Sequence
from datetime import UTC, datetime


def counted(count: int, what: str) -> str:
    """ "1 error", "2 errors"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def clock(text: str, now: datetime | None = None) -> str:
    """ "2026-11-21T12:00:00Z" as its time of day (UTC), with the date unless that is today's."""
    at = datetime.fromisoformat(text).astimezone(UTC)
    return f"{at:%H:%M:%S}" if at.date() == (now or datetime.now(UTC)).date() else f"{at:%Y-%m-%d %H:%M:%S}"


def instants(texts: Sequence[str]) -> tuple[str, list[str]]:
    """The heading of a column of instants, and its cells, in UTC. A day that all share is in the heading, so that lines fit 80 columns."""
    every = [datetime.fromisoformat(text).astimezone(UTC) for text in texts]
    days = {at.date() for at in every}
    heading, form = (f"{days.pop()} (UTC)", "%H:%M:%S") if len(days) == 1 else ("At (UTC)", "%Y-%m-%d %H:%M:%S")
    return heading, [f"{at:{form}}.{at.microsecond // 1000:03}" for at in every]


def age(text: str | None, now: datetime | None = None) -> str:
    """ "2026-11-21T12:00:00Z" as elapsed time "3m 20s"; a future time as "in 40s"; None as "-"."""
    if text is None:
        return "-"
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds()
    return f"in {duration(-seconds)}" if seconds < 0 else duration(seconds)


def duration(seconds: float | None) -> str:
    """At most two units: "1d 4h", "3m 20s", "40s"."""
    if seconds is None:
        return "-"
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    whole = int(seconds)
    for index, (unit, length) in enumerate(units[:-1]):
        if whole >= length:
            smaller, smaller_length = units[index + 1]
            return f"{whole // length}{unit} {whole % length // smaller_length}{smaller}"
    return f"{whole}s"
