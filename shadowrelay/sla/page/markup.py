"""Markup, and the only place where text becomes it: elements, numbers and instants for people, and the parts of a section.

A plain string is text and is escaped; only `tag` makes `Html`, which is not. So a forgotten escape cannot happen by omission.
Style attributes have no effect: the page's Content-Security-Policy refuses them. Colours and sizes are classes.

Numbers are rounded down, so 99.996 % never reads as 100 %. None is always a dash: there is no figure, which is not the same as zero.
"""

import html
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b

from shadowrelay.sla.page.labels import DEFINITIONS

TEXT_CHARACTERS_MAX = 320  # what is longer must not make the page; an address has at most 320

_VOID = frozenset({"meta", "br", "link", "col"})
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_ID = re.compile(r"[A-Za-z0-9.-]{1,80}")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # control, direction, surrogates …: they could disguise text


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None | Iterable["Child"]


def visible(text: str) -> str:
    """The text with what cannot be seen written out: `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(f"\\u{ord(one):04x}" if unicodedata.category(one) in _INVISIBLE else one for one in text)


def safe(child: Child) -> Html:
    """Children as markup: text is escaped, markup stays, None is nothing, and others are joined."""
    if child is None:
        return Html("")
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        bounded = child if len(child) <= TEXT_CHARACTERS_MAX else f"{child[:TEXT_CHARACTERS_MAX]}… ({len(child):,} characters)"
        return Html(html.escape(visible(bounded)))
    return Html("".join(safe(one) for one in child))


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """One element. Attributes: `class_` is class, `data_x` is data-x; None and False leave it out, True is the bare name.

    Raises: ValueError if the name of the element or of an attribute is none: a bug, as names are never from outside.
    """
    opening = [name]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if not _NAME.fullmatch(attribute):
            raise ValueError(f"not a name: {attribute!r}")
        if value is True:
            opening.append(attribute)
        elif value is not None and value is not False:
            opening.append(f'{attribute}="{html.escape(visible(str(value)))}"')
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a name: {name!r}")
    return Html(f"<{' '.join(opening)}>" + ("" if name in _VOID else f"{safe(children)}</{name}>"))


def trace_id(message: str) -> str:
    """The id of a message's trace in the page: the message's own where that is harmless, else made from its hash; never two alike."""
    if _ID.fullmatch(message):
        return f"trace-{message}"
    return "trace-_" + blake2b(message.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


# ---- numbers and instants

NONE = "\N{EN DASH}"
_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
NB = "\N{NO-BREAK SPACE}"


def count(number: int | float | None) -> str:
    """1,204"""
    return NONE if number is None else f"{number:,.0f}"


def counted(number: int, singular: str, plural: str = "") -> str:
    """1 message, 2 messages"""
    return f"{count(number)} {singular if number == 1 else plural or singular + 's'}"


def percent(ratio: float | None) -> str:
    """With as many digits as it takes to tell it from 0 and from 100 %, and rounded down: 99.996 % is not 100 %."""
    if ratio is None:
        return NONE
    if ratio < 0 or ratio > 1:
        return f"{ratio * 100:,.0f}{NB}%".replace("-", "\N{MINUS SIGN}")
    rest = min(ratio, 1 - ratio)
    decimals = 0 if rest == 0 else min(8, max(1, math.ceil(-math.log10(rest)) - 1))
    floor = math.floor(round(ratio * 100 * 10**decimals, 6)) / 10**decimals
    text = f"{floor:.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + NB + "%"


def duration(seconds: float | None) -> str:
    """250 ms, 1.2 s, 3 min 20 s, 3 h 2 min, 2 d 4 h"""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{math.floor(seconds * 1000)}{NB}ms"
    if seconds < 10:
        return f"{math.floor(seconds * 10) / 10:g}{NB}s"
    if seconds < 60:
        return f"{math.floor(seconds)}{NB}s"
    for size, unit, part, name in _UNITS:
        if seconds >= size:
            whole, rest = divmod(math.floor(seconds), size)
            tail = f" {rest // part}{NB}{name}" if rest // part and whole < 100 else ""
            return f"{whole:,}{NB}{unit}{tail}"
    raise AssertionError("unreachable: every length has its unit")


def milliseconds(value: int | float | None) -> str:
    """A duration given in milliseconds."""
    return NONE if value is None else duration(value / 1000)


def burn(rate: float | None) -> str:
    """0, 0.03, 1.4, 14"""
    if rate is None:
        return NONE
    if 0 < rate < 0.01:
        return "<0.01"
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.2g}"


def parsed(text: str | None) -> datetime | None:
    """An instant of the summary; None where there is none."""
    return datetime.fromisoformat(text) if text else None


def instant(text: str | None, *, precise: bool = False) -> Html | str:
    """<time>2026-11-21 16:00:00</time>, UTC; precise: with milliseconds."""
    at = parsed(text)
    if at is None:
        return NONE
    shown = f"{at:%Y-%m-%d %H:%M:%S}" + (f".{at.microsecond // 1000:03}" if precise else "")
    return tag("time", shown, datetime=text)


def minute(text: str | None) -> Html | str:
    """<time>2026-11-21 16:00 UTC</time>"""
    at = parsed(text)
    return NONE if at is None else tag("time", f"{at:%Y-%m-%d %H:%M} UTC", datetime=text)


def seconds_between(earlier: str | None, later: str | None) -> float | None:
    """None where one of them is missing; clocks of different servers may make it negative, which counts as none."""
    one, other = parsed(earlier), parsed(later)
    return None if one is None or other is None else max(0.0, (other - one).total_seconds())


# ---- the parts of a section

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
