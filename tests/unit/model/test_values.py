"""Values are compared, hashed and replaced as those of the standard library."""

import dataclasses

import pytest

from shadowrelay.model.message import Recipient
from shadowrelay.model.ownership import CopyNumber
from shadowrelay.model.values import dataclass, replace


@dataclass(frozen=True, slots=True)
class Single:
    name: str


@pytest.mark.parametrize(
    ("value", "changes"),
    [(CopyNumber(1, 2, "d"), {"placement": 7}), (CopyNumber(1, 2, "d"), {}), (Single("a"), {"name": "b"})],
)
def test_a_value_is_replaced_as_the_standard_library_does(value, changes):
    assert dataclasses.replace(value, **changes) == replace(value, **changes)


def test_what_is_no_field_cannot_be_replaced():
    with pytest.raises(TypeError):
        replace(Recipient("a@b.example"), nobody=1)


def test_equal_values_are_one_in_a_set():
    assert 1 == len({CopyNumber(1, 2, "d"), CopyNumber(1, 2, "d")})
    assert [1, 2] == [number.ownership for number in sorted([CopyNumber(2, 1, "d"), CopyNumber(1, 9, "d")])]
