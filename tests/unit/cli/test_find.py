"""`messages find`: options become a filter, all nodes are asked, and each message is told once."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from shadowrelay.admin import api_client
from shadowrelay.cli.find import filter_of
from shadowrelay.cli.main import app
from shadowrelay.cluster.answers import NodeAnswer
from shadowrelay.cluster.lookup import detail, merged, standing
from shadowrelay.protocol.filters import MESSAGE_PROPERTIES, parse_filter
from tests.unit.cli.played_api import TOKEN, PlayedClient, play

ID = "0193a6a2-6f1e-7c3a-9c57-0d1f2e3a4b5c"
ROW: dict[str, Any] = {
    "internal_id": 7, "message_id": ID, "internet_message_id": "<x@y>", "role": "delivered", "sender": "", "recipients_count": 5,
    "done_count": 1, "size": 4096, "subject": "[bold]not markup", "arrived_at": "2026-01-01T00:00:00Z", "primary": "", "shadow": "",
    "last_reply": "", "set_aside_reason": "", "status": "Ready", "to": [f"{name}@b.example" for name in "abcde"], "promoted_from": "mx9",
    "delivered_at": "2026-01-01T00:00:01Z",
}  # fmt: skip


class SearchedNodes:
    """Stands for NodeClient: what each URL answers."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]] | Exception] = {}
        self.asked: list[Any] = []

    def __call__(self, url: str, token: str, **_: object) -> "SearchedNodes.SearchedNode":
        self.asked.append((url, token))
        return self.SearchedNode(self, url)

    class SearchedNode(PlayedClient):
        def __init__(self, nodes: "SearchedNodes", url: str) -> None:
            self.nodes, self.url = nodes, url

        def node(self) -> dict[str, Any]:
            return {"name": f"name of {self.url}"}

        def search(self, filter_text: str, limit: int) -> list[dict[str, Any]]:
            self.nodes.asked.append((filter_text, limit))
            said = self.nodes.rows[self.url]
            if isinstance(said, Exception):
                raise said
            return said


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> SearchedNodes:
    return play(monkeypatch, SearchedNodes())


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["messages", "find", *map(str, words)])


@pytest.mark.parametrize(
    ("options", "filter_text"),
    [
        ({"to": "bob@"}, "Recipients -like '*bob@*'"),
        ({"to": "*@corp.example"}, "Recipients -like '*@corp.example'"),
        ({"sender": "o'neill@x"}, "FromAddress -like '*o''neill@x*'"),
        ({"sender": "<>"}, "FromAddress -eq $null"),
        ({"subject": "50% off", "status": "delivered"}, "Subject -like '*50% off*' -and Role -eq delivered"),
        ({"since": "1h30m"}, "MessageLatency -le '1h30m'"),
        ({"since": "2026-11-22T10:00"}, "DateReceived -ge '2026-11-22T10:00'"),
        ({"message_id": ID.upper()}, f"NetworkMessageId -like '{ID}*'"),
        ({"message_id": "0193a6"}, "NetworkMessageId -like '0193a6*'"),
        ({"message_id": "x@y"}, "InternetMessageId -like '*x@y*'"),
        ({"status": "retry"}, "Role -eq primary -and Status -eq Retry"),
    ],
)
def test_options_become_a_filter_that_nodes_understand(options: dict[str, str], filter_text: str) -> None:
    assert filter_text == filter_of(**options)
    parse_filter(filter_text, MESSAGE_PROPERTIES)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [({}, "say what to look for"), ({"status": "lost"}, "waiting, retry"), ({"message_id": "xyz"}, "neither a Message-ID")],
)
def test_a_search_that_says_nothing_is_refused_with_the_remedy(options: dict[str, str], remedy: str) -> None:
    with pytest.raises(typer.BadParameter, match=remedy):
        filter_of(**options)


def test_the_row_that_tells_most_is_shown_once_newest_first() -> None:
    copy, returned = ROW | {"role": "shadow", "primary": "east"}, ROW | {"delivered_at": None}
    older = ROW | {"message_id": "a", "arrived_at": "2025-01-01T00:00:00Z"}

    found = merged(
        [NodeAnswer("north", [copy, older]), NodeAnswer("east", [returned]), NodeAnswer("west", [ROW]), NodeAnswer("south", error="gone")]
    )

    assert [ID, "a"] == [row["message_id"] for row in found]
    assert [("west", "delivered"), ("east", "delivered"), ("north", "shadow")] == [(one["node"], one["role"]) for one in found[0]["nodes"]]
    assert found[0]["delivered_at"], "the node that delivered it tells most"
    by_another = returned | {"origin": "client", "primary": "mx2", "promoted_from": "", "delivered_at": "2026-01-01T00:00:02Z"}
    assert ("delivered", "delivered by mx2 after takeover") == (standing(by_another), detail(by_another))
    assert [("delivered", "taken over from mx9"), ("done", True)] == [
        (standing(ROW), detail(ROW)),
        (standing(returned), "`messages trace` tells what became of it" in detail(returned)),
    ]


def test_all_nodes_of_the_configuration_are_asked_with_one_token(nodes: SearchedNodes, tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    peer = '[[peers]]\nname = "{0}"\nsite = "b"\naddress = "{0}:25"\n'
    config.write_text(
        '[server]\nname = "mx1"\nsite = "a"\n' + peer.format("mx2") + 'admin = "https://mx2:9/"\n' + peer.format("mx3"), encoding="utf-8"
    )
    nodes.rows = {"http://127.0.0.1:8025": [ROW], "https://mx2:9": api_client.NodeError("https://mx2:9 cannot be reached")}

    result = run("--to", "b.example", "--config", config)
    document = json.loads(run("--to", "b.example", "--config", config, "--json").stdout)

    assert [("http://127.0.0.1:8025", TOKEN), ("https://mx2:9", TOKEN)] == nodes.asked[:2]
    assert (0, True, True) == (result.exit_code, ID in result.stdout, "[bold]not markup" in result.stdout)
    assert "a@b.example, b@b.example, c@b.example, +2 (1/5 done)" in result.stdout
    assert "taken over from mx9" in result.stdout
    assert "without mx2: https://mx2:9 cannot be reached" in result.stderr
    assert "without mx3: add its API to [[peers]], like admin =" in result.stderr
    assert ([ID], ["mx2", "mx3"]) == ([row["message_id"] for row in document["messages"]], [one["node"] for one in document["missing"]])


@pytest.mark.parametrize(("status", "code"), [(0, 4), (400, 2), (401, 2)])
def test_if_no_node_answers_the_exit_code_says_why(nodes: SearchedNodes, status: int, code: int) -> None:
    nodes.rows = dict.fromkeys(("http://a", "http://b"), api_client.NodeError("no", status))

    result = run("--subject", "x", "--node", "http://a, http://b")

    assert (code, "shadowrelay: no\n") == (result.exit_code, result.stderr)


def test_nothing_found_is_a_failure(nodes: SearchedNodes) -> None:
    nodes.rows = {"http://a": []}

    assert (1, "no messages\n") == ((result := run("--subject", "x", "--node", "http://a")).exit_code, result.output)


def test_the_newest_are_enough_and_that_is_said(nodes: SearchedNodes) -> None:
    nodes.rows = {"http://a": [ROW, ROW | {"message_id": "a"}]}

    result = run("--subject", "x", "--node", "http://a", "--limit", 1)

    assert (("Subject -like '*x*'", 1), "only the newest 1; give more options, or --limit") == (
        nodes.asked[-1],
        result.stdout.splitlines()[-1],
    )
