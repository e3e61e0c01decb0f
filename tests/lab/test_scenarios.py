"""Every recovery scenario, for real; and none of them passes when its fault is left out. The lab starts once."""

from collections.abc import Iterator

import pytest

from shadowrelay.lab.compose import Lab
from shadowrelay.lab.scenarios.catalogue import SCENARIOS
from shadowrelay.lab.scenarios.player import play
from tests.lab.docker import lab_or_skip, say

pytestmark = [pytest.mark.heavy, pytest.mark.lab]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = lab_or_skip()
    made.down()
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_passes_and_leaves_the_lab_well(lab: Lab, name: str) -> None:
    scenario = SCENARIOS[name]
    verdict = play(lab, scenario, say=say)
    say(f"{name}: {verdict.summary}")

    assert [] == [f"{one.invariant}: {one.broken_by}" for one in verdict.findings if not one.holds and not verdict.is_excused(one)]
    assert [] == [one.line() for one in verdict.outcomes if not one.is_met]
    assert verdict.is_passed
    assert scenario.messages_count == verdict.figures["acknowledged"]
    assert ([], ["healthy"] * 4) == (lab.faults_in_force(), [one.state for one in lab.status()])


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_fails_without_its_fault_and_for_no_other_reason(lab: Lab, name: str) -> None:
    verdict = play(lab, SCENARIOS[name].without_fault(), say=say)

    assert not verdict.is_passed
    assert [] == [f"{one.invariant}: {one.broken_by}" for one in verdict.findings if not one.holds]
    assert [] != [one.line() for one in verdict.outcomes if not one.is_met]
