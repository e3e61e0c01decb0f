"""Every rule that came from somewhere says from where, and the place is listed in docs/sources.md. That page accounts for every setting,
and for every rule of the documents that the project started from, and names a test that exists."""

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from shadowrelay.model.section import Section
from shadowrelay.model.settings import Settings
from shadowrelay.settings.reload import FIXED_KEYS, FIXED_OF_ENTRIES, FIXED_TABLES
from tests.tidy.house import ROOT, files_below, listed_ids, relative

CITED = re.compile(r"Source: ([^\n`)]+)")
RFC = re.compile(r"\bRFC ?(\d{3,5})\b")
SETTING_ROW = re.compile(r"(?m)^\| `([a-z]\w*\.\w+)` \| (\w+) \| (.+) \|$")
SEED_ROW = re.compile(r"(?m)^\| (\d{3}(?:, \d{3})*) \| (.+?) \| (yes|partly|no)\b(?:: |, )?(.*?) \| (.+) \|$")
SEED_ROW_BEGIN = re.compile(r"(?m)^\| \d{3}\b.*")
SEEDS = {"000", "001", "002", "003", "004"}
NOT_BUILT = "**not built**"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)(?:\[\w+\])?`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")

CITING = files_below("shadowrelay", "tests", "docs", "README.md", "CONTRIBUTING.md")
UNREAD = (Path(__file__), ROOT / "shadowrelay" / "settings/example.py")  # they hold the word that begins a citation as text
PAGES = files_below("docs", "README.md", "CHANGELOG.md", suffixes={".md"})


PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")


def section_of(annotation: Any) -> type[Section]:
    """Of a field that is a table, an optional table, or a list of tables."""
    found = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, Section)]
    assert len(found) == 1
    return found[0]


def all_settings() -> set[str]:
    return {f"{table}.{key}" for table, field in Settings.model_fields.items() for key in section_of(field.annotation).model_fields}


def acts_after(setting: str) -> str:
    """As settings/reload.py has it."""
    table, key = setting.split(".")
    if setting in ("tls.peer_revoked", "tls.certificates"):
        return "SIGHUP"  # `followed_tls`
    fixed = {
        **FIXED_KEYS,
        **FIXED_OF_ENTRIES,
    }.get(table, ())
    return "restart" if table in FIXED_TABLES or key in fixed else "SIGHUP"


def functions_in(file: str) -> set[str]:
    """Of a module; none where there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def ids_in(text: str) -> set[str]:
    """The first word of each part between commas or semicolons: `Source: seed-000 "Heartbeat", RFC 5321 4.5.3` has two."""
    cited = {f"rfc-{number}" for number in RFC.findall(text)}
    for citation in CITED.findall(text):
        for position, part in enumerate(re.split(r"[,;]\s*", re.sub(r'"[^"]*"', "", citation))):
            word = re.match(r"[A-Za-z]+(?:-[A-Za-z0-9]+)*", part)
            if word and word[0] != "RFC" and (position == 0 or "-" in word[0]):
                cited.add(word[0].lower())
    return cited


def test_every_cited_source_is_listed() -> None:
    listed = listed_ids()
    texts = {relative(path): path.read_text(encoding="utf-8", errors="replace") for path in CITING if path not in UNREAD}

    assert {} == {name: unknown for name, text in texts.items() if (unknown := ids_in(text) - listed)}


def test_the_check_finds_ids_of_every_form() -> None:
    text = '# Source: seed-000 "Heartbeat", MSP-TC\n"""… Source: design 6.4"""\n# RFC 5321 4.5.3.2'

    assert {"seed-000", "msp-tc", "design", "rfc-5321"} == ids_in(text)


def test_links_between_pages_lead_somewhere() -> None:
    targets = [(path, target) for path in PAGES for target in LINK.findall(path.read_text(encoding="utf-8"))]
    inner = [(path, target) for path, target in targets if "://" not in target and not target.startswith("mailto:")]

    assert [] == [f"{relative(path)}: {target}" for path, target in inner if not (path.parent / target).exists()]


def test_every_setting_has_a_row_that_says_when_it_acts() -> None:
    rows = SETTING_ROW.findall(PAGE)

    assert all_settings() == {setting for setting, _, _ in rows}
    assert len(rows) == len(all_settings())
    assert [] == [setting for setting, when, _ in rows if when != acts_after(setting)]
    assert [] == [setting for setting, _, shown_by in rows if not TEST.search(shown_by)]


def test_every_rule_of_the_seeds_is_done_or_has_a_reason_and_a_test() -> None:
    rows = SEED_ROW.findall(PAGE)

    assert len(SEED_ROW_BEGIN.findall(PAGE)) == len(rows), "a row has another form"
    assert SEEDS == {seed for seeds, *_ in rows for seed in seeds.split(", ")}
    assert [] == [rule for _, rule, verdict, reason, _ in rows if verdict != "yes" and not reason]
    assert [] == [rule for _, rule, _, reason, shown_by in rows if not TEST.search(shown_by) and NOT_BUILT not in reason]


def test_the_page_counts_its_verdicts_rightly() -> None:
    """Whoever changes a row looks at the list of departures above it."""
    counted = Counter(verdict for _, _, verdict, *_ in SEED_ROW.findall(PAGE))

    assert f"{counted['yes']} rows are yes, {counted['partly']} partly, {counted['no']} no." in PAGE


@pytest.mark.parametrize("file", sorted({file for file, _ in TEST.findall(PAGE)}))
def test_every_test_that_is_named_exists(file: str) -> None:
    assert set() == {test for named, test in TEST.findall(PAGE) if named == file} - functions_in(file)
