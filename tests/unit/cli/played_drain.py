"""A node that is emptied, as `drain` and `queue redirect` watch it."""

from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shadowrelay.cli import drain
from shadowrelay.cli.main import app
from tests.unit.cli.played_api import PlayedClient, play

ACTIVE: dict[str, Any] = {
    "state": "active", "since": None, "step": "", "sessions_count": 0, "attempts_count": 0, "undelivered_count": 0, "handed_over_count": 0,
    "set_aside_count": 0, "held": {}, "waits_for": [], "obstacles": [], "is_stuck": False,
}  # fmt: skip


class PlayedDrain(PlayedClient):
    """The node is in these states, one after the other; the last one stays."""

    def __init__(self, *states: dict[str, Any] | Exception) -> None:
        self.states = list(states)
        self.at = 0.0

    def __call__(self, url: str, token: str) -> "PlayedDrain":
        return self

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


def run(monkeypatch: pytest.MonkeyPatch, played: PlayedDrain, *words: str) -> Result:
    play(monkeypatch, played)
    monkeypatch.setattr(drain, "LOOK_SECONDS", 0.0)
    return CliRunner().invoke(app, words)
