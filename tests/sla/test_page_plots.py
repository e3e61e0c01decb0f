"""Plots and numbers of the report page: any count of points, huge values and none."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from shadowrelay.sla.page.document import templates
from shadowrelay.sla.page.plots import Axis, Line, Plot, counts, nines, time_ticks, times
from shadowrelay.sla.page.wording import burn, count, duration, percent

FIRST = datetime(2026, 11, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def drawing(plot: Plot) -> str:
    drawn: str = templates().get_template("plot.html.jinja").module.drawing(plot, "x", "title", "what")  # type: ignore[attr-defined]
    return drawn


def plot_of(values: list[float | None], axis: Axis, *, is_bars: bool = False, promise: float | None = None) -> ElementTree.Element:
    starts = [FIRST + index * HOUR for index in range(len(values))]
    lines = (
        [] if is_bars else [Line("p50", "first", values), Line("p99", "third", [None if value is None else value * 2 for value in values])]
    )
    return ElementTree.fromstring(drawing(Plot(starts, HOUR, axis, lines, values if is_bars else [], promise)))


def numbers(drawn: ElementTree.Element) -> list[tuple[float, float]]:
    """Every point that is drawn."""
    found = [tuple(map(float, pair.split(","))) for one in drawn.iter("polyline") for pair in one.attrib["points"].split()]
    found += [(float(one.attrib[x]), float(one.attrib[y])) for one in drawn.iter("line") for x, y in (("x1", "y1"), ("x2", "y2"))]
    found += [(float(one.attrib["x"]), float(one.attrib["y"])) for one in drawn.iter("rect")]
    return [(x, y) for x, y in found]


MANY: list[float | None] = [None if index % 97 == 5 else float(index**3 % 86_400_001) for index in range(720)]
INPUTS: list[list[float | None]] = [[0.0], [7.0], [0.0, 0.0], [None, 3.0, None], [1e12, 0.0, None, 5.0], MANY]


@pytest.mark.parametrize("values", INPUTS, ids=lambda values: str(len(values)))
@pytest.mark.parametrize("kind", ["times", "counts"])
def test_every_point_lies_within_its_plot(values: list[float | None], kind: str) -> None:
    known = [value for value in values if value is not None]
    axis = times([*known, *[value * 2 for value in known]], 250.0) if kind == "times" else counts(known)
    drawn = plot_of(values, axis, is_bars=kind == "counts", promise=250.0 if kind == "times" else None)

    assert [] == [
        (x, y) for x, y in numbers(drawn) if not (Plot.left <= x <= Plot.right + 0.1 and Plot.top - 0.1 <= y <= Plot.bottom + 4.1)
    ]
    assert 2 <= len(axis.ticks) <= 13


def test_a_gap_is_no_line_and_a_lone_window_is_as_long_as_it_lasted() -> None:
    drawn = plot_of([1.0, 2.0, None, 4.0, None, 5.0, 6.0], times([1.0, 12.0], None))
    lone = [one for one in drawn.iter("line") if "alone" in one.attrib["class"] and "first" in one.attrib["class"]]

    assert [2, 2] == [len(one.attrib["points"].split()) for one in drawn.iter("polyline") if "first" in one.attrib["class"]]
    assert 1 == len(lone)
    assert (Plot.right - Plot.left) / 7 == pytest.approx(float(lone[0].attrib["x2"]) - float(lone[0].attrib["x1"]), abs=0.2)


def test_windows_that_are_missing_in_the_summary_are_gaps_too() -> None:
    plot = Plot([FIRST, FIRST + HOUR, FIRST + 9 * HOUR], HOUR, counts([3.0]), [Line("", "first", [1.0, 2.0, 3.0])])

    assert 1 == drawing(plot).count("polyline class") == drawing(plot).count("alone")


def test_names_of_lines_do_not_touch() -> None:
    drawn = plot_of([5.0, 5.0], Axis(lambda _: 0.0, ((0.0, "0"),)))
    heights = sorted(float(one.attrib["y"]) for one in drawn.iter("text") if "line-name" in one.attrib["class"])

    assert heights[1] - heights[0] >= 12
    assert heights[-1] <= Plot.bottom


def test_what_is_there_can_be_seen_beside_something_huge() -> None:
    bars = [float(bar.attrib["height"]) for bar in plot_of([1.0, 1e9, 0.0], counts([1e9]), is_bars=True).iter("rect")]

    assert 2 == len(bars)
    assert min(bars) >= 1


def test_nines_are_equally_far_apart_and_all_is_the_top() -> None:
    axis = nines([1.0, 0.5, 0.9995], 0.9999)
    places = [place for place, _ in axis.ticks]

    assert ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "100 %"] == [label.replace("\xa0", " ") for _, label in axis.ticks]
    assert {0.2} == {round(other - one, 6) for one, other in pairwise(places)}
    assert (1.0, True) == (axis.place(1.0), axis.place(0.5) < axis.place(0.9) < axis.place(0.9995) < axis.place(0.999999) < 1)


def test_an_almost_whole_ratio_is_never_drawn_as_whole() -> None:
    axis = nines([1 - 1e-15, 0.0], None)

    assert (0.0, True) == (axis.place(0.0), axis.place(1 - 1e-15) < 1)


@pytest.mark.parametrize("hours", [1, 2, 24, 49, 168, 720, 24 * 365, 24 * 4000])
def test_there_are_few_and_round_ticks_of_time(hours: int) -> None:
    ticks = time_ticks(FIRST + 3 * HOUR, FIRST + (3 + hours) * HOUR)

    assert 1 <= len(ticks) <= 7
    assert [] == [at for at, _ in ticks if at.minute % 5 or at.second or not FIRST <= at <= FIRST + (3 + hours) * HOUR]


PERCENTS = [
    *((None, "\N{EN DASH}"), (1.0, "100 %"), (0.0, "0 %"), (0.9999, "99.99 %"), (0.99996, "99.996 %"), (0.98999, "98.9 %"), (0.5, "50 %")),
    *((0.999999999, "99.9999999 %"), (0.0001, "0.01 %"), (-24.88, "\N{MINUS SIGN}2,488 %"), (2 / 3, "66.6 %"), (0.29, "29 %")),
]


@pytest.mark.parametrize(("ratio", "said"), PERCENTS)
def test_a_percentage_is_never_rounded_up(ratio: float | None, said: str) -> None:
    assert said == percent(ratio).replace("\xa0", " ")


DURATIONS = [
    *((None, "\N{EN DASH}"), (0.0, "0 ms"), (0.25, "250 ms"), (1.29, "1.2 s"), (12.9, "12 s"), (60, "1 min"), (200, "3 min 20 s")),
    *((3_600, "1 h"), (10_931, "3 h 2 min"), (86_400, "1 d"), (187_200, "2 d 4 h"), (86_400_000, "1,000 d")),
]


@pytest.mark.parametrize(("seconds", "said"), DURATIONS)
def test_a_duration_is_said_in_its_own_units(seconds: float | None, said: str) -> None:
    assert said == duration(seconds).replace("\xa0", " ")


def test_rates_and_counts_have_the_digits_that_matter() -> None:
    assert ["0", "<0.01", "0.05", "2.4", "14", "1,204"] == [burn(rate) for rate in (0.0, 0.002, 0.05, 2.4, 14.4, 1_204.0)]
    assert ["\N{EN DASH}", "0", "1,204"] == [count(number) for number in (None, 0, 1_204)]
