"""The sections on single messages: lists of duplicates, losses, orphans and exposures, and the traces of these messages.

Each list says how often each cause was found. A message's id leads to its trace: everything that all logs say of it, in order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shadowrelay.sla.page.labels import DUPLICATE_CAUSES, EVENTS
from shadowrelay.sla.page.markup import (
    Child,
    Column,
    Html,
    Row,
    count,
    counted,
    duration,
    instant,
    none,
    safe,
    seconds_between,
    section,
    shown,
    table,
    tag,
    trace_id,
)
from shadowrelay.sla.page.summary_types import Cell, Summary, TraceRow

_EXPOSURES_FIRST = 5


@dataclass(frozen=True, slots=True)
class _Kind:
    """One list. Shapes: `fields` are (key of the entry, heading, kind); kinds: id, at, end, number, seconds, cause, delivery, text."""

    name: str
    title: str
    note: str
    singular: str
    fields: Sequence[tuple[str, str, str]]
    total: Callable[[Summary], int]
    absent: str


_KINDS = (
    _Kind(
        name="duplicates",
        title="Duplicates",
        note="duplicate",
        singular="duplicate",
        fields=(
            *(("message", "Message", "id"), ("recipient", "Recipient", "text"), ("cause", "Cause", "cause")),
            *(("count", "Deliveries", "number"), ("first", "First delivery", "delivery"), ("later", "Later delivery", "delivery")),
        ),
        total=lambda summary: summary["overall"]["recipients_duplicated"],
        absent="No recipient got a message twice.",
    ),
    _Kind(
        name="losses",
        title="Losses",
        note="loss",
        singular="loss",
        fields=(
            *(("message", "Message", "id"), ("recipient", "Recipient", "text"), ("cause", "Cause", "cause")),
            *(("server", "Server", "text"), ("acknowledged_at", "Acknowledged at", "at")),
        ),
        total=lambda summary: summary["overall"]["recipients_lost"],
        absent="No recipient was lost.",
    ),
    _Kind(
        name="orphans",
        title="Orphans",
        note="orphan",
        singular="orphan",
        fields=(
            *(("message", "Message", "id"), ("server", "Held by", "text"), ("primary", "Primary", "text"), ("cause", "Cause", "cause")),
            ("at", "Held since", "at"),
        ),
        total=lambda summary: summary["overall"]["shadows_orphaned"],
        absent="No copy was left behind.",
    ),
    _Kind(
        name="exposures",
        title="Exposures",
        note="exposure",
        singular="exposure",
        fields=(
            *(("message", "Message", "id"), ("seconds", "For", "seconds"), ("cause", "Cause", "cause"), ("server", "Server", "text")),
            *(("began_at", "Began at", "at"), ("ended_at", "Ended at", "end")),
        ),
        total=lambda summary: summary["overall"]["exposure_count"],
        absent="No message depended on one copy.",
    ),
)


def lists(summary: Summary) -> Html:
    """All four, in one section."""
    return section("incidents", "What went wrong, message by message", [_list(summary, kind) for kind in _KINDS])


def longest_exposures(summary: Summary) -> Html | None:
    """The first of them, beside the plot."""
    entries = sorted(summary["exposures"], key=lambda entry: -float(entry["seconds"] or 0))[:_EXPOSURES_FIRST]
    if not entries:
        return None
    kind = _KINDS[-1]
    more = [" (", tag("a", "all of them", href="#exposures"), ")"] if len(summary["exposures"]) > len(entries) else None
    rows = [_row(summary, kind, entry) for entry in entries]
    return safe([tag("p", _causes(summary, kind)), table("longest-exposures", ["The longest", more], _columns(kind), rows)])


def _list(summary: Summary, kind: _Kind) -> Html:
    entries = _entries(summary, kind.name)
    heading = tag("h3", kind.title, id=f"{kind.name}-heading")
    total = max(kind.total(summary), len(entries))
    if not total:
        return tag("section", heading, none(kind.absent), id=kind.name, aria_labelledby=f"{kind.name}-heading")
    caption = [tag("b", kind.title), ": ", shown(len(entries), total, kind.name)]
    rows = [_row(summary, kind, entry) for entry in entries]
    content = (
        table(f"{kind.name}-table", caption, _columns(kind), rows, is_sortable=True)
        if rows
        else none(f"{counted(total, kind.singular)}, none listed.")
    )
    return tag("section", heading, tag("p", _causes(summary, kind)), content, id=kind.name, aria_labelledby=f"{kind.name}-heading")


def _entries(summary: Summary, name: str) -> Sequence[Mapping[str, Cell]]:
    return {
        "duplicates": summary["duplicates"],
        "losses": summary["losses"],
        "orphans": summary["orphans"],
        "exposures": summary["exposures"],
    }[name]


def _causes(summary: Summary, kind: _Kind) -> Child:
    found = sorted(summary["causes"].get(kind.name, {}).items(), key=lambda cause: (-cause[1], cause[0]))
    said = [tag("span", tag("b", count(number)), " ", _cause(name, kind.name)) for name, number in found if number]
    return tag("span", said, class_="causes") if said else None


def _cause(name: str, kind: str) -> str:
    return DUPLICATE_CAUSES.get(name, name) if kind == "duplicates" else name


def _columns(kind: _Kind) -> list[Column]:
    return [
        Column(heading, {"id": "id", "number": "number", "seconds": "number", "cause": "cause"}.get(form, ""))
        for _, heading, form in kind.fields
    ]


def _row(summary: Summary, kind: _Kind, entry: Mapping[str, Cell]) -> Row:
    cells = [_cell(summary, kind, entry, key, form) for key, _, form in kind.fields]
    keys = [
        value if form in ("number", "seconds") and isinstance(value := entry.get(key), int | float) else None
        for key, _, form in kind.fields
    ]
    return Row(cells, keys)


def _cell(summary: Summary, kind: _Kind, entry: Mapping[str, Cell], key: str, form: str) -> Child:
    value = entry.get(key)
    text = "" if value is None else str(value)
    match form:
        case "id":
            return message_link(summary, text)
        case "at":
            return instant(text)
        case "end":
            return "still open" if entry.get("is_open") else instant(text)
        case "seconds":
            return duration(float(value or 0))
        case "delivery":  # by whom, and when
            return [tag("span", str(entry.get(f"{key}_server") or ""), class_="by"), instant(str(entry.get(f"{key}_at") or ""))]
        case "cause":
            return _cause(text, kind.name)
        case _:
            return text


def message_link(summary: Summary, message: str) -> Html:
    """To the message's trace; where the page has none, to how to get it."""
    is_traced = message in summary["traces"]
    return tag(
        "a", tag("code", message), href=f"#{trace_id(message)}" if is_traced else "#other-traces", class_=None if is_traced else "elsewhere"
    )


# ---- traces

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
