"""How long what is kept, with the defaults: Safety Net 2 days, expiration 2 days."""

from datetime import UTC, datetime, timedelta

from shadowrelay.model.settings import Transport
from shadowrelay.rules.delivery import remember_until, safety_net_until, shadow_keep_until

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
TRANSPORT = Transport(safety_net_hold_time=timedelta(days=3))


def test_an_unacknowledged_shadow_message_stays_hold_time_and_expiration_together():
    assert NOW + timedelta(days=5) == shadow_keep_until(NOW, TRANSPORT)
    assert NOW + timedelta(days=4) == shadow_keep_until(NOW, Transport())


def test_safety_net_keeps_for_its_hold_time():
    assert NOW + timedelta(days=3) == safety_net_until(NOW, TRANSPORT)


def test_a_row_answers_as_long_as_a_shadow_message_of_it_may_live():
    assert shadow_keep_until(NOW, TRANSPORT) == remember_until(NOW, TRANSPORT)
