import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.protocol.fields import BOUNDARY_OCTETS_MAX, format_xtext, parse_boundary, parse_server, parse_xtext
from tests.unit.protocol.strategies import refusal, servers

LONGEST = "a" * 63 + ("." + "b" * 63) * 3


@pytest.mark.parametrize("name", ["a", "mx1", "mx1.east.example", "node_1.lab", "1.2.3", LONGEST])
def test_a_server_has_one_name_in_lower_case(name):
    assert parse_server(name) == name
    assert parse_server(name.upper()) == name


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "-a", "a-", "a b", "a\n", "[::1]", "\u00e4.example", "\u0130", "a" * 64, LONGEST + ".c"]
)
def test_anything_else_is_no_server(text):
    assert refusal(parse_server, text) == "501 5.5.4 Bad server name"


def test_a_boundary_may_have_any_name_of_64_octets():
    assert parse_boundary("DAG+201") == "DAG 1"
    assert parse_boundary(format_xtext("\u00e9" * (BOUNDARY_OCTETS_MAX // 2))) == "\u00e9" * 32


@pytest.mark.parametrize("text", ["", "+", format_xtext("\u00e9" * 33), "x" * 65])
def test_anything_else_is_no_boundary(text):
    assert refusal(parse_boundary, text) == "501 5.5.4 Bad boundary"


@given(servers)
def test_any_server_survives(name):
    assert parse_server(name) == name


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text):
    assert refusal(parse_server, text) in (None, "501 5.5.4 Bad server name")
    assert refusal(parse_boundary, text) in (None, "501 5.5.4 Bad boundary")


XTEXTS = [("", ""), ("DAG1", "DAG1"), ("a b", "a+20b"), ("1+1=2", "1+2B1+3D2"), ("Z\u00fcrich", "Z+C3+BCrich"), ("\r\n", "+0D+0A")]


@pytest.mark.parametrize(("text", "encoded"), XTEXTS)
def test_xtext_is_the_same_in_both_directions(text, encoded):
    assert encoded == format_xtext(text)
    assert text == parse_xtext(encoded, "boundary")


@pytest.mark.parametrize("encoded", ["+", "+2", "+2b", "a b", "a=b", "\u00fc", "+FF", "+C3", "a\n"])
def test_what_is_not_xtext_of_utf8_is_refused(encoded):
    assert refusal(parse_xtext, encoded, "boundary") == "501 5.5.4 Bad boundary"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_survives_as_xtext(text):
    assert text == parse_xtext(format_xtext(text), "boundary")


@given(st.text(max_size=40))
def test_any_text_is_read_as_xtext_or_refused(text):
    assert refusal(parse_xtext, text, "boundary") in (None, "501 5.5.4 Bad boundary")
