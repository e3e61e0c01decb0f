"""Exchange's ladder."""

from datetime import UTC, datetime, timedelta

import pytest

from shadowrelay.core.retry import attempts_next_at, delay_notification_due, is_expired
from shadowrelay.model.queue import FailureKind
from shadowrelay.model.settings import Send

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
SEND = Send()
C, M, L = FailureKind.CONNECTION, FailureKind.MESSAGE, FailureKind.LEASE

LADDER = [
    (C, 1, 1), (C, 2, 1), (C, 4, 1), (C, 5, 5), (C, 10, 5), (C, 11, 10), (C, 1000, 10),
    (M, 1, 1), (M, 2, 15), (M, 1000, 15),
    (L, 0, 1), (L, 50, 1),
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
