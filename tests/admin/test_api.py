"""The HTTP API, without a socket."""

import asyncio

import httpx
import pytest
import structlog

from shadowrelay.admin.api import make_application
from shadowrelay.admin.people import People
from shadowrelay.model.back_pressure_settings import BackPressure
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Content
from shadowrelay.model.queue import Delivery, QueueKind, QueueRow, ReportedFork, Untold
from shadowrelay.model.values import replace
from shadowrelay.protocol.filters import Comparison, Operator
from shadowrelay.rules import flight
from shadowrelay.rules.back_pressure import NO_PRESSURE, Resource, Sample, measured
from shadowrelay.rules.flight import NO_FLIGHT
from tests.admin.conftest import DATABASE, ENVELOPE, MX2, NOW, READ_ONLY_TOKEN, STORED, TOKEN, numbered

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
    ("POST", "/api/v1/queues/suspend?queue=Submission"),
    ("POST", "/api/v1/queues/resume?queue=Submission"),
    ("POST", "/api/v1/queues/retry?queue=Submission"),
    ("POST", "/api/v1/queues/redirect?to=mx2.west.example"),
    ("GET", "/api/v1/messages"),
    ("GET", f"/api/v1/messages/{ENVELOPE.message_id}"),
    ("GET", f"/api/v1/messages/{ENVELOPE.message_id}/events"),
    ("GET", "/api/v1/messages/not-an-id"),
    ("GET", "/api/v1/search?filter=Size -gt 1"),
    ("GET", "/api/v1/safety-net/requests"),
    ("POST", "/api/v1/safety-net/requests?from=2026-11-21T09:00&to=2026-11-21T10:00"),
    ("POST", "/api/v1/safety-net/requests/1/disable"),
    ("POST", "/api/v1/safety-net/requests/1/remove"),
    ("GET", "/api/v1/peers"),
    ("GET", "/api/v1/glance"),
    ("GET", "/api/v1/pressure"),
    ("GET", "/api/v1/clients"),
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


@pytest.mark.parametrize(("method", "path"), [*PROTECTED, ("GET", f"/api/v1/messages/{ENVELOPE.message_id}/content")])
async def test_who_may_only_read_changes_nothing_and_reads_no_content(stranger, node, method, path):
    response = await stranger.request(method, path, headers={"Authorization": f"Bearer {READ_ONLY_TOKEN}"})

    assert (method == "GET" and not path.endswith("/content")) == (response.status_code not in (401, 403))
    assert ([], []) == (node.forgotten, node.commands)


async def test_without_a_second_token_an_empty_one_reads_nothing(node, metrics):
    transport = httpx.ASGITransport(make_application(node, metrics, People(TOKEN), "1", names=["node"]))
    async with httpx.AsyncClient(transport=transport, base_url="http://node", headers={"Authorization": "Bearer "}) as client:
        assert 401 == (await client.get("/api/v1/node")).status_code


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
        "position": 1234, "safety_net_complete_since": None, "untold": None, "machine": "", "is_witness": False, "domains": [],
        "former_database": "", "settings": {"transport": {"shadow_timeout": "5s"}},
        "configuration": {
            "file": "/etc/shadowrelay/node.toml", "digest": "abcd", "read_at": "2026-11-21T10:30:00Z", "needs_restart": ["peers"],
            "refused_at": None, "refusal": "",
        },
        "new_mail": {
            "outcome": "fewer", "takers_count": 0, "copies_wanted": 1,
            "sentence": "new mail is accepted without a copy: mx2: no answer", "shared_fate": [],
        },
    } == body  # fmt: skip


async def test_a_message_says_in_a_line_what_it_waits_for(http, node):
    path = f"/api/v1/messages/{ENVELOPE.message_id}"
    before = (await http.get(path)).json()["waits_for"]
    node.flights[ENVELOPE.message_id], _ = flight.load(NO_FLIGHT, "store.example:25")

    assert "" != before
    assert "store.example:25 waits for a session" == (await http.get(path)).json()["waits_for"]


async def test_what_a_notification_waits_for_is_told_of_the_message_and_of_the_node(http, node):
    node.waits_for = (MessageId("00000000-0000-4000-8000-00000000000d"),)
    node.untold_ones = Untold(3, NOW, ENVELOPE.message_id, node.waits_for[0])

    message = (await http.get(f"/api/v1/messages/{ENVELOPE.message_id}")).json()
    body = (await http.get("/api/v1/node")).json()

    assert list(node.waits_for) == message["told_after"]
    assert {
        "count": 3, "since": "2026-11-21T10:30:00Z", "message_id": ENVELOPE.message_id, "generated": node.waits_for[0]
    } == body["untold"]  # fmt: skip


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
    "parameters", [{"limit": 0}, {"limit": 1001}, {"limit": "many"}, {"after": -1}, {"after": 2**63}, {"queue": "q" * 1025}]
)
async def test_a_listing_without_bounds_is_refused_with_the_reason(http, node, parameters):
    response = await http.get("/api/v1/messages", params=parameters)

    assert (400, "application/problem+json") == (response.status_code, response.headers["content-type"])
    assert response.json()["detail"].startswith(f"{next(iter(parameters))}: ")
    assert [] == node.asked


async def test_the_newest_come_first_where_that_is_asked_for(http, node):
    node.stored = [numbered(number) for number in range(1, 3)]

    body = (await http.get("/api/v1/messages", params={"newest": "true"})).json()

    assert [2, 1] == [message["internal_id"] for message in body["messages"]]


async def test_a_search_is_passed_on_and_says_where_to_go_on(http, node):
    body = (await http.get("/api/v1/search", params={"filter": "Role -eq primary", "limit": 3, "after": 9})).json()
    (_, expression, *bounds) = node.asked[0]

    assert ([7], None, "Role", [3, 9]) == (
        [message["internal_id"] for message in body["messages"]],
        body["next_after"],
        expression.name,
        bounds,
    )
    assert ["b@x.example", "c@x.example"] == body["messages"][0]["to"]


@pytest.mark.parametrize("parameters", [{}, {"filter": ""}, {"filter": "Size -gt"}, {"filter": "Size -gt 1", "limit": 0}])
async def test_a_search_for_nothing_is_refused(http, node, parameters):
    assert (400, []) == ((await http.get("/api/v1/search", params=parameters)).status_code, node.asked)


async def test_the_rows_of_the_tracking_log_about_a_message_are_shown(http, node):
    body = (await http.get(f"/api/v1/messages/{ENVELOPE.message_id}/events")).json()
    node.refusal = "the message tracking log cannot be read"

    assert [("SEND", "mx1", "store.x.example", ["250 2.0.0 OK"], {"AttemptElapsed": "0.1"})] == [
        tuple(row[key] for key in ("event", "client", "server", "replies", "custom_data")) for row in body["events"]
    ]
    assert 409 == (await http.get(f"/api/v1/messages/{ENVELOPE.message_id}/events")).status_code


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
    wrong = await http.get("/api/v1/messages/nonsense")

    assert (404, "Not Found", 404) == (unknown.status_code, unknown.json()["title"], unknown.json()["status"])
    assert (400, True) == (wrong.status_code, wrong.json()["detail"].startswith("'nonsense' is no network message id, like 0193"))


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


async def test_a_drain_is_begun_looked_at_and_ended(http, node):
    began = await http.post("/api/v1/drain")
    looked = await http.get("/api/v1/drain")
    ended = await http.post("/api/v1/undrain")

    assert (200, "draining", [("drain", "")]) == (began.status_code, began.json()["state"], node.commands)
    text = f"3 messages handed over to {MX2}, which does not answer: wait for it, or `peers forget {MX2}` if its queue is destroyed"
    assert {
        "state": "draining", "since": "2026-11-21T10:30:00Z", "step": "waiting for peers", "sessions_count": 0, "attempts_count": 1,
        "undelivered_count": 2, "handed_over_count": 3, "set_aside_count": 0, "held": {MX2: 40}, "waits_for": [text],
        "obstacles": [
            {"obstacle": "handed over, and that server does not answer", "server": MX2, "count": 3, "is_lasting": True}
        ],
        "is_stuck": True, "targets": [], "moved_count": 0, "left_count": 0,
    } == looked.json()  # fmt: skip
    assert (200, "active") == (ended.status_code, ended.json()["state"])


async def test_queues_are_redirected_to_the_named_peers(http, node):
    began = await http.post("/api/v1/queues/redirect", params={"to": "MX2.west.example, mx3.west.example"})
    nobody = await http.post("/api/v1/queues/redirect", params={"to": " ,"})
    node.refusal = "this node drains"
    refused = await http.post("/api/v1/queues/redirect", params={"to": MX2})

    names = ("mx2.west.example", "mx3.west.example")
    assert [("redirect", ",".join(names))] == node.commands
    assert ("redirecting", list(names), 5, 1) == tuple(began.json()[name] for name in ("state", "targets", "moved_count", "left_count"))
    assert (422, 409, "this node drains") == (nobody.status_code, refused.status_code, refused.json()["detail"])


async def test_a_drain_that_is_refused_is_409_with_the_reason(http, node):
    node.refusal = "this node does not drain"

    response = await http.post("/api/v1/undrain")

    assert (409, "this node does not drain") == (response.status_code, response.json()["detail"])


async def test_an_unknown_peer_cannot_be_forgotten(http):
    assert 404 == (await http.post("/api/v1/peers/mx9.example/forget")).status_code


async def test_a_peer_is_not_forgotten_by_looking(http, node):
    assert (405, []) == ((await http.get(f"/api/v1/peers/{MX2}/forget")).status_code, node.forgotten)


async def test_a_node_that_takes_no_mail_is_alive_and_not_ready(http, node):
    node.reasons = ("draining", "ledger unavailable")

    ready = await http.get("/health/ready")

    assert (503, {"is_ready": False, "is_degraded": True, "reasons": ["draining", "ledger unavailable"]}) == (
        ready.status_code,
        ready.json(),
    )
    assert (200, {"status": "live"}) == ((await http.get("/health/live")).status_code, (await http.get("/health/live")).json())


async def test_a_node_that_takes_a_part_of_the_mail_is_ready_and_degraded(http, node):
    node.warnings = ("back pressure medium: …",)

    ready = await http.get("/health/ready")

    assert (200, {"is_ready": True, "is_degraded": True, "reasons": ["back pressure medium: …"]}) == (ready.status_code, ready.json())


async def test_back_pressure_is_shown_with_use_level_thresholds_and_effect(http, node):
    node.pressed = measured(NO_PRESSURE, {Resource.DATABASE_USED_SPACE: Sample(97.456, "1 of 50 GB")}, BackPressure(), NOW)

    document = (await http.get("/api/v1/pressure")).json()

    assert {
        "level": "medium", "effect": "mail from outside and copies are refused", "tarpit_seconds": 0.0,
        "reasons": ["back pressure medium: database_used_space is medium at 97.5 % (above 96, until 94): 1 of 50 GB"],
        "resources": [
            {
                "resource": "database_used_space", "use": 97.46, "unit": "%", "detail": "1 of 50 GB", "level": "medium",
                "measured": "medium", "samples_count": 1, "history_depth": 1, "since": "2026-11-21T10:30:00Z",
                "low_to_medium": 96, "medium_to_high": 99, "high_to_medium": 97, "medium_to_low": 94,
            }
        ],
    } == document  # fmt: skip


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


async def test_a_glance_has_what_each_question_has(http):
    seen = (await http.get("/api/v1/glance")).json()
    paths = {
        "node": "/api/v1/node", "ready": "/health/ready", "queues": "/api/v1/queues", "peers": "/api/v1/peers",
        "redundancy": "/api/v1/redundancy", "pressure": "/api/v1/pressure",
    }  # fmt: skip
    alone = {name: (await http.get(path)).json() for name, path in paths.items()}

    assert {name: alone[name].get(name, alone[name]) for name in paths} | {"drain": None} == seen


async def test_a_glance_at_a_node_that_drains_has_the_drain(http, node, monkeypatch):
    its = replace(await node.tell(), state="draining")
    monkeypatch.setattr(node.node, "view", lambda: asyncio.sleep(0, its))

    assert (await http.get("/api/v1/drain")).json() == (await http.get("/api/v1/glance")).json()["drain"]


async def test_there_is_no_page_with_parts_from_elsewhere(http):
    assert [404, 404, 404] == [(await http.get(page)).status_code for page in ("/docs", "/redoc", "/")]


async def test_the_description_is_openapi_and_says_that_the_token_is_needed(http):
    document = (await http.get("/openapi.json")).json()

    assert document["openapi"].startswith("3.1")
    assert {
        "/api/v1/node", "/api/v1/drain", "/api/v1/undrain", "/api/v1/queues",
        *(f"/api/v1/queues/{verb}" for verb in ("retry", "suspend", "resume", "redirect")),
        "/api/v1/messages", "/api/v1/messages/{message_id}", "/api/v1/if-lost", "/api/v1/peers", "/api/v1/search",
        *(f"/api/v1/messages/{{message_id}}/{verb}" for verb in ("content", "suspend", "resume", "resubmit", "release", "remove")),
        "/api/v1/messages/{message_id}/events", "/api/v1/queue-ids/{queue_id}",
        "/api/v1/safety-net/delivered", "/api/v1/safety-net/requests", "/api/v1/safety-net/requests/{number}",
        *(f"/api/v1/safety-net/requests/{{number}}/{verb}" for verb in ("disable", "enable", "remove")),
        "/api/v1/peers/{name}/forget", "/api/v1/pressure", "/api/v1/redundancy", "/api/v1/audit", "/api/v1/clients", "/api/v1/glance",
        "/health/live", "/health/ready", "/metrics",
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
    application = make_application(node, metrics, People(TOKEN), "1", names=["node"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://node", headers=BEARER) as client:
        assert 0.0 <= (await client.get("/api/v1/node")).json()["uptime_seconds"]


# what is set aside
COMMANDS = [
    ("release", "release"),
    ("remove", "remove with notice"),
    ("remove?dsn=false", "remove"),
    *((f"{verb}?by=ann%40host", f"{verb} by ann@host") for verb in ("suspend", "resume", "resubmit")),
    ("suspend", "suspend by administrator"),
]


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


async def test_queues_are_filtered_by_what_is_shown_of_them(http):
    for text, expected in (
        ("MessageCount -gt 2", ["mx1\\x.example"]),
        ("DeliveryType -eq DnsConnectorDelivery -and OldestAge -lt 1m", ["mx1\\y.example"]),
        ("DeliveryType -eq Undefined", ["mx1\\Submission"]),
        ("Velocity -ne 0", []),
    ):
        rows = (await http.get("/api/v1/queues", params={"filter": text})).json()["queues"]
        assert expected == [row["identity"] for row in rows], text


async def test_shadow_queues_by_next_hop_are_shown_and_filtered_like_others(http, node):
    primary = ServerName("mx2.west.example")
    node.more_queues = (
        QueueRow(f"mx1\\Shadow\\{primary}\\store.example:25", QueueKind.SHADOW, "store.example:25", 7, NOW, primary=primary),
        QueueRow("mx1\\Shadow\\1", QueueKind.SHADOW, primary, 2, NOW, primary=primary),
    )

    queues = (await http.get("/api/v1/queues")).json()["queues"]
    named = {queue["identity"]: (queue["primary"], queue["next_hop"], queue["delivery_type"]) for queue in queues}
    assert (primary, "store.example:25", "ShadowRedundancy") == named[f"mx1\\Shadow\\{primary}\\store.example:25"]
    assert [(primary, primary), ("", "x.example")] == [named[name][:2] for name in ("mx1\\Shadow\\1", "mx1\\x.example")]
    for text in (f"Identity -like '*\\Shadow\\{primary}\\*'", "NextHopDomain -like 'store.*' -and MessageCount -ge 7"):
        rows = (await http.get("/api/v1/queues", params={"filter": text})).json()["queues"]
        assert [f"mx1\\Shadow\\{primary}\\store.example:25"] == [row["identity"] for row in rows], text


async def test_a_shadow_message_says_what_waits_for_which_next_hop(http, node):
    node.stored = [replace(STORED, forks=(ReportedFork("store:25", frozenset({2, 1})),))]

    assert [{"next_hop": "store:25", "ordinals": [1, 2]}] == (await http.get(f"/api/v1/messages/{ENVELOPE.message_id}")).json()["forks"]


async def test_a_filtered_page_of_messages_says_itself_where_the_next_one_begins(http, node):
    response = await http.get("/api/v1/messages", params={"queue": "x.example", "filter": "Size -gt 1KB", "limit": 5, "after": 3})

    assert (200, 1, 77) == (response.status_code, len(response.json()["messages"]), response.json()["next_after"])
    assert [("x.example", Comparison("Size", Operator.GT, 1000.0), 5, 3)] == node.asked


@pytest.mark.parametrize("path", ["queues", "messages"])
async def test_a_wrong_filter_is_400_and_shows_the_mistake(http, path):
    response = await http.get(f"/api/v1/{path}", params={"filter": "Status -eq 'Lost'"})

    assert (400, "application/problem+json") == (response.status_code, response.headers["content-type"])
    first, shown, caret = response.json()["detail"].split("\n")
    assert ("Status -eq 'Lost'", "           ^") == (shown, caret)
    assert "filter, character 12: there is no such value" in first


@pytest.mark.parametrize(
    ("path", "more", "command", "is_suspended"),
    [
        ("suspend", {}, "suspend queue", True),
        ("suspend", {"hold": "true"}, "hold queue", True),
        ("resume", {}, "resume queue", False),
    ],
)
async def test_a_queue_is_suspended_and_resumed(http, node, path, more, command, is_suspended):
    done = await http.post(f"/api/v1/queues/{path}", params={"queue": "mx1\\x.example", "by": "ann", **more})
    refused = await http.post(f"/api/v1/queues/{path}", params={"queue": "Poison"})
    unknown = await http.post(f"/api/v1/queues/{path}", params={"queue": "mx1\\nothing"})
    unnamed = await http.post(f"/api/v1/queues/{path}", params={"queue": "mx1\\x.example", "by": ""})

    assert (200, is_suspended) == (done.status_code, done.json()["is_suspended"])
    assert (command, "mx1\\x.example by ann") == node.commands[0]
    assert [409, 404, 400] == [response.status_code for response in (refused, unknown, unnamed)]


async def test_the_envelope_stands_before_the_content_for_who_wants_it(http):
    path = f"/api/v1/messages/{ENVELOPE.message_id}/content"

    response = await http.get(path, params={"envelope": "true"})

    assert b"X-Sender: <>\r\nX-First: 1\r\nX: y\r\n\r\nz" == response.content
    assert not (await http.get(path)).content.startswith(b"X-Sender")


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


async def test_a_message_says_when_where_to_and_whether_inside_it_was_delivered(http, node):
    deliveries = (Delivery(NOW, "store:25", frozenset({2, 1}), True),)
    envelope = replace(ENVELOPE, resubmitted_from=MessageId("another"))
    node.stored = [replace(STORED, envelope=envelope, delivered_at=NOW, deliveries=deliveries)]

    message = (await http.get(f"/api/v1/messages/{ENVELOPE.message_id}")).json()

    at = "2026-11-21T10:30:00Z"
    assert (at, "another", [{"at": at, "next_hop": "store:25", "ordinals": [1, 2], "is_inside": True}]) == (
        message["delivered_at"], message["resubmitted_from"], message["deliveries"],
    )  # fmt: skip


async def test_clients_are_listed_with_what_they_did_in_their_minute(http):
    limited, quiet = (await http.get("/api/v1/clients")).json()["clients"]

    assert ("192.0.2.7", 7, 900, 4, 41.5) == tuple(
        limited[key] for key in ("client", "refused_recipients", "octets", "limited_count", "seconds_left")
    )
    assert ("2001:db8::/64", 2, 0) == tuple(quiet[key] for key in ("client", "sessions_count", "limited_count"))
    assert 1 == len((await http.get("/api/v1/clients?limit=1")).json()["clients"])
    assert 400 == (await http.get("/api/v1/clients?limit=0")).status_code


async def test_a_message_is_found_by_the_id_of_its_next_hop(http, node):
    known, unknown, short = [await http.get(f"/api/v1/queue-ids/{each}") for each in ("4bXyz12", "4bOther", "4b")]

    assert [{"message_ids": [node.row.network_message_id]}, {"message_ids": []}, 400] == [known.json(), unknown.json(), short.status_code]
