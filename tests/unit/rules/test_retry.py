"""Exchange's ladder."""

from datetime import UTC, datetime, timedelta

import pytest

from shadowrelay.model.queue import FailureKind
from shadowrelay.model.settings import Send
from shadowrelay.rules.delivery import attempts_next_at, delay_notification_due, is_expired, ladder_steps, notice_at

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
SEND = Send()
C, M, U = FailureKind.CONNECTION, FailureKind.MESSAGE, FailureKind.UNANSWERED

LADDER = [
    (C, 1, 1), (C, 2, 1), (C, 4, 1), (C, 5, 5), (C, 10, 5), (C, 11, 10), (C, 1000, 10),
    (M, 1, 1), (M, 2, 15), (M, 1000, 15),
    (U, 1, 1), (U, 2, 2), (U, 3, 4), (U, 5, 16), (U, 7, 64), (U, 1000, 64),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "failures_count", "minutes"), LADDER)
def test_the_wait_after_so_many_failures(kind, failures_count, minutes):
    assert NOW + timedelta(minutes=minutes) == attempts_next_at(failures_count, kind, NOW, SEND, 0.0)


def test_the_first_retry_follows_the_glitch_interval_even_with_a_glitch_count_of_nothing():
    send = Send(queue_glitch_retry_count=0)
    waits = [attempts_next_at(count, C, NOW, send, 0.0) - NOW for count in (1, 2)]
    assert [timedelta(minutes=1), timedelta(minutes=5)] == waits


def test_jitter_adds_up_to_a_tenth():
    assert NOW + timedelta(seconds=63) == attempts_next_at(1, C, NOW, SEND, 0.5)


@pytest.mark.parametrize(("hours", "is_notified", "expected"), [(3.99, False, False), (4, False, True), (9, False, True), (9, True, False)])
def test_the_sender_is_told_once_after_four_hours(hours, is_notified, expected):
    assert expected is delay_notification_due(NOW - timedelta(hours=hours), NOW, SEND, is_notified=is_notified)


@pytest.mark.parametrize(("hours", "expected"), [(47.99, False), (48, True)])
def test_a_message_expires_after_its_time(hours, expected):
    assert expected is is_expired(NOW - timedelta(hours=hours), NOW, timedelta(days=2))


@pytest.mark.parametrize(("is_notified", "hours"), [(False, 4), (True, 48)])
def test_the_next_notice_is_the_delay_and_then_the_end(is_notified, hours):
    assert NOW + timedelta(hours=hours) == notice_at(NOW, SEND, timedelta(days=2), is_notified=is_notified)


def test_a_message_that_expires_before_it_is_late_has_one_notice():
    assert NOW + timedelta(hours=1) == notice_at(NOW, SEND, timedelta(hours=1), is_notified=False)


@pytest.mark.parametrize("kind", [FailureKind.MESSAGE, FailureKind.CONNECTION, FailureKind.UNANSWERED])
@pytest.mark.parametrize("failures_count", [1, 2, 4, 5, 7, 10, 11, 1000])
def test_every_failure_is_on_one_step_which_waits_as_long(kind, failures_count):
    waits = [step.wait for step in ladder_steps(SEND) if step.kind is kind and step.failures_min <= failures_count <= step.failures_max]

    assert [attempts_next_at(failures_count, kind, NOW, SEND, 1.0) - NOW] == waits


def test_what_was_not_tried_waits_for_nothing():
    assert [timedelta(0)] == [step.wait for step in ladder_steps(SEND) if step.kind is FailureKind.QUEUED]
