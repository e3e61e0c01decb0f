"""The report page in Debian's chromium: it loads in silence, sorts, unfolds traces, follows the scheme, fits a phone, prints."""

import csv
import json
import os
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

import pytest

from shadowrelay.sla.page.document import render
from tests.kit import summaries

# Debian's chromium without a screen, spoken to in its own protocol over two pipes: no port, no driver, no library.
#
# The sandbox is off when we are root, as chromium demands; the pages are our own and may fetch nothing.

PROGRAM = shutil.which("chromium") or shutil.which("chromium-headless-shell")
MISSING = "needs Debian's chromium: apt-get install chromium"
_ANSWER_SECONDS = 60.0
_FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync", "--mute-audio"),
)


class Browser:
    """One tab. Shapes: `events` are what the browser said without being asked, in order."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._unread, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result. Raises: AssertionError with the browser's words if it failed, TimeoutError if it is silent."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        command = {"id": self._number, "method": method, "params": parameters} | session
        os.write(self._writing, json.dumps(command).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        until = monotonic() + _ANSWER_SECONDS
        while b"\0" not in self._unread:
            if not select([self._reading], [], [], max(0.0, until - monotonic()))[0]:
                raise TimeoutError("chromium does not answer")
            received = os.read(self._reading, 1 << 20)
            assert received, "chromium ended"
            self._unread += received
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def wait_for(self, method: str) -> None:
        """Until the browser has said so since the last look."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def show(self, *, width: int = 1280, height: int = 900, scheme: str = "light", scale: float = 1) -> None:
        """The window, and which colours its owner prefers."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, page: Path) -> None:
        """Load a file and wait until it is there."""
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        self.wait_for("Page.loadEventFired")

    def value(self, script: str) -> Any:
        """What an expression gives in the page, as JSON."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def complaints(self) -> list[str]:
        """Console errors, uncaught exceptions and refusals of the security policy since the page was opened."""
        self.value("0")  # what was said before this answer has arrived
        found = []
        for event in self.events:
            match event.get("method"), event.get("params", {}):
                case "Log.entryAdded", {"entry": entry}:
                    found.append(f"{entry['level']}: {entry['text']}")
                case "Runtime.consoleAPICalled", parameters:
                    found.append(f"{parameters['type']}: {parameters['args']}")
                case "Runtime.exceptionThrown", {"exceptionDetails": details}:
                    found.append(str(details))
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself included."""
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]

    def picture(self, *, is_whole: bool = True) -> bytes:
        """PNG."""
        return b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=is_whole)["data"])

    def printed(self) -> bytes:
        """PDF, A4."""
        return b64decode(self.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, ended afterwards."""
    assert PROGRAM
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    # chromium reads commands from 3 and writes answers to 4; bash puts the pipes there
    script = f'exec "$@" 3<&{from_us} 4>&{to_us}'
    command = ["/bin/bash", "-c", script, "bash", PROGRAM, *_FLAGS, *sandbox, f"--user-data-dir={profile}"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, pass_fds=(from_us, to_us), stdin=quiet, stdout=quiet, stderr=quiet)
    os.close(from_us)
    os.close(to_us)
    try:
        tab = Browser(from_browser, to_browser)
        yield tab
        tab._session = ""
        tab.ask("Browser.close")
        process.wait(_ANSWER_SECONDS)
    finally:
        process.kill()
        process.wait()
        os.close(to_browser)
        os.close(from_browser)


pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason=MISSING)]

_ALL = (summaries.empty, summaries.one_message, summaries.demo, summaries.healthy, summaries.month, summaries.exchange, summaries.hostile)
MAKERS = {maker.__name__: maker for maker in _ALL}
SORTED_COLUMN = """
(() => {
  const head = [...document.querySelectorAll("#exposures-table-caption ~ thead th")].find((one) => one.textContent.startsWith("For"));
  head.querySelector("button").click();
  const values = [...head.closest("table").tBodies[0].rows].map((row) => Number(row.cells[head.cellIndex].dataset.key));
  return [head.getAttribute("aria-sort"), values];
})()
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("pages")
    written = {name: directory / f"{name}.html" for name in MAKERS}
    for name, path in written.items():
        path.write_text(render(MAKERS[name]()), encoding="utf-8")
    return written


@pytest.mark.parametrize("name", MAKERS)
def test_a_page_loads_without_a_complaint_or_a_request_and_fits_a_phone(tab: Browser, pages: dict[str, Path], name: str) -> None:
    tab.show(width=360, height=740)
    tab.open(pages[name])

    assert 360 == tab.value("document.documentElement.scrollWidth")
    assert [pages[name].as_uri()] == tab.requests()
    assert [] == tab.complaints()


CUT_OFF = """
[...document.body.querySelectorAll("*")].filter((one) => {
  const box = one.getBoundingClientRect();
  const is_meant = one.closest(".scroll, .unseen, .skip, script, desc, title");
  return !is_meant && box.width && (box.left < -0.5 || box.right > innerWidth + 0.5);
}).map((one) => `${one.tagName} ${one.getAttribute("class")} ${one.textContent.slice(0, 40)}`)
"""
ONE_OVER_ANOTHER = """
[...document.querySelectorAll("svg")].flatMap((svg) => {
  const every = [...svg.querySelectorAll("text")].map((one) => [one.textContent, one.getBoundingClientRect()]);
  const texts = every.filter(([, box]) => box.width);
  return texts.flatMap(([one, a], index) => texts.slice(index + 1)
    .filter(([, b]) => a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom)
    .map(([other]) => `${svg.textContent.slice(0, 30)}: ${one} over ${other}`));
})
"""
SCROLLED = """
[...document.querySelectorAll(".scroll")].filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.closest("section").id)
"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", [name for name in MAKERS if name != "hostile"])
def test_nothing_is_cut_off_and_no_label_lies_over_another(tab: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    tab.show(width=width, height=844)
    tab.open(pages[name])

    assert [] == tab.value(CUT_OFF)
    assert [] == tab.value(ONE_OVER_ANOTHER)
    scrolled = tab.value(SCROLLED)
    assert "happened" not in scrolled  # what happened is read without scrolling sideways
    assert [] == scrolled or width == 390


def test_the_policy_refuses_what_is_not_the_page_s_own(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["empty"])
    tab.value("document.body.append(Object.assign(document.createElement('img'), {src: 'https://outside.example/x.png'}))")
    tab.value("document.body.setAttribute('style', 'color: red')")

    assert 2 == len([one for one in tab.complaints() if "Content Security Policy" in one])


def test_tables_sort_both_ways_by_number_and_say_so(tab: Browser, pages: dict[str, Path]) -> None:
    tab.show()
    tab.open(pages["month"])
    up, down = tab.value(SORTED_COLUMN), tab.value(SORTED_COLUMN)

    assert ["ascending", sorted(up[1])] == up
    assert ["descending", sorted(up[1], reverse=True)] == down
    assert up[1][0] < up[1][-1]
    assert [] == tab.complaints()


SAVED = """
(async () => {
  let saved;
  URL.createObjectURL = (blob) => { saved = blob; return "#"; };
  HTMLAnchorElement.prototype.click = function () { window.named = this.download; };
  document.querySelector("#NAME-caption button.csv").click();
  return [window.named, await saved.text()];
})()
"""


def test_a_table_is_saved_as_csv_without_formulas(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["month"])
    tab.value("document.querySelector('#losses-table-caption ~ tbody td').textContent = '=cmd()'")
    name, text = tab.value(SAVED.replace("NAME", "losses-table"))
    rows = list(csv.reader(text.splitlines()))

    assert ("losses.csv", 8) == (name, len(rows))
    assert (["Message", "Recipient", "Cause", "Had it last", "Acknowledged at"], "'=cmd()") == (rows[0], rows[1][1])
    assert rows[1][4].endswith("Z")
    assert [] == tab.complaints()


def test_what_stands_on_lines_of_its_own_stays_apart_in_csv(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["month"])
    texts = [tab.value(SAVED.replace("NAME", name))[1] for name in ("duplicates-table", "pairs-table")]
    duplicates, pairs = (list(csv.reader(text.splitlines())) for text in texts)
    server, at = duplicates[1][4].split(" ")

    assert (True, True) == (server.endswith(".example"), at.endswith("Z"))
    assert [] == [cell for row in pairs[1:] for cell in row[1:] if "p95" in cell and " p95 " not in cell]
    assert [] != [cell for row in pairs[1:] for cell in row[1:] if " p95 " in cell]


def test_a_table_that_is_wider_than_a_phone_says_so(tab: Browser, pages: dict[str, Path]) -> None:
    shown = "getComputedStyle(document.querySelector('#budget .sideways')).display"
    tab.show(width=390, height=800)
    tab.open(pages["month"])

    assert "block" == tab.value(f"new Promise((done) => requestAnimationFrame(() => setTimeout(() => done({shown}))))")
    tab.show()
    assert "none" == tab.value(f"new Promise((done) => requestAnimationFrame(() => setTimeout(() => done({shown}))))")


def test_a_link_to_a_trace_unfolds_it(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["demo"])
    link = "document.querySelector('#duplicates tbody a')"
    before = tab.value(f"document.querySelector({link}.getAttribute('href').replace('#', '[id=\"') + '\"]').open")
    tab.value(f"new Promise((done) => {{ addEventListener('hashchange', () => setTimeout(done)); {link}.click(); }})")

    assert (False, True) == (before, tab.value("document.getElementById(location.hash.slice(1)).open"))
    assert "SUMMARY" == tab.value("document.activeElement.tagName")


def test_the_same_link_unfolds_the_trace_again(tab: Browser, pages: dict[str, Path]) -> None:
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


def test_an_address_that_leads_nowhere_is_no_complaint(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["empty"])
    tab.value("new Promise((done) => { addEventListener('hashchange', () => setTimeout(done)); location.hash = '#%'; })")

    assert [] == tab.complaints()


def test_the_pointer_reads_a_plot(tab: Browser, pages: dict[str, Path]) -> None:
    tab.show()
    tab.open(pages["month"])
    place = tab.value(
        "(() => { const plot = document.querySelector('svg.plot'); plot.scrollIntoView({block: 'center'});"
        " const box = plot.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; })()"
    )
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])

    assert "Acknowledged" in tab.value("document.querySelector('.reading').textContent")


def test_dark_and_light_follow_the_reader(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["demo"])
    colours = []
    for scheme in ("light", "dark"):
        tab.show(scheme=scheme)
        colours.append(tab.value("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"))

    assert [["rgb(255, 255, 255)", "rgb(27, 32, 39)"], ["rgb(20, 23, 28)", "rgb(230, 233, 238)"]] == colours


def test_it_prints(tab: Browser, pages: dict[str, Path]) -> None:
    tab.show(scheme="dark")
    tab.open(pages["demo"])
    tab.ask("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    on_paper = tab.value("[getComputedStyle(document.body).color, getComputedStyle(document.querySelector('nav')).display]")
    tab.ask("Emulation.setEmulatedMedia", media="")
    printed = tab.printed()

    assert ["rgb(0, 0, 0)", "none"] == on_paper  # ink is black although the reader prefers dark
    assert printed.startswith(b"%PDF-")
    assert 3 <= printed.count(b"/Type /Page\n") <= 12


def test_without_its_script_the_page_still_says_everything(tab: Browser, pages: dict[str, Path]) -> None:
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
