import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import typer
from typer.testing import CliRunner, Result

from shadowrelay.admin import api_client
from shadowrelay.cli import output
from shadowrelay.cli.main import app
from shadowrelay.cli.nodes import on_machine
from shadowrelay.cluster.answers import NodeAnswer
from shadowrelay.cluster.words import age, duration
from shadowrelay.model.setting_texts import rounded_size
from tests.unit.cli.played_api import TOKEN, PlayedClient, play

LONG_AGO = "2026-01-01T00:00:00+00:00"
QUEUES = [
    {
        "identity": "mx1\\Submission", "kind": "Submission", "next_hop": "", "count": 2, "octets": 8192, "oldest_at": LONG_AGO,
        "last_error": "", "next_retry_at": None,
    },
    {
        "identity": "mx1\\Shadow\\3", "kind": "Shadow", "next_hop": "mx2.example", "count": 40, "octets": 163840, "oldest_at": None,
        "last_error": "[lost]", "next_retry_at": None,
    },
]  # fmt: skip
MESSAGE = {
    "internal_id": 7, "message_id": "0193-aa", "internet_message_id": "<x@y>", "role": "primary", "origin": "client", "sender": "",
    "recipients_count": 2, "done_count": 1, "size": 4096, "subject": "[bold]not markup", "arrived_at": LONG_AGO, "due_at": None,
    "primary": "", "shadow": "mx2.example", "last_reply": "450 4.2.0 later", "set_aside_reason": "", "to": ["a@b.example", "c@d.example"],
}  # fmt: skip
FULL = {
    **MESSAGE,
    "number": {"ownership": 1, "placement": 2, "database": "d"},
    "recipients": [{"ordinal": 1, "address": "a@b.example", "is_done": True, "notify": None, "orcpt": None}],
    "copies": [{"server": "mx2.example", "database": "d2", "choice": "chosen"}],
    "retries": [
        {"next_hop": "store:25", "ordinals": [2], "failures_count": 3, "attempts_next_at": LONG_AGO, "last_reply": "450 4.2.0 later"}
    ],
    "deliveries": [{"next_hop": "mail:25", "ordinals": [1], "at": "2026-01-02T03:04:05Z", "is_inside": True}],
}
PEER = {
    "name": "mx2.example", "site": "west", "boundary": "default", "address": "mx2.example:2525", "database": "d2", "heard_at": LONG_AGO,
    "heartbeat_age_seconds": 1.5, "is_reachable": True, "lease_seconds": 10000.0, "breaker": "closed", "held_for_count": 40,
    "held_by_count": 2, "is_forgotten": False,
}  # fmt: skip


PRESSURE: dict[str, Any] = {
    "level": "medium", "effect": "mail from outside and copies are refused", "tarpit_seconds": 0.0, "reasons": ["why: 1 GB is free"],
    "resources": [
        {
            "resource": "database_used_space", "use": 97.46, "unit": "%", "detail": "1 of 50 GB", "level": "medium", "measured": "medium",
            "samples_count": 1, "history_depth": 1, "since": None,
            "low_to_medium": 96, "medium_to_high": 99, "high_to_medium": 97, "medium_to_low": 94,
        }
    ],
}  # fmt: skip


class FakeClient(PlayedClient):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error: Exception | None = None
        self.refusals: dict[str, Exception] = {}
        self.rows = QUEUES
        self.newest = False
        self.empty = ["Shadows"]

    def __call__(self, url: str, token: str) -> "FakeClient":
        self.asked.append((url, token))
        return self

    def queues(self, filter_text: str = "") -> list[dict[str, Any]]:
        if self.error is not None:
            raise self.error
        if filter_text:
            self.asked.append(filter_text)
        return self.rows

    def retry_queue(self, identity: str) -> dict[str, Any]:
        return self._command("retried", identity)

    def messages(self, queue: str, limit: int, after: int, filter_text: str = "", *, newest: bool = False) -> list[dict[str, Any]]:
        self.asked.append((queue, limit, after, filter_text) if filter_text else (queue, limit, after))
        self.newest = newest
        if queue in self.empty:
            return []
        return [MESSAGE, {**MESSAGE, "message_id": "a-copy", "role": "shadow"}] if filter_text else [MESSAGE]

    def message(self, message_id: str) -> dict[str, Any]:
        self.asked.append(message_id)
        return FULL

    def search(self, filter_text: str, limit: int) -> list[dict[str, Any]]:
        self.asked.append(filter_text)
        return [MESSAGE] if "0193" in filter_text else []

    def _command(self, verb: str, message_id: str) -> dict[str, Any]:
        self.asked.append((verb, message_id))
        if message_id in self.refusals:
            raise self.refusals[message_id]
        return {"message_id": message_id, f"is_{verb}": True}

    def release_message(self, message_id: str) -> dict[str, Any]:
        return self._command("released", message_id)

    def remove_message(self, message_id: str, *, with_dsn: bool) -> dict[str, Any]:
        return self._command("removed" if with_dsn else "dropped", message_id)

    def suspend_queue(self, identity: str, by: str, *, is_hold: bool = False) -> dict[str, Any]:
        return self._command("held" if is_hold else "suspended", f"{identity} by {by}")

    def resume_queue(self, identity: str, by: str) -> dict[str, Any]:
        return self._command("resumed", f"{identity} by {by}")

    def suspend_message(self, message_id: str, by: str) -> dict[str, Any]:
        return self._command("suspended", f"{message_id} by {by}")

    def resume_message(self, message_id: str, by: str) -> dict[str, Any]:
        return self._command("resumed", f"{message_id} by {by}")

    def resubmit_message(self, message_id: str, by: str) -> dict[str, Any]:
        return self._command("resubmitted", f"{message_id} by {by}")

    def export_message(self, message_id: str, file: BinaryIO, *, with_envelope: bool = False) -> int:
        if with_envelope:
            file.write(b"X-Sender: <>\r\n")
        if message_id in self.refusals:
            raise self.refusals[message_id]
        return file.write(b"Subject: x\r\n\r\n")

    def peers(self) -> list[dict[str, Any]]:
        return [PEER]

    def pressure(self) -> dict[str, Any]:
        return PRESSURE

    def clients(self, limit: int) -> list[dict[str, Any]]:
        return [CLIENT][:limit]

    def forget_peer(self, name: str, *, is_forced: bool = False) -> dict[str, Any]:
        self.asked.append((name, is_forced))
        return {"name": name, "is_forgotten": True}


CLIENT = {
    "client": "2001:db8::/64", "connector": "inbound", "sessions_count": 2, "connections": 3, "messages": 4, "recipients": 5,
    "refused_recipients": 6, "octets": 1_500_000, "limited_count": 7, "seconds_left": 41.5,
}  # fmt: skip


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    return play(monkeypatch, FakeClient())


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_queue_list_shows_depth_and_oldest_age_and_counts_shadow_queues_apart(node: FakeClient) -> None:
    result = run("queue", "list")

    assert 0 == result.exit_code
    assert [True, True] == ["mx1\\Shadow\\3" in result.output, "[lost]" in result.output]
    assert "2 to deliver, 40 held for others" == result.output.splitlines()[-1]


def test_queue_list_says_why_messages_that_are_done_are_still_held_by_others(node: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = {"count": 3, "since": LONG_AGO, "message_id": "0193-aa", "generated": "0193-ff"}
    monkeypatch.setattr(node, "node", lambda: {"name": "mx1", "untold": waits})

    said = run("queue", "list").output.splitlines()[-1]

    assert said.startswith("mx1 has 3 messages that are done, and tells nobody while the DSN or journal report that was made of each is on")
    assert said.endswith("0193-aa waits for 0193-ff.")


OF_FORKS = QUEUES[1] | {"identity": "mx1\\Shadow\\mx2.example\\store:25", "next_hop": "store:25", "primary": "mx2.example", "count": 8}


@pytest.mark.parametrize(
    ("identity", "count"),
    [
        ("mx1\\Shadow\\3", 40),
        ("Shadow\\mx2.example", 40),
        ("Shadow\\mx2.example\\store:25", 8),
        ("mx1\\Shadow\\mx2.example\\store:25", 8),
        ("Shadow\\store:25", None),
    ],
)
def test_shadow_queues_by_next_hop_are_named_by_both(node: FakeClient, identity: str, count: int | None) -> None:
    node.rows = [OF_FORKS, QUEUES[1] | {"primary": "mx2.example"}]

    result = run("queue", "show", identity, "--json")

    assert (0 if count else 1) == result.exit_code
    assert count == (json.loads(result.stdout)["count"] if count else None)


def test_a_shadow_message_shows_what_waits_for_which_next_hop(node: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FULL, "forks", [{"next_hop": "store:25", "ordinals": [1, 2]}])

    assert [True, True] == [text in run("messages", "show", "0193-aa").output for text in ("At its primary server waits for", "1, 2")]


@pytest.mark.parametrize("identity", ["mx1\\Shadow\\3", "Shadow\\3"])
def test_a_queue_is_shown_by_its_identity_with_or_without_the_server(node: FakeClient, identity: str) -> None:
    result = run("queue", "show", identity)

    assert (0, True, True) == (result.exit_code, "[lost]" in result.output, "163840" in result.output)


def test_a_queue_that_does_not_exist_is_an_error_that_lists_those_that_do(node: FakeClient) -> None:
    result = run("queue", "show", "mx1\\Shadow")

    assert (1, True) == (result.exit_code, "there are mx1\\Submission, mx1\\Shadow\\3" in result.stderr)


def test_queues_are_retried_one_after_the_other_and_a_refused_one_keeps_no_other(node: FakeClient) -> None:
    node.refusals["Poison"] = api_client.NodeError("nothing is tried in mx1\\Poison", 409)

    result = run("queue", "retry", "Poison", "Submission")

    assert (1, [("retried", "Poison"), ("retried", "Submission")]) == (result.exit_code, node.asked[1:])
    assert "Poison: nothing is tried in mx1\\Poison\nSubmission: retried\n1 retried, 1 refused\n" == result.output


def test_all_queues_that_can_be_retried_are(node: FakeClient) -> None:
    node.rows = [*QUEUES, QUEUES[0] | {"identity": "mx1\\Poison", "kind": "Poison"}]

    assert 0 == run("queue", "retry", "--all").exit_code
    assert [("retried", "mx1\\Submission"), ("retried", "mx1\\Shadow\\3")] == node.asked[1:]
    assert 2 == run("queue", "retry").exit_code


@pytest.mark.parametrize(
    ("words", "document"),
    [
        (("queue", "list"), QUEUES),
        (("queue", "show", "Submission"), QUEUES[0]),
        (("messages", "list"), [MESSAGE]),
        (("messages", "show", "0193-aa"), FULL),
        (("peers", "list"), [PEER]),
        (("pressure",), PRESSURE),
        (("peers", "forget", "mx2.example", "--force"), {"name": "mx2.example", "is_forgotten": True}),
    ],
)
def test_json_is_what_the_node_said(node: FakeClient, words: tuple[str, ...], document: object) -> None:
    assert document == json.loads(run(*words, "--json").output)


def test_only_the_nodes_of_the_same_machine_are_counted_together() -> None:
    def answer(name: str, machine: str | None) -> NodeAnswer:
        return NodeAnswer(name, {"node": {"name": name} if machine is None else {"name": name, "machine": machine}})

    answers = [answer("mx1", "aa"), answer("mx2", "bb"), NodeAnswer("mx3", error="no route"), answer("mx4", "aa"), answer("old", None)]

    assert ("aa", ["mx1", "mx4"]) == _names(on_machine(answers, "mx4"))
    assert ("bb", ["mx2"]) == _names(on_machine(answers, "mx2"))
    assert ("", ["old"]) == _names(on_machine(answers, "old"))
    assert ("aa", ["mx1", "mx4"]) == _names(on_machine(answers, ""))
    with pytest.raises(typer.Exit) as ended:  # it may run on another machine than those that answer
        on_machine(answers, "mx3")
    assert output.ExitCode.UNREACHABLE == ended.value.exit_code


def _names(found: tuple[str, list[NodeAnswer]]) -> tuple[str, list[str]]:
    return found[0], [one.name for one in found[1]]


def test_a_queue_of_one_node_is_not_asked_of_a_whole_machine(node: FakeClient) -> None:
    result = run("messages", "list", "--queue", "mx1\\Submission", "--machine")

    assert (2, True) == (result.exit_code, "--machine" in result.output)


def test_messages_list_asks_for_the_wanted_part_and_says_how_to_go_on(node: FakeClient) -> None:
    result = run("messages", "list", "--queue", "mx1\\Submission", "--limit", 1, "--after", 5)

    assert (("mx1\\Submission", 1, 5), True) == (node.asked[-1], node.newest)
    assert "there may be more: --after 7" == result.output.splitlines()[-1]
    assert "1/2" in result.output
    assert 2 == run("messages", "list", "--after", 5).exit_code


def test_messages_list_shows_what_is_to_be_delivered_before_copies_held_for_others(node: FakeClient) -> None:
    node.empty = []

    result = run("messages", "list", "--limit", 5)

    assert [("Undelivered", 5, 0), ("Shadows", 4, 0)] == node.asked[1:]
    assert [True, True] == [text in result.output for text in ("0193-aa", "a@b.example, c@d.example")]


def test_messages_list_of_a_queue_that_does_not_exist_is_an_error_that_lists_those_that_do(node: FakeClient) -> None:
    node.empty = ["nowhere", "Submission", "HandedOver", "mx1\\Shadow\\mx2.example\\store:25"]

    wrong, *empty = [run("messages", "list", "--queue", name) for name in node.empty]

    assert (1, True) == (wrong.exit_code, "no such queue: nowhere; there are mx1\\Submission, mx1\\Shadow\\3" in wrong.stderr)
    assert [(0, "no messages\n")] * 3 == [(each.exit_code, each.output) for each in empty]


def test_messages_show_prints_fields_recipients_copies_and_retries(node: FakeClient) -> None:
    result = run("messages", "show", "0193-aa")

    parts = ("[bold]not markup", "ownership=1 placement=2 database=d", "a@b.example", "chosen", "store:25", "450 4.2.0 later")
    parts += ("mail:25", "2026-01-02T03:04:05Z")
    assert ("0193-aa", []) == (node.asked[-1], [part for part in parts if part not in result.output])


def test_messages_show_takes_the_beginning_of_an_id(node: FakeClient) -> None:
    found, missing = run("messages", "show", "0193-aa", "--json"), run("messages", "show", "<no@such>")

    assert (0, ["NetworkMessageId -like '0193-aa*'", "0193-aa"]) == (found.exit_code, node.asked[1:3])
    assert (1, "shadowrelay: no node knows a message <no@such>\n") == (missing.exit_code, missing.stderr)


def test_clients_list_shows_what_a_client_did_and_how_often_it_was_refused(node: FakeClient) -> None:
    output = run("clients", "list").output

    assert [] == [part for part in ("2001:db8::/64", "inbound", "1.5MB", "7", "41s") if part not in output]
    assert "there may be more: raise --limit" in run("clients", "list", "--limit", 1).output


def test_peers_list_shows_lease_and_last_sign_of_life(node: FakeClient) -> None:
    output = run("peers", "list").output

    assert [] == [part for part in ("mx2.example", "2h 46m", "1s", "closed", "yes") if part not in output]


@pytest.mark.parametrize(("error", "before"), [("", ""), ("refused", "refused; ")])
def test_peers_list_shows_the_settings_that_differ_besides_an_error(
    node: FakeClient, monkeypatch: pytest.MonkeyPatch, error: str, before: str
) -> None:
    monkeypatch.setitem(PEER, "last_error", error)
    monkeypatch.setitem(PEER, "differs", "shadow_copies is 1 here, 2 there")
    monkeypatch.setenv("COLUMNS", "300")

    assert f"{before}shadow_copies is 1 here, 2 there" in run("peers", "list").output


def test_pressure_shows_every_resource_with_its_thresholds_and_why_mail_is_refused(node: FakeClient) -> None:
    output = run("pressure").output

    for text in ("database_used_space", "97.46", "1/1", "96", "99", "97", "94", "1 of 50 GB"):
        assert text in output
    assert output.endswith("medium: mail from outside and copies are refused\nwhy: 1 GB is free\n")


def test_peers_forget_says_what_it_did(node: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEER, "is_reachable", False)

    assert "mx2.example is marked as gone for good\n" == run("peers", "forget", "mx2.example").output
    assert ("mx2.example", False) == node.asked[-1]


def test_a_peer_that_answers_is_forgotten_only_by_force(node: FakeClient) -> None:
    refused, forced = run("peers", "forget", "MX2.example"), run("peers", "forget", "mx2.example", "--force")

    assert (1, 0) == (refused.exit_code, forced.exit_code)
    assert "MX2.example answers (heard 1s ago) and holds 2 of our messages" in refused.stderr
    assert [("mx2.example", True)] == [one for one in node.asked if one[0] == "mx2.example"], "the refused command has asked for nothing"


@pytest.mark.parametrize(("answer", "code", "asked"), [("y", 0, [("mx2.example", True)]), ("n", 1, [])])
def test_at_a_terminal_it_is_asked_whether_a_peer_that_answers_shall_be_forgotten(
    node: FakeClient, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, asked: list[object]
) -> None:
    monkeypatch.setattr("shadowrelay.cli.queue_commands.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))

    result = CliRunner().invoke(app, ["peers", "forget", "mx2.example"], input=f"{answer}\n")

    assert (code, asked) == (result.exit_code, [one for one in node.asked if one[0] == "mx2.example"])
    assert "they might be delivered twice. Forget it all the same? [y/N]" in result.output


def test_a_terminal_of_80_columns_gets_lines_of_80_and_whole_names(node: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "terminal_width", lambda: 80)
    long = "01a20703-fef3-7960-93a3-0177c3d28b28"
    monkeypatch.setitem(MESSAGE, "message_id", long)
    monkeypatch.setitem(MESSAGE, "last_reply", "451 4.4.1 Could not connect to the server: connection refused")

    for words, whole in (
        (("queue", "list"), "mx1\\Shadow\\3"),
        (("messages", "list"), long),
        (("peers", "list"), "mx2.example"),
        (("pressure",), ""),
    ):
        lines = run(*words).output.splitlines()
        assert [] == [line for line in lines if len(line) > 80]
        assert [True] * bool(whole) == [True for line in lines if whole and line.strip() == whole]


def test_a_narrow_terminal_leaves_out_empty_columns_and_wraps_the_last_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "terminal_width", lambda: 80)

    output.print_table(("Node", "Nothing", "What"), [("mx1.east", None, "a word " * 20), ("mx1.west", "", "short")], "")

    lines = capsys.readouterr().out.splitlines()
    assert ["Node", "What"] == lines[0].split()
    assert (20, True) == (" ".join(lines).count("word"), max(map(len, lines)) <= 80)
    assert [["mx1.west", "short"]] == [line.split() for line in lines if "mx1.west" in line]


@pytest.mark.parametrize(("octets", "text"), [(223, "223B"), (1_964, "1.96kB"), (999_900, "1000kB"), (80_037_000_000, "80GB")])
def test_sizes_are_rounded_and_have_their_unit(octets: int, text: str) -> None:
    assert text == rounded_size(octets)


def test_a_pipe_gets_a_line_for_each_row(node: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MESSAGE, "last_reply", "x" * 300)

    assert [True] == ["x" * 300 in line for line in run("messages", "list").output.splitlines() if "0193-aa" in line]


SENTENCES = (
    ({}, ["This server delivers it: 1 of 2 recipients left."]),
    ({"missing_copies_count": 1, "shadow": ""}, ["No other server has a copy, and it is lost with this server's disk: 1 more to be made"]),
    ({"missing_copies_count": 1}, ["Only mx2.example has a copy: 1 more to be made"]),
    (
        {"role": "shadow", "primary": "mx2.example"},
        [
            "A copy for mx2.example, which delivers it: 1 of 2 recipients left.",
            "Why it is still here, mx2.example knows: shadowrelay messages trace 0193-aa",
        ],
    ),
    ({"role": "delivered", "done_count": 2, "delivered_at": LONG_AGO}, ["Delivered by this server at 2026-01-01 00:00:00 UTC: 2 of 2 re"]),
    ({"role": "delivered", "delivered_at": LONG_AGO, "promoted_from": "mx2.example"}, ["Delivered by this server after takeover from mx2"]),
    ({"role": "delivered", "done_count": 2}, ["Ended by this server, without a delivery: 2 of 2 recipients done."]),
    (
        {"role": "delivered", "primary": "mx2.example", "delivered_at": LONG_AGO},
        ["Delivered by mx2.example after it took the message over from this server, which learned that at 2026-01-01 00:00:00 UTC."],
    ),
    (
        {"role": "delivered", "primary": "mx2.example", "origin": "shadow"},
        ["Delivered by mx2.example, for which this server held a copy; it said so."],
    ),
    ({"role": "set-aside", "set_aside_reason": "damaged"}, ["It was set aside and is not delivered: damaged."]),
    ({"told_after": ["0193-ff"]}, ["No other server hears what is done before 0193-ff, which was made of it, has its copies or is done."]),
    ({"suspended_since": LONG_AGO, "suspended_by": "ann"}, ["Suspended by ann: nothing is attempted"]),
    ({"waits_for": "store.example:25 waits for a session"}, ["Now: store.example:25 waits for a session."]),
)


@pytest.mark.parametrize(("facts", "sentences"), SENTENCES)
def test_messages_show_begins_with_who_delivers_it_and_who_has_a_copy(
    node: FakeClient, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], sentences: list[str]
) -> None:
    for name, value in facts.items():
        monkeypatch.setitem(FULL, name, value)
    output = run("messages", "show", "0193-aa").output

    assert [] == [sentence for sentence in sentences if sentence not in output]
    assert output.index(sentences[0]) < output.index("Message ") < output.index("Delivery ") < output.index("Copies ")


def test_the_configuration_counts_before_the_environment(node: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWRELAY_NODE", "http://other:1")
    file = tmp_path / "node.toml"
    file.write_text('[server]\nname = "mx1"\nsite = "east"\n[admin]\nlisten = "127.0.0.1:9"\ntoken_file = "token"\n', encoding="utf-8")
    (tmp_path / "token").write_text("the-token-of-this-node\n", encoding="ascii")

    run("queue", "list")
    run("queue", "list", "--config", file)
    run("queue", "list", "--config", file, "--node", "http://given:2")

    tokens = (TOKEN, "the-token-of-this-node", "the-token-of-this-node")
    assert list(zip(("http://other:1", "http://127.0.0.1:9", "http://given:2"), tokens, strict=True)) == node.asked


@pytest.mark.parametrize(("status", "code"), [(0, 4), (401, 2), (404, 1), (503, 1)])
def test_the_exit_code_says_whether_the_node_or_the_question_was_at_fault(node: FakeClient, status: int, code: int) -> None:
    node.error = api_client.NodeError("no such thing", status)

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


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("127.0.0.1:8025", "write --node http://127.0.0.1:8025"),
        ("mx1.east.example", "write --node http://mx1.east.example"),
        ("localhost:8025", "write --node http://localhost:8025"),
        ("[::1]:8025", "write --node http://[::1]:8025"),
        ("http://", "write --node http://127.0.0.1:8025"),
        ("http://mx1:port", "write --node http://127.0.0.1:8025"),
        ("ftp://mx1:8025", "write --node http://127.0.0.1:8025"),
    ],
)
def test_an_address_that_is_no_url_is_a_usage_error_with_the_right_one(node: FakeClient, url: str, remedy: str) -> None:
    by_option, by_variable = run("queue", "list", "--node", url), CliRunner(env={"SHADOWRELAY_NODE": url}).invoke(app, ["queue", "list"])

    assert (2, 2, []) == (by_option.exit_code, by_variable.exit_code, node.asked)
    assert by_option.stderr == by_variable.stderr == f"shadowrelay: {url} is not the URL of a node; {remedy}\n"


def test_ages_are_two_units_at_most() -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    instants = [now - timedelta(seconds=40), now - timedelta(seconds=200), now - timedelta(hours=28), now + timedelta(seconds=40)]

    assert ["40s", "3m 20s", "1d 4h", "in 40s", "-"] == [*(age(instant.isoformat(), now) for instant in instants), age(None)]
    assert ["-", "0s"] == [duration(None), duration(0.4)]


# what is set aside
REFUSAL = api_client.NodeError("it was handed over to mx2.example", 409)


def test_messages_are_released_one_after_the_other_and_a_refused_one_keeps_no_other(node: FakeClient) -> None:
    node.refusals["b"] = REFUSAL

    result = run("messages", "release", "a", "b", "c")

    assert (1, [("released", "a"), ("released", "b"), ("released", "c")]) == (result.exit_code, node.asked[1:])
    assert "a: released\nb: it was handed over to mx2.example\nc: released\n2 released, 1 refused\n" == result.output


def test_all_that_is_set_aside_is_released_by_its_listing(node: FakeClient) -> None:
    result = run("messages", "release", "--all")

    assert (0, [("Poison", 1_000_000, 0), ("released", "0193-aa")]) == (result.exit_code, node.asked[1:])


@pytest.mark.parametrize("words", [(), ("a", "--all")])
def test_release_wants_messages_or_all_and_not_both(node: FakeClient, words: tuple[str, ...]) -> None:
    assert (2, []) == (run("messages", "release", *words).exit_code, node.asked)


@pytest.mark.parametrize(
    ("words", "verb"),
    [((), "removed"), (("--dsn",), "removed"), (("--no-dsn",), "dropped"), (("--with-ndr",), "removed"), (("--without-ndr",), "dropped")],
)
def test_a_removed_message_is_told_to_its_sender_unless_that_is_said(node: FakeClient, words: tuple[str, ...], verb: str) -> None:
    result = run("messages", "remove", "a", *words, "--json")

    assert (0, [(verb, "a")]) == (result.exit_code, node.asked[1:])
    assert [{"message_id": "a", f"is_{verb}": True}] == json.loads(result.output)


def test_a_node_that_does_not_answer_ends_the_command_at_once(node: FakeClient) -> None:
    node.refusals["a"] = api_client.NodeError("cannot be reached")

    result = run("messages", "remove", "a", "b")

    assert (4, [("removed", "a")]) == (result.exit_code, node.asked[1:])


def test_a_message_is_exported_into_a_new_file(node: FakeClient, tmp_path: Path) -> None:
    file = tmp_path / "it.eml"

    result = run("messages", "export", "a", "--output", file, "--json")

    assert {"message_id": "a", "file": str(file), "size": 14} == json.loads(result.output)
    assert b"Subject: x\r\n\r\n" == file.read_bytes()
    assert 2 == run("messages", "export", "a", "--output", file).exit_code


def test_an_export_without_a_name_has_the_id_as_its_name_and_goes_to_standard_output_with_a_dash(
    node: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    named = run("messages", "export", "../a-1", "--envelope")
    shown = run("messages", "export", "a-1", "--output", "-")

    assert (0, ["___a-1.eml"]) == (named.exit_code, [path.name for path in tmp_path.iterdir()])
    assert b"X-Sender: <>\r\nSubject: x\r\n\r\n" == (tmp_path / "___a-1.eml").read_bytes()
    assert (0, "Subject: x\r\n\r\n") == (shown.exit_code, shown.stdout_bytes.decode())


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("queue", "suspend", "x.example"), ("suspended", "x.example by ann")),
        (("queue", "suspend", "x.example", "--hold"), ("held", "x.example by ann")),
        (("queue", "resume", "x.example"), ("resumed", "x.example by ann")),
        (("messages", "suspend", "a"), ("suspended", "a by ann")),
        (("messages", "resume", "a"), ("resumed", "a by ann")),
        (("messages", "resubmit", "a"), ("resubmitted", "a by ann")),
    ],
)
def test_who_suspends_or_resumes_is_said(node: FakeClient, words: tuple[str, ...], asked: tuple[str, str]) -> None:
    assert 0 == run(*words, "--by", "ann").exit_code
    assert [asked] == node.asked[1:]

    run(*words)
    assert "@" in node.asked[-1][1], "user and host, unless it is said"


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (("messages", "suspend", "--by", "ann"), ("suspended", "0193-aa by ann")),
        (("messages", "resume", "--by", "ann"), ("resumed", "0193-aa by ann")),
        (("messages", "resubmit", "--by", "ann"), ("resubmitted", "0193-aa by ann")),
        (("messages", "remove"), ("removed", "0193-aa")),
    ],
)
def test_a_filter_selects_messages_but_no_copies_held_for_others(node: FakeClient, words: tuple[str, ...], done: tuple[str, str]) -> None:
    result = run(*words, "--filter", "Size -gt 1MB")

    assert (0, [("", 1_000_000, 0, "Size -gt 1MB"), done]) == (result.exit_code, node.asked[1:])
    assert [2, 2] == [run(*words, *more).exit_code for more in ((), ("a", "--filter", "Size -gt 1MB"))], "one way to say which"


def test_a_filter_selects_queues(node: FakeClient) -> None:
    node.rows = [QUEUES[0], {**QUEUES[1], "identity": "mx1\\x.example", "kind": "Delivery"}]

    assert 0 == run("queue", "suspend", "--filter", "MessageCount -gt 1", "--by", "ann").exit_code
    assert ["MessageCount -gt 1", ("suspended", "mx1\\x.example by ann")] == node.asked[1:]
    assert 0 == run("queue", "list", "--filter", "MessageCount -gt 2").exit_code
    assert "MessageCount -gt 2" == node.asked[-1]


def test_the_mistake_in_a_filter_is_shown_with_a_caret_below_it(node: FakeClient) -> None:
    node.error = api_client.NodeError("filter, character 8: an operator is expected here\nStatus Retry\n       ^", 400)

    result = run("queue", "list", "--filter", "Status Retry")

    assert 2 == result.exit_code
    assert "shadowrelay: Status Retry\nshadowrelay:        ^\n" in result.output


def test_every_suspended_queue_is_resumed_by_its_listing(node: FakeClient) -> None:
    node.rows = [QUEUES[0], {**QUEUES[1], "identity": "mx1\\held.example", "suspended_since": LONG_AGO, "suspended_by": "ann"}]

    result = run("queue", "resume", "--all", "--by", "bob")

    assert (0, [("resumed", "mx1\\held.example by bob")]) == (result.exit_code, node.asked[1:])
    assert 2 == run("queue", "resume").exit_code


def test_an_export_leaves_the_files_of_others_alone(node: FakeClient, tmp_path: Path) -> None:
    other = tmp_path / "it.eml.part"
    other.write_bytes(b"of somebody else")
    node.refusals["b"] = REFUSAL

    exit_codes = [run("messages", "export", name, "--output", tmp_path / "it.eml").exit_code for name in ("b", "a")]

    assert [1, 0] == exit_codes
    assert {"it.eml": b"Subject: x\r\n\r\n", "it.eml.part": b"of somebody else"} == {
        path.name: path.read_bytes() for path in tmp_path.iterdir()
    }


def test_an_export_that_fails_leaves_no_file(node: FakeClient, tmp_path: Path) -> None:
    node.refusals["a"] = REFUSAL

    assert 1 == run("messages", "export", "a", "--output", tmp_path / "it.eml").exit_code
    assert 2 == run("messages", "export", "b", "--output", tmp_path / "no such directory" / "it.eml").exit_code
    assert [] == list(tmp_path.iterdir())


def test_messages_show_needs_no_deliveries_from_an_older_node(node: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FULL, "deliveries")

    assert 0 == run("messages", "show", "0193-aa").exit_code
