"""The lists: duplicates, losses, orphans and exposures, each with its causes; a message's id leads to its trace."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shadowrelay.sla.page.markup import Child, Html, safe, tag, trace_id
from shadowrelay.sla.page.parts import Column, Row, none, section, shown, table
from shadowrelay.sla.page.shape import Cell, Summary
from shadowrelay.sla.page.spoken import count, counted, duration, instant
from shadowrelay.sla.page.words import DUPLICATE_CAUSES

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
