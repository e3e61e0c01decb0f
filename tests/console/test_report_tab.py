"""The redundancy report as a page of the console."""

import asyncio
import os

import pytest

from shadowrelay import bounded
from shadowrelay.model.settings import AdminRole
from tests.console.conftest import SETTINGS
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.consoles import TOKENS


@pytest.fixture
def directory(tmp_path):
    """Of the report."""
    return tmp_path


@pytest.fixture
def settings(directory):
    """That name it."""
    return SETTINGS.model_copy(update={"admin": SETTINGS.admin.model_copy(update={"report": directory})})


async def test_the_report_is_a_page_where_its_directory_is_named(browser, directory):
    empty = await browser.get("/report")
    (directory / "report.html").write_bytes("<!doctype html><title>é</title><script>1</script>".encode())
    page, content = await browser.get("/report"), await browser.get("/report/page")

    assert ("There is no report in" in empty.text, "<iframe" in empty.text) == (True, False)
    assert '<iframe class="report" src="/report/page"' in page.text
    assert 'href="/report" aria-current="page"' in page.text
    assert ("é" in content.text, 200) == (True, content.status_code)


async def test_the_report_has_no_origin_and_no_other_site_may_show_it(browser, directory):
    (directory / "report.html").write_bytes(b"x")
    headers = (await browser.get("/report/page")).headers

    assert headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none';")
    assert ("allow-same-origin" in headers["content-security-policy"], headers["x-frame-options"]) == (False, "SAMEORIGIN")
    assert "frame-ancestors 'self'" in headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/report", "/report/page"])
async def test_who_may_not_see_messages_sees_no_report(browser_of, stranger, directory, path):
    (directory / "report.html").write_bytes(b"x")
    viewer, auditor = [await browser_of(TOKENS[role]) for role in (AdminRole.VIEWER, AdminRole.AUDITOR)]

    assert (403, 200, 303) == tuple([(await who.get(path)).status_code for who in (viewer, auditor, stranger)])
    assert 'href="/report"' not in (await viewer.get("/")).text


async def test_a_report_that_is_not_there_or_too_large_is_a_page_that_says_so(browser, directory, monkeypatch):
    missing = await browser.get("/report/page")
    monkeypatch.setattr("shadowrelay.console.report_tab.OCTETS_MAX", 3)
    (directory / "report.html").write_bytes(b"xxxx")
    large = await browser.get("/report/page")

    assert (404, 404) == (missing.status_code, large.status_code)
    assert ("cannot be read: No such file" in missing.text, "it has more than 3 octets" in large.text) == (True, True)


async def test_a_report_whose_file_system_hangs_is_said_to_hang_and_holds_up_nothing_else(browser, directory, monkeypatch):
    monkeypatch.setattr(bounded, "READ_SECONDS", 0.2)
    os.mkfifo(directory / "report.html")  # opening it does not return

    answers = await asyncio.gather(*(browser.get("/report/page") for _ in range(12)))
    other = await asyncio.wait_for(asyncio.to_thread(lambda: "done"), PATIENCE_SECONDS)

    assert {503} == {answer.status_code for answer in answers}
    assert all("hangs" in answer.text for answer in answers)
    assert "done" == other
