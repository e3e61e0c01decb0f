"""Small plots as SVG, without a library. They take the page's colours by class, so light, dark and paper need no second drawing.

A plot is two axes (functions from a value to 0…1) and what is drawn between them. It takes any number of points: without any there is a
sentence instead of a plot, and a single one is a dash as long as its window. Windows without a figure are gaps, never zero. The figures
stand in a table below.

Vertical axes have the units that people use: nines for a ratio near one, decades for times, and linear steps for sums.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shadowrelay.sla.page.markup import NB, Html, duration, percent, tag

WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 68, 40, 14, 28
_STEPS = [timedelta(hours=hours) for hours in (1, 3, 6, 12, 24, 48, 96, 168, 336, 672, 1344, 2688, 5376, 10752)]
_TICKS_MAX = 6
_LABEL_GAP = 15.0
_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday


@dataclass(frozen=True, slots=True)
class Axis:
    """Vertical: `place` gives 0 (bottom) … 1 (top); `ticks` are (value's place, label)."""

    place: Callable[[float], float]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """Shapes: one value for each window, None where there is none."""

    name: str
    kind: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Plot:
    """Shapes: `starts` ascending, of windows of length `step`; `bars` instead of lines where they are sums."""

    starts: Sequence[datetime]
    step: timedelta
    axis: Axis
    lines: Sequence[Line] = ()
    bars: Sequence[float | None] = ()
    promise: float | None = None

    def x(self, index: int) -> float:
        """The middle of a window, in pixels."""
        return self.x_at(self.starts[index] + self.step / 2)

    def x_at(self, at: datetime) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((at - self.starts[0]) / (self.starts[-1] + self.step - self.starts[0]))

    def y(self, value: float) -> float:
        return self.height_at(self.axis.place(value))

    @staticmethod
    def height_at(place: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(1.0, max(0.0, place)))


def drawing(plot: Plot, name: str, title: str, description: str) -> Html:
    """The plot as `<svg role="img">`; `name` is the page's unique id of it."""
    parts = [*_vertical(plot.axis), *_horizontal(plot), *_bars(plot), *_promise(plot)]
    for line in reversed(plot.lines):  # the first one lies on top
        parts += _line(plot, line)
    parts += _line_names(plot)
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-desc"),
        parts,
        tag("line", class_="cross", x1=LEFT, x2=LEFT, y1=TOP, y2=HEIGHT - BOTTOM),
        class_="plot",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def pixels(number: float) -> str:
    """Coordinates need no more than tenths."""
    return f"{number:.1f}".removesuffix(".0")


def _vertical(axis: Axis) -> Iterator[Html]:
    for place, label in axis.ticks:
        y = pixels(Plot.height_at(place))
        yield tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
        yield tag("text", label, class_="tick end", x=LEFT - 7, y=y, dy=".35em")


def time_ticks(first: datetime, end: datetime) -> list[tuple[datetime, str]]:
    """Whole hours or days, at most six. Labels: the hour within a day, else the date."""
    step = next((step for step in _STEPS if (end - first) / step <= _TICKS_MAX), (end - first) / _TICKS_MAX)
    at = _EPOCH + step * -(-(first - _EPOCH) // step)
    ticks = []
    while at <= end:
        is_day = at.hour == 0 and at.minute == 0
        ticks.append((at, f"{at.day} {at:%b}" if is_day else f"{at:%H:%M}"))
        at += step
    return ticks


def _horizontal(plot: Plot) -> Iterator[Html]:
    bottom = HEIGHT - BOTTOM
    yield tag("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom)
    for at, label in time_ticks(plot.starts[0], plot.starts[-1] + plot.step):
        x = pixels(plot.x_at(at))
        yield tag("line", class_="axis", x1=x, x2=x, y1=bottom, y2=bottom + 4)
        yield tag("text", label, class_="tick mid", x=x, y=bottom + 19)


def _bars(plot: Plot) -> Iterator[Html]:
    bottom = HEIGHT - BOTTOM
    slot = (WIDTH - LEFT - RIGHT) * (plot.step / (plot.starts[-1] + plot.step - plot.starts[0]))
    width = min(40.0, max(1.2, slot * 0.72))
    for index, value in enumerate(plot.bars):
        if value:
            top = min(plot.y(value), bottom - 1.5)  # what is there can be seen
            yield tag(
                "rect", class_="bar", x=pixels(plot.x(index) - width / 2), y=pixels(top), width=pixels(width), height=pixels(bottom - top)
            )


def _promise(plot: Plot) -> Iterator[Html]:
    if plot.promise is not None:
        y = pixels(plot.y(plot.promise))
        yield tag("line", class_="promise", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)


def _line(plot: Plot, line: Line) -> Iterator[Html]:
    """Runs of neighbouring windows are lines; a window alone is as long as it lasted."""
    run: list[int] = []
    for index in [*range(len(line.values)), -1]:
        has_value = index >= 0 and line.values[index] is not None
        follows = bool(run) and has_value and plot.starts[index] - plot.starts[run[-1]] <= plot.step
        if run and not follows:
            yield _run(plot, line, run)
            run = []
        if has_value:
            run.append(index)


def _run(plot: Plot, line: Line, run: Sequence[int]) -> Html:
    points = [(pixels(plot.x(index)), pixels(plot.y(value))) for index in run if (value := line.values[index]) is not None]
    if len(points) == 1:
        ends = [pixels(plot.x_at(plot.starts[run[0]] + part)) for part in (timedelta(0), plot.step)]
        return tag("line", class_=f"line alone {line.kind}", x1=ends[0], x2=ends[1], y1=points[0][1], y2=points[0][1])
    return tag("polyline", class_=f"line {line.kind}", points=" ".join(f"{x},{y}" for x, y in points))


def _line_names(plot: Plot) -> Iterator[Html]:
    """At the right end of each line, moved apart where they would touch."""
    if len(plot.lines) < 2:
        return
    ends = []
    for line in plot.lines:
        last = next((value for value in reversed(line.values) if value is not None), None)
        if last is not None:
            ends.append((plot.y(last), line))
    ends.sort(key=lambda end: end[0])
    floor = HEIGHT - BOTTOM - _LABEL_GAP * (len(ends) - 1)
    previous = TOP - _LABEL_GAP
    for position, (y, line) in enumerate(ends):
        previous = max(previous + _LABEL_GAP, min(y, floor + _LABEL_GAP * position))
        yield tag("text", line.name, class_=f"line-name {line.kind}", x=WIDTH - RIGHT + 5, y=pixels(previous), dy=".35em")


# ---- axes

_DECADES_MS = [1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000, 864_000_000, 8_640_000_000]
_NINES_MAX = 7
_TICKS = 4
_ROUND_SECONDS = [
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800),
    *(3_600, 7_200, 10_800, 21_600, 43_200, 86_400),
]


def nines(ratios: Iterable[float], promised: float | None) -> Axis:
    """For a ratio that should be near one: 90 %, 99 %, 99.9 % … are equally far apart, and 100 % is the top.

    Shapes: the lowest tick is 0 % if any is below 90 %, and never above 99 %, so that small breaches look small.
    """
    known = [ratio for ratio in [*ratios, promised] if ratio is not None]
    depths = [-math.log10(1 - ratio) for ratio in known if ratio < 1]
    lowest = math.floor(min([2.0, *depths]) + 1e-9)
    highest = min(_NINES_MAX, max(lowest + 1, math.ceil(max([2.0, *depths]) - 1e-9)))
    top = highest + 1

    def place(ratio: float) -> float:
        depth = top if ratio >= 1 else min(highest + 0.7, -math.log10(1 - ratio))
        return (depth - lowest) / (top - lowest)

    ticks = [(place(1 - 10.0**-depth), percent(round(1 - 10.0**-depth, 9))) for depth in range(lowest, highest + 1)]
    return Axis(place, (*ticks, (1.0, f"100{NB}%")))


def times(values_ms: Iterable[float], promised_ms: float | None) -> Axis:
    """For latencies that may differ a thousandfold: logarithmic, from one tick below the lowest to one above the highest.

    Units: milliseconds. What is below 1 ms stands at 1 ms.
    """
    known = [max(1.0, value) for value in [*values_ms, promised_ms] if value is not None] or [1.0]
    low = max([tick for tick in _DECADES_MS if tick <= min(known)])
    high = min([tick for tick in _DECADES_MS if tick >= max(known) and tick > low], default=max(known))

    def place(value: float) -> float:
        return math.log(max(low, value) / low) / math.log(high / low)

    ticks = [tick for tick in _DECADES_MS if low <= tick <= high]
    return Axis(place, tuple((place(tick), ("≤" if tick == 1 else "") + duration(tick / 1000)) for tick in ticks))


def sums(values: Iterable[float]) -> Axis:
    """For seconds that add up: from zero, linear, with about four round ticks."""
    highest = max(values, default=0.0) or 1.0
    step = next((step for step in _ROUND_SECONDS if highest / step <= _TICKS), None)
    if step is None:  # more than four days: one, two or five of ten to some power
        power = 86_400 * 10 ** math.floor(math.log10(highest / _TICKS / 86_400))
        step = next(factor * power for factor in (1, 2, 5, 10) if highest / (factor * power) <= _TICKS)
    top = step * math.ceil(highest / step - 1e-9)

    def place(value: float) -> float:
        return value / top

    ticks = [index * step for index in range(round(top / step) + 1)]
    return Axis(place, tuple((place(tick), duration(tick) if tick else "0") for tick in ticks))
