"""Does the report say what clients and the receiving server saw?"""

from datetime import UTC, datetime

import pytest

from shadowrelay.lab.account import Account, Cause, Duplicate
from shadowrelay.lab.sla_report import compared, contradictions, freshness
from shadowrelay.lab.traffic import Sent, Submission, SubmissionResult

OVERALL = {
    "messages_acknowledged": 11,
    "messages_redundant": 11,
    "messages_reconstructed": 1,
    "recipients_lost": 0,
    "recipients_duplicated": 1,
    "messages_promoted": 5,
    "lines_quarantined": 0,
}
DUPLICATES = [
    Duplicate(1, "id1", 2, Cause.CUT_OFF, "a@x"),
    Duplicate(2, "id2", 2, Cause.DIED_BEFORE_RECORD, "a@x"),
    Duplicate(3, "", 2, Cause.SENT_AGAIN),
]
RESULT = Account(accepted=10, delivered=10, taken_over=5, duplicates=DUPLICATES)
SENT = [
    Sent(number, f"<{number}@x>", ("a@x",), "", [Submission(1.0, "mx1", answer)])
    for number, answer in enumerate([SubmissionResult.ACKNOWLEDGED] * 10 + [SubmissionResult.NOTHING])
]


def test_a_message_whose_client_heard_nothing_may_be_acknowledged_and_a_row_that_died_may_be_missing() -> None:
    assert [] == contradictions(OVERALL, RESULT, SENT, 10)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_a_client_sent_again_is_a_duplicate_in_the_report_too_if_both_logs_are_there(count: int) -> None:
    assert [] == contradictions({**OVERALL, "recipients_duplicated": count}, RESULT, SENT, 10)


@pytest.mark.parametrize(
    ("key", "value", "about"),
    [
        ("messages_acknowledged", 9, "acknowledged"),
        ("messages_acknowledged", 12, "acknowledged"),
        ("messages_redundant", 10, "redundant"),
        ("recipients_lost", 1, "lost"),
        ("recipients_duplicated", 0, "duplicated"),
        ("recipients_duplicated", 4, "duplicated"),  # two under one id, and one that its client sent again
        ("messages_promoted", 4, "taken over"),
        ("lines_quarantined", 1, "quarantined"),
    ],
)
def test_every_other_figure_is_a_contradiction(key: str, value: int, about: str) -> None:
    found = contradictions({**OVERALL, key: value}, RESULT, SENT, 10)

    assert 1 == len(found)
    assert found[0].startswith(about)


NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def test_the_age_of_a_watched_page_and_what_it_lacks_are_said() -> None:
    summary = {"generated_at": "2026-11-23T11:59:20Z", "watch": {"rows": 900}}

    assert ["made 40 s ago, from 900 rows; 12 rows came since then"] == list(freshness(summary, {"rows": 912, "failing": {}}, NOW))
    assert ["made 40 s ago, from 900 rows; 0 rows came since then"] == list(freshness(summary, {}, NOW))
    assert ["the job's step report fails: no space"] == list(freshness(summary, {"failing": {"report": "no space"}}, NOW))[1:]


def test_figures_stand_beside_each_other_and_a_difference_is_explained() -> None:
    lines = {line.what.partition(" (")[0]: line for line in compared(RESULT, 10, {**OVERALL, "messages_done": 11})}
    alone = compared(RESULT, 10, {})

    assert ["acknowledged", "delivered", "duplicated"] == [what for what, line in lines.items() if line.is_explained]
    assert (10, 10, None) == (
        lines["redundant when acknowledged"].seen,
        lines["redundant when acknowledged"].reported,
        lines["changed in transit"].reported,
    )
    assert [(None, False)] * 7 == [(line.reported, line.is_explained) for line in alone]
