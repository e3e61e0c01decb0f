"""The page's figures over time: redundancy, latencies, exposure, discard lag. Each plot has its table. docs/sla.md, 8.

Each figure has one plot by day and one by hour. The summary holds all days, and the last 168 hours. A period of up to a week is
drawn by hour only; a longer one by day, and its end by hour. A period of up to three hours is drawn by minute. Fewer than three points
are not drawn: the key figures show them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from shadowrelay.sla.page.plots import Axis, Line, Plot, counts, nines, times
from shadowrelay.sla.page.summary_types import Figure, Figures, Objective, Percentiles, Summary
from shadowrelay.sla.page.telling import tells, told, wants_several
from shadowrelay.sla.page.wording import NONE, count, counted, duration, milliseconds, parsed, percent, untold

Window = Literal["day", "hour", "minute"]
_WEEK = timedelta(days=7)
_POINTS_MIN = 3
_STEPS: Mapping[Window, timedelta] = {"day": timedelta(days=1), "hour": timedelta(hours=1), "minute": timedelta(minutes=1)}
Value = Callable[[Figure], float | None]
Rank = Literal["p50", "p95", "p99", "max"]


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


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot and its table. Shapes: `rows` are (x in the plot, start of the window, other cells)."""

    name: str
    title: str
    description: str
    plot: Plot
    columns: list[str | tuple[str, str]]
    rows: list[tuple[float, str, list[str]]]


@dataclass(frozen=True, slots=True)
class Pane:
    """Key figures (name, value), and the plots; none if there is nothing to draw."""

    course: Course
    charts: list[Chart]
    keys: list[tuple[str, str]]


def panes(summary: Summary) -> dict[str, Pane]:
    """All of them, by figure."""
    return {
        "redundancy": _redundancy(summary),
        "shadow_latency": _shadow_latency(summary),
        "delivery_latency": _delivery_latency(summary),
        "exposure": _exposure(summary),
        "discard_lag": _discard_lag(summary),
    }


def _pane(summary: Summary, course: Course, keys: list[tuple[str, str]]) -> Pane:
    windows = {window: _windows(summary, window) for window in get_args(Window)}
    days = [start for start, _ in windows["day"]]
    is_long = bool(days) and days[-1] - days[0] >= _WEEK
    shown: Sequence[Window] = ("minute",) if windows["minute"] else ("day", "hour") if is_long else ("hour",)
    charts = [_chart(course, window, windows[window]) for window in shown]
    return Pane(course, [chart for chart in charts if chart], keys)


def _windows(summary: Summary, window: Window) -> list[tuple[datetime, Figure]]:
    chosen = [figure for figure in summary["figures"] if figure["window"] == window and figure["scope"] == "all"]
    return sorted(((start, figure) for figure in chosen if (start := parsed(figure["start"]))), key=lambda pair: pair[0])


def _chart(course: Course, window: Window, windows: Sequence[tuple[datetime, Figure]]) -> Chart | None:
    starts = [start for start, _ in windows]
    figures = [figure for _, figure in windows]
    lines = [Line(name, kind, [value(figure) for figure in figures]) for name, kind, value in course.lines]
    bars = [course.sum_of(figure) for figure in figures] if course.sum_of else []
    known = [value for values in [*[line.values for line in lines], bars] for value in values if value is not None]
    points = zip(*([line.values for line in lines] or [bars]), strict=True)
    if sum(1 for values in points if any(value is not None for value in values)) < _POINTS_MIN or (bars and not any(known)):
        return None
    plot = Plot(starts, _STEPS[window], course.axis(known, course.promise), lines, bars, course.promise)
    shown = lines or [Line(course.title, "", bars)]
    return Chart(
        name=f"{course.name}-by-{window}",
        title=f"{course.title} by {window}",
        description=_description(course, plot, known),
        plot=plot,
        columns=["From (UTC)", *[(line.name, "number") for line in shown], *[(head, "number") for head, _, _ in course.columns]],
        rows=list(_rows(course, plot, shown, figures)),
    )


def _rows(course: Course, plot: Plot, lines: Sequence[Line], figures: Sequence[Figure]) -> Iterator[tuple[float, str, list[str]]]:
    for index, figure in enumerate(figures):
        cells = [course.spoken(line.values[index]) for line in lines]
        others = [spoken(value(figure)) for _, value, spoken in course.columns]
        if any(cell != NONE for cell in cells):
            yield plot.x(index), f"{plot.starts[index]:%Y-%m-%d %H:%M}", [*cells, *others]


def _description(course: Course, plot: Plot, known: Sequence[float]) -> str:
    """A description for readers who cannot see the plot."""
    windows = f"{len(plot.starts)} windows from {plot.starts[0]:%Y-%m-%d %H:%M} to {plot.end:%Y-%m-%d %H:%M} UTC."
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


# ---- the figures

_KINDS = ("first", "second", "third")


def _redundancy(summary: Summary) -> Pane:
    """How many messages had their second copy in time."""
    has_several = wants_several(summary)
    promised = _objective(summary, "redundancy_ratio")
    course = Course(
        name="redundancy-ratio",
        title="Redundancy ratio",
        spoken=percent,
        axis=nines,
        lines=(("Ratio", "first", lambda figure: figure["redundancy_ratio"]),),
        columns=(
            ("Acknowledged", lambda figure: figure["messages_acknowledged"], count),
            ("With fewer than wanted" if has_several else "Without a copy", _without_copy, count),
        ),
        promise=promised["objective"] if promised else None,
        promise_label=f"promised {percent(promised['objective'])}" if promised else "",
        explained="The scale is one of nines: each step up is ten times fewer messages without "
        + ("all their copies." if has_several else "a copy."),
    )
    overall = summary["overall"]
    by_copies = overall["messages_by_copies"]
    kept = overall["shadows_kept"]
    keys = [
        ("With all copies" if has_several else "With a second copy", percent(overall["redundancy_ratio"])),
        ("Messages acknowledged", count(overall["messages_acknowledged"])),
        ("With fewer than wanted" if has_several else "Without a second copy", count(_without_copy(overall))),
        *((_COPIES[number], count(messages)) for number, messages in by_copies.items() if has_several),
        *((_WAYS[way], count(messages)) for way, messages in overall["messages_redundant_by_way"].items() if way in _WAYS and messages),
        *((("Shadows kept, and taken back", f"{count(kept)}, {count(overall['shadows_taken_back'])}"),) if kept else ()),
        *((("Of these, sent another way", count(overall["shadows_rerouted"])),) if overall["shadows_taken_back"] else ()),
        ("Reconstructed from copies", count(told(overall["messages_reconstructed"], summary, "redundancy_ratio"))),
    ]
    return _pane(summary, course, keys)


_COPIES = {"0": "Without a copy", "1": "With one copy", "2": "With two copies", "3": "With three or more"}


_WAYS = {"previous_hop": "Shadow at the previous hop", "next_hop": "At the next hop before the 250"}


def _without_copy(figures: Figures) -> int | None:
    """Messages that had not all copies that were wanted, of those of which the logs tell; None where they tell of none."""
    judged = sum(figures["messages_by_copies"].values())
    return judged - figures["messages_redundant"] if judged else None


def _shadow_latency(summary: Summary) -> Pane:
    """From the end of the content to the shadow server's answer."""
    overall = summary["overall"]
    course = _percentiles(summary, "shadow_latency", "Time to the second copy", lambda figures: figures["shadow_latency_ms"])
    share = overall["shadow_share"]
    shared = percent(None if share is None else round(share, 3))
    return _pane(summary, course, [*_keys(overall["shadow_latency_ms"]), ("Share of the wait for 250", shared)])


def _delivery_latency(summary: Summary) -> Pane:
    """From the 250 to the last delivery."""
    course = _percentiles(summary, "delivery_latency", "Time to the delivery", lambda figures: figures["delivery_latency_ms"])
    return _pane(summary, course, _keys(summary["overall"]["delivery_latency_ms"]))


def exposure(figures: Figures, summary: Summary, of: Figure | None = None) -> str:
    """199 messages, longest 8.2 s; a dash where the logs do not tell. Shapes: `of` is the line of `figures`, None for those of all."""
    if not tells(summary, "exposure", of):
        return NONE
    number, unknown = figures["messages_exposed"], figures.get("messages_exposure_unknown", 0)
    said = f"{counted(number, 'message')}, longest {duration(figures['exposure_max_seconds'])}" if number else "no message"
    return f"{said if number else 'no other message'}; of {untold(unknown)}" if unknown else said


def _exposure(summary: Summary) -> Pane:
    """How long mail depended on one copy."""
    overall = summary["overall"]
    course = Course(
        name="messages-exposed",
        title="Messages with one copy only",
        spoken=count,
        axis=lambda values, _: counts(values),
        sum_of=lambda figure: figure["messages_exposed"],
        columns=(("Longest", lambda figure: figure["exposure_max_seconds"], duration),),
        explained="Messages by when they were acknowledged.",
    )
    keys = [("Had one copy only for a time", exposure(overall, summary))]
    return _pane(summary, course, keys)


def _discard_lag(summary: Summary) -> Pane:
    """How long copies outlived their need."""
    overall = summary["overall"]
    course = _percentiles(summary, "discard_lag", "Clean-up of copies", lambda figures: figures["discard_lag_ms"], ("p50", "p95", "max"))
    late = counted(overall["discards_late"], "copy", "copies") if overall["discard_lag_ms"].get("count") else NONE
    keys = [*_keys(overall["discard_lag_ms"], ("p50", "p95", "max")), ("Late", late)]
    return _pane(summary, course, keys)


def _objective(summary: Summary, name: str) -> Objective | None:
    return next((one for one in summary["objectives"] if one["name"] == name), None)


def _percentiles(
    summary: Summary, figure: str, title: str, of: Callable[[Figures], Percentiles], ranks: Sequence[Rank] = ("p50", "p95", "p99")
) -> Course:
    def value_of(rank: Rank) -> Value:
        return lambda figures: of(figures).get(rank)

    objective = _objective(summary, figure)
    within = objective["within_seconds"] if objective else None
    return Course(
        name=figure.replace("_", "-"),
        title=title,
        spoken=milliseconds,
        axis=times,
        lines=[(rank, kind, value_of(rank)) for rank, kind in zip(ranks, _KINDS, strict=True)],
        columns=(("Count", lambda figures: of(figures).get("count"), count),),
        promise=None if within is None else within * 1000,
        promise_label=""
        if objective is None or within is None
        else f"promised {percent(objective['objective'])} within {duration(within)}",
    )


def _keys(percentiles: Percentiles, ranks: Sequence[Rank] = ("p50", "p95", "p99", "max")) -> list[tuple[str, str]]:
    return [("Longest" if rank == "max" else rank, milliseconds(percentiles.get(rank))) for rank in ranks]
