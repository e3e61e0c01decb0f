from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.wire.instants import INSTANT_OCTETS, format_instant, parse_instant
from tests.unit.wire.strategies import instants, refusal


def test_an_instant_has_microseconds_and_a_z():
    assert format_instant(datetime(2026, 11, 21, 12, tzinfo=UTC)) == "2026-11-21T12:00:00.000000Z"


def test_another_zone_is_written_as_utc():
    at = datetime(2026, 11, 21, 12, 30, tzinfo=timezone(timedelta(hours=2)))

    assert format_instant(at) == "2026-11-21T10:30:00.000000Z"


@given(instants)
def test_any_instant_survives(at):
    assert at == parse_instant(format_instant(at))
    assert len(format_instant(at)) == INSTANT_OCTETS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-02-30T00:00:00.000000Z",
        "2026-11-21T12:00:00Z",
        "2026-11-21T12:00:00.000000",
        "2026-11-21T24:00:00.000000Z",
        "2026-11-21 12:00:00.000000Z",
        "2026-11-21T12:00:00.000000Z\n",
        "\u0662026-11-21T12:00:00.000000Z",
    ],
)
def test_anything_else_is_refused(text):
    assert refusal(parse_instant, text) == "501 5.5.4 Bad time"


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    assert refusal(parse_instant, text) in (None, "501 5.5.4 Bad time")
