"""How fast queues drain: the change of their depth over the last minute."""

from types import SimpleNamespace

from shadowrelay.model.queue import QueueKind
from shadowrelay.pipeline.velocity import EVERY_SECONDS, HISTORY_POINTS, HISTORY_QUEUES_MAX, Velocities
from tests.kit.clock import Hands

KEY = (QueueKind.DELIVERY, "x.example")


def test_a_queue_that_drains_is_positive_and_one_that_grows_negative() -> None:
    awake = Hands(1000.0)
    velocities = Velocities(SimpleNamespace(awake=awake))  # type: ignore[arg-type]
    velocities.note({KEY: 100, (QueueKind.SHADOW, "x.example"): 5})
    awake.at += 20

    assert (2.0, -5.0) == (velocities.of(*KEY, 60), velocities.of(*KEY, 200))
    assert -0.5 == velocities.of(QueueKind.DELIVERY, "new.example", 10), "what was empty then"
    assert 0.25 == velocities.of(QueueKind.SHADOW, "x.example", 0)


def test_only_the_last_minute_counts_and_nothing_is_kept_longer() -> None:
    awake = Hands(1000.0)
    velocities = Velocities(SimpleNamespace(awake=awake))  # type: ignore[arg-type]
    for count in range(0, 6_000, 100):  # ten a second come
        velocities.note({KEY: count})
        awake.at += EVERY_SECONDS
    assert len(velocities._samples) <= 8

    assert -10.0 == velocities.of(*KEY, 6_000)


def test_a_node_that_has_just_started_has_no_velocity_yet() -> None:
    velocities = Velocities(SimpleNamespace(awake=lambda: 5.0))  # type: ignore[arg-type]
    assert 0.0 == velocities.of(*KEY, 100)
    velocities.note({KEY: 1})
    assert 0.0 == velocities.of(*KEY, 100)


def test_the_last_hour_is_remembered_by_the_minute_and_only_of_the_most_active_queues() -> None:
    awake = Hands(1000.0)
    velocities = Velocities(SimpleNamespace(awake=awake))  # type: ignore[arg-type]
    many = {(QueueKind.DELIVERY, f"q{number}"): number for number in range(1, HISTORY_QUEUES_MAX + 2)}
    for minute in range(HISTORY_POINTS + 5):
        for _ in range(6):
            velocities.note({**many, KEY: 5_000 + minute})
            awake.at += EVERY_SECONDS
    history = velocities.history_of(*KEY, 7)

    assert (HISTORY_POINTS + 1, 5_005, 5_064, 7) == (len(history), history[0], history[-2], history[-1])
    assert () == velocities.history_of(QueueKind.DELIVERY, "q1", 1), "the least full is not remembered"
    assert (HISTORY_POINTS, HISTORY_QUEUES_MAX) == (len(velocities._history), max(map(len, velocities._history)))


def test_a_queue_that_was_emptied_is_more_active_than_one_that_only_waits() -> None:
    awake = Hands(1000.0)
    velocities = Velocities(SimpleNamespace(awake=awake))  # type: ignore[arg-type]
    waits = {(QueueKind.DELIVERY, f"q{number}"): 50 for number in range(HISTORY_QUEUES_MAX)}
    for depth in (500, 3):
        for _ in range(6):
            velocities.note({**waits, KEY: depth})
            awake.at += EVERY_SECONDS

    assert (500, 3, 4) == velocities.history_of(*KEY, 4)


def test_a_line_begins_after_the_last_minute_of_which_nothing_is_known() -> None:
    awake = Hands(1000.0)
    velocities = Velocities(SimpleNamespace(awake=awake))  # type: ignore[arg-type]
    others = {(QueueKind.DELIVERY, f"q{number}"): 50 for number in range(HISTORY_QUEUES_MAX)}
    for depths in ({KEY: 9}, {**others, KEY: 10}, {KEY: 11}, {}):
        for _ in range(6):
            velocities.note(depths)
            awake.at += EVERY_SECONDS

    assert (11, 0, 4) == velocities.history_of(*KEY, 4)
