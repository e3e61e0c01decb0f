"""The map of the front page: machines, labels, links, and a node that is only known to others."""

from shadowrelay.admin.node_resources import BackPressureResource, Copies, NodeResource, PeerResource, Readiness
from shadowrelay.cluster.answers import NodeAnswer, combined
from shadowrelay.cluster.glance import glance
from tests.kit.hostile_node import filled

TEXT = "text"


def a_peer(name, **more):
    return filled(PeerResource, text="") | {
        "name": name, "site": "east", "is_reachable": True, "is_configured": True, "takes_copies": "yes", "lease_seconds": 90.0,
        "takes_over_in_seconds": None, "discards_count": 0, "machine": "m1", "domains": [], "database": "abcdef0123",
    } | more  # fmt: skip


def a_node(name, peers, **more):
    node = filled(NodeResource, text="") | {
        "name": name, "site": "east", "state": "running", "machine": "m1", "domains": ["rack7"], "untold": None,
        "safety_net_complete_since": None, "settings": {"transport.shadow_redundancy_enabled": True},
    }  # fmt: skip
    node["new_mail"] |= {"outcome": "copied", "sentence": ""}
    said = {
        "node": node | more, "ready": filled(Readiness, text="") | {"is_ready": True, "reasons": []}, "queues": [], "peers": peers,
        "redundancy": filled(Copies), "pressure": filled(BackPressureResource, text="") | {"level": "normal", "reasons": []}, "drain": None,
    }  # fmt: skip
    return NodeAnswer(name, said)


def nodes_of(found):
    return {node["name"]: node for site in found["sites"] for machine in site["machines"] for node in machine["nodes"]}


def test_servers_of_one_machine_stand_together_and_others_apart():
    peers = [a_peer("b", machine="m1"), a_peer("c", machine="m2"), a_peer("d", machine="")]
    found = glance([a_node("a", peers), a_node("b", [], machine="m1"), NodeAnswer("c", error="no answer"), NodeAnswer("d", error="no")])
    (site,) = found["sites"]

    assert [["a", "b"], ["c"], ["d"]] == [[node["name"] for node in machine["nodes"]] for machine in site["machines"]]
    assert ["rack7"] == nodes_of(found)["a"]["domains"]


def test_a_link_says_what_lags_and_what_is_shared():
    peer = a_peer("b", heartbeat_age_seconds=3.0, discards_count=12, shared_fate="machine, rack7")
    (link,) = nodes_of(glance([a_node("a", [peer])]))["a"]["links"]

    assert ("b", 3.0, 90.0, 12, "abcdef0123", "machine, rack7") == tuple(
        link[name] for name in ("name", "heard_seconds", "lease_seconds", "discards_count", "database", "shared_fate")
    )


def test_a_node_that_only_others_know_has_its_countdown_and_its_place():
    peer = a_peer("b", is_reachable=False, heartbeat_age_seconds=60.0, held_for_count=5, takes_over_in_seconds=120.0, domains=["rack9"])
    lost = nodes_of(glance([a_node("a", [peer]), NodeAnswer("b", error="no answer")]))["b"]

    assert ("lost", 120.0, "east", ["rack9"]) == tuple(lost[name] for name in ("word", "takes_over_in_seconds", "site", "domains"))
    assert lost["reasons"] == ["heard 1m 0s ago", "a takes over in 2m 0s", "a holds 5 copies for it"]


def test_mail_is_not_called_redundant_where_copies_count_that_are_lost_with_the_server():
    one = a_node("a", [], settings={"transport.shadow_redundancy_enabled": True, "transport.shared_fate_is_redundant": True})
    one.said["node"]["new_mail"]["shared_fate"] = ["b"]
    alone = a_node("a", [])
    alone.said["node"]["new_mail"]["shared_fate"] = []

    assert ["care", "good"] == [glance([answer])["new_mail"]["tone"] for answer in (one, alone)]
    assert [True, False] == [glance([answer])["shares_fates"] for answer in (one, alone)]
    assert glance([one])["new_mail"]["word"] == "copied, but not safe from the loss of a machine"
    assert "for trying only" in glance([one])["remarks"][0]


def test_a_card_says_what_is_wrong_with_peers():
    found = nodes_of(glance([a_node("a", [a_peer("b", is_reachable=False, last_error="451 no answer")])]))["a"]["reasons"]

    assert "b: 451 no answer" in found


def test_back_pressure_has_a_tone_a_word_and_a_reason():
    pressed = a_node("a", [])
    pressed.said["pressure"] |= {"level": "high", "effect": "all mail is refused", "reasons": ["the disk is full"]}
    pressure = nodes_of(glance([pressed]))["a"]["pressure"]

    assert {"tone": "bad", "word": "high", "why": "all mail is refused; the disk is full"} == pressure


def test_an_answer_that_cannot_be_understood_is_none_and_the_others_are_shown():
    found = combined([a_node("a", []), NodeAnswer("b", {"node": {}})], glance)

    assert {"a", "b"} == set(nodes_of(found))
    assert "b's answer" not in str(found["missing"])
    (missing,) = found["missing"]
    assert ("b", True) == (missing["node"], "cannot be understood" in missing["error"])


def test_the_two_numbers_have_a_bound_unless_a_node_says_nothing():
    one, other = a_node("a", []), a_node("b", [])
    one.said["redundancy"] = {"fewer_count": 3, "fewer_max": 3, "alone_count": 1, "alone_max": 3}
    other.said["redundancy"] = {"fewer_count": 100, "fewer_max": 900, "alone_count": 0, "alone_max": 800}
    names = ("fewer_count", "fewer_max", "alone_count", "alone_max")
    whole, part = glance([one, other]), glance([one, NodeAnswer("c", error="no answer")])

    assert [103, 903, 1, 803] == [whole[name] for name in names]
    assert [3, None, 1, None] == [part[name] for name in names]


def test_copies_of_a_lost_server_on_two_nodes_may_be_of_the_same_messages():
    """Where two copies are wanted; where one is, each node holds others."""
    lost = [a_peer("c", is_reachable=False, held_for_count=count) for count in (50, 20)]

    def alone(copies):
        settings = {"transport.shadow_redundancy_enabled": True, "transport.shadow_copies": copies}
        nodes = [a_node(name, [peer], settings=settings) for name, peer in zip("ab", lost, strict=True)]
        for node in nodes:
            node.said["redundancy"] = dict.fromkeys(("fewer_count", "fewer_max", "alone_count", "alone_max"), 0)
        found = glance(nodes)
        return found["alone_count"], found["alone_max"], found["lost_held_count"]

    assert (70, 70, 70) == alone(1)
    assert (30, 70, 70) == alone(2)
