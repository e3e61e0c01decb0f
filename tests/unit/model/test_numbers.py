"""Whole numbers of others."""

import pytest

from shadowrelay.model.numbers import decimal
from shadowrelay.model.setting_texts import parse_host_port
from shadowrelay.rules.delivery import NO_REPLY, reply_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("007", 7), ("9" * 20, 10**20 - 1), ("9" * 21, None), ("9" * 5_000, None), ("", None), ("-1", None), ("+1", None)],
)
def test_only_short_ascii_numbers_are_numbers(text: str, expected: int | None) -> None:
    assert expected == decimal(text)


@pytest.mark.parametrize("text", ["\u0664", "\u00b2", "\uff11", "1_0", " 1", "1 ", "1\n", "0x1", "1e3", "1.0"])
def test_what_python_takes_for_a_number_is_none(text: str) -> None:
    assert decimal(text) is None


def test_a_number_above_the_highest_is_none() -> None:
    assert (10, None) == (decimal("10", 10), decimal("11", 10))


def test_a_reply_or_port_with_such_a_number_is_bad_but_no_bug() -> None:
    assert NO_REPLY == reply_of("9" * 5_000 + " 4.4.1 x") == reply_of("\u00b2\u00b2\u00b2 x")
    with pytest.raises(ValueError, match="a port is a number from 0 to 65535"):
        parse_host_port("host:" + "9" * 5_000)
