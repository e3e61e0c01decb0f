from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.protocol.fields import format_instant, format_span, parse_instant, parse_span
from tests.unit.protocol.strategies import instants, refusal


def test_an_instant_has_microseconds_and_a_z():
    assert format_instant(datetime(2026, 11, 21, 12, tzinfo=UTC)) == "2026-11-21T12:00:00.000000Z"


def test_another_zone_is_written_as_utc():
    at = datetime(2026, 11, 21, 12, 30, tzinfo=timezone(timedelta(hours=2)))

    assert format_instant(at) == "2026-11-21T10:30:00.000000Z"


@given(instants)
def test_any_instant_survives(at):
    assert at == parse_instant(format_instant(at))
    assert len(format_instant(at)) == len("2026-11-21T12:00:00.000000Z")


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


SPANS = [
    ("10800", timedelta(hours=3)),
    ("0.25", timedelta(milliseconds=250)),
    ("86400", timedelta(days=1)),
    ("1.000001", timedelta(seconds=1, microseconds=1)),
]


@pytest.mark.parametrize(("text", "span"), SPANS)
def test_a_span_is_the_same_in_both_directions(text, span):
    assert text == format_span(span)
    assert span == parse_span(text)


@pytest.mark.parametrize("text", ["", "0", "0.0", "01", "-1", ".5", "1.", "1.0000001", "86400.000001", "1e3", "1 ", "\u0661"])
def test_anything_else_is_no_span(text):
    assert refusal(parse_span, text) == "501 5.5.4 Bad span"


@given(st.timedeltas(timedelta(microseconds=1), timedelta(days=1)))
def test_any_span_survives(span):
    assert span == parse_span(format_span(span))
