"""Who asks the API: tokens of people, their roles, and what each role may do, see and leave behind."""

import asyncio

import httpx
import pytest
import structlog

from shadowrelay.admin import people as module
from shadowrelay.admin.api import make_application
from shadowrelay.admin.audit import KEPT_MAX, AuditTrail
from shadowrelay.admin.guard import UNSEEN, without_private
from shadowrelay.admin.people import ADMINISTRATOR, FAILURES_MAX, FAILURES_SECONDS, READER, People, TooManyFailures
from shadowrelay.model.queue import QueueKind, QueueRow
from shadowrelay.model.settings import AdminRole, AdminUser
from tests.admin.conftest import ENVELOPE, MX2, NOW, READ_ONLY_TOKEN, TOKEN
from tests.kit.consoles import HASHES, TOKENS

USERS = tuple(AdminUser(name=role.value, role=role, token_hash=HASHES[role]) for role in AdminRole)
SEEING = AdminUser(name="seer", role=AdminRole.VIEWER, token_hash=HASHES[AdminRole.VIEWER], sees_messages=True)


@pytest.fixture
def people():
    """One of each role, named like it."""
    return People(TOKEN, READ_ONLY_TOKEN, USERS)


async def test_who_has_a_lesser_role_now_has_no_right_of_the_former_one(people):
    token = TOKENS[AdminRole.OPERATOR]
    before = await people.recognise(token, "192.0.2.1")
    people.withdraw([user.model_copy(update={"role": AdminRole.VIEWER}) for user in USERS])

    assert (False, None) == (people.counts(before), people.known(token))
    after = await people.recognise(token, "192.0.2.1")
    assert (AdminRole.VIEWER, False) == (after.role, after.sees_messages)


@pytest.fixture
def trail():
    """What is written."""
    return AuditTrail(lambda: NOW)


@pytest.fixture
async def http(node, metrics, people, trail):
    """A client on the API with these people."""
    api = make_application(node, metrics, people, "1.2.3", trail=trail, names=("node",), now=lambda: NOW)
    transport = httpx.ASGITransport(api, raise_app_exceptions=False, client=("192.0.2.7", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        yield client


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


MESSAGE = f"/api/v1/messages/{ENVELOPE.message_id}"
READING = ["/api/v1/node", "/api/v1/queues", "/api/v1/peers", "/api/v1/glance",
           "/api/v1/messages", MESSAGE, f"{MESSAGE}/events", "/api/v1/redundancy",
           "/api/v1/pressure", "/api/v1/drain", "/api/v1/safety-net/requests", 
           "/api/v1/search?filter=Size -gt 1", "/openapi.json"]  # fmt: skip
ACTING = [r"/api/v1/queues/retry?queue=mx1\x.example", r"/api/v1/queues/suspend?queue=mx1\x.example", f"{MESSAGE}/suspend",
          f"{MESSAGE}/remove",
          f"{MESSAGE}/release", f"{MESSAGE}/resubmit", "/api/v1/drain", "/api/v1/undrain", "/api/v1/queues/redirect?to=mx2.west.example",
          f"/api/v1/peers/{MX2}/forget"]  # fmt: skip
MAY = {  # by right: the roles that have it
    **{("GET", path): {*AdminRole} for path in READING},
    **{("POST", path): {AdminRole.OPERATOR, AdminRole.ADMINISTRATOR} for path in ACTING},
    ("GET", f"{MESSAGE}/content"): {AdminRole.OPERATOR, AdminRole.ADMINISTRATOR},
    ("GET", "/api/v1/audit"): {AdminRole.AUDITOR, AdminRole.OPERATOR, AdminRole.ADMINISTRATOR},
    ("POST", f"/api/v1/peers/{MX2}/forget?force=true"): {AdminRole.ADMINISTRATOR},
}


@pytest.mark.parametrize("role", AdminRole)
async def test_each_role_may_do_its_own_and_no_more(http, node, trail, role):
    allowed = set()
    for method, path in MAY:
        node.commands.clear(), node.forgotten.clear(), trail.entries.clear()
        response = await http.request(method, path, headers=bearer(TOKENS[role]))
        if response.status_code == 403:
            assert ([], []) == (node.commands, node.forgotten), path
        else:
            assert response.status_code < 400, (path, response.text)
            allowed.add((method, path))
        assert (method == "POST") == bool(trail.entries), path

    assert {route for route, roles in MAY.items() if role in roles} == allowed


async def test_a_route_that_nobody_listed_here_is_none(http, node):
    paths = (await http.get("/openapi.json", headers=bearer(TOKEN))).json()["paths"]
    writing = {path for path, methods in paths.items() if "post" in methods}

    for path in writing:
        concrete = path.replace("{message_id}", str(ENVELOPE.message_id)).replace("{name}", MX2).replace("{number}", "1")
        assert 403 == (await http.post(concrete, headers=bearer(TOKENS[AdminRole.VIEWER]))).status_code, path
        assert 403 == (await http.post(concrete, headers=bearer(TOKENS[AdminRole.AUDITOR]))).status_code, path
    assert len(writing) >= 15
    assert [] == node.commands


async def test_a_person_acts_in_his_own_name_whatever_he_says(http, node, trail):
    await http.post(f"{MESSAGE}/suspend", params={"by": "somebody else"}, headers=bearer(TOKENS[AdminRole.OPERATOR]))
    await http.post(f"{MESSAGE}/suspend", params={"by": "root@host"}, headers=bearer(TOKEN))

    assert ["suspend by operator", "suspend by root@host"] == [verb for verb, _ in node.commands]
    assert ["operator", "root@host"] == [entry.by for entry in trail.entries]


async def test_every_write_is_a_line_of_the_operator_log_refused_ones_too(http, node):
    with structlog.testing.capture_logs() as lines:
        await http.post("/api/v1/queues/suspend?queue=x", headers=bearer(TOKENS[AdminRole.VIEWER]))
        node.refusal = "it is done"
        await http.post(f"{MESSAGE}/remove?dsn=false", headers=bearer(TOKENS[AdminRole.OPERATOR]))
    acted = [line for line in lines if line["event"] == "admin.acted"]

    assert [("viewer", "queues/suspend", "queue=x"), ("operator", f"messages/{ENVELOPE.message_id}/remove", "dsn=false")] == [
        (line["by"], line["act"], line["on"]) for line in acted
    ]
    assert "only administrator or operator" in acted[0]["outcome"]
    assert ("it is done", "192.0.2.7") == (acted[1]["outcome"], acted[1]["client"])


async def test_the_audit_has_the_newest_first_and_not_more_than_fit(http, trail):
    for number in range(KEPT_MAX + 5):
        trail.note(ADMINISTRATOR, "", "", f"act {number}", "", "done")
    entries = (await http.get("/api/v1/audit", headers=bearer(TOKENS[AdminRole.AUDITOR]))).json()["entries"]

    assert (KEPT_MAX, f"act {KEPT_MAX + 4}") == (len(entries), entries[0]["act"])


async def test_who_may_not_see_messages_sees_no_subject_and_no_address(http, node):
    node.more_queues = (QueueRow("mx1\\z", QueueKind.DELIVERY, "z", 1, NOW, '550 5.1.1 <b@x.example> unknown, says "c d"@y.example'),)
    for path in READING:
        text = (await http.get(path, headers=bearer(TOKENS[AdminRole.VIEWER]))).text
        assert [] == [word for word in ("Hello", "a@corp", "b@x", "c@x", "1@corp", "c d") if word in text], path
    assert "Hello" in (await http.get(MESSAGE, headers=bearer(TOKENS[AdminRole.OPERATOR]))).text
    assert UNSEEN in (await http.get("/api/v1/queues", headers=bearer(TOKENS[AdminRole.VIEWER]))).text


@pytest.mark.parametrize("name", ["Subject", "RECIPIENTS", "FromAddress", "InternetMessageId", "LastError"])
@pytest.mark.parametrize("path", ["/api/v1/search", "/api/v1/messages"])
async def test_who_may_not_see_messages_cannot_ask_for_them_by_what_he_may_not_see(http, node, path, name):
    response = await http.get(path, params={"filter": f"{name} -like '*x*'"}, headers=bearer(TOKENS[AdminRole.VIEWER]))

    assert (403, []) == (response.status_code, node.asked)


async def test_a_viewer_that_sees_messages_sees_them(node, metrics):
    api = make_application(node, metrics, People(TOKEN, "", [SEEING]), "1", names=("node",), now=lambda: NOW)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://node") as http:
        assert "Hello" == (await http.get(MESSAGE, headers=bearer(TOKENS[AdminRole.VIEWER]))).json()["subject"]


def test_what_is_not_shown_keeps_its_form():
    answer = {
        "subject": "s",
        "to": ["a@x"],
        "recipients": [{"address": "a@x", "ordinal": 1}],
        "reply": "550 to <a@x>",
        "count": 3,
        "sender": "",
    }

    assert {
        "subject": UNSEEN, "to": [UNSEEN], "recipients": [{"address": UNSEEN, "ordinal": 1, "orcpt": None}],
        "reply": f"550 to <{UNSEEN}>", "count": 3, "sender": "",
    } == without_private(answer)  # fmt: skip


async def test_wrong_tokens_make_their_network_wait_and_nobody_else(people, monkeypatch):
    clock = 0.0
    people = People(TOKEN, "", USERS, clock=lambda: clock)
    monkeypatch.setattr(module, "_owner", lambda token, users: USERS[0] if token == "right" else None)
    for number in range(FAILURES_MAX):
        assert None is await people.recognise(f"wrong {number}", "2001:db8::1")
    with pytest.raises(TooManyFailures) as raised:
        await people.recognise("right", "2001:db8::2")

    assert FAILURES_SECONDS == raised.value.seconds
    assert ADMINISTRATOR == await people.recognise(TOKEN, "2001:db8::2")
    assert "viewer" == (await people.recognise("right", "2001:db8:0:1::2")).name
    clock = FAILURES_SECONDS + 1
    assert "viewer" == (await people.recognise("right", "2001:db8::2")).name


async def test_a_throttled_client_of_the_api_is_told_when_to_come_back(http):
    statuses = [(await http.get("/api/v1/node", headers=bearer("wrong"))).status_code for _ in range(FAILURES_MAX + 1)]
    answer = await http.get("/api/v1/node", headers=bearer("wrong"))

    assert [*[401] * FAILURES_MAX, 429] == statuses
    assert 0 < int(answer.headers["retry-after"]) <= FAILURES_SECONDS


async def test_without_people_no_hash_is_computed_and_a_wrong_token_costs_nothing(monkeypatch):
    monkeypatch.setattr(module, "_owner", lambda *_: pytest.fail("a hash was computed"))
    people = People(TOKEN, READ_ONLY_TOKEN)

    assert [None] * 20 == [await people.recognise("wrong", "192.0.2.1") for _ in range(20)]
    assert (ADMINISTRATOR, READER, None) == (people.known(TOKEN), people.known(READ_ONLY_TOKEN), people.known(""))


async def test_a_token_that_was_right_once_needs_no_hash_again(people, monkeypatch):
    first = await people.recognise(TOKENS[AdminRole.OPERATOR], "192.0.2.1")
    monkeypatch.setattr(module, "_owner", lambda *_: pytest.fail("a hash was computed"))

    assert ("operator", first) == (first.name, await people.recognise(TOKENS[AdminRole.OPERATOR], "192.0.2.1"))


async def test_many_at_once_wait_for_one_hash_after_the_other(people, monkeypatch):
    running, most = 0, 0

    def slow(token, users):
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1
        return None

    monkeypatch.setattr(module, "_owner", slow)
    found = await asyncio.gather(*(people.recognise(f"wrong {n}", f"192.0.2.{n}") for n in range(30)), return_exceptions=True)

    assert (1, {True}) == (most, {one is None or isinstance(one, TooManyFailures) for one in found})
