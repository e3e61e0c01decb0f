"""A few worlds of chains, and that what the judge looks for is found. `python -m tests.simulation.chains` runs more."""

from collections.abc import Iterator

import pytest
import structlog

from tests.simulation import chains
from tests.simulation.chains import EDGE, HUB, LAST, ChainWorld, Fault


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    chains.quiet()
    yield
    structlog.reset_defaults()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(1, 4), *(pytest.param(seed, marks=pytest.mark.heavy) for seed in range(4, 9))])
def test_what_an_edge_acknowledges_arrives_through_the_chain_whatever_fails(seed: int) -> None:
    world = ChainWorld(seed).run()

    assert [] == world.complaints
    assert world.acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(chains.RULES))
def test_a_world_finds_what_is_lost_without_a_rule(name: str) -> None:
    rule = chains.RULES[name]
    (seed,) = rule.worlds

    with chains.without(name):
        world = ChainWorld(int(seed)).run()

    assert rule.finds in world.complaints[0]


@pytest.mark.parametrize(
    ("faults", "has_cause"),
    [
        ([], False),
        ([Fault(LAST, 50.0, 60.0)], False),  # long after its delivery was heard of
        ([Fault(LAST, 10.5, 20.0)], True),
        ([Fault(HUB, 9.0, 49.0), Fault(LAST, 48.0, 60.0)], True),  # its previous hop could not hear of it before
        ([Fault(LAST, 11.0, 12.0, frozenset((HUB,)))], False),  # shorter than anybody waits
        ([Fault(LAST, 11.0, 30.0, frozenset((HUB,)))], True),
        ([Fault(EDGE, 10.5, 20.0)], False),
    ],
)
def test_the_judge_knows_which_faults_explain_a_second_delivery(faults: list[Fault], has_cause: bool) -> None:
    world = ChainWorld(1)
    world.faults = faults

    assert has_cause == world._has_cause(LAST, 10.0)
