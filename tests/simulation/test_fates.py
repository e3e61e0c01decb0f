"""Machines of several nodes are destroyed at once: what was called redundant is not lost, and where it is, the checks say so."""

import re

import pytest

from tests.simulation.conftest import Run

SEEDS, STEPS = "7", "30"  # in which machines are destroyed
MANY = [f"{first}-{first + 24}" for first in range(100, 200, 25)]


@pytest.mark.slow
def test_machines_of_several_nodes_are_destroyed_and_nothing_that_was_called_redundant_is_lost(run: Run) -> None:
    code, text = run("--machines", "--seeds", SEEDS, "--steps", STEPS)

    assert (0, True, True) == (code, "redundant" in text, bool(re.search(r"machine destroyed +[1-9]", text))), text


@pytest.mark.slow
@pytest.mark.heavy
def test_with_two_copies_two_machines_are_destroyed_at_once(run: Run) -> None:
    code, text = run("--machines", "--seeds", "7-8", "--steps", STEPS, "--copies", "2")

    assert (0, True) == (code, bool(re.search(r"machine destroyed +[1-9]", text))), text


@pytest.mark.slow
def test_where_shared_fates_count_as_redundant_the_checks_find_what_a_machine_takes(run: Run) -> None:
    code, text = run("--machines", "--trusting", "--seeds", "2", "--steps", STEPS)

    assert 1 == code, text
    assert "I1" in text.partition("FAILED")[2].partition("\n")[2], text


@pytest.mark.slow
def test_a_machine_that_burns_takes_what_was_called_redundant_only_where_shared_fates_count(run: Run) -> None:
    code, text = run("--script", "machine-burnt")
    assert 0 == code, text

    code, text = run("--without", "fate", "--script", "machine-burnt")
    assert (1, True) == (code, "is lost" in text), text


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", MANY)
def test_many_worlds_with_machines_of_several_nodes_keep_every_invariant(run: Run, seeds: str) -> None:
    code, text = run("--machines", "--seeds", seeds)

    assert 0 == code, text
