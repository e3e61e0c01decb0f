"""Every rule that came from somewhere says from where, and the place is listed in docs/sources.md."""

import re
from pathlib import Path

from tests.tidy.house import ROOT, files_below, relative

LISTED = re.compile(r"(?m)^\| `([a-z0-9-]+)` \|")
CITED = re.compile(r"Source: ([^\n`)]+)")
RFC = re.compile(r"\bRFC ?(\d{3,5})\b")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")

CITING = files_below("shadowrelay", "tests", "docs", "README.md", "CONTRIBUTING.md")
UNREAD = (Path(__file__), ROOT / "shadowrelay" / "settings/example.py")  # they hold the word that begins a citation as text
PAGES = files_below("docs", "README.md", "CHANGELOG.md", suffixes={".md"})


def listed_ids() -> set[str]:
    return set(LISTED.findall((ROOT / "docs" / "sources.md").read_text(encoding="utf-8")))


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
