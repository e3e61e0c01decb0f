import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shadowrelay.admin import client as admin_client
from shadowrelay.cli.main import app
from shadowrelay.cli.output import age, duration

TOKEN = "a-token-of-sixteen-or-more"
LONG_AGO = "2026-01-01T00:00:00+00:00"
QUEUES = [
    {
        "identity": "mx1\\Submission", "kind": "Submission", "next_hop": "", "count": 2, "oldest_at": LONG_AGO,
        "last_error": "", "next_retry_at": None,
    },
    {
        "identity": "mx1\\Shadow\\3", "kind": "Shadow", "next_hop": "mx2.example", "count": 40, "oldest_at": None,
        "last_error": "[lost]", "next_retry_at": None,
    },
]  # fmt: skip
MESSAGE = {
    "internal_id": 7, "message_id": "0193-aa", "internet_message_id": "<x@y>", "role": "primary", "origin": "client", "sender": "",
    "recipients_count": 2, "done_count": 1, "size": 4096, "subject": "[bold]not markup", "arrived_at": LONG_AGO, "due_at": None,
    "primary": "", "shadow": "mx2.example", "last_reply": "450 4.2.0 later",
}  # fmt: skip
FULL = {
    **MESSAGE,
    "number": {"ownership": 1, "placement": 2, "database": "d"},
    "recipients": [{"ordinal": 1, "address": "a@b.example", "is_done": True, "notify": None, "orcpt": None}],
    "copies": [{"server": "mx2.example", "database": "d2", "choice": "chosen"}],
    "retries": [
        {"next_hop": "store:25", "ordinals": [2], "failures_count": 3, "attempts_next_at": LONG_AGO, "last_reply": "450 4.2.0 later"}
    ],
}
PEER = {
    "name": "mx2.example", "site": "west", "boundary": "default", "address": "mx2.example:2525", "database": "d2", "heard_at": LONG_AGO,
    "heartbeat_age_seconds": 1.5, "is_reachable": True, "lease_seconds": 10000.0, "breaker": "closed", "held_for_count": 40,
    "held_by_count": 2, "is_forgotten": False,
}  # fmt: skip


class FakeClient:
    """Stands for NodeClient; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error: Exception | None = None

    def __call__(self, url: str, token: str) -> "FakeClient":
        self.asked.append((url, token))
        return self

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def queues(self) -> list[dict[str, Any]]:
        if self.error is not None:
            raise self.error
        return QUEUES

    def messages(self, queue: str, limit: int, after: int) -> list[dict[str, Any]]:
        self.asked.append((queue, limit, after))
        return [MESSAGE]

    def message(self, message_id: str) -> dict[str, Any]:
        self.asked.append(message_id)
        return FULL

    def peers(self) -> list[dict[str, Any]]:
        return [PEER]

    def forget_peer(self, name: str) -> dict[str, Any]:
        self.asked.append(name)
        return {"name": name, "is_forgotten": True}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr(admin_client, "NodeClient", fake)
    monkeypatch.setenv("SHADOWRELAY_ADMIN_TOKEN", TOKEN)
    return fake


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_queue_list_shows_depth_and_oldest_age_and_counts_shadow_queues_apart(node: FakeClient) -> None:
    result = run("queue", "list")

    assert 0 == result.exit_code
    assert [True, True] == ["mx1\\Shadow\\3" in result.output, "[lost]" in result.output]
    assert "2 to deliver, 40 held for others" == result.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "document"),
    [
        (("queue", "list"), QUEUES),
        (("messages", "list"), [MESSAGE]),
        (("messages", "show", "0193-aa"), FULL),
        (("peers", "list"), [PEER]),
        (("peers", "forget", "mx2.example"), {"name": "mx2.example", "is_forgotten": True}),
    ],
)
def test_json_is_what_the_node_said(node: FakeClient, words: tuple[str, ...], document: object) -> None:
    assert document == json.loads(run(*words, "--json").output)


def test_messages_list_asks_for_the_wanted_part_and_says_how_to_go_on(node: FakeClient) -> None:
    result = run("messages", "list", "--queue", "mx1\\Submission", "--limit", 1, "--after", 5)

    assert ("mx1\\Submission", 1, 5) == node.asked[-1]
    assert "there may be more: --after 7" == result.output.splitlines()[-1]
    assert "1/2" in result.output


def test_messages_show_prints_fields_recipients_copies_and_retries(node: FakeClient) -> None:
    result = run("messages", "show", "0193-aa")

    parts = ("[bold]not markup", "ownership=1 placement=2 database=d", "a@b.example", "chosen", "store:25", "450 4.2.0 later")
    assert ("0193-aa", []) == (node.asked[-1], [part for part in parts if part not in result.output])


def test_peers_list_shows_lease_and_last_sign_of_life(node: FakeClient) -> None:
    output = run("peers", "list").output

    assert [] == [part for part in ("mx2.example", "2h 46m", "1s", "closed", "yes") if part not in output]


def test_peers_forget_says_what_it_did(node: FakeClient) -> None:
    assert "mx2.example is no longer waited for\n" == run("peers", "forget", "mx2.example").output
    assert "mx2.example" == node.asked[-1]


@pytest.mark.parametrize(("status", "code"), [(0, 4), (401, 2), (404, 1), (503, 1)])
def test_the_exit_code_says_whether_the_node_or_the_question_was_at_fault(node: FakeClient, status: int, code: int) -> None:
    node.error = admin_client.NodeError("no such thing", status)

    result = run("queue", "list")

    assert (code, "shadowrelay: no such thing\n") == (result.exit_code, result.stderr)


def test_without_a_token_the_command_says_how_to_give_one(node: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHADOWRELAY_ADMIN_TOKEN")

    result = run("queue", "list")

    assert (2, True) == (result.exit_code, "SHADOWRELAY_ADMIN_TOKEN" in result.stderr)


def test_address_and_token_come_from_the_nodes_configuration(node: FakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SHADOWRELAY_ADMIN_TOKEN")
    (tmp_path / "token").write_text(TOKEN, encoding="ascii")
    config = tmp_path / "node.toml"
    config.write_text('[server]\nname = "a"\nsite = "b"\n[admin]\nlisten = "[::1]:9"\n', encoding="utf-8")

    run("queue", "list", "--config", config)
    run("queue", "list", "--config", config, "--node", "http://127.0.0.1:5")

    assert [("http://[::1]:9", TOKEN), ("http://127.0.0.1:5", TOKEN)] == node.asked


def test_ages_are_two_units_at_most() -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    instants = [now - timedelta(seconds=40), now - timedelta(seconds=200), now - timedelta(hours=28), now + timedelta(seconds=40)]

    assert ["40s", "3m 20s", "1d 4h", "in 40s", "-"] == [*(age(instant.isoformat(), now) for instant in instants), age(None)]
    assert ["-", "0s"] == [duration(None), duration(0.4)]
