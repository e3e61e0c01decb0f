"""The page's lists of single messages: the count of each cause, and traces with all rows about a message. docs/sla.md, 8."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from shadowrelay.sla.page.labels import CAUSES, EVENTS
from shadowrelay.sla.page.summary_types import Cell, Summary, TraceRow
from shadowrelay.sla.page.wording import counted, duration, seconds_between

_EXPOSURES_FIRST = 5
_RECIPIENTS_MAX = 5
_ID = re.compile(r"[A-Za-z0-9.-]{1,80}")


def longest_exposures(summary: Summary) -> Sequence[Mapping[str, Cell]]:
    """Beside the plot: the list begins with them."""
    return summary["exposures"][:_EXPOSURES_FIRST]


def causes(summary: Summary) -> dict[str, list[tuple[str, int]]]:
    """How often each cause was found, by list; the most frequent first."""
    return {
        kind: [
            (CAUSES.get(kind, {}).get(name, name), number)
            for name, number in sorted(found.items(), key=lambda cause: (-cause[1], cause[0]))
            if number
        ]
        for kind, found in summary["causes"].items()
    }


def slow(summary: Summary) -> list[tuple[str, int, list[Mapping[str, Cell]]]]:
    """(objective, how many there are, those that are listed) of each speed objective that some message missed."""
    totals = {name: sum(causes.values()) for name, causes in summary["slow_causes"].items()}
    listed = {name: [one for one in summary["slow"] if one["objective"] == name] for name in totals}
    return [(name, total, listed[name]) for name, total in totals.items() if total]


def slow_causes(name: str, summary: Summary) -> list[tuple[str, int]]:
    """Why events missed this objective, the most frequent cause first."""
    return sorted(summary["slow_causes"].get(name, {}).items(), key=lambda cause: (-cause[1], cause[0]))


# ---- traces


@dataclass(frozen=True, slots=True)
class Event:
    """A row of a trace. Shapes: `since` (after the first row), `meaning` and `recipients` may be empty."""

    row: TraceRow
    since: str
    meaning: str
    recipients: str


@dataclass(frozen=True, slots=True)
class Trace:
    message: str
    said: str
    events: list[Event]


def traces(summary: Summary) -> list[Trace]:
    """One for each message that the summary traces."""
    return [_trace(message, rows) for message, rows in summary["traces"].items()]


def trace_id(message: str) -> str:
    """The id of a message's trace in the page: the message's own where that is harmless, else made from its hash; never two alike."""
    if _ID.fullmatch(message):
        return f"trace-{message}"
    return "trace-_" + blake2b(message.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _trace(message: str, rows: Sequence[TraceRow]) -> Trace:
    servers = dict.fromkeys(row["server"] for row in rows)
    said = f"{counted(len(rows), 'event')} on {', '.join(servers)}" if rows else "no events"
    return Trace(message, said, [_event(row, rows[0]["at"], servers) for row in rows])


def _event(row: TraceRow, first_at: str, servers: Collection[str]) -> Event:
    since = seconds_between(first_at, row["at"])
    return Event(row, f"+{duration(since)}" if since and since > 0 else "", meaning_of(row, servers), recipients_of(row))


def meaning_of(row: TraceRow, servers: Collection[str]) -> str:
    """The event in words; empty if there are none. Shapes: `servers` are those that logged something about the message."""
    match row["event"], row["source"]:
        case "RECEIVE", "SMTP" if _is_other(row["client"], row, servers):
            return "handed over by another server"
        case (("SEND" | "SENDEXTERNAL"), _) if _is_other(row["to"], row, servers):
            return "handed to another server"
        case "RESUBMIT", "SAFETYNET":
            return "delivered once more on request"
        case "RECEIVE", "AGENT":
            return "journal report made"
        case event, _:
            return EVENTS.get(event, "")


def _is_other(name: str, row: TraceRow, servers: Collection[str]) -> bool:
    """Whether it is one of these servers, and not the row's own: by the whole name, or by the first label where one has no more."""
    return any(_is_same(name, server) for server in servers if not _is_same(server, row["server"])) and not _is_same(name, row["server"])


def _is_same(one: str, other: str) -> bool:
    one, other = one.lower(), other.lower()
    return one == other or (one.partition(".")[0] == other.partition(".")[0] and not ("." in one and "." in other))


def recipients_of(row: TraceRow) -> str:
    """For whom it is; empty where the row names nobody."""
    named = row["recipients"][:_RECIPIENTS_MAX]
    others = max(row.get("recipients_count", 0), len(row["recipients"])) - len(named)
    return f"for {', '.join(named)}" + (f" and {counted(others, 'other')}" if others > 0 else "") if named else ""
