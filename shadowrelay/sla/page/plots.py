"""Computes the geometry of a small plot: where its lines, bars and labels are. `plot.html.jinja` draws it as SVG. docs/sla.md, 8.

A plot has two axes (functions from a value to 0…1), and lines or bars between them. It takes any number of points; a single one becomes a
dash as long as its window. Windows without a figure are gaps, never zero.

Vertical axes have the units that people use: nines for a ratio near one, decades for times, and linear steps for sums.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, NamedTuple

from shadowrelay.sla.page.wording import NB, count, duration, percent

_STEPS = [
    *(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=hours) for hours in (1, 3, 6, 12, 24, 48, 96, 168, 336, 672, 1344, 2688, 5376, 10752)),
]
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


class Run(NamedTuple):
    """Points of neighbouring windows, or the two ends of a window that stands alone."""

    points: list[tuple[float, float]]
    is_alone: bool


@dataclass(frozen=True, slots=True)
class Plot:
    """Shapes: `starts` ascending, of windows of length `step`; `bars` instead of lines where they are sums. Units: pixels."""

    starts: Sequence[datetime]
    step: timedelta
    axis: Axis
    lines: Sequence[Line] = ()
    bars: Sequence[float | None] = ()
    promise: float | None = None
    width: ClassVar = 480
    height: ClassVar = 230
    left: ClassVar = 68  # of the field between the axes, as are the next three
    right: ClassVar = 440
    top: ClassVar = 14
    bottom: ClassVar = 202

    @property
    def end(self) -> datetime:
        return self.starts[-1] + self.step

    def x(self, index: int) -> float:
        """The middle of a window."""
        return self.x_at(self.starts[index] + self.step / 2)

    def x_at(self, at: datetime) -> float:
        return self.left + (self.right - self.left) * ((at - self.starts[0]) / (self.end - self.starts[0]))

    def y(self, value: float) -> float:
        return self.height_at(self.axis.place(value))

    def height_at(self, place: float) -> float:
        return self.top + (self.bottom - self.top) * (1 - min(1.0, max(0.0, place)))

    def times(self) -> list[tuple[float, str]]:
        """(x, label) of the ticks below."""
        return [(self.x_at(at), label) for at, label in time_ticks(self.starts[0], self.end)]

    def rectangles(self) -> Iterator[tuple[float, float, float, float]]:
        """(x, y, width, height) of each bar."""
        width = min(40.0, max(1.2, (self.right - self.left) * (self.step / (self.end - self.starts[0])) * 0.72))
        for index, value in enumerate(self.bars):
            if value:
                y = min(self.y(value), self.bottom - 1.5)  # what is there can be seen
                yield self.x(index) - width / 2, y, width, self.bottom - y

    def runs(self, line: Line) -> list[Run]:
        """The line, interrupted where a window has no value or is missing."""
        runs: list[list[int]] = []
        for index, value in enumerate(line.values):
            if value is None:
                continue
            if runs and runs[-1][-1] == index - 1 and self.starts[index] - self.starts[index - 1] <= self.step:
                runs[-1].append(index)
            else:
                runs.append([index])
        return [self._run(line, run) for run in runs]

    def _run(self, line: Line, run: Sequence[int]) -> Run:
        points = [(self.x(index), self.y(value)) for index in run if (value := line.values[index]) is not None]
        if len(points) > 1:
            return Run(points, False)
        start, y = self.starts[run[0]], points[0][1]
        return Run([(self.x_at(start), y), (self.x_at(start + self.step), y)], True)

    def names(self) -> Iterator[tuple[float, Line]]:
        """(y, line) at the right end of each line, moved apart where they would touch; none if there is one line only."""
        lasts = [(next((value for value in reversed(line.values) if value is not None), None), line) for line in self.lines]
        ends = sorted(((self.y(last), line) for last, line in lasts if last is not None), key=lambda end: end[0])
        floor = self.bottom - _LABEL_GAP * (len(ends) - 1)
        previous = self.top - _LABEL_GAP
        for position, (y, line) in enumerate(ends if len(self.lines) > 1 else ()):
            previous = max(previous + _LABEL_GAP, min(y, floor + _LABEL_GAP * position))
            yield previous, line


def time_ticks(first: datetime, end: datetime) -> list[tuple[datetime, str]]:
    """Whole minutes, hours or days, at most six. Labels: the hour within a day, else the date."""
    step = next((step for step in _STEPS if (end - first) / step <= _TICKS_MAX), (end - first) / _TICKS_MAX)
    at = _EPOCH + step * -(-(first - _EPOCH) // step)
    ticks = []
    while at <= end:
        is_day = at.hour == 0 and at.minute == 0
        ticks.append((at, f"{at.day} {at:%b}" if is_day else f"{at:%H:%M}"))
        at += step
    return ticks


# ---- axes

_DECADES_MS = [1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000, 864_000_000, 8_640_000_000]
_NINES_MAX = 7
_TICKS = 4


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


def counts(values: Iterable[float]) -> Axis:
    """For numbers of messages: from zero, linear, with about four round ticks."""
    highest = max(values, default=0.0) or 1.0
    power: int = 10 ** max(0, math.floor(math.log10(highest / _TICKS)))
    step: int = next(factor * power for factor in (1, 2, 5, 10) if highest / (factor * power) <= _TICKS)
    top = step * math.ceil(highest / step - 1e-9)

    def place(value: float) -> float:
        return value / top

    return Axis(place, tuple((place(index * step), count(index * step)) for index in range(round(top / step) + 1)))
