"""Runs one crash episode by default: a wiped disk. The others are heavy, like an absence longer than the span and two faults at once.

A failing seed prints how to replay it: `python -m tests.crash.ring SEED`.
"""

from pathlib import Path

import pytest

from tests.crash import ring
from tests.crash.plan import KILLS, NODES, Disruption, plan

ACKNOWLEDGED_MIN = 3000
TAKEN_OVER_MIN = 300

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("quiet")]


@pytest.mark.slow
@pytest.mark.timeout(400)  # many times the usual duration: a busy machine is not a failure
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(6, id="a disk is destroyed"),
        pytest.param(7, id="back with an old queue", marks=pytest.mark.heavy),
        pytest.param(3, id="stopped while another dies", marks=pytest.mark.heavy),
        pytest.param(31, id="a disk hangs", marks=pytest.mark.heavy),
    ],
)
async def test_nothing_acknowledged_is_lost(seed: int, tmp_path: Path) -> None:
    episode = await ring.run(seed, tmp_path)

    assert [] == episode.complaints, episode.explain()
    assert episode.result.accepted >= ring.ACKNOWLEDGED_MIN
    assert episode.result.taken_over > 0


@pytest.mark.heavy
@pytest.mark.timeout(3600)
async def test_all_episodes_lose_nothing_and_explain_every_duplicate(tmp_path: Path) -> None:
    episodes = [await ring.run(seed, tmp_path / str(seed)) for seed in ring.SEEDS]
    summary = ring.summary(episodes)
    print(summary)

    assert "" == "\n".join(episode.explain() for episode in episodes if episode.complaints)
    assert sum(episode.result.accepted for episode in episodes) >= ACKNOWLEDGED_MIN, summary
    assert sum(episode.result.taken_over for episode in episodes) >= TAKEN_OVER_MIN, summary


def test_a_seed_always_derives_the_same_plan() -> None:
    assert [plan(seed) for seed in ring.SEEDS] == [plan(seed) for seed in ring.SEEDS]


def test_an_episode_destroys_one_disk_at_most() -> None:
    assert {0, 1} == {sum(step.disruption is Disruption.WIPE for step in plan(seed).steps) for seed in ring.SEEDS}


def test_faults_that_overlap_are_on_different_nodes() -> None:
    pairs = [
        (first.node, second.node)
        for seed in ring.SEEDS
        for first, second in zip(plan(seed).steps, plan(seed).steps[1:], strict=False)
        if first.is_overlapped
    ]

    assert len(pairs) > 5
    assert [] == [pair for pair in pairs if pair[0] == pair[1]]


def test_the_seeds_cover_every_disruption_and_kill_every_node() -> None:
    steps = [step for seed in ring.SEEDS for step in plan(seed).steps]

    assert set(Disruption) == {step.disruption for step in steps}
    assert set(NODES) == {step.node for step in steps if step.disruption in KILLS}
