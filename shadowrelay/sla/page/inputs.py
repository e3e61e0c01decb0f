"""What the figures rest on: servers, files, lines that could not be read, and what could not be computed."""

from shadowrelay.sla.page.cautions import dropped_count
from shadowrelay.sla.page.markup import Child, Html, tag
from shadowrelay.sla.page.parts import Column, Row, key_figures, none, section, table
from shadowrelay.sla.page.shape import Quarantine, Summary
from shadowrelay.sla.page.spoken import count, instant, minute
from shadowrelay.sla.page.words import DEFINITIONS, FIGURES, FORMATS


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
