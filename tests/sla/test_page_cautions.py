"""What weakens the verdict stands beside it: evidence that nobody has seen, and clocks that cannot have been right."""

from typing import Any

import pytest

from shadowrelay.sla.objectives import LOG_ENDS
from shadowrelay.sla.page.cautions import cautions
from shadowrelay.sla.page.document import render
from tests.kit import summaries
from tests.kit.html_pages import Element, Page

DROPPED = {"server": "mx1", "name": "MSGTRK2026110307-2.LOG", "reason": "size", "at": "2026-11-03T08:00:00Z"}
UNREADABLE = {"reason": "unreadable file", "count": 2, "examples": [{"server": "mx1", "file": "MSGTRK2026110307-1.LOG", "line": 0}]}
TORN = {"reason": "torn", "count": 5, "examples": []}
GAPS: list[tuple[dict[str, Any], int, str]] = [
    ({"files_missing": 3_000}, 0, "3,000 missing log files"),
    ({"files_missing": 1}, 0, "1 missing log file"),
    ({"dropped_before_shipping": [DROPPED]}, 0, "1 file dropped before it was shipped"),
    ({"dropped_before_shipping": [DROPPED], "dropped_count": 20_000}, 0, "20,000 files dropped before they were shipped"),
    ({"quarantine": [TORN]}, 5, "5 lines in quarantine"),
    ({"quarantine": [UNREADABLE]}, 2, "2 unreadable files"),
    (
        {"files_missing": 3, "dropped_before_shipping": [DROPPED, DROPPED], "quarantine": [UNREADABLE, TORN]},
        7,
        "3 missing log files, 2 files dropped before they were shipped, 2 unreadable files, 5 lines in quarantine",
    ),
]
LATE, EARLY = "2099-01-01T00:00:00Z", "2026-11-21T16:00:30Z"  # after the report was made, and within what clocks differ


def test_what_is_unknown_because_a_log_ends_is_not_seen_and_no_loss() -> None:
    summary = summaries.demo()
    summary["causes"]["losses"] = {LOG_ENDS: 3}
    page = Page(render(summary))

    assert page.all("h1")[0].text.endswith("Not seen: what became of 3 recipients after a server's log ended.")
    assert f"{LOG_ENDS}" in page.by_id("losses").text
    assert "no recipient lost" in render(summary)


def test_cautions_are_sentences_that_standard_error_has_too() -> None:
    summary = called(summaries.one_message(), "MX1")
    summary["now"] = summary["input"]["last_at"] = LATE
    [clocks, names] = cautions(summary)

    assert clocks[-1] == "--now sets the right instant."
    assert names[0] == "There is no log of mx1.east.example, but one of MX1."
    assert [] == cautions(summaries.demo()) == cautions(summaries.empty())


def test_a_caution_is_never_cut_however_long_the_names_are() -> None:
    long = "x" * 100
    takeover = summaries.demo()["takeovers"][0] | {"old_primary": f"{long}.a", "new_primary": f"{long}2.a"}
    summary = summaries.empty() | {"takeovers": [takeover]}
    summary["input"]["servers"] = [summaries.demo()["input"]["servers"][0] | {"name": name} for name in (long, f"{long}2")]
    [said] = cautions_of(summary)

    assert said.text.endswith("give each directory the server's full name, and make a warehouse of these logs anew.")


def with_gaps(given: dict[str, Any], quarantined: int) -> dict[str, Any]:
    summary = summaries.demo()
    summary["input"] |= given
    summary["overall"]["lines_quarantined"] = quarantined
    return summary


def cautions_of(summary: dict[str, Any]) -> list[Element]:
    return [item for item in Page(render(summary)).all("li") if item.parents[-1].get("class") == "cautions"]


@pytest.mark.parametrize(("given", "quarantined", "said"), GAPS)
def test_the_headline_names_what_was_not_seen(given: dict[str, Any], quarantined: int, said: str) -> None:
    page = Page(render(with_gaps(given, quarantined)))
    headline = page.all("h1")[0]

    assert f"The promise was kept, as far as the logs go: all 5 safety targets met. Not seen: {said}." == headline.text
    assert [("#input", said)] == [(link.get("href"), link.text) for link in headline.below("a")]
    assert "mark partly" == next(headline.parents[-2].below("svg")).get("class")  # not the sign of a promise that was kept
    assert page.all("title")[0].text.startswith("The promise was kept, as far as the logs go")


def test_with_all_evidence_seen_the_headline_has_no_restriction() -> None:
    page = Page(render(summaries.demo()))

    assert "The promise was kept: all 5 safety targets met." == page.all("h1")[0].text
    assert "mark met" == page.all("svg")[0].get("class")


def test_a_promise_that_was_not_kept_stays_so() -> None:
    page = Page(render(summaries.with_verdicts(with_gaps({"files_missing": 1}, 0), redundancy_ratio="missed")))

    assert "The promise was not kept: 1 of 5 safety targets missed. Not seen: 1 missing log file." == page.all("h1")[0].text
    assert "mark missed" == page.all("svg")[0].get("class")


def test_the_list_of_dropped_files_says_how_many_there_are() -> None:
    cut, whole = (Page(render(with_gaps({"dropped_before_shipping": [DROPPED], "dropped_count": number}, 0))) for number in (20_000, 1))

    assert "1 of 20,000 shown; all in shipping.json of the warehouse" in cut.by_id("dropped-table-caption").text
    assert "1 in all" in whole.by_id("dropped-table-caption").text
    assert "Files dropped before shipping20,000" in cut.by_id("input").text


def test_a_row_from_the_future_is_a_visible_caution_that_names_the_server() -> None:
    summary = summaries.demo()
    summary["now"] = summary["input"]["last_at"] = summary["input"]["servers"][1]["last_at"] = LATE
    [said] = cautions_of(summary)

    assert said.text == (
        "Caution: The newest event is dated 2099-01-01 00:00 UTC, after this report was made (2026-11-21 16:00 UTC): a clock was wrong, "
        f"by the logs of {summary['input']['servers'][1]['name']}. All is judged as of 2099-01-01 00:00 UTC, which is still to come: "
        "mail that only waits may count as lost, and copies as left behind. --now sets the right instant."
    )
    assert "headline" in [parent.get("class") for parent in said.parents]
    assert "true" == next(said.below("svg")).get("aria-hidden")


def test_now_and_the_newest_row_are_cautioned_of_apart() -> None:
    judged, dated = summaries.demo(), summaries.demo()
    judged["now"] = LATE
    dated["input"]["last_at"] = LATE

    assert cautions_of(judged)[0].text.startswith("Caution: All is judged as of 2099-01-01 00:00 UTC, which is still to come")
    assert cautions_of(dated)[0].text.strip().endswith("a clock was wrong.")


def test_many_servers_with_wrong_clocks_are_counted() -> None:
    summary = summaries.month()
    summary["input"]["last_at"] = LATE
    summary["input"]["servers"] = [
        one | {"name": f"mx{index}", "last_at": LATE} for index, one in enumerate(summary["input"]["servers"] * 2)
    ]

    assert "by the logs of mx0, mx1, mx2 and 5 others" in cautions_of(summary)[0].text


def silent(summary: dict[str, Any], last_at: str, done: int) -> dict[str, Any]:
    """As if the first server's log ended then, with so many of its messages done."""
    server = summary["input"]["servers"][0]
    server["last_at"] = last_at
    for line in summary["figures"]:
        if (line["scope"], line["window"], line["name"]) == ("server", "all", server["name"]):
            line["messages_done"] = done
    return summary


def test_a_server_that_fell_silent_with_mail_in_its_queue_is_said_and_no_green_sign_is_given() -> None:
    summary = silent(summaries.one_message() | {"incidents": []}, "2026-11-21T11:59:00Z", -1)
    page, [said] = Page(render(summary)), cautions_of(summary)

    assert "as far as" in page.all("h1")[0].text
    assert page.all("h1")[0].text.endswith("Not seen: what became of 1 message after the log of mx1.east.example ended.")
    assert said.text.replace("\u00a0", " ") == (
        "Caution: The log of mx1.east.example ends at 2026-11-21 11:59 UTC, 4 h 1 min before the newest event. Either such a server was "
        "down, and mail is in its queue, or the rest of its log was not collected."
    )
    assert "no server was lost" not in page.by_id("happened").text


@pytest.mark.parametrize(("last_at", "done"), [("2026-11-21T13:00:00Z", -1), ("2026-11-21T01:00:00Z", 0)])
def test_a_server_that_is_silent_for_less_than_the_span_or_had_no_mail_is_no_news(last_at: str, done: int) -> None:
    assert [] == cautions(silent(summaries.one_message(), last_at, done))


def test_a_silent_server_that_was_taken_over_is_an_incident_and_no_caution() -> None:
    summary = silent(summaries.one_message(), "2026-11-21T01:00:00Z", -1)
    name = summary["input"]["servers"][0]["name"]

    assert [] == cautions(summary | {"takeovers": [summaries.demo()["takeovers"][0] | {"old_primary": name, "new_primary": name}]})


def called(summary: dict[str, Any], *names: str) -> dict[str, Any]:
    """As if the directories of the first servers had these names."""
    for server, name in zip(summary["input"]["servers"], names, strict=False):
        server["name"] = name
    return summary


def test_a_directory_with_a_short_name_is_a_visible_caution_with_what_to_do() -> None:
    [said] = cautions_of(called(summaries.one_message(), "MX1"))

    assert said.text == (
        "Caution: There is no log of mx1.east.example, but one of MX1. If that is the same server, it counts as two here, and causes may "
        "be wrong: give the directory the server's full name, and make a warehouse of these logs anew."
    )
    [said] = cautions_of(called(summaries.one_message(), "mx1", "mx2"))
    assert "There are no logs of mx1.east.example, mx2.east.example, but of mx1, mx2. If these are the same servers" in said.text


def test_a_name_that_no_directory_has_or_several_have_is_no_news() -> None:
    summary = called(summaries.one_message(), "mx", "mx2.east.example.com")
    several = called(summaries.one_message(), "mx1", "mx2.east.example")
    several["input"]["servers"].append(several["input"]["servers"][0] | {"name": "MX1"})

    assert [] == cautions_of(summary) == cautions_of(several)


def test_a_server_that_is_only_taken_over_is_spoken_of_too() -> None:
    summary = summaries.empty() | {"takeovers": [summaries.demo()["takeovers"][0] | {"old_primary": "old.a", "new_primary": "new.a"}]}
    summary["input"]["servers"] = [summaries.demo()["input"]["servers"][0] | {"name": "old"}]

    assert "no log of old.a, but one of old." in cautions_of(summary)[0].text


def test_clocks_that_differ_a_little_are_no_news() -> None:
    summary = summaries.demo()
    summary["now"] = summary["input"]["last_at"] = EARLY

    assert [] == cautions_of(summary) == cautions_of(summaries.empty()) == cautions_of(summaries.month())


def test_logs_that_were_collected_twice_are_a_caution() -> None:
    summary = summaries.demo()
    summary["input"] |= {"one_server": [["A1", "a1.nordhof.example"]], "files_alike": 2}

    assert [
        "The directories A1 and a1.nordhof.example have logs of one server: each row counts once.",
        "2 log files have the rows of another one, as a copy has: each row counts once.",
    ] in cautions(summary)


def test_the_page_says_whose_logs_these_are_and_each_reason_once() -> None:
    summary = summaries.demo()
    assert "These are logs of" not in render(summary)
    for one in summary["input"]["servers"][1:]:
        one["format"] = "exchange2016"
    summary["not_computable"] = [
        {"figure": figure, "format": format, "why": "Exchange logs none"}
        for figure in ("shadow_latency", "shadow_share")
        for format in ("exchange2013", "exchange2016")
    ]
    page = render(summary)

    assert "These are logs of Exchange 2016/2019 (" in page
    assert "and shadowrelay (1 server)." in page
    assert 1 == page.count("Exchange logs none")
