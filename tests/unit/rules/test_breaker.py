"""A server known to be down costs nobody a wait, and is found again."""

from collections.abc import Callable

import pytest

from shadowrelay.rules.placement import (
    CLOSED,
    FORGIVEN,
    Breaker,
    Refused,
    after_copy,
    after_failure,
    after_offer,
    after_refusal,
    after_sign_of_life,
    begun,
    given_back,
    may_try,
    state_of,
)

HEARTBEAT = 5.0


def failed(breaker, *instants, was_refused=False):
    for now in instants:
        breaker = after_failure(breaker, now, HEARTBEAT, was_refused=was_refused)
    return breaker


def test_one_lost_answer_leaves_it_closed():
    assert ("closed", True) == (state_of(failed(CLOSED, 10.0), 10.0), may_try(failed(CLOSED, 10.0), 10.0))


def test_two_lost_answers_open_it():
    breaker = failed(CLOSED, 10.0, 11.0)
    assert ("open", False) == (state_of(breaker, 11.5), may_try(breaker, 11.5))


def test_a_refused_connection_opens_it_at_once():
    assert False is may_try(failed(CLOSED, 10.0, was_refused=True), 10.0)


def test_it_is_half_open_after_a_second():
    breaker = failed(CLOSED, 10.0, 11.0)
    assert ("half-open", True) == (state_of(breaker, 12.0), may_try(breaker, 12.0))


def test_each_failed_trial_doubles_the_wait_up_to_a_heartbeat():
    breaker, now, waits = failed(CLOSED, 0.0), 0.0, []
    for _ in range(5):
        breaker = failed(breaker, now)
        waits.append(breaker.trial_at - now)
        now = breaker.trial_at
    assert [1.0, 2.0, 4.0, 5.0, 5.0] == waits


def test_attempts_that_were_under_way_when_it_opened_say_nothing_new():
    breaker = failed(CLOSED, 10.0, 10.0)
    assert breaker == failed(breaker, 10.1, 10.2, 10.9)


def test_a_heartbeat_shorter_than_a_second_is_the_longest_wait():
    assert 10.5 == after_failure(CLOSED, 10.0, 0.5, was_refused=True).trial_at


def test_a_server_that_was_down_for_a_year_is_still_asked_every_heartbeat():
    breaker = Breaker(10**6, 0.0, 0.0, 10**6)
    assert 10.0 + HEARTBEAT == failed(breaker, 10.0).trial_at


def test_a_session_closes_it_and_forgets():
    assert "closed" == state_of(after_sign_of_life(failed(CLOSED, 10.0, 11.0)), 11.0)


@pytest.mark.parametrize("was_refused", [False, True])
def test_sessions_of_a_server_that_is_not_reached_close_it_once(was_refused: bool) -> None:
    breaker, tried_count = CLOSED, 0
    for now in range(1000):
        if may_try(breaker, now):
            tried_count += 1
            breaker = failed(breaker, now, was_refused=was_refused)
        breaker = after_sign_of_life(breaker)

    assert 3 + 1000 / HEARTBEAT + 4 > tried_count


@pytest.mark.parametrize("succeeds", [after_offer, after_copy])
def test_what_succeeds_of_ours_makes_the_next_session_count_again(succeeds: Callable[[Breaker], Breaker]) -> None:
    once = failed(after_sign_of_life(failed(CLOSED, 10.0, 11.0)), 12.0, 13.0)
    assert CLOSED == succeeds(once)
    assert ["open", "closed"] == [state_of(after_sign_of_life(each), 13.0) for each in (once, failed(succeeds(once), 12.0, 13.0))]


# one trial


def test_exactly_one_attempt_goes_through_when_it_is_half_open():
    trying = begun(failed(CLOSED, 10.0, 11.0), 7)
    assert [False] * 3 == [may_try(trying, now) for now in (12.0, 13.0, 1000.0)]


@pytest.mark.parametrize("way", ["cancelled", "failed"])
def test_a_trial_that_ended_in_any_way_gives_its_place_back(way):
    trying = begun(failed(CLOSED, 10.0, 11.0), 7)
    after = given_back(failed(trying, 17.0) if way == "failed" else trying, 7)
    assert [way == "cancelled", True] == [may_try(after, 17.0), may_try(after, 19.0)]


def test_a_trial_that_is_still_under_way_when_others_fail_stays_the_only_one():
    trying = failed(begun(failed(CLOSED, 10.0, 11.0), 7), 12.5)
    assert False is may_try(trying, 20.0)


def test_a_trial_gives_back_nothing_but_its_own_place():
    trying = begun(failed(CLOSED, 10.0, 11.0), 8)
    assert trying == given_back(trying, 7)


def test_a_closed_breaker_has_no_trial():
    assert CLOSED == begun(CLOSED, 7)


# answered, but not now


def refused(breaker, *instants, what=Refused.COPY):
    for now in instants:
        breaker = after_refusal(breaker, now, HEARTBEAT, what, "452 full")
    return breaker


def test_one_no_is_enough_and_it_is_shown_with_its_reason():
    breaker = refused(CLOSED, 10.0)
    assert ("refusing", "452 full", False, True) == (
        state_of(breaker, 10.5),
        breaker.reason,
        may_try(breaker, 10.5),
        may_try(breaker, 11.0),
    )


def test_it_is_asked_less_and_less_often_up_to_half_a_minute():
    breaker, now, waits = CLOSED, 0.0, []
    for _ in range(8):
        breaker = after_refusal(breaker, now, 120.0, Refused.COPY, "")
        waits.append(breaker.trial_at - now)
        now = breaker.trial_at
    assert [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0] == waits


def test_what_was_under_way_when_it_said_no_says_nothing_new():
    assert refused(CLOSED, 10.0) == refused(CLOSED, 10.0, 10.1, 10.9)


ENDS = [
    ("being heard ends no refusal", after_sign_of_life, Refused.COPY, False),
    ("not of a session either", after_sign_of_life, Refused.SESSION, False),
    ("HOLD in a later EHLO ends that of a session", after_offer, Refused.SESSION, True),
    ("and none of a copy", after_offer, Refused.COPY, False),
    ("a stored copy ends both", after_copy, Refused.COPY, True),
    ("of a session too", after_copy, Refused.SESSION, True),
]


@pytest.mark.parametrize(("event", "what", "is_over"), [case[1:] for case in ENDS], ids=[case[0] for case in ENDS])
def test_what_ends_a_refusal(event, what, is_over):
    assert ("closed" if is_over else "refusing") == state_of(event(refused(CLOSED, 10.0, what=what)), 10.5)


def test_who_gives_no_answer_on_trial_is_silent_and_refuses_no_more():
    breaker = failed(refused(CLOSED, 10.0), 11.0)
    assert ("open", FORGIVEN) == (state_of(breaker, 11.5), after_sign_of_life(breaker))
