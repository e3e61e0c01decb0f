"""`shadowrelay safety-net`: from the command through the client to the API, on a node made of values."""

import json
from datetime import UTC, datetime

import pytest
import structlog
from typer.testing import CliRunner

from shadowrelay.admin import api_client
from shadowrelay.admin.api_client import NodeClient
from shadowrelay.cli.main import app
from shadowrelay.model.ids import ServerName
from shadowrelay.model.resubmission import Criteria
from tests.admin.conftest import TOKEN, InProcess

HOUR = ("--from", "2026-11-21T09:00+01:00", "--to", "2026-11-21 10:00")
NINE, TEN = datetime(2026, 11, 21, 8, tzinfo=UTC), datetime(2026, 11, 21, 10, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _no_log():
    """What a command prints stands alone: the node logs elsewhere."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def run(application, monkeypatch):
    """A command's result."""
    monkeypatch.setattr(api_client, "NodeClient", lambda *_: NodeClient("http://node", TOKEN, transport=InProcess(application)))
    monkeypatch.setenv("SHADOWRELAY_ADMIN_TOKEN", TOKEN)
    return lambda *words: CliRunner().invoke(app, ["safety-net", *map(str, words)])


def test_a_request_has_an_interval_with_offsets_or_in_utc(run, node):
    result = run("resubmit", *HOUR)

    assert (0, "request 1 is pending: `shadowrelay safety-net show 1`\n") == (result.exit_code, result.output)
    assert [Criteria(NINE, TEN)] == [request.criteria for request in node.requests]


def test_every_criterion_arrives_as_it_was_given(run, node):
    given = ("--next-hop", "store:25", "--sender", "<>", "--recipient", "a+b&c@x.example", "--message", "<1=2@x>", "--primary", "MX2.west")
    result = run("resubmit", *HOUR, *given, "--json")

    criteria = Criteria(NINE, TEN, "store:25", "<>", "a+b&c@x.example", "<1=2@x>", ServerName("mx2.west"))
    assert [criteria] == [request.criteria for request in node.requests]
    answer = json.loads(result.output)
    assert (1, "pending", "2026-11-21T08:00:00Z", "<>", 0) == tuple(
        answer[name] for name in ("number", "state", "from_at", "sender", "resubmitted_count")
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("resubmit", "--from", "yesterday", "--to", "2026-11-21T10:00"), "yesterday is no time: write 2026-11-22T14:30Z"),
        (("resubmit", "--from", "2026-11-21T10:00"), "--to"),
        (("show", "0"), "is too small; give at least 1"),
    ],
)
def test_a_wrong_command_asks_no_node(run, node, words, said):
    result = run(*words)

    assert (2, True, []) == (result.exit_code, said in result.stderr, node.requests)


def test_a_refused_request_says_why(run, node):
    node.refusal = "the interval must be over"

    result = run("resubmit", *HOUR)

    assert (1, "shadowrelay: the interval must be over\n") == (result.exit_code, result.stderr)


def test_requests_are_listed_and_shown(run, node):
    assert "no requests\n" == run("list").output
    run("resubmit", *HOUR, "--next-hop", "store:25")

    assert [True, True, True] == [text in run("list").output for text in ("pending", "next hop store:25", "2026-11-21T08:00:00Z")]
    assert 1 == len(json.loads(run("list", "--json").output))
    assert [True, True] == [text in run("show", 1).output for text in ("examined count", "store:25")]
    assert 1 == json.loads(run("show", 1, "--json").output)["number"]


def test_requests_are_disabled_enabled_and_removed(run, node):
    run("resubmit", *HOUR)

    outputs = [run(verb, 1).output for verb in ("disable", "enable", "remove")]

    assert ["request 1 is disabled\n", "request 1 is enabled\n", "request 1 is removed\n"] == outputs
    assert [("disable", 1), ("enable", 1), ("remove", 1)] == node.commands


@pytest.mark.parametrize("verb", ["show", "disable", "enable", "remove"])
def test_a_request_that_does_not_exist_is_an_error(run, verb):
    result = run(verb, 7)

    assert (1, "shadowrelay: this node has no resubmit request 7\n") == (result.exit_code, result.stderr)


def test_a_time_outside_the_calendar_is_a_bad_request(run, node):
    result = run("resubmit", "--from", "0001-01-01T00:00+23:00", "--to", "2026-11-21T10:00")

    assert (2, True, []) == (result.exit_code, "is not in the calendar" in result.stderr, node.requests)
