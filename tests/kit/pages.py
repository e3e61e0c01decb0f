"""What the pages for operators say: tests compare it with the code, or type it."""

from tests.tidy.house import ROOT

OPERATORS = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("setup.md", "operations.md", "reference.md"))
