"""A wall clock that jumps makes nothing old."""

from datetime import UTC, datetime, timedelta

import pytest

from shadowrelay.rules.delivery import BELIEVED_AFTER_SECONDS, WallClock, next_reading

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def looks(*steps: tuple[timedelta, float]) -> WallClock:
    """Each step: how far the wall clock went, and how many seconds passed."""
    clock = next_reading(None, AT, 1000.0)
    for wall, seconds in steps:
        clock = next_reading(clock, clock.now + wall, clock.awake + seconds)
    return clock


@pytest.mark.parametrize(
    ("steps", "ahead"),
    [
        ([], timedelta(0)),
        ([(timedelta(seconds=60), 60.0)] * 5, timedelta(0)),
        ([(timedelta(seconds=64), 60.0)] * 5, timedelta(0)),  # a slow machine, a slewed clock
        ([(10 * DAY, 60.0)], 10 * DAY - timedelta(seconds=60)),
        ([(10 * DAY, 0.0), (timedelta(hours=1), 3600.0)], 10 * DAY),
        ([(10 * DAY, 0.0), (2 * DAY, 0.0)], 12 * DAY),
        ([(10 * DAY, 0.0), (-10 * DAY, 0.0)], timedelta(0)),
        ([(10 * DAY, 0.0), (-4 * DAY, 0.0)], 6 * DAY),
        ([(-10 * DAY, 0.0)], timedelta(0)),
        ([(10 * DAY, 10 * DAY.total_seconds())], timedelta(0)),  # suspended for ten days
        ([(10 * DAY, 0.0), (DAY, BELIEVED_AFTER_SECONDS)], timedelta(0)),
        ([(10 * DAY, 0.0), (DAY / 2, BELIEVED_AFTER_SECONDS / 2), (DAY, 0.0), (DAY / 2, BELIEVED_AFTER_SECONDS / 2)], 11 * DAY),
    ],
)
def test_what_is_not_believed(steps: list[tuple[timedelta, float]], ahead: timedelta) -> None:
    assert ahead == looks(*steps).ahead
