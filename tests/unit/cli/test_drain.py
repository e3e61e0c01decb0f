"""`drain` and `undrain` watch the node and explain every end."""

import io
import json

import pytest
from rich.console import Console

from shadowrelay.admin.api_client import NodeError
from shadowrelay.cli import drain
from tests.unit.cli.played_drain import ACTIVE, PlayedDrain, run

SESSIONS = ACTIVE | {"state": "draining", "step": "letting sessions end", "undelivered_count": 7}
PEERS = SESSIONS | {"step": "waiting for peers", "undelivered_count": 0, "handed_over_count": 7, "waits_for": ["7 messages handed over"]}
STUCK = SESSIONS | {"step": "handing over", "waits_for": ["7 messages left here, undelivered: no peers"], "is_stuck": True}
INACTIVE = ACTIVE | {"state": "inactive", "step": "inactive", "held": {"mx2.example": 40}, "set_aside_count": 1}


def test_a_node_that_becomes_inactive_may_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, PlayedDrain(SESSIONS, PEERS, INACTIVE), "drain")

    assert 0 == result.exit_code
    assert ["letting sessions end", "waiting for peers; 7 messages handed over"] == result.stderr.splitlines()
    assert [
        "drained: the node is inactive and may be stopped. `shadowrelay undrain` lets it take mail again",
        "it keeps its shadow messages (40 for mx2.example): their primary servers place them elsewhere if this node stays away",
        "1 message set aside (`messages list --queue Poison`): not delivered and not handed over",
    ] == result.stdout.splitlines()


def test_a_node_that_has_just_been_started_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, refusing = (
        NodeError("cannot be reached (connection refused)"),
        NodeError("this node does not drain", 409),
    )
    result = run(monkeypatch, PlayedDrain(starting, starting, ACTIVE), "undrain")
    gone = run(monkeypatch, PlayedDrain(starting), "undrain", "--wait", "0")
    refused = run(monkeypatch, PlayedDrain(refusing, ACTIVE), "undrain")

    assert (0, ["the node takes and delivers mail again"]) == (result.exit_code, result.stdout.splitlines())
    assert ["cannot be reached (connection refused): waiting for 30 s"] == result.stderr.splitlines()
    assert (4, 1) == (gone.exit_code, refused.exit_code)


def test_json_is_the_last_status_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, PlayedDrain(SESSIONS, INACTIVE), "drain", "--json")

    assert (0, INACTIVE, "") == (result.exit_code, json.loads(result.stdout), result.stderr)


def test_without_waiting_the_command_only_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, PlayedDrain(SESSIONS), "drain", "--no-wait")

    assert (0, True) == (result.exit_code, "refuses mail until `shadowrelay undrain`" in result.stdout)


def test_what_stays_is_named_and_makes_the_command_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, PlayedDrain(STUCK), "drain", "--patience", "1")

    assert 1 == result.exit_code
    assert [
        "the node goes on draining and refuses mail until `shadowrelay undrain`. It waits for:",
        "  7 messages left here, undelivered: no peers",
    ] == result.stdout.splitlines()


def test_somebody_else_may_end_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, PlayedDrain(SESSIONS, ACTIVE), "drain")

    assert (1, "the node does not drain any more: somebody ended it\n") == (result.exit_code, result.stdout)


def test_a_stuck_drain_is_watched_for_a_short_time_and_a_slow_one_for_two_minutes() -> None:
    stuck, slow = PlayedDrain(STUCK), PlayedDrain(PEERS)

    assert (STUCK, PEERS) == (stuck.watch(), slow.watch())
    assert (drain.STUCK_SECONDS, drain.PATIENCE_SECONDS) == (stuck.at, slow.at)


def test_progress_begins_the_wait_anew() -> None:
    steps = [PEERS | {"handed_over_count": count} for count in range(300, 0, -1)]
    played = PlayedDrain(*steps, INACTIVE)

    assert INACTIVE == played.watch()


def test_a_node_that_restarts_is_waited_for_and_one_that_refuses_is_not() -> None:
    away = NodeError("cannot be reached")
    assert INACTIVE == PlayedDrain(SESSIONS, away, away, INACTIVE).watch()
    gone = PlayedDrain(SESSIONS, away)
    with pytest.raises(NodeError, match="cannot be reached"):
        gone.watch(patience=10.0)
    assert gone.at <= 11.0
    with pytest.raises(NodeError, match="unauthorized"):
        PlayedDrain(SESSIONS, NodeError("unauthorized", 401)).watch()


def test_a_terminal_gets_a_bar_of_what_is_left() -> None:
    said = io.StringIO()
    console = Console(file=said, force_terminal=True, width=120)

    with drain._Bar(console, SESSIONS) as show:
        for status in (SESSIONS, PEERS | {"handed_over_count": 3}):
            show(status)
            console.print("")  # draws it

    assert "letting sessions end, 7 left" in said.getvalue()
    assert "waiting for peers, 3 left: 7 messages handed over" in said.getvalue()


def test_interrupting_the_command_does_not_end_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, PlayedDrain(SESSIONS, KeyboardInterrupt()), "drain")  # type: ignore[arg-type]

    assert (1, True) == (result.exit_code, "the node goes on draining" in result.stderr)


def test_undrain_says_what_others_deliver(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, PlayedDrain(ACTIVE | {"handed_over_count": 2}), "undrain")

    assert 0 == result.exit_code
    assert ["the node takes and delivers mail again", "2 messages handed over before: the server that has them delivers them"] == (
        result.stdout.splitlines()
    )


def test_undrain_of_a_node_that_does_not_drain_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, PlayedDrain(NodeError("this node does not drain", 409)), "undrain")

    assert (1, "shadowrelay: this node does not drain\n") == (result.exit_code, result.stderr)
