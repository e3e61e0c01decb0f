"""The traces: what all logs say of one message, in order."""

from collections.abc import Sequence

from shadowrelay.sla.page.markup import Child, Html, tag, trace_id
from shadowrelay.sla.page.parts import none, section
from shadowrelay.sla.page.shape import Summary, TraceRow
from shadowrelay.sla.page.spoken import counted, duration, instant, seconds_between
from shadowrelay.sla.page.words import EVENTS

_COMMAND = "shadowrelay sla trace MESSAGE-ID --warehouse DIR"
_RECIPIENTS_MAX = 5


def traces(summary: Summary) -> Html:
    """One foldable timeline for each message that the summary traces, and how to get the others."""
    how = tag(
        "p",
        "A message that is not here is traced by ",
        tag("code", _COMMAND),
        " (or ",
        tag("code", "--logs DIR"),
        ").",
        id="other-traces",  # no message's trace has such an id
    )
    paper = tag("p", "On paper: the traces that were unfolded.", class_="paper")
    folded = [_trace(message, rows) for message, rows in summary["traces"].items()]
    return section("traces", "Traces", [paper, *folded] if folded else none("No message needed a trace."), how)


def _trace(message: str, rows: Sequence[TraceRow]) -> Html:
    first = rows[0]["at"] if rows else None
    servers = list(dict.fromkeys(row["server"] for row in rows))
    said = f"{counted(len(rows), 'event')} on {', '.join(servers)}" if rows else "no events"
    return tag(
        "details",
        tag("summary", tag("code", message), tag("span", said, class_="said")),
        tag("ol", [_event(row, first) for row in rows], class_="trace"),
        id=trace_id(message),
        class_="trace-of",
    )


def _event(row: TraceRow, first: str | None) -> Html:
    since = seconds_between(first, row["at"])
    meaning = EVENTS.get(row["event"])
    if row["event"] == "RESUBMIT" and row["source"] == "SAFETYNET":
        meaning = "delivered once more on request"
    ways: list[Child] = [
        row["client"],
        tag("span", " to ", class_="quiet") if row["client"] and row["to"] else None,
        row["to"],
    ]
    return tag(
        "li",
        tag("p", instant(row["at"], precise=True), tag("span", f"+{duration(since)}", class_="quiet") if since else None, class_="when"),
        tag("p", row["server"], class_="where"),
        tag(
            "div",
            tag("p", tag("b", row["event"]), " ", tag("span", row["source"], class_="quiet"), f": {meaning}" if meaning else None),
            tag("p", ways, class_="quiet-line") if row["client"] or row["to"] else None,
            tag("p", _recipients(row), class_="quiet-line") if row["recipients"] else None,
            tag("p", row["text"], class_="log-text") if row["text"] else None,
        ),
    )


def _recipients(row: TraceRow) -> str:
    named = row["recipients"][:_RECIPIENTS_MAX]
    others = max(row.get("recipients_count", 0), len(row["recipients"])) - len(named)
    return f"for {', '.join(named)}" + (f" and {counted(others, 'other')}" if others > 0 else "")
