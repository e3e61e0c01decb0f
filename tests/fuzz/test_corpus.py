"""Parsers of what strangers send, with hostile inputs and all that the fuzzer found worth keeping: none fails, hangs or grows."""

import gc
import tracemalloc

import pytest

from tests.fuzz import corpus
from tests.fuzz.hostile import INPUTS
from tests.fuzz.targets import TARGETS

GROWTH_OCTETS_MAX = 64 * 1024


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_makes_a_parser_fail_or_break_its_word(target: str) -> None:
    hostile, kept = INPUTS[target], corpus.read(target)

    assert len(set(hostile)) >= 60
    assert kept
    for octets in (*hostile, *kept):
        TARGETS[target](octets)


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_inputs_again_leave_nothing_behind(target: str) -> None:
    inputs = [*INPUTS[target], *corpus.read(target)]
    for octets in inputs:
        TARGETS[target](octets)
    tracemalloc.start()
    try:
        for octets in inputs:
            TARGETS[target](octets)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for octets in inputs * 2:
            TARGETS[target](octets)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < GROWTH_OCTETS_MAX
