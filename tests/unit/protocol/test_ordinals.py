import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.protocol.fields import (
    DONE_OCTETS_MAX,
    ORDINAL_MAX,
    RANGES_OCTETS_MAX,
    format_done,
    format_ordinals,
    parse_done,
    parse_ordinals,
)
from tests.unit.protocol.strategies import ordinals, refusal

BAD = "501 5.5.4 Bad recipient ordinals"
CASES = [
    ("", []),
    ("1", [1]),
    ("1-2", [1, 2]),
    ("1-40,57", [*range(1, 41), 57]),
    ("2,4,6-8,5000", [2, 4, 6, 7, 8, 5000]),
]
EVERY_SECOND = frozenset(range(1, ORDINAL_MAX + 1, 2))


@pytest.mark.parametrize(("text", "ordinals"), CASES)
def test_ranges_and_ordinals_are_the_same_in_both_directions(text, ordinals):
    assert text == format_ordinals(frozenset(ordinals))
    assert frozenset(ordinals) == parse_ordinals(text)
    assert text == format_done(frozenset(ordinals))
    assert frozenset(ordinals) == parse_done(text)


def test_neighbouring_ranges_that_another_program_did_not_join_are_read():
    assert frozenset({1, 2, 3}) == parse_ordinals("1,2-3")


@pytest.mark.parametrize(
    "text",
    ["0", "01", "1-", "-1", "1-1", "2-1", "1,1", "1-3,3", "3,1", "1,", ",1", "1 ", " 1", "1;2", "1--2", "1-2-3", "+1", "٣", "5001",
     "1-5001", "1-999999999", "9999999999999999999999", "1\n", "~", "a"],
)  # fmt: skip
def test_what_is_not_ascending_ranges_within_the_limit_is_refused(text):
    assert refusal(parse_ordinals, text) == BAD


def test_the_limit_may_be_lower_than_the_greatest():
    assert refusal(parse_ordinals, "1-3", 2) == BAD
    assert refusal(parse_done, "1-3", 2) == BAD
    assert refusal(parse_done, "~" + "_" * 834, 4_999) == BAD
    assert frozenset({1, 2}) == parse_ordinals("1-2", 2)


def test_the_longest_ranges_have_the_length_that_the_arithmetic_says():
    text = format_ordinals(EVERY_SECOND)

    assert len(text) == 11_945 - 1
    assert parse_ordinals(text) == EVERY_SECOND
    assert refusal(parse_ordinals, "1" * (RANGES_OCTETS_MAX + 1)) == BAD


def test_long_ranges_travel_as_a_bit_map_of_bounded_length():
    text = format_done(EVERY_SECOND)

    assert text[0] == "~"
    assert len(text) == DONE_OCTETS_MAX
    assert parse_done(text) == EVERY_SECOND


@pytest.mark.parametrize("text", ["~", "~A", "~AAAAA", "~AA=", "~A A", "~" + "A" * 835, "~\u00e9\u00e9"])
def test_what_is_not_a_bit_map_within_the_limit_is_refused(text):
    assert refusal(parse_done, text) == BAD


@given(ordinals)
def test_any_set_survives(ordinals):
    assert ordinals == parse_ordinals(format_ordinals(ordinals))
    assert ordinals == parse_done(format_done(ordinals))
    assert len(format_done(ordinals)) <= DONE_OCTETS_MAX


@given(st.text(max_size=40) | st.text("0123456789-,~AZ", max_size=40))
def test_any_text_is_read_or_refused(text):
    assert refusal(parse_ordinals, text) in (None, BAD)
    assert refusal(parse_done, text) in (None, BAD)
