"""`lab scenario` tells what there is, what happened, and whether it passed, to people and to programs."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shadowrelay.cli.main import app
from shadowrelay.lab.scenarios import player
from shadowrelay.lab.scenarios.catalogue import SCENARIOS
from shadowrelay.lab.scenarios.script import Scenario
from shadowrelay.lab.scenarios.verdict import Database, ScenarioEvidence, Verdict, judge
from shadowrelay.lab.verification import Verification

BEFORE = Database("one", 1, 0, 50)
FULL_DISK = ScenarioEvidence(
    Verification(acknowledged=150, arrived=150), replies={"451 4.3.0": 58}, databases={"mx1.east.example": (BEFORE, BEFORE)}
)
LOST = ScenarioEvidence(Verification(acknowledged=150, arrived=149, lost=["id-7"]), replies={"451 4.3.0": 58})


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["lab", "scenario", *arguments])


def seeing(monkeypatch: pytest.MonkeyPatch, evidence: ScenarioEvidence) -> list[Scenario]:
    """From now on, this is what a played scenario leads to. Returns those that were played."""
    played: list[Scenario] = []

    def play(lab: object, scenario: Scenario, *, say: Any) -> Verdict:
        played.append(scenario)
        say("something is done")
        return judge(scenario, evidence)

    monkeypatch.setattr(player, "play", play)
    return played


@pytest.mark.parametrize("arguments", [(), ("--list",)])
def test_scenarios_are_listed(arguments: tuple[str, ...]) -> None:
    listed = ran(*arguments)

    assert 0 == listed.exit_code
    assert [] == [name for name, scenario in SCENARIOS.items() if name not in listed.stdout or scenario.title not in listed.stdout]
    assert list(SCENARIOS) == [one["name"] for one in json.loads(ran("--list", "--json").stdout)]


def test_one_that_does_not_exist_is_refused_with_those_that_do() -> None:
    refused = ran("flood")

    assert (2, True) == (refused.exit_code, "there is no scenario flood; there are new-database, " in refused.stderr)


def test_what_passed_is_told_from_its_story_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seeing(monkeypatch, FULL_DISK)
    passed = ran("disk-full")

    assert 0 == passed.exit_code
    assert "What will happen: " in passed.stdout
    assert "something is done" in passed.stdout
    assert "ok    refused_for_storage = 58, expected > 0: " in passed.stdout
    assert "Exchange (msd-bp, exchange-facts): Back pressure" in passed.stdout
    assert [
        "acknowledged 150, arrived 150, lost 0, duplicated 0, taken over 0, still queued 0",
        "disk-full: pass",
    ] == passed.stdout.splitlines()[-2:]


def test_what_failed_says_which_invariant_was_broken_by_what(monkeypatch: pytest.MonkeyPatch) -> None:
    seeing(monkeypatch, LOST)
    failed = ran("disk-full")

    assert (1, "disk-full: fail") == (failed.exit_code, failed.stdout.splitlines()[-1])
    assert "FAIL  I1 no loss" in failed.stdout
    assert "lost: id-7" in failed.stdout


def test_the_fault_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    played = seeing(monkeypatch, ScenarioEvidence(Verification(acknowledged=150, arrived=150)))
    calm = ran("disk-full", "--without-fault")

    assert (1, [SCENARIOS["disk-full"].without_fault()]) == (calm.exit_code, played)
    assert "The fault is left out: this must fail." in calm.stdout


def test_programs_get_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    seeing(monkeypatch, LOST)
    failed = ran("disk-full", "--json")
    told = json.loads(failed.stdout)

    assert (1, False, 58) == (failed.exit_code, told["is_passed"], told["figures"]["refused_for_storage"])
    assert ["I1"] == [one["invariant"] for one in told["invariants"] if not one["holds"]]
    assert "something is done" in failed.stderr
