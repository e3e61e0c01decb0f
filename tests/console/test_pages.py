"""The console's pages: who gets in, what each person sees, and that nothing written by others becomes markup."""

import re
from datetime import timedelta

import pytest

from shadowrelay.console.rendering import local_path
from shadowrelay.console.sessions import SESSION_LASTS, SESSIONS_MAX, ConsoleSessions
from shadowrelay.model.queue import LoneMessages, QueueKind, QueueRow
from shadowrelay.model.settings import AdminRole
from shadowrelay.model.tracking import EventId
from shadowrelay.model.values import replace
from tests.admin.conftest import ENVELOPE, NOW, READ_ONLY_TOKEN, ROW, STORED, TOKEN
from tests.kit.consoles import TOKENS

MESSAGE = f"/messages/{ENVELOPE.message_id}"
PAGES = ["/", "/queues", "/messages", MESSAGE, "/peers", "/audit", "/if-lost", "/if-lost?servers=mx1"]
MARKUP = "<script>alert('x')</script>\"'><img src=x onerror=y>"


def csrf_of(page):
    return re.search(r'name="csrf" value="([^"]+)"', page.text)[1]


@pytest.mark.parametrize("path", [*PAGES, "/messages?to=x", f"{MESSAGE}/export?node=mx1"])
async def test_a_stranger_is_led_to_the_login_from_every_page(stranger, path):
    response = await stranger.get(path)

    assert (303, True) == (response.status_code, response.headers["location"].startswith("/login"))
    assert "" == response.text


async def test_a_stranger_is_shown_nothing_not_even_the_version(stranger):
    page = await stranger.get("/login")
    refused = await stranger.post("/login", data={"token": "wrong"})

    assert (200, 401) == (page.status_code, refused.status_code)
    for text in (page.text, refused.text):
        assert [] == [word for word in ("1.2.3", "mx1", "shadowrelay", "east") if word in text.replace("shadowrelay.css", "")]


@pytest.mark.parametrize("path", PAGES)
async def test_who_has_logged_in_sees_every_page(browser, path):
    response = await browser.get(path)

    assert (200, "text/html; charset=utf-8") == (response.status_code, response.headers["content-type"])
    assert "mx1" in response.text


async def test_after_the_login_one_is_where_one_wanted_to_be(stranger):
    to = await stranger.get("/queues?filter=x")
    page = await stranger.get(to.headers["location"])
    following = re.search(r'name="next" value="([^"]*)"', page.text)[1]
    response = await stranger.post("/login", data={"token": TOKEN, "next": following})

    assert (303, "/queues?filter=x") == (response.status_code, response.headers["location"])


@pytest.mark.parametrize("elsewhere", ["//evil.example/", "https://evil.example", "/\\evil.example", "x", "", "/a\nb"])
def test_nobody_is_led_to_another_site(elsewhere):
    assert "/" == local_path(elsewhere)


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(stranger, application):
    header = (await stranger.post("/login", data={"token": TOKEN})).headers["set-cookie"]

    assert ("HttpOnly" in header, "SameSite=strict" in header, "Path=/" in header, "Secure" in header) == (True, True, True, False)
    stranger.base_url = "https://mx1"
    assert "Secure" in (await stranger.post("/login", data={"token": TOKEN})).headers["set-cookie"]
    assert TOKEN not in header


async def test_a_session_ends_after_twelve_hours(browser, time):
    time.pass_by(hours=11, minutes=59)
    assert 200 == (await browser.get("/")).status_code
    time.pass_by(minutes=2)

    assert 303 == (await browser.get("/")).status_code


async def test_a_session_ends_when_one_logs_out(browser):
    page = await browser.get("/")
    cookies = dict(browser.cookies)
    assert 303 == (await browser.post("/logout", data={"csrf": csrf_of(page)})).status_code
    browser.cookies.update(cookies)

    assert 303 == (await browser.get("/")).status_code


async def test_the_oldest_session_makes_room():
    sessions = ConsoleSessions(lambda: NOW)
    cookies = [sessions.begin(None, "t") for _ in range(SESSIONS_MAX + 1)]

    assert (None, True) == (sessions.find(cookies[0]), sessions.find(cookies[1]) is not None)
    assert timedelta(hours=12) == SESSION_LASTS


async def test_wrong_tokens_at_the_door_have_to_wait(stranger):
    statuses = [(await stranger.post("/login", data={"token": f"wrong {n}"})).status_code for n in range(7)]

    assert [401, 401, 401, 401, 401, 429, 429] == statuses


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}])
async def test_a_form_of_another_site_is_refused(stranger, browser, headers):
    assert 403 == (await stranger.post("/login", data={"token": TOKEN}, headers=headers)).status_code
    page = await browser.get("/")

    assert 403 == (await browser.post("/logout", data={"csrf": csrf_of(page)}, headers=headers)).status_code


@pytest.mark.parametrize("csrf", ["", "wrong", "\udcff"])
async def test_a_form_without_the_sessions_own_csrf_token_is_refused(browser, csrf):
    data = {"csrf": csrf.encode("utf-8", "replace").decode()}

    assert (403, 200) == ((await browser.post("/logout", data=data)).status_code, (await browser.get("/")).status_code)


async def test_the_cookie_gives_no_rights_on_the_api(browser):
    assert [401, 401] == [(await browser.get("/api/v1/node")).status_code, (await browser.post("/api/v1/drain")).status_code]


@pytest.mark.parametrize("path", ["/login", "/", "/nowhere-else", "/assets/console.css", MESSAGE])
async def test_every_answer_has_the_headers_that_keep_a_browser_safe(browser, path):
    headers = (await browser.get(path)).headers
    if path == "/nowhere-else":
        return  # JSON
    policy = headers["content-security-policy"]

    assert ("default-src 'none'" in policy, "unsafe" in policy, "http" in policy) == (True, False, False)
    assert ("nosniff", "DENY", "same-origin") == (
        headers["x-content-type-options"], headers["x-frame-options"], headers["referrer-policy"],
    )  # fmt: skip
    assert path.startswith("/assets/") or "no-store" == headers["cache-control"]


@pytest.mark.parametrize("path", PAGES)
async def test_no_page_has_script_or_style_in_it_nor_asks_another_host(browser, path):
    text = (await browser.get(path)).text

    assert [] == re.findall(r"<script(?! src=\"/assets/console.js\" defer>)|<style|\sstyle=|\son\w+=|javascript:", text)
    assert [] == [one for one in re.findall(r'(?:src|href|action)="([^"]*)"', text) if not one.startswith(("/", "#"))]


async def test_what_others_wrote_never_becomes_markup(browser, node, trail):
    envelope = replace(ENVELOPE, subject=MARKUP, sender=f"{MARKUP}@x", client_name=MARKUP, connector=MARKUP)
    retries = tuple(replace(one, last_reply=MARKUP, next_hop=MARKUP) for one in STORED.retries)
    node.stored = [replace(STORED, envelope=envelope, retries=retries)]
    node.reasons = (MARKUP,)
    node.more_queues = (QueueRow(f"mx1\\{MARKUP}", QueueKind.DELIVERY, MARKUP, 9, NOW, MARKUP),)
    node.row = replace(ROW, server_hostname=MARKUP, recipient_statuses=(MARKUP,), subject=MARKUP, source_context=MARKUP)
    await browser.post("/api/v1/queues/suspend", params={"queue": MARKUP, "by": MARKUP}, headers={"Authorization": f"Bearer {TOKEN}"})
    for path in [
        *PAGES,
        f"/queues?filter={MARKUP}",
        f"/messages?subject={MARKUP}&status={MARKUP}",
        f"/messages?queue={MARKUP}&node={MARKUP}",
    ]:
        text = (await browser.get(path)).text
        assert [] == [word for word in ("<script>alert", "<img", "'><") if word in text], path
    assert "&lt;script&gt;" in (await browser.get(MESSAGE)).text
    assert "&lt;script&gt;" in (await browser.get("/audit")).text


@pytest.mark.parametrize("role", AdminRole)
async def test_each_role_sees_its_own_pages(browser_of, role):
    browser = await browser_of(TOKENS[role])
    seen = {path for path in PAGES if (await browser.get(path)).status_code == 200}
    may_export = (await browser.get(f"{MESSAGE}/export?node=mx1")).status_code == 200

    assert ({*PAGES} - ({"/audit"} if role is AdminRole.VIEWER else set())) == seen
    assert (role in (AdminRole.OPERATOR, AdminRole.ADMINISTRATOR)) == may_export


async def test_who_has_the_read_only_token_looks_and_acts_on_nothing(browser_of):
    browser = await browser_of(READ_ONLY_TOKEN)

    assert [200, 403] == [(await browser.get("/queues")).status_code, (await browser.get("/audit")).status_code]
    assert "/act?" not in (await browser.get("/queues")).text


async def test_a_viewer_sees_the_state_and_no_subject_nor_address(browser_of, node):
    node.more_queues = (QueueRow("mx1\\z", QueueKind.DELIVERY, "z", 1, NOW, "550 <b@x.example> unknown"),)
    browser = await browser_of(TOKENS[AdminRole.VIEWER])
    for path in ("/", "/queues", "/messages", MESSAGE, "/peers", "/messages?status=waiting"):
        text = (await browser.get(path)).text
        assert [] == [word for word in ("Hello", "a@corp", "b@x.example", "c@x.example", "1@corp") if word in text], path
    assert "you may see neither" in (await browser.get("/messages?to=b@x")).text


async def test_the_front_page_has_the_two_numbers_first(browser):
    text = re.sub(r"<[^>]+>", " ", (await browser.get("/")).text)

    assert re.search(r"3\s+messages with fewer copies than wanted.*1\s+messages that only one living server has", text, re.DOTALL)
    assert re.search(r"Mail accepted now is\s+accepted without a copy", text)


async def test_the_front_page_says_of_very_many_messages_how_many_at_least_and_at_most(browser, node):
    node.lone = LoneMessages(100_000, 250_000, 0, 240_000)
    text = " ".join(re.sub(r"<[^>]+>", " ", (await browser.get("/")).text).split())

    assert "100,000 to 250,000 messages with fewer copies than wanted" in text
    assert "0 to 240,000 messages that only one living server has" in text
    assert "Any one server may burn now" not in text


async def test_a_filter_that_is_wrong_shows_where(browser):
    text = (await browser.get("/queues", params={"filter": "MessageCount -gtt 1"})).text

    assert 'role="alert"' in text
    assert "^" in text
    assert "No queue satisfies" not in text


async def test_queues_come_fullest_first_and_by_pages(browser, node):
    node.more_queues = tuple(QueueRow(f"mx1\\q{n}", QueueKind.DELIVERY, f"q{n}", n, NOW) for n in range(1, 300))
    first, second = [(await browser.get(f"/queues?page={n}")).text for n in (0, 1)]
    names = re.findall(r">(q\d+)</a>", first)

    assert ["q299", "q298"] == names[:2]
    assert ("page=1" in first, "page=0" in second, ">q1<" in second) == (True, True, True)


async def test_after_an_act_the_page_is_not_that_of_a_moment_before(browser, node):
    csrf = re.search(r'name="csrf" value="([^"]+)"', (await browser.get("/queues")).text)[1]
    node.more_queues = (QueueRow("mx1\\new", QueueKind.DELIVERY, "new", 1, NOW),)
    await browser.post("/act", data={"csrf": csrf, "act": "queue-suspend", "node": "mx1", "on": "mx1\\x.example", "back": "/queues"})

    assert ">new</a>" in (await browser.get("/queues")).text


async def test_what_waits_comes_before_copies_and_what_was_delivered(browser, node):
    kinds = (QueueKind.SAFETY_NET_PRIMARY, QueueKind.SHADOW, QueueKind.POISON)
    node.more_queues = tuple(QueueRow(f"mx1\\{kind}", kind, "", 50 + n, NOW) for n, kind in enumerate(kinds))
    names = re.findall(r'scope="row"><a [^>]*>([^<]+)</a>', (await browser.get("/queues")).text)

    assert [QueueKind.POISON, "x.example", "y.example", "Submission", QueueKind.SHADOW, QueueKind.SAFETY_NET_PRIMARY] == names


async def test_attempts_that_end_alike_are_told_once_with_their_number(browser, node):
    node.rows = [
        *(replace(node.row, event=EventId.DEFER, at=NOW + timedelta(minutes=n)) for n in range(9)),
        replace(node.row, event=EventId.SEND, at=NOW + timedelta(minutes=9)),
    ]
    short, whole = [(await browser.get(MESSAGE + more)).text for more in ("", "?all=yes")]

    assert "7 times more the same" in short
    assert (3, 3) == (short.count('data-label="No."'), short.count('<g class="event '))
    assert (False, 10) == ("times more" in whole, whole.count('data-label="No."'))
    assert f"{MESSAGE}?all=yes" in short
    assert short.index('id="facts"') < short.index('id="acts"') < short.index('id="events"')


async def test_what_becomes_of_mail_if_servers_are_lost_is_a_page(browser):
    own, peer, nobody = [(await browser.get("/if-lost", params={"servers": name})).text for name in ("mx1", "mx2.west.example", "x")]

    assert "If mx1 is lost with its disk: 1 acknowledged messages are lost, and of 1 it is not certain" in own
    assert f'href="/messages/{ENVELOPE.message_id}"' in own
    assert "new mail is accepted without a copy: mx2: it would be lost" in peer
    assert "x: no server, site or label" in nobody


async def test_an_address_that_does_not_exist_is_a_page_for_a_browser_and_a_problem_for_a_program(browser, stranger):
    html = {"accept": "text/html,*/*"}
    page, away, problem, api = [
        await browser.get("/nothing", headers=html), await stranger.get("/nothing", headers=html), await browser.get("/nothing"),
        await browser.get("/api/v1/nothing", headers=html),
    ]  # fmt: skip

    assert (404, True) == (page.status_code, "there is no such page" in page.text)
    assert (303, "/login?next=%2Fnothing") == (away.status_code, away.headers["location"])
    assert ["application/problem+json"] * 2 == [one.headers["content-type"] for one in (problem, api)]


async def test_an_address_that_is_not_complete_is_a_page(browser):
    response = await browser.get(f"{MESSAGE}/export")

    assert (400, True) == (response.status_code, "this address is not complete: node" in response.text)


async def test_a_message_that_nobody_knows_is_a_page_that_says_what_to_do(browser, node):
    node.stored, node.knows_events = [], False
    response = await browser.get(MESSAGE)

    assert (404, True) == (response.status_code, "Search messages" in response.text)


async def test_a_database_that_cannot_be_used_is_a_page(browser, node):
    node.is_broken = True

    assert "Not complete" in (await browser.get("/queues")).text
    assert (await browser.get("/")).status_code == 200


async def test_the_export_is_the_message_as_a_file(browser):
    response = await browser.get(f"{MESSAGE}/export?node=mx1")

    assert (b"X-First: 1\r\nX: y\r\n\r\nz", "application/octet-stream") == (response.content, response.headers["content-type"])
    assert "attachment" in response.headers["content-disposition"]
