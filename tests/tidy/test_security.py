"""Each row of docs/security.md names a test that exists."""

import re

import pytest

from tests.tidy.house import NAMED_TEST, ROOT, is_there

PAGE = ROOT / "docs" / "security.md"
SECTIONS = ("Strangers", "Thieves", "Operators")


def rows_of(section: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| ")][1:]


def test_the_sections_of_the_page_are_there() -> None:
    headings = re.findall(r"(?m)^## (.+)$", PAGE.read_text(encoding="utf-8"))

    assert list(SECTIONS) == [heading for heading in headings if heading in SECTIONS]
    assert len(rows_of("Strangers")) >= 9


@pytest.mark.parametrize("section", SECTIONS)
def test_each_row_names_a_test_that_exists(section: str) -> None:
    found = {row: NAMED_TEST.findall(row.rpartition(" | ")[2]) for row in rows_of(section)}

    assert [] == [row for row, tests in found.items() if not tests]
    assert [] == [f"{path}::{name}" for tests in found.values() for path, name in tests if not is_there(ROOT / path, name)]


def test_no_text_from_outside_becomes_a_number_in_two_ways() -> None:
    # `decimal` of model/numbers.py; the others have digits that their pattern limits, or are no text
    allowed = {"fields.py", "filters.py", "tracking.py", "dsn.py", "limits.py"}
    places = ROOT / "shadowrelay"
    sources = [path for name in ("smtp", "admin", "protocol") for path in sorted((places / name).glob("*.py"))]
    plain = re.compile(r"(?<![\w.])int\((?:found|size|text|code|count|port|preference|number|announced|offered|value|header)\b")

    assert [] == [path.name for path in sources if path.name not in allowed and plain.search(path.read_text(encoding="utf-8"))]
