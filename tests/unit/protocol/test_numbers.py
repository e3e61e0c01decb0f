import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.ownership import CopyNumber
from shadowrelay.protocol.fields import NUMBER_OCTETS_MAX, format_number, parse_counter, parse_database_id, parse_message_id, parse_number
from tests.unit.protocol.strategies import ID, A, counters, numbers, refusal

CASES = [(f"1.0.{A}", CopyNumber(1, 0, A)), (f"2147483647.2147483647.{A}", CopyNumber(2**31 - 1, 2**31 - 1, A))]


@pytest.mark.parametrize(("text", "number"), CASES)
def test_a_copy_number_is_the_same_in_both_directions(text, number):
    assert text == format_number(number)
    assert number == parse_number(text)
    assert len(text) <= NUMBER_OCTETS_MAX


def test_ids_come_out_in_lower_case():
    assert parse_number(f"1.2.{A.upper()}") == CopyNumber(1, 2, A)
    assert parse_message_id(ID.upper()) == ID
    assert parse_database_id(A.upper()) == A


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", f"1.{A}", f"1.2.3.{A}", f"01.2.{A}", f"-1.2.{A}", f"1.2147483648.{A}", f"1.2.{A}x", f"1.2.{A} ", f"1.2.{{{A}}}",
     f"\u0661.2.{A}", f"1.2.{A.replace('-', '')}"],
)  # fmt: skip
def test_anything_else_is_no_copy_number(text):
    assert refusal(parse_number, text) in ("501 5.5.4 Bad copy number", "501 5.5.4 Bad database id")


@pytest.mark.parametrize("text", ["", "x", ID + "\n", ID[:-1], "{" + ID + "}", ID.replace("-", "_"), "\u0660" + ID[1:]])
def test_anything_else_is_no_id(text):
    assert refusal(parse_message_id, text) == "501 5.5.4 Bad message id"
    assert refusal(parse_database_id, text) == "501 5.5.4 Bad database id"


def test_the_order_of_numbers_is_ownership_then_placement_then_database():
    ascending = [CopyNumber(1, 9, A), CopyNumber(2, 0, A), CopyNumber(2, 1, A), CopyNumber(10, 0, A)]

    assert ascending == sorted([ascending[2], ascending[0], ascending[3], ascending[1]])


@given(numbers)
def test_any_number_survives(number):
    assert number == parse_number(format_number(number))


@given(counters)
def test_any_counter_survives(value):
    assert value == parse_counter(str(value), "position")


@pytest.mark.parametrize("text", ["9223372036854775808", "99999999999999999999", "1e3", "1_0", " 1", "0x1", "00", "\u0661"])
def test_what_sqlite_cannot_keep_is_no_counter(text):
    assert refusal(parse_counter, text, "position") == "501 5.5.4 Bad position"


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text):
    assert (refusal(parse_number, text) or "501 5.5.4").startswith("501 5.5.4")
