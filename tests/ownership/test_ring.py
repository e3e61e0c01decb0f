"""The ownership ring: with all rules nothing goes wrong, and without any one of them something does."""

import pytest

from tests.ownership.explore import POLICIES, explore
from tests.ownership.ring import (
    LARGE,
    LARGE_HUBS,
    LARGE_RELAYED,
    LARGE_TWO,
    LARGE_WITNESSED,
    LEFT,
    RULES,
    SMALL,
    SMALL_RELAYED,
    SMALL_TWO,
    SMALL_WITNESSED,
    Copies,
    main,
    without,
)
from tests.ownership.state import Budget

pytestmark = [pytest.mark.ownership]  # seconds where the machine is free


def _name(budget: Budget) -> str:
    return "-".join(f"{count}{fault}" for fault, count in budget._asdict().items() if count)


def _quick_or_heavy(budget: Budget, policy: str) -> tuple[pytest.MarkDecorator, ...]:
    """A crash has most interleavings: with one policy they are enough for each day."""
    return (pytest.mark.heavy,) if budget.crashes and policy == "defer" else ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "policy"),
    [
        pytest.param(budget, policy, marks=_quick_or_heavy(budget, policy))
        for budget in SMALL + SMALL_RELAYED + SMALL_WITNESSED
        for policy in POLICIES
    ],
    ids=lambda value: _name(value) if isinstance(value, Budget) else value,
)
def test_nothing_is_lost_doubled_or_stuck(budget: Budget, policy: str) -> None:
    finding = explore(policy, budget)

    assert {} == finding.wrong, str(finding)


@pytest.mark.heavy
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("budget", LARGE + LARGE_RELAYED + LARGE_WITNESSED, ids=_name)
def test_nothing_is_lost_doubled_or_stuck_with_more_faults(budget: Budget, policy: str) -> None:
    finding = explore(policy, budget)

    assert {} == finding.wrong, str(finding)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("two", "policy"),
    [
        pytest.param(two, policy, marks=[pytest.mark.heavy] * (two.budget.disks > 1 or (policy == "deliver" and not two.budget.hands)))
        for two in SMALL_TWO
        for policy in POLICIES
    ],
    ids=lambda value: _name(value.budget) if isinstance(value, Copies) else value,
)
def test_with_two_copies_on_four_nodes_nothing_is_lost_doubled_or_stuck(two: Copies, policy: str) -> None:
    finding = explore(policy, two.budget, beginning=two.beginning)

    assert {} == finding.wrong, str(finding)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("four", LARGE_TWO + LARGE_HUBS, ids=lambda four: _name(four.budget))
def test_on_four_nodes_nothing_is_lost_doubled_or_stuck_with_more_faults(four: Copies, policy: str) -> None:
    finding = explore(policy, four.budget, beginning=four.beginning)

    assert {} == finding.wrong, str(finding)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "left", LEFT, ids=["to one on its machine", "to one whose disk has just burnt", "after a hand-over", "to one on an older disk"]
)
def test_a_node_that_yields_leaves_the_copies_elsewhere_until_the_other_one_has_enough(left: Copies, policy: str) -> None:
    finding = explore(policy, left.budget, beginning=left.beginning)

    assert {} == finding.wrong, str(finding)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_each_rule_switched_off_loses_doubles_or_blocks_a_message(name: str) -> None:
    rule = RULES[name]
    with without(name):
        finding = explore("defer", rule.shown_by, is_first_enough=True, beginning=rule.beginning)

    assert [rule.goes_wrong] == list(finding.wrong), str(finding)


def test_the_ring_sees_that_without_faults_a_message_arrives_once() -> None:
    finding = explore("defer", Budget())

    assert ({}, True) == (finding.wrong, finding.states_count > 5)


def test_an_unknown_rule_is_answered_with_the_list_of_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["no-such-rule"])
    assert [f"  {name}: {rule.text}" for name, rule in RULES.items()] == capsys.readouterr().out.splitlines()[1:]
