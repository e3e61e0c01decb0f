"""What the figures rest on, and what weakens them.

The section on the input lists servers, files, quarantined lines and figures that could not be computed. The cautions below the headline
name evidence that exists and was not read, directories whose names do not match any server in the logs, and clocks that were wrong.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from shadowrelay.sla.page.labels import DEFINITIONS, FIGURES, FORMATS
from shadowrelay.sla.page.markup import (
    Child,
    Column,
    Html,
    Row,
    count,
    counted,
    instant,
    key_figures,
    minute,
    none,
    parsed,
    section,
    table,
    tag,
)
from shadowrelay.sla.page.summary_types import Quarantine, Summary


def not_computable(summary: Summary) -> Html:
    """Figures that the logs cannot give, and why."""
    columns = [Column("Figure"), Column("Logs of"), Column("Why not")]
    rows = [Row([FIGURES.get(one["figure"], one["figure"]), _format(one["format"]), one["why"]]) for one in summary["not_computable"]]
    content = (
        table("not-computable-table", "Figures that these logs cannot give", columns, rows)
        if rows
        else none("Every figure can be computed from this input.")
    )
    return section("not-computable", "Not computable", content, notes=["not-computable"])


def _format(name: str) -> str:
    return FORMATS.get(name, name)


def inputs(summary: Summary) -> Html:
    """The section about the input."""
    given = summary["input"]
    keys: list[tuple[str, Child]] = [
        ("Servers", count(len(given["servers"]))),
        ("Files", count(given["files"])),
        ("Files missing", count(given["files_missing"])),
        ("Files dropped before shipping", count(dropped_count(summary))),
        ("Lines", count(given["lines"])),
        ("Events", count(given["rows"])),
        ("Repeats, counted once", count(given["rows_repeated"])),
        ("Lines in quarantine", count(summary["overall"]["lines_quarantined"])),
        ("Clock skews", count(summary["overall"]["clock_skews"])),
        ("Now", minute(summary["now"])),
    ]
    return section("input", "Input", key_figures(keys), _servers(summary), _quarantine(summary), _dropped(summary))


def _servers(summary: Summary) -> Html:
    columns = [
        Column("Server"),
        Column("Site"),
        Column("Boundary"),
        Column("Format"),
        Column("Events", "number"),
        Column("First"),
        Column("Last"),
    ]
    rows = [
        Row(
            [
                one["name"],
                one["site"],
                one["boundary"],
                _format(one["format"]),
                count(one["rows"]),
                instant(one["first_at"]),
                instant(one["last_at"]),
            ],
            [None, None, None, None, one["rows"]],
        )
        for one in summary["input"]["servers"]
    ]
    return table("input-servers", "Servers whose logs were read", columns, rows, is_sortable=True) if rows else none("No logs were found.")


def _quarantine(summary: Summary) -> Html | None:
    rows = [Row([one["reason"], count(one["count"]), _examples(one)]) for one in summary["input"]["quarantine"]]
    if not rows:
        return none("No line is in quarantine.")
    return table(
        "quarantine-table",
        "Lines that could not be read (all in tables/quarantine)",
        [Column("Reason"), Column("Lines", "number"), Column("Examples")],
        rows,
    )


def _examples(one: Quarantine) -> Child:
    return tag(
        "ul",
        [tag("li", tag("code", f"{example['server']}/{example['file']}:{example['line']}")) for example in one["examples"]],
        class_="examples",
    )


def _dropped(summary: Summary) -> Html | None:
    rows = [Row([one["name"], one["server"], one["reason"], instant(one["at"])]) for one in summary["input"]["dropped_before_shipping"]]
    columns = [Column("File"), Column("Server"), Column("Reason"), Column("At")]
    if not rows:
        return None
    total = dropped_count(summary)
    shown = (
        f"{count(total)} in all"
        if total == len(rows)
        else f"{count(len(rows))} of {count(total)} shown; all in shipping.json of the warehouse and manifest.json of each server"
    )
    caption = f"Log files that were dropped before they could be shipped: {shown}"
    return table("dropped-table", caption, columns, rows, is_sortable=True)


def definitions() -> Html:
    """The footnotes."""
    terms = [tag("li", tag("p", tag("b", term), ": ", meaning), id=f"def-{name}") for name, (term, meaning) in DEFINITIONS.items()]
    whole = tag("p", "In full: docs/sla.md of shadowrelay.", class_="aside")
    return section("definitions", "What the figures mean", tag("ol", terms, class_="definitions"), whole)


# ---- cautions

_CLOCKS_DIFFER = timedelta(minutes=1)  # by so much any two may; and rows of a report that is being made may be younger than its beginning
_NAMED_MAX = 3
_UNREADABLE = "unreadable file"


def unseen(summary: Summary) -> str:
    """Evidence of which is known that it exists and was not read: `3 missing log files, 16 lines in quarantine`; empty if there is none."""
    given = summary["input"]
    unreadable = sum(one["count"] for one in given["quarantine"] if one["reason"] == _UNREADABLE)
    lines = summary["overall"]["lines_quarantined"] - unreadable  # such a file is one line there
    dropped = dropped_count(summary)
    parts = [
        counted(given["files_missing"], "missing log file") if given["files_missing"] else "",
        f"{counted(dropped, 'file')} dropped before {'it was' if dropped == 1 else 'they were'} shipped" if dropped else "",
        counted(unreadable, "unreadable file") if unreadable else "",
        f"{counted(lines, 'line')} in quarantine" if lines > 0 else "",
    ]
    return ", ".join(part for part in parts if part)


def dropped_count(summary: Summary) -> int:
    """Files that nodes dropped before they could ship them; the list of them may be cut."""
    given = summary["input"]
    return max(given.get("dropped_count", 0), len(given["dropped_before_shipping"]))


def cautions(summary: Summary) -> Html | None:
    """Below the headline; None where nothing is to be said."""
    said = [one for one in (_clock(summary), _misnamed(summary), _ahead(summary)) if one]
    if not said:
        return None
    return tag("ul", [tag("li", _sign(), tag("p", tag("b", "Caution: "), one)) for one in said], class_="cautions", role="list")


def _clock(summary: Summary) -> Child:
    """Rows or `now` from the future make time be up for mail that only waits."""
    made = parsed(summary["generated_at"])
    if made is None:
        return None
    said: list[Child] = []
    if _is_after(summary["input"]["last_at"], made):
        servers = [one["name"] for one in summary["input"]["servers"] if _is_after(one["last_at"], made)]
        said += [
            "the newest event is dated ",
            minute(summary["input"]["last_at"]),
            ", after this report was made (",
            minute(summary["generated_at"]),
        ]
        said += ["): a clock was wrong", f", by the logs of {_named(servers)}" if servers else "", ". "]
    if _is_after(summary["now"], made):
        said += ["All is judged as of " if said else "all is judged as of ", minute(summary["now"]), ", which is still to come: "]
        said += ["mail that only waits may count as lost, and copies as left behind. ", tag("code", "--now"), " sets the right instant."]
    return said or None


def _is_after(text: str | None, made: datetime) -> bool:
    at = parsed(text)
    return at is not None and at - made > _CLOCKS_DIFFER


def _named(servers: list[str]) -> str:
    others = len(servers) - _NAMED_MAX
    return ", ".join(servers[:_NAMED_MAX]) + (f" and {counted(others, 'other')}" if others > 0 else "")


def _misnamed(summary: Summary) -> Child:
    text = misnamed(summary)
    return f"{text[0].lower()}{text[1:]}" if text else None


def misnamed(summary: Summary) -> str:
    """Directories that are called as only the first label of a server is: its own rows and those of others about it then do not meet.
    Empty if there are none."""
    logged = {one["name"] for one in summary["input"]["servers"]}
    by_name: dict[str, list[str]] = {}
    for name in logged:
        by_name.setdefault(name.lower(), []).append(name)
    alike = {name: by_name.get(name.lower().partition(".")[0], []) for name in sorted({*_spoken_of(summary)} - logged)}
    pairs = [(name, directories[0]) for name, directories in alike.items() if len(directories) == 1]
    if not pairs:
        return ""
    one = len(pairs) == 1
    missing, there = _named([name for name, _ in pairs]), _named(sorted({short for _, short in pairs}))
    return (
        f"There {'is no log' if one else 'are no logs'} of {missing}, but {'one of' if one else 'of'} {there}. "
        f"If {'that is the same server, it counts' if one else 'these are the same servers, each counts'} as two here, and causes may be "
        f"wrong: give {'the directory' if one else 'each directory'} the server's full name, and make a warehouse of these logs anew."
    )


def _spoken_of(summary: Summary) -> Iterator[str]:
    for line in summary["figures"]:
        if line["scope"] in ("server", "pair"):
            yield from (name for name in (line["name"], line["other"]) if name)
    for takeover in summary["takeovers"]:
        yield from (takeover["old_primary"], takeover["new_primary"])


def _ahead(summary: Summary) -> Child:
    watch = summary.get("watch")
    number = watch.get("ahead_rows", 0) if watch else 0
    if not number:
        return None
    rows = f"{counted(number, 'row')} came dated more than an hour ahead of the clock of the machine that watches"
    return f"{rows}: that clock was wrong, or a server's. Live figures leave them out, this report counts them at the time they bear."


def _sign() -> Html:
    """A triangle, as on the road."""
    outline = tag("path", class_="outline", d="M12 2 23 21.500 1 21.500z")
    return tag(
        "svg", outline, tag("path", class_="sign", d="M12 9v6M12 18v.2"), class_="mark caution", viewBox="0 0 24 24", aria_hidden="true"
    )
