"""Small plots as SVG, without a library: they take the page's colours by class, so light, dark and paper need no second drawing.

A plot is two axes (functions from a value to 0…1) and what is drawn between them. Any number of points will do: none is a sentence
instead of a plot, one is a dash as long as its window. Windows without a figure are gaps, never zero. The figures stand in a table below.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shadowrelay.sla.page.markup import Html, tag

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
