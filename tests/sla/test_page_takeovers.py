"""The page's takeovers: what the logs tell of each, and nothing that they do not."""

import re
from typing import Any

from shadowrelay.sla.page.document import render
from tests.kit import summaries
from tests.kit.html_pages import Element, Page

UNKNOWN: dict[str, Any] = {"reason": "", "silent_since": None, "detected_at": None, "in_time": None}
NO_TIMES = {"count": 0, "p50": None, "p95": None, "max": None}


def rows_of(summary: dict[str, Any]) -> list[Element]:
    return [item for item in Page(render(summary)).by_id("takeovers").below("li") if item.parents[-1].get("class") == "takeovers"]


def keys_of(summary: dict[str, Any]) -> dict[str, str]:
    keys = next(Page(render(summary)).by_id("takeovers").below("dl"))
    return dict(zip((term.text for term in keys.below("dt")), (value.text for value in keys.below("dd")), strict=True))


def of_exchange() -> dict[str, Any]:
    """Every takeover as Exchange logs it."""
    summary = summaries.demo()
    for takeover in summary["takeovers"]:
        takeover |= UNKNOWN
    summary["overall"] |= {"takeover_detection_ms": NO_TIMES, "takeover_silence_ms": NO_TIMES, "takeovers_late": 0}
    return summary


def test_what_is_late_is_the_same_on_the_lines_and_in_the_section() -> None:
    summary = summaries.month()
    late = [found for row in rows_of(summary) if (found := re.search(r", ([0-9,]+) late", row.text))]

    assert len(late) > 0
    assert str(sum(int(found[1].replace(",", "")) for found in late)) == keys_of(summary)["Resubmissions late"]


def test_of_a_takeover_without_times_neither_a_loss_nor_lateness_nor_a_reason_is_said() -> None:
    summary = of_exchange()
    takeover = summary["takeovers"][0]
    takeover["first_resubmit_at"] = takeover["last_resubmit_at"]
    row = rows_of(summary)[0]
    facts = next(part.text for part in row.below("p") if part.get("class") == "facts")

    assert f"{takeover['messages']} message{'s' * (takeover['messages'] > 1)}, times not logged" == facts
    assert "promoted" == next(row.below("dt")).text
    assert {"lost", "detected"}.isdisjoint(re.sub(r" .*", "", term.text) for term in row.below("dt"))
    assert [] == [shape for shape in row.below("path") if shape.get("class") == "lost"]
    assert {"–"} == {value for name, value in keys_of(summary).items() if name not in ("Takeovers", "Messages")}  # noqa: RUF001
    assert "since the first that was logged" in Page(render(summary)).by_id("takeovers").text


def test_promotions_at_several_instants_without_a_loss_are_the_first_and_the_last() -> None:
    summary = of_exchange()
    summary["takeovers"][0] |= {"first_resubmit_at": "2026-11-21T10:00:00Z", "last_resubmit_at": "2026-11-21T10:00:05Z"}
    summary["takeovers"][0] |= {"delivered_at": "2026-11-21T09:59:00Z", "returned_at": None}

    assert ["promoted", "last promoted +5\N{NO-BREAK SPACE}s", "delivered before the promotion", "not yet returned"] == [
        term.text for term in rows_of(summary)[0].below("dt")
    ]


def test_a_takeover_that_was_detected_and_nobody_says_since_when_begins_there() -> None:
    summary = summaries.demo()
    summary["takeovers"][0]["silent_since"] = None

    assert "detected" == next(rows_of(summary)[0].below("dt")).text
