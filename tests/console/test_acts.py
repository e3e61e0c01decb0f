"""What people do by the console: said before, done by the API in their name, and taken back where that is possible."""

import re
from html import unescape

import pytest

from shadowrelay.admin.api_client import NodeError
from shadowrelay.cluster.answers import NodeAnswer
from shadowrelay.console import acts
from shadowrelay.console.acts import ACTS
from shadowrelay.console.asking import ClusterNodes
from shadowrelay.console.pages import Desk
from shadowrelay.model.queue import QueueKind, QueueRow
from shadowrelay.model.settings import AdminRole
from tests.admin.conftest import ENVELOPE, MX2, NOW, TOKEN, numbered
from tests.kit.consoles import TOKENS

ID = str(ENVELOPE.message_id)
QUEUE = r"mx1\x.example"
DONE = {  # act, what it is on, further fields -> what the node was asked
    ("queue-suspend", QUEUE): ("suspend queue", f"{QUEUE} by administrator"),
    ("queue-resume", QUEUE): ("resume queue", f"{QUEUE} by administrator"),
    ("queue-hold", QUEUE): ("hold queue", f"{QUEUE} by administrator"),
    ("message-suspend", ID): ("suspend by administrator", ID),
    ("message-resume", ID): ("resume by administrator", ID),
    ("message-resubmit", ID): ("resubmit by administrator", ID),
    ("message-release", ID): ("release", ID),
    ("message-remove", ID): ("remove with notice", ID),
    ("message-remove-quietly", ID): ("remove", ID),
    ("drain", ""): ("drain", ""),
    ("redirect", ""): ("redirect", "mx2.west.example"),
    ("request-disable", "1"): ("disable", 1),
    ("request-enable", "1"): ("enable", 1),
}


def csrf_of(page):
    return re.search(r'name="csrf" value="([^"]+)"', page.text)[1]


async def do(browser, act, on, **more):
    page = await browser.get("/act", params={"act": act, "on": on, "node": "mx1", "back": "/queues"})
    assert 200 == page.status_code, page.text
    fields = {"csrf": csrf_of(page), "act": act, "on": on, "node": "mx1", "back": "/queues", **more}
    return page, await browser.post("/act", data=fields)


@pytest.mark.parametrize(("act", "on"), DONE)
async def test_an_act_is_done_once_it_was_confirmed_and_not_before(browser, node, act, on):
    if act.startswith("request"):
        await make_request(browser)
    before = list(node.commands)
    _, response = await do(browser, act, on, to=str(MX2))

    assert (303, "/queues") == (response.status_code, response.headers["location"])
    assert [*before, DONE[act, on]] == node.commands
    assert 'role="status"' in (await browser.get("/queues")).text
    assert 'role="status"' not in (await browser.get("/messages")).text, "it is told once"


async def make_request(browser):
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    asked = {"from": "2026-11-21T09:00", "to": "2026-11-21T10:00"}
    assert 200 == (await browser.post("/api/v1/safety-net/requests", params=asked, headers=bearer)).status_code


async def test_a_look_at_the_confirmation_changes_nothing(browser, node):
    for act in ACTS:
        await browser.get("/act", params={"act": act, "on": QUEUE, "node": "mx1"})

    assert ([], []) == (node.commands, node.forgotten)


async def test_the_confirmation_says_what_will_happen_and_to_how_many(browser):
    text = re.sub(r"<[^>]+>", "", (await browser.get("/act", params={"act": "queue-suspend", "on": QUEUE, "node": "mx1"})).text)

    assert rf"mx1 attempts nothing from {QUEUE} until somebody resumes it" in text
    assert "It concerns 3 messages" in text


def words_of(response):
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.text)).split())


SELECTED = {"from": "2026-11-21T09:00", "to": "2026-11-21T10:00"}
CONCERNS = {  # act -> what it is on, further fields, and what the confirmation says of how much that is
    "queue-retry": (QUEUE, {}, "It concerns 3 messages"),
    "queue-hold": ("x.example", {}, "It concerns 3 messages"),
    "queues-suspend": ("MessageCount -gt 1", {}, "It concerns 5 messages in 2 queues"),
    "message-remove": (ID, {}, "It concerns 1 message ."),
    "messages-remove": ("Size -gt 1", {}, "It concerns 1 message ."),
    "drain": ("", {}, "It concerns 5 messages"),
    "undrain": ("", {}, "It concerns 5 messages"),
    "redirect": ("", {"to": str(MX2)}, "It concerns 5 messages"),
    "forget": (str(MX2), {}, "It concerns 2 messages . So many of this node's messages may have a copy there; it holds 4 messages"),
    "safety-net": ("", SELECTED, "It concerns 12 messages . So many were delivered in that time"),
    "request-disable": ("1", {}, "It concerns 0 messages . So many it has resubmitted so far"),
}


@pytest.mark.parametrize("act", CONCERNS)
async def test_each_confirmation_says_how_many_messages_it_concerns(browser, act):
    await make_request(browser)
    on, more, said = CONCERNS[act]
    page = await browser.get("/act", params={"act": act, "on": on, "node": "mx1", **more})

    assert (200, True) == (page.status_code, said in words_of(page)), words_of(page)


def test_no_act_is_without_a_count():
    assert {name.partition("-")[0] for name in ACTS} == {name.partition("-")[0] for name in CONCERNS}


async def test_an_act_on_a_message_says_which_one_it_is(browser):
    text = words_of(await browser.get("/act", params={"act": "message-remove", "on": ID, "node": "mx1"}))

    assert "Subject Hello From a@corp.example" in text


async def test_an_act_on_a_message_that_the_node_does_not_know_is_not_offered(browser, node):
    node.stored = []

    assert 404 == (await browser.get("/act", params={"act": "message-remove", "on": ID, "node": "mx1"})).status_code


@pytest.mark.parametrize(("act", "given"), [("safety-net", {"from": "2026-11-21T09:00"}), ("redirect", {}), ("queue-hold", {})])
async def test_what_an_act_needs_is_asked_before_it_says_what_happens(browser, act, given):
    page = await browser.get("/act", params={"act": act, **given})

    assert (200, True, False) == (page.status_code, "Nothing is done yet" in page.text, "It concerns" in page.text)
    assert '<form method="get" action="/act"' in page.text
    assert all(f'value="{value}"' in page.text for value in given.values())


async def test_a_request_that_the_node_would_refuse_says_so_before(browser, node):
    node.refusal = "the interval must be over"
    page = await browser.get("/act", params={"act": "safety-net", "node": "mx1", **SELECTED})

    assert (400, True) == (page.status_code, "the interval must be over" in page.text)
    assert '<button type="submit" class="danger"' not in page.text


async def test_what_can_be_undone_is_offered(browser, node):
    await do(browser, "queue-suspend", QUEUE)
    undo = re.search(r'<a href="(/act\?[^"]+)">Undo', (await browser.get("/queues")).text)[1].replace("&amp;", "&")

    assert 200 == (await browser.get(undo)).status_code
    assert "act=queue-resume" in undo


async def test_many_messages_are_chosen_by_a_filter(browser, node):
    node.stored = [numbered(number) for number in range(1, 4)]
    page, _ = await do(browser, "messages-suspend", "FromAddress -like '*@corp.example'")

    assert "It concerns 1 message" in words_of(page)  # the node that is made of values finds one
    assert [("suspend by administrator", str(numbered(1).envelope.message_id))] == node.commands


async def test_many_queues_are_chosen_by_a_filter(browser, node):
    node.more_queues = (QueueRow("mx1\\Shadow\\1", QueueKind.SHADOW, str(MX2), 9, NOW),)
    page, _ = await do(browser, "queues-suspend", "MessageCount -gt 1")

    assert "It concerns 5 messages in 2 queues" in words_of(page)
    asked = [r"mx1\x.example by administrator", r"mx1\y.example by administrator"]
    assert [("suspend queue", queue) for queue in asked] == node.commands
    assert "2 queues suspended" in (await browser.get("/queues")).text


def undo_of(page):
    found = re.search(r'<a href="(/act\?[^"]+)">Undo', page.text)
    return found and unescape(found[1])


async def test_what_is_done_to_many_is_taken_back_from_exactly_those(browser, node):
    """A filter may choose others afterwards, as one for Status -eq Retry does after they were suspended."""
    node.stored = [numbered(number) for number in range(1, 4)]
    await do(browser, "messages-suspend", "Status -eq Retry")
    undo = undo_of(await browser.get("/queues"))
    node.stored = [numbered(number) for number in (2, 1)]
    page = await browser.get(undo)
    assert "each undelivered message to which it was just done" in words_of(page)
    assert "It concerns 1 message" in words_of(page)
    key = re.search(r'name="those" value="([^"]+)"', page.text)[1]
    fields = {"csrf": csrf_of(page), "act": "messages-resume", "node": "mx1", "on": "", "those": key}
    assert 303 == (await browser.post("/act", data=fields)).status_code

    first = str(numbered(1).envelope.message_id)
    assert [("suspend by administrator", first), ("resume by administrator", first)] == node.commands


async def test_what_was_done_to_nothing_needs_no_undo(browser, node):
    node.refusal = "it is a copy"
    await do(browser, "messages-suspend", "Size -gt 1")
    page = await browser.get("/queues")

    assert ("refused: 1, the first because it is a copy" in page.text, undo_of(page)) == (True, None)


@pytest.mark.parametrize("form", [False, True])
async def test_what_an_act_was_done_to_is_known_to_its_session_only(browser, browser_of, node, form):
    await do(browser, "queues-suspend", "MessageCount -gt 1")
    key = re.search(r"those=([^&]+)", undo_of(await browser.get("/queues")))[1]
    other = await browser_of(TOKENS[AdminRole.OPERATOR])
    fields = {"csrf": csrf_of(await other.get("/")), "act": "queues-resume", "node": "mx1", "those": key}
    before = list(node.commands)
    answer = await (other.post("/act", data=fields) if form else other.get("/act", params=fields))

    assert (404, before) == (answer.status_code, node.commands)


async def test_an_act_on_many_ends_before_the_browser_gives_up(browser, node, monkeypatch):
    monkeypatch.setattr(acts, "BULK_SECONDS", -1.0)
    await do(browser, "queues-suspend", "MessageCount -gt 1")

    assert "0 queues suspended. 2 queues not tried, because it took too long: do it again" in words_of(await browser.get("/queues"))


@pytest.mark.parametrize("is_asked", [True, False])
async def test_who_gets_no_answer_is_told_whether_it_may_be_done(browser, monkeypatch, is_asked):
    async def silent(*_, is_act, **__):
        raise NodeError("http://mx1 did not answer within 10 s", is_asked=is_asked)

    page = await browser.get("/act", params={"act": "drain", "node": "mx1"})
    monkeypatch.setattr(Desk, "ask_in_person", silent)
    await browser.post("/act", data={"csrf": csrf_of(page), "act": "drain", "node": "mx1", "back": "/queues"})

    text = words_of(await browser.get("/queues"))
    assert (is_asked, not is_asked) == ("it may have done it, so look before you do it again" in text, "nothing is done" in text)


async def test_many_are_chosen_on_all_nodes_at_once(browser, node):
    page = await browser.get("/act", params={"act": "queues-retry", "on": "MessageCount -gt 2", "node": "*"})

    assert (200, True) == (page.status_code, "It concerns 3 messages in 1 queue" in words_of(page))
    assert 403 == (await browser.post("/act", data={"act": "queues-retry", "on": "MessageCount -gt 2", "node": "*"})).status_code


@pytest.mark.parametrize("act", [name for name, act in ACTS.items() if act.many])
async def test_without_a_filter_nothing_is_done_to_many(browser, node, act):
    csrf = csrf_of(await browser.get("/"))
    page = await browser.get("/act", params={"act": act, "on": "", "node": "*"})

    assert (400, False) == (page.status_code, '<button type="submit" class="danger"' in page.text)
    assert 400 == (await browser.post("/act", data={"csrf": csrf, "act": act, "on": " ", "node": "mx1"})).status_code
    assert [] == node.commands


async def test_the_confirmation_of_a_drain_warns_of_what_others_say(browser):
    text = (await browser.get("/act", params={"act": "drain", "node": "mx1"})).text

    assert "1 messages are on mx1 only, and would be lost with its disk now" in text


@pytest.mark.parametrize("act", ["drain", "redirect"])
async def test_the_confirmation_says_if_the_node_did_not_tell_in_time_what_would_be_lost(browser, monkeypatch, act):
    async def late(*_):
        return [NodeAnswer("mx1", error="it did not answer within 6 s")]

    monkeypatch.setattr(ClusterNodes, "ask", late)
    text = words_of(await browser.get("/act", params={"act": act, "node": "mx1", "to": str(MX2)}))

    assert "what only mx1 has is not known: it did not answer within 6 s" in text


async def test_a_wrong_filter_acts_on_nothing_and_shows_where_it_is_wrong(browser, node):
    page = await browser.get("/act", params={"act": "messages-remove", "on": "Sizze -gt 1", "node": "mx1"})

    assert (400, True, False) == (page.status_code, "^" in page.text, '<button type="submit" class="danger"' in page.text)
    assert [] == node.commands


@pytest.mark.parametrize("role", [AdminRole.VIEWER, AdminRole.AUDITOR])
async def test_who_may_not_act_is_offered_nothing_and_does_nothing(browser_of, node, role):
    browser = await browser_of(TOKENS[role])
    csrf = csrf_of(await browser.get("/"))
    for act in ACTS:
        assert 403 == (await browser.get("/act", params={"act": act, "on": QUEUE})).status_code
        assert 403 == (await browser.post("/act", data={"csrf": csrf, "act": act, "on": QUEUE, "node": "mx1"})).status_code

    assert ([], []) == (node.commands, node.forgotten)
    for path in ("/", "/queues", "/messages", f"/messages/{ID}", "/peers"):
        assert "/act?" not in (await browser.get(path)).text, path


async def test_an_operator_cannot_forget_by_force_and_an_administrator_can(browser_of, node):
    operator, administrator = [await browser_of(TOKENS[role]) for role in (AdminRole.OPERATOR, AdminRole.ADMINISTRATOR)]

    assert 403 == (await operator.get("/act", params={"act": "forget-force", "on": MX2})).status_code
    await do(operator, "forget", MX2)
    await do(administrator, "forget-force", MX2)
    assert [MX2, MX2] == node.forgotten


@pytest.mark.parametrize("csrf", [None, "", "wrong"])
async def test_an_act_without_the_sessions_own_csrf_token_is_refused(browser, node, csrf):
    fields = {"act": "drain", "node": "mx1"} | ({} if csrf is None else {"csrf": csrf})

    assert (403, []) == ((await browser.post("/act", data=fields)).status_code, node.commands)


async def test_an_act_from_another_site_is_refused(browser, node):
    fields = {"act": "drain", "node": "mx1", "csrf": csrf_of(await browser.get("/"))}
    refused = await browser.post("/act", data=fields, headers={"origin": "https://evil.example"})

    assert (403, []) == (refused.status_code, node.commands)


async def test_the_csrf_token_of_another_session_is_refused(browser_of, node):
    one, other = [await browser_of(TOKENS[AdminRole.OPERATOR]) for _ in range(2)]
    csrf = csrf_of(await other.get("/"))

    assert (403, []) == ((await one.post("/act", data={"act": "drain", "node": "mx1", "csrf": csrf})).status_code, node.commands)


async def test_a_write_stands_on_the_audit_page_in_the_persons_name(browser_of):
    browser = await browser_of(TOKENS[AdminRole.OPERATOR])
    await do(browser, "message-remove", ID)
    row = re.sub(r"<[^>]+>", " ", (await browser.get("/audit")).text)

    assert re.search(rf"operator\s.*messages/{ID}/remove\s+dsn=true\s+done", row, re.DOTALL)


async def test_what_the_node_refuses_is_told_with_its_reason(browser, node):
    node.refusal = "it is a copy"
    await do(browser, "message-remove", ID)

    assert "it is a copy" in (await browser.get("/queues")).text


async def test_the_nodes_own_token_does_not_travel_to_other_nodes(browser):
    response = await browser.get("/act", params={"act": "drain", "node": "mx2.west.example"})

    assert (503, True) == (response.status_code, "add its API to [[peers]]" in response.text)


async def test_requests_to_resubmit_have_a_page(browser, node):
    await do(browser, "safety-net", "", **{"from": "2026-11-21T09:00", "to": "2026-11-21T10:00", "sender": "<b>@x"})
    text = (await browser.get("/safety-net")).text

    assert ("&lt;b&gt;@x" in text, "<b>@x" in text, NOW.year) == (True, False, 2026)


async def test_the_names_of_acts_that_undo_exist():
    assert set() == {act.undo for act in ACTS.values() if act.undo} - set(ACTS)
