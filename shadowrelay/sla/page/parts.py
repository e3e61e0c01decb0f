"""What every section is made of: headings, footnotes, verdict marks, key figures and tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shadowrelay.sla.page.markup import Child, Html, tag
from shadowrelay.sla.page.spoken import count
from shadowrelay.sla.page.words import DEFINITIONS

_PRINTED_MAX = 30  # of a sortable list; page.css hides the others on paper
_SHAPES = {  # verdicts differ in shape and word, not by colour alone: disc, diamond, ring, square
    "met": ('<circle cx="12" cy="12" r="11"/>', '<path d="M6.5 12.5l3.8 3.8 7.2-8"/>'),
    "missed": ('<path d="M12 .5 23.500 12 12 23.500 .5 12z"/>', '<path d="M8 8l8 8M16 8l-8 8"/>'),
    "partly": ('<circle cx="12" cy="12" r="10"/>', '<path d="M6.5 12.5l3.8 3.8 7.2-8"/>'),  # a headline only: kept, as far as was seen
    "no data": ('<circle cx="12" cy="12" r="10"/>', '<path d="M7.500 12h9"/>'),
    "not computable": ('<rect x="2" y="2" width="20" height="20" rx="3"/>', '<path d="M7 17 17 7"/>'),
}


def mark(verdict: str) -> Html:
    """The shape of a verdict; the word always stands beside it."""
    outline, sign = _SHAPES.get(verdict, _SHAPES["no data"])
    shape = Html(outline.replace("/>", ' class="outline"/>') + sign.replace("/>", ' class="sign"/>'))
    return tag("svg", shape, class_=f"mark {kind_of(verdict)}", viewBox="0 0 24 24", aria_hidden="true")


def kind_of(verdict: str) -> str:
    """The verdict as a class."""
    return {"met": "met", "partly": "partly", "missed": "missed", "not computable": "unknowable"}.get(verdict, "unknown")


def note(name: str) -> Html:
    """The raised number of a definition, as in a book."""
    number = list(DEFINITIONS).index(name) + 1
    unseen = tag("span", f"definition of {DEFINITIONS[name][0]}: note ", class_="unseen")
    return tag("a", unseen, str(number), class_="note", href=f"#def-{name}", role="doc-noteref")


def section(name: str, title: str, *children: Child, notes: Iterable[str] = ()) -> Html:
    """A landmark with its heading."""
    heading = tag("h2", title, [note(one) for one in notes], id=f"{name}-heading")
    return tag("section", heading, children, id=name, aria_labelledby=f"{name}-heading")


def key_figures(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Name above value, side by side."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs], class_="keys")


@dataclass(frozen=True, slots=True)
class Column:
    """Shapes: `kind` is "number" (right-aligned), "id" (may break anywhere) or empty."""

    title: Child
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Shapes: one child per column, the first heads the row; `keys`: what to sort by instead of the text; `drawn_at`: x in the plot."""

    cells: Sequence[Child]
    keys: Sequence[str | int | float | None] = field(default_factory=tuple)
    drawn_at: str | None = None


def table(name: str, caption: Child, columns: Sequence[Column], rows: Sequence[Row], *, is_sortable: bool = False) -> Html:
    """A table that scrolls by itself where it is too wide. `name` is unique in the page."""
    heads = [tag("th", column.title, scope="col", class_=column.kind or None) for column in columns]
    body = [_row(row, columns) for row in rows]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, id=f"{name}-caption"),
            tag("thead", tag("tr", heads)),
            tag("tbody", body),
            class_="sortable" if is_sortable else None,
        ),
        tag("p", f"On paper: the first {_PRINTED_MAX} of {count(len(rows))} rows.", class_="paper")
        if is_sortable and len(rows) > _PRINTED_MAX
        else None,
        class_="scroll long" if is_sortable else "scroll",
        role="region",
        tabindex="0",
        aria_labelledby=f"{name}-caption",
    )


def _row(row: Row, columns: Sequence[Column]) -> Html:
    keys = [*row.keys, *[None] * (len(row.cells) - len(row.keys))]
    cells = [
        tag("td" if position else "th", cell, scope=None if position else "row", class_=column.kind or None, data_key=key)
        for position, (cell, column, key) in enumerate(zip(row.cells, columns, keys, strict=True))
    ]
    return tag("tr", cells, data_x=row.drawn_at)


def shown(number: int, total: int, where: str) -> str:
    """What a cut list says of itself: `200 of 3,411 shown; all in tables/losses`."""
    if number >= total:
        return f"{count(total)} in all"
    return f"{count(number)} of {count(total)} shown; all in tables/{where}"


def none(sentence: str) -> Html:
    """What stands where a list is empty."""
    return tag("p", sentence, class_="none")
