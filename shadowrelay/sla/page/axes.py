"""Vertical axes in units that people use: nines for a ratio near one, decades for times, and plain sums."""

import math
from collections.abc import Iterable

from shadowrelay.sla.page.plots import Axis
from shadowrelay.sla.page.spoken import NB, duration, percent

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
