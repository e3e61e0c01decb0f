"""What `python -m tests.mutants` breaks is there, and what must notice it stands in docs/sources.md."""

import pytest

from tests.mutants import MUTANTS, Mutant
from tests.tidy.house import ROOT

PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_mutant_changes_one_place_and_its_tests_are_those_of_a_row(mutant: Mutant) -> None:
    text = (ROOT / "shadowrelay" / mutant.path).read_text(encoding="utf-8")

    assert 1 == text.count(mutant.before)
    assert mutant.before != mutant.after
    assert [] == [test for test in mutant.tests if test not in PAGE]
