"""Tests the checks of the tracking logs: planted gaps are reported, and only a kill at that moment excuses a missing row."""

from dataclasses import replace

import pytest

from shadowrelay.lab.traffic import Sent, Submission, SubmissionResult
from tests.crash.evidence import Line, complaints

EAST, WEST = "mx1.east.example", "mx1.west.example"
ONE, TWO = "user1@corp.example", "user1@branch.example"
SENT = Sent(1, "<1@client.example>", (ONE, TWO), "digest", [Submission(100.0, EAST, SubmissionResult.ACKNOWLEDGED, "id-1")])
HELD = Line(99.9, WEST, "HARECEIVE", "id-1", (ONE, TWO), "")
RECEIVED = Line(100.0, EAST, "RECEIVE", "id-1", (ONE, TWO), "S:Replication=Success;S:AckElapsed=0.1")
DELIVERED = Line(101.0, EAST, "SEND", "id-1", (ONE,), "")
DELIVERED_TOO = Line(105.0, EAST, "SEND", "id-1", (TWO,), "")
DISCARDED = Line(105.2, WEST, "HADISCARD", "id-1", (), "")
ALL = (HELD, RECEIVED, DELIVERED, DELIVERED_TOO, DISCARDED)


def about(*lines: Line, kills: list[float] | None = None, wiped_at: float | None = None) -> list[str]:
    return complaints(lines, [SENT], {WEST: kills or []}, {} if wiped_at is None else {WEST: wiped_at})


def test_complete_logs_give_no_complaint() -> None:
    assert [] == about(*ALL)


@pytest.mark.parametrize(
    ("expected", "lines"),
    [
        (f"id-1: no end in the logs for ['{TWO}']", (HELD, RECEIVED, DELIVERED, DISCARDED)),
        (f"id-1: acknowledged by {EAST}, which has no RECEIVE", (HELD, DELIVERED, DELIVERED_TOO, DISCARDED)),
        (
            "id-1: acknowledged in reject mode without a copy: S:Replication=Failed",
            (HELD, replace(RECEIVED, custom="S:Replication=Failed"), DELIVERED, DELIVERED_TOO, DISCARDED),
        ),
        (f"id-1: a copy came to {WEST} and has no end in its log", (HELD, RECEIVED, DELIVERED, DELIVERED_TOO)),
        (f"id-1: a copy came to {WEST} and has no end in its log", (*ALL[:4], replace(DISCARDED, at=99.0))),
        (f"id-1: a copy came to {WEST} and has no end in its log", (*ALL[:4], replace(DISCARDED, node=EAST))),
    ],
)
def test_each_missing_row_is_reported(expected: str, lines: tuple[Line, ...]) -> None:
    assert [expected] == about(*lines)


def test_a_copy_that_was_promoted_has_an_end() -> None:
    assert [] == about(*ALL[:4], replace(DISCARDED, event="RESUBMIT"))


@pytest.mark.parametrize(
    ("killed_at", "count"),
    [(105.5, 0), (106.5, 0), (101.5, 0), (107.5, 1), (103.5, 1)],
    ids=["after the last", "after the last, on a busy machine", "after the first", "late", "between"],
)
def test_a_missing_row_is_excused_only_if_the_server_was_killed_at_that_moment(killed_at: float, count: int) -> None:
    assert count == len(about(*ALL[:4], kills=[killed_at]))


@pytest.mark.parametrize(("wiped_at", "count"), [(106.0, 0), (99.0, 1)])
def test_a_copy_on_a_wiped_disk_needs_no_end(wiped_at: float, count: int) -> None:
    assert count == len(about(*ALL[:4], wiped_at=wiped_at))
