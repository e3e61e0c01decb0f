"""`queue redirect` watches the node until it takes mail again, and says what moved."""

import json
from typing import Any

import pytest

from tests.unit.cli.played_drain import ACTIVE, PlayedDrain, run

MOVING = ACTIVE | {"state": "redirecting", "step": "handing over", "undelivered_count": 7, "targets": ["mx2.example"]}
DONE = ACTIVE | {"targets": ["mx2.example"], "moved_count": 7, "left_count": 0}


class Redirected(PlayedDrain):
    """The first state answers the request."""

    def redirect(self, targets: str) -> dict[str, Any]:
        assert "mx2.example" == targets
        return self.drain_status()


@pytest.mark.parametrize(
    ("last", "exit_code", "text"),
    [
        (DONE, 0, "7 messages handed over to mx2.example. The node takes mail again"),
        (DONE | {"moved_count": 6, "left_count": 1}, 1, "1 message left here, which this node delivers itself"),
        (ACTIVE | {"targets": [], "moved_count": 0, "left_count": 0}, 1, "the node was restarted"),
    ],
    ids=["all of it", "not all of it", "restarted"],
)
def test_what_moved_is_said_and_what_is_left_makes_it_fail(
    monkeypatch: pytest.MonkeyPatch, last: dict[str, Any], exit_code: int, text: str
) -> None:
    result = run(monkeypatch, Redirected(MOVING | {"moved_count": 0, "left_count": 0}, last), "queue", "redirect", "--to", "mx2.example")

    assert (exit_code, True) == (result.exit_code, text in result.stdout)


def test_json_is_the_last_status_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Redirected(MOVING, DONE), "queue", "redirect", "--to", "mx2.example", "--json")

    assert DONE == json.loads(result.stdout)


def test_a_redirect_that_is_stuck_is_watched_because_it_ends_by_itself() -> None:
    stuck = MOVING | {"is_stuck": True}

    assert DONE == Redirected(*[stuck] * 60, DONE).watch()


def test_interrupting_the_command_does_not_end_the_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Redirected(MOVING, KeyboardInterrupt()), "queue", "redirect", "--to", "mx2.example")  # type: ignore[arg-type]

    assert (1, True) == (result.exit_code, "the node goes on redirecting" in result.stderr)
