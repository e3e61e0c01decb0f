"""What is done again and again: a failure is said, waits longer each time, and ends all when it does not pass."""

import pytest

from shadowrelay.sla.watch import FAILURES_MAX, LoopStep, WatchFailed
from tests.kit.clock import Hands


@pytest.fixture
def told():
    return []


def test_a_failure_waits_twice_as_long_each_time_until_it_works(told):
    clock, outcomes, done = Hands(100.0), ["bad batch\n\tat java.lang", "", None], []

    def do():
        done.append(clock.at)
        if (text := outcomes.pop(0)) is not None:
            raise ValueError(text)
        step.worked()

    step = LoopStep("live", do, told.append, clock)
    for second in range(5):
        clock.at = 100.0 + second
        if outcomes:
            step.run()

    assert [100.0, 101.0, 103.0] == done
    assert ["live: ValueError: bad batch; again in 1 s", "live: ValueError:; again in 2 s", "live: works again"] == [
        line.replace(": ;", ":;") for line in told
    ]
    assert (2, None) == (step.failures, step.failing)


def test_what_does_not_pass_is_an_error(told):
    clock = Hands(100.0)

    def do():
        raise OSError("disk full")

    step = LoopStep("feed", do, told.append, clock)
    for _ in range(FAILURES_MAX - 1):
        step.run()
        clock.at += 61

    with pytest.raises(WatchFailed, match="feed failed 10 times running, the last time: OSError: disk full"):
        step.run()
    assert "OSError: disk full" == step.failing
