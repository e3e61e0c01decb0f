import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.wire.xtext import format_xtext, parse_xtext
from tests.unit.wire.strategies import refusal

CASES = [("", ""), ("DAG1", "DAG1"), ("a b", "a+20b"), ("1+1=2", "1+2B1+3D2"), ("Z\u00fcrich", "Z+C3+BCrich"), ("\r\n", "+0D+0A")]


@pytest.mark.parametrize(("text", "encoded"), CASES)
def test_xtext_is_the_same_in_both_directions(text, encoded):
    assert encoded == format_xtext(text)
    assert text == parse_xtext(encoded, "boundary")


@pytest.mark.parametrize("encoded", ["+", "+2", "+2b", "a b", "a=b", "\u00fc", "+FF", "+C3", "a\n"])
def test_what_is_not_xtext_of_utf8_is_refused(encoded):
    assert refusal(parse_xtext, encoded, "boundary") == "501 5.5.4 Bad boundary"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_survives(text):
    assert text == parse_xtext(format_xtext(text), "boundary")


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    assert refusal(parse_xtext, text, "boundary") in (None, "501 5.5.4 Bad boundary")
