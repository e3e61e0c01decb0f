"""Whole nodes in virtual time. Each seed is a world; it runs in a process of its own, where hashing and addresses are fixed."""

import subprocess
import sys

import pytest

FEW = "1-4"
FEW_STEPS = 15
MANY = [f"{first}-{first + 24}" for first in range(100, 500, 25)]
REGRESSIONS = (36, 310, 330, 492, 719, 905, 924)  # what each found stands in the commits that name them


def _run(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.simulation.run", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_few_short_worlds_keep_every_invariant() -> None:
    code, text = _run("--seeds", FEW, "--steps", str(FEW_STEPS))

    assert (0, True) == (code, "acknowledged" in text), text


@pytest.mark.slow
def test_the_same_seed_is_the_same_world() -> None:
    first, second = (_run("4", "--steps", "8") for _ in range(2))

    assert first == second
    assert "fault:" in first[1]


@pytest.mark.heavy
@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_seed_that_found_something_finds_nothing_now(seed: int) -> None:
    code, text = _run("--seeds", str(seed))

    assert 0 == code, text


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", MANY)
def test_many_worlds_keep_every_invariant(seeds: str) -> None:
    code, text = _run("--seeds", seeds)

    assert 0 == code, text
