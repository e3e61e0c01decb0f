"""Back pressure as a pure function: each threshold, hysteresis, history, tarpit, and what a clock cannot change."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.back_pressure_settings import BackPressure, Transitions
from shadowrelay.rules.back_pressure import (
    NO_PRESSURE,
    TARPITTING,
    Level,
    Pressure,
    Resource,
    Sample,
    changes,
    disk_use,
    explanation,
    free_below,
    history_depth_of,
    level_after,
    measured,
    reasons,
    thresholds_of,
)

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
DEFAULTS = BackPressure()
NORMAL, MEDIUM, HIGH = Level
AT_ONCE = [resource for resource in Resource if history_depth_of(resource, DEFAULTS) == 1]
WITH_HISTORY = [resource for resource in Resource if history_depth_of(resource, DEFAULTS) > 1]


def after(
    uses: list[float], resource: Resource = Resource.DATABASE_USED_SPACE, settings: BackPressure = DEFAULTS, before: Pressure = NO_PRESSURE
) -> Pressure:
    """The pressure after these samples of one resource."""
    for number, use in enumerate(uses):
        before = measured(before, {resource: Sample(use)}, settings, NOON + timedelta(seconds=2 * number))
    return before


def levels(uses: list[float], resource: Resource = Resource.DATABASE_USED_SPACE, settings: BackPressure = DEFAULTS) -> list[Level]:
    """The node's level after each sample."""
    return [after(uses[: count + 1], resource, settings).level for count in range(len(uses))]


def transitions(*values: int) -> dict[str, int]:
    return dict(zip(("low_to_medium", "medium_to_high", "high_to_medium", "medium_to_low"), values, strict=True))


def test_the_thresholds_and_depths_are_those_of_exchange() -> None:
    found = {resource: (*dict(thresholds_of(resource, DEFAULTS)).values(), history_depth_of(resource, DEFAULTS)) for resource in Resource}

    assert found == {
        Resource.DATABASE_USED_SPACE: (96, 99, 97, 94, 1),
        Resource.USED_DISK_SPACE: (89, 99, 90, 80, 1),
        Resource.USED_VERSION_BUCKETS: (999, 1500, 1000, 800, 10),
        Resource.CHECKPOINT_DEPTH: (250, 300, 280, 230, 1),
        Resource.PRIVATE_BYTES: (72, 75, 73, 71, 30),
        Resource.CONTENT_MEMORY: (90, 98, 92, 80, 30),
        Resource.SYSTEM_MEMORY: (88, 94, 89, 84, 1),
        Resource.SUBMISSION_QUEUE: (9999, 15000, 10000, 2000, 300),
    }


@pytest.mark.parametrize("resource", Resource)
@pytest.mark.parametrize(("low_to_medium", "medium_to_high", "high_to_medium", "medium_to_low"), [(40, 60, 50, 30), (50, 50, 50, 50)])
def test_each_threshold_of_each_resource_acts_where_it_is_set(
    resource: Resource, low_to_medium: int, medium_to_high: int, high_to_medium: int, medium_to_low: int
) -> None:
    thresholds = Transitions(**transitions(low_to_medium, medium_to_high, high_to_medium, medium_to_low))
    settings = BackPressure.model_validate({resource.value: dict(thresholds)})

    def step(level: Level, use: float) -> Level:
        return level_after(level, use, thresholds_of(resource, settings))

    assert (NORMAL, NORMAL) == (step(NORMAL, low_to_medium), step(NORMAL, 0))
    assert (HIGH if medium_to_high == low_to_medium else MEDIUM) is step(NORMAL, low_to_medium + 0.1)
    assert (HIGH, HIGH, HIGH) == tuple(step(level, medium_to_high + 0.1) for level in Level)
    assert {step(MEDIUM, medium_to_high), step(NORMAL, medium_to_high)} <= {MEDIUM, NORMAL}
    assert (NORMAL, NORMAL) == (step(MEDIUM, medium_to_low), step(HIGH, medium_to_low))
    if medium_to_low < high_to_medium < medium_to_high:
        assert (MEDIUM, HIGH) == (step(HIGH, high_to_medium), step(HIGH, high_to_medium + 0.1))
        assert MEDIUM is step(MEDIUM, medium_to_low + 0.1)


def test_a_level_ends_lower_than_it_began() -> None:
    uses = [50, 96, 96.1, 95, 94.1, 94, 96, 99, 99.1, 98, 97.1, 97, 95, 94]

    assert [0, 0, 1, 1, 1, 0, 0, 1, 2, 2, 2, 1, 1, 0] == levels([float(use) for use in uses])


def test_a_disk_that_fills_at_once_is_high_at_once_and_empty_is_normal_at_once() -> None:
    assert [2, 0] == levels([100, 10])


@given(st.lists(st.floats(0, 100), max_size=30))
def test_the_level_is_always_one_that_the_last_use_allows(uses: list[float]) -> None:
    thresholds = DEFAULTS.database_used_space
    for use, level in zip(uses, levels(uses), strict=True):
        assert not (use > thresholds.medium_to_high and level is not HIGH)
        assert not (use > thresholds.low_to_medium and level is NORMAL)
        assert not (use <= thresholds.medium_to_low and level is not NORMAL)


@pytest.mark.parametrize("resource", WITH_HISTORY)
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_history_depth_counts_samples_above_normal_in_a_row(resource: Resource, depth: int) -> None:
    settings = BackPressure.model_validate({f"{resource.value}_history_depth": depth})
    over = thresholds_of(resource, settings).medium_to_high + 1.0

    assert [NORMAL] * (depth - 1) + [HIGH, HIGH] == levels([over] * (depth + 1), resource, settings)
    assert [NORMAL] * (2 * depth - 1) + [HIGH] == levels([over] * (depth - 1) + [0.0] + [over] * depth, resource, settings)


@pytest.mark.parametrize("resource", AT_ONCE)
def test_resources_that_do_not_swing_take_effect_with_one_sample(resource: Resource) -> None:
    assert HIGH is after([thresholds_of(resource, DEFAULTS).medium_to_high + 1.0], resource).meters[resource].level


def test_after_its_history_a_resource_has_the_level_that_it_has_then() -> None:
    uses = [76.0] * 29 + [74.0, 72.5]  # high until the last but one, where it is still above 73

    assert [NORMAL] * 29 + [HIGH, MEDIUM] == levels(uses, Resource.PRIVATE_BYTES)


@pytest.mark.parametrize(
    ("level", "refuses_outside", "refuses_inside", "may_resubmit"),
    [(0, False, False, True), (1, True, False, False), (2, True, True, False)],
)
def test_what_each_level_refuses(level: int, refuses_outside: bool, refuses_inside: bool, may_resubmit: bool) -> None:
    pressure = after([[10.0, 97.5, 100.0][level]])

    assert (refuses_outside, refuses_inside) == (pressure.refuses(is_inside=False), pressure.refuses(is_inside=True))
    assert may_resubmit == pressure.may_resubmit
    assert bool(level) is pressure.is_felt


def test_the_node_has_the_highest_level_of_its_resources() -> None:
    both = measured(NO_PRESSURE, {Resource.DATABASE_USED_SPACE: Sample(97.5), Resource.CHECKPOINT_DEPTH: Sample(301)}, DEFAULTS, NOON)
    one = measured(both, {Resource.CHECKPOINT_DEPTH: Sample(10)}, DEFAULTS, NOON)

    assert (HIGH, MEDIUM) == (both.level, one.level)


def test_the_memory_of_the_whole_machine_refuses_nothing() -> None:
    pressure = after([100.0] * 400, Resource.SYSTEM_MEMORY)

    assert (NORMAL, False, HIGH) == (pressure.level, pressure.is_felt, pressure.level_of(Resource.SYSTEM_MEMORY))


def test_what_cannot_be_read_keeps_its_level() -> None:
    before = after([97.5])
    now = measured(before, {}, DEFAULTS, NOON)

    assert (before.meters, MEDIUM) == (now.meters, now.level)


# the tarpit


@pytest.mark.parametrize("resource", sorted(TARPITTING))
def test_the_tarpit_grows_by_steps_to_its_maximum_and_shrinks_by_steps(resource: Resource) -> None:
    over = thresholds_of(resource, DEFAULTS).low_to_medium + 1.0
    pressure, grown, shrunk = NO_PRESSURE, [], []
    for _ in range(11):
        pressure = after([over], resource, before=pressure)
        grown.append(pressure.tarpit_seconds)
    while pressure.tarpit_seconds:
        pressure = after([0.0], resource, before=pressure)
        shrunk.append(pressure.tarpit_seconds)

    assert [10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 55] == grown
    assert [50, 45, 40, 35, 30, 25, 20, 15, 10, 0] == shrunk
    assert not pressure.is_felt


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("smtp_start_throttling_delay_interval", "1s", [1, 6, 11]),
        ("smtp_step_throttling_delay_interval", "1s", [10, 11, 12]),
        ("smtp_step_throttling_delay_interval", "0s", [10, 10, 10]),
        ("smtp_max_throttling_delay_interval", "12s", [10, 12, 12]),
        ("smtp_max_throttling_delay_interval", "0s", [0, 0, 0]),
    ],
)
def test_each_parameter_of_the_tarpit_changes_it(key: str, value: str, expected: list[float]) -> None:
    settings = BackPressure.model_validate({key: value})
    pressures = [after([10_000.0] * count, Resource.SUBMISSION_QUEUE, settings) for count in (1, 2, 3)]

    assert expected == [pressure.tarpit_seconds for pressure in pressures]
    assert [bool(seconds) for seconds in expected] == [pressure.is_felt for pressure in pressures]
    ended = after([0.0] * 3, Resource.SUBMISSION_QUEUE, settings, pressures[-1])
    assert 0 == ended.tarpit_seconds or key == "smtp_start_throttling_delay_interval"


def test_medium_delays_clients_from_outside_and_high_delays_all() -> None:
    medium, high = (after([use], Resource.SUBMISSION_QUEUE) for use in (10_000.0, 15_001.0))

    assert [(10, 0), (10, 10)] == [(pressure.delay(is_inside=False), pressure.delay(is_inside=True)) for pressure in (medium, high)]
    assert not medium.refuses(is_inside=False)


def test_after_its_history_the_submission_queue_refuses() -> None:
    pressure = after([10_000.0] * 300, Resource.SUBMISSION_QUEUE)

    assert (MEDIUM, True) == (pressure.level, pressure.refuses(is_inside=False))
    assert NORMAL is after([10_000.0] * 299, Resource.SUBMISSION_QUEUE).level


def test_a_disk_delays_nobody() -> None:
    assert 0 == after([100.0] * 50).tarpit_seconds


# clocks


@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(days=400), timedelta(0)])
def test_a_clock_that_jumps_changes_no_level(jump: timedelta) -> None:
    pressure = NO_PRESSURE
    for number in range(30):
        now = NOON + (jump if number % 2 else timedelta(0))
        pressure = measured(pressure, {Resource.PRIVATE_BYTES: Sample(80.0)}, DEFAULTS, now)
        assert (HIGH if number == 29 else NORMAL) is pressure.level

    assert NOON + jump == pressure.meters[Resource.PRIVATE_BYTES].since


# the space on disks

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("free", "size", "expected"),
    [
        (54_000_000, 100 * GB, 100),  # the floor
        (0, 100 * GB, 100),
        (54_000_000 + 499_460_000, 2000 * GB, 99),  # 99 % of 50 GB, less the floor
        (500 * GB, 2000 * GB, 0),  # 75 % of a large disk are used, and yet there is room
        (54_000_000 + 1_893_840_00, 1 * GB, 79.98),
        (1_000_000, 40_000_000, 100),  # smaller than the floor
    ],
)
def test_the_use_of_a_disk_is_what_may_be_used_of_it(free: int, size: int, expected: float) -> None:
    assert pytest.approx(expected, abs=0.01) == disk_use(free, size, 54_000_000, 50 * GB)


@pytest.mark.parametrize(("free_min", "size_max", "expected"), [(0, 50 * GB, 90), (1 * GB, 50 * GB, 91.84), (0, 10 * GB, 50)])
def test_both_sizes_change_the_use(free_min: int, size_max: int, expected: float) -> None:
    assert pytest.approx(expected, abs=0.01) == disk_use(5 * GB, 100 * GB, free_min, size_max)


@given(st.integers(0, 100), st.integers(1_000_000, 10**15), st.integers(0, 10**10), st.integers(10**6, 10**15))
def test_free_below_is_the_inverse(percent: int, size: int, free_min: int, size_max: int) -> None:
    free = free_below(percent, size, free_min, size_max)

    assert free >= free_min
    if min(size, size_max) > free_min + 1_000_000:
        assert pytest.approx(percent, abs=0.01) == disk_use(free, size, free_min, size_max)


# what is told


def test_changes_name_the_level_before_and_the_resource() -> None:
    medium, high, off = after([97.5]), after([97.5, 100.0]), NO_PRESSURE

    assert [(NORMAL, MEDIUM)] == [(level, meter.level) for level, meter in changes(NO_PRESSURE, medium)]
    assert [(MEDIUM, HIGH)] == [(level, meter.level) for level, meter in changes(medium, high)]
    assert [] == list(changes(medium, after([97.6], before=medium)))
    assert [(HIGH, NORMAL)] == [(level, meter.level) for level, meter in changes(high, off)]


@pytest.mark.parametrize(
    ("uses", "resource", "expected"),
    [
        ([10.0], Resource.DATABASE_USED_SPACE, []),
        ([97.5], Resource.DATABASE_USED_SPACE, ["back pressure medium: database_used_space is medium at 97.5 % (above 96, until 94)"]),
        ([99.9], Resource.DATABASE_USED_SPACE, ["back pressure high: database_used_space is high at 99.9 % (above 99, until 94)"]),
        ([80.0] * 3, Resource.PRIVATE_BYTES, []),
        (
            [12_000.0] * 3,
            Resource.SUBMISSION_QUEUE,
            [
                "tarpit: clients from outside wait 20 s at MAIL: "
                "submission_queue is medium at 12000 messages (above 9999, until 2000), sample 3 of 300"
            ],
        ),
        (
            [12_000.0] * 3 + [0.0],
            Resource.SUBMISSION_QUEUE,
            ["tarpit: clients from outside wait 15 s at MAIL: the pressure is over, and the delay shrinks"],
        ),
    ],
)
def test_reasons_say_what_is_short_and_when_it_ends(uses: list[float], resource: Resource, expected: list[str]) -> None:
    assert expected == list(reasons(after(uses, resource), DEFAULTS))


def test_an_explanation_ends_with_the_numbers_behind_it() -> None:
    pressure = measured(NO_PRESSURE, {Resource.USED_DISK_SPACE: Sample(91.0, "1 of 10 GB")}, DEFAULTS, NOON)

    assert explanation(pressure.meters[Resource.USED_DISK_SPACE], DEFAULTS).endswith("(above 89, until 80): 1 of 10 GB")


# settings


@pytest.mark.parametrize("values", [(10, 20, 15, 11), (30, 20, 15, 5), (10, 20, 25, 5), (10, 20, 4, 5)])
def test_thresholds_out_of_order_are_refused(values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be in order|must not be above"):
        BackPressure.model_validate({"used_disk_space": transitions(*values)})


def test_thresholds_that_are_left_out_keep_their_defaults() -> None:
    found = BackPressure.model_validate({"used_disk_space": {"low_to_medium": 85}}).used_disk_space

    assert (85, 99, 90, 80, {"low_to_medium"}) == (*dict(found).values(), found.model_fields_set)


def test_a_threshold_that_is_never_reached_switches_its_level_off() -> None:
    settings = BackPressure.model_validate({"used_disk_space": {"medium_to_high": 101}})

    assert [MEDIUM] == levels([100.0], Resource.USED_DISK_SPACE, settings)


def test_a_tarpit_cannot_begin_above_its_maximum() -> None:
    values: dict[str, Any] = {"smtp_start_throttling_delay_interval": "20s", "smtp_max_throttling_delay_interval": "10s"}
    with pytest.raises(ValueError, match="must not be longer"):
        BackPressure.model_validate(values)
