"""The commands' client, against the API in process."""

import io

import httpx
import pytest

from shadowrelay.admin.api_client import TOKEN_VARIABLE, NodeClient, NodeError, find_token
from shadowrelay.model.replies import ConfigurationError
from tests.admin.conftest import ENVELOPE, MX2, TOKEN, InProcess, numbered


@pytest.fixture
def client(application):
    """A client with the token."""
    with NodeClient("http://node/", TOKEN, transport=InProcess(application)) as client:
        yield client


def answering(handle):
    """A client whose node answers what `handle` says."""
    return NodeClient("http://127.0.0.1:8025", TOKEN, transport=httpx.MockTransport(handle))


def test_every_listing_is_a_plain_list_or_dict(client):
    assert "mx1" == client.node()["name"]
    assert "mx1\\Submission" == client.queues()[0]["identity"]
    assert [7] == [message["internal_id"] for message in client.messages()]
    assert "primary" == client.message(ENVELOPE.message_id)["role"]
    assert MX2 == client.peers()[0]["name"]


def test_a_listing_longer_than_a_page_is_asked_in_pages(client, node):
    node.stored = [numbered(number) for number in range(1, 2301)]

    found = client.messages("mx1\\Submission", limit=2200)

    assert list(range(1, 2201)) == [message["internal_id"] for message in found]
    assert [("mx1\\Submission", 1000, 0), ("mx1\\Submission", 1000, 1000), ("mx1\\Submission", 200, 2000)] == node.asked


def test_a_search_goes_on_until_it_has_enough_or_the_node_has_no_more(client, node):
    assert [7, 7] == [message["internal_id"] for message in client.search("Size -gt 1", limit=10)]
    assert [(10, 0), (9, 77)] == [asked[2:] for asked in node.asked]
    assert "SEND" == client.events(ENVELOPE.message_id)[0]["event"]


def test_a_listing_that_ends_before_its_limit_is_not_asked_again(client, node):
    assert 1 == len(client.messages(limit=5000))
    assert 1 == len(node.asked)


def test_a_peer_is_forgotten(client, node):
    assert {"name": MX2, "is_forgotten": True} == client.forget_peer(MX2)


def test_that_a_node_is_not_ready_is_an_answer(client, node):
    node.reasons = ("draining",)

    assert {"is_ready": False, "is_degraded": True, "reasons": ["draining"]} == client.ready()


@pytest.mark.parametrize(
    ("name", "path"), [("../../health/live", b"/api/v1/peers/..%2F..%2Fhealth%2Flive/forget"), ("a?b#c", b"/api/v1/peers/a%3Fb%23c/forget")]
)
def test_a_name_cannot_leave_its_place_in_the_path(name, path):
    asked = []

    def handle(request):
        asked.append(request.url.raw_path)
        return httpx.Response(200, json={})

    answering(handle).forget_peer(name)

    assert [path] == asked


def test_an_unknown_message_is_an_error_with_its_status(client):
    with pytest.raises(NodeError, match="this node knows no message ffffffff") as raised:
        client.message("ffffffff-ffff-4fff-8fff-ffffffffffff")

    assert 404 == raised.value.status


def test_a_wrong_token_is_an_error_that_says_where_the_right_one_is(application):
    with (
        NodeClient("http://node", "wrong", transport=InProcess(application)) as client,
        pytest.raises(NodeError, match=r"admin\.token_file") as raised,
    ):
        client.node()

    assert 401 == raised.value.status


def failing(error):
    def handle(request):
        raise error

    return answering(handle)


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (failing(httpx.ConnectError("refused")), r"http://127.0.0.1:8025 cannot be reached \(refused\); is the node running"),
        (failing(httpx.ReadTimeout("slow")), "http://127.0.0.1:8025 did not answer within 10 s"),
        (failing(httpx.ReadError("reset")), "http://127.0.0.1:8025 cannot be asked: reset"),
        (answering(lambda request: httpx.Response(200, text="<html>")), "answered 200 without JSON; is it a shadowrelay node"),
        (answering(lambda request: httpx.Response(200, json=[1])), "answered 200 OK"),
        (answering(lambda request: httpx.Response(418, json={"status": 418})), "answered 418 I'm a teapot"),
    ],
    ids=["refused", "slow", "broken", "not JSON", "no object", "no detail"],
)  # fmt: skip
def test_what_goes_wrong_is_said_in_words(client, expected):
    with client, pytest.raises(NodeError, match=expected):
        client.node()


def test_nobody_listens():
    with NodeClient("http://127.0.0.1:1", TOKEN) as client, pytest.raises(NodeError, match=r"cannot be reached .*; is the node running"):
        client.node()


def test_a_url_that_is_none_is_said_in_words():
    with NodeClient("ftp://node", TOKEN) as client, pytest.raises(NodeError, match="ftp://node cannot be asked"):
        client.node()


def test_the_token_comes_from_the_environment_else_from_the_file(tmp_path):
    (tmp_path / "token").write_text("the-token-of-the-file")

    assert "of-the-environment" == find_token(tmp_path / "token", {TOKEN_VARIABLE: " of-the-environment\n"})
    assert "the-token-of-the-file" == find_token(tmp_path / "token", {TOKEN_VARIABLE: ""})


def test_without_any_token_it_is_said_where_to_put_one():
    with pytest.raises(ConfigurationError, match="set SHADOWRELAY_ADMIN_TOKEN, or name"):
        find_token(None, {})


def test_a_node_is_drained_watched_and_undrained(client, node):
    assert "draining" == client.drain()["state"] == client.drain_status()["state"]
    assert "active" == client.undrain()["state"]
    assert (["mx2.west.example"], "redirecting") == ((redirect := client.redirect("mx2.west.example"))["targets"], redirect["state"])


def test_what_is_set_aside_is_released_removed_and_exported(client, node):
    file = io.BytesIO()

    assert {"message_id": ENVELOPE.message_id, "is_released": True} == client.release_message(ENVELOPE.message_id)
    assert client.remove_message(ENVELOPE.message_id, with_dsn=True)["is_sender_told"]
    assert not client.remove_message(ENVELOPE.message_id, with_dsn=False)["is_sender_told"]
    assert 21 == client.export_message(ENVELOPE.message_id, file)
    assert b"X-First: 1\r\nX: y\r\n\r\nz" == file.getvalue()
    assert ["release", "remove with notice", "remove"] == [verb for verb, _ in node.commands]


def test_what_is_refused_has_its_reason_and_status(client, node):
    node.refusal = "it was handed over to mx2"

    for ask in (client.release_message, lambda message_id: client.export_message(message_id, io.BytesIO())):
        with pytest.raises(NodeError, match="handed over to mx2") as raised:
            ask(ENVELOPE.message_id)
        assert 409 == raised.value.status
