"""Which address is tried when, how many sessions it gets, what a refusal means."""

from math import inf

import pytest

from shadowrelay.model.replies import Reply
from shadowrelay.smtp.next_hop_rules import (
    GROW_SECONDS,
    OPEN_WINDOW,
    PROBE_SECONDS,
    PROBE_SECONDS_MAX,
    SKIPPED_SECONDS,
    after_failure,
    after_opened_session,
    after_refused_session,
    is_about_server,
    is_skipped,
    is_tried_late,
    may_be_about_session,
    may_move_on,
    openings,
    probing,
    shown,
)

WHY = Reply(421, "4.3.2", "too many")


def replies(*codes: int) -> list[Reply]:
    return [Reply(code, "", "") for code in codes]


@pytest.mark.parametrize(
    ("codes", "expected"), [((250,), False), ((250, 450), False), ((450,), True), ((451, 550), True), ((550,), False), ((421, 421), True)]
)
def test_another_server_gets_what_this_one_takes_nothing_of_but_may_later(codes, expected):
    assert expected is may_move_on(replies(*codes))


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(450, "4.3.2", "Service currently unavailable"), True),  # postscreen
        (Reply(452, "4.3.1", "Insufficient system storage"), True),
        (Reply(451, "", "Local problem"), True),
        (Reply(421, "4.4.5", "busy"), True),
        (Reply(450, "", "mailbox busy"), False),
        (Reply(450, "4.2.0", "greylisted"), False),
        (Reply(451, "4.7.1", "greylisted"), False),
        (Reply(452, "4.2.2", "mailbox full"), False),
        (Reply(451, "4.1.8", "sender's domain"), False),
        (Reply(550, "5.3.2", "never"), False),
        (Reply(250, "2.0.0", "taken"), False),
    ],
)
def test_a_refusal_is_about_the_server_or_about_this_message(reply, expected):
    assert expected is is_about_server(reply)


def test_an_address_that_failed_comes_late_until_its_probe_and_probes_that_fail_are_ever_rarer():
    trouble, now, waits = None, 0.0, []
    for _ in range(7):
        trouble = after_failure(trouble, WHY, now)
        assert is_tried_late(trouble, trouble.probe_at - 0.1)
        assert not is_tried_late(trouble, trouble.probe_at)
        waits.append((trouble.probe_at - now) / PROBE_SECONDS)
        now = trouble.probe_at

    assert [1, 2, 4, 8, 16, 16, 16] == waits
    assert (PROBE_SECONDS_MAX, 0.0) == (waits[-1] * PROBE_SECONDS, trouble.since)


def test_attempts_that_fail_together_count_once():
    first = after_failure(None, WHY, 0.0)
    again = after_failure(first, WHY, 1.0)

    assert (first.probe_at, 1) == (again.probe_at, again.failures_count)


def test_one_attempt_is_the_probe_and_the_others_leave_it_alone():
    trouble = after_failure(None, WHY, 0.0)

    assert is_tried_late(probing(trouble, trouble.probe_at), trouble.probe_at)


def test_only_an_address_that_cost_a_whole_timeout_is_left_out_and_not_for_long():
    slow, quick = after_failure(None, WHY, 0.0, was_slow=True), after_failure(None, WHY, 0.0)

    assert (True, False, False) == (is_skipped(slow, 1.0), is_skipped(slow, SKIPPED_SECONDS), is_skipped(quick, 1.0))
    assert not is_skipped(None, 1.0)
    assert not is_tried_late(None, 1.0)


def test_without_a_limit_each_waiting_transaction_gets_a_connection_up_to_the_concurrency():
    counts = [openings(OPEN_WINDOW, 5, standing, opening, 3, 0.0)[0] for standing, opening in ((0, 0), (2, 1), (5, 0), (0, 3))]

    assert [3, 2, 0, 0] == counts


def test_a_refused_session_shrinks_the_window_to_those_that_stand():
    window = after_refused_session(OPEN_WINDOW, 5, WHY, 100.0)
    window = after_refused_session(window, 5, WHY, 100.1)

    assert (5, 100.0 + GROW_SECONDS) == (window.size, window.grows_at)
    assert (0, window) == openings(window, 20, 5, 0, 15, 101.0)
    assert 1 == openings(window, 20, 4, 0, 15, 101.0)[0]


def test_the_window_grows_by_one_that_is_tried_and_each_trial_that_fails_doubles_the_time_until_the_next():
    window, waits = after_refused_session(OPEN_WINDOW, 5, WHY, 0.0), []
    for _ in range(8):
        now = window.grows_at
        count, window = openings(window, 20, 5, 0, 15, now)
        assert (1, inf) == (count, window.grows_at)
        assert 0 == openings(window, 20, 5, 1, 15, now + 1000)[0], "one at a time"
        window = after_refused_session(window, 5, WHY, now + 1)
        waits.append((window.grows_at - now - 1) / GROW_SECONDS)

    assert [2, 4, 8, 16, 32, 64, 64, 64] == waits


def test_a_trial_that_succeeds_stays_and_the_next_comes_soon():
    window = after_refused_session(OPEN_WINDOW, 5, WHY, 0.0)
    _, window = openings(window, 20, 5, 0, 15, GROW_SECONDS)
    window = after_opened_session(window, 6, GROW_SECONDS)

    assert (6, 2 * GROW_SECONDS) == (window.size, window.grows_at)
    assert OPEN_WINDOW is after_opened_session(OPEN_WINDOW, 6, 0.0)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [(Reply(452, "4.5.3", ""), True), (Reply(450, "4.7.1", ""), True), (Reply(450, "4.1.8", ""), False), (Reply(550, "5.7.1", ""), False)],
)
def test_some_refusals_of_mail_may_be_about_the_session(reply, expected):
    assert expected is may_be_about_session(reply)


def test_listings_tell_trouble_before_a_limit():
    limited, trouble = after_refused_session(OPEN_WINDOW, 5, WHY, 0.0), after_failure(None, WHY, 0.0)

    assert ("Ready", "", None) == tuple(getattr(shown("s", None, OPEN_WINDOW, 1, 0.0), name) for name in ("state", "reply", "sessions_max"))
    assert ("Limited", 5) == (shown("s", None, limited, 5, 0.0).state, shown("s", None, limited, 5, 0.0).sessions_max)
    refused = shown("s", trouble, limited, 0, 20.0)
    assert ("Refused", str(WHY), 20.0, PROBE_SECONDS - 20.0) == (
        refused.state,
        refused.reply,
        refused.refused_seconds_ago,
        refused.probe_seconds,
    )


def test_where_the_limit_is_used_up_by_others_one_connection_is_tried_nevertheless():
    window = after_refused_session(OPEN_WINDOW, 1, WHY, 0.0)

    assert 1 == openings(window, 20, 0, 0, 15, 1.0)[0]
