"""The list of what happened: who, when, what, and whom a person must tell. docs/sla.md, 4."""

from typing import Any

import pytest

from shadowrelay.sla.incident_list import cuts, incidents, with_cuts
from tests.kit import summaries

SITES = {"e1": "east", "e2": "east", "w1": "west"}
SERVERS = [{"name": name, "site": site, "boundary": "example"} for name, site in SITES.items()]


def at(seconds: int) -> str:
    return f"2026-11-21T12:{seconds // 60:02}:{seconds % 60:02}Z"


def takeover(old: str, new: str, *, since: int = 10, until: int = 40, seen: int | None = None, touch: int | None = None) -> dict[str, Any]:
    return {
        "old_primary": old, "new_primary": new, "reason": "Silence", "silent_since": at(since), "detected_at": at(until - 1),
        "first_resubmit_at": at(until), "last_resubmit_at": at(until), "messages": 5, "delivered_at": None, "in_time": 5,
        "returned_at": None, "seen_at": None if seen is None else at(seen), "in_touch_at": None if touch is None else at(touch),
    }  # fmt: skip


def found_cuts(*takeovers: dict[str, Any], heartbeat: float = 2) -> list[dict[str, Any]]:
    return cuts(with_cuts(takeovers, SERVERS, heartbeat), SERVERS)


def test_a_cut_between_sites_is_one_event_however_many_servers_it_parted() -> None:
    (cut,) = found_cuts(
        takeover("e1", "w1", seen=30, touch=90), takeover("e2", "w1", since=12, seen=31), takeover("w1", "e1", since=11, until=39, seen=38)
    )

    assert (["east", "west"], ["e1", "e2", "w1"]) == (cut["between"], cut["servers"])
    assert (at(10), at(90), 3, 15) == tuple(cut[name] for name in ("began_at", "ended_at", "takeovers", "messages"))


def test_a_server_without_rows_was_not_lost_if_it_took_over_mail_itself() -> None:
    (cut,) = found_cuts(takeover("e1", "w1", seen=30), takeover("w1", "e1", until=35))

    assert 2 == cut["takeovers"]


def test_a_cut_that_no_copy_has_crossed_since_has_not_ended() -> None:
    (cut,) = found_cuts(takeover("e1", "w1", seen=30))
    summary = summaries.demo() | {"cuts": [cut], "takeovers": [], "duplicates": [], "exposures": []}

    assert None is cut["ended_at"]
    assert ["were cut off from each other and are not in touch again; 5 messages taken over, no server was lost"] == [
        one["what"] for one in incidents(summary)
    ]


@pytest.mark.parametrize("seen", [None, 11, 12])
def test_a_server_that_wrote_nothing_after_a_heartbeat_was_lost(seen: int | None) -> None:
    assert [] == found_cuts(takeover("e1", "w1", seen=seen))


def test_two_cuts_at_different_times_are_two_events() -> None:
    assert 2 == len(found_cuts(takeover("e1", "w1", seen=30), takeover("e1", "w1", since=100, until=130, seen=120)))


def test_clusters_with_sites_of_the_same_names_have_cuts_of_their_own() -> None:
    servers = [each | {"name": f"{each['name']}.{boundary}", "boundary": boundary} for boundary in ("one", "two") for each in SERVERS]
    takeovers = [takeover(f"e1.{boundary}", f"w1.{boundary}", seen=30) for boundary in ("one", "two")]

    found = cuts(with_cuts(takeovers, servers, 2), servers)

    assert [("one", ["east", "west"], 1), ("two", ["east", "west"], 1)] == [
        (cut["boundary"], cut["between"], cut["takeovers"]) for cut in found
    ]


def test_servers_of_one_site_are_named_and_not_the_site() -> None:
    (cut,) = found_cuts(takeover("e1", "e2", seen=30))

    assert ["e1", "e2"] == cut["between"]


def test_those_of_which_a_person_must_be_told_come_first_with_sender_and_subject() -> None:
    found = incidents(summaries.month())
    told = [one for one in found if one["tell"]]

    assert told == found[: len(told)]
    assert 7 == len(told)
    assert {("sender", "loss")} == {(one["tell"], one["kind"]) for one in told}
    assert [] == [one for one in told if not (one["sender"] and one["subject"] and one["recipient"] and one["message"])]
    assert sorted(one["at"] for one in told) == [one["at"] for one in told]


def test_a_lost_server_is_one_incident_however_many_took_its_mail_over() -> None:
    lost = with_cuts([takeover("e1", "w1"), takeover("e1", "e2", until=41)], SERVERS, 2)
    summary = summaries.empty() | {"takeovers": lost}

    assert [("lost server", "e1", "silent for longer than the span; 10 messages taken over by e2, w1; not back yet", at(10))] == [
        (one["kind"], one["who"], one["what"], one["at"]) for one in incidents(summary)
    ]


def test_a_takeover_without_a_reason_is_told_all_the_same() -> None:
    summary = summaries.empty() | {"takeovers": with_cuts([takeover("EX1", "EX2") | {"reason": "", "silent_since": None}], [], 2)}

    assert ["5 messages taken over by EX2; not back yet"] == [one["what"] for one in incidents(summary)]


def test_messages_with_one_copy_are_one_incident_with_the_longest() -> None:
    (exposure,) = [one for one in incidents(summaries.demo()) if one["kind"] == "exposure"]

    assert exposure["what"].startswith("31 messages had one copy only for a time, longest ")


def test_a_list_that_was_cut_says_at_least() -> None:
    found = incidents(summaries.month())
    duplicates, left_over, told = (
        [one["what"] for one in found if one["kind"] == kind and bool(one["tell"]) is is_told]
        for kind, is_told in (("duplicate", False), ("left-over copies", False), ("loss", True))
    )

    assert duplicates
    assert left_over
    assert [] == [what for what in [*duplicates, *left_over] if not what.startswith("at least ")]
    assert [] == [what for what in told if "at least" in what]


def test_one_left_over_copy_is_no_several() -> None:
    line = {"message": "m", "server": "w1", "primary": "e1", "at": at(0), "cause": "never told"}
    summary = summaries.empty() | {"orphans": [line], "causes": {"orphans": {"never told": 1}}}

    assert ["1 left-over copy of mail of e1: never told (the shadow server did not hear that the mail was done)"] == [
        one["what"] for one in incidents(summary)
    ]


def test_late_mail_is_an_incident_with_its_causes_where_the_target_was_missed() -> None:
    summary = summaries.demo()
    delivery = next(one for one in summary["objectives"] if one["name"] == "delivery_latency")
    delivery |= {"good": 9_688, "bad": 312}
    summary["slow_causes"] = {"delivery_latency": {"our own delay": 12, "next hop was down": 300}}
    line = {"objective": "delivery_latency", "message": "m", "other": "", "cause": "next hop was down", "seconds": 90.0}
    summary["slow"] = [line | {"server": "w1", "at": at(300)}, line | {"server": "e1", "at": at(100)}]

    assert [] == [one for one in incidents(summary) if one["kind"] == "slow"]
    delivery["verdict"] = "missed"
    (late,) = [one for one in incidents(summary) if one["kind"] == "slow"]
    assert "Slow deliveries, over 1 min: 312 of 10,000 messages (300 next hop was down, 12 our own delay)" == late["what"]
    assert (at(100), at(300), "e1, w1", 312) == tuple(late[name] for name in ("at", "until", "who", "count"))


def test_a_message_with_several_lost_recipients_is_one_incident_and_its_cause_is_never_cut() -> None:
    line = {"message": "m", "server": "e1", "acknowledged_at": at(0), "cause": "no trace", "sender": "s@x", "subject": "A"}
    losses = [line | {"recipient": f"r{number}@y"} for number in range(5)]
    summary = summaries.empty() | {"losses": losses, "causes": {"losses": {"no trace": 5}}}
    (one,) = incidents(summary)

    assert "r0@y, r1@y, r2@y and 2 others did not get the message: no trace (the logs do not tell why)" == one["what"]
    assert (5, "r0@y, r1@y, r2@y, r3@y, r4@y", "s@x") == tuple(one[name] for name in ("count", "recipient", "sender"))


@pytest.mark.parametrize(
    ("old", "cause", "until", "is_told"),
    [
        ("e1", "no copy at acknowledgement", 40, True),
        ("e1", "holder lost", 40, False),
        ("e2", "no copy at acknowledgement", 40, False),
        ("e1", "no copy at acknowledgement", 5, False),
    ],
    ids=["alone", "with a copy", "another server", "before it"],
)
def test_a_loss_without_a_copy_names_the_server_that_was_lost_with_it(old: str, cause: str, until: int, is_told: bool) -> None:
    loss = {
        "message": "m",
        "server": "e1",
        "acknowledged_at": at(20),
        "cause": "no trace",
        "sender": "s@x",
        "subject": "A",
        "recipient": "r",
    }
    exposure = {"message": "m", "server": "e1", "began_at": at(20), "ended_at": at(50), "seconds": 30.0, "is_open": False, "cause": cause}
    lists = {"losses": [loss], "exposures": [exposure], "takeovers": [takeover(old, "w1", until=until) | {"is_cut": False}]}
    summary = summaries.empty() | lists | {"causes": {"losses": {"no trace": 1}, "exposures": {cause: 1}}}

    (one,) = [each for each in incidents(summary) if each["kind"] == "loss"]
    assert is_told == one["what"].endswith("; its only copy was on e1, which was lost")


def test_nobody_is_told_to_write_to_the_sender_of_a_report() -> None:
    line = {"message": "m", "server": "e1", "acknowledged_at": at(0), "cause": "no trace", "subject": "A", "recipient": "r@y"}
    summary = summaries.empty() | {"losses": [line | {"sender": sender} for sender in ("<>", "s@x")], "causes": {"losses": {"no trace": 2}}}
    summary["losses"][1]["message"] = "n"

    assert [("n", "sender"), ("m", "")] == [(one["message"], one["tell"]) for one in incidents(summary)]


def test_a_takeover_from_a_server_that_the_logs_do_not_name_says_so() -> None:
    summary = summaries.empty() | {"takeovers": with_cuts([takeover("", "EX2") | {"reason": "", "silent_since": None}], [], 2)}

    assert ["a server that the logs do not name"] == [one["who"] for one in incidents(summary)]


def test_many_servers_are_counted() -> None:
    lines = [{"message": "m", "server": f"e{number}", "began_at": at(0), "ended_at": at(9), "is_open": False} for number in range(5)]
    summary = summaries.empty() | {"exposures": lines, "causes": {"exposures": {"holder lost": 5}}}
    summary["overall"] |= {"messages_exposed": 5, "exposure_max_seconds": 9.0}

    assert ["5 servers"] == [one["who"] for one in incidents(summary)]


def test_a_loss_of_the_only_copy_does_not_speak_of_two() -> None:
    loss = {
        "message": "m",
        "server": "e1",
        "acknowledged_at": at(20),
        "cause": "both copies gone",
        "sender": "s@x",
        "subject": "A",
        "recipient": "r",
    }
    alone = "no copy at acknowledgement"
    exposure = {"message": "m", "server": "e1", "began_at": at(20), "ended_at": at(50), "seconds": 30.0, "is_open": False, "cause": alone}
    lists = {"losses": [loss], "exposures": [exposure], "takeovers": [takeover("e1", "w1", until=40) | {"is_cut": False}]}
    summary = summaries.empty() | lists | {"causes": {"losses": {"both copies gone": 1}, "exposures": {alone: 1}}}

    (one,) = [each for each in incidents(summary) if each["kind"] == "loss"]
    assert "r did not get the message: its only copy was on e1, which was lost" == one["what"]
