"""Exposures, takeovers, duplicates, losses and orphans, each with its cause. docs/sla.md, 3 and 4."""

from datetime import datetime

from tests.sla.figures.cases import DAY, at


def test_exposure_ends_with_the_next_copy_or_when_done_or_now(judged):
    found = {
        (line["message"], line["began_at"]): (line["ended_at"], line["is_open"], line["cause"])
        for line in judged.lines("exposures", "exposed")
    }

    assert {
        ("copied later", at(0)): (at(30), False, "no copy at acknowledgement"),
        ("done first", at(0)): (at(5), False, "no copy at acknowledgement"),
        ("open", at(0)): (at(10 * DAY), True, "no copy at acknowledgement"),
        ("holder lost", at(0)): (at(701), False, "holder lost"),
        ("overlapping", at(0)): (at(100), False, "no copy at acknowledgement"),
        ("overlapping", at(100)): (at(150), False, "holder lost"),
    } == found


def test_a_loss_that_another_copy_outlived_exposes_nothing(judged):
    found = {(line["message"], line["began_at"], line["ended_at"], line["cause"]) for line in judged.lines("exposures", "outlived")}

    assert {
        ("next in line", at(720), at(800), "holder lost"),  # now there is no third
        ("not seen again", at(100), at(702), "holder lost"),
        ("seen before", at(100), at(800), "holder lost"),
        ("copied anew", at(100), at(702), "holder lost"),
    } == found


def test_a_copy_on_a_shared_fate_is_none_and_ends_no_exposure(judged):
    found = {line["message"]: (line["began_at"], line["ended_at"], line["cause"]) for line in judged.lines("exposures", "fates")}

    assert {
        "moved": (at(0), at(30), "copy only on a shared fate"),
        "named otherwise": (at(0), at(20), "no copy at acknowledgement"),
    } == found


def test_a_message_with_some_of_its_copies_is_not_exposed(judged):
    found = [(line["message"], line["began_at"], line["ended_at"]) for line in judged.lines("exposures", "several")]

    assert [("none", at(40), at(45))] == found


def test_exposure_in_figures(judged):
    found = judged.figures("exposed")

    assert 6 == found["exposure_count"]
    assert (864_000 + 30 + 5 + 701 + 100 + 50) * 1_000_000 == found["exposure_us"]
    assert 864_000 * 1_000_000 == found["exposure_max_us"]
    assert (6, 2) == (found["exposure_judged"], found["exposure_bad"])  # longer than ten minutes together


def test_a_takeover_is_of_one_new_and_old_primary_reason_and_detection(judged):
    names = (
        "new_primary",
        "old_primary",
        "reason",
        "first_resubmit_at",
        "last_resubmit_at",
        "messages",
        "in_time",
        "delivered_at",
        "returned_at",
    )
    found = {tuple(line[name] for name in names) for line in judged.lines("takeovers", "takenover")}

    assert {
        ("s", "p", "Silence", at(11_000), at(11_120.000_001), 2, 1, at(11_300), at(11_500)),
        ("q", "p", "DatabaseChanged", at(12_000), at(12_001), 1, 0, None, None),  # in time, and once more too late
        ("s", "q", "Handover", at(14_400), at(14_400), 1, 1, None, None),
    } == found


def test_a_server_that_was_running_while_it_was_silent_is_seen_in_its_own_log(judged):
    (apart,) = judged.lines("takeovers", "apart")
    lost = next(line for line in judged.lines("takeovers", "takenover") if line["reason"] == "Silence")

    assert (at(5_000), at(12_000), at(20_000)) == tuple(apart[name] for name in ("seen_at", "returned_at", "in_touch_at"))
    assert (at(11_000), at(11_500), None) == tuple(lost[name] for name in ("seen_at", "returned_at", "in_touch_at"))
    cut = next(cut for cut in judged.summary["cuts"] if "p.apart" in cut["servers"])
    assert (["p.apart", "s.apart"], ["east", "west"], "apart") == (cut["servers"], cut["between"], cut["boundary"])
    assert (at(100), at(20_000), 2) == (*(datetime.fromisoformat(cut[name]) for name in ("began_at", "ended_at")), cut["messages"])


def test_each_slow_message_has_its_cause(judged):
    out = "server lost or cut off"

    assert {
        ("delivery_latency", "next hop"): "next hop was down",
        ("delivery_latency", "both"): f"next hop was down and {out}",
        ("delivery_latency", "ours"): "our own delay",
        ("delivery_latency", "nothing but deferred"): "next hop was down",
        ("delivery_latency", "nothing but deferred here"): "our own delay",
        ("shadow_latency", "refused"): "a server took no copy",
        ("shadow_latency", "late copy"): "our own delay",
        ("shadow_latency", "copy of a lost server"): out,
        ("shadow_latency", "copy a heartbeat after a takeover"): out,
        ("shadow_latency", "copy later after a takeover"): "our own delay",
        ("discard_lag", "discarded late"): "our own delay",
        ("discard_lag", "discarded late, a server was out"): out,
    } == {(line["objective"], line["message"]): line["cause"] for line in judged.lines("slow", "slow")}
    assert 2 == len([line for line in judged.lines("slow", "takenover") if line["objective"] == "takeover"])
    assert judged.summary["slow_causes"]["delivery_latency"]["next hop was down"] >= 1
    assert {line["objective"] for line in judged.summary["slow"]} == set(judged.summary["slow_causes"])


def test_a_copy_that_was_cleaned_up_late_shows_when_it_was_and_not_when_it_was_made(judged):
    late = {line["message"]: line["at"] for line in judged.lines("slow", "slow") if line["objective"] == "discard_lag"}

    assert {"discarded late": at(1_122), "discarded late, a server was out": at(122)} == late


def test_messages_that_were_exposed_are_counted_once(judged):
    found = judged.figures("exposed")

    assert (6, 5) == (found["exposure_count"], found["messages_exposed"])


def test_a_loss_has_its_sender_and_subject(judged):
    (line,) = [line for line in judged.lines("losses", "lost") if line["message"] == "set aside"]

    assert ("writer@x.example", "=cmd()") == (line["sender"], line["subject"])


def test_where_the_log_does_not_say_when_a_server_was_lost_nothing_is_in_time_or_late(judged):
    (takeover,) = judged.lines("takeovers", "exchange16")

    assert (1, None, None, None) == tuple(takeover[name] for name in ("messages", "in_time", "silent_since", "detected_at"))
    assert 0 == judged.figures("exchange16")["takeovers_late"]


def test_takeovers_in_figures(judged):
    found = judged.figures("takenover")
    late = sum(line["messages"] - line["in_time"] for line in judged.lines("takeovers", "takenover"))

    assert (3, 3, 3, 2) == tuple(found[name] for name in ("promotions", "messages_promoted", "takeovers_in_time", "takeovers_late"))
    assert 2 == late
    assert (5, 120_000, 130_000) == tuple(found[f"takeover_detection_{name}"] for name in ("count", "p50", "max"))
    assert 2 == found["clock_skews"]
    assert (2, 3) == tuple(judged.figures("takenover", "hour", at(3 * 3600))[name] for name in ("promotions", "messages_promoted"))
    assert (1, 1) == tuple(judged.figures("takenover", "hour", at(4 * 3600))[name] for name in ("promotions", "messages_promoted"))


def test_each_duplicate_has_its_cause(judged):
    assert {
        "disk": "b", "rolled back": "b", "same primary twice": "b", "cut off": "c", "two failed": "d", "loaded": "a", "handed over": "a",
        "two far apart": "c", "disk of the heir": "b", "and back": "c", "burnt and back": "b", "burnt and back at once": "d",
        "two heirs": "d", "heirs far apart": "unexplained",
        "no way": "unexplained", "loaded before": "unexplained", "bug": "unexplained",
    } == {line["message"]: line["cause"] for line in judged.lines("duplicates", "twice")}  # fmt: skip
    found = judged.figures("twice")
    assert (17, 4) == (found["recipients_duplicated"], found["recipients_duplicated_unexplained"])


def test_a_duplicate_is_told_by_its_two_earliest_deliveries(judged):
    bug = next(line for line in judged.lines("duplicates", "twice") if line["message"] == "bug")

    assert (3, "p", at(10), "p", at(1000)) == tuple(bug[name] for name in ("count", "first_server", "first_at", "later_server", "later_at"))


def test_what_one_client_had_acknowledged_twice_is_a_duplicate_where_both_were_delivered(judged):
    a, b = "a@x.example", "b@x.example"
    lines = judged.lines("duplicates", "delivered_again")

    assert {
        ("second", a): ("e", at(1.0005), at(101.0005)),
        ("second", b): ("e", at(2.0009), at(102.0009)),
        ("in part", b): ("e", at(2.0009), at(201)),
        ("overtaken", a): ("e", at(21.0005), at(500)),
        ("overtaken", b): ("e", at(22.0009), at(500)),
    } == {(line["message"], line["recipient"]): (line["cause"], line["first_at"], line["later_at"]) for line in lines}
    assert {"again"} == {line["subject"] for line in lines if line["message"] == "second"}
    found = judged.figures("delivered_again")
    assert (5, 0) == (found["recipients_duplicated"], found["recipients_duplicated_unexplained"])
    counted = {line["message"]: line["duplicated"] for line in judged.lines("messages", "delivered_again")}
    assert {"second": 2, "in part": 1, "overtaken": 2} == {message: count for message, count in counted.items() if count}


def test_each_loss_has_its_cause(judged):
    a, b = "a@x.example", "b@x.example"

    assert {
        ("set aside", a): "set aside",
        ("discarded for one", a): "discarded without delivery",
        ("discarded for one", b): "no trace",
        ("discarded", a): "discarded without delivery",
        ("released", a): "no trace",
        ("both gone", a): "both copies gone",
        ("not rescued", a): "copy not taken over",
        ("queued", a): "still queued",
        ("nothing", a): "no trace",
        ("just due", a): "no trace",
    } == {(line["message"], line["recipient"]): line["cause"] for line in judged.lines("losses", "lost")}
    assert 10 == judged.figures("lost")["recipients_lost"]


def test_each_orphan_has_its_cause(judged):
    assert {
        "expired": "expired", "silent": "unknown: log ends", "never told": "never told", "one recipient": "never told",
        "just due": "never told",
        "expired as a primary server": "never told",
    } == {line["message"]: line["cause"] for line in judged.lines("orphans", "orphaned")}  # fmt: skip
    assert 5 == judged.figures("orphaned")["shadows_orphaned"]


def test_a_server_is_judged_as_long_as_its_own_log_goes_on(judged):
    losses = {line["message"]: (line["server"], line["cause"]) for line in judged.lines("losses", "logends")}
    exposures = {line["message"]: (line["began_at"], line["ended_at"], line["is_open"]) for line in judged.lines("exposures", "logends")}

    assert {
        "seconds before": ("p", "unknown: log ends"),
        "no log at all": ("elsewhere", "unknown: log ends"),
        "known by its heir": ("q", "no trace"),
        "elsewhere": ("s", "no trace"),
    } == losses
    assert 2 == judged.figures("logends")["recipients_lost"]
    assert (at(0), at(5), True) == exposures["seconds before"]
    assert (at(100), at(10 * DAY), True) == exposures["known by its heir"]
