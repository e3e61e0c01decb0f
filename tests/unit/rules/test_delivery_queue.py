"""The queue of one next hop, as values."""

from datetime import UTC, datetime, timedelta

import pytest

from shadowrelay.model.settings import Send
from shadowrelay.rules.delivery import (
    ARRIVING_PER_SESSION,
    LOADED_MAX,
    PACE,
    Retry,
    active,
    after_answer,
    after_lost_session,
    after_unreachable,
    hastened,
    may_arrive,
    room,
    share,
    takes_new,
)

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SEND = Send()
WHY = "451 4.4.1 nobody listens"


def unreachable(state, began_at=1.0, noted_at=2.0, now=NOW):
    return after_unreachable(state, WHY, began_at, noted_at, now, SEND, 0.0)


def test_an_active_queue_loads_twice_its_concurrency():
    assert [40, 39, 0, 0] == [room(active(20), loaded, 1000, NOW) for loaded in (0, 1, 40, 41)]


def test_no_queue_takes_more_than_its_share():
    assert 10 == room(active(20), 0, share(100, 0, 0), NOW)
    assert (LOADED_MAX, 1, 1) == (share(1, 0, 0), share(LOADED_MAX, 0, 0), share(10 * LOADED_MAX, 0, 0))


def test_all_queues_together_load_no_more_than_there_is_room_for_and_one_each() -> None:
    assert 30 == share(2, 20, LOADED_MAX - 10)
    assert [20, 15, 1] == [share(2, loaded, LOADED_MAX + over) for loaded, over in ((20, 0), (20, 5), (0, 5))]


def test_a_next_hop_that_cannot_be_reached_puts_its_queue_in_retry():
    state = unreachable(active(20))

    assert Retry(1, NOW, NOW + MINUTE, 2.0, WHY) == state.retry
    assert [0, 1, 0] == [room(state, 0, 1000, NOW), room(state, 0, 1000, NOW + MINUTE), room(state, 1, 1000, NOW + MINUTE)]


def test_a_next_hop_that_took_mail_just_before_and_refuses_sessions_is_probed_soon_and_never_later_than_others():
    state, waits, at = active(20), [], NOW
    for number in range(10):
        state = after_unreachable(state, WHY, number + 0.5, number + 0.6, at, SEND, 0.0, is_limited=True)
        waits.append((state.retry.probe_at - at) / PACE)
        at = state.retry.probe_at

    assert [1, 2, 4, 8, 16, 32, 60, 60, 60, 60] == waits


def test_probes_of_a_limit_do_not_use_up_the_ladder():
    state = active(20)
    for number in range(10):
        state = after_unreachable(state, WHY, number + 0.5, number + 0.6, NOW, SEND, 0.0, is_limited=True)
    state = unreachable(state, began_at=20.0, noted_at=21.0)

    assert (2, NOW + MINUTE) == (state.retry.failures_count, state.retry.probe_at)


def test_attempts_that_began_before_the_failure_was_known_do_not_climb_the_ladder():
    first = unreachable(active(20), began_at=1.0, noted_at=5.0)

    assert first is unreachable(first, began_at=4.9, noted_at=9.0)
    assert 2 == unreachable(first, began_at=5.1, noted_at=9.0).retry.failures_count


def test_probes_climb_the_ladder_and_keep_when_it_began():
    state = active(20)
    waits = []
    for number in range(12):
        at = NOW + number * MINUTE
        state = unreachable(state, began_at=number * 10.0, noted_at=number * 10.0 + 1, now=at)
        waits.append((state.retry.probe_at - at) // MINUTE)

    assert [1, 1, 1, 1, 5, 5, 5, 5, 5, 5, 10, 10] == waits
    assert NOW == state.retry.since


def test_a_returned_next_hop_gets_its_mail_slowly_at_first():
    state = unreachable(active(20))
    windows = []
    for _ in range(7):
        state = after_answer(state, 20)
        windows.append(room(state, 0, 1000, NOW))

    assert [2, 4, 8, 16, 32, 40, 40] == windows
    assert state is after_answer(state, 20)


def lost(count, concurrency, state=None):
    """The state after so many lost sessions of different messages."""
    state = state or active(concurrency)
    for number in range(count):
        state = after_lost_session(state, f"message {number}", concurrency, NOW)
    return state


@pytest.mark.parametrize(("concurrency", "most"), [(1, 4), (5, 5), (20, 20)])
def test_a_next_hop_that_loses_more_sessions_in_a_row_than_it_may_have_is_paced(concurrency, most):
    before, after = lost(most, concurrency), lost(most + 1, concurrency)

    assert (None, NOW + PACE) == (before.paused_until, after.paused_until)
    assert [0, 1, 0] == [room(after, loaded, 1000, NOW + at * PACE) for loaded, at in ((0, 0), (0, 1), (1, 1))]
    assert len(lost(100, concurrency).lost) == most + 1


def test_one_message_that_loses_its_session_again_and_again_holds_up_nobody():
    state = active(1)
    for _ in range(10):
        state = after_lost_session(state, "the same", 1, NOW)

    assert (None, 2) == (state.paused_until, room(state, 0, 1000, NOW))


def test_an_answer_ends_the_row_and_the_pace():
    assert lost(5, 5, after_answer(lost(5, 5), 5)).paused_until is None
    assert (None, frozenset(), 2) == ((found := after_answer(lost(6, 5), 5)).paused_until, found.lost, found.window)


def test_a_lost_session_says_that_the_next_hop_can_be_reached():
    assert lost(1, 20, unreachable(active(20))).retry is None


def test_a_clock_that_was_set_back_does_not_stop_a_paced_queue():
    assert NOW - 60 * MINUTE + PACE == hastened(lost(6, 5), NOW - 60 * MINUTE, SEND).paused_until


@pytest.mark.parametrize(("minutes", "expected"), [(-10, -8.9), (0, 1), (2, 1)])
def test_a_clock_that_was_set_back_makes_no_probe_wait_longer(minutes, expected):
    state = hastened(unreachable(active(20)), NOW + minutes * MINUTE, SEND)

    assert NOW + expected * MINUTE == state.retry.probe_at
    assert active(20) == hastened(active(20), NOW, SEND)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"room": 0}, False),
        ({"others_wait": True}, False),
        ({"is_behind": True}, False),
        ({"is_behind": True, "has_free_session": True}, True),
        ({"state": unreachable(active(20))}, False),
    ],
)
def test_a_new_message_is_loaded_where_it_passes_nobody_that_waits(changes, expected):
    asked = {"state": active(20), "room": 1, "others_wait": False, "is_behind": False, "has_free_session": False} | changes

    assert expected is takes_new(asked.pop("state"), asked.pop("room"), **asked)


def test_a_new_message_waits_a_moment_only_where_room_is_made_fast():
    most = 2 * ARRIVING_PER_SESSION

    assert [True, False] == [may_arrive(active(2), count, 2, is_behind=False) for count in (most - 1, most)]
    assert not may_arrive(active(2), 0, 2, is_behind=True)
    assert not may_arrive(unreachable(active(2)), 0, 2, is_behind=False)
