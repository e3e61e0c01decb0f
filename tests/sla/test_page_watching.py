"""A page that is kept up to date says so and loads itself again; any other stays as it is."""

from shadowrelay.sla.page.document import render
from shadowrelay.sla.report import formatted
from tests.kit.summaries import HOSTILE, empty

WATCH = {
    "updated_at": "2026-11-21T16:00:05Z", "interval_seconds": 45.0, "batches": 3, "rows": 20, "late_rows": 2, "ahead_rows": 0,
    "missed_rows": 0, "failures": 1, "failing": {HOSTILE: "OSError: disk full"},
}  # fmt: skip


def test_a_page_of_a_watch_loads_itself_again_and_says_what_came_late_and_what_fails():
    page = render(empty() | {"watch": WATCH})

    assert '<meta http-equiv="refresh" content="45">' in page
    assert "Kept up to date by <code>sla watch</code>" in page
    assert "2026-11-21 16:00:05</time> UTC; 2 rows came late" in page
    assert "; not working now: &#34;&gt;&lt;script&gt;" in page
    assert page.index("refresh") > page.index("Content-Security-Policy")


def test_rows_ahead_of_the_clock_are_said_and_cautioned_of():
    page = render(empty() | {"watch": WATCH | {"ahead_rows": 1_204}})

    assert "1,204 rows came ahead of the clock" in page
    assert "<b>Caution:</b> 1,204 rows came dated more than an hour ahead" in page
    assert "ahead" not in render(empty() | {"watch": WATCH})


def test_nobody_is_interrupted_every_second():
    assert 'content="30"' in render(empty() | {"watch": WATCH | {"interval_seconds": 1.0}})


def test_any_other_page_stays_as_it_is():
    page = render(empty())

    assert "refresh" not in page
    assert "Kept up to date" not in page


def test_the_text_file_says_how_the_watch_is():
    text = formatted(empty() | {"watch": WATCH | {"failing": {"report": "OSError: disk full"}}})

    assert "shadowrelay_sla_watch_updated_timestamp_seconds 1795276805.0\n" in text
    assert "shadowrelay_sla_watch_late_rows 2\n" in text
    assert 'shadowrelay_sla_watch_failing{step="report"} 1\n' in text
    assert "watch" not in formatted(empty())
