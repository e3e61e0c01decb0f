"""The console in Debian's chromium, where there is one."""

import re
import shutil
from datetime import timedelta

import pytest

from shadowrelay.admin.server import AdminServer
from shadowrelay.model.queue import QueueKind, QueueRow, QueueStatus, Suspension
from shadowrelay.model.resubmission import Criteria, RequestState, ResubmitRequest
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Peer
from shadowrelay.model.values import replace
from tests.admin.conftest import ENVELOPE, NOW, ROW, STORED, TOKEN
from tests.console.conftest import SETTINGS, console_of
from tests.kit.consoles import watched_browser
from tests.kit.hostile_node import ID, hostile_node

needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium: apt-get install chromium")
PAGES = ["/", "/queues", "/messages", f"/messages/{ENVELOPE.message_id}", "/peers", "/audit", "/safety-net", "/act?act=drain&node=mx1",
         "/act?act=queues-suspend&node=*&on=MessageCount -gt 0", "/if-lost?servers=mx1", "/report", "/messages/x", "/nothing"]  # fmt: skip


LARGE_QUEUE = QueueRow(
    r"mx1\store.x.example:25", QueueKind.DELIVERY, "store.x.example:25", 1_000_000, NOW - timedelta(days=2),
    "451 4.4.1 No server could be reached", NOW + timedelta(minutes=14),
    status=QueueStatus.SUSPENDED, octets=5_000_000_000, velocity=-1234.5,
    suspended=Suspension(NOW, "administrator"),
)  # fmt: skip
SHADOW_QUEUE = replace(LARGE_QUEUE, identity=r"mx1\Shadow\mx1.east.example\store.x.example:25", kind=QueueKind.SHADOW, suspended=None)
CRITERIA = Criteria(NOW - timedelta(hours=2), NOW, "store.x.example:25", "sender@client.example", "recipient@x.example")
REQUEST = ResubmitRequest(
    1, CRITERIA, RequestState.DISABLED, NOW, False, NOW, 0, examined_count=1000, resubmitted_count=900, outside_count=7, missing_count=1
)


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


@pytest.fixture
async def with_hostile_words(node, settings, time, trail, tap):
    """The console on a socket, of a node and a peer that are full of markup."""
    envelope = replace(ENVELOPE, subject=HOSTILE, sender=f"{HOSTILE}@x", client_name=HOSTILE, connector=HOSTILE)
    retries = tuple(replace(one, last_reply=HOSTILE, next_hop=HOSTILE) for one in STORED.retries)
    node.stored = [replace(STORED, envelope=envelope, retries=retries)]
    node.reasons = (HOSTILE,)
    node.more_queues = (QueueRow(f"mx1\\{HOSTILE}", QueueKind.DELIVERY, HOSTILE, 9, NOW, HOSTILE),)
    node.row = replace(ROW, server_hostname=HOSTILE, recipient_statuses=(HOSTILE,), subject=HOSTILE, source_context=HOSTILE)
    with hostile_node(200, HOSTILE) as url:
        peer = Peer.model_validate({"name": "other", "site": "west", "address": "127.0.0.1:9", "admin": url})
        application, desk = console_of(node, time, trail, tap, settings.model_copy(update={"peers": (peer,)}))
        server = AdminServer(application, HostPort("127.0.0.1", 0))
        await server.start()
        yield f"http://{server.address}"
        await server.stop()
        desk.nodes.forget()


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
async def test_every_page_is_accessible_fits_its_screen_and_breaks_no_policy(served, node, scheme, width):
    from axe_playwright_python.async_playwright import Axe

    node.requests.append(REQUEST)
    node.more_queues = (LARGE_QUEUE, SHADOW_QUEUE)
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
            assert width < 1280 or [] == await page.evaluate(CUT_OFF), path

    assert {} == {path: [one["id"] for one in violations] for path, violations in found.items() if violations}
    assert [] == [one for one in trouble if "username" not in one and "404" not in one]


CUT_OFF = """[...document.querySelectorAll(".wide:not(.drawing)")]
    .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.getAttribute("aria-label"))"""


@pytest.fixture
async def looking(served):
    """The administrator's browser, with what went wrong in it."""
    async with watched_browser(served) as (page, trouble):
        await page.goto(f"{served}/login")
        await page.fill("#token", TOKEN)
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=Log out")
        yield page, trouble


@pytest.mark.heavy
@needs_chromium
async def test_a_person_searches_a_message_and_reads_what_became_of_it(served, looking):
    page, trouble = looking
    await page.goto(f"{served}/messages")
    await page.fill("[name=to]", "b@x.example")
    await page.keyboard.press("Enter")
    await page.click(f"a[href='/messages/{ENVELOPE.message_id}'] >> nth=0")

    assert "b@x.example" in await page.inner_text("main")
    assert "Recipients" in await page.inner_text("#to")
    assert 0 < await page.locator("svg .event").count()
    assert [] == [one for one in trouble if "username" not in one]


@pytest.mark.heavy
@needs_chromium
async def test_a_form_with_another_csrf_token_is_refused_and_says_what_to_do(served, looking, node):
    page, _ = looking
    await page.goto(f"{served}/queues")
    await page.click("text=Suspend >> nth=0")
    await page.evaluate("document.querySelector('form.confirm [name=csrf]').value = 'of another session'")
    before = list(node.commands)
    await page.click("button:has-text('Suspend this queue')")

    assert "open the page again" in await page.inner_text("main")
    assert before == node.commands


@pytest.mark.heavy
@needs_chromium
async def test_an_open_page_leads_to_the_login_when_the_session_ends(served, looking, time):
    page, _ = looking
    await page.goto(f"{served}/queues")
    await page.wait_for_selector("text=Live: this page follows")
    time.pass_by(hours=12)

    await page.wait_for_url("**/login?next=**")
    await page.fill("#token", TOKEN)
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"{served}/queues")


@pytest.mark.heavy
@needs_chromium
async def test_without_script_every_page_can_be_read_and_an_act_be_done(served, node):
    async with watched_browser(served, java_script_enabled=False) as (page, _):
        await page.goto(f"{served}/queues")
        await page.fill("#token", TOKEN)
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{served}/queues")
        for path in PAGES:
            await page.goto(served + path)
            assert 40 < len(await page.inner_text("main")), path
        await page.goto(f"{served}/queues")
        await page.click("text=Suspend >> nth=0")
        await page.click("button:has-text('Suspend this queue')")
        await page.wait_for_selector(".notice.good")

    assert any(command[0] == "suspend" or "suspend" in str(command) for command in node.commands)


FOCUSABLE = "a[href], button, input:not([type=hidden]), select, summary, [tabindex='0']"
REACHED = """focusable => {
    const isOpen = (one) => one.checkVisibility() && !one.closest("details:not([open]) > :not(summary)");
    const all = [...document.querySelectorAll(focusable)].filter(isOpen);
    const style = getComputedStyle(document.activeElement);
    const isShown = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
    return [all.indexOf(document.activeElement), all.length, isShown, document.activeElement.outerHTML.slice(0, 100)];
}"""


@pytest.mark.heavy
@needs_chromium
async def test_the_keyboard_alone_reaches_everything_and_shows_where_it_is(served, looking):
    page, _ = looking
    for path in PAGES:
        await page.goto(served + path)
        reached, unseen = set(), []
        _, count, _, _ = await page.evaluate(REACHED, FOCUSABLE)
        for _ in range(count + 5):
            await page.keyboard.press("Tab")
            index, count, is_shown, element = await page.evaluate(REACHED, FOCUSABLE)
            if index >= 0:
                reached.add(index)
                unseen += [] if is_shown else [element]
        if path != "/report":  # whose page in its frame takes part
            assert set(range(count)) == reached, path
        assert [] == unseen, path


@pytest.mark.heavy
@needs_chromium
async def test_the_keyboard_alone_acts(served, looking, node):
    page, _ = looking
    await page.goto(f"{served}/queues")
    await page.focus("a:has-text('Suspend') >> nth=0")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("button:has-text('Suspend this queue')")
    for _ in range(30):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.matches('form.confirm button')"):
            break
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".notice.good")

    assert any("suspend" in str(command) for command in node.commands)


MOVING = """[...document.querySelectorAll("*")].map((one) => getComputedStyle(one)).filter((style) =>
    `${style.transitionDuration}, ${style.animationDuration}`.split(", ").some((each) => parseFloat(each) > 0.01)).length"""


@pytest.mark.heavy
@needs_chromium
async def test_nothing_moves_for_who_wants_no_motion(served, looking):
    page, _ = looking
    await page.emulate_media(reduced_motion="reduce")
    for path in PAGES:
        await page.goto(served + path)
        assert 0 == await page.evaluate(MOVING), path


@pytest.mark.heavy
@needs_chromium
async def test_what_is_printed_is_dark_on_white_and_has_no_acts(served, looking):
    page, _ = looking
    await page.emulate_media(media="print", color_scheme="dark")
    for path in PAGES:
        await page.goto(served + path)
        assert "rgb(255, 255, 255)" == await page.evaluate("getComputedStyle(document.body).backgroundColor"), path
        assert 0 == await page.locator("nav:visible, .acts:visible, .search:visible").count(), path
        assert await page.locator("h1").first.is_visible(), path
        assert (await page.pdf(format="A4")).startswith(b"%PDF"), path


FORBIDDEN = (
    "document.querySelectorAll(\"img, iframe:not(.report), object, embed, base, style, script:not([src='/assets/console.js'])\").length"
)
HOSTILE = "\"'><script>window.isOwned = 1</script><img src=x onerror='window.isOwned = 1'><b onmouseover=window.isOwned=1>"


@pytest.mark.heavy
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_browser_runs_what_others_wrote_and_the_page_stays_accessible(with_hostile_words, scheme):
    from axe_playwright_python.async_playwright import Axe

    served = with_hostile_words
    found = {}
    async with watched_browser(served, scheme=scheme) as (page, trouble):
        page.on("dialog", lambda dialog: trouble.append(dialog.message))
        await page.goto(f"{served}/login?next=/%22'%3E%3Cscript%3Ewindow.isOwned=1%3C/script%3E")
        assert 0 == await page.evaluate(FORBIDDEN)
        await page.fill("#token", TOKEN)
        await page.keyboard.press("Enter")
        await page.wait_for_selector("text=Log out")
        for path in [*PAGES, f"/messages/{ID}", f"/queues?filter={HOSTILE}", f"/messages?to={HOSTILE}", f"/if-lost?servers={HOSTILE}",
                     f"/act?act=queue-suspend&node=mx1&on={HOSTILE}&back={HOSTILE}", "/messages?since=1h", f"/{HOSTILE}"]:  # fmt: skip
            await page.goto(served + path)
            if await page.locator("#live-state").count():
                await page.wait_for_selector("text=Live: this page follows")
            assert not await page.evaluate("window.isOwned"), path
            assert 0 == await page.evaluate(FORBIDDEN), path
            assert 0 == await page.evaluate("[...document.querySelectorAll('*')].filter((one) => one.hasAttribute('onerror')).length"), path
            found[path] = [one["id"] for one in (await Axe().run(page)).response["violations"]]

    assert {} == {path: names for path, names in found.items() if names}
    assert [] == [one for one in trouble if not re.search("username|40[0-9]|50[0-9]", one)]
