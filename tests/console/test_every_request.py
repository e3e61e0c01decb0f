"""Whatever is asked of API and pages, by whomever: no failure that nobody expected, and nothing beyond the role of who asks.

schemathesis makes the requests from the description of the API, hypothesis those for pages.
"""

import re

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from shadowrelay.console.acts import ACTS
from shadowrelay.model.settings import AdminRole
from tests.admin.conftest import ENVELOPE, MX2, TOKEN
from tests.kit.consoles import TOKENS

# the least and the most; those between in `make test-all`
ROLES = [each if each in (AdminRole.VIEWER, AdminRole.ADMINISTRATOR) else pytest.param(each, marks=pytest.mark.heavy) for each in AdminRole]
MAY_ACT = {AdminRole.OPERATOR, AdminRole.ADMINISTRATOR}
PRIVATE = ("Hello", "a@corp", "b@x.example", "c@x.example")
FEW = settings(max_examples=4, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
PATHS = ["/", "/queues", "/messages", f"/messages/{ENVELOPE.message_id}", "/peers", "/audit", "/safety-net", "/if-lost", "/act", "/login",
         "/live", f"/messages/{ENVELOPE.message_id}/export", "/report", "/report/page", "/assets/console.css"]  # fmt: skip
NAMES = ["filter", "page", "to", "sender", "subject", "since", "id", "status", "queue", "node", "order", "servers", "act", "on", "back",
         "next", "path", "csrf", "token", "from", "force"]  # fmt: skip
LIKELY = ["mx1", str(MX2), r"mx1\x.example", str(ENVELOPE.message_id), "waiting", "2h", "oldest", "-1", "999999999999", "true",
          "Size -gt 1", "Subject -like '*'", "FromAddress -eq 'a'", "*", "/queues", *ACTS]  # fmt: skip


class Asked:
    """Asks the application, one request after the other; an error in it is a response."""

    def __init__(self, application):
        self.transport = httpx.ASGITransport(application, raise_app_exceptions=False, client=("192.0.2.8", 5))
        self.cookies = httpx.Cookies()

    async def __call__(self, method, path, **more):
        async with httpx.AsyncClient(transport=self.transport, base_url="http://mx1", cookies=self.cookies) as client:
            response = await client.request(method, path, **more)
            self.cookies = client.cookies
        return response


def check_answer(role, request, response, node, before):
    """No failure, no act of who may not, nothing private to who may not see it."""
    assert response.status_code < 500 or response.status_code == 503, request
    if role not in MAY_ACT:
        assert before == (node.commands, node.forgotten), request
    if role is AdminRole.VIEWER:
        assert [] == [word for word in PRIVATE if word in response.text and word not in str(request)], request


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
async def test_no_request_to_the_api_fails_or_does_more_than_the_role_may(application, node, role):
    ask = Asked(application)
    document = (await ask("GET", "/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"})).json()
    operations = [found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()]
    requests = []

    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @FEW
            @given(case=operation.as_strategy(generation_mode=mode))
            def collect(case):
                made = case.as_transport_kwargs(base_url="http://mx1")
                requests.append((made["method"], made["url"], dict(made.get("params") or {})))

            try:
                collect()
            except schemathesis.errors.SchemathesisError:
                continue  # nothing of that mode exists for it
            except Exception as exc:
                if "Unsatisfiable" not in type(exc).__name__:
                    raise

    assert len(requests) > 3 * len(operations)
    bearer = {"Authorization": f"Bearer {TOKENS[role]}"}
    statuses = set()
    for method, url, parameters in requests:
        if url.endswith("/events") and method == "GET" and "/messages/" not in url:
            parameters = parameters | {"follow": "false"}
        before = (list(node.commands), list(node.forgotten))
        try:
            response = await ask(method, url, params=parameters, headers=bearer)
        except (httpx.InvalidURL, ValueError, UnicodeError):
            continue  # no client can send that
        statuses.add(response.status_code)
        check_answer(role, (method, url, parameters), response, node, before)
        if method != "GET" and role not in MAY_ACT:
            assert response.status_code in (403, 404, 405, 431), url
        if "/content" in url and role not in MAY_ACT:
            assert response.status_code in (403, 404, 431), url
    assert {200, 400} <= statuses


fields = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(LIKELY) | st.text(max_size=40), max_size=5)


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
async def test_no_request_to_a_page_fails_or_does_more_than_the_role_may(application, node, role):
    ask = Asked(application)
    await ask("POST", "/login", data={"token": TOKENS[role]})
    requests = []

    @settings(FEW, max_examples=60)
    @given(st.sampled_from(PATHS), fields, st.booleans())
    def collect(path, given_fields, is_form):
        requests.append((path, given_fields, is_form))

    collect()
    requests += [("/act", {"act": act, "node": "mx1", "on": on}, is_form) for act in ACTS for on in ("", "1") for is_form in (False, True)]
    csrf = re.search(r'name="csrf" value="([^"]+)"', (await ask("GET", "/")).text)[1]
    for path, asked, is_form in requests:
        if path == "/live":
            continue  # does not end; tests/console/test_streams.py
        before = (list(node.commands), list(node.forgotten))
        usable = {key: value.encode("utf-8", "replace").decode() for key, value in asked.items()}
        form = {"data": {"csrf": csrf, **usable}} if is_form else {"params": usable}
        response = await ask("POST" if is_form else "GET", path, **form)
        check_answer(role, (path, asked), response, node, before)
        if not is_form:
            assert before == (node.commands, node.forgotten), path
