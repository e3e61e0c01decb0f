"""The report page in Debian's chromium: it loads in silence, sorts, unfolds traces, follows the scheme, fits a phone, prints."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowrelay.sla.page.document import render
from tests.kit import chromium, summaries

pytestmark = [pytest.mark.slow, pytest.mark.skipif(chromium.PROGRAM is None, reason=chromium.MISSING)]

MAKERS = {maker.__name__: maker for maker in (summaries.empty, summaries.one_message, summaries.demo, summaries.month, summaries.hostile)}
SORTED_COLUMN = """
(() => {
  const head = [...document.querySelectorAll("#exposures-table-caption ~ thead th")].find((one) => one.textContent.startsWith("For"));
  head.querySelector("button").click();
  const values = [...head.closest("table").tBodies[0].rows].map((row) => Number(row.cells[head.cellIndex].dataset.key));
  return [head.getAttribute("aria-sort"), values];
})()
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    with chromium.browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("pages")
    written = {name: directory / f"{name}.html" for name in MAKERS}
    for name, path in written.items():
        path.write_text(render(MAKERS[name]()), encoding="utf-8")
    return written


@pytest.mark.parametrize("name", MAKERS)
def test_a_page_loads_without_a_complaint_or_a_request_and_fits_a_phone(tab: chromium.Browser, pages: dict[str, Path], name: str) -> None:
    tab.show(width=360, height=740)
    tab.open(pages[name])

    assert 360 == tab.value("document.documentElement.scrollWidth")
    assert [pages[name].as_uri()] == tab.requests()
    assert [] == tab.complaints()


def test_the_policy_refuses_what_is_not_the_page_s_own(tab: chromium.Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["empty"])
    tab.value("document.body.append(Object.assign(document.createElement('img'), {src: 'https://outside.example/x.png'}))")
    tab.value("document.body.setAttribute('style', 'color: red')")

    assert 2 == len([one for one in tab.complaints() if "Content Security Policy" in one])


def test_tables_sort_both_ways_by_number_and_say_so(tab: chromium.Browser, pages: dict[str, Path]) -> None:
    tab.show()
    tab.open(pages["month"])
    up, down = tab.value(SORTED_COLUMN), tab.value(SORTED_COLUMN)

    assert ["ascending", sorted(up[1])] == up
    assert ["descending", sorted(up[1], reverse=True)] == down
    assert up[1][0] < up[1][-1]
    assert [] == tab.complaints()


def test_a_link_to_a_trace_unfolds_it(tab: chromium.Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["demo"])
    link = "document.querySelector('#duplicates tbody a')"
    before = tab.value(f"document.querySelector({link}.getAttribute('href').replace('#', '[id=\"') + '\"]').open")
    tab.value(f"new Promise((done) => {{ addEventListener('hashchange', () => setTimeout(done)); {link}.click(); }})")

    assert (False, True) == (before, tab.value("document.getElementById(location.hash.slice(1)).open"))
    assert "SUMMARY" == tab.value("document.activeElement.tagName")


def test_the_same_link_unfolds_the_trace_again(tab: chromium.Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["demo"])
    link = "document.querySelector('#duplicates tbody a')"
    trace = "document.getElementById(location.hash.slice(1))"
    tab.value(f"new Promise((done) => {{ addEventListener('hashchange', () => setTimeout(done)); {link}.click(); }})")
    tab.value(f"{trace}.open = false; scrollTo(0, 0)")
    before = tab.value("scrollY")
    tab.value(f"new Promise((done) => {{ {link}.click(); setTimeout(done, 50); }})")

    assert (0, True) == (before, tab.value(f"{trace}.open && scrollY > 0"))
    assert "SUMMARY" == tab.value("document.activeElement.tagName")
    assert [] == tab.complaints()


def test_an_address_that_leads_nowhere_is_no_complaint(tab: chromium.Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["empty"])
    tab.value("new Promise((done) => { addEventListener('hashchange', () => setTimeout(done)); location.hash = '#%'; })")

    assert [] == tab.complaints()


def test_the_pointer_reads_a_plot(tab: chromium.Browser, pages: dict[str, Path]) -> None:
    tab.show()
    tab.open(pages["month"])
    place = tab.value(
        "(() => { const plot = document.querySelector('svg.plot'); plot.scrollIntoView({block: 'center'});"
        " const box = plot.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; })()"
    )
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])

    assert "Acknowledged" in tab.value("document.querySelector('.reading').textContent")


def test_dark_and_light_follow_the_reader(tab: chromium.Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["demo"])
    colours = []
    for scheme in ("light", "dark"):
        tab.show(scheme=scheme)
        colours.append(tab.value("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"))

    assert [["rgb(255, 255, 255)", "rgb(27, 32, 39)"], ["rgb(20, 23, 28)", "rgb(230, 233, 238)"]] == colours


def test_it_prints(tab: chromium.Browser, pages: dict[str, Path]) -> None:
    tab.show(scheme="dark")
    tab.open(pages["demo"])
    tab.ask("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    on_paper = tab.value("[getComputedStyle(document.body).color, getComputedStyle(document.querySelector('nav')).display]")
    tab.ask("Emulation.setEmulatedMedia", media="")
    printed = tab.printed()

    assert ["rgb(0, 0, 0)", "none"] == on_paper  # ink is black although the reader prefers dark
    assert printed.startswith(b"%PDF-")
    assert 3 <= printed.count(b"/Type /Page\n") <= 12


def test_without_its_script_the_page_still_says_everything(tab: chromium.Browser, pages: dict[str, Path]) -> None:
    tab.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(pages["demo"])
        tab.ask("DOM.enable")
        root = tab.ask("DOM.getDocument", depth=0)["root"]["nodeId"]
        buttons, rows = (
            len(tab.ask("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"])
            for selector in ("button", "#exposures tbody tr")
        )
    finally:
        tab.ask("Emulation.setScriptExecutionDisabled", value=False)

    assert (0, 31) == (buttons, rows)
