"""What our own sessions and copies show of whether a peer takes copies, and what follows for the next message."""

import pytest

from shadowrelay.model.readiness import NewMail, Takes
from shadowrelay.rules.placement import (
    CLOSED,
    FAILURES_TO_OPEN,
    FORGIVEN,
    NOTHING_TRIED,
    PROVED,
    REFUSED_SECONDS_MAX,
    SICK_SECONDS_MAX,
    Refused,
    after_failure,
    after_refusal,
    after_sign_of_life,
    evidence_answered,
    evidence_cut,
    evidence_of_failed_copy,
    evidence_offered,
    may_recover,
    new_mail,
    takes_copies,
)

HEARTBEAT, NOW = 120.0, 1000.0
OFFERED = evidence_offered(NOTHING_TRIED)
YES, NO, UNKNOWN = Takes.YES, Takes.NO, Takes.UNKNOWN


def test_before_anything_was_tried_nobody_knows():
    assert (UNKNOWN, YES, YES) == tuple(takes_copies(each, CLOSED, NOW) for each in (NOTHING_TRIED, OFFERED, PROVED))


def test_a_session_that_failed_is_answered_by_one_that_succeeds():
    cut = evidence_cut(PROVED, NOW, "refused")

    assert NO is takes_copies(cut, CLOSED, NOW)
    assert [YES, YES] == [takes_copies(each, CLOSED, NOW) for each in (evidence_offered(cut), evidence_answered(cut))]


def test_a_process_that_was_never_reached_is_unknown_also_after_an_answer():
    assert UNKNOWN is takes_copies(evidence_answered(evidence_cut(NOTHING_TRIED, NOW, "refused")), CLOSED, NOW)


def test_a_copy_that_failed_weighs_more_than_sessions():
    failed = evidence_of_failed_copy(PROVED, NOW, "no answer in 5 s")

    for evidence in (failed, evidence_offered(failed), evidence_answered(failed), evidence_offered(evidence_cut(failed, NOW, "refused"))):
        assert NO is takes_copies(evidence, CLOSED, NOW + REFUSED_SECONDS_MAX - 0.1)
        assert UNKNOWN is takes_copies(evidence, CLOSED, NOW + REFUSED_SECONDS_MAX)  # the next message shows it
    assert YES is takes_copies(PROVED, CLOSED, NOW)


def test_while_the_breaker_allows_no_attempt_the_answer_is_no():
    refused = after_refusal(CLOSED, NOW + 60, HEARTBEAT, Refused.COPY, "452")
    failed = evidence_of_failed_copy(PROVED, NOW, "452")

    assert (NO, UNKNOWN) == (takes_copies(failed, refused, NOW + 60.5), takes_copies(failed, refused, NOW + 61))
    assert NO is takes_copies(OFFERED, after_refusal(CLOSED, NOW, HEARTBEAT, Refused.SESSION, "it drains"), NOW + 3600)


def test_a_sign_of_life_closes_the_breaker_and_proves_nothing():
    breaker = after_sign_of_life(after_failure(CLOSED, NOW, HEARTBEAT, was_refused=True))

    assert (FORGIVEN, NO) == (breaker, takes_copies(evidence_cut(PROVED, NOW, "refused"), breaker, NOW))


def test_what_one_copy_was_refused_for_counts_if_it_happens_again():
    evidence, found = PROVED, []
    for _ in range(FAILURES_TO_OPEN):
        evidence = evidence_of_failed_copy(evidence, NOW, "550 5.1.1", is_not_this=True)
        found.append(takes_copies(evidence, CLOSED, NOW))

    assert [YES, NO] == found


@pytest.mark.parametrize(
    ("takers", "wanted", "rejects", "outcome"),
    [
        ([], 0, True, NewMail.NOT_COPIED),
        ([], 1, False, NewMail.FEWER),
        ([], 1, True, NewMail.REFUSED),
        ([YES], 1, True, NewMail.COPIED),
        ([UNKNOWN], 1, True, NewMail.UNKNOWN),
        ([NO], 1, True, NewMail.REFUSED),
        ([YES, NO], 2, False, NewMail.FEWER),
        ([YES, NO], 2, True, NewMail.REFUSED),
        ([YES, UNKNOWN], 2, True, NewMail.UNKNOWN),
        ([YES, YES, NO], 3, True, NewMail.REFUSED),
        ([YES, YES, UNKNOWN], 3, False, NewMail.UNKNOWN),
        ([YES, YES, YES, NO], 3, True, NewMail.COPIED),
        ([UNKNOWN, NO], 2, False, NewMail.FEWER),
    ],
)
def test_the_outcome_of_the_next_message(takers, wanted, rejects, outcome):
    assert outcome is new_mail(takers, wanted, rejects=rejects)


def test_a_peer_that_lives_and_stores_no_copies_may_recover_for_a_minute() -> None:
    failed = evidence_of_failed_copy(PROVED, NOW, "no room")
    again = evidence_of_failed_copy(evidence_offered(failed), NOW + 30.0, "no room")

    assert may_recover(again, NOW + 31.0, NOW + SICK_SECONDS_MAX - 0.1)
    assert not may_recover(again, NOW + 31.0, NOW + SICK_SECONDS_MAX)
    assert may_recover(evidence_cut(PROVED, NOW, "another server"), NOW + 0.1, NOW + 1.0)


def test_a_peer_that_has_not_spoken_since_is_lost_and_not_sick() -> None:
    cut = evidence_cut(PROVED, NOW, "refused")

    assert not may_recover(cut, NOW - 1.0, NOW + 1.0)
    assert not may_recover(cut, None, NOW + 1.0)
    assert not may_recover(NOTHING_TRIED, NOW + 0.5, NOW + 1.0)
