"""Acknowledged, reconstructed, refused and notifications; redundancy, latencies, ends. docs/sla.md, 2 and 3."""

from datetime import timedelta

from tests.sla.figures.cases import DAY, at


def test_plain_mail_is_redundant_done_and_timed(judged):
    found = judged.figures("plain")

    assert (4, 4, 0, 4) == tuple(found[f"messages_{name}"] for name in ("acknowledged", "redundant", "not_redundant", "done"))
    assert (20, 20, 20, 4) == tuple(found[f"shadow_latency_{name}"] for name in ("p50", "p99", "max", "count"))  # rounded down
    assert (2000, 2000, 4) == tuple(found[f"delivery_latency_{name}"] for name in ("p50", "max", "count"))
    assert (999, 999, 4) == tuple(found[f"discard_lag_{name}"] for name in ("p50", "max", "count"))
    assert (4 * 20_999, 4 * 40_000) == (found["shadow_share_us"], found["ack_share_us"])
    quiet = (
        "exposure_count",
        "recipients_lost",
        "recipients_duplicated",
        "shadows_orphaned",
        "promotions",
        "clock_skews",
        "messages_sent_again",
    )
    assert dict.fromkeys(quiet, 0) == {name: found[name] for name in quiet}


def test_messages_are_counted_by_their_copies(judged):
    found = next(
        line for line in judged.summary["figures"] if (line["window"], line["scope"], line["name"]) == ("all", "boundary", "several")
    )
    copies = {(line["message"], line["server"]): line for line in judged.lines("copies", "several")}

    assert {"0": 1, "1": 1, "2": 6, "3": 3} == found["messages_by_copies"]
    assert (11, 9) == (found["messages_acknowledged"], found["messages_redundant"])
    assert [("q", -100, 2000), ("s", 0, 1000)] == [
        (server, (copy["at"] - at(0)) // timedelta(milliseconds=1), copy["lag_us"] // 1000)
        for (message, server), copy in sorted(copies.items())
        if message == "two"
    ]


def test_a_figure_belongs_to_the_hour_and_day_of_its_message(judged):
    assert 2 == judged.figures("plain", "hour", at(0))["messages_acknowledged"]
    assert 1 == judged.figures("plain", "hour", at(7200))["messages_acknowledged"]
    assert {} == judged.figures("plain", "hour", at(3600))
    assert (3, 1) == tuple(judged.figures("plain", "day", at(day * DAY - DAY / 2))["messages_acknowledged"] for day in (0, 1))


def test_scopes_are_boundary_site_server_and_pair_and_have_a_name(judged):
    lines = [line for line in judged.summary["figures"] if line["window"] == "all"]
    of_plain = {line["scope"]: line for line in lines if "plain" in line["name"]}

    assert {"boundary", "server", "pair"} == set(of_plain)
    assert ("p.plain", "s.plain", 4) == tuple(of_plain["pair"][name] for name in ("name", "other", "messages_acknowledged"))
    assert 4 == of_plain["server"]["discard_lag_ms"]["count"]
    assert {"east", "west"} == {line["name"] for line in lines if line["scope"] == "site"}
    assert [] == [line for line in lines if line["scope"] != "all" and not line["name"]]
    assert {} == judged.figures("")
    assert 1 == sum(line["messages_acknowledged"] for line in lines if line["name"] == "p.nowhere" and line["scope"] == "server")


def test_a_message_whose_primary_burnt_is_reconstructed_from_its_copies(judged):
    found = judged.figures("rebuilt")
    messages = {line["message"]: line for line in judged.lines("messages", "rebuilt")}

    assert (4, 4, 4, 3) == tuple(found[f"messages_{name}"] for name in ("acknowledged", "reconstructed", "redundant", "done"))
    assert {"burnt"} == {line["server"] for line in messages.values()}
    assert (at(10), "s", at(701)) == tuple(messages["taken over"][name] for name in ("at", "pair_server", "done_at"))
    assert (at(30), None, at(31)) == tuple(messages["never held"][name] for name in ("at", "pair_server", "done_at"))
    assert at(26) == messages["told"]["done_at"]
    assert 0 == found["delivery_latency_count"]
    assert ["both copies gone"] * 2 == [line["cause"] for line in judged.lines("losses", "rebuilt")]


def test_a_message_that_was_refused_is_not_reconstructed(judged):
    kinds = {line["message"]: line["kind"] for line in judged.lines("messages", "refused")}

    assert {"no copy": "refused", "released": "refused", "released once": "reconstructed"} == kinds
    assert 1 == judged.figures("refused")["messages_acknowledged"]


def test_a_copy_of_what_its_primary_never_accepted_is_no_message(judged):
    kinds = {line["message"]: line["kind"] for line in judged.lines("messages", "left") if line["message"] != "first"}

    in_doubt = dict.fromkeys(("told", "sent", "kept", "at the end"), "reconstructed")
    assert in_doubt | {"gone": "refused", "gone again": "refused"} == {name: kinds[name] for name in (*in_doubt, "gone", "gone again")}
    left_over = [line["message"] for line in judged.lines("orphans", "left")]
    assert {"gone", "gone again"} <= {*left_over}


def test_a_notification_is_no_acknowledged_message_and_its_copy_is_told(judged):
    found = judged.figures("notified")

    assert (1, 1, 1) == tuple(found[f"messages_{name}"] for name in ("acknowledged", "dsn", "done"))
    assert (2, 1000, 5000) == tuple(found[f"discard_lag_{name}"] for name in ("count", "p50", "max"))
    assert (1, 2000) == tuple(found[f"delivery_latency_{name}"] for name in ("count", "max"))


def test_a_journal_report_is_no_acknowledged_message_and_its_copy_is_told(judged):
    found = judged.figures("journaled")

    assert (1, 0, 0, 1) == tuple(found[f"messages_{name}"] for name in ("acknowledged", "reconstructed", "dsn", "done"))
    assert (2, 2000) == tuple(found[f"discard_lag_{name}"] for name in ("count", "max"))
    assert (0, 0) == (found["shadows_orphaned"], found["recipients_lost"])


def test_a_message_from_safety_net_is_no_acknowledged_message_and_no_lost_log(judged):
    found = judged.figures("resubmitted")
    kinds = {line["message"]: line["kind"] for line in judged.lines("messages", "resubmitted")}

    assert (1, 0, 1, 0) == tuple(found[f"messages_{name}"] for name in ("acknowledged", "reconstructed", "done", "dsn"))
    assert "acknowledged" == kinds["original"]
    assert 2 == found["discard_lag_count"]
    assert 0 == found["promotions"]


def test_discard_lag_is_to_the_last_row_and_negative_is_a_skew(judged):
    found = judged.figures("told")
    copies = {line["message"]: line for line in judged.lines("copies", "told")}

    assert (5, 20_000, 121_000) == tuple(found[f"discard_lag_{name}"] for name in ("count", "p50", "max"))
    assert (1, 2) == (found["discards_late"], found["clock_skews"])  # the heartbeat itself is in time
    assert -1_000_000 == copies["skewed"]["lag_us"]
    assert {"half", "back in time"} == {message for message, copy in copies.items() if not copy["is_discarded"]}
    assert (7, 10_000, 10_000) == tuple(found[f"delivery_latency_{name}"] for name in ("count", "p50", "max"))


def test_the_ends_of_a_recipient(judged):
    assert ["expired at the shadow server"] == [line["recipient"] for line in judged.lines("losses", "ended")]
    assert (0, 5, 1) == tuple(judged.figures("ended")[name] for name in ("messages_done", "recipients", "recipients_lost"))


def test_what_clients_sent_again(judged):
    # without an id, at the same instant, by a logged server, or to others, nothing is again
    assert 3 + 2 == judged.figures("again")["messages_sent_again"]


def test_repeated_rows_count_once(judged):
    found = judged.figures("repeated")

    assert (3, 3, 0) == (found["messages_acknowledged"], found["messages_done"], found["recipients_duplicated"])
    assert 9 == judged.summary["input"]["rows_repeated"]


def test_exchange_rows(judged):
    found = judged.figures("exchange16")
    kinds = {line["message"]: line["kind"] for line in judged.lines("messages", "exchange16")}

    assert {"copied": "acknowledged", "alone": "acknowledged", "notification": "dsn", "submitted": "unknown"} == kinds
    assert (2, 1, 1, 2) == tuple(found[f"messages_{name}"] for name in ("acknowledged", "redundant", "not_redundant", "done"))
    assert (2, 1000, 1500) == tuple(found[f"delivery_latency_{name}"] for name in ("count", "p50", "max"))  # SEND to s was a hop
    assert (1, 2000) == (found["discard_lag_count"], found["discard_lag_max"])  # since p handed it on
    # the DSN ended who had no other end; and at s the other message was alone for half a second
    assert (2, 60_500_000) == (found["exposure_count"], found["exposure_us"])
    assert (1, 0, 0) == (found["promotions"], found["takeovers_in_time"], found["takeovers_late"])


def test_who_takes_the_place_of_a_recipient_of_exchange(judged):
    found = judged.figures("replaced")

    assert (3, 1, 3) == tuple(found[name] for name in ("messages_acknowledged", "messages_done", "recipients_lost"))
    assert {("one missing", "m2@x"), ("ended otherwise", "c@x"), ("ended otherwise", "f@x")} == {
        (line["message"], line["recipient"]) for line in judged.lines("losses", "replaced")
    }


def test_the_shadow_server_of_exchange_is_the_one_that_answered(judged):
    pairs = {line["message"]: line["pair_server"] for line in judged.lines("messages", "redirected")}

    assert ("s", "", "s") == (pairs["said"], pairs["says nothing"], pairs["named"])
    assert 3 == judged.figures("redirected")["messages_redundant"]


def test_what_exchange_does_not_log_is_not_computable(judged):
    oldest = judged.figures("exchange10")

    assert (1, 0, 0, 2000) == tuple(
        oldest[name] for name in ("messages_acknowledged", "messages_redundant", "messages_not_redundant", "delivery_latency_max")
    )
    said = {(line["figure"], line["format"]) for line in judged.summary["not_computable"]}
    assert {("redundancy_ratio", "exchange2010"), ("shadow_latency", "exchange2016"), ("exposure", "exchange2016")} <= said
    assert "shadowrelay" not in {format for _, format in said}


def test_what_is_relayed_and_kept_is_redundant_by_its_own_way(judged):
    found = next(line for line in judged.summary["figures"] if (line["window"], line["name"]) == ("all", "relayed"))
    copies = {line["message"]: line for line in judged.lines("copies", "relayed")}

    assert (7, 3, 5) == tuple(found[f"messages_{name}"] for name in ("acknowledged", "reconstructed", "redundant"))
    assert {"shadow_server": 0, "previous_hop": 4, "next_hop": 1} == found["messages_redundant_by_way"]
    assert (4, 2, 1) == tuple(found[f"shadows_{name}"] for name in ("kept", "taken_back", "rerouted"))
    assert 2 == found["messages_promoted"]
    assert {"count": 1, "p50": 2000, "p95": 2000, "max": 2000} == found["discard_lag_ms"]
    burnt = dict.fromkeys(("second-kept", "third-kept", "third-again"), "burnt")
    assert {"first-kept": "hub", **burnt} == {message: copy["primary"] for message, copy in copies.items()}
    assert (0, 0, 0, 0) == tuple(found[name] for name in ("recipients_lost", "recipients_duplicated", "shadows_orphaned", "clock_skews"))


def test_a_message_that_a_kept_shadow_names_is_counted_once_however_plain_it_looks(judged):
    assert ["first", "kept"] == [line["message"] for line in judged.lines("messages", "backed")]
    assert (2, 0) == tuple(judged.figures("backed")[f"messages_{name}"] for name in ("acknowledged", "reconstructed"))
