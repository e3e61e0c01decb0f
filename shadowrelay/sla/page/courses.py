"""Figures over time: for each figure one plot by day and one by hour, each with its table.

The summary holds all days, and of hours the last 168. Up to a week is drawn by hour; what is longer is drawn by day, and its end by hour.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from shadowrelay.sla.page.markup import Child, Html, safe, tag
from shadowrelay.sla.page.parts import Column, Row, key_figures, none, table
from shadowrelay.sla.page.plots import Axis, Line, Plot, drawing, pixels
from shadowrelay.sla.page.shape import Figure, Summary
from shadowrelay.sla.page.spoken import NONE, parsed

_WEEK = timedelta(days=7)
Value = Callable[[Figure], float | None]


@dataclass(frozen=True, slots=True)
class Course:
    """One figure as a function of time.

    Shapes: `lines` are (name, class, value); `sum_of` in place of lines draws bars. `columns` are what the table adds beside them;
    `explained` is how to read the plot.
    """

    name: str
    title: str
    spoken: Callable[[float | None], str]
    axis: Callable[[Sequence[float], float | None], Axis]
    lines: Sequence[tuple[str, str, Value]] = ()
    sum_of: Value | None = None
    columns: Sequence[tuple[str, Value, Callable[[float | None], str]]] = ()
    promise: float | None = None
    promise_label: str = ""
    explained: str = ""


def pane(summary: Summary, course: Course, keys: Iterable[tuple[str, Child]]) -> Html:
    """The key figures, and the plots or a sentence where there is nothing to draw."""
    by_hour, by_day = (_windows(summary, window) for window in ("hour", "day"))
    days = [start for start, _ in by_day]
    is_long = bool(days) and days[-1] - days[0] >= _WEEK
    plots = [_figure(course, "day", by_day)] if is_long else []
    plots.append(_figure(course, "hour", by_hour))
    found = [plot for plot in plots if plot is not None]
    keyed = key_figures(keys)
    if not found:
        return tag("div", keyed, none(f"{course.title}: no figures in this input."), class_="pane")
    drawn = tag("div", keyed, tag("div", found, class_="plots"), class_="pane alone" if len(found) == 1 else "pane")
    return safe([drawn, tag("p", course.explained, class_="aside") if course.explained else None])


def _windows(summary: Summary, window: str) -> list[tuple[datetime, Figure]]:
    chosen = [figure for figure in summary["figures"] if figure["window"] == window and figure["scope"] == "all"]
    return sorted(((start, figure) for figure in chosen if (start := parsed(figure["start"]))), key=lambda pair: pair[0])


def _figure(course: Course, window: Literal["day", "hour"], windows: Sequence[tuple[datetime, Figure]]) -> Html | None:
    starts = [start for start, _ in windows]
    figures = [figure for _, figure in windows]
    lines = [Line(name, kind, [value(figure) for figure in figures]) for name, kind, value in course.lines]
    bars = [course.sum_of(figure) for figure in figures] if course.sum_of else []
    known = [value for values in [*[line.values for line in lines], bars] for value in values if value is not None]
    if not known:
        return None
    name = f"{course.name}-by-{window}"
    step = timedelta(days=1) if window == "day" else timedelta(hours=1)
    plot = Plot(starts, step, course.axis(known, course.promise), lines, bars, course.promise)
    title = f"{course.title} by {window}"
    return tag(
        "figure",
        tag("figcaption", tag("span", title), _promise(course), tag("span", class_="reading", aria_hidden="true")),
        drawing(plot, name, title, _description(course, plot, known)),
        tag("details", tag("summary", f"The figures: {title[0].lower()}{title[1:]}"), _table(course, plot, figures, name, title)),
    )


def _description(course: Course, plot: Plot, known: Sequence[float]) -> str:
    """What somebody who cannot see the plot should know of it."""
    windows = f"{len(plot.starts)} windows from {plot.starts[0]:%Y-%m-%d %H:%M} to {plot.starts[-1] + plot.step:%Y-%m-%d %H:%M} UTC."
    if plot.bars:
        extremes = [f"Highest {course.spoken(max(known))}, {sum(1 for value in known if value)} windows above zero."]
    else:
        extremes = []
        for line in plot.lines:
            values = [value for value in line.values if value is not None]
            if values:
                extremes.append(f"{line.name}: lowest {course.spoken(min(values))}, highest {course.spoken(max(values))}.")
    promised = f"Promised: {course.promise_label}." if course.promise_label else ""
    return " ".join([windows, *extremes, promised]).strip()


def _table(course: Course, plot: Plot, figures: Sequence[Figure], name: str, title: str) -> Html:
    lines = plot.lines or [Line(course.title, "", plot.bars)]
    columns = [
        Column("From (UTC)"),
        *[Column(line.name, "number") for line in lines],
        *[Column(head, "number") for head, _, _ in course.columns],
    ]
    rows = []
    for index, figure in enumerate(figures):
        cells = [course.spoken(line.values[index]) for line in lines]
        others = [spoken(value(figure)) for _, value, spoken in course.columns]
        if any(cell != NONE for cell in cells):
            rows.append(Row([f"{plot.starts[index]:%Y-%m-%d %H:%M}", *cells, *others], drawn_at=pixels(plot.x(index))))
    return table(name, title, columns, rows)


def _promise(course: Course) -> Html | None:
    """What the dashed line is."""
    if course.promise is None:
        return None
    line = tag("line", class_="promise", x2=20, y1=4, y2=4)
    return tag("span", tag("svg", line, viewBox="0 0 20 8", aria_hidden="true"), course.promise_label, class_="promised-line")
