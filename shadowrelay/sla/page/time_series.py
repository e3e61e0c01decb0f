"""The sections on figures over time: redundancy, latencies, exposure, discard lag. Each plot has its table.

For each figure there is one plot by day and one by hour. The summary holds all days, and of hours the last 168. A period of up to a week is
drawn by hour only; a longer one by day, and its end by hour.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from shadowrelay.sla.page.markup import (
    NONE,
    Child,
    Column,
    Html,
    Row,
    count,
    duration,
    key_figures,
    milliseconds,
    none,
    parsed,
    percent,
    safe,
    section,
    table,
    tag,
)
from shadowrelay.sla.page.message_lists import longest_exposures
from shadowrelay.sla.page.plots import Axis, Line, Plot, drawing, nines, pixels, sums, times
from shadowrelay.sla.page.summary_types import Figure, Figures, Objective, Percentiles, Summary

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


# ---- the sections

_KINDS = ("first", "second", "third")


def redundancy(summary: Summary) -> Html:
    """How many messages had their second copy in time."""
    promised = _objective(summary, "redundancy_ratio")
    course = Course(
        name="redundancy-ratio",
        title="Redundancy ratio",
        spoken=percent,
        axis=nines,
        lines=(("Ratio", "first", lambda figure: figure["redundancy_ratio"]),),
        columns=(
            ("Acknowledged", lambda figure: figure["messages_acknowledged"], count),
            ("Without a copy", without_copy, count),
        ),
        promise=promised["objective"] if promised else None,
        promise_label=f"promised {percent(promised['objective'])}" if promised else "",
        explained="The scale is one of nines: each step up is ten times fewer messages without a copy.",
    )
    overall = summary["overall"]
    keys: list[tuple[str, Child]] = [
        ("With a second copy", percent(overall["redundancy_ratio"])),
        ("Messages acknowledged", count(overall["messages_acknowledged"])),
        ("Without one", count(without_copy(overall))),
        ("Reconstructed from copies", count(overall["messages_reconstructed"])),
    ]
    return section("redundancy", "Redundancy", pane(summary, course, keys), notes=["redundancy", "reconstructed"])


def without_copy(figures: Figures) -> int | None:
    """Messages that had no second copy, of those of which the logs tell; None where they tell of none."""
    ratio, redundant = figures["redundancy_ratio"], figures["messages_redundant"]
    if ratio is None:
        return None
    return round(redundant / ratio) - redundant if ratio else figures["messages_acknowledged"]


def latency(summary: Summary) -> Html:
    """Shadow and delivery latency, by percentiles."""
    overall = summary["overall"]
    shadow = _percentiles(summary, "shadow_latency", "Shadow latency", ("p50", "p95", "p99"))
    delivery = _percentiles(summary, "delivery_latency", "Delivery latency", ("p50", "p95", "p99"))
    share = overall["shadow_share"]
    shared = percent(None if share is None else round(share, 3))
    return section(
        "latency",
        "Latency",
        tag("h3", "Shadow"),
        pane(summary, shadow, [*_keys(overall["shadow_latency_ms"]), ("Share of the wait for 250", shared)]),
        tag("h3", "Delivery"),
        pane(summary, delivery, _keys(overall["delivery_latency_ms"])),
        notes=["shadow-latency", "delivery-latency", "percentile"],
    )


def exposure(summary: Summary) -> Html:
    """How long mail depended on one copy."""
    overall = summary["overall"]
    course = Course(
        name="exposure-seconds",
        title="Exposure",
        spoken=duration,
        axis=lambda values, _: sums(values),
        sum_of=lambda figure: figure["exposure_seconds"],
        columns=(
            ("Intervals", lambda figure: figure["exposure_count"], count),
            ("Longest", lambda figure: figure["exposure_max_seconds"], duration),
        ),
        explained="The times of all messages together: two messages exposed for an hour are two hours.",
    )
    keys: list[tuple[str, Child]] = [
        ("Intervals", count(overall["exposure_count"])),
        ("All together", duration(overall["exposure_seconds"])),
        ("Longest", duration(overall["exposure_max_seconds"])),
    ]
    return section("exposure", "Exposure", pane(summary, course, keys), longest_exposures(summary), notes=["exposure"])


def discard_lag(summary: Summary) -> Html:
    """How long copies outlived their need."""
    overall = summary["overall"]
    course = _percentiles(summary, "discard_lag", "Discard lag", ("p50", "p95", "max"))
    keys = [*_keys(overall["discard_lag_ms"], ("p50", "p95", "max")), ("Late", count(overall["discards_late"]))]
    return section("discard-lag", "Discard lag", pane(summary, course, keys), notes=["discard-lag"])


def _objective(summary: Summary, name: str) -> Objective | None:
    return next((one for one in summary["objectives"] if one["name"] == name), None)


def _of(figures: Figures, name: str) -> Percentiles:
    match name:
        case "shadow_latency":
            return figures["shadow_latency_ms"]
        case "delivery_latency":
            return figures["delivery_latency_ms"]
        case _:
            return figures["discard_lag_ms"]


def rank(percentiles: Percentiles, name: str) -> int | None:
    """One percentile by its name; None where there is none."""
    match name:
        case "p50":
            return percentiles.get("p50")
        case "p95":
            return percentiles.get("p95")
        case "p99":
            return percentiles.get("p99")
        case _:
            return percentiles.get("max")


def _percentiles(summary: Summary, figure: str, title: str, ranks: Sequence[str]) -> Course:
    def value_of(name: str) -> Value:
        return lambda figures: rank(_of(figures, figure), name)

    objective = _objective(summary, figure)
    within = objective["within_seconds"] if objective else None
    return Course(
        name=figure.replace("_", "-"),
        title=title,
        spoken=milliseconds,
        axis=times,
        lines=[(name, kind, value_of(name)) for name, kind in zip(ranks, _KINDS, strict=True)],
        columns=(("Count", lambda figures: _of(figures, figure).get("count"), count),),
        promise=None if within is None else within * 1000,
        promise_label=""
        if objective is None or within is None
        else f"promised {percent(objective['objective'])} within {duration(within)}",
    )


def _keys(percentiles: Percentiles, names: Sequence[str] = ("p50", "p95", "p99", "max")) -> list[tuple[str, Child]]:
    return [("Longest" if name == "max" else name, milliseconds(rank(percentiles, name))) for name in names]
