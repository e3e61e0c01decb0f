"""Scenarios as data: complete, in keeping with the lab's configuration, and unable to pass without their fault."""

import re
import tomllib

import pytest

from shadowrelay.lab.scenarios.catalogue import SCENARIOS, scenario
from shadowrelay.lab.scenarios.script import HEARTBEAT_SECONDS, KEPT_SECONDS, SPAN_SECONDS, Expectation, Operation, Scenario, above, at_most
from shadowrelay.lab.scenarios.verdict import FIGURES, INVARIANTS, Database, ScenarioEvidence, judge
from shadowrelay.lab.topology import NODES, SITES, LabError, machine
from shadowrelay.lab.verification import Verification
from tests.tidy.house import ROOT

SAME = Database("one", 1, 0, 5)
QUIET = ScenarioEvidence(Verification(acknowledged=120, arrived=120), databases={machine(node).server: (SAME, SAME) for node in NODES})


def pytest_id(value: object) -> str:
    return value.name if isinstance(value, Scenario) else str(value)


@pytest.mark.parametrize("played", SCENARIOS.values(), ids=pytest_id)
def test_a_scenario_fails_when_all_is_well(played: Scenario) -> None:
    verdict = judge(played, QUIET)

    assert [True] * len(INVARIANTS) == [finding.holds for finding in verdict.findings]
    assert not verdict.is_passed


@pytest.mark.parametrize("played", SCENARIOS.values(), ids=pytest_id)
def test_a_scenario_has_a_fault_and_says_what_others_do(played: Scenario) -> None:
    kept = played.without_fault()
    listed = set(re.findall(r"(?m)^\| `([a-z0-9-]+)` \|", (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")))
    faults = map(Operation, ("kill", "wipe", "pause", "cut", "slow", "fill disk", "restore old database"))

    assert set() == {step.operation for step in kept.steps}.intersection(faults)
    assert len(kept.steps) < len(played.steps)
    assert kept.messages_count == played.messages_count > 0
    assert played.story.endswith(".")
    assert played.exchange.endswith(".")
    assert (True, set()) == (bool(played.sources), set(played.sources) - listed)


@pytest.mark.parametrize("played", SCENARIOS.values(), ids=pytest_id)
def test_a_scenario_is_short_and_names_what_there_is(played: Scenario) -> None:
    waited = sum(step.amount for step in played.steps if step.operation is Operation.WAIT)
    sending = sum(step.amount / step.rate for step in played.steps if step.operation is Operation.SEND)

    assert played.messages_count <= 300
    assert waited + sending <= 60
    assert {place for step in played.steps for place in step.places} <= {*NODES, *SITES}
    assert {each.figure for each in played.expectations} <= set(FIGURES)


@pytest.mark.parametrize("played", SCENARIOS.values(), ids=pytest_id)
def test_what_a_scenario_breaks_it_mends(played: Scenario) -> None:
    operations = [step.operation for step in played.steps]
    dead = set[str]()
    for step in played.steps:
        if step.operation is Operation.KILL:
            dead |= set(step.places)
        elif step.operation in (Operation.START, Operation.WIPE):  # which starts it empty
            dead -= set(step.places)

    assert set() == dead
    assert operations.count(Operation.PAUSE) == operations.count(Operation.UNPAUSE)
    assert operations.count(Operation.FILL) == operations.count(Operation.FREE)
    assert operations.count(Operation.DEFER) == operations.count(Operation.TAKE)
    assert (Operation.CUT in operations or Operation.SLOW in operations) == (Operation.HEAL in operations)


def test_the_times_are_those_of_the_lab() -> None:
    for node in NODES:
        transport = tomllib.loads((ROOT / "lab" / "nodes" / f"{node}.toml").read_text(encoding="utf-8"))["transport"]

        assert (f"{HEARTBEAT_SECONDS}s", f"{SPAN_SECONDS}s") == (
            transport["shadow_heartbeat_frequency"],
            transport["shadow_resubmit_time_span"],
        )
        assert (f"{HEARTBEAT_SECONDS}s", KEPT_SECONDS) == (
            transport["shadow_heartbeat_timeout_interval"],
            HEARTBEAT_SECONDS * transport["shadow_heartbeat_retry_count"],
        )


def test_an_unknown_scenario_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(LabError, match=r"there is no scenario x; there are new-database, "):
        scenario("x")

    assert "new-database" == scenario("new-database").name


BOUNDS: list[tuple[Expectation, list[float], list[float]]] = [
    (above("lost", 0, "…"), [1, 5], [0]),
    (above("reopened", 3, "…"), [4], [3, 0]),
    (at_most("promoted", 0, "…"), [0], [1]),
]


@pytest.mark.parametrize(("expectation", "met", "missed"), BOUNDS)
def test_an_expectation_knows_its_bound(expectation: Expectation, met: list[float], missed: list[float]) -> None:
    assert [True] * len(met) == [expectation.is_met(value) for value in met]
    assert [False] * len(missed) == [expectation.is_met(value) for value in missed]


def test_the_page_of_the_lab_tells_every_scenario() -> None:
    page = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")

    assert [] == [name for name in SCENARIOS if f"`{name}`" not in page]
