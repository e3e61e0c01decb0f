"""`drain` and `undrain` watch the node and explain every end."""

import io
import json
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from shadowrelay.admin import api_client
from shadowrelay.admin.api_client import NodeError
from shadowrelay.cli import drain
from shadowrelay.cli.main import app

ACTIVE: dict[str, Any] = {
    "state": "active", "since": None, "step": "", "sessions_count": 0, "attempts_count": 0, "undelivered_count": 0, "handed_over_count": 0,
    "set_aside_count": 0, "held": {}, "waits_for": [], "obstacles": [], "is_stuck": False,
}  # fmt: skip
SESSIONS = ACTIVE | {"state": "draining", "step": "letting sessions end", "undelivered_count": 7}
PEERS = SESSIONS | {"step": "waiting for peers", "undelivered_count": 0, "handed_over_count": 7, "waits_for": ["7 messages handed over"]}
STUCK = SESSIONS | {"step": "handing over", "waits_for": ["7 messages left here, undelivered: no peers"], "is_stuck": True}
INACTIVE = ACTIVE | {"state": "inactive", "step": "inactive", "held": {"mx2.example": 40}, "set_aside_count": 1}


class Played:
    """Stands for NodeClient: the node is in these states, one after the other; the last one stays."""

    def __init__(self, *states: dict[str, Any] | Exception) -> None:
        self.states = list(states)
        self.at = 0.0

    def __call__(self, url: str, token: str) -> "Played":
        return self

    def __enter__(self) -> "Played":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def drain_status(self) -> dict[str, Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, BaseException):
            raise state
        return state

    drain = undrain = drain_status

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def watch(self, patience: float = 120.0) -> dict[str, Any]:
        return drain.watch(self, self.drain(), lambda _: None, patience, now=self.now, sleep=self.sleep)  # type: ignore[arg-type]


def run(monkeypatch: pytest.MonkeyPatch, played: Played, *words: str) -> Result:
    monkeypatch.setattr(api_client, "NodeClient", played)
    monkeypatch.setattr(drain, "LOOK_SECONDS", 0.0)
    monkeypatch.setenv("SHADOWRELAY_ADMIN_TOKEN", "a-token-of-sixteen-or-more")
    return CliRunner().invoke(app, words)


def test_a_node_that_becomes_inactive_may_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Played(SESSIONS, PEERS, INACTIVE), "drain")

    assert 0 == result.exit_code
    assert ["letting sessions end", "waiting for peers; 7 messages handed over"] == result.stderr.splitlines()
    assert [
        "drained: the node is inactive and may be stopped. `shadowrelay undrain` lets it take mail again",
        "it keeps its shadow messages (40 for mx2.example): their primary servers place them elsewhere if this node stays away",
        "1 message set aside (`messages list --queue Poison`): not delivered and not handed over",
    ] == result.stdout.splitlines()


def test_json_is_the_last_status_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Played(SESSIONS, INACTIVE), "drain", "--json")

    assert (0, INACTIVE, "") == (result.exit_code, json.loads(result.stdout), result.stderr)


def test_without_waiting_the_command_only_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Played(SESSIONS), "drain", "--no-wait")

    assert (0, True) == (result.exit_code, "refuses mail until `shadowrelay undrain`" in result.stdout)


def test_what_stays_is_named_and_makes_the_command_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Played(STUCK), "drain", "--patience", "1")

    assert 1 == result.exit_code
    assert [
        "the node goes on draining and refuses mail until `shadowrelay undrain`. It waits for:",
        "  7 messages left here, undelivered: no peers",
    ] == result.stdout.splitlines()


def test_somebody_else_may_end_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Played(SESSIONS, ACTIVE), "drain")

    assert (1, "the node does not drain any more: somebody ended it\n") == (result.exit_code, result.stdout)


def test_a_stuck_drain_is_watched_for_a_short_time_and_a_slow_one_for_two_minutes() -> None:
    stuck, slow = Played(STUCK), Played(PEERS)

    assert (STUCK, PEERS) == (stuck.watch(), slow.watch())
    assert (drain.STUCK_SECONDS, drain.PATIENCE_SECONDS) == (stuck.at, slow.at)


def test_progress_begins_the_wait_anew() -> None:
    steps = [PEERS | {"handed_over_count": count} for count in range(300, 0, -1)]
    played = Played(*steps, INACTIVE)

    assert INACTIVE == played.watch()


def test_a_node_that_restarts_is_waited_for_and_one_that_refuses_is_not() -> None:
    away = NodeError("cannot be reached")
    assert INACTIVE == Played(SESSIONS, away, away, INACTIVE).watch()
    gone = Played(SESSIONS, away)
    with pytest.raises(NodeError, match="cannot be reached"):
        gone.watch(patience=10.0)
    assert gone.at <= 11.0
    with pytest.raises(NodeError, match="unauthorized"):
        Played(SESSIONS, NodeError("unauthorized", 401)).watch()


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
    result = run(monkeypatch, Played(SESSIONS, KeyboardInterrupt()), "drain")  # type: ignore[arg-type]

    assert (1, True) == (result.exit_code, "the node goes on draining" in result.stderr)


def test_undrain_says_what_others_deliver(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Played(ACTIVE | {"handed_over_count": 2}), "undrain")

    assert 0 == result.exit_code
    assert ["the node takes and delivers mail again", "2 messages handed over before: the server that has them delivers them"] == (
        result.stdout.splitlines()
    )


def test_undrain_of_a_node_that_does_not_drain_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Played(NodeError("this node does not drain", 409)), "undrain")

    assert (1, "shadowrelay: this node does not drain\n") == (result.exit_code, result.stderr)
