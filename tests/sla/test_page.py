"""The report page: whole, closed to the outside, usable without eyes or mouse, and honest about what it leaves out."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest

from shadowrelay.sla.incident_list import incidents
from shadowrelay.sla.objectives import NOT_LOGGED
from shadowrelay.sla.page.comparison import MAIN_FIGURES
from shadowrelay.sla.page.document import render
from shadowrelay.sla.page.labels import FIGURES
from shadowrelay.sla.page.message_lists import meaning_of
from tests.kit import summaries
from tests.kit.html_pages import Element, Page

_ALL = (summaries.empty, summaries.one_message, summaries.demo, summaries.healthy, summaries.month, summaries.exchange, summaries.hostile)
MAKERS = {maker.__name__: maker for maker in _ALL}


@cache
def text_of(name: str) -> str:
    return render(MAKERS[name]())


@cache
def page_of(name: str) -> Page:
    return Page(text_of(name))


@pytest.fixture(params=MAKERS)
def page(request: pytest.FixtureRequest) -> Page:
    return page_of(request.param)


def of_exchange(summary: dict[str, Any], version: str) -> dict[str, Any]:
    for server in summary["input"]["servers"]:
        server["format"] = version
    return summary


def lead_of(summary: dict[str, Any]) -> str:
    return next(one.text for one in Page(render(summary)).all("p") if one.get("class") == "lead").replace("\xa0", " ")


def with_overall(summary: dict[str, Any], **figures: Any) -> dict[str, Any]:
    summary["overall"] |= figures
    return summary


# whole


def test_ids_are_unique(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))


def test_every_link_and_reference_leads_somewhere_in_the_page(page: Page) -> None:
    targets = [link.get("href") for link in page.all("a")]
    references = [name for element in page.elements for name in element.get("aria-labelledby").split()]

    assert [] == [target for target in targets if not target.startswith("#")]
    assert set() == set(references) - set(page.ids)
    assert set() == {target[1:] for target in targets} - set(page.ids)


@pytest.mark.parametrize("name", ["healthy", "exchange"])
def test_a_reader_is_told_whose_targets_these_are(name: str) -> None:
    assert "These are this report's targets, not the mail system's; --objectives sets others." in text_of(name)


def test_the_same_summary_gives_the_same_page() -> None:
    assert text_of("month") == render(summaries.month())


# closed to the outside


def test_the_page_names_no_place_outside(page: Page) -> None:
    loading = [
        element for element in page.elements if {"src", "srcset", "data", "action", "poster", "background"} & set(element.attributes)
    ]
    styles = "".join(element.text for element in page.all("style"))

    assert [] == [element.name for element in loading]
    assert [] == page.all("link") + page.all("iframe") + page.all("img") + page.all("base") + page.all("form")
    assert not re.search(r"url\(|@import|@font-face|https?:", styles)
    assert "http" not in page.all("script")[0].text


def test_the_policy_allows_the_one_style_and_the_one_script_by_their_hashes(page: Page) -> None:
    policy = next(element.get("content") for element in page.all("meta") if element.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    def allowed(name: str) -> list[str]:
        return [f"'sha256-{b64encode(sha256(element.text.encode()).digest()).decode()}'" for element in page.all(name)]

    assert {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"} == {
        name: rule for name, rule in rules.items() if not name.startswith(("style", "script"))
    }
    assert ([rules["style-src"]], [rules["script-src"]]) == (allowed("style"), allowed("script"))


def test_nothing_is_styled_or_scripted_in_attributes(page: Page) -> None:
    names = {name for element in page.elements for name in element.attributes}

    assert set() == {name for name in names if name == "style" or name.startswith("on")}


def test_hostile_text_stays_text() -> None:
    summary = summaries.hostile()
    page, text = page_of("hostile"), text_of("hostile")
    trace = next(iter(summary["traces"]))

    assert (1, 1) == (len(page.all("script")), len(page.all("style")))
    assert [] == [character for character in "\u202e\x00\r\udc80" if character in text]
    assert trace[:60] in page.by_id("traces").text  # it is there, to be read
    assert "\\u202e" in page.by_id("traces").text
    assert " characters)" in page.by_id("traces").text  # what is absurdly long is cut, and says so
    assert text.encode()  # no surrogate is left


def test_two_hostile_ids_have_two_traces() -> None:
    summary = summaries.empty()
    summary["traces"] = {"a b": [], "a\u00a0b": [], "A": [], "a": []}

    assert 4 == len([name for name in Page(render(summary)).ids if name.startswith("trace-")])


def test_no_message_id_takes_the_id_of_something_else_in_the_page() -> None:
    summary = summaries.demo()
    names = ["other", "other-traces", "report", *page_of("demo").ids, *[name.removeprefix("trace-") for name in page_of("demo").ids]]
    summary["traces"] |= {name: [] for name in names}
    ids = Page(render(summary)).ids

    assert len(ids) == len(set(ids))


# usable by everybody


def test_every_drawing_has_a_name_or_is_hidden_from_readers(page: Page) -> None:
    for drawing in page.all("svg"):
        if drawing.get("aria-hidden") != "true":
            names = [page.by_id(name) for name in drawing.get("aria-labelledby").split()]
            assert ("img", ["title", "desc"]) == (drawing.get("role"), [name.name for name in names])
            assert all(name.text.strip() for name in names)


def test_every_plot_has_its_figures_as_a_table(page: Page) -> None:
    for figure in page.all("figure"):
        assert [1, 1] == [len(list(figure.below(name))) for name in ("details", "table")]
        assert list(figure.below("td"))


def test_every_table_has_a_caption_and_scoped_headings(page: Page) -> None:
    for table in page.all("table"):
        assert next(table.below("caption")).text.strip()
        assert [] == [head.text for head in table.below("th") if head.get("scope") not in ("col", "row")]
        columns = [head for head in table.below("th") if head.get("scope") == "col"]
        for row in table.below("tr"):
            assert len(columns) == len(row.children)
        assert table.parents[-1].get("tabindex") == "0"  # it can be scrolled with keys


def test_headings_follow_each_other_without_gaps(page: Page) -> None:
    levels = [int(element.name[1]) for element in page.elements if re.fullmatch("h[1-6]", element.name)]

    assert (1, 1) == (levels[0], levels.count(1))
    assert [] == [(one, other) for one, other in pairwise(levels) if other > one + 1]


def test_landmarks_are_there_and_named(page: Page) -> None:
    assert [1, 1, 1, 1] == [len(page.all(name)) for name in ("header", "main", "nav", "footer")]
    assert page.all("nav")[0].get("aria-label")
    assert [] == [section.get("id") for section in page.all("section") if not section.get("aria-labelledby")]
    assert "#report" == page.all("a")[0].get("href")
    assert "en" == page.all("html")[0].get("lang")


COLOURS = re.compile(r"--([a-z0-9-]+): (#[0-9a-f]{6});")


def schemes() -> dict[str, dict[str, str]]:
    """The colours of light, dark and paper; what a later one does not name is the first one's."""
    style = page_of("empty").all("style")[0].text
    roots = [dict(COLOURS.findall(block)) for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)]
    return {name: roots[0] | colours for name, colours in zip(("light", "dark", "paper"), roots, strict=True)}


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast of two colours, 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark", "paper"])
def test_contrasts_are_at_least_those_of_wcag_aa(scheme: str) -> None:
    colours = schemes()[scheme]
    texts = [(front, back) for front in ("ink", "quiet", "link", "met", "missed") for back in ("paper", "panel")]
    texts += [(front, "paper") for front in ("first", "second", "third", "promise", "warn")]
    texts += [("ink", f"h{level}") for level in range(1, 6)] + [("on-mark", "met"), ("on-mark", "missed")]
    shapes = [(front, "paper") for front in ("bar", "strong-rule", "focus")]

    assert {} == {pair: value for pair in texts if (value := contrast(colours[pair[0]], colours[pair[1]])) < 4.5}
    assert {} == {pair: value for pair in shapes if (value := contrast(colours[pair[0]], colours[pair[1]])) < 3}


# what it says


def test_logs_that_have_nothing_about_takeovers_say_no_server_was_safe() -> None:
    """Exchange 2010 has no redundancy events; later versions log takeovers, but not their times."""
    nothing = {"promotions": 0, "messages_promoted": 0, "recipients_duplicated": 0, "recipients_duplicated_unexplained": 0}
    summaries_of = {
        version: with_overall(of_exchange(summaries.one_message(), version), **nothing) | {"incidents": []}
        for version in ("exchange2010", "exchange2013", "exchange2016", "shadowrelay")
    }

    assert lead_of(summaries_of["exchange2010"]).endswith("; they do not tell whether a server was taken over.")
    assert "no server was" not in Page(render(summaries_of["exchange2010"])).by_id("happened").text
    for version in ("exchange2013", "exchange2016"):  # nor does what logs no takeover say that no server was lost, or no network cut
        assert lead_of(summaries_of[version]).endswith("; no takeover was logged.")
        happened = Page(render(summaries_of[version])).by_id("happened").text
        assert "Nothing that these logs tell: no takeover was logged" in happened
        assert "network" not in happened
    assert lead_of(summaries_of["shadowrelay"]).endswith("; no server was taken over.")
    assert "Nothing: no server was lost" in Page(render(summaries_of["shadowrelay"])).by_id("happened").text


def test_a_takeover_by_exchange_leaves_the_exposure_open_everywhere() -> None:
    summary = with_overall(summaries.demo(), messages_exposed=0, messages_exposure_unknown=3, exposure_max_seconds=0.0)
    exposure = next(one for one in summary["objectives"] if one["name"] == "exposure")
    exposure |= {"actual": None, "good": 600, "bad": 0, "unknown": 3, "verdict": "not computable", "budget_left": None}
    page = Page(render(summary | {"exposures": []}))

    said = "of 3 messages that were taken over Exchange's logs do not tell"
    card, section = (page.by_id(each).text.replace("\xa0", " ") for each in ("target-exposure", "exposure"))
    assert "not computable" in card
    assert card.rstrip().endswith("what these logs do not tell")
    assert said in card
    assert f"no other message; {said}" in section
    assert not any("No message depended on one copy." in one.text for one in page.all("p"))
    names = ("Messages with one copy only for a time", "Longest time with one copy only")
    main = {figure.title: figure.said(summary, summary) for figure in MAIN_FIGURES}
    assert ["\N{EN DASH}"] * 2 == [main[name] for name in names]
    some = summary | {"overall": summary["overall"] | {"messages_exposed": 2, "exposure_max_seconds": 3.0}}
    assert ["at least 2", "at least 3\N{NO-BREAK SPACE}s"] == [
        figure.said(summary, some) for figure in MAIN_FIGURES if figure.title in names
    ]


def test_what_no_log_has_rows_about_is_a_dash_and_no_0() -> None:
    summary = of_exchange(with_overall(summaries.demo(), promotions=0, shadows_orphaned=0, messages_exposed=0), "exchange2010")
    main = {figure.title: figure.said(summary, summary) for figure in MAIN_FIGURES}
    names = ("Takeovers", "Left-over copies", "Messages with one copy only for a time")
    assert ["\N{EN DASH}"] * 3 == [main[name] for name in names]
    assert "\N{EN DASH}" != main["Duplicates"]


def keys_of(page: Page, section: str) -> dict[str, str]:
    pairs = [
        (next(pair.below("dt")).text, next(pair.below("dd")).text) for keys in page.by_id(section).below("dl") for pair in keys.below("div")
    ]
    return {name: value.replace("\xa0", " ") for name, value in pairs}


def cells_of(page: Page, table: str) -> dict[str, list[str]]:
    rows = {next(row.below("th")).text: row for row in rows_of(page, table)}
    return {name: [cell.text.replace("\xa0", " ") for cell in row.below("td")] for name, row in rows.items()}


def without_copies(summary: dict[str, Any], **more: Any) -> dict[str, Any]:
    """As of logs in which nothing is about copies, or no copy was made."""
    nothing = {
        "promotions": 0,
        "messages_promoted": 0,
        "shadows_orphaned": 0,
        "messages_exposed": 0,
        "discards_late": 0,
        "exposure_count": 0,
    }
    nothing |= {"messages_reconstructed": 0, "discard_lag_ms": {"count": 0, "p50": None, "p95": None, "max": None}} | more
    for figures in summary["figures"]:
        figures |= nothing
    summary["figures"] = [one for one in summary["figures"] if one["scope"] != "pair"]
    lists: dict[str, list[Any]] = {name: [] for name in ("takeovers", "orphans", "exposures")}
    return with_overall(summary, **nothing) | lists | {"causes": summary["causes"] | {"orphans": {}, "exposures": {}}}


def test_what_a_format_cannot_tell_is_nowhere_a_zero_or_a_nothing() -> None:
    page = Page(render(without_copies(of_exchange(summaries.demo(), "exchange2010"))))
    text = page.by_id("report").text

    for said in (
        "No server was taken over",
        "There are no left-over copies",
        "No message depended on one copy",
        "no message",
        "No copies between",
    ):
        assert said not in text
    assert "These logs do not tell whether a server was taken over." in page.by_id("takeovers").text
    for name in ("orphans", "exposures", "servers"):
        assert "These logs do not tell" in page.by_id(name).text
    keys = keys_of(page, "redundancy") | keys_of(page, "exposure") | keys_of(page, "discard-lag")
    assert ["\N{EN DASH}"] * 3 == [keys[name] for name in ("Reconstructed from copies", "Had one copy only for a time", "Late")]
    columns = ("exposed", "promoted", "duplicated", "lost", "orphaned")
    for cells in cells_of(page, "server-figures").values():
        told = dict(zip(columns, cells[4:], strict=True))
        assert ["\N{EN DASH}"] * 3 == [told[name] for name in ("exposed", "promoted", "orphaned")]
        assert "\N{EN DASH}" not in (told["lost"], told["duplicated"])


def test_of_two_formats_each_server_has_the_dashes_of_its_own() -> None:
    summary = without_copies(summaries.demo())
    old, new = (server["name"] for server in summary["input"]["servers"][:2])
    summary["input"]["servers"][0]["format"] = "exchange2010"
    page = Page(render(summary))
    by_server = cells_of(page, "server-figures")

    assert ("\N{EN DASH}", "0") == (by_server[old][-1], by_server[new][-1])
    assert ("\N{EN DASH}", "no message") == (by_server[old][4], by_server[new][4])
    assert "There are no left-over copies." in page.by_id("orphans").text


def test_where_no_copy_was_made_none_is_left_over_or_late_and_that_is_no_good_news() -> None:
    summary = summaries.with_verdicts(
        without_copies(of_exchange(summaries.demo(), "exchange2016")), shadows_orphaned="no data", discard_lag="no data"
    )
    page = Page(render(summary))

    assert "There are no left-over copies." not in page.by_id("orphans").text
    assert "No copy was made, so none is left over." in page.by_id("orphans").text
    assert "\N{EN DASH}" == keys_of(page, "discard-lag")["Late"]
    main = {figure.title: figure.said(summary, summary) for figure in MAIN_FIGURES}
    assert "\N{EN DASH}" == main["Left-over copies"]


@pytest.mark.parametrize(
    ("name", "figures", "said"),
    [
        ("recipients_lost", {"actual": 1, "bad": 1}, "1 recipient lost (promised: none)"),
        ("recipients_duplicated_unexplained", {"actual": 4, "bad": 4}, "4 recipients with an unexplained duplicate (promised: none)"),
        ("shadows_orphaned", {"actual": 8, "bad": 8, "objective": 2}, "8 left-over copies (promised: at most 2)"),
        ("redundancy_ratio", {"actual": 0.987}, "second copy before the 250: 98.7 % (promised: 99.99 %)"),
        (
            "exposure",
            {"good": 398, "bad": 2},
            "2 of 400 messages with one copy only for longer than 10 min (promised: 99.99 % without)",
        ),
        ("delivery_latency", {"actual": 0.9}, "delivered quickly: 90 % (promised: 99 % within 1 min)"),
    ],
)
def test_a_missed_target_in_the_head_says_what_happened_and_not_what_was_wished(name: str, figures: dict[str, Any], said: str) -> None:
    summary = summaries.with_verdicts(summaries.demo(), **{name: "missed"})
    next(one for one in summary["objectives"] if one["name"] == name).update(figures)
    links = [link.text.replace("\xa0", " ") for link in Page(render(summary)).all("a") if link.get("href") == f"#target-{name}"]

    assert [said] == links


@pytest.mark.parametrize(
    ("causes", "said"),
    [
        ({"no trace": 3}, "3 recipients lost, "),
        ({"no trace": 1, "not in the next log": 2}, "3 recipients lost, 2 of them perhaps only for want of a row, "),
        ({"discarded, end not logged": 3}, "3 recipients without an end in the logs, perhaps for want of a row, "),
    ],
)
def test_the_headline_calls_lost_what_a_missing_row_does_not_explain(causes: dict[str, int], said: str) -> None:
    summary = with_overall(of_exchange(summaries.demo(), "exchange2016"), recipients_lost=3)
    summary["causes"]["losses"] = causes

    assert f" {said}" in lead_of(summary)


def test_what_exchange_does_not_tell_is_not_called_explained() -> None:
    summary = with_overall(of_exchange(summaries.demo(), "exchange2016"), recipients_duplicated=5, recipients_duplicated_unexplained=0)
    summary["causes"]["duplicates"] = {"not told by Exchange": 3, "taken over": 2}

    assert "5 recipients got a message more than once (of 3 of them Exchange's logs do not tell why);" in lead_of(summary)
    summary["causes"]["duplicates"] = {"taken over": 5}
    assert "5 recipients got a message more than once (all explained);" in lead_of(summary)


def test_the_sections_come_in_their_order(page: Page) -> None:
    wanted = ["objectives", "happened", "comparison", "budget", "redundancy", "latency", "exposure", "discard-lag", "takeovers", "servers"]

    assert [*wanted, "incidents", "traces", "not-computable", "input", "definitions"] == [
        one.get("id") for one in page.all("section") if not one.inside("section")
    ]


HEADLINES = [
    ("empty", "There is nothing to judge."),
    ("one_message", "The promise was kept: all 5 safety targets met."),
    ("demo", "The promise was kept: all 5 safety targets met."),
    (
        "month",
        "The promise was not kept: 4 of 5 safety targets missed. "
        "Not seen: 3 missing log files, 1 file dropped before it was shipped, 16 lines in quarantine.",
    ),
]


@pytest.mark.parametrize(("name", "said"), HEADLINES)
def test_the_headline_says_whether_the_promise_was_kept(name: str, said: str) -> None:
    assert said == page_of(name).all("h1")[0].text


def test_the_sentence_below_it_has_the_figures_that_matter() -> None:
    summary = with_overall(summaries.demo(), messages_acknowledged=1_204, redundancy_ratio=0.99996, recipients_lost=1)
    summary["overall"] |= {"recipients_duplicated": 5, "recipients_duplicated_unexplained": 2, "promotions": 1, "messages_promoted": 1}
    summary["overall"] |= {"messages_done": 1_201, "messages_by_copies": {"0": 0, "1": 1_204, "2": 0, "3": 0}}
    lead = next(one.text for one in Page(render(summary)).all("p") if one.get("class") == "lead")

    assert lead.replace("\xa0", " ") == (
        "Of 1,204 acknowledged messages, 99.996 % had a synced copy on a second server before the client got its 250; "
        "1 recipient lost, 5 recipients got a message more than once (2 of them unexplained); 3 messages not done; 1 takeover of 1 message."
    )


def test_a_share_of_few_messages_is_not_said_of_all() -> None:
    """As of Exchange's probes without recipients, or of logs of 2010 beside others."""
    summary = with_overall(summaries.demo(), messages_acknowledged=390, redundancy_ratio=1.0)
    summary["overall"]["messages_by_copies"] = {"0": 0, "1": 300, "2": 0, "3": 0}
    lead = next(one.text for one in Page(render(summary)).all("p") if one.get("class") == "lead")

    assert lead.replace("\xa0", " ").startswith(
        "Of 390 acknowledged messages, these logs tell of 300 whether there was a second copy: 100 % of those had a synced one on a second "
        "server before the client got its 250; "
    )


def test_each_objective_has_its_verdict_in_words_and_shape() -> None:
    verdicts = {"redundancy_ratio": "met", "exposure": "missed", "recipients_lost": "no data", "takeover": "not computable"}
    summary = summaries.with_verdicts(summaries.month(), **verdicts, shadow_latency="missed")
    page = Page(render(summary))
    signs = {}
    for objective in summary["objectives"]:
        card = page.by_id(f"target-{objective['name']}")
        signs[objective["name"]] = "".join(part.get("d") or part.name for part in next(card.below("svg")).children)
        assert objective["verdict"] == next(card.below("b")).text

    assert 5 == len({signs[name] for name in (*verdicts, "shadow_latency")})  # slow is another sign than unsafe


def test_slow_mail_is_no_broken_promise() -> None:
    slow = {"shadow_latency": "missed", "discard_lag": "missed"}
    page = Page(render(summaries.with_verdicts(summaries.demo(), **slow)))
    (speed,) = [one for one in page.all("p") if one.get("class") == "speed slow"]

    assert "The promise was kept: all 5 safety targets met." == page.all("h1")[0].text
    assert speed.text.startswith("Speed: 2 of 4 targets missed: second copy made quickly: ")
    assert "; copies cleaned up in time: " in speed.text
    assert ["#target-shadow_latency", "#target-discard_lag"] == [link.get("href") for link in speed.below("a")]
    assert [] == [one.get("class") for one in page.elements if "missed" in one.get("class").split()]  # nothing is red


def test_missed_safety_targets_are_named_below_the_headline() -> None:
    page = Page(render(summaries.with_verdicts(summaries.demo(), exposure="missed", recipients_lost="missed")))
    (missed,) = [one for one in page.all("p") if one.get("class") == "broken"]

    said = missed.text.replace("\xa0", " ")
    assert said.startswith("Missed: 0 of ")
    assert said.endswith(" with one copy only for longer than 10 min (promised: 99.99 % without); 0 recipients lost (promised: none).")
    assert ["#target-exposure", "#target-recipients_lost"] == [link.get("href") for link in missed.below("a")]
    assert "Missed:" not in text_of("demo")


def test_what_was_counted_has_its_unit() -> None:
    said = {
        name: next(part.text for part in page_of("month").by_id(f"target-{name}").below("p") if part.get("class") == "actual")
        for name in ("recipients_lost", "shadows_orphaned")
    }

    assert {"recipients_lost": "7 recipients", "shadows_orphaned": "212 copies"} == said


def test_a_report_on_an_interval_says_of_which() -> None:
    summary = summaries.demo() | {"since": "2026-11-21T15:00:00Z", "until": "2026-11-21T15:30:00Z"}
    pages = (Page(render(summary)), page_of("demo"))
    said, whole = (next(one.text for one in page.all("p") if one.get("class") == "period") for page in pages)

    assert said.replace("\xa0", " ").startswith("Mail from 2026-11-21 15:00 UTC to 2026-11-21 15:30 UTC\n(30 min)")
    assert whole.startswith("2026-11-21 14:40 UTC to 2026-11-21 16:00 UTC")


def test_an_interval_without_an_end_goes_to_now() -> None:
    summary = summaries.demo() | {"since": "2026-11-21T14:00:00Z", "now": "2026-11-21T18:00:00Z"}
    said = next(one.text for one in Page(render(summary)).all("p") if one.get("class") == "period")

    assert said.startswith("Mail from 2026-11-21 14:00 UTC to 2026-11-21 18:00 UTC\n(4\N{NO-BREAK SPACE}h)")


def test_every_target_says_within_what() -> None:
    summary = summaries.demo()
    page = Page(render(summary))
    said = {
        one["name"]: next(part.text for part in page.by_id(f"target-{one['name']}").below("p") if part.get("class") == "promised")
        for one in summary["objectives"]
    }

    assert {
        "redundancy_ratio": "target: 99.99 % before the 250",
        "shadow_latency": "target: 99 % within 250 ms",
        "exposure": "target: 99.99 % within 10 min",
        "discard_lag": "target: 99 % within 2 min",
        "delivery_latency": "target: 99 % within 1 min",
        "takeover": "target: 99 % within 3 h 2 min of the last sign of life, or 2 min of finding the disk empty",
        "recipients_lost": "target: none without an end within 2 d",
        "recipients_duplicated_unexplained": "target: none in the whole period",
        "shadows_orphaned": "target: none held longer than 4 d",
    } == {name: text.replace("\xa0", " ") for name, text in said.items()}


def test_a_target_that_was_lowered_says_so() -> None:
    summary = summaries.demo()
    lowered = next(one for one in summary["objectives"] if one["name"] == "discard_lag")
    raised = next(one for one in summary["objectives"] if one["name"] == "delivery_latency")
    lowered |= {"objective": 0.5}
    raised |= {"within_seconds": 5.0}
    summary["times"]["shadow_heartbeat_frequency"]["seconds"] = 1.0
    page = Page(render(summary))

    assert "lowered from the default 99 % within 2 min" in page.by_id("target-discard_lag").text.replace("\xa0", " ")
    assert "raised from the default 99 % within 1 min" in page.by_id("target-delivery_latency").text.replace("\xa0", " ")
    assert "default" not in page.by_id("target-exposure").text
    assert "heartbeat 1 s (default 2 min)." in page.by_id("objectives").text.replace("\xa0", " ")


def test_a_few_messages_have_no_budget_and_a_large_debt_is_no_large_percentage() -> None:
    summary = summaries.demo()
    few, many = summary["objectives"][0], summary["objectives"][1]
    few |= {"good": 450, "bad": 150, "budget_left": None, "verdict": "missed"}
    many |= {"good": 0, "bad": 10_000, "objective": 0.99, "budget_left": -99.0, "verdict": "missed"}
    said = [next(row.below("span")).text for row in rows_of(Page(render(summary)), "budget-table")]

    assert ["overdrawn: 150 failed, and so few messages allow less than 1", "overdrawn: 10,000 failed, 100 allowed"] == said[:2]
    assert 6 == len(said)  # what allows no failure has no budget
    few |= {"good": 600, "bad": 0, "verdict": "met"}
    said = [next(row.below("span")).text for row in rows_of(Page(render(summary)), "budget-table")]
    assert "too few messages for a budget" == said[0]


def test_an_allowance_is_rounded_down() -> None:
    summary = summaries.demo()
    summary["objectives"][1] |= {"good": 190, "bad": 0, "objective": 0.99, "budget_left": 1.0, "verdict": "met"}

    assert "1" == [cell.text for cell in rows_of(Page(render(summary)), "budget-table")[1].below("td")][-1]


def test_a_list_that_was_cut_says_so() -> None:
    page = page_of("month")

    assert "200 of 3,411 shown; all in tables/duplicates" in page.by_id("duplicates-table-caption").text
    assert "7 in all" in page.by_id("losses-table-caption").text


def rows_of(page: Page, table: str) -> list[Element]:
    return [row for row in page.by_id(f"{table}-caption").parents[-1].below("tr") if row.inside("tbody")]


def test_each_message_leads_to_its_trace_or_to_how_to_get_it() -> None:
    summary, page = summaries.month(), page_of("month")
    found = {link.text: link.get("href") for row in rows_of(page, "duplicates-table") for link in row.below("a")}

    assert {one["message"] for one in summary["duplicates"]} == set(found)
    assert found == {message: f"#trace-{message}" if message in summary["traces"] else "#other-traces" for message in found}
    assert {True, False} == {message in summary["traces"] for message in found}
    assert "shadowrelay sla trace MESSAGE-ID --warehouse DIR" in page.by_id("other-traces").text


def test_a_trace_shows_every_event_in_order() -> None:
    summary, page = summaries.demo(), page_of("demo")
    message, rows = next(iter(summary["traces"].items()))
    events = list(page.by_id(f"trace-{message}").below("li"))

    assert [row["event"] for row in rows] == [next(event.below("b")).text for event in events]
    assert [row["text"] for row in rows if row["text"]] == [
        part.text for event in events for part in event.below("p") if part.get("class") == "log-text"
    ]


def test_a_trace_says_of_how_many_recipients_it_names_only_some() -> None:
    summary = summaries.demo()
    message, rows = next(iter(summary["traces"].items()))
    rows[0] |= {"recipients": [f"r{number}@x.example" for number in range(20)], "recipients_count": 1_000}
    rows[1] |= {"recipients": ["r@x.example"], "recipients_count": 1}
    said = [item.text for item in Page(render(summary)).by_id(f"trace-{message}").below("li")]

    assert "r4@x.example and 995 others" in said[0]
    assert "for r@x.example" in said[1]
    assert "other" not in said[1]


def test_each_takeover_is_one_row_with_its_stations() -> None:
    summary, page = summaries.month(), page_of("month")
    rows = [item for item in page.by_id("takeovers").below("li") if item.parents[-1].get("class") == "takeovers"]
    stations = [[re.sub(r" \+.*", "", term.text) for term in row.below("dt")] for row in rows]

    assert len(summary["takeovers"]) == len(rows)
    for takeover, said in zip(summary["takeovers"], stations, strict=True):
        assert ["lost", "detected", "promoted", "delivered", "returned" if takeover["returned_at"] else "not yet returned"] == said


def test_a_server_that_was_cut_off_was_not_lost_and_does_not_return() -> None:
    summary = summaries.demo()
    summary["takeovers"][0] |= {"is_cut": True, "in_touch_at": None}
    page = Page(render(summary | {"cuts": [{"between": ["east", "west"]}]}))
    stations = [re.sub(r" \+.*", "", term.text) for term in page.by_id("takeover-0-title").parents[-2].below("dt")]

    assert ["cut off", "detected", "promoted", "delivered", "not yet in touch"] == stations
    assert "the network was cut once" in next(one.text for one in page.all("p") if one.get("class") == "lead")


def test_the_period_before_stands_beside_this_one() -> None:
    summary = summaries.demo()
    before = summaries.month()
    summary["before"] = {"since": "2026-11-21T12:00:00Z", "until": "2026-11-21T14:00:00Z", "is_whole": False}
    summary["before"] |= {"verdict": before["verdict"], "overall": before["overall"] | {"promotions": 2}, "objectives": []}
    page = Page(render(summary))
    rows = {next(row.below("th")).text: [cell.text for cell in row.below("td")] for row in rows_of(page, "comparison-table")}

    assert ["0", "7", "less"] == rows["Recipients lost"]
    assert ["0 of 5", "4 of 5", "less"] == rows["Safety targets missed"]
    assert ["2", "2", "same"] == rows["Takeovers"]
    assert "the logs begin within it" in page.by_id("comparison-table-caption").text
    assert "With --since it is compared" in page_of("demo").by_id("comparison").text


def test_cluster_and_servers_stand_on_top() -> None:
    (cluster,) = [one.text for one in page_of("demo").all("header")[0].below("p") if one.get("class") == "cluster"]

    assert "Cluster example: mx1.east.example, mx2.east.example (east); mx1.west.example (west)" == cluster


@pytest.mark.parametrize("cause", ["no trace", "discarded, end not logged"])
def test_one_incident_is_spoken_of_as_one_and_a_loss_of_which_nobody_is_told_is_listed(cause: str) -> None:
    tell = "sender" if cause == "no trace" else ""
    loss = {"kind": "loss", "at": "2026-11-21T12:00:00Z", "until": None, "who": "e1", "what": f"r@y did not get the message: {cause}"}
    loss |= {"count": 1, "message": "m", "recipient": "r@y", "sender": "s@x", "subject": "A", "tell": tell, "step": ""}
    summary = with_overall(summaries.empty(), recipients_lost=1, recipients_duplicated_unexplained=0) | {"incidents": [loss]}
    caption = Page(render(summary)).by_id("happened-table-caption").text.replace("\xa0", " ")

    assert ("1 incident; a person must be told" if tell else "1 incident") == caption.partition("CSV")[0].strip()


def test_what_happened_names_sender_and_subject_only_where_a_person_must_be_told() -> None:
    heads = {name: [head.text for head in page_of(name).by_id("happened").below("th")][:5] for name in ("demo", "month")}

    assert ["When", "Who", "What"] == heads["month"][:3] == heads["demo"][:3]
    assert re.search(
        r"Then tell the sender writer@src\.example; subject: To reader\d+@sink\.example", page_of("month").by_id("happened").text
    )
    assert "Tell the" not in page_of("demo").by_id("happened").text


def test_a_server_that_was_taken_over_and_logs_no_more_is_in_the_head() -> None:
    summary = summaries.demo()
    one, name = summary["takeovers"][0], summary["input"]["servers"][0]["name"]
    summary["takeovers"] = [one | {"old_primary": name, "returned_at": None}]
    assert "has logged nothing" not in lead_of(summary)

    summary["input"]["servers"][0]["last_at"] = "2026-11-20T11:40:00Z"
    summary["input"]["servers"][1]["last_at"] = "2026-11-21T11:40:00Z"
    summary["input"]["servers"][2]["last_at"] = "2026-11-21T11:40:00Z"
    assert f"{name} has logged nothing since 2026-11-20 11:40 UTC, 1 d before the newest row of the others." in lead_of(summary)
    summary["input"]["servers"][0]["boundary"] = "of other years"
    assert "has logged nothing" not in lead_of(summary)


def test_the_logs_of_one_server_without_any_copy_may_be_only_some_of_them() -> None:
    summary = with_overall(summaries.one_message(), redundancy_ratio=0.0, messages_redundant=0)
    said = (
        "These are the logs of one server: either there was no other that could have held a copy, or the logs of the others are not here."
    )
    assert said not in lead_of(summary)

    summary["input"]["servers"] = summary["input"]["servers"][:1]
    assert said in lead_of(summary)
    assert said not in lead_of(with_overall(summary, redundancy_ratio=0.5, messages_redundant=1))


def test_a_trace_tells_a_client_and_a_next_hop_from_another_server_of_these_logs() -> None:
    def row(server: str, event: str, source: str = "SMTP", client: str = "", to: str = "") -> dict[str, Any]:
        return {
            "at": "2026-11-21T12:00:00Z",
            "server": server,
            "event": event,
            "source": source,
            "client": client,
            "to": to,
            "recipients": [],
        }

    rows = [
        row("a1", "RECEIVE", client="client.example", to="a1"),
        row("a1", "SENDEXTERNAL", client="a1", to="edge.corp.example"),
        row("EDGE", "RECEIVE", client="A1.corp.example", to="EDGE"),
        row("EDGE", "SENDEXTERNAL", client="EDGE", to="mx.ziel.example"),
    ]
    servers = {"a1", "EDGE"}

    assert ["accepted from the client", "handed to another server", "handed over by another server", "delivered to the next hop"] == [
        meaning_of(one, servers) for one in rows
    ]
    assert "delivered to the next hop" == meaning_of(row("a.x.example", "SEND", to="mail.kunde.example"), {"a.x.example", "mail.x.example"})


def test_where_several_copies_are_wanted_fewer_are_not_called_none() -> None:
    summary = with_overall(
        summaries.demo(), messages_by_copies={"0": 9, "1": 785, "2": 7, "3": 4}, messages_redundant=795, redundancy_ratio=0.98
    )
    objective = next(one for one in summary["objectives"] if one["name"] == "redundancy_ratio")
    objective |= {"good": 795, "bad": 10}
    page = Page(render(summary))

    assert "10 of 805 messages without all that were wanted, 9 of them without any" in page.by_id("target-redundancy_ratio").text
    assert "had all synced copies that were wanted before the client got its 250" in lead_of(summary)
    assert "Without a copy" not in [head.text for head in page.by_id("redundancy").below("th")]


def test_each_server_that_is_named_has_a_row_and_the_table_says_what_stands_where() -> None:
    summary = summaries.demo()
    summary["input"]["servers"].append(summary["input"]["servers"][0] | {"name": "edge"})
    summary["takeovers"][0]["old_primary"] = "mx9"
    page = Page(render(summary))

    assert ["0", *["\N{EN DASH}"] * 8] == cells_of(page, "server-figures")["edge"]
    assert "also where another one lost it" in page.by_id("servers").text
    assert "No log here of mx9" in [one.text for one in page.all("header")[0].below("p")]
    assert "Had it last" in [head.text for head in Page(render(summaries.month())).by_id("losses").below("th")]


def test_two_targets_are_both_and_not_all_2() -> None:
    judged = {"shadow_latency": "met", "discard_lag": "not computable", "delivery_latency": "met", "takeover": "not computable"}

    assert "Speed: both targets met, 2 could not be judged." in page_text(summaries.with_verdicts(summaries.demo(), **judged))


def page_text(summary: dict[str, Any]) -> str:
    return Page(render(summary)).by_id("report").text


def test_mail_that_depends_on_one_server_now_is_in_the_head() -> None:
    summary = summaries.demo()
    for line in summary["exposures"]:
        line["is_open"] = line is summary["exposures"][0]
    assert " 1 message depends on one server now;" in lead_of(summary | {"incidents": incidents(summary)})

    summary["exposures"][0]["is_open"] = False
    assert "depends on one server now" not in lead_of(summary | {"incidents": incidents(summary)})


def test_what_to_do_first_stands_before_whom_to_tell() -> None:
    summary = summaries.month()
    told = next(one for one in summary["incidents"] if one["tell"])
    told["step"] = "Look under the table"
    row = next(row for row in rows_of(Page(render(summary)), "happened-table") if "Look under the table" in row.text)

    assert row.text.index("First: Look under the table.") < row.text.index("Then tell the sender")


def test_the_list_of_what_happened_is_whole_on_paper_too() -> None:
    table = page_of("month").by_id("happened-table-caption").parents[-1]

    assert ("sortable", "scroll") == (table.get("class"), table.parents[-1].get("class"))
    assert "scroll long" == page_of("month").by_id("losses-table-caption").parents[-2].get("class")


def test_a_missed_speed_target_leads_to_its_messages_and_causes() -> None:
    page = Page(render(summaries.with_verdicts(summaries.month(), shadow_latency="missed")))
    card = page.by_id("target-shadow_latency")
    (link,) = card.below("a")

    assert "next hop was down" in card.text
    assert "our own delay" in card.text
    rows = [row for row in page.by_id(link.get("href")[1:]).below("tr") if row.inside("tbody")]
    assert 200 == len(rows)


def test_a_list_of_slow_messages_has_no_empty_column() -> None:
    summary = summaries.with_verdicts(summaries.month(), shadow_latency="missed")
    heads = []
    for line in ({}, {"other": ""}):
        page = Page(render(summary | {"slow": [one | line for one in summary["slow"]]}))
        heads.append([head.text for head in page.by_id("slow-shadow_latency").below("th") if head.get("scope") == "col"])

    assert ["Message", "Took", "Cause", "Server", "Other server", "At"] == heads[0]
    assert [head for head in heads[0] if head != "Other server"] == heads[1]


def test_a_missed_target_without_a_list_leads_to_none() -> None:
    """With several copies wanted, one copy fewer is no exposure."""
    summary = summaries.with_verdicts(summaries.demo() | {"exposures": []}, redundancy_ratio="missed")

    assert [] == list(Page(render(summary)).by_id("target-redundancy_ratio").below("a"))


def test_a_takeover_of_which_little_is_known_is_shown_all_the_same() -> None:
    summary = summaries.demo()
    for takeover in summary["takeovers"]:
        takeover |= {"silent_since": None, "detected_at": None, "delivered_at": None, "returned_at": None}

    assert ["promoted", "last promoted", "not yet delivered", "not yet returned"] == [
        re.sub(r" \+.*", "", term.text) for term in list(Page(render(summary)).by_id("takeover-0-title").parents[-2].below("dt"))
    ]


def test_what_failed_is_counted_in_what_it_is() -> None:
    summary = summaries.month()
    objective = next(one for one in summary["objectives"] if one["name"] == "takeover")
    objective |= {"good": 32, "bad": 11, "verdict": "missed"}
    card = next(card for card in Page(render(summary)).all("li") if "Taken over in time" in card.text)

    assert "11 of 43 resubmissions late" in card.text  # rows: a message can have several


def test_every_pair_of_servers_has_its_place_in_the_heat_map() -> None:
    summary = summaries.month()
    cells = {cell.get("class"): cell.text for row in rows_of(page_of("month"), "pairs-table") for cell in row.below("span")}
    rows = rows_of(page_of("month"), "pairs-table")
    drawn = sum(1 for row in rows for cell in row.below("span") if re.search(r"\bh\d", cell.get("class")))

    assert len([one for one in summary["figures"] if one["scope"] == "pair"]) == drawn
    assert "cell h5" in cells  # the slow pair is seen


def test_a_pair_says_what_differs_between_pairs() -> None:
    summary = summaries.month()
    pairs = [one for one in summary["figures"] if one["scope"] == "pair"]
    pairs[0] |= {"messages_acknowledged": 1_204, "messages_promoted": 3, "shadows_orphaned": 1}
    pairs[0]["shadow_latency_ms"] = {"count": 1_204, "p50": 9, "p95": 320, "p99": 400, "max": 500}
    pairs[1] |= {"messages_acknowledged": 7, "messages_promoted": 0, "shadows_orphaned": 0, "shadow_latency_ms": {"p95": None}}
    cells = [cell for row in rows_of(Page(render(summary)), "pairs-table") for cell in row.below("span") if "cell h" in cell.get("class")]

    assert ["1,204", "p95 320\xa0ms", "3 taken over", "1 left-over copy"] == [part.text for part in cells[0].children]
    assert ("cell h5", "cell h0") == (cells[0].get("class"), cells[1].get("class"))
    assert ["7"] == [part.text for part in cells[1].children]
    assert "no latency logged" in render(summary)


def test_what_cannot_be_computed_and_what_was_not_read_is_said() -> None:
    page, summary = page_of("month"), summaries.month()

    assert "Exchange writes no S:ShadowElapsed" in page.by_id("not-computable").text
    example = summary["input"]["quarantine"][0]["examples"][0]
    assert f"{example['server']}/{example['file']}:{example['line']}" in page.by_id("input").text
    assert "MSGTRK2026110307-2.LOG" in page.by_id("input").text
    assert "48,211" in page.by_id("input").text


def test_every_figure_that_logs_cannot_give_has_a_name() -> None:
    figures = {figure for missing in NOT_LOGGED.values() for figure in missing}

    assert set() == figures - set(FIGURES)
    assert [] == [name for name in FIGURES.values() if "_" in name]


def test_figures_without_events_are_dashes_and_not_zero() -> None:
    keys = next(one for one in page_of("empty").by_id("latency").below("dl"))

    assert {"–"} == {value.text for value in keys.below("dd")}  # noqa: RUF001


def test_a_short_run_is_drawn_by_minute_a_week_by_hour_and_what_is_longer_by_day_too() -> None:
    drawn = {name: re.findall(r"redundancy-ratio-by-(\w+)-title", " ".join(page_of(name).ids)) for name in ("demo", "hostile", "month")}

    assert {"demo": ["minute"], "hostile": ["hour"], "month": ["day", "hour"]} == drawn


def test_one_point_or_two_are_no_plot() -> None:
    assert [] == page_of("one_message").all("figure")
    assert 1 == text_of("one_message").count("too few figures for plots")


def test_exposure_is_said_in_messages_and_drawn_only_if_there_was_any() -> None:
    summary = with_overall(summaries.demo(), messages_exposed=199, exposure_max_seconds=8.25)
    for figure in summary["figures"]:
        figure["messages_exposed"] = 0

    page = Page(render(summary))

    assert "199 messages, longest 8.2 s" in page.by_id("exposure").text.replace("\xa0", " ")
    assert [] == list(page.by_id("exposure").below("figure"))
    assert [] != list(page_of("month").by_id("exposure").below("figure"))


def test_the_page_follows_its_reader_s_colours_and_prints() -> None:
    style = page_of("empty").all("style")[0].text

    assert "@media (prefers-color-scheme: dark)" in style
    assert "@media print" in style
    assert ":focus-visible" in style


def test_a_delivery_before_the_loss_is_said_and_not_drawn_over_it() -> None:
    summary = summaries.demo()
    takeover = summary["takeovers"][0]
    takeover["delivered_at"] = "2026-11-21T00:00:00Z"
    row = Page(render(summary)).by_id("takeover-0-title").parents[-2]

    assert ["delivered before the loss"] == [term.text for term in row.below("dt") if term.text.startswith("delivered")]
    assert "delivered before the loss" in next(row.below("desc")).text
    assert [] == [shape for shape in row.below("circle") if shape.get("class") == "delivered"]
