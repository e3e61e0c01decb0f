"""A server known to be down costs nobody a wait, and is found again."""

from shadowrelay.core.breaker import Breaker, after_failure, after_success, closed, may_try, state_of

HEARTBEAT = 5.0


def failed(breaker, *instants, was_refused=False):
    for now in instants:
        breaker = after_failure(breaker, now, HEARTBEAT, was_refused=was_refused)
    return breaker


def test_one_lost_answer_leaves_it_closed():
    assert ("closed", True) == (state_of(failed(closed(), 10.0), 10.0), may_try(failed(closed(), 10.0), 10.0))


def test_two_lost_answers_open_it():
    breaker = failed(closed(), 10.0, 11.0)
    assert ("open", False) == (state_of(breaker, 11.5), may_try(breaker, 11.5))


def test_a_refused_connection_opens_it_at_once():
    assert False is may_try(failed(closed(), 10.0, was_refused=True), 10.0)


def test_it_is_half_open_after_a_second():
    breaker = failed(closed(), 10.0, 11.0)
    assert ("half-open", True) == (state_of(breaker, 12.0), may_try(breaker, 12.0))


def test_each_failed_trial_doubles_the_wait_up_to_a_heartbeat():
    breaker, now, waits = failed(closed(), 0.0), 0.0, []
    for _ in range(5):
        breaker = failed(breaker, now)
        waits.append(breaker.trial_at - now)
        now = breaker.trial_at
    assert [1.0, 2.0, 4.0, 5.0, 5.0] == waits


def test_attempts_that_were_under_way_when_it_opened_say_nothing_new():
    breaker = failed(closed(), 10.0, 10.0)
    assert breaker == failed(breaker, 10.1, 10.2, 10.9)


def test_a_heartbeat_shorter_than_a_second_is_the_longest_wait():
    assert 10.5 == after_failure(closed(), 10.0, 0.5, was_refused=True).trial_at


def test_a_server_that_was_down_for_a_year_is_still_asked_every_heartbeat():
    breaker = Breaker(10**6, 0.0, 0.0, 10**6)
    assert 10.0 + HEARTBEAT == failed(breaker, 10.0).trial_at


def test_a_session_closes_it_and_forgets():
    assert closed() == after_success(failed(closed(), 10.0, 11.0))
