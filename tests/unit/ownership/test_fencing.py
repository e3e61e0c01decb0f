"""Leases and silence: the arithmetic of docs/design.md 6.4."""

from datetime import timedelta

import pytest

from shadowrelay.model.ids import NO_DATABASE, DatabaseId
from shadowrelay.ownership.rules import (
    ServerLease,
    lease_left,
    lease_length,
    may_end_data,
    proof_age_max,
    renewed,
    reply_allowance,
    silence_limit,
)

OLD, NEW = DatabaseId("old"), DatabaseId("new")
SPAN = timedelta(hours=3)


def test_a_lease_uses_the_shorter_span_less_a_margin_for_the_clocks() -> None:
    assert pytest.approx(97.0) == lease_length(timedelta(seconds=100), SPAN)


def test_silence_waits_for_the_longer_span() -> None:
    assert SPAN.total_seconds() == silence_limit(timedelta(seconds=100), SPAN)


def test_a_lease_ends_before_the_silence_although_the_clocks_drift_apart_by_two_per_cent() -> None:
    assert silence_limit(SPAN, SPAN) / 1.01 > lease_length(SPAN, SPAN) / 0.99


@pytest.mark.parametrize(("span", "allowance"), [(timedelta(hours=3), 600.0), (timedelta(seconds=30), 10.0)])
def test_the_reply_to_the_final_dot_gets_ten_minutes_or_a_third_of_a_short_span(span: timedelta, allowance: float) -> None:
    assert allowance == reply_allowance(span)


@pytest.mark.parametrize(("poll", "age"), [(timedelta(seconds=2), 10.0), (timedelta(milliseconds=10), 1.0)])
def test_a_proof_is_recent_for_a_few_polls_and_never_less_than_a_second(poll: timedelta, age: float) -> None:
    assert age == proof_age_max(poll)


@pytest.mark.parametrize(("left", "may"), [(10.1, True), (10.0, False), (0.0, False), (-1.0, False)])
def test_the_final_dot_is_sent_only_if_the_lease_outlasts_its_reply(left: float, may: bool) -> None:
    assert may == may_end_data(left, 10.0)


@pytest.mark.parametrize(
    ("before", "spoke_at", "proved_at", "after"),
    [
        (None, 5.0, 5.5, ServerLease(OLD, 5.5, 15.0, 5.5)),
        (ServerLease(OLD, 1.0, 11.0, 0.0), 5.0, 5.5, ServerLease(OLD, 1.0, 15.0, 5.5)),
        (ServerLease(OLD, 1.0, 11.0, 0.0), 10.5, 11.0, ServerLease(OLD, 1.0, 20.5, 11.0)),
        (ServerLease(OLD, 1.0, 11.0, 0.0), 11.5, 12.0, ServerLease(OLD, 12.0, 21.5, 12.0)),
        (ServerLease(OLD, 1.0, 11.0, 0.0), 10.5, 11.5, ServerLease(OLD, 11.5, 20.5, 11.5)),
        (ServerLease(OLD, 1.0, 20.0, 0.0), 5.0, 19.0, ServerLease(OLD, 1.0, 20.0, 19.0)),
        (ServerLease(NEW, 1.0, 11.0, 0.0), 5.0, 5.5, ServerLease(OLD, 5.5, 15.0, 5.5)),
    ],
    ids=["first", "goes on", "just in time", "had ended", "on its way when it ended", "older proof", "another database"],
)
def test_a_proof_carries_on_a_run_only_if_it_comes_before_its_end(
    before: ServerLease | None, spoke_at: float, proved_at: float, after: ServerLease
) -> None:
    assert after == renewed(before, OLD, spoke_at, proved_at, 10.0)


def test_a_copy_is_not_carried_on_by_what_its_server_may_have_heard_too_late() -> None:
    """Spoken before the end of the lease, heard after it: in between the server may have taken the message over."""
    heard_late = renewed(ServerLease(OLD, 1.0, 11.0, 0.0), OLD, 10.5, 14.0, 10.0)

    assert 11.0 - 14.0 == lease_left(11.0, OLD, heard_late, 14.0)


@pytest.mark.parametrize(
    ("copy_until", "database", "server", "left"),
    [
        (None, OLD, ServerLease(OLD, 0.0, 100.0, 0.0), 0.0),
        (30.0, OLD, None, 10.0),
        (30.0, OLD, ServerLease(OLD, 5.0, 60.0, 0.0), 40.0),
        (30.0, OLD, ServerLease(OLD, 30.0, 60.0, 0.0), 40.0),
        (30.0, OLD, ServerLease(OLD, 31.0, 60.0, 0.0), 10.0),
        (30.0, OLD, ServerLease(NEW, 5.0, 60.0, 0.0), 10.0),
        (30.0, NO_DATABASE, ServerLease(NEW, 5.0, 60.0, 0.0), 40.0),
        (30.0, OLD, ServerLease(OLD, 5.0, 25.0, 0.0), 10.0),
        (10.0, OLD, None, -10.0),
    ],
    ids=["another process", "its own", "carried on", "touches", "a gap", "another database", "unknown database", "own is longer", "over"],
)
def test_a_copys_lease_is_its_own_carried_on_by_the_servers_unbroken_run(
    copy_until: float | None, database: DatabaseId, server: ServerLease | None, left: float
) -> None:
    assert left == lease_left(copy_until, database, server, 20.0)
