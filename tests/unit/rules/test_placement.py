"""Which shadow server, in which order, for how long: docs/design.md 5."""

import pytest

from shadowrelay.model.fate import Shared
from shadowrelay.model.ids import ServerName, SiteName
from shadowrelay.model.settings import Preference, Transport
from shadowrelay.model.values import replace
from shadowrelay.rules.placement import Candidate, PlacementRule, budget, pause_after, plan, rule_of

EAST, WEST = SiteName("east"), SiteName("west")


def at(site, name, load=0, may_try=True):
    return Candidate(ServerName(name), site, may_try, load)


def rule(preference=Preference.PREFER_REMOTE, remote=4, local=2, multi=None):
    return PlacementRule(preference, remote, local, EAST, multi)


L1, L2, L3 = (at(EAST, f"l{n}") for n in (1, 2, 3))
R1, R2, R3 = (at(WEST, f"r{n}") for n in (1, 2, 3))
R1_DOWN, L1_DOWN = at(WEST, "r1", may_try=False), at(EAST, "l1", may_try=False)

PLANS = [
    ("nobody is there", [], rule(), ""),
    ("remote ones come first", [L1, R1, L2, R2], rule(remote=2), "r1 r2 l1 l2"),
    ("no more than the counts", [R1, R2, R3, L1, L2, L3], rule(remote=2, local=1), "r1 r2 l1"),
    ("all remote attempts come before the local ones", [R1, L1], rule(), "r1 r1 r1 r1 l1 l1"),
    ("of each, a repeat comes after all that is untried", [R1, R2, R3, L1, L2], rule(remote=5, local=3), "r1 r2 r3 r1 r2 l1 l2 l1"),
    ("remote only", [R1, L1], rule(Preference.REMOTE_ONLY, 1, 2), "r1"),
    ("remote only does not go local when the remote ones are down", [R1_DOWN, L1], rule(Preference.REMOTE_ONLY, 4, 2), ""),
    ("local only", [R1, L1, L2], rule(Preference.LOCAL_ONLY, 0, 2), "l1 l2"),
    ("one site: local with PreferRemote", [L1, L2], rule(), "l1 l2"),
    ("one site: local with RemoteOnly, by the local count", [L1, L2, L3], rule(Preference.REMOTE_ONLY, 4, 2), "l1 l2"),
    ("one site: local with LocalOnly", [L1], rule(Preference.LOCAL_ONLY, 0, 2), "l1 l1"),
    ("one site: a local count of 0 that somebody wrote is obeyed", [L1], rule(local=0), ""),
    ("two sites are known of though only local candidates are left", [L1], rule(Preference.REMOTE_ONLY, 4, 2, multi=True), ""),
    ("servers known to be down are skipped", [R1_DOWN, R2, L1_DOWN], rule(remote=1), "r2"),
    ("nothing is tried when all are down", [R1_DOWN, L1_DOWN], rule(), ""),
    ("no remote attempts allowed", [R1, L1], rule(remote=0, local=1), "l1"),
    ("the least loaded first, else the caller's order", [at(WEST, "a", 2), at(WEST, "b", 1), at(WEST, "c", 1)], rule(remote=3), "b c a"),
]


@pytest.mark.parametrize(("candidates", "given", "expected"), [case[1:] for case in PLANS], ids=[case[0] for case in PLANS])
def test_the_order_of_attempts(candidates, given, expected):
    assert tuple(expected.split()) == plan(candidates, given)


def sharing(candidate, *others, is_own=False):
    return replace(candidate, shared=Shared(is_own, frozenset(ServerName(other) for other in others)))


OF_FATES = [
    ("another machine comes before another site", [sharing(R1, is_own=True), L1], rule(remote=2, local=1), 1, "l1 r1 r1"),
    ("of several copies, to different machines first", [sharing(R1, "r2"), sharing(R2, "r1"), L1], rule(remote=2, local=1), 2, "r1 l1 r2"),
    (
        "the own machine is the last",
        [sharing(L1, is_own=True), sharing(R1, "r2"), sharing(R2, "r1")],
        rule(remote=1, local=1),
        2,
        "r1 r2 l1",
    ),
    ("remote only stays so", [sharing(R1, is_own=True), L1], rule(Preference.REMOTE_ONLY, 1, 2), 1, "r1"),
]


@pytest.mark.parametrize(("candidates", "given", "copies", "expected"), [case[1:] for case in OF_FATES], ids=[case[0] for case in OF_FATES])
def test_fates_come_before_sites(candidates, given, copies, expected):
    ordered = plan(candidates, given, copies)
    assert expected.split() == (list(ordered) if copies == 1 else list(dict.fromkeys(ordered)))


NORTH = SiteName("north")
SEVERAL = [
    ("to different sites first", [R1, R2, at(NORTH, "n1")], rule(), "r1 n1 r2"),
    ("the counts are for each copy", [L1, L2, L3], rule(local=1), "l1 l2"),
    ("a local one beside the only remote one", [L1, R1], rule(remote=1, local=1), "r1 l1 r1 l1"),
]


@pytest.mark.parametrize(("candidates", "given", "expected"), [case[1:] for case in SEVERAL], ids=[case[0] for case in SEVERAL])
def test_the_order_of_attempts_for_two_copies(candidates, given, expected):
    ordered = plan(candidates, given, 2)

    assert tuple(expected.split()) == ordered[: len(expected.split())]
    assert len(ordered) <= 2 * (given.remote_retries + given.local_retries)


def test_the_rule_has_the_settings_counts():
    assert PlacementRule(Preference.PREFER_REMOTE, 4, 2, EAST) == rule_of(Transport(), EAST)


def test_the_rule_knows_of_other_sites_when_it_is_told():
    assert [True, False] == [rule_of(Transport(), EAST, sites).is_multi_site for sites in ((EAST, WEST), (EAST,))]


def test_remote_only_leaves_the_local_count_for_a_boundary_of_one_site():
    transport = Transport(shadow_message_preference_setting=Preference.REMOTE_ONLY)
    assert ("l1", "l1") == plan([L1], rule_of(transport, EAST, [EAST]))
    assert ("r1",) * 4 == plan([L1, R1], rule_of(transport, EAST, [EAST, WEST]))


def test_local_only_sets_the_remote_count_to_nothing():
    transport = Transport(shadow_message_preference_setting=Preference.LOCAL_ONLY)
    assert (0, 2) == (rule_of(transport, EAST).remote_retries, rule_of(transport, EAST).local_retries)


BUDGETS = [
    ("the last candidate gets all", (4.0, 0, 0, False), {}, 4.0),
    ("a repeat of the only candidate gets all", (4.0, 3, 0, False), {}, 4.0),
    ("half while another remains", (4.0, 1, 0, True), {}, 2.0),
    ("a local one, half", (4.0, 0, 1, True), {"is_local": True}, 2.0),
    ("the last remote one, at most half", (4.0, 0, 1, True), {}, 2.0),
    ("remote ones share what is not kept for local ones", (4.0, 1, 1, True), {}, 1.5),
    ("the quarter is of the whole", (2.0, 0, 1, True), {"whole_seconds": 4.0}, 1.0),
    ("what is kept is not touched", (1.25, 0, 1, True), {"whole_seconds": 4.0}, 0.3125),
]


@pytest.mark.parametrize(("given", "keywords", "expected"), [case[1:] for case in BUDGETS], ids=[case[0] for case in BUDGETS])
def test_the_time_of_an_attempt(given, keywords, expected):
    assert expected == budget(*given, **keywords)


def test_four_silent_remote_servers_leave_the_local_ones_a_quarter_of_the_whole():
    left = 5.0
    for remote_left in (3, 2, 1, 0):
        left -= budget(left, remote_left, 2, True, whole_seconds=5.0)
    assert 1.25 == left


def test_who_was_silent_comes_after_the_others_of_its_site():
    candidates = [Candidate("a", "west", True, 0, was_silent=True), Candidate("b", "west", True, 9), Candidate("c", "east", True, 0)]
    rule = PlacementRule(Preference.PREFER_REMOTE, 2, 1, "east")
    assert ("b", "a", "c") == plan(candidates, rule)


def test_a_message_that_cannot_be_placed_is_tried_less_and_less_often():
    assert [1.0, 2.0, 4.0, 8.0, 300.0, 300.0] == [pause_after(count) for count in (1, 2, 3, 4, 10, 10**6)]
