"""Whole nodes in virtual time. Each seed is a world; it runs in a process of its own, where hashing and addresses are fixed."""

import inspect
import re
import subprocess

import pytest

from tests.simulation.conftest import COMMAND, Run
from tests.simulation.rules_off import RULES

FEW = "1-2"
FEW_STEPS = 15
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# contents lost with the name of their directory; leases of refused messages, kept for ever; a duplicate after a lost disk and two takeovers
# and a queue in Retry that was probed no more, because the message for the probe was another server's by then
FOUND_LATER = (20007, 20008, 7430, 210108)
OFF_BY_DEFAULT = ("sync",)  # an example; the others are heavy
MANY = [f"{first}-{first + 24}" for first in range(100, 500, 25)]
# what each found stands in the commits that name them; in plain worlds, as they were then
REGRESSIONS = (
    *(36, 310, 330, 492, 719, 905, 924, 6102, 6230, 7157, 7175, 8029, 9019, 20038, 20160, 20203, 20490, 20782, 21113),
    *(21414, 21421, 21628, 22321, 22435, 22438, 22636, 22756, 22955, 40180, 40215, 40282, 41026, 41036),
)


@pytest.mark.slow
def test_a_few_short_worlds_keep_every_invariant(run: Run) -> None:
    code, text = run("--seeds", FEW, "--steps", str(FEW_STEPS))

    assert (0, True) == (code, "acknowledged" in text), text


@pytest.mark.slow
def test_with_two_copies_two_disks_are_destroyed_at_once_and_every_invariant_is_kept(run: Run) -> None:
    code, text = run("--seeds", FEW, "--steps", str(FEW_STEPS), "--copies", "2")

    assert (0, True, True) == (code, "acknowledged" in text, "wipe" in text), text


@pytest.mark.slow
def test_the_same_seed_is_the_same_world(run: Run) -> None:
    arguments = ("4", "--steps", "8")
    code, text = run(*arguments)

    assert (0, text) == (code, subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=True).stdout)
    assert "fault:" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "twice", "causes"),
    [
        ("stop", range(1), ""),
        ("cut-defer", range(1), ""),
        ("cut-deliver", range(100, 1000), "c"),
        ("back-to-the-same-server", range(4, 20), "d"),
        ("full-then-burnt", range(1, 20), "ab"),  # it burns when the first is recorded: others may be in that commit or not
        ("full-then-cut", range(1, 20), "c"),
        ("two-heirs", range(4, 30), "ac"),  # (a): both deliver at the same moment
    ],
)
def test_a_script_repeats_only_what_it_must_and_says_why(run: Run, script: str, twice: range, causes: str) -> None:
    code, text = run("--script", script)

    found = re.search(r"arrived twice (\d+)", text)
    assert found is not None, text
    assert (0, True) == (code, int(found[1]) in twice), text
    said = set(re.findall(r"duplicate \((\w+)\)", text))
    assert (True, bool(causes)) == (said <= set(causes), bool(said)), text


@pytest.mark.heavy
@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_seed_that_found_something_finds_nothing_now(run: Run, seed: int) -> None:
    code, text = run("--plain", "--seeds", str(seed))

    assert 0 == code, text


@pytest.mark.heavy
@pytest.mark.parametrize("seed", FOUND_LATER)
def test_a_seed_that_found_something_with_all_faults_finds_nothing_now(run: Run, seed: int) -> None:
    code, text = run("--seeds", str(seed))

    assert 0 == code, text


@pytest.mark.slow
@pytest.mark.parametrize("name", OFF_BY_DEFAULT)
def test_a_rule_switched_off_is_found_out(run: Run, name: str) -> None:
    _is_found_out(run, name, RULES[name].worlds[0])


WORLDS = [(name, world) for name, rule in RULES.items() for world in rule.worlds]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "world"), WORLDS)
def test_each_rule_switched_off_is_found_out(run: Run, name: str, world: int | str) -> None:
    _is_found_out(run, name, world)


def _is_found_out(run: Run, name: str, world: int | str) -> None:
    """And by nothing else: the same world finds nothing with all rules on."""
    which = ("--script", world) if isinstance(world, str) else ("--seeds", str(world))
    code, text = run("--without", name, *which)

    assert (1, True) == (code, RULES[name].finds in text.partition("FAILED")[2].partition("\n")[2]), text
    code, text = run(*which)
    assert 0 == code, text


@pytest.mark.parametrize("name", RULES)
def test_what_stands_in_for_a_rule_takes_what_the_rule_takes(name: str) -> None:
    """Otherwise the world fails with an error, and not because the rule is off."""
    for owner, attribute, off in RULES[name].off:
        if inspect.isfunction(rule := getattr(owner, attribute)):
            parameters = inspect.signature(rule).parameters.values()
            named = {each.name: each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
            positional = [each for each in parameters if each.kind not in (*VARIABLE, inspect.Parameter.KEYWORD_ONLY)]
            inspect.signature(off).bind(*positional, **named)


def test_at_least_twenty_one_rules_are_found_out() -> None:
    assert sum(bool(rule.worlds) for rule in RULES.values()) >= 21


@pytest.mark.slow
def test_many_seeds_end_with_what_they_were_in_all(run: Run) -> None:
    code, text = run("--seeds", "5-6", "--steps", "5", "--jobs", "2", "--nodes", "3-4", "--messages", "7")

    assert (0, True) == (code, "2 worlds, 0.0 virtual hours, 0 failed" in text), text
    assert re.search(r"  sent +14\n", text), text
    assert ["    1/2", "    2/2"] == [line[:7] for line in text.splitlines() if "seed" in line]


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", MANY)
def test_many_worlds_keep_every_invariant(run: Run, seeds: str) -> None:
    code, text = run("--seeds", seeds)

    assert 0 == code, text
