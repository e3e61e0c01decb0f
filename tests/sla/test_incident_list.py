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

    saved = [one for one in found if f"{one['count']} messages depend on one server now" in one["what"]]
    assert [*saved, *told] == found[: len(saved) + len(told)]
    assert 7 == len(told)
    assert {("sender", "loss")} == {(one["tell"], one["kind"]) for one in told}
    assert [] == [one for one in told if not (one["sender"] and one["subject"] and one["recipient"] and one["message"])]
    assert sorted(one["at"] for one in told) == [one["at"] for one in told]


def test_a_lost_server_is_one_incident_however_many_took_its_mail_over() -> None:
    lost = with_cuts([takeover("e1", "w1"), takeover("e1", "e2", until=41)], SERVERS, 2)
    summary = summaries.empty() | {"takeovers": lost}

    assert [("lost server", "e1", "silent for longer than the span; 10 messages taken over by e2, w1; its log is not here", at(10))] == [
        (one["kind"], one["who"], one["what"], one["at"]) for one in incidents(summary)
    ]


def test_a_takeover_without_a_reason_is_told_all_the_same() -> None:
    summary = summaries.empty() | {"takeovers": with_cuts([takeover("EX1", "EX2") | {"reason": "", "silent_since": None}], [], 2)}

    assert ["5 messages taken over by EX2; its log is not here"] == [one["what"] for one in incidents(summary)]


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

    assert [
        "1 left-over copy held by w1, of mail of e1: never told (the shadow server neither heard that the mail was done, nor took it over)"
    ] == [one["what"] for one in incidents(summary)]


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


def test_of_many_servers_three_are_named_and_the_others_counted() -> None:
    lines = [{"message": "m", "server": f"e{number}", "began_at": at(0), "ended_at": at(9), "is_open": False} for number in range(5)]
    lines = [line | {"cause": "holder lost"} for line in lines]
    summary = summaries.empty() | {"exposures": lines, "causes": {"exposures": {"holder lost": 5}}}
    summary["overall"] |= {"messages_exposed": 5, "exposure_max_seconds": 9.0}

    assert ["e0, e1, e2 and 2 others"] == [one["who"] for one in incidents(summary)]


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


def exposed(message: str, server: str, *, is_open: bool, cause: str = "no copy at acknowledgement") -> dict[str, Any]:
    return {
        "message": message,
        "server": server,
        "began_at": at(20),
        "ended_at": at(50),
        "seconds": 30.0,
        "is_open": is_open,
        "cause": cause,
    }


def with_exposures(*lines: dict[str, Any], **more: Any) -> dict[str, Any]:
    causes = {"exposures": {line["cause"]: 1 for line in lines}, "losses": {}, "orphans": {}, "duplicates": {}}
    summary = summaries.empty() | {"exposures": list(lines), "causes": causes} | more
    summary["overall"] |= {"messages_exposed": len(lines), "exposure_max_seconds": 30.0}
    return summary


def lost(message: str, server: str, cause: str) -> dict[str, Any]:
    named = {"sender": "s@x", "subject": "A", "recipient": "r@y"}
    return {"message": message, "server": server, "acknowledged_at": at(0), "cause": cause, **named}


def with_servers(summary: dict[str, Any], **formats: str) -> dict[str, Any]:
    summary["input"]["servers"] = [
        {"name": name, "format": format_, "site": "", "boundary": "", "last_at": None} for name, format_ in formats.items()
    ]
    return summary


def test_mail_that_depends_on_one_server_now_comes_first_with_what_to_do() -> None:
    lines = (exposed("a", "e1", is_open=True), exposed("b", "e2", is_open=True), exposed("c", "w1", is_open=False, cause="holder lost"))
    first, second = [one for one in incidents(with_exposures(*lines, losses=[lost("d", "e1", "no trace")])) if one["kind"] == "exposure"]

    assert first == incidents(with_exposures(*lines, losses=[lost("d", "e1", "no trace")]))[0]
    assert "2 messages depend on one server now, as far as the logs go: no copy when the client got its 250" == first["what"]
    assert ("e1, e2", None, 2) == (first["who"], first["until"], first["count"])
    assert first["step"].startswith("Neither stop nor rebuild e1 and e2 until that is delivered, and see why it waits (")
    assert second["what"].startswith("3 messages had one copy only for a time, ")
    assert second["what"].endswith(" (of these, 2 messages still have: see the top)")
    assert at(50) == second["until"]


def test_what_counts_as_lost_is_not_said_to_be_saved_and_what_is_all_open_is_said_once() -> None:
    both = with_exposures(exposed("a", "e1", is_open=True), losses=[lost("a", "e1", "no trace")])
    assert ["loss", "exposure"] == [one["kind"] for one in incidents(both)]
    assert "now" not in incidents(both)[1]["what"]
    assert incidents(both)[1]["until"] is None

    (alone,) = incidents(with_exposures(exposed("a", "e1", is_open=True)))
    assert alone["what"].startswith("1 message depends on one server now")


def test_of_a_list_that_was_cut_the_open_ones_are_at_least_so_many() -> None:
    cut = with_exposures(exposed("a", "e1", is_open=True), exposed("b", "e1", is_open=True))
    cut["causes"]["exposures"] = {"no copy at acknowledgement": 300}
    assert incidents(cut)[0]["what"].startswith("at least 2 messages depend on one server now")

    cut["exposures"].append(exposed("c", "e1", is_open=False))  # all that are open come before it
    assert incidents(cut)[0]["what"].startswith("2 messages depend on one server now")


def test_one_copy_on_a_further_hop_is_no_copy_that_the_client_lacked() -> None:
    (one,) = incidents(with_exposures(exposed("a", "edge", is_open=False, cause="no copy on a further hop")))

    assert one["what"].endswith(": no copy on a further hop (the server got it from another one, and made none)")
    assert "edge" == one["who"]


@pytest.mark.parametrize(
    ("format_", "cause", "said"),
    [
        ("exchange2010", "no trace", "Look for it in the queues of e1, e1\\Poison among them (Get-Message -Server e1)"),
        ("exchange2016", "still queued", "See whether e1 still has it (Get-Message -Server e1), and why it waits; Retry-Queue"),
        ("exchange2016", "set aside", "Decide in e1\\Poison (Get-Message -Queue e1\\Poison): Resume-Message delivers it"),
        ("exchange2016", "not in the next log", "Collect the rest of the logs before you write to anybody"),
        ("shadowrelay", "no trace", "Look for it on all servers, e1 first (shadowrelay messages find --id m)"),
        ("shadowrelay", "still queued", "See whether e1 still has it (shadowrelay queue list), and why it waits; shadowrelay queue retry"),
        ("shadowrelay", "set aside", "Decide on e1 (shadowrelay messages list --queue Poison has the reason): messages release"),
        ("shadowrelay", "both copies gone", "If the disk of e1 can be read, look there for the message"),
    ],
)
def test_the_first_step_of_a_loss_is_where_the_message_may_still_be(format_: str, cause: str, said: str) -> None:
    summary = with_servers(summaries.empty() | {"losses": [lost("m", "e1", cause)], "causes": {"losses": {cause: 1}}}, e1=format_)

    assert incidents(summary)[0]["step"].startswith(said)


def test_a_copy_that_may_be_left_is_named_beside_the_queue_of_the_server() -> None:
    copy = {"message": "m", "server": "e2", "primary": "e1", "at": at(1), "cause": "never told"}
    causes = {"losses": {"no trace": 1}, "orphans": {"never told": 1}}
    summary = summaries.empty() | {"losses": [lost("m", "e1", "no trace")], "orphans": [copy], "causes": causes}
    with_servers(summary, e1="shadowrelay", e2="shadowrelay")

    assert (
        "Look for it on all servers, e1 first (shadowrelay messages find --id m); a copy may be on e2, too" == incidents(summary)[0]["step"]
    )
    copy["cause"] = "expired"
    assert "e2" not in incidents(summary)[0]["step"]


def test_a_server_that_did_not_return_has_logged_nothing_since_then() -> None:
    summary = with_servers(
        summaries.empty() | {"takeovers": with_cuts([takeover("e1", "w1")], SERVERS, 2)}, e1="exchange2016", w1="exchange2016"
    )
    first, second = summary["input"]["servers"]
    first["last_at"], second["last_at"] = "2026-11-21T11:40:00Z", "2026-11-28T12:00:00Z"
    (one,) = incidents(summary)

    assert one["what"].endswith("; not back yet: it has logged nothing since 2026-11-21 11:40 UTC, 7 d before the newest row")
    second["last_at"] = "2026-11-21T11:50:00Z"
    assert incidents(summary)[0]["what"].endswith("; not back yet")


def test_a_copy_that_is_left_over_on_a_lost_server_says_which_of_the_two_was_lost() -> None:
    line = {"message": "m", "server": "a1", "primary": "a3", "at": at(0), "cause": "log missing"}
    (one,) = incidents(summaries.empty() | {"orphans": [line], "causes": {"orphans": {"log missing": 1}}})

    assert (
        "1 left-over copy held by a1, of mail of a3: log missing (the server that held it was lost, and its log ends before that)"
        == one["what"]
    )


def test_what_had_no_copy_says_why_in_the_words_of_the_rows() -> None:
    fail = {"event": "HAREDIRECTFAIL", "text": "No suitable shadow servers · x"}
    traces = {
        "a": [fail, {"event": "RECEIVE", "text": "none"}],
        "b": [fail],
        "c": [fail | {"text": "timed out"}],
        "d": [fail | {"text": "S:A=1"}],
    }
    lines = [exposed(name, "e1", is_open=False) for name in "abcd"]

    (one,) = incidents(with_exposures(*lines, traces=traces))
    assert one["what"].endswith(': no copy when the client got its 250 (the rows say: "No suitable shadow servers", "timed out")')


def test_a_copy_that_nobody_took_over_is_looked_for_where_it_was_held() -> None:
    rows = [
        {"event": event, "server": server, "text": ""} for event, server in (("HARECEIVE", "e2"), ("HARECEIVE", "w1"), ("HADISCARD", "w1"))
    ]
    cause = "copy not taken over"
    summary = summaries.empty() | {"losses": [lost("m", "e1", cause)], "causes": {"losses": {cause: 1}}, "traces": {"m": rows}}
    with_servers(summary, e2="shadowrelay", w1="shadowrelay")
    (one,) = incidents(summary)

    assert one["step"].startswith("Look for its copy on e2 (shadowrelay messages find --id m)")
    assert "had a copy and left it" in one["what"]
    assert "sender" == one["tell"]
    summary["takeovers"] = with_cuts([takeover("e2", "w1") | {"reason": "DatabaseChanged"}], SERVERS, 2)
    step = next(each["step"] for each in incidents(summary) if each["kind"] == "loss")
    assert step.endswith("what is there can still be delivered (but e2 lost its database later: only its old disk may have it)")


@pytest.mark.parametrize("cause", ["still queued", "set aside", "no trace"])
def test_a_server_whose_database_was_lost_later_is_no_sure_place_to_look(cause: str) -> None:
    summary = summaries.empty() | {"losses": [lost("m", "e1", cause)], "causes": {"losses": {cause: 1}}}
    summary |= {"takeovers": with_cuts([takeover("e1", "w1") | {"reason": "DatabaseChanged"}], SERVERS, 2)}
    with_servers(summary, e1="shadowrelay", w1="shadowrelay")

    (step,) = [each["step"] for each in incidents(summary) if each["kind"] == "loss"]
    assert step.endswith("(but e1 lost its database later: only its old disk may have it)")
    summary["takeovers"][0]["reason"] = "Silence"
    assert "old disk" not in str([each["step"] for each in incidents(summary)])


def test_mail_on_one_server_that_lost_its_database_later_is_not_called_safe_there() -> None:
    still = with_exposures(exposed("a", "e1", is_open=True))
    still |= {"takeovers": with_cuts([takeover("e1", "w1") | {"reason": "DatabaseRolledBack"}], SERVERS, 2)}
    with_servers(still, e1="shadowrelay", w1="shadowrelay")

    assert "(but e1 lost its database later: only its old disk may have it)" in incidents(still)[0]["step"]
