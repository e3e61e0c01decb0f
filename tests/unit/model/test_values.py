"""Values are compared, hashed and replaced as those of the standard library, and a frozen one is frozen."""

from dataclasses import field

import pytest

from shadowrelay.model.message import Content, Recipient
from shadowrelay.model.ownership import CopyNumber
from shadowrelay.model.values import dataclass, replace


@dataclass(frozen=True, slots=True)
class Single:
    name: str


@pytest.mark.parametrize(
    ("value", "changes", "expected"),
    [
        (CopyNumber(1, 2, "d"), {"placement": 7}, CopyNumber(1, 7, "d")),
        (CopyNumber(1, 2, "d"), {}, CopyNumber(1, 2, "d")),
        (Single("a"), {"name": "b"}, Single("b")),
        (Content(1, b"x", b"a"), {"data": b"b"}, Content(1, b"x", b"b")),
    ],
)
def test_a_value_is_replaced_as_the_standard_library_does(value, changes, expected):
    assert expected == replace(value, **changes)


def test_a_frozen_value_cannot_be_changed():
    with pytest.raises(AttributeError):
        Single("a").name = "b"


def test_what_is_made_for_each_value_is_not_shared():
    @dataclass(slots=True)
    class Several:
        name: str = "x"
        found: list[int] = field(default_factory=list)

    Several().found.append(1)

    assert ("x", []) == (Several().name, Several().found)


def test_a_field_that_is_not_compared_is_not():
    assert Content(1, b"x", b"a", portion=object()) == Content(1, b"x", b"a")


def test_what_is_no_field_cannot_be_replaced():
    with pytest.raises(TypeError):
        replace(Recipient("a@b.example"), nobody=1)


def test_equal_values_are_one_in_a_set():
    assert 1 == len({CopyNumber(1, 2, "d"), CopyNumber(1, 2, "d")})
    assert [1, 2] == [number.ownership for number in sorted([CopyNumber(2, 1, "d"), CopyNumber(1, 9, "d")])]
