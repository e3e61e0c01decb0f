"""The console in Debian's chromium, where there is one."""

import shutil

import pytest

from shadowrelay.admin.server import AdminServer
from shadowrelay.model.routing import HostPort
from tests.admin.conftest import ENVELOPE, TOKEN
from tests.console.conftest import SETTINGS
from tests.kit.consoles import watched_browser

needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium: apt-get install chromium")
PAGES = ["/", "/queues", "/messages", f"/messages/{ENVELOPE.message_id}", "/peers", "/audit", "/safety-net", "/act?act=drain&node=mx1",
         "/act?act=queues-suspend&node=*&on=MessageCount -gt 0", "/if-lost?servers=mx1", "/report", "/messages/x", "/nothing"]  # fmt: skip


@pytest.fixture
def settings(tmp_path):
    """With a report."""
    (tmp_path / "report.html").write_text('<!doctype html><html lang="en"><title>Report</title><main><h1>Report</h1></main></html>')
    return SETTINGS.model_copy(update={"admin": SETTINGS.admin.model_copy(update={"report": tmp_path})})


@pytest.fixture
async def served(application):
    """The console on a socket."""
    server = AdminServer(application, HostPort("127.0.0.1", 0))
    await server.start()
    yield f"http://{server.address}"
    await server.stop()


@pytest.mark.slow
@needs_chromium
async def test_a_person_logs_in_looks_acts_and_finds_it_in_the_audit(served):
    async with watched_browser(served) as (page, trouble):
        await page.goto(f"{served}/queues")
        await page.fill("#token", "wrong")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("[role=alert]")
        await page.fill("#token", TOKEN)
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=Live: this page follows")
        await page.click("text=Suspend >> nth=0")
        await page.click("button:has-text('Suspend this queue')")
        await page.wait_for_selector(".notice.good")
        await page.goto(f"{served}/audit")
        assert "queues/suspend" in await page.inner_text("table")
        await page.click("text=Log out")
        await page.wait_for_selector("#token")
        await page.goto(f"{served}/")
        assert "/login" in page.url

    assert [] == [one for one in trouble if "401" not in one and "username" not in one]


@pytest.mark.heavy
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_every_page_is_accessible_fits_its_screen_and_breaks_no_policy(served, scheme, width):
    from axe_playwright_python.async_playwright import Axe

    async with watched_browser(served, scheme=scheme, width=width) as (page, trouble):
        await page.goto(f"{served}/login")
        found = {"/login": (await Axe().run(page)).response["violations"]}
        await page.fill("#token", TOKEN)
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=Log out")
        for path in PAGES:
            await page.goto(served + path)
            found[path] = (await Axe().run(page)).response["violations"]
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, path

    assert {} == {path: [one["id"] for one in violations] for path, violations in found.items() if violations}
    assert [] == [one for one in trouble if "username" not in one and "404" not in one]
