"""Which sites should have had a copy of a message, and when that is a warning."""

from types import SimpleNamespace

import pytest

from shadowrelay.model.settings import Preference, Settings
from shadowrelay.pipeline.site_copies import MISSES_TO_WARN, SECONDS_TO_WARN, SiteCopies, choosable, missing_sites
from shadowrelay.rules.placement import PlacementRule
from tests.kit.clock import Hands

REMOTE, ONLY, LOCAL = Preference.PREFER_REMOTE, Preference.REMOTE_ONLY, Preference.LOCAL_ONLY
SITES = {"w1": "west", "w2": "west", "n1": "north", "e2": "east"}
CASES = [
    ("one other site is enough", REMOTE, ["w1"], [], set()),
    ("none has one", REMOTE, ["e2"], ["w1"], {"west", "north"}),
    ("no server could be tried", ONLY, [], [], {"west", "north"}),
    ("tried in vain, and another site has it", REMOTE, ["n1"], ["w1"], {"west"}),
    ("another server of the site has it", REMOTE, ["w2"], ["w1"], set()),
    ("a local failure is no site's", REMOTE, ["n1"], ["e2"], set()),
    ("no other site is wanted", LOCAL, ["e2"], ["w1"], set()),
    ("a server that is no peer any more", REMOTE, ["n1", "gone"], ["gone"], set()),
]


@pytest.mark.parametrize(("preference", "stored", "failed", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_sites_that_miss_a_copy(preference, stored, failed, expected):
    assert expected == missing_sites(PlacementRule(preference, 4, 2, "east", True), SITES, stored, failed)


def the_copies():
    awake = Hands(0.0)
    return SiteCopies(SimpleNamespace(awake=awake)), awake


def test_ten_messages_in_a_row_are_a_warning_until_one_is_there():
    copies, _ = the_copies()
    for _ in range(MISSES_TO_WARN - 1):
        copies.placed([], {"west"}, ["w1: no answer in 2.5 s"])
    assert [] == copies.sentences()
    copies.placed([], {"west"}, [])
    (sentence,) = copies.sentences()
    assert (
        f"site west gets no copies, although it should: {MISSES_TO_WARN} messages in 0 s without one (w1: no answer in 2.5 s)" == sentence
    )
    copies.placed(["west"], (), [])
    assert {} == copies.without()


def test_on_a_quiet_node_time_counts():
    copies, awake = the_copies()
    copies.placed([], {"west"}, [])
    awake.at = SECONDS_TO_WARN - 1
    before = copies.without()
    awake.at = SECONDS_TO_WARN
    assert ({}, {"west"}) == (before, set(copies.without()))


@pytest.mark.parametrize(
    ("preference", "expected"),
    [("PreferRemote", ["w.example", "e2.example"]), ("RemoteOnly", ["w.example"]), ("LocalOnly", ["e2.example"])],
)
def test_whom_the_preference_may_choose(preference, expected):
    peers = [{"name": f"{name}.example", "site": site, "address": f"{name}:25"} for name, site in (("w", "west"), ("e2", "east"))]
    settings = {
        "server": {"name": "e1.example", "site": "east"},
        "peers": peers,
        "receive_connectors": [{"name": "in", "listen": "127.0.0.1:0"}],
    }
    transport = {"shadow_message_preference_setting": preference}
    assert expected == [peer.name for peer in choosable(Settings.model_validate(settings | {"transport": transport}))]
