"""The HTTP API, without a socket."""

import httpx
import pytest
import structlog

from shadowrelay.admin.api import make_application
from shadowrelay.model.message import Content
from tests.admin.conftest import DATABASE, ENVELOPE, MX2, STORED, TOKEN, numbered

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def http(application):
    """A client with the token, on loopback."""
    transport = httpx.ASGITransport(application, raise_app_exceptions=False, client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://node", headers=BEARER) as client:
        yield client


@pytest.fixture
async def stranger(application):
    """A client from elsewhere without a token."""
    transport = httpx.ASGITransport(application, client=("192.0.2.66", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        yield client


PROTECTED = [
    ("GET", "/api/v1/node"),
    ("GET", "/api/v1/queues"),
    ("POST", "/api/v1/queues/retry?queue=Submission"),
    ("GET", "/api/v1/messages"),
    ("GET", f"/api/v1/messages/{ENVELOPE.message_id}"),
    ("GET", "/api/v1/messages/not-an-id"),
    ("GET", "/api/v1/peers"),
    ("POST", f"/api/v1/peers/{MX2}/forget"),
    ("GET", "/openapi.json"),
    ("GET", "/metrics"),
]


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"]
)
@pytest.mark.parametrize(("method", "path"), PROTECTED)
async def test_nobody_without_the_token_sees_or_does_anything(stranger, node, method, path, authorization):
    response = await stranger.request(method, path, headers={"Authorization": authorization} if authorization else {})

    assert (401, "Bearer", "application/problem+json") == (
        response.status_code,
        response.headers["www-authenticate"],
        response.headers["content-type"],
    )
    assert [] == node.forgotten


async def test_the_word_bearer_may_be_in_any_case(stranger):
    assert 200 == (await stranger.get("/api/v1/node", headers={"Authorization": f"bEARER {TOKEN}"})).status_code


async def test_the_health_pages_are_for_everybody(stranger):
    assert [200, 200] == [(await stranger.get(f"/health/{page}")).status_code for page in ("live", "ready")]


async def test_metrics_are_for_a_scraper_on_this_machine_without_a_token(application):
    for client, headers, expected in [
        ("127.0.0.1", {}, 200),
        ("::1", {}, 200),
        ("192.0.2.66", {}, 401),
        ("192.0.2.66", BEARER, 200),
        ("127.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, 401),
        ("a-pipe", {}, 401),
    ]:
        transport = httpx.ASGITransport(application, client=(client, 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as scraper:
            assert expected == (await scraper.get("/metrics", headers=headers)).status_code, (client, headers)


async def test_the_node_says_who_it_is(http):
    body = (await http.get("/api/v1/node")).json()

    assert {
        "name": "mx1", "site": "east", "boundary": "example", "version": "1.2.3", "state": "running",
        "started_at": "2026-11-21T09:30:00Z", "uptime_seconds": 3600.0, "database": DATABASE, "incarnation": 4, "began": 1000,
        "position": 1234, "settings": {"transport": {"shadow_timeout": "5s"}},
    } == body  # fmt: skip


async def test_queues_have_depth_and_oldest_message(http):
    queues = (await http.get("/api/v1/queues")).json()["queues"]

    assert [("mx1\\Submission", 0, None), ("mx1\\x.example", 3, "2026-11-21T10:28:30Z"), ("mx1\\y.example", 2, "2026-11-21T10:29:30Z")] == [
        (queue["identity"], queue["count"], queue["oldest_at"]) for queue in queues
    ]
    assert ("Delivery", "451 4.3.0 later") == (queues[1]["kind"], queues[1]["last_error"])


async def test_a_queue_is_retried_by_its_identity(http):
    response = await http.post("/api/v1/queues/retry", params={"queue": "mx1\\x.example"})

    assert (200, True, 3) == (response.status_code, (body := response.json())["is_retried"], body["queue"]["count"])


@pytest.mark.parametrize(("queue", "status"), [("mx1\\nowhere", 404), ("Poison", 409), ("", 400)])
async def test_a_queue_that_cannot_be_retried_is_a_problem(http, queue, status):
    response = await http.post("/api/v1/queues/retry", params={"queue": queue})

    assert (status, "application/problem+json") == (response.status_code, response.headers["content-type"])


async def test_a_listing_of_messages_is_passed_on_and_says_where_to_go_on(http, node):
    node.stored = [numbered(number) for number in range(1, 6)]

    body = (await http.get("/api/v1/messages", params={"queue": "mx1\\x.example", "limit": 2, "after": 1})).json()

    assert ([2, 3], 3) == ([message["internal_id"] for message in body["messages"]], body["next_after"])
    assert [("mx1\\x.example", 2, 1)] == node.asked


async def test_the_last_page_of_a_listing_says_so(http, node):
    body = (await http.get("/api/v1/messages")).json()

    assert (1, None) == (len(body["messages"]), body["next_after"])
    assert [("", 100, 0)] == node.asked


@pytest.mark.parametrize(
    "parameters", [{"limit": 0}, {"limit": 1001}, {"limit": "many"}, {"after": -1}, {"after": 2**63}, {"queue": "q" * 513}]
)
async def test_a_listing_without_bounds_is_refused_with_the_reason(http, node, parameters):
    response = await http.get("/api/v1/messages", params=parameters)

    assert (400, "application/problem+json") == (response.status_code, response.headers["content-type"])
    assert response.json()["detail"].startswith(f"{next(iter(parameters))}: ")
    assert [] == node.asked


async def test_a_message_explains_itself(http):
    body = (await http.get(f"/api/v1/messages/{ENVELOPE.message_id.upper()}")).json()

    assert {"ownership": 1, "placement": 2, "database": DATABASE} == body["number"]
    assert ("primary", MX2, "451 4.3.0 Try again later") == (body["role"], body["shadow"], body["last_reply"])
    assert [{"server": MX2, "database": DATABASE, "choice": "chosen"}] == body["copies"]
    assert [(1, "b@x.example", True, "FAILURE"), (2, "c@x.example", False, None)] == [
        (each["ordinal"], each["address"], each["is_done"], each["notify"]) for each in body["recipients"]
    ]
    assert [("x.example", [2], 3, "message")] == [
        (each["next_hop"], each["ordinals"], each["failures_count"], each["kind"]) for each in body["retries"]
    ]
    assert ("2026-11-21T10:30:00Z", "", 4096, "00" * 32) == (body["due_at"], body["set_aside_reason"], body["size"], body["sha256"])


async def test_an_unknown_message_is_404_and_what_is_no_id_is_400(http):
    unknown = await http.get("/api/v1/messages/ffffffff-ffff-4fff-8fff-ffffffffffff")
    wrong = await http.get("/api/v1/messages/ff")

    assert (404, "Not Found", 404) == (unknown.status_code, unknown.json()["title"], unknown.json()["status"])
    assert 400 == wrong.status_code


async def test_peers_have_lease_breaker_and_heartbeat_age(http):
    peers = (await http.get("/api/v1/peers")).json()["peers"]

    assert [(MX2, 5.0, True, 3600.0, "closed", 4, 2), ("mx3", None, False, None, "open", 0, 0)] == [
        (
            peer["name"],
            peer["heartbeat_age_seconds"],
            peer["is_reachable"],
            peer["lease_seconds"],
            peer["breaker"],
            peer["held_for_count"],
            peer["held_by_count"],
        )
        for peer in peers
    ]


async def test_a_peer_is_forgotten_by_name_whatever_its_case(http, node):
    response = await http.post("/api/v1/peers/MX2.west.example/forget")

    assert (200, {"name": MX2, "is_forgotten": True}, [MX2]) == (response.status_code, response.json(), node.forgotten)


async def test_an_unknown_peer_cannot_be_forgotten(http):
    assert 404 == (await http.post("/api/v1/peers/mx9.example/forget")).status_code


async def test_a_peer_is_not_forgotten_by_looking(http, node):
    assert (405, []) == ((await http.get(f"/api/v1/peers/{MX2}/forget")).status_code, node.forgotten)


async def test_a_node_that_takes_no_mail_is_alive_and_not_ready(http, node):
    node.reasons = ("draining", "ledger unavailable")

    ready = await http.get("/health/ready")

    assert (503, {"is_ready": False, "reasons": ["draining", "ledger unavailable"]}) == (ready.status_code, ready.json())
    assert (200, {"status": "live"}) == ((await http.get("/health/live")).status_code, (await http.get("/health/live")).json())


async def test_a_ledger_that_fails_is_503_without_its_reason(http, node):
    node.is_broken = True

    response = await http.get("/api/v1/queues")

    assert (503, "5") == (response.status_code, response.headers["retry-after"])
    assert "secret" not in response.text


async def test_a_scrape_goes_on_when_the_ledger_fails(http, node):
    node.is_broken = True

    assert 200 == (await http.get("/metrics")).status_code


async def test_an_unexpected_error_is_500_without_its_text(http, node):
    node.stored = [None]

    with structlog.testing.capture_logs() as logged:
        response = await http.get(f"/api/v1/messages/{ENVELOPE.message_id}")

    assert ["admin.request_failed"] == [event["event"] for event in logged]
    assert (500, "application/problem+json") == (response.status_code, response.headers["content-type"])
    assert "NoneType" not in response.text


async def test_there_is_no_page_with_parts_from_elsewhere(http):
    assert [404, 404, 404] == [(await http.get(page)).status_code for page in ("/docs", "/redoc", "/")]


async def test_the_description_is_openapi_and_says_that_the_token_is_needed(http):
    document = (await http.get("/openapi.json")).json()

    assert document["openapi"].startswith("3.1")
    assert {
        "/api/v1/node", "/api/v1/queues", "/api/v1/queues/retry", "/api/v1/messages", "/api/v1/messages/{message_id}", "/api/v1/peers",
        *(f"/api/v1/messages/{{message_id}}/{verb}" for verb in ("content", "release", "remove")),
        "/api/v1/peers/{name}/forget", "/health/live", "/health/ready", "/metrics",
    } == set(document["paths"])  # fmt: skip
    assert [{"HTTPBearer": []}] == document["paths"]["/api/v1/queues"]["get"]["security"]
    assert "security" not in document["paths"]["/health/live"]["get"]
    assert [] == unresolved(document)


def unresolved(document):
    """References of the document that lead nowhere."""
    missing = []

    def visit(part):
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            if key == "$ref":
                target = document
                for step in value.removeprefix("#/").split("/"):
                    target = target.get(step) if isinstance(target, dict) else None
                if target is None:
                    missing.append(value)
            elif isinstance(value, dict | list):
                visit(value)

    visit(document)
    return missing


async def test_every_answer_fits_its_description(http):
    schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
    body = (await http.get(f"/api/v1/messages/{STORED.envelope.message_id}")).json()

    assert set(schemas["Message"]["properties"]) == set(body)


async def test_ages_use_the_real_time_where_none_is_given(node, metrics):
    application = make_application(node, metrics, TOKEN, "1", names=["node"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://node", headers=BEARER) as client:
        assert 0.0 <= (await client.get("/api/v1/node")).json()["uptime_seconds"]


# what is set aside
COMMANDS = [("release", "release"), ("remove", "remove with notice"), ("remove?dsn=false", "remove")]


@pytest.mark.parametrize(("command", "verb"), COMMANDS)
async def test_a_message_that_is_set_aside_obeys(http, node, command, verb):
    response = await http.post(f"/api/v1/messages/{ENVELOPE.message_id}/{command}")

    assert (200, ENVELOPE.message_id, [(verb, ENVELOPE.message_id)]) == (
        response.status_code,
        response.json()["message_id"],
        node.commands,
    )


@pytest.mark.parametrize("command", [command for command, _ in COMMANDS])
async def test_what_is_not_possible_is_409_with_the_reason_and_an_unknown_message_404(http, node, command):
    unknown = await http.post(f"/api/v1/messages/ffffffff-ffff-4fff-8fff-ffffffffffff/{command}")
    node.refusal = "it was handed over to mx2"
    refused = await http.post(f"/api/v1/messages/{ENVELOPE.message_id}/{command}")

    assert 404 == unknown.status_code
    assert (409, "it was handed over to mx2") == (refused.status_code, refused.json()["detail"])


async def test_a_message_is_changed_by_nobody_who_only_looks_or_has_no_token(http, node):
    looked = await http.get(f"/api/v1/messages/{ENVELOPE.message_id}/release")
    stranger = [
        await http.post(f"/api/v1/messages/{ENVELOPE.message_id}/{command}", headers={"authorization": ""}) for command, _ in COMMANDS
    ]
    content = await http.get(f"/api/v1/messages/{ENVELOPE.message_id}/content", headers={"authorization": ""})

    assert 405 == looked.status_code
    assert {401} == {response.status_code for response in (*stranger, content)}
    assert [] == node.commands


@pytest.mark.parametrize("is_large", [False, True])
async def test_the_content_comes_as_it_would_be_delivered(http, node, tmp_path, is_large):
    body = b"X: y\r\n\r\n" + b"z" * (1_500_000 if is_large else 1)
    node.content_of_it = Content(len(body), b"", None if is_large else body, tmp_path / "content" if is_large else None)
    (tmp_path / "content").write_bytes(body)

    response = await http.get(f"/api/v1/messages/{ENVELOPE.message_id}/content")

    assert (200, "message/rfc822") == (response.status_code, response.headers["content-type"])
    assert b"X-First: 1\r\n" + body == response.content
    assert str(len(response.content)) == response.headers["content-length"]


async def test_a_content_that_cannot_be_read_is_409(http, node):
    node.refusal = "its content is damaged"

    assert 409 == (await http.get(f"/api/v1/messages/{ENVELOPE.message_id}/content")).status_code
    node.refusal = ""
    assert 404 == (await http.get("/api/v1/messages/ffffffff-ffff-4fff-8fff-ffffffffffff/content")).status_code
