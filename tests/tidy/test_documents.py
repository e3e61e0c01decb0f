"""References to documents resolve, in Markdown and in code; and no line of prose is wider than a screen."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.house import ROOT, files_below, relative, tree_of

PAGES = files_below(".", suffixes={".md"})
CITING = files_below("shadowrelay", "tests", "benchmarks", "lab", "configs", "docker-compose.yml", "Dockerfile", "Makefile")
PROSE_WIDTH_MAX = 160

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"(?m)^#+ +(.+?) *$")
FENCE = re.compile(r"(?ms)^ *```.*?^ *```")
CODE = re.compile(r"`[^`\n]*`")
# docs/design.md 6.2 | docs/protocol.md 4 to 7 | docs/sla.md, section 6 | docs/reference.md "Settings"
NUMBER = r"[0-9]+(?:\.[0-9]+)?"
CITATION = re.compile(
    r"(?P<page>docs/[a-z]+\.md|(?:README|CHANGELOG|CONTRIBUTING)\.md)"
    rf"(?:#(?P<anchor>[a-z0-9-]+)|(?P<sections>,?(?: sections?)? {NUMBER}(?:(?:, | and | to ){NUMBER})*)|,? \"(?P<words>[^\"]+)\")?"
)
DESIGN_SOURCE = re.compile(rf"[Ss]ource: (?:[^\n]*, )?design (?P<section>{NUMBER})")
OLD_REFERENCE = re.compile(r"\b(DESIGN|STYLE) [0-9]")
LAW = re.compile(r"RFC [0-9]{3,5}|docs/[a-z]+\.md|(?:README|CONTRIBUTING)\.md|Source: [a-z]")
MODULE = re.compile(r"`(?:shadowrelay/)?((?:[a-z_]+/)+[a-z_]+\.py)`")


def prose_of(page: Path) -> str:
    """Its text without blocks of code, whose lines are as long as what they show; line numbers stay."""
    return FENCE.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))


@cache
def headings_of(page: Path) -> tuple[str, ...]:
    return tuple(HEADING.findall(prose_of(page)))


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """As GitHub makes them: lower case, no punctuation, dashes for spaces, a number for a repetition."""
    found: dict[str, int] = {}
    for heading in headings_of(page):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return frozenset(name if not number else f"{name}-{number}" for name, last in found.items() for number in range(last + 1))


def has_section(page: Path, number: str) -> bool:
    return any(heading.split(" ")[0].rstrip(".") == number for heading in headings_of(page))


def broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(CODE.sub("", prose_of(page))):
        path, _, anchor = target.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        found = page if not path else (page.parent / path).resolve()
        if not found.exists() or (anchor and found.suffix == ".md" and anchor not in anchors_of(found)):
            yield target


def broken_citations(text: str) -> Iterator[str]:
    # a docstring may break a citation at any space
    text = re.sub(r"\s*\n\s*(?:# )?", " ", text)
    for citation in CITATION.finditer(text):
        page = ROOT / citation["page"]
        numbers = re.findall(NUMBER, citation["sections"] or "")
        if (
            not page.exists()
            or not all(has_section(page, number) for number in numbers)
            or (citation["anchor"] and citation["anchor"] not in anchors_of(page))
            or (citation["words"] and citation["words"].lower() not in page.read_text(encoding="utf-8").lower())
        ):
            yield citation[0]
    for source in DESIGN_SOURCE.finditer(text):
        if not has_section(ROOT / "docs" / "design.md", source["section"]):
            yield source[0]


def wide_lines(page: Path) -> list[int]:
    """Their numbers. A row of a table cannot be broken in Markdown."""
    lines = enumerate(prose_of(page).splitlines(), start=1)
    return [number for number, line in lines if len(line) > PROSE_WIDTH_MAX and not line.startswith("|")]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    assert [] == list(broken_links(page))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_no_line_of_prose_is_too_wide(page):
    assert [] == wide_lines(page)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_a_page_names_no_module_that_does_not_exist(page):
    named = MODULE.findall(prose_of(page))

    assert [] == [name for name in named if not (ROOT / name).exists() and not (ROOT / "shadowrelay" / name).exists()]


def test_every_section_that_code_and_tests_cite_exists() -> None:
    texts = {relative(path): path.read_text(encoding="utf-8", errors="replace") for path in CITING if path != Path(__file__)}

    assert {} == {name: broken for name, text in texts.items() if (broken := list(broken_citations(text)))}
    assert [] == [name for name, text in texts.items() if OLD_REFERENCE.search(text)]


def test_the_architecture_names_every_module_that_a_message_may_pass() -> None:
    packages = [f"shadowrelay/{name}" for name in ("ownership", "pipeline", "protocol", "settings", "smtp", "store", "tracking")]
    modules = [path for path in files_below(*packages, suffixes={".py"}) if path.name != "__init__.py" and "migrations" not in path.parts]
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")

    assert len(modules) > 80
    assert [] == [name for path in modules if f"`{(name := f'{path.parent.name}/{path.name}')}`" not in text]


def law_of(path: Path) -> str | None:
    """What the first paragraph of a module's docstring cites."""
    found = LAW.search((ast.get_docstring(tree_of(path)) or "").partition("\n\n")[0])
    return found and found[0]


def test_every_module_names_the_law_that_it_obeys_in_its_first_lines() -> None:
    modules = files_below("shadowrelay", suffixes={".py"})

    assert len(modules) > 150
    assert [] == [relative(path) for path in modules if law_of(path) is None]


def test_the_checks_see_what_is_broken(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# One: two\n[a](#one-two) [b](#two) [c](absent.md)\n```\n[d](no.md)\n```\n{'x' * 161}\n", encoding="utf-8")

    assert ["#two", "absent.md"] == list(broken_links(page))
    assert [6] == wide_lines(page)
    assert [] == list(broken_citations('docs/design.md 6.2, docs/protocol.md\n    10; docs/reference.md "Settings". Source: design 9'))
    assert ["docs/design.md 66.6"] == list(broken_citations("# docs/design.md 66.6"))
    assert ["docs/absent.md"] == list(broken_citations("docs/absent.md"))
    assert ["Source: design 77"] == list(broken_citations("Source: design 77."))

    bare, lawful = tmp_path / "bare.py", tmp_path / "lawful.py"
    bare.write_text('"""Reads text.\n\ndocs/design.md 6.2 explains why.\n"""\n', encoding="utf-8")
    lawful.write_text('"""Reads text. RFC 5321 4.2."""\n', encoding="utf-8")

    assert (None, "RFC 5321") == (law_of(bare), law_of(lawful))
